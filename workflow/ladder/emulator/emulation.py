"""Runs a kernel and says in the source's words what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..manifest import Launch
from .library import (
    Argument,
    KernelLibrary,
    RawFinding,
    RawRun,
    RawSite,
    array_key,
    array_of,
    build_library,
)
from .result import (
    ACCESS_KINDS,
    CLUSTER_LOAD_BYTES,
    FINDING_KINDS,
    MMA_INSTRUCTIONS,
    SPACES,
    TENSOR_CORE_FLOPS,
    TMA_LOAD_BYTES,
    TMA_LOAD_SECTORS,
    WGMMA_INSTRUCTIONS,
    EmulationResult,
    Finding,
    Site,
    counters_of,
    merge_sites,
)
from .sampling import disagreement, sample_grid, sampling_fault
from .toolchain import Compiler, EmulatorError


@dataclass(frozen=True)
class Observation:
    """What one launch of any kernel showed; arrays were changed in place."""

    findings: list[Finding]
    sites: list[Site]
    counters: dict[str, int]
    raw: RawRun


def observe(
    library: KernelLibrary,
    launch: Launch,
    arguments: Mapping[str, Argument],
    *,
    cluster: Sequence[int] = (1, 1, 1),
    checks: bool = True,
    trace: bool = True,
    reverse: bool = False,
    blocks: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Observation:
    """Run a kernel of any signature.

    Args:
        arguments: by name, in the kernel's order; the names of arrays appear in the results.

    Raises:
        EmulatorError: if the launch cannot be made.
    """
    raw = library.run(
        launch.grid,
        launch.block,
        list(arguments.values()),
        cluster=cluster,
        dynamic_shared_memory_bytes=launch.dynamic_shared_memory_bytes,
        check=checks,
        trace=trace,
        reverse=reverse,
        blocks=blocks,
        weights=weights,
    )
    arrays = _buffer_names(arguments)
    lines = library.lines(
        [pc for site in raw.sites for pc in (site.pc,)]
        + [pc for item in raw.findings for pc in (item.pc, item.other_pc)]
    )
    sites = merge_sites(_site(site, library, arrays, lines) for site in raw.sites)
    findings = [_finding(item, library, arrays, lines, launch) for item in raw.findings]
    counters = counters_of(sites) | _beside_accesses(raw)
    return Observation(_distinct(findings), sites, counters, raw)


def _buffer_names(arguments: Mapping[str, Argument]) -> list[str]:
    """The name of each buffer, in the order in which arguments bring them up.

    A pointer's name counts more than that of a tensor map over the same array.
    """
    names: dict[tuple[int, int], str] = {}
    for name, value in arguments.items():
        array = array_of(value)
        if array is not None and (isinstance(value, np.ndarray) or array_key(array) not in names):
            names[array_key(array)] = name
    return list(names.values())


def _beside_accesses(raw: RawRun) -> dict[str, int]:
    """What TMA, peers' memory and tensor cores do; left out where a kernel has none of it."""
    totals = {
        TMA_LOAD_BYTES: raw.totals.tma_load_bytes,
        TMA_LOAD_SECTORS: raw.totals.tma_load_sectors,
        CLUSTER_LOAD_BYTES: raw.totals.cluster_load_bytes,
        MMA_INSTRUCTIONS: raw.totals.mma_instructions,
        WGMMA_INSTRUCTIONS: raw.totals.wgmma_instructions,
        TENSOR_CORE_FLOPS: raw.totals.tensor_core_flops,
    }
    return {name: value for name, value in totals.items() if value}


