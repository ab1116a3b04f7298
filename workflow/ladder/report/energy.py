"""Energy by NVML's counter."""

from __future__ import annotations

import pandas as pd

from .. import figures
from ..figures import Results
from ..language import _, sentence
from .grid import Cell, Grid, row_key
from .words import number, percent


def _with_energy(results: Results, ladder: pd.DataFrame) -> pd.DataFrame:
    """The rows of the ladder that have energy, with its columns."""
    keys = ["kernel", "params", "m", "n", "k", "cache_mode"]
    columns = ["energy_per_launch_j", "gflops_per_w", "energy_span_s"]
    known = results.ranked.dropna(subset=["energy_per_launch_j", "gflops_per_w"])
    return ladder.merge(known[[*keys, *columns]], on=keys, how="inner")


def energy_grid(results: Results, ladder: pd.DataFrame) -> Grid | None:
    table = _with_energy(results, ladder)
    if table.empty:
        return None
    rows = [
        [
            Cell(
                row["series"],
                note=figures.params_label(row["params"], among=[]),
                key=row_key("points", row),
            ),
            Cell(number(row["energy_per_launch_j"]), row["energy_per_launch_j"], True),
            Cell(number(row["gflops_per_w"]), row["gflops_per_w"], True),
            Cell(
                number(row["energy_per_launch_j"] / row["time_median_ns"] * 1e9),
                row["energy_per_launch_j"] / row["time_median_ns"],
                True,
            ),
            Cell(number(row["tflops"]), row["tflops"], True),
            Cell(number(row["energy_span_s"], 2), row["energy_span_s"], True),
        ]
        for _index, row in table.iterrows()
    ]
    return Grid(
        [_("Rung"), _("J per product"), _("GFLOPS per W"), "W", "TFLOPS", _("Watched, s")],
        rows,
        _(
            "Energy at M = N = K = {n}, by NVML's counter for the whole card: power while the"
            " point ran, times its median time."
        ).format(n=int(table["n"].iloc[0])),
        [False, True, True, True, True, True],
        source="points",
    )


def energy_note(results: Results, ladder: pd.DataFrame) -> str:
    table = _with_energy(results, ladder)
    if table.empty:
        return (
            _(
                "No point of the ladder has energy: the GPU has no energy counter, the points were"
                " watched too briefly, or they were measured before it was read."
            )
            if len(ladder)
            else ""
        )
    rungs = table[table["kind"] == "rung"]
    if rungs.empty:
        return ""
    top = rungs.sort_values("gflops_per_w").iloc[-1]
    text = _("{series} does most for a watt: {value} GFLOPS").format(
        series=top["series"], value=number(top["gflops_per_w"])
    )
    reference = table[table["kind"] == "reference"]
    if len(reference):
        ratio = top["gflops_per_w"] / reference["gflops_per_w"].iloc[0]
        text += _(", {ratio} of cuBLAS FP32").format(ratio=percent(ratio))
    return sentence(text)
