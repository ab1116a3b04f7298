"""`device.Device` on a real GPU: CuPy for memory, plain launches, graphs and events; cuBLAS.

Launches with clusters or tensor maps go through `driver`, on CuPy's context and stream.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy
import numpy as np

from .device import Event, Launcher, LaunchSpec
from .driver import (
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    DriverError,
    KernelLaunch,
    encode_tensor_map,
)
from .manifest import ENTRY_POINT
from .occupancy import PORTABLE_CLUSTER
from .status import Status
from .tensor_maps import (
    ELEMENT_BYTES,
    HelperLaunch,
    MappedMatrix,
    copies_bytes,
    mapped_matrices,
)

# CUresult / cudaError_t numbers; from 700 on the context is lost (except 701, 708 and 709).
_OUT_OF_MEMORY = 2
_LAUNCH_TIMEOUT = 702
_STATUS_OF_ERROR = {
    _OUT_OF_MEMORY: Status.OOM,
    700: Status.ILLEGAL_ADDRESS,
    _LAUNCH_TIMEOUT: Status.TIMEOUT,
    716: Status.MISALIGNED,
    717: Status.ILLEGAL_ADDRESS,
}
_RECOVERABLE = {701, 708, 709}


class CublasError(RuntimeError):
    """A cuBLAS call returned something other than success."""


class Cublas:
    """The four cuBLAS calls of the baseline, through ctypes.

    CuPy refuses its own bindings while a graph is captured, and has none for the workspace.
    """

    _WORKSPACE_BYTES = 64 * 2**20  # NVIDIA's recommendation for Hopper is 32 MiB
    _CUDA_R_32F = 0
    _NO_TRANSPOSE = 0
    _DEFAULT_ALGORITHM = -1
    _DEFAULT_MATH, _PEDANTIC_MATH = 0, 2
    _COMPUTE_32F_PEDANTIC, _COMPUTE_32F_FAST_TF32 = 69, 77

    def __init__(self, stream: int):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        self._library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        # cuBLAS must not allocate while a graph is captured, nor during a timed launch.
        self._workspace = cupy.empty(self._WORKSPACE_BYTES, dtype=cupy.uint8)
        self._call(
            "cublasSetWorkspace_v2",
            self._handle,
            ctypes.c_void_p(self._workspace.data.ptr),
            ctypes.c_size_t(self._workspace.nbytes),
        )
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CublasError(f"{name}: status {status}")

    def version(self) -> str:
        number = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def launcher(self, compute: str | None, m: int, n: int, k: int) -> Launcher:
        """C = A B in `fp32_pedantic` (TF32 refused) or in `tf32`."""
        pedantic = compute == "fp32_pedantic"
        math = self._PEDANTIC_MATH if pedantic else self._DEFAULT_MATH
        arithmetic = self._COMPUTE_32F_PEDANTIC if pedantic else self._COMPUTE_32F_FAST_TF32

        def launch(a: Any, b: Any, c: Any) -> None:
            self._call("cublasSetMathMode", self._handle, math)
            # cuBLAS is column-major: the row-major C = A B is C^T = B^T A^T to it.
            self._call(
                "cublasGemmEx",
                self._handle, self._NO_TRANSPOSE, self._NO_TRANSPOSE, n, m, k,
                ctypes.byref(self._one),
                ctypes.c_void_p(b.data.ptr), self._CUDA_R_32F, n,
                ctypes.c_void_p(a.data.ptr), self._CUDA_R_32F, k,
                ctypes.byref(self._zero),
                ctypes.c_void_p(c.data.ptr), self._CUDA_R_32F, n,
                arithmetic, self._DEFAULT_ALGORITHM,
            )  # fmt: skip

        return launch


class PreparedLaunches:
    """A launcher through the driver: clusters, tensor maps and the helpers before the kernel.

    What depends on addresses is made at the first launch on them and kept, so that sampling and
    captures find it ready.
    """

    def __init__(
        self,
        function: Callable[[LaunchSpec, str], Any],
        stream: int,
        spec: LaunchSpec,
        m: int,
        n: int,
        k: int,
    ):
        """
        Args:
            function: gives an entry of the spec's CUBIN as a CuPy kernel.
            stream: CUstream.
        """
        self._spec = spec
        self._stream = stream
        self._sizes = [ctypes.c_int(size) for size in (m, n, k)]
        self._matrices: tuple[MappedMatrix, ...] = ()
        entries = {ENTRY_POINT}
        if spec.tensor_maps:
            self._matrices = mapped_matrices(spec.tensor_maps, m, n, k)
            entries |= {helper.entry for matrix in self._matrices for helper in matrix.launches}
        self._functions = {entry: int(function(spec, entry).kernel.ptr) for entry in entries}
        # Here, once: neither a sample nor a capture may allocate.
        self._workspace = cupy.empty(copies_bytes(spec.tensor_maps, m, n, k), dtype=cupy.uint8)
        self._scratch = None
        if spec.scratch_bytes is not None:
            self._scratch = cupy.zeros(spec.scratch_bytes, dtype=cupy.uint8)
        helped = [matrix for matrix in self._matrices if matrix.launches]
        self._side = _SideStream(stream) if len(helped) == 2 else None
        self._ready: dict[tuple[int, int, int], list[Callable[[], None]]] = {}

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        addresses = (a.data.ptr, b.data.ptr, c.data.ptr)
        if addresses not in self._ready:
            self._ready[addresses] = self._prepare(*addresses)
        for enqueue in self._ready[addresses]:
            enqueue()

    def _prepare(self, a: int, b: int, c: int) -> list[Callable[[], None]]:
        """The launches of one product in order: helpers, two of them side by side, then `gemm`."""
        helpers: list[Callable[[], None]] = []
        maps: list[Any] = []
        lines: list[Any] = []
        shifts: list[Any] = []
        for matrix, address in zip(self._matrices, (a, b), strict=False):
            copy = self._workspace.data.ptr + matrix.workspace_offset
            stream = self._side.ptr if self._side and matrix.matrix == "B" else self._stream
            found = copy + matrix.copy_bytes
            shifts.append(ctypes.c_void_p(found if matrix.shifts else None))
            if matrix.shifts:
                rows = matrix.box[1]
                helpers.append(self._helper(matrix.shifts, address, found, rows, stream))
            if matrix.helper:
                helpers.append(self._helper(matrix.helper, address, copy, matrix.pitch, stream))
                address = copy
                if matrix.lines:
                    lines.append(ctypes.c_void_p(copy + matrix.matrix_bytes))
            maps.append(
                encode_tensor_map(
                    address,
                    rows=matrix.rows,
                    columns=matrix.columns,
                    pitch_bytes=matrix.pitch * ELEMENT_BYTES,
                    box=matrix.box,
                    swizzle=matrix.swizzle,
                )
            )
        matrices = [ctypes.c_void_p(a), ctypes.c_void_p(b)]
        more = [*matrices, *lines] if lines else []
        if self._spec.tensor_maps and self._spec.tensor_maps.f16_shifts is not None:
            more = shifts
        scratch = [] if self._scratch is None else [ctypes.c_void_p(self._scratch.data.ptr)]
        kernel = KernelLaunch(
            self._functions[ENTRY_POINT],
            self._spec.grid,
            self._spec.block,
            [*(maps or matrices), ctypes.c_void_p(c), *more, *scratch, *self._sizes],
            stream=self._stream,
            dynamic_shared_memory_bytes=self._spec.dynamic_shared_memory_bytes,
            cluster=self._spec.cluster,
        )
        if self._side:
            helpers = [self._side.fork, *helpers, self._side.join]
        return [*helpers, kernel]

    def _helper(
        self, helper: HelperLaunch, matrix: int, copy: int, last: int, stream: int
    ) -> KernelLaunch:
        sizes = [ctypes.c_int(size) for size in (helper.rows, helper.columns, last)]
        return KernelLaunch(
            self._functions[helper.entry],
            helper.grid,
            helper.block,
            [ctypes.c_void_p(matrix), ctypes.c_void_p(copy), *sizes],
            stream=stream,
        )


class _SideStream:
    """A second stream for what may run beside the first: a capture takes it for a branch."""

    def __init__(self, main: int):
        self._main = cupy.cuda.ExternalStream(main)
        self._side = cupy.cuda.Stream(non_blocking=True)
        self._forked = cupy.cuda.Event(disable_timing=True)
        self._done = cupy.cuda.Event(disable_timing=True)
        self.ptr = int(self._side.ptr)

    def fork(self) -> None:
        """What follows on the side waits for what is on the main stream by now."""
        self._forked.record(self._main)
        self._side.wait_event(self._forked)

    def join(self) -> None:
        """What follows on the main stream waits for the side."""
        self._done.record(self._side)
        self._main.wait_event(self._done)


class CudaDevice:
    """The first visible GPU. One instance per process; the context is created here."""

    def __init__(self) -> None:
        self.xp = cupy
        device = cupy.cuda.Device(0)
        device.use()
        self._device = device
        # A stream of our own: the legacy default stream cannot be captured into a graph.
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self.l2_bytes = int(device.attributes["L2CacheSize"])
        self._cublas = Cublas(self._stream.ptr)
        self._flush = cupy.zeros(2 * self.l2_bytes // 4, dtype=cupy.float32)
        self._modules: dict[str, Any] = {}

    def versions(self) -> dict[str, str | None]:
        return {"cublas_version": self._cublas.version()}

    def launcher(self, spec: LaunchSpec, m: int, n: int, k: int) -> Launcher:
        if spec.kind == "cublas":
            return self._cublas.launcher(spec.compute, m, n, k)
        function = self._function(spec, ENTRY_POINT)
        if spec.dynamic_shared_memory_bytes:
            # Needed as soon as static and dynamic memory together exceed 48 KiB.
            function.max_dynamic_shared_size_bytes = spec.dynamic_shared_memory_bytes
        if math.prod(spec.cluster or ()) > PORTABLE_CLUSTER:
            cupy.cuda.driver.funcSetAttribute(
                function.kernel.ptr, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1
            )
        if spec.kind != "cuda" or spec.scratch_bytes is not None:
            return PreparedLaunches(self._function, self._stream.ptr, spec, m, n, k)
        sizes = (np.int32(m), np.int32(n), np.int32(k))

        def launch(a: Any, b: Any, c: Any) -> None:
            function(
                spec.grid,
                spec.block,
                (a, b, c, *sizes),
                shared_mem=spec.dynamic_shared_memory_bytes,
            )

        return launch

    def _function(self, spec: LaunchSpec, entry: str) -> Any:
        assert spec.cubin is not None
        return self._function_of(spec.cubin, entry)

    def _function_of(self, cubin: str, entry: str) -> Any:
        if cubin not in self._modules:
            self._modules[cubin] = cupy.RawModule(path=cubin)
        return self._modules[cubin].get_function(entry)

    def kernel(
        self, cubin: str, entry: str, grid: int, block: int, arguments: Sequence[Any]
    ) -> Callable[[], None]:
        function = self._function_of(cubin, entry)
        typed = tuple(np.int32(item) if isinstance(item, int) else item for item in arguments)
        return lambda: function((grid,), (block,), typed)

    def batch(self, launches: list[Callable[[], None]]) -> Callable[[], None]:
        self._stream.begin_capture()
        try:
            for launch in launches:
                launch()
        finally:
            graph = self._stream.end_capture()
        graph.upload(self._stream)
        return lambda: graph.launch(self._stream)

    def record(self) -> Event:
        event = cupy.cuda.Event()
        event.record(self._stream)
        return event

    def elapsed_ns(self, start: Event, stop: Event) -> float:
        return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e6

    def synchronize(self) -> None:
        self._stream.synchronize()

    def clear_l2(self) -> None:
        self._flush.fill(0)

    @contextmanager
    def profiled(self) -> Iterator[None]:
        cupy.cuda.runtime.profilerStart()
        try:
            yield
        finally:
            cupy.cuda.runtime.profilerStop()

    def free_bytes(self) -> int:
        free, _ = cupy.cuda.runtime.memGetInfo()
        return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def release_memory(self) -> None:
        cupy.get_default_memory_pool().free_all_blocks()

    def wall_ns(self) -> int:
        return time.perf_counter_ns()

    def null_kernel(self) -> Callable[[], None]:
        kernel = _null_kernel()
        return lambda: kernel((1,), (32,), ())

    def classify(self, error: BaseException) -> tuple[Status, str, bool]:
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            return Status.OOM, words, False
        if isinstance(
            error,
            DriverError | cupy.cuda.runtime.CUDARuntimeError | cupy.cuda.driver.CUDADriverError,
        ):
            code = int(error.status)
            lost = code >= 700 and code not in _RECOVERABLE
            return _STATUS_OF_ERROR.get(code, Status.LAUNCH_FAILED), words, lost
        if isinstance(error, CublasError):
            return Status.LAUNCH_FAILED, words, True
        return Status.WORKER_CRASH, words, True


@cache
def _null_kernel() -> Any:
    return cupy.RawKernel('extern "C" __global__ void null_kernel() {}', "null_kernel")
