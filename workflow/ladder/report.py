"""Tables and figures -> one self-contained HTML page.

Every sentence with a number in it is made here from the tables; the template holds none. The page
needs no network and, but for sorting its tables, no script.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from . import compare_counters, figures, model, stats, traffic
from .figures import Results
from .manifest import Kernel
from .status import EXPLANATIONS, RANKED, Status

TEMPLATE = Path(__file__).resolve().parents[1] / "report" / "report.html.j2"
_ARTICLE_SHAPE = (16, 16)
"""The block shape of the naive kernel that the sweep is compared with."""
_STEPS_IN_WORDS = 4
"""Up to this many steps of the ladder each get a sentence."""


@dataclass(frozen=True)
class Cell:
    """One table cell: what is shown, and what it is sorted by."""

    text: str
    sort: float | str | None = None
    numeric: bool = False
    note: str = ""
    """A second, smaller line."""
    tone: str = ""
    """good, bad, warn, or nothing."""


@dataclass(frozen=True)
class Grid:
    """A table: headings, rows, and the sentence that stands over it."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    numeric: Sequence[bool] = field(default_factory=list)
    dense: bool = False
    """Whether headings may wrap, so that many columns fit."""


def render(
    tables_dir: Path,
    figures_dir: Path,
    kernels: Mapping[str, Kernel],
    gpus_path: Path,
    out: Path,
    template: Path = TEMPLATE,
) -> None:
    """Write the report of one result set.

    Args:
        tables_dir: folder of the Parquet tables; missing ones count as empty.
        figures_dir: what `figures.draw_all` wrote; without it the report has no figures.
        kernels: the configured kernels in the order of the ladder.
        gpus_path: `config/gpus.yaml`.
        out: the HTML file.
        template: Jinja template.

    Raises:
        ValueError: if a table has another schema version.
        UserError: if `gpus_path` is wrong.
    """
    results = figures.load_results(tables_dir, kernels, gpus_path)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template(template.name).render(page(results, figures_dir))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")


def page(results: Results, figures_dir: Path) -> dict[str, Any]:
    """Everything the template shows."""
    ladder = figures.ladder_table(results)
    return {
        "title": "gemm-ladder: FP32 matrix multiplication, rung by rung",
        "subtitle": _subtitle(results),
        "banner": _banner(results),
        "facts": _facts(results),
        "facts_head": "Measured on" if (results.run or {}).get("gpu_name") else "This run",
        "here": _this_machine(results),
        "ladder": _ladder_grid(results, ladder),
        "ladder_note": _ladder_note(results, ladder),
        "findings": findings(results, ladder),
        "timeless": _timeless(results),
        "steps": steps_view(results),
        "ceilings": _ceilings_grid(results),
        "energy": _energy_grid(results, ladder),
        "energy_note": _energy_note(results, ladder),
        "traffic": traffic_view(results),
        "figures": (views := _figure_views(figures_dir)),
        "builds": _builds_grid(results),
        "builds_note": _builds_note(results),
        "checks": _checks_grid(results),
        "statuses": _status_grid(results),
        "failures": _failures_grid(results),
        "not_measured": _not_measured(results, views),
        "others": [f"{name}: {_count(count, 'point')}" for name, count in results.others],
        "conditions": _conditions(results),
        "provenance": _provenance(results),
        "protocol": _protocol(results),
        "glossary": GLOSSARY,
    }


# --- words and numbers --------------------------------------------------------------------------


def number(value: Any, digits: int = 3, unit: str = "") -> str:
    """`digits` significant digits, thousands separated from 10,000 on; en dash for unknown."""
    if value is None or pd.isna(value):
        return "\u2013"
    value = float(value)
    # Rounded first: 9.996 has one digit before the point, but is shown as 10.0.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - exponent) if value else 0
    text = f"{value:,.{decimals}f}" if abs(value) >= 10_000 else f"{value:.{decimals}f}"
    return f"{text}\u202f{unit}" if unit else text


def integer(value: Any) -> str:
    """A whole number; an en dash for unknown."""
    if value is None or pd.isna(value):
        return "\u2013"
    return f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}"


def percent(ratio: float | None, digits: int = 3) -> str:
    """A ratio as percent; an en dash for unknown."""
    return "\u2013" if ratio is None or pd.isna(ratio) else number(100 * ratio, digits, "%")


def _span(low: Any, high: Any, scale: float = 1.0, digits: int = 3) -> str:
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return ""
    return f"{number(low * scale, digits)}\u00a0to\u00a0{number(high * scale, digits)}"


