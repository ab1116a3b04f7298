"""Energy by NVML's counter."""

from __future__ import annotations

import pandas as pd

from .. import figures
from ..figures import Results
from .grid import Cell, Grid
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
            Cell(row["series"], note=figures.params_label(row["params"], among=[])),
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
        for _, row in table.iterrows()
    ]
    return Grid(
        ["Rung", "J per product", "GFLOPS per W", "W", "TFLOPS", "Watched, s"],
        rows,
        f"Energy at M = N = K = {int(table['n'].iloc[0])}, by NVML's counter for the whole card:"
        " power while the point ran, times its median time.",
        [False, True, True, True, True, True],
    )


def energy_note(results: Results, ladder: pd.DataFrame) -> str:
    table = _with_energy(results, ladder)
    if table.empty:
        return (
            "No point of the ladder has energy: the GPU has no energy counter, the points were"
            " watched too briefly, or they were measured before it was read."
            if len(ladder)
            else ""
        )
    rungs = table[table["kind"] == "rung"]
    if rungs.empty:
        return ""
    top = rungs.sort_values("gflops_per_w").iloc[-1]
    text = f"{top['series']} does most for a watt: {number(top['gflops_per_w'])} GFLOPS"
    reference = table[table["kind"] == "reference"]
    if len(reference):
        ratio = top["gflops_per_w"] / reference["gflops_per_w"].iloc[0]
        text += f", {percent(ratio)} of cuBLAS FP32"
    return f"{text}."
