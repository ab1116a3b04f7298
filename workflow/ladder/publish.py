"""Publishing a result set, and comparing two."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from . import schema
from .documents import UserError
from .manifest import canonical
from .status import RANKED
from .tuned import read_winners

LARGEST_SET_BYTES = 20 * 10**6
_PAGES = ("report.html", "report.md", "summary.pdf")
_TABLES = ("runs", "builds", "points", "samples", "counters")


def publish(source: Path, published: Path) -> list[Path]:
    """Copy tables, figures and report of a measured result folder to `results/published/<gpu>`.

    Returns:
        The files written.

    Raises:
        UserError: if the folder is incomplete, was replayed, or is too large to commit.
    """
    needed = [source / f"{name}.parquet" for name in _TABLES]
    needed += [*(source / name for name in _PAGES), source / "figures"]
    missing = [str(path) for path in needed if not path.exists()]
    if missing:
        raise UserError(f"{source}: not a complete result set; missing: {', '.join(missing)}")
    runs = schema.read(source / "runs.parquet", "runs").to_pylist()
    newest = max(runs, key=lambda run: run["started_at"])
    if newest["source"] != "measured" or newest["end_reason"] != "complete":
        raise UserError(
            f"{source}: only complete measured runs are published; the newest run is "
            f"{newest['source']}, {newest['end_reason']}"
        )
    size = sum(path.stat().st_size for path in source_files(source))
    if size > LARGEST_SET_BYTES:
        raise UserError(
            f"{source}: {size / 1e6:.1f} MB; a published set may have {LARGEST_SET_BYTES / 1e6:g}"
        )
    target = published / source.name
    if target.exists():
        shutil.rmtree(target)
    written = []
    for path in source_files(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        written.append(copy)
    return written


def source_files(source: Path) -> list[Path]:
    """The files of a result folder that belong to a published set."""
    tables = [source / f"{name}.parquet" for name in _TABLES]
    figures = sorted(path for path in (source / "figures").rglob("*") if path.is_file())
    further = [source / name for name in ("ceilings.parquet", "accuracy.parquet", "tuned.yaml")]
    known = [path for path in further if path.exists()]
    pages = [source / name for name in _PAGES]
    return [*tables, *pages, *known, *_trials(source), *figures]


def _trials(source: Path) -> list[Path]:
    """What `ladder tune` has tried: a table a kernel, without the plans that lie beside them."""
    return sorted(
        path
        for path in (source / "tune").glob("*.parquet")
        if not path.name.endswith(".plan.parquet")
    )


def untraced_winners(folder: Path) -> list[str]:
    """The lines of `tuned.yaml` that no row of the trials backs, as `KERNEL at MxNxK`."""
    tried = {
        (row["kernel"], row["m"], row["n"], row["k"], row["params"], row["run_id"])
        for path in _trials(folder)
        for row in pq.read_table(path).to_pylist()
    }
    return [
        f"{kernel} at {winner.m}x{winner.n}x{winner.k}"
        for kernel, winners in read_winners(folder / "tuned.yaml").items()
        for winner in winners
        if (kernel, *winner.size, canonical(winner.params), winner.run_id) not in tried
    ]


@dataclass(frozen=True)
class Agreement:
    """How well the medians of two result sets agree."""

    common: int
    within_pct: float
    """Share of common points whose medians differ by at most the tolerance, percent."""
    largest_pct: float
    worst: list[tuple[str, float]]
    """The points that differ most, with their difference in percent."""


def compare(first: Path, second: Path, tolerance_pct: float) -> Agreement:
    """Compare the medians of two result folders point by point.

    Raises:
        UserError: if they have no ranked point in common.
    """
    medians = [_medians(folder / "points.parquet") for folder in (first, second)]
    common = sorted(set(medians[0]) & set(medians[1]))
    if not common:
        raise UserError(f"{first} and {second} have no successfully measured point in common")
    differences = [
        (" ".join(map(str, key)), 100.0 * abs(medians[1][key] / medians[0][key] - 1.0))
        for key in common
    ]
    differences.sort(key=lambda item: -item[1])
    within = sum(1 for _, difference in differences if difference <= tolerance_pct)
    return Agreement(
        common=len(common),
        within_pct=100.0 * within / len(common),
        largest_pct=differences[0][1],
        worst=differences[:10],
    )


def _medians(path: Path) -> Mapping[tuple[Any, ...], float]:
    rows = schema.read(path, "points").to_pylist()
    names = ("kernel", "params", "m", "n", "k", "cache_mode")
    return {
        tuple(row[name] for name in names): row["time_median_ns"]
        for row in rows
        if row["status"] in RANKED
    }
