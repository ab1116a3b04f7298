"""Theory, emulator, machine code and hardware side by side: do they agree, and if not, why.

One row is one quantity of one point: its value by every source, the largest relative difference, a
verdict and the known reason. Everything is decided from the `counters` table alone; the report
draws the rows. What a source counts is told in docs/emulator.md, what theory says in `theory`.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import theory as th
from .emulator.compiled import (
    FFMA,
    INSTRUCTIONS,
    PREDICATED_SHARED_LOADS,
    PREDICATED_SHARED_STORES,
)
from .emulator.result import (
    ASYNC_COPIES,
    CLUSTER_LOAD_BYTES,
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    GLOBAL_STORE_REQUESTS,
    GLOBAL_STORE_SECTORS,
    REQUESTED_LOAD_BYTES,
    REQUESTED_STORE_BYTES,
    SHARED_LOAD_BYTES,
    SHARED_LOAD_CONFLICTS,
    SHARED_LOAD_WAVEFRONTS,
    SHARED_LOADS,
    SHARED_STORE_BYTES,
    SHARED_STORE_CONFLICTS,
    SHARED_STORE_WAVEFRONTS,
    SHARED_STORES,
    TENSOR_CORE_FLOPS,
    TMA_LOAD_BYTES,
    TMA_LOAD_SECTORS,
)
from .hardware import (
    BYTES_PER_SECTOR,
    COPIED_BYTES,
    COPIED_SECTORS,
    DRAM_READ,
    DRAM_WRITTEN,
    EXACT_WAVEFRONTS,
    L2_READ,
    LOADED_BYTES,
    LOADED_SECTORS,
    REMOTE_LOADS,
    STORED_BYTES,
)
from .language import N_, _, listed
from .manifest import Kernel
from .status import RANKED
from .tensor_maps import mapped_matrices
from .traffic import EMULATOR, ORDER, Counts, Point, Source, launch_of

Verdict = Literal[
    "equal", "near", "explained", "unexplained", "within bound", "beyond bound", "not measured"
]
VERDICTS: dict[Verdict, str] = {
    "equal": "all sources that know it give the same number",
    "near": "they differ by less than the quantity's stated tolerance",
    "explained": "they differ, and the reason of every difference is known",
    "unexplained": "they differ, and no known reason applies",
    "within bound": "theory gives a bound, and what was counted keeps it",
    "beyond bound": "theory gives a bound, and what was counted breaks it",
    "not measured": "fewer than two sources know it, so nothing is compared",
}
"""Every verdict and what it means."""

NOT_MEASURED = "not measured"
BOUND_SLACK = 0.01
"""Share by which a count may pass a bound: caches and DRAM also serve what is not the kernel."""


# --- what is compared -----------------------------------------------------------------------------

_CLUSTER_BYTES = "cluster_load_bytes"
_QUADS_BYTES = 512
"""Of a warp's load of four floats a lane, as the cluster's shared memory is read."""
_WAVEFRONTS_OF = {
    SHARED_LOAD_CONFLICTS: SHARED_LOAD_WAVEFRONTS,
    SHARED_STORE_CONFLICTS: SHARED_STORE_WAVEFRONTS,
}

Reader = Callable[[Counts, Point], float | None]


@dataclass(frozen=True)
class Compared:
    """A quantity that sources are compared in."""

    name: str
    metric: str
    """Its name in the `counters` table, where there is one."""
    unit: str
    read: Mapping[str, Reader]
    """How each kind of source tells it; a kind that is not there cannot."""
    tolerance: float = 0.0
    """Absolute difference that is still `near`; 0 for what must be equal."""
    bound: Literal["", "at most", "at least"] = ""
    """What theory's value says of the others."""
    parts: tuple[str, ...] = ()
    """Metrics that it is made of, whose differences explain its own."""

    @property
    def exact(self) -> bool:
        """Whether it is a count, on which machine code and hardware must agree as integers."""
        return self.tolerance == 0.0 and not self.bound and not self.parts


def _plain(metric: str) -> Reader:
    return lambda counts, point: counts.get(metric)


def _ratio(name: str) -> Reader:
    return lambda counts, point: th.ratios(counts, *point.size).get(name)


