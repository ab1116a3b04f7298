"""The measuring worker: one process, one GPU, one JSON request per line; it may die at any point.

Every request is answered by one line. After an error that costs the CUDA context the worker says
so and exits: nothing measured in a poisoned context can be trusted. The supervisor (`measure`)
starts a fresh one for the next point.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any, TextIO

from .correctness import Reference, check, count_nonfinite, fill_inputs, poison, reference
from .device import Device, Launcher, LaunchSpec, open_device
from .error_statistics import error_summary
from .special_values import SIDE, run_case
from .status import Status
from .timing import BufferSets, VisitRequest, repeat, visit

_EVENT_PAIRS = 200
_CACHE_SHARE = 0.4  # of free memory, for FP64 references kept between kernels of one size


class ReferenceCache:
    """FP64 references of the most recent size, since all its kernels are checked in a row."""

    def __init__(self, device: Device):
        self._device = device
        self._entries: OrderedDict[tuple[Any, ...], Reference] = OrderedDict()

    def get(self, a: Any, b: Any, shape: tuple[int, int, int], kind: str, seed: int) -> Reference:
        key = (*shape, kind, seed)
        if key not in self._entries:
            if any(old[:3] != shape for old in self._entries):
                self.clear()
            m, n, k = shape
            made = reference(self._device.xp, a, b, m, n, k, kind, seed)  # type: ignore[arg-type]
            if 16 * m * n * 4 > _CACHE_SHARE * self._device.free_bytes():
                return made
            self._entries[key] = made
        return self._entries[key]

    def clear(self) -> None:
        if self._entries:
            self._entries.clear()
            self._device.release_memory()


class Worker:
    """Answers requests on one device."""

    def __init__(self, device: Device):
        self._device = device
        self._references = ReferenceCache(device)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; the reply's `lost` says that the context cannot be used again."""
        try:
            return {"lost": False, **self._handle(request)}
        except Exception as error:
            status, detail, lost = self._device.classify(error)
            if not lost:
                self._references.clear()
                self._device.release_memory()
            return {"status": status, "detail": detail, "lost": lost}

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = request.pop("operation")
        started = time.monotonic_ns()
        match operation:
            case "hello":
                reply = self._hello()
            case "settle":
                reply = self._settle(**request)
            case "check":
                reply = self._check(**request)
            case "errors":
                reply = self._errors(**request)
            case "special_values":
                reply = self._special_values(**request)
            case "ceiling":
                reply = self._ceiling(**request)
            case "visit":
                self._references.clear()
                spec = LaunchSpec.from_json(request.pop("spec"))
                reply = visit(self._device, VisitRequest(spec=spec, **request)).to_json()
            case _:
                raise ValueError(f"unknown operation {operation!r}")
        return {
            "started_monotonic_ns": started,
            "finished_monotonic_ns": time.monotonic_ns(),
            **reply,
        }

    def _hello(self) -> dict[str, Any]:
        """Versions, and what an empty measurement costs."""
        device = self._device
        null = device.null_kernel()
        null()
        device.synchronize()
        floor, empty = [], []
        for _ in range(_EVENT_PAIRS):
            events = [device.record(), device.record()]
            null()
            events.append(device.record())
            device.synchronize()
            floor.append(device.elapsed_ns(events[0], events[1]))
        batch = device.batch([null] * _EVENT_PAIRS)
        for _ in range(5):
            start = device.record()
            batch()
            stop = device.record()
            device.synchronize()
            empty.append(device.elapsed_ns(start, stop) / _EVENT_PAIRS)
        return {
            "status": Status.OK,
            **device.versions(),
            "event_floor_ns": sorted(floor)[len(floor) // 2],
            "null_kernel_ns": sorted(empty)[len(empty) // 2],
            "free_bytes": device.free_bytes(),
        }

    def _settle(self, seconds: float, n: int) -> dict[str, Any]:
        """Keep the GPU busy with cuBLAS FP32 at N = n for some time."""
        device = self._device
        buffers = BufferSets(device.xp, n, n, n, 1)
        buffers.fill_inputs(1)
        launch = device.launcher(LaunchSpec("cublas", compute="fp32_pedantic"), n, n, n)
        a, b, c = (buffers.matrix(name, 0) for name in "ABC")
        start = device.record()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(8):
                launch(a, b, c)
            device.synchronize()
        stop = device.record()
        device.synchronize()
        return {"status": Status.OK, "busy_ns": device.elapsed_ns(start, stop)}

    def _check(
        self, spec: dict[str, Any], m: int, n: int, k: int, accuracy: str, deterministic: bool
    ) -> dict[str, Any]:
        verdict = check(
            self._device.xp, self._launcher(spec, m, n, k), m, n, k,
            accuracy=accuracy,  # type: ignore[arg-type]
            deterministic=deterministic,
            reference_of=lambda a, b, kind, seed: self._references.get(a, b, (m, n, k), kind, seed),
        )  # fmt: skip
        return asdict(verdict)

    def _launcher(self, spec: dict[str, Any], m: int, n: int, k: int) -> Launcher:
        """Runs a kernel once and returns when it has finished."""
        enqueue = self._device.launcher(LaunchSpec.from_json(spec), m, n, k)

        def launch(a: Any, b: Any, c: Any) -> None:
            enqueue(a, b, c)
            self._device.synchronize()

        return launch

    def _errors(
        self, spec: dict[str, Any], m: int, n: int, k: int, kind: str, seed: int
    ) -> dict[str, Any]:
        """The errors of one product of a data set."""
        xp = self._device.xp
        a, b, c = (xp.empty(size, dtype=xp.float32) for size in (m * k, k * n, m * n))
        fill_inputs(xp, a, b, kind, seed)  # type: ignore[arg-type]
        # Before the launch: a kernel that changes its inputs must not change what it is held to.
        expected = self._references.get(a, b, (m, n, k), kind, seed)
        poison(xp, c)
        self._launcher(spec, m, n, k)(a, b, c)
        c = c.reshape(m, n)
        nonfinite = count_nonfinite(xp, c)
        if nonfinite:
            fault = f"{nonfinite:,} of {m * n:,} elements of C are NaN or infinite"
            return {"status": Status.NONFINITE, "detail": fault}
        return {"status": Status.OK, "detail": None, **asdict(error_summary(xp, c, expected))}

    def _special_values(self, spec: dict[str, Any], accuracy: str, case: str) -> dict[str, Any]:
        """What a kernel makes of special values; `spec` is for products of their size."""
        self._references.clear()
        launch = self._launcher(spec, SIDE, SIDE, SIDE)
        outcome, differing = run_case(self._device.xp, launch, case, accuracy)  # type: ignore[arg-type]
        return {"status": Status.OK, "detail": None, "outcome": outcome, "differing": differing}

    def _ceiling(
        self,
        cubin: str,
        entry: str,
        grid: int,
        block: int,
        arguments: list[int],
        in_bytes: int,
        out_bytes: int,
        warmup_ns: float,
        sample_ns: float,
        samples: int,
    ) -> dict[str, Any]:
        """Time a kernel that takes an input and an output array before its integers."""
        device = self._device
        xp = device.xp
        source = xp.empty(in_bytes // 4, dtype=xp.float32)
        target = xp.empty(out_bytes // 4, dtype=xp.float32)
        fill_inputs(xp, source, target, "uniform", 1)
        launch = device.kernel(cubin, entry, grid, block, [source, target, *arguments])
        chunks = repeat(device, launch, warmup_ns=warmup_ns, sample_ns=sample_ns, samples=samples)
        return {"status": Status.OK, "chunks": [asdict(chunk) for chunk in chunks]}


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the supervisor dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            sys.exit("the supervisor is gone")


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until the input ends or the context is lost."""
    worker = Worker(open_device())
    for line in requests:
        reply = worker.answer(json.loads(line))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if reply["lost"]:
            # Skip the interpreter's shutdown: destructors would touch the broken context.
            os._exit(1)


def main() -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what Ctrl-C means
    # Libraries print to stdout; the protocol keeps the real one to itself.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
