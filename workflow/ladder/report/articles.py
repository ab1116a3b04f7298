"""Rung by rung: the idea, what its source changes, its counters, its rooflines, what limits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .. import figures, traffic
from ..emulator.compiled import FFMA, INSTRUCTIONS
from ..emulator.result import (
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    SHARED_LOAD_CONFLICTS,
    SHARED_LOAD_WAVEFRONTS,
    SHARED_LOADS,
    SHARED_STORE_CONFLICTS,
    TMA_LOAD_BYTES,
)
from ..figures import Results
from ..figures.counts import counted_points, counted_size
from ..hardware import DRAM_READ, L2_READ
from ..language import N_, _, plural
from ..status import RANKED
from .differences import Line, counted, source_diff
from .grid import Cell, Grid, as_word, row_key, sortable
from .words import between, integer, number, percent, scaled, signed_percent, times

Counts = Mapping[str, float]
Place = tuple[tuple[int, int, int], str]
"""A size and the key of a point."""
_COUNTERS: tuple[tuple[str, Callable[[Counts], float | None]], ...] = (
    (N_("instructions of warps"), lambda counts: counts.get(INSTRUCTIONS)),
    (N_("multiply-adds"), lambda counts: counts.get(FFMA)),
    (N_("global load requests"), lambda counts: counts.get(GLOBAL_LOAD_REQUESTS)),
    (N_("global load sectors"), lambda counts: counts.get(GLOBAL_LOAD_SECTORS)),
    (N_("sectors per load request"), traffic.sectors_per_request),
    (N_("useful bytes per load sector"), traffic.useful_bytes),
    (N_("bytes copied by TMA"), lambda counts: counts.get(TMA_LOAD_BYTES) or None),
    (N_("shared loads"), lambda counts: counts.get(SHARED_LOADS)),
    (N_("wavefronts of shared loads"), lambda counts: counts.get(SHARED_LOAD_WAVEFRONTS)),
    (N_("bank conflicts of shared loads"), lambda counts: counts.get(SHARED_LOAD_CONFLICTS)),
    (N_("bank conflicts of shared stores"), lambda counts: counts.get(SHARED_STORE_CONFLICTS)),
    (N_("bytes from L2"), lambda counts: counts.get(L2_READ)),
    (N_("bytes from DRAM"), lambda counts: counts.get(DRAM_READ)),
)
"""What a rung's table lists, as far as it was counted: name, and value from one launch's counts."""
_LEVELS = {"l1": "L1", "shared": N_("shared memory"), "l2": "L2", "dram": "DRAM"}


@dataclass(frozen=True)
class Article:
    """The section of one rung."""

    id: str
    kernel: str
    title: str
    idea: str
    facts: Sequence[tuple[str, str]]
    """Label and value: time, shares, the step from the rung before, rooflines, what limits."""
    step: str
    """What moved from the rung before, in a sentence; empty without a model of both."""
    counters: Grid | None
    diff: Sequence[Line]
    diff_summary: str
    details: str
    """Id of the rung's tables by every source; empty if nothing was counted."""


def articles(
    results: Results, ladder: pd.DataFrame, steps: pd.DataFrame, sentences: Mapping[str, str]
) -> list[Article]:
    """An article for every kernel of the ladder that has a time or counts, in order.

    Args:
        ladder: `figures.ladder_table`.
        steps: `figures.steps_table`.
        sentences: by kernel, what moved from the rung before.
    """
    present = [*results.order(), *results.counted_rungs()]
    names = [name for name in dict.fromkeys(present) if _is_rung(results, name)]
    position = {name: index for index, name in enumerate(results.kernels)}
    names.sort(key=lambda name: position.get(name, len(position)))
    counts, where = _counts(results)
    levels = figures.hierarchical_table(results)
    found = []
    before: dict[str, str] = {}  # by kind, the rung before
    for name in names:
        kind = results.kind(name)
        previous = before.get(kind)
        diff, summary = _diff(results, previous, name)
        found.append(
            Article(
                id=f"rung-{name}",
                kernel=name,
                title=results.title(name),
                idea=_(_idea(results, name)),
                facts=[
                    *_time_facts(_row(ladder, name)),
                    *_roof_facts(results, levels, _row(steps, name), name),
                    *_build_facts(results, _row(ladder, name), name),
                ],
                step=sentences.get(name, ""),
                counters=_counter_grid(results, counts, where, previous, name),
                diff=diff,
                diff_summary=summary,
                details=f"traffic-{name}" if name in results.counted_rungs() else "",
            )
        )
        before[kind] = name
    return found


