"""What an emulated launch shows: counters under NCU's names, sites by source line, findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..status import Status

SPACES = ("global", "shared", "other")
ACCESS_KINDS = ("load", "store", "cp.async source", "cp.async destination", "atomic", "ldmatrix")

FINDING_KINDS = {
    1: "out_of_bounds",
    2: "race",
    3: "race",
    4: "uninitialised_read",
    5: "misaligned",
    6: "in_flight",
    7: "divergent_barrier",
    8: "deadlock",
    9: "race_between_blocks",
    10: "wild_address",
    11: "trap",
    12: "shuffle_source",
    13: "endless_loop",
    14: "machine_fault",
    15: "uninitialised_barrier",
    16: "over_arrival",
    17: "transaction_count",
    18: "peer_exited",
    19: "race",
    20: "divergent_warp",
    21: "missing_fence",
    22: "missing_fence",
    23: "in_flight",
    24: "misaligned",
}

STATUS_OF_FINDING = {
    "out_of_bounds": Status.GUARD_VIOLATION,
    "race": Status.RACE,
    "uninitialised_read": Status.RACE,
    "misaligned": Status.MISALIGNED,
    "in_flight": Status.RACE,
    "divergent_barrier": Status.RACE,
    "deadlock": Status.TIMEOUT,
    "race_between_blocks": Status.RACE,
    "wild_address": Status.ILLEGAL_ADDRESS,
    "trap": Status.LAUNCH_FAILED,
    "shuffle_source": Status.RACE,
    "endless_loop": Status.TIMEOUT,
    "machine_fault": Status.ILLEGAL_ADDRESS,
    "uninitialised_barrier": Status.RACE,
    "over_arrival": Status.RACE,
    "transaction_count": Status.RACE,
    "peer_exited": Status.LAUNCH_FAILED,
    "divergent_warp": Status.RACE,
    "missing_fence": Status.RACE,
}
"""The status of a launch with such a finding: what a GPU run of the same fault may end as."""

GLOBAL_LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
GLOBAL_LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
GLOBAL_STORE_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
GLOBAL_STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
SHARED_LOADS = "smsp__sass_inst_executed_op_shared_ld.sum"
SHARED_STORES = "smsp__sass_inst_executed_op_shared_st.sum"
ASYNC_COPIES = "smsp__inst_executed_op_ldgsts.sum"
SHARED_LOAD_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
SHARED_STORE_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
SHARED_LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
SHARED_STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
REQUESTED_LOAD_BYTES = "requested_load_bytes"
REQUESTED_STORE_BYTES = "requested_store_bytes"
UNIQUE_LOAD_BYTES = "unique_load_bytes"
TMA_LOAD_BYTES = "tma_load_bytes"
TMA_LOAD_SECTORS = "tma_load_sectors"
CLUSTER_LOAD_BYTES = "cluster_load_bytes"
MMA_INSTRUCTIONS = "mma_instructions"
WGMMA_INSTRUCTIONS = "wgmma_instructions"
TENSOR_CORE_FLOPS = "tensor_core_flops"
LDMATRIX_INSTRUCTIONS = "ldmatrix_instructions"
LDMATRIX_WAVEFRONTS = "ldmatrix_wavefronts"
LDMATRIX_CONFLICTS = "ldmatrix_conflicts"
SHARED_LOAD_BYTES = "shared_load_bytes"
SHARED_STORE_BYTES = "shared_store_bytes"

UNITS = {
    GLOBAL_LOAD_REQUESTS: "request",
    GLOBAL_LOAD_SECTORS: "sector",
    GLOBAL_STORE_REQUESTS: "request",
    GLOBAL_STORE_SECTORS: "sector",
    SHARED_LOADS: "inst",
    SHARED_STORES: "inst",
    ASYNC_COPIES: "inst",
    SHARED_LOAD_WAVEFRONTS: "wavefront",
    SHARED_STORE_WAVEFRONTS: "wavefront",
    SHARED_LOAD_CONFLICTS: "conflict",
    SHARED_STORE_CONFLICTS: "conflict",
    REQUESTED_LOAD_BYTES: "byte",
    REQUESTED_STORE_BYTES: "byte",
    UNIQUE_LOAD_BYTES: "byte",
    TMA_LOAD_BYTES: "byte",
    TMA_LOAD_SECTORS: "sector",
    CLUSTER_LOAD_BYTES: "byte",
    MMA_INSTRUCTIONS: "inst",
    WGMMA_INSTRUCTIONS: "inst",
    TENSOR_CORE_FLOPS: "flop",
    LDMATRIX_INSTRUCTIONS: "inst",
    LDMATRIX_WAVEFRONTS: "wavefront",
    LDMATRIX_CONFLICTS: "conflict",
    SHARED_LOAD_BYTES: "byte",
    SHARED_STORE_BYTES: "byte",
    "sectors_per_load_request": "sector/request",
    "bytes_per_load_sector": "byte/sector",
    "redundancy_a": "1",
    "redundancy_b": "1",
}
"""The unit of every metric that this module names."""


@dataclass(frozen=True)
class Site:
    """One access in the source: counts of warp-level requests over the whole grid."""

    file: str
    line: int
    space: str
    kind: str
    bytes: int
    """Width of one thread's access."""
    array: str
    requests: int
    lanes: int
    """Threads that took part, over all requests."""
    sectors: int
    """Distinct 32-byte sectors of each request, summed (global memory)."""
    unique_bytes: int
    """Distinct bytes of each request, summed (global memory)."""
    wavefronts: int
    """Passes over the banks (shared memory)."""
    least_wavefronts: int
    """Passes that the width alone would cost; the rest are bank conflicts."""
    most_sectors: int
    most_wavefronts: int

    @property
    def requested_bytes(self) -> int:
        """Bytes that the threads ask for, each counted as often as it is asked for."""
        return self.lanes * self.bytes

    @property
    def conflicts(self) -> int:
        """Bank conflicts: wavefronts beyond the least."""
        return self.wavefronts - self.least_wavefronts


