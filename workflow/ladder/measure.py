"""The supervisor: measures what is missing, on one or several GPUs, and keeps every result.

Per GPU: take the lock, look at who else uses it, start a worker, let the clock settle, check every
point, then visit all points in random order, several rounds, with a sentinel in between. A worker
that dies costs the point in flight; the next one gets a fresh worker.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from . import __version__
from .compile import compiler_problem, compiler_version
from .config import Config, Protocol
from .correctness import PROTOCOL_VERSION
from .device import GpuIdentity, LaunchSpec, detect, expected, select
from .documents import UserError
from .manifest import Kernel
from .plan import Fault, Point, read_config, read_points
from .progress import Progress
from .status import RETRIED, Status
from .store import Environment, Finished, Journal, load
from .telemetry import Energy, Monitor, Telemetry, extreme, mean, open_monitor, throttle_shares
from .work import WorkItem, assign, memory_fault_of, sampling_constants, work_item

TF32_VARIABLES = ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE")
"""Either one silently turns cuBLAS's FP32 into TF32; the worker never sees them."""
COMMIT_VARIABLE = "LADDER_GIT_COMMIT"
RECORDED_VARIABLES = (*TF32_VARIABLES, "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING",
                      "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG")  # fmt: skip
_PACKAGES = ("cupy-cuda13x", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cublas", "numpy",
             "pyarrow", "pandas", "snakemake")  # fmt: skip
_SENTINEL_SAMPLES = 15
_SENTINEL_WARMUP_NS = 30e6
_LATER_WARMUP_SHARE = 0.25
"""Of the first visit's warm-up: the GPU has been busy with other points until a moment ago."""
_SETTLE_STEP_S = 1.0
_SETTLE_MOST = 4.0
"""Settling ends after this many times the configured time, steady or not."""
_SETTLED_PCT = 1.0
_LOCK_POLL_S = 1.0


class WorkerLost(Exception):
    """The worker died or hung; carries the status and the words for the point in flight."""

    def __init__(self, status: Status, detail: str):
        super().__init__(detail)
        self.status = status
        self.detail = detail


class WorkerProcess:
    """A running worker, its pipe and its time-outs."""

    def __init__(self, gpu: GpuIdentity, cache: Path, log: Path, timeout_s: float):
        self._timeout_s = timeout_s
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=worker_environment(gpu, cache),
            text=True,
        )
        self._replies: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put(None)

    def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """One request and its reply.

        Raises:
            WorkerLost: if no reply comes; the process is then gone.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"operation": operation, **request}) + "\n")
            self._process.stdin.flush()
            line = self._replies.get(timeout=self._timeout_s)
        except BrokenPipeError:
            line = None
        except queue.Empty:
            self.kill()
            raise WorkerLost(
                Status.TIMEOUT, f"no answer within {self._timeout_s:g} s; the worker was stopped"
            ) from None
        if line is None:
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise WorkerLost(Status.WORKER_CRASH, f"the worker died ({how}); see {self._log.name}")
        reply: dict[str, Any] = json.loads(line)
        if reply["lost"]:
            self._process.wait()
        return reply

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def close(self) -> None:
        """End the worker in an orderly way."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._log.close()


class LastingWorker:
    """A worker that starts when it is first asked, and again after it was lost."""

    def __init__(self, gpu: GpuIdentity, out: Path, timeout_s: float):
        self._gpu = gpu
        self._out = out
        self._timeout_s = timeout_s
        self._worker: WorkerProcess | None = None

    def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """One request and its reply; of a worker that was lost, the status that this has."""
        if self._worker is None:
            for folder in ("logs", "cache"):
                (self._out / folder).mkdir(parents=True, exist_ok=True)
            cache, log = (self._out / "cache").resolve(), self._out / "logs" / "worker.log"
            self._worker = WorkerProcess(self._gpu, cache, log, self._timeout_s)
        try:
            reply = self._worker.ask(operation, **request)
        except WorkerLost as error:
            reply = {"status": error.status, "detail": error.detail, "lost": True}
        if reply["lost"]:
            self.close()
        return reply

    def close(self) -> None:
        if self._worker:
            self._worker.close()
            self._worker = None


