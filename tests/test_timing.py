"""Timing: rotation of buffers, batching, stop rules, and the checks after the last sample."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fake_gpu
from fake_gpu import LAUNCH_NS, FakeDevice, product
from ladder.correctness import fill_inputs, fingerprint
from ladder.device import Launcher, LaunchSpec
from ladder.status import Status
from ladder.timing import (
    MAXIMUM_LAUNCHES,
    MAXIMUM_SETS,
    SLOW_KERNEL_NS,
    SLOW_KERNEL_SAMPLES,
    BufferSets,
    Visit,
    VisitRequest,
    buffer_sets,
    half_width_pct,
    quota,
    sampling_plan,
    visit,
)

# --- buffers --------------------------------------------------------------------------------------

sides = st.integers(1, 10_000)
l2_sizes = st.integers(2**16, 2**27)


@given(sides, sides, sides, l2_sizes)
def test_the_inputs_of_all_sets_exceed_twice_the_l2_or_the_point_is_marked(
    m: int, n: int, k: int, l2_bytes: int
) -> None:
    sets, exceed = buffer_sets(m, n, k, "rotating", l2_bytes)
    inputs = 4 * (m * k + k * n)
    assert 2 <= sets <= MAXIMUM_SETS
    assert exceed == (sets * inputs > 2 * l2_bytes)
    assert exceed or sets == MAXIMUM_SETS
    # and no more memory is taken than that needs, up to a power of two
    assert sets == 2 or (sets // 2) * inputs <= 2 * l2_bytes


@given(sides, sides, sides, st.sampled_from(["hot", "cold"]))
def test_a_stated_cache_condition_takes_one_set(m: int, n: int, k: int, mode: str) -> None:
    assert buffer_sets(m, n, k, mode, 2**26) == (1, False)


small = st.integers(1, 40)
set_counts = st.integers(1, 6)


@given(small, small, small, set_counts)
def test_matrices_of_all_sets_are_apart_aligned_and_within_the_predicted_memory(
    m: int, n: int, k: int, sets: int
) -> None:
    buffers = BufferSets(np, m, n, k, sets)
    spans = []
    for index in range(sets):
        for name, size in (("A", m * k), ("B", k * n), ("C", m * n)):
            matrix = buffers.matrix(name, index)
            assert matrix.shape == (size,)
            start = matrix.ctypes.data - buffers.matrix("A", 0).ctypes.data
            assert start % 256 == 0
            spans.append((start, start + matrix.nbytes))
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start - end >= 4096
    whole = buffers.matrix("A", 0).base
    assert whole.nbytes <= BufferSets.bytes_needed(m, n, k, sets)


@given(small, small, small, set_counts, st.integers(0, 5))
def test_every_set_holds_the_same_inputs_and_filling_them_leaves_outputs_and_guards(
    m: int, n: int, k: int, sets: int, seed: int
) -> None:
    buffers = BufferSets(np, m, n, k, sets)
    for index in range(sets):
        buffers.matrix("C", index)[...] = index
    buffers.fill_inputs(seed)
    a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
    fill_inputs(np, a, b, "uniform", seed)
    for index in range(sets):
        assert buffers.matrix("A", index).tobytes() == a.tobytes()
        assert buffers.matrix("B", index).tobytes() == b.tobytes()
        assert (buffers.matrix("C", index) == index).all()
        assert buffers.input_fingerprint(index) == (fingerprint(np, a), fingerprint(np, b))
    assert buffers.guards_intact()
    buffers.poison_outputs()
    assert np.isnan(buffers.matrix("C", sets - 1)).all()
    assert buffers.matrix("B", sets - 1).tobytes() == b.tobytes()
    assert buffers.guards_intact()


@given(small, small, small, set_counts, st.data())
def test_a_write_beside_any_matrix_of_any_set_breaks_the_guards(
    m: int, n: int, k: int, sets: int, data: st.DataObject
) -> None:
    buffers = BufferSets(np, m, n, k, sets)
    buffers.fill_inputs(1)
    assert buffers.guards_intact()
    matrix = buffers.matrix(data.draw(st.sampled_from("ABC")), data.draw(st.integers(0, sets - 1)))
    whole = matrix.base.reshape(-1)
    first = (matrix.ctypes.data - whole.ctypes.data) // 4
    distance = data.draw(st.integers(1, 1024))
    after = data.draw(st.booleans())
    whole[first + matrix.size - 1 + distance if after else first - distance] = 0.0
    assert not buffers.guards_intact()


# --- batches --------------------------------------------------------------------------------------

wanted_launches = st.integers(1, 2 * MAXIMUM_LAUNCHES)
powers = st.integers(0, 8).map(lambda exponent: 2**exponent)
SAMPLE_NS = 1e6


@given(wanted_launches, powers)
def test_every_launch_takes_the_set_after_the_one_before_it_for_as_long_as_batches_are_cycled(
    wanted: int, sets: int
) -> None:
    launches, batches = sampling_plan(SAMPLE_NS / wanted, SAMPLE_NS, sets)
    twice_round = list(itertools.chain(*batches, *batches))
    assert all((b - a) % sets == 1 % sets for a, b in itertools.pairwise(twice_round))
    assert Counter(twice_round).keys() == set(range(sets))
    assert len(set(Counter(twice_round).values())) == 1
    assert all(len(batch) == launches for batch in batches)


@given(wanted_launches, powers)
def test_a_sample_is_long_enough_and_not_much_longer_than_asked(wanted: int, sets: int) -> None:
    launches, _ = sampling_plan(SAMPLE_NS / wanted, SAMPLE_NS, sets)
    assert min(wanted, MAXIMUM_LAUNCHES) <= launches <= MAXIMUM_LAUNCHES
    assert launches < 2 * max(wanted, 1) + 1


@pytest.mark.parametrize("time_ns", [0.0, 0.5, 1e-9])
def test_a_launch_that_the_timer_cannot_see_is_batched_to_the_most(time_ns: float) -> None:
    assert sampling_plan(time_ns, 200e3, 4)[0] == MAXIMUM_LAUNCHES


# --- stop rules -----------------------------------------------------------------------------------


def request_of(**changes: Any) -> VisitRequest:
    values: dict[str, Any] = {
        "spec": LaunchSpec("cuda", "builds/01_naive/default.cubin"),
        "m": 24, "n": 20, "k": 28,
        "cache_mode": "rotating",
        "first_visit": True,
        "share": 1.0,
        "settle_interval": True,
        "previous": [],
        "expected_fingerprint": None,
        "warmup_ns": 1e6,
        "sample_ns": 2e5,
        "minimum_samples": 30,
        "minimum_total_ns": 5e8,
        "interval_pct": 0.5,
        "maximum_samples": 1000,
        "maximum_gpu_ns": 3e9,
        "maximum_wall_ns": 15e9,
    }  # fmt: skip
    return VisitRequest(**(values | changes))


def steady(count: int, time_ns: float) -> list[float]:
    return [time_ns * (1 + 1e-5 * (i % 3)) for i in range(count)]


def noisy(count: int, time_ns: float) -> list[float]:
    return [time_ns * (1 + 0.2 * (i % 2)) for i in range(count)]


@pytest.mark.parametrize(
    ("samples", "wall_ns", "changes", "reason"),
    [
        ([], 0.0, {}, None),
        (steady(29, 1e8), 0.0, {"maximum_gpu_ns": 1e12}, None),
        (steady(30, 1e8), 0.0, {"maximum_gpu_ns": 1e12}, "converged"),
        (steady(49, 1e7), 0.0, {}, None),  # 30 samples, but not half a second
        (steady(50, 1e7), 0.0, {}, "converged"),
        (noisy(50, 1e7), 0.0, {}, None),
        (noisy(50, 1e7), 0.0, {"settle_interval": False}, "round_quota"),
        (noisy(25, 1e7), 0.0, {"settle_interval": False, "share": 0.5}, "round_quota"),
        (noisy(22, 1e7), 0.0, {"settle_interval": False, "share": 0.5}, None),
        (noisy(1000, 1e6), 0.0, {}, "maximum_samples"),
        (noisy(500, 1e6), 0.0, {"share": 0.5}, "maximum_samples"),
        (noisy(300, 1e7), 0.0, {}, "maximum_gpu_time"),
        (noisy(2, 1e7), 15e9, {}, "maximum_wall_time"),
        ([], 15e9, {}, None),  # never without a sample
        (noisy(4, 1e9), 15e9, {}, None),  # slow kernels: five samples, whatever it takes
        (noisy(5, 1e9), 15e9, {}, "maximum_gpu_time"),
        (steady(5, 1e9), 0.0, {"maximum_gpu_ns": 1e12, "interval_pct": 1.0}, "converged"),
    ],
)
def test_sampling_stops_for_the_stated_reason(
    samples: list[float], wall_ns: float, changes: dict[str, Any], reason: str | None
) -> None:
    assert quota(request_of(**changes), samples, 1, wall_ns) == reason


sample_lists = st.lists(st.floats(1e3, 2e9), max_size=60)


@given(sample_lists, st.integers(1, 64), st.floats(0, 2e10), st.sampled_from([0.5, 1.0]))
def test_the_reason_to_stop_is_always_true(
    samples: list[float], launches: int, wall_ns: float, share: float
) -> None:
    request = request_of(share=share, maximum_samples=50, settle_interval=share == 1.0)
    reason = quota(request, samples, launches, wall_ns)
    count, total = len(samples), sum(samples) * launches
    slow = count > 0 and float(np.median(samples)) > SLOW_KERNEL_NS
    least = SLOW_KERNEL_SAMPLES if slow else request.minimum_samples
    enough = count >= share * least and total >= share * request.minimum_total_ns * (1 - 1e-12)
    match reason:
        case "maximum_samples":
            assert count >= share * 50
        case "maximum_gpu_time":
            assert total >= share * request.maximum_gpu_ns * (1 - 1e-12)
            assert count >= 1
        case "maximum_wall_time":
            assert wall_ns >= share * request.maximum_wall_ns
            assert count >= 1
        case "round_quota":
            assert enough
            assert share == 0.5
        case "converged":
            assert enough
            assert share == 1.0
            assert half_width_pct(samples) <= request.interval_pct
        case _:
            assert reason is None
            assert count < share * 50
            settled = count > 0 and half_width_pct(samples) <= request.interval_pct
            assert not (enough and (share == 0.5 or settled))


# --- visits of a fake device ----------------------------------------------------------------------


class Observed(FakeDevice):
    """The fake GPU, with a slow first launch and a record of what was enqueued."""

    first_launch_ns = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.inputs_seen: list[int] = []
        self.cleared = 0

    def launcher(self, spec: LaunchSpec, m: int, n: int, k: int) -> Launcher:
        inner = super().launcher(spec, m, n, k)

        def launch(a: Any, b: Any, c: Any) -> None:
            if not self.inputs_seen:
                self._now += self.first_launch_ns
            self.inputs_seen.append(a.ctypes.data)
            inner(a, b, c)

        return launch

    def clear_l2(self) -> None:
        self.cleared += 1
        super().clear_l2()


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Observed]:
    """The fake GPU with settings, as in `gpu(faults={"01_naive": "late_event"})`."""

    def make(**settings: Any) -> Observed:
        path = tmp_path / "fake.json"
        path.write_text(json.dumps(settings))
        monkeypatch.setenv("LADDER_FAKE_GPU", str(path))
        return Observed()

    return make


def accepted(request: VisitRequest) -> str:
    """The checksum that the correctness step would hand over."""
    m, n, k = request.m, request.n, request.k
    a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
    fill_inputs(np, a, b, "uniform", 2)
    return fingerprint(np, np.ascontiguousarray(product(a, b, m, n, k)))


def short(**changes: Any) -> VisitRequest:
    request = request_of(minimum_total_ns=2e7, **changes)
    return request_of(minimum_total_ns=2e7, **changes, expected_fingerprint=accepted(request))


def samples_of(outcome: Visit) -> list[float]:
    return [t for chunk in outcome.chunks if chunk.phase == "sample" for t in chunk.times_ns]


@pytest.mark.parametrize("mode", ["rotating", "hot", "cold"])
def test_a_right_kernel_is_timed_in_every_cache_mode(
    mode: str, gpu: Callable[..., Observed]
) -> None:
    outcome = visit(gpu(), short(cache_mode=mode))
    assert outcome.status is Status.OK, outcome.detail
    assert outcome.post_timing_correct
    assert outcome.guards_intact
    assert outcome.inputs_intact
    assert outcome.stop_reason == "converged"
    samples = samples_of(outcome)
    assert len(samples) >= 30
    assert np.median(samples) == pytest.approx(LAUNCH_NS, rel=0.02)
    # samples of 200 us or more, except that a cold cache serves one launch
    assert outcome.launches_per_sample == (1 if mode == "cold" else 2)
    assert [chunk.phase for chunk in outcome.chunks][:2] == ["first", "first"]
    assert outcome.chunks[-1].phase == "post"
    assert all(c.started_monotonic_ns <= c.finished_monotonic_ns for c in outcome.chunks)


@pytest.mark.parametrize("mode", ["rotating", "hot", "cold"])
def test_every_time_is_finite_and_positive_even_of_the_smallest_product(
    mode: str, gpu: Callable[..., Observed]
) -> None:
    outcome = visit(gpu(), short(cache_mode=mode, m=1, n=1, k=1))
    recorded = [t for chunk in outcome.chunks for t in chunk.times_ns]
    assert recorded
    assert all(math.isfinite(t) and t > 0 for t in recorded)


def test_a_kernel_shorter_than_the_timers_step_is_batched_until_it_can_be_seen(
    gpu: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_gpu, "LAUNCH_NS", 300.0)  # the timer's step is 500 ns
    outcome = visit(gpu(), short(m=8, n=8, k=8, maximum_samples=40))
    samples = samples_of(outcome)
    assert outcome.launches_per_sample >= 400
    assert all(math.isfinite(t) and t > 0 for t in samples)
    assert np.median(samples) == pytest.approx(300.0, rel=0.02)


@settings(max_examples=10)
@given(exponent=st.integers(10, 18))
def test_inputs_rotate_through_every_set_from_warm_up_to_the_last_sample(
    exponent: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("gpu") / "fake.json"
    path.write_text(json.dumps({"l2_bytes": 2**exponent}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LADDER_FAKE_GPU", str(path))
        device = Observed()
        outcome = visit(device, short(minimum_samples=12))
    first = sum(len(c.times_ns) * c.launches for c in outcome.chunks if c.phase == "first")
    seen = device.inputs_seen[first : -outcome.launches_per_sample]
    addresses = sorted(set(seen))
    assert len(addresses) == outcome.buffer_sets >= 2
    assert outcome.buffer_sets * 4 * (24 * 28 + 28 * 20) > 2 * 2**exponent
    turns = [addresses.index(address) for address in seen]
    assert all((b - a) % len(addresses) == 1 % len(addresses) for a, b in itertools.pairwise(turns))


def test_the_first_launch_is_kept_apart_and_reaches_no_sample(
    gpu: Callable[..., Observed],
) -> None:
    device = gpu()
    device.first_launch_ns = 7e8
    outcome = visit(device, short())
    assert outcome.first_launch_ns is not None
    assert outcome.first_launch_ns >= 7e8
    assert outcome.chunks[0].phase == "first"
    assert outcome.chunks[0].times_ns == [outcome.first_launch_ns]
    samples = samples_of(outcome)
    assert samples[0] <= 1.5 * np.median(samples)
    assert max(t for c in outcome.chunks[1:] for t in c.times_ns) <= 1.5 * np.median(samples)


def test_warm_up_is_recorded_before_the_samples_and_lasts_as_asked(
    gpu: Callable[..., Observed],
) -> None:
    outcome = visit(gpu(), short(warmup_ns=3e7))
    phases = [chunk.phase for chunk in outcome.chunks]
    assert phases == sorted(phases, key=["first", "warmup", "sample", "post"].index)
    warm = [chunk for chunk in outcome.chunks if chunk.phase == "warmup"]
    assert sum(sum(chunk.times_ns) * chunk.launches for chunk in warm) >= 3e7
    assert sum(chunk.launches * len(chunk.times_ns) for chunk in warm) >= 5


def test_a_cold_cache_is_cleared_before_each_launch_and_the_clearing_is_not_timed(
    gpu: Callable[..., Observed],
) -> None:
    device = gpu(noise=0.0)
    outcome = visit(device, short(cache_mode="cold"))
    assert device.cleared == len(device.inputs_seen)
    assert outcome.wall_over_event is None
    assert set(samples_of(outcome)) == {LAUNCH_NS}


def test_neither_a_hot_nor_a_rotating_visit_clears_the_cache(gpu: Callable[..., Observed]) -> None:
    for mode in ("hot", "rotating"):
        device = gpu()
        visit(device, short(cache_mode=mode))
        assert device.cleared == 0


def test_earlier_rounds_count_towards_the_quota_and_are_not_returned_again(
    gpu: Callable[..., Observed],
) -> None:
    first = visit(gpu(), short(share=0.5, settle_interval=False))
    assert first.stop_reason == "round_quota"
    earlier = samples_of(first)
    second = visit(gpu(), short(first_visit=False, previous=earlier))
    assert second.stop_reason == "converged"
    alone = visit(gpu(), short())
    assert len(samples_of(second)) < len(samples_of(alone))


SLOW = {"speed": {"01_naive": 1e-8}, "noise": 0.0}  # about 40 ms a launch


def test_an_event_that_fires_late_is_a_timing_mismatch_and_the_wall_time_is_kept(
    gpu: Callable[..., Observed],
) -> None:
    outcome = visit(gpu(**SLOW, faults={"01_naive": "late_event"}), short())
    assert outcome.status is Status.TIMING_MISMATCH
    assert outcome.wall_over_event == pytest.approx(0.2, rel=0.01)
    assert outcome.detail is not None
    assert "0.200 times" in outcome.detail
    honest = visit(gpu(**SLOW), short())
    assert honest.status is Status.OK
    assert honest.wall_over_event == pytest.approx(1.0, rel=0.01)
    assert np.median(samples_of(honest)) > 10e6


def test_clocks_of_short_kernels_are_recorded_and_not_judged(
    gpu: Callable[..., Observed],
) -> None:
    outcome = visit(gpu(faults={"01_naive": "late_event"}), short())
    assert outcome.status is Status.OK
    assert outcome.wall_over_event == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("skew", [0.94, 1.06, 3.0, 0.0])
def test_a_difference_of_more_than_5_percent_between_the_clocks_is_a_mismatch(
    skew: float, gpu: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = gpu(**SLOW)
    monkeypatch.setattr(device, "wall_ns", lambda: int(device._now * skew))
    assert visit(device, short()).status is Status.TIMING_MISMATCH
    device = gpu(**SLOW)
    monkeypatch.setattr(device, "wall_ns", lambda: int(device._now * (1 + (skew - 1) / 100)))
    assert visit(device, short()).status is Status.OK


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("skip_if_plausible", Status.WRONG_RESULT, "not the one accepted before"),
        ("return_at_once", Status.WRONG_RESULT, "not the one accepted before"),
        ("write_zeros", Status.WRONG_RESULT, "not the one accepted before"),
        ("one_nan", Status.WRONG_RESULT, "not the one accepted before"),
        ("tf32", Status.WRONG_RESULT, "not the one accepted before"),
        ("write_behind_c", Status.GUARD_VIOLATION, "overwrote memory between the matrices"),
        ("change_input", Status.GUARD_VIOLATION, "changed A or B"),
    ],
)
def test_a_kernel_that_goes_wrong_while_it_is_timed_is_caught_after_the_last_sample(
    fault: str, status: Status, words: str, gpu: Callable[..., Observed]
) -> None:
    outcome = visit(gpu(faults={"01_naive": fault}), short())
    assert outcome.status is status
    assert outcome.detail is not None
    assert words in outcome.detail
    assert samples_of(outcome), "the samples are kept all the same"


def test_a_kernel_whose_bits_may_vary_is_not_held_to_them_after_timing(
    gpu: Callable[..., Observed],
) -> None:
    outcome = visit(gpu(faults={"01_naive": "nondeterministic"}), request_of(minimum_total_ns=2e7))
    assert outcome.status is Status.OK
    assert outcome.post_timing_correct is None


def test_an_error_of_the_device_reaches_the_caller(gpu: Callable[..., Observed]) -> None:
    device = gpu(faults={"01_naive": "illegal_address"})
    with pytest.raises(fake_gpu.CudaError):
        visit(device, short())


def test_the_busy_time_of_a_visit_counts_every_launch(gpu: Callable[..., Observed]) -> None:
    device = gpu(noise=0.0)
    outcome = visit(device, short())
    assert outcome.busy_ns == pytest.approx(len(device.inputs_seen) * LAUNCH_NS, rel=0.01)
