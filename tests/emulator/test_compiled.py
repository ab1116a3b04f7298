"""As compiled: counting the machine code against the hardware, and both cost models together."""

from __future__ import annotations

import tempfile
from functools import cache as once
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.support import PLANTED, gemm, needs_compiler, parse_params, records
from emulator.test_counters import (
    ARBITRATION_NOISE,
    RECORDED,
    SASS_LOAD_WAVEFRONTS,
    SASS_STORE_WAVEFRONTS,
    TOTAL_WAVEFRONTS,
)
from ladder.compile import compiler_problem, run_nvrtc
from ladder.emulator import EmulatorError, build_library, sass
from ladder.emulator import result as metric
from ladder.emulator.compiled import (
    LOCAL_LOADS,
    CompiledCounts,
    _wavefronts,
    count_gemm,
    count_program,
    distinct,
)
from ladder.emulator.emulation import observe
from ladder.manifest import Launch

needs_machine_code = pytest.mark.skipif(
    compiler_problem() is not None or sass.find_nvdisasm() is None,
    reason="needs NVRTC and nvdisasm",
)
ALIASES = {
    SASS_LOAD_WAVEFRONTS: metric.SHARED_LOAD_WAVEFRONTS,
    SASS_STORE_WAVEFRONTS: metric.SHARED_STORE_WAVEFRONTS,
}
ENTRIES = {"transpose": "transpose", "wide_shared_load": "wide_load"}


@once
def headers() -> Path:
    return Path(tempfile.mkdtemp(prefix="ladder-cuda-headers-"))


@once
def program(
    source: Path, params: tuple[tuple[str, int], ...], entry: str, architecture: str
) -> sass.Program:
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--generate-line-info",
        *[f"--define-macro={name}={value}" for name, value in params],
    ]

    def compiled() -> sass.Program:
        cubin, log = run_nvrtc(source.read_text(), source.name, options)
        assert cubin is not None, log
        return sass.load(cubin, entry)

    if "cuda_pipeline" not in source.read_text():
        return compiled()
    options.append(f"--use-bundled-headers={headers()}")
    # NVRTC 13.5 makes other code of these headers once in a few hundred times that one process
    # compiles them, with loads that conflict. What was recorded is the usual code.
    seen: list[sass.Program] = []
    while (code := compiled()) not in seen:
        seen.append(code)
    return code


def count(
    kernel: str, params: dict[str, int], m: int, n: int, k: int, architecture: str = "sm_90a"
) -> CompiledCounts:
    items = tuple(params.items())
    if kernel in ENTRIES:
        code = program(PLANTED / f"{kernel}.cu", items, ENTRIES[kernel], architecture)
        array = np.zeros(1, np.float32)
        if kernel == "transpose":
            return count_program(code, (2, 2, 1), (32, 32, 1), [array, array, 64])
        return count_program(code, (1, 1, 1), (32, 1, 1), [array, array])
    what = gemm(kernel, params)
    launch = what.launch(m, n)
    return count_gemm(
        program(what.source, items, "gemm", architecture), launch.grid, launch.block, m, n, k
    )


@needs_machine_code
@pytest.mark.parametrize(
    "case",
    # one padding stands for all: they differ in addresses, not in code
    [case for case in RECORDED if case[1] not in ("A_PAD=8", "A_PAD=12", "A_PAD=16")],
    ids=lambda case: "-".join(map(str, case)),
)
def test_the_machine_code_counts_as_the_hardware_does(case: tuple[str, str, int, int, int]) -> None:
    """Every recorded counter, those that the compiler changes included, within 1 %."""
    kernel, params, m, n, k = case
    counted = count(kernel, parse_params(params), m, n, k).counters
    left_out = {TOTAL_WAVEFRONTS, *ARBITRATION_NOISE.get((kernel, params), ())}
    for name, value in RECORDED[case].items():
        if name not in left_out:
            assert counted[ALIASES.get(name, name)] == pytest.approx(value, rel=0.01), name


