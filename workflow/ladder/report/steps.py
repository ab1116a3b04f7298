"""Steps of the ladder: what each moved, what limits now, and what this GPU can do at most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from .. import figures, model
from ..figures import Results
from ..language import N_, _, each, listed, plural, sentence
from .grid import Cell, Grid, row_key, sortable
from .words import (
    between,
    day,
    json_object,
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
    "instructions": (("instructions", N_("warp instructions")),),
    "l1": (
        ("wavefronts", N_("wavefronts of shared memory")),
        ("lines", N_("lines of global accesses")),
    ),
    "l2": (("l2_bytes", N_("bytes of L2")),),
    "dram": (("dram_bytes", N_("bytes of DRAM")),),
}
"""The counters behind each resource: column of `figures.steps_table`, and its name."""


def steps_view(results: Results, table: pd.DataFrame | None = None) -> dict[str, Any]:
    """The section on steps: how far the model holds, a table, and a sentence for each step."""
    table = figures.steps_table(results) if table is None else table
    return {
        "intro": _model_reach(results, table),
        "grid": _steps_grid(table),
        "sentences": list(step_sentences(table).values()),
    }


def _model_reach(results: Results, table: pd.DataFrame) -> str:
    """Whether there is a model for this GPU, and for how many rungs it holds."""
    if table.empty:
        missing = [name for name in model.NEEDED_CEILINGS if name not in results.ceilings]
        if missing:
            return _(
                "No step is explained: this result set has no measured ceilings of its GPU"
                " ({missing})."
            ).format(missing=", ".join(missing))
        return _(
            "No step is explained: no timed point has counts of its instructions and of its"
            " accesses to shared and global memory."
        )
    machine = model.machine_of(results.ceilings)
    assert machine is not None
    rungs = table[table["kind"] == "rung"]
    known = rungs.dropna(subset=["model_ns"])
    off = known[known["model_error_pct"].abs() > _MODEL_PCT]
    text = _(
        "At N = {n} the model's time is within {tolerance} of the measured one for {near} of"
        " {rungs}."
    ).format(
        n=int(table["n"].iloc[0]),
        tolerance=percent(model.TOLERANCE, 2),
        near=len(known) - len(off),
        rungs=plural("{count} rung", "{count} rungs", len(rungs)),
    )
    if len(off):
        where = (f"{row['series']} ({_off(row)})" for _index, row in off.iterrows())
        text += _(" It fails for {where}.").format(where=listed(where))
    unknown = rungs[rungs["model_ns"].isna()]
    if len(unknown):
        text += _(" Nobody counted what it needs for {series}.").format(
            series=listed(unknown["series"])
        )
    return text + _(
        " Its exponent, {norm}, is what the micro-benchmark shared_fma shows of"
        " overlap on this GPU; nothing is fitted to a rung."
    ).format(norm=number(machine.norm))


def _steps_grid(table: pd.DataFrame) -> Grid | None:
    if table.empty:
        return None
    heads = [
        _("Rung"),
        _("Measured, ms"),
        _("Model, ms"),
        *[
            _("{resource} alone").format(resource=name[0].upper() + name[1:])
            for name in map(_, figures.RESOURCE_NAMES.values())
        ],
        _("Limited by"),
        _("Over previous: measured"),
        "model",
    ]
    rows = []
    for _index, row in table.iterrows():
        known = pd.notna(row["model_ns"])
        error = row["model_error_pct"]
        off = known and abs(error) > _MODEL_PCT
        explained = row["explained"]
        rows.append(
            [
                Cell(
                    row["series"],
                    note=figures.params_label(row["params"], among=[]),
                    key=_key(row),
                ),
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
                Cell(
                    _(figures.LIMIT_NAMES[row["limit"]]) if known else "\u2013",
                    note=each(row["notes"]),
                ),
                Cell(times(row["vs_previous"]), sortable(row["vs_previous"]), True),
                Cell(
                    times(row["model_vs_previous"]),
                    sortable(row["model_vs_previous"]),
                    True,
                    ""
                    if pd.isna(explained)
                    else _("explained")
                    if explained
                    else _("not explained"),
                    "" if pd.isna(explained) or explained else "warn",
                ),
            ]
        )
    return Grid(
        heads,
        rows,
        _(
            "Time by the model at M = N = K = {n}, rotating buffers: the fastest parameter set"
            " of each rung. What each resource would take alone is in percent of the measured"
            " time; second lines say what is a lower bound for want of a counter."
        ).format(n=int(table["n"].iloc[0])),
        [False, True, True, *[True] * len(model.RESOURCES), False, True, True],
        dense=True,
        source="points, counters, ceilings",
    )


def step_sentences(table: pd.DataFrame) -> dict[str, str]:
    """By kernel: what moved from the rung before, its share of the speed-up, and the limit now."""
    return {
        str(row["kernel"]): _step_words(before, row)
        for before, row in _pairs(table)
        if pd.notna(row["vs_previous"])
    }


def largest_step(table: pd.DataFrame) -> tuple[str, str] | None:
    """The step that gains most, with the counters that moved most, and its row's key."""
    steps = [(before, row) for before, row in _pairs(table) if row["vs_previous"] > 1]
    if not steps:
        return None
    before, row = max(steps, key=lambda pair: float(pair[1]["vs_previous"]))
    text = _("The largest step is from {before} to {rung}: {ratio} as fast").format(
        before=before["series"], rung=row["series"], ratio=times(row["vs_previous"])
    )
    shares = {name: row[f"share_{name}"] for name in model.RESOURCES}
    known = bool(row["explained"]) and not any(pd.isna(share) for share in shares.values())
    resources = [max(shares, key=lambda name: shares[name])] if known else list(model.RESOURCES)
    moved = [
        (abs(math.log(row[column] / before[column])), column, name)
        for resource in resources
        for column, name in _COUNTERS_OF[resource]
        # Without a GPU's counters some are not known.
        if all(pd.notna(counts[column]) and counts[column] > 0 for counts in (before, row))
    ]
    if moved:
        _most, column, name = max(moved)
        text += _("; {counter} {change} ({first} \u2192 {second})").format(
            counter=_(name),
            change=signed_percent(row[column] / before[column]),
            first=scaled(before[column]),
            second=scaled(row[column]),
        )
    return sentence(text), _key(row)


