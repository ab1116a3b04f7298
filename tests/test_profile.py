"""The profiling step on a GPU and with a profiler that do not exist: `fake_gpu`, `fake_ncu`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fake_ncu
from ladder import profile as step
from ladder.config import Profile, load
from ladder.device import LaunchSpec
from ladder.documents import UserError
from ladder.hardware import COUNTERS, FMA_PIPE, L1_HIT_RATE, OCCUPANCY, RATIOS, names_asked
from ladder.manifest import TensorMaps
from ladder.plan import write_plan
from ladder.profile import Summary, choose, expected_launches
from project import QUICK, Project

MakeProject = Callable[..., Project]
Row = dict[str, Any]

NAIVE = [{"BLOCK_X": 16, "BLOCK_Y": 16}, {"BLOCK_X": 32, "BLOCK_Y": 8}]
TMA = {"BM": 256, "BN": 128, "BK": 32, "TM": 16, "TN": 8, "LANES_M": 4, "STAGES": 4, "UNROLL": 8,
       "GROUP": 8, "BLOCKS": 1, "ORDER": 0, "AHEAD": 1, "PRODUCER": 1}  # fmt: skip
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
CONFIG: dict[str, Any] = {
    "sizes": {"square": [33, 41]},
    "kernels": {
        "01_naive": {"sweep": NAIVE},
        "03_shared_tile": {"sweep": {"TILE": [16, 32]}},
        "12_tma": {"sweep": [TMA]},
        "cublas_fp32": {"largest": 33},  # its own profiler process, where a test is about it
    },
    "protocol": QUICK | {"rounds": 1},
    "architectures": ["sm_90a"],
    "profile": {"sizes": [[41, 41, 41]], "every_set": ["01_naive"]},
    "figures": {"formats": ["svg"]},
}
OURS = {"01_naive", "03_shared_tile", "12_tma"}
POINTS = 4
"""Profiled at 41: two sets of 01_naive, and one each of the two other kernels."""
WITH_CUBLAS = [[33, 33, 33]]
OUT = "results/fake-gpu"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Measured, and not profiled yet."""
    project = Project(tmp_path_factory.mktemp("measured"), CONFIG)
    project.fake_gpu()
    project.pretend_compiled()
    project.measure()
    return project


