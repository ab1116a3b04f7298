"""Error of the results by the length of their sums, and by the distribution of the inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullLocator,
    SymmetricalLogLocator,
)

from ..correctness import ETA_MAX, ETA_RMS
from ..status import RANKED
from .looks import GRID, INK, MUTED, Look, legend_handles, message_figure, new_figure, size_axis
from .results import ALIGNED_TO, Results, with_series

_MEASURES = {"eta_rms": "Root mean square", "eta_max": "Largest"}
_BOUNDS = {"eta_rms": ETA_RMS["fp32"], "eta_max": ETA_MAX["fp32"]}


def accuracy_table(results: Results) -> pd.DataFrame:
    """The largest eta of each kernel at every K, over its parameter sets, M and N.

    eta = |C - R| / (u |A| |B|), u = 2^-24, on uniform data in [-1, 1): `eta_rms` over a product,
    `eta_max` of an element. `points` counts what the largest was taken from; `elements` is M N of
    the largest of these products: the more elements, the larger the maximum gets by chance.
    """
    columns = ["kind", "kernel", "series", "k", "points", "elements", "eta_rms", "eta_max"]
    checked = results.ranked.dropna(subset=["eta_rms", "eta_max"])
    if checked.empty:
        return pd.DataFrame(columns=columns)
    rows = with_series(results, checked)
    rows["elements"] = rows["m"] * rows["n"]
    grouped = rows.groupby(["kind", "kernel", "series", "k"], sort=False)
    table = grouped.agg(
        points=("eta_rms", "size"),
        elements=("elements", "max"),
        eta_rms=("eta_rms", "max"),
        eta_max=("eta_max", "max"),
    ).reset_index()
    place = {name: at for at, name in enumerate(results.order())}
    order = table.assign(_at=table["kernel"].map(place)).sort_values(["_at", "k"], kind="stable")
    return order[columns].reset_index(drop=True)


def accuracy_figure(table: pd.DataFrame, look: Look) -> Figure:
    """A panel a measure: eta against K, both logarithmic, with the bound that a result must keep.

    Columns as `accuracy_table` gives them.
    """
    if table.empty:
        return message_figure(look, "No point was checked on random data.")
    series = list(dict.fromkeys(table["series"]))
    figure = new_figure(look, 2.3 if not look.narrow else 4.2, legend_handles(look, series))
    shape = (2, 1) if look.narrow else (1, 2)
    for axes, (column, title) in zip(
        figure.subplots(*shape, sharex=look.narrow).flatten(), _MEASURES.items(), strict=True
    ):
        for name in series:
            own, style = table[table["series"] == name], look.styles[name]
            whole = own["k"] % ALIGNED_TO == 0
            axes.plot(
                own["k"][whole], own[column][whole], color=style.colour, marker=style.marker,
                linestyle=(0, style.dash) if style.dash else "-", linewidth=0.9, markersize=4,
                markeredgecolor="white", markeredgewidth=0.4,
            )  # fmt: skip
            axes.plot(
                own["k"][~whole], own[column][~whole], color=style.colour, marker=style.marker,
                linestyle="none", markersize=3.2, markerfacecolor="none", markeredgewidth=0.8,
            )  # fmt: skip
        bound = _BOUNDS[column]
        axes.axhline(bound, color=INK, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=1)
        axes.annotate(
            f"accepted up to {bound:g}", xy=(0.01, bound), xycoords=("axes fraction", "data"),
            xytext=(0, 2), textcoords="offset points", fontsize=6.5, va="bottom",
        )  # fmt: skip
        axes.set_yscale("log")
        low, high = float(table[column].min()), max(bound, float(table[column].max()))
        axes.set_ylim(low / 1.5, high * 1.7)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else (1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        size_axis(axes, table["k"], "K")
        axes.set_title(f"{title} of \u03b7")
        axes.set_ylabel("\u03b7")
        axes.grid(axis="x", visible=False)
        if look.narrow and column == "eta_rms":
            axes.set_xlabel("")
    return figure


DISTRIBUTIONS = {
    "uniform": "U[\u22121, 1)",
    "positive": "U[0, 1)",
    "wide": "\u00b12\u207b\u00b2\u2070 to \u00b12\u00b2\u2070",
}
"""How the inputs' distributions are called in figures and report, in their order."""
_ERRORS = {"eta_rms": "\u03b7, rms", "eta_max": "\u03b7, largest", "bias": "Bias"}
_BAND = "FP32 units"
LINEAR_BIAS = 0.1
"""The bias' scale is linear within this and logarithmic beyond."""


