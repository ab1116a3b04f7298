"""From plan and builds to what one GPU has to do: launch specifications, keys and faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .builds import BuildRow, cubin_path, read_build, record_path
from .config import Config, Protocol
from .device import LaunchSpec
from .manifest import CublasLaunch, Family, Kernel, TensorCores
from .plan import Fault, Point, architecture_fault, memory_fault
from .status import RANKED, Status
from .store import Environment, check_key, point_key
from .tensor_maps import copies_bytes
from .timing import BufferSets, buffer_sets

_TEMPORARY_BYTES = 2**30
"""Fills, comparisons and FP64 panels, beside the buffers themselves."""


@dataclass(frozen=True)
class WorkItem:
    """One point on one GPU: how to launch it and under which keys its results are kept."""

    point: Point
    spec: LaunchSpec | None
    build: BuildRow | None
    fault: Fault | None
    family: Family
    tensor_cores: TensorCores | None
    """What it asks of the tensor cores; None where the FP32 units compute."""
    tensor_products: int | None
    """How many of their products its parameter set makes for one of A and B."""
    accuracy: str
    deterministic: bool
    check_key: str
    point_key: str


def sampling_constants(protocol: Protocol) -> dict[str, Any]:
    """The constants that a timing depends on: a change of any of them measures anew.

    The number of rounds is not among them: one more round adds to what is there.
    """
    names = [
        "warmup_ms",
        "sample_us",
        "minimum_samples",
        "minimum_total_ms",
        "interval_pct",
        "maximum_samples",
        "maximum_gpu_s",
        "maximum_wall_s",
    ]
    return {name: getattr(protocol, name) for name in names}


def work_item(
    point: Point,
    fault: Fault | None,
    kernel: Kernel,
    config: Config,
    builds_root: Path,
    architecture: str,
    environment: Environment,
) -> WorkItem:
    """Everything the supervisor needs to know about one planned point on one GPU."""
    kernel, params = kernel.resolve(point.parameters())
    build: BuildRow | None = None
    spec: LaunchSpec | None = None
    cubin_sha256: str | None = None
    fault = fault or architecture_fault(kernel, architecture)
    if isinstance(kernel.manifest.launch, CublasLaunch):
        spec = LaunchSpec("cublas", compute=kernel.manifest.launch.compute)
    elif fault is None:
        record = record_path(builds_root, architecture, kernel.name, params)
        cubin = cubin_path(builds_root, architecture, kernel.name, params)
        if not record.exists() or not cubin.exists():
            fault = Status.COMPILE_FAILED, f"{record} or its CUBIN is missing; run `compile`"
        else:
            build = read_build(record)
            cubin_sha256 = build["cubin_sha256"]
            if build["status"] not in RANKED:
                fault = Status(build["status"]), build["detail"]
            launch = kernel.launch(params, *point.shape)
            assert launch is not None
            spec = LaunchSpec(
                kernel.manifest.launch.kind,
                str(cubin),
                launch.grid,
                launch.block,
                launch.dynamic_shared_memory_bytes,
                cluster=launch.cluster,
                tensor_maps=launch.tensor_maps,
                scratch_bytes=launch.scratch_bytes,
            )
    accuracy, deterministic = kernel.manifest.accuracy, kernel.manifest.deterministic
    tensor_cores = kernel.manifest.tensor_cores
    check = check_key(
        point, spec or LaunchSpec("none"), cubin_sha256, accuracy, deterministic, environment
    )
    return WorkItem(
        point,
        spec,
        build,
        fault,
        kernel.manifest.family,
        tensor_cores,
        tensor_cores.products_of(params) if tensor_cores and fault is None else None,
        accuracy,
        deterministic,
        check,
        point_key(check, point.cache_mode, sampling_constants(config.protocol)),
    )


def needed_bytes(point: Point, spec: LaunchSpec | None, l2_bytes: int) -> int:
    """Device memory that checking and timing a point take, bytes."""
    m, n, k = point.shape
    sets, _ = buffer_sets(m, n, k, point.cache_mode, l2_bytes)
    timing = BufferSets.bytes_needed(m, n, k, sets)
    # A, B and C in FP32, A and B in FP64 twice over, R and G in FP64
    checking = 4 * (m * k + k * n + m * n) + 16 * (m * k + k * n) + 16 * m * n
    copies = copies_bytes(spec.tensor_maps if spec else None, m, n, k)
    scratch = (spec.scratch_bytes if spec else None) or 0
    return max(timing, checking) + copies + scratch + _TEMPORARY_BYTES


def memory_fault_of(item: WorkItem, l2_bytes: int, free_bytes: int) -> Fault | None:
    """Whether the buffers of a point will not fit into the free memory."""
    return memory_fault(needed_bytes(item.point, item.spec, l2_bytes), free_bytes)


def assign(
    points: Iterable[Point], gpus: Sequence[str], known: Mapping[tuple[int, int, int], str]
) -> dict[tuple[int, int, int], str]:
    """Which of several GPUs takes a size: all its kernels go to one, so ratios are of one card.

    A size stays where it was measured before. The others go, largest first, to the GPU with the
    least work.

    Args:
        gpus: UUIDs to choose from.
        known: sizes already measured, with their GPU.
    """
    cost: dict[tuple[int, int, int], float] = {}
    for point in points:
        # About a second each, and what a slow kernel needs beyond that.
        cost[point.shape] = cost.get(point.shape, 0.0) + 1.0 + point.flop / 1e11
    load = dict.fromkeys(gpus, 0.0)
    assigned = {}
    for shape in sorted(
        cost, key=lambda shape: (known.get(shape) not in load, -cost[shape], shape)
    ):
        old = known.get(shape)
        gpu = old if old in load else min(load, key=lambda uuid: load[uuid])
        assigned[shape] = gpu
        load[gpu] += cost[shape]
    return assigned
