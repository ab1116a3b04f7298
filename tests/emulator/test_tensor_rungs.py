"""The tensor-core rungs on inputs that are not usual: what they say of them holds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from emulator.support import FIRST_COMPILER, PLANTED, RUNGS, needs_compiler
from ladder.correctness import UNIT_ROUNDOFF
from ladder.emulator import emulate
from ladder.emulator.point import _run
from ladder.manifest import Kernel, Launch, expand, load_all
from project import ROOT

KERNELS = {
    name: kernel
    for name, kernel in load_all(RUNGS).items()
    if kernel.needs_build and kernel.manifest.family == "tensor"
}
ACCURATE = [name for name, kernel in KERNELS.items() if kernel.manifest.accuracy == "fp32"]
Matrix = np.ndarray


def quickest(kernel: Kernel) -> dict[str, int]:
    """The default set with the smallest tile."""
    return min(expand(kernel.manifest.sweep), key=lambda params: params["BM"] * params["BN"])


def product(
    name: str, a: Matrix, b: Matrix, cache: Path, params: dict[str, int] | None = None
) -> Matrix:
    """C as the emulated kernel computes it, without a finding."""
    kernel = KERNELS[name]
    params = params or quickest(kernel)
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
@pytest.mark.parametrize("name", ACCURATE)
def test_infinities_and_nans_stay_in_the_rows_and_columns_that_they_enter(
    name: str, cache: Path
) -> None:
    a, b = uniform(20, 24), uniform(24, 18, seed=2)
    a[5, 7], b[9, 11] = np.inf, -np.inf
    # The NaN of the GPU's arithmetic, and one whose mantissa is all beyond TF32's bits.
    a.view(np.uint32)[8, 1], b.view(np.uint32)[3, 2] = 0x7FFFFFFF, 0x7F800001
    finite = np.ones((20, 18), bool)
    finite[[5, 8], :] = finite[:, [11, 2]] = False
    assert (np.isfinite(product(name, a, b, cache)) == finite).all()


@needs_compiler
@pytest.mark.parametrize("name", ACCURATE)
def test_small_numbers_keep_the_stated_error(name: str, cache: Path) -> None:
    """At 2^-112 that of FP32; far below, 2^-136 for each entry of A, times those of B."""
    a, b = uniform(20, 24), uniform(24, 18, seed=2)
    low = np.sign(a) * (1 + np.abs(a))  # magnitudes of 1 to 2
    assert largest_eta(product(name, low * 2.0**-112, b, cache), low * 2.0**-112, b) < 6
    tiny = (low * 2.0**-130).astype(np.float32)
    exact = tiny.astype(np.float64) @ b.astype(np.float64)
    allowed = 2.0**-136 * np.abs(b).sum(axis=0) + 8 * 2.0**-149
    assert (np.abs(product(name, tiny, b, cache) - exact) <= allowed).all()


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
def test_a_block_takes_several_tiles_and_its_stages_run_on_through_all_of_them(cache: Path) -> None:
    """Uneven shares, and a depth that does not divide into the stages."""
    params = {**quickest(KERNELS["24_wgmma"]), "WORKERS": 2}
    draw = np.random.default_rng(1)
    a, b = (draw.integers(-4, 5, shape).astype(np.float32) for shape in ((70, 104), (104, 260)))
    assert (product("24_wgmma", a, b, cache, params) == a.astype(np.float64) @ b).all()


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
@pytest.mark.parametrize("loss", [0.72, 1.57, 3.05])
def test_what_is_cut_off_on_average_is_given_back_on_average(loss: float, cache: Path) -> None:
    draw = np.random.default_rng(4)
    magnitudes = np.exp2(draw.uniform(-90, 90, 20_000))
    sums = (magnitudes * draw.choice([-1, 1], magnitudes.size)).astype(np.float32)
    given = made_good(sums, loss, cache).astype(np.float64) - sums
    units = given / (np.abs(sums) * UNIT_ROUNDOFF) * np.sign(sums)
    assert units.mean() == pytest.approx(loss, abs=4 * units.std() / sums.size**0.5)
    assert units.min() >= 0 and units.max() < 2 * loss + 3


@needs_compiler
def test_short_sums_and_those_at_the_ends_of_the_range_are_left_alone(cache: Path) -> None:
    largest = np.finfo(np.float32).max
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, 2.0**-149, -7 * 2.0**-149]
    whole = np.arange(-(2**21), 2**21, 4097)
    sums = np.array([*special, *whole, *(whole * 2.0**-30)], np.float32)
    assert (made_good(sums, 3.13, cache).view(np.uint32) == sums.view(np.uint32)).all()
