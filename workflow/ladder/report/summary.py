"""The first screen: what was measured on what, and what this machine did itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from .. import figures, traffic
from ..figures import Results
from ..language import _, listed, plural, sentence
from ..status import RANKED, Status
from .emulation import emulation_summary, machine_code_summary
from .words import between, day, joined, moment, number, percent, power, range_of


def local_run(results: Results) -> dict[str, Any] | None:
    """The newest run without a GPU: this machine's, if times were replayed or none were taken."""
    local = results.runs[results.runs["gpu_uuid"].isna()]
    return figures.as_record(local.iloc[-1]) if len(local) else None


def subtitle(results: Results) -> str:
    ranked = results.ranked
    if ranked.empty:
        done = _done_here(results) if timeless(results) else ""
        return done or _("No valid timing in this result set.")
    dates = results.points["measured_at"].dropna()
    when = _(" on {day}").format(day=day(dates.max())) if len(dates) else ""
    counted = plural("{count} valid timing", "{count} valid timings", len(ranked))
    message = (
        _("{timings} replayed; measured on {gpu}{when}.")
        if results.replayed
        else _("{timings} measured on {gpu}{when}.")
    )
    return message.format(timings=counted, gpu=results.gpu_name, when=when)


def banner(results: Results) -> dict[str, str] | None:
    """The notice over everything else, if numbers are not this machine's or there are none."""
    if results.replayed:
        run = results.run or {}
        driver = run.get("driver_version") or _("unknown")
        dates = results.points["measured_at"].dropna()
        when = day(dates.max()) if len(dates) else _("an unknown date")
        return {
            "tone": "warn",
            "head": _("Replayed: measured elsewhere"),
            "text": _(
                "No timing on this page comes from this machine. All were measured on {gpu_name},"
                " driver {driver}, {when}, and are shown again here."
            ).format(gpu_name=results.gpu_name, driver=driver, when=when),
        }
    if timeless(results):
        outcomes = {traffic.outcome(point) for point in traffic.emulated(results.counted)}
        ran = bool(outcomes - {"skipped"})
        made = [_("compiled for the GPUs named below")] if len(results.builds) else []
        made += [_("run on the CPU and checked")] if ran else []
        text = _("All else on this page was made here: the kernels were {made}.").format(
            made=listed(made)
        )
        if not ran:
            text = (
                _("The kernels were compiled, but none ran, not even on the CPU.")
                if made
                else _("No kernel ran, not even on the CPU.")
            )
        tone = "bad" if "fault" in outcomes else "plain"
        return {"tone": tone, "head": sentence(_why_no_times(results)), "text": text}
    if results.ranked.empty:
        head = _("Nothing was measured") if results.points.empty else _("No valid timing")
        text = (
            _("There is no measurement in this result set and none was replayed.")
            if results.points.empty
            else _("Every point failed or was skipped; the reasons are listed below.")
        )
        return {"tone": "bad", "head": head, "text": text}
    if bool((results.run or {}).get("gpu_shared")):
        return {
            "tone": "warn",
            "head": _("Measured on a shared GPU"),
            "text": _("Other processes used the GPU during this run; times may be too long."),
        }
    return None


def timeless(results: Results) -> bool:
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
        return _("No times: no GPU here and no published set")
    return _("No times: no GPU here, and {why}").format(why=why)


def _done_here(results: Results) -> str:
    """What a machine without a GPU did, counted, in one sentence."""
    good = int(results.builds["status"].isin(RANKED).sum())
    asked = traffic.emulated(results.counted)
    run = [point for point in asked if traffic.outcome(point) != "skipped"]
    faulty = sum(traffic.outcome(point) == "fault" for point in run)
    parts = []
    if len(results.builds):
        parts.append(
            _("Compiled {builds}").format(builds=plural("{count} build", "{count} builds", good))
        )
    if run:
        message = _("emulated {points}") if parts else _("Emulated {points}")
        points = plural("{count} point", "{count} points", len(run))
        parts.append(message.format(points=points))
        faults = plural("{count} fault", "{count} faults", faulty) if faulty else _("no fault")
        parts.append(_("found {faults}").format(faults=faults))
    elif asked:
        message = _("emulated none of {points}") if parts else _("Emulated none of {points}")
        points = plural("{count} point", "{count} points", len(asked))
        parts.append(message.format(points=points))
    return sentence(listed(parts)) if parts else ""


def _gpu(results: Results) -> str | None:
    """The GPU's name, and how many cards took part; "none" where nothing was timed."""
    name = (results.run or {}).get("gpu_name")
    if not name:
        return _("none") if timeless(results) else None
    cards = results.points["gpu_uuid"].nunique()
    return (
        _("{name}, {cards} cards, each size on one").format(name=name, cards=cards)
        if cards > 1
        else name
    )


def tiles(ladder: pd.DataFrame) -> list[tuple[str, str, str]]:
    """What the fastest rung reaches: value, what it is of, and its 95 % interval."""
    rungs = ladder[ladder["kind"] == "rung"]
    if rungs.empty:
        return []
    top = rungs.sort_values("tflops").iloc[-1]
    at = _("{rung} at N = {n}").format(rung=top["series"], n=int(top["n"]))
    span = between(top["tflops_ci_low"], top["tflops_ci_high"], digits=4)
    found = [(_("{value} TFLOPS").format(value=number(top["tflops"])), at, span)]
    if pd.notna(top["vs_reference"]):
        span = between(top["vs_reference_low"], top["vs_reference_high"], 100, 4)
        found.append((percent(top["vs_reference"]), _("of cuBLAS FP32"), span))
    if pd.notna(top["pct_peak_max_clock"]):
        peak = number(top["pct_peak_max_clock"], 3, "%")
        found.append((peak, _("of the FP32 peak"), ""))
    return found


