"""One point of the `counters` table: a kernel, its parameters and a size, emulated and judged."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from .. import correctness
from ..expressions import cdiv
from ..manifest import Kernel, Launch, canonical, parameter_fault
from ..status import Status
from ..tensor_maps import (
    ELEMENT_BYTES,
    HelperLaunch,
    MappedMatrix,
    mapped_matrices,
)
from .compiled import (
    FFMA,
    INSTRUCTIONS,
    LOCAL_LOADS,
    LOCAL_STORES,
    PREDICATED_SHARED_LOADS,
    PREDICATED_SHARED_STORES,
    CompiledCounts,
    count_gemm,
)
from .emulation import Observation, emulate, observe, read_only
from .library import Argument, KernelLibrary, build_library
from .result import UNITS, EmulationResult, derived
from .sampling import sample_grid, sampling_fault
from .sass import Program
from .tensor_map import TensorMap2D
from .toolchain import Compiler, EmulatorError, NoCompilerError, UnsupportedKernelError

SEED = 1
"""The data set of an emulated point: `uniform`, this seed, the same bits as on a GPU."""
LARGEST_FULL_RUN = 2**25
"""Multiply-adds up to which all blocks run by default, a second; larger grids are sampled."""
INSTRUCTION_UNITS = {
    PREDICATED_SHARED_LOADS: "inst",
    PREDICATED_SHARED_STORES: "inst",
    INSTRUCTIONS: "inst",
    FFMA: "inst",
    LOCAL_LOADS: "inst",
    LOCAL_STORES: "inst",
}


@dataclass(frozen=True)
class EmulatedPoint:
    """What the emulator says of one kernel, parameter set and size."""

    kernel: str
    params: Mapping[str, int]
    m: int
    n: int
    k: int
    status: Status
    detail: str | None = None
    result: EmulationResult | None = None
    eta_max: float | None = None
    """Largest |C - R| / (u |A||B|) over the elements that ran."""
    bitwise_hash: str | None = None
    """SHA-256 of C's bytes; None for a sample."""
    ratios: dict[str, float] = field(default_factory=dict)
    compiled: dict[str, CompiledCounts | str] = field(default_factory=dict)
    """By architecture: the counts of its machine code, or why there are none."""

    @property
    def correct(self) -> bool:
        return self.status is Status.OK


def emulate_point(
    kernel: Kernel,
    params: Mapping[str, int],
    m: int,
    n: int,
    k: int,
    *,
    sample: bool | None = None,
    checks: bool = True,
    most_fma: int | None = None,
    compiler: Compiler | None = None,
    cache: Path | None = None,
    programs: Mapping[str, Program | str] | None = None,
) -> EmulatedPoint:
    """Run one point and judge it as the GPU's points are judged; what cannot run is a status.

    Args:
        sample: run a few blocks that stand for all; by default only when the grid is large.
        most_fma: do not start if the blocks to run make more multiply-adds than this.
        programs: machine code by architecture, to be counted too, or why it cannot be read.
    """

    def without_result(status: Status, detail: str) -> EmulatedPoint:
        return EmulatedPoint(kernel.name, params, m, n, k, status, detail)

    fault = parameter_fault(kernel.manifest, params)
    if fault or kernel.source_path is None or not kernel.manifest.emulator:
        return without_result(
            Status.SKIPPED_CONSTRAINT if fault else Status.SKIPPED_UNSUPPORTED,
            fault
            or f"{kernel.name} cannot be emulated (its manifest says so, or it has no source)",
        )
    for status, violation in (
        (Status.SKIPPED_CONSTRAINT, kernel.violated_constraint(params)),
        (Status.SKIPPED_PRECONDITION, kernel.violated_precondition(params, m, n, k)),
    ):
        if violation:
            return without_result(status, violation)
    launch = kernel.launch(params, m, n, k)
    assert launch is not None, "a kernel with a source has a launch"

    a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
    correctness.fill_inputs(np, a, b, "uniform", SEED)
    c = np.empty((m, n), np.float32)
    correctness.poison(np, c)
    shares = bool(launch.scratch_bytes)
    if sample is None:
        cluster = launch.cluster or (1, 1, 1)
        too_large = m * n * k > LARGEST_FULL_RUN
        alone = not shares and sampling_fault(launch.grid, m, n, cluster) is None
        sample = too_large and alone
    elif sample and shares:
        return without_result(
            Status.SKIPPED_UNSUPPORTED,
            "cannot be sampled: its blocks leave partial results for each other; run all blocks",
        )
    work = m * n * k * _part_that_runs(launch, m, n, k, sample)
    if most_fma is not None and work > most_fma:
        skipped = without_result(
            Status.SKIPPED_UNSUPPORTED,
            f"too long for a CPU: {work:,.0f} multiply-adds, of which {most_fma:,} may run",
        )
        # Machine code is counted without running its multiply-adds.
        return replace(skipped, compiled=_count_all(programs, launch, m, n, k))
    try:
        result = _run(
            kernel.source_path,
            params,
            launch,
            (m, n, k),
            (a, b, c),
            checks=checks,
            sample=sample,
            compiler=compiler,
            cache=cache,
        )
    except (NoCompilerError, UnsupportedKernelError) as error:
        return without_result(Status.SKIPPED_UNSUPPORTED, str(error))
    except EmulatorError as error:
        return without_result(Status.COMPILE_FAILED, str(error))
    status, detail, eta = _judge(kernel, result, a, b, m, n, k)
    whole = result.sampled_blocks is None and result.completed
    return EmulatedPoint(
        kernel.name,
        params,
        m,
        n,
        k,
        status,
        detail,
        result,
        eta,
        hashlib.sha256(c.tobytes()).hexdigest() if whole else None,
        derived(result.counters, result.sites, m, n, k),
        _count_all(programs, launch, m, n, k),
    )


