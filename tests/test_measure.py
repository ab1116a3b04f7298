"""The supervisor and its worker, with faults planted in a GPU that does not exist."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from project import QUICK, Project

MakeProject = Callable[..., Project]
GOOD = {"ok", "ok_noisy"}


def config(*kernels: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "sizes": {"square": [33]},
        "kernels": {name: {} for name in kernels},
        "protocol": QUICK,
        "architectures": ["sm_90a"],
    }
    return base | changes


def with_faults(make_project: MakeProject, faults: dict[str, str], **changes: Any) -> Project:
    """A project of one kernel per fault, with a good one before and after each."""
    names = ["10_good", *faults, "99_good"]
    project = make_project(config(*names, **changes), kernels=[])
    for index, name in enumerate(names):
        # Sources differ, so that no kernel borrows the results of another.
        project.add_kernel(name, f"extern int unique_{index};")
    project.fake_gpu(faults=faults)
    project.pretend_compiled()
    return project


FAULTS = {
    "return_at_once": "wrong_result",
    "write_nan": "nonfinite",
    "one_nan": "nonfinite",
    "write_zeros": "wrong_result",
    "drop_last_k": "wrong_result",
    "tf32": "wrong_result",
    "skip_if_plausible": "wrong_result",
    "nondeterministic": "nondeterministic",
    "write_behind_c": "guard_violation",
    "change_input": "guard_violation",
    "illegal_address": "illegal_address",
    "sigkill": "worker_crash",
    "oom": "oom",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One run over every fault, a good kernel before each."""
    names = [f"{kind}_{fault}" for fault in FAULTS for kind in ("good", "bad")] + ["good_last"]
    project = Project(tmp_path_factory.mktemp("faulty"), config(*names), kernels=[])
    for index, name in enumerate(names):
        # Sources differ, so that no kernel borrows the results of another.
        project.add_kernel(name, f"extern int unique_{index};")
    project.fake_gpu(faults={f"bad_{fault}": fault for fault in FAULTS})
    project.pretend_compiled()
    project.measure()
    return project


@pytest.mark.parametrize(("fault", "status"), FAULTS.items())
def test_a_faulty_kernel_gets_its_status_and_words_for_it(
    faulty: Project, fault: str, status: str
) -> None:
    row = next(row for row in faulty.table("points") if row["kernel"] == f"bad_{fault}")
    assert row["status"] == status
    assert row["detail"]
    assert row["tflops"] is None or fault == "skip_if_plausible", "only timing could tell"


def test_no_fault_touches_the_kernels_around_it(faulty: Project) -> None:
    good = {name: found for name, found in faulty.statuses().items() if name.startswith("good")}
    assert len(good) == len(FAULTS) + 1
    assert all(found <= GOOD for found in good.values())


def test_a_wrong_result_names_its_count_and_first_element(faulty: Project) -> None:
    row = next(row for row in faulty.table("points") if row["kernel"] == "bad_drop_last_k")
    assert row["wrong_elements"] > 0
    assert "C[0, 0]" in row["detail"]
    row = next(row for row in faulty.table("points") if row["kernel"] == "bad_one_nan")
    assert row["wrong_elements"] == 1
    assert "C[32, 32]" in row["detail"]


def test_a_kernel_slower_than_10_ms_by_the_host_alone_is_a_timing_mismatch(
    make_project: MakeProject,
) -> None:
    project = with_faults(make_project, {"50_late": "late_event"})
    project.fake_gpu(faults={"50_late": "late_event"}, speed={"50_late": 1e-7})
    project.measure()
    row = next(row for row in project.table("points") if row["kernel"] == "50_late")
    assert row["status"] == "timing_mismatch"
    assert row["time_median_ns"] > 10e6, "the device's time is kept"
    assert row["wall_over_event"] < 0.5, "and so is the host's"


def test_more_than_the_peak_at_the_measured_clock_is_implausible(
    make_project: MakeProject,
) -> None:
    project = make_project(config("cublas_fp32"))
    project.fake_gpu(clock_mhz=0.01)
    project.measure()
    row = project.table("points")[0]
    assert row["status"] == "implausible"
    assert "peak" in row["detail"]


