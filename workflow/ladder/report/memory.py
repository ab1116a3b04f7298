"""Memory traffic: what one source counted, rung by rung."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import compare_counters, figures, traffic
from ..figures import Results
from ..language import _, listed
from .emulation import emulation_grid, emulation_problems, emulation_summary
from .grid import Cell, Grid, sortable
from .lesson import lesson_sentences
from .sources import (
    agreement_sentences,
    comparison_grid,
    comparison_notes,
    exceptions_grid,
    set_cell,
)
from .words import byte_words, plain_number


def traffic_view(results: Results) -> dict[str, Any]:
    """The section on memory traffic: sentences, tables and notes, all from `counters`."""
    size = traffic.common_size(results.counted)
    asked = traffic.emulated(results.counted)
    return {
        "intro": _traffic_intro(results, size),
        "lesson": (lesson := lesson_sentences(results, size)),
        "headline": [*lesson[:2], *lesson[-1:]] if len(lesson) > 3 else lesson,
        "summary": emulation_summary(results),
        "checks": emulation_grid(results, asked),
        "problems": emulation_problems(results, asked),
        "agreement": agreement_sentences(results),
        "exceptions": exceptions_grid(results),
        "verdicts": [(_(word), _(meaning)) for word, meaning in compare_counters.VERDICTS.items()],
        "rungs": [_rung_view(results, name, size) for name in results.counted_rungs() if size],
    }


def _traffic_intro(results: Results, size: tuple[int, int, int] | None) -> str:
    """Who counted what this section shows, which are the points of one size."""
    shown = traffic.at_size(results.counted, size) if size else []
    leads = {point.lead.kind for point in shown if point.lead}
    if "emulator" in leads:
        return _(
            "Counted on a CPU, exact: the emulator ran the kernels' own source and counted what"
            " each warp asks of memory. No cache is modelled and no time follows from it."
        )
    if leads == {"hardware"}:
        return _(
            "Counted by the GPU's own counters, which Nsight Compute read in launches of their"
            " own, apart from the timed ones."
        )
    if leads:
        return _("Counted, but not by the emulator, which did not run the kernels here.")
    if traffic.emulated(results.counted):
        return _("No kernel could be counted; the reasons are below.")
    return _(
        "Nothing was counted in this run: the emulator did not run (emulator.use), and no"
        " hardware counters were read."
    )


def _rung_view(results: Results, kernel: str, size: tuple[int, int, int]) -> dict[str, Any]:
    """One rung's tables at the common size, or at the largest that it has."""
    own = [point for point in results.counted if point.kernel == kernel]
    if not traffic.at_size(own, size):
        size = traffic.common_size(own) or size
    points = sorted(
        (point for point in own if point.size == size and (point.lead or point.status)),
        key=lambda point: figures.params_order(point.params),
    )
    title = results.title(kernel)
    at = _at(size)
    tables = []
    for name, quantities in (
        ("global", traffic.GLOBAL_MEMORY),
        ("shared", traffic.SHARED_MEMORY),
    ):
        shown = traffic.columns(quantities, points)
        if not shown:
            continue
        left_out = [_(q.name) for q in quantities if q.shown == "counted" and q not in shown]
        caption = (
            _("{title}: global memory {at}, {counted}.")
            if name == "global"
            else _("{title}: shared memory {at}, {counted}.")
        ).format(title=title, at=at, counted=_counted_by(points))
        if name == "shared" and left_out:
            caption += _(" None counted: {left_out}.").format(left_out=listed(left_out))
        tables.append((name, _traffic_grid(points, shown, caption)))
    uses_shared = any(name == "shared" for name, _ in tables)
    compared = traffic.at_size(own, widest := compare_counters.widest_size(own))
    compared.sort(key=lambda point: figures.params_order(point.params))
    tflops = results.tflops()
    first = traffic.representative(kernel, compared, tflops) or next(iter(compared), None)
    others = [point for point in compared if point is not first]
    there = _at(widest) if widest else ""
    return {
        "id": f"traffic-{kernel}",
        "title": title,
        "tables": tables,
        "note": "" if uses_shared or not tables else _("It uses no shared memory."),
        "comparison": comparison_grid(results, [first] if first else [], title, there),
        "notes": comparison_notes(results, first) if first else [],
        "others": comparison_grid(results, others, title, there),
    }


def _at(size: tuple[int, int, int]) -> str:
    return _("at M\u00d7N\u00d7K = {m}\u00d7{n}\u00d7{k}").format(m=size[0], n=size[1], k=size[2])


def _counted_by(points: Sequence[traffic.Point]) -> str:
    kinds = dict.fromkeys(point.lead.kind for point in points if point.lead)
    return _("; ").join(_(figures.COUNTED_BY.get(kind, kind)) for kind in kinds) or _("not counted")


def _traffic_grid(
    points: Sequence[traffic.Point], shown: Sequence[traffic.Quantity], caption: str
) -> Grid:
    """A row a parameter set, a column a quantity: what the lead source of each counted."""
    rows = []
    for point in points:
        if point.lead is None:
            why = Cell(
                "\u2013", note=_("not counted: {status}").format(status=point.status), numeric=True
            )
            rows.append(
                [set_cell(point), why, *(Cell("\u2013", None, True) for _head in shown[1:])]
            )
        else:
            cells = (_quantity_cell(point, quantity) for quantity in shown)
            rows.append([set_cell(point), *cells])
    heads = [_("Parameters"), *(_(quantity.heading) for quantity in shown)]
    numeric = [False, *(True for _head in shown)]
    return Grid(heads, rows, caption, numeric, dense=True, source="counters")


def _quantity_cell(point: traffic.Point, quantity: traffic.Quantity) -> Cell:
    value = quantity.of(point.counts)
    note = ""
    if quantity.form == "useful" and value is not None:
        note = f"{plain_number(100 * value / traffic.SECTOR_BYTES)}\u202f%"
    return Cell(_quantity_text(quantity, value), sortable(value), True, note)


def _quantity_text(quantity: traffic.Quantity, value: float | None) -> str:
    if value is None:
        return "\u2013"
    if quantity.form == "count":
        return f"{int(value):,}"
    if quantity.form == "bytes":
        return byte_words(value)
    return f"{plain_number(value)}\u00d7" if quantity.form == "times" else plain_number(value)
