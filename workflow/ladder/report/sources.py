"""Theory, emulator, machine code and hardware side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .. import compare_counters, figures, traffic
from ..figures import Results
from ..language import N_, _, each, plural
from .grid import Cell, Grid, row_key
from .lesson import set_names
from .words import integer, json_object, number, signed_percent

_KINDS = {
    "theory": N_("Theory"),
    "emulator": N_("Emulator"),
    "compiled": N_("As compiled"),
    "hardware": N_("Hardware"),
}
_ROWS_SIDE_BY_SIDE = 200
"""Up to this many rows of a rung are shown with every source."""


def set_cell(point: traffic.Point) -> Cell:
    row = dict(zip(("kernel", "params", "m", "n", "k"), point.key, strict=True))
    return Cell(figures.params_label(point.params) or "\u2013", key=row_key("counters", row))


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
        cells.append(
            Cell(_(row.quantity.name), note=row.quantity.metric, key=set_cell(row.point).key)
        )
        cells += [_source_cell(row, kind, kind in silent) for kind in traffic.ORDER]
        apart = row.relative_difference
        cells.append(Cell("\u2013" if apart is None else signed_percent(1 + apart), apart, True))
        tone = _VERDICT_TONES[row.verdict]
        rows.append([*cells, Cell(_(row.verdict), note=each(row.reason or ""), tone=tone)])
    heads = [_("Counter"), *(_comparison_head(kind, points) for kind in traffic.ORDER)]
    named = set_names(points, 3) if points[0].params != "{}" else _("its only set")
    caption = _(
        "{title}: theory, emulator, machine code and hardware {at}, {named}. Relative"
        " difference: the largest between two of them, to the one further left."
    ).format(title=title, at=at, named=named)
    for kind, why in silent.items():
        caption += _(" {kind}: {why}.").format(kind=_(_KINDS[kind]), why=_(why))
    numeric = [False, *(True for _kind in traffic.ORDER), True, False]
    left_out = len(rows) - _ROWS_SIDE_BY_SIDE
    if left_out > 0:
        rows.sort(key=lambda cells: _TONE_ORDER[cells[-1].tone])
        caption += _(" {left_out} of those that agree left out.").format(
            left_out=plural("{count} row", "{count} rows", left_out)
        )
    return Grid(
        [*([_("Parameters")] if several else []), *heads, _("Relative difference"), _("Verdict")],
        rows[:_ROWS_SIDE_BY_SIDE],
        caption,
        [*([False] if several else []), *numeric],
        dense=True,
        source="counters",
    )


_TONE_ORDER = {"bad": 0, "warn": 1, "good": 2, "": 3}


def _comparison_head(kind: str, points: Sequence[traffic.Point]) -> str:
    chosen = [compare_counters.sources(point).get(kind) for point in points]
    names = sorted({source.architecture for source in chosen if source and source.architecture})
    kind = _(_KINDS[kind])
    return f"{kind} ({', '.join(names)})" if names else kind


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
        return Cell(_(compare_counters.NOT_MEASURED), None, True, "" if noted else _(why))
    if value is None:
        return Cell("\u2013", None, True, "" if silent else _(row.missing.get(kind, "")))
    whole = row.quantity.unit not in ("sector/request", "byte/sector", "flop/byte", "1")
    text = f"{value:,.0f}" if whole else number(value, 4)
    return Cell((_BOUNDS[row.quantity.bound] if kind == "theory" else "") + text, value, True)


def comparison_notes(results: Results, point: traffic.Point) -> list[str]:
    params = {name: int(value) for name, value in json_object(point.params).items()}
    return compare_counters.notes(point, results.kernels.get(point.kernel), params)


def agreement_sentences(results: Results) -> list[str]:
    """In how many counts machine code and hardware agree as integers, and why others differ."""
    found = compare_counters.agreement(results.counted, results.kernels)
    if not found.compared:
        return []
    sentences = [
        _(
            "Machine code and hardware counters agree as integers in {equal} of {compared} that"
            " both have, over all rungs, parameter sets and sizes."
        ).format(
            equal=found.equal, compared=plural("{count} count", "{count} counts", found.compared)
        )
    ]
    reasons = Counter(row.reason or _("no known reason") for row in found.exceptions)
    for why, number_of in reasons.most_common():
        sentences.append(
            _("The reason for {counts}: {why}.").format(
                counts=plural("{count} difference", "{count} differences", number_of),
                why=each(why),
            )
        )
    return sentences


def exceptions_grid(results: Results) -> Grid | None:
    """The counts in which machine code and hardware differ, those of a rung's counter together."""
    found = compare_counters.agreement(results.counted, results.kernels)
    groups: dict[tuple[str, str], list[compare_counters.Row]] = {}
    for row in found.exceptions:
        groups.setdefault((row.point.kernel, row.quantity.name), []).append(row)
    rows = []
    for (kernel, name), own in groups.items():
        first = own[0]
        counts = (first.values["compiled"], first.values["hardware"])
        size = figures.shape_label(*first.point.size)
        rows.append(
            [
                Cell(results.title(kernel), key=set_cell(first.point).key),
                Cell(_(name)),
                Cell(str(len(own)), len(own), True),
                Cell(_("At N = {n}").format(n=size)),
                *(Cell(integer(count), count, True) for count in counts),
            ]
        )
    return Grid(
        [_("Rung"), _("Counter"), _("Points"), _("First of them"), _(_KINDS["compiled"]),
         _(_KINDS["hardware"])],
        rows,
        _("Counts in which machine code and hardware counters differ."),
        [False, False, True, False, True, True],
        source="counters",
    ) if rows else None  # fmt: skip
