"""The step model beside the measurement: what bounds each rung, and what each step moved."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from .. import model
from .counts import counted_points, counted_size
from .looks import INK, MUTED, Look, legend_handles, message_figure, new_figure, short
from .results import Results

RESOURCE_NAMES: dict[model.Resource, str] = {
    "instructions": "instructions",
    "l1": "L1 and shared memory",
    "l2": "L2",
    "dram": "DRAM",
}
LIMIT_NAMES: dict[model.Limit, str] = {
    "issue": "issue slots",
    "fma": "the FMA pipe",
    "l1": "the data path of L1 and shared memory",
    "l2": "L2 bandwidth",
    "dram": "DRAM bandwidth",
}
_MARKS: dict[model.Resource, str] = {"instructions": "s", "l1": "^", "l2": "D", "dram": "v"}
_COUNTERS = ("instructions", "ffma", "wavefronts", "lines", "l2_bytes", "dram_bytes")

STEP_COLUMNS = [
    "kind",
    "kernel",
    "series",
    "params",
    "n",
    "samples",
    "counted_by",
    "time_median_ns",
    "model_ns",
    "model_error_pct",
    "limit",
    "imbalance",
    *[f"{name}_ns" for name in model.RESOURCES],
    *_COUNTERS,
    "notes",
    "vs_previous",
    "model_vs_previous",
    "explained",
    *[f"share_{name}" for name in model.RESOURCES],
]


def steps_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """Each rung's best parameter set, and the reference, at one size: measured, modelled, counted.

    Times in ns, counts of one launch. `vs_previous` is the measured speed-up over the rung before
    and `model_vs_previous` the model's; `explained` says whether both times are within the model's
    tolerance and the ratios agree (`model.explains_step`); the shares are each resource's part of
    what the model saves. Empty without the ceilings that the model needs, or without counts.
    """
    size = counted_size(results) if size is None else size
    machine = model.machine_of(results.ceilings)
    records: list[dict[str, Any]] = []
    before: tuple[dict[str, Any], model.Prediction] | None = None
    for item in counted_points(results, size) if machine else []:
        row, prediction = item.row, item.prediction
        record = {name: row[name] for name in STEP_COLUMNS[:6]}
        record |= {
            "counted_by": item.source,
            "time_median_ns": row["time_median_ns"],
            "notes": "; ".join(item.demand.notes),
            **{name: getattr(item.demand, name) for name in _COUNTERS},
        }
        if prediction is not None:
            error = prediction.time_ns / row["time_median_ns"] - 1
            record |= {
                "model_ns": prediction.time_ns,
                "model_error_pct": 100 * error,
                "limit": prediction.limit,
                "imbalance": prediction.imbalance,
                **{f"{name}_ns": value for name, value in prediction.times_ns.items()},
            }
        if row["kind"] == "rung":
            if before and prediction and machine:
                record |= _step_columns(before, (record, prediction), machine)
            before = (record, prediction) if prediction else None
        records.append(record)
    if not any("model_ns" in record for record in records):
        records = []
    return pd.DataFrame(records, columns=STEP_COLUMNS)


PREDICTION_COLUMNS = [
    "kind", "kernel", "series", "params", "m", "n", "k", "samples", "counted_by",
    "time_median_ns", "model_ns", "model_error_pct", "limit",
]  # fmt: skip


def predictions_table(results: Results) -> pd.DataFrame:
    """The model's time and the measured one of every kernel's best set, wherever it was counted.

    Square sizes, rotating buffers; times in ns. `model_error_pct` is the model's time over the
    measured one less 100 %.
    """
    machine = model.machine_of(results.ceilings)
    records = []
    sizes = sorted({point.n for point in results.counted if point.m == point.n == point.k})
    for size in sizes if machine else []:
        for item in counted_points(results, size):
            if item.prediction is None:
                continue
            measured = item.row["time_median_ns"]
            records.append(
                {
                    **{name: item.row[name] for name in PREDICTION_COLUMNS[:8]},
                    "counted_by": item.source,
                    "time_median_ns": measured,
                    "model_ns": item.prediction.time_ns,
                    "model_error_pct": 100 * (item.prediction.time_ns / measured - 1),
                    "limit": item.prediction.limit,
                }
            )
    return pd.DataFrame(records, columns=PREDICTION_COLUMNS)


def predictions_figure(table: pd.DataFrame, look: Look) -> Figure:
    """Model against measurement, both logarithmic; on the diagonal they agree.

    Columns as `predictions_table` gives them.
    """
    if table.empty:
        return message_figure(
            look, "No kernel has both a time and the counts that the model needs."
        )
    series = list(dict.fromkeys(table["series"]))
    figure = new_figure(look, 3.2, legend_handles(look, series, line=False))
    axes = figure.subplots()
    low = float(table[["time_median_ns", "model_ns"]].min().min()) / 1.6e6
    high = float(table[["time_median_ns", "model_ns"]].max().max()) * 1.6e-6
    ends = [low, high]
    under, over = ([end * (1 + sign * model.TOLERANCE) for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, under, over, color=MUTED, alpha=0.16, linewidth=0, zorder=0)
    axes.plot(ends, ends, color=INK, linewidth=0.9, zorder=1)
    for name in series:
        own, style = table[table["series"] == name], look.styles[name]
        axes.plot(own["time_median_ns"] / 1e6, own["model_ns"] / 1e6, linestyle="none",
                  marker=style.marker, color=style.colour, markersize=5,
                  markeredgecolor="white", markeredgewidth=0.4, zorder=3)  # fmt: skip
    for axis, scale, limits, label in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim, "Measured time, ms"),
        (axes.yaxis, axes.set_yscale, axes.set_ylim, "Time by the model, ms"),
    ):
        scale("log")
        limits(low, high)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
        axis.set_label_text(label)
    for size, own in table.groupby("n"):
        middle = math.sqrt(own["time_median_ns"].min() * own["time_median_ns"].max()) / 1e6
        axes.annotate(
            f"N = {size}", xy=(middle, 0.02), xycoords=("data", "axes fraction"), ha="center",
            va="bottom", fontsize=6.5, color=MUTED,
        )  # fmt: skip
    return figure


def _step_columns(
    before: tuple[dict[str, Any], model.Prediction],
    after: tuple[dict[str, Any], model.Prediction],
    machine: model.Machine,
) -> dict[str, Any]:
    measured = before[0]["time_median_ns"] / after[0]["time_median_ns"]
    modelled = before[1].time_ns / after[1].time_ns
    near = all(
        model.explains(prediction.time_ns, record["time_median_ns"])
        for record, prediction in (before, after)
    )
    shares = model.step_shares(before[1], after[1], machine.norm) or {}
    return {
        "vs_previous": measured,
        "model_vs_previous": modelled,
        "explained": near and model.explains_step(modelled, measured),
        **{f"share_{name}": share for name, share in shares.items()},
    }


def steps_figure(table: pd.DataFrame, look: Look) -> Figure:
    """The model's time of each rung, and what each resource would take, in percent of the measured.

    Columns as `steps_table` gives them.
    """
    rows = table[table["model_ns"].notna()]
    if rows.empty:
        return message_figure(
            look, "No kernel has both a time and the counts that the model needs."
        )
    used = [name for name in model.RESOURCES if rows[f"{name}_ns"].notna().any()]
    colours = dict(zip(model.RESOURCES, look.palette, strict=False))
    handles = [
        Line2D([], [], linestyle="none", marker=_MARKS[name], color=colours[name],
               markersize=4.5, label=RESOURCE_NAMES[name])
        for name in used
    ]  # fmt: skip
    handles.append(Line2D([], [], linestyle="none", marker="|", color=INK, markersize=9,
                          markeredgewidth=1.6, label="model"))  # fmt: skip
    figure = new_figure(look, 0.7 + 0.235 * len(rows), handles)
    axes = figure.subplots()
    low, high = 100 * (1 - model.TOLERANCE), 100 * (1 + model.TOLERANCE)
    axes.axvspan(low, high, color=MUTED, alpha=0.14, linewidth=0, zorder=0)
    axes.axvline(100, color=INK, linewidth=0.9, zorder=1)
    positions = range(len(rows))
    for name in used:
        axes.plot(
            100 * rows[f"{name}_ns"] / rows["time_median_ns"],
            positions,
            linestyle="none",
            marker=_MARKS[name],
            color=colours[name],
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            zorder=3,
        )
    axes.plot(
        100 * rows["model_ns"] / rows["time_median_ns"],
        positions,
        linestyle="none",
        marker="|",
        color=INK,
        markersize=9,
        markeredgewidth=1.6,
        zorder=4,
    )
    labels = rows["series"].tolist()
    if not look.narrow:
        labels = [
            f"{name}, {short(time / 1e6)} ms"
            for name, time in zip(labels, rows["time_median_ns"], strict=True)
        ]
    axes.set_yticks(positions, labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    furthest = float((rows["model_ns"] / rows["time_median_ns"]).max())
    axes.set_xlim(0, max(130.0, 105.0 * furthest))
    axes.set_xlabel(f"Percent of the measured time at N = {int(rows['n'].iloc[0])}")
    axes.grid(axis="y", visible=False)
    return figure
