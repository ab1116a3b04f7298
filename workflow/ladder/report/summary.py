"""The first screen: what was measured on what, and what this machine did itself."""

from __future__ import annotations

from typing import Any

from .. import figures, traffic
from ..figures import Results
from ..status import RANKED
from .emulation import emulation_summary, machine_code_summary
from .words import amount, day, joined, listed, moment, number, power, range_of


def local_run(results: Results) -> dict[str, Any] | None:
    """The newest run without a GPU: this machine's, if times were replayed or none were taken."""
    local = results.runs[results.runs["gpu_uuid"].isna()]
    return figures.as_record(local.iloc[-1]) if len(local) else None


def subtitle(results: Results) -> str:
    ranked = results.ranked
    if ranked.empty:
        done = _done_here(results) if timeless(results) else ""
        return done or "No valid timing in this result set."
    dates = results.points["measured_at"].dropna()
    when = f" on {day(dates.max())}" if len(dates) else ""
    counted = amount(len(ranked), "valid timing")
    verb = "replayed; measured" if results.replayed else "measured"
    return f"{counted} {verb} on {results.gpu_name}{when}."


def banner(results: Results) -> dict[str, str] | None:
    """The notice over everything else, if numbers are not this machine's or there are none."""
    if results.replayed:
        run = results.run or {}
        driver = run.get("driver_version") or "unknown"
        dates = results.points["measured_at"].dropna()
        when = day(dates.max()) if len(dates) else "an unknown date"
        return {
            "tone": "warn",
            "head": "Replayed: measured elsewhere",
            "text": f"No timing on this page comes from this machine. All were measured on "
            f"{results.gpu_name}, driver {driver}, {when}, and are shown again here.",
        }
    if timeless(results):
        outcomes = {traffic.outcome(point) for point in traffic.emulated(results.counted)}
        ran = bool(outcomes - {"skipped"})
        made = ["compiled for the GPUs named below"] if len(results.builds) else []
        made += ["run on the CPU and checked"] if ran else []
        text = f"All else on this page was made here: the kernels were {listed(made)}."
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
        return "No times: no GPU here and no published set"
    return f"No times: no GPU here, and {why}"


def _done_here(results: Results) -> str:
    """What a machine without a GPU did, counted, in one sentence."""
    good = int(results.builds["status"].isin(RANKED).sum())
    asked = traffic.emulated(results.counted)
    run = [point for point in asked if traffic.outcome(point) != "skipped"]
    faulty = sum(traffic.outcome(point) == "fault" for point in run)
    parts = [f"Compiled {amount(good, 'build')}"] if len(results.builds) else []
    if run:
        parts.append(f"{'emulated' if parts else 'Emulated'} {amount(len(run), 'point')}")
        parts.append(f"found {amount(faulty, 'fault') if faulty else 'no fault'}")
    elif asked:
        parts.append(f"{'emulated' if parts else 'Emulated'} none of {amount(len(asked), 'point')}")
    return f"{listed(parts)}." if parts else ""


def _gpu(results: Results) -> str | None:
    """The GPU's name, and how many cards took part; "none" where nothing was timed."""
    name = (results.run or {}).get("gpu_name")
    if not name:
        return "none" if timeless(results) else None
    cards = results.points["gpu_uuid"].nunique()
    return f"{name}, {cards} cards, each size on one" if cards > 1 else name


def facts(results: Results) -> list[tuple[str, str]]:
    """What was measured on what, when and how: label and value."""
    run = results.run or {}
    peak, sheet = results.peak_tflops, results.sheet
    facts: list[tuple[str, str | None]] = [
        ("GPU", _gpu(results)),
        (
            "SMs, compute capability",
            joined(run.get("gpu_sm_count"), run.get("gpu_compute_capability")),
        ),
        (
            "FP32 peak",
            f"{number(peak)} TFLOPS at {number(run.get('gpu_max_sm_clock_mhz'), 4)} MHz"
            if peak
            else None,
        ),
        ("DRAM bandwidth", f"{number(sheet.memory_gb_s, 4)} GB/s (datasheet)" if sheet else None),
        ("Driver, CUDA", joined(run.get("driver_version"), run.get("cuda_driver_api"))),
        ("Compiler", f"NVRTC {run['nvrtc_version']}" if run.get("nvrtc_version") else None),
        ("cuBLAS", run.get("cublas_version")),
        ("SM clock in the run", range_of(run, "sm_clock", "MHz", 4)),
        ("Power", power(run)),
        ("Measured" if run.get("gpu_name") else "Run", moment(run.get("started_at"))),
        ("Host", joined(run.get("host_os")) if timeless(results) else None),
        ("Emulated", _emulated_fact(results)),
        ("Protocol", f"version {run['protocol_version']}" if run.get("protocol_version") else None),
    ]
    return [(label, str(value)) for label, value in facts if value not in (None, "\u2013")]


def _emulated_fact(results: Results) -> str | None:
    asked = traffic.emulated(results.counted)
    if not asked:
        return None
    right = sum(traffic.outcome(point) in ("right", "inexact") for point in asked)
    return f"{right} of {amount(len(asked), 'point')} right"


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
        bad = len(builds) - len(good)
        sentence = f"Compiled {amount(len(good), 'kernel variant')}"
        sentence += f" for {names}" if names else ""
        sentence += f" with {listed(compilers)}" if compilers else ""
        sentences.append(sentence + (f"; {amount(bad, 'build')} failed." if bad else "."))
    else:
        sentences.append("Nothing was compiled: the builds table is empty.")
    if traffic.emulated(results.counted):
        sentences += emulation_summary(results)
        sentences += machine_code_summary(results)
    without_times = results.replayed or results.ranked.empty
    if local_run(results) is not None and without_times and not timeless(results):
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
        sentences.append(f"Measured {amount(len(measured), 'point')} on this machine's GPU.")
    return sentences
