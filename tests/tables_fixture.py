"""Synthetic result sets for tests of figures and report: an invented GPU's invented numbers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ladder import schema, special_values, stats
from ladder.config import Figures
from ladder.emulator import result
from ladder.manifest import Kernel, canonical, expand, load_all
from ladder.status import Status

ROOT = Path(__file__).resolve().parents[1]
GPU_NAME = "Synthetic GPU"
PEAK_TFLOPS = 40.96  # 100 SMs x 128 lanes x 2 x 1600 MHz
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SQUARES = (256, 512, 1023, 1024, 2047, 2048, 4095, 4096, 8192)
SHAPES = ((64, 4096, 4096), (256, 256, 16384), (127, 129, 131), (1, 4096, 4096))
COARSE = Figures(png_dpi=72)
"""Figures that need not be printed: at 300 dots per inch PNGs take a quarter of all drawing."""
Row = dict[str, Any]


def gpus_yaml(folder: Path) -> Path:
    """A `gpus.yaml` that knows the invented GPU."""
    folder.mkdir(parents=True, exist_ok=True)
    sheet = {
        "name": "Synthetic GPU",
        "driver_names": [GPU_NAME],
        "compute_capability": "9.0",
        "sms": 100,
        "fp32_lanes_per_sm": 128,
        "clock_mhz": 1600,
        "fp32_tflops": PEAK_TFLOPS,
        "tf32_tflops": 300,
        "memory_gb_s": 2500,
        "l2_bytes": 50 * 2**20,
        "shared_memory_per_sm_bytes": 233472,
        "shared_memory_per_block_optin_bytes": 232448,
        "power_w": 500,
        "source": "invented for the tests, 2026",
    }
    path = folder / "gpus.yaml"
    path.write_text(yaml.safe_dump({"gpus": [sheet]}), encoding="utf-8")
    return path


def repository_kernels() -> dict[str, Kernel]:
    """The kernels of the repository that every version of the ladder has."""
    names = ("01_naive", "03_shared_tile", "cublas_fp32", "cublas_tf32")
    known = load_all(ROOT / "kernels")
    return {name: known[name] for name in names}


def tall_ladder(folder: Path, rungs: int = 14) -> dict[str, Kernel]:
    """A ladder with many rungs, to see whether figures and report have room for them."""
    folder.mkdir(parents=True, exist_ok=True)
    base = repository_kernels()
    for index in range(1, rungs + 1):
        name = f"{index:02d}_rung"
        text = base["03_shared_tile"].manifest_path.read_text(encoding="utf-8")
        title = f"title: Invented rung with a long title {index}"
        text = text.replace("title: Shared tile", title)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        (folder / f"{name}.cu").write_text("// synthetic\n", encoding="utf-8")
    return {
        **load_all(folder),
        "cublas_fp32": base["cublas_fp32"],
        "cublas_tf32": base["cublas_tf32"],
    }


def invented_tflops(
    kernel: str, params: Mapping[str, int], shape: tuple[int, int, int], mode: str
) -> float:
    """A smooth invented throughput, TFLOPS: better for later rungs, large and aligned sizes."""
    m, n, k = shape
    ceiling = {"cublas_fp32": 36.0, "cublas_tf32": 210.0}.get(kernel)
    if ceiling is None:
        rung = int(kernel[:2])
        ceiling = 39.0 * (1 - 0.86 * 0.74 ** (rung - 1) - 0.02 * (rung == 5))
        for position, value in enumerate(sorted(params.values())):
            ceiling *= 1 - 0.05 * abs(np.log2(value) - 3 - 2 * position)
    size = float(m * n * k) ** (1 / 3)
    aligned = all(side % 32 == 0 for side in shape)
    cache = {"rotating": 1.0, "hot": 1.0 + 60 / size, "cold": 1.0 - 45 / size}[mode]
    return float(ceiling * size / (size + 500) * (1.0 if aligned else 0.93) * cache)


def point(
    kernel: str,
    params: Mapping[str, int] | None = None,
    shape: tuple[int, int, int] = (1024, 1024, 1024),
    mode: str = "rotating",
    *,
    tflops: float | None = None,
    count: int = 40,
    run: Row | None = None,
    **changes: Any,
) -> tuple[Row, list[Row]]:
    """One row of `points` and its rows of `samples`."""
    run = run or gpu_run()
    m, n, k = shape
    flop, params = 2.0 * m * n * k, dict(params or {})
    key = {
        "kernel": kernel,
        "params": canonical(params),
        "m": m,
        "n": n,
        "k": k,
        "cache_mode": mode,
    }
    rate = invented_tflops(kernel, params, shape, mode) if tflops is None else tflops
    seed = zlib.crc32(json.dumps(key, sort_keys=True).encode())
    generator = np.random.default_rng(seed)
    times = flop / rate / 1e3 * generator.normal(1.0, 0.004, count)
    q = stats.quantiles(times)
    row: Row = {
        **key,
        **{f"time_{name}_ns": value for name, value in q.items()},
        "status": Status.OK,
        "source": run["source"],
        "run_id": run["run_id"],
        "measured_at": run["started_at"] + timedelta(seconds=30),
        "gpu_uuid": run["gpu_uuid"],
        "gpu_name": run["gpu_name"],
        "driver_version": run["driver_version"],
        "architecture": "sm_90a",
        "flop": flop,
        "bytes_min": 4.0 * (m * k + k * n + m * n),
        "samples": count,
        "rounds": 2,
        "stop_reason": "interval",
        "tflops": flop / q["median"] / 1e3,
        "tflops_ci_low": flop / q["ci_high"] / 1e3,
        "tflops_ci_high": flop / q["ci_low"] / 1e3,
        "sm_clock_mean_mhz": 1580.0,
        "power_mean_w": 410.0,
        "temperature_max_c": 61.0,
        "throttle_share": 0.0,
        "exact": True,
        "wrong_elements": 0,
        "guards_intact": True,
        "inputs_intact": True,
        "deterministic": True,
        "post_timing_correct": True,
        "eta_max": 180.0 if kernel == "cublas_tf32" else 2.1,
        "eta_rms": 66.0 if kernel == "cublas_tf32" else 0.4,
    }
    row["pct_peak_max_clock"] = 100 * row["tflops"] / PEAK_TFLOPS
    row["pct_peak_measured_clock"] = 100 * row["tflops"] / (PEAK_TFLOPS * 1580 / 1600)
    row.update(changes)
    samples = [
        {
            **key,
            "gpu_uuid": row["gpu_uuid"],
            "run_id": row["run_id"],
            "round": index % 2,
            "superseded": False,
            "phase": "sample",
            "index": index,
            "launches": 1,
            "time_per_launch_ns": float(time),
            "sm_clock_mhz": 1580.0,
            "power_w": 410.0,
            "throttled": False,
        }
        for index, time in enumerate(times)
    ]
    return row, samples


def failed(kernel: str, status: Status, detail: str, *, on_gpu: bool = True, **keys: Any) -> Row:
    """A row of `points` without a time."""
    row, _ = point(kernel, **keys)
    blank = {name: None for name in row if name.startswith(("time_", "tflops", "pct_", "eta_"))}
    if not on_gpu:
        blank |= {"gpu_uuid": None, "gpu_name": None, "driver_version": None, "measured_at": None}
    return {**row, **blank, "status": status, "detail": detail, "samples": None}


def gpu_run(run_id: str = "run-1", **changes: Any) -> Row:
    """A row of `runs` with a GPU."""
    row: Row = {
        "run_id": run_id,
        "source": "measured",
        "started_at": START,
        "finished_at": START + timedelta(minutes=6),
        "end_reason": "complete",
        "ladder_version": "0.1.0",
        "protocol_version": 1,
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "config_digest": "abcdef012345",
        "argv": "snakemake --cores 1",
        "seed": 20250,
        "host_os": "Linux 6.1",
        "host_cpu": "Synthetic CPU",
        "python_version": "3.12.0",
        "packages": json.dumps({"numpy": "2.0", "cupy": "14.0"}),
        "environment": "{}",
        "gpu_uuid": "GPU-synthetic-0",
        "gpu_name": GPU_NAME,
        "gpu_compute_capability": "9.0",
        "gpu_sm_count": 100,
        "gpu_l2_bytes": 50 * 2**20,
        "gpu_memory_bytes": 80 * 2**30,
        "gpu_smem_per_block_optin_bytes": 232448,
        "gpu_max_sm_clock_mhz": 1600,
        "gpu_max_memory_clock_mhz": 2600,
        "gpu_memory_bus_bits": 5120,
        "gpu_power_limit_w": 500.0,
        "gpu_ecc": True,
        "gpu_mig": False,
        "gpu_persistence_mode": True,
        "gpu_shared": False,
        "gpu_other_processes": 0,
        "driver_version": "999.00",
        "cuda_driver_api": "13.0",
        "nvrtc_version": "13.5.0",
        "cublas_version": "13.1.0",
        "event_floor_ns": 2100.0,
        "null_kernel_ns": 2300.0,
        "settle_s": 3.2,
        "settled_sm_clock_mhz": 1580.0,
        "sentinel_median_ns": 3.9e6,
        "sentinel_max_drift_pct": 0.6,
        "drift_repeats": 1,
        "worker_restarts": 2,
        "points_planned": 120,
        "points_measured": 110,
        "points_from_store": 8,
        "wall_s": 360.0,
        "gpu_event_busy_s": 280.0,
        "gpu_utilization_mean_pct": 84.0,
        "sm_clock_min_mhz": 1500.0,
        "sm_clock_mean_mhz": 1575.0,
        "sm_clock_max_mhz": 1600.0,
        "power_mean_w": 410.0,
        "power_max_w": 488.0,
        "temperature_max_c": 63.0,
        "throttle_reasons": json.dumps({"sw_power_cap": 0.04}),
        "protocol": json.dumps({"rounds": 2, "minimum_samples": 30}),
    }
    return {**row, **changes}


def cpu_run(run_id: str = "run-cpu", **changes: Any) -> Row:
    """A row of `runs` of a machine without a GPU."""
    kept = (
        "run_id",
        "source",
        "started_at",
        "finished_at",
        "end_reason",
        "ladder_version",
        "protocol_version",
        "git_commit",
        "git_dirty",
        "config_digest",
        "argv",
        "seed",
        "host_os",
        "host_cpu",
        "python_version",
        "packages",
        "environment",
        "nvrtc_version",
    )
    row = {name: value for name, value in gpu_run(run_id).items() if name in kept}
    row["started_at"] = START + timedelta(days=40)
    row["source"] = "replayed"  # as the replay writes it: this machine measured nothing
    return {**row, **changes}


def builds(
    kernels: Mapping[str, Kernel], architectures: Iterable[str] = ("sm_90a", "sm_120")
) -> list[Row]:
    """Rows of `builds` for every parameter set of every kernel that has a source."""
    rows = []
    for architecture in architectures:
        for kernel in kernels.values():
            for params in expand(kernel.manifest.sweep):
                launch = kernel.launch(params, 64, 64, 64)
                if not kernel.needs_build or launch is None:
                    continue
                rows.append(
                    {
                        "kernel": kernel.name,
                        "params": canonical(params),
                        "architecture": architecture,
                        "status": Status.OK,
                        "source_sha256": "s" * 64,
                        "cubin_sha256": "c" * 64,
                        "cubin_bytes": 9000,
                        "compiler": "nvrtc",
                        "compiler_version": "13.5.0",
                        "options": "[]",
                        "log": "",
                        "compile_time_s": 0.4,
                        "registers_per_thread": 40,
                        "spill_store_bytes": 0,
                        "spill_load_bytes": 0,
                        "stack_frame_bytes": 0,
                        "static_shared_memory_bytes": 2048,
                        "constant_memory_bytes": 400,
                        "threads_per_block": launch.threads,
                        "dynamic_shared_memory_bytes": 0,
                        "blocks_per_sm": 6,
                        "theoretical_occupancy_pct": 75.0,
                        "occupancy_limit": "registers",
                    }
                )
    if rows:
        rows.append(
            {
                **rows[0],
                "params": '{"BLOCK_X":1024,"BLOCK_Y":1}',
                "cubin_sha256": None,
                "status": Status.COMPILE_FAILED,
                "detail": "error: invented <compiler> words",
                "registers_per_thread": None,
                "theoretical_occupancy_pct": None,
            }
        )
    return rows


def count(
    kernel: str,
    params: Mapping[str, int],
    values: Mapping[str, float],
    shape: tuple[int, int, int] = (2048, 2048, 2048),
    source: str = "emulator",
    architecture: str | None = None,
    status: Status = Status.OK,
    detail: str | None = None,
) -> list[Row]:
    """Rows of `counters` that one source has of one point."""
    m, n, k = shape
    key = {"kernel": kernel, "params": canonical(dict(params)), "m": m, "n": n, "k": k}
    rest = {"source": source, "architecture": architecture, "status": status, "detail": detail}
    return [{**key, **rest, "metric": name, "value": value} for name, value in values.items()]


def not_emulated(
    kernel: str, params: Mapping[str, int], status: Status, detail: str, **keys: Any
) -> Row:
    """A row of `counters` of a point that the emulator could not run."""
    (row,) = count(kernel, params, {"emulation": 0.0}, status=status, detail=detail, **keys)
    return {**row, "value": None}


def naive_counts(block_x: int, n: int = 2048) -> dict[str, float]:
    """What the naive kernel's warps ask for in an N x N x N product, by the source article.

    A warp covers 32 / x rows and x columns of C, x = min(block_x, 32): per k it loads one sector of
    A a row and x / 8 sectors of B.
    """
    columns = min(block_x, 32)
    rows = 32 // columns
    warps, moved = n * n // 32, rows + columns // 8
    useful = 4 * (rows + columns)
    return {
        result.GLOBAL_LOAD_REQUESTS: 2.0 * warps * n,
        result.GLOBAL_LOAD_SECTORS: float(warps * n * moved),
        result.GLOBAL_STORE_REQUESTS: float(warps),
        result.GLOBAL_STORE_SECTORS: 4.0 * warps,
        result.SHARED_LOADS: 0.0,
        result.SHARED_STORES: 0.0,
        result.REQUESTED_LOAD_BYTES: 8.0 * n**3,
        result.REQUESTED_STORE_BYTES: 4.0 * n * n,
        "bytes_per_load_sector": useful / moved,
        "redundancy_a": float(n),
        "redundancy_b": float(n),
    }


def tiled_counts(tile: int, n: int = 2048) -> dict[str, float]:
    """The same for a kernel that copies square tiles to shared memory, tiles 8 or wider."""
    fetched = n // tile
    requests = 2.0 * n * n * fetched / 32
    return {
        result.GLOBAL_LOAD_REQUESTS: requests,
        result.GLOBAL_LOAD_SECTORS: 4.0 * requests,
        result.SHARED_LOADS: 2.0 * n**3 / 32,
        result.SHARED_STORES: requests,
        result.SHARED_LOAD_WAVEFRONTS: 2.0 * n**3 / 32,
        result.SHARED_STORE_WAVEFRONTS: requests,
        result.SHARED_LOAD_CONFLICTS: 0.0,
        result.SHARED_STORE_CONFLICTS: 0.0,
        result.REQUESTED_LOAD_BYTES: 8.0 * n * n * fetched,
        "bytes_per_load_sector": 32.0,
        "redundancy_a": float(fetched),
        "redundancy_b": float(fetched),
    }


def counted_ladder(kernels: Mapping[str, Kernel]) -> list[Row]:
    """Rows of `counters` of a healthy ladder: theory, emulator and two architectures."""
    rows = []
    for kernel in kernels.values():
        for params in expand(kernel.manifest.sweep):
            if not kernel.needs_build:
                continue
            naive = "BLOCK_X" in params
            values = naive_counts(params["BLOCK_X"]) if naive else tiled_counts(params["TILE"])
            rows += count(kernel.name, params, values)
            rows += count(kernel.name, params, values, (128, 128, 64))
            requested = {name: v for name, v in values.items() if name.startswith("requested")}
            rows += count(kernel.name, params, requested, source="theory")
            merged = {name: v for name, v in values.items() if name.endswith(".sum")}
            if not naive:
                merged[result.SHARED_LOADS] *= 0.625
                merged[result.SHARED_LOAD_WAVEFRONTS] *= 0.75
            for architecture in ("sm_90a", "sm_120"):
                rows += count(
                    kernel.name, params, merged, source="compiled", architecture=architecture
                )
    return rows


def ceilings(run: Row, **changes: Row) -> list[Row]:
    """Rows of `ceilings` of the run's GPU, invented: near what its SMs and clock allow."""
    clocks = run["gpu_sm_count"] * run["gpu_max_sm_clock_mhz"] * 1e6
    per_clock = {"fma": 250.0, "shared_fma": 224.0, "shared": 126.0, "shared_pairs": 252.0,
                 "l1": 120.0, "l2": 22.0, "dram_read": 15.0, "copy": 14.0}  # fmt: skip
    core = {"loop_counts": json.dumps({"FFMA": 1024, "LDS.128": 48}), "loop_instructions": 1084}
    rows = []
    for name, rate in per_clock.items():
        compute = "fma" in name
        row = {
            "name": name,
            "title": name,
            "level": "fp32" if compute else name.split("_")[0],
            "status": Status.OK,
            "unit": "TFLOPS" if compute else "GB/s",
            "value": rate * clocks / (1e12 if compute else 1e9),
            "per_sm_clock": rate,
            "gpu_uuid": run["gpu_uuid"],
            "gpu_name": run["gpu_name"],
            "gpu_sm_count": run["gpu_sm_count"],
            "source": run["source"],
            "measured_at": run["started_at"],
            **(core if name == "shared_fma" else {}),
        }
        rows.append(row | changes.get(name, {}))
    return rows


