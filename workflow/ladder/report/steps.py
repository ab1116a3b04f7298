"""Steps of the ladder: what each moved, what limits now, and what this GPU can do at most."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from .. import figures, model
from ..figures import Results
from .grid import Cell, Grid, sortable
from .words import (
    amount,
    between,
    day,
    json_object,
    listed,
    minus,
    number,
    percent,
    scaled,
    signed_percent,
    times,
)

_MODEL_PCT = 100 * model.TOLERANCE
_LEAST_SHARE = 0.05
"""A resource with a smaller part in a step is not named."""
_COUNTERS_OF: Mapping[model.Resource, tuple[tuple[str, str], ...]] = {
    "instructions": (("instructions", "warp instructions"),),
    "l1": (("wavefronts", "wavefronts of shared memory"), ("lines", "lines of global accesses")),
    "l2": (("l2_bytes", "bytes of L2"),),
    "dram": (("dram_bytes", "bytes of DRAM"),),
}
"""The counters behind each resource: column of `figures.steps_table`, and its name."""


def steps_view(results: Results) -> dict[str, Any]:
    """The section on steps: how far the model holds, a table, and a sentence for each step."""
    table = figures.steps_table(results)
    return {
        "intro": _model_reach(results, table),
        "grid": _steps_grid(table),
        "sentences": step_sentences(table),
    }


def _model_reach(results: Results, table: pd.DataFrame) -> str:
    """Whether there is a model for this GPU, and for how many rungs it holds."""
    if table.empty:
        missing = [name for name in model.NEEDED_CEILINGS if name not in results.ceilings]
        if missing:
            return (
                "No step is explained: this result set has no measured ceilings of its GPU"
                f" ({', '.join(missing)})."
            )
        return (
            "No step is explained: no timed point has counts of its instructions and of its"
            " accesses to shared and global memory."
        )
    machine = model.machine_of(results.ceilings)
    assert machine is not None
    rungs = table[table["kind"] == "rung"]
    known = rungs.dropna(subset=["model_ns"])
    off = known[known["model_error_pct"].abs() > _MODEL_PCT]
    text = (
        f"At N = {int(table['n'].iloc[0])} the model's time is within"
        f" {percent(model.TOLERANCE, 2)} of the measured one for {len(known) - len(off)} of"
        f" {amount(len(rungs), 'rung')}."
    )
    if len(off):
        where = (f"{row['series']} ({_off(row)})" for _, row in off.iterrows())
        text += f" It fails for {listed(where)}."
    unknown = rungs[rungs["model_ns"].isna()]
    if len(unknown):
        text += f" Nobody counted what it needs for {listed(unknown['series'])}."
    return (
        f"{text} Its exponent, {number(machine.norm)}, is what the micro-benchmark shared_fma shows"
        " of overlap on this GPU; nothing is fitted to a rung."
    )


def _steps_grid(table: pd.DataFrame) -> Grid | None:
    if table.empty:
        return None
    heads = [
        "Rung",
        "Measured, ms",
        "Model, ms",
        *[f"{name[0].upper()}{name[1:]} alone" for name in figures.RESOURCE_NAMES.values()],
        "Limited by",
        "Over previous: measured",
        "model",
    ]
    rows = []
    for _, row in table.iterrows():
        known = pd.notna(row["model_ns"])
        error = row["model_error_pct"]
        off = known and abs(error) > _MODEL_PCT
        explained = row["explained"]
        rows.append(
            [
                Cell(row["series"], note=figures.params_label(row["params"], among=[])),
                Cell(number(row["time_median_ns"] / 1e6), row["time_median_ns"], True),
                Cell(
                    number(row["model_ns"] / 1e6 if known else None),
                    sortable(row["model_ns"]),
                    True,
                    _off(row) if known else "",
                    "warn" if off else "",
                ),
                *[
                    Cell(
                        percent(row[f"{name}_ns"] / row["time_median_ns"], 2),
                        sortable(row[f"{name}_ns"] / row["time_median_ns"]),
                        True,
                    )
                    for name in model.RESOURCES
                ],
                Cell(figures.LIMIT_NAMES[row["limit"]] if known else "\u2013", note=row["notes"]),
                Cell(times(row["vs_previous"]), sortable(row["vs_previous"]), True),
                Cell(
                    times(row["model_vs_previous"]),
                    sortable(row["model_vs_previous"]),
                    True,
                    "" if pd.isna(explained) else "explained" if explained else "not explained",
                    "" if pd.isna(explained) or explained else "warn",
                ),
            ]
        )
    return Grid(
        heads,
        rows,
        f"Time by the model at M = N = K = {int(table['n'].iloc[0])}, rotating buffers: the"
        " fastest parameter set of each rung. What each resource would take alone is in percent of"
        " the measured time; second lines say what is a lower bound for want of a counter.",
        [False, True, True, *[True] * len(model.RESOURCES), False, True, True],
        dense=True,
    )


def step_sentences(table: pd.DataFrame) -> list[str]:
    """For each pair of neighbours: what moved, its share of the speed-up, and the limit now."""
    rungs = [row for _, row in table[table["kind"] == "rung"].iterrows()]
    return [
        _step_words(before, row)
        for before, row in itertools.pairwise(rungs)
        if pd.notna(row["vs_previous"])
    ]


def _step_words(before: pd.Series, row: pd.Series) -> str:
    text = (
        f"From {before['series']} to {row['series']}: {times(row['vs_previous'])} as fast"
        f" by measurement, {times(row['model_vs_previous'])} by the model"
    )
    if not row["explained"]:
        off = [item for item in (before, row) if abs(item["model_error_pct"]) > _MODEL_PCT]
        errors = listed(f"that of {item['series']} by {_off(item)}" for item in off)
        where = f"; its time is off, {errors}" if off else ""
        text += f", which does not explain it{where}"
    shares = {name: row[f"share_{name}"] for name in model.RESOURCES}
    split = row["explained"] and not any(pd.isna(share) for share in shares.values())
    if split:
        named = sorted(
            (name for name, share in shares.items() if abs(share) >= _LEAST_SHARE),
            key=lambda name: -shares[name],
        )
        change = "saving" if row["model_vs_previous"] > 1 else "loss"
        parts = [
            f"{_moves(before, row, name)}: {minus(percent(shares[name], 2))} of the {change}"
            for name in named
        ]
    else:
        parts = [_moves(before, row, name, model.SAME) for name in model.RESOURCES]
        parts = [part for part in parts if part]
    moved = f"What moved: {'; '.join(parts)}" if parts else "No counter moved by 5 %"
    return f"{text}. {moved}. What limits {row['series']}: {figures.LIMIT_NAMES[row['limit']]}."


def _moves(before: pd.Series, row: pd.Series, resource: model.Resource, least: float = 0.0) -> str:
    """What became of the counters behind a resource, as in `bytes of L2 8.00 G to 1.00 G`.

    Args:
        least: a counter that changed by less, as a ratio, is left out.
    """
    moved = []
    for column, name in _COUNTERS_OF[resource]:
        first, second = before[column], row[column]
        if pd.isna(first) or pd.isna(second) or abs(second - first) <= least * first:
            continue
        change = f" ({signed_percent(second / first)})" if first else ""
        moved.append(f"{name} {scaled(first)} \u2192 {scaled(second)}{change}")
    if not moved and not least:
        return f"{figures.RESOURCE_NAMES[resource]} with equal counts, spread otherwise"
    return listed(moved)


def _off(row: pd.Series) -> str:
    """How far the model's time is from the measured one."""
    return signed_percent(1 + row["model_error_pct"] / 100)


