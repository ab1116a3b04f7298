"""TMA, mbarriers and clusters: right results, exact counts, and every planted fault by its line."""

from __future__ import annotations

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
    Finding,
    TensorMap2D,
    build_library,
    emulate,
    find_compiler,
)
from ladder.emulator.compiled import count_gemm
from ladder.emulator.emulation import observe
from ladder.emulator.sampling import sampling_fault
from ladder.emulator.sass import load
from ladder.manifest import Launch

PIPELINE = PLANTED / "tma_pipeline.cu"
CHAIN = PLANTED / "mbarrier_chain.cu"
CLUSTER = PLANTED / "cluster_split_k.cu"
INCLUDE = [RUNGS / "include"]


def small_integers(rows: int, columns: int, seed: int) -> np.ndarray:
    """Values whose products have exact sums."""
    return np.random.default_rng(seed).integers(-4, 5, (rows, columns)).astype(np.float32)


def padded(matrix: np.ndarray, pitch: int) -> np.ndarray:
    """Flat, rows `pitch` apart; the gaps hold what no result may contain."""
    wide = np.full((len(matrix), pitch), np.nan, np.float32)
    wide[:, : matrix.shape[1]] = matrix
    return wide.ravel()


def pipeline(
    params: dict[str, int],
    m: int,
    n: int,
    k: int,
    cache: Path,
    compiler: Compiler = FIRST_COMPILER,
    *,
    pitches: tuple[int, int] | None = None,
    sample: bool = False,
    reverse: bool = False,
) -> tuple[EmulationResult, np.ndarray]:
    """Run the pipeline; its result and the exact product."""
    a, b = small_integers(m, k, 1), small_integers(k, n, 2)
    c = np.full((m, n), np.nan, np.float32)
    a_pitch, b_pitch = pitches or (k, n)
    arguments = {
        "a_tiles": TensorMap2D(padded(a, a_pitch), 0, m, k, a_pitch, 64, 16),
        "b_tiles": TensorMap2D(padded(b, b_pitch), 0, k, n, b_pitch, 16, 64),
        "C": c,
        "M": m,
        "N": n,
        "K": k,
    }
    result = emulate(
        PIPELINE,
        params,
        Launch((-(-n // 64), -(-m // 64), 1), (160, 1, 1), 0),
        m,
        n,
        k,
        a=a,
        b=b,
        c=c,
        arguments=arguments,
        include=INCLUDE,
        cache=cache,
        compiler=compiler,
        sample=sample,
        reverse=reverse,
    )
    return result, a @ b


# --- TMA and mbarriers ----------------------------------------------------------------------------


@needs_compiler
@each_compiler
@pytest.mark.parametrize("params", [{}, {"STAGES": 2, "EACH_ARRIVES": 1}], ids=str)
def test_a_pipeline_is_right_and_without_a_finding(
    params: dict[str, int], compiler: Compiler, cache: Path
) -> None:
    for reverse in (False, True):
        result, exact = pipeline(params, 128, 64, 112, cache, compiler, reverse=reverse)
        assert not result.findings and result.completed and result.inexact is None
        assert np.array_equal(result.c, exact)


@needs_compiler
def test_tiles_at_the_edge_are_filled_with_zeros_and_counted_by_what_lies_inside(
    cache: Path,
) -> None:
    m, n, k = 131, 77, 45
    result, exact = pipeline({}, m, n, k, cache, pitches=(52, 80))
    assert not result.findings and np.array_equal(result.c, exact)
    row_blocks, column_blocks = 3, 2
    assert result.counters["tma_load_bytes"] == 4 * (m * k * column_blocks + k * n * row_blocks)
    # by address: the pieces of 32 bytes of each box
    assert result.counters["tma_load_sectors"] == column_blocks * sectors(m, k, 52, 64, 16) + (
        row_blocks * sectors(k, n, 80, 16, 64)
    )


def sectors(rows: int, columns: int, pitch: int, box_rows: int, box_columns: int) -> int:
    """Sectors of all boxes of a matrix, each box's counted once."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    box = row // box_rows * 1000 + column // box_columns
    return len({*zip(box.tolist(), ((row * pitch + column) // 8).tolist(), strict=True)})


@needs_compiler
def test_copies_are_counted_apart_from_loads(cache: Path) -> None:
    m, n, k = 128, 64, 112
    result, _ = pipeline({}, m, n, k, cache)
    assert result.counters["tma_load_bytes"] == 4 * (m * k + 2 * k * n)
    assert result.counters["tma_load_sectors"] == (m * k + 2 * k * n) // 8
    assert result.counters["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 0
    assert result.counters["smsp__sass_inst_executed_op_shared_st.sum"] == 0
    # 4 warps in 2 blocks read a quad of B and 8 values of A for each k
    assert result.counters["smsp__sass_inst_executed_op_shared_ld.sum"] == 4 * 2 * 9 * k


@needs_compiler
@pytest.mark.parametrize("checks", [True, False])
def test_checks_and_counts_can_each_be_left_out(checks: bool, cache: Path) -> None:
    a = b = small_integers(64, 64, 1)
    c = np.full((64, 64), np.nan, np.float32)
    tiles = {
        "a": TensorMap2D(a.ravel(), 0, 64, 64, 64, 64, 16),
        "b": TensorMap2D(b.ravel(), 0, 64, 64, 64, 16, 64),
    }
    library = build_library(PIPELINE, {"FAULT": 14}, include=INCLUDE, cache=cache)
    seen = observe(
        library,
        Launch((1, 1, 1), (160, 1, 1), 0),
        {**tiles, "C": c, "M": 64, "N": 64, "K": 64},
        checks=checks,
        trace=not checks,
    )
    assert np.array_equal(c, a @ b)
    assert bool(seen.findings) is checks and ("tma_load_bytes" in seen.counters) is not checks


@needs_compiler
def test_a_sample_counts_as_the_whole_grid_does(cache: Path) -> None:
    whole, _ = pipeline({}, 512, 512, 32, cache)
    sample, _ = pipeline({}, 512, 512, 32, cache, sample=True)
    assert sample.sampled_blocks is not None and sample.sampled_blocks < 64
    assert sample.counters == whole.counters


PIPELINE_FAULTS = {
    2: [("over_arrival", None), ("in_flight", "// copy of A")],
    3: [("race", "// copy of A"), ("race", "// copy of B")],
    4: [("race", "// copy of A"), ("race", "// copy of B")],
    5: [("transaction_count", "// copy of B")],
    6: [("deadlock", "// waits for the copies")],
    7: [("uninitialised_barrier", "// fault 7:")],
    8: [("over_arrival", "// fault 8:")],
    9: [("misaligned", "// fault 9:")],
    10: [("race", "// waits for the copies")],
    11: [("in_flight", "// copy of A"), ("in_flight", "// copy of B")],
    12: [("deadlock", "// fault 12:"), ("deadlock", "// waits for the copies")],
    14: [("race", "// copy of A"), ("race", "// copy of B")],
}
"""What each fault must be found as, and at which line."""


@needs_compiler
@pytest.mark.parametrize(
    ("compiler_name", "fault"),
    [
        (name, fault)
        for name in COMPILERS
        for fault in PIPELINE_FAULTS
        if name == COMPILERS[0] or fault in (4, 14)
    ],
)
def test_a_fault_of_the_pipeline_is_found_where_it_is(
    compiler_name: str, fault: int, cache: Path
) -> None:
    result, _ = pipeline({"FAULT": fault}, 64, 64, 112, cache, find_compiler(compiler_name))
    found = {(item.kind, item.line) for item in result.findings}
    kinds = {item.kind for item in result.findings}
    for kind, mark in PIPELINE_FAULTS[fault]:
        if mark is None:
            assert kind in kinds
        else:
            assert (kind, line_of(PIPELINE, mark)) in found, [str(x) for x in result.findings]


@needs_compiler
@pytest.mark.parametrize("fault", [1, 13], ids=["nobody waits", "one warp does not wait"])
def test_who_does_not_wait_for_a_copy_reads_no_data(fault: int, cache: Path) -> None:
    reads = {line_of(PIPELINE, "// reads A"), line_of(PIPELINE, "// reads B")}
    for reverse, kind in ((False, "uninitialised_read"), (True, "in_flight")):
        result, _ = pipeline({"FAULT": fault}, 64, 64, 112, cache, reverse=reverse)
        assert {(kind, line) for line in reads} <= {(x.kind, x.line) for x in result.findings}
        assert np.isnan(result.c).any(), "what has not landed yet must not look like data"


@needs_compiler
def test_a_race_with_a_copy_names_the_read(cache: Path) -> None:
    result, exact = pipeline({"FAULT": 14}, 64, 64, 112, cache)
    assert np.array_equal(result.c, exact), "found although this run's result is right"
    (of_a,) = (x for x in result.findings if x.line == line_of(PIPELINE, "// copy of A"))
    assert of_a.other_line == line_of(PIPELINE, "// reads A")
    assert "a_tile[0] is read and written by threads 128 and 0" in of_a.message


# --- mbarriers alone ------------------------------------------------------------------------------


def chain(fault: int, cache: Path, reverse: bool) -> tuple[list[Finding], np.ndarray, np.ndarray]:
    library = build_library(CHAIN, {"FAULT": fault}, entry="chain", include=INCLUDE, cache=cache)
    x, y = np.arange(32, dtype=np.float32), np.zeros(64, np.float32)
    launch = Launch((1, 1, 1), (96, 1, 1), 0)
    return observe(library, launch, {"x": x, "y": y}, reverse=reverse).findings, x, y


@needs_compiler
def test_order_reaches_on_through_a_third_thread(cache: Path) -> None:
    for reverse in (False, True):
        findings, x, y = chain(0, cache, reverse)
        assert not findings, [str(item) for item in findings]
        assert np.array_equal(y[32:], 3 * x[::-1] + 1)


@needs_compiler
@pytest.mark.parametrize("fault", [1, 2, 3], ids=["no wait", "arrives early", "for other lanes"])
def test_a_gap_in_the_order_is_found(fault: int, cache: Path) -> None:
    lines = {
        "race": {line_of(CHAIN, f"// {what} s") for what in ("reads", "writes")},
        "race_between_blocks": {line_of(CHAIN, f"// {what} y") for what in ("reads", "writes")},
    }
    for reverse in (False, True):
        findings, _, _ = chain(fault, cache, reverse)
        found = {item.line for item in findings if item.kind in ("race", "uninitialised_read")}
        assert found & lines["race"], [str(item) for item in findings]
        if not reverse:  # a read of global memory before the write is not found, as documented
            assert {x.line for x in findings if x.kind == "race_between_blocks"} & lines[
                "race_between_blocks"
            ]


# --- clusters -------------------------------------------------------------------------------------


def split_k(
    fault: int, cache: Path, compiler: Compiler = FIRST_COMPILER, *, reverse: bool = False
) -> tuple[EmulationResult, np.ndarray]:
    m, n, k = 32, 48, 32
    a, b = small_integers(m, k, 1), small_integers(k, n, 2)
    result = emulate(
        CLUSTER,
        {"FAULT": fault},
        Launch((3, 2, 4), (64, 1, 1), 0),
        m,
        n,
        k,
        a=a,
        b=b,
        cluster=(1, 1, 4),
        include=INCLUDE,
        cache=cache,
        compiler=compiler,
        reverse=reverse,
    )
    return result, a @ b


@needs_compiler
@each_compiler
def test_a_cluster_adds_its_parts(compiler: Compiler, cache: Path) -> None:
    for reverse in (False, True):
        result, exact = split_k(0, cache, compiler, reverse=reverse)
        assert not result.findings and result.completed and result.inexact is None
        assert np.array_equal(result.c, exact)
        # each element of C is the sum of four parts; one of the four is the block's own
        assert result.counters["cluster_load_bytes"] == 4 * 4 * exact.size
        assert result.counters["smsp__sass_inst_executed_op_shared_ld.sum"] == 0


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "kinds", "marks"),
    [
        (1, {"race", "uninitialised_read"}, ["// reads all parts"]),
        (2, {"peer_exited"}, ["// reads all parts"]),
        (3, {"race"}, ["// reads all parts", "// fault 3:"]),
        (4, {"wild_address"}, ["// fault 4:"]),
        (5, {"deadlock"}, ["// fault 5:"]),
    ],
)
def test_a_fault_of_a_cluster_is_found(
    fault: int, kinds: set[str], marks: list[str], cache: Path
) -> None:
    for reverse in (False, True):
        result, _ = split_k(fault, cache, reverse=reverse)
        lines = {line_of(CLUSTER, mark) for mark in marks}
        assert {x.line for x in result.findings if x.kind in kinds} & lines, [
            str(item) for item in result.findings
        ]


@needs_compiler
@pytest.mark.parametrize("ordered", [True, False])
def test_ranks_run_along_x_first_and_a_cluster_barrier_orders_global_memory(
    ordered: bool, tmp_path: Path, cache: Path
) -> None:
    source = tmp_path / "ranks.cu"
    source.write_text(
        '#include "cluster.cuh"\n'
        'extern "C" __global__ void gemm(int* ranks, int* seen) {\n'
        "  const int block = blockIdx.x + gridDim.x * blockIdx.y;\n"
        "  ranks[block] = cluster_rank();\n"
        f"  {'cluster_sync();' if ordered else ''}\n"
        "  seen[block] = ranks[(blockIdx.x ^ 1) + gridDim.x * (blockIdx.y ^ 1)];\n}\n"
    )
    library = build_library(source, {}, include=INCLUDE, cache=cache)
    ranks, seen = np.full(8, -1, np.int32), np.full(8, -1, np.int32)
    found = observe(
        library,
        Launch((4, 2, 1), (1, 1, 1), 0),
        {"ranks": ranks, "seen": seen},
        cluster=(2, 2, 1),
    ).findings
    assert ranks.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    if ordered:
        assert not found and seen.tolist() == [3, 2, 3, 2, 1, 0, 1, 0]
    else:
        assert {item.kind for item in found} == {"race_between_blocks"}


@needs_compiler
def test_clusters_that_cannot_be_are_refused(cache: Path) -> None:
    library = build_library(CLUSTER, {}, include=INCLUDE, cache=cache)
    one = np.zeros(4, np.float32)
    for grid, cluster in (((3, 1, 1), (2, 1, 1)), ((32, 1, 1), (32, 1, 1))):
        with pytest.raises(EmulatorError, match="cannot be divided into clusters"):
            library.run(grid, (64,), [one, one, one, 1, 1, 1], cluster=cluster)
    with pytest.raises(EmulatorError, match="run all blocks"):
        library.run(
            (4,), (64,), [one, one, one, 1, 1, 1], cluster=(4,), blocks=np.zeros(1, np.uint64)
        )
    fault = sampling_fault((64, 64, 1), 4096, 4096, (2, 1, 1))
    assert fault is not None and "cluster" in fault


# --- arguments and entries ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"array": np.zeros((8, 8), np.float32)}, "flat float32"),
        ({"array": np.zeros(64)}, "flat float32"),
        ({"offset": 2}, "16-byte boundary"),
        ({"pitch": 6, "columns": 6}, "multiple of 16 bytes apart"),
        ({"pitch": 4}, "no matrix"),
        ({"box_rows": 257}, "1 to 256"),
        ({"box_columns": 0}, "1 to 256"),
        ({"box_columns": 6}, "multiple of 16 bytes"),
        ({"rows": 9}, "ends at element 72"),
        ({"swizzle": "64B"}, "as long as the swizzle 64B is wide, found 16 bytes"),
    ],
)
def test_a_map_that_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    fields = {
        "array": np.zeros(64, np.float32),
        "offset": 0,
        "rows": 8,
        "columns": 8,
        "pitch": 8,
        "box_rows": 4,
        "box_columns": 4,
    }
    TensorMap2D(**fields)
    with pytest.raises(EmulatorError, match=words):
        TensorMap2D(**{**fields, **change})


@needs_compiler
def test_arguments_over_one_array_share_its_buffer(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "same.cu"
    source.write_text(
        '#include "tma.cuh"\n'
        'extern "C" __global__ void gemm(float* x, const __grid_constant__ TensorMap map, '
        "const float* y, float* out) {\n"
        "  out[0] = x == y; out[1] = x == out;\n"
        "  out[2] = map.opaque[1] == (unsigned long long)(x + 4);\n}\n"
    )
    library = build_library(source, {}, include=INCLUDE, cache=cache)
    x, out = np.zeros(64, np.float32), np.full(3, np.nan, np.float32)
    library.run((1,), (1,), [x, TensorMap2D(x, 4, 2, 8, 8, 1, 4), x, out])
    assert out.tolist() == [1, 0, 1]


@needs_compiler
@each_compiler
def test_a_source_may_have_several_entries(compiler: Compiler, cache: Path) -> None:
    m, n, k = 24, 20, 18
    a, b = small_integers(m, k, 1), small_integers(k, n, 2)
    turned, c = np.full((k, m), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
    source = PLANTED / "two_entries.cu"
    first = build_library(source, {}, entry="transpose_a", cache=cache, compiler=compiler)
    second = build_library(source, {}, entry="gemm", cache=cache, compiler=compiler)
    block = (16, 16, 1)
    seen = observe(first, Launch((2, 2, 1), block, 0), {"A": a, "T": turned, "M": m, "K": k})
    assert not seen.findings and np.array_equal(turned, a.T)
    seen = observe(
        second,
        Launch((2, 2, 1), block, 0),
        {"T": turned, "B": b, "C": c, "M": m, "N": n, "K": k},
    )
    assert not seen.findings and np.array_equal(c, a @ b)


# --- the wrappers as NVIDIA's compiler sees them --------------------------------------------------

WRAPPERS = """
#include "cluster.cuh"
#include "registers.cuh"
#include "tma.cuh"
extern "C" __global__ void __launch_bounds__(256, 1)
gemm(const __grid_constant__ TensorMap map, float* C, int K) {
#if __CUDA_ARCH__ >= 900
    __shared__ alignas(128) float tile[1024];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 129);
        mbarrier_init_fence();
        tma_prefetch_descriptor(&map);
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        lower_register_limit<40>();
        if (threadIdx.x == 128) {
            mbarrier_arrive_expect_tx(&full, 4096);
            tma_load_2d(tile, &map, K, blockIdx.y * 32, &full);
        }
    } else {
        raise_register_limit<200>();
        mbarrier_arrive(&full);
        mbarrier_wait(&full, 0);
        C[threadIdx.x] = tile[threadIdx.x];
    }
    cluster_sync();
    const float4 v = cluster_load(reinterpret_cast<const float4*>(tile), cluster_rank() ^ 1);
    C[cluster_size() + threadIdx.x] = v.x + v.y + v.z + v.w;
    cluster_sync();
#else
    raise_register_limit<200>();
    lower_register_limit<40>();
    C[threadIdx.x] = K;
#endif
}
"""


@pytest.mark.skipif(compiler_problem() is not None, reason=str(compiler_problem()))
@pytest.mark.parametrize(
    ("architecture", "moves_registers"),
    [
        ("sm_80", False),
        ("sm_86", False),
        ("sm_89", False),
        ("sm_90", False),
        ("sm_90a", True),
        ("sm_100", False),
        ("sm_100a", True),
        ("sm_120", False),
        ("sm_120a", True),
    ],
)
def test_the_wrappers_compile(architecture: str, moves_registers: bool) -> None:
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        f"--include-path={INCLUDE[0]}",
    ]
    cubin, log = run_nvrtc(WRAPPERS, "wrappers.cu", options)
    assert cubin is not None, log
    assert "setmaxnreg" not in log, "ptxas reports when it ignores setmaxnreg"
    if architecture < "sm_90" and not architecture.startswith("sm_1"):
        return
    program = load(cubin)
    opcodes = {item.opcode[0] for item in program.instructions}
    assert {"UTMALDG", "SYNCS", "UCGABAR_ARV"} <= opcodes
    assert ("USETMAXREG" in opcodes) is moves_registers
    assert not opcodes & {"CALL", "BPT"}, "no routine of the driver and no trap"
    with pytest.raises(EmulatorError, match=r"cannot be counted: it has mbarriers"):
        count_gemm(program, (1, 1, 1), (256, 1, 1), 32, 32, 32)