def _count(name: str, metric: str, unit: str, *kinds: str) -> Compared:
    read = {kind: _plain(metric) for kind in kinds or ORDER}
    if metric in EXACT_WAVEFRONTS and "hardware" in read:
        read["hardware"] = lambda counts, point: counts.get(
            EXACT_WAVEFRONTS[metric], counts.get(metric)
        )
    return Compared(name, metric, unit, read)


def _useful(counts: Counts, point: Point) -> float | None:
    """Useful bytes per sector by hardware counters; cp.async are loads that have their own."""
    names = LOADED_BYTES, LOADED_SECTORS, COPIED_BYTES, COPIED_SECTORS
    if counts.get(COPIED_SECTORS) and all(name in counts for name in names):
        loaded_bytes, loaded_sectors, copied_bytes, copied_sectors = (counts[n] for n in names)
        # Loads from the cluster's shared memory have bytes here, and no sectors.
        useful = copied_bytes + (loaded_bytes if loaded_sectors else 0.0)
        return useful / (loaded_sectors + copied_sectors)
    return counts.get(BYTES_PER_SECTOR)


def _issued_share(counts: Counts, point: Point) -> float | None:
    fma, issued = counts.get(FFMA), counts.get(INSTRUCTIONS)
    return fma / th.WARP / issued if issued and fma is not None else None


def _l2_read(counts: Counts, point: Point) -> float | None:
    return counts.get(L2_READ)


def _l2_intensity(counts: Counts, point: Point) -> float | None:
    read, stored = counts.get(L2_READ), counts.get(GLOBAL_STORE_SECTORS)
    moved = None if read is None or stored is None else read + th.SECTOR_BYTES * stored
    return 2.0 * math.prod(point.size) / moved if moved else None


def _dram_intensity(counts: Counts, point: Point) -> float | None:
    read, written = counts.get(DRAM_READ), counts.get(DRAM_WRITTEN)
    moved = None if read is None or written is None else read + written
    return 2.0 * math.prod(point.size) / moved if moved else None


def _most_dram_intensity(counts: Counts, point: Point) -> float | None:
    read = counts.get(th.DRAM_READ_BOUND)  # what is written may stay in L2
    return 2.0 * math.prod(point.size) / read if read else None


_SOURCE = ("theory", "emulator")
_RATIOS_OF_ALL = {kind: _ratio(th.SECTORS_PER_REQUEST) for kind in ORDER}

