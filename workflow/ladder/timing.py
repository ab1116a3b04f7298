"""One visit to one point: rotating buffers, warm-up, samples, stop rule, and the checks after it.

Device events give every time. The host clock runs beside them and is compared, never used.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .correctness import GUARD_BITS, POISON_BITS, fill_inputs, fingerprint, poison
from .device import Device, Event, LaunchSpec
from .stats import median_interval_ranks
from .status import Status

MAXIMUM_SETS = 256
"""Buffer sets at most. Inputs too small to exceed twice the L2 in so many are marked."""
MAXIMUM_LAUNCHES = 2048
"""Launches per sample at most."""
WARMUP_LAUNCHES = 5
SLOW_KERNEL_NS = 0.5e9
"""Kernels slower than this need only `SLOW_KERNEL_SAMPLES` samples."""
SLOW_KERNEL_SAMPLES = 5
WALL_CHECK_NS = 10e6
"""Kernels slower than this must agree with the host clock within `WALL_TOLERANCE`."""
WALL_TOLERANCE = 0.05
LAUNCH_BOUND_FACTOR = 4.0
"""A kernel within this factor of an empty one measures the launch, not the arithmetic. On an H200
an empty kernel takes 0.56 us in a graph, products at N = 8 take 1.2 (naive) to 2.0 us (tile)."""
_CHUNK_NS = 50e6  # device time between two looks at the stop rule
_CHUNK_SAMPLES = 200
_REPLANS = 4
_ESTIMATE_AGAIN_NS = 20e6  # beyond it the first launch is a good enough estimate
_PAD_ELEMENTS = 1024  # guard between matrices, 4 KiB
_ALIGN_ELEMENTS = 64  # 256 bytes, as a fresh allocation would have
_TIMING_SEED, _POST_SEED = 1, 2


@dataclass(frozen=True)
class VisitRequest:
    """What to time. Times in ns; `previous` are the samples of earlier rounds."""

    spec: LaunchSpec
    m: int
    n: int
    k: int
    cache_mode: str
    first_visit: bool
    share: float
    """Part of the point's quota of samples that must be complete after this visit, 0 to 1."""
    settle_interval: bool
    """Whether to go on until the interval is narrow enough (the last round)."""
    previous: list[float]
    expected_fingerprint: str | None
    """Checksum of the accepted output on the second data set; None if bits may vary."""
    warmup_ns: float
    sample_ns: float
    minimum_samples: int
    minimum_total_ns: float
    interval_pct: float
    maximum_samples: int
    maximum_gpu_ns: float
    maximum_wall_ns: float


@dataclass
class Chunk:
    """Consecutive samples enqueued together, and when the host saw them start and end."""

    phase: str
    launches: int
    times_ns: list[float]
    """Per launch."""
    started_monotonic_ns: int
    finished_monotonic_ns: int