def _part_that_runs(launch: Launch, m: int, n: int, k: int, sample: bool) -> float:
    """Blocks that run, as a share of the grid's."""
    chosen = sample_grid(launch.grid, m, n, k) if sample else None
    return len(chosen.blocks) / math.prod(launch.grid) if chosen else 1.0


def _run(
    source: Path,
    params: Mapping[str, int],
    launch: Launch,
    shape: tuple[int, int, int],
    matrices: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    checks: bool,
    sample: bool,
    compiler: Compiler | None,
    cache: Path | None,
) -> EmulationResult:
    """All launches of one product: helpers first where the kind has them, then `gemm`.

    The counters are those of all launches together, as their times are; sites tell them apart.
    """
    a, b, c = matrices
    arguments: dict[str, Argument] = {}
    helpers: list[Observation] = []
    lines: dict[str, Argument] = {}
    shifts: dict[str, Argument] = {}
    if launch.tensor_maps:
        mapped = mapped_matrices(launch.tensor_maps, *shape)
        for name, matrix, array in zip(("a_tiles", "b_tiles"), mapped, (a, b), strict=True):
            written = {
                helper.entry: np.full(size // ELEMENT_BYTES, np.nan, np.float32)
                for helper, size in (
                    (matrix.shifts, matrix.shifts_bytes),
                    (matrix.helper, matrix.copy_bytes),
                )
                if helper
            }
            for helper in matrix.launches:
                library = build_library(
                    source, params, entry=helper.entry, compiler=compiler, cache=cache
                )
                helpers.append(
                    _help(library, helper, matrix, array, written[helper.entry], checks=checks)
                )
            if launch.tensor_maps.f16_shifts is not None:
                found = written[matrix.shifts.entry] if matrix.shifts else np.empty(0, np.float32)
                shifts[f"{matrix.matrix.lower()}_shifts"] = found
            if matrix.helper:
                array = copy = written[matrix.helper.entry]
                if matrix.lines:
                    lines[f"{matrix.matrix.lower()}_lines"] = copy[
                        matrix.matrix_bytes // ELEMENT_BYTES :
                    ]
            columns, rows = matrix.box
            arguments[name] = TensorMap2D(
                array, 0, matrix.rows, matrix.columns, matrix.pitch, rows, columns, matrix.swizzle
            )
    else:
        arguments |= {"A": read_only(a), "B": read_only(b)}
    arguments["C"] = c
    if lines:
        arguments |= {"A": read_only(a), "B": read_only(b)} | lines
    arguments |= shifts
    if launch.scratch_bytes is not None:
        arguments["scratch"] = np.zeros(cdiv(launch.scratch_bytes, c.itemsize), c.dtype)
    arguments |= dict(zip("MNK", shape, strict=True))
    result = emulate(
        source,
        params,
        launch,
        *shape,
        a=a,
        b=b,
        c=c,
        arguments=arguments,
        cluster=launch.cluster or (1, 1, 1),
        checks=checks,
        sample=sample,
        compiler=compiler,
        cache=cache,
    )
    counters = Counter(result.counters)
    for seen in helpers:
        counters.update(seen.counters)
    return replace(
        result,
        findings=[item for seen in helpers for item in seen.findings] + result.findings,
        sites=[site for seen in helpers for site in seen.sites] + result.sites,
        counters=dict(counters),
        completed=result.completed and not any(seen.raw.totals.aborted for seen in helpers),
    )


def _help(
    library: KernelLibrary,
    helper: HelperLaunch,
    mapped: MappedMatrix,
    matrix: np.ndarray,
    written: np.ndarray,
    *,
    checks: bool,
) -> Observation:
    """Run a helper, which reads a matrix and writes its copy or its shifts."""
    if helper is mapped.shifts:
        names, last = ("shifts", "tile_rows"), mapped.box[1]
    else:
        names, last = ("copy", "pitch"), mapped.pitch
    source = matrix.view()
    source.flags.writeable = False
    return observe(
        library,
        Launch(helper.grid, helper.block, 0),
        {
            mapped.matrix: source,
            names[0]: written,
            "rows": helper.rows,
            "columns": helper.columns,
            names[1]: last,
        },
        checks=checks,
    )


def emulate_within(
    limit_s: float,
    kernel: Kernel,
    params: Mapping[str, int],
    m: int,
    n: int,
    k: int,
    **options: Any,
) -> EmulatedPoint:
    """`emulate_point` in a process of its own: a hang or a crash costs this point alone.

    The runtime sees every access, and so ends a loop that makes too many; a loop that touches no
    memory can only be ended from outside.

    Args:
        limit_s: seconds until the point counts as hung.
        options: as `emulate_point` takes them.

    Raises:
        Exception: whatever `emulate_point` raises.
    """
    context = (
        multiprocessing.get_context("fork")
        if _is_one_thread()
        else multiprocessing.get_context("spawn")
    )
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, options, kernel, params, m, n, k)
    process = context.Process(target=_send_point, args=arguments, daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            why = f"no end within {limit_s:g} s; perhaps a loop that touches no memory"
            return EmulatedPoint(kernel.name, params, m, n, k, Status.TIMEOUT, why)
        outcome = receiver.recv()
    except EOFError:
        process.join()
        how = f"the emulated kernel ended its process (exit code {process.exitcode})"
        return EmulatedPoint(kernel.name, params, m, n, k, Status.WORKER_CRASH, how)
    finally:
        process.kill()
        process.join()
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, EmulatedPoint)
    return outcome