QUANTITIES: tuple[Compared, ...] = (
    _count("global load requests", GLOBAL_LOAD_REQUESTS, "request"),
    _count("global load sectors", GLOBAL_LOAD_SECTORS, "sector"),
    Compared(
        "sectors per load request",
        th.SECTORS_PER_REQUEST,
        "sector/request",
        _RATIOS_OF_ALL,
        parts=(GLOBAL_LOAD_REQUESTS, GLOBAL_LOAD_SECTORS),
    ),
    Compared(
        "useful bytes per load sector",
        th.BYTES_PER_SECTOR,
        "byte/sector",
        {
            "theory": _plain(th.BYTES_PER_SECTOR),
            "emulator": _plain(th.BYTES_PER_SECTOR),
            "hardware": _useful,
        },
        tolerance=0.1,
        parts=(GLOBAL_LOAD_SECTORS,),
    ),
    _count("global store requests", GLOBAL_STORE_REQUESTS, "request"),
    _count("global store sectors", GLOBAL_STORE_SECTORS, "sector"),
    _count("bytes requested by loads", REQUESTED_LOAD_BYTES, "byte", *_SOURCE),
    _count("bytes requested by stores", REQUESTED_STORE_BYTES, "byte", *_SOURCE),
    _count("asynchronous copies", ASYNC_COPIES, "inst"),
    _count("bytes copied by TMA", TMA_LOAD_BYTES, "byte", *_SOURCE),
    _count("sectors copied by TMA", TMA_LOAD_SECTORS, "sector", *_SOURCE),
    _count("shared loads", SHARED_LOADS, "inst"),
    _count("wavefronts of shared loads", SHARED_LOAD_WAVEFRONTS, "wavefront"),
    _count("bank conflicts of shared loads", SHARED_LOAD_CONFLICTS, "conflict"),
    _count("shared stores", SHARED_STORES, "inst"),
    _count("wavefronts of shared stores", SHARED_STORE_WAVEFRONTS, "wavefront"),
    _count("bank conflicts of shared stores", SHARED_STORE_CONFLICTS, "conflict"),
    _count("bytes read from shared memory", SHARED_LOAD_BYTES, "byte", *_SOURCE),
    _count("bytes written to shared memory", SHARED_STORE_BYTES, "byte", *_SOURCE),
    _count("bytes read from the cluster", CLUSTER_LOAD_BYTES, "byte", *_SOURCE),
    _count("operations of tensor cores", TENSOR_CORE_FLOPS, "flop", *_SOURCE, "compiled"),
    _count("multiply-adds", FFMA, "inst", "theory", "compiled", "hardware"),
    _count("instructions of warps", INSTRUCTIONS, "inst", "compiled", "hardware"),
    Compared(
        "FMAs among issued instructions",
        th.FMA_SHARE,
        "1",
        {"theory": _plain(th.FMA_SHARE), "compiled": _issued_share, "hardware": _issued_share},
        tolerance=0.005,
        bound="at most",
    ),
    Compared(
        "bytes from L2",
        th.L2_READ_BOUND,
        "byte",
        {"theory": _plain(th.L2_READ_BOUND), "hardware": _l2_read},
        bound="at most",
    ),
    Compared(
        "bytes from DRAM",
        th.DRAM_READ_BOUND,
        "byte",
        {"theory": _plain(th.DRAM_READ_BOUND), "hardware": _plain(DRAM_READ)},
        bound="at least",
    ),
    Compared(
        "arithmetic intensity, requested",
        th.REQUESTED_INTENSITY,
        "flop/byte",
        {kind: _ratio(th.REQUESTED_INTENSITY) for kind in _SOURCE},
        parts=(REQUESTED_LOAD_BYTES, REQUESTED_STORE_BYTES, TMA_LOAD_BYTES),
    ),
    Compared(
        "arithmetic intensity, shared memory",
        th.SHARED_INTENSITY,
        "flop/byte",
        {kind: _ratio(th.SHARED_INTENSITY) for kind in _SOURCE},
        parts=(SHARED_LOAD_BYTES, SHARED_STORE_BYTES),
    ),
    Compared(
        "arithmetic intensity, L1",
        th.L1_INTENSITY,
        "flop/byte",
        {
            # Neither machine code nor hardware counters have the sectors of TMA.
            **{kind: _ratio(th.L1_INTENSITY) for kind in _SOURCE},
            "compiled": _ratio(th.L1_INTENSITY),
            "hardware": lambda counts, point: (
                None
                if any(source.get(TMA_LOAD_SECTORS) for source in point.values.values())
                else th.ratios(counts, *point.size).get(th.L1_INTENSITY)
            ),
        },
        parts=(GLOBAL_LOAD_SECTORS, GLOBAL_STORE_SECTORS, TMA_LOAD_SECTORS),
    ),
    Compared(
        "arithmetic intensity, L2",
        "",
        "flop/byte",
        {"theory": _ratio(th.L1_INTENSITY), "hardware": _l2_intensity},
        bound="at least",
    ),
    Compared(
        "arithmetic intensity, DRAM",
        "",
        "flop/byte",
        {"theory": _most_dram_intensity, "hardware": _dram_intensity},
        bound="at most",
    ),
)


_OF_L2: tuple[Reader, ...] = (_l2_read, _l2_intensity)
"""What is made of the bytes that L2 sends."""


# --- the comparison -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One quantity of one point, by every kind of source."""

    point: Point
    quantity: Compared
    values: Mapping[str, float]
    """By kind of source, those that know it, in the order of `traffic.ORDER`."""
    missing: Mapping[str, str]
    """Kinds of source that should know it and do not, and why."""
    relative_difference: float | None
    """The largest between two sources: later over earlier, less one. None if there is none to
    give: fewer than two values, or nothing to divide by."""
    verdict: Verdict
    reason: str | None

    def record(self) -> dict[str, Any]:
        """As a row of a tidy table: a column for each of the key, the sources and the outcome."""
        key = dict(zip(("kernel", "params", "m", "n", "k"), self.point.key, strict=True))
        return {
            **key,
            "quantity": self.quantity.name,
            "metric": self.quantity.metric or None,
            "unit": self.quantity.unit,
            **{kind: self.values.get(kind) for kind in ORDER},
            "relative_difference": self.relative_difference,
            "verdict": self.verdict,
            "reason": self.reason,
        }


