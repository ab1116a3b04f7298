"""Speed relative to cuBLAS by shape: every size, and those that fill no whole tile."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .looks import GRID, INK, Look, heat_map, legend_handles, message_figure, new_figure
from .results import ALIGNED_TO, Results, best, shape_label, with_series

_SHAPE_COLUMNS = [
    "kind", "kernel", "series", "params", "shape", "m", "n", "k", "samples", "time_median_ns",
    "tflops", "pct_of_reference",
]  # fmt: skip


def speed_up_table(results: Results) -> pd.DataFrame:
    """Each rung's best set at every size, rotating buffers: speed in percent of cuBLAS FP32."""
    rows = results.ranked
    rows = with_series(results, best(rows[rows["cache_mode"] == "rotating"]))
    rows["shape"] = [shape_label(*key) for key in zip(rows["m"], rows["n"], rows["k"], strict=True)]
    base = rows[rows["kind"] == "reference"].set_index(["m", "n", "k"])["time_median_ns"]
    keys = pd.MultiIndex.from_frame(rows[["m", "n", "k"]])
    rows["pct_of_reference"] = 100 * base.reindex(keys).to_numpy() / rows["time_median_ns"]
    rows = rows[rows["kind"] == "rung"].dropna(subset=["pct_of_reference"])
    return rows[_SHAPE_COLUMNS]


def shapes_table(results: Results) -> pd.DataFrame:
    """The rows of `speed_up_table` that are rectangular, or squares that fill no whole tile."""
    rows = speed_up_table(results)
    odd = (rows["m"] != rows["n"]) | (rows["n"] != rows["k"]) | (rows["n"] % ALIGNED_TO != 0)
    return rows[odd]


def _in_order(table: pd.DataFrame, *, squares_first: bool) -> list[str]:
    """Shapes by kind, then by work."""
    square = (table["m"] == table["n"]) & (table["n"] == table["k"])
    ordered = table.assign(
        work=table["m"].astype(float) * table["n"] * table["k"],
        square=square != squares_first,
    ).sort_values(["square", "work", "shape"])
    return ordered["shape"].drop_duplicates().tolist()


_DIVERGING = LinearSegmentedColormap.from_list(
    "relative", ["#8c4a08", "#e3b177", "#ffffff", "#86b4d8", "#0b4f8a"]
)


def speed_up(table: pd.DataFrame, look: Look) -> Figure:
    """Rungs against sizes: percent of cuBLAS FP32 in words, its logarithm as shade.

    Columns as `speed_up_table` gives them. What is faster than cuBLAS is bold and framed, so that
    the figure reads without its shades.
    """
    if table.empty:
        return message_figure(look, "No size was timed for a rung and for cuBLAS FP32.")
    series = list(dict.fromkeys(table["series"]))
    order = _in_order(table, squares_first=True)
    values = table.pivot(index="shape", columns="series", values="pct_of_reference")
    values = values.reindex(index=order, columns=series)
    names = [name.split(" ", 1)[0] for name in series]
    short_names = len(set(names)) == len(names) and all(name.isdigit() for name in names)
    tall = 0.165 * len(order)
    figure = new_figure(look, tall + (0.75 if short_names else 1.35))
    axes = figure.subplots()
    shares = values.to_numpy(dtype=float)
    mesh = heat_map(
        axes,
        np.log2(shares / 100),
        [[_percent(value) for value in row] for row in shares],
        lambda row, column: bool(shares[row, column] > 100),
        cmap=_DIVERGING,
        limits=(-4, 4),
        fontsize=5.4 if look.narrow else 6.5,
        dark=lambda shade: abs(shade) > 2.6,
    )
    axes.set_yticks(axes.get_yticks(), order)
    ticks = axes.get_xticks()
    if short_names:
        axes.set_xticks(ticks, names)
        axes.set_xlabel("Rung; cells: percent of cuBLAS FP32")
    else:
        axes.set_xticks(ticks, series, rotation=45, ha="right")
        axes.set_xlabel("Cells: percent of cuBLAS FP32")
    axes.set_ylabel("N, or M\u00d7N\u00d7K")
    axes.tick_params(axis="both", labelsize=6.3 if look.narrow else 7)
    if not look.narrow:
        bar = figure.colorbar(mesh, ax=axes, aspect=14, pad=0.015, ticks=[-4, -2, 0, 2, 4])
        bar.ax.set_yticklabels(["\u2264 6", "25", "100", "400", "\u2265 1600"])
        bar.set_label("% of cuBLAS FP32", fontsize=6.5)
        bar.ax.tick_params(labelsize=6.5, length=2)
        bar.outline.set_visible(False)
    return figure


def _percent(value: float) -> str:
    return "\u2013" if math.isnan(value) else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def shapes(table: pd.DataFrame, look: Look) -> Figure:
    """Percent of cuBLAS FP32 for each awkward shape, by kernel; columns as `shapes_table`."""
    if table.empty:
        return message_figure(
            look, "No rectangular or odd size was timed for a rung and for cuBLAS FP32."
        )
    order = _in_order(table, squares_first=False)
    series = list(dict.fromkeys(table["series"]))
    figure = new_figure(look, 0.75 + 0.2 * len(order), legend_handles(look, series, line=False))
    axes = figure.subplots()
    position = {shape: index for index, shape in enumerate(order)}
    axes.axvline(100, color=INK, linewidth=1.0, zorder=1)
    spans = table.groupby("shape")["pct_of_reference"].agg(["min", "max"])
    for shape, span in spans.iterrows():
        axes.hlines(
            position[str(shape)], span["min"], span["max"], color=GRID, linewidth=2.2, zorder=1
        )
    for name in series:
        own = table[table["series"] == name]
        axes.plot(
            own["pct_of_reference"],
            own["shape"].map(position),
            linestyle="none",
            marker=look.styles[name].marker,
            color=look.styles[name].colour,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            zorder=3,
        )
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(len(order) - 0.4, -0.6)
    _ratio_axis(axes, table["pct_of_reference"])
    axes.set_xlabel("Percent of cuBLAS FP32 (logarithmic)")
    axes.set_ylabel("M\u00d7N\u00d7K, or N")
    axes.grid(axis="y", visible=False)
    axes.annotate(
        "cuBLAS",
        xy=(100, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2, 1),
        textcoords="offset points",
        fontsize=6.5,
        va="bottom",
        ha="center",
    )
    return figure


def _ratio_axis(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic percent axis that shows 100 and the halves and doubles around the values."""
    low, high = min([100.0, *values]), max([100.0, *values])
    axes.set_xscale("log", base=2)
    exponents = range(math.floor(math.log2(low / 100)), math.ceil(math.log2(high / 100)) + 1)
    ticks = [100 * 2.0**e for e in exponents]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.set_xlim(low / 1.12, high * 1.18)
