"""The ladder at one size: a bar a rung."""

from __future__ import annotations

import textwrap
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import stats
from ..manifest import Family
from .looks import GRID, INK, Look, message_figure, new_figure, short
from .results import (
    FP32_LADDER,
    SERIES_COLUMNS,
    Kind,
    Results,
    common_size,
    ladder_rows,
    params_label,
    speed_up,
)

LADDERS: dict[Family, tuple[Kind, ...]] = {"fp32": FP32_LADDER, "tensor": ("tensor",)}
"""What each family's ladder ranks: the FP32 units' beside cuBLAS, the tensor cores' alone."""


def ladder_table(
    results: Results, size: int | None = None, family: Family = "fp32"
) -> pd.DataFrame:
    """Each rung's best parameter set, and the reference, at one square size; families never mixed.

    Ratios are speeds relative to the reference (`vs_reference`) and to the rung before
    (`vs_previous`), each with its 95 % bootstrap interval and verdict; null without samples.
    """
    kinds = LADDERS[family]
    size = common_size(results, kinds=kinds) if size is None else size
    rows = ladder_rows(results, size, kinds)
    reference = next((row for _, row in rows.iterrows() if row["kind"] == "reference"), None)
    previous: pd.Series | None = None
    ratios = []
    for _, row in rows.iterrows():
        is_rung = row["kind"] != "reference"
        ratios.append(
            {
                **_ratio_columns(results, "reference", reference if is_rung else None, row),
                **_ratio_columns(results, "previous", previous if is_rung else None, row),
            }
        )
        previous = row if is_rung else previous
    names = [
        f"{part}_{other}{end}"
        for other in ("reference", "previous")
        for part, end in (("vs", ""), ("vs", "_low"), ("vs", "_high"), ("verdict", ""))
    ]
    extra = pd.DataFrame(ratios, columns=names, index=rows.index)
    keep = [*SERIES_COLUMNS, "pct_peak_max_clock", "pct_peak_measured_clock", "status", "run_id"]
    return pd.concat([rows[keep], extra], axis=1)


def _ratio_columns(
    results: Results, other: str, baseline: pd.Series | None, row: pd.Series
) -> dict[str, Any]:
    if baseline is None:
        return {}
    columns: dict[str, Any] = {f"vs_{other}": baseline["time_median_ns"] / row["time_median_ns"]}
    interval = speed_up(results, baseline, row)
    if interval is not None:
        columns[f"vs_{other}_low"] = interval.low
        columns[f"vs_{other}_high"] = interval.high
        columns[f"verdict_{other}"] = stats.verdict(interval)
    return columns


def ladder(table: pd.DataFrame, look: Look) -> Figure:
    """One bar a rung, TFLOPS of its best parameter set; columns as `ladder_table` gives them."""
    if table.empty:
        return message_figure(look, "No square size has a time that may be drawn.")
    names = [_rung_label(row, look) for _, row in table.iterrows()]
    figure = new_figure(look, 0.62 + (0.3 if look.narrow else 0.235) * len(table))
    axes = figure.subplots()
    palette = [look.styles[name].colour for name in table["series"]]
    positions = [str(index) for index in range(len(names))]  # two shortened names may be equal
    sns.barplot(
        x=table["tflops"].to_numpy(),
        y=positions,
        hue=positions,
        palette=palette,
        legend=False,
        errorbar=None,
        width=0.62,
        saturation=1,
        ax=axes,
    )
    for index, (_, row) in enumerate(table.iterrows()):
        if row["kind"] == "reference":
            axes.patches[index].set(facecolor=GRID, edgecolor=INK, hatch="////", linewidth=0.6)
        if pd.notna(row["tflops_ci_low"]) and pd.notna(row["tflops_ci_high"]):
            axes.hlines(
                index,
                row["tflops_ci_low"],
                row["tflops_ci_high"],
                color=INK,
                linewidth=1.4,
                zorder=4,
            )
        share = "" if pd.isna(row["vs_reference"]) else f"   ({_percent(row['vs_reference'])})"
        axes.annotate(
            f"{short(row['tflops'])}{share}",
            xy=(row["tflops"], index),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    reference = table[table["kind"] == "reference"]
    if len(reference):
        axes.axvline(
            reference["tflops"].iloc[0], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1
        )
    longest = max(len(line) for name in names for line in name.splitlines())
    axes_in = max(1.1, look.width_in - 0.057 * longest - 0.15)  # about, before the layout
    axes.set_xlim(0, float(table["tflops"].max()) / (1 - 0.78 / axes_in))
    share = " (percent of cuBLAS FP32)" if len(reference) else ""
    axes.set_xlabel(f"TFLOPS at N = {int(table['n'].iloc[0])}{share}")
    if look.narrow:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.label.set_horizontalalignment("right")
        axes.xaxis.label.set_x(1.0)
    axes.set_ylabel("")
    axes.set_yticks(range(len(names)), names)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _rung_label(row: pd.Series, look: Look) -> str:
    """Series and parameters; on two lines at most in a single column."""
    parts = [str(row["series"]), params_label(row["params"], among=[])]
    label = ", ".join(part for part in parts if part)
    if not look.narrow:
        return label
    return "\n".join(textwrap.wrap(label, 26, max_lines=2, placeholder="\u2026"))


def _percent(ratio: float) -> str:
    value = 100 * ratio
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %"