def _count(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _listed(items: Iterable[str]) -> str:
    parts = list(items)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _day(value: Any) -> str:
    return "\u2013" if value is None or pd.isna(value) else f"{value:%Y-%m-%d}"


def _moment(value: Any) -> str:
    return "\u2013" if value is None or pd.isna(value) else f"{value:%Y-%m-%d %H:%M} UTC"


def _json(text: Any) -> dict[str, Any]:
    """A JSON object of a table, or an empty one where there is none."""
    if not isinstance(text, str):
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


# --- first screen -------------------------------------------------------------------------------


def _local_run(results: Results) -> dict[str, Any] | None:
    """The newest run without a GPU: this machine's, if times were replayed or none were taken."""
    local = results.runs[results.runs["gpu_uuid"].isna()]
    return figures.as_record(local.iloc[-1]) if len(local) else None


def _subtitle(results: Results) -> str:
    ranked = results.ranked
    if ranked.empty:
        done = _done_here(results) if _timeless(results) else ""
        return done or "No valid timing in this result set."
    dates = results.points["measured_at"].dropna()
    when = f" on {_day(dates.max())}" if len(dates) else ""
    counted = _count(len(ranked), "valid timing")
    verb = "replayed; measured" if results.replayed else "measured"
    return f"{counted} {verb} on {results.gpu_name}{when}."


def _banner(results: Results) -> dict[str, str] | None:
    """The notice over everything else, if numbers are not this machine's or there are none."""
    if results.replayed:
        run = results.run or {}
        driver = run.get("driver_version") or "unknown"
        dates = results.points["measured_at"].dropna()
        when = _day(dates.max()) if len(dates) else "an unknown date"
        return {
            "tone": "warn",
            "head": "Replayed: measured elsewhere",
            "text": f"No timing on this page comes from this machine. All were measured on "
            f"{results.gpu_name}, driver {driver}, {when}, and are shown again here.",
        }
    if _timeless(results):
        outcomes = {traffic.outcome(point) for point in traffic.emulated(results.counted)}
        ran = bool(outcomes - {"skipped"})
        made = ["compiled for the GPUs named below"] if len(results.builds) else []
        made += ["run on the CPU and checked"] if ran else []
        text = f"All else on this page was made here: the kernels were {_listed(made)}."
        if not ran:
            start = "The kernels were compiled, but none" if made else "No kernel"
            text = f"{start} ran, not even on the CPU."
        tone = "bad" if "fault" in outcomes else "plain"
        return {"tone": tone, "head": f"{_why_no_times(results)}.", "text": text}
    if results.ranked.empty:
        head = "Nothing was measured" if results.points.empty else "No valid timing"
        text = (
            "There is no measurement in this result set and none was replayed."
            if results.points.empty
            else "Every point failed or was skipped; the reasons are listed below."
        )
        return {"tone": "bad", "head": head, "text": text}
    if bool((results.run or {}).get("gpu_shared")):
        return {
            "tone": "warn",
            "head": "Measured on a shared GPU",
            "text": "Other processes used the GPU during this run; times may be too long.",
        }
    return None


def _timeless(results: Results) -> bool:
    """Whether this machine has no GPU, nothing was replayed, and yet it did something."""
    no_gpu = not (results.run or {}).get("gpu_name") and not results.replayed
    did_something = len(results.builds) > 0 or bool(traffic.emulated(results.counted))
    return no_gpu and results.ranked.empty and did_something


def _why_no_times(results: Results) -> str:
    """In one line; the reason that most points give, where it is not the usual one."""
    reasons = results.points["detail"].dropna()
    common = str(reasons.mode().iloc[0]) if len(reasons) else ""
    start = "not measured: no GPU on this machine, and "
    why = common.removeprefix(start) if common.startswith(start) else ""
    if not why or why == "there is no published result set":
        return "No times: no GPU here and no published set"
    return f"No times: no GPU here, and {why}"


def _done_here(results: Results) -> str:
    """What a machine without a GPU did, counted, in one sentence."""
    good = int(results.builds["status"].isin(RANKED).sum())
    asked = traffic.emulated(results.counted)
    run = [point for point in asked if traffic.outcome(point) != "skipped"]
    faulty = sum(traffic.outcome(point) == "fault" for point in run)
    parts = [f"Compiled {_count(good, 'build')}"] if len(results.builds) else []
    if run:
        parts.append(f"{'emulated' if parts else 'Emulated'} {_count(len(run), 'point')}")
        parts.append(f"found {_count(faulty, 'fault') if faulty else 'no fault'}")
    elif asked:
        parts.append(f"{'emulated' if parts else 'Emulated'} none of {_count(len(asked), 'point')}")
    return f"{_listed(parts)}." if parts else ""


def _gpu(results: Results) -> str | None:
    """The GPU's name, and how many cards took part; "none" where nothing was timed."""
    name = (results.run or {}).get("gpu_name")
    if not name:
        return "none" if _timeless(results) else None
    cards = results.points["gpu_uuid"].nunique()
    return f"{name}, {cards} cards, each size on one" if cards > 1 else name


def _facts(results: Results) -> list[tuple[str, str]]:
    """What was measured on what, when and how: label and value."""
    run = results.run or {}
    peak, sheet = results.peak_tflops, results.sheet
    facts: list[tuple[str, str | None]] = [
        ("GPU", _gpu(results)),
        (
            "SMs, compute capability",
            _joined(run.get("gpu_sm_count"), run.get("gpu_compute_capability")),
        ),
        (
            "FP32 peak",
            f"{number(peak)} TFLOPS at {number(run.get('gpu_max_sm_clock_mhz'), 4)} MHz"
            if peak
            else None,
        ),
        ("DRAM bandwidth", f"{number(sheet.memory_gb_s, 4)} GB/s (datasheet)" if sheet else None),
        ("Driver, CUDA", _joined(run.get("driver_version"), run.get("cuda_driver_api"))),
        ("Compiler", f"NVRTC {run['nvrtc_version']}" if run.get("nvrtc_version") else None),
        ("cuBLAS", run.get("cublas_version")),
        ("SM clock in the run", _range_of(run, "sm_clock", "MHz", 4)),
        ("Power", _power(run)),
        ("Measured" if run.get("gpu_name") else "Run", _moment(run.get("started_at"))),
        ("Host", _joined(run.get("host_os")) if _timeless(results) else None),
        ("Emulated", _emulated_fact(results)),
        ("Protocol", f"version {run['protocol_version']}" if run.get("protocol_version") else None),
    ]
    return [(label, str(value)) for label, value in facts if value not in (None, "\u2013")]


def _emulated_fact(results: Results) -> str | None:
    asked = traffic.emulated(results.counted)
    if not asked:
        return None
    right = sum(traffic.outcome(point) in ("right", "inexact") for point in asked)
    return f"{right} of {_count(len(asked), 'point')} right"


def _joined(*values: Any) -> str | None:
    known = [str(value) for value in values if value is not None]
    return ", ".join(known) or None


def _range_of(run: Mapping[str, Any], name: str, unit: str, digits: int) -> str | None:
    mean = run.get(f"{name}_mean_mhz")
    if mean is None:
        return None
    low, high = run.get(f"{name}_min_mhz"), run.get(f"{name}_max_mhz")
    span = f" ({_span(low, high, digits=digits)})" if low is not None and high is not None else ""
    return f"mean {number(mean, digits)} {unit}{span}"


def _power(run: Mapping[str, Any]) -> str | None:
    mean, limit = run.get("power_mean_w"), run.get("gpu_power_limit_w")
    if mean is None and limit is None:
        return None
    of_limit = f" of {number(limit)} W" if limit is not None else ""
    return f"mean {number(mean)} W{of_limit}" if mean is not None else f"limit {number(limit)} W"


def _this_machine(results: Results) -> list[str]:
    """What this machine did itself, and what it could not do."""
    sentences = []
    builds = results.builds
    if len(builds):
        good = builds[builds["status"].isin(RANKED)]
        by_architecture = good.groupby("architecture", sort=True).size()
        names = _listed(f"{name} ({count})" for name, count in by_architecture.items())
        compilers = sorted(
            {
                f"{kind or 'compiler'} {version or ''}".strip()
                for kind, version in zip(
                    builds["compiler"], builds["compiler_version"], strict=True
                )
                if kind is not None or version is not None
            }
        )
        bad = len(builds) - len(good)
        sentence = f"Compiled {_count(len(good), 'kernel variant')}"
        sentence += f" for {names}" if names else ""
        sentence += f" with {_listed(compilers)}" if compilers else ""
        sentences.append(sentence + (f"; {_count(bad, 'build')} failed." if bad else "."))
    else:
        sentences.append("Nothing was compiled: the builds table is empty.")
    if traffic.emulated(results.counted):
        sentences += _emulation_summary(results)
        sentences += _machine_code_summary(results)
    without_times = results.replayed or results.ranked.empty
    if _local_run(results) is not None and without_times and not _timeless(results):
        sentences.append(
            "Nothing was measured, because no NVIDIA GPU answered on this machine or"
            " measuring was switched off (gpu.use)."
        )
    end = (results.run or {}).get("end_reason")
    if not results.replayed and end not in (None, "complete"):
        sentences.append(f"The run on {results.gpu_name} did not finish: {end}.")
    measured = results.points[
        (results.points["source"] == "measured") & results.points["status"].isin(RANKED)
    ]
    if len(measured):
        sentences.append(f"Measured {_count(len(measured), 'point')} on this machine's GPU.")
    return sentences


# --- the ladder ---------------------------------------------------------------------------------

_TONES = {"faster": "good", "slower": "bad", "same": "", "ambiguous": "warn"}


def _ladder_grid(results: Results, ladder: pd.DataFrame) -> Grid | None:
    if ladder.empty:
        return None
    size = int(ladder["n"].iloc[0])
    rows = []
    for _, row in ladder.iterrows():
        reference = row["kind"] == "reference"
        noisy = row["status"] == Status.OK_NOISY
        versus = (
            Cell("reference", 1.0, True)
            if reference
            else Cell(
                percent(row["vs_reference"]),
                _sortable(row["vs_reference"]),
                True,
                _span(row["vs_reference_low"], row["vs_reference_high"], 100, 4),
            )
        )
        rows.append(
            [
                Cell(row["series"], note=row["kernel"]),
                Cell(figures.params_label(row["params"]) or "\u2013"),
                Cell(
                    number(row["tflops"]),
                    row["tflops"],
                    True,
                    _span(row["tflops_ci_low"], row["tflops_ci_high"], digits=4),
                    "warn" if noisy else "",
                ),
                versus,
                _verdict_cell(row["verdict_reference"]),
                Cell(
                    _times(row["vs_previous"]),
                    _sortable(row["vs_previous"]),
                    True,
                    note=_word(row["verdict_previous"]),
                    tone=_TONES.get(_word(row["verdict_previous"]), ""),
                ),
                Cell(
                    number(row["pct_peak_max_clock"], 3, "%"),
                    _sortable(row["pct_peak_max_clock"]),
                    True,
                ),
            ]
        )
    heads = [
        "Rung",
        "Best parameters",
        "TFLOPS",
        "of cuBLAS FP32",
        "verdict",
        "over previous rung",
        "of FP32 peak",
    ]
    return Grid(
        heads,
        rows,
        f"The ladder at M = N = K = {size}, rotating buffers: fastest"
        " parameter set of each rung. Second lines are 95 % intervals.",
        [False, False, True, True, False, True, True],
    )


def _ladder_note(results: Results, ladder: pd.DataFrame) -> str:
    missing = [
        results.title(name)
        for name in results.kernels
        if results.kind(name) == "rung" and name not in set(ladder["kernel"])
    ]
    note = (
        f"Verdicts: faster, slower or same means that the whole interval of the ratio lies"
        f" beyond, or within, \u00b1{100 * stats.SAME_WITHIN:g} %; ambiguous that it crosses"
        f" that line."
    )
    if missing and len(ladder):
        note += f" Without a valid time at this size: {_listed(missing)}."
    return note


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _sortable(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _times(ratio: Any) -> str:
    return "\u2013" if ratio is None or pd.isna(ratio) else f"{number(ratio)}\u00d7"


def _verdict_cell(value: Any) -> Cell:
    word = _word(value)
    return Cell(word or "\u2013", tone="good" if word == "faster" else "")


# --- findings -----------------------------------------------------------------------------------


def findings(results: Results, ladder: pd.DataFrame) -> list[str]:
    """What the tables say in words; each sentence holds only where its rows exist."""
    sentences = [
        *_summit(results, ladder),
        *_steps(ladder),
        *_naive_shapes(results),
        *_sectors_and_time(results),
        *_odd_sizes(results),
        *_tf32(results),
    ]
    return sentences


def _summit(results: Results, ladder: pd.DataFrame) -> list[str]:
    rungs = ladder[ladder["kind"] == "rung"]
    if rungs.empty:
        return []
    top = rungs.sort_values("tflops").iloc[-1]
    text = (
        f"The fastest rung at N = {int(top['n'])} is {top['series']} with"
        f" {number(top['tflops'])} TFLOPS"
    )
    if pd.notna(top["vs_reference"]):
        text += f", {percent(top['vs_reference'])} of cuBLAS FP32"
    if pd.notna(top["pct_peak_max_clock"]):
        text += f" and {number(top['pct_peak_max_clock'], 3, '%')} of the FP32 peak"
    return [f"{text}."]


def _steps(ladder: pd.DataFrame) -> list[str]:
    """Each rung against the one before; of many, the largest step and all that are no gain."""
    sentences: list[str] = []
    gains = []
    rungs = ladder[ladder["kind"] == "rung"]
    for (_, before), (_, row) in zip(
        list(rungs.iterrows())[:-1], list(rungs.iterrows())[1:], strict=True
    ):
        ratio, word = row["vs_previous"], _word(row["verdict_previous"])
        interval = _span(row["vs_previous_low"], row["vs_previous_high"], digits=4)
        behind = f" (95 % interval {interval})" if interval else ""
        start = f"{row['series']} is"
        if word == "same":
            text = f"{start} as fast as {before['series']}: {_times(ratio)}{behind}"
        elif word == "ambiguous":
            text = (
                f"{start} not clearly faster or slower than {before['series']}:"
                f" {_times(ratio)}{behind}"
            )
        elif ratio < 1:
            text = (
                f"{start} slower than the one before, {before['series']}: {_times(ratio)}{behind}"
            )
        else:
            gains.append((float(ratio), len(sentences)))
            text = f"{start} {_times(ratio)} as fast as {before['series']}{behind}"
        sentences.append(f"{text}.")
    if len(sentences) <= _STEPS_IN_WORDS:
        return sentences
    smaller = {index for _, index in sorted(gains)[:-1]}
    kept = [text for index, text in enumerate(sentences) if index not in smaller]
    return (
        [
            *kept,
            f"The other {len(smaller)} rungs are each faster than the one before; the table"
            " has the ratios.",
        ]
        if smaller
        else kept
    )


def _naive_shapes(results: Results) -> list[str]:
    """The best block shape of the naive kernel against the article's 16x16."""
    kernel = next((name for name in results.rungs() if "naive" in name), None)
    if kernel is None:
        return []
    rows = figures.squares(results.ranked)
    rows = rows[(rows["kernel"] == kernel) & (rows["cache_mode"] == "rotating")]
    is_square = [tuple(_json(text).values()) == _ARTICLE_SHAPE for text in rows["params"]]
    square = pd.Series(is_square, index=rows.index, dtype=bool)
    sizes = rows.groupby("n")["params"].nunique()
    sizes = sizes[(sizes > 1) & sizes.index.isin(rows[square]["n"])]
    if sizes.empty:
        return []
    size = 2048 if 2048 in sizes.index else int(sizes.index.max())
    at_size = rows[rows["n"] == size]
    top = at_size.sort_values("tflops").iloc[-1]
    base = at_size[square.loc[at_size.index]].iloc[0]
    if top["params"] == base["params"]:
        return [
            f"At N = {size} the naive kernel's fastest block shape is 16\u00d716 itself,"
            f" {number(top['tflops'])} TFLOPS."
        ]
    interval = figures.speed_up(results, base, top)
    behind = f" (95 % interval {_span(interval.low, interval.high, digits=4)})" if interval else ""
    ratio = base["time_median_ns"] / top["time_median_ns"]
    return [
        f"The naive kernel's fastest block shape at N = {size} is"
        f" {figures.params_label(top['params'])}: {number(top['tflops'])} TFLOPS,"
        f" {_times(ratio)} the {number(base['tflops'])} TFLOPS of 16\u00d716{behind}."
    ]


def _sectors_and_time(results: Results) -> list[str]:
    """Whether the parameter set of fewest sectors is the fastest, if both are known."""
    size, tflops = traffic.common_size(results.counted), results.tflops()
    points = traffic.at_size(results.counted, size)
    for name in results.counted_rungs():
        lesson = traffic.lesson(name, points, tflops)
        if size is not None and lesson is not None and lesson.fastest is not None:
            words = _fastest_words(lesson, tflops)
            where = f"{results.title(name)} at N = {figures.shape_label(*size)}"
            return [f"{where}: {words[0].lower()}{words[1:]}"]
    return []


def _odd_sizes(results: Results) -> list[str]:
    """What the fastest rung loses where a power of two minus one does not fill its tiles."""
    rows = figures.squares(results.ranked)
    rows = figures.best(rows[rows["cache_mode"] == "rotating"])
    rows = rows[rows["kernel"].map(results.kind) == "rung"]
    sizes = set(rows["n"])
    pairs = [n for n in sizes if n - 1 in sizes and n % 32 == 0]
    if not pairs:
        return []
    size = max(pairs)
    at_size = rows[rows["n"] == size].sort_values("tflops")
    if at_size.empty:
        return []
    kernel = at_size.iloc[-1]
    odd = rows[(rows["n"] == size - 1) & (rows["kernel"] == kernel["kernel"])]
    if odd.empty:
        return []
    change = odd["tflops"].iloc[0] / kernel["tflops"] - 1
    direction = "less" if change < 0 else "more"
    return [
        f"At N = {size - 1} instead of {size}, where tiles stay partly empty,"
        f" {results.title(kernel['kernel'])} has {percent(abs(change), 2)} {direction}"
        f" throughput."
    ]


def _tf32(results: Results) -> list[str]:
    rows = results.ranked[results.ranked["kernel"].map(results.kind) == "tf32"]
    if rows.empty:
        return []
    top = rows.sort_values("tflops").iloc[-1]
    error = rows["eta_rms"].max()
    text = (
        f"{results.title(top['kernel'])} reaches {number(top['tflops'])} TFLOPS but is not FP32"
        f" accurate"
    )
    if pd.notna(error):
        text += (
            f": its rms error is up to {number(error, 2)} in units of 2\u207b\u00b2\u2074"
            f"|A||B|, where FP32 stays below 1"
        )
    return [f"{text}. It is shown apart and never ranked with the FP32 kernels."]


# --- steps: what each moved, and what limits now --------------------------------------------------

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
        f" {_count(len(rungs), 'rung')}."
    )
    if len(off):
        where = (f"{row['series']} ({_off(row)})" for _, row in off.iterrows())
        text += f" It fails for {_listed(where)}."
    unknown = rungs[rungs["model_ns"].isna()]
    if len(unknown):
        text += f" Nobody counted what it needs for {_listed(unknown['series'])}."
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
                    _sortable(row["model_ns"]),
                    True,
                    _off(row) if known else "",
                    "warn" if off else "",
                ),
                *[
                    Cell(
                        percent(row[f"{name}_ns"] / row["time_median_ns"], 2),
                        _sortable(row[f"{name}_ns"] / row["time_median_ns"]),
                        True,
                    )
                    for name in model.RESOURCES
                ],
                Cell(figures.LIMIT_NAMES[row["limit"]] if known else "\u2013", note=row["notes"]),
                Cell(_times(row["vs_previous"]), _sortable(row["vs_previous"]), True),
                Cell(
                    _times(row["model_vs_previous"]),
                    _sortable(row["model_vs_previous"]),
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
        f"From {before['series']} to {row['series']}: {_times(row['vs_previous'])} as fast"
        f" by measurement, {_times(row['model_vs_previous'])} by the model"
    )
    if not row["explained"]:
        off = [item for item in (before, row) if abs(item["model_error_pct"]) > _MODEL_PCT]
        errors = _listed(f"that of {item['series']} by {_off(item)}" for item in off)
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
            f"{_moves(before, row, name)}: {_minus(percent(shares[name], 2))} of the {change}"
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
        change = f" ({_signed_percent(second / first)})" if first else ""
        moved.append(f"{name} {_scaled(first)} \u2192 {_scaled(second)}{change}")
    if not moved and not least:
        return f"{figures.RESOURCE_NAMES[resource]} with equal counts, spread otherwise"
    return _listed(moved)


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")