def test_the_peak_of_a_tensor_core_kernel_is_that_of_its_products(
    make_project: MakeProject,
) -> None:
    """At this clock the FP32 units reach 0.3 GFLOPS, TF32 2.5, and each point takes 0.7."""
    project = make_project(config("50_three", "51_eight", "52_either"), kernels=[])
    project.add_kernel(
        "52_either",
        "extern int unique_either;",
        family="tensor",
        tensor_cores={"inputs": "tf32", "products": "TILE"},
        parameters={"TILE": {"description": "products", "values": [3, 8]}},
        sweep={"TILE": [3, 8]},
    )
    for name, products in (("50_three", 3), ("51_eight", 8)):
        project.add_kernel(
            name,
            f"extern int unique_{products};",
            family="tensor",
            tensor_cores={"inputs": "tf32", "products": products},
        )
    sheets = project.folder / "config" / "gpus.yaml"
    sheets.write_text(
        sheets.read_text().replace("driver_names: [H200]", "driver_names: [Fake GPU]")
    )
    project.fake_gpu(clock_mhz=0.01)
    project.pretend_compiled()
    project.measure()
    either = [row for row in project.table("points") if row["kernel"] == "52_either"]
    assert {row["params"]: row["status"] == "implausible" for row in either} == {
        '{"TILE":3}': False, '{"TILE":8}': True,
    }  # fmt: skip
    rows = {row["kernel"]: row for row in project.table("points")}
    assert rows["50_three"]["status"] in GOOD
    assert rows["51_eight"]["status"] == "implausible"
    assert {row["family"] for row in rows.values()} == {"tensor"}


def test_a_hung_kernel_is_stopped_and_the_rest_is_measured(make_project: MakeProject) -> None:
    project = with_faults(make_project, {"50_hangs": "hang"}, protocol=QUICK | {"timeout_s": 5.0})
    project.measure()
    assert project.statuses()["50_hangs"] == {"timeout"}
    assert project.statuses()["99_good"] <= GOOD


def test_a_second_run_measures_nothing_and_a_new_size_measures_itself(
    make_project: MakeProject,
) -> None:
    project = make_project(config("01_naive", "cublas_fp32"))
    project.fake_gpu()
    project.pretend_compiled()
    assert "8 measured now, 0 from the store" in project.measure().stdout
    first = {(row["kernel"], row["m"]): row["run_id"] for row in project.table("points")}
    assert "0 measured now, 8 from the store" in project.measure().stdout
    assert first == {(row["kernel"], row["m"]): row["run_id"] for row in project.table("points")}
    project.configure(config("01_naive", "cublas_fp32", sizes={"square": [33, 40]}))
    assert "8 measured now, 8 from the store" in project.measure().stdout


def test_one_more_round_adds_to_what_is_there(make_project: MakeProject) -> None:
    project = make_project(config("cublas_fp32"))
    project.fake_gpu()
    project.measure()
    old = {row["index"] for row in project.table("samples") if row["round"] == 1}
    project.configure(config("cublas_fp32", protocol=QUICK | {"rounds": 3}))
    project.measure()
    rounds = {row["round"] for row in project.table("samples")}
    assert rounds == {0, 1, 2}
    assert old == {row["index"] for row in project.table("samples") if row["round"] == 1}


def test_samples_hold_every_launch_group_and_feed_the_median(make_project: MakeProject) -> None:
    project = make_project(config("cublas_fp32"))
    project.fake_gpu(noise=0.2)
    project.measure()
    point = project.table("points")[0]
    samples = [row for row in project.table("samples") if row["phase"] == "sample"]
    assert len(samples) == point["samples"] >= 30
    times = sorted(row["time_per_launch_ns"] for row in samples)
    middle = len(times) // 2
    median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    assert point["time_median_ns"] == pytest.approx(median)
    assert {row["phase"] for row in project.table("samples")} == {
        "first", "warmup", "sample", "post",
    }  # fmt: skip


