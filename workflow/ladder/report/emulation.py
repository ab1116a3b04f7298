"""What came of running the kernels on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import figures, traffic
from ..figures import Results
from ..language import _, listed, plural, sentence
from .grid import Cell, Grid
from .words import json_object


def emulation_summary(results: Results) -> list[str]:
    """What came of the points that the emulator was asked for."""
    asked = traffic.emulated(results.counted)
    if not asked:
        return []
    by_outcome: dict[str, list[traffic.Point]] = {}
    for point in asked:
        by_outcome.setdefault(traffic.outcome(point), []).append(point)
    # A result can be right although its requests could not be counted.
    right = by_outcome.get("right", []) + by_outcome.get("inexact", [])
    sets = {(point.kernel, point.params) for point in asked}
    of = _(" ({rungs}, {sets}, {sizes})").format(
        rungs=plural("{count} rung", "{count} rungs", len({p.kernel for p in asked})),
        sets=plural("{count} parameter set", "{count} parameter sets", len(sets)),
        sizes=plural("{count} size", "{count} sizes", len({p.size for p in asked})),
    )
    points = plural("{count} point", "{count} points", len(asked))
    sentences = []
    if len(right) == len(asked):
        start = _("Ran the {points}{of}") if len(asked) == 1 else _("Ran all {points}{of}")
        sentences.append(
            _(
                "{start} on the CPU: every result is right, and there is no"
                " finding:"
                " nothing out of bounds, no race, no uninitialised read, no misaligned access, no"
                " divergent barrier."
            ).format(start=start.format(points=points, of=of))
        )
    elif len(right) == (ran := sum(traffic.outcome(point) != "skipped" for point in asked)):
        sentences.append(
            _("Of {points}{of} {ran} ran on the CPU, and every result is right.").format(
                points=points, of=of, ran=ran
            )
        )
    else:
        sentences.append(
            _("{right} of {points}{of} are right on the CPU.").format(
                right=len(right), points=points, of=of
            )
        )
    for name, message in (
        ("fault", _("{points} with a fault: {reasons}.")),
        ("inexact", _("{points} without exact counts: {reasons}.")),
        ("skipped", _("{points} that could not run: {reasons}.")),
    ):
        own = by_outcome.get(name, [])
        if own:
            reasons = sorted({str(point.detail or point.status) for point in own})
            text = _("; ").join(reasons[:2])
            if len(reasons) > 2:
                text += _(" and {number} more").format(number=len(reasons) - 2)
            points = plural("{count} point", "{count} points", len(own))
            sentences.append(message.format(points=points, reasons=text))
    whole = sum(_whole(results, point) for point in right)
    if right:
        sampled = len(right) - whole
        text = _("{whole} ran whole with all checks").format(
            whole=plural("{count} point", "{count} points", whole)
        )
        if sampled:
            text += plural(
                "; in {count} larger one a few blocks stand for the grid, with the same checks",
                "; in {count} larger ones a few blocks stand for the grid, with the same checks",
                sampled,
            )
        sentences.append(sentence(text))
    return sentences


def machine_code_summary(results: Results) -> list[str]:
    sources = [source for point in results.counted for source in point.values]
    counted = sum(source.kind == "compiled" for source in sources)
    names = sorted({source.architecture for source in sources if source.kind == "compiled"})
    if not counted:
        return []
    return [
        _("Counted the same points in the machine code for {names}.").format(names=listed(names))
    ]


def _whole(results: Results, point: traffic.Point) -> bool:
    params = {name: int(value) for name, value in json_object(point.params).items()}
    return traffic.ran_whole(point, results.kernels.get(point.kernel), params)


def emulation_grid(results: Results, asked: Sequence[traffic.Point]) -> Grid | None:
    """Outcome by rung and size."""
    rows = []
    groups: dict[tuple[str, tuple[int, int, int]], list[traffic.Point]] = {}
    for point in asked:
        groups.setdefault((point.kernel, point.size), []).append(point)
    order = {name: index for index, name in enumerate(results.kernels)}
    for (kernel, size), points in sorted(
        groups.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0])
    ):
        right = [point for point in points if traffic.outcome(point) in ("right", "inexact")]
        run = [point for point in points if traffic.ran(point) or point in right]
        whole = sum(_whole(results, point) for point in run)
        how = (
            _("not at all")
            if not run
            else _("whole")
            if whole == len(run)
            else _("sample of blocks")
        )
        if 0 < whole < len(run):
            how = _("{whole} whole, {sampled} as sample of blocks").format(
                whole=whole, sampled=len(run) - whole
            )
        bad = sorted({str(p.status) for p in points if traffic.outcome(p) != "right"})
        faulty = any(traffic.outcome(point) == "fault" for point in points)
        rows.append(
            [
                Cell(results.title(kernel)),
                Cell("\u00d7".join(str(side) for side in size), math.prod(size)),
                Cell(str(len(points)), len(points), True),
                Cell(how),
                Cell(
                    _("all")
                    if len(right) == len(points)
                    else _("{right} of {points}").format(right=len(right), points=len(points)),
                    len(right) / len(points),
                    tone="good" if len(right) == len(points) else "bad" if faulty else "warn",
                ),
                Cell(_("none") if not bad else ", ".join(bad), tone="bad" if faulty else ""),
            ]
        )
    heads = [
        _("Rung"),
        "M\u00d7N\u00d7K",
        _("Parameter sets"),
        _("Ran"),
        _("Right"),
        _("Other statuses"),
    ]
    text = _(
        "Every kernel's own source, run on the CPU and checked: result against the FP64"
        " product, bounds, races, uninitialised reads, alignment, barriers."
    )
    return (
        Grid(heads, rows, text, [False, False, True, False, False, False], source="counters")
        if rows
        else None
    )


def emulation_problems(results: Results, asked: Sequence[traffic.Point]) -> Grid | None:
    """Faults and points that could not run or be counted, equal reasons together."""
    groups: dict[tuple[str, str, str, str], list[traffic.Point]] = {}
    for point in asked:
        if traffic.outcome(point) != "right":
            reason = str(point.detail or "\u2013")
            key = (str(point.status), point.kernel, point.params, reason)
            groups.setdefault(key, []).append(point)
    rows = [
        [
            Cell(status, tone="bad" if traffic.outcome(points[0]) == "fault" else "warn"),
            Cell(results.title(kernel)),
            Cell(figures.params_label(params) or "\u2013"),
            Cell(", ".join(figures.shape_label(*point.size) for point in points)),
            Cell(reason[:400]),
        ]
        for (status, kernel, params, reason), points in sorted(groups.items())
    ]
    heads = [_("Status"), _("Rung"), _("Parameters"), _("Sizes"), _("Finding or reason")]
    text = _("What the emulator found or could not run; findings with file and line.")
    return Grid(heads, rows, text, [False] * 5, source="counters") if rows else None