def _off(row: pd.Series) -> str:
    """How far the model's time is from the measured one."""
    return _signed_percent(1 + row["model_error_pct"] / 100)


def _scaled(value: float) -> str:
    """A count with three digits and G, M or k behind it."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return number(value / size, 3, unit)
    return number(value)


def _ceilings_grid(results: Results) -> Grid | None:
    """What this GPU can do at most, and what its hardware could."""
    if not results.ceilings:
        return None
    rows = []
    for row in results.ceilings.values():
        counts = ", ".join(f"{count} {name}" for name, count in _json(row["loop_counts"]).items())
        rows.append(
            [
                Cell(str(row["title"]), note=str(row["name"])),
                Cell(
                    number(row["value"], 3, row["unit"]),
                    row["value"],
                    True,
                    _span(row["value_min"], row["value_max"], digits=4),
                ),
                Cell(number(row["per_sm_clock"]), row["per_sm_clock"], True),
                Cell(
                    percent(
                        row["value"] / row["hardware_limit"] if row["hardware_limit"] else None
                    ),
                    _sortable(row["value"] / row["hardware_limit"])
                    if row["hardware_limit"]
                    else None,
                    True,
                ),
                Cell(
                    number(row["sm_clock_mean_mhz"], 4), _sortable(row["sm_clock_mean_mhz"]), True
                ),
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
    text = f"{str(row['source']).capitalize()} {_day(row['measured_at'])}"
    if row["gpu_uuid"] not in set(results.points["gpu_uuid"]):
        text += f" on another {row['gpu_name']} than the points"
    return text


# --- energy ---------------------------------------------------------------------------------------


def _with_energy(results: Results, ladder: pd.DataFrame) -> pd.DataFrame:
    """The rows of the ladder that have energy, with its columns."""
    keys = ["kernel", "params", "m", "n", "k", "cache_mode"]
    columns = ["energy_per_launch_j", "gflops_per_w", "energy_span_s"]
    known = results.ranked.dropna(subset=["energy_per_launch_j", "gflops_per_w"])
    return ladder.merge(known[[*keys, *columns]], on=keys, how="inner")


def _energy_grid(results: Results, ladder: pd.DataFrame) -> Grid | None:
    table = _with_energy(results, ladder)
    if table.empty:
        return None
    rows = [
        [
            Cell(row["series"], note=figures.params_label(row["params"], among=[])),
            Cell(number(row["energy_per_launch_j"]), row["energy_per_launch_j"], True),
            Cell(number(row["gflops_per_w"]), row["gflops_per_w"], True),
            Cell(
                number(row["energy_per_launch_j"] / row["time_median_ns"] * 1e9),
                row["energy_per_launch_j"] / row["time_median_ns"],
                True,
            ),
            Cell(number(row["tflops"]), row["tflops"], True),
            Cell(number(row["energy_span_s"], 2), row["energy_span_s"], True),
        ]
        for _, row in table.iterrows()
    ]
    return Grid(
        ["Rung", "J per product", "GFLOPS per W", "W", "TFLOPS", "Watched, s"],
        rows,
        f"Energy at M = N = K = {int(table['n'].iloc[0])}, by NVML's counter for the whole card:"
        " power while the point ran, times its median time.",
        [False, True, True, True, True, True],
    )


def _energy_note(results: Results, ladder: pd.DataFrame) -> str:
    table = _with_energy(results, ladder)
    if table.empty:
        return (
            "No point of the ladder has energy: the GPU has no energy counter, the points were"
            " watched too briefly, or they were measured before it was read."
            if len(ladder)
            else ""
        )
    rungs = table[table["kind"] == "rung"]
    if rungs.empty:
        return ""
    top = rungs.sort_values("gflops_per_w").iloc[-1]
    text = f"{top['series']} does most for a watt: {number(top['gflops_per_w'])} GFLOPS"
    reference = table[table["kind"] == "reference"]
    if len(reference):
        ratio = top["gflops_per_w"] / reference["gflops_per_w"].iloc[0]
        text += f", {percent(ratio)} of cuBLAS FP32"
    return f"{text}."


# --- memory traffic -----------------------------------------------------------------------------

_KINDS = {
    "theory": "Theory",
    "emulator": "Emulator",
    "compiled": "As compiled",
    "hardware": "Hardware",
}
_ROWS_SIDE_BY_SIDE = 200
"""Up to this many rows of a rung are shown with every source."""


def traffic_view(results: Results) -> dict[str, Any]:
    """The section on memory traffic: sentences, tables and notes, all from `counters`."""
    size = traffic.common_size(results.counted)
    asked = traffic.emulated(results.counted)
    return {
        "intro": _traffic_intro(results),
        "lesson": (lesson := lesson_sentences(results, size)),
        "headline": [*lesson[:2], *lesson[-1:]] if len(lesson) > 3 else lesson,
        "summary": _emulation_summary(results),
        "checks": _emulation_grid(results, asked),
        "problems": _emulation_problems(results, asked),
        "agreement": agreement_sentences(results),
        "verdicts": list(compare_counters.VERDICTS.items()),
        "rungs": [_rung_view(results, name, size) for name in results.counted_rungs() if size],
    }


def _traffic_intro(results: Results) -> str:
    leads = {point.lead.kind for point in results.counted if point.lead}
    if "emulator" in leads:
        return (
            "Counted on a CPU, exact: the emulator ran the kernels' own source and counted what"
            " each warp asks of memory. No cache is modelled and no time follows from it."
        )
    if leads == {"hardware"}:
        return (
            "Counted by the GPU's own counters, which Nsight Compute read in launches of their own,"
            " apart from the timed ones."
        )
    if leads:
        return "Counted, but not by the emulator, which did not run the kernels here."
    if traffic.emulated(results.counted):
        return "No kernel could be counted; the reasons are below."
    return (
        "Nothing was counted in this run: the emulator did not run (emulator.use), and no"
        " hardware counters were read."
    )


def _emulation_summary(results: Results) -> list[str]:
    """What came of the points that the emulator was asked for."""
    asked = traffic.emulated(results.counted)
    if not asked:
        return []
    by_outcome: dict[str, list[traffic.Point]] = {}
    for point in asked:
        by_outcome.setdefault(traffic.outcome(point), []).append(point)
    # A result can be right although its requests could not be counted.
    right = by_outcome.get("right", []) + by_outcome.get("inexact", [])
    sets = {(point.kernel, point.params) for point in asked}
    of = (
        f" ({_count(len({p.kernel for p in asked}), 'rung')}, {_count(len(sets), 'parameter set')},"
        f" {_count(len({p.size for p in asked}), 'size')})"
    )
    sentences = []
    if len(right) == len(asked):
        sentences.append(
            f"Ran {'the' if len(asked) == 1 else 'all'} {_count(len(asked), 'point')}{of} on the"
            " CPU: every result is right, and there is no finding: nothing out of bounds, no race,"
            " no uninitialised read, no misaligned access, no divergent barrier."
        )
    else:
        sentences.append(f"{len(right)} of {_count(len(asked), 'point')}{of} are right on the CPU.")
    for name, words in (
        ("fault", "with a fault"),
        ("inexact", "without exact counts"),
        ("skipped", "that could not run"),
    ):
        own = by_outcome.get(name, [])
        if own:
            reasons = sorted({str(point.detail or point.status) for point in own})
            more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
            sentences.append(
                f"{_count(len(own), 'point')} {words}: {'; '.join(reasons[:2])}{more}."
            )
    whole = sum(_whole(results, point) for point in right)
    if right:
        sampled = len(right) - whole
        text = f"{_count(whole, 'point')} ran whole with all checks"
        if sampled:
            text += (
                f"; in {sampled} larger {'one' if sampled == 1 else 'ones'} a few blocks stand for"
                " the grid, with the same checks"
            )
        sentences.append(f"{text}.")
    return sentences


def _machine_code_summary(results: Results) -> list[str]:
    sources = [source for point in results.counted for source in point.values]
    counted = sum(source.kind == "compiled" for source in sources)
    names = sorted({source.architecture for source in sources if source.kind == "compiled"})
    if not counted:
        return []
    return [f"Counted the same points in the machine code for {_listed(names)}."]


def _whole(results: Results, point: traffic.Point) -> bool:
    params = {name: int(value) for name, value in _json(point.params).items()}
    return traffic.ran_whole(point, results.kernels.get(point.kernel), params)


def _emulation_grid(results: Results, asked: Sequence[traffic.Point]) -> Grid | None:
    """Outcome by rung and size."""
    rows = []
    groups: dict[tuple[str, tuple[int, int, int]], list[traffic.Point]] = {}
    for point in asked:
        groups.setdefault((point.kernel, point.size), []).append(point)
    order = {name: index for index, name in enumerate(results.kernels)}
    for (kernel, size), points in sorted(
        groups.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0])
    ):
        right = [point for point in points if traffic.outcome(point) in ("right", "inexact")]
        run = [point for point in points if traffic.ran(point) or point in right]
        whole = sum(_whole(results, point) for point in run)
        how = "not at all" if not run else "whole" if whole == len(run) else "sample of blocks"
        if 0 < whole < len(run):
            how = f"{whole} whole, {len(run) - whole} as sample of blocks"
        bad = sorted({str(p.status) for p in points if traffic.outcome(p) != "right"})
        faulty = any(traffic.outcome(point) == "fault" for point in points)
        rows.append(
            [
                Cell(results.title(kernel)),
                Cell("\u00d7".join(str(side) for side in size), math.prod(size)),
                Cell(str(len(points)), len(points), True),
                Cell(how),
                Cell(
                    "all" if len(right) == len(points) else f"{len(right)} of {len(points)}",
                    len(right) / len(points),
                    tone="good" if len(right) == len(points) else "bad" if faulty else "warn",
                ),
                Cell("none" if not bad else ", ".join(bad), tone="bad" if faulty else ""),
            ]
        )
    heads = ["Rung", "M\u00d7N\u00d7K", "Parameter sets", "Ran", "Right", "Other statuses"]
    text = (
        "Every kernel's own source, run on the CPU and checked: result against the FP64 product,"
        " bounds, races, uninitialised reads, alignment, barriers."
    )
    return Grid(heads, rows, text, [False, False, True, False, False, False]) if rows else None


def _emulation_problems(results: Results, asked: Sequence[traffic.Point]) -> Grid | None:
    """Faults and points that could not run or be counted, equal reasons together."""
    groups: dict[tuple[str, str, str, str], list[traffic.Point]] = {}
    for point in asked:
        if traffic.outcome(point) != "right":
            reason = str(point.detail or "\u2013")
            key = (str(point.status), point.kernel, point.params, reason)
            groups.setdefault(key, []).append(point)
    rows = [
        [
            Cell(status, tone="bad" if traffic.outcome(points[0]) == "fault" else "warn"),
            Cell(results.title(kernel)),
            Cell(figures.params_label(params) or "\u2013"),
            Cell(", ".join(figures.shape_label(*point.size) for point in points)),
            Cell(reason[:400]),
        ]
        for (status, kernel, params, reason), points in sorted(groups.items())
    ]
    heads = ["Status", "Rung", "Parameters", "Sizes", "Finding or reason"]
    text = "What the emulator found or could not run; findings with file and line."
    return Grid(heads, rows, text, [False] * 5) if rows else None


def lesson_sentences(results: Results, size: tuple[int, int, int] | None) -> list[str]:
    """Which parameter set moves the fewest sectors, which fills them best, which is fastest."""
    rungs = results.counted_rungs()
    points = sorted(
        traffic.at_size(results.counted, size),
        key=lambda point: figures.params_order(point.params),
    )
    if not rungs or size is None:
        return []
    tflops, sentences = results.tflops(), []
    first = next((name for name in rungs if any(p.kernel == name for p in points)), "")
    lesson = traffic.lesson(first, points, tflops)
    if lesson:
        sentences += _lesson_words(results, lesson, size, tflops)
    sentences += _fetches(results, rungs, points, tflops)
    return sentences


def _lesson_words(
    results: Results,
    lesson: traffic.Lesson,
    size: tuple[int, int, int],
    tflops: Mapping[traffic.Key, float],
) -> list[str]:
    def useful(point: traffic.Point) -> str:
        value = traffic.useful_bytes(point.counts)
        return "unknown" if value is None else _plain_number(value)

    def share(point: traffic.Point) -> str:
        value = traffic.useful_bytes(point.counts) or 0.0
        return f"{_plain_number(100 * value / traffic.SECTOR_BYTES)} %"

    few, full = lesson.fewest[0], lesson.fullest[0] if lesson.fullest else None
    noun = "block shape" if '"BLOCK_' in few.params else "parameter set"
    per_request = traffic.sectors_per_request(few.counts)
    start = f"At N = {figures.shape_label(*size)}"
    where = f"of the {_count(len(lesson.points), noun)} of {results.title(lesson.kernel)}"
    everywhere = len(lesson.fewest) == len(lesson.points)
    text = (
        f"{start} the {_count(len(lesson.points), noun)} of {results.title(lesson.kernel)} all"
        f" move {integer(traffic.sectors(few))} sectors"
        if everywhere
        else f"{start}, {where}, {_sets(lesson.fewest)} moves the fewest sectors:"
        f" {integer(traffic.sectors(few))}"
    )
    if len(lesson.fewest) > 1 and not everywhere:
        text = text.replace(" moves the", " move the", 1)
    if per_request is not None:
        text += f", {_plain_number(per_request)} per request"
    if not everywhere and full is not None and len({useful(p) for p in lesson.fewest}) == 1:
        text += f", with {useful(few)} of 32 bytes ({share(few)}) useful"
    sentences = [f"{text}."]
    if full is not None and full not in lesson.fewest:
        more = traffic.sectors(full) / traffic.sectors(few) - 1
        verb, moves = ("has", "moves") if len(lesson.fullest) == 1 else ("have", "move")
        sentences.append(
            f"{_sets(lesson.fullest)} {verb} the fullest sectors: {useful(full)} of 32 bytes"
            f" ({share(full)}) useful, but {moves} {_plain_number(100 * more)} % more of them."
        )
    elif full is not None and not everywhere:
        sentences.append(f"Its sectors are the fullest, too: {useful(full)} of 32 bytes useful.")
    if lesson.alike:
        worse, better = lesson.alike
        sentences.append(
            f"The number of sectors alone does not tell sets apart: {_sets([worse])} and"
            f" {_sets([better])} move equally many, with {useful(worse)} and {useful(better)}"
            " useful bytes in each."
        )
    sentences.append(_fastest_words(lesson, tflops))
    return sentences


def _fastest_words(lesson: traffic.Lesson, tflops: Mapping[traffic.Key, float]) -> str:
    top = lesson.fastest
    if top is None:
        return (
            "Which of them is fastest, counts do not say, and this result set does not have a"
            " time of each at this size."
        )
    speed = f"{_sets([top])} with {number(tflops[top.key])} TFLOPS"
    if lesson.fewest_is_fastest:
        return f"The fastest, {speed}, is among those that move the fewest sectors."
    few = max(lesson.fewest, key=lambda point: tflops[point.key])
    more = traffic.sectors(top) / traffic.sectors(few) - 1
    text = (
        f"Fewest sectors is not fastest: the fastest is {speed}, against"
        f" {number(tflops[few.key])} of {_sets([few])}, although it moves"
        f" {_plain_number(100 * more)} % more sectors"
    )
    return f"{text}; its sectors are the fullest." if top in lesson.fullest else f"{text}."


def _fetches(
    results: Results,
    rungs: Sequence[str],
    points: Sequence[traffic.Point],
    tflops: Mapping[traffic.Key, float],
) -> list[str]:
    """How each rung's best set lowers the fetches of an element and the sectors."""
    chosen = [
        point
        for name in rungs
        if (point := traffic.representative(name, points, tflops)) and traffic.sectors(point)
    ]
    sentences = []
    for before, after in itertools.pairwise(chosen):
        ratio = traffic.sectors(before) / traffic.sectors(after)
        if math.isclose(ratio, 1.0, rel_tol=0.01):
            continue
        factor = f"{_plain_number(ratio if ratio > 1 else 1 / ratio)} times"
        text = (
            f"{results.title(after.kernel)} ({_sets([after])}) moves"
            f" {integer(traffic.sectors(after))} sectors, {factor}"
            f" {'fewer' if ratio > 1 else 'more'} than {results.title(before.kernel)}"
            f" ({_sets([before])})"
        )
        names = ("redundancy_a", "redundancy_b")
        now, then = ([p.counts.get(name) for name in names] for p in (after, before))
        if None not in (*now, *then) and now != then:
            text += f": it fetches {_redundancy(now, then)} times"
        sentences.append(f"{text}.")
    return sentences[:_STEPS_IN_WORDS]