def sources(point: Point) -> dict[str, Source]:
    """The source of each kind that is compared; of several architectures the hardware's, else the
    oldest."""
    known = sorted({*point.values, *point.missing, *point.absent}, key=_oldest_first)
    measured = [source.architecture for source in known if source.kind == "hardware"]
    chosen: dict[str, Source] = {}
    for source in known:
        if source.kind not in ORDER:
            continue
        kept = chosen.setdefault(source.kind, source)
        if kept.architecture not in measured and source.architecture in measured:
            chosen[source.kind] = source
    return {kind: chosen[kind] for kind in ORDER if kind in chosen}


def _oldest_first(source: Source) -> tuple[int, int, str]:
    number = re.search(r"\d+", source.architecture)
    return source.rank[0], int(number[0]) if number else 0, source.architecture


def widest_size(points: Iterable[Point]) -> tuple[int, int, int] | None:
    """The size at which most kinds of source know some point; of several the largest."""
    known: dict[tuple[int, int, int], int] = {}
    for point in points:
        kinds = {source.kind for source, counts in point.values.items() if counts}
        if point.lead:
            known[point.size] = max(known.get(point.size, 0), len(kinds))
    return max(known, key=lambda size: (known[size], math.prod(size)), default=None)


def compare(point: Point, kernel: Kernel | None = None) -> list[Row]:
    """The `QUANTITIES` that some source counted, one row each.

    Left out is what is zero for every source: a kernel without shared memory has no row of it.

    Args:
        kernel: the point's, where it is known: some reasons apply to some launches only.
    """
    launch = launch_of(point, kernel, json.loads(point.params))
    flags = launch is not None and bool(launch.scratch_bytes)
    chosen = sources(point)
    counts = {
        kind: point.values.get(source, {})
        for kind, source in chosen.items()
        if source != EMULATOR or point.status in RANKED
    }
    rows: dict[str, Row] = {}
    for quantity in QUANTITIES:
        values = {
            kind: value
            for kind, known in counts.items()
            if kind in quantity.read and (value := quantity.read[kind](known, point)) is not None
        }
        if any(values.values()):
            before = list(rows.values())
            rows[quantity.name] = _row(point, quantity, values, counts, chosen, before, flags=flags)
    return list(rows.values())


def _row(
    point: Point,
    quantity: Compared,
    values: Mapping[str, float],
    counts: Mapping[str, Counts],
    chosen: Mapping[str, Source],
    before: Sequence[Row],
    *,
    flags: bool,
) -> Row:
    missing = {
        kind: _why_missing(point, quantity, kind, chosen)
        for kind in quantity.read
        if kind not in values
    }
    furthest = _furthest(quantity, values)
    common = point, quantity, values, missing, furthest
    if len(values) < 2:
        return Row(*common, "not measured", None)
    broken = _broken(quantity, values)
    if broken:
        why = None
        if quantity.metric == th.FMA_SHARE:
            why = _merged_reason(counts)
        elif "hardware" in quantity.read and quantity.read["hardware"] in _OF_L2:
            why = _l2_reason(counts.get("theory", {}), counts.get("hardware", {}), flags=flags)
        return Row(*common, "explained" if why else "beyond bound", why)
    # Theory bounds the others, which are held against each other only.
    held = [kind for kind in values if not (quantity.bound and kind == "theory")]
    reasons: list[str | None] = []
    near = False
    for earlier, later in itertools.pairwise(held):
        a, b = values[earlier], values[later]
        if math.isclose(a, b, rel_tol=1e-9, abs_tol=0.0):
            continue
        if abs(b - a) <= quantity.tolerance:
            near = True
            continue
        sources_and_counts = chosen[earlier], chosen[later], counts[earlier], counts[later]
        own = reason(quantity.metric, *sources_and_counts, flags=flags)
        reasons.append(own or _reason_of_parts(quantity, before, earlier, later))
    if reasons:
        words = "; ".join(dict.fromkeys(text for text in reasons if text))
        return Row(*common, "explained" if all(reasons) else "unexplained", words or None)
    if quantity.bound and "theory" in values:
        return Row(*common, "within bound", None)
    return Row(*common, "near" if near else "equal", None)


