"""Compiling: CUBINs without a GPU, and failures that are rows in the compiler's own words."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder import compile as compiling
from ladder import schema
from ladder.builds import cubin_path, read_build, record_path
from ladder.compile import (
    build_or_keep,
    compile_build,
    compile_to_files,
    compiler_problem,
    compiler_version,
    options_for,
    resources_from_log,
    run_nvrtc,
    supported_architectures,
)
from ladder.documents import UserError
from ladder.manifest import Kernel, Params, load, load_all
from ladder.status import Status
from project import GEMM, MANIFEST, NAIVE_BODY, ROOT

pytestmark = pytest.mark.skipif(
    compiler_problem() is not None, reason=f"no compiler here: {compiler_problem()}"
)

NAIVE = load_all(ROOT / "kernels")["01_naive"]
BLOCK: Params = {"BLOCK_X": 16, "BLOCK_Y": 16}
MANY_REGISTERS = """{
    float held[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) held[i] = A[i * N + threadIdx.x];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 95; i >= 0; --i) sum = sum * held[i] + held[95 - i];
    C[threadIdx.x] = sum;
}"""


@pytest.fixture
def make_kernel(tmp_path: Path) -> Callable[..., Kernel]:
    """Writes a kernel's two files and loads it."""

    def make(
        source: str = f"{GEMM} {NAIVE_BODY}", folder: str = "kernels", **manifest: Any
    ) -> Kernel:
        path = tmp_path / folder / "mine.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(MANIFEST | manifest))
        path.with_suffix(".cu").write_text(source)
        return load(path)

    return make


def launch_of(threads: int, dynamic: int = 0) -> dict[str, Any]:
    return {
        "kind": "cuda",
        "block": [threads],
        "grid": ["cdiv(N, 16)", "cdiv(M, 16)"],
        "dynamic_shared_memory_bytes": dynamic,
    }


@pytest.mark.parametrize("architecture", ["sm_90a", "sm_120"])
def test_a_shipped_kernel_compiles_and_its_resources_are_recorded(architecture: str) -> None:
    row, cubin = compile_build(NAIVE, BLOCK, architecture)
    assert row["status"] == Status.OK
    assert cubin[:4] == b"\x7fELF"
    assert row["cubin_sha256"] == hashlib.sha256(cubin).hexdigest()
    assert row["cubin_bytes"] == len(cubin)
    assert row["source_sha256"] == NAIVE.source_sha256()
    assert 16 <= row["registers_per_thread"] <= 64
    assert row["spill_store_bytes"] == row["spill_load_bytes"] == row["stack_frame_bytes"] == 0
    assert row["static_shared_memory_bytes"] == 0
    assert row["threads_per_block"] == 256
    assert row["blocks_per_sm"] > 0
    assert 0 < row["theoretical_occupancy_pct"] <= 100
    assert row["compile_time_s"] > 0
    assert row["compiler"] == "nvrtc"
    assert row["compiler_version"] == compiler_version()
    assert re.match(r"\d+\.\d+", compiler_version())
    assert "gemm" in row["log"]
    assert "Compile time" not in row["log"]
    assert f"--gpu-architecture={architecture}" in json.loads(row["options"])


def test_constant_memory_that_the_log_does_not_report_is_unknown_and_not_zero() -> None:
    row, _ = compile_build(NAIVE, BLOCK, "sm_90a")
    # The arguments of the kernel lie in constant memory, so 0 cannot be true.
    assert row.get("constant_memory_bytes") != 0


def test_shared_memory_and_spills_are_those_of_the_source(
    make_kernel: Callable[..., Kernel],
) -> None:
    body = """{
        __shared__ float tile[1000];
        tile[threadIdx.x] = A[threadIdx.x];
        __syncthreads();
        C[threadIdx.x] = tile[(threadIdx.x + K) % 1000];
    }"""
    row, _ = compile_build(make_kernel(f"{GEMM} {body}"), {}, "sm_90a")
    assert row["static_shared_memory_bytes"] == 4000
    bound = GEMM.replace("void gemm", "void __launch_bounds__(1024, 2) gemm")
    row, _ = compile_build(make_kernel(f"{bound} {MANY_REGISTERS}"), {}, "sm_90a")
    assert row["registers_per_thread"] <= 32
    assert row["spill_store_bytes"] > 0
    assert row["spill_load_bytes"] > 0


