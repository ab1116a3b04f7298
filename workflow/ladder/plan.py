"""From configuration to builds and points: every row that a run will have, before anything runs.

What cannot run is planned too, as a row with a status and a reason: never a crash, never silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from . import schema
from .config import CacheMode, Config
from .documents import UserError
from .expressions import ExpressionError
from .gpus import slower_than_fp32
from .manifest import SHAPE_NAMES, Kernel, Launch, canonical, compute_capability, expand
from .occupancy import (
    MAX_BLOCK,
    MAX_CLUSTER,
    MAX_GRID,
    MAX_THREADS_PER_BLOCK,
    REGISTERS_PER_BLOCK,
    largest_cluster,
    limits_of,
)
from .selection import Winners, select
from .status import Status
from .tensor_maps import ELEMENT_BYTES, MOST_BOX_SIDE, ROW_ELEMENTS, SWIZZLE_BYTES

Fault = tuple[Status, str]


@dataclass(frozen=True, order=True)
class Build:
    """One CUBIN: a kernel, its parameters (canonical JSON) and an architecture."""

    kernel: str
    params: str
    architecture: str


@dataclass(frozen=True, order=True)
class Point:
    """One thing to measure: C (m x n) = A (m x k) * B (k x n) by one kernel in one cache mode."""

    kernel: str
    params: str
    m: int
    n: int
    k: int
    cache_mode: CacheMode = "rotating"

    @property
    def flop(self) -> int:
        """Work of the product: 2 M N K."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes_min(self) -> int:
        """Compulsory traffic: each matrix moved once, 4 (MK + KN + MN) bytes."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    def parameters(self) -> dict[str, int]:
        return dict(json.loads(self.params))

    def row(self) -> dict[str, object]:
        """The key columns of every table."""
        return {
            "kernel": self.kernel,
            "params": self.params,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "cache_mode": self.cache_mode,
        }


@dataclass(frozen=True)
class PlannedPoint:
    """A point with its launch geometry, and the fault that keeps it from running anywhere."""

    point: Point
    launch: Launch | None
    fault: Fault | None


def plan_builds(
    config: Config,
    kernels: Mapping[str, Kernel],
    architectures: list[str],
    winners: Winners | None = None,
    tuned_for: list[str] | None = None,
) -> list[Build]:
    """Every CUBIN to compile, sorted; parameter sets that violate a constraint have none.

    Args:
        winners: what was tuned, for kernels that select others.
        tuned_for: architectures that sets are built for which only such a kernel runs: they were
            tuned for one GPU and may not fit another. By default all.
    """
    builds = set()
    for kernel in kernels.values():
        targets = architectures if tuned_for is None or not kernel.candidates else tuned_for
        for params in _sets_that_run(config, kernel, winners or {}):
            runs, own = kernel.resolve(params)
            if runs.needs_build and runs.violated_constraint(own) is None:
                builds |= {
                    Build(runs.name, canonical(own), architecture) for architecture in targets
                }
    return sorted(builds)


def _sets_that_run(config: Config, kernel: Kernel, winners: Winners) -> Iterator[Mapping[str, int]]:
    """Every parameter set of a kernel at some size."""
    if kernel.candidates:
        for (m, n, k), _ in _sizes_of(config, kernel):
            yield select(kernel, winners, (m, n, k))
    else:
        yield from config.parameter_sets(kernel)


def plan_points(
    config: Config, kernels: Mapping[str, Kernel], winners: Winners | None = None
) -> list[PlannedPoint]:
    """Every point of the configuration, sorted, with the faults that need no GPU to see.

    Args:
        winners: what was tuned, for kernels that select others.

    Raises:
        UserError: if a kernel is left without any size, or an expression of its manifest fails.
    """
    planned = []
    for kernel in kernels.values():
        sets = config.parameter_sets(kernel)
        for (m, n, k), mode in _sizes_of(config, kernel):
            chosen = [select(kernel, winners or {}, (m, n, k))] if kernel.candidates else sets
            for params in chosen:
                point = Point(kernel.name, canonical(params), m, n, k, mode)
                try:
                    planned.append(planned_point(kernel, point))
                except ExpressionError as error:
                    raise UserError(
                        f"{kernel.manifest_path}: for {point.params} and M, N, K = {m}, {n}, {k}: "
                        f"{error}"
                    ) from None
    return sorted(planned, key=lambda item: item.point)


def planned_point(kernel: Kernel, point: Point) -> PlannedPoint:
    """A point of a kernel with its geometry, or the fault that no GPU is needed to see."""
    # Only an allowed point has a geometry: a tile that violates its constraints may not divide.
    fault = requirement_fault(kernel, point)
    if fault:
        return PlannedPoint(point, None, fault)
    runs, params = kernel.resolve(point.parameters())
    launch = runs.launch(params, *point.shape)
    if runs.manifest.tensor_cores:
        runs.manifest.tensor_cores.products_of(params)
    return PlannedPoint(point, launch, launch_fault(launch) if launch else None)


def _sizes_of(config: Config, kernel: Kernel) -> list[tuple[tuple[int, int, int], CacheMode]]:
    """The sizes and cache modes of one kernel.

    Raises:
        UserError: if its `smallest`, `largest` and `shapes` leave none.
    """
    choice = config.kernels[kernel.name]
    sizes = [
        (shape, mode)
        for shape, mode in dict.fromkeys(_sizes_and_modes(config))
        if (choice.smallest is None or min(shape) >= choice.smallest)
        and (choice.largest is None or max(shape) <= choice.largest)
        and (choice.shapes or len(set(shape)) == 1)
    ]
    if not sizes:
        limits = {
            "smallest": choice.smallest,
            "largest": choice.largest,
            "shapes": choice.shapes,
        }
        key, value = next(
            (name, limit) for name, limit in limits.items() if limit not in (None, True)
        )
        raise UserError(
            f"kernels.{kernel.name}.{key}: {json.dumps(value)} leaves none of the configured sizes"
        )
    return sizes


def _sizes_and_modes(config: Config) -> Iterator[tuple[tuple[int, int, int], CacheMode]]:
    for shape in config.sizes.all():
        yield shape, "rotating"
    for side in config.cache_modes.hot:
        yield (side, side, side), "hot"
    for side in config.cache_modes.cold:
        yield (side, side, side), "cold"


def requirement_fault(kernel: Kernel, point: Point) -> Fault | None:
    """What the kernel's manifest or its index width has against a point; None if nothing."""
    kernel, params = kernel.resolve(point.parameters())
    message = kernel.violated_constraint(params)
    if message:
        return Status.SKIPPED_CONSTRAINT, message
    message = kernel.violated_precondition(params, *point.shape)
    if message:
        return Status.SKIPPED_PRECONDITION, message
    if kernel.manifest.index_bits == 32:
        m, n, k = point.shape
        for name, elements in (("A", m * k), ("B", k * n), ("C", m * n)):
            if elements >= 2**31:
                return (
                    Status.SKIPPED_INT32_INDEX,
                    f"{name} has {elements:,} elements; this kernel's int index ends at {2**31:,}",
                )
    return None


