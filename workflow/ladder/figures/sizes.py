"""Throughput by matrix size, awkward shapes, and the state of the cache."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .looks import (
    GRID,
    INK,
    MUTED,
    Look,
    end_labels,
    legend_handles,
    message_figure,
    new_figure,
    size_axis,
)
from .results import (
    ALIGNED_TO,
    FP32_LADDER,
    SERIES_COLUMNS,
    Results,
    best,
    shape_label,
    squares,
    with_series,
)


def tflops_by_size_table(results: Results) -> pd.DataFrame:
    """Square sizes with rotating buffers; `best` marks the fastest parameter set of a size.

    A row of kind `ceiling` holds the FP32 peak at the maximum clock.
    """
    rows = squares(results.ranked)
    rows = with_series(results, rows[rows["cache_mode"] == "rotating"])
    peak = results.peak_tflops
    if len(rows) and peak is not None:
        clock = (results.run or {}).get("gpu_max_sm_clock_mhz")
        ceiling = {
            "kind": "ceiling",
            "series": f"FP32 peak at {clock:g} MHz",
            "tflops": peak,
            "best": False,
        }
        rows = pd.concat([rows, pd.DataFrame([ceiling])], ignore_index=True)
    return rows[SERIES_COLUMNS]


def shapes_table(results: Results) -> pd.DataFrame:
    """Rectangular sizes, and squares that fill no whole tile: speed relative to the reference."""
    rows = results.ranked
    odd = (rows["m"] != rows["n"]) | (rows["n"] != rows["k"]) | (rows["n"] % ALIGNED_TO != 0)
    rows = rows[odd & (rows["cache_mode"] == "rotating")]
    rows = with_series(results, best(rows))
    rows["shape"] = [shape_label(*key) for key in zip(rows["m"], rows["n"], rows["k"], strict=True)]
    base = rows[rows["kind"] == "reference"].set_index(["m", "n", "k"])["time_median_ns"]
    keys = pd.MultiIndex.from_frame(rows[["m", "n", "k"]])
    rows["pct_of_reference"] = 100 * base.reindex(keys).to_numpy() / rows["time_median_ns"]
    rows = rows[rows["kind"] == "rung"].dropna(subset=["pct_of_reference"])
    return rows[
        [
            "kind",
            "kernel",
            "series",
            "params",
            "shape",
            "m",
            "n",
            "k",
            "samples",
            "time_median_ns",
            "tflops",
            "pct_of_reference",
        ]
    ]


def cache_modes_table(results: Results) -> pd.DataFrame:
    """Points that were also measured with a hot or a cold cache, by the same parameter set.

    The set is the fastest one with rotating buffers; `pct_of_rotating` is throughput relative to
    that, percent.
    """
    rows = squares(results.ranked)
    rotating = best(rows[rows["cache_mode"] == "rotating"])
    chosen = rotating.set_index(["kernel", "params", "n"])["tflops"]
    keys = pd.MultiIndex.from_frame(rows[["kernel", "params", "n"]])
    rows = with_series(results, rows[keys.isin(chosen.index)])
    keys = pd.MultiIndex.from_frame(rows[["kernel", "params", "n"]])
    rows["pct_of_rotating"] = 100 * rows["tflops"] / chosen.reindex(keys).to_numpy()
    modes = rows.groupby(["kernel", "n"])["cache_mode"].transform("nunique")
    return rows.loc[
        modes > 1,
        [
            "kind",
            "kernel",
            "series",
            "params",
            "n",
            "cache_mode",
            "samples",
            "time_median_ns",
            "tflops",
            "pct_of_rotating",
        ],
    ]


def tflops_by_size(table: pd.DataFrame, look: Look) -> Figure:
    """TFLOPS against N; columns as `tflops_by_size_table` gives them.

    Bold lines join the sizes that are multiples of 32 and show the best parameter set at each;
    other sizes are markers of their own, since a line through 2047 and 2048 would only draw a
    saw tooth. Series that are not FP32 accurate have a strip and a scale of their own.
    """
    rows = table[table["kind"] != "ceiling"]
    if rows.empty:
        return message_figure(look, "No square size has a time that may be drawn.")
    has_tf32 = bool((rows["kind"] == "tf32").any())
    fp32 = rows[rows["kind"].isin(FP32_LADDER)]
    height = (3.3 if look.narrow else 3.4) + (0.85 if has_tf32 else 0)
    series = list(dict.fromkeys(fp32["series"]))
    figure = new_figure(look, height, legend_handles(look, series) if look.narrow else ())
    if has_tf32:
        strip, main = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3.4])
        _draw_tf32_strip(strip, rows[(rows["kind"] == "tf32") & rows["best"]], look)
    else:
        main = figure.subplots()
    if not look.narrow and len(series) <= 7:
        for (name, _), group in fp32[~fp32["best"] & (fp32["n"] % ALIGNED_TO == 0)].groupby(
            ["series", "params"], sort=True
        ):
            main.plot(
                group["n"],
                group["tflops"],
                color=look.styles[str(name)].colour,
                linewidth=0.5,
                alpha=0.45,
                zorder=2,
            )
    _draw_series(main, fp32[fp32["best"]], look)
    ceiling = table[table["kind"] == "ceiling"]
    top = float(fp32["tflops"].max()) if len(fp32) else 0.0
    labels = []
    for _, row in ceiling.iterrows():
        main.axhline(row["tflops"], color=INK, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=1)
        top = max(top, float(row["tflops"]))
        labels.append((float(row["tflops"]), row["series"], INK, False))
    main.set_ylim(0, top * 1.06)
    main.set_ylabel("TFLOPS (FP32)")
    main.grid(axis="x", visible=False)
    size_axis(main, rows["n"])
    if look.narrow:
        for y, text, _, _ in labels:
            main.annotate(
                text,
                xy=(0.01, y),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize=6.5,
                va="bottom",
            )
        main.set_ylim(0, top * 1.12)
    else:
        for name in series:
            own = fp32[(fp32["series"] == name) & fp32["best"]]
            last = own.loc[own["n"].idxmax()]
            labels.append(
                (float(last["tflops"]), name, look.styles[name].colour, last["kind"] == "reference")
            )
        end_labels(main, labels, 2.75)
    figure.align_ylabels()
    return figure


def _draw_tf32_strip(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    _draw_series(axes, rows, look)
    axes.set_ylim(0, float(rows["tflops"].max()) * 1.18)
    axes.set_ylabel("TFLOPS\n(TF32)")
    axes.grid(axis="x", visible=False)
    axes.tick_params(labelbottom=False)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    names = ", ".join(dict.fromkeys(rows["series"]))
    axes.set_title(
        f"{names}: not FP32 accurate, own scale",
        fontsize=7,
        color=MUTED,
        fontweight="normal",
        pad=2,
    )


def _draw_series(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    """Lines with markers and 95 % intervals; sizes that fill no whole tile are loose markers."""
    series = list(dict.fromkeys(rows["series"]))
    palette = {name: look.styles[name].colour for name in series}
    markers = {name: look.styles[name].marker for name in series}
    dashes = {name: look.styles[name].dash for name in series}
    aligned = rows[rows["n"] % ALIGNED_TO == 0]
    if len(aligned):
        sns.lineplot(
            data=aligned,
            x="n",
            y="tflops",
            hue="series",
            style="series",
            hue_order=series,
            style_order=series,
            palette=palette,
            markers=markers,
            dashes=dashes,
            estimator=None,
            errorbar=None,
            legend=False,
            ax=axes,
            zorder=3,
            markersize=4.2,
            markeredgecolor="white",
            markeredgewidth=0.4,
        )
    for name in series:
        own = rows[rows["series"] == name]
        loose = own[own["n"] % ALIGNED_TO != 0]
        axes.plot(
            loose["n"],
            loose["tflops"],
            linestyle="none",
            marker=markers[name],
            markersize=3.2,
            markerfacecolor="none",
            markeredgecolor=palette[name],
            markeredgewidth=0.8,
            zorder=3,
        )
        known = own.dropna(subset=["tflops_ci_low", "tflops_ci_high"])
        axes.vlines(
            known["n"],
            known["tflops_ci_low"],
            known["tflops_ci_high"],
            color=palette[name],
            linewidth=0.9,
            zorder=2,
        )


def shapes(table: pd.DataFrame, look: Look) -> Figure:
    """Percent of cuBLAS FP32 for each awkward shape, by kernel; columns as `shapes_table`."""
    if table.empty:
        return message_figure(
            look, "No rectangular or odd size was timed for a rung and for cuBLAS FP32."
        )
    order = (
        table.assign(
            work=table["m"].astype(float) * table["n"] * table["k"],
            square=(table["m"] == table["n"]) & (table["n"] == table["k"]),
        )
        .sort_values(["square", "work", "shape"])["shape"]
        .drop_duplicates()
        .tolist()
    )
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


_MODES = {
    "rotating": ("o", "rotating buffers"),
    "hot": ("^", "hot (one buffer set)"),
    "cold": ("v", "cold (L2 cleared)"),
}


def _mode_colours(look: Look) -> dict[str, str]:
    return {"rotating": INK, "hot": look.palette[1], "cold": look.palette[0]}


def cache_modes(table: pd.DataFrame, look: Look) -> Figure:
    """Throughput with a hot or cold cache relative to rotating buffers, a panel a size.

    Columns as `cache_modes_table` gives them.
    """
    if table.empty:
        return message_figure(look, "No size was timed in more than one cache mode.")
    sizes = sorted(table["n"].unique())[-(2 if look.narrow else 4) :]
    table = table[table["n"].isin(sizes)]
    series = list(dict.fromkeys(table["series"]))
    colours = _mode_colours(look)
    present = [mode for mode in _MODES if (table["cache_mode"] == mode).any()]
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=_MODES[mode][0],
            color=colours[mode],
            markersize=5,
            label=_MODES[mode][1],
        )
        for mode in present
    ]
    figure = new_figure(look, 0.85 + 0.21 * len(series), handles)
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    position = {name: index for index, name in enumerate(series)}
    for axes, size in zip(panels, sizes, strict=True):
        own = table[table["n"] == size]
        axes.axvline(100, color=MUTED, linewidth=0.8, zorder=1)
        for name, group in own.groupby("series"):
            axes.hlines(
                position[str(name)],
                group["pct_of_rotating"].min(),
                group["pct_of_rotating"].max(),
                color=GRID,
                linewidth=2.2,
                zorder=1,
            )
        for mode, (marker, _) in _MODES.items():
            rows = own[own["cache_mode"] == mode]
            axes.plot(
                rows["pct_of_rotating"],
                rows["series"].map(position),
                linestyle="none",
                marker=marker,
                color=colours[mode],
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.4,
                zorder=3,
            )
        axes.set_title(f"N = {size}")
        axes.set_xlabel("TFLOPS, % of rotating")
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.14)
    panels[0].set_yticks(range(len(series)), series)
    panels[0].set_ylim(len(series) - 0.5, -0.5)
    return figure