def errors_table(results: Results) -> pd.DataFrame:
    """The errors of every kernel that was looked at, by distribution of its inputs and K.

    In units of u |A| |B|, u = 2^-24: `eta_rms` and `eta_max` of |C - R|, `bias`, the mean of C - R,
    and `shrinkage`, its mean towards zero; with standard errors.
    """
    columns = ["kind", "kernel", "series", "params", "n", "k", "distribution", "elements",
               "eta_rms", "eta_rms_se", "eta_max", "bias", "bias_se",
               "shrinkage", "shrinkage_se"]  # fmt: skip
    rows = results.accuracy
    rows = rows[rows["distribution"].notna() & rows["status"].isin(RANKED)]
    if rows.empty:
        return pd.DataFrame(columns=columns)
    place = {name: at for at, name in enumerate(results.order())}
    known = {name: at for at, name in enumerate(DISTRIBUTIONS)}
    rows = rows.assign(
        kind=rows["kernel"].map(results.kind),
        series=rows["kernel"].map(results.title),
        _kernel=rows["kernel"].map(place),
        _distribution=rows["distribution"].map(known),
    ).sort_values(["n", "_kernel", "_distribution", "k"], kind="stable")
    return rows[columns].reset_index(drop=True)


def errors_figure(table: pd.DataFrame, look: Look) -> Figure:
    """A column of panels a distribution; rms and largest eta, and bias, against K.

    Columns as `errors_table` gives them, of one M = N. The rungs of the FP32 units, which mostly
    coincide, are a band from the least to the most; every other kernel is a line.
    """
    if table.empty:
        return message_figure(look, "No kernel has errors by the distribution of its inputs.")
    lines = table[table["kind"] != "rung"]
    look = _with_markers(look, dict.fromkeys(lines.loc[lines["kind"] == "tf32", "series"]))
    handles: list[Artist] = [*legend_handles(look, dict.fromkeys(lines["series"]))]
    if len(lines) < len(table):
        handles.append(Patch(facecolor=GRID, edgecolor=MUTED, linewidth=0.5, label=_BAND))
    shown = [name for name in DISTRIBUTIONS if name in set(table["distribution"])]
    figure = new_figure(look, 4.6, handles)
    panels = figure.subplots(len(_ERRORS), len(shown), sharex=True, sharey="row", squeeze=False)
    for line, (column, title) in enumerate(_ERRORS.items()):
        for place, name in enumerate(shown):
            axes = panels[line][place]
            _draw_errors(axes, table[table["distribution"] == name], column, look)
            axes.label_outer()
            if line == 0:
                axes.set_title(DISTRIBUTIONS[name])
        _error_axis(panels[line][0], table[column], column)
        panels[line][0].set_ylabel(title)
    for axes in panels[-1]:
        _depth_axis(axes, sorted(set(table["k"])), look)
    return figure


def _with_markers(look: Look, series: Iterable[str]) -> Look:
    """A look in which series that share one elsewhere differ by their markers."""
    styles = dict(look.styles)
    for name, marker in zip(series, itertools.cycle("vX>d"), strict=False):
        styles[name] = replace(styles[name], marker=marker)
    return replace(look, styles=styles)


def _draw_errors(axes: Axes, rows: pd.DataFrame, column: str, look: Look) -> None:
    rungs = rows[rows["kind"] == "rung"].groupby("k")[column]
    if len(rungs):
        ends = rungs.agg(["min", "max"]).sort_index()
        axes.fill_between(
            ends.index, ends["min"], ends["max"], facecolor=GRID, edgecolor=MUTED, linewidth=0.5,
            zorder=1.5,
        )  # fmt: skip
    for name, own in rows[rows["kind"] != "rung"].groupby("series", sort=False):
        style, reference = look.styles[str(name)], own["kind"].iloc[0] == "reference"
        axes.plot(
            own["k"], own[column], color=style.colour, marker=style.marker,
            linewidth=1.9 if reference else 1.1, linestyle=(0, style.dash) if style.dash else "-",
            markeredgecolor="white", markeredgewidth=0.3, markersize=4,
            zorder=3 if reference else 2.5,
        )  # fmt: skip
        if column == "bias":  # two standard errors either way
            axes.vlines(
                own["k"], own["bias"] - 2 * own["bias_se"], own["bias"] + 2 * own["bias_se"],
                color=style.colour, linewidth=0.6,
            )  # fmt: skip
    if column == "bias":
        axes.axhline(0, color=INK, linewidth=0.6, zorder=1)


def _error_axis(axes: Axes, values: pd.Series, column: str) -> None:
    if column == "bias":
        axes.set_yscale("symlog", linthresh=LINEAR_BIAS, linscale=0.6)
        axes.yaxis.set_major_locator(
            SymmetricalLogLocator(base=10, linthresh=LINEAR_BIAS, subs=(1.0,))
        )
    else:
        positive = values[values > 0]
        if positive.empty:  # as exact as it gets
            return
        axes.set_yscale("log")
        low, high = float(positive.min()), float(positive.max())
        axes.set_ylim(low / 1.5, high * 1.7)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 100 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}".replace("-", "\u2212"))
    )
    axes.yaxis.set_minor_locator(NullLocator())


def _depth_axis(axes: Axes, depths: list[int], look: Look) -> None:
    axes.set_xscale("log", base=2)
    every = int(np.ceil(len(depths) / (2 if look.narrow else 5)))
    axes.xaxis.set_major_locator(FixedLocator(depths[::every]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(depths[0] / 1.4, depths[-1] * 1.4)
    axes.set_xlabel("K")
    axes.grid(axis="x", visible=False)