def _redundancy(now: Sequence[float | None], then: Sequence[float | None]) -> str:
    (a, b), (a_then, b_then) = ([_plain_number(v or 0.0) for v in pair] for pair in (now, then))
    if (a, a_then) == (b, b_then):
        return f"each element of A and B {a} instead of {a_then}"
    return f"each element of A {a} instead of {a_then} and of B {b} instead of {b_then}"


def _sets(points: Sequence[traffic.Point], limit: int = 6) -> str:
    ordered = sorted(points, key=lambda point: figures.params_order(point.params))
    names = [figures.params_label(point.params) or "its only set" for point in ordered]
    return _listed([*names[:limit], f"{len(names) - limit} more"] if len(names) > limit else names)


def _plain_number(value: float) -> str:
    """Up to two decimals, without trailing zeros."""
    text = f"{value:,.2f}" if abs(value) >= 10_000 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")


def _rung_view(results: Results, kernel: str, size: tuple[int, int, int]) -> dict[str, Any]:
    """One rung's tables at the common size, or at the largest that it has."""
    own = [point for point in results.counted if point.kernel == kernel]
    if not traffic.at_size(own, size):
        size = traffic.common_size(own) or size
    points = sorted(
        (point for point in own if point.size == size and (point.lead or point.status)),
        key=lambda point: figures.params_order(point.params),
    )
    title = results.title(kernel)
    at = _at(size)
    tables = []
    for name, quantities in (
        ("global", traffic.GLOBAL_MEMORY),
        ("shared", traffic.SHARED_MEMORY),
    ):
        shown = traffic.columns(quantities, points)
        if not shown:
            continue
        left_out = [q.name for q in quantities if q.shown == "counted" and q not in shown]
        caption = f"{title}: {name} memory {at}, {_counted_by(points)}."
        if name == "shared" and left_out:
            caption += f" None counted: {_listed(left_out)}."
        tables.append((name, _traffic_grid(points, shown, caption)))
    uses_shared = any(name == "shared" for name, _ in tables)
    compared = traffic.at_size(own, widest := compare_counters.widest_size(own))
    compared.sort(key=lambda point: figures.params_order(point.params))
    tflops = results.tflops()
    first = traffic.representative(kernel, compared, tflops) or next(iter(compared), None)
    others = [point for point in compared if point is not first]
    there = _at(widest) if widest else ""
    return {
        "id": f"traffic-{kernel}",
        "title": title,
        "tables": tables,
        "note": "" if uses_shared or not tables else "It uses no shared memory.",
        "comparison": _comparison_grid(results, [first] if first else [], title, there),
        "notes": _comparison_notes(results, first) if first else [],
        "others": _comparison_grid(results, others, title, there),
    }