def emulate(
    source: Path,
    params: Mapping[str, int],
    launch: Launch,
    m: int,
    n: int,
    k: int,
    *,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    arguments: Mapping[str, Argument] | None = None,
    cluster: Sequence[int] = (1, 1, 1),
    checks: bool = True,
    trace: bool = True,
    sample: bool = False,
    reverse: bool = False,
    entry: str = "gemm",
    include: Sequence[Path] = (),
    compiler: Compiler | None = None,
    cache: Path | None = None,
) -> EmulationResult:
    """Run a GEMM kernel, C = A B, on the CPU.

    Args:
        params: the kernel's macros; launch: its geometry for this size.
        a, b: float32, M x K and K x N, row-major (any shape of that many elements).
        c: float32 output of M x N elements, written in place; NaN-filled if not given.
        arguments: by name, in the kernel's order; A, B, C, M, N, K if not given. They hold `a`, `b`
            and `c` themselves, as pointers or in tensor maps.
        cluster: blocks of a cluster along each axis.
        checks: report faults; trace: count requests.
        sample: run a few blocks that stand for all (see `sampling`).
        reverse: run warps and lanes in the opposite order.

    Raises:
        EmulatorError: if the kernel cannot be built or run, or the grid cannot be sampled exactly.
    """
    for name, array, size in (("a", a, m * k), ("b", b, k * n)):
        if array.dtype != np.float32 or array.size != size:
            raise EmulatorError(
                f"{name} must hold {size:,} float32, found {array.size:,} {array.dtype}"
            )
    if c is None:
        c = np.full((m, n), np.nan, dtype=np.float32)
    started = time.perf_counter()
    library = build_library(
        source, params, entry=entry, include=include, compiler=compiler, cache=cache
    )
    chosen = None
    if sample:
        fault = sampling_fault(launch.grid, m, n, cluster)
        if fault:
            raise EmulatorError(f"{source.name} cannot be sampled: {fault}")
        chosen = sample_grid(launch.grid, m, n, k)
    seen = observe(
        library,
        launch,
        arguments or {"A": read_only(a), "B": read_only(b), "C": c, "M": m, "N": n, "K": k},
        cluster=cluster,
        checks=checks,
        trace=trace,
        reverse=reverse,
        blocks=chosen.blocks if chosen else None,
        weights=chosen.weights if chosen else None,
    )
    totals = seen.raw.totals
    inexact = None
    if totals.unmatched_requests:
        inexact = (
            f"{totals.unmatched_requests:,} requests of lanes whose loops differ in length "
            "could not be matched as the hardware would"
        )
    elif totals.aborted:
        inexact = "the launch ended early"
    elif chosen:
        fault = disagreement(chosen, seen.raw.block_counts)
        if fault:
            raise EmulatorError(f"{source.name} cannot be sampled: {fault}")
    return EmulationResult(
        c=c,
        findings=seen.findings,
        counters=seen.counters,
        sites=seen.sites,
        sampled_blocks=len(chosen.blocks) if chosen else None,
        inexact=inexact,
        completed=not totals.aborted,
        accesses=totals.accesses,
        wall_s=time.perf_counter() - started,
    )


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of an array that a kernel reads only: a write to it is a finding."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _array_name(space: int, array: int, library: KernelLibrary, arrays: Sequence[str]) -> str:
    names = arrays if SPACES[space] == "global" else [item.name for item in library.shared_arrays]
    if 0 <= array < len(names):
        return names[array]
    return (
        "no array" if SPACES[space] == "other" else "shared memory" if space == 1 else "no buffer"
    )


def _site(
    raw: RawSite,
    library: KernelLibrary,
    arrays: Sequence[str],
    lines: Mapping[int, tuple[str, int]],
) -> Site:
    file, line = lines[raw.pc]
    # Shared arrays are numbered from 1 here: 0 is the space between them.
    array = raw.array if SPACES[raw.space] == "global" else raw.array - 1
    return Site(
        file=Path(file).name,
        line=line,
        space=SPACES[raw.space],
        kind=ACCESS_KINDS[raw.kind],
        bytes=raw.bytes,
        array=_array_name(raw.space, array, library, arrays),
        requests=raw.requests,
        lanes=raw.lanes,
        sectors=raw.sectors,
        unique_bytes=raw.unique_bytes,
        wavefronts=raw.wavefronts,
        least_wavefronts=raw.least_wavefronts,
        most_sectors=raw.most_sectors,
        most_wavefronts=raw.most_wavefronts,
    )


def _finding(
    raw: RawFinding,
    library: KernelLibrary,
    arrays: Sequence[str],
    lines: Mapping[int, tuple[str, int]],
    launch: Launch,
) -> Finding:
    file, line = lines.get(raw.pc, ("?", 0))
    kind = FINDING_KINDS[raw.kind]
    array = _array_name(raw.space, raw.array, library, arrays)
    other = lines.get(raw.other_pc)
    # These know their lines, also where a compiler merged them.
    if kind in ("divergent_barrier", "divergent_warp"):
        line, other = raw.offset, (file, raw.bytes) if raw.bytes else None
    return Finding(
        kind=kind,
        file=Path(file).name,
        line=line,
        thread=raw.thread,
        block=raw.block,
        array=array,
        message=_message(raw, kind, array, other, launch),
        count=raw.count,
        other_line=other[1] if other else None,
    )


