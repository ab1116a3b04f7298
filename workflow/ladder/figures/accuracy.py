"""Error of the results by the length of their sums."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..correctness import ETA_MAX, ETA_RMS
from .looks import INK, Look, legend_handles, message_figure, new_figure, size_axis
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