@dataclass
class Visit:
    """The outcome of a visit."""

    status: Status = Status.OK
    detail: str | None = None
    buffer_sets: int = 0
    inputs_exceed_l2: bool = False
    launches_per_sample: int = 0
    first_launch_ns: float | None = None
    stop_reason: str | None = None
    wall_over_event: float | None = None
    post_timing_correct: bool | None = None
    guards_intact: bool | None = None
    inputs_intact: bool | None = None
    busy_ns: float = 0.0
    chunks: list[Chunk] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class BufferSets:
    """Several sets of A, B, C with equal contents, laid out one after the other with guards."""

    def __init__(self, xp: Any, m: int, n: int, k: int, sets: int):
        self._xp = xp
        sizes = {"A": m * k, "B": k * n, "C": m * n}
        self._offsets, self._gaps = {}, []
        position = 0
        for name, size in sizes.items():
            start = _round_up(position + _PAD_ELEMENTS, _ALIGN_ELEMENTS)
            self._gaps.append((position, start))
            self._offsets[name] = (start, start + size)
            position = start + size
        end = _round_up(position + _PAD_ELEMENTS, _ALIGN_ELEMENTS)
        self._gaps.append((position, end))
        self._sets = xp.empty((sets, end), dtype=xp.float32)
        poison(xp, self._sets, GUARD_BITS)

    @staticmethod
    def bytes_needed(m: int, n: int, k: int, sets: int) -> int:
        """Memory for the buffers, bytes (guards and alignment included)."""
        padding = 4 * (_PAD_ELEMENTS + _ALIGN_ELEMENTS)
        return 4 * sets * (m * k + k * n + m * n + padding)

    def matrix(self, name: str, index: int) -> Any:
        """Matrix A, B or C of a set, flat."""
        start, stop = self._offsets[name]
        return self._sets[index, start:stop]

    def fill_inputs(self, seed: int) -> None:
        """The uniform data set `seed` in every set; C is left as it is."""
        fill_inputs(self._xp, self.matrix("A", 0), self.matrix("B", 0), "uniform", seed)
        for name in "AB":
            start, stop = self._offsets[name]
            self._sets[1:, start:stop] = self._sets[:1, start:stop]

    def poison_outputs(self) -> None:
        start, stop = self._offsets["C"]
        self._sets.view(self._xp.uint32)[:, start:stop] = self._xp.uint32(POISON_BITS)

    def guards_intact(self) -> bool:
        bits = self._sets.view(self._xp.uint32)
        intact = self._xp.uint32(GUARD_BITS)
        return all(bool((bits[:, start:stop] == intact).all()) for start, stop in self._gaps)

    def input_fingerprint(self, index: int) -> tuple[str, str]:
        return (
            fingerprint(self._xp, self.matrix("A", index)),
            fingerprint(self._xp, self.matrix("B", index)),
        )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()


