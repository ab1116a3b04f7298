"""CUDA source to CUBIN by NVRTC: no GPU, no driver and no host compiler needed.

A failure is a row of the `builds` table with the compiler's own words; the CUBIN is then an empty
file, so that a workflow has something to track.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import schema
from .builds import BuildRow, cubin_path, read_build, record_path
from .documents import UserError
from .manifest import (
    ENTRY_POINT,
    Kernel,
    Launch,
    TensorMapsLaunch,
    canonical,
    compute_capability,
)
from .occupancy import occupancy
from .plan import architecture_fault, block_fault, build_fault
from .processes import in_processes
from .status import Status
from .tensor_maps import HELPERS, SHIFTS_HELPERS, SPLIT_HELPERS

NO_COMPILER = {
    "darwin": "NVIDIA publishes no CUDA compiler for macOS; compile on Linux",
    "win32": "use the Windows Subsystem for Linux",
}

BuildTask = tuple[Kernel, Mapping[str, int], str, Path]
"""A kernel, its parameters, the architecture and the folder of the builds."""

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[0\]")
# Times in the log would make equal builds differ.
_TIMING_LINE = re.compile(r"^.*Compile time = .*\n?", re.MULTILINE)


def compiler_problem() -> str | None:
    """Why nothing can be compiled on this machine; None if NVRTC is there."""
    if sys.platform in NO_COMPILER:
        return NO_COMPILER[sys.platform]
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        return (
            f"NVRTC cannot be loaded ({error}); run `python3 envs/bootstrap.py ...` to install it"
        )
    return None


def compiler_version() -> str:
    """NVRTC's version, such as ``13.5.37`` where the package tells, else ``13.5``."""
    from importlib.metadata import PackageNotFoundError, version

    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    try:
        package = version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return f"{major}.{minor}"
    # The loaded library may come from a toolkit rather than from the package.
    return package if package.startswith(f"{major}.{minor}.") else f"{major}.{minor}"


def supported_architectures() -> list[str]:
    """What the installed NVRTC can compile for, without the a/f suffixes."""
    from cuda.bindings import nvrtc

    _, architectures = nvrtc.nvrtcGetSupportedArchs()
    return [f"sm_{number}" for number in architectures]


# Where there is a driver, NVRTC keeps what it compiled in the driver's cache, and takes it from
# there without the report of registers.
_WITHOUT_EFFECT_ON_CODE = ["--no-cache"]


def options_for(params: Mapping[str, int], architecture: str, include: Path) -> list[str]:
    """NVRTC's options; IEEE arithmetic with FMA contraction, never fast-math."""
    return [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        *_WITHOUT_EFFECT_ON_CODE,
        f"--include-path={include}",
        *[f"--define-macro={name}={value}" for name, value in sorted(params.items())],
    ]


def options_on_record(params: Mapping[str, int], architecture: str) -> str:
    """The options that shape the machine code, as JSON: the same on every machine."""
    options = options_for(params, architecture, Path("include"))
    return json.dumps(
        [
            option
            for option in options
            if option not in _WITHOUT_EFFECT_ON_CODE and not option.startswith("--include-path")
        ]
    )


def run_nvrtc(source: str, name: str, options: list[str]) -> tuple[bytes | None, str]:
    """Compile CUDA C++ to a CUBIN.

    Returns:
        The CUBIN, or None if the compiler refused, and its log.
    """
    from cuda.bindings import nvrtc

    ok = nvrtc.nvrtcResult.NVRTC_SUCCESS
    result, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    if result != ok:
        raise RuntimeError(f"nvrtcCreateProgram: {result}")
    try:
        (compiled,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        # NVRTC writes into the buffer it is given. An empty log is one byte long, and Python shares
        # one object among all bytes of length one, so the buffer must never be a `bytes`.
        buffer = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, buffer)
        log = buffer.rstrip(b"\x00 \n").decode(errors="replace")
        if compiled != ok:
            return None, log or str(compiled)
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytearray(size)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return bytes(cubin), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def helper_entries(kernel: Kernel) -> frozenset[str]:
    """The entry functions that a kernel's CUBIN must have beside `gemm`, for its kind of launch."""
    launch = kernel.manifest.launch
    if not isinstance(launch, TensorMapsLaunch):
        return frozenset()
    if launch.split_f16:
        return SPLIT_HELPERS
    return HELPERS if launch.f16_shifts is None else HELPERS | SHIFTS_HELPERS


