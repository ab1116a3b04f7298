"""Loads of global memory: what a request moves, and what of it is used."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from .. import traffic
from ..emulator.result import TMA_LOAD_SECTORS
from ..language import _
from .looks import INK, MUTED, Look, SeriesStyle, message_figure, new_figure, short
from .results import Results, params_label, params_order, samples_of

_TRAFFIC_COLUMNS = [
    "kernel",
    "series",
    "params",
    "label",
    "m",
    "n",
    "k",
    "source",
    "requests",
    "sectors",
    "sectors_per_request",
    "useful_bytes_per_sector",
    "bytes_per_flop",
    "samples",
    "tflops",
]


def traffic_table(results: Results) -> pd.DataFrame:
    """Loads of global memory at the size that most rungs were counted at.

    Every parameter set of the first rung, and of each other rung the fastest one (without times
    the one of fewest sectors). `bytes_per_flop` counts whole sectors, 32 bytes each, over 2MNK;
    `tflops` is null where the point has no valid time.
    """
    points = traffic.at_size(results.counted, traffic.common_size(results.counted))
    tflops = results.tflops()
    records = []
    for index, kernel in enumerate(results.counted_rungs()):
        if index == 0:
            chosen = sorted(
                (point for point in points if point.kernel == kernel),
                key=lambda point: params_order(point.params),
            )
        else:
            best_one = traffic.representative(kernel, points, tflops)
            chosen = [best_one] if best_one else []
        for point in chosen:
            requests, moved = traffic.requests(point), traffic.sectors(point)
            useful = traffic.useful_bytes(point.counts)
            if not requests or useful is None or point.lead is None:
                continue
            if TMA_LOAD_SECTORS in point.counts:  # a copy is no request of a warp
                continue
            records.append(
                {
                    "kernel": kernel,
                    "series": results.title(kernel),
                    "params": point.params,
                    "label": params_label(point.params, [other.params for other in chosen]),
                    "m": point.m,
                    "n": point.n,
                    "k": point.k,
                    "source": point.lead.kind,
                    "requests": requests,
                    "sectors": moved,
                    "sectors_per_request": moved / requests,
                    "useful_bytes_per_sector": useful,
                    "bytes_per_flop": traffic.SECTOR_BYTES * moved / (2 * math.prod(point.size)),
                    "samples": samples_of(results, point.key),
                    "tflops": tflops.get(point.key),
                }
            )
    return pd.DataFrame(records, columns=_TRAFFIC_COLUMNS).astype({"tflops": float})


COUNTED_BY = {
    "emulator": "counted on a CPU, exact",
    "compiled": "counted from machine code on a CPU, exact",
    "hardware": "counted by the GPU's hardware counters",
}
"""How a source counted, as every figure with its numbers says."""


def counted_mark(table: pd.DataFrame, mark: str) -> str:
    """The mark of a figure of counts: who counted, and whose the times beside them are."""
    words = _("; ").join(
        _(COUNTED_BY.get(str(kind), str(kind))) for kind in table["source"].unique()
    )
    return f"{words}; TFLOPS {mark}" if table["tflops"].notna().any() else words


def traffic_figure(table: pd.DataFrame, look: Look) -> Figure:
    """What an average load of a warp moves and uses, and what that adds up to.

    Columns as `traffic_table` gives them. A box is a sector of 32 bytes, its filled part the bytes
    that some lane asked for; beside it the sectors of the whole product and, where every row has
    one, the throughput.
    """
    if table.empty:
        return message_figure(look, "No kernel was counted: no emulation in this result set.")
    timed = bool(table["tflops"].notna().any())
    mark = counted_mark(table, look.mark)
    mark = mark.replace("; TFLOPS", ";\nTFLOPS") if look.narrow else mark
    look = replace(look, mark=mark, replayed=look.replayed and timed)
    rows: list[pd.Series | str] = []
    for name, group in table.groupby("series", sort=False):
        rows += [str(name), *(row for _, row in group.iterrows())]
    height = 0.62 + sum(0.19 if isinstance(row, str) else 0.27 for row in rows)
    figure = new_figure(look, height, _traffic_handles())
    widths = [3.4, 1.5, 1.1] if timed else [3.4, 1.7]
    panels = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    at, y = [], 0.0
    for row in rows:
        step = 0.7 if isinstance(row, str) else 1.0
        at.append(y + step / 2)
        y += step
    _draw_sectors(panels[0], rows, at, look)
    billions = table["sectors"].max() >= 1e9
    scale, unit = (1e9, "billions") if billions else (1e6, "millions")
    _draw_amounts(
        panels[1], rows, at, look, "sectors", scale, "Sectors in all," + _break(look) + unit
    )
    if timed:
        _draw_amounts(panels[2], rows, at, look, "tflops", 1.0, "TFLOPS")
    labels = [row if isinstance(row, str) else row["label"] or "\u2013" for row in rows]
    if look.narrow:
        labels = ["\n".join(textwrap.wrap(text, 14)) for text in labels]
    panels[0].set_yticks(at, labels)
    for tick, row in zip(panels[0].get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if isinstance(row, str) else "normal")
    panels[0].set_ylim(y, -0.1)
    return figure


def _break(look: Look) -> str:
    return "\n" if look.narrow else " "


def _traffic_handles() -> list[Line2D]:
    def square(fill: str, edge: str, label: str) -> Line2D:
        return Line2D(
            [],
            [],
            linestyle="none",
            marker="s",
            markersize=6,
            markerfacecolor=fill,
            markeredgecolor=edge,
            markeredgewidth=0.8,
            label=label,
        )

    return [
        square(INK, INK, "bytes that the warp uses"),
        square("none", MUTED, "rest of the 32-byte sector, moved for nothing"),
    ]


def _style(look: Look, series: str) -> SeriesStyle:
    return look.styles.get(series, SeriesStyle(MUTED, "o", ""))


def _draw_sectors(
    axes: Axes, rows: Sequence[pd.Series | str], at: Sequence[float], look: Look
) -> None:
    """Boxes as wide as a sector, filled from below by the share that is used."""
    gap = 0.16 if look.narrow else 0.07
    most = max(row["sectors_per_request"] for row in rows if not isinstance(row, str))
    for row, y in zip(rows, at, strict=True):
        if isinstance(row, str):
            continue
        colour = _style(look, row["series"]).colour
        share = row["useful_bytes_per_sector"] / traffic.SECTOR_BYTES
        left, high = row["sectors_per_request"], 0.66
        start = 0
        while left > 1e-9:
            wide = min(1.0, left) - (gap if left >= 1 else 0.0)
            bottom = y + high / 2
            for part, fill in ((share, colour), (1.0, "none")):
                axes.add_patch(
                    mpl.patches.Rectangle(
                        (start, bottom - part * high),
                        max(wide, 0.02),
                        part * high,
                        facecolor=fill,
                        edgecolor=colour if fill == "none" else "none",
                        linewidth=0.8,
                        zorder=3,
                    )
                )
            start, left = start + 1, left - 1
        axes.annotate(
            _traffic_words(row, look),
            xy=(row["sectors_per_request"], y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.2 if look.narrow else 6.8,
        ).set_in_layout(False)
    room = 0.42
    axes.set_xlim(0, most / (1 - room))
    axes.set_title("One load of a warp" + (":\n" if look.narrow else ": ") + "the sectors it moves")
    axes.set_xlabel("sectors" if look.narrow else "Sectors per request, on average")
    axes.xaxis.set_major_locator(MaxNLocator(4 if look.narrow else 8, integer=True))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _traffic_words(row: pd.Series, look: Look) -> str:
    sectors, useful = row["sectors_per_request"], row["useful_bytes_per_sector"]
    if look.narrow:
        return f"{sectors:.3g} \u00d7 {useful:.3g} B"
    return f"{sectors:.3g} \u00d7 32 B, {useful:.3g} of 32 used"


def _draw_amounts(
    axes: Axes,
    rows: Sequence[pd.Series | str],
    at: Sequence[float],
    look: Look,
    column: str,
    scale: float,
    title: str,
) -> None:
    """Bars with their values at the end."""
    values = [
        (row, y, row[column] / scale)
        for row, y in zip(rows, at, strict=True)
        if not isinstance(row, str) and pd.notna(row[column])
    ]
    top = max(value for *_, value in values)
    for row, y, value in values:
        colour = _style(look, row["series"]).colour
        axes.barh(y, value, height=0.5, color=colour, linewidth=0, zorder=3)
        axes.annotate(
            short(value),
            xy=(value, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.2 if look.narrow else 6.8,
        ).set_in_layout(False)
    axes.set_xlim(0, top * (2.2 if look.narrow else 1.45))
    axes.set_title(title)
    axes.xaxis.set_major_locator(FixedLocator([0]))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines["bottom"].set_visible(False)