def accuracy(
    kernels: Mapping[str, Kernel],
    run: Row,
    *,
    sides: Sequence[int] = (256, 2048),
    depths: Sequence[int] = (256, 1024, 4096, 16384),
    **changes: Row,
) -> list[Row]:
    """Rows of `accuracy`, invented: FP32 errors grow with K on positive inputs, as sums do.

    Args:
        changes: of rows of errors, by kernel.
    """
    rows = []
    for kernel in kernels.values():
        common = {
            "kernel": kernel.name,
            "params": canonical(next(expand(kernel.manifest.sweep))),
            "family": kernel.manifest.family,
            "status": Status.OK,
            "gpu_uuid": run["gpu_uuid"],
            "gpu_name": run["gpu_name"],
            "source": run["source"],
            "measured_at": run["started_at"],
        }
        unit = 60.0 if kernel.manifest.accuracy == "tf32" else 1.0
        for side, k in itertools.product(sides, depths):
            for name, scale in (("uniform", 0.4), ("positive", 0.2 * k**0.5), ("wide", 1.9)):
                rms = unit * scale
                errors = {
                    "eta_max": 5 * rms,
                    "eta_rms": rms,
                    "eta_rms_se": rms / side,
                    "bias": 0.5 * rms / side,
                    "bias_se": rms / side,
                    "shrinkage": 0.2 * rms / side,
                    "shrinkage_se": rms / side,
                }
                key = {"m": side, "n": side, "k": k, "elements": side**2, "distribution": name}
                rows.append(common | key | errors | changes.get(kernel.name, {}))
        for case in special_values.CASES:
            key = {"m": 256, "n": 256, "k": 256, "elements": 256**2, "special": case}
            rows.append(common | key | {"outcome": "same", "differing": 0})
    return rows


