"""The shipped rungs: right at every shape of the matrices, and with the traffic they claim."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.support import RUNGS, needs_compiler
from ladder.compile import compile_build, compiler_problem
from ladder.emulator import sass
from ladder.emulator.compiled import FFMA, INSTRUCTIONS, count_gemm
from ladder.emulator.point import EmulatedPoint, emulate_point
from ladder.emulator.result import (
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    GLOBAL_STORE_REQUESTS,
    GLOBAL_STORE_SECTORS,
)
from ladder.manifest import Kernel, TensorMapsLaunch, expand, load_all, parameter_fault, slug
from ladder.status import Status
from ladder.theory import theory

pytestmark = needs_compiler

LADDER = {
    name: kernel
    for name, kernel in load_all(RUNGS).items()
    if kernel.needs_build and kernel.manifest.emulator
}
EVERY_SET = [
    pytest.param(name, params, id=f"{name}-{slug(params)}")
    for name, kernel in LADDER.items()
    for params in expand(kernel.manifest.sweep)
]
FIRST_SETS = [
    pytest.param(name, next(expand(kernel.manifest.sweep)), id=name)
    for name, kernel in LADDER.items()
]
EDGES = [(65, 129, 33), (1, 1, 1), (3, 200, 5), (130, 4, 68), (257, 1, 17)]
"""M, N, K: over, under and beside every tile, with rows that are quads and rows that are not."""


@functools.cache
def _emulated(name: str, params: str, size: tuple[int, int, int], cache: Path) -> EmulatedPoint:
    kernel = LADDER[name]
    chosen = next(p for p in expand(kernel.manifest.sweep) if slug(p) == params)
    return emulate_point(kernel, chosen, *size, cache=cache)


def assert_equal_to_theory(point: EmulatedPoint) -> int:
    """Every closed form that has a value is what was counted; returns how many were compared."""
    assert point.result is not None
    counted = {**point.result.counters, **point.ratios}
    compared = 0
    for item in theory(LADDER[point.kernel], point.params, point.m, point.n, point.k):
        # Requests of lanes whose loops differ in length are not matched; their bytes are right.
        sure = point.result.inexact is None or item.metric.startswith("requested_")
        if item.value is None or not sure or item.metric not in {*counted, *MAY_BE_ABSENT}:
            continue
        where = (point.kernel, dict(point.params), point.m, point.n, point.k, item.metric)
        assert counted.get(item.metric, 0) == pytest.approx(item.value, rel=1e-12), where
        compared += 1
    return compared


MAY_BE_ABSENT = (
    "tma_load_bytes",
    "tma_load_sectors",
    "cluster_load_bytes",
    "tensor_core_flops",
    "mma_instructions",
    "wgmma_instructions",
    "ldmatrix_instructions",
)
"""Counted only where a kernel has such: a closed form that says so elsewhere is wrong."""


def tile(params: Mapping[str, int]) -> tuple[int, int, int]:
    """Rows and columns of C per block, and the depth of a step along k."""
    side = params.get("TILE")
    rows = params.get("BM") or side or params.get("BLOCK_Y") or params["WARPS"]
    columns = params.get("BN") or side or params.get("BLOCK_X") or 32
    return rows, columns, params.get("BK") or side or 8


@pytest.mark.parametrize(("name", "params"), EVERY_SET)
def test_a_rung_is_right_at_the_edges_and_asks_for_what_its_closed_forms_say(
    name: str, params: dict[str, int], cache: Path
) -> None:
    for size in EDGES:
        point = _emulated(name, slug(params), size, cache)
        assert point.status is Status.OK, (size, point.detail)
        assert point.result is not None
        assert not point.result.findings, size
        assert assert_equal_to_theory(point) >= 1, "a rung states its traffic"
    rows, columns, depth = tile(params)
    size = rows, 2 * columns, 3 * depth
    assert [form for form in theory(LADDER[name], params, *size) if form.value is None] == []
    assert_equal_to_theory(_emulated(name, slug(params), size, cache))


DRAWN = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96)
"""Values for parameters that have no list: powers of two, and what is none."""


def drawn_params(kernel: Kernel, chance: random.Random) -> dict[str, int]:
    """A parameter set that the manifest allows, with tiles small enough to be quick."""
    while True:
        params = {
            name: chance.choice(
                parameter.values or [v for v in DRAWN if parameter.violation(v) is None]
            )
            for name, parameter in sorted(kernel.manifest.parameters.items())
        }
        launch = kernel.launch(params, 64, 64, 64)
        assert launch is not None and parameter_fault(kernel.manifest, params) is None
        small = launch.threads <= 512 and launch.dynamic_shared_memory_bytes <= 2**17
        if small and kernel.violated_constraint(params) is None:
            return params


SAME_FORMS = {"21_tf32", "22_3xtf32"}
"""Rungs whose closed forms are those of 23_promoted, which stands for them."""


@pytest.mark.parametrize("name", [name for name in LADDER if name not in SAME_FORMS])
def test_closed_forms_are_what_the_emulator_counts(name: str, cache: Path) -> None:
    """Of any parameters and size: whole tiles, and sizes that fit nothing."""

    helped = isinstance(LADDER[name].manifest.launch, TensorMapsLaunch)  # three libraries a set

    @settings(max_examples=1 if helped else 2, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        chance = random.Random(f"{name} {seed}")
        params = drawn_params(LADDER[name], chance)
        whole = tuple(side * chance.randint(1, 3) for side in tile(params))
        ragged = tuple(chance.randint(1, 3 * side) for side in (16, 16, 8))
        for size in (whole, ragged):
            point = emulate_point(LADDER[name], params, *size, cache=cache)
            assert point.status is Status.OK, (params, size, point.detail)
            assert_equal_to_theory(point)

    holds()


@pytest.mark.parametrize(("name", "params"), FIRST_SETS)
def test_a_rung_gives_the_bits_of_a_sum_along_k_in_order(
    name: str, params: dict[str, int], cache: Path
) -> None:
    """All FP32 rungs but those that split k add in one order, so the ladder agrees bit by bit."""
    size = (65, 129, 33)
    first = next(iter(LADDER))
    reference = _emulated(first, slug(next(expand(LADDER[first].manifest.sweep))), size, cache)
    same = _emulated(name, slug(params), size, cache).bitwise_hash == reference.bitwise_hash
    assert same == (name not in SPLITS_K and LADDER[name].manifest.family == "fp32")


SPLITS_K = {"13_split_k", "14_stream_k"}

LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
LOADS = "smsp__sass_inst_executed_op_shared_ld.sum"
LOAD_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
WHOLE = (256, 256, 64)
"""A multiple of every tile."""


def counters(name: str, cache: Path, **wanted: int) -> dict[str, int]:
    """Counters at WHOLE of the first set of a sweep that has the wanted values."""
    for params in expand(LADDER[name].manifest.sweep):
        if all(params[key] == value for key, value in wanted.items()):
            result = _emulated(name, slug(params), WHOLE, cache).result
            assert result is not None
            return result.counters
    raise AssertionError(f"{name} has no set with {wanted}")


def test_vector_loads_conflict_and_the_layout_of_the_next_rung_does_not(
    cache: Path,
) -> None:
    before = counters("06_vector_loads", cache, BM=128, BK=8)
    assert before[LOAD_CONFLICTS] > 0
    assert before[STORE_CONFLICTS] > 0
    padded = counters("07_conflict_free", cache, BK=8, SWIZZLE=0)
    assert padded[LOAD_CONFLICTS] == padded[STORE_CONFLICTS] == 0


def test_padding_serves_a_depth_of_eight_only_and_the_swizzle_every_depth(
    cache: Path,
) -> None:
    assert counters("07_conflict_free", cache, BK=16, SWIZZLE=0)[STORE_CONFLICTS] > 0
    swizzled = counters("07_conflict_free", cache, BK=16, SWIZZLE=1)
    assert swizzled[LOAD_CONFLICTS] == swizzled[STORE_CONFLICTS] == 0


def test_lanes_that_share_their_quads_need_half_the_passes(cache: Path) -> None:
    strip = counters("07_conflict_free", cache, BK=8, SWIZZLE=0)
    compact = counters("08_warp_tile", cache, BM=128, BK=8)
    assert strip[LOADS] == compact[LOADS]
    # A strip of 2 x 16 threads: broadcasts of A take two passes, quads of B four.
    assert strip[LOAD_WAVEFRONTS] == 3 * strip[LOADS]
    assert compact[LOAD_WAVEFRONTS] == 2 * compact[LOADS]


@pytest.mark.parametrize("name", ["09_double_buffer", "10_cp_async", "11_raster"])
def test_no_rung_above_loses_the_conflict_free_layout(name: str, cache: Path) -> None:
    counted = counters(name, cache, TM=8, TN=8)
    assert counted[LOAD_CONFLICTS] == counted.get(STORE_CONFLICTS, 0) == 0
    assert counted[LOAD_WAVEFRONTS] == 2 * counted[LOADS]


def test_a_column_and_then_a_tile_per_thread_save_shared_loads(cache: Path) -> None:
    """Lanes' loads per multiply-add: 2, then (TM + 1) / TM, then 1 / TM + 1 / TN."""
    fmas = WHOLE[0] * WHOLE[1] * WHOLE[2]
    loads = {
        "03_shared_tile": (counters("03_shared_tile", cache, TILE=32), 2.0),
        "04_register_column": (counters("04_register_column", cache, TM=16), 17 / 16),
        "05_register_tile": (counters("05_register_tile", cache, BM=128), 1 / 4),
        "06_vector_loads": (counters("06_vector_loads", cache, BM=128, BK=8), 1 / 16),
    }
    for name, (counted, per_fma) in loads.items():
        assert 32 * counted[LOADS] == per_fma * fmas, name