def test_another_gpu_or_driver_measures_anew_and_rows_stay_apart(
    make_project: MakeProject,
) -> None:
    project = make_project(config("cublas_fp32"))
    project.fake_gpu(uuids=["GPU-a"])
    project.measure()
    before = project.table("points")[0]
    for change in ({"uuids": ["GPU-b"]}, {"uuids": ["GPU-a"], "driver": "999.0"}):
        project.fake_gpu(**change)
        assert "1 measured now, 0 from the store" in project.measure().stdout
    rows = project.table("points")
    assert {(row["gpu_uuid"], row["driver_version"]) for row in rows} == {
        ("GPU-a", "580.0"), ("GPU-b", "580.0"), ("GPU-a", "999.0"),
    }  # fmt: skip
    old = next(
        row for row in rows if (row["gpu_uuid"], row["driver_version"]) == ("GPU-a", "580.0")
    )
    assert old == before


def test_a_throttled_gpu_keeps_every_sample_and_flags_them(make_project: MakeProject) -> None:
    project = make_project(config("cublas_fp32"))
    project.fake_gpu(reasons=0x04)
    project.measure()
    point = project.table("points")[0]
    assert point["status"] in GOOD
    assert point["throttle_share"] == 1.0
    assert json.loads(point["throttle_reasons"]) == ["software power cap"]
    assert point["time_median_ns"] > 0
    assert all(row["throttled"] for row in project.table("samples"))


def test_a_kernel_shorter_than_the_timers_step_has_a_finite_throughput(
    make_project: MakeProject,
) -> None:
    project = make_project(config("cublas_fp32", sizes={"square": [1, 8]}))
    project.fake_gpu()
    project.measure()
    for row in project.table("points"):
        assert 0 < row["tflops"] < 1
        assert row["launch_bound"] is True
        assert row["launches_per_sample"] * row["time_median_ns"] >= QUICK["sample_us"] * 1e3


def test_a_point_that_cannot_fit_is_refused_with_both_numbers(make_project: MakeProject) -> None:
    project = make_project(config("cublas_fp32", sizes={"square": [33, 8192]}))
    project.fake_gpu(free_bytes=2**30 + 2**28)
    project.measure()
    row = next(row for row in project.table("points") if row["m"] == 8192)
    assert row["status"] == "skipped_oom_predicted"
    assert "GiB" in row["detail"]


def test_a_busy_gpu_is_refused_unless_allowed_and_then_marked(make_project: MakeProject) -> None:
    project = make_project(config("cublas_fp32"))
    project.fake_gpu(other_processes=[4242])
    refused = project.measure(check=False)
    assert refused.returncode == 2
    assert "4242" in refused.stderr
    assert "gpu.allow_shared" in refused.stderr
    project.configure(config("cublas_fp32", gpu={"allow_shared": True}))
    project.measure()
    assert project.table("points")[0]["gpu_shared"] is True


def test_a_gpu_on_which_cublas_fails_ends_with_one_clear_line(make_project: MakeProject) -> None:
    project = make_project(config("01_naive", protocol=QUICK | {"settle_s": 1.0}))
    project.fake_gpu(faults={"cublas": "illegal_address"})
    project.pretend_compiled()
    failed = project.measure(check=False)
    assert failed.returncode == 2
    assert "Fake GPU: cuBLAS does not run" in failed.stderr
    assert "Traceback" not in failed.stderr
    checks = [record for record in journal(project) if record["type"] == "check"]
    assert len(checks) == 7, "what was checked before is kept"


def test_tf32_variables_do_not_reach_the_worker(make_project: MakeProject) -> None:
    from ladder.device import GpuIdentity
    from ladder.measure import TF32_VARIABLES, worker_environment

    gpu = GpuIdentity("GPU-x", "X", "9.0", 1, 1, 1, 1, 1, 1, 1, "13.0")
    project = make_project(config("cublas_fp32"))
    os.environ.update(dict.fromkeys(TF32_VARIABLES, "1"))
    try:
        environment = worker_environment(gpu, project.folder)
    finally:
        for name in TF32_VARIABLES:
            del os.environ[name]
    assert not set(TF32_VARIABLES) & set(environment)
    assert environment["CUDA_MODULE_LOADING"] == "EAGER"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-x"


