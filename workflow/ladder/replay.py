"""Without a GPU: published measurements of the planned points, each marked as replayed.

A point is replayed only if its kernel's code is the code that was measured. What the published set
does not hold gets a row that says so; nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import schema
from .builds import read_builds
from .documents import UserError
from .manifest import Kernel
from .measure import run_header
from .plan import Point, read_config, read_points
from .status import Status

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
    replayed: dict[tuple[Any, ...], str] = {}
    for point, fault in planned:
        if fault:
            rows.append({**point.row(), "status": str(fault[0]), "detail": fault[1]})
            continue
        row, published_row = _replayed_row(point, kernels[point.kernel], source)
        rows.append(row)
        if published_row:
            replayed[_key_columns(published_row)] = point.kernel
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
    samples = source.samples(replayed) if source else schema.table(schema.SAMPLES, [])
    schema.write(out / "samples.parquet", "samples", samples)
    schema.write(out / "ceilings.parquet", "ceilings", source.ceilings() if source else [])
    accuracy = source.accuracy([kernels[name] for name in config.kernels]) if source else []
    schema.write(out / "accuracy.parquet", "accuracy", accuracy)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


class _PublishedSet:
    """A folder of `results/published`, indexed by point.

    A measurement belongs to the code that was measured, whatever its file is called now: kernels
    with a source are found by the hash of their code, baselines by their name.
    """

    def __init__(self, folder: Path):
        self.name = folder.name
        self._folder = folder
        rows = schema.read(folder / "points.parquet", "points").to_pylist()
        self._points = {_identity(row): row for row in reversed(rows)}
        self._names = {_key_columns(row) for row in rows}

    def point(self, point: Point, source_sha256: str | None) -> dict[str, Any] | None:
        return self._points.get(_identity({**point.row(), "source_sha256": source_sha256}))

    def holds_other_code(self, point: Point) -> bool:
        """Whether a kernel of this name was measured at this point, with other code."""
        return _key_columns(point.row()) in self._names

    def runs(self, wanted: set[str]) -> list[dict[str, Any]]:
        rows = schema.read(self._folder / "runs.parquet", "runs").to_pylist()
        return [{**row, "source": REPLAYED} for row in rows if row["run_id"] in wanted]

    def ceilings(self) -> list[dict[str, Any]]:
        """What the GPU of this set can do at most; [] if that was not measured."""
        path = self._folder / "ceilings.parquet"
        rows = schema.read(path, "ceilings").to_pylist() if path.exists() else []
        return [{**row, "source": REPLAYED} for row in rows]

    def accuracy(self, kernels: Iterable[Kernel]) -> list[dict[str, Any]]:
        """What is known of the accuracy of some kernels; [] if that was not measured."""
        path = self._folder / "accuracy.parquet"
        rows = schema.read(path, "accuracy").to_pylist() if path.exists() else []
        # By their code, as points are; baselines, which have none, by their name.
        names = {kernel.source_sha256() or kernel.name: kernel.name for kernel in kernels}
        known = [(names.get(row["source_sha256"] or row["kernel"]), row) for row in rows]
        return [{**row, "kernel": name, "source": REPLAYED} for name, row in known if name]

    def samples(self, replayed: Mapping[tuple[Any, ...], str]) -> pa.Table:
        """The samples of replayed points.

        Args:
            replayed: the kernel's name now, by the key columns under which it was published.
        """
        table = schema.read(self._folder / "samples.parquet", "samples")
        columns = [table[name].to_pylist() for name in _KEY_COLUMNS]
        names = [replayed.get(key) for key in zip(*columns, strict=True)]
        keep = pa.array([name is not None for name in names], pa.bool_())
        kernels = pa.array(names, pa.string()).cast(table.schema.field("kernel").type)
        renamed = table.set_column(table.schema.get_field_index("kernel"), "kernel", kernels)
        return renamed.cast(table.schema).filter(keep)


_KEY_COLUMNS = ("kernel", "params", "m", "n", "k", "cache_mode")


def _key_columns(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY_COLUMNS)


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["source_sha256"] or row["kernel"], *_key_columns(row)[1:])


def _replayed_row(
    point: Point, kernel: Kernel, source: _PublishedSet | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The row of this run, and the published row that it repeats (None if there is none)."""

    def missing(why: str) -> tuple[dict[str, Any], None]:
        return {
            **point.row(),
            "status": str(Status.SKIPPED_UNSUPPORTED),
            "detail": f"not measured: no GPU on this machine, and {why}",
            "flop": float(point.flop),
            "bytes_min": float(point.bytes_min),
        }, None

    if source is None:
        return missing("there is no published result set")
    runs, _ = kernel.resolve(point.parameters())
    row = source.point(point, runs.source_sha256())
    if row is not None:
        return {**row, "kernel": point.kernel, "source": REPLAYED}, row
    if source.holds_other_code(point):
        return missing(f"the kernel's code is not the one that {source.name} measured")
    return missing(f"the published set {source.name} does not hold this point")
