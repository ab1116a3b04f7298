"""The `counters` table as points: what each source counted, and what that says of a rung.

Everything here is a pure function over rows or points; the report words the results, the figure
draws them, and `compare_counters` says whether sources agree. A source is theory (the manifests'
closed forms), the emulator (the kernel's source, run on a CPU), the compiled machine code of one
architecture, or a GPU's hardware counters. A new source needs no code here: it is one more key of
`Point.values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from . import theory
from .emulator.point import LARGEST_FULL_RUN
from .emulator.result import (
    ASYNC_COPIES,
    CLUSTER_LOAD_BYTES,
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    REQUESTED_LOAD_BYTES,
    REQUESTED_STORE_BYTES,
    SHARED_LOAD_CONFLICTS,
    SHARED_LOAD_WAVEFRONTS,
    SHARED_LOADS,
    SHARED_STORE_CONFLICTS,
    SHARED_STORE_WAVEFRONTS,
    SHARED_STORES,
    TMA_LOAD_BYTES,
    TMA_LOAD_SECTORS,
)
from .emulator.sampling import sampling_fault
from .manifest import Kernel, Launch
from .status import RANKED, Status

SECTOR_BYTES = theory.SECTOR_BYTES
ORDER = ("theory", "emulator", "compiled", "hardware")
"""The sources in the order of a table's columns."""
COUNTED = ("emulator", "compiled", "hardware")
"""The sources that count accesses, the one that a comparison starts from first."""
ARTICLE_SIZE = (2048, 2048, 2048)

Counts = Mapping[str, float]
Key = tuple[str, str, int, int, int]
"""Kernel, canonical parameters, M, N, K."""


class Source(NamedTuple):
    """Who counted: `kind` is one of `ORDER`; `architecture` is empty where none matters."""

    kind: str
    architecture: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        position = ORDER.index(self.kind) if self.kind in ORDER else len(ORDER)
        return position, self.architecture


EMULATOR = Source("emulator")
THEORY = Source("theory")


@dataclass(frozen=True)
class Point:
    """One kernel, parameter set and size with all that was counted of it."""

    kernel: str
    params: str
    m: int
    n: int
    k: int
    values: Mapping[Source, Counts]
    """By source and metric; only what is known."""
    missing: Mapping[Source, str] = field(default_factory=dict)
    """Sources that gave nothing, or not all, and why; theory says so of each of its forms."""
    absent: Mapping[Source, Mapping[str, str]] = field(default_factory=dict)
    """By source: metrics that have no value, and why."""
    status: str | None = None
    """What the emulator made of the point; None if it was never asked."""
    detail: str | None = None

    @property
    def key(self) -> Key:
        return self.kernel, self.params, self.m, self.n, self.k

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def lead(self) -> Source | None:
        """The source whose numbers are shown: the emulator, if it found the kernel right."""
        for source in sorted(self.values, key=lambda item: item.rank):
            if source.kind in COUNTED and (source != EMULATOR or self.status in RANKED):
                return source
        return None

    @property
    def counts(self) -> Counts:
        """The lead source's counts; empty without one."""
        return self.values[self.lead] if self.lead else {}


