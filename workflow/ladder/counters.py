"""The `counters` table: closed forms of the manifests beside what emulator and hardware counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import schema
from .manifest import Kernel
from .plan import Fault, Point, read_points
from .status import Status
from .theory import theory


def collect_counters(
    plan: Path, kernels: Mapping[str, Kernel], counted: Sequence[Path], out: Path
) -> int:
    """Write the `counters` table of a result folder.

    Args:
        plan: the plan; its points get their closed forms, and so do all that were counted.
        counted: tables that the emulator and the profiler wrote.

    Returns:
        Number of rows.
    """
    tables = [
        schema.read(path, "counters").replace_schema_metadata(None)  # so that they can be joined
        for path in counted
    ]
    points = [*_planned(read_points(plan)), *_counted(tables, kernels)]
    stated = schema.table(schema.COUNTERS, theory_rows(dict.fromkeys(points), kernels))
    rows = pa.concat_tables([stated, *tables])
    schema.write(out, "counters", rows)
    return int(rows.num_rows)


def _planned(points: Iterable[tuple[Point, Fault | None]]) -> Iterator[Point]:
    """What can run; the cache's condition changes no count."""
    for point, fault in points:
        if not fault:
            yield replace(point, cache_mode="rotating")


def _counted(tables: Iterable[pa.Table], kernels: Mapping[str, Kernel]) -> Iterator[Point]:
    """What some table has a number of: the emulator also runs sizes that nobody measures."""
    for table in tables:
        known = table.filter(pc.is_valid(table["value"])).select(["kernel", "params", *"mnk"])
        for row in known.group_by(known.column_names).aggregate([]).to_pylist():
            if row["kernel"] in kernels:
                yield Point(**row)


def theory_rows(points: Iterable[Point], kernels: Mapping[str, Kernel]) -> list[dict[str, Any]]:
    """The closed forms of every point; of one that has no value, why."""
    rows = []
    for point in points:
        key = {name: value for name, value in point.row().items() if name != "cache_mode"}
        for item in theory(kernels[point.kernel], point.parameters(), *point.shape):
            known = item.value is not None
            rows.append(
                {
                    **key,
                    "metric": item.metric,
                    "value": item.value,
                    "unit": item.unit,
                    "source": "theory",
                    "status": str(Status.OK if known else Status.MISSING_METRIC),
                    "detail": item.detail,
                }
            )
    return rows