def _at(size: tuple[int, int, int]) -> str:
    return f"at M\u00d7N\u00d7K = {size[0]}\u00d7{size[1]}\u00d7{size[2]}"


def _counted_by(points: Sequence[traffic.Point]) -> str:
    kinds = dict.fromkeys(point.lead.kind for point in points if point.lead)
    return "; ".join(figures.COUNTED_BY.get(kind, kind) for kind in kinds) or "not counted"


def _traffic_grid(
    points: Sequence[traffic.Point], shown: Sequence[traffic.Quantity], caption: str
) -> Grid:
    """A row a parameter set, a column a quantity: what the lead source of each counted."""
    rows = []
    for point in points:
        if point.lead is None:
            why = Cell("\u2013", note=f"not counted: {point.status}", numeric=True)
            rows.append([_set_cell(point), why, *(Cell("\u2013", None, True) for _ in shown[1:])])
        else:
            cells = (_quantity_cell(point, quantity) for quantity in shown)
            rows.append([_set_cell(point), *cells])
    heads = ["Parameters", *(quantity.heading for quantity in shown)]
    return Grid(heads, rows, caption, [False, *(True for _ in shown)], dense=True)


def _set_cell(point: traffic.Point) -> Cell:
    return Cell(figures.params_label(point.params) or "\u2013")


