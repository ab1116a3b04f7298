"""A GPU that does not exist, for tests of the measurement protocol.

Selected by `LADDER_DEVICE_MODULE=fake_gpu`; `LADDER_FAKE_GPU` names a JSON file with its identity
and with faults by kernel name. It computes with NumPy and keeps a virtual clock, so that a
"measurement" takes no time, and it is called "Fake GPU" in every table.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ladder.device import GpuIdentity, Launcher, LaunchSpec
from ladder.status import Status
from ladder.telemetry import Reading

SM_COUNT, CLOCK_MHZ = 132, 1980
PEAK_FLOP_PER_NS = SM_COUNT * 128 * 2 * CLOCK_MHZ * 1e6 / 1e9
EFFICIENCY = {"cublas": 0.75, "01_naive": 0.1, "03_shared_tile": 0.15}
LAUNCH_NS = 100_000.0


def settings() -> dict[str, Any]:
    path = os.environ.get("LADDER_FAKE_GPU")
    return dict(json.loads(Path(path).read_text())) if path else {}


def detect() -> list[GpuIdentity]:
    uuids = settings().get("uuids", ["GPU-fake-0"])
    return [
        GpuIdentity(
            uuid=uuid,
            name="Fake GPU",
            compute_capability="9.0",
            sm_count=SM_COUNT,
            l2_bytes=settings().get("l2_bytes", 2**16),
            memory_bytes=16 * 2**30,
            smem_per_block_optin_bytes=232_448,
            max_sm_clock_mhz=CLOCK_MHZ,
            max_memory_clock_mhz=3201,
            memory_bus_bits=6144,
            cuda_driver_api="13.0",
        )
        for uuid in uuids
    ]


class CudaError(Exception):
    def __init__(self, status: int):
        super().__init__(f"CUDA_ERROR {status}")
        self.status = status


class FakeDevice:
    """NumPy with a virtual clock, and the faults that the settings plant."""

    def __init__(self) -> None:
        self.xp = np
        self.l2_bytes = detect()[0].l2_bytes
        self._now = 0.0
        self._wall_skew = 1.0
        self._rng = np.random.default_rng(0)
        planted = settings()
        self._faults = planted.get("faults", {})
        self._speed = planted.get("speed", {})
        self._noise = planted.get("noise", 0.001)
        self._nap_s = planted.get("launch_sleep_s", 0)
        self._drift_after = planted.get("drift_after_launches", float("inf"))
        self._drift_factor = planted.get("drift_factor", 1.0)
        self._launches = 0

    def versions(self) -> dict[str, str | None]:
        return {"cublas_version": settings().get("cublas", "13.1.0")}

    def launcher(self, spec: LaunchSpec, m: int, n: int, k: int) -> Launcher:
        name = "cublas" if spec.kind == "cublas" else Path(spec.cubin or "").parent.name
        fault = self._faults.get(name)
        # `speed` names a kernel, or one set of it as in "01_naive/BLOCK_X=8,BLOCK_Y=8".
        speed = self._speed.get(name, EFFICIENCY.get(name, 0.05))
        efficiency = self._speed.get(f"{name}/{Path(spec.cubin or '').stem}", speed)
        duration = LAUNCH_NS + 2.0 * m * n * k / (PEAK_FLOP_PER_NS * efficiency)
        if spec.compute == "tf32":
            duration = LAUNCH_NS + (duration - LAUNCH_NS) / 6

        calls = [0]

        def launch(a: Any, b: Any, c: Any) -> None:
            calls[0] += 1
            self._launches += 1
            if self._nap_s:
                time.sleep(self._nap_s)
            spent = duration
            out = c.reshape(m, n)
            match fault:
                case "illegal_address":
                    raise CudaError(700)
                case "sigkill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(3600)
                case "oom":
                    raise MemoryError("planted")
                case "return_at_once":
                    spent = LAUNCH_NS
                case "write_nan":
                    out[...] = np.nan
                case "one_nan":
                    out[...] = product(a, b, m, n, k)
                    out[m - 1, n - 1] = np.nan
                case "write_zeros":
                    out[...] = 0.0
                case "skip_if_plausible" if not np.isnan(out).any():
                    spent = LAUNCH_NS
                case "drop_last_k":
                    out[...] = product(a, b, m, n, k, drop=1)
                case "tf32":
                    out[...] = product(tf32(a), tf32(b), m, n, k)
                case "nondeterministic":
                    out[...] = product(a, b, m, n, k)
                    # as a race does: right at first, and another bit now and then
                    if calls[0] % 5 == 0:
                        out[0, 0] = np.nextafter(out[0, 0], np.float32(9))
                case "write_behind_c":
                    out[...] = product(a, b, m, n, k)
                    whole = c.base if c.base is not None else c
                    end = (c.ctypes.data - whole.ctypes.data) // 4 + c.size
                    whole.reshape(-1)[end] = 1.0
                case "change_input":
                    out[...] = product(a, b, m, n, k)
                    a[0] = 0.0
                case _:
                    out[...] = product(a, b, m, n, k)
                    if spec.compute == "tf32":
                        out[...] = product(tf32(a), tf32(b), m, n, k)
            self._wall_skew = 0.2 if fault == "late_event" else 1.0
            drifting = self._launches > self._drift_after
            self._now += (
                spent
                * (self._drift_factor if drifting else 1.0)
                * (1.0 + self._noise * self._rng.random())
            )

        return launch

    def kernel(
        self, cubin: str, entry: str, grid: int, block: int, arguments: Sequence[Any]
    ) -> Callable[[], None]:
        """A kernel that takes `kernel_ns` of its file's name; NumPy cannot run machine code."""
        name = Path(cubin).stem
        duration = settings().get("kernel_ns", {}).get(name, 1e6)

        def launch() -> None:
            if self._faults.get(name) == "illegal_address":
                raise CudaError(700)
            self._now += duration * (1.0 + self._noise * self._rng.random())

        return launch

    def batch(self, launches: list[Callable[[], None]]) -> Callable[[], None]:
        def run() -> None:
            for launch in launches:
                launch()

        return run

    def record(self) -> float:
        return self._now

    def elapsed_ns(self, start: float, stop: float) -> float:
        # A real event has a step of half a microsecond: shorter intervals read as zero.
        return round((stop - start) / 500.0) * 500.0

    def synchronize(self) -> None:
        pass

    def clear_l2(self) -> None:
        self._now += 40_000.0

    def profiled(self) -> AbstractContextManager[None]:
        return nullcontext()

    def free_bytes(self) -> int:
        return int(settings().get("free_bytes", 12 * 2**30))

    def release_memory(self) -> None:
        pass

    def wall_ns(self) -> int:
        return int(self._now * self._wall_skew)

    def null_kernel(self) -> Callable[[], None]:
        def run() -> None:
            self._now += LAUNCH_NS

        return run

    def classify(self, error: BaseException) -> tuple[Status, str, bool]:
        if isinstance(error, CudaError):
            return Status.ILLEGAL_ADDRESS, str(error), True
        if isinstance(error, MemoryError):
            return Status.OOM, str(error), False
        return Status.WORKER_CRASH, f"{type(error).__name__}: {error}", True


