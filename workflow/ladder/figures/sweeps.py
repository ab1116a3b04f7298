"""The parameter sets of one kernel by size."""

from __future__ import annotations

import textwrap
import warnings

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .looks import INK, MUTED, ON_DARK, Look, message_figure, new_figure, short
from .results import Results, params_label, params_order, squares, with_series


def block_shape_table(results: Results, kernel: str) -> pd.DataFrame:
    """Every parameter set of one kernel at every square size, rotating buffers.

    `pct_of_best` is the throughput relative to the best parameter set at that size, percent.
    """
    rows = squares(results.ranked)
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["kernel"] == kernel)]
    rows = with_series(results, rows)
    among = rows["params"].unique()
    rows["label"] = [params_label(params, among) for params in rows["params"]]
    rows["pct_of_best"] = 100 * (rows["tflops"] / rows.groupby("n")["tflops"].transform("max"))
    return rows[
        [
            "kernel",
            "series",
            "params",
            "label",
            "n",
            "samples",
            "time_median_ns",
            "tflops",
            "tflops_ci_low",
            "tflops_ci_high",
            "pct_of_best",
            "best",
        ]
    ]


def swept_kernels(results: Results) -> list[str]:
    """Kernels of which several parameter sets were tried at one size, and at least one has a time.

    A kernel that selects others runs one set at each size, so there is nothing to compare.
    """
    timed = set(squares(results.ranked)["kernel"])
    sets = results.points.groupby(["kernel", "m", "n", "k"])["params"].nunique().groupby("kernel")
    swept = sets.max() > 1
    return [name for name in results.rungs() if swept.get(name, False) and name in timed]


def block_shape_heatmap(table: pd.DataFrame, look: Look) -> Figure:
    """Parameter sets against sizes: TFLOPS in words, percent of the best set as shade.

    Columns as `block_shape_table` gives them. The best set of a size is bold and framed, so that
    the figure reads without its shades.
    """
    if table.empty:
        return message_figure(look, "No parameter set has a time that may be drawn.")
    labels = list(dict.fromkeys(_sweep_order(table)))
    sizes = sorted(table["n"].unique())
    shade = table.pivot(index="label", columns="n", values="pct_of_best").reindex(labels)[sizes]
    values = table.pivot(index="label", columns="n", values="tflops").reindex(labels)[sizes]
    written = labels
    if look.narrow:
        written = ["\n".join(textwrap.wrap(label, 14)) for label in labels]
        most = 8 if max(map(len, labels)) <= 12 else 6
        if len(sizes) > most:
            keep = [n for n in sizes if n % 256 == 0][-most:] or sizes[-most:]
            shade, values, sizes = shade[keep], values[keep], keep
    lines = max(label.count("\n") for label in written) + 1
    figure = new_figure(look, 0.85 + (0.215 + 0.11 * (lines - 1)) * len(labels))
    axes = figure.subplots()
    if look.narrow:  # before the heat map, which measures its labels at once
        axes.tick_params(axis="both", labelsize=6.5)
    cmap = sns.light_palette("#0b4f8a", as_cmap=True)
    low = min(float(np.nanmin(shade.to_numpy())), 90.0)
    texts = values.map(lambda value: "" if pd.isna(value) else short(value))
    with warnings.catch_warnings():
        # It draws once in between, before the layout has made room for its labels.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        sns.heatmap(
            shade,
            annot=texts,
            fmt="",
            cmap=cmap,
            vmin=low,
            vmax=100,
            ax=axes,
            linewidths=0.8,
            linecolor="white",
            xticklabels=[str(n) for n in sizes],
            yticklabels=written,
            annot_kws={"fontsize": 6.2 if look.narrow else 6.8},
            cbar_kws={"label": "% of the best\nat this size", "aspect": 12, "pad": 0.015},
        )
    winners = table[table["best"]].set_index("n")["label"]
    for row, label in enumerate(labels):
        for column, size in enumerate(sizes):
            if winners.get(size) == label:
                axes.add_patch(
                    mpl.patches.Rectangle(
                        (column + 0.04, row + 0.06),
                        0.92,
                        0.88,
                        fill=False,
                        edgecolor=INK,
                        linewidth=1.1,
                    )
                )
            if pd.isna(shade.loc[label, size]):
                axes.annotate(
                    "\u2013",
                    (column + 0.5, row + 0.5),
                    ha="center",
                    va="center",
                    color=MUTED,
                    fontsize=7,
                )
    for text in axes.texts:
        column, row = (int(at) for at in text.get_position())
        if text.get_color() == "w":
            text.set_color(ON_DARK)
        if winners.get(sizes[column]) == labels[row]:
            text.set_fontweight("bold")
    axes.set_xlabel("N  (M = N = K); cells: TFLOPS")
    axes.set_ylabel("")
    axes.tick_params(axis="both", length=0)
    axes.tick_params(axis="x", rotation=0 if len(sizes) <= 16 else 45)
    axes.tick_params(axis="y", rotation=0)
    axes.grid(visible=False)
    colorbar = axes.collections[0].colorbar
    if colorbar is not None:
        colorbar.outline.set_visible(False)
        colorbar.ax.tick_params(labelsize=6.5, length=2)
        colorbar.ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        colorbar.ax.yaxis.label.set_fontsize(6.5)
    return figure


def _sweep_order(table: pd.DataFrame) -> list[str]:
    """Labels ordered by parameter values."""
    pairs = dict(zip(table["params"], table["label"], strict=True))
    return [pairs[params] for params in sorted(pairs, key=params_order)]
