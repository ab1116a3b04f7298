"""Throughput against arithmetic intensity, and what bounds it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ..emulator.result import GLOBAL_LOAD_SECTORS, GLOBAL_STORE_SECTORS
from ..expressions import ExpressionError, evaluate
from ..hardware import DRAM_READ
from ..manifest import Kernel
from ..traffic import SECTOR_BYTES
from .counts import counted_points, counted_size
from .looks import INK, Look, SeriesStyle, legend_handles, message_figure, new_figure
from .results import FP32_LADDER, Results, best, common_size, squares, with_series

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
    once, 4 (MK + KN + MN) bytes. Roofs: FP32 peak at the maximum clock and the datasheet's DRAM
    bandwidth, which meet at `ridge`; and, `measured`, those of the GPU's own ceilings.
    """
    size = common_size(results, preferred=4096) if size is None else size
    rows = squares(results.ranked)
    at_size = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    records: list[dict[str, Any]] = []
    for _, row in (with_series(results, best(at_size)) if len(at_size) else at_size).iterrows():
        if row["kind"] not in FP32_LADDER:
            continue
        shared = {name: row[name] for name in _ROOFLINE_SHARED}
        requested = _requested_bytes(results.kernels.get(row["kernel"]), row)
        if requested:
            intensity = row["flop"] / requested
            records.append({**shared, "traffic": "requested", "flop_per_byte": intensity})
        intensity = row["flop"] / row["bytes_min"]
        records.append({**shared, "traffic": "compulsory", "flop_per_byte": intensity})
    if records:
        records += _roofs(results, ("dram",))
    columns = [*_ROOFLINE_SHARED, "traffic", "flop_per_byte", "memory_gb_s", "measured"]
    return pd.DataFrame(records, columns=columns)


LEVELS = {"l1": "L1", "shared": "shared memory", "l2": "L2", "dram": "DRAM"}
_MEASURED_BANDWIDTHS = {"l1": "l1", "shared": "shared", "l2": "l2", "dram": "copy"}
"""The ceiling of each level."""


def _roofs(results: Results, levels: Sequence[str]) -> list[dict[str, Any]]:
    """Roofs and ridge: what was measured on this GPU, and what its datasheet says."""
    roofs: list[dict[str, Any]] = []
    peak, sheet = results.peak_tflops, results.sheet
    if peak is not None:
        roofs.append({"series": "FP32 peak at maximum clock", "tflops": peak, "measured": False})
    if "fma" in results.ceilings:
        value = results.ceilings["fma"]["value"]
        roofs.append({"series": "FP32 multiply-adds", "tflops": value, "measured": True})
    for level in levels:
        ceiling = results.ceilings.get(_MEASURED_BANDWIDTHS[level])
        if ceiling:
            name = f"{LEVELS[level]}{', copy' if level == 'dram' else ''}"
            roofs.append({"series": name, "memory_gb_s": ceiling["value"], "measured": True})
    if sheet is not None and peak is not None:
        bandwidth = sheet.memory_gb_s
        roofs.append({"series": "DRAM", "memory_gb_s": bandwidth, "measured": False})
    rows: list[dict[str, Any]] = [{"kind": "roof", **roof} for roof in roofs]
    if sheet is not None and peak is not None:
        ridge = peak * 1e3 / sheet.memory_gb_s
        rows.append({"kind": "ridge", "series": "ridge", "tflops": peak, "flop_per_byte": ridge,
                     "measured": False})  # fmt: skip
    return rows


_HIERARCHY_COLUMNS = [
    *_ROOFLINE_SHARED, "counted_by", "level", "flop_per_byte", "memory_gb_s", "measured"
]  # fmt: skip