def launch_fault(launch: Launch) -> Fault | None:
    """Why a launch exceeds the limits that all CUDA GPUs share; None if it does not."""
    return block_fault(launch) or _grid_fault(launch) or _division_fault(launch)


def block_fault(launch: Launch) -> Fault | None:
    """Why blocks, clusters or tiles are not possible on any CUDA GPU; None if they are.

    They follow from the parameters alone, at any size.
    """
    return _threads_fault(launch) or _cluster_fault(launch) or _box_fault(launch)


def _threads_fault(launch: Launch) -> Fault | None:
    if launch.threads > MAX_THREADS_PER_BLOCK:
        return (
            Status.INFEASIBLE_THREADS,
            f"{launch.threads} threads per block; the limit is {MAX_THREADS_PER_BLOCK}",
        )
    for axis, size, limit in zip("xyz", launch.block, MAX_BLOCK, strict=True):
        if not 1 <= size <= limit:
            return Status.INFEASIBLE_THREADS, f"block.{axis} is {size}; allowed: 1 to {limit}"
    return None


def _grid_fault(launch: Launch) -> Fault | None:
    for axis, size, limit in zip("xyz", launch.grid, MAX_GRID, strict=True):
        if not 1 <= size <= limit:
            return Status.INFEASIBLE_GRID, f"grid.{axis} is {size:,}; allowed: 1 to {limit:,}"
    return None


