"""The `counters` table: closed forms of the manifests beside what emulator and hardware counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

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
        plan: the plan whose points get their closed forms.
        counted: tables that the emulator and the profiler wrote.

    Returns:
        Number of rows.
    """
    theory = schema.table(schema.COUNTERS, theory_rows(read_points(plan), kernels))
    tables = [schema.read(path, "counters") for path in counted]
    bare = [table.replace_schema_metadata(None) for table in [theory, *tables]]
    rows = pa.concat_tables(bare)
    schema.write(out, "counters", rows)
    return int(rows.num_rows)


def theory_rows(
    planned: Iterable[tuple[Point, Fault | None]], kernels: Mapping[str, Kernel]
) -> list[dict[str, Any]]:
    """The closed forms of every planned point that can run; of one that has no value, why."""
    rows = []
    for point, fault in planned:
        if fault or point.cache_mode != "rotating":
            continue
        key = {name: value for name, value in point.row().items() if name != "cache_mode"}
        sides = point.m, point.n, point.k
        for item in theory(kernels[point.kernel], point.parameters(), *sides):
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