def _quantity_cell(point: traffic.Point, quantity: traffic.Quantity) -> Cell:
    value = quantity.of(point.counts)
    note = ""
    if quantity.form == "useful" and value is not None:
        note = f"{_plain_number(100 * value / traffic.SECTOR_BYTES)}\u202f%"
    return Cell(_quantity_text(quantity, value), _sortable(value), True, note)


def _quantity_text(quantity: traffic.Quantity, value: float | None) -> str:
    if value is None:
        return "\u2013"
    if quantity.form == "count":
        return f"{int(value):,}"
    if quantity.form == "bytes":
        return _bytes(value)
    return f"{_plain_number(value)}\u00d7" if quantity.form == "times" else _plain_number(value)


def _bytes(value: float) -> str:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return number(value / scale, 4, unit)
    return number(value, 4, "B")


def _signed_percent(ratio: float) -> str:
    """How far a ratio is from one: \u221237.5 %."""
    away = 100 * (ratio - 1)
    if away == 0:
        return "0 %"
    sign = "\u2212" if away < 0 else "+"
    return f"{sign}{number(abs(away), 3)} %"


_VERDICT_TONES: dict[compare_counters.Verdict, str] = {
    "equal": "good",
    "near": "good",
    "within bound": "good",
    "explained": "warn",
    "unexplained": "bad",
    "beyond bound": "bad",
    "not measured": "",
}
_BOUNDS = {"at most": "\u2264\u202f", "at least": "\u2265\u202f", "": ""}


def _comparison_grid(
    results: Results, points: Sequence[traffic.Point], title: str, at: str
) -> Grid | None:
    """Every quantity of every point by every source, in the order of the quantities."""
    kernels = results.kernels
    found = [
        row
        for point in points
        for row in compare_counters.compare(point, kernels.get(point.kernel))
    ]
    if not found:
        return None
    several = len(points) > 1
    silent = _silent_kinds(found)
    rows = []
    for row in found:
        cells = [_set_cell(row.point)] if several else []
        cells.append(Cell(row.quantity.name, note=row.quantity.metric))
        cells += [_source_cell(row, kind, kind in silent) for kind in traffic.ORDER]
        apart = row.relative_difference
        cells.append(Cell("\u2013" if apart is None else _signed_percent(1 + apart), apart, True))
        tone = _VERDICT_TONES[row.verdict]
        rows.append([*cells, Cell(row.verdict, note=row.reason or "", tone=tone)])
    heads = ["Counter", *(_comparison_head(kind, points) for kind in traffic.ORDER)]
    caption = (
        f"{title}: theory, emulator, machine code and hardware {at},"
        f" {_sets(points, 3) if points[0].params != '{}' else 'its only set'}. Relative difference:"
        " the largest between two of them, to the one further left."
    )
    for kind, why in silent.items():
        caption += f" {_KINDS[kind]}: {why}."
    numeric = [False, *(True for _ in traffic.ORDER), True, False]
    left_out = len(rows) - _ROWS_SIDE_BY_SIDE
    if left_out > 0:
        rows.sort(key=lambda cells: _TONE_ORDER[cells[-1].tone])
        caption += f" {_count(left_out, 'row')} of those that agree left out."
    return Grid(
        [*(["Parameters"] if several else []), *heads, "Relative difference", "Verdict"],
        rows[:_ROWS_SIDE_BY_SIDE],
        caption,
        [*([False] if several else []), *numeric],
        dense=True,
    )


_TONE_ORDER = {"bad": 0, "warn": 1, "good": 2, "": 3}


def _comparison_head(kind: str, points: Sequence[traffic.Point]) -> str:
    chosen = [compare_counters.sources(point).get(kind) for point in points]
    names = sorted({source.architecture for source in chosen if source and source.architecture})
    return f"{_KINDS[kind]} ({', '.join(names)})" if names else _KINDS[kind]


def _silent_kinds(rows: Sequence[compare_counters.Row]) -> dict[str, str]:
    """Kinds of source that tell nothing at all, and the one reason; it is said once for all."""
    silent = {}
    for kind in ("emulator", "compiled", "hardware"):
        reasons = {row.missing[kind] for row in rows if kind in row.missing}
        if len(reasons) == 1 and not any(kind in row.values for row in rows):
            silent[kind] = reasons.pop()
    return silent