def _is_rung(results: Results, name: str) -> bool:
    return results.kind(name) not in ("reference", "tf32")


def _idea(results: Results, name: str) -> str:
    known = results.kernels.get(name)
    return known.manifest.idea if known else ""


def _row(table: pd.DataFrame, name: str) -> pd.Series | None:
    own = table[table["kernel"] == name] if len(table) else table
    return own.iloc[0] if len(own) else None


def _time_facts(row: pd.Series | None) -> list[tuple[str, str]]:
    if row is None:
        return []
    facts = []
    if params := figures.params_label(row["params"]):
        facts.append((_("Fastest parameters"), params))
    span = between(row["tflops_ci_low"], row["tflops_ci_high"], digits=4)
    speed = f"{number(row['tflops'])} TFLOPS"
    facts.append((_("At N = {n}").format(n=int(row["n"])), f"{speed} ({span})" if span else speed))
    if pd.notna(row["vs_reference"]):
        facts.append((_("of cuBLAS FP32"), percent(row["vs_reference"])))
    if pd.notna(row["pct_peak_max_clock"]):
        facts.append((_("of FP32 peak"), number(row["pct_peak_max_clock"], 3, "%")))
    if pd.notna(row["vs_previous"]):
        span = between(row["vs_previous_low"], row["vs_previous_high"], digits=4)
        verdict = _(as_word(row["verdict_previous"]))
        behind = ", ".join(part for part in (span, verdict) if part)
        value = times(row["vs_previous"])
        facts.append((_("over previous rung"), f"{value} ({behind})" if behind else value))
    return facts


def _roof_facts(
    results: Results, levels: pd.DataFrame, step: pd.Series | None, name: str
) -> list[tuple[str, str]]:
    """The rung's place under the roofs, and what the step model says that it waits for."""
    facts = []
    own = levels[(levels["kernel"] == name) & levels["level"].notna()] if len(levels) else levels
    if len(own):
        text = ", ".join(
            f"{_(_LEVELS[level])} {number(intensity)}"
            for level, intensity in zip(own["level"], own["flop_per_byte"], strict=True)
        )
        facts.append((_("Intensity, flop/byte"), text))
        reached = _of_roofs(results, own)
        if reached is not None:
            facts.append((_("of what the measured roofs allow"), percent(reached)))
    if step is not None and pd.notna(step["model_ns"]):
        limit = _(figures.LIMIT_NAMES[step["limit"]])
        error = signed_percent(1 + step["model_error_pct"] / 100)
        facts.append((_("Limited by"), limit))
        facts.append((_("Model against measurement"), error))
    return facts


def _of_roofs(results: Results, own: pd.DataFrame) -> float | None:
    """TFLOPS over the lowest measured roof above the rung; None without a roof of arithmetic."""
    if "fma" not in results.ceilings:
        return None
    roofs = [float(results.ceilings["fma"]["value"])]
    for level, intensity in zip(own["level"], own["flop_per_byte"], strict=True):
        ceiling = results.ceilings.get("copy" if level == "dram" else level)
        if ceiling is not None:
            roofs.append(float(ceiling["value"]) * float(intensity) / 1e3)
    return float(own["tflops"].iloc[0]) / min(roofs)


