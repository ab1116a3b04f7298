"""Throughput by matrix size and by the state of the cache."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..manifest import Family
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
from .results import ALIGNED_TO, SERIES_COLUMNS, Results, best, squares, with_series
from .rungs import LADDERS


def tflops_by_size_table(results: Results, family: Family = "fp32") -> pd.DataFrame:
    """Square sizes with rotating buffers; `best` marks the fastest parameter set of a size.

    Of the FP32 units' ladder rows of kind `ceiling` hold the FP32 peak at the maximum clock and the
    measured rate of multiply-adds on registers, and rows of kind `public` other projects' kernels,
    whose times come from a program of their own.
    """
    rows = squares(results.ranked)
    rows = with_series(results, rows[rows["cache_mode"] == "rotating"])
    kinds = LADDERS[family] + (("tf32",) if family == "fp32" else ())
    rows = rows[rows["kind"].isin(kinds)]
    if len(rows) and family == "fp32":
        more = [*_ceilings(results), *_public_rows(results)]
        rows = pd.concat([rows, pd.DataFrame(more)], ignore_index=True) if more else rows
    return rows[SERIES_COLUMNS]


def _ceilings(results: Results) -> list[dict[str, Any]]:
    found = []
    if results.peak_tflops is not None:
        clock = (results.run or {}).get("gpu_max_sm_clock_mhz")
        found.append((f"FP32 peak at {clock:g} MHz", results.peak_tflops))
    if "fma" in results.ceilings:
        found.append(("multiply-adds, measured", results.ceilings["fma"]["value"]))
    return [
        {"kind": "ceiling", "series": name, "tflops": value, "best": False} for name, value in found
    ]


def _public_rows(results: Results) -> list[dict[str, Any]]:
    table = squares(results.public) if len(results.public) else results.public
    found = []
    for row in table.to_dict("records"):
        flop = 2.0 * math.prod(row[side] for side in "mnk")
        found.append(
            {
                **{name: row[name] for name in ("series", *"mnk", "samples", "time_median_ns")},
                "kind": "public",
                "kernel": f"{row['source']} {row['kernel']}",
                "cache_mode": "hot",
                "best": True,
                "tflops": flop / row["time_median_ns"] / 1e3,
            }
        )
    return found


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
    public = table[table["kind"] == "public"]
    rows = table[~table["kind"].isin(["ceiling", "public"])]
    if rows.empty:
        return message_figure(look, "No square size has a time that may be drawn.")
    has_tf32 = bool((rows["kind"] == "tf32").any())
    fp32 = rows[rows["kind"] != "tf32"]
    public = public[public["n"].between(rows["n"].min(), rows["n"].max())]
    height = (3.3 if look.narrow else 3.4) + (0.85 if has_tf32 else 0)
    series = list(dict.fromkeys(fp32["series"]))
    handles = legend_handles(look, series) if look.narrow else []
    handles += [
        Line2D([], [], marker=marker, label=f"{name}*", **_PUBLIC_LOOK)
        for name, marker in _public_markers(public).items()
        if look.narrow
    ]
    figure = new_figure(look, height, handles)
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
    for name, marker in _public_markers(public).items():
        own = public[public["series"] == name]
        main.plot(own["n"], own["tflops"], marker=marker, zorder=2, **_PUBLIC_LOOK)
    ceiling = table[table["kind"] == "ceiling"]
    top = float(fp32["tflops"].max()) if len(fp32) else 0.0
    labels = []
    for _, row in ceiling.iterrows():
        measured = "measured" in row["series"]
        dashes = "-" if measured else (0, (1, 1.5))
        main.axhline(row["tflops"], color=INK, linewidth=0.9, linestyle=dashes, zorder=1)
        top = max(top, float(row["tflops"]))
        labels.append((float(row["tflops"]), row["series"], INK, False))
    main.set_ylim(0, top * 1.06)
    main.set_ylabel("TFLOPS (tensor cores)" if "tensor" in set(fp32["kind"]) else "TFLOPS (FP32)")
    main.grid(axis="x", visible=False)
    size_axis(main, rows["n"])
    if look.narrow:
        for index, (y, text, _, _) in enumerate(labels):  # the peak above its line, then below
            main.annotate(
                text,
                xy=(0.01, y),
                xycoords=("axes fraction", "data"),
                xytext=(0, -2 if index else 2),
                textcoords="offset points",
                fontsize=6.5,
                va="top" if index else "bottom",
            )
        main.set_ylim(0, top * 1.12)
    else:
        for name in series:
            own = fp32[(fp32["series"] == name) & fp32["best"]]
            last = own.loc[own["n"].idxmax()]
            labels.append(
                (float(last["tflops"]), name, look.styles[name].colour, last["kind"] == "reference")
            )
        for name in _public_markers(public):
            own = public[public["series"] == name]
            labels.append((float(own["tflops"].iloc[-1]), f"{name}*", MUTED, False))
        end_labels(main, labels, 2.75)
    figure.align_ylabels()
    return figure


_PUBLIC_LOOK: dict[str, Any] = {
    "color": MUTED, "linewidth": 0.8, "linestyle": (0, (3, 1, 1, 1, 1, 1)), "markersize": 3.4,
    "markerfacecolor": "white", "markeredgewidth": 0.7,
}  # fmt: skip
"""Other projects' kernels: thin, hollow, and with a star at the name."""


def _public_markers(public: pd.DataFrame) -> dict[str, str]:
    return dict(zip(dict.fromkeys(public["series"]), ("s", "D", "v", "^"), strict=False))


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