def _source_cell(row: compare_counters.Row, kind: str, silent: bool) -> Cell:
    """A number; an en dash where the kind of source knows no such thing; or why there is none.

    Args:
        silent: the kind knows nothing of any row, and the caption says why.
    """
    value = row.values.get(kind)
    if value is None and kind == "hardware" and kind in row.missing:
        why = row.missing[kind]
        noted = silent or why == compare_counters.NOT_MEASURED
        return Cell(compare_counters.NOT_MEASURED, None, True, "" if noted else why)
    if value is None:
        return Cell("\u2013", None, True, "" if silent else row.missing.get(kind, ""))
    whole = row.quantity.unit not in ("sector/request", "byte/sector", "flop/byte", "1")
    text = f"{value:,.0f}" if whole else number(value, 4)
    return Cell((_BOUNDS[row.quantity.bound] if kind == "theory" else "") + text, value, True)


def _comparison_notes(results: Results, point: traffic.Point) -> list[str]:
    params = {name: int(value) for name, value in _json(point.params).items()}
    return compare_counters.notes(point, results.kernels.get(point.kernel), params)


def agreement_sentences(results: Results) -> list[str]:
    """In how many counts machine code and hardware agree as integers, and each exception."""
    found = compare_counters.agreement(results.counted, results.kernels)
    if not found.compared:
        return []
    sentences = [
        f"Machine code and hardware counters agree as integers in {found.equal} of"
        f" {_count(found.compared, 'count')} that both have, over all rungs, parameter sets and"
        " sizes."
    ]
    groups: dict[tuple[str, str, str], list[compare_counters.Row]] = {}
    for row in found.exceptions:
        key = (row.point.kernel, row.quantity.name, row.reason or "no known reason")
        groups.setdefault(key, []).append(row)
    for (kernel, name, why), rows in groups.items():
        sentences.append(
            f"{results.title(kernel)}, {name}: different in {_count(len(rows), 'point')},"
            f" {integer(rows[0].values['compiled'])} in machine code and"
            f" {integer(rows[0].values['hardware'])} on the GPU in the first; {why}."
        )
    return sentences


# --- figures ------------------------------------------------------------------------------------

_THEMED = {
    figures.INK: "var(--ink)",
    figures.MUTED: "var(--muted)",
    figures.GRID: "var(--grid)",
    figures.MARK: "var(--mark)",
    figures.PAPER: "var(--card)",
}
_TITLES = {
    "ladder": "The ladder",
    "sizes": "Sizes, shapes and caches",
    "steps": "Steps explained",
    "sweeps": "Parameter sweeps",
    "theory": "Roofline",
    "traffic": "Memory traffic, counted",
}


def _figure_views(figures_dir: Path) -> list[dict[str, Any]]:
    """Figures by section, each drawn twice: for wide and for narrow screens."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in figures.read_index(figures_dir):
        views = {}
        for kind in ("svg", "svg_single"):
            path = figures_dir / record.files[kind]
            views[kind] = inline_svg(
                path.read_text(encoding="utf-8"),
                f"{record.name}-{kind}",
                f"{record.title}. {record.alt}",
            )
        groups.setdefault(record.category, []).append({"record": record, **views})
    return [
        {
            "key": key,
            "title": _TITLES.get(key, key),
            "figures": items,
            "empty": all(item["record"].empty for item in items),
        }
        for key, items in groups.items()
    ]


def inline_svg(text: str, prefix: str, label: str) -> Markup:
    """An SVG file as an element of an HTML page: unique ids, the page's colours, a text label."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    for colour, variable in _THEMED.items():
        text = text.replace(colour, variable)
    text = re.sub(r'(<svg[^>]*?) width="[^"]+" height="[^"]+"', r"\1", text, count=1)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    attributes = Markup('<svg role="img" aria-label="{}"').format(label)
    text = re.sub(r"\n\s*", "\n", text)
    return Markup(str(attributes) + text[len("<svg") :])


# --- tables further down ------------------------------------------------------------------------


def _builds_grid(results: Results) -> Grid | None:
    builds = results.builds
    if builds.empty:
        return None
    rows = []
    position = {name: index for index, name in enumerate(results.kernels)}
    ordered = builds.assign(
        _at=builds["kernel"].map(position), _set=builds["params"].map(figures.params_order)
    ).sort_values(["architecture", "_at", "kernel", "_set"], kind="stable")
    for _, row in ordered.iterrows():
        spills = np.nansum([row["spill_store_bytes"], row["spill_load_bytes"]])
        smem = np.nansum([row["static_shared_memory_bytes"], row["dynamic_shared_memory_bytes"]])
        known = pd.notna(row["registers_per_thread"])
        rows.append(
            [
                Cell(results.title(row["kernel"])),
                Cell(figures.params_label(row["params"]) or "\u2013"),
                Cell(str(row["architecture"])),
                _status_cell(row["status"], row["detail"]),
                Cell(
                    integer(row["registers_per_thread"]),
                    _sortable(row["registers_per_thread"]),
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
                    _sortable(row["theoretical_occupancy_pct"]),
                    True,
                ),
                Cell(_word(row["occupancy_limit"]) or "\u2013"),
            ]
        )
    heads = [
        "Kernel",
        "Parameters",
        "Architecture",
        "Status",
        "Registers",
        "Spills, bytes",
        "Shared memory, bytes",
        "Occupancy",
        "limited by",
    ]
    return Grid(
        heads,
        rows,
        "What the compiler made of each kernel: registers per thread, bytes"
        " spilled to local memory, shared memory per block, theoretical occupancy and what"
        " limits it.",
        [False] * 4 + [True] * 4 + [False],
    )


def _builds_note(results: Results) -> str:
    spilled = results.builds[
        results.builds[["spill_store_bytes", "spill_load_bytes"]].fillna(0).sum(axis=1) > 0
    ]
    if results.builds.empty:
        return "Nothing was compiled."
    return (
        f"{_count(len(spilled), 'build')} of {len(results.builds)} spill registers to local memory."
        if len(spilled)
        else "No build spills registers."
    )


def _status_cell(status: Any, detail: Any = None) -> Cell:
    good = status in RANKED
    note = "" if good or not isinstance(detail, str) else detail
    return Cell(str(status), note=note[:300], tone="good" if good else "bad")


def _checks_grid(results: Results) -> Grid | None:
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
                    _sortable(worst),
                    True,
                    note="TF32, not held to it" if approximate and over else "",
                    tone="" if approximate else "bad" if over else "",
                )
            )
        cells += [_share_cell(own[column]) for column in checks[1:]]
        rows.append(cells)
    heads = [
        "Kernel",
        "Points",
        "Exact on small integers",
        "\u03b7 max (\u2264 16)",
        "\u03b7 rms (\u2264 1)",
        "Guards intact",
        "Inputs intact",
        "Same bits again",
        "Right after timing",
    ]
    return Grid(
        heads,
        rows,
        "Checks before and after timing: worst value or share of points that"
        " passed. \u03b7 = |C \u2212 R| / (2\u207b\u00b2\u2074 |A||B|) with R the FP64"
        " product.",
        [False, True, True, True, True, True, True, True, True],
    )


def _share_cell(values: pd.Series) -> Cell:
    known = values.dropna().astype(bool)
    if known.empty:
        return Cell("not checked", None, True)
    passed = int(known.sum())
    if passed == len(known):
        return Cell("all", 1.0, True, tone="good")
    return Cell(f"{passed} of {len(known)}", passed / len(known), True, tone="bad")


def _status_grid(results: Results) -> Grid | None:
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
                    Cell(EXPLANATIONS[status]),
                ]
            )
    extra = ["Emulated"] if emulated else []
    heads = ["Status", "Points", "Builds", *extra, "What it means"]
    return (
        Grid(
            heads,
            rows,
            "Every point and build by outcome. Only ok and ok_noisy feed figures and rankings.",
            [False, True, True, *(True for _ in extra), False],
        )
        if rows
        else None
    )


def _failures_grid(results: Results, limit: int = 400) -> Grid | None:
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
        shown = ", ".join(sizes[:8]) + (f" and {len(sizes) - 8} more" if len(sizes) > 8 else "")
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
        ["Status", "Kernel", "Parameters", "Sizes", "Reason"],
        rows,
        f"{_count(len(bad), 'point')} without a valid time, equal reasons together.",
        [False] * 5,
    )


