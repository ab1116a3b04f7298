"""The tensor-core rungs on inputs that are not usual: what they say of them holds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from emulator.support import FIRST_COMPILER, PLANTED, RUNGS, needs_compiler
from ladder import tensor_maps
from ladder.correctness import UNIT_ROUNDOFF
from ladder.emulator import emulate
from ladder.emulator.library import build_library
from ladder.emulator.point import _help, _run
from ladder.manifest import Kernel, Launch, TensorMaps, expand, load_all
from project import ROOT

KERNELS = {
    name: kernel
    for name, kernel in load_all(RUNGS).items()
    if kernel.needs_build and kernel.manifest.family == "tensor"
}
ACCURATE = [name for name, kernel in KERNELS.items() if kernel.manifest.accuracy == "fp32"]
WAYS: list[tuple[str, dict[str, int]]] = [
    *((name, {"COMPENSATE": kept}) for name in ACCURATE for kept in (0, 1)),
    ("24_wgmma", {"PROMOTE": 1, "COMPENSATE": 1}),
    *(("24_wgmma", {"F16": 1, "COMPENSATE": kept}) for kept in (0, 1)),
]
"""Kernels with parameters that change their sums."""
Matrix = np.ndarray


def quickest(kernel: Kernel) -> dict[str, int]:
    """The default set with the smallest tile."""
    return min(expand(kernel.manifest.sweep), key=lambda params: params["BM"] * params["BN"])


def product(
    name: str, a: Matrix, b: Matrix, cache: Path, params: dict[str, int] | None = None
) -> Matrix:
    """C as the emulated kernel computes it, without a finding; `params` replace some of its own."""
    kernel = KERNELS[name]
    params = quickest(kernel) | (params or {})
    shape = a.shape[0], b.shape[1], a.shape[1]
    launch = kernel.launch(params, *shape)
    assert kernel.source_path is not None and launch is not None
    c = np.full(shape[0] * shape[1], np.nan, np.float32)
    result = _run(
        kernel.source_path,
        params,
        launch,
        shape,
        (a.astype(np.float32).ravel(), b.astype(np.float32).ravel(), c),
        checks=True,
        sample=False,
        compiler=None,
        cache=cache,
    )
    assert not result.findings
    return result.c.reshape(shape[:2])


def largest_eta(c: Matrix, a: Matrix, b: Matrix) -> float:
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    return float((np.abs(c - exact) / np.maximum(UNIT_ROUNDOFF * scale, 1e-300)).max())


def uniform(*shape: int, seed: int = 1) -> Matrix:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def words(text: str) -> str:
    return " ".join(re.sub(r"^//", "", text, flags=re.MULTILINE).split())


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "21_tf32"])
def test_a_rung_says_in_one_sentence_everywhere_what_it_does_not_promise(name: str) -> None:
    kernel = KERNELS[name]
    limits = kernel.manifest.limits
    assert limits is not None and kernel.source_path is not None
    assert limits in words(kernel.source_path.read_text())
    assert limits in words((ROOT / "docs/tensor_cores.md").read_text())


@needs_compiler
@pytest.mark.parametrize(("name", "params"), WAYS)
def test_infinities_and_nans_stay_in_the_rows_and_columns_that_they_enter(
    name: str, params: dict[str, int], cache: Path
) -> None:
    a, b = uniform(20, 24), uniform(24, 18, seed=2)
    a[5, 7], b[9, 11] = np.inf, -np.inf
    # The NaN of the GPU's arithmetic, and one whose mantissa is all beyond TF32's bits.
    a.view(np.uint32)[8, 1], b.view(np.uint32)[3, 2] = 0x7FFFFFFF, 0x7F800001
    finite = np.ones((20, 18), bool)
    finite[[5, 8], :] = finite[:, [11, 2]] = False
    assert (np.isfinite(product(name, a, b, cache, params)) == finite).all()


@needs_compiler
@pytest.mark.parametrize(("name", "params"), WAYS)
def test_small_numbers_keep_the_stated_error(
    name: str, params: dict[str, int], cache: Path
) -> None:
    """At 2^-112 that of FP32; far below, 2^-136 for each entry of A, times those of B."""
    a, b = uniform(20, 24), uniform(24, 18, seed=2)
    low = np.sign(a) * (1 + np.abs(a))  # magnitudes of 1 to 2
    small = low * np.float32(2.0**-112)
    assert largest_eta(product(name, small, b, cache, params), small, b) < 6
    tiny = (low * 2.0**-130).astype(np.float32)
    exact = tiny.astype(np.float64) @ b.astype(np.float64)
    allowed = 2.0**-136 * np.abs(b).sum(axis=0) + 8 * 2.0**-149
    assert (np.abs(product(name, tiny, b, cache, params) - exact) <= allowed).all()


@needs_compiler
@pytest.mark.parametrize(
    "case", ["misfits", "both factors are misfits", "scales", "two misfits", "wide", "zeros"]
)
def test_what_does_not_fit_fp16_is_made_good_in_fp32(case: str, cache: Path) -> None:
    a, b = uniform(66, 70), uniform(70, 130, seed=2)
    if case == "misfits":
        a[3, 5], a[7, 9], b[11, 4], b[5, 8] = 2.0**-40, 2.0**-50, 2.0**-45, 1e-20
    elif case == "both factors are misfits":  # C[3, 8] has their product and nothing else
        a[3, 5], a[3, 6] = 2.0**-40, 0.0
        b[:] = 0.0
        b[5, :] = 1.0
        b[5, 8], b[6, 8] = 2.0**-40, 1.0
    elif case == "scales":
        a, b = a * np.float32(2.0**100), b * np.float32(2.0**-90)
    elif case == "two misfits":
        a[3, 5], a[3, 6] = 2.0**-40, 2.0**-41
    elif case == "wide":
        exponents = np.random.default_rng(3).uniform(-20, 20, a.shape)
        a = (np.sign(a) * np.exp2(exponents)).astype(np.float32)
    else:
        a[0], b[:, 1] = 0.0, 0.0
    assert largest_eta(product("25_fp16_split", a, b, cache), a, b) < 8


@needs_compiler
@pytest.mark.parametrize("edges", ["by fours", "ragged"])
@pytest.mark.parametrize(
    "case", ["usual", "A is wide", "B is wide", "scales", "changes", "beyond", "zeros", "infinity"]
)
def test_tiles_beyond_the_range_of_fp16_are_multiplied_in_tf32(
    case: str, edges: str, cache: Path
) -> None:
    """By tiles of 32 along k, so a product has tiles of both kinds."""
    k, n = (72, 132) if edges == "by fours" else (70, 133)
    a, b = uniform(66, k), uniform(k, n, seed=2)
    if case == "A is wide":  # only the small element's product is there to be wrong
        a[3, 32:64], a[3, 40] = 0.0, 2.0**-40
        a[5, 33] = 1.0
    elif case == "B is wide":
        b[32:64, 8], b[40, 8] = 0.0, 2.0**-40
        b[33, 9] = 1.0
    elif case == "scales":
        a, b = a * np.float32(2.0**30), b * np.float32(2.0**-35)
    elif case == "changes":
        a[:, 32:64] *= np.float32(2.0**20)
        a[:, 64:] *= np.float32(2.0**-35)
    elif case == "beyond":
        a[:, 32:64] *= np.float32(2.0**70)
        b[64:] *= np.float32(2.0**-60)
    elif case == "zeros":
        a[0], b[:, 1] = 0.0, 0.0
        a[:, 32:64] = 0.0
        b[64:] = 0.0
    elif case == "infinity":
        a[3, 40] = np.inf
    c = product("24_wgmma", a, b, cache, {"F16": 1})
    if case == "infinity":
        assert not np.isfinite(c[3]).any()
        a, c = np.delete(a, 3, axis=0), np.delete(c, 3, axis=0)
    assert largest_eta(c, a, b) < 6


@needs_compiler
@pytest.mark.parametrize("matrix", ["A", "B"])
def test_shifts_bring_the_tiles_that_fit_to_the_range_of_fp16(matrix: str, cache: Path) -> None:
    """At ragged edges, with zeros, a tile of zeros alone, and infinities."""
    rows, columns, tile_rows = 150, 300, 64
    draw = np.random.default_rng(5)
    x = draw.uniform(-1, 1, (rows, columns)).astype(np.float32)
    x[draw.random(x.shape) < 0.1] = 0.0
    x[:64] *= np.float32(2.0**40)
    x[64:128, :128], x[3, 290], x[140, 0], x[130, 140:] = 0.0, -np.inf, 2.0**-40, 2.0**-29
    x[149, 299] = 0.75
    of_a = TensorMaps((32, tile_rows), (32, 32), False, f16_shifts=True)
    of_b = TensorMaps((32, 32), (32, tile_rows), False, f16_shifts=True)
    if matrix == "A":
        mapped, width = tensor_maps.mapped_matrices(of_a, rows, 4, columns)[0], 32
    else:
        mapped, width = tensor_maps.mapped_matrices(of_b, 4, columns, rows)[1], 128
    assert mapped.shifts is not None
    found = np.zeros(mapped.shifts_bytes // 4, np.float32)
    library = build_library(
        RUNGS / "24_wgmma.cu",
        quickest(KERNELS["24_wgmma"]),
        entry=mapped.shifts.entry,
        compiler=FIRST_COMPILER,
        cache=cache,
    )
    assert not _help(library, mapped.shifts, mapped, x.ravel(), found, checks=True).findings
    across = -(-columns // width)
    shifts = found.view(np.int32)[: 3 * across].reshape(3, across)
    for (down, tile), shift in np.ndenumerate(shifts):
        own = np.abs(x[down * tile_rows : (down + 1) * tile_rows, tile * width :][:, :width])
        nonzero = own[own > 0].astype(np.float64)
        if nonzero.size == 0:
            assert shift == 0
            continue
        _, top = np.frexp(nonzero.max())  # 0.5 to 1 times 2^top
        _, bottom = np.frexp(nonzero.min())
        fits = np.isfinite(nonzero).all() and -39 <= top <= 61 and bottom >= top - 28
        assert shift == (15 - top if fits else 1 << 20)
    assert 0 < (shifts < 1 << 20).sum() < shifts.size


@needs_compiler
@pytest.mark.parametrize("name", ACCURATE)
def test_compensated_sums_keep_what_rounding_takes(name: str, cache: Path) -> None:
    """On terms of one sign the error of plain sums grows with their number.

    The emulator rounds where a tensor core cuts off, so what is given back is an error there.
    """
    draw = np.random.default_rng(7)
    a, b = (draw.random(shape, np.float32) for shape in ((64, 2048), (2048, 32)))
    plain, kept = (
        largest_eta(product(name, a, b, cache, {"COMPENSATE": choice}), a, b) for choice in (0, 1)
    )
    assert kept < 5 and kept < 0.5 * plain


@needs_compiler
def test_fp32_sums_of_lines_beyond_fp16_are_compensated(cache: Path) -> None:
    draw = np.random.default_rng(7)
    a, b = (draw.random(shape, np.float32) for shape in ((64, 2048), (2048, 32)))
    a[:, :2] = 2.0**-60, 2.0**-61  # two misfits in each row
    for choice in (0, 1):
        assert largest_eta(product("25_fp16_split", a, b, cache, {"COMPENSATE": choice}), a, b) < 3


def made_good(sums: Matrix, loss: float, cache: Path) -> Matrix:
    """The sums as truncation.cuh gives them back."""
    result = emulate(
        PLANTED / "truncation.cu",
        {},
        Launch((-(-sums.size // 128), 1, 1), (128, 1, 1), 0),
        sums.size,
        1,
        1,
        a=sums,
        b=np.array([loss], np.float32),
        include=[RUNGS / "include"],
        cache=cache,
        compiler=FIRST_COMPILER,
    )
    assert not result.findings
    return result.c.ravel()


@needs_compiler
@pytest.mark.parametrize("loss", [0.7, 2.07, 3.1])
def test_what_is_cut_off_on_average_is_given_back_on_average(loss: float, cache: Path) -> None:
    draw = np.random.default_rng(4)
    magnitudes = np.exp2(draw.uniform(-90, 90, 20_000))
    sums = (magnitudes * draw.choice([-1, 1], magnitudes.size)).astype(np.float32)
    given = made_good(sums, loss, cache).astype(np.float64) - sums
    units = given / (np.abs(sums) * UNIT_ROUNDOFF) * np.sign(sums)
    assert units.mean() == pytest.approx(loss, abs=4 * units.std() / sums.size**0.5)
    assert units.min() >= 0 and units.max() < 2 * loss + 3


@needs_compiler
@pytest.mark.parametrize("halfway", [0.25, 0.5])
def test_sums_that_were_rounded_to_even_get_no_less(halfway: float, cache: Path) -> None:
    """Sums of few terms often fall halfway between two floats, so that most end in a zero bit."""
    draw = np.random.default_rng(6)
    bits = draw.integers(2**23, 2**24, 40_000)
    sums = np.where(draw.random(bits.size) < halfway, bits & ~1, bits).astype(np.float32)
    given = made_good(sums, 3.0, cache).astype(np.float64) - sums
    units = given / (sums * UNIT_ROUNDOFF)
    assert units.mean() == pytest.approx(3.0, abs=0.03 + 3 * units.std() / sums.size**0.5)


@needs_compiler
def test_short_sums_and_those_at_the_ends_of_the_range_are_left_alone(cache: Path) -> None:
    largest = np.finfo(np.float32).max
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, 2.0**-149, -7 * 2.0**-149]
    whole = np.arange(-(2**18), 2**18, 513)
    sums = np.array([*special, *whole, *(whole * 2.0**-30)], np.float32)
    assert (made_good(sums, 3.13, cache).view(np.uint32) == sums.view(np.uint32)).all()