def full_sweep(
    kernels: Mapping[str, Kernel],
    run: Row,
    squares: Sequence[int] = SQUARES,
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    rate: Callable[..., float] = invented_tflops,
) -> tuple[list[Row], list[Row]]:
    """Points and samples of every kernel, parameter set, size and cache mode; some have failed."""
    points, samples = [], []
    sizes = [(n, n, n) for n in squares] + list(shapes)
    modes = [(shape, "rotating") for shape in sizes]
    modes += [((n, n, n), mode) for n in (512, 2048) if n in squares for mode in ("hot", "cold")]
    for kernel in kernels.values():
        for params in expand(kernel.manifest.sweep):
            for shape, mode in modes:
                row, own = point(
                    kernel.name,
                    params,
                    shape,
                    mode,
                    run=run,
                    tflops=rate(kernel.name, params, shape, mode),
                )
                points.append(row)
                samples += own
    first = next(iter(kernels))
    points.append(failed(first, Status.WRONG_RESULT, "3 of 9 elements differ", shape=(3, 3, 3)))
    points.append(
        failed(
            first,
            Status.SKIPPED_CONSTRAINT,
            "a block has at most 1024 threads",
            params={"BLOCK_X": 64, "BLOCK_Y": 32},
            on_gpu=False,
        )
    )
    points.append(failed(first, Status.TIMEOUT, "no answer for 120 s <silence>", shape=(5, 5, 5)))
    return points, samples


