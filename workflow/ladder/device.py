"""Which GPUs are there, and what the measuring code asks of one.

Detection talks to the driver through ctypes: no context, no CuPy, under a millisecond, so that a
workflow may ask while it is being parsed. `Device` is the whole interface between the measurement
protocol and a GPU; `cuda_device.CudaDevice` implements it with CuPy. Tests name another module in
`LADDER_DEVICE_MODULE` to inject faults; its GPUs are labelled by their own name everywhere.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from .config import ExpectedGpu, Gpu
from .documents import UserError
from .manifest import TensorMaps, compute_capability
from .status import Status

DEVICE_MODULE_VARIABLE = "LADDER_DEVICE_MODULE"

Event = Any
Launcher = Callable[[Any, Any, Any], None]


@dataclass(frozen=True)
class GpuIdentity:
    """What the driver says about one GPU."""

    uuid: str
    name: str
    compute_capability: str
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    smem_per_block_optin_bytes: int
    max_sm_clock_mhz: int
    max_memory_clock_mhz: int
    memory_bus_bits: int
    cuda_driver_api: str

    def architecture(self, configured: list[str]) -> str:
        """The architecture to compile for."""
        return native_architecture(self.compute_capability, configured)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def native_architecture(capability: str, configured: list[str]) -> str:
    """The architecture to compile for: a configured one of this capability, else the GPU's own.

    From compute capability 9.0 on, the `a` suffix unlocks the instructions of that GPU alone.
    """
    major, minor = (int(part) for part in capability.split("."))
    for architecture in configured:
        if compute_capability(architecture) == (major, minor):
            return architecture
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@dataclass(frozen=True)
class Target:
    """The GPU model that a run is planned for."""

    name: str
    architecture: str

    @property
    def slug(self) -> str:
        """The name as a folder: ``NVIDIA H200`` -> ``nvidia-h200``."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class LaunchSpec:
    """How to launch one kernel: a CUBIN with its geometry, or a cuBLAS compute type.

    `kind` is that of the manifest's launch.
    """

    kind: str
    cubin: str | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared_memory_bytes: int = 0
    compute: str | None = None
    cluster: tuple[int, int, int] | None = None
    tensor_maps: TensorMaps | None = None
    scratch_bytes: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `asdict`, after a journey as JSON, which knows no tuples."""
        cluster, maps = data["cluster"], data["tensor_maps"]
        return cls(
            **{
                **data,
                "grid": tuple(data["grid"]),
                "block": tuple(data["block"]),
                "cluster": tuple(cluster) if cluster else None,
                "tensor_maps": TensorMaps(
                    tuple(maps["a_box"]),
                    tuple(maps["b_box"]),
                    maps["transpose_a"],
                    maps["a_swizzle"],
                    maps["b_swizzle"],
                    maps["split_f16"],
                    maps["f16_shifts"],
                )
                if maps
                else None,
            }
        )


class Device(Protocol):
    """One GPU as the measurement protocol sees it. Work is asynchronous and in order."""

    xp: Any
    """The array module: CuPy, or NumPy for a stand-in."""
    l2_bytes: int

    def versions(self) -> dict[str, str | None]:
        """``cublas_version``."""
        ...

    def launcher(self, spec: LaunchSpec, m: int, n: int, k: int) -> Launcher:
        """A function that enqueues one launch on flat A, B, C."""
        ...

    def kernel(
        self, cubin: str, entry: str, grid: int, block: int, arguments: Sequence[Any]
    ) -> Callable[[], None]:
        """A function that enqueues one launch of a kernel of a CUBIN.

        Args:
            grid: blocks.
            block: threads per block.
            arguments: arrays of this device, and integers that the kernel takes as int.
        """
        ...

    def batch(self, launches: list[Callable[[], None]]) -> Callable[[], None]:
        """A function that enqueues all launches at once, without a gap for the host between."""
        ...

    def record(self) -> Event:
        """Enqueue a timestamp."""
        ...

    def elapsed_ns(self, start: Event, stop: Event) -> float:
        """Device time between two timestamps that have been reached, ns."""
        ...

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        ...

    def clear_l2(self) -> None:
        """Enqueue writes that replace everything in L2."""
        ...

    def profiled(self) -> AbstractContextManager[None]:
        """The launches within are those that a profiler is to look at, if one is there."""
        ...

    def free_bytes(self) -> int:
        """Memory that can be allocated, bytes."""
        ...

    def release_memory(self) -> None:
        """Give cached allocations back."""
        ...

    def wall_ns(self) -> int:
        """A host clock, ns."""
        ...

    def null_kernel(self) -> Callable[[], None]:
        """A function that enqueues a kernel which does nothing."""
        ...

    def classify(self, error: BaseException) -> tuple[Status, str, bool]:
        """Status, words, and whether the context is lost, for an error of this device."""
        ...


def device_module() -> Any:
    """The module that implements detection, the device and its telemetry."""
    name = os.environ.get(DEVICE_MODULE_VARIABLE)
    return importlib.import_module(name) if name else None


def detect() -> list[GpuIdentity]:
    """The visible GPUs, or [] where no driver or no GPU answers."""
    module = device_module()
    if module is not None:
        return list(module.detect())
    return _detect_cuda()


_ATTRIBUTES = {
    "max_sm_clock_khz": 13,
    "sm_count": 16,
    "max_memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "smem_per_block_optin_bytes": 97,
}  # CUdevice_attribute of cuda.h


def _detect_cuda() -> list[GpuIdentity]:
    if sys.platform == "darwin":
        return []
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    if cuda.cuInit(0) != 0:
        return []
    count, api = ctypes.c_int(), ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    cuda.cuDriverGetVersion(ctypes.byref(api))
    version = f"{api.value // 1000}.{api.value % 1000 // 10}"
    return [_identify(cuda, index, version) for index in range(count.value)]


def _identify(cuda: Any, index: int, api_version: str) -> GpuIdentity:
    handle = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), handle)
    raw = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid_v2(ctypes.byref(raw), handle)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    values = {}
    for attribute, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        values[attribute] = value.value
    return GpuIdentity(
        uuid=f"GPU-{uuid.UUID(bytes=bytes(raw))}",
        name=name.value.decode(errors="replace"),
        compute_capability=f"{values['major']}.{values['minor']}",
        sm_count=values["sm_count"],
        l2_bytes=values["l2_bytes"],
        memory_bytes=memory.value,
        smem_per_block_optin_bytes=values["smem_per_block_optin_bytes"],
        max_sm_clock_mhz=values["max_sm_clock_khz"] // 1000,
        max_memory_clock_mhz=values["max_memory_clock_khz"] // 1000,
        memory_bus_bits=values["memory_bus_bits"],
        cuda_driver_api=api_version,
    )


def select(gpus: list[GpuIdentity], wanted: str) -> list[GpuIdentity]:
    """The GPUs that `gpu.select` of the configuration names.

    Raises:
        UserError: if it names none of the visible GPUs.
    """
    listing = "; ".join(f"{index}: {gpu.name} {gpu.uuid}" for index, gpu in enumerate(gpus))
    if not gpus:
        raise UserError(
            "no NVIDIA GPU answers on this machine; set `gpu.use: auto` to replay "
            "published measurements instead"
        )
    if wanted == "first":
        return gpus[:1]
    if wanted == "all":
        return [gpu for gpu in gpus if gpu.name == gpus[0].name]
    if wanted.isdigit() and int(wanted) < len(gpus):
        return [gpus[int(wanted)]]
    for gpu in gpus:
        if gpu.uuid == wanted:
            return [gpu]
    raise UserError(
        f"gpu.select: {wanted!r} is none of `first`, `all`, an index or a UUID of: {listing}"
    )


def expected(gpus: list[GpuIdentity], expect: ExpectedGpu | None) -> list[GpuIdentity]:
    """The GPUs of the model that the configuration expects; all of them if it expects none.

    Raises:
        UserError: if GPUs are there, but none of that model.
    """
    if expect is None:
        return gpus
    found = [gpu for gpu in gpus if gpu.name == expect.name]
    if gpus and not found:
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        raise UserError(f"gpu.expect.name: {expect.name!r} is not on this host; here: {names}")
    return found


def resolve_target(gpu: Gpu, architectures: list[str]) -> Target | None:
    """The GPU model to plan for; None to replay published measurements.

    Raises:
        UserError: if a GPU is required and none answers, or `gpu.select` names none.
    """
    if gpu.use == "none":
        return None
    if gpu.expect:
        capability = gpu.expect.compute_capability
        return Target(gpu.expect.name, native_architecture(capability, architectures))
    gpus = detect()
    if not gpus and gpu.use == "auto":
        return None
    chosen = select(gpus, gpu.select)[0]
    return Target(chosen.name, chosen.architecture(architectures))


def open_device() -> Device:
    """The one GPU that this process may use (the supervisor sets CUDA_VISIBLE_DEVICES)."""
    module = device_module()
    if module is not None:
        device: Device = module.open_device()
        return device
    from .cuda_device import CudaDevice

    return CudaDevice()