def _cluster_fault(launch: Launch) -> Fault | None:
    for axis, size in zip("xyz", launch.cluster or (), strict=False):
        if size < 1:
            return Status.INFEASIBLE_CLUSTER, f"cluster.{axis} is {size}; at least 1 is needed"
    if launch.cluster_blocks > MAX_CLUSTER:
        return (
            Status.INFEASIBLE_CLUSTER,
            f"{launch.cluster_blocks} blocks per cluster; the limit is {MAX_CLUSTER}",
        )
    return None


def _division_fault(launch: Launch) -> Fault | None:
    """The driver refuses a grid that is no whole number of clusters."""
    for axis, blocks, size in zip("xyz", launch.grid, launch.cluster or (), strict=False):
        if blocks % size:
            return (
                Status.INFEASIBLE_CLUSTER,
                f"grid.{axis} is {blocks:,}, no multiple of cluster.{axis} = {size}; round the "
                f"grid up to whole clusters, as in {size} * cdiv(...)",
            )
    return None


def _box_fault(launch: Launch) -> Fault | None:
    maps = launch.tensor_maps
    if maps is None:
        return None
    for name, box, swizzle in (
        ("a_box", maps.a_box, maps.a_swizzle),
        ("b_box", maps.b_box, maps.b_swizzle),
    ):
        for side, size in zip(("columns", "rows"), box, strict=True):
            if not 1 <= size <= MOST_BOX_SIDE:
                return (
                    Status.INFEASIBLE_BOX,
                    f"{name} has {size} {side}; allowed: 1 to {MOST_BOX_SIDE}",
                )
        if box[0] % ROW_ELEMENTS:
            return (
                Status.INFEASIBLE_BOX,
                f"a row of {name} has {box[0]} columns, {box[0] * ELEMENT_BYTES} bytes; a multiple "
                f"of {ROW_ELEMENTS} columns, {ROW_ELEMENTS * ELEMENT_BYTES} bytes, is needed",
            )
        if swizzle != "none" and box[0] * ELEMENT_BYTES != SWIZZLE_BYTES[swizzle]:
            return (
                Status.INFEASIBLE_BOX,
                f"a row of {name} has {box[0]} columns; with the swizzle {swizzle} it needs "
                f"{SWIZZLE_BYTES[swizzle] // ELEMENT_BYTES}, {SWIZZLE_BYTES[swizzle]} bytes",
            )
    return None


def architecture_fault(kernel: Kernel, architecture: str) -> Fault | None:
    """Why a kernel cannot run on an architecture at all."""
    manifest = kernel.manifest
    needed = manifest.minimum_compute_capability
    major, minor = map(int, needed.split("."))
    capability = compute_capability(architecture)
    if capability < (major, minor):
        return Status.SKIPPED_UNSUPPORTED, f"needs compute capability {needed} or newer"
    if manifest.tensor_cores:
        asked = manifest.tensor_cores
        fewest = min(
            (
                asked.products_of(params)
                for params in expand(manifest.sweep)
                if kernel.violated_constraint(params) is None
            ),
            default=1,
        )
        reason = slower_than_fp32(f"{capability[0]}.{capability[1]}", asked.inputs, fewest)
        if reason:
            return Status.SKIPPED_UNSUPPORTED, reason
    if manifest.only_architecture not in (None, architecture):
        return (
            Status.SKIPPED_UNSUPPORTED,
            f"needs {manifest.only_architecture}; no other target has its instructions",
        )
    return None


