"""Work for a joule, rung by rung."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .looks import GRID, INK, Look, message_figure, new_figure, short
from .results import FP32_LADDER, Results, common_size, ladder_rows


def energy_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """Each rung's fastest set, and the reference, at the ladder's size: joules and watts.

    `energy_per_launch_j` is the mean power of the whole card, by NVML's counter, over the point's
    visits times its median time; `power_w` that mean; `gflops_per_w` work over energy. Rows without
    a reading of the counter are left out.
    """
    columns = ["kind", "kernel", "series", "params", "n", "samples", "time_median_ns", "tflops",
               "energy_span_s", "energy_per_launch_j", "power_w", "gflops_per_w"]  # fmt: skip
    size = common_size(results) if size is None else size
    rows = ladder_rows(results, size, FP32_LADDER)
    rows = rows.dropna(subset=["energy_per_launch_j", "gflops_per_w"])
    rows["power_w"] = rows["energy_per_launch_j"] / rows["time_median_ns"] * 1e9
    return rows[columns].reset_index(drop=True)


def energy_figure(table: pd.DataFrame, look: Look) -> Figure:
    """Two panels of bars, a row a rung: work for a joule, and power; columns as `energy_table`."""
    if table.empty:
        return message_figure(look, "No kernel of the ladder has a reading of the energy counter.")
    figure = new_figure(look, 0.75 + 0.2 * len(table))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.5, 1])
    size = int(table["n"].iloc[0])
    _bars(left, table, "gflops_per_w", f"GFLOPS per W at N = {size}", look)
    _bars(right, table, "power_w", "Power, W", look)
    left.set_yticks(range(len(table)), table["series"])
    return figure


def _bars(axes: Axes, table: pd.DataFrame, column: str, label: str, look: Look) -> None:
    colours = [look.styles[name].colour for name in table["series"]]
    axes.barh(range(len(table)), table[column], height=0.62, color=colours)
    for at, (_, row) in enumerate(table.iterrows()):
        if row["kind"] == "reference":
            axes.patches[at].set(facecolor=GRID, edgecolor=INK, hatch="////", linewidth=0.6)
            if column == "gflops_per_w":
                axes.axvline(row[column], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        axes.annotate(short(row[column]), xy=(row[column], at), xytext=(3, 0),
                      textcoords="offset points", va="center", fontsize=6.5, in_layout=False,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})  # fmt: skip
    axes.set_xlim(0, float(table[column].max()) * (1.35 if look.narrow else 1.2))
    axes.set_xlabel(label)
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