def gather(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Rows of the `counters` table as points, in the order in which they first appear."""
    values: dict[Key, dict[Source, dict[str, float]]] = {}
    missing: dict[Key, dict[Source, str]] = {}
    absent: dict[Key, dict[Source, dict[str, str]]] = {}
    states: dict[Key, tuple[str, str | None]] = {}
    for row in rows:
        key = (row["kernel"], row["params"], row["m"], row["n"], row["k"])
        source = Source(row["source"], row["architecture"] or "")
        known, status = values.setdefault(key, {}), row["status"]
        if row["value"] is not None:
            known.setdefault(source, {})[row["metric"]] = row["value"]
        elif status not in RANKED:
            why = row["detail"] or str(status)
            absent.setdefault(key, {}).setdefault(source, {})[row["metric"]] = why
            if source != THEORY:
                missing.setdefault(key, {})[source] = why
        if source == EMULATOR and (key not in states or status not in RANKED):
            states[key] = (status, row["detail"])
    points = []
    for key, known in values.items():
        status, detail = states.get(key, (None, None))
        why = missing.get(key, {}), absent.get(key, {})
        points.append(Point(*key, known, *why, status, detail))
    return points


def emulated(points: Iterable[Point]) -> list[Point]:
    """The points that the emulator was asked for, whatever came of it."""
    return [point for point in points if point.status is not None]


def ran(point: Point) -> bool:
    """Whether the emulator ran the kernel; a point that did not run has no counts."""
    return point.status is not None and EMULATOR in point.values


Outcome = Literal["right", "inexact", "fault", "skipped"]


def outcome(point: Point) -> Outcome:
    """What an emulated point says of its kernel.

    `inexact`: it ran, but its requests could not be counted. `skipped`: the kernel, the size or
    the machine does not allow it, which is no fault.
    """
    if point.status in RANKED:
        return "right"
    if point.status == Status.MISSING_METRIC:
        return "inexact"
    return "skipped" if str(point.status).startswith("skipped_") else "fault"


def launch_of(point: Point, kernel: Kernel | None, params: Mapping[str, int]) -> Launch | None:
    """The launch of a point; None without a kernel, or if that had other parameters then.

    A result set may be older than the manifest that lies here.
    """
    if kernel is None or set(kernel.manifest.parameters) - set(params):
        return None
    return kernel.launch(params, *point.size)


def ran_whole(point: Point, kernel: Kernel | None, params: Mapping[str, int]) -> bool:
    """Whether every block of the grid ran, rather than a few that stand for all."""
    if point.m * point.n * point.k <= LARGEST_FULL_RUN:
        return True
    launch = launch_of(point, kernel, params)
    if launch is None:
        return False
    cluster = launch.cluster or (1, 1, 1)
    return sampling_fault(launch.grid, point.m, point.n, cluster) is not None


def common_size(points: Iterable[Point]) -> tuple[int, int, int] | None:
    """The size at which most kernels have counts; of several the largest. None without counts."""
    kernels: dict[tuple[int, int, int], set[str]] = {}
    for point in points:
        if point.lead:
            kernels.setdefault(point.size, set()).add(point.kernel)
    return max(
        kernels,
        key=lambda size: (len(kernels[size]), math.prod(size), size == ARTICLE_SIZE),
        default=None,
    )


def at_size(points: Iterable[Point], size: tuple[int, int, int] | None) -> list[Point]:
    """The points of one size that have counts."""
    return [point for point in points if point.size == size and point.lead]


# --- quantities ---------------------------------------------------------------------------------


def sectors_per_request(counts: Counts) -> float | None:
    """32-byte sectors that one warp-level load touches on average."""
    requests, sectors = counts.get(GLOBAL_LOAD_REQUESTS), counts.get(GLOBAL_LOAD_SECTORS)
    return sectors / requests if requests and sectors is not None else None


def useful_bytes(counts: Counts) -> float | None:
    """Bytes of a loaded sector that some lane asked for, on average; 32 at most."""
    ours = counts.get("bytes_per_load_sector")
    nsight = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
    return ours if ours is not None else counts.get(nsight)


def _metric(name: str) -> Callable[[Counts], float | None]:
    return lambda counts: counts.get(name)


@dataclass(frozen=True)
class Quantity:
    """One column: its heading, and its value from the counts of any source."""

    heading: str
    name: str
    """In a sentence."""
    of: Callable[[Counts], float | None]
    form: Literal["count", "ratio", "bytes", "useful", "times"] = "count"
    metric: str = ""
    """The metric that it shows as it is; empty for a ratio."""
    shown: Literal["known", "counted"] = "known"
    """When a table has the column: some source knows it, or counted at least one."""


def _count(
    heading: str, metric: str, name: str, shown: Literal["known", "counted"] = "known"
) -> Quantity:
    return Quantity(heading, name, _metric(metric), metric=metric, shown=shown)


GLOBAL_MEMORY: tuple[Quantity, ...] = (
    _count("Load requests", GLOBAL_LOAD_REQUESTS, "global load requests"),
    _count("Load sectors", GLOBAL_LOAD_SECTORS, "global load sectors"),
    Quantity("Sectors per request", "sectors per request", sectors_per_request, "ratio"),
    Quantity("Useful bytes per 32-byte sector", "useful bytes per sector", useful_bytes, "useful"),
    Quantity(
        "Bytes requested, loads",
        "bytes requested by loads",
        _metric(REQUESTED_LOAD_BYTES),
        "bytes",
        REQUESTED_LOAD_BYTES,
    ),
    Quantity(
        "Bytes requested, stores",
        "bytes requested by stores",
        _metric(REQUESTED_STORE_BYTES),
        "bytes",
        REQUESTED_STORE_BYTES,
    ),
    Quantity(
        "Bytes copied by TMA",
        "bytes copied by TMA",
        _metric(TMA_LOAD_BYTES),
        "bytes",
        TMA_LOAD_BYTES,
        "counted",
    ),
    _count("Sectors copied by TMA", TMA_LOAD_SECTORS, "sectors copied by TMA", "counted"),
    Quantity("A fetched", "fetches of an element of A", _metric("redundancy_a"), "times"),
    Quantity("B fetched", "fetches of an element of B", _metric("redundancy_b"), "times"),
)
SHARED_MEMORY: tuple[Quantity, ...] = (
    _count("Load requests", SHARED_LOADS, "shared loads", "counted"),
    _count("Load wavefronts", SHARED_LOAD_WAVEFRONTS, "wavefronts of shared loads", "counted"),
    _count(
        "Load bank conflicts", SHARED_LOAD_CONFLICTS, "bank conflicts of shared loads", "counted"
    ),
    _count("Store requests", SHARED_STORES, "shared stores", "counted"),
    _count("Store wavefronts", SHARED_STORE_WAVEFRONTS, "wavefronts of shared stores", "counted"),
    _count(
        "Store bank conflicts", SHARED_STORE_CONFLICTS, "bank conflicts of shared stores", "counted"
    ),
    _count("Asynchronous copies", ASYNC_COPIES, "asynchronous copies", "counted"),
    Quantity(
        "Bytes read from other blocks",
        "bytes read from other blocks' shared memory",
        _metric(CLUSTER_LOAD_BYTES),
        "bytes",
        CLUSTER_LOAD_BYTES,
        "counted",
    ),
)


def columns(quantities: Sequence[Quantity], points: Sequence[Point]) -> list[Quantity]:
    """The quantities that a table of these points shows."""
    kept = []
    for quantity in quantities:
        seen = [
            value
            for point in points
            for source, counts in point.values.items()
            if source.kind in COUNTED and (value := quantity.of(counts)) is not None
        ]
        if any(seen) if quantity.shown == "counted" else seen:
            kept.append(quantity)
    return kept


# --- the lesson ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """What the parameter sets of one kernel say about sectors, their use, and time."""

    kernel: str
    points: Sequence[Point]
    """Every parameter set with counts."""
    fewest: Sequence[Point]
    """Those that move the fewest sectors."""
    fullest: Sequence[Point]
    """Those with the most useful bytes per sector."""
    alike: Sequence[Point]
    """Two that move equally many sectors but use them most differently, the worse one first."""
    fastest: Point | None
    """The one with the highest throughput; None unless all of them were timed."""

    @property
    def fewest_is_fastest(self) -> bool:
        return self.fastest in self.fewest


def requests(point: Point) -> float:
    """Global loads of whole warps in one launch."""
    return point.counts.get(GLOBAL_LOAD_REQUESTS, 0.0)


def sectors(point: Point) -> float:
    """Sectors that the loads of one launch move, and the copies of TMA."""
    return point.counts.get(GLOBAL_LOAD_SECTORS, 0.0) + point.counts.get(TMA_LOAD_SECTORS, 0.0)


def _useful(point: Point) -> float:
    return useful_bytes(point.counts) or 0.0


def lesson(kernel: str, points: Iterable[Point], tflops: Mapping[Key, float]) -> Lesson | None:
    """Which parameter set moves the fewest sectors, fills them best, and is fastest.

    Args:
        points: of one size; those of other kernels and those without counts are left out.
        tflops: throughput by key, of the points that have a valid time.

    Returns:
        None if fewer than two parameter sets were counted.
    """
    own = [p for p in points if p.kernel == kernel and GLOBAL_LOAD_SECTORS in p.counts]
    if len(own) < 2:
        return None
    least, most = min(map(sectors, own)), max(map(_useful, own))
    timed = all(point.key in tflops for point in own)
    return Lesson(
        kernel,
        own,
        [point for point in own if sectors(point) == least],
        [point for point in own if math.isclose(_useful(point), most)] if most else [],
        _alike(own),
        max(own, key=lambda point: tflops[point.key]) if timed else None,
    )


def _alike(points: Sequence[Point]) -> list[Point]:
    groups: dict[float, list[Point]] = {}
    for point in points:
        groups.setdefault(sectors(point), []).append(point)
    pairs = [(min(group, key=_useful), max(group, key=_useful)) for group in groups.values()]
    worst, best = max(pairs, key=lambda pair: _useful(pair[1]) - _useful(pair[0]))
    return [] if math.isclose(_useful(worst), _useful(best)) else [worst, best]


def representative(
    kernel: str, points: Iterable[Point], tflops: Mapping[Key, float]
) -> Point | None:
    """The parameter set that stands for a kernel: the fastest, else the one of fewest sectors."""
    own = [p for p in points if p.kernel == kernel and GLOBAL_LOAD_SECTORS in p.counts]
    timed = [point for point in own if point.key in tflops]
    if timed:
        return max(timed, key=lambda point: tflops[point.key])
    return min(own, key=sectors, default=None)
