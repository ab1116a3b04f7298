"""What only a real GPU and a real Nsight Compute can show: `pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ladder import compare_counters, ncu, schema, traffic
from ladder.compile import compile_build
from ladder.device import detect
from ladder.emulator import sass
from ladder.emulator.compiled import FFMA
from ladder.emulator.point import counter_rows, emulate_point
from ladder.emulator.result import (
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    GLOBAL_STORE_REQUESTS,
    GLOBAL_STORE_SECTORS,
)
from ladder.hardware import (
    BYTES_PER_SECTOR,
    DRAM_READ,
    FMA_PIPE,
    L1_HIT_RATE,
    L2_HIT_RATE,
    OCCUPANCY,
)
from ladder.manifest import expand, load, load_all
from launch_kinds import KERNELS
from project import QUICK, ROOT, Project
from test_gpu import needs_clusters, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(ncu.find(), str), reason=f"no Nsight Compute: {ncu.find()}"),
]

MakeProject = Callable[..., Project]
Metrics = dict[str, dict[str, Any]]


def settings(shapes: list[list[int]], kernels: dict[str, Any], **profile: Any) -> dict[str, Any]:
    return {
        "sizes": {"shapes": shapes},
        "kernels": kernels,
        "protocol": QUICK | {"rounds": 1, "minimum_samples": 5, "maximum_samples": 5},
        "profile": {"sizes": shapes, **profile},
    }


def profile(project: Project) -> dict[tuple[str, str], Metrics]:
    """Measure and profile; rows by point and metric, none of them missing."""
    run(project)
    done = project.ladder("profile", "--out", "results/gpu")
    print(done.stdout, done.stderr)
    found: dict[tuple[str, str], Metrics] = {}
    for row in project.table("hardware", "results/gpu"):
        if row["status"] == "no_permission":
            pytest.skip(row["detail"])
        assert row["status"] == "ok", row
        found.setdefault((row["kernel"], row["params"]), {})[row["metric"]] = row
    return found


def test_the_naive_kernel_moves_the_sectors_that_the_article_says(
    make_project: MakeProject,
) -> None:
    n = 2048
    shapes = {(16, 16): 4, (32, 8): 5, (8, 32): 5}
    sweep = [{"BLOCK_X": x, "BLOCK_Y": y} for x, y in shapes]
    project = make_project(
        settings([[n, n, n]], {"01_naive": {"sweep": sweep}}, every_set=["01_naive"])
    )
    found = profile(project)
    assert len(found) == len(shapes)
    for (x, y), sectors in shapes.items():
        metrics = found["01_naive", f'{{"BLOCK_X":{x},"BLOCK_Y":{y}}}']
        values = {name: row["value"] for name, row in metrics.items()}
        assert values[GLOBAL_LOAD_REQUESTS] == 2 * n**3 / 32
        assert values[GLOBAL_LOAD_SECTORS] == sectors * n**3 / 32
        assert values[FFMA] == n**3
        # Caches are flushed first: all of A and B comes from DRAM at least once.
        assert values[DRAM_READ] >= 0.9 * 8 * n**2
        for name in (L1_HIT_RATE, L2_HIT_RATE, OCCUPANCY, FMA_PIPE):
            assert 0 < values[name] <= 101, name
        # Whether bytes that several lanes ask for count once, the manual does not say.
        print(x, y, BYTES_PER_SECTOR, values[BYTES_PER_SECTOR])
    again = project.ladder("profile", "--out", "results/gpu").stdout
    assert f"0 counted now, {len(shapes)} from the store" in again


def test_emulator_and_hardware_count_alike_at_an_odd_size(make_project: MakeProject) -> None:
    m, n, k = 65, 129, 33
    params = {"BLOCK_X": 32, "BLOCK_Y": 8}
    project = make_project(settings([[m, n, k]], {"01_naive": {"sweep": [params]}}))
    (metrics,) = profile(project).values()
    kernel = load(project.folder / "kernels/01_naive.yaml")
    emulated = emulate_point(kernel, params, m, n, k).result
    assert emulated is not None
    for name in (
        GLOBAL_LOAD_REQUESTS,
        GLOBAL_LOAD_SECTORS,
        GLOBAL_STORE_REQUESTS,
        GLOBAL_STORE_SECTORS,
    ):
        assert metrics[name]["value"] == emulated.counters[name], name


@needs_clusters
def test_helpers_are_part_of_the_counts_of_a_point(make_project: MakeProject) -> None:
    shapes = [[64, 64, 64], [65, 33, 129]]  # B is padded in the second alone
    project = make_project(settings(shapes, {"12_turned": {}}), kernels=[])
    source, manifest = KERNELS["12_turned"]
    project.add_kernel("12_turned", source, **manifest)
    profile(project)
    rows = project.table("hardware", "results/gpu")
    notes = {(row["m"], row["detail"]) for row in rows if row["metric"] == OCCUPANCY}
    assert notes == {(64, "of launch 2 of 2 alone"), (65, "of launch 3 of 3 alone")}
    copied = [row["value"] for row in rows if row["metric"] == GLOBAL_LOAD_REQUESTS]
    assert all(copied), "gemm loads by TMA: these requests are the helpers'"


def test_cublas_is_profiled_whatever_its_kernels_are_called(make_project: MakeProject) -> None:
    project = make_project(settings([[512, 512, 512]], {"cublas_fp32": {}, "cublas_tf32": {}}))
    found = profile(project)
    assert found["cublas_fp32", "{}"][FFMA]["value"] >= 512**3
    assert found["cublas_tf32", "{}"][FFMA]["value"] < 512**3


def test_counters_stand_beside_theory_in_the_table(make_project: MakeProject) -> None:
    project = make_project(settings([[256, 256, 256]], {"03_shared_tile": {}}))
    profile(project)
    out = "results/gpu"
    project.ladder("counters", "--out", f"{out}/counters.parquet", f"{out}/hardware.parquet")
    rows = project.table("counters", out)
    assert {row["source"] for row in rows} == {"theory", "hardware"}
    architectures = {row["architecture"] for row in rows if row["source"] == "hardware"}
    assert architectures == {detect()[0].architecture(["sm_90a", "sm_120"])}


@needs_clusters
def test_theory_emulator_machine_code_and_hardware_agree_on_every_rung(
    make_project: MakeProject,
) -> None:
    """Of the first set of each: counts are equal as integers, or differ for a known reason."""
    size = (256, 256, 256)
    rungs = {
        name: (kernel, next(expand(kernel.manifest.sweep)))
        for name, kernel in load_all(ROOT / "kernels").items()
        if kernel.needs_build and kernel.manifest.emulator
    }
    sweeps = {name: {"sweep": [params]} for name, (_, params) in rungs.items()}
    project = make_project(settings([list(size)], sweeps))
    profile(project)
    out = "results/gpu"
    project.ladder("counters", "--out", f"{out}/counters.parquet", f"{out}/hardware.parquet")
    rows = project.table("counters", out)
    architecture = detect()[0].architecture(["sm_90a", "sm_120"])
    for kernel, params in rungs.values():
        _, cubin = compile_build(kernel, params, architecture)
        programs = {architecture: sass.load(cubin)}
        rows += schema.table(
            schema.COUNTERS, counter_rows(emulate_point(kernel, params, *size, programs=programs))
        ).to_pylist()
    points = traffic.gather(rows)
    assert len(points) == len(rungs)
    bad = []
    for point in points:
        for row in compare_counters.compare(point, rungs[point.kernel][0]):
            print(row.record())
            if row.verdict in ("unexplained", "beyond bound"):
                bad.append((point.kernel, row.quantity.name, dict(row.values)))
    found = compare_counters.agreement(
        points, {name: kernel for name, (kernel, _) in rungs.items()}
    )
    print(f"{found.equal} of {found.compared} counts of machine code and hardware are equal")
    assert found.compared >= 10 * 8, "ten rungs' machine code can be counted"
    assert bad == []