def _why_missing(point: Point, quantity: Compared, kind: str, chosen: Mapping[str, Source]) -> str:
    source = chosen.get(kind)
    if kind == "emulator" and point.status is not None and point.status not in RANKED:
        return point.detail or point.status
    if source is None:
        return NOT_MEASURED if kind == "hardware" else "not counted"
    reasons = point.absent.get(source, {})
    own = reasons.get(quantity.metric) or next(
        (reasons[part] for part in quantity.parts if part in reasons), None
    )
    if own is None and not point.values.get(source):
        own = point.missing.get(source)
    if own is None and kind == "theory":
        return "no closed form"
    return own or (NOT_MEASURED if kind == "hardware" else "not counted")


def _furthest(quantity: Compared, values: Mapping[str, float]) -> float | None:
    pairs = [
        later / earlier - 1
        for earlier, later in itertools.combinations(values.values(), 2)
        if earlier
    ]
    return max(pairs, key=abs) if pairs else None


def _broken(quantity: Compared, values: Mapping[str, float]) -> bool:
    limit = values.get("theory")
    if not quantity.bound or limit is None:
        return False
    counted = [value for kind, value in values.items() if kind != "theory"]
    if quantity.bound == "at most":
        return any(value > limit * (1 + BOUND_SLACK) for value in counted)
    return any(value < limit * (1 - BOUND_SLACK) for value in counted)


# --- reasons --------------------------------------------------------------------------------------

MERGED = "the compiler merges scalar shared loads into wider ones"
FOLLOWS_MERGED = "follows from the merged loads, whose passes serve several of the source's at once"
MERGED_STORES = "the compiler merges scalar shared stores into wider ones"
FOLLOWS_MERGED_STORES = (
    "follows from the merged stores, whose passes serve several of the source's at once"
)
MERGED_GLOBAL = "the compiler merges scalar accesses of neighbours into wider ones of as many bytes"
SPLIT = (
    "the compiler splits float4 stores through an int index, for sm_80 to sm_90; sm_120 keeps them"
)
FOLLOWS_SPLIT = "follows from the split stores: each part touches its sectors again"
ASYNC = "one of the two counts cp.async as loads, the other does not"
NO_INSTRUCTION = (
    "with many small blocks the l1tex__data counters gain wavefronts and conflicts that belong to"
    " no instruction; by as many they exceed the smsp__sass counters of the same launch"
)
FEWER_SLOTS = "the compiler merges shared loads, which leaves more of the issue slots to FMAs"
OWN_PART = (
    "a block's loads from its own shared memory through the cluster's window count as shared loads"
)
FETCHED_TWICE = (
    "cp.async into rows that begin within a sector fetch the sectors at their ends twice, which the"
    " smsp__sass counters count and the l1tex__t counters do not"
)
FLAGS = "blocks raise flags and poll them by accesses of one lane, which hardware alone counts"
CLUSTER = "what blocks read from each other's shared memory passes the same counter"
POLLS_SCATTER = 2.0
"""The profiler repeats a launch to count everything: one waits up to so many times as long."""


