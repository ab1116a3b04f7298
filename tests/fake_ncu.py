"""An `ncu` that counts nothing: it runs the program and prints a table in the documented form.

Its numbers and its words are made up, in the form of `ncu --csv --page raw` and of the messages
that users have published; nothing here was recorded. `install` puts it into a project; what goes
wrong is told by a JSON file:

`mode`: `no_permission`, `nothing` (no launch is profiled), `busy` (another profiler), `garbage`
`refuse`: metrics that it cannot collect
`cells`: metric -> text printed instead of a number
`units`: metric -> unit printed instead of the base unit
`grid`: index of a launch that is printed with another grid
`extra`: launches printed beyond those that ran
`library`: kernels printed for a launch of cuBLAS
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder import profiled
from ladder.device import LaunchSpec
from ladder.hardware import COUNTERS
from ladder.profile import expected_launches

if TYPE_CHECKING:
    from project import Project

VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2025 NVIDIA Corporation
Version 2025.3.1.0 (build 36398880) (public-release)"""
_UNITS = {
    name: counter.unit
    for counter in COUNTERS
    for name in (counter.name, counter.renamed[1] if counter.renamed else counter.name)
}
_FIXED = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
          "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip


def install(project: Project, **settings: Any) -> None:
    """From now on this is the profiler of a project; its calls are listed in `ncu_calls.jsonl`."""
    path = project.folder / "fake_ncu.json"
    path.write_text(json.dumps(settings))
    script = project.folder / "ncu"
    script.write_text(
        f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{VERSION}'; exit; fi\n"
        f'exec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n'
    )
    script.chmod(0o755)
    project.environment |= {"LADDER_NCU": str(script), "LADDER_FAKE_NCU": str(path)}


def calls(project: Project) -> list[list[str]]:
    """The command lines of its runs, without those that ask for its version."""
    path = project.folder / "ncu_calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def printed_value(name: str, launch: int) -> float:
    """What it prints for a metric of a launch: by name, so that a mix-up of columns shows."""
    position = sorted(_UNITS).index(name) + 1
    return 1.5 * position if _UNITS[name] == "%" else 1_000_000.0 * (launch + 1) + position


def table(
    launches: list[tuple[str, list[int], list[int]]], metrics: list[str], **settings: Any
) -> str:
    """The table of some launches: head, units, rows."""
    names = sorted(metrics)
    units, cells = settings.get("units", {}), settings.get("cells", {})
    text = io.StringIO()
    write = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow
    write([*_FIXED, *names])
    write([*("" for _ in _FIXED), *(units.get(name, _base_unit(name)) for name in names)])
    for number, (kernel, grid, block) in enumerate(launches):
        shape = [7, 7, 7] if settings.get("grid") == number else grid
        fixed = [str(number), "4711", "python3.12", "127.0.0.1", kernel, "1", "7",
                 _dimensions(block), _dimensions(shape), "0", "9.0"]  # fmt: skip
        write([*fixed, *(cells.get(name, _text(name, number)) for name in names)])
    return text.getvalue()


def _base_unit(name: str) -> str:
    unit = _UNITS[name]
    return unit if unit in ("byte", "%", "inst", "sector", "request", "cycle") else ""


def _text(name: str, launch: int) -> str:
    value = printed_value(name, launch)
    return f"{value:.2f}" if _UNITS[name] == "%" else f"{value:,.0f}"


def _dimensions(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def main(arguments: list[str]) -> int:
    with Path("ncu_calls.jsonl").open("a") as file:
        file.write(json.dumps(arguments) + "\n")
    settings = json.loads(Path(os.environ["LADDER_FAKE_NCU"]).read_text())
    log = Path(arguments[arguments.index("--log-file") + 1])
    metrics = arguments[arguments.index("--metrics") + 1].split(",")
    target = arguments[arguments.index("--log-file") + 2 :]
    said = ["==PROF== Connected to process 4711 (/usr/bin/python3.12)"]
    code = 1
    refused = [name for name in settings.get("refuse", []) if name in metrics]
    if settings.get("mode") == "no_permission":
        said.append(
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU"
            " Performance Counters on the target device 0. For instructions on enabling permissions"
            " and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
    elif settings.get("mode") == "busy":
        said += [
            "==ERROR== An error was reported by the driver",
            "",
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no"
            " other tool (like DCGM) is concurrently collecting profiling data.",
            '==ERROR== Failed to profile "gemm" in process 4711',
            "==PROF== Trying to shutdown target application",
        ]
    elif refused:
        said.append(
            f"==ERROR== Failed to access the following {len(refused)} metrics: {', '.join(refused)}"
        )
    else:
        code = _run(target)
    if code:
        said.append(f"==ERROR== The application returned an error code ({abs(code)}).")
    launches = [] if settings.get("mode") == "nothing" else _launches(target, settings)
    said.append("==PROF== Disconnected from process 4711")
    if launches:
        said.append(table(launches, metrics, **settings))
    else:
        said.append("==WARNING== No kernels were profiled.")
    if settings.get("mode") == "garbage":
        said = ['"ID","Kernel Name"', '"0","gemm"']
    log.write_text("\n".join(said))
    return code


def _run(target: list[str]) -> int:
    """The exit code of the profiled program, which a fork of this process becomes: a start of
    Python that imports NumPy takes longer than its launches."""
    assert target[:3] == [sys.executable, "-m", profiled.__name__]
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.argv = target[2:]
    profiled.main()
    os._exit(0)


def _launches(
    target: list[str], settings: dict[str, Any]
) -> list[tuple[str, list[int], list[int]]]:
    """Those of the points that the program says to have ended."""
    items, progress = json.loads(Path(target[-2]).read_text()), Path(target[-1])
    lines = progress.read_text().splitlines() if progress.exists() else []
    found: list[tuple[str, list[int], list[int]]] = []
    for record in map(json.loads, lines):
        if record["state"] != "ended":
            continue
        item = items[record["index"]]
        spec = item["spec"]
        if spec["cubin"] is None:
            kernels = settings.get("library", ["void cutlass::Kernel2<sgemm>(T1::Params)"])
            found += [(kernel, [9, 1, 1], [128, 1, 1]) for kernel in kernels]
            continue
        own = expected_launches(LaunchSpec.from_json(spec), (item["m"], item["n"], item["k"]))
        found += [(kernel, list(grid), list(block)) for kernel, grid, block in own or []]
    return found + [("stray", [1, 1, 1], [32, 1, 1])] * settings.get("extra", 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