def hierarchical_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """Each kernel's best point by its intensity at every level of the memory that was counted.

    Bytes: L1, 32 for each sector that a global access touches; shared memory, 128 for each
    wavefront; L2, what the SMs and L2 exchange; DRAM, what it reads and writes. Flop are 2MNK. The
    roofs are the measured bandwidths of these levels, DRAM's a copy (hierarchical roofline: Yang,
    Kurth & Williams, Concurrency Computat. Pract. Exper. 32(20), 2020). Empty where no ceiling was
    measured: there is then no roof to be under.
    """
    if not results.ceilings:
        return pd.DataFrame(columns=_HIERARCHY_COLUMNS)
    size = counted_size(results) if size is None else size
    records: list[dict[str, Any]] = []
    for item in counted_points(results, size):
        moved = {
            "l1": _sector_bytes(item.counts),
            "shared": None if item.demand.wavefronts is None else 128 * item.demand.wavefronts,
            "l2": item.demand.l2_bytes,
            "dram": None if DRAM_READ not in item.counts else item.demand.dram_bytes,
        }
        shared = {name: item.row[name] for name in _ROOFLINE_SHARED}
        for level, bytes_ in moved.items():
            if bytes_:
                place = {"level": level, "flop_per_byte": item.row["flop"] / bytes_}
                records.append({**shared, "counted_by": item.source, **place})
    if records:
        records += _roofs(results, tuple(LEVELS))
    return pd.DataFrame(records, columns=_HIERARCHY_COLUMNS)


def _sector_bytes(counts: Mapping[str, float]) -> float | None:
    sectors = [counts.get(name) for name in (GLOBAL_LOAD_SECTORS, GLOBAL_STORE_SECTORS)]
    known = [value for value in sectors if value is not None]
    return SECTOR_BYTES * sum(known) if known else None


def projection_table(results: Results) -> pd.DataFrame:
    """What the datasheet of another GPU allows each kernel: a bound, and no measurement.

    Intensities are those of `roofline_table`: they belong to kernel and size, not to a GPU.
    `bound_tflops` is the lower of that GPU's FP32 peak, to two decimals as vendors print it, and
    its DRAM bandwidth times the intensity. Only the compulsory intensity bounds a kernel for sure,
    since caches may serve what is requested beyond it.
    """
    sheet = results.projected
    records: list[dict[str, Any]] = []
    if sheet is not None:
        peak, bandwidth = round(sheet.fp32_peak_tflops, 2), sheet.memory_gb_s
        rows = roofline_table(results)
        for _, row in rows[rows["traffic"].notna()].iterrows():
            bound = min(peak, row["flop_per_byte"] * bandwidth / 1e3)
            kept = {
                name: row[name] for name in ("kind", "kernel", "series", "params", "n", "traffic")
            }
            records.append({**kept, "flop_per_byte": row["flop_per_byte"], "bound_tflops": bound})
        if records:
            records += [
                {"kind": "roof", "series": f"FP32 peak at {sheet.clock_mhz:g} MHz",
                 "bound_tflops": peak},
                {"kind": "roof", "series": "DRAM", "memory_gb_s": bandwidth},
                {"kind": "ridge", "series": "machine balance", "bound_tflops": peak,
                 "flop_per_byte": peak * 1e3 / bandwidth},
            ]  # fmt: skip
    columns = ["kind", "kernel", "series", "params", "n", "traffic", "flop_per_byte"]
    return pd.DataFrame(records, columns=[*columns, "bound_tflops", "memory_gb_s"])


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
    reuse that registers, shared memory and caches have to provide. Measured roofs are solid, those
    of the datasheet dashed.
    """
    rows = table[table["traffic"].notna()]
    if rows.empty:
        return message_figure(look, "No kernel has a time and a traffic formula at one size.")
    axes, figure = _plane(table, rows, "tflops", look)
    for name, own in rows.groupby("series", sort=False):
        own = own.sort_values("flop_per_byte")
        style = look.styles[str(name)]
        axes.plot(
            own["flop_per_byte"],
            own["tflops"],
            color=style.colour,
            linewidth=0.7,
            alpha=0.6,
            zorder=2,
        )
        for _, row in own.iterrows():
            _marker(axes, row, "tflops", style, filled=row["traffic"] == "requested")
    axes.set_xlabel(
        "Arithmetic intensity, flop/byte   (filled: requested, hollow: compulsory)"
        if not look.narrow
        else "flop/byte  (filled: requested, hollow: compulsory)"
    )
    axes.set_ylabel(f"TFLOPS at N = {int(rows['n'].iloc[0])}")
    return figure


def hierarchical_roofline(table: pd.DataFrame, look: Look) -> Figure:
    """A panel a level: throughput against intensity there, under that level's roof.

    Columns as `hierarchical_table` gives them.
    """
    rows = table[table["level"].notna()]
    if rows.empty:
        return message_figure(
            look, "No kernel has a time and counts of its traffic under measured roofs."
        )
    levels = [level for level in LEVELS if (rows["level"] == level).any()]
    across = 1 if look.narrow else min(len(levels), 2)
    down = math.ceil(len(levels) / across)
    series = list(dict.fromkeys(rows["series"]))
    handles = legend_handles(look, series, line=False)
    figure = new_figure(look, (2.0 if look.narrow else 2.3) * down + 0.2, handles)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
    for axes, level in zip(panels, levels, strict=False):
        own = rows[rows["level"] == level]
        bandwidths = table[table["memory_gb_s"].notna()]
        wanted = bandwidths["series"].str.split(",").str[0] == LEVELS[level]
        roofs = pd.concat([table[(table["kind"] == "roof") & table["tflops"].notna()],
                           bandwidths[wanted]])  # fmt: skip
        _frame(axes, roofs, own, rows["tflops"], "tflops", look)
        for _, row in own.iterrows():
            _marker(axes, row, "tflops", look.styles[row["series"]], filled=True)
        axes.set_title(LEVELS[level][0].upper() + LEVELS[level][1:])
        axes.set_xlabel("flop/byte")
    for axes in panels[len(levels) :]:
        axes.set_visible(False)
    for axes in panels[::across]:
        axes.set_ylabel(f"TFLOPS at N = {int(rows['n'].iloc[0])}")
    return figure


def projection(table: pd.DataFrame, look: Look) -> Figure:
    """The bounds of another GPU's datasheet; columns as `projection_table` gives them."""
    rows = table[table["traffic"].notna()]
    if rows.empty:
        return message_figure(look, "No kernel has a traffic formula at a size that was timed.")
    look = replace(look, mark=projection_mark(look))
    axes, figure = _plane(table.assign(measured=False), rows, "bound_tflops", look)
    for _, row in rows.iterrows():
        style = look.styles[row["series"]]
        _marker(axes, row, "bound_tflops", style, filled=row["traffic"] == "requested")
    axes.set_xlabel(
        "Arithmetic intensity, flop/byte   (filled: requested, hollow: compulsory)"
        if not look.narrow
        else "flop/byte  (filled: requested, hollow: compulsory)"
    )
    axes.set_ylabel("TFLOPS that the datasheet allows")
    return figure


