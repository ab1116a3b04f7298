"""What bounds a kernel's time, and which counter a step of the ladder moved: a stated model.

A launch needs time from four resources, each counted, never fitted:

===============  ==================================================================================
instructions     warp instructions over 4 issue slots per SM and clock, or, if longer, multiply-adds
                 over the measured rate of the FMA pipe
L1               wavefronts of shared memory, cache lines that global accesses touch, and lines that
                 asynchronous copies write, over one per SM and clock (the measured share of it):
                 L1 and shared memory are one memory with one data path
L2               bytes between L2 and the SMs over the measured L2 bandwidth
DRAM             bytes of DRAM over the measured bandwidth of a copy
===============  ==================================================================================

The first two count on the SM that has the most blocks. Resources overlap, but not perfectly: the
time is the p-norm of the four, where p is not fitted to any rung either. It is what the ceiling
`shared_fma`, an inner loop of known instructions and wavefronts, shows of overlap on the same GPU.
A norm makes a step's saving a sum: T^p is the sum of all t^p, so that the share of each resource
in a speed-up is its share in the change of T^p.

What the model leaves out is latency that no warp is there to hide, barriers, register banks and
launches; where the time is more than `TOLERANCE` away, that is said and nothing is explained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .emulator.compiled import FFMA, INSTRUCTIONS
from .emulator.result import (
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    GLOBAL_STORE_REQUESTS,
    GLOBAL_STORE_SECTORS,
    SHARED_LOAD_WAVEFRONTS,
    SHARED_STORE_WAVEFRONTS,
    TMA_LOAD_BYTES,
)
from .hardware import (
    COPIED_BYTES,
    DRAM_READ,
    DRAM_WRITTEN,
    EXACT_WAVEFRONTS,
    GLOBAL_TAGS,
    L2_READ,
)

TOLERANCE = 0.15
"""A time is explained if the model's is so near."""
SAME = 0.05
"""A smaller change is no step: it is not split among resources."""
NEEDED_CEILINGS = ("fma", "shared", "shared_pairs", "shared_fma", "l2", "copy")

SCHEDULERS = 4
"""Of an SM, each issues one warp instruction a clock (all GPUs since compute capability 5.0)."""
WARP = 32
LINE_BYTES = 128
SECTOR_BYTES = 32
_LOWEST_NORM, _HIGHEST_NORM = 1.0, 16.0

Resource = Literal["instructions", "l1", "l2", "dram"]
RESOURCES: tuple[Resource, ...] = ("instructions", "l1", "l2", "dram")
Limit = Literal["issue", "fma", "l1", "l2", "dram"]


# --- the machine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """What a GPU can do, as its ceilings were measured; rates of an SM are per clock."""

    sms: int
    flop_per_clock: float
    """FP32 flop of an SM on registers."""
    lines_per_clock: float
    """Wavefronts of 128 bytes that an SM's shared memory delivers; 1 at best."""
    l2_gb_s: float
    dram_gb_s: float
    norm: float
    """Exponent p of the norm: 1 if resources never overlapped, large if they always did."""


def machine_of(ceilings: Mapping[str, Mapping[str, Any]]) -> Machine | None:
    """The machine that a set of ceilings describes; None if one that is needed is missing.

    Args:
        ceilings: rows of the `ceilings` table that count, by name.
    """
    if any(name not in ceilings for name in NEEDED_CEILINGS):
        return None
    flop_per_clock = float(ceilings["fma"]["per_sm_clock"])
    lines_per_clock = float(ceilings["shared"]["per_sm_clock"]) / LINE_BYTES
    core = ceilings["shared_fma"]
    counts = json.loads(core["loop_counts"])
    wavefronts = counts["LDS.128"] * 16 * WARP / float(ceilings["shared_pairs"]["per_sm_clock"])
    # Clocks of an SM for one trip of one warp.
    instructions = max(
        core["loop_instructions"] / SCHEDULERS, counts["FFMA"] * 2 * WARP / flop_per_clock
    )
    found = counts["FFMA"] * 2 * WARP / float(core["per_sm_clock"])
    return Machine(
        sms=int(core["gpu_sm_count"]),
        flop_per_clock=flop_per_clock,
        lines_per_clock=lines_per_clock,
        l2_gb_s=float(ceilings["l2"]["value"]),
        dram_gb_s=float(ceilings["copy"]["value"]),
        norm=norm_exponent(instructions, wavefronts, found),
    )


def norm_exponent(first: float, second: float, together: float) -> float:
    """The p with (first^p + second^p)^(1/p) = together, within the limits 1 and 16.

    At 1 the two take turns, at 16 the longer one hides the other.
    """
    if together >= first + second:
        return _LOWEST_NORM
    if together <= max(first, second):
        return _HIGHEST_NORM
    low, high = _LOWEST_NORM, _HIGHEST_NORM
    for _ in range(60):  # the norm falls as p grows
        middle = (low + high) / 2
        if norm((first, second), middle) > together:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def norm(times: tuple[float, ...], p: float) -> float:
    """(sum of t^p)^(1/p)."""
    longest = max(times)
    if longest <= 0:
        return 0.0
    return float(longest * sum((time / longest) ** p for time in times) ** (1 / p))


# --- what a launch asks of it ---------------------------------------------------------------------


@dataclass(frozen=True)
class Demand:
    """Counts of one launch that the model needs; None where nobody counted."""

    instructions: float | None
    ffma: float | None
    wavefronts: float | None
    """Of shared memory: loads, stores, and lines that asynchronous copies write."""
    lines: float | None
    """128-byte lines that global accesses touch, a line once for each request."""
    l2_bytes: float | None
    dram_bytes: float | None
    notes: tuple[str, ...] = ()
    """What is a lower bound, or unknown, and why."""


