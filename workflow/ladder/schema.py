"""Arrow schemas of every table, and how tables are written and read.

Units are part of column names. Null means unknown: never NaN, 0 or -1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 1

_POINT_KEY = [
    ("kernel", pa.string()),
    ("params", pa.string()),  # canonical JSON
    ("m", pa.int64()),
    ("n", pa.int64()),
    ("k", pa.int64()),
]

RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("session_id", pa.string()),  # shared by the runs of several GPUs that one command started
        ("source", pa.string()),  # measured | replayed
        ("started_at", pa.timestamp("ms", tz="UTC")),
        ("finished_at", pa.timestamp("ms", tz="UTC")),
        ("end_reason", pa.string()),  # complete | interrupted | failed
        ("ladder_version", pa.string()),
        ("protocol_version", pa.int32()),
        ("git_commit", pa.string()),
        ("git_dirty", pa.bool_()),
        ("config_digest", pa.string()),
        ("argv", pa.string()),
        ("seed", pa.int64()),
        ("host_os", pa.string()),
        ("host_cpu", pa.string()),
        ("python_version", pa.string()),
        ("packages", pa.string()),  # JSON: name -> version
        ("environment", pa.string()),  # JSON: variables that could change a result
        ("gpu_uuid", pa.string()),
        ("gpu_name", pa.string()),
        ("gpu_compute_capability", pa.string()),
        ("gpu_sm_count", pa.int32()),
        ("gpu_l2_bytes", pa.int64()),
        ("gpu_memory_bytes", pa.int64()),
        ("gpu_smem_per_block_optin_bytes", pa.int64()),
        ("gpu_max_sm_clock_mhz", pa.int32()),
        ("gpu_max_memory_clock_mhz", pa.int32()),
        ("gpu_memory_bus_bits", pa.int32()),
        ("gpu_power_limit_w", pa.float64()),
        ("gpu_ecc", pa.bool_()),
        ("gpu_mig", pa.bool_()),
        ("gpu_persistence_mode", pa.bool_()),
        ("gpu_shared", pa.bool_()),
        ("gpu_other_processes", pa.int32()),
        ("driver_version", pa.string()),
        ("cuda_driver_api", pa.string()),
        ("nvrtc_version", pa.string()),
        ("cublas_version", pa.string()),
        ("event_floor_ns", pa.float64()),
        ("null_kernel_ns", pa.float64()),
        ("settle_s", pa.float64()),
        ("settled_sm_clock_mhz", pa.float64()),
        ("sentinel_median_ns", pa.float64()),
        ("sentinel_times_ns", pa.string()),  # JSON list: its median times in their order
        ("sentinel_max_drift_pct", pa.float64()),
        ("drift_repeats", pa.int32()),
        ("worker_restarts", pa.int32()),
        ("points_planned", pa.int32()),
        ("points_measured", pa.int32()),
        ("points_from_store", pa.int32()),
        ("wall_s", pa.float64()),
        ("gpu_event_busy_s", pa.float64()),
        ("gpu_utilization_mean_pct", pa.float64()),
        ("sm_clock_min_mhz", pa.float64()),
        ("sm_clock_mean_mhz", pa.float64()),
        ("sm_clock_max_mhz", pa.float64()),
        ("power_mean_w", pa.float64()),
        ("power_max_w", pa.float64()),
        ("temperature_max_c", pa.float64()),
        ("throttle_reasons", pa.string()),  # JSON: reason -> share of polls
        ("protocol", pa.string()),  # JSON: the constants in force
    ]
)

BUILDS = pa.schema(
    [
        ("kernel", pa.string()),
        ("params", pa.string()),
        ("architecture", pa.string()),
        ("status", pa.string()),
        ("detail", pa.string()),
        ("source_sha256", pa.string()),
        ("cubin_sha256", pa.string()),
        ("cubin_bytes", pa.int64()),
        ("compiler", pa.string()),
        ("compiler_version", pa.string()),
        ("options", pa.string()),  # JSON list
        ("log", pa.string()),
        ("compile_time_s", pa.float64()),
        ("registers_per_thread", pa.int32()),
        ("spill_store_bytes", pa.int32()),
        ("spill_load_bytes", pa.int32()),
        ("stack_frame_bytes", pa.int32()),
        ("static_shared_memory_bytes", pa.int32()),
        ("constant_memory_bytes", pa.int32()),
        ("threads_per_block", pa.int32()),
        ("dynamic_shared_memory_bytes", pa.int32()),
        ("blocks_per_sm", pa.int32()),
        ("theoretical_occupancy_pct", pa.float64()),
        ("occupancy_limit", pa.string()),  # registers | shared memory | threads | blocks
    ]
)

POINTS = pa.schema(
    [
        *_POINT_KEY,
        ("cache_mode", pa.string()),
        ("family", pa.string()),  # fp32 | tensor; null, from before there were two: fp32
        ("status", pa.string()),
        ("detail", pa.string()),
        ("source", pa.string()),  # measured | replayed
        ("run_id", pa.string()),
        ("measured_at", pa.timestamp("ms", tz="UTC")),
        ("gpu_uuid", pa.string()),
        ("gpu_name", pa.string()),
        ("driver_version", pa.string()),
        ("architecture", pa.string()),
        ("cubin_sha256", pa.string()),
        ("source_sha256", pa.string()),
        ("flop", pa.float64()),
        ("bytes_min", pa.float64()),
        ("grid_x", pa.int64()),
        ("grid_y", pa.int64()),
        ("grid_z", pa.int64()),
        ("block_x", pa.int32()),
        ("block_y", pa.int32()),
        ("block_z", pa.int32()),
        ("dynamic_shared_memory_bytes", pa.int32()),
        ("buffer_sets", pa.int32()),
        ("inputs_exceed_l2", pa.bool_()),
        ("launches_per_sample", pa.int32()),
        ("launch_bound", pa.bool_()),
        ("samples", pa.int32()),
        ("rounds", pa.int32()),
        ("stop_reason", pa.string()),
        ("first_launch_ns", pa.float64()),
        ("time_min_ns", pa.float64()),
        ("time_p05_ns", pa.float64()),
        ("time_p25_ns", pa.float64()),
        ("time_median_ns", pa.float64()),
        ("time_p75_ns", pa.float64()),
        ("time_p95_ns", pa.float64()),
        ("time_max_ns", pa.float64()),
        ("time_mean_ns", pa.float64()),
        ("time_ci_low_ns", pa.float64()),
        ("time_ci_high_ns", pa.float64()),
        ("round_spread_pct", pa.float64()),
        ("wall_over_event", pa.float64()),
        ("tflops", pa.float64()),
        ("tflops_ci_low", pa.float64()),
        ("tflops_ci_high", pa.float64()),
        ("pct_peak_max_clock", pa.float64()),
        ("pct_peak_measured_clock", pa.float64()),
        ("sm_clock_mean_mhz", pa.float64()),
        ("sm_clock_min_mhz", pa.float64()),
        ("memory_clock_mean_mhz", pa.float64()),
        ("power_mean_w", pa.float64()),
        ("energy_span_s", pa.float64()),  # how long the energy counter was watched
        ("energy_per_launch_j", pa.float64()),  # null without a counter, or if too short
        ("gflops_per_w", pa.float64()),
        ("temperature_max_c", pa.float64()),
        ("throttle_share", pa.float64()),
        ("throttle_reasons", pa.string()),
        ("drift_repeated", pa.bool_()),
        ("gpu_shared", pa.bool_()),
        ("exact", pa.bool_()),
        ("wrong_elements", pa.int64()),
        ("eta_max", pa.float64()),
        ("eta_rms", pa.float64()),
        ("guards_intact", pa.bool_()),
        ("inputs_intact", pa.bool_()),
        ("deterministic", pa.bool_()),
        ("post_timing_correct", pa.bool_()),
    ]
)

SAMPLES = pa.schema(
    [
        *_POINT_KEY,
        ("cache_mode", pa.string()),
        ("gpu_uuid", pa.string()),
        ("run_id", pa.string()),
        ("round", pa.int32()),
        ("superseded", pa.bool_()),  # a drifting visit that was repeated; kept, never used
        ("phase", pa.string()),  # first | warmup | sample | post
        ("index", pa.int32()),
        ("launches", pa.int32()),
        ("time_per_launch_ns", pa.float64()),
        ("sm_clock_mhz", pa.float32()),
        ("power_w", pa.float32()),
        ("throttled", pa.bool_()),
    ]
)

COUNTERS = pa.schema(
    [
        *_POINT_KEY,
        ("architecture", pa.string()),
        ("metric", pa.string()),  # NCU's name where there is one
        ("value", pa.float64()),
        ("unit", pa.string()),
        ("source", pa.string()),  # theory | emulator | compiled | hardware
        ("status", pa.string()),
        ("detail", pa.string()),
    ]
)

CEILINGS = pa.schema(
    [
        ("name", pa.string()),
        ("title", pa.string()),
        ("level", pa.string()),  # fp32 | shared | l1 | l2 | dram
        ("status", pa.string()),
        ("detail", pa.string()),
        ("unit", pa.string()),  # of value, value_min, value_max, hardware_limit: TFLOPS | GB/s
        ("value", pa.float64()),  # at the median time
        ("value_min", pa.float64()),
        ("value_max", pa.float64()),
        ("hardware_limit", pa.float64()),  # at the measured clock
        ("per_sm_clock", pa.float64()),  # flop or bytes per SM and clock
        ("samples", pa.int32()),
        ("launches_per_sample", pa.int32()),
        ("time_median_ns", pa.float64()),
        ("work_per_launch", pa.float64()),  # flop or bytes
        ("loop_counts", pa.string()),  # JSON: instruction -> number in a trip of the timed loop
        ("loop_instructions", pa.int32()),
        ("sm_clock_mean_mhz", pa.float64()),
        ("sm_clock_min_mhz", pa.float64()),
        ("memory_clock_mean_mhz", pa.float64()),
        ("power_mean_w", pa.float64()),
        ("temperature_max_c", pa.float64()),
        ("throttle_reasons", pa.string()),  # JSON: reason -> share of polls
        ("source", pa.string()),  # measured | replayed
        ("run_id", pa.string()),
        ("measured_at", pa.timestamp("ms", tz="UTC")),
        ("ladder_version", pa.string()),
        ("git_commit", pa.string()),
        ("git_dirty", pa.bool_()),
        ("gpu_uuid", pa.string()),
        ("gpu_name", pa.string()),
        ("gpu_sm_count", pa.int32()),
        ("driver_version", pa.string()),
        ("architecture", pa.string()),
        ("compiler_version", pa.string()),
        ("source_sha256", pa.string()),
        ("cubin_sha256", pa.string()),
    ]
)

ACCURACY = pa.schema(
    [
        *_POINT_KEY,
        ("family", pa.string()),  # fp32 | tensor
        ("distribution", pa.string()),  # of the inputs; null in rows of special values
        ("special", pa.string()),  # name of a case of special values; null in rows of errors
        ("status", pa.string()),
        ("detail", pa.string()),
        ("elements", pa.int64()),  # of C
        ("eta_max", pa.float64()),
        ("eta_rms", pa.float64()),
        ("eta_rms_se", pa.float64()),  # standard errors
        ("bias", pa.float64()),  # mean signed error, in the unit of eta
        ("bias_se", pa.float64()),
        ("shrinkage", pa.float64()),  # mean error towards zero, in the unit of eta
        ("shrinkage_se", pa.float64()),
        ("outcome", pa.string()),  # of special values, as special_values.OUTCOMES
        ("differing", pa.int64()),  # elements that are not as IEEE 754 has them
        ("source", pa.string()),  # measured | replayed
        ("run_id", pa.string()),
        ("measured_at", pa.timestamp("ms", tz="UTC")),
        ("ladder_version", pa.string()),
        ("git_commit", pa.string()),
        ("git_dirty", pa.bool_()),
        ("gpu_uuid", pa.string()),
        ("gpu_name", pa.string()),
        ("driver_version", pa.string()),
        ("cublas_version", pa.string()),
        ("architecture", pa.string()),
        ("source_sha256", pa.string()),
        ("cubin_sha256", pa.string()),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "runs": RUNS,
    "builds": BUILDS,
    "points": POINTS,
    "samples": SAMPLES,
    "counters": COUNTERS,
    "ceilings": CEILINGS,
    "accuracy": ACCURACY,
}


def table(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table of `schema`; keys that a row lacks become null.

    Raises:
        KeyError: if a row has a key which the schema does not have.
    """
    names = set(schema.names)
    materialised = list(rows)
    for row in materialised:
        unknown = set(row) - names
        if unknown:
            raise KeyError(f"not in the schema: {', '.join(sorted(unknown))}")
    columns = [
        pa.array([row.get(field.name) for row in materialised], type=field.type) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def write(
    path: Path,
    name: str,
    rows: pa.Table | Iterable[Mapping[str, Any]],
    *,
    metadata: Mapping[bytes, bytes] | None = None,
) -> None:
    """Write one table under a temporary name and rename it: readers never see half of it."""
    schema = TABLES[name]
    content = rows if isinstance(rows, pa.Table) else table(schema, rows)
    metadata = {
        **(metadata or {}),
        b"schema_version": str(SCHEMA_VERSION).encode(),
        b"table": name.encode(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    pq.write_table(content.replace_schema_metadata(metadata), temporary, compression="zstd")
    os.replace(temporary, path)


def read(path: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one table; columns that it has not, since they are newer than it, are null.

    Raises:
        ValueError: if the file was written with another schema version or is another table.
    """
    known = set(pq.read_schema(path).names)
    wanted = None if columns is None else [column for column in columns if column in known]
    content = pq.read_table(path, columns=wanted, partitioning=None)
    metadata = content.schema.metadata or {}
    version = metadata.get(b"schema_version", b"?").decode()
    if version != str(SCHEMA_VERSION) or metadata.get(b"table", b"?").decode() != name:
        raise ValueError(
            f"{path}: expected table {name!r}, schema version {SCHEMA_VERSION}; found "
            f"{metadata.get(b'table', b'?').decode()!r}, version {version}"
        )
    names = list(columns) if columns is not None else TABLES[name].names
    for field in (TABLES[name].field(column) for column in names if column not in known):
        content = content.append_column(field, pa.nulls(len(content), field.type))
    return content.select(names)