def projection_mark(look: Look) -> str:
    """The mark of a figure in which nothing was measured, and whose kernels were chosen how."""
    first, second = "projection from a datasheet, nothing measured there", f"kernels as {look.mark}"
    return f"{first};{chr(10) if look.narrow else ' '}{second}"


def _plane(table: pd.DataFrame, rows: pd.DataFrame, height: str, look: Look) -> tuple[Axes, Figure]:
    """A figure with one logarithmic plane, its roofs and a legend of the rows' series."""
    handles = legend_handles(look, list(dict.fromkeys(rows["series"])), line=False)
    figure = new_figure(look, 2.9 if look.narrow else 3.3, handles)
    axes = figure.subplots()
    _frame(axes, table[table["kind"] == "roof"], rows, rows[height], height, look)
    return axes, figure


def _frame(
    axes: Axes,
    roofs: pd.DataFrame,
    rows: pd.DataFrame,
    heights: pd.Series,
    height: str,
    look: Look,
) -> None:
    """Logarithmic axes around the rows, with the roofs over them."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    peaks, bandwidths = roofs.dropna(subset=[height]), roofs.dropna(subset=["memory_gb_s"])
    low = min(0.125, float(rows["flop_per_byte"].min()) / 2)
    high = float(rows["flop_per_byte"].max()) * (3 if look.narrow else 2)
    bottom = float(heights.min())
    if len(bandwidths):
        bottom = min(bottom, low * 2 * float(bandwidths["memory_gb_s"].min()) / 1e3)
        if len(peaks):  # the ridge belongs into the picture
            ridge = float(peaks[height].max()) * 1e3 / float(bandwidths["memory_gb_s"].min())
            high = max(high, 3 * ridge)
    top = max([float(heights.max()), *peaks[height]])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / 1.6, top * 2.1)
    compact = look.narrow or len(axes.figure.axes) > 1
    _draw_roofs(axes, peaks, bandwidths, height, (low, high), compact)
    for axis, (start, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        wide = end / start > 300
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def _marker(axes: Axes, row: pd.Series, height: str, style: SeriesStyle, *, filled: bool) -> None:
    axes.plot(
        row["flop_per_byte"],
        row[height],
        marker=style.marker,
        markersize=5.6 if filled else 4.6,
        markerfacecolor=style.colour if filled else "none",
        markeredgewidth=0.5 if filled else 1.0,
        markeredgecolor="white" if filled else style.colour,
        linestyle="none",
        zorder=4,
    )


def _draw_roofs(
    axes: Axes,
    peaks: pd.DataFrame,
    bandwidths: pd.DataFrame,
    height: str,
    span: tuple[float, float],
    compact: bool,
) -> None:
    """Measured roofs solid, the datasheet's dashed; of two that nearly meet each has its side.

    Args:
        span: from and to which intensity.
        compact: whether there is little room for words.
    """
    low, high = span
    fastest = float(bandwidths["memory_gb_s"].max()) if len(bandwidths) else None
    for _, roof in peaks.iterrows():
        peak, measured = float(roof[height]), bool(roof["measured"])
        left = peak * 1e3 / fastest if fastest else low
        axes.plot([left, high], [peak, peak], color=INK, zorder=1, **_stroke(measured))
    if peaks.empty:
        return
    # Above all roofs, for below them are the kernels.
    summit = float(peaks[height].max())
    axes.annotate(
        _peaks_in_short(peaks, height)
        if compact or len(peaks) > 1
        else f"{peaks['series'].iloc[0]}: {summit:.1f} TFLOPS",
        xy=(high, summit),
        xytext=(-1, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=6.5,
    )
    both = bandwidths["measured"].nunique() > 1
    for _, roof in bandwidths.iterrows():
        bandwidth, measured = float(roof["memory_gb_s"]), bool(roof["measured"])
        same_kind = peaks[peaks["measured"] == measured]
        top = float((same_kind if len(same_kind) else peaks)[height].max())
        ridge = top * 1e3 / bandwidth
        axes.plot([low, ridge], [low * bandwidth / 1e3, top], color=INK, zorder=1,
                  **_stroke(measured))  # fmt: skip
        if not both or measured:
            axes.plot([ridge], [top], marker="|", markersize=7, color=INK, zorder=1)
        if (not both or measured) and len(axes.figure.axes) == 1:
            # At the foot, where neither roofs nor kernels are.
            foot = axes.get_ylim()[0]
            axes.plot(
                [ridge, ridge], [foot, top], color=INK, linewidth=0.5, linestyle=":", zorder=1
            )
            axes.annotate(
                f"ridge {ridge:.5g}",
                xy=(ridge, foot),
                xytext=(3, 3),
                textcoords="offset points",
                ha="left",
                va="bottom",
                fontsize=6.5,
            )
        # Beside the roof, along a line parallel to it: below what was measured, above the rest.
        aside = 1.18 if measured or not both else 1 / 1.22
        # Small panels: near the foot, where the kernels leave room.
        x = low * (ridge / low) ** (0.3 if compact else 0.5) * aside
        y = x * bandwidth / 1e3 / aside**2
        kind = "measured" if measured else "datasheet"
        axes.text(
            x,
            y,
            f"{roof['series']} {bandwidth / 1e3:.3g} TB/s{'' if compact else f' ({kind})'}",
            rotation=math.degrees(math.atan2(y, x)),
            rotation_mode="anchor",
            transform_rotates_text=True,
            ha="center",
            va="center",
            fontsize=6.5,
        )


def _peaks_in_short(peaks: pd.DataFrame, height: str) -> str:
    values = [
        f"{row[height]:.1f}{' measured' if row['measured'] else ' peak'}"
        for _, row in peaks.iterrows()
    ]
    return f"FP32 TFLOPS: {', '.join(values)}"


def _stroke(measured: bool) -> dict[str, Any]:
    return {"linewidth": 1.0, "linestyle": "-" if measured else (0, (4, 2))}
