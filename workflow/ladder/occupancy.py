"""What one block may use, and how many blocks fit on a multiprocessor.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". The formula
is that of NVIDIA's `cuda_occupancy.h`, reduced to full-size shared-memory carve-outs.
"""

from __future__ import annotations

from dataclasses import dataclass

from .manifest import compute_capability

WARP = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_BLOCK = (1024, 1024, 64)
PORTABLE_CLUSTER, MAX_CLUSTER = 8, 16
"""Blocks per cluster that every GPU with clusters allows, and that some allow on request."""
_LARGE_CLUSTERS = {(9, 0), (10, 0)}
REGISTERS_PER_SM = 65_536
REGISTERS_PER_BLOCK = 65_536
_REGISTER_UNIT = 256  # registers are given to a warp in units of 256
_SCHEDULERS = 4  # warps are spread over four sub-partitions, each with a quarter of the registers
_KIB = 1024


@dataclass(frozen=True)
class Limits:
    """Per-multiprocessor limits of one compute capability; bytes, threads and blocks."""

    threads_per_sm: int
    blocks_per_sm: int
    shared_memory_per_sm: int
    shared_memory_per_block: int
    """With the opt-in attribute that a kernel must ask for above 48 KiB."""
    shared_memory_reserved: int
    """Taken by the system from each block's share."""
    shared_memory_unit: int


def _limits(threads: int, blocks: int, sm_kib: int, block_kib: int) -> Limits:
    return Limits(threads, blocks, sm_kib * _KIB, block_kib * _KIB, _KIB, 128)


LIMITS: dict[tuple[int, int], Limits] = {
    (7, 5): Limits(1024, 16, 64 * _KIB, 64 * _KIB, 0, 256),
    (8, 0): _limits(2048, 32, 164, 163),
    (8, 6): _limits(1536, 16, 100, 99),
    (8, 7): _limits(1536, 16, 164, 163),
    (8, 9): _limits(1536, 24, 100, 99),
    (9, 0): _limits(2048, 32, 228, 227),
    (10, 0): _limits(2048, 32, 228, 227),
    (10, 3): _limits(2048, 32, 228, 227),
    (11, 0): _limits(1536, 24, 228, 227),
    (12, 0): _limits(1536, 24, 100, 99),
    (12, 1): _limits(1536, 24, 100, 99),
}


def limits_of(architecture: str) -> Limits | None:
    """Limits of ``sm_90a``-like names; None for an architecture that the table does not hold."""
    return LIMITS.get(compute_capability(architecture))


def largest_cluster(architecture: str) -> int:
    """Blocks that a cluster may have on ``sm_90a``-like architectures."""
    large = compute_capability(architecture) in _LARGE_CLUSTERS
    return MAX_CLUSTER if large else PORTABLE_CLUSTER


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that fit on a multiprocessor, and what stops the next one."""

    blocks_per_sm: int
    percent: float
    """Resident warps over the most that a multiprocessor can hold, percent."""
    limited_by: str
    """registers | shared memory | threads | blocks"""


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(
    architecture: str, *, threads: int, registers: int, shared_memory_bytes: int
) -> Occupancy | None:
    """Theoretical occupancy of a kernel; None where the architecture's limits are unknown.

    Args:
        architecture: such as ``sm_90a``.
        threads: threads per block.
        registers: registers per thread.
        shared_memory_bytes: static plus dynamic, per block.
    """
    limits = limits_of(architecture)
    if limits is None:
        return None
    warps = -(-threads // WARP)
    per_warp = _round_up(max(registers, 1) * WARP, _REGISTER_UNIT)
    warps_by_registers = REGISTERS_PER_SM // _SCHEDULERS // per_warp * _SCHEDULERS
    shared = _round_up(
        shared_memory_bytes + limits.shared_memory_reserved, limits.shared_memory_unit
    )
    fits = {
        "threads": limits.threads_per_sm // WARP // warps,
        "registers": warps_by_registers // warps,
        "blocks": limits.blocks_per_sm,
    }
    if shared:
        fits["shared memory"] = limits.shared_memory_per_sm // shared
    limited_by = min(fits, key=lambda name: fits[name])
    blocks = fits[limited_by]
    return Occupancy(blocks, 100.0 * blocks * warps * WARP / limits.threads_per_sm, limited_by)
