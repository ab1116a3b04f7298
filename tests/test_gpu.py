"""What only a real GPU can show. Run on one with `python3 envs/bootstrap.py pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladder import schema
from ladder.device import detect
from ladder.tune import TRIALS
from ladder.tuned import read_winners
from launch_kinds import KERNELS, LARGEST, ODD_SIZES
from project import GEMM, NAIVE_BODY, QUICK, ROOT, Project

pytestmark = pytest.mark.gpu

MakeProject = Callable[..., Project]


def run(project: Project) -> None:
    config = project.folder / "config/config.yaml"
    assert config.exists()
    project.compile_all(detect()[0].architecture(["sm_90a", "sm_120"]))
    project.measure("results/gpu")


def points(project: Project) -> dict[str, dict[str, Any]]:
    return {row["kernel"]: row for row in project.table("points", "results/gpu")}


def config(*kernels: str, square: list[int] | None = None, **protocol: Any) -> dict[str, Any]:
    return {
        "sizes": {"square": square or [256]},
        "kernels": {name: {} for name in kernels},
        "protocol": QUICK | protocol,
    }


def test_one_illegal_access_costs_one_point(make_project: MakeProject) -> None:
    project = make_project(config("10_good", "11_bad", "12_good", "13_misaligned"), kernels=[])
    project.add_kernel("10_good")
    far = f"{GEMM} {{ C[(size_t)1 << 40] = 1.0f; }}"
    project.add_kernel("11_bad", far)
    project.add_kernel("12_good", f"{GEMM} {NAIVE_BODY}\n__device__ int other;")
    project.add_kernel(
        "13_misaligned", f"{GEMM} {{ *reinterpret_cast<float4*>(C + 1) = float4{{0, 0, 0, 0}}; }}"
    )
    run(project)
    found = project.statuses("results/gpu")
    assert found["10_good"] <= {"ok", "ok_noisy"}
    assert found["11_bad"] == {"illegal_address"}
    assert found["12_good"] <= {"ok", "ok_noisy"}
    assert found["13_misaligned"] == {"misaligned"}


def test_dynamic_shared_memory_is_opted_in_and_its_limit_is_named(
    make_project: MakeProject,
) -> None:
    project = make_project(config("10_large", "11_too_large"), kernels=[])
    body = f"""{GEMM} {{
        extern __shared__ float dynamic[]; __shared__ float fixed[4];
        if (M < 0) {{ dynamic[K] = fixed[N & 3]; __syncthreads(); C[0] = dynamic[M]; }}
        const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
        if (row >= M || col >= N) return;
        float acc = 0.0f;
        for (int k = 0; k < K; ++k) acc += A[row * K + k] * B[k * N + col];
        C[row * N + col] = acc;
    }}"""
    launch = {"kind": "cuda", "block": [16, 16], "grid": ["cdiv(N, 16)", "cdiv(M, 16)"]}
    project.add_kernel("10_large", body, launch=launch | {"dynamic_shared_memory_bytes": 49_152})
    project.add_kernel(
        "11_too_large", body, launch=launch | {"dynamic_shared_memory_bytes": 232_449}
    )
    run(project)
    rows = points(project)
    assert rows["10_large"]["status"] in {"ok", "ok_noisy"}
    assert rows["11_too_large"]["status"] == "infeasible_smem"
    assert "232,4" in rows["11_too_large"]["detail"]


@pytest.mark.parametrize("variable", ["CUPY_TF32", "NVIDIA_TF32_OVERRIDE"])
def test_the_fp32_baseline_stays_fp32_whatever_the_environment_says(
    make_project: MakeProject, variable: str
) -> None:
    project = make_project(config("cublas_fp32", "cublas_tf32", square=[512]))
    project.environment[variable] = "1"
    run(project)
    rows = points(project)
    assert rows["cublas_fp32"]["status"] in {"ok", "ok_noisy"}
    assert rows["cublas_fp32"]["eta_rms"] < 1.0
    assert rows["cublas_tf32"]["eta_rms"] > 50.0, "the TF32 series really is TF32"


def test_device_time_agrees_with_wall_time_on_a_slow_kernel(make_project: MakeProject) -> None:
    settings = config("01_naive", square=[4096])
    settings["kernels"]["01_naive"] = {"sweep": [{"BLOCK_X": 16, "BLOCK_Y": 16}]}
    project = make_project(settings)
    run(project)
    row = points(project)["01_naive"]
    assert row["status"] in {"ok", "ok_noisy"}
    assert row["time_median_ns"] > 10e6
    assert abs(row["wall_over_event"] - 1.0) < 0.05


def test_the_first_sample_pays_for_nothing_that_was_lazy(make_project: MakeProject) -> None:
    project = make_project(config("cublas_fp32", square=[256], sample_us=1000.0))
    run(project)
    samples = [
        row["time_per_launch_ns"]
        for row in project.table("samples", "results/gpu")
        if row["phase"] == "sample" and row["round"] == 0
    ]
    median = sorted(samples)[len(samples) // 2]
    assert samples[0] <= 1.5 * median


def test_a_kernel_shorter_than_the_timer_is_batched_and_marked(make_project: MakeProject) -> None:
    settings = config("01_naive", square=[8], sample_us=200.0)
    settings["kernels"]["01_naive"] = {"sweep": [{"BLOCK_X": 16, "BLOCK_Y": 16}]}
    project = make_project(settings)
    run(project)
    row = points(project)["01_naive"]
    assert row["launch_bound"] is True
    assert row["launches_per_sample"] * row["time_median_ns"] >= 150e3
    assert 0 < row["tflops"] < 1


def test_every_shipped_kernel_is_right_at_every_awkward_size(make_project: MakeProject) -> None:
    sides = [1, 3, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257]
    shapes = [[sides[i], sides[(i * 5 + 3) % 14], sides[(i * 3 + 7) % 14]] for i in range(14)]
    shapes += [[129, 129, 17], [64, 65, 1], [1, 257, 129], [257, 1, 33], [3, 3, 431]]
    settings = {
        "sizes": {"shapes": shapes},
        "kernels": {name: {} for name in ("01_naive", "03_shared_tile", "cublas_fp32")},
        "protocol": QUICK | {"rounds": 1, "minimum_samples": 5, "maximum_samples": 5},
    }
    project = make_project(settings)
    run(project)
    wrong = [
        row
        for row in project.table("points", "results/gpu")
        if row["status"] not in {"ok", "ok_noisy"} or not row["exact"]
    ]
    assert not wrong


needs_clusters = pytest.mark.skipif(
    not detect() or float(detect()[0].compute_capability) < 9.0,
    reason="no GPU with clusters and tensor maps (compute capability 9.0)",
)


@needs_clusters
def test_clusters_and_tensor_maps_give_exact_results_at_every_size(
    make_project: MakeProject,
) -> None:
    large = {"15_large": LARGEST} if detect()[0].compute_capability in {"9.0", "10.0"} else {}
    kinds = KERNELS | large
    settings = {
        "sizes": {"shapes": [*ODD_SIZES, [512, 256, 128]]},
        "kernels": {name: {} for name in kinds},
        "protocol": QUICK | {"rounds": 1, "minimum_samples": 5, "maximum_samples": 5},
    }
    project = make_project(settings, kernels=[])
    for name, (source, manifest) in kinds.items():
        project.add_kernel(name, source, **manifest)
    run(project)
    rows = project.table("points", "results/gpu")
    assert len(rows) == len(kinds) * (len(ODD_SIZES) + 1)
    wrong = [row for row in rows if row["status"] not in {"ok", "ok_noisy"} or not row["exact"]]
    assert not wrong


def run_alone(script: str, *arguments: str) -> None:
    """Run a file of this folder in a process of its own."""
    folders = [str(ROOT / "workflow"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@needs_clusters
def test_helpers_graphs_and_refusals_of_the_driver(tmp_path: Path) -> None:
    run_alone("gpu_launches.py", str(tmp_path))


@pytest.mark.skipif(
    not detect() or float(detect()[0].compute_capability) < 8.0,
    reason="no GPU with TF32 (compute capability 8.0)",
)
def test_tensor_cores_read_operands_as_the_emulator_does() -> None:
    run_alone("gpu_tensor_cores.py")


def test_tuning_names_a_winner_that_a_sweep_then_finds_measured(make_project: MakeProject) -> None:
    tuned = {
        "parameters": {"SIDE": {"description": "side of the block", "maximum": 64}},
        "sweep": {"SIDE": [16]},
        "tune": {"SIDE": [4, 8, 16, 32, 64]},
        "launch": {
            "kind": "cuda",
            "block": ["SIDE", "SIDE"],
            "grid": ["cdiv(N, SIDE)", "cdiv(M, SIDE)"],
        },
    }
    project = make_project(config("10_mine", square=[512]), kernels=[])
    project.add_kernel("10_mine", f"{GEMM} {NAIVE_BODY.replace('16', 'SIDE')}", **tuned)
    project.ladder("tune", "10_mine", "--size", "512", "512", "512", "--out", "results/gpu")
    [winner] = read_winners(project.folder / "results/gpu/tuned.yaml")["10_mine"]
    assert winner.size == (512, 512, 512)
    assert winner.params["SIDE"] in {16, 32}, "narrower blocks waste half of every sector"
    assert winner.gpu == detect()[0].name
    path = project.folder / "results/gpu/tune/10_mine.parquet"
    trials = schema.read(path, "trials", TRIALS.names).to_pylist()
    assert [row["status"] for row in trials].count("infeasible_threads") == 1
    run(project)
    [point] = project.table("points", "results/gpu")
    [same] = [row for row in trials if row["params"] == point["params"]]
    assert point["run_id"] == same["run_id"], "the sweep takes the time from the journal"