@pytest.fixture
def measured(finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same in a folder of its own, with a profiler that works; this process is in it."""
    shutil.copytree(finished.folder, tmp_path / "project")
    project = Project.__new__(Project)
    project.folder = tmp_path / "project"
    project.environment = {
        name: value.replace(str(finished.folder), str(project.folder))
        for name, value in finished.environment.items()
    }
    fake_ncu.install(project)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.folder)
    return project


def profile(project: Project, **changes: Any) -> Summary:
    """Plan anew with changed keys under `profile`, and profile."""
    project.configure(CONFIG | {"profile": CONFIG["profile"] | changes})
    config, kernels = load([project.folder / "config/config.yaml"], project.folder)
    plan = project.folder / "results/plan.parquet"
    write_plan(plan, config, kernels)
    return step.profile(
        plan, kernels, builds_root=project.folder / "results/build", out=project.folder / OUT
    )


def rows(project: Project) -> list[Row]:
    return project.table("hardware")


def of_kernel(project: Project, kernel: str) -> dict[str, Row]:
    """Rows by metric; of 01_naive those of its second set."""
    return {row["metric"]: row for row in rows(project) if row["kernel"] == kernel}


def statuses(project: Project) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows(project):
        found.setdefault(row["kernel"], set()).add(row["status"])
    return found


# --- what is profiled -----------------------------------------------------------------------------


def point_row(kernel: str, tile: int, time_ns: float, **changes: Any) -> Row:
    return {
        "kernel": kernel, "params": f'{{"TILE":{tile}}}', "m": 64, "n": 64, "k": 64,
        "cache_mode": "rotating", "status": "ok", "time_median_ns": time_ns,
    } | changes  # fmt: skip


def test_the_fastest_right_set_at_each_size_stands_for_a_kernel() -> None:
    table = [
        point_row("03_a", 8, 30.0),
        point_row("03_a", 16, 20.0),
        point_row("03_a", 32, 10.0, status="wrong_result"),
        point_row("03_a", 8, 1.0, cache_mode="hot"),
        point_row("03_a", 8, 1.0, m=65),
        point_row("04_b", 8, 30.0),
        point_row("04_b", 16, 20.0, status="ok_noisy"),
        point_row("05_c", 8, 5.0, status="timeout", time_median_ns=None),
    ]
    chosen = choose(table, Profile(sizes=[[64, 64, 64]], every_set=["04_b"]))
    names = [(point.kernel, point.params) for point in chosen]
    assert names == [("03_a", '{"TILE":16}'), ("04_b", '{"TILE":16}'), ("04_b", '{"TILE":8}')]


def test_a_point_measured_on_two_gpus_is_profiled_once() -> None:
    table = [point_row("03_a", 8, 30.0), point_row("03_a", 8, 10.0), point_row("03_a", 16, 20.0)]
    (point,) = choose(table, Profile(sizes=[[64, 64, 64]]))
    assert point.params == '{"TILE":8}'


def test_helpers_are_expected_before_gemm() -> None:
    maps = TensorMaps((32, 16), (32, 16), True)
    spec = LaunchSpec("tensor_maps", "x.cubin", (5, 4, 1), (160, 1, 1), tensor_maps=maps)
    assert expected_launches(spec, (65, 33, 129)) == [
        ("transpose_a", (3, 5, 1), (32, 8, 1)),
        ("pad_rows", (1, 17, 1), (32, 8, 1)),
        ("gemm", (5, 4, 1), (160, 1, 1)),
    ]
    plain = LaunchSpec("cuda", "x.cubin", (5, 4, 1), (16, 16, 1))
    assert expected_launches(plain, (65, 33, 129)) == [("gemm", (5, 4, 1), (16, 16, 1))]
    assert expected_launches(LaunchSpec("cublas", compute="tf32"), (65, 33, 129)) is None


# --- counting -------------------------------------------------------------------------------------


def test_every_point_gets_its_own_numbers_and_no_time(measured: Project) -> None:
    before = (measured.folder / OUT / "points.parquet").read_bytes()
    assert profile(measured, sizes=WITH_CUBLAS) == Summary(POINTS + 1, POINTS + 1, 0, {})
    table = rows(measured)
    assert len(table) == (POINTS + 1) * (len(names_asked((9, 0))) + len(RATIOS))
    assert {row["status"] for row in table} == {"ok"}
    assert {(row["source"], row["architecture"]) for row in table} == {("hardware", "sm_90a")}
    assert not [row for row in table if "duration" in row["metric"] or row["unit"] == "ns"]
    # Launches in the order of points: two of 01_naive, 03, three of 12_tma; cuBLAS by itself.
    values = [
        row["value"] for row in table if row["metric"] == SECTORS and row["kernel"] == "01_naive"
    ]
    assert values == [fake_ncu.printed_value(SECTORS, launch) for launch in (0, 1)]
    shared = of_kernel(measured, "03_shared_tile")
    assert shared[SECTORS]["value"] == fake_ncu.printed_value(SECTORS, 2)
    tma = of_kernel(measured, "12_tma")
    launches = [fake_ncu.printed_value(SECTORS, launch) for launch in (3, 4, 5)]
    assert tma[SECTORS]["value"] == sum(launches)
    assert tma[OCCUPANCY]["value"] == pytest.approx(fake_ncu.printed_value(OCCUPANCY, 5))
    assert tma[OCCUPANCY]["detail"] == "of launch 3 of 3 alone"
    cublas = of_kernel(measured, "cublas_fp32")
    assert cublas[SECTORS]["value"] == fake_ncu.printed_value(SECTORS, 0)
    assert {counter.name for counter in COUNTERS if counter.asked((9, 0))} <= set(cublas)
    assert (measured.folder / OUT / "points.parquet").read_bytes() == before


def test_the_profiler_flushes_caches_and_leaves_clocks_alone(measured: Project) -> None:
    profile(measured, sizes=WITH_CUBLAS)
    calls = fake_ncu.calls(measured)
    assert len(calls) == 2, "one process for all kernels of ours, one for cuBLAS"
    for call in calls:
        for option, value in [
            ("--clock-control", "none"),
            ("--cache-control", "all"),
            ("--profile-from-start", "off"),
            ("--print-units", "base"),
            ("--page", "raw"),
            ("--target-processes", "all"),
        ]:
            assert call[call.index(option) + 1] == value
        assert "ladder.profiled" in call


def test_a_library_may_launch_several_kernels(measured: Project) -> None:
    fake_ncu.install(measured, library=["split", "void reduce<float>(T1)"])
    profile(measured, sizes=WITH_CUBLAS)
    cublas = of_kernel(measured, "cublas_fp32")
    values = [fake_ncu.printed_value(SECTORS, launch) for launch in (0, 1)]
    assert cublas[SECTORS]["value"] == sum(values)
    assert cublas[FMA_PIPE]["detail"] == "of launch 2 of 2 alone", "it has the most instructions"


def test_what_is_counted_is_not_counted_again(measured: Project) -> None:
    profile(measured)
    first = rows(measured)
    assert profile(measured) == Summary(POINTS, 0, POINTS, {})
    assert len(fake_ncu.calls(measured)) == 1
    assert rows(measured) == first
    both = profile(measured, sizes=[*WITH_CUBLAS, [41, 41, 41]])
    assert both == Summary(2 * POINTS + 1, POINTS + 1, POINTS, {})
    assert len(fake_ncu.calls(measured)) == 3


def test_a_result_that_a_crash_cut_off_is_counted_again(measured: Project) -> None:
    profile(measured)
    (measured.folder / OUT / "profile").joinpath("cut").with_suffix(".part").write_text("{")
    path = sorted((measured.folder / OUT / "profile").glob("*.json"))[0]
    path.write_text(path.read_text()[:100])
    assert profile(measured) == Summary(POINTS, 1, POINTS - 1, {})


def test_sizes_that_nobody_measured_are_not_profiled(measured: Project) -> None:
    assert profile(measured, sizes=[[9, 9, 9]]) == Summary(0, 0, 0, {})
    assert rows(measured) == []
    assert fake_ncu.calls(measured) == []


def test_points_are_profiled_after_they_were_measured(make_project: MakeProject) -> None:
    project = make_project(CONFIG)
    project.fake_gpu()
    project.ladder("plan")
    failed = project.ladder("profile", "--out", OUT, check=False)
    assert failed.returncode == 2
    assert "after `ladder measure`" in failed.stderr


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({"mode": "no_permission"}, "no_permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ({"mode": "busy"}, "skipped_unsupported", "DCGM"),
        ({"mode": "garbage"}, "skipped_unsupported", "no column 'Block Size'"),
    ],
)
def test_a_machine_that_cannot_profile_is_a_status_with_a_hint(
    measured: Project, settings: dict[str, Any], status: str, words: str
) -> None:
    fake_ncu.install(measured, **settings)
    assert profile(measured, sizes=WITH_CUBLAS).failed == {status: POINTS + 1}
    table = rows(measured)
    assert len(table) == POINTS + 1
    assert {(row["metric"], row["value"], row["status"]) for row in table} == {
        ("profile", None, status)
    }
    assert all(words in row["detail"] for row in table)
    assert len(fake_ncu.calls(measured)) == 1, "not tried again for every point"
    failed = measured.folder / OUT / "profile"
    assert not failed.exists(), "a failure is not kept"


def test_no_profiler_is_a_status_with_a_hint(
    measured: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LADDER_NCU", str(measured.folder / "absent"))
    profile(measured)
    assert statuses(measured) == {name: {"skipped_unsupported"} for name in OURS}
    assert all("does not run" in row["detail"] for row in rows(measured))


def test_a_profiler_that_is_required_ends_the_step(measured: Project) -> None:
    fake_ncu.install(measured, mode="no_permission")
    with pytest.raises(UserError, match=r"profile\.use: required, but this user may not read"):
        profile(measured, use="required")


def test_nothing_matched_is_an_error_and_no_empty_profile(measured: Project) -> None:
    fake_ncu.install(measured, mode="nothing")
    profile(measured)
    assert statuses(measured) == {name: {"missing_metric"} for name in OURS}
    assert all("profiled no launch" in row["detail"] for row in rows(measured))


def test_a_launch_of_another_geometry_is_never_taken_for_the_point(measured: Project) -> None:
    fake_ncu.install(measured, grid=2)
    profile(measured, sizes=WITH_CUBLAS)
    found = statuses(measured)
    assert found.pop("12_tma") == {"missing_metric"}
    assert found == {name: {"ok"} for name in ("01_naive", "03_shared_tile", "cublas_fp32")}
    assert len(fake_ncu.calls(measured)) == 2 + POINTS, "each again in a process of its own"
    shared = of_kernel(measured, "03_shared_tile")[SECTORS]
    assert shared["value"] == fake_ncu.printed_value(SECTORS, 0)
    (row,) = of_kernel(measured, "12_tma").values()
    assert "gemm with grid (7, 7, 7)" in row["detail"]
    assert "was expected" in row["detail"]


def test_a_launch_too_many_makes_all_of_them_doubtful(measured: Project) -> None:
    fake_ncu.install(measured, extra=1)
    profile(measured)
    found = statuses(measured)
    assert found["01_naive"] == found["12_tma"] == {"missing_metric"}
    assert "stray" in of_kernel(measured, "12_tma")["profile"]["detail"]


def test_a_metric_that_cannot_be_collected_is_a_row_with_its_reason(measured: Project) -> None:
    fake_ncu.install(measured, refuse=["dram__bytes_read.sum", "l1tex__t_sectors.sum"])
    profile(measured)
    found = of_kernel(measured, "03_shared_tile")
    missing = {name for name, row in found.items() if row["status"] == "missing_metric"}
    assert missing == {"dram__bytes_read.sum", "l1tex__t_sectors.sum", L1_HIT_RATE}
    assert all(found[name]["value"] is None for name in missing)
    assert "Failed to access" in found["dram__bytes_read.sum"]["detail"]
    assert found[SECTORS]["status"] == "ok"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cells": {SECTORS: "n/a"}}, "'n/a'"),
        ({"cells": {SECTORS: "1.073.741.824"}}, "no number of the locale C"),
        ({"units": {SECTORS: "Gsector"}, "cells": {SECTORS: "1.07"}}, "Gsector"),
    ],
)
def test_a_cell_that_cannot_be_relied_on_is_a_row_without_a_value(
    measured: Project, settings: dict[str, Any], words: str
) -> None:
    fake_ncu.install(measured, **settings)
    profile(measured)
    row = of_kernel(measured, "03_shared_tile")[SECTORS]
    assert (row["value"], row["status"]) == (None, "missing_metric")
    assert SECTORS in row["detail"]
    assert words in row["detail"]


@pytest.mark.parametrize(
    ("fault", "status"),
    [("sigkill", "worker_crash"), ("illegal_address", "illegal_address"), ("hang", "timeout")],
)
def test_a_point_that_fails_costs_only_itself(measured: Project, fault: str, status: str) -> None:
    measured.fake_gpu(faults={"03_shared_tile": fault})
    fake_ncu.install(measured)
    profile(measured, timeout_s=6)
    found = statuses(measured)
    assert found.pop("03_shared_tile") == {status}
    assert found == {"01_naive": {"ok"}, "12_tma": {"ok"}}
    assert of_kernel(measured, "12_tma")[SECTORS]["value"] is not None


def test_a_point_that_failed_is_tried_again(measured: Project) -> None:
    measured.fake_gpu(faults={"03_shared_tile": "sigkill"})
    profile(measured)
    measured.fake_gpu()
    assert profile(measured) == Summary(POINTS, 1, POINTS - 1, {})


def test_the_step_by_hand_says_what_it_did(measured: Project) -> None:
    measured.ladder("plan")
    done = measured.ladder("profile", "--out", OUT)
    assert f"{OUT}/hardware.parquet: {POINTS} points, {POINTS} counted now, 0 from" in done.stdout
    fake_ncu.install(measured, mode="no_permission")
    measured.configure(CONFIG | {"profile": {"sizes": WITH_CUBLAS}})
    measured.ladder("plan")
    done = measured.ladder("profile", "--out", OUT)
    assert "4 no_permission" in done.stdout


# --- further on -----------------------------------------------------------------------------------


def test_the_counters_of_all_sources_lie_in_one_table(measured: Project) -> None:
    profile(measured)
    out = f"{OUT}/counters.parquet"
    measured.ladder("counters", "--out", out, f"{OUT}/hardware.parquet")
    sources = {row["source"] for row in measured.table("counters")}
    assert sources == {"theory", "hardware"}


def test_the_report_is_written_without_counters_and_says_why(measured: Project) -> None:
    fake_ncu.install(measured, mode="no_permission")
    profile(measured)
    measured.ladder("counters", "--out", f"{OUT}/counters.parquet", f"{OUT}/hardware.parquet")
    measured.ladder("figures", OUT)
    measured.ladder("report", OUT)
    text = (measured.folder / OUT / "report.html").read_text()
    assert "Hardware counters of 4 points: this user may not read" in text
    assert "NVreg_RestrictProfilingToAdminUsers=0" in text
