"""The ceilings: their machine code, their launches, and the step on a GPU that does not exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_gpu import CLOCK_MHZ, detect
from ladder import ceilings, schema
from ladder.ceilings import CEILINGS, CHUNK_BYTES, Ceiling, hardware_limit, launch_of
from ladder.device import GpuIdentity
from project import ROOT, Project

MakeProject = Callable[..., Project]
OUT = "results/fake-gpu"
BY_NAME = {ceiling.name: ceiling for ceiling in CEILINGS}
H200 = replace(detect()[0], name="NVIDIA H200", l2_bytes=60 * 2**20)


def duration_ns(ceiling: Ceiling, gpu: GpuIdentity, share: float) -> float:
    """Time of a launch at a share of what the hardware could do, ns."""
    limit = hardware_limit(ceiling, gpu, CLOCK_MHZ)
    assert limit is not None
    return launch_of(ceiling, gpu).work / (limit * share * (1e3 if ceiling.unit == "TFLOPS" else 1))


# --- machine code ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "architecture"),
    [*((name, "sm_90a") for name in BY_NAME), ("fma", "sm_120"), ("shared_fma", "sm_120")],
)
def test_the_timed_loop_holds_what_the_number_is_made_of(name: str, architecture: str) -> None:
    ceiling = BY_NAME[name]
    code = ceilings.compile_ceiling(ceiling, ROOT / ceilings.FOLDER, architecture)
    assert code.fault is None
    assert code.counts == ceiling.loop
    if ceiling.level == "fp32":  # little else may take issue slots, or the FMA pipe waits for it
        share = {"fma": 0.98}.get(name, 0.93)
        assert code.counts["FFMA"] > share * code.loop_instructions


def test_code_that_a_compiler_has_emptied_is_no_ceiling(tmp_path: Path) -> None:
    for path in (ROOT / ceilings.FOLDER).iterdir():
        text = path.read_text().replace("out[blockIdx.x * THREADS + threadIdx.x] = sum;", "")
        (tmp_path / path.name).write_text(text)
    code = ceilings.compile_ceiling(BY_NAME["fma"], tmp_path, "sm_90a")
    assert code.fault is not None and code.fault[0] == "implausible"
    assert "0 FFMA where the source has 256" in code.fault[1]


def test_a_load_that_is_split_or_narrowed_is_not_counted_as_a_whole_one(tmp_path: Path) -> None:
    for path in (ROOT / ceilings.FOLDER).iterdir():
        text = path.read_text().replace("add(sum, value[i]);", "sum.x += value[i].x;")
        (tmp_path / path.name).write_text(text)
    code = ceilings.compile_ceiling(BY_NAME["shared"], tmp_path, "sm_90a")
    assert code.fault is not None and "0 LDS.128" in code.fault[1]


# --- launches -------------------------------------------------------------------------------------


def test_every_level_is_read_where_it_is() -> None:
    sizes = {name: launch_of(ceiling, H200) for name, ceiling in BY_NAME.items()}
    resident_bytes = 2 * CHUNK_BYTES  # two blocks of an SM
    assert resident_bytes < 128 * 1024 and sizes["l1"].step == 0
    assert H200.sm_count * 256 * 1024 // 4 < sizes["l2"].in_bytes <= H200.l2_bytes // 4
    for name in ("dram_read", "copy"):
        assert sizes[name].in_bytes >= 16 * H200.l2_bytes
    assert sizes["copy"].out_bytes == sizes["copy"].in_bytes
    for name, launch in sizes.items():
        assert launch.chunks * CHUNK_BYTES <= launch.in_bytes, name
        assert 0 <= launch.step < launch.chunks, name
        assert launch.out_bytes >= launch.blocks * BY_NAME[name].threads * 16, name


def test_work_of_a_launch() -> None:
    fma = launch_of(BY_NAME["fma"], H200)
    assert fma.work == 2 * 256 * 4000 * (132 * 2 * 512)
    copy = launch_of(BY_NAME["copy"], H200)
    # Each trip moves whole chunks, in and out.
    assert copy.work == 2 * CHUNK_BYTES * copy.blocks * copy.trips
    assert copy.blocks * copy.trips >= 4 * copy.chunks


def test_what_the_hardware_could_do() -> None:
    limits = {name: hardware_limit(ceiling, H200, 1980) for name, ceiling in BY_NAME.items()}
    assert limits["fma"] == pytest.approx(66.9, abs=0.05)  # 132 x 128 x 2 x 1.98 GHz
    assert limits["shared"] == limits["l1"] == pytest.approx(132 * 128 * 1.98)
    assert limits["shared_pairs"] == pytest.approx(2 * 132 * 128 * 1.98)
    assert limits["copy"] == pytest.approx(6144 / 8 * 2 * 3.201)  # GB/s


# --- the step -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Measured once: all at 90 % of the hardware, but what is planted."""
    made = Project(
        tmp_path_factory.mktemp("ceilings"),
        {"sizes": {"square": [33]}, "kernels": {"01_naive": {}}, "architectures": ["sm_90a"]},
        kernels=["01_naive"],
    )
    shares = {"l2": 1.5}  # as a loop that was optimised away would have it
    times = {c.name: duration_ns(c, detect()[0], shares.get(c.name, 0.9)) for c in CEILINGS}
    made.fake_gpu(kernel_ns=times, faults={"shared": "illegal_address"})
    made.output = made.ladder("ceilings", "--out", OUT).stdout  # type: ignore[attr-defined]
    return made


def rows_of(project: Project) -> dict[str, dict[str, Any]]:
    table = schema.read(project.folder / OUT / "ceilings.parquet", "ceilings")
    return {row["name"]: row for row in table.to_pylist()}


def test_a_ceiling_has_its_rate_and_how_it_was_found(project: Project) -> None:
    row = rows_of(project)["fma"]
    assert (row["status"], row["unit"], row["source"]) == ("ok", "TFLOPS", "measured")
    assert row["value"] == pytest.approx(0.9 * 66.9, rel=0.01)
    assert row["value_min"] <= row["value"] <= row["value_max"]
    assert row["per_sm_clock"] == pytest.approx(0.9 * 256, rel=0.01)
    assert json.loads(row["loop_counts"]) == {"FFMA": 256}
    assert row["samples"] == 60 and row["sm_clock_mean_mhz"] == CLOCK_MHZ
    assert row["gpu_name"] == "Fake GPU" and row["driver_version"] == "580.0"
    assert len(row["cubin_sha256"]) == 64 and row["run_id"] and row["measured_at"]


def test_a_rate_beyond_the_hardware_is_implausible(project: Project) -> None:
    row = rows_of(project)["l2"]
    assert row["status"] == "implausible"
    assert "the hardware could do" in row["detail"]


def test_a_ceiling_that_fails_costs_no_other(project: Project) -> None:
    rows = rows_of(project)
    assert rows["shared"]["status"] == "illegal_address" and rows["shared"]["value"] is None
    assert [name for name, row in rows.items() if row["status"] == "ok"] == [
        name for name in BY_NAME if name not in ("l2", "shared")
    ]
    assert "shared: illegal_address" in project.output  # type: ignore[attr-defined]


def test_a_gpu_in_use_is_left_alone(make_project: MakeProject) -> None:
    made = make_project({"sizes": {"square": [33]}, "kernels": {"01_naive": {}}},
                        kernels=["01_naive"])  # fmt: skip
    made.fake_gpu(other_processes=[4711])
    done = made.ladder("ceilings", "--out", OUT, check=False)
    assert done.returncode == 2 and "in use by process 4711" in done.stderr
    assert not (made.folder / OUT / "ceilings.parquet").exists()
