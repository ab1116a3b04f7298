"""Theory, emulator, machine code and hardware side by side."""

from __future__ import annotations

from collections.abc import Sequence

from .. import compare_counters, figures, traffic
from ..figures import Results
from .grid import Cell, Grid
from .lesson import set_names
from .words import amount, integer, json_object, number, signed_percent

_KINDS = {
    "theory": "Theory",
    "emulator": "Emulator",
    "compiled": "As compiled",
    "hardware": "Hardware",
}
_ROWS_SIDE_BY_SIDE = 200
"""Up to this many rows of a rung are shown with every source."""


def set_cell(point: traffic.Point) -> Cell:
    return Cell(figures.params_label(point.params) or "\u2013")


_VERDICT_TONES: dict[compare_counters.Verdict, str] = {
    "equal": "good",
    "near": "good",
    "within bound": "good",
    "explained": "warn",
    "unexplained": "bad",
    "beyond bound": "bad",
    "not measured": "",
}
_BOUNDS = {"at most": "\u2264\u202f", "at least": "\u2265\u202f", "": ""}


def comparison_grid(
    results: Results, points: Sequence[traffic.Point], title: str, at: str
) -> Grid | None:
    """Every quantity of every point by every source, in the order of the quantities."""
    kernels = results.kernels
    found = [
        row
        for point in points
        for row in compare_counters.compare(point, kernels.get(point.kernel))
    ]
    if not found:
        return None
    several = len(points) > 1
    silent = _silent_kinds(found)
    rows = []
    for row in found:
        cells = [set_cell(row.point)] if several else []
        cells.append(Cell(row.quantity.name, note=row.quantity.metric))
        cells += [_source_cell(row, kind, kind in silent) for kind in traffic.ORDER]
        apart = row.relative_difference
        cells.append(Cell("\u2013" if apart is None else signed_percent(1 + apart), apart, True))
        tone = _VERDICT_TONES[row.verdict]
        rows.append([*cells, Cell(row.verdict, note=row.reason or "", tone=tone)])
    heads = ["Counter", *(_comparison_head(kind, points) for kind in traffic.ORDER)]
    named = set_names(points, 3) if points[0].params != "{}" else "its only set"
    caption = (
        f"{title}: theory, emulator, machine code and hardware {at},"
        f" {named}. Relative difference:"
        " the largest between two of them, to the one further left."
    )
    for kind, why in silent.items():
        caption += f" {_KINDS[kind]}: {why}."
    numeric = [False, *(True for _ in traffic.ORDER), True, False]
    left_out = len(rows) - _ROWS_SIDE_BY_SIDE
    if left_out > 0:
        rows.sort(key=lambda cells: _TONE_ORDER[cells[-1].tone])
        caption += f" {amount(left_out, 'row')} of those that agree left out."
    return Grid(
        [*(["Parameters"] if several else []), *heads, "Relative difference", "Verdict"],
        rows[:_ROWS_SIDE_BY_SIDE],
        caption,
        [*([False] if several else []), *numeric],
        dense=True,
    )


_TONE_ORDER = {"bad": 0, "warn": 1, "good": 2, "": 3}


def _comparison_head(kind: str, points: Sequence[traffic.Point]) -> str:
    chosen = [compare_counters.sources(point).get(kind) for point in points]
    names = sorted({source.architecture for source in chosen if source and source.architecture})
    return f"{_KINDS[kind]} ({', '.join(names)})" if names else _KINDS[kind]


def _silent_kinds(rows: Sequence[compare_counters.Row]) -> dict[str, str]:
    """Kinds of source that tell nothing at all, and the one reason; it is said once for all."""
    silent = {}
    for kind in ("emulator", "compiled", "hardware"):
        reasons = {row.missing[kind] for row in rows if kind in row.missing}
        if len(reasons) == 1 and not any(kind in row.values for row in rows):
            silent[kind] = reasons.pop()
    return silent


def _source_cell(row: compare_counters.Row, kind: str, silent: bool) -> Cell:
    """A number; an en dash where the kind of source knows no such thing; or why there is none.

    Args:
        silent: the kind knows nothing of any row, and the caption says why.
    """
    value = row.values.get(kind)
    if value is None and kind == "hardware" and kind in row.missing:
        why = row.missing[kind]
        noted = silent or why == compare_counters.NOT_MEASURED
        return Cell(compare_counters.NOT_MEASURED, None, True, "" if noted else why)
    if value is None:
        return Cell("\u2013", None, True, "" if silent else row.missing.get(kind, ""))
    whole = row.quantity.unit not in ("sector/request", "byte/sector", "flop/byte", "1")
    text = f"{value:,.0f}" if whole else number(value, 4)
    return Cell((_BOUNDS[row.quantity.bound] if kind == "theory" else "") + text, value, True)


def comparison_notes(results: Results, point: traffic.Point) -> list[str]:
    params = {name: int(value) for name, value in json_object(point.params).items()}
    return compare_counters.notes(point, results.kernels.get(point.kernel), params)


def agreement_sentences(results: Results) -> list[str]:
    """In how many counts machine code and hardware agree as integers, and each exception."""
    found = compare_counters.agreement(results.counted, results.kernels)
    if not found.compared:
        return []
    sentences = [
        f"Machine code and hardware counters agree as integers in {found.equal} of"
        f" {amount(found.compared, 'count')} that both have, over all rungs, parameter sets and"
        " sizes."
    ]
    groups: dict[tuple[str, str, str], list[compare_counters.Row]] = {}
    for row in found.exceptions:
        key = (row.point.kernel, row.quantity.name, row.reason or "no known reason")
        groups.setdefault(key, []).append(row)
    for (kernel, name, why), rows in groups.items():
        sentences.append(
            f"{results.title(kernel)}, {name}: different in {amount(len(rows), 'point')},"
            f" {integer(rows[0].values['compiled'])} in machine code and"
            f" {integer(rows[0].values['hardware'])} on the GPU in the first; {why}."
        )
    return sentences
