"""Clocks, power, temperature and throttle reasons of a GPU, polled beside the measurement.

NVML is only read: clocks, power limits and modes are never changed. A value that NVML does not
give is None, never 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from .device import device_module

POLL_S = 0.05
ENERGY_POLL_S = 0.01
"""The energy counter moves every 20 to 100 ms; the moment it does is known to this."""

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). Idle and the application's own clock
# settings are no throttling.
THROTTLE_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass(frozen=True)
class Reading:
    """One poll; `monotonic_ns` is `time.monotonic_ns`, which all processes of a host share."""

    monotonic_ns: int
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int | None
    utilization_pct: float | None

    @property
    def throttled(self) -> bool | None:
        """Whether anything held the clock down; None if NVML does not tell."""
        return None if self.reasons is None else any(self.reasons & bit for bit in THROTTLE_REASONS)


class Monitor(Protocol):
    """A source of readings for one GPU."""

    def read(self) -> Reading: ...

    def energy_j(self) -> float | None:
        """Joules that the GPU has taken since its driver was loaded; None without a counter."""
        ...

    def facts(self) -> dict[str, Any]:
        """Columns of the `runs` table that NVML knows."""
        ...

    def other_processes(self) -> list[int]:
        """Process IDs that compute on the GPU now."""
        ...


class NvmlMonitor:
    """NVML through nvidia-ml-py."""

    def __init__(self, uuid: str):
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        self._reasons = reasons or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def read(self) -> Reading:
        nvml = self._nvml
        power = self._try(nvml.nvmlDeviceGetPowerUsage)
        utilization = self._try(nvml.nvmlDeviceGetUtilizationRates)
        return Reading(
            monotonic_ns=time.monotonic_ns(),
            sm_clock_mhz=self._try(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._try(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            power_w=None if power is None else power / 1000.0,
            temperature_c=self._try(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            reasons=self._try(self._reasons),
            utilization_pct=None if utilization is None else float(utilization.gpu),
        )

    def energy_j(self) -> float | None:
        millijoules = self._try(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1000.0

    def facts(self) -> dict[str, Any]:
        nvml = self._nvml
        limit = self._try(nvml.nvmlDeviceGetEnforcedPowerLimit)
        ecc, mig = self._try(nvml.nvmlDeviceGetEccMode), self._try(nvml.nvmlDeviceGetMigMode)
        persistence = self._try(nvml.nvmlDeviceGetPersistenceMode)
        return {
            "driver_version": str(nvml.nvmlSystemGetDriverVersion()),
            "gpu_power_limit_w": None if limit is None else limit / 1000.0,
            "gpu_ecc": None if ecc is None else bool(ecc[0]),
            "gpu_mig": None if mig is None else bool(mig[0]),
            "gpu_persistence_mode": None if persistence is None else bool(persistence),
        }

    def other_processes(self) -> list[int]:
        running = self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses) or []
        return [process.pid for process in running]


def open_monitor(uuid: str) -> Monitor:
    """The monitor of one GPU."""
    module = device_module()
    if module is not None:
        monitor: Monitor = module.open_monitor(uuid)
        return monitor
    return NvmlMonitor(uuid)


@dataclass(frozen=True)
class Energy:
    """What the GPU took in an interval."""

    joules: float
    seconds: float


@dataclass
class EnergyCounter:
    """The moments at which the energy counter was seen to move, and its values from then on."""

    updates: list[tuple[int, float]] = field(default_factory=list)
    """`time.monotonic_ns` and joules."""
    _last: float | None = None

    def see(self, monotonic_ns: int, joules: float) -> None:
        # When the first value was put there is not known, so it is no update.
        if self._last is not None and joules != self._last:
            self.updates.append((monotonic_ns, joules))
        self._last = joules

    def between(self, start_ns: int, stop_ns: int) -> Energy | None:
        """Energy from the first to the last update in an interval; None if it has fewer than two.

        From update to update, as a value in between is as old as the one before it.
        """
        inside = [update for update in self.updates if start_ns <= update[0] <= stop_ns]
        if len(inside) < 2:
            return None
        (first_ns, first_j), (last_ns, last_j) = inside[0], inside[-1]
        return Energy(last_j - first_j, (last_ns - first_ns) / 1e9)


class Telemetry:
    """Polls a monitor in a thread, from `start` to `stop`."""

    def __init__(self, monitor: Monitor, poll_s: float = POLL_S):
        self._monitor = monitor
        self._poll_s = poll_s
        self._readings: list[Reading] = []
        self.energy = EnergyCounter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        has_counter = True
        while not self._stop.is_set():
            # A poll that fails is a poll that is missing, not a measurement that ends.
            with suppress(Exception):
                joules = self._monitor.energy_j() if has_counter else None
                has_counter = joules is not None
                if joules is not None:
                    self.energy.see(time.monotonic_ns(), joules)
            if time.monotonic() >= due:
                due = time.monotonic() + self._poll_s
                with suppress(Exception):
                    self._readings.append(self._monitor.read())
            self._stop.wait(min(self._poll_s, ENERGY_POLL_S))

    def readings(self) -> list[Reading]:
        return list(self._readings)

    def between(self, start_ns: int, stop_ns: int) -> list[Reading]:
        """The readings of an interval of `time.monotonic_ns`, or the nearest one if it has none."""
        readings = self.readings()
        inside = [r for r in readings if start_ns <= r.monotonic_ns <= stop_ns]
        if inside or not readings:
            return inside
        middle = (start_ns + stop_ns) // 2
        return [min(readings, key=lambda r: abs(r.monotonic_ns - middle))]


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def extreme(values: Sequence[float | None], pick: Callable[..., float]) -> float | None:
    """`min` or `max` of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return pick(known) if known else None


def throttle_shares(readings: Sequence[Reading]) -> dict[str, float]:
    """Share of the readings in which each reason held the clock down, without the zeros."""
    known = [r.reasons for r in readings if r.reasons is not None]
    shares = {
        name: sum(1 for reasons in known if reasons & bit) / len(known) if known else 0.0
        for bit, name in THROTTLE_REASONS.items()
    }
    return {name: share for name, share in shares.items() if share > 0}
