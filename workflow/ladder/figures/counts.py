"""What was counted of timed points, by the best source of each metric, and what the model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .. import model, traffic
from ..status import RANKED
from .results import FP32_LADDER, Results, best, squares, with_series


@dataclass(frozen=True)
class Counted:
    """A timed point with its counts."""

    row: pd.Series
    """Of `points`, with the columns of `results.with_series`."""
    counts: Mapping[str, float]
    """By metric: of hardware where it counted, else of machine code, emulator, closed form."""
    source: str
    """The best source that there is."""
    demand: model.Demand
    prediction: model.Prediction | None


def counted_points(results: Results, size: int | None) -> list[Counted]:
    """The best parameter set of every FP32 kernel at a square size that has counts, in order."""
    if size is None:
        return []
    rows = squares(results.ranked)
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    if rows.empty:
        return []
    by_key = {point.key: point for point in results.counted}
    machine = model.machine_of(results.ceilings)
    found = []
    for _, row in with_series(results, best(rows)).iterrows():
        if row["kind"] not in FP32_LADDER:
            continue
        key = (row["kernel"], row["params"], row["m"], row["n"], row["k"])
        point = by_key.get(key)
        if point is None:
            continue
        counts, source = merged_counts(point, str(row["architecture"]))
        demand = model.demand_of(counts, float(row["bytes_min"]))
        clock = row["sm_clock_mean_mhz"]
        prediction = None
        if machine is not None and pd.notna(clock):
            prediction = model.predict(demand, machine, clock_mhz=float(clock), blocks=_blocks(row))
        found.append(Counted(row, counts, source, demand, prediction))
    return found


def merged_counts(point: traffic.Point, architecture: str) -> tuple[dict[str, float], str]:
    """All metrics of a point, each from its best source, and the best source that gave any.

    Machine code of other architectures does not count; nor does an emulation that found a fault.
    """
    counts: dict[str, float] = {}
    best_source = "theory"
    for source in sorted(point.values, key=lambda item: item.rank):
        if source.kind == "compiled" and source.architecture != architecture:
            continue
        if source == traffic.EMULATOR and point.status not in RANKED:
            continue
        counts |= point.values[source]
        best_source = source.kind
    return counts, best_source


def counted_size(results: Results) -> int | None:
    """The square size at which most timed kernels have counts, of several the largest; None
    without any."""
    timed = results.tflops()
    found = [p for p in results.counted if p.key in timed and p.m == p.n == p.k]
    size = traffic.common_size(found)
    return size[0] if size else None


def _blocks(row: Any) -> int | None:
    sides = [row[f"grid_{axis}"] for axis in "xyz"]
    if any(pd.isna(side) for side in sides):
        return None
    return int(sides[0]) * int(sides[1]) * int(sides[2])