def buffer_sets(m: int, n: int, k: int, cache_mode: str, l2_bytes: int) -> tuple[int, bool]:
    """How many buffer sets a point rotates over, and whether their inputs exceed twice the L2.

    A power of two, so that a whole number of equally long samples goes round the sets.
    """
    if cache_mode != "rotating":
        return 1, False
    inputs = 4 * (m * k + k * n)
    needed = max(2, 2 * l2_bytes // inputs + 1)
    sets = min(_power_of_two(needed), MAXIMUM_SETS)
    return sets, sets >= needed


def sampling_plan(time_ns: float, sample_ns: float, sets: int) -> tuple[int, list[list[int]]]:
    """Launches per sample, and the buffer sets that each of a cycle of batches visits in turn.

    Every launch takes the set after the one before it, across batches and from the last batch to
    the first too, so that no launch finds its inputs in the cache.

    Args:
        sets: a power of two, at most `MAXIMUM_SETS`.
    """
    launches = min(max(1, math.ceil(sample_ns / max(time_ns, 1.0))), MAXIMUM_LAUNCHES)
    if launches >= sets:
        launches = _round_up(launches, sets)
        return launches, [[index % sets for index in range(launches)]]
    launches = _power_of_two(launches)
    return launches, [list(range(i, i + launches)) for i in range(0, sets, launches)]


def quota(request: VisitRequest, times: list[float], launches: int, wall_ns: float) -> str | None:
    """Why sampling may stop now; None to go on.

    Args:
        times: every sample so far, earlier rounds included, ns per launch.
        launches: launches per sample.
        wall_ns: host time of this visit.
    """
    count, total = len(times), float(np.sum(times)) * launches
    slow = count > 0 and float(np.median(times)) > SLOW_KERNEL_NS
    minimum = SLOW_KERNEL_SAMPLES if slow else request.minimum_samples
    if count >= request.share * request.maximum_samples:
        return "maximum_samples"
    if count >= math.ceil(request.share * (SLOW_KERNEL_SAMPLES if slow else 1)):
        if total >= request.share * request.maximum_gpu_ns:
            return "maximum_gpu_time"
        if wall_ns >= request.share * request.maximum_wall_ns:
            return "maximum_wall_time"
    enough = (
        count >= math.ceil(request.share * minimum)
        and total >= request.share * request.minimum_total_ns
    )
    if not enough:
        return None
    if not request.settle_interval:
        return "round_quota"
    return "converged" if half_width_pct(times) <= request.interval_pct else None


def half_width_pct(times: list[float]) -> float:
    """Half the width of the median's 95 % interval, percent of the median."""
    ordered = np.sort(times)
    low, high = median_interval_ranks(len(ordered))
    return float(50.0 * (ordered[high] - ordered[low]) / np.median(ordered))


class _Sampler:
    """Times batches of launches in turn, and remembers every chunk of them."""

    def __init__(self, device: Device, clear_l2: bool):
        self._device = device
        self._clear_l2 = clear_l2
        self.chunks: list[Chunk] = []

    def run(self, phase: str, batches: list[Callable[[], None]], launches: int) -> Chunk:
        """Enqueue the batches back to back, wait, and keep the time of each per launch."""
        device = self._device
        started = time.monotonic_ns()
        pairs: list[tuple[Event, Event]] = []
        if self._clear_l2:
            for batch in batches:
                device.clear_l2()
                start = device.record()
                batch()
                pairs.append((start, device.record()))
        else:
            # One event between two samples: the end of one is the start of the next.
            start = device.record()
            for batch in batches:
                batch()
                stop = device.record()
                pairs.append((start, stop))
                start = stop
        device.synchronize()
        chunk = Chunk(
            phase,
            launches,
            [device.elapsed_ns(start, stop) / launches for start, stop in pairs],
            started,
            time.monotonic_ns(),
        )
        self.chunks.append(chunk)
        return chunk

    def busy_ns(self) -> float:
        return sum(sum(chunk.times_ns) * chunk.launches for chunk in self.chunks)


def repeat(
    device: Device,
    launch: Callable[[], None],
    *,
    warmup_ns: float,
    sample_ns: float,
    samples: int,
) -> list[Chunk]:
    """Time one launch over and over: warm up for some device time, then take the samples.

    Returns:
        The chunks of the samples; several launches make one where a launch is short.
    """
    sampler = _Sampler(device, clear_l2=False)
    sampler.run("first", [launch], 1)
    estimate = min(sampler.run("first", [launch] * 3, 1).times_ns)
    launches = min(max(1, math.ceil(sample_ns / max(estimate, 1.0))), MAXIMUM_LAUNCHES)
    batch = device.batch([launch] * launches)
    per_chunk = max(1, round(_CHUNK_NS / (max(estimate, 1.0) * launches)))
    warm_ns = 0.0
    while warm_ns < warmup_ns:
        warm_ns += sum(sampler.run("warmup", [batch] * per_chunk, launches).times_ns) * launches
    chunks: list[Chunk] = []
    while (missing := samples - sum(len(chunk.times_ns) for chunk in chunks)) > 0:
        chunks.append(sampler.run("sample", [batch] * min(per_chunk, missing), launches))
    return chunks


def visit(device: Device, request: VisitRequest) -> Visit:
    """Time one point. Errors of the device propagate to the caller."""
    m, n, k = request.m, request.n, request.k
    cold = request.cache_mode == "cold"
    began = device.wall_ns()
    sets, exceeds = buffer_sets(m, n, k, request.cache_mode, device.l2_bytes)
    buffers = BufferSets(device.xp, m, n, k, sets)
    buffers.fill_inputs(_TIMING_SEED)
    buffers.poison_outputs()
    launch = device.launcher(request.spec, m, n, k)
    sampler = _Sampler(device, clear_l2=cold)

    def on_set(index: int) -> Callable[[], None]:
        a, b, c = (buffers.matrix(name, index) for name in "ABC")
        return lambda: launch(a, b, c)

    # The first launch pays for lazy work of the driver and of cuBLAS: kept apart, never a sample.
    first_launch_ns = sampler.run("first", [on_set(0)], 1).times_ns[0]
    estimate = first_launch_ns
    if estimate < _ESTIMATE_AGAIN_NS:
        estimate = min(sampler.run("first", [on_set(0)] * 3, 1).times_ns)

    if cold:
        launches, order = 1, [[0]]
        batches = [on_set(0)]
    else:
        # Launched one by one, a short kernel seems longer than it is inside a batch: plan again
        # with its time in the batch until the batch fills a sample.
        for _ in range(_REPLANS):
            launches, order = sampling_plan(estimate, request.sample_ns, sets)
            batches = [device.batch([on_set(index) for index in indices]) for indices in order]
            estimate = min(sampler.run("first", (batches * 2)[:2], launches).times_ns)
            if launches * estimate >= request.sample_ns or launches >= MAXIMUM_LAUNCHES:
                break
    turn = itertools.cycle(batches)
    per_chunk = max(1, min(_CHUNK_SAMPLES, round(_CHUNK_NS / max(estimate * launches, 1.0))))

    def next_chunk(phase: str) -> Chunk:
        return sampler.run(phase, list(itertools.islice(turn, per_chunk)), launches)

    warm_ns, warm_launches = 0.0, 0
    wanted = WARMUP_LAUNCHES if request.first_visit else 1
    while warm_ns < request.warmup_ns or warm_launches < wanted:
        chunk = next_chunk("warmup")
        warm_ns += sum(chunk.times_ns) * launches
        warm_launches += launches * len(chunk.times_ns)
        if device.wall_ns() - began > request.maximum_wall_ns:
            break

    times = list(request.previous)
    started = device.wall_ns()
    wall_ns = event_ns = 0.0
    while (stop_reason := quota(request, times, launches, device.wall_ns() - started)) is None:
        before = device.wall_ns()
        chunk = next_chunk("sample")
        wall_ns += device.wall_ns() - before
        event_ns += sum(chunk.times_ns) * launches
        times += chunk.times_ns

    outcome = _check_after(
        device,
        request,
        buffers,
        lambda: sampler.run("post", batches[:1], launches),
        last_set=order[0][-1],
    )
    outcome.buffer_sets = sets
    outcome.inputs_exceed_l2 = exceeds
    outcome.launches_per_sample = launches
    outcome.first_launch_ns = first_launch_ns
    outcome.stop_reason = stop_reason
    outcome.chunks = sampler.chunks
    outcome.busy_ns = sampler.busy_ns()
    if event_ns and not cold:
        outcome.wall_over_event = wall_ns / event_ns
    if outcome.status is Status.OK and _clocks_disagree(outcome.wall_over_event, times):
        outcome.status = Status.TIMING_MISMATCH
        outcome.detail = (
            f"the host saw {outcome.wall_over_event:.3f} times the device's time for samples of "
            f"{np.median(times) / 1e6:.1f} ms per launch"
        )
    return outcome


def _clocks_disagree(wall_over_event: float | None, times: list[float]) -> bool:
    if wall_over_event is None or float(np.median(times)) < WALL_CHECK_NS:
        return False
    return not abs(wall_over_event - 1.0) <= WALL_TOLERANCE


def _check_after(
    device: Device,
    request: VisitRequest,
    buffers: BufferSets,
    launch_last_sample: Callable[[], Chunk],
    last_set: int,
) -> Visit:
    """Judge the last timed sample: new inputs, the old outputs still in place.

    A kernel that skips work when C already looks right, or that replays an earlier result, was
    fast in every sample and is caught here.
    """
    buffers.fill_inputs(_POST_SEED)
    before = buffers.input_fingerprint(last_set)
    launch_last_sample()
    outcome = Visit(
        guards_intact=buffers.guards_intact(),
        inputs_intact=buffers.input_fingerprint(last_set) == before,
    )
    if not outcome.guards_intact:
        outcome.status = Status.GUARD_VIOLATION
        outcome.detail = "timed launches overwrote memory between the matrices"
    elif not outcome.inputs_intact:
        outcome.status = Status.GUARD_VIOLATION
        outcome.detail = "timed launches changed A or B"
    elif request.expected_fingerprint is not None:
        found = fingerprint(device.xp, buffers.matrix("C", last_set))
        outcome.post_timing_correct = found == request.expected_fingerprint
        if not outcome.post_timing_correct:
            outcome.status = Status.WRONG_RESULT
            outcome.detail = "the output of the last timed launch is not the one accepted before"
    return outcome
