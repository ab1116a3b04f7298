"""Builds, checks, failures, and what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .. import figures, traffic
from ..figures import Results
from ..language import _, listed, plural
from ..status import EXPLANATIONS, RANKED, Status
from .grid import Cell, Grid, as_word, row_key, sortable
from .words import integer, number


def builds_grid(results: Results) -> Grid | None:
    builds = results.builds
    if builds.empty:
        return None
    rows = []
    position = {name: index for index, name in enumerate(results.kernels)}
    ordered = builds.assign(
        _at=builds["kernel"].map(position), _set=builds["params"].map(figures.params_order)
    ).sort_values(["architecture", "_at", "kernel", "_set"], kind="stable")
    for _index, row in ordered.iterrows():
        spills = np.nansum([row["spill_store_bytes"], row["spill_load_bytes"]])
        smem = np.nansum([row["static_shared_memory_bytes"], row["dynamic_shared_memory_bytes"]])
        known = pd.notna(row["registers_per_thread"])
        rows.append(
            [
                Cell(results.title(row["kernel"]), key=row_key("builds", row)),
                Cell(figures.params_label(row["params"]) or "\u2013"),
                Cell(str(row["architecture"])),
                _status_cell(row["status"], row["detail"]),
                Cell(
                    integer(row["registers_per_thread"]),
                    sortable(row["registers_per_thread"]),
                    True,
                ),
                Cell(
                    integer(spills) if known else "\u2013",
                    float(spills),
                    True,
                    tone="warn" if spills else "",
                ),
                Cell(integer(smem) if known else "\u2013", float(smem), True),
                Cell(
                    number(row["theoretical_occupancy_pct"], 3, "%"),
                    sortable(row["theoretical_occupancy_pct"]),
                    True,
                ),
                Cell(_(as_word(row["occupancy_limit"])) or "\u2013"),
            ]
        )
    heads = [
        _("Kernel"),
        _("Parameters"),
        _("Architecture"),
        _("Status"),
        _("Registers"),
        _("Spills, bytes"),
        _("Shared memory, bytes"),
        _("Occupancy"),
        _("limited by"),
    ]
    return Grid(
        heads,
        rows,
        _(
            "What the compiler made of each kernel: registers per thread, bytes spilled to"
            " local memory, shared memory per block, theoretical occupancy and what limits it."
        ),
        [False] * 4 + [True] * 4 + [False],
        source="builds",
    )


def builds_note(results: Results) -> str:
    spilled = results.builds[
        results.builds[["spill_store_bytes", "spill_load_bytes"]].fillna(0).sum(axis=1) > 0
    ]
    if results.builds.empty:
        return _("Nothing was compiled.")
    return (
        _("{builds} of {all} spill registers to local memory.").format(
            builds=plural("{count} build", "{count} builds", len(spilled)),
            all=len(results.builds),
        )
        if len(spilled)
        else _("No build spills registers.")
    )


def _status_cell(status: Any, detail: Any = None) -> Cell:
    good = status in RANKED
    note = "" if good or not isinstance(detail, str) else detail
    return Cell(str(status), note=note[:300], tone="good" if good else "bad")


def checks_grid(results: Results) -> Grid | None:
    """Correctness by kernel over every point that was checked."""
    points = results.points
    checks = ["exact", "guards_intact", "inputs_intact", "deterministic", "post_timing_correct"]
    checked = points[points[[*checks, "eta_max"]].notna().any(axis=1)]
    if checked.empty:
        return None
    rows = []
    for name in results.order():
        own = checked[checked["kernel"] == name]
        if own.empty:
            continue
        approximate = results.kind(name) == "tf32"
        cells = [Cell(results.title(name)), Cell(f"{len(own)}", len(own), True)]
        cells.append(_share_cell(own["exact"]))
        for column, bound in (("eta_max", 16.0), ("eta_rms", 1.0)):
            worst = own[column].max()
            over = pd.notna(worst) and worst > bound
            cells.append(
                Cell(
                    number(worst),
                    sortable(worst),
                    True,
                    note=_("TF32, not held to it") if approximate and over else "",
                    tone="" if approximate else "bad" if over else "",
                )
            )
        cells += [_share_cell(own[column]) for column in checks[1:]]
        rows.append(cells)
    heads = [
        _("Kernel"),
        _("Points"),
        _("Exact on small integers"),
        _("\u03b7 max (\u2264 16)"),
        _("\u03b7 rms (\u2264 1)"),
        _("Guards intact"),
        _("Inputs intact"),
        _("Same bits again"),
        _("Right after timing"),
    ]
    return Grid(
        heads,
        rows,
        _(
            "Checks before and after timing: worst value or share of points that passed. \u03b7"
            " = |C"
            " \u2212 R| / (2\u207b\u00b2\u2074 |A||B|) with R the FP64 product."
        ),
        [False, True, True, True, True, True, True, True, True],
        dense=True,
        source="points",
    )


def _share_cell(values: pd.Series) -> Cell:
    known = values.dropna().astype(bool)
    if known.empty:
        return Cell(_("not checked"), None, True)
    passed = int(known.sum())
    if passed == len(known):
        return Cell(_("all"), 1.0, True, tone="good")
    return Cell(
        _("{passed} of {known}").format(passed=passed, known=len(known)),
        passed / len(known),
        True,
        tone="bad",
    )


def status_grid(results: Results) -> Grid | None:
    counts = results.points["status"].value_counts()
    build_counts = results.builds["status"].value_counts()
    emulated = [point.status for point in traffic.emulated(results.counted)]
    rows = []
    for status in Status:
        points, builds = int(counts.get(status, 0)), int(build_counts.get(status, 0))
        on_cpu = emulated.count(status.value)
        if points or builds or on_cpu:
            rows.append(
                [
                    Cell(status.value, tone="good" if status in RANKED else "bad"),
                    Cell(str(points), points, True),
                    Cell(str(builds), builds, True),
                    *([Cell(str(on_cpu), on_cpu, True)] if emulated else []),
                    Cell(_(EXPLANATIONS[status])),
                ]
            )
    extra = [_("Emulated")] if emulated else []
    heads = [_("Status"), _("Points"), _("Builds"), *extra, _("What it means")]
    return (
        Grid(
            heads,
            rows,
            _("Every point and build by outcome. Only ok and ok_noisy feed figures and rankings."),
            [False, True, True, *(True for _head in extra), False],
            source="points, builds, counters",
        )
        if rows
        else None
    )


def failures_grid(results: Results, limit: int = 400) -> Grid | None:
    points = results.points
    bad = points[~points["status"].isin(RANKED)]
    if bad.empty:
        return None
    grouped = bad.assign(detail=bad["detail"].fillna("")).groupby(
        ["status", "kernel", "params", "detail"], sort=True
    )
    rows = []
    for (status, kernel, params, detail), group in list(grouped)[:limit]:
        sizes = [
            figures.shape_label(*key)
            for key in sorted(set(zip(group["m"], group["n"], group["k"], strict=True)))
        ]
        shown = ", ".join(sizes[:8]) + (
            _(" and {number} more").format(number=len(sizes) - 8) if len(sizes) > 8 else ""
        )
        rows.append(
            [
                Cell(str(status), tone="bad"),
                Cell(results.title(str(kernel))),
                Cell(figures.params_label(str(params)) or "\u2013"),
                Cell(shown),
                Cell(str(detail)[:400] or "\u2013"),
            ]
        )
    return Grid(
        [_("Status"), _("Kernel"), _("Parameters"), _("Sizes"), _("Reason")],
        rows,
        _("{points} without a valid time, equal reasons together.").format(
            points=plural("{count} point", "{count} points", len(bad))
        ),
        [False] * 5,
        source="points",
    )


def not_measured(results: Results, views: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a reader might expect here and does not get, with the reason."""
    missing = []
    if results.ranked.empty:
        missing.append(_("Times: there is no valid timing in this result set."))
    if results.replayed:
        missing.append(_("Anything on this machine's own GPU; all times were replayed."))
    absent = [
        results.title(name) for name in results.kernels if name not in set(results.ranked["kernel"])
    ]
    if absent and len(results.ranked):
        missing.append(_("Without any valid time: {absent}.").format(absent=listed(absent)))
    run = results.run or {}
    planned, measured = run.get("points_planned"), run.get("points_measured")
    stored = run.get("points_from_store") or 0
    if planned is not None and measured is not None and planned > measured + stored:
        missing.append(
            _("{points} of {planned} have no result in the run shown.").format(
                points=plural(
                    "{count} planned point",
                    "{count} planned points",
                    int(planned - measured - stored),
                ),
                planned=int(planned),
            )
        )
    if results.sheet is None and results.run is not None and results.run.get("gpu_name"):
        missing.append(
            _("Datasheet lines: config/gpus.yaml has no row for {gpu_name}.").format(
                gpu_name=results.gpu_name
            )
        )
    missing += _unread_counters(results.counted)
    empty = [item["title"] for view in views.values() if view["empty"] for item in view["figures"]]
    if empty:
        missing.append(_("Figures that need times: {empty}.").format(empty=listed(empty)))
    if "copy" not in results.ceilings:
        missing.append(_("DRAM bandwidth: the roofline's dashed roof is the datasheet's value."))
    return missing


def _unread_counters(points: Sequence[traffic.Point]) -> list[str]:
    """Why hardware counters are not there, of all points or of some."""
    reasons: dict[str, int] = {}
    for point in points:
        for source, reason in point.missing.items():
            if source.kind == "hardware" and not point.values.get(source):
                reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        return [
            _("Hardware counters of {points}: {reason}.").format(
                points=plural("{count} point", "{count} points", number), reason=reason
            )
            for reason, number in reasons.items()
        ]
    if any(source.kind == "hardware" for point in points for source in point.values):
        return []
    return [
        _(
            "Hardware counters (sectors, requests, bank conflicts): they come from a separate"
            " profiling run, which is not part of this report."
        )
    ]