def reason(
    metric: str, earlier: Source, later: Source, a: Counts, b: Counts, *, flags: bool = False
) -> str | None:
    """Why the counts `b` of the source `later` differ from `a` in `metric`; None if unknown.

    Every reason rests on the counts: docs/method.md.

    Args:
        flags: whether blocks of the launch wait for flags of others.
    """
    through_compiler = earlier.kind in _BEFORE_COMPILER and later.kind not in _BEFORE_COMPILER
    if through_compiler:
        for accesses, follow, merged, follows in _SHARED_ACCESSES:
            if _moved(accesses, a, b) < 0:
                if metric == accesses:
                    return merged
                if metric in follow and _moved(metric, a, b) < 0:
                    return follows
        for both, requested, seen in _ACCESSED_BYTES:
            same_bytes = requested in a and a[requested] == b.get(seen)
            fewer, sectors = (_moved(name, a, b) for name in both)
            if metric in both and same_bytes and fewer < 0 and sectors <= 0:
                return MERGED_GLOBAL
    stores = a.get(GLOBAL_STORE_REQUESTS, 0.0)
    split = stores > 0 and b.get(GLOBAL_STORE_REQUESTS) == 4 * stores
    if through_compiler and split and later.architecture.startswith(("sm_8", "sm_9")):
        if metric == GLOBAL_STORE_REQUESTS:
            return SPLIT
        if metric == GLOBAL_STORE_SECTORS and _moved(metric, a, b) > 0:
            return FOLLOWS_SPLIT
    copies = b.get(ASYNC_COPIES) or a.get(ASYNC_COPIES)
    if metric == GLOBAL_LOAD_REQUESTS and copies and abs(_moved(metric, a, b)) == copies:
        return ASYNC
    if later.kind == "hardware" and flags:
        # Raised once each, and polled until they are.
        for both, scatter in zip(_GLOBAL_ACCESSES, (POLLS_SCATTER, 1.0), strict=True):
            fewer, more = sorted(_moved(name, a, b) for name in both)
            if metric in both and 0 < more <= scatter * fewer:
                return FLAGS
    if later.kind == "hardware" and REMOTE_LOADS in b:
        own = a.get(_CLUSTER_BYTES, 0.0) / _QUADS_BYTES - b[REMOTE_LOADS]
        if metric == SHARED_LOADS and _moved(metric, a, b) == own > 0:
            return OWN_PART
        passed = b.get(EXACT_WAVEFRONTS[SHARED_LOAD_WAVEFRONTS])
        if metric == SHARED_LOAD_WAVEFRONTS and passed == a.get(metric, 0.0) + 4 * own:
            return OWN_PART
    if later.kind == "hardware" and metric == th.BYTES_PER_SECTOR and _fetched_twice(b):
        return FETCHED_TWICE
    if later.kind == "hardware" and metric in _WAVEFRONTS_OF:
        wavefronts = _WAVEFRONTS_OF[metric]
        extra = b.get(wavefronts, 0.0) - b.get(EXACT_WAVEFRONTS[wavefronts], math.inf)
        if 0 < _moved(metric, a, b) <= extra:
            return NO_INSTRUCTION
    return None


_GLOBAL_ACCESSES = (
    (GLOBAL_LOAD_REQUESTS, GLOBAL_LOAD_SECTORS),
    (GLOBAL_STORE_REQUESTS, GLOBAL_STORE_SECTORS),
)
_ACCESSED_BYTES = (
    (_GLOBAL_ACCESSES[0], REQUESTED_LOAD_BYTES, LOADED_BYTES),
    (_GLOBAL_ACCESSES[1], REQUESTED_STORE_BYTES, STORED_BYTES),
)
"""Requests and sectors, and the bytes of their threads by source and by hardware."""
_SHARED_ACCESSES = (
    (
        SHARED_LOADS,
        (SHARED_LOAD_WAVEFRONTS, SHARED_LOAD_CONFLICTS),
        MERGED,
        FOLLOWS_MERGED,
    ),
    (
        SHARED_STORES,
        (SHARED_STORE_WAVEFRONTS, SHARED_STORE_CONFLICTS),
        MERGED_STORES,
        FOLLOWS_MERGED_STORES,
    ),
)
"""Accesses, what falls with their number, and the words for both."""
_BEFORE_COMPILER = ("theory", "emulator")
"""Kinds of source that know the source code and no compiler."""


def _moved(metric: str, a: Counts, b: Counts) -> float:
    if metric not in a or metric not in b:
        return 0.0
    return b.get(EXACT_WAVEFRONTS.get(metric, metric), b[metric]) - a[metric]


def _fetched_twice(counts: Counts) -> bool:
    """Whether the GPU's two counters of load sectors differ, by sectors of cp.async."""
    return _load_sectors(counts) > counts.get(GLOBAL_LOAD_SECTORS, math.inf)


def _load_sectors(counts: Counts) -> float:
    return counts.get(COPIED_SECTORS, 0.0) + counts.get(LOADED_SECTORS, 0.0)