def test_several_gpus_share_the_sizes_and_each_size_stays_on_one(
    make_project: MakeProject,
) -> None:
    project = make_project(
        config(
            "01_naive",
            "cublas_fp32",
            sizes={"square": [20, 21, 22, 23, 24, 25]},
            gpu={"select": "all"},
        )
    )
    project.fake_gpu(uuids=["GPU-a", "GPU-b"])
    project.pretend_compiled()
    project.measure()
    rows = project.table("points")
    assert len(rows) == 6 * 8
    cards = {size: {row["gpu_uuid"] for row in rows if row["m"] == size} for size in range(20, 26)}
    assert all(len(used) == 1 for used in cards.values())
    assert len(set.union(*cards.values())) == 2


def start(project: Project) -> subprocess.Popen[str]:
    """Start a measurement without waiting for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "ladder", "measure", "--out", "results/fake-gpu"],
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def journal(project: Project) -> list[dict[str, Any]]:
    """Complete records of all journals."""
    from ladder.store import records

    return list(records(project.folder / "results/fake-gpu/journal"))


def wait_for(project: Project, visits: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sum(1 for record in journal(project) if record["type"] == "visit") >= visits:
            return
        time.sleep(0.05)
    raise AssertionError("the measurement does not get on")


def slow_project(make_project: MakeProject) -> Project:
    """Long enough to be killed in the middle: about 20 ms a launch group."""
    project = make_project(config("cublas_fp32", sizes={"square": list(range(20, 32))}))
    project.fake_gpu(launch_sleep_s=0.001)
    project.ladder("plan")
    return project


def test_killing_the_worker_costs_the_point_in_flight(make_project: MakeProject) -> None:
    project = slow_project(make_project)
    running = start(project)
    wait_for(project, 3)
    workers = subprocess.run(
        ["pgrep", "-P", str(running.pid), "-f", "ladder.worker"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert len(workers) == 1
    project.fake_gpu()  # the next worker need not be slow
    os.kill(int(workers[0]), signal.SIGKILL)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    statuses = [row["status"] for row in project.table("points")]
    assert statuses.count("worker_crash") == 1
    assert len([status for status in statuses if status in GOOD]) == 11
    assert "1 measured now, 11 from the store" in project.measure().stdout


def test_killing_the_supervisor_costs_the_point_in_flight_and_leaves_no_worker(
    make_project: MakeProject,
) -> None:
    project = slow_project(make_project)
    running = start(project)
    wait_for(project, 5)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    kept = {
        (record["key"], record["round"]) for record in journal(project) if record["type"] == "visit"
    }
    time.sleep(0.5)
    left = subprocess.run(
        ["pgrep", "-f", f"ladder.worker.*{project.folder}"], capture_output=True, check=False
    )
    assert left.returncode == 1, "the worker must die with its supervisor"
    project.fake_gpu()
    project.measure()
    visits = [record for record in journal(project) if record["type"] == "visit"]
    again = [(record["key"], record["round"]) for record in visits]
    assert len(again) == len(set(again)) == 24, "nothing kept was measured twice"
    assert kept <= set(again)


def test_drift_repeats_the_visits_since_the_last_sentinel_once_and_keeps_both(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(config("01_naive", protocol=QUICK | {"sentinel_every": 3}))
    project.fake_gpu(drift_after_launches=4000, drift_factor=1.1)
    project.pretend_compiled()
    project.measure()
    run = project.table("runs")[0]
    assert run["drift_repeats"] >= 1
    assert run["sentinel_max_drift_pct"] > 2.0
    samples = project.table("samples")
    assert any(row["superseded"] for row in samples)
    assert any(row["drift_repeated"] for row in project.table("points"))
    for row in project.table("points"):
        used = [
            sample
            for sample in samples
            if sample["params"] == row["params"]
            and sample["phase"] == "sample"
            and not sample["superseded"]
        ]
        assert row["samples"] == len(used)