def ceilings_grid(results: Results) -> Grid | None:
    """What this GPU can do at most, and what its hardware could."""
    if not results.ceilings:
        return None
    rows = []
    for row in results.ceilings.values():
        counts = ", ".join(
            f"{count} {name}" for name, count in json_object(row["loop_counts"]).items()
        )
        rows.append(
            [
                Cell(str(row["title"]), note=str(row["name"])),
                Cell(
                    number(row["value"], 3, row["unit"]),
                    row["value"],
                    True,
                    between(row["value_min"], row["value_max"], digits=4),
                ),
                Cell(number(row["per_sm_clock"]), row["per_sm_clock"], True),
                Cell(
                    percent(
                        row["value"] / row["hardware_limit"] if row["hardware_limit"] else None
                    ),
                    sortable(row["value"] / row["hardware_limit"])
                    if row["hardware_limit"]
                    else None,
                    True,
                ),
                Cell(number(row["sm_clock_mean_mhz"], 4), sortable(row["sm_clock_mean_mhz"]), True),
                Cell(counts or "\u2013"),
            ]
        )
    return Grid(
        [
            "Ceiling",
            "Rate",
            "flop or bytes per SM and clock",
            "of what the hardware could",
            "SM clock, MHz",
            "Timed loop",
        ],
        rows,
        f"{_ceilings_origin(results)}, by kernels of one instruction each; their machine code was"
        " checked to hold it.",
        [False, True, True, True, True, False],
    )


def _ceilings_origin(results: Results) -> str:
    """When the ceilings were measured and, where that matters, on which card."""
    row = next(iter(results.ceilings.values()))
    text = f"{str(row['source']).capitalize()} {day(row['measured_at'])}"
    if row["gpu_uuid"] not in set(results.points["gpu_uuid"]):
        text += f" on another {row['gpu_name']} than the points"
    return text