def write(
    folder: Path,
    *,
    runs: Iterable[Row] = (),
    builds: Iterable[Row] = (),
    points: Iterable[Row] = (),
    samples: Iterable[Row] = (),
    counters: Iterable[Row] = (),
    ceilings: Iterable[Row] = (),
    accuracy: Iterable[Row] = (),
) -> Path:
    """Write the tables of a result set; returns the folder."""
    for name, rows in (
        ("runs", runs),
        ("builds", builds),
        ("points", points),
        ("samples", samples),
        ("counters", counters),
        ("ceilings", ceilings),
        ("accuracy", accuracy),
    ):
        schema.write(folder / f"{name}.parquet", name, schema.table(schema.TABLES[name], rows))
    return folder


def typical(
    folder: Path, *, replayed: bool = False, kernels: Mapping[str, Kernel] | None = None
) -> Path:
    """A whole result set of a healthy sweep with a few failures."""
    kernels = kernels or repository_kernels()
    source = {"source": "replayed" if replayed else "measured"}
    run = gpu_run(**source)
    points, samples = full_sweep(kernels, run)
    runs = [run, cpu_run()] if replayed else [run]
    return write(
        folder,
        runs=runs,
        builds=builds(kernels),
        points=points,
        samples=samples,
        counters=counted_ladder(kernels),
        accuracy=accuracy(kernels, run, sides=(256,), depths=(256, 4096)),
    )


def with_changes(kernel: Kernel, **changes: Any) -> Kernel:
    """A kernel whose manifest differs in some fields."""
    return dataclasses.replace(kernel, manifest=kernel.manifest.model_copy(update=changes))