def worker_environment(gpu: GpuIdentity, cache: Path) -> dict[str, str]:
    """The environment of a worker: one GPU, modules loaded eagerly, no TF32 by the back door."""
    environment = {k: v for k, v in os.environ.items() if k not in TF32_VARIABLES}
    package_parent = str(Path(__file__).resolve().parent.parent)
    paths = [package_parent, *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "CUDA_MODULE_LOADING": "EAGER",
        # HOME may be unset or read-only; the project's own cache never is.
        "CUPY_CACHE_DIR": environment.get("CUPY_CACHE_DIR") or str(cache),
    }


@contextmanager
def gpu_lock(gpu: GpuIdentity, note: Any = None) -> Iterator[None]:
    """Hold the GPU against every other run on this host, whatever started it.

    The kernel drops the lock when the process ends, however it ends.

    Raises:
        UserError: if the lock file cannot be opened.
    """
    folder = Path(os.environ.get("LADDER_LOCK_DIR", tempfile.gettempdir()))
    lock = FileLock(folder / f"gemm-ladder-{gpu.uuid}.lock", mode=0o666)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if note:
                note(f"{gpu.name} is being measured by another run; waiting for it to end")
            lock.acquire(poll_interval=_LOCK_POLL_S)
    except PermissionError as error:
        raise UserError(
            f"{error.filename}: the GPU's lock file cannot be opened; "
            "set LADDER_LOCK_DIR to a folder that all users of this GPU can write"
        ) from None
    try:
        yield
    finally:
        lock.release()


def others_on(gpu: GpuIdentity, monitor: Monitor, config: Config) -> list[int]:
    """The other processes that compute on a GPU.

    Raises:
        UserError: if there are some and the configuration forbids that.
    """
    others = monitor.other_processes()
    if others and not config.gpu.allow_shared:
        pids = ", ".join(map(str, others))
        raise UserError(
            f"{gpu.name} ({gpu.uuid}) is in use by process {pids}; wait, or set "
            "`gpu.allow_shared: true` to measure all the same (the rows are then marked)"
        )
    return others


