"""Tensor-core instructions: layouts of operands, rounding, order in time, counts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from emulator.support import (
    COMPILERS,
    FIRST_COMPILER,
    PLANTED,
    RUNGS,
    each_compiler,
    line_of,
    needs_compiler,
)
from ladder.compile import compiler_problem, run_nvrtc
from ladder.emulator import (
    Compiler,
    EmulationResult,
    EmulatorError,
    TensorMap2D,
    build_library,
    emulate,
    find_compiler,
    sass,
)
from ladder.emulator.compiled import count_program
from ladder.emulator.emulation import Observation, observe
from ladder.manifest import Launch

MMA = PLANTED / "mma_tiles.cu"
WGMMA = PLANTED / "wgmma_tiles.cu"
LAYOUTS = PLANTED / "wgmma_layouts.cu"
INCLUDE = [RUNGS / "include"]
FLOPS = "tensor_core_flops"

OF_TENSOR_CORES = (
    FLOPS,
    "mma_instructions",
    "ldmatrix_instructions",
    "ldmatrix_wavefronts",
    "ldmatrix_conflicts",
)

needs_nvrtc = pytest.mark.skipif(
    compiler_problem() is not None, reason=compiler_problem() or "NVRTC is there"
)
needs_machine_code = pytest.mark.skipif(
    compiler_problem() is not None or sass.find_nvdisasm() is None,
    reason="needs NVRTC and nvdisasm",
)


def small_integers(rows: int, columns: int, seed: int) -> np.ndarray:
    """Exact in TF32 and FP16, as all sums of their products are in FP32."""
    draw = np.random.default_rng(seed)
    return draw.integers(-4, 5, (rows, columns)).astype(np.float32)


def mma(
    m: int,
    n: int,
    k: int,
    cache: Path,
    *,
    half: int,
    ldmatrix: int = 0,
    fault: int = 0,
    inputs: tuple[np.ndarray, np.ndarray] | None = None,
    compiler: Compiler = FIRST_COMPILER,
) -> tuple[EmulationResult, np.ndarray]:
    """Run mma_tiles.cu; its result and the exact product."""
    a, b = inputs or (small_integers(m, k, 1), small_integers(k, n, 2))
    c = np.full((m, n), np.nan, np.float32)
    sizes = {"M": m, "N": n, "K": k, "ldmatrix_": ldmatrix, "fault": fault}
    result = emulate(
        MMA,
        {"HALF": half},
        Launch((n // 8, m // 16, 1), (32, 1, 1), 0),
        m,
        n,
        k,
        a=a,
        b=b,
        c=c,
        arguments={"A": a, "B": b, "C": c, **sizes},
        include=INCLUDE,
        cache=cache,
        compiler=compiler,
    )
    return result, a.astype(np.float64) @ b


@dataclass(frozen=True)
class Tiles:
    """The compile-time side of wgmma_tiles.cu."""

    columns: int = 64
    swizzle: int = 128

    def maps(self, a: np.ndarray, b_transposed: np.ndarray) -> dict[str, TensorMap2D]:
        depth = self.swizzle // 4
        (m, k), n = a.shape, len(b_transposed)
        shared = (depth, f"{self.swizzle}B")
        return {
            "a_tiles": TensorMap2D(a.ravel(), 0, m, k, k, 64, *shared),
            "b_tiles": TensorMap2D(b_transposed.ravel(), 0, n, k, k, self.columns, *shared),
        }


def wgmma(
    m: int,
    n: int,
    k: int,
    cache: Path,
    tiles: Tiles = Tiles(),
    *,
    a_registers: int = 0,
    rounded: int = 0,
    fault: int = 0,
    reverse: bool = False,
    inputs: tuple[np.ndarray, np.ndarray] | None = None,
    compiler: Compiler = FIRST_COMPILER,
) -> tuple[EmulationResult, np.ndarray]:
    """Run wgmma_tiles.cu; its result and the exact product."""
    a, b = inputs or (small_integers(m, k, 1), small_integers(n, k, 2))
    c = np.full((m, n), np.nan, np.float32)
    flags = {"a_registers": a_registers, "rounded": rounded, "fault": fault}
    result = emulate(
        WGMMA,
        {"COLUMNS": tiles.columns, "SWIZZLED": tiles.swizzle},
        Launch((-(-n // tiles.columns), -(-m // 64), 1), (160, 1, 1), 0),
        m,
        n,
        k,
        a=a,
        b=b,
        c=c,
        arguments={**tiles.maps(a, b), "C": c, "M": m, "N": n, "K": k, **flags},
        include=INCLUDE,
        cache=cache,
        compiler=compiler,
        reverse=reverse,
    )
    return result, a.astype(np.float64) @ b.T


def found(result: EmulationResult) -> set[tuple[str, int]]:
    return {(item.kind, item.line) for item in result.findings}


# --- one warp -------------------------------------------------------------------------------------


@needs_compiler
@each_compiler
@pytest.mark.parametrize(("half", "ldmatrix"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_fragments_lie_where_the_instruction_has_them(
    half: int, ldmatrix: int, compiler: Compiler, cache: Path
) -> None:
    result, exact = mma(32, 24, 48, cache, half=half, ldmatrix=ldmatrix, compiler=compiler)
    assert not result.findings and np.array_equal(result.c, exact)
    assert result.counters[FLOPS] == 2 * 32 * 24 * 48
    assert result.counters["mma_instructions"] == 2 * 3 * 48 // (16 if half else 8)


@needs_compiler
def test_a_tensor_core_ignores_the_low_bits_of_tf32_operands(cache: Path) -> None:
    draw = np.random.default_rng(3)
    a, b = (draw.uniform(-1, 1, shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
    result, _ = mma(16, 8, 16, cache, half=0, inputs=(a, b))
    cut_a, cut_b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    assert np.abs(result.c - cut_a.astype(np.float64) @ cut_b).max() < 1e-6
    assert np.abs(result.c - a.astype(np.float64) @ b).max() > 1e-4


@needs_compiler
def test_fp16_operands_are_rounded_to_nearest_even_and_overflow(cache: Path) -> None:
    values = [1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 2**-24, 2**-25, 1.5 * 2**-24, -(2**-15)]
    a = np.zeros((16, 16), np.float32)
    a[:8, 0] = values
    b = np.zeros((16, 8), np.float32)
    b[0, 0] = 1
    result, _ = mma(16, 8, 16, cache, half=1, inputs=(a, b))
    with np.errstate(over="ignore"):
        expected = a[:, 0].astype(np.float16).astype(np.float32)
    assert np.array_equal(result.c[:, 0], expected)


@needs_compiler
def test_ldmatrix_is_counted_apart_from_loads_by_rows_of_16_bytes(cache: Path) -> None:
    plain, _ = mma(16, 8, 32, cache, half=0)
    result, _ = mma(16, 8, 32, cache, half=0, ldmatrix=1)
    assert "ldmatrix_instructions" not in plain.counters
    assert result.counters["ldmatrix_instructions"] == 4
    # four matrices of eight rows, which the padding puts in different banks
    assert result.counters["ldmatrix_wavefronts"] == 4 * 4
    assert result.counters["ldmatrix_conflicts"] == 0
    loads = "smsp__sass_inst_executed_op_shared_ld.sum"
    assert plain.counters[loads] - result.counters[loads] == 4 * 4


@needs_compiler
@pytest.mark.parametrize(
    ("half", "ldmatrix", "fault", "kind", "mark"),
    [
        (0, 0, 1, "divergent_warp", "// fault 1:"),
        (0, 0, 2, "divergent_warp", "// the product"),
        (1, 1, 3, "misaligned", "// loads A, FP16"),
        (0, 1, 4, "race", "// loads A, TF32"),
    ],
)
def test_a_fault_around_a_product_is_found_where_it_is(
    half: int, ldmatrix: int, fault: int, kind: str, mark: str, cache: Path
) -> None:
    result, _ = mma(16, 8, 16, cache, half=half, ldmatrix=ldmatrix, fault=fault)
    line = line_of(MMA, mark)
    mentioned = found(result) | {(x.kind, x.other_line) for x in result.findings}
    assert (kind, line) in mentioned, [str(item) for item in result.findings]


# --- warpgroups -----------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("tiles", "a_registers", "rounded"),
    [
        (Tiles(), 0, 0),
        (Tiles(), 1, 1),
        (Tiles(128, 64), 0, 1),
        (Tiles(192, 64), 1, 0),
        (Tiles(256, 32), 0, 0),
    ],
    ids=str,
)
def test_a_pipeline_of_tiles_is_right_in_any_order_of_its_warps(
    tiles: Tiles, a_registers: int, rounded: int, cache: Path
) -> None:
    m, n, k = 100, 2 * tiles.columns - 8, 76
    for reverse in (False, True):
        result, exact = wgmma(
            m, n, k, cache, tiles, a_registers=a_registers, rounded=rounded, reverse=reverse
        )
        assert not result.findings and result.completed
        assert np.array_equal(result.c, exact)
    depth = -(-k // (tiles.swizzle // 4)) * (tiles.swizzle // 4)  # zeros beyond K count
    assert result.counters[FLOPS] == 2 * 128 * 2 * tiles.columns * depth
    assert result.counters["wgmma_instructions"] == 2 * 2 * 4 * depth // 8


@needs_compiler
@pytest.mark.skipif(len(COMPILERS) < 2, reason="one compiler alone")
def test_another_compiler_gives_the_same(cache: Path) -> None:
    first, exact = wgmma(64, 64, 64, cache)
    other, _ = wgmma(64, 64, 64, cache, compiler=find_compiler(COMPILERS[1]))
    assert not other.findings and np.array_equal(other.c, exact)
    assert other.counters[FLOPS] == first.counters[FLOPS]


@needs_compiler
def test_rounding_before_a_product_is_more_accurate_than_what_the_tensor_core_cuts_off(
    cache: Path,
) -> None:
    draw = np.random.default_rng(5)
    inputs = tuple(draw.uniform(0, 1, (64, 64)).astype(np.float32) for _ in range(2))
    errors = [
        abs(float(np.mean(result.c - exact)))
        for rounded in (0, 1)
        for result, exact in [wgmma(64, 64, 64, cache, rounded=rounded, inputs=inputs)]
    ]
    assert errors[1] < 0.6 * errors[0]  # of A alone: B is cut off in both


FAULTS: dict[int, list[tuple[str, str]]] = {
    1: [("uninitialised_read", "// the product")],
    2: [("in_flight", "// fault 2:")],
    3: [("race", "// copy of A"), ("race", "// copy of B")],
    4: [("missing_fence", "// the product")],
    5: [("missing_fence", "// the product")],
    6: [("misaligned", "// copy of B"), ("misaligned", "// the product")],
    7: [("divergent_warp", "// the product")],
    8: [("in_flight", "// the product")],
    9: [("out_of_bounds", "// the product")],
    10: [("race", "// fault 10:")],
    11: [("in_flight", "// fault 11")],
    13: [("race", "// copy of A")],
}
"""What each fault must be found as, and at which line."""


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_warpgroup_is_found_where_it_is(fault: int, cache: Path) -> None:
    result, _ = wgmma(
        64, 64, 128, cache, rounded=int(fault == 5), a_registers=int(fault == 13), fault=fault
    )
    for kind, mark in FAULTS[fault]:
        assert (kind, line_of(WGMMA, mark)) in found(result), [str(x) for x in result.findings]


@needs_compiler
def test_a_copy_that_is_awaited_by_nobody_is_not_there_yet(cache: Path) -> None:
    result, _ = wgmma(64, 64, 64, cache, fault=1, reverse=True)  # the producer goes first
    assert ("in_flight", line_of(WGMMA, "// the product")) in found(result)


@needs_compiler
def test_a_fence_serves_on_either_side_of_the_barrier(cache: Path) -> None:
    result, exact = wgmma(64, 64, 64, cache, rounded=1, fault=12)
    assert not result.findings and np.array_equal(result.c, exact)


def layouts(cache: Path, **flags: int) -> tuple[Observation, bool]:
    """Run wgmma_layouts.cu; what it showed, and whether the product is exact."""
    a, b = small_integers(64, 64, 1), small_integers(64, 64, 2)
    c = np.full((64, 64), np.nan, np.float32)
    library = build_library(LAYOUTS, {}, include=INCLUDE, cache=cache)
    names = ("width", "a_transposed", "b_transposed", "a_registers", "fault")
    arguments = {"A": a, "B": b, "C": c, **{name: flags.get(name, 0) for name in names}}
    seen = observe(library, Launch((1, 1, 1), (128, 1, 1), 0), arguments)
    return seen, np.array_equal(c, a @ b)


@needs_compiler
def test_every_layout_of_operands_is_read_as_the_descriptor_says(cache: Path) -> None:
    for width, a_transposed, b_transposed, a_registers in itertools.product(
        (0, 32, 64, 128), (0, 1), (0, 1), (0, 1)
    ):
        seen, exact = layouts(
            cache,
            width=width,
            a_transposed=a_transposed,
            b_transposed=b_transposed,
            a_registers=a_registers,
        )
        where = (width, a_transposed, b_transposed, a_registers)
        assert not seen.findings, (where, [str(item) for item in seen.findings])
        assert exact, where


@needs_compiler
def test_a_barrier_of_the_block_ends_no_product(cache: Path) -> None:
    seen, _ = layouts(cache, width=128, fault=1)
    (race,) = seen.findings
    assert (race.kind, race.line) == ("race", line_of(LAYOUTS, "// fault: still"))


# --- the same files are CUDA ----------------------------------------------------------------------


def compiled(source: Path, macros: Mapping[str, int], architecture: str) -> bytes:
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={INCLUDE[0]}"]
    options += [f"--define-macro={name}={value}" for name, value in macros.items()]
    cubin, log = run_nvrtc(source.read_text(), source.name, options)
    assert cubin, log
    return cubin


@needs_compiler
@needs_machine_code
@pytest.mark.parametrize(("half", "architecture"), [(0, "sm_80"), (1, "sm_90a"), (1, "sm_120")])
def test_the_machine_code_counts_as_the_source_does(
    half: int, architecture: str, cache: Path
) -> None:
    program = sass.load(compiled(MMA, {"HALF": half}, architecture), "gemm")
    pointer = np.zeros(1, np.float32)
    for ldmatrix in (0, 1):
        counted = count_program(
            program, (3, 2, 1), (32, 1, 1), [pointer] * 3 + [32, 24, 48, ldmatrix, 0]
        )
        seen, _ = mma(32, 24, 48, cache, half=half, ldmatrix=ldmatrix)
        ours = {name: seen.counters[name] for name in OF_TENSOR_CORES if name in seen.counters}
        assert FLOPS in ours
        assert ours == {name: counted.counters[name] for name in ours}


@needs_machine_code
def test_what_the_machine_code_of_a_warpgroup_does_not_tell_is_said() -> None:
    pipeline = sass.load(compiled(WGMMA, {"COLUMNS": 192, "SWIZZLED": 64}, "sm_90a"), "gemm")
    with pytest.raises(EmulatorError, match="it has mbarriers"):
        count_program(pipeline, (1, 1, 1), (160, 1, 1), [])
    layouts = sass.load(compiled(LAYOUTS, {"ONLY": 64}, "sm_90a"), "gemm")
    with pytest.raises(EmulatorError, match=r"it has products of warpgroups \(HGMMA\)"):
        count_program(layouts, (1, 1, 1), (128, 1, 1), [])


@needs_nvrtc
def test_wgmma_for_another_target_is_refused_in_words() -> None:
    options = ["--gpu-architecture=sm_100a", "--std=c++17", f"--include-path={INCLUDE[0]}"]
    cubin, log = run_nvrtc('#include "wgmma.cuh"', "k.cu", options)
    assert cubin is None and "exist for sm_90a only" in log