def build_fault(
    architecture: str, launch: Launch, *, registers: int, static_shared_memory_bytes: int
) -> Fault | None:
    """Why a compiled kernel cannot be launched on an architecture; None if it can.

    Args:
        registers: per thread, from the compile log.
        static_shared_memory_bytes: per block, from the compile log.
    """
    if launch.cluster_blocks > largest_cluster(architecture):
        return (
            Status.INFEASIBLE_CLUSTER,
            f"{launch.cluster_blocks} blocks per cluster; {architecture} allows "
            f"{largest_cluster(architecture)}",
        )
    shared = static_shared_memory_bytes + launch.dynamic_shared_memory_bytes
    limits = limits_of(architecture)
    if limits and shared > limits.shared_memory_per_block:
        return (
            Status.INFEASIBLE_SMEM,
            f"{shared:,} bytes of shared memory per block ({static_shared_memory_bytes:,} static + "
            f"{launch.dynamic_shared_memory_bytes:,} dynamic); {architecture} allows "
            f"{limits.shared_memory_per_block:,}",
        )
    if registers * launch.threads > REGISTERS_PER_BLOCK:
        return (
            Status.INFEASIBLE_REGISTERS,
            f"{registers} registers x {launch.threads} threads = {registers * launch.threads:,}; "
            f"a block may have {REGISTERS_PER_BLOCK:,}",
        )
    return None


def memory_fault(needed_bytes: int, free_bytes: int) -> Fault | None:
    """Why the buffers of a point will not fit; a margin of 15 % stays free."""
    allowed = int(0.85 * free_bytes)
    if needed_bytes > allowed:
        return (
            Status.SKIPPED_OOM_PREDICTED,
            f"needs {needed_bytes / 2**30:.1f} GiB; {allowed / 2**30:.1f} GiB may be used",
        )
    return None


# --- the plan as a file -------------------------------------------------------------------------

PLAN = pa.schema(
    [
        *[(name, pa.string()) for name in ("kernel", "params", "family")],
        *[(name.lower(), pa.int64()) for name in SHAPE_NAMES],
        ("cache_mode", pa.string()),
        ("status", pa.string()),  # null: may run
        ("detail", pa.string()),
    ]
)
schema.TABLES["plan"] = PLAN
_CONFIG_KEY = b"config"


def write_plan(
    path: Path, config: Config, kernels: Mapping[str, Kernel], winners: Winners | None = None
) -> list[PlannedPoint]:
    """Write the points of a configuration, with the resolved configuration in the metadata."""
    planned = plan_points(config, kernels, winners)
    rows = []
    for item in planned:
        status, detail = item.fault or (None, None)
        family = kernels[item.point.kernel].manifest.family
        rows.append({**item.point.row(), "family": family, "status": status, "detail": detail})
    metadata = {_CONFIG_KEY: config.model_dump_json().encode()}
    schema.write(path, "plan", rows, metadata=metadata)
    return planned


def read_config(path: Path) -> Config:
    """The resolved configuration that a plan was made from."""
    metadata = schema.read(path, "plan").schema.metadata
    return Config.model_validate_json(metadata[_CONFIG_KEY])


def read_points(path: Path) -> list[tuple[Point, Fault | None]]:
    """The points of a plan with their static faults."""
    rows = schema.read(path, "plan").to_pylist()
    return [
        (
            Point(row["kernel"], row["params"], row["m"], row["n"], row["k"], row["cache_mode"]),
            (Status(row["status"]), row["detail"]) if row["status"] else None,
        )
        for row in rows
    ]
