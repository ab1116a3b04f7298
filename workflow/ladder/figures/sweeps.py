"""The parameter sets of one kernel: by size, and by each pair of parameters."""

from __future__ import annotations

import json
import math
import textwrap
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .looks import Look, heat_map, message_figure, new_figure, short
from .results import (
    Results,
    common_size,
    params_label,
    params_order,
    shape_label,
    squares,
    with_series,
)


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


_SHADES = sns.light_palette("#0b4f8a", as_cmap=True)
_FEWEST_CELLS = 4
"""Of a pair that has a panel: fewer are read as well from the heat map by size."""
_MOST_PAIRS = 9
"""Panels of a figure; pairs that were tried out more thoroughly go first."""


def pairs_table(results: Results, kernel: str) -> pd.DataFrame:
    """Each pair of a kernel's parameters: the fastest set for every pair of values at one size.

    The size is the one at which most sets have a time, of several the ladder's. Sets come from the
    sweep and from searches (`tune/KERNEL.parquet` of the result folder). A pair counts if some
    value of one was tried with several of the other; `sets` is the number of sets behind a cell,
    `samples` those of the fastest one, null if a search measured it.
    """
    columns = ["kernel", "series", "m", "n", "k", "x", "x_value", "y", "y_value", "sets",
               "params", "samples", "tflops", "pct_of_best"]  # fmt: skip
    rows = results.ranked
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["kernel"] == kernel)]
    size = ["m", "n", "k"]
    keep = ["params", *size, "samples", "tflops"]
    searched = results.trials[results.trials["kernel"] == kernel].assign(samples=None)
    tried = pd.concat([rows[keep], searched[keep]]) if len(searched) else rows[keep]
    tried = tried.drop_duplicates(["params", *size])
    if tried.empty:
        return pd.DataFrame(columns=columns)
    by_size: dict[Any, pd.DataFrame] = dict(iter(tried.groupby(size, sort=True)))
    usual = common_size(results)
    chosen = max(by_size, key=lambda key: (len(by_size[key]), key == (usual,) * 3, math.prod(key)))
    at_size = by_size[chosen].reset_index(drop=True)
    fastest = float(at_size["tflops"].max())
    values = pd.DataFrame([json.loads(text or "{}") for text in at_size["params"]])
    pairs = []
    for x, y in combinations(map(str, values.columns), 2):
        cells = values[[x, y]].dropna().drop_duplicates()
        if len(cells) >= _FEWEST_CELLS and len(cells) > max(cells[x].nunique(), cells[y].nunique()):
            pairs.append((len(cells), x, y))
    records: list[dict[str, Any]] = []
    for _, x, y in sorted(pairs, key=lambda item: -item[0])[:_MOST_PAIRS]:
        cells_of: Any = at_size.groupby([values[x], values[y]])
        for (x_value, y_value), own in cells_of:
            top = own.sort_values(["tflops", "params"], ascending=[False, True]).iloc[0]
            record = {
                "kernel": kernel,
                "series": results.title(kernel),
                **dict(zip(size, chosen, strict=True)),
                "x": x,
                "x_value": int(x_value),
                "y": y,
                "y_value": int(y_value),
                "sets": len(own),
                "pct_of_best": 100 * float(top["tflops"]) / fastest,
            }
            records.append(record | {name: top[name] for name in ("params", "samples", "tflops")})
    return pd.DataFrame(records, columns=columns).astype({"samples": float})


def pairs_figure(table: pd.DataFrame, look: Look) -> Figure:
    """A panel a pair of parameters: TFLOPS in words, percent of the fastest set as shade.

    Columns as `pairs_table` gives them. The fastest cell of a panel is bold and framed.
    """
    if table.empty:
        return message_figure(look, "No parameter was tried with several values of another one.")
    panels = list(table.groupby(["x", "y"], sort=False))
    across = min(len(panels), 2 if look.narrow else 3)
    down = math.ceil(len(panels) / across)
    tallest = table.groupby(["x", "y"])["y_value"].nunique().max()
    figure = new_figure(look, 0.3 + down * (0.62 + 0.19 * tallest))
    axes_of = figure.subplots(down, across, squeeze=False).flatten()
    low = min(float(table["pct_of_best"].min()), 90.0)
    for axes, ((x, y), own) in zip(axes_of, panels, strict=False):
        shade = own.pivot(index="y_value", columns="x_value", values="pct_of_best")
        words = own.pivot(index="y_value", columns="x_value", values="tflops").reindex_like(shade)
        top = own.sort_values("tflops").iloc[-1]
        shares = shade.to_numpy(dtype=float)
        numbers = words.to_numpy(dtype=float)
        best_at = (shade.index.get_loc(top["y_value"]), shade.columns.get_loc(top["x_value"]))
        heat_map(
            axes,
            shares,
            [[_words(value) for value in row] for row in numbers],
            lambda row, column, best_at=best_at: (row, column) == best_at,  # type: ignore[misc]
            cmap=_SHADES,
            limits=(low, 100),
            fontsize=6.2,
            dark=lambda share: share > low + 0.5 * (100 - low),
        )
        axes.set_xticks(axes.get_xticks(), shade.columns)
        axes.set_yticks(axes.get_yticks(), shade.index)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    for axes in axes_of[len(panels) :]:
        axes.set_visible(False)
    size = shape_label(*table.iloc[0][["m", "n", "k"]])
    figure.suptitle(
        f"TFLOPS at N = {size}, fastest set of each cell", fontsize=7.5, x=0.01, ha="left"
    )
    return figure


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
    low = min(float(np.nanmin(shade.to_numpy(dtype=float))), 90.0)
    shares = shade.to_numpy(dtype=float)
    winners = table[table["best"]].set_index("n")["label"].to_dict()
    mesh = heat_map(
        axes,
        shares,
        [[_words(value) for value in row] for row in values.to_numpy(dtype=float)],
        lambda row, column: winners.get(sizes[column]) == labels[row],
        cmap=_SHADES,
        limits=(low, 100),
        fontsize=6.2 if look.narrow else 6.8,
        dark=lambda share: share > low + 0.5 * (100 - low),
    )
    axes.set_xticks(axes.get_xticks(), [str(n) for n in sizes])
    axes.set_yticks(axes.get_yticks(), written)
    axes.set_xlabel("N  (M = N = K); cells: TFLOPS")
    axes.tick_params(axis="x", rotation=0 if len(sizes) <= 16 else 45)
    if look.narrow:
        axes.tick_params(axis="both", labelsize=6.5)
    bar = figure.colorbar(mesh, ax=axes, aspect=12, pad=0.015)
    bar.set_label("% of the best\nat this size", fontsize=6.5)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5, length=2)
    bar.ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    return figure


def _words(tflops: float) -> str:
    return "\u2013" if math.isnan(tflops) else short(tflops)


def _sweep_order(table: pd.DataFrame) -> list[str]:
    """Labels ordered by parameter values."""
    pairs = dict(zip(table["params"], table["label"], strict=True))
    return [pairs[params] for params in sorted(pairs, key=params_order)]