# --- failures are rows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (f"{GEMM} {{ C[0] = undeclared; }}", 'identifier "undeclared" is undefined'),
        (f"{GEMM} {{ C[0] = 1.0f }}", 'expected a ";"'),
        (f'#include "absent.cuh"\n{GEMM} {{}}', "absent.cuh"),
        (f'{GEMM} {{ static_assert(sizeof(int) == 8, "narrow int"); }}', "narrow int"),
        (f'{GEMM} {{ asm("no.such.instruction;"); }}', "Not a name of any known instruction"),
        ("__device__ int nothing_to_launch;", "one entry function"),
        (f"{GEMM} {{}}\n{GEMM.replace('gemm', 'second')} {{}}", "one entry function"),
    ],
    ids=["name", "syntax", "include", "assertion", "ptx", "no entry", "two entries"],
)
def test_a_source_that_does_not_compile_is_a_row_with_the_compilers_words(
    source: str, words: str, make_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    cubin, record = tmp_path / "out" / "k.cubin", tmp_path / "out" / "k.parquet"
    compile_to_files(make_kernel(source), {}, "sm_90a", cubin, record)
    row = read_build(record)
    assert row["status"] == Status.COMPILE_FAILED
    assert words in f"{row['detail']}\n{row['log']}"
    assert row["detail"]
    assert cubin.read_bytes() == b""
    assert row["cubin_sha256"] is None
    assert row["registers_per_thread"] is None


def test_an_error_is_told_with_the_files_name_and_line(make_kernel: Callable[..., Kernel]) -> None:
    row, _ = compile_build(make_kernel(f"{GEMM} {{\n\n    C[0] = undeclared;\n}}"), {}, "sm_90a")
    assert row["detail"].startswith("mine.cu(3): error: ")


def test_one_configuration_with_an_error_leaves_nine_of_ten_that_compile(
    make_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    guard = "#if STEP == 7\n#error seven is not implemented\n#endif\n"
    kernel = make_kernel(
        f"{guard}{GEMM} {NAIVE_BODY.replace('float acc = 0.0f', 'float acc = 0.0f * STEP')}",
        parameters={"STEP": {"description": "which"}},
        sweep={"STEP": list(range(1, 11))},
    )
    rows = []
    for step in range(1, 11):
        base = tmp_path / "out" / str(step)
        cubin, record = base.with_suffix(".cubin"), base.with_suffix(".parquet")
        rows.append(compile_to_files(kernel, {"STEP": step}, "sm_90a", cubin, record))
        assert bool(cubin.read_bytes()) == (step != 7)
    assert [row["status"] for row in rows].count(Status.OK) == 9
    assert rows[6]["status"] == Status.COMPILE_FAILED
    assert "seven is not implemented" in rows[6]["detail"]


@pytest.mark.parametrize("architecture", ["sm_61", "sm_999", "sm_52", "sm_130a"])
def test_an_unsupported_architecture_is_named_with_the_compiler_and_what_it_supports(
    architecture: str, tmp_path: Path
) -> None:
    cubin, record = tmp_path / "k.cubin", tmp_path / "k.parquet"
    row = compile_to_files(NAIVE, BLOCK, architecture, cubin, record)
    assert row["status"] == Status.COMPILE_FAILED
    assert architecture in row["detail"]
    assert f"NVRTC {compiler_version()}" in row["detail"]
    for supported in supported_architectures():
        assert supported in row["detail"]
    assert {"sm_90", "sm_120"} <= set(supported_architectures())
    assert cubin.read_bytes() == b""


def test_an_architecture_older_than_the_kernel_needs_is_unsupported_not_an_error(
    make_kernel: Callable[..., Kernel],
) -> None:
    row, cubin = compile_build(make_kernel(minimum_compute_capability="9.0"), {}, "sm_80")
    assert row["status"] == Status.SKIPPED_UNSUPPORTED
    assert row["detail"] == "needs compute capability 9.0 or newer"
    assert cubin == b""


def test_shared_memory_over_the_limit_is_infeasible_with_both_numbers(
    make_kernel: Callable[..., Kernel],
) -> None:
    body = """{
        extern __shared__ float dynamic[];
        __shared__ float fixed[32];
        fixed[threadIdx.x] = dynamic[threadIdx.x] = A[threadIdx.x];
        __syncthreads();
        C[threadIdx.x] = dynamic[31 - threadIdx.x] + fixed[31 - threadIdx.x];
    }"""
    for dynamic, fits in ((49_152, True), (232_448 - 128, True), (232_449 - 128, False),
                          (232_449, False)):  # fmt: skip
        kernel = make_kernel(f"{GEMM} {body}", launch=launch_of(32, dynamic))
        row, _ = compile_build(kernel, {}, "sm_90a")
        assert row["static_shared_memory_bytes"] == 128
        if fits:
            assert row["status"] == Status.OK, row["detail"]
            continue
        assert row["status"] == Status.INFEASIBLE_SMEM
        assert f"{dynamic + 128:,} bytes" in row["detail"]
        assert f"{dynamic:,} dynamic" in row["detail"]
        assert "128 static" in row["detail"]
        assert "sm_90a allows 232,448" in row["detail"]


@pytest.mark.parametrize(
    ("threads", "status"), [(512, Status.OK), (1024, Status.INFEASIBLE_REGISTERS)]
)
def test_more_registers_than_a_block_may_have_are_infeasible_with_the_product(
    threads: int, status: Status, make_kernel: Callable[..., Kernel]
) -> None:
    kernel = make_kernel(f"{GEMM} {MANY_REGISTERS}", launch=launch_of(threads))
    row, _ = compile_build(kernel, {}, "sm_90a")
    registers = row["registers_per_thread"]
    assert 64 < registers <= 128
    assert row["status"] == status
    if status is Status.INFEASIBLE_REGISTERS:
        assert row["detail"].startswith(f"{registers} registers x 1024 threads")
        assert "65,536" in row["detail"]


def test_a_build_is_judged_by_its_block_and_not_by_the_grid_of_some_size(
    make_kernel: Callable[..., Kernel],
) -> None:
    launch = launch_of(256) | {"grid": ["N // 64", "M // 64"]}
    row, _ = compile_build(make_kernel(launch=launch), {}, "sm_90a")
    assert row["status"] == Status.OK, row["detail"]


# --- what the compiler is told --------------------------------------------------------------------

ARITHMETIC = f"{GEMM} {{ C[0] = A[0] / B[0] + sqrtf(A[1]) + expf(B[1]) * A[2]; }}"


def test_arithmetic_is_ieee_and_never_fast(tmp_path: Path) -> None:
    options = options_for({}, "sm_90a", tmp_path)
    assert not any("fast" in option or "ftz" in option or "prec" in option for option in options)
    ours, _ = run_nvrtc(ARITHMETIC, "k.cu", options)
    ieee = ["--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=true"]
    explicit, _ = run_nvrtc(ARITHMETIC, "k.cu", [*options, *ieee])
    fast, _ = run_nvrtc(ARITHMETIC, "k.cu", [*options, "--use_fast_math"])
    assert ours is not None
    assert explicit is not None
    assert fast is not None
    assert machine_code(ours) == machine_code(explicit)
    assert machine_code(ours) != machine_code(fast)


def test_the_report_of_registers_never_comes_from_a_cache() -> None:
    # A driver keeps what NVRTC has compiled, and what comes from its cache has no report. The GPU's
    # tests compile twice; here is what makes that right.
    assert "--no-cache" in options_for({}, "sm_90a", Path("include"))
    row, _ = compile_build(NAIVE, {"BLOCK_X": 16, "BLOCK_Y": 16}, "sm_90a")
    assert "cache" not in row["options"], "it changes no code, so it is no part of what was built"


def machine_code(cubin: bytes) -> bytes:
    """The instructions of `gemm`, without what a CUBIN says about itself (ELF64 sections)."""
    table, entry, count, names = struct.unpack_from("<40xQ10xHHH", cubin)[:4]
    sections = [struct.unpack_from("<I20xQQ", cubin, table + entry * i) for i in range(count)]
    strings = sections[names][1]
    for name, start, size in sections:
        text = cubin[strings + name :].partition(b"\0")[0]
        if text == b".text.gemm":
            return cubin[start : start + size]
    raise AssertionError("no .text.gemm")


def test_parameters_reach_the_source_as_macros(make_kernel: Callable[..., Kernel]) -> None:
    source = f"static_assert(TM == 4 && TN == -8);\n{GEMM} {{}}"
    parameters = {name: {"description": name, "minimum": -8} for name in ("TM", "TN")}
    kernel = make_kernel(source, parameters=parameters, sweep=[{"TM": 4, "TN": -8}])
    assert compile_build(kernel, {"TM": 4, "TN": -8}, "sm_90a")[0]["status"] == Status.OK
    failed, _ = compile_build(kernel, {"TM": 4, "TN": 8}, "sm_90a")
    assert failed["status"] == Status.COMPILE_FAILED


# --- equal code, equal CUBIN ----------------------------------------------------------------------


def test_equal_code_gives_equal_cubins_whatever_its_comments_and_its_folder(
    make_kernel: Callable[..., Kernel],
) -> None:
    source = f"{GEMM} {NAIVE_BODY}"
    variants = [source, source, f"// a comment\n\n{source}", source.replace(";", "; /* c */")]
    hashes = []
    for number, variant in enumerate(variants):
        row, _ = compile_build(make_kernel(variant, folder=f"kernels{number}"), {}, "sm_90a")
        hashes.append(row["cubin_sha256"])
    assert set(hashes) == {hashes[0]}
    changed = source.replace("0.0f", "1.0f")
    assert compile_build(make_kernel(changed), {}, "sm_90a")[0]["cubin_sha256"] not in hashes


def test_different_parameters_and_architectures_give_different_cubins() -> None:
    builds = [(BLOCK, "sm_90a"), (BLOCK, "sm_120"), ({"BLOCK_X": 32, "BLOCK_Y": 8}, "sm_90a")]
    hashes = [compile_build(NAIVE, params, arch)[0]["cubin_sha256"] for params, arch in builds]
    assert len(set(hashes)) == 3


# --- files ----------------------------------------------------------------------------------------


def ladder_compile(builds: Path, **environment: str | None) -> subprocess.Popen[str]:
    merged = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "ladder", "compile", "01_naive", "--params",
         "BLOCK_X=16,BLOCK_Y=16", "--architecture", "sm_90a", "--builds", str(builds)],
        env={name: value for name, value in merged.items() if value is not None},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_two_processes_that_compile_one_build_at_once_leave_one_good_file_each(
    tmp_path: Path,
) -> None:
    processes = [ladder_compile(tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    cubin = cubin_path(tmp_path, "sm_90a", "01_naive", BLOCK)
    record = record_path(tmp_path, "sm_90a", "01_naive", BLOCK)
    assert sorted(cubin.parent.iterdir()) == sorted([cubin, record])
    row = read_build(record)
    assert row["status"] == Status.OK
    assert row["cubin_sha256"] == hashlib.sha256(cubin.read_bytes()).hexdigest()


@pytest.mark.parametrize("home", [None, "/proc/no-such-home"], ids=["unset", "read-only"])
def test_compiling_needs_no_home(home: str | None, tmp_path: Path) -> None:
    process = ladder_compile(tmp_path, HOME=home, XDG_CACHE_HOME=None)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert cubin_path(tmp_path, "sm_90a", "01_naive", BLOCK).stat().st_size > 0


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin, record = tmp_path / "k.cubin", tmp_path / "k.parquet"
    compile_to_files(NAIVE, BLOCK, "sm_90a", cubin, record)
    before = cubin.read_bytes()
    replace = os.replace
    seen = []

    def spy(source: Any, target: Any) -> None:
        # The new content is complete under another name while the old one is still in place.
        seen.append((Path(source).stat().st_size, Path(target).name))
        assert cubin.read_bytes() == before
        replace(source, target)

    monkeypatch.setattr(os, "replace", spy)
    compile_to_files(NAIVE, BLOCK, "sm_90a", cubin, record)
    assert [name for _, name in seen] == ["k.cubin", "k.parquet"]
    assert seen[0][0] == len(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.cubin", "k.parquet"]


def test_a_build_is_kept_until_code_parameters_launch_or_file_differ(
    tmp_path: Path, make_kernel: Callable[..., Kernel]
) -> None:
    source = f"{GEMM} {{ C[0] = STEP; }}"
    builds = tmp_path / "builds"

    def kept(code: str = source, **manifest: Any) -> bool:
        parameters = {"STEP": {"description": "what is stored", "maximum": 9}}
        manifest |= {"parameters": parameters, "sweep": {"STEP": [3]}}
        kernel = make_kernel(code, **manifest)
        return build_or_keep(kernel, {"STEP": 3}, "sm_90a", builds)[1]

    assert not kept()
    assert kept()
    assert kept(f"// A comment.\n{source}")
    assert not kept(source.replace("STEP;", "STEP + 1;"))
    assert not kept()
    assert not kept(launch={"kind": "cuda", "block": [32, 1], "grid": [1, 1]})
    assert not kept()
    (cubin,) = builds.glob("*/*/*.cubin")
    cubin.write_bytes(b"killed here")
    assert not kept()
    assert cubin.read_bytes() != b"killed here"
    assert not kept("no C++"), "a refusal is a row, and is tried again"
    assert not kept("no C++")


def test_a_folder_that_cannot_be_written_is_a_user_error_that_names_it(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=r"file: cannot be written"):
        compile_to_files(NAIVE, BLOCK, "sm_90a", blocked / "k.cubin", blocked / "k.parquet")


# --- no compiler ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "words"), [("darwin", "no CUDA compiler for macOS"), ("win32", "Linux")]
)
def test_a_machine_without_a_compiler_gives_rows_that_say_why(
    platform: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    cubin, record = tmp_path / "k.cubin", tmp_path / "k.parquet"
    compile_to_files(NAIVE, BLOCK, "sm_90a", cubin, record)
    [row] = schema.read(record, "builds").to_pylist()
    assert row["status"] == Status.SKIPPED_UNSUPPORTED
    assert words in row["detail"]
    assert cubin.read_bytes() == b""


def test_a_missing_nvrtc_is_told_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    row, cubin = compile_build(NAIVE, BLOCK, "sm_90a")
    assert row["status"] == Status.SKIPPED_UNSUPPORTED
    assert "NVRTC cannot be loaded" in row["detail"]
    assert "envs/bootstrap.py" in row["detail"]
    assert cubin == b""


# --- the log --------------------------------------------------------------------------------------

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 572 bytes cmem[0]
"""


def test_resources_are_read_from_the_log_and_absent_shared_memory_is_none_at_all() -> None:
    assert resources_from_log(LOG) == {
        "registers_per_thread": 40,
        "stack_frame_bytes": 16,
        "spill_store_bytes": 24,
        "spill_load_bytes": 32,
        "static_shared_memory_bytes": 2048,
        "constant_memory_bytes": 572,
    }
    bare = resources_from_log(LOG.replace(", 2048 bytes smem", ""))
    assert bare["static_shared_memory_bytes"] == 0


@pytest.mark.parametrize("lost", ["Compiling entry function", "Used 40 registers", "spill stores"])
def test_a_log_that_lacks_a_number_is_refused_and_never_read_as_zero(lost: str) -> None:
    with pytest.raises(ValueError, match=r"one entry function must be|not readable"):
        resources_from_log(LOG.replace(lost, "???"))


def test_the_log_of_a_build_does_not_depend_on_how_long_it_took() -> None:
    timed = LOG + "ptxas info    : Compile time = 12.345 ms\n"
    assert compiling._TIMING_LINE.sub("", timed) == LOG


def test_an_empty_log_leaves_pythons_shared_bytes_alone() -> None:
    """NVRTC writes into the caller's buffer; bytes of length one are one object per process."""
    code = (
        "from ladder.compile import run_nvrtc\n"
        "cubin, log = run_nvrtc('__global__ void k() {}', 'k.cu', ['--gpu-architecture=sm_90'])\n"
        "assert cubin and log == '', log\n"
        "print(' '.encode().hex(), bytes([32]).hex())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "workflow", capture_output=True, text=True
    )
    assert run.stdout.split() == ["20", "20"], run.stderr
