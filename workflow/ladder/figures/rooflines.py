"""Throughput against arithmetic intensity, and what bounds it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..expressions import ExpressionError, evaluate
from ..manifest import Kernel
from .looks import INK, Look, legend_handles, message_figure, new_figure
from .results import Results, best, common_size, squares, with_series

_ROOFLINE_SHARED = [
    "kind",
    "kernel",
    "series",
    "params",
    "n",
    "samples",
    "tflops",
    "tflops_ci_low",
    "tflops_ci_high",
]
"""What the requested and the compulsory point of a kernel have in common."""


def roofline_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """Each kernel's best point at one size by arithmetic intensity, and the roofs.

    Intensity is flop per byte: `requested` counts the bytes that threads and the copy engine ask
    for (the manifest's closed forms of ``requested_load_bytes``, ``tma_load_bytes`` and
    ``requested_store_bytes``), `compulsory` every matrix
    once, 4 (MK + KN + MN) bytes. Roofs: FP32 peak at the maximum clock, and the datasheet's DRAM
    bandwidth; `ridge` is where they meet.
    """
    size = common_size(results, preferred=4096) if size is None else size
    rows = squares(results.ranked)
    at_size = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    records: list[dict[str, Any]] = []
    for _, row in (with_series(results, best(at_size)) if len(at_size) else at_size).iterrows():
        if row["kind"] == "tf32":
            continue
        shared = {name: row[name] for name in _ROOFLINE_SHARED}
        requested = _requested_bytes(results.kernels.get(row["kernel"]), row)
        if requested:
            intensity = row["flop"] / requested
            records.append({**shared, "traffic": "requested", "flop_per_byte": intensity})
        intensity = row["flop"] / row["bytes_min"]
        records.append({**shared, "traffic": "compulsory", "flop_per_byte": intensity})
    peak, sheet = results.peak_tflops, results.sheet
    if records and peak is not None:
        records.append({"kind": "roof", "series": "FP32 peak at maximum clock", "tflops": peak})
        if sheet is not None:
            ridge = peak * 1e3 / sheet.memory_gb_s
            records.append(
                {
                    "kind": "roof",
                    "series": "DRAM, datasheet",
                    "n": None,
                    "memory_gb_s": sheet.memory_gb_s,
                }
            )
            records.append(
                {"kind": "ridge", "series": "ridge", "tflops": peak, "flop_per_byte": ridge}
            )
    columns = [*_ROOFLINE_SHARED, "traffic", "flop_per_byte", "memory_gb_s"]
    return pd.DataFrame(records, columns=columns)


def _requested_bytes(kernel: Kernel | None, row: pd.Series) -> float | None:
    """Bytes that a launch asks for, loads, copies of TMA and stores; None if not stated."""
    theory = kernel.manifest.theory if kernel else {}
    if "requested_load_bytes" not in theory:
        return None
    names = {**json.loads(row["params"] or "{}"), "M": row["m"], "N": row["n"], "K": row["k"]}
    names = {name: int(value) for name, value in names.items()}
    try:
        parts = [
            evaluate(theory[metric], names)
            for metric in ("requested_load_bytes", "tma_load_bytes", "requested_store_bytes")
            if metric in theory
        ]
    except ExpressionError:
        return None
    return float(sum(parts)) or None


def roofline(table: pd.DataFrame, look: Look) -> Figure:
    """Throughput against arithmetic intensity, both logarithmic; columns as `roofline_table`.

    Filled: bytes that threads request; hollow: compulsory bytes. The line between the two is the
    reuse that registers, shared memory and caches have to provide.
    """
    rows = table[table["traffic"].notna()]
    if rows.empty:
        return message_figure(look, "No kernel has a time and a traffic formula at one size.")
    series = list(dict.fromkeys(rows["series"]))
    figure = new_figure(look, 2.9 if look.narrow else 3.3, legend_handles(look, series, line=False))
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    roofs = table[table["kind"] == "roof"]
    peak = roofs["tflops"].dropna()
    bandwidth = roofs["memory_gb_s"].dropna()
    low = min(0.125, float(rows["flop_per_byte"].min()) / 2)
    high = float(rows["flop_per_byte"].max()) * (3 if look.narrow else 2)
    bottom = float(rows["tflops"].min())
    if len(bandwidth):
        bottom = min(bottom, low * 2 * float(bandwidth.iloc[0]) / 1e3)
    top = max([float(rows["tflops"].max()), *peak.tolist()])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / 1.6, top * 2.1)
    _draw_roofs(axes, peak.tolist(), bandwidth.tolist(), (low, high))
    for name in series:
        own = rows[rows["series"] == name].sort_values("flop_per_byte")
        style = look.styles[name]
        axes.plot(
            own["flop_per_byte"],
            own["tflops"],
            color=style.colour,
            linewidth=0.7,
            alpha=0.6,
            zorder=2,
        )
    palette = {name: look.styles[name].colour for name in series}
    markers = {name: look.styles[name].marker for name in series}
    requested = rows[rows["traffic"] == "requested"]
    if len(requested):
        sns.scatterplot(
            data=requested,
            x="flop_per_byte",
            y="tflops",
            hue="series",
            style="series",
            palette=palette,
            markers=markers,
            s=34,
            legend=False,
            ax=axes,
            zorder=4,
            edgecolor="white",
            linewidth=0.5,
        )
    for _, row in rows[rows["traffic"] == "compulsory"].iterrows():
        axes.plot(
            row["flop_per_byte"],
            row["tflops"],
            marker=markers[row["series"]],
            markersize=4.6,
            markerfacecolor="none",
            markeredgewidth=1.0,
            markeredgecolor=palette[row["series"]],
            linestyle="none",
            zorder=4,
        )
    axes.set_xlabel(
        "Arithmetic intensity, flop/byte   (filled: requested, hollow: compulsory)"
        if not look.narrow
        else "flop/byte  (filled: requested, hollow: compulsory)"
    )
    axes.set_ylabel(f"TFLOPS at N = {int(rows['n'].iloc[0])}")
    for axis, (start, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        wide = end / start > 300
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    return figure


def _draw_roofs(
    axes: Axes, peaks: Sequence[float], bandwidths: Sequence[float], span: tuple[float, float]
) -> None:
    low, high = span
    for peak in peaks:
        left = peak * 1e3 / bandwidths[0] if bandwidths else low
        axes.plot([left, high], [peak, peak], color=INK, linewidth=1.0, zorder=1)
        axes.annotate(
            f"FP32 peak at maximum clock: {peak:.1f} TFLOPS",
            xy=(high, peak),
            xytext=(-1, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=6.5,
        )
        for bandwidth in bandwidths:
            ridge = peak * 1e3 / bandwidth
            axes.plot(
                [low, ridge],
                [low * bandwidth / 1e3, peak],
                color=INK,
                linewidth=1.0,
                linestyle=(0, (4, 2)),
                zorder=1,
            )
            axes.plot([ridge], [peak], marker="|", markersize=7, color=INK, zorder=1)
            axes.annotate(
                f"ridge {ridge:.1f}",
                xy=(ridge, peak),
                xytext=(5, -4),
                textcoords="offset points",
                ha="left",
                va="top",
                fontsize=6.5,
            )
            # Just below the roof, along a line parallel to it.
            x = math.sqrt(low * ridge) * 1.18
            y = x * bandwidth / 1e3 / 1.18**2
            axes.text(
                x,
                y,
                f"DRAM {bandwidth / 1e3:g} TB/s (datasheet)",
                rotation=math.degrees(math.atan2(y, x)),
                rotation_mode="anchor",
                transform_rotates_text=True,
                ha="center",
                va="center",
                fontsize=6.5,
            )