def demand_of(counts: Mapping[str, float], bytes_min: float) -> Demand:
    """The demand of a launch from the counts of one source.

    Args:
        counts: by metric, as in the `counters` table.
        bytes_min: compulsory traffic, which stands in for DRAM bytes that were not counted.
    """
    notes = []
    copied = counts.get(TMA_LOAD_BYTES, 0.0) + counts.get(COPIED_BYTES, 0.0)
    loads = counts.get(EXACT_WAVEFRONTS[SHARED_LOAD_WAVEFRONTS], counts.get(SHARED_LOAD_WAVEFRONTS))
    stores = counts.get(
        EXACT_WAVEFRONTS[SHARED_STORE_WAVEFRONTS], counts.get(SHARED_STORE_WAVEFRONTS)
    )
    wavefronts = None
    if loads is not None and stores is not None:
        wavefronts = loads + stores + copied / LINE_BYTES
    lines = counts.get(GLOBAL_TAGS)
    if lines is None:
        lines = _fewest_lines(counts)
        if lines is not None:
            notes.append("cache lines of global accesses at least as sectors need")
    l2_bytes = None
    if L2_READ in counts:
        l2_bytes = counts[L2_READ] + SECTOR_BYTES * counts.get(GLOBAL_STORE_SECTORS, 0.0)
    else:
        notes.append("bytes of L2 not counted")
    if DRAM_READ in counts and DRAM_WRITTEN in counts:
        dram_bytes = counts[DRAM_READ] + counts[DRAM_WRITTEN]
    else:
        dram_bytes = bytes_min
        notes.append("bytes of DRAM at least compulsory ones")
    return Demand(
        counts.get(INSTRUCTIONS),
        counts.get(FFMA),
        wavefronts,
        lines,
        l2_bytes,
        dram_bytes,
        tuple(notes),
    )


def _fewest_lines(counts: Mapping[str, float]) -> float | None:
    """At least one line a request, and four sectors in each."""
    pairs = (
        (GLOBAL_LOAD_REQUESTS, GLOBAL_LOAD_SECTORS),
        (GLOBAL_STORE_REQUESTS, GLOBAL_STORE_SECTORS),
    )
    if any(name not in counts for pair in pairs for name in pair):
        return None
    per_line = LINE_BYTES // SECTOR_BYTES
    return sum(max(counts[some], counts[sectors] / per_line) for some, sectors in pairs)


@dataclass(frozen=True)
class Prediction:
    """The model's time of one launch, ns, and what it is made of."""

    time_ns: float
    times_ns: Mapping[Resource, float]
    """What each resource would take alone; an unknown one is left out."""
    limit: Limit
    """The resource that takes longest: what limits the launch."""
    imbalance: float
    """Blocks of the SM that has most, over the mean: 1 if all have equally many."""


def predict(
    demand: Demand, machine: Machine, *, clock_mhz: float, blocks: int | None
) -> Prediction | None:
    """The model's time of a launch; None if its instructions or its wavefronts are unknown.

    Args:
        clock_mhz: SM clock while it was timed.
        blocks: of the grid; None, as of a library's kernel, counts as an even share for every SM.
    """
    if demand.instructions is None or demand.wavefronts is None or demand.lines is None:
        return None
    sm_clocks_per_ns = machine.sms * clock_mhz * 1e-3
    imbalance = math.ceil(blocks / machine.sms) * machine.sms / blocks if blocks else 1.0
    issue = demand.instructions / SCHEDULERS / sm_clocks_per_ns * imbalance
    fma = 2 * (demand.ffma or 0.0) / machine.flop_per_clock / sm_clocks_per_ns * imbalance
    passes = (demand.wavefronts + demand.lines) / machine.lines_per_clock
    times: dict[Resource, float] = {
        "instructions": max(issue, fma),
        "l1": passes / sm_clocks_per_ns * imbalance,
    }
    if demand.l2_bytes is not None:
        times["l2"] = demand.l2_bytes / machine.l2_gb_s
    if demand.dram_bytes is not None:
        times["dram"] = demand.dram_bytes / machine.dram_gb_s
    longest = max(times, key=lambda name: times[name])
    limit: Limit = ("issue" if issue >= fma else "fma") if longest == "instructions" else longest
    return Prediction(norm(tuple(times.values()), machine.norm), times, limit, imbalance)


# --- steps ----------------------------------------------------------------------------------------


def step_shares(before: Prediction, after: Prediction, p: float) -> Mapping[Resource, float] | None:
    """How the model splits a step: exact, since T^p is a sum.

    Returns:
        Each resource's part of the saving, or of the loss; the sum is 1, and what went the other
        way is negative.
        None if the times differ by less than `SAME`, or a resource was counted on one side only.
    """
    if set(before.times_ns) != set(after.times_ns):
        return None
    if abs(math.log(before.time_ns / after.time_ns)) <= math.log1p(SAME):
        return None
    saved = before.time_ns**p - after.time_ns**p
    return {
        name: (before.times_ns[name] ** p - after.times_ns[name] ** p) / saved
        for name in before.times_ns
    }


def explains(modelled: float, measured: float) -> bool:
    """Whether a time of the model is within its tolerance of the measured one."""
    return abs(modelled / measured - 1.0) <= TOLERANCE


def explains_step(modelled: float, measured: float) -> bool:
    """Whether the model's speed-up accounts for a measured one.

    It must be within the tolerance and, in logarithms, between half and twice the measured one; a
    change of less than `SAME` is explained by a model that sees less than that too.
    """
    if abs(math.log(measured)) <= math.log1p(SAME):
        return abs(math.log(modelled)) <= math.log1p(SAME)
    part = math.log(modelled) / math.log(measured)
    return explains(modelled, measured) and 0.5 <= part <= 2.0
