"""Where builds are kept: a CUBIN and its record a parameter set, made anew only where they differ.

`results/build/<architecture>/<kernel>/<params>.cubin` and `.parquet`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from . import schema
from .compile import compile_to_files, compiler_problem, compiler_version, options_on_record
from .manifest import Kernel, slug
from .plan import architecture_fault

BuildRow = dict[str, Any]
BuildTask = tuple[Kernel, Mapping[str, int], str, Path]
"""A kernel, its parameters, the architecture and the folder of the builds."""
_Result = TypeVar("_Result")


def build_paths(root: Path, architecture: str, kernel: str, params: Mapping[str, int]) -> Path:
    """Path of a build without its suffix; `.cubin` and `.parquet` lie beside each other."""
    return root / architecture / kernel / slug(params)


def cubin_path(root: Path, architecture: str, kernel: str, params: Mapping[str, int]) -> Path:
    base = build_paths(root, architecture, kernel, params)
    return base.with_name(base.name + ".cubin")


def record_path(root: Path, architecture: str, kernel: str, params: Mapping[str, int]) -> Path:
    base = build_paths(root, architecture, kernel, params)
    return base.with_name(base.name + ".parquet")


def read_build(path: Path) -> BuildRow:
    """The one row of a build record."""
    row: BuildRow = schema.read(path, "builds").to_pylist()[0]
    return row


def read_builds(root: Path) -> list[BuildRow]:
    """Every build record below a folder, sorted by path."""
    return [read_build(path) for path in sorted(root.glob("*/*/*.parquet"))]


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


def in_processes(
    function: Callable[..., _Result], tasks: Sequence[tuple[Any, ...]], workers: int
) -> list[_Result]:
    """`function(*task)` of every task: in this process if one is to work, else in as many others.

    The first results are asked for first, so that an error is that of the first task that failed.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        return [function(*task) for task in tasks]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, *zip(*tasks, strict=True)))
