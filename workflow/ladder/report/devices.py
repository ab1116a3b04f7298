"""Several GPUs side by side: each at its own best, never averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .. import figures
from ..documents import UserError
from ..figures import Results
from ..language import _
from ..manifest import Kernel
from .grid import Cell, Grid, row_key
from .words import number, percent


def other_sets(
    folders: Iterable[Path], shown: Results, kernels: Mapping[str, Kernel], gpus_path: Path
) -> list[Results]:
    """The result sets of other GPUs than the one shown, one for each GPU and driver."""
    known = {_identity(shown)}
    found = []
    for folder in folders:
        if not (folder / "points.parquet").is_file():
            continue
        try:
            results = figures.load_results(folder, kernels, gpus_path)
        except (UserError, ValueError):
            continue  # of an older version: its own report says so
        if _identity(results) not in known and len(results.ranked):
            known.add(_identity(results))
            found.append(results)
    return found


def _identity(results: Results) -> tuple[str, str]:
    return results.gpu_name, str((results.run or {}).get("driver_version"))


def comparison_grid(shown: Results, others: Iterable[Results], size: int | None) -> Grid | None:
    """Each kernel's fastest set at one square size on every GPU, in TFLOPS and of its cuBLAS."""
    sets = [shown, *others]
    if len(sets) < 2 or size is None:
        return None
    best = []
    for results in sets:
        squares = figures.squares(results.ranked)
        at_size = squares[(squares["cache_mode"] == "rotating") & (squares["n"] == size)]
        rows = figures.best(at_size)
        best.append({str(row["kernel"]): row for _index, row in rows.iterrows()})
    names = [name for name in shown.kernels if any(name in known for known in best)]
    cells = []
    for name in names:
        line = [Cell(shown.title(name), note=name)]
        for results, known in zip(sets, best, strict=True):
            row, reference = known.get(name), known.get(results.reference() or "")
            if row is None:
                line.append(Cell("\u2013", None, True))
                continue
            share = "" if reference is None else percent(row["tflops"] / reference["tflops"])
            text = number(row["tflops"])
            line.append(Cell(text, row["tflops"], True, share, key=row_key("points", row)))
        cells.append(line)
    heads = [_("Kernel"), *(results.gpu_name for results in sets)]
    caption = _(
        "TFLOPS at M = N = K = {size} on every GPU whose results lie here; below, the percentage of"
        " that GPU's own cuBLAS FP32. Drivers: {drivers}."
    ).format(size=size, drivers=", ".join(" ".join(_identity(results)) for results in sets))
    return Grid(heads, cells, caption, [False, *(True for _set in sets)], source="points")
