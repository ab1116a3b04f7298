"""The `counters` table: closed forms of the manifests beside what emulator and hardware counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import schema
from .expressions import evaluate
from .manifest import Kernel
from .plan import Fault, Point, read_points
from .status import Status


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
    """The manifests' closed forms, evaluated for every planned point that can run."""
    rows = []
    for point, fault in planned:
        if fault or point.cache_mode != "rotating":
            continue
        names = {**point.parameters(), "M": point.m, "N": point.n, "K": point.k}
        key = {name: value for name, value in point.row().items() if name != "cache_mode"}
        for metric, text in kernels[point.kernel].manifest.theory.items():
            rows.append(
                {
                    **key,
                    "metric": metric,
                    "value": float(evaluate(text, names)),
                    "unit": "byte" if metric.endswith("_bytes") else None,
                    "source": "theory",
                    "status": str(Status.OK),
                }
            )
    return rows
