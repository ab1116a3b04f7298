"""Energy: from NVML's counter to joules per launch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_gpu import FakeMonitor
from ladder import schema
from ladder.collect import ENERGY_SPAN_S, _energy_columns
from ladder.telemetry import EnergyCounter, Telemetry
from project import QUICK, ROOT, Project

MakeProject = Callable[..., Project]


@given(
    period_ms=st.integers(20, 100),
    poll_ms=st.integers(5, 15),
    begin_ms=st.integers(150, 400),
    length_ms=st.integers(500, 2000),
    power_w=st.floats(50, 1000),
)
def test_power_is_known_to_a_poll_at_each_end_however_late_the_counter_moves(
    period_ms: int, poll_ms: int, begin_ms: int, length_ms: int, power_w: float
) -> None:
    counter = EnergyCounter()
    for now_ms in range(0, 3000, poll_ms):
        counter.see(now_ms * 10**6, power_w * (now_ms // period_ms) * period_ms / 1e3)
    energy = counter.between(begin_ms * 10**6, (begin_ms + length_ms) * 10**6)
    assert energy is not None
    assert energy.seconds >= (length_ms - 2 * (period_ms + poll_ms)) / 1e3
    assert abs(energy.joules / power_w - energy.seconds) <= 1.01 * poll_ms / 1e3


def test_the_value_that_was_there_already_is_no_update() -> None:
    counter = EnergyCounter()
    for now, joules in [(0, 100.0), (10, 100.0), (20, 113.0), (30, 113.0), (40, 126.0)]:
        counter.see(now, joules)
    assert counter.updates == [(20, 113.0), (40, 126.0)]
    assert counter.between(0, 30) is None


def test_a_gpu_without_the_counter_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monitor = FakeMonitor()
    monkeypatch.setattr(monitor, "energy_j", lambda: asked.append(1))
    telemetry = Telemetry(monitor, poll_s=0.001)
    telemetry.start()
    while len(telemetry.readings()) < 5:
        time.sleep(0.001)
    telemetry.stop()
    assert len(asked) == 1 and not telemetry.energy.updates


def visit(joules: float | None, seconds: float | None) -> dict[str, Any]:
    return {"energy_j": joules, "energy_span_s": seconds}


def test_energy_of_a_launch_is_mean_power_times_median_time() -> None:
    columns = _energy_columns([visit(200.0, 0.4), visit(100.0, 0.1)], 2 * 10**9, 2e6)
    assert columns["energy_span_s"] == pytest.approx(0.5)
    assert columns["energy_per_launch_j"] == pytest.approx(300 / 0.5 * 2e-3)  # 600 W, 2 ms
    assert columns["gflops_per_w"] == pytest.approx(2.0 / 1.2)


@pytest.mark.parametrize(
    "visits",
    [[], [{}], [visit(None, None)], [visit(100.0, 0.3), visit(None, None), visit(50.0, 0.19)]],
    ids=["never visited", "an old journal", "no counter", "watched too briefly"],
)
def test_no_energy_is_given_where_too_little_is_known(visits: list[dict[str, Any]]) -> None:
    assert _energy_columns(visits, 10**9, 1e6) == {}


def test_a_measured_point_has_the_energy_of_its_counter(make_project: MakeProject) -> None:
    project = make_project(
        {
            "sizes": {"square": [33]},
            "kernels": {"01_naive": {"sweep": [{"BLOCK_X": 16, "BLOCK_Y": 16}]}},
            "architectures": ["sm_90a"],
            "cache_modes": {"cold": [33]},
            "protocol": QUICK | {"rounds": 1, "minimum_samples": 40},
        },
        kernels=["01_naive"],
    )
    # Launches of 0.1 ms on the device's clock that keep the host busy: the counter needs real time.
    project.fake_gpu(energy_step_s=0.02, launch_sleep_s=0.001)
    project.pretend_compiled()
    project.measure()
    rows = {row["cache_mode"]: row for row in project.table("points")}
    row = rows["rotating"]
    assert row["energy_span_s"] > ENERGY_SPAN_S
    assert row["energy_per_launch_j"] == pytest.approx(650 * row["time_median_ns"] / 1e9, rel=0.15)
    assert row["gflops_per_w"] == pytest.approx(row["tflops"] * 1e3 / 650, rel=0.15)
    assert rows["cold"]["energy_per_launch_j"] is None


def test_tables_from_before_energy_was_read_are_read_with_unknown_energy(tmp_path: Path) -> None:
    old = ROOT / "results/published/nvidia-h200/points.parquet"
    without = pq.read_table(old)
    names = [name for name in without.column_names if "energy" not in name and "per_w" not in name]
    path = tmp_path / "points.parquet"
    pq.write_table(without.select(names), path)
    table = schema.read(path, "points")
    assert table.schema.names == schema.POINTS.names
    assert set(table["gflops_per_w"].to_pylist()) == {None}
    two = schema.read(path, "points", ["energy_per_launch_j", "kernel"])
    assert two.schema.names == ["energy_per_launch_j", "kernel"] and len(two) == len(table)
