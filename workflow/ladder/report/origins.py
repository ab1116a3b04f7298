"""Conditions of the measurement, and where everything comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..figures import Results
from .summary import local_run
from .words import (
    amount,
    flags,
    joined,
    joined_unit,
    json_object,
    moment,
    number,
    percent,
    plain,
    power,
    range_of,
    with_unit,
)


def conditions(results: Results) -> list[tuple[str, str]]:
    run = results.run or {}
    if not run.get("gpu_name"):
        return []
    wall, busy = run.get("wall_s"), run.get("gpu_event_busy_s")
    reasons = json_object(run.get("throttle_reasons"))
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
        ("SM clock", range_of(run, "sm_clock", "MHz", 4)),
        ("SM clock after settling", with_unit(run.get("settled_sm_clock_mhz"), "MHz", 4)),
        (
            "Maximum clocks, SM and memory",
            joined_unit(run, ("gpu_max_sm_clock_mhz", "gpu_max_memory_clock_mhz"), "MHz"),
        ),
        ("Power", power(run)),
        ("Highest power", with_unit(run.get("power_max_w"), "W")),
        ("Highest temperature", with_unit(run.get("temperature_max_c"), "\u00b0C")),
        ("Throttle reasons, share of polls", shares or "none seen"),
        (
            "Points with throttled samples",
            f"{int((throttled > 0).sum())} of {len(throttled)}" if len(throttled) else None,
        ),
        (
            "Sentinel drift, at most",
            f"{number(drift, 2)} %, {amount(int(repeats or 0), 'repeat')}"
            if drift is not None
            else None,
        ),
        (
            "GPU busy with measured launches",
            f"{percent(busy / wall)} of {number(wall, 3)} s" if wall and busy is not None else None,
        ),
        ("GPU utilisation, mean", with_unit(run.get("gpu_utilization_mean_pct"), "%")),
        ("Worker restarts", plain(run.get("worker_restarts"))),
        (
            "Samples",
            f"{int(samples.sum()):,} in {amount(len(samples), 'point')}" if len(samples) else None,
        ),
        (
            "Points planned, measured, from store",
            joined(
                *(
                    plain(run.get(name))
                    for name in ("points_planned", "points_measured", "points_from_store")
                )
            ),
        ),
        ("Event floor, null kernel", joined_unit(run, ("event_floor_ns", "null_kernel_ns"), "ns")),
        ("ECC, MIG, persistence mode", flags(run, ("gpu_ecc", "gpu_mig", "gpu_persistence_mode"))),
        ("Shared with other processes", flags(run, ("gpu_shared",))),
        ("Run ended", run.get("end_reason")),
    ]
    return [(label, value) for label, value in rows if value is not None]


def provenance(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """For the run that is shown, and for this machine's run if that is another one."""
    shown, local = results.run, local_run(results)
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
    packages = json_object(run.get("packages"))
    environment = json_object(run.get("environment"))
    rows = [
        ("Run", run.get("run_id")),
        ("Started", moment(run.get("started_at"))),
        ("Finished", moment(run.get("finished_at"))),
        ("gemm-ladder", run.get("ladder_version")),
        ("Commit", commit),
        ("Configuration digest", run.get("config_digest")),
        ("Command", run.get("argv")),
        ("Seed", plain(run.get("seed"))),
        ("Host", joined(run.get("host_os"), run.get("host_cpu"))),
        ("Python", run.get("python_version")),
        ("GPU UUID", run.get("gpu_uuid")),
        ("Packages", ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))),
        (
            "Environment",
            ", ".join(f"{name}={value}" for name, value in sorted(environment.items())),
        ),
    ]
    return [(label, str(value)) for label, value in rows if value not in (None, "", "\u2013")]


def protocol(results: Results) -> list[tuple[str, str]]:
    constants = json_object((results.run or {}).get("protocol"))
    return [(name, str(value)) for name, value in constants.items()]
