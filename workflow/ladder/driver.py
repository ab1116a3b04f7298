"""The calls of the CUDA driver that CuPy has no words for: launches with clusters, tensor maps.

Through ctypes, as everything here that talks to a driver directly. The structures mirror cuda.h;
the tests hold them against NVIDIA's own bindings. Those are not used here because their tensor
maps lie at multiples of 16 bytes where the driver asks for 64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from .manifest import SwizzleName

NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
"""CUfunction_attribute: the kernel may have clusters of more than 8 blocks."""
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGN_BYTES = 64
_CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
_FLOAT32 = 7  # CUtensorMapDataType
_NO_INTERLEAVE, _ZEROS_OUTSIDE = 0, 0
_SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}  # CUtensorMapSwizzle
_L2_128_BYTES = 2  # CUtensorMapL2promotion: sectors are fetched from DRAM by the line


class DriverError(RuntimeError):
    """A driver call failed; `status` is its CUresult."""

    def __init__(self, call: str, status: int, name: str):
        super().__init__(f"{call}: {name} ({status})")
        self.status = status


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with its value as the dimensions of a cluster."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("x", ctypes.c_uint),
        ("y", ctypes.c_uint),
        ("z", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 52),
    ]


class LaunchConfiguration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_memory_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status != 0:
        words = ctypes.c_char_p()
        _library().cuGetErrorName(status, ctypes.byref(words))
        raise DriverError(name, status, (words.value or b"unknown error").decode())


class KernelLaunch:
    """One launch of one kernel, made ready once: calling it only enqueues.

    The context must be current, and the module of the function stay loaded.
    """

    def __init__(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        *,
        stream: int,
        dynamic_shared_memory_bytes: int = 0,
        cluster: Sequence[int] | None = None,
    ):
        """
        Args:
            function: CUfunction.
            arguments: ctypes values of the types that the kernel declares.
            stream: CUstream.
        """
        self._function = ctypes.c_void_p(function)
        self._arguments = list(arguments)  # the driver reads them at each launch
        self.parameters = (ctypes.c_void_p * len(arguments))(
            *[ctypes.addressof(argument) for argument in self._arguments]
        )
        self.configuration = LaunchConfiguration(
            grid=(ctypes.c_uint * 3)(*grid),
            block=(ctypes.c_uint * 3)(*block),
            shared_memory_bytes=dynamic_shared_memory_bytes,
            stream=stream,
        )
        if cluster:
            x, y, z = cluster
            attribute = LaunchAttribute(id=_CLUSTER_DIMENSION, x=x, y=y, z=z)
            self.configuration.attributes = ctypes.pointer(attribute)
            self.configuration.attribute_count = 1

    def __call__(self) -> None:
        _call(
            "cuLaunchKernelEx",
            ctypes.byref(self.configuration),
            self._function,
            self.parameters,
            None,
        )


def encode_tensor_map(
    address: int,
    *,
    rows: int,
    columns: int,
    pitch_bytes: int,
    box: tuple[int, int],
    swizzle: SwizzleName = "none",
) -> ctypes.Array[ctypes.c_uint64]:
    """The tensor map of a row-major FP32 matrix: a kernel's argument, to be passed by value.

    Elements outside the matrix arrive as zeros.

    Args:
        address: of the first element on the device, a multiple of 16.
        pitch_bytes: from one row to the next, a multiple of 16.
        box: columns and rows that one copy brings.
        swizzle: how they lie in shared memory; its width is then that of a row of the box.
    """
    tensor_map = aligned_tensor_map()
    # The innermost dimension comes first; its stride is that of the type.
    _call(
        "cuTensorMapEncodeTiled",
        ctypes.byref(tensor_map),
        ctypes.c_int(_FLOAT32),
        ctypes.c_uint32(2),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(pitch_bytes),
        (ctypes.c_uint32 * 2)(*box),
        (ctypes.c_uint32 * 2)(1, 1),
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(_SWIZZLES[swizzle]),
        ctypes.c_int(_L2_128_BYTES),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )
    return tensor_map


def aligned_tensor_map() -> ctypes.Array[ctypes.c_uint64]:
    """Room for a CUtensorMap where the driver wants it."""
    room = bytearray(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGN_BYTES)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(room))
    offset = -start % TENSOR_MAP_ALIGN_BYTES
    # The array keeps the room alive.
    return (ctypes.c_uint64 * (TENSOR_MAP_BYTES // 8)).from_buffer(room, offset)