@needs_machine_code
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120"])
@pytest.mark.parametrize(
    ("kernel", "params"),
    [
        ("01_naive", {"BLOCK_X": 16, "BLOCK_Y": 16}),
        ("03_shared_tile", {"TILE": 32}),
        ("register_tile", {}),
        ("warp_broadcast", {}),
    ],
)
def test_every_architecture_makes_the_same_multiply_adds(
    kernel: str, params: dict[str, int], architecture: str
) -> None:
    counted = count(kernel, params, 64, 128, 32, architecture).counters
    assert counted["sm__sass_thread_inst_executed_op_ffma_pred_on.sum"] == 64 * 128 * 32
    assert counted[LOCAL_LOADS] == 0
    assert counted[metric.GLOBAL_STORE_SECTORS] >= 64 * 128 * 4 // 32


@needs_machine_code
def test_a_sample_of_blocks_counts_as_the_whole_grid_does() -> None:
    what = gemm("01_naive", {"BLOCK_X": 16, "BLOCK_Y": 16})
    code = program(what.source, (("BLOCK_X", 16), ("BLOCK_Y", 16)), "gemm", "sm_90a")
    launch = what.launch(160, 96)
    sampled, whole = (
        count_gemm(code, launch.grid, launch.block, 160, 96, 24, sample=sample)
        for sample in (True, False)
    )
    assert sampled.sampled_blocks is not None
    assert sampled.counters == whole.counters


@needs_machine_code
def test_code_that_depends_on_data_is_refused_by_name(tmp_path: Path) -> None:
    source = tmp_path / "indirect.cu"
    source.write_text(
        'extern "C" __global__ void gemm(const int* A, const float* B, float* C, int M, '
        "int N, int K) {\n    C[threadIdx.x] = B[A[threadIdx.x]];\n}\n"
    )
    code = program(source, (), "gemm", "sm_90a")
    with pytest.raises(EmulatorError, match=r"depends on 'LDG"):
        count_gemm(code, (1, 1, 1), (32, 1, 1), 8, 4, 1)


@needs_compiler
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    width=st.sampled_from([1, 2, 4]),
    stride=st.integers(0, 9),
    spread=st.integers(1, 64),
    absent=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 1000),
    pair=st.sampled_from([1, 2, 4]),
)
def test_the_two_cost_models_agree_on_any_pattern(
    cache: Path, width: int, stride: int, spread: int, absent: int, seed: int, pair: int
) -> None:
    """The C++ rules and their Python twins, which were written apart, on one request."""
    lanes = np.arange(32)
    random = np.random.default_rng(seed).integers(0, spread, 32)
    index = (lanes // pair * stride + random // pair * pair) % 1024
    active = (absent >> lanes & 1 == 0) | (lanes == 0)
    chosen = np.where(active, index, -1).astype(np.int32)
    library = build_library(PLANTED / "gather.cu", {"WIDTH": width}, entry="gather", cache=cache)
    source = (PLANTED / "gather.cu").read_text().splitlines()
    seen = observe(
        library,
        Launch((1, 1, 1), (32, 1, 1), 0),
        {
            "index": chosen,
            "from": np.zeros(1024 * width, np.float32),
            "to": np.zeros(64 * width, np.float32),
        },
    )
    marked = {site.space: site for site in seen.sites if "counted:" in source[site.line - 1]}
    address = np.where(active, chosen.astype(np.int64) * width * 4, 0)
    wavefronts, least = _wavefronts(
        (address - address[0] * active).tobytes(), active.tobytes(), width * 4, True
    )
    assert (marked["shared"].wavefronts, marked["shared"].least_wavefronts) == (wavefronts, least)
    assert marked["global"].sectors == distinct(address[None] >> 5, active[None])[0]
    assert marked["global"].unique_bytes == len(np.unique(address[active])) * width * 4


def test_a_listing_is_read_as_it_is_printed() -> None:
    listing = """
    .target sm_90a
.text.gemm:
    //## File "/k/gemm.cu", line 7
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64+0x10] ;
        /*0020*/               @P1 BRA `(.L_x_0) ;
"""
    code = sass.parse(listing, "gemm", 0x210)
    assert code.target == "sm_90a" and code.labels == {".L_x_0": 1}
    load = code.instructions[1]
    assert (load.guard, load.opcode[:3], load.line) == ("!P0", ("LDG", "E", "128"), 7)
    assert load.operands == ("R4", "desc[UR4][R2.64+0x10]")
    with pytest.raises(EmulatorError, match="no kernel other"):
        sass.parse(listing, "other", 0)


def test_recorded_layouts_of_cp_async_are_read() -> None:
    assert {row["floats"] for row in records("cp_async_sectors.csv")} == {"1", "2", "4"}
