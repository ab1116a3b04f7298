"""The ladder at one size, rung by rung."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from .. import figures, stats
from ..figures import Results
from ..language import _, listed
from ..status import Status
from .grid import TONES, Cell, Grid, as_word, row_key, sortable
from .words import between, number, percent, times


def ladder_grid(results: Results, ladder: pd.DataFrame) -> Grid | None:
    if ladder.empty:
        return None
    size = int(ladder["n"].iloc[0])
    rows = []
    for _index, row in ladder.iterrows():
        reference = row["kind"] == "reference"
        noisy = row["status"] == Status.OK_NOISY
        versus = (
            Cell(_("reference"), 1.0, True)
            if reference
            else Cell(
                percent(row["vs_reference"]),
                sortable(row["vs_reference"]),
                True,
                between(row["vs_reference_low"], row["vs_reference_high"], 100, 4),
            )
        )
        rows.append(
            [
                Cell(row["series"], note=row["kernel"], key=row_key("points", row)),
                Cell(figures.params_label(row["params"], among=[]) or "\u2013"),
                Cell(
                    number(row["tflops"]),
                    row["tflops"],
                    True,
                    between(row["tflops_ci_low"], row["tflops_ci_high"], digits=4),
                    "warn" if noisy else "",
                ),
                versus,
                _verdict_cell(row["verdict_reference"]),
                Cell(
                    times(row["vs_previous"]),
                    sortable(row["vs_previous"]),
                    True,
                    note=_(as_word(row["verdict_previous"])),
                    tone=TONES.get(as_word(row["verdict_previous"]), ""),
                ),
                Cell(
                    number(row["pct_peak_max_clock"], 3, "%"),
                    sortable(row["pct_peak_max_clock"]),
                    True,
                ),
            ]
        )
    heads = [
        _("Rung"),
        _("Best parameters"),
        "TFLOPS",
        _("of cuBLAS FP32"),
        _("Verdict"),
        _("over previous rung"),
        _("of FP32 peak"),
    ]
    return Grid(
        heads,
        rows,
        _(
            "The ladder at M = N = K = {size}, rotating buffers: fastest parameter set of each"
            " rung. Second lines are 95 % intervals."
        ).format(size=size),
        [False, False, True, True, False, True, True],
        source="points, samples",
    )


def ladder_note(results: Results, ladder: pd.DataFrame) -> str:
    missing = [
        results.title(name)
        for name in results.kernels
        if results.kind(name) == "rung" and name not in set(ladder["kernel"])
    ]
    note = _(
        "Verdicts: faster, slower or same means that the whole interval of the ratio lies"
        " beyond, or within, \u00b1{within} %; ambiguous that it crosses that line."
    ).format(within=f"{100 * stats.SAME_WITHIN:g}")
    if missing and len(ladder):
        note += _(" Without a valid time at this size: {missing}.").format(missing=listed(missing))
    return note


def _verdict_cell(value: Any) -> Cell:
    word = as_word(value)
    return Cell(_(word) or "\u2013", tone="good" if word == "faster" else "")


@dataclass(frozen=True)
class Bar:
    """A rung on the first screen."""

    title: str
    kernel: str
    kind: str
    tflops: str
    interval: str
    of_reference: str
    of_peak: str
    width: float
    """Percent of the longest bar."""
    low: float
    """Ends of the 95 % interval, percent of the longest bar."""
    high: float
    key: str
    article: bool
    """Whether the rung has a section of its own."""


def ladder_bars(ladder: pd.DataFrame) -> list[Bar]:
    """The ladder at one size as bars with intervals, the reference among them in its place."""
    if ladder.empty:
        return []
    longest = float(ladder[["tflops", "tflops_ci_high"]].max().max())

    def share(value: Any, otherwise: float) -> float:
        return round(100 * (otherwise if pd.isna(value) else float(value)) / longest, 2)

    return [
        Bar(
            title=row["series"],
            kernel=row["kernel"],
            kind=row["kind"],
            tflops=number(row["tflops"]),
            interval=between(row["tflops_ci_low"], row["tflops_ci_high"], digits=4),
            of_reference=percent(1.0 if row["kind"] == "reference" else row["vs_reference"]),
            of_peak=number(row["pct_peak_max_clock"], 3, "%"),
            width=share(row["tflops"], row["tflops"]),
            low=share(row["tflops_ci_low"], row["tflops"]),
            high=share(row["tflops_ci_high"], row["tflops"]),
            key=row_key("points", row),
            article=row["kind"] != "reference",
        )
        for _index, row in ladder.iterrows()
    ]


def other_families(results: Results, size: int | None) -> list[tuple[str, Grid]]:
    """A table for each kind of arithmetic beside the FP32 ladder, ranked apart: name and rows."""
    rows = figures.squares(results.ranked)
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    reference = rows[rows["kernel"].map(results.kind) == "reference"]["tflops"].max()
    found: list[tuple[str, Grid]] = []
    for kind in dict.fromkeys(results.kind(name) for name in results.order()):
        own = figures.best(rows[rows["kernel"].map(results.kind) == kind])
        if kind not in ("rung", "reference") and len(own):
            found.append((kind, _family_grid(results, own, reference)))
    return found


def _family_grid(results: Results, rows: pd.DataFrame, reference: float) -> Grid:
    position = {name: index for index, name in enumerate(results.order())}
    cells = [
        [
            Cell(results.title(row["kernel"]), note=row["kernel"], key=row_key("points", row)),
            Cell(figures.params_label(row["params"]) or "\u2013"),
            Cell(
                number(row["tflops"]),
                row["tflops"],
                True,
                between(row["tflops_ci_low"], row["tflops_ci_high"], digits=4),
            ),
            Cell(percent(row["tflops"] / reference), sortable(row["tflops"] / reference), True),
            Cell(number(row["eta_rms"]), sortable(row["eta_rms"]), True),
            Cell(number(row["eta_max"]), sortable(row["eta_max"]), True),
        ]
        for _index, row in rows.iloc[rows["kernel"].map(position).argsort()].iterrows()
    ]
    heads = [
        _("Kernel"),
        _("Best parameters"),
        "TFLOPS",
        _("of cuBLAS FP32"),
        _("\u03b7 rms"),
        _("\u03b7 max"),
    ]
    caption = _(
        "At M = N = K = {size}. Not ranked with the FP32 kernels; \u03b7 is the error in units of"
        " 2\u207b\u00b2\u2074 |A||B|, which FP32 keeps below 16 at most and 1 on average."
    ).format(size=int(rows["n"].iloc[0]))
    numeric = [False, False, True, True, True, True]
    return Grid(heads, cells, caption, numeric, source="points, samples")