FOLLOWED = [case for case in FIRST_SETS if case.id < "12"]
"""Rungs whose machine code waits for nobody: it can be counted."""


@pytest.mark.skipif(
    compiler_problem() is not None or sass.find_nvdisasm() is None,
    reason="needs NVRTC and nvdisasm",
)
@pytest.mark.parametrize(("name", "params"), FOLLOWED)
def test_the_machine_code_asks_global_memory_for_what_the_source_asks(
    name: str, params: dict[str, int], cache: Path
) -> None:
    """At a ragged size, where predicates decide what is loaded: two ways to the same integers."""
    size = EDGES[0]
    result = _emulated(name, slug(params), size, cache).result
    launch = LADDER[name].launch(params, *size)
    _, cubin = compile_build(LADDER[name], params, "sm_90a")
    assert result is not None and launch is not None
    compiled = count_gemm(sass.load(cubin), launch.grid, launch.block, *size).counters
    for metric in (
        GLOBAL_LOAD_REQUESTS,
        GLOBAL_LOAD_SECTORS,
        GLOBAL_STORE_REQUESTS,
        GLOBAL_STORE_SECTORS,
    ):
        assert compiled[metric] == result.counters[metric], metric
    forms = {item.metric: item.value for item in theory(LADDER[name], params, *size)}
    if forms[FFMA] is not None:  # multiply-adds, of which the emulator knows nothing
        assert compiled[FFMA] == forms[FFMA]
    assert compiled[INSTRUCTIONS] > compiled[FFMA] / 32