def _message(
    raw: RawFinding, kind: str, array: str, other: tuple[str, int] | None, launch: Launch
) -> str:
    where = (
        f"{array}[{raw.offset // 4}]" if raw.offset % 4 == 0 else f"{array} + {raw.offset} bytes"
    )
    barrier = f"byte {raw.offset} of {array}"
    there = f" (line {other[1]})" if other else ""
    if kind == "out_of_bounds":
        return f"{raw.bytes} bytes at {where} lie outside {array}"
    if kind == "race" and raw.kind == 19:
        return (
            f"{where} is touched by threads {raw.thread} and {raw.other_thread}{there} of two "
            "blocks of the cluster, one of which writes, with no cluster barrier between them"
        )
    if kind == "race" and raw.thread == raw.other_thread:
        return f"{where} is written while a wgmma of the same warp{there} may still read it"
    if kind == "race":
        what = "is written" if raw.kind == 2 else "is read and written"
        return (
            f"{where} {what} by threads {raw.thread} and {raw.other_thread}{there} "
            "with no synchronisation between them"
        )
    if kind == "uninitialised_read":
        return f"{where} is read and was never written in this block"
    if kind == "misaligned" and raw.kind == 24:
        return f"a tile in this order begins at a multiple of {raw.bytes} bytes, not at {where}"
    if kind == "misaligned":
        return f"a {raw.bytes}-byte access at {where} is not aligned to {raw.bytes} bytes"
    if kind == "in_flight" and raw.kind == 23:
        if not raw.bytes:
            return "the block ends before a wait for this product of matrices"
        return f"the sum of a wgmma{there} is touched before a wait has ended it"
    if kind == "missing_fence" and SPACES[raw.space] == "shared":
        return (
            f"{where} is written by thread {raw.other_thread}{there} and read by a wgmma with no "
            "fence_proxy_async() between them"
        )
    if kind == "missing_fence":
        return "the first wgmma after a wait, or of all, and no wgmma_fence() before it"
    if kind == "divergent_warp":
        elsewhere = f"is at another{there}" if other else "is not"
        return (
            f"thread {raw.other_thread} {elsewhere}; all must execute this instruction, with equal "
            "operands in shared memory"
        )
    if kind == "in_flight":
        if not raw.bytes:
            return f"the block ends before this copy to {where} has landed"
        return (
            f"{where} is the destination of an asynchronous copy{there} that no wait has completed"
        )
    if kind == "divergent_barrier":
        if other:
            return f"thread {raw.other_thread} waits at another barrier{there}"
        return f"thread {raw.other_thread} has exited; every thread of the block must come"
    if kind == "deadlock" and SPACES[raw.space] == "shared":
        return (
            f"waits for a phase of the mbarrier at {barrier} that never completes: "
            f"{raw.other_thread} arrivals and {raw.bytes} announced bytes are missing"
        )
    if kind == "deadlock" and SPACES[raw.space] == "global":
        return f"waits for a flag at {where} that no earlier block has raised"
    if kind == "deadlock":
        return f"waits for threads that never come (thread {raw.other_thread} waits elsewhere)"
    if kind == "uninitialised_barrier":
        return f"nobody has initialised an mbarrier at {barrier}"
    if kind == "over_arrival":
        return f"the phase of the mbarrier at {barrier} has all its arrivals already"
    if kind == "transaction_count":
        return f"the copies bring {raw.bytes} bytes more than the mbarrier at {barrier} was told"
    if kind == "peer_exited":
        return (
            f"{where} belongs to another block of the cluster, which may have exited: "
            "no cluster barrier follows"
        )
    if kind == "race_between_blocks":
        return (
            f"{where} is touched by thread {raw.other_thread}{there}, perhaps of another block, "
            "with no synchronisation between them"
        )
    if kind == "wild_address" and SPACES[raw.space] == "shared":
        return f"the cluster has no block of rank {raw.bytes}"
    if kind == "wild_address":
        address = raw.offset & 0xFFFF_FFFF_FFFF_FFFF
        return f"{raw.bytes} bytes at address {address:#x}, outside all arrays"
    if kind == "trap":
        return "the kernel called __trap()"
    if kind == "shuffle_source":
        return (
            f"takes a value from thread {raw.other_thread}, which does not take part in the shuffle"
        )
    if kind == "machine_fault":
        return "the thread stopped: a division by zero, or more local memory than its stack holds"
    return "2^20 accesses without reaching a synchronisation: an endless loop"


def _distinct(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per kind, line, other line and array; unrolled copies of a line are one fault."""
    merged: dict[tuple[str, str, int, int | None, str], Finding] = {}
    for item in findings:
        key = (item.kind, item.file, item.line, item.other_line, item.array)
        known = merged.get(key)
        merged[key] = (
            item
            if known is None
            else Finding(**{**known.__dict__, "count": known.count + item.count})
        )
    return list(merged.values())
