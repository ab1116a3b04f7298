"""From journals to tables: what was measured, judged once more and put into columns.

Nothing is dropped: failed points, warm-up samples and visits that drift made void all have rows.
Results of different GPUs and drivers stand in rows of their own and are never averaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import schema
from .builds import read_builds
from .config import Config
from .device import GpuIdentity
from .gpus import Datasheet, fp32_peak_tflops, lookup
from .manifest import Kernel, Launch, canonical
from .plan import Fault, Point, read_config, read_points
from .stats import quantiles
from .status import Status
from .store import Environment, Finished, load
from .telemetry import extreme, mean
from .timing import LAUNCH_BOUND_FACTOR, half_width_pct
from .work import WorkItem, work_item

PLAUSIBLE_SHARE = 1.02
"""Of the peak at the measured clock; above it a time cannot be true."""

ENERGY_SPAN_S = 0.5
"""Over less time the energy counter, which moves every 20 to 100 ms, tells too little."""

Run = Mapping[str, Any]


def collect(
    plan: Path,
    kernels: Mapping[str, Kernel],
    *,
    builds_root: Path,
    out: Path,
    gpus: Sequence[Datasheet],
) -> dict[str, int]:
    """Write `runs`, `builds`, `points` and `samples` of a result folder.

    Args:
        plan: the plan whose points are wanted.
        builds_root: folder of the builds.
        out: result folder; its `journal` holds the measurements.
        gpus: datasheet rows, for the peak of the tensor cores.

    Returns:
        Number of points by status.
    """
    finished = load(out / "journal")
    # By key: a kernel that selects others has points, and so their samples, in common with them.
    used: dict[str, dict[Point, None]] = {}
    points: list[dict[str, Any]] = []
    for newest, run in enumerate(_newest_runs(finished)):
        for item, row in _point_rows(plan, kernels, builds_root, finished, run, gpus):
            # What cannot run is said once, for the GPU that measured last.
            if item.fault and newest > 0:
                continue
            points.append(row)
            used.setdefault(item.point_key, {})[item.point] = None

    schema.write(out / "runs.parquet", "runs", [_run_row(run) for run in finished.runs.values()])
    # Builds that no point of the plan uses lie beside the others: a search tries many sets.
    wanted = set()
    for point, _ in read_points(plan):
        runs, params = kernels[point.kernel].resolve(point.parameters())
        wanted.add((runs.name, canonical(params)))
    builds = [row for row in read_builds(builds_root) if (row["kernel"], row["params"]) in wanted]
    schema.write(out / "builds.parquet", "builds", builds)
    schema.write(out / "points.parquet", "points", points)
    schema.write(out / "samples.parquet", "samples", samples_table(finished, used))
    counts: dict[str, int] = {}
    for row in points:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


def newest_point_rows(
    plan: Path,
    kernels: Mapping[str, Kernel],
    *,
    builds_root: Path,
    out: Path,
    gpus: Sequence[Datasheet],
) -> list[dict[str, Any]]:
    """Rows of `points` for a plan, of the GPU and driver that measured last."""
    finished = load(out / "journal")
    newest = _newest_runs(finished)[0]
    return [row for _, row in _point_rows(plan, kernels, builds_root, finished, newest, gpus)]


def _point_rows(
    plan: Path,
    kernels: Mapping[str, Kernel],
    builds_root: Path,
    finished: Finished,
    run: Run,
    gpus: Sequence[Datasheet],
) -> Iterator[tuple[WorkItem, dict[str, Any]]]:
    """The planned points of which something is known in the environment of a run."""
    config = read_config(plan)
    environment = _environment(run)
    architecture = _architecture(run, config)
    for point, fault in read_points(plan):
        kernel = kernels[point.kernel]
        item = work_item(point, fault, kernel, config, builds_root, architecture, environment)
        row = point_row(item, finished, run, architecture, config, gpus)
        if row is not None:
            yield item, row


def _newest_runs(finished: Finished) -> list[Run]:
    """The last run of each environment, newest environment first."""
    newest: dict[Environment, Run] = {}
    for run in sorted(finished.runs.values(), key=lambda run: str(run["started_at"])):
        environment = _environment(run)
        newest.pop(environment, None)
        newest[environment] = run
    return list(reversed(newest.values()))


def _environment(run: Run) -> Environment:
    return Environment(run["gpu_uuid"], str(run["driver_version"]), str(run["cublas_version"]))


def _architecture(run: Run, config: Config) -> str:
    identity = {field.name: run[f"gpu_{field.name}"] for field in fields(GpuIdentity)}
    return GpuIdentity(**identity).architecture(config.architectures)


def _timestamp(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _run_row(run: Run) -> dict[str, Any]:
    known = {name: run.get(name) for name in schema.RUNS.names}
    known["cuda_driver_api"] = run.get("gpu_cuda_driver_api")
    return known | {
        "started_at": _timestamp(run.get("started_at")),
        "finished_at": _timestamp(run.get("finished_at")),
        # A run that could not write its last line was killed.
        "end_reason": run.get("end_reason", "interrupted"),
    }


def point_row(
    item: WorkItem,
    finished: Finished,
    run: Run,
    architecture: str,
    config: Config,
    gpus: Sequence[Datasheet],
) -> dict[str, Any] | None:
    """One row of `points`; None if nothing is known about the point in this environment."""
    point = item.point
    build = item.build or {}
    launch = item.spec if item.spec and item.spec.cubin else None
    row: dict[str, Any] = {
        **point.row(),
        "family": item.family,
        "source": run["source"],
        "run_id": run["run_id"],
        "gpu_uuid": run["gpu_uuid"],
        "gpu_name": run["gpu_name"],
        "driver_version": run["driver_version"],
        "architecture": architecture,
        "cubin_sha256": build.get("cubin_sha256"),
        "source_sha256": build.get("source_sha256"),
        "flop": float(point.flop),
        "bytes_min": float(point.bytes_min),
        "gpu_shared": run["gpu_shared"],
        **(_geometry(launch) if launch else {}),
    }
    if item.fault:
        return row | _failure(item.fault)
    check = finished.checks.get(item.check_key)
    if check is None:
        return None
    row |= _check_columns(check)
    if check["status"] != Status.OK:
        return row | {"run_id": check["run_id"]} | _failure((check["status"], check.get("detail")))
    visits = [visit for _, visit in sorted(finished.visits.get(item.point_key, {}).items())]
    visits = [visit for visit in visits if visit["round"] < config.protocol.rounds]
    if not visits:
        return None
    row |= {
        "run_id": visits[-1]["run_id"],
        "measured_at": _timestamp(visits[-1]["measured_at"]),
        "drift_repeated": any(visit["drift_repeated"] for visit in visits),
    }
    failed = [visit for visit in visits if visit["status"] != Status.OK]
    timed = [visit for visit in visits if _times(visit)]
    if timed:
        row |= _timing_columns(point, timed, run)
    if failed:
        return row | _failure((failed[0]["status"], failed[0].get("detail")))
    return row | _verdict(row, item, visits, config, _peak_tflops(row, item, run, gpus))


def _geometry(spec: Any) -> dict[str, Any]:
    launch = Launch(spec.grid, spec.block, spec.dynamic_shared_memory_bytes)
    return {
        **{f"grid_{axis}": size for axis, size in zip("xyz", launch.grid, strict=True)},
        **{f"block_{axis}": size for axis, size in zip("xyz", launch.block, strict=True)},
        "dynamic_shared_memory_bytes": launch.dynamic_shared_memory_bytes,
    }


def _failure(fault: Fault | tuple[str, str | None]) -> dict[str, Any]:
    return {"status": str(fault[0]), "detail": fault[1]}


def _check_columns(check: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "exact",
        "wrong_elements",
        "eta_max",
        "eta_rms",
        "guards_intact",
        "inputs_intact",
        "deterministic",
    )
    return {name: _finite(check.get(name)) for name in names}


def _finite(value: Any) -> Any:
    """NaN and infinities of a failed comparison become null."""
    if isinstance(value, float) and not -1e300 < value < 1e300:
        return None
    return value


def _times(visit: Mapping[str, Any]) -> list[float]:
    return [
        time_ns
        for chunk in visit.get("chunks", [])
        if chunk["phase"] == "sample"
        for time_ns in chunk["times_ns"]
    ]


def _timing_columns(point: Point, visits: list[dict[str, Any]], run: Run) -> dict[str, Any]:
    times = [time_ns for visit in visits for time_ns in _times(visit)]
    chunks = [chunk for visit in visits for chunk in visit["chunks"] if chunk["phase"] == "sample"]
    summary = quantiles(times)
    medians = [quantiles(_times(visit))["median"] for visit in visits]
    median = summary["median"]
    clock = mean([chunk["sm_clock_mhz"] for chunk in chunks])
    peak = fp32_peak_tflops(run["gpu_sm_count"], run["gpu_compute_capability"], 1.0)
    tflops = point.flop / median / 1e3
    throttled = [chunk["throttled"] for chunk in chunks if chunk["throttled"] is not None]
    reasons = sorted({name for chunk in chunks for name in chunk["throttle_reasons"]})
    post = [visit["post_timing_correct"] for visit in visits]
    return {
        **{f"time_{name}_ns": value for name, value in summary.items()},
        "tflops": tflops,
        "tflops_ci_low": point.flop / summary["ci_high"] / 1e3,
        "tflops_ci_high": point.flop / summary["ci_low"] / 1e3,
        "pct_peak_max_clock": 100.0 * tflops / (peak * run["gpu_max_sm_clock_mhz"]),
        "pct_peak_measured_clock": 100.0 * tflops / (peak * clock) if clock else None,
        "samples": len(times),
        "rounds": len(visits),
        "stop_reason": visits[-1]["stop_reason"],
        "first_launch_ns": visits[0]["first_launch_ns"],
        "buffer_sets": visits[-1]["buffer_sets"],
        "inputs_exceed_l2": visits[-1]["inputs_exceed_l2"],
        "launches_per_sample": visits[-1]["launches_per_sample"],
        "launch_bound": median < LAUNCH_BOUND_FACTOR * run["null_kernel_ns"],
        "round_spread_pct": 100.0 * (max(medians) - min(medians)) / median,
        "wall_over_event": mean([visit["wall_over_event"] for visit in visits]),
        "sm_clock_mean_mhz": clock,
        "sm_clock_min_mhz": extreme([chunk["sm_clock_min_mhz"] for chunk in chunks], min),
        "memory_clock_mean_mhz": mean([chunk["memory_clock_mhz"] for chunk in chunks]),
        "power_mean_w": mean([chunk["power_w"] for chunk in chunks]),
        "temperature_max_c": extreme([chunk["temperature_c"] for chunk in chunks], max),
        "throttle_share": sum(throttled) / len(throttled) if throttled else None,
        "throttle_reasons": json.dumps(reasons),
        "post_timing_correct": None if None in post else all(post),
        **_energy_columns(visits, point.flop, median),
    }


def _energy_columns(
    visits: Sequence[Mapping[str, Any]], flop: int, median_ns: float
) -> dict[str, Any]:
    """Energy of one launch: power by the energy counter times the median time.

    Nothing where there is no counter, or it was watched for less than `ENERGY_SPAN_S`. Journals
    from before energy was read have none either.
    """
    watched = [visit for visit in visits if visit.get("energy_span_s")]
    span_s = sum(visit["energy_span_s"] for visit in watched)
    if span_s < ENERGY_SPAN_S:
        return {}
    power_w = sum(visit["energy_j"] for visit in watched) / span_s
    energy_j = power_w * median_ns * 1e-9
    return {
        "energy_span_s": span_s,
        "energy_per_launch_j": energy_j,
        "gflops_per_w": flop / energy_j / 1e9 if energy_j > 0 else None,
    }


def _peak_tflops(
    row: Mapping[str, Any], item: WorkItem, run: Run, gpus: Sequence[Datasheet]
) -> float | None:
    """The arithmetic peak at the measured clock that a point is held against, if it is known."""
    clock = row["sm_clock_mean_mhz"] or run["gpu_max_sm_clock_mhz"]
    if item.tensor_cores is None or item.tensor_products is None:
        return fp32_peak_tflops(run["gpu_sm_count"], run["gpu_compute_capability"], clock)
    datasheet = lookup(run["gpu_name"], gpus)
    peak = datasheet and datasheet.tensor_peak_tflops(
        item.tensor_cores.inputs, item.tensor_products
    )
    return peak * clock / datasheet.clock_mhz if datasheet and peak else None


def _verdict(
    row: Mapping[str, Any],
    item: WorkItem,
    visits: list[dict[str, Any]],
    config: Config,
    peak_tflops: float | None,
) -> dict[str, Any]:
    protocol = config.protocol
    if peak_tflops and row["tflops"] > PLAUSIBLE_SHARE * peak_tflops:
        return _failure(
            (
                Status.IMPLAUSIBLE,
                f"{row['tflops']:.1f} TFLOPS; the peak at the measured clock is {peak_tflops:.1f}",
            )
        )
    times = [time_ns for visit in visits for time_ns in _times(visit)]
    width = half_width_pct(times)
    faults = []
    if len(visits) < protocol.rounds:
        faults.append(f"{len(visits)} of {protocol.rounds} rounds")
    if width > protocol.interval_pct:
        faults.append(f"interval +-{width:.2f} %")
    if row["round_spread_pct"] > protocol.drift_pct:
        faults.append(f"rounds differ by {row['round_spread_pct']:.1f} %")
    if faults:
        return _failure((Status.OK_NOISY, "; ".join(faults)))
    return _failure((Status.OK, None))


def samples_table(finished: Finished, wanted: Mapping[str, Iterable[Point]]) -> pa.Table:
    """Every sample of the wanted points, warm-up, first launches and void visits included.

    Args:
        wanted: points by their key; each has all samples that were taken under the key.
    """
    columns: dict[str, list[Any]] = {name: [] for name in schema.SAMPLES.names}

    def add(point: Point, visit: Mapping[str, Any], superseded: bool) -> None:
        index = 0
        for chunk in visit.get("chunks", []):
            count = len(chunk["times_ns"])
            constant = {
                **point.row(),
                "gpu_uuid": finished.runs[visit["run_id"]]["gpu_uuid"],
                "run_id": visit["run_id"],
                "round": visit["round"],
                "superseded": superseded,
                "phase": chunk["phase"],
                "launches": chunk["launches"],
                "sm_clock_mhz": chunk["sm_clock_mhz"],
                "power_w": chunk["power_w"],
                "throttled": chunk["throttled"],
            }
            for name, value in constant.items():
                columns[name].extend([value] * count)
            columns["index"].extend(range(index, index + count))
            columns["time_per_launch_ns"].extend(chunk["times_ns"])
            index += count

    for key, points in wanted.items():
        for point in points:
            for _, visit in sorted(finished.visits.get(key, {}).items()):
                add(point, visit, superseded=False)
    for visit in finished.superseded:
        for point in wanted.get(visit["key"], ()):
            add(point, visit, superseded=True)
    arrays = [pa.array(columns[field.name], type=field.type) for field in schema.SAMPLES]
    return pa.Table.from_arrays(arrays, schema=schema.SAMPLES)