def product(a: Any, b: Any, m: int, n: int, k: int, drop: int = 0) -> Any:
    return a.reshape(m, k)[:, : k - drop] @ b.reshape(k, n)[: k - drop]


def tf32(x: Any) -> Any:
    """Round to 11 significant bits, as the tensor cores' TF32 does."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def open_device() -> FakeDevice:
    return FakeDevice()


class FakeMonitor:
    def read(self) -> Reading:
        planted = settings()
        clock, reasons = planted.get("clock_mhz", CLOCK_MHZ), planted.get("reasons", 0)
        return Reading(time.monotonic_ns(), clock, 3201.0, 650.0, 40.0, reasons, 95.0)

    def energy_j(self) -> float | None:
        """A counter that moves every `energy_step_s`; none without that setting."""
        step_s = settings().get("energy_step_s")
        return 650.0 * step_s * (time.monotonic() // step_s) if step_s else None

    def facts(self) -> dict[str, Any]:
        return {
            "driver_version": settings().get("driver", "580.0"),
            "gpu_power_limit_w": 700.0,
            "gpu_ecc": True,
            "gpu_mig": False,
            "gpu_persistence_mode": True,
        }

    def other_processes(self) -> list[int]:
        return list(settings().get("other_processes", []))


def open_monitor(uuid: str) -> FakeMonitor:
    return FakeMonitor()