def _build_facts(results: Results, row: pd.Series | None, name: str) -> list[tuple[str, str]]:
    """Registers and occupancy of the build that ran, or of any build where none ran."""
    builds = results.builds[
        (results.builds["kernel"] == name)
        & results.builds["status"].isin(RANKED)
        & results.builds["registers_per_thread"].notna()
    ]
    if row is not None:
        builds = builds[builds["params"] == row["params"]]
        architectures = results.points[results.points["kernel"] == name]["architecture"]
        builds = builds[builds["architecture"].isin(architectures)]
    if builds.empty:
        return []
    build = builds.iloc[0]
    registers = integer(build["registers_per_thread"])
    occupancy = number(build["theoretical_occupancy_pct"], 3, "%")
    limit = as_word(build["occupancy_limit"])
    if limit:
        occupancy = _("{occupancy}, limited by {limit}").format(occupancy=occupancy, limit=_(limit))
    return [
        (_("Registers per thread ({architecture})").format(architecture=build["architecture"]),
         registers),
        (_("Occupancy"), occupancy),
    ]  # fmt: skip


def _counts(results: Results) -> tuple[dict[str, Counts], dict[str, Place]]:
    """By kernel, the counts of one launch, and the point that they belong to."""
    counts: dict[str, Counts] = {}
    where: dict[str, Place] = {}
    for item in counted_points(results, counted_size(results)):
        name = str(item.row["kernel"])
        size = (int(item.row["m"]), int(item.row["n"]), int(item.row["k"]))
        counts[name], where[name] = item.counts, (size, row_key("counters", item.row))
    tflops = results.tflops()
    points = traffic.at_size(results.counted, traffic.common_size(results.counted))
    for name in results.counted_rungs():
        point = traffic.representative(name, points, tflops)
        if name not in counts and point is not None:
            kernel, params, m, n, k = point.key
            row = {"kernel": kernel, "params": params, "m": m, "n": n, "k": k}
            counts[name], where[name] = point.counts, (point.size, row_key("counters", row))
    return counts, where


def _counter_grid(
    results: Results,
    counts: Mapping[str, Counts],
    where: Mapping[str, Place],
    previous: str | None,
    name: str,
) -> Grid | None:
    """The counters of one launch beside those of the rung before, where both are of one size."""
    own = counts.get(name)
    if not own:
        return None
    size, key = where[name]
    before: Counts = {}
    if previous and previous in counts and where[previous][0] == size:
        before = counts[previous]
    rows = []
    for label, value_of in _COUNTERS:
        value, earlier = value_of(own), value_of(before)
        if value is None or not (value or earlier):
            continue
        ratio = value / earlier if earlier else None
        cells = [
            Cell(_(label), key=key),
            Cell(_count(value), value, True),
        ]
        if before:
            change = Cell("\u2013", None, True)
            if ratio is not None:
                change = Cell(signed_percent(ratio), sortable(ratio), True)
            cells += [
                Cell(_count(earlier) if earlier is not None else "\u2013", earlier, True),
                change,
            ]
        rows.append(cells)
    heads = [_("Counter"), results.title(name)]
    if before and previous:
        heads += [results.title(previous), _("change")]
    caption = _("{rung}: counters of one launch at N = {size}, the fastest parameter set of each.")
    numeric = [False, *(True for _head in heads[1:])]
    caption = caption.format(rung=results.title(name), size=figures.shape_label(*size))
    return Grid(heads, rows, caption, numeric, plain=True, source="counters")


def _count(value: float) -> str:
    return scaled(value) if value >= 1000 else number(value)


def _diff(results: Results, previous: str | None, name: str) -> tuple[Sequence[Line], str]:
    """The diff of the sources of two rungs, and how large it is; nothing without both sources."""
    paths: list[Path] = []
    for rung in (previous, name):
        known = results.kernels.get(rung or "")
        if known is None or known.source_path is None or not known.source_path.is_file():
            return (), ""
        paths.append(known.source_path)
    lines = source_diff(*paths)
    added, removed = counted(lines)
    summary = _("Source, against {previous}: {added}, {removed}").format(
        previous=results.title(previous or ""),
        added=plural("{count} line added", "{count} lines added", added),
        removed=plural("{count} line removed", "{count} lines removed", removed),
    )
    return lines, summary