def limit_of_fastest(table: pd.DataFrame) -> tuple[str, str] | None:
    """What limits the fastest rung, and its row's key; None where no model says it."""
    known = table[(table["kind"] == "rung") & table["model_ns"].notna()]
    if known.empty:
        return None
    top = known.sort_values("time_median_ns").iloc[0]
    resource = "instructions" if top["limit"] in ("issue", "fma") else top["limit"]
    share = percent(top[f"{resource}_ns"] / top["time_median_ns"], 2)
    text = _(
        "What limits {rung} now: {limit}, which alone would take {share} of the measured time."
    ).format(rung=top["series"], limit=_(figures.LIMIT_NAMES[top["limit"]]), share=share)
    return text, _key(top)


def _pairs(table: pd.DataFrame) -> Iterable[tuple[pd.Series, pd.Series]]:
    return itertools.pairwise(row for _index, row in table[table["kind"] == "rung"].iterrows())


def _key(row: pd.Series) -> str:
    return row_key("points", {**row, "m": row["n"], "k": row["n"], "cache_mode": "rotating"})


def _step_words(before: pd.Series, row: pd.Series) -> str:
    text = _(
        "From {before} to {rung}: {measured} as fast by measurement, {modelled} by the model"
    ).format(
        before=before["series"],
        rung=row["series"],
        measured=times(row["vs_previous"]),
        modelled=times(row["model_vs_previous"]),
    )
    if not row["explained"]:
        off = [item for item in (before, row) if abs(item["model_error_pct"]) > _MODEL_PCT]
        errors = listed(
            _("that of {series} by {off}").format(series=item["series"], off=_off(item))
            for item in off
        )
        where = _("; its time is off, {errors}").format(errors=errors) if off else ""
        text += _(", which does not explain it{where}").format(where=where)
    shares = {name: row[f"share_{name}"] for name in model.RESOURCES}
    split = row["explained"] and not any(pd.isna(share) for share in shares.values())
    if split:
        named = sorted(
            (name for name, share in shares.items() if abs(share) >= _LEAST_SHARE),
            key=lambda name: -shares[name],
        )
        message = (
            _("{what}: {share} of the saving")
            if row["model_vs_previous"] > 1
            else _("{what}: {share} of the loss")
        )
        parts = [
            message.format(what=_moves(before, row, name), share=minus(percent(shares[name], 2)))
            for name in named
        ]
    else:
        parts = [_moves(before, row, name, model.SAME) for name in model.RESOURCES]
        parts = [part for part in parts if part]
    moved = (
        _("What moved: {parts}").format(parts=_("; ").join(parts))
        if parts
        else _("No counter moved by 5 %")
    )
    return _("{text}. {moved}. What limits {series}: {limit}.").format(
        text=text, moved=moved, series=row["series"], limit=_(figures.LIMIT_NAMES[row["limit"]])
    )


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
        moved.append(f"{_(name)} {scaled(first)} \u2192 {scaled(second)}{change}")
    if not moved and not least:
        return _("{resource} with equal counts, spread otherwise").format(
            resource=_(figures.RESOURCE_NAMES[resource])
        )
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
                Cell(_(str(row["title"])), note=str(row["name"]), key=row_key("ceilings", row)),
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
            _("Ceiling"),
            _("Rate"),
            _("flop or bytes per SM and clock"),
            _("of what the hardware could"),
            _("SM clock, MHz"),
            _("Timed loop"),
        ],
        rows,
        _(
            "{origin}, by kernels of one instruction each; their machine code was"
            " checked to hold it."
        ).format(origin=_ceilings_origin(results)),
        [False, True, True, True, True, False],
        dense=True,
        source="ceilings",
    )


def _ceilings_origin(results: Results) -> str:
    """When the ceilings were measured and, where that matters, on which card."""
    row = next(iter(results.ceilings.values()))
    text = (_("Replayed {day}") if row["source"] == "replayed" else _("Measured {day}")).format(
        day=day(row["measured_at"])
    )
    if row["gpu_uuid"] not in set(results.points["gpu_uuid"]):
        text += _(" on another {gpu_name} than the points").format(gpu_name=row["gpu_name"])
    return text