def facts(results: Results) -> list[tuple[str, str]]:
    """What was measured on what, when and how: label and value."""
    run = results.run or {}
    peak, sheet = results.peak_tflops, results.sheet
    facts: list[tuple[str, str | None]] = [
        ("GPU", _gpu(results)),
        (
            _("SMs, compute capability"),
            joined(run.get("gpu_sm_count"), run.get("gpu_compute_capability")),
        ),
        (
            _("FP32 peak"),
            _("{peak} TFLOPS at {gpu_max_sm_clock_mhz} MHz").format(
                peak=number(peak), gpu_max_sm_clock_mhz=number(run.get("gpu_max_sm_clock_mhz"), 4)
            )
            if peak
            else None,
        ),
        (
            _("DRAM bandwidth"),
            _("{memory_gb_s} GB/s (datasheet)").format(memory_gb_s=number(sheet.memory_gb_s, 4))
            if sheet
            else None,
        ),
        (_("Driver, CUDA"), joined(run.get("driver_version"), run.get("cuda_driver_api"))),
        (
            _("Compiler"),
            _("NVRTC {nvrtc_version}").format(nvrtc_version=run["nvrtc_version"])
            if run.get("nvrtc_version")
            else None,
        ),
        (_("cuBLAS"), run.get("cublas_version")),
        (_("SM clock in the run"), range_of(run, "sm_clock", "MHz", 4)),
        (_("Power"), power(run)),
        (_("Measured") if run.get("gpu_name") else _("Run"), moment(run.get("started_at"))),
        (_("Host"), joined(run.get("host_os")) if timeless(results) else None),
        (_("Emulated"), _emulated_fact(results)),
        (
            _("Protocol"),
            _("version {protocol_version}").format(protocol_version=run["protocol_version"])
            if run.get("protocol_version")
            else None,
        ),
    ]
    return [(label, str(value)) for label, value in facts if value not in (None, "\u2013")]


def _emulated_fact(results: Results) -> str | None:
    asked = traffic.emulated(results.counted)
    if not asked:
        return None
    outcomes = Counter(traffic.outcome(point) for point in asked)
    right = outcomes["right"] + outcomes["inexact"]
    parts = [_("{points} right").format(points=plural("{count} point", "{count} points", right))]
    if outcomes["fault"]:
        parts.append(plural("{count} fault", "{count} faults", outcomes["fault"]))
    if outcomes["skipped"]:
        parts.append(_("{number} not run").format(number=outcomes["skipped"]))
    return _(", ").join(parts)


def this_machine(results: Results) -> list[str]:
    """What this machine did itself, and what it could not do."""
    sentences = []
    builds = results.builds
    if len(builds):
        good = builds[builds["status"].isin(RANKED)]
        by_architecture = good.groupby("architecture", sort=True).size()
        names = listed(f"{name} ({count})" for name, count in by_architecture.items())
        compilers = sorted(
            {
                f"{kind or 'compiler'} {version or ''}".strip()
                for kind, version in zip(
                    builds["compiler"], builds["compiler_version"], strict=True
                )
                if kind is not None or version is not None
            }
        )
        bad = int((builds["status"] == Status.COMPILE_FAILED).sum())
        unsuited = len(builds) - len(good) - bad
        text = _("Compiled {variants}").format(
            variants=plural("{count} kernel variant", "{count} kernel variants", len(good))
        )
        text += _(" for {names}").format(names=names) if names else ""
        text += _(" with {compilers}").format(compilers=listed(compilers)) if compilers else ""
        if bad:
            failed = plural("{count} build failed", "{count} builds failed", bad)
            text += _("; {failed}").format(failed=failed)
        if unsuited:  # too much shared memory, say, or instructions that only another has
            others = plural(
                "{count} more is not for its architecture",
                "{count} more are not for their architectures",
                unsuited,
            )
            text += _("; {others}").format(others=others)
        sentences.append(sentence(text))
    else:
        sentences.append(_("Nothing was compiled: the builds table is empty."))
    if traffic.emulated(results.counted):
        sentences += emulation_summary(results)
        sentences += machine_code_summary(results)
    without_times = results.replayed or results.ranked.empty
    if local_run(results) is not None and without_times and not timeless(results):
        sentences.append(
            _(
                "Nothing was measured, because no NVIDIA GPU answered on this machine or measuring"
                " was switched off (gpu.use)."
            )
        )
    end = (results.run or {}).get("end_reason")
    if not results.replayed and end not in (None, "complete"):
        sentences.append(
            _("The run on {gpu_name} did not finish: {end}.").format(
                gpu_name=results.gpu_name, end=end
            )
        )
    measured = results.points[
        (results.points["source"] == "measured") & results.points["status"].isin(RANKED)
    ]
    if len(measured):
        sentences.append(
            _("Measured {measured} on this machine's GPU.").format(
                measured=plural("{count} point", "{count} points", len(measured))
            )
        )
    return sentences