class Stream:
    """The measurement on one GPU, from its lock to its journal's last line."""

    def __init__(
        self,
        gpu: GpuIdentity,
        config: Config,
        kernels: Mapping[str, Kernel],
        planned: list[tuple[Point, Fault | None]],
        *,
        builds_root: Path,
        out: Path,
        header: dict[str, Any],
        progress: Progress,
    ):
        self._gpu = gpu
        self._config = config
        self._kernels = kernels
        self._planned = planned
        self._builds_root = builds_root
        self._out = out
        self._header = header
        self._progress = progress
        self._worker: WorkerProcess | None = None
        self._restarts = -1
        self._busy_ns = 0.0
        self._sentinel_ns: float | None = None
        self._sentinels: list[float] = []
        self._drift_pct = 0.0
        self._drift_repeats = 0
        self._settled_mhz: float | None = None
        self._settle_s = 0.0
        self._settled_at_ns = 0

    # --- life cycle -----------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Measure everything that is missing; returns the summary that ends the journal.

        Raises:
            UserError: if other processes compute on the GPU and the configuration forbids that.
        """
        with gpu_lock(self._gpu, self._progress.note):
            monitor = open_monitor(self._gpu.uuid)
            others = others_on(self._gpu, monitor, self._config)
            self._telemetry = Telemetry(monitor)
            self._telemetry.start()
            started = time.monotonic()
            try:
                hello = self._start_worker()
                self._environment = Environment(
                    self._gpu.uuid,
                    str(monitor.facts().get("driver_version")),
                    str(hello["cublas_version"]),
                )
                header = {
                    **self._header,
                    **{f"gpu_{name}": value for name, value in self._gpu.to_json().items()},
                    **monitor.facts(),
                    "gpu_other_processes": len(others),
                    "gpu_shared": bool(others),
                    **asdict(self._environment),
                    "event_floor_ns": hello["event_floor_ns"],
                    "null_kernel_ns": hello["null_kernel_ns"],
                }
                with Journal(self._out / "journal", header) as self._journal:
                    return self._measure(hello["free_bytes"], started)
            finally:
                self._telemetry.stop()
                if self._worker:
                    self._worker.close()

    def _measure(self, free_bytes: int, started: float) -> dict[str, Any]:
        done = load(self._out / "journal")
        items = [
            work_item(
                point,
                fault,
                self._kernels[point.kernel],
                self._config,
                self._builds_root,
                self._gpu.architecture(self._config.architectures),
                self._environment,
            )
            for point, fault in self._planned
        ]
        runnable = self._predict_memory([item for item in items if not item.fault], free_bytes)
        before = sum(1 for item in runnable if self._complete(item, done))
        end_reason = "failed"
        try:
            self._check_all(runnable, done)
            self._visit_all(runnable, done)
            end_reason = "complete"
        except KeyboardInterrupt:
            end_reason = "interrupted"
            raise
        finally:
            summary = self._summary(runnable, before, done, started)
            self._journal.append("end", {**summary, "end_reason": end_reason})
        return summary

    def _predict_memory(self, items: list[WorkItem], free_bytes: int) -> list[WorkItem]:
        fitting = []
        for item in items:
            fault = memory_fault_of(item, self._gpu.l2_bytes, free_bytes)
            if fault:
                self._fail(item, *fault)
            else:
                fitting.append(item)
        return fitting

    def _start_worker(self) -> dict[str, Any]:
        if self._worker:
            self._worker.close()
        self._restarts += 1
        logs = self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        cache = (self._out / "cache").resolve()
        cache.mkdir(exist_ok=True)
        self._worker = WorkerProcess(
            self._gpu, cache, logs / "worker.log", self._config.protocol.timeout_s
        )
        try:
            hello = self._worker.ask("hello")
        except WorkerLost as error:
            raise UserError(f"{self._gpu.name}: the worker does not start: {error}") from None
        if hello["lost"]:
            raise UserError(f"{self._gpu.name}: the worker does not start: {hello['detail']}")
        return hello

    def _settle(self) -> None:
        """Load the GPU until its clock stays within 1 % over the last second."""
        assert self._worker is not None
        protocol = self._config.protocol
        if protocol.settle_s == 0:
            return
        spent = 0.0
        while spent < _SETTLE_MOST * protocol.settle_s:
            try:
                reply = self._worker.ask("settle", seconds=_SETTLE_STEP_S, n=protocol.sentinel_size)
            except WorkerLost as error:
                raise UserError(f"{self._gpu.name}: cuBLAS does not run: {error}") from None
            if reply["status"] != Status.OK:
                raise UserError(f"{self._gpu.name}: cuBLAS does not run: {reply['detail']}")
            spent += _SETTLE_STEP_S
            self._busy_ns += reply.get("busy_ns", 0.0)
            clocks = [
                reading.sm_clock_mhz
                for reading in self._telemetry.between(
                    reply["started_monotonic_ns"], reply["finished_monotonic_ns"]
                )
            ]
            low, high = extreme(clocks, min), extreme(clocks, max)
            self._settled_mhz = mean(clocks)
            steady = low is None or high is None or high - low <= _SETTLED_PCT / 100 * high
            if spent >= protocol.settle_s and steady:
                break
        self._settle_s = max(self._settle_s, spent)
        self._settled_at_ns = self._settled_at_ns or time.monotonic_ns()

    def _ask(self, item: WorkItem, operation: str, **request: Any) -> dict[str, Any]:
        """Ask the worker about a point; a lost worker becomes a status and is replaced."""
        assert self._worker is not None
        try:
            reply = self._worker.ask(operation, **request)
        except WorkerLost as error:
            reply = {"status": error.status, "detail": error.detail, "lost": True}
        if reply["lost"]:
            self._progress.note(f"{_name(item.point)}: {reply['status']}; starting a fresh worker")
            self._start_worker()
            if operation == "visit":
                self._settle()
        return reply

    # --- correctness ----------------------------------------------------------------------------

    def _check_all(self, items: list[WorkItem], done: Finished) -> None:
        """Check what has no verdict yet, size by size so that references are shared."""
        for item in sorted(items, key=lambda item: (item.point.flop, item.point)):
            old = done.checks.get(item.check_key)
            if old and old["status"] not in RETRIED:
                self._progress.step(_name(item.point))
                continue
            assert item.spec is not None
            m, n, k = item.point.shape
            reply = self._ask(
                item,
                "check",
                spec=asdict(item.spec),
                m=m,
                n=n,
                k=k,
                accuracy=item.accuracy,
                deterministic=item.deterministic,
            )
            if reply["status"] != Status.OK:
                self._progress.note(f"{_name(item.point)}: {reply['status']}: {reply['detail']}")
            record = {"key": item.check_key, **_identity(item), **_without(reply, "lost")}
            self._journal.append("check", record)
            done.checks[item.check_key] = record
            self._progress.step(_name(item.point))

    # --- timing ---------------------------------------------------------------------------------

    def _visit_all(self, items: list[WorkItem], done: Finished) -> None:
        protocol = self._config.protocol
        settled = False
        for number in range(protocol.rounds):
            order = list(items)
            random.Random(f"{protocol.seed}/{number}").shuffle(order)
            missing: dict[str, WorkItem] = {}
            for item in order:
                # A kernel that selects others has points in common with them, timed once.
                if item.point_key not in missing and self._wants_visit(item, number, done):
                    missing[item.point_key] = item
                else:
                    self._progress.step(_name(item.point))
            if missing and not settled:
                self._settle()
                self._sentinel_ns = self._time_sentinel()
                settled = True
            for start in range(0, len(missing), protocol.sentinel_every):
                block = list(missing.values())[start : start + protocol.sentinel_every]
                self._visit_block(block, number, done)

    def _wants_visit(self, item: WorkItem, number: int, done: Finished) -> bool:
        if done.final_failure(item.check_key, item.point_key):
            return False
        if done.checks[item.check_key]["status"] != Status.OK:
            return False
        old = done.visits.get(item.point_key, {}).get(number)
        return old is None or old["status"] in RETRIED

    def _visit_block(self, block: list[WorkItem], number: int, done: Finished) -> None:
        """Visit some points, look at the sentinel, and repeat them once if it moved."""
        for item in block:
            self._visit(item, number, done, repeated=False)
        if not self._drifted():
            return
        void = [
            (item.point_key, number)
            for item in block
            if number in done.visits.get(item.point_key, {})
        ]
        self._progress.note(f"the sentinel moved by {self._drift_pct:.1f} %: "
                            f"{len(void)} visits are repeated")  # fmt: skip
        self._drift_repeats += 1
        self._progress.extend(len(void))
        self._journal.append("superseded", {"visits": void})
        for key, _ in void:
            done.superseded.append(done.visits[key].pop(number))
        for item in block:
            self._visit(item, number, done, repeated=True)
        # What the clock settled at now is the new normal: otherwise every block would repeat.
        self._sentinel_ns = self._time_sentinel()

    def _visit(self, item: WorkItem, number: int, done: Finished, *, repeated: bool) -> None:
        protocol = self._config.protocol
        earlier = [
            time_ns
            for visit in done.visits.get(item.point_key, {}).values()
            if visit["round"] < number
            for chunk in visit["chunks"]
            if chunk["phase"] == "sample"
            for time_ns in chunk["times_ns"]
        ]
        fingerprints = done.checks[item.check_key].get("fingerprints") or {}
        reply = self._ask(
            item,
            "visit",
            **self._visit_request(item.spec, *item.point.shape, item.point.cache_mode),
            first_visit=number == 0,
            warmup_ns=_warmup_ns(protocol, number),
            share=(number + 1) / protocol.rounds,
            settle_interval=number == protocol.rounds - 1,
            previous=earlier,
            expected_fingerprint=fingerprints.get("2") if item.deterministic else None,
        )
        if reply["status"] != Status.OK:
            self._progress.note(f"{_name(item.point)}: {reply['status']}: {reply['detail']}")
        self._busy_ns += reply.get("busy_ns", 0.0)
        energy = self._energy_of(item.point, reply.get("chunks", []))
        chunks = [self._with_conditions(chunk) for chunk in reply.get("chunks", [])]
        record = {
            "key": item.point_key,
            **_identity(item),
            "round": number,
            "measured_at": datetime.now(UTC).isoformat(),
            "drift_repeated": repeated,
            "energy_j": energy.joules if energy else None,
            "energy_span_s": energy.seconds if energy else None,
            **_without(reply, "lost"),
            "chunks": chunks,
        }
        self._journal.append("visit", record)
        done.visits.setdefault(item.point_key, {})[number] = record
        self._progress.step(_name(item.point))

    def _visit_request(
        self, spec: LaunchSpec | None, m: int, n: int, k: int, cache_mode: str
    ) -> dict[str, Any]:
        assert spec is not None
        constants = sampling_constants(self._config.protocol)
        return {
            "spec": asdict(spec),
            "m": m,
            "n": n,
            "k": k,
            "cache_mode": cache_mode,
            "sample_ns": constants["sample_us"] * 1e3,
            "minimum_samples": constants["minimum_samples"],
            "minimum_total_ns": constants["minimum_total_ms"] * 1e6,
            "interval_pct": constants["interval_pct"],
            "maximum_samples": constants["maximum_samples"],
            "maximum_gpu_ns": constants["maximum_gpu_s"] * 1e9,
            "maximum_wall_ns": constants["maximum_wall_s"] * 1e9,
        }

    def _energy_of(self, point: Point, chunks: Sequence[Mapping[str, Any]]) -> Energy | None:
        """What the GPU took while it did nothing but launch a point, warm-up and samples."""
        loaded = [chunk for chunk in chunks if chunk["phase"] in ("warmup", "sample")]
        if not loaded or point.cache_mode == "cold":  # half of that time clears the cache
            return None
        return self._telemetry.energy.between(
            loaded[0]["started_monotonic_ns"], loaded[-1]["finished_monotonic_ns"]
        )

    def _with_conditions(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """A chunk of samples with the clocks, power and throttle reasons during it."""
        start, stop = chunk.pop("started_monotonic_ns"), chunk.pop("finished_monotonic_ns")
        readings = self._telemetry.between(start, stop)
        throttled = [r.throttled for r in readings if r.throttled is not None]
        return chunk | {
            "sm_clock_mhz": mean([r.sm_clock_mhz for r in readings]),
            "sm_clock_min_mhz": extreme([r.sm_clock_mhz for r in readings], min),
            "memory_clock_mhz": mean([r.memory_clock_mhz for r in readings]),
            "power_w": mean([r.power_w for r in readings]),
            "temperature_c": extreme([r.temperature_c for r in readings], max),
            "throttled": any(throttled) if throttled else None,
            "throttle_reasons": throttle_shares(readings),
        }

    # --- sentinel -------------------------------------------------------------------------------

    def _time_sentinel(self) -> float | None:
        """Median time of cuBLAS FP32 at the sentinel's size, ns; None if it failed."""
        assert self._worker is not None
        n = self._config.protocol.sentinel_size
        spec = LaunchSpec("cublas", compute="fp32_pedantic")
        request = self._visit_request(spec, n, n, n, "rotating") | {
            "warmup_ns": _SENTINEL_WARMUP_NS,
            "minimum_samples": _SENTINEL_SAMPLES,
            "minimum_total_ns": 0.0,
        }
        try:
            reply = self._worker.ask(
                "visit",
                **request,
                first_visit=False,
                share=1.0,
                settle_interval=False,
                previous=[],
                expected_fingerprint=None,
            )
        except WorkerLost as error:
            reply = {"status": error.status, "detail": error.detail, "lost": True}
        if reply["lost"]:
            self._start_worker()
            self._settle()
            return None
        self._busy_ns += reply.get("busy_ns", 0.0)
        times = sorted(
            time_ns
            for chunk in reply.get("chunks", [])
            if chunk["phase"] == "sample"
            for time_ns in chunk["times_ns"]
        )
        if not times:
            return None
        median = float(times[len(times) // 2])
        self._sentinels.append(median)
        self._journal.append("sentinel", {"time_median_ns": median, "n": n})
        return median

    def _drifted(self) -> bool:
        """Time the sentinel; whether it moved by more than the configured share."""
        now = self._time_sentinel()
        if now is None or self._sentinel_ns is None:
            self._sentinel_ns = now if self._sentinel_ns is None else self._sentinel_ns
            return False
        drift = 100.0 * abs(now / self._sentinel_ns - 1.0)
        self._drift_pct = max(self._drift_pct, drift)
        return drift > self._config.protocol.drift_pct

    # --- results --------------------------------------------------------------------------------

    def _fail(self, item: WorkItem, status: Status, detail: str | None) -> None:
        self._journal.append(
            "check", {"key": item.check_key, **_identity(item), "status": status, "detail": detail}
        )
        self._progress.note(f"{_name(item.point)}: {status}: {detail}")
        self._progress.step(_name(item.point), done=1 + self._config.protocol.rounds)

    def _complete(self, item: WorkItem, done: Finished) -> bool:
        if done.final_failure(item.check_key, item.point_key):
            return True
        rounds = done.visits.get(item.point_key, {})
        return all(
            number in rounds and rounds[number]["status"] not in RETRIED
            for number in range(self._config.protocol.rounds)
        )

    def _summary(
        self, items: list[WorkItem], before: int, done: Finished, started: float
    ) -> dict[str, Any]:
        readings = self._telemetry.readings()
        # Before the clock has settled the GPU idles: that is no condition of any measurement.
        loaded = [r for r in readings if r.monotonic_ns >= self._settled_at_ns]
        clocks = [r.sm_clock_mhz for r in loaded]
        power = [r.power_w for r in loaded]
        after = sum(1 for item in items if self._complete(item, done))
        sentinels = sorted(self._sentinels)
        return {
            "finished_at": datetime.now(UTC).isoformat(),
            "points_planned": len(self._planned),
            "points_measured": after - before,
            "points_from_store": before,
            "worker_restarts": self._restarts,
            "settle_s": self._settle_s,
            "settled_sm_clock_mhz": self._settled_mhz,
            "sentinel_median_ns": sentinels[len(sentinels) // 2] if sentinels else None,
            "sentinel_times_ns": json.dumps(self._sentinels),
            "sentinel_max_drift_pct": self._drift_pct,
            "drift_repeats": self._drift_repeats,
            "wall_s": time.monotonic() - started,
            "gpu_event_busy_s": self._busy_ns / 1e9,
            "gpu_utilization_mean_pct": mean([r.utilization_pct for r in readings]),
            "sm_clock_min_mhz": extreme(clocks, min),
            "sm_clock_mean_mhz": mean(clocks),
            "sm_clock_max_mhz": extreme(clocks, max),
            "power_mean_w": mean(power),
            "power_max_w": extreme(power, max),
            "temperature_max_c": extreme([r.temperature_c for r in readings], max),
            "throttle_reasons": json.dumps(throttle_shares(loaded)),
        }


def _warmup_ns(protocol: Protocol, number: int) -> float:
    """Warm-up of a visit in round `number`, ns."""
    return protocol.warmup_ms * 1e6 * (1.0 if number == 0 else _LATER_WARMUP_SHARE)


def _name(point: Point) -> str:
    parameters = " ".join(f"{name}={value}" for name, value in point.parameters().items())
    mode = "" if point.cache_mode == "rotating" else f" {point.cache_mode}"
    return f"{point.kernel} {parameters} {point.m}x{point.n}x{point.k}{mode}".replace("  ", " ")


def _identity(item: WorkItem) -> dict[str, Any]:
    return item.point.row() | {"check_key": item.check_key}


def _without(reply: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in reply.items() if key not in names}


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """The commit of this tree and whether files differ from it.

    A tree that was copied without its history (a container, a cluster node) gets both from
    `LADDER_GIT_COMMIT`: a hash, with ``-dirty`` behind it where files differ.
    """
    told = os.environ.get(COMMIT_VARIABLE)
    if told:
        return told.removesuffix("-dirty"), told.endswith("-dirty")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return _git(root, "rev-parse", "HEAD"), None if changes is None else bool(changes)


def _command_line(root: Path) -> str:
    """The command as typed, with the project's folder as `.`: results are published."""
    arguments = [argument.replace(str(root), ".") for argument in sys.argv[1:]]
    return " ".join(["python -m ladder", *arguments])


def run_header(config: Config, root: Path, source: str) -> dict[str, Any]:
    """Who and where: what a `runs` row knows before anything is measured."""
    commit, dirty = _commit(root)
    return {
        "source": source,
        "ladder_version": __version__,
        "protocol_version": PROTOCOL_VERSION,
        "git_commit": commit,
        "git_dirty": dirty,
        "config_digest": config.digest(),
        "argv": _command_line(root),
        "seed": config.protocol.seed,
        "host_os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "host_cpu": platform.processor() or platform.machine(),
        "python_version": platform.python_version(),
        "packages": json.dumps(_package_versions()),
        "environment": json.dumps(
            {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ}
        ),
        "nvrtc_version": None if compiler_problem() else compiler_version(),
        "protocol": config.protocol.model_dump_json(),
    }


def measure(
    plan: Path, kernels: Mapping[str, Kernel], *, builds_root: Path, out: Path, root: Path
) -> list[dict[str, Any]]:
    """Measure the points of a plan that are not in the store yet.

    Args:
        plan: the plan's file.
        kernels: the kernels it names.
        builds_root: folder of the builds.
        out: result folder of this GPU model; journals, logs and caches go there.
        root: project root, for provenance.

    Returns:
        One summary per GPU.

    Raises:
        UserError: if no GPU answers, or it is in use.
    """
    config = read_config(plan)
    planned = read_points(plan)
    gpus = select(expected(detect(), config.gpu.expect), config.gpu.select)
    header = {**run_header(config, root, "measured"), "session_id": secrets.token_hex(8)}
    card_of = assign(
        (point for point, _ in planned),
        [gpu.uuid for gpu in gpus],
        _cards_of_sizes(load(out / "journal")),
    )
    steps = len([fault for _, fault in planned if not fault]) * (1 + config.protocol.rounds)
    with Progress("measure", steps) as progress:
        streams = [
            Stream(
                gpu,
                config,
                kernels,
                [entry for entry in planned if card_of[entry[0].shape] == gpu.uuid],
                builds_root=builds_root,
                out=out,
                header=header,
                progress=progress,
            )
            for gpu in gpus
        ]
        if len(streams) == 1:
            return [streams[0].run()]
        return _run_side_by_side(streams)


def _cards_of_sizes(finished: Finished) -> dict[tuple[int, int, int], str]:
    """The GPU on which each size was timed last."""
    return {
        (visit["m"], visit["n"], visit["k"]): finished.runs[visit["run_id"]]["gpu_uuid"]
        for rounds in finished.visits.values()
        for visit in rounds.values()
    }


def _run_side_by_side(streams: list[Stream]) -> list[dict[str, Any]]:
    """One thread per GPU; the first error is raised when all have ended."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(streams)) as pool:
        futures = [pool.submit(stream.run) for stream in streams]
    return [future.result() for future in futures]