def _not_measured(results: Results, views: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """What a reader might expect here and does not get, with the reason."""
    missing = []
    if results.ranked.empty:
        missing.append("Times: there is no valid timing in this result set.")
    if results.replayed:
        missing.append("Anything on this machine's own GPU; all times were replayed.")
    absent = [
        results.title(name) for name in results.kernels if name not in set(results.ranked["kernel"])
    ]
    if absent and len(results.ranked):
        missing.append(f"Without any valid time: {_listed(absent)}.")
    run = results.run or {}
    planned, measured = run.get("points_planned"), run.get("points_measured")
    stored = run.get("points_from_store") or 0
    if planned is not None and measured is not None and planned > measured + stored:
        missing.append(
            f"{_count(int(planned - measured - stored), 'planned point')} of"
            f" {int(planned)} have no result in the run shown."
        )
    if results.sheet is None and results.run is not None and results.run.get("gpu_name"):
        missing.append(f"Datasheet lines: config/gpus.yaml has no row for {results.gpu_name}.")
    missing += _unread_counters(results.counted)
    empty = [item["record"].title for view in views if view["empty"] for item in view["figures"]]
    if empty:
        missing.append(f"Figures that need times: {_listed(empty)}.")
    missing.append("DRAM bandwidth: the roofline's dashed roof is the datasheet's value.")
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
            f"Hardware counters of {_count(number, 'point')}: {reason}."
            for reason, number in reasons.items()
        ]
    if any(source.kind == "hardware" for point in points for source in point.values):
        return []
    return [
        "Hardware counters (sectors, requests, bank conflicts): they come from a separate profiling"
        " run, which is not part of this report."
    ]


def _conditions(results: Results) -> list[tuple[str, str]]:
    run = results.run or {}
    if not run.get("gpu_name"):
        return []
    wall, busy = run.get("wall_s"), run.get("gpu_event_busy_s")
    reasons = _json(run.get("throttle_reasons"))
    shares = ", ".join(
        f"{name} {percent(share, 2)}"
        for name, share in sorted(reasons.items())
        if isinstance(share, int | float) and share > 0
    )
    throttled = results.ranked["throttle_share"].dropna()
    samples = results.ranked["samples"].dropna()
    drift = run.get("sentinel_max_drift_pct")
    repeats = run.get("drift_repeats")
    rows: list[tuple[str, str | None]] = [
        ("SM clock", _range_of(run, "sm_clock", "MHz", 4)),
        ("SM clock after settling", _with_unit(run.get("settled_sm_clock_mhz"), "MHz", 4)),
        (
            "Maximum clocks, SM and memory",
            _joined_unit(run, ("gpu_max_sm_clock_mhz", "gpu_max_memory_clock_mhz"), "MHz"),
        ),
        ("Power", _power(run)),
        ("Highest power", _with_unit(run.get("power_max_w"), "W")),
        ("Highest temperature", _with_unit(run.get("temperature_max_c"), "\u00b0C")),
        ("Throttle reasons, share of polls", shares or "none seen"),
        (
            "Points with throttled samples",
            f"{int((throttled > 0).sum())} of {len(throttled)}" if len(throttled) else None,
        ),
        (
            "Sentinel drift, at most",
            f"{number(drift, 2)} %, {_count(int(repeats or 0), 'repeat')}"
            if drift is not None
            else None,
        ),
        (
            "GPU busy with measured launches",
            f"{percent(busy / wall)} of {number(wall, 3)} s" if wall and busy is not None else None,
        ),
        ("GPU utilisation, mean", _with_unit(run.get("gpu_utilization_mean_pct"), "%")),
        ("Worker restarts", _plain(run.get("worker_restarts"))),
        (
            "Samples",
            f"{int(samples.sum()):,} in {_count(len(samples), 'point')}" if len(samples) else None,
        ),
        (
            "Points planned, measured, from store",
            _joined(
                *(
                    _plain(run.get(name))
                    for name in ("points_planned", "points_measured", "points_from_store")
                )
            ),
        ),
        ("Event floor, null kernel", _joined_unit(run, ("event_floor_ns", "null_kernel_ns"), "ns")),
        ("ECC, MIG, persistence mode", _flags(run, ("gpu_ecc", "gpu_mig", "gpu_persistence_mode"))),
        ("Shared with other processes", _flags(run, ("gpu_shared",))),
        ("Run ended", run.get("end_reason")),
    ]
    return [(label, value) for label, value in rows if value is not None]


def _with_unit(value: Any, unit: str, digits: int = 3) -> str | None:
    return None if value is None else f"{number(value, digits)} {unit}"


def _joined_unit(run: Mapping[str, Any], names: Sequence[str], unit: str) -> str | None:
    known = [number(run[name], 4) for name in names if run.get(name) is not None]
    return f"{', '.join(known)} {unit}" if known else None


def _plain(value: Any) -> str | None:
    return None if value is None else f"{int(value)}"


def _flags(run: Mapping[str, Any], names: Sequence[str]) -> str | None:
    known = [run.get(name) for name in names]
    if all(value is None for value in known):
        return None
    return ", ".join("unknown" if value is None else "on" if value else "off" for value in known)


def _provenance(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """For the run that is shown, and for this machine's run if that is another one."""
    shown, local = results.run, _local_run(results)
    groups = []
    if shown is not None:
        same = local is not None and local["run_id"] == shown["run_id"]
        head = "The run" if same or not results.replayed else "The run that is replayed"
        groups.append((head, _provenance_rows(shown)))
        if local is not None and not same and results.replayed:
            groups.append(("This machine's run", _provenance_rows(local)))
    return groups


def _provenance_rows(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    commit = run.get("git_commit")
    if commit and run.get("git_dirty"):
        commit = f"{commit} with uncommitted changes"
    packages = _json(run.get("packages"))
    environment = _json(run.get("environment"))
    rows = [
        ("Run", run.get("run_id")),
        ("Started", _moment(run.get("started_at"))),
        ("Finished", _moment(run.get("finished_at"))),
        ("gemm-ladder", run.get("ladder_version")),
        ("Commit", commit),
        ("Configuration digest", run.get("config_digest")),
        ("Command", run.get("argv")),
        ("Seed", _plain(run.get("seed"))),
        ("Host", _joined(run.get("host_os"), run.get("host_cpu"))),
        ("Python", run.get("python_version")),
        ("GPU UUID", run.get("gpu_uuid")),
        ("Packages", ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))),
        (
            "Environment",
            ", ".join(f"{name}={value}" for name, value in sorted(environment.items())),
        ),
    ]
    return [(label, str(value)) for label, value in rows if value not in (None, "", "\u2013")]


def _protocol(results: Results) -> list[tuple[str, str]]:
    constants = _json((results.run or {}).get("protocol"))
    return [(name, str(value)) for name, value in constants.items()]


GLOSSARY: list[tuple[str, str]] = [
    (
        "Arithmetic intensity",
        "Floating-point operations per byte moved at a stated level: bytes"
        " that threads request, bytes through L2, or bytes from DRAM.",
    ),
    (
        "Bank conflict",
        "Shared memory has 32 banks of 4 bytes; lanes of a warp that need different"
        " words of one bank wait for each other.",
    ),
    (
        "Compulsory traffic",
        "4(MK + KN + MN) bytes: every matrix moved once. No kernel can move less"
        " through DRAM from a cold cache.",
    ),
    (
        "Machine balance, ridge",
        "Peak arithmetic rate over memory bandwidth, flop/byte. Below it a"
        " kernel is bound by memory, above it by arithmetic.",
    ),
    (
        "Occupancy",
        "Warps resident on an SM as a share of the most it can hold; limited by registers,"
        " shared memory, threads or blocks. More of it hides latency, but is no goal in itself.",
    ),
    (
        "Redundancy",
        "How often the threads of a launch ask for an element of A or B on average. Tiles in shared"
        " memory and registers lower it.",
    ),
    ("Request", "One load or store instruction of one warp."),
    (
        "Rotating, hot, cold",
        "Condition of the caches. Rotating: launches alternate between buffers"
        " that together exceed twice the L2 cache. Hot: one set of buffers, so that what fits stays"
        " in L2. Cold: the L2 cache is cleared before each launch.",
    ),
    (
        "Sector",
        "32 bytes, the unit of traffic between caches. A request costs as many sectors as its"
        " lanes touch.",
    ),
    (
        "SM",
        "Streaming multiprocessor: the GPU's core, with its own registers, shared memory and"
        " arithmetic lanes.",
    ),
    (
        "TF32",
        "A tensor-core format with FP32's range and 10 bits of mantissa. Products are much"
        " faster and less accurate; it is no FP32 arithmetic.",
    ),
    ("TFLOPS", "10\u00b9\u00b2 floating-point operations per second: 2MNK over the median time."),
    ("Warp", "32 threads that execute together."),
    (
        "Wavefront",
        "One pass of a shared-memory request over the 32 banks. A request of 4 bytes a lane takes"
        " one; what it takes beyond its width is bank conflicts.",
    ),
]
