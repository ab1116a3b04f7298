"""Without a GPU: published measurements of the planned points, each marked as replayed.

A point is replayed only if its kernel's code is the code that was measured. What the published set
does not hold gets a row that says so; nothing is interpolated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import schema
from .documents import UserError
from .manifest import Kernel
from .measure import run_header
from .plan import Point, read_config, read_points
from .status import Status
from .work import read_builds

REPLAYED = "replayed"


def published_sets(root: Path) -> list[str]:
    """Names of the published result sets."""
    return sorted(path.parent.name for path in root.glob("*/points.parquet"))


def replay(
    plan: Path,
    kernels: Mapping[str, Kernel],
    *,
    builds_root: Path,
    published: Path,
    out: Path,
    root: Path,
) -> dict[str, int]:
    """Write the tables of a run that measures nothing: builds of this machine, published times.

    Args:
        published: `results/published`.
        out: result folder of this run.
        root: project root, for provenance.

    Returns:
        Number of points by status.

    Raises:
        UserError: if the configured set does not exist although others do.
    """
    config = read_config(plan)
    planned = read_points(plan)
    folder = published / config.gpu.replay
    available = published_sets(published)
    if config.gpu.replay not in available and available:
        raise UserError(
            f"gpu.replay: {config.gpu.replay!r} is no folder of {published}; "
            f"published: {', '.join(available)}"
        )
    source = _PublishedSet(folder) if available else None
    rows: list[dict[str, Any]] = []
    for point, fault in planned:
        if fault:
            rows.append({**point.row(), "status": str(fault[0]), "detail": fault[1]})
        else:
            rows.append(_replayed_row(point, kernels[point.kernel], source))
    now = datetime.now(UTC)
    here = run_header(config, root, REPLAYED)
    own = {name: value for name, value in here.items() if name in schema.RUNS.names}
    own |= {
        "run_id": f"{now:%Y%m%dT%H%M%SZ}-replay",
        "started_at": now,
        "finished_at": now,
        "end_reason": "complete",
        "points_planned": len(planned),
        "points_measured": 0,
    }
    used = {row["run_id"] for row in rows if row.get("run_id")}
    runs = [own, *(source.runs(used) if source else [])]
    schema.write(out / "runs.parquet", "runs", runs)
    schema.write(out / "builds.parquet", "builds", read_builds(builds_root))
    schema.write(out / "points.parquet", "points", rows)
    samples = source.samples(rows) if source else schema.table(schema.SAMPLES, [])
    schema.write(out / "samples.parquet", "samples", samples)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


class _PublishedSet:
    """A folder of `results/published`, indexed by point."""

    def __init__(self, folder: Path):
        self.name = folder.name
        self._folder = folder
        points = schema.read(folder / "points.parquet", "points").to_pylist()
        self._points = {_identity(row): row for row in reversed(points)}

    def point(self, point: Point) -> dict[str, Any] | None:
        return self._points.get(_identity(point.row()))

    def runs(self, wanted: set[str]) -> list[dict[str, Any]]:
        rows = schema.read(self._folder / "runs.parquet", "runs").to_pylist()
        return [{**row, "source": REPLAYED} for row in rows if row["run_id"] in wanted]

    def samples(self, rows: list[dict[str, Any]]) -> pa.Table:
        """The samples of the replayed rows."""
        table = schema.read(self._folder / "samples.parquet", "samples")
        wanted = {json.dumps(_identity(row)) for row in rows if row.get("source") == REPLAYED}
        columns = ("kernel", "params", "m", "n", "k", "cache_mode")
        lists = [table[name].to_pylist() for name in columns]
        keep = [json.dumps(identity) in wanted for identity in zip(*lists, strict=True)]
        return table.filter(pc.equal(pa.array(keep, pa.bool_()), True))


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kernel", "params", "m", "n", "k", "cache_mode"))


def _replayed_row(point: Point, kernel: Kernel, source: _PublishedSet | None) -> dict[str, Any]:
    def missing(why: str) -> dict[str, Any]:
        return {
            **point.row(),
            "status": str(Status.SKIPPED_UNSUPPORTED),
            "detail": f"not measured: no GPU on this machine, and {why}",
            "flop": float(point.flop),
            "bytes_min": float(point.bytes_min),
        }

    if source is None:
        return missing("there is no published result set")
    row = source.point(point)
    if row is None:
        return missing(f"the published set {source.name} does not hold this point")
    if row["source_sha256"] != kernel.source_sha256():
        return missing(f"the kernel's code is not the one that {source.name} measured")
    return {**row, "source": REPLAYED}