def _is_one_thread() -> bool:
    """Whether this process can be forked, which spares its child all imports: the locks of other
    threads would be copied as they are, and never open again."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _send_point(sender: Connection, options: Mapping[str, Any], *point: Any) -> None:
    try:
        sender.send(emulate_point(*point, **options))
    except Exception as error:
        sender.send(error)


def _count_all(
    programs: Mapping[str, Program | str] | None, launch: Launch, m: int, n: int, k: int
) -> dict[str, CompiledCounts | str]:
    return {name: _count(code, launch, m, n, k) for name, code in (programs or {}).items()}


def _count(program: Program | str, launch: Launch, m: int, n: int, k: int) -> CompiledCounts | str:
    if isinstance(program, str):
        return program
    try:
        return count_gemm(program, launch.grid, launch.block, m, n, k)
    except EmulatorError as error:
        return str(error)


def _judge(
    kernel: Kernel, result: EmulationResult, a: np.ndarray, b: np.ndarray, m: int, n: int, k: int
) -> tuple[Status, str | None, float | None]:
    """Status, detail and largest eta; the elements that a sample leaves out are not judged."""
    if result.findings:
        return result.status, str(result.findings[0]), None
    c = result.c
    ran = c.view(np.uint32) != np.uint32(correctness.POISON_BITS)
    if result.sampled_blocks is None and not ran.all():
        missing = int((~ran).sum())
        return (
            Status.WRONG_RESULT,
            f"{missing:,} of {m * n:,} elements of C were never written",
            None,
        )
    rows, columns = np.flatnonzero(ran.any(axis=1)), np.flatnonzero(ran.any(axis=0))
    part = np.ix_(rows, columns)
    reference = correctness.reference(
        np,
        a.reshape(m, k)[rows].ravel(),
        b.reshape(k, n)[:, columns].ravel(),
        len(rows),
        len(columns),
        k,
        "uniform",
        SEED,
    )
    seen = np.where(ran[part], c[part], reference.product.astype(np.float32))
    if correctness.count_nonfinite(np, seen):
        return Status.NONFINITE, "elements of C are NaN or infinite", None
    largest, _, wrong = correctness.error_statistics(
        np, seen, reference, correctness.ETA_MAX[kernel.manifest.accuracy]
    )
    if wrong:
        return Status.WRONG_RESULT, str(wrong), largest
    return Status.OK, None, largest


def counter_rows(point: EmulatedPoint) -> list[dict[str, Any]]:
    """Rows of the `counters` table: source-level counts and ratios, then those of each CUBIN.

    In place of the source-level counts of a point that could not run is one row without a value,
    whose metric is `emulation`.
    """
    key = {
        "kernel": point.kernel,
        "params": canonical(point.params),
        "m": point.m,
        "n": point.n,
        "k": point.k,
    }
    rows: list[dict[str, Any]]
    if point.result is None:
        rows = [
            {
                **key,
                "metric": "emulation",
                "source": "emulator",
                "status": point.status,
                "detail": point.detail,
            }
        ]
    else:
        inexact = point.result.inexact
        # A fault says more than a count that is not exact.
        uncounted = inexact is not None and point.correct
        rows = [
            {
                **key,
                "metric": name,
                "value": None if inexact else float(value),
                "unit": UNITS[name],
                "source": "emulator",
                "status": Status.MISSING_METRIC if uncounted else point.status,
                "detail": inexact if uncounted else point.detail,
            }
            for name, value in {**point.result.counters, **point.ratios}.items()
        ]
    for architecture, counted in point.compiled.items():
        common = {**key, "architecture": architecture, "source": "compiled"}
        if isinstance(counted, str):
            rows.append(
                {
                    **common,
                    "metric": "machine_code",
                    "status": Status.MISSING_METRIC,
                    "detail": counted,
                }
            )
            continue
        rows += [
            {
                **common,
                "metric": name,
                "value": float(value),
                "unit": UNITS.get(name) or INSTRUCTION_UNITS[name],
                "status": Status.OK,
            }
            for name, value in counted.counters.items()
        ]
    return rows
