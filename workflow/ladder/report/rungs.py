"""The ladder at one size, rung by rung."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .. import figures, stats
from ..figures import Results
from ..status import Status
from .grid import TONES, Cell, Grid, as_word, sortable
from .words import between, listed, number, percent, times


def ladder_grid(results: Results, ladder: pd.DataFrame) -> Grid | None:
    if ladder.empty:
        return None
    size = int(ladder["n"].iloc[0])
    rows = []
    for _, row in ladder.iterrows():
        reference = row["kind"] == "reference"
        noisy = row["status"] == Status.OK_NOISY
        versus = (
            Cell("reference", 1.0, True)
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
                Cell(row["series"], note=row["kernel"]),
                Cell(figures.params_label(row["params"]) or "\u2013"),
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
                    note=as_word(row["verdict_previous"]),
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
        "Rung",
        "Best parameters",
        "TFLOPS",
        "of cuBLAS FP32",
        "verdict",
        "over previous rung",
        "of FP32 peak",
    ]
    return Grid(
        heads,
        rows,
        f"The ladder at M = N = K = {size}, rotating buffers: fastest"
        " parameter set of each rung. Second lines are 95 % intervals.",
        [False, False, True, True, False, True, True],
    )


def ladder_note(results: Results, ladder: pd.DataFrame) -> str:
    missing = [
        results.title(name)
        for name in results.kernels
        if results.kind(name) == "rung" and name not in set(ladder["kernel"])
    ]
    note = (
        f"Verdicts: faster, slower or same means that the whole interval of the ratio lies"
        f" beyond, or within, \u00b1{100 * stats.SAME_WITHIN:g} %; ambiguous that it crosses"
        f" that line."
    )
    if missing and len(ladder):
        note += f" Without a valid time at this size: {listed(missing)}."
    return note


def _verdict_cell(value: Any) -> Cell:
    word = as_word(value)
    return Cell(word or "\u2013", tone="good" if word == "faster" else "")