def _l2_reason(theory: Counts, counts: Counts, *, flags: bool) -> str | None:
    """Why L2 sent more than what misses L1: what was fetched twice, by the byte, the cluster's own
    traffic, or polled flags."""
    remote = _QUADS_BYTES * counts.get(REMOTE_LOADS, 0.0)
    sent = th.SECTOR_BYTES * _load_sectors(counts) + remote
    if _fetched_twice(counts) and counts.get(L2_READ) == sent:
        return FETCHED_TWICE
    limit = theory.get(th.L2_READ_BOUND, 0.0)
    if remote and counts.get(L2_READ, math.inf) <= limit * (1 + BOUND_SLACK) + remote:
        return CLUSTER
    polled = max(_moved(name, theory, counts) for name in _GLOBAL_ACCESSES[0])
    most = limit + POLLS_SCATTER * th.SECTOR_BYTES * polled
    return FLAGS if flags and counts.get(L2_READ, math.inf) <= most else None


def _merged_reason(counts: Mapping[str, Counts]) -> str | None:
    source = counts.get("emulator") or counts.get("theory") or {}
    later = counts.get("compiled") or counts.get("hardware") or {}
    return FEWER_SLOTS if _moved(SHARED_LOADS, source, later) < 0 else None


def _reason_of_parts(
    quantity: Compared, before: Sequence[Row], earlier: str, later: str
) -> str | None:
    """A ratio follows from its parts if those that differ are explained."""
    apart = [
        row
        for row in before
        if row.quantity.metric in quantity.parts
        and row.values.get(earlier) != row.values.get(later)
    ]
    if not apart or any(row.verdict != "explained" for row in apart):
        return None
    return _("follows from the {names}").format(names=listed(_(row.quantity.name) for row in apart))


# --- what else a reader must know -----------------------------------------------------------------


_IDLE_LOADS = N_(
    "{number} more shared loads are issued and never executed ({kind}): ptxas adds accesses whose"
    " predicate is never true, which only smsp__inst_executed_op_shared counts."
)
_IDLE_STORES = N_(
    "{number} more shared stores are issued and never executed ({kind}): ptxas adds accesses whose"
    " predicate is never true, which only smsp__inst_executed_op_shared counts."
)


def notes(point: Point, kernel: Kernel | None, params: Mapping[str, int]) -> list[str]:
    """What the counts of a point hold that is easily overlooked."""
    found = []
    chosen = sources(point)
    counts = [point.values.get(source, {}) for source in chosen.values()]
    copies = max((known.get(ASYNC_COPIES, 0.0) for known in counts), default=0.0)
    if copies:
        found.append(
            _(
                "{copies} of the global load requests are cp.async, which every source counts as"
                " loads; what they write is no shared store."
            ).format(copies=f"{copies:,.0f}")
        )
    launch = launch_of(point, kernel, params)
    if launch and launch.tensor_maps:
        helpers = [
            f"{helper.entry} ({mapped.matrix})"
            for mapped in mapped_matrices(launch.tensor_maps, *point.size)
            for helper in mapped.launches
        ]
        if helpers:
            found.append(
                _("The counts are those of gemm and its helper kernels together: {names}.").format(
                    names=listed(helpers)
                )
            )
    for kind, source in chosen.items():
        for message, issued, executed in (
            (_(_IDLE_LOADS), PREDICATED_SHARED_LOADS, SHARED_LOADS),
            (_(_IDLE_STORES), PREDICATED_SHARED_STORES, SHARED_STORES),
        ):
            known = point.values.get(source, {})
            idle = known.get(issued, 0.0) - known.get(executed, math.inf)
            if idle > 0:
                found.append(message.format(number=f"{idle:,.0f}", kind=kind))
    return found


@dataclass(frozen=True)
class Agreement:
    """How machine code and hardware agree in the counts that both have, of several points."""

    equal: int
    compared: int
    exceptions: Sequence[Row]
    """Counts in which the two differ."""


def agreement(points: Iterable[Point], kernels: Mapping[str, Kernel]) -> Agreement:
    """Counts of machine code against those of hardware, as integers.

    Args:
        kernels: by name; a point's may be absent.
    """
    rows = [
        row
        for point in points
        for row in compare(point, kernels.get(point.kernel))
        if row.quantity.exact and {"compiled", "hardware"} <= set(row.values)
    ]
    apart = [row for row in rows if row.values["compiled"] != row.values["hardware"]]
    return Agreement(len(rows) - len(apart), len(rows), apart)
