"""Conditions of the measurement, and where everything comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..figures import Results
from ..language import _, plural
from .summary import local_run
from .words import (
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
        (_("SM clock"), range_of(run, "sm_clock", "MHz", 4)),
        (_("SM clock after settling"), with_unit(run.get("settled_sm_clock_mhz"), "MHz", 4)),
        (
            _("Maximum clocks, SM and memory"),
            joined_unit(run, ("gpu_max_sm_clock_mhz", "gpu_max_memory_clock_mhz"), "MHz"),
        ),
        (_("Power"), power(run)),
        (_("Highest power"), with_unit(run.get("power_max_w"), "W")),
        (_("Highest temperature"), with_unit(run.get("temperature_max_c"), "\u00b0C")),
        (_("Throttle reasons, share of polls"), shares or _("none seen")),
        (
            _("Points with throttled samples"),
            _("{number} of {points}").format(
                number=int((throttled > 0).sum()), points=len(throttled)
            )
            if len(throttled)
            else None,
        ),
        (
            _("Sentinel drift, at most"),
            joined(
                f"{number(drift, 2)} %",
                plural("{count} repeat", "{count} repeats", int(repeats or 0)),
            )
            if drift is not None
            else None,
        ),
        (
            _("GPU busy with measured launches"),
            _("{share} of {wall} s").format(share=percent(busy / wall), wall=number(wall, 3))
            if wall and busy is not None
            else None,
        ),
        (_("GPU utilisation, mean"), with_unit(run.get("gpu_utilization_mean_pct"), "%")),
        (_("Worker restarts"), plain(run.get("worker_restarts"))),
        (
            _("Samples"),
            _("{samples} in {points}").format(
                samples=f"{int(samples.sum()):,}",
                points=plural("{count} point", "{count} points", len(samples)),
            )
            if len(samples)
            else None,
        ),
        (
            _("Points planned, measured, from store"),
            joined(
                *(
                    plain(run.get(name))
                    for name in ("points_planned", "points_measured", "points_from_store")
                )
            ),
        ),
        (
            _("Event floor, null kernel"),
            joined_unit(run, ("event_floor_ns", "null_kernel_ns"), "ns"),
        ),
        (
            _("ECC, MIG, persistence mode"),
            flags(run, ("gpu_ecc", "gpu_mig", "gpu_persistence_mode")),
        ),
        (_("Shared with other processes"), flags(run, ("gpu_shared",))),
        (_("Run ended"), run.get("end_reason")),
    ]
    return [(label, value) for label, value in rows if value is not None]


def provenance(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """For the run that is shown, and for this machine's run if that is another one."""
    shown, local = results.run, local_run(results)
    groups = []
    if shown is not None:
        same = local is not None and local["run_id"] == shown["run_id"]
        head = _("The run") if same or not results.replayed else _("The run that is replayed")
        groups.append((head, _provenance_rows(shown)))
        if local is not None and not same and results.replayed:
            groups.append((_("This machine's run"), _provenance_rows(local)))
    return groups


def _provenance_rows(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    commit = run.get("git_commit")
    if commit and run.get("git_dirty"):
        commit = _("{commit} with uncommitted changes").format(commit=commit)
    packages = json_object(run.get("packages"))
    environment = json_object(run.get("environment"))
    rows = [
        (_("Run"), run.get("run_id")),
        (_("Started"), moment(run.get("started_at"))),
        (_("Finished"), moment(run.get("finished_at"))),
        ("gemm-ladder", run.get("ladder_version")),
        (_("Commit"), commit),
        (_("Configuration digest"), run.get("config_digest")),
        (_("Command"), run.get("argv")),
        (_("Seed"), plain(run.get("seed"))),
        (_("Host"), joined(run.get("host_os"), run.get("host_cpu"))),
        ("Python", run.get("python_version")),
        ("GPU UUID", run.get("gpu_uuid")),
        (
            _("Packages"),
            ", ".join(f"{name} {version}" for name, version in sorted(packages.items())),
        ),
        (
            _("Environment"),
            ", ".join(f"{name}={value}" for name, value in sorted(environment.items())),
        ),
    ]
    return [(label, str(value)) for label, value in rows if value not in (None, "", "\u2013")]


def protocol(results: Results) -> list[tuple[str, str]]:
    constants = json_object((results.run or {}).get("protocol"))
    return [(name, str(value)) for name, value in constants.items()]