@dataclass(frozen=True)
class Finding:
    """A fault: where, by which thread of which block, and how often it was seen."""

    kind: str
    file: str
    line: int
    thread: int
    """Linear index in the block."""
    block: int
    """Linear index in the grid."""
    array: str
    message: str
    count: int
    other_line: int | None = None
    """The other access of a race, or the other barrier."""

    def __str__(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return (
            f"{self.file}:{self.line}: {self.kind}: {self.message}; "
            f"thread {self.thread} of block {self.block}{times}"
        )


@dataclass(frozen=True)
class EmulationResult:
    """The outcome of an emulated launch."""

    c: np.ndarray
    """The output, M x N float32; blocks outside a sample keep what was in it."""
    findings: list[Finding]
    counters: dict[str, int]
    """Source-level counters by name: NCU's where NCU counts the same thing."""
    sites: list[Site]
    sampled_blocks: int | None
    """Blocks that stood for the grid; None if all ran."""
    inexact: str | None
    """Why the counters are not exact; None if they are."""
    completed: bool
    """Whether every thread came to its end."""
    accesses: int
    """Global and shared accesses of single threads that ran."""
    wall_s: float

    @property
    def status(self) -> Status:
        """`ok`, or the status of the first finding."""
        return STATUS_OF_FINDING[self.findings[0].kind] if self.findings else Status.OK


def counters_of(sites: Iterable[Site]) -> dict[str, int]:
    """Sums over sites under NCU's names.

    The global-load counters include cp.async, as the hardware's do; its writes to shared memory are
    not counted as shared stores, there as here. Those of ldmatrix stand only where a kernel has it.
    """
    everything = list(sites)

    def total(field: str, space: str, *kinds: str) -> int:
        return sum(
            getattr(site, field)
            for site in everything
            if site.space == space and site.kind in kinds
        )

    loads = ("load", "cp.async source")
    of_matrices = {
        LDMATRIX_INSTRUCTIONS: total("requests", "shared", "ldmatrix"),
        LDMATRIX_WAVEFRONTS: total("wavefronts", "shared", "ldmatrix"),
        LDMATRIX_CONFLICTS: total("conflicts", "shared", "ldmatrix"),
    }
    return {
        GLOBAL_LOAD_REQUESTS: total("requests", "global", *loads),
        GLOBAL_LOAD_SECTORS: total("sectors", "global", *loads),
        GLOBAL_STORE_REQUESTS: total("requests", "global", "store"),
        GLOBAL_STORE_SECTORS: total("sectors", "global", "store"),
        SHARED_LOADS: total("requests", "shared", "load"),
        SHARED_STORES: total("requests", "shared", "store"),
        ASYNC_COPIES: total("requests", "shared", "cp.async destination"),
        SHARED_LOAD_WAVEFRONTS: total("wavefronts", "shared", "load"),
        SHARED_STORE_WAVEFRONTS: total("wavefronts", "shared", "store"),
        SHARED_LOAD_CONFLICTS: total("conflicts", "shared", "load"),
        SHARED_STORE_CONFLICTS: total("conflicts", "shared", "store"),
        REQUESTED_LOAD_BYTES: total("requested_bytes", "global", *loads),
        REQUESTED_STORE_BYTES: total("requested_bytes", "global", "store"),
        UNIQUE_LOAD_BYTES: total("unique_bytes", "global", *loads),
        SHARED_LOAD_BYTES: total("requested_bytes", "shared", "load"),
        SHARED_STORE_BYTES: total("requested_bytes", "shared", "store"),
    } | (of_matrices if of_matrices[LDMATRIX_INSTRUCTIONS] else {})


def derived(
    counters: Mapping[str, int], sites: Iterable[Site], m: int, n: int, k: int
) -> dict[str, float]:
    """Ratios that explain a rung.

    Returns:
        `sectors_per_load_request`; `bytes_per_load_sector`, useful bytes of each 32-byte sector;
        and `redundancy_a` and `redundancy_b`, how often threads ask for each element on average. A
        ratio whose denominator is zero is left out, and so is the redundancy where copies of TMA
        bring the tiles: threads ask for what the helpers copy only.
    """
    result: dict[str, float] = {}
    requests, sectors = counters[GLOBAL_LOAD_REQUESTS], counters[GLOBAL_LOAD_SECTORS]
    if requests:
        result["sectors_per_load_request"] = sectors / requests
    if sectors:
        result["bytes_per_load_sector"] = counters[UNIQUE_LOAD_BYTES] / sectors
    if counters.get(TMA_LOAD_BYTES):
        return result
    everything = list(sites)
    for name, elements in (("A", m * k), ("B", k * n)):
        asked = sum(
            site.requested_bytes
            for site in everything
            if site.space == "global" and site.array == name and site.kind != "store"
        )
        if asked:
            result[f"redundancy_{name.lower()}"] = asked / (4 * elements)
    return result


def merge_sites(sites: Iterable[Site]) -> list[Site]:
    """One site per line, access kind, width and array, in source order.

    Compilers unroll loops: several call sites may then be one access in the source.
    """
    merged: dict[tuple[Any, ...], Site] = {}
    for site in sites:
        key = (site.file, site.line, site.space, site.kind, site.bytes, site.array)
        known = merged.get(key)
        if known is None:
            merged[key] = site
            continue
        both = asdict(known)
        for name in (
            "requests",
            "lanes",
            "sectors",
            "unique_bytes",
            "wavefronts",
            "least_wavefronts",
        ):
            both[name] += getattr(site, name)
        for name in ("most_sectors", "most_wavefronts"):
            both[name] = max(both[name], getattr(site, name))
        merged[key] = Site(**both)
    return sorted(merged.values(), key=lambda site: (site.file, site.line, site.space, site.kind))