def resources_from_log(log: str, helpers: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Registers, spills and shared memory that ptxas reports for `gemm`.

    Constant memory is None where the compiler does not report it.

    Args:
        helpers: entry functions that must be there beside `gemm`.

    Raises:
        ValueError: if the log does not report exactly the entry functions that it must.
    """
    # ptxas reports one entry after the other: each begins where it says "Compiling".
    reports = list(_ENTRY.finditer(log))
    entries = [report[1] for report in reports]
    if sorted(entries) != sorted({ENTRY_POINT, *helpers}):
        found = ", ".join(entries) or "none"
        if helpers:
            headers = ["prepare_f16.cuh" if helpers == SPLIT_HELPERS else "prepare.cuh"]
            if helpers >= SHIFTS_HELPERS:
                headers.append("prepare_shifts.cuh")
            includes = " and ".join(f'#include "{header}"' for header in headers)
            raise ValueError(
                f'the entry functions must be extern "C" {ENTRY_POINT} and, by {includes}, '
                f"{' and '.join(sorted(helpers))}; found: {found}"
            )
        raise ValueError(f'the one entry function must be extern "C" {ENTRY_POINT}; found: {found}')
    index = entries.index(ENTRY_POINT)
    end = reports[index + 1].start() if index + 1 < len(reports) else len(log)
    own = log[reports[index].start() : end]
    spills, registers = _SPILLS.search(own), _REGISTERS.search(own)
    if spills is None or registers is None:
        raise ValueError(f"the compiler's report of registers and spills is not readable:\n{log}")
    shared, constant = _SHARED.search(own), _CONSTANT.search(own)
    return {
        "registers_per_thread": int(registers[1]),
        "stack_frame_bytes": int(spills[1]),
        "spill_store_bytes": int(spills[2]),
        "spill_load_bytes": int(spills[3]),
        "static_shared_memory_bytes": int(shared[1]) if shared else 0,
        "constant_memory_bytes": int(constant[1]) if constant else None,
    }


def compile_build(
    kernel: Kernel, params: Mapping[str, int], architecture: str
) -> tuple[dict[str, Any], bytes]:
    """Compile one kernel for one architecture.

    Returns:
        A row of the `builds` table and the CUBIN (empty if there is none).
    """
    assert kernel.source_path is not None, "baselines have no source"
    row: dict[str, Any] = {
        "kernel": kernel.name,
        "params": canonical(params),
        "architecture": architecture,
        "source_sha256": kernel.source_sha256(),
        "compiler": "nvrtc",
    }

    def failed(status: Status, detail: str) -> tuple[dict[str, Any], bytes]:
        return {**row, "status": status, "detail": detail}, b""

    problem = compiler_problem()
    if problem:
        return failed(Status.SKIPPED_UNSUPPORTED, problem)
    version = compiler_version()
    row["compiler_version"] = version
    major, minor = compute_capability(architecture)
    supported = supported_architectures()
    if f"sm_{major}{minor}" not in supported:
        return failed(
            Status.COMPILE_FAILED,
            f"NVRTC {version} cannot compile for {architecture}; it supports "
            + ", ".join(supported),
        )
    fault = architecture_fault(kernel, architecture)
    if fault:
        return failed(*fault)

    include = kernel.source_path.parent / "include"
    options = options_for(params, architecture, include)
    row["options"] = options_on_record(params, architecture)
    started = time.perf_counter()
    source = kernel.source_path.read_text(encoding="utf-8")
    cubin, log = run_nvrtc(source, kernel.source_path.name, options)
    row["compile_time_s"] = time.perf_counter() - started
    row["log"] = _TIMING_LINE.sub("", log)
    if cubin is None:
        first_error = next((line for line in log.splitlines() if "error" in line), log[:200])
        return failed(Status.COMPILE_FAILED, first_error.strip())

    try:
        resources = resources_from_log(log, helper_entries(kernel))
    except ValueError as error:
        return failed(Status.COMPILE_FAILED, str(error))
    # Block and shared memory depend on the parameters alone, so any size serves.
    launch = kernel.launch(params, 1, 1, 1)
    assert launch is not None
    row |= resources | {
        "cubin_sha256": hashlib.sha256(cubin).hexdigest(),
        "cubin_bytes": len(cubin),
        "threads_per_block": launch.threads,
        "dynamic_shared_memory_bytes": launch.dynamic_shared_memory_bytes,
    }
    fault = _feasibility(architecture, launch, resources)
    if fault:
        return {**row, "status": fault[0], "detail": fault[1]}, cubin
    held = occupancy(
        architecture,
        threads=launch.threads,
        registers=resources["registers_per_thread"],
        shared_memory_bytes=resources["static_shared_memory_bytes"]
        + launch.dynamic_shared_memory_bytes,
    )
    if held:
        row |= {
            "blocks_per_sm": held.blocks_per_sm,
            "theoretical_occupancy_pct": held.percent,
            "occupancy_limit": held.limited_by,
        }
    return {**row, "status": Status.OK}, cubin


def _feasibility(
    architecture: str, launch: Launch, resources: Mapping[str, Any]
) -> tuple[Status, str] | None:
    return block_fault(launch) or build_fault(
        architecture,
        launch,
        registers=resources["registers_per_thread"],
        static_shared_memory_bytes=resources["static_shared_memory_bytes"],
    )


def compile_to_files(
    kernel: Kernel, params: Mapping[str, int], architecture: str, cubin: Path, record: Path
) -> dict[str, Any]:
    """Compile one build and write the CUBIN and its one-row `builds` table.

    Both are written under temporary names and renamed, so two compiles at once cannot mix.

    Raises:
        UserError: if the output folder cannot be written.
    """
    row, code = compile_build(kernel, params, architecture)
    try:
        cubin.parent.mkdir(parents=True, exist_ok=True)
        temporary = cubin.with_name(f"{cubin.name}.{os.getpid()}.part")
        temporary.write_bytes(code)
        os.replace(temporary, cubin)
        schema.write(record, "builds", [row])
    except OSError as error:
        raise UserError(f"{cubin.parent}: cannot be written ({error.strerror})") from None
    return row


def build_or_keep(
    kernel: Kernel, params: Mapping[str, int], architecture: str, root: Path
) -> tuple[BuildRow, bool]:
    """The record of a build, compiled if it is not there as it would be made now.

    Returns:
        The record, and whether it was there.

    Raises:
        UserError: if the folder cannot be written.
    """
    record = record_path(root, architecture, kernel.name, params)
    cubin = cubin_path(root, architecture, kernel.name, params)
    if record.exists() and cubin.exists():
        row = read_build(record)
        if _is_current(row, cubin, kernel, params, architecture):
            return row, True
    compile_to_files(kernel, params, architecture, cubin, record)
    return read_build(record), False


def _is_current(
    row: BuildRow, cubin: Path, kernel: Kernel, params: Mapping[str, int], architecture: str
) -> bool:
    """Whether code, compiler, options and launch are those of a build that has machine code."""
    if row["cubin_sha256"] != hashlib.sha256(cubin.read_bytes()).hexdigest():
        return False  # none, or that of another process
    if compiler_problem() or architecture_fault(kernel, architecture):
        return False
    launch = kernel.launch(params, 1, 1, 1)
    assert launch is not None, "baselines have no build"
    now = {
        "source_sha256": kernel.source_sha256(),
        "compiler_version": compiler_version(),
        "options": options_on_record(params, architecture),
        "threads_per_block": launch.threads,
        "dynamic_shared_memory_bytes": launch.dynamic_shared_memory_bytes,
    }
    return all(row[name] == value for name, value in now.items())


def build_all(tasks: Sequence[BuildTask], workers: int) -> list[tuple[BuildRow, bool]]:
    """`build_or_keep` of every task, in some processes; the results are in the tasks' order."""
    return in_processes(build_or_keep, tasks, workers)
