"""Kernels of the kind `selected`: what they choose, and that a choice is not measured twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder.config import load
from ladder.documents import UserError
from ladder.manifest import Kernel, load_all
from ladder.plan import plan_builds, plan_points
from ladder.selection import distance, select
from ladder.store import records
from ladder.tuned import Winner, keep_winners
from project import GEMM, MANIFEST, NAIVE_BODY, QUICK, ROOT, Project

AUTO = load_all(ROOT / "kernels")["15_auto"]
TMA = load_all(ROOT / "kernels")["12_tma"]
LARGE = {
    "BM": 256, "BN": 128, "BK": 32, "TM": 16, "TN": 8, "LANES_M": 4, "STAGES": 4, "UNROLL": 8,
    "GROUP": 8, "BLOCKS": 1, "ORDER": 0, "AHEAD": 1, "PRODUCER": 1,
}  # fmt: skip
SMALL = {
    "BM": 64, "BN": 64, "BK": 32, "TM": 8, "TN": 8, "LANES_M": 4, "STAGES": 3, "SLICES": 4,
    "SPLITS": 8, "PARTS": 1,
}  # fmt: skip


def winner(size: tuple[int, int, int], params: dict[str, int], tflops: float) -> Winner:
    m, n, k = size
    return Winner(
        m=m, n=n, k=k, params=params, tflops=tflops, run_id="run", measured_at="2026-01-01",
        gpu="a GPU", gpu_uuid="GPU-0", driver="580",
    )  # fmt: skip


def cube(n: int) -> tuple[int, int, int]:
    return n, n, n


def chosen(winners: dict[str, list[Winner]], size: tuple[int, int, int]) -> tuple[str, Any]:
    kernel, params = AUTO.resolve(select(AUTO, winners, size))
    return kernel.name, params


def test_without_a_search_the_fallback_runs_at_every_size() -> None:
    name, params = chosen({}, (1, 1, 1))
    assert name == "11_raster"
    assert AUTO.candidates[11].violated_constraint(params) is None
    assert chosen({}, (4096, 17, 5)) == (name, params)


def test_the_fastest_at_the_size_wins_whatever_is_faster_elsewhere() -> None:
    winners = {
        "12_tma": [winner(cube(512), LARGE, 5.0), winner(cube(4096), LARGE, 55.0)],
        "13_split_k": [winner(cube(512), SMALL, 20.0), winner(cube(4096), SMALL, 40.0)],
    }
    assert chosen(winners, cube(512)) == ("13_split_k", SMALL)
    assert chosen(winners, cube(4096)) == ("12_tma", LARGE)


@pytest.mark.parametrize(
    ("size", "name"),
    [(cube(600), "13_split_k"), (cube(3000), "12_tma"), ((512, 512, 700), "13_split_k"),
     (cube(1), "13_split_k"), (cube(100_000), "12_tma")],
)  # fmt: skip
def test_a_size_that_nobody_tuned_goes_by_the_nearest_one(
    size: tuple[int, int, int], name: str
) -> None:
    winners = {
        "12_tma": [winner(cube(4096), LARGE, 55.0)],
        "13_split_k": [winner(cube(512), SMALL, 20.0)],
    }
    assert chosen(winners, size)[0] == name


def test_distance_counts_doublings_along_each_axis() -> None:
    assert distance(cube(8), cube(8)) == 0
    assert distance((8, 8, 8), (16, 8, 8)) == 1
    assert distance((8, 8, 8), (16, 2, 8)) == distance((16, 2, 8), (8, 8, 8)) == 5


def test_a_winner_whose_set_no_longer_exists_is_passed_over() -> None:
    stale = {name: value for name, value in LARGE.items() if name != "ORDER"}
    forbidden = {**LARGE, "UNROLL": 32, "BK": 16}
    assert TMA.violated_constraint(forbidden)
    winners = {
        "12_tma": [winner(cube(64), stale, 60.0), winner(cube(65), forbidden, 60.0)],
        "13_split_k": [winner(cube(512), SMALL, 20.0)],
        "01_naive": [winner(cube(64), {"BLOCK_X": 16, "BLOCK_Y": 16}, 99.0)],
    }
    assert chosen(winners, cube(64)) == ("13_split_k", SMALL)


def test_points_tell_what_runs_and_only_that_is_built() -> None:
    config, kernels = load([ROOT / "config" / "config.yaml"], ROOT)
    config = config.model_copy(update={"kernels": {"15_auto": config.kernels["15_auto"]}})
    kernels = {"15_auto": kernels["15_auto"]}
    winners = {"13_split_k": [winner(cube(512), SMALL, 20.0)]}
    points = [item.point for item in plan_points(config, kernels, winners)]
    assert {point.parameters()["RUNG"] for point in points} == {13}
    both = ["sm_90a", "sm_120"]
    assert plan_builds(config, kernels, both, winners, tuned_for=both[:1]) == plan_builds(
        config, kernels, both[:1], winners
    ), "what was tuned for one GPU is built for that one"
    (build,) = plan_builds(config, kernels, ["sm_90a"], winners)
    assert build.kernel == "13_split_k" and json.loads(build.params) == SMALL
    assert len(points) == len(plan_points(config, kernels))


# --- manifests ------------------------------------------------------------------------------------

SELECTED: dict[str, Any] = {
    "title": "Pick",
    "idea": "The faster of two.",
    "launch": {
        "kind": "selected",
        "candidates": ["10_one", "11_two"],
        "fallback": {"kernel": "10_one", "params": {}},
    },
}


def two_and_a_choice(folder: Path, **launch: Any) -> dict[str, Kernel]:
    folder.mkdir(exist_ok=True)
    for name in ("10_one", "11_two", "11_again", "unnumbered"):
        (folder / f"{name}.cu").write_text(f"{GEMM} {NAIVE_BODY}")
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(MANIFEST))
    manifest = {**SELECTED, "launch": SELECTED["launch"] | launch}
    (folder / "15_pick.yaml").write_text(yaml.safe_dump(manifest))
    return load_all(folder)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"candidates": ["10_on"]}, r"candidates\[0\]: no kernel '10_on' with a source.*10_one"),
        ({"candidates": ["15_pick"]}, r"candidates\[0\]: no kernel '15_pick' with a source"),
        ({"candidates": ["10_one", "unnumbered"]}, r"candidates\[1\]: 'unnumbered'.*a number"),
        ({"candidates": ["11_two", "11_again"]}, r"candidates\[1\]: '11_again'.*no other"),
        ({"candidates": []}, "candidates"),
        ({"fallback": {"kernel": "12_no", "params": {}}}, r"fallback.kernel: '12_no'"),
        ({"fallback": {"kernel": "10_one", "params": {"X": 1}}}, r"fallback.params: X: unknown"),
    ],
)
def test_a_wrong_choice_is_told_with_file_and_key(
    launch: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words) as raised:
        two_and_a_choice(tmp_path / "kernels", **launch)
    assert "15_pick.yaml" in str(raised.value)


def test_no_choice_crosses_families(tmp_path: Path) -> None:
    two_and_a_choice(tmp_path / "kernels")
    tensor = {"family": "tensor", "tensor_cores": {"inputs": "tf32", "products": 3}}
    (tmp_path / "kernels" / "11_two.yaml").write_text(yaml.safe_dump(MANIFEST | tensor))
    with pytest.raises(UserError, match=r"candidates\[1\]: '11_two' is of the family `tensor`"):
        load_all(tmp_path / "kernels")


# --- measured on a fake GPU -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two kernels at two sizes, and one that chooses the second of them."""
    config = {
        "sizes": {"square": [33, 40]},
        "kernels": {"10_one": {}, "11_two": {}, "15_pick": {}},
        "protocol": QUICK,
        "architectures": ["sm_90a"],
    }
    project = Project(tmp_path_factory.mktemp("selected"), config, kernels=[])
    for index, name in enumerate(("10_one", "11_two")):
        project.add_kernel(name, f"extern int unique_{index};")
    (project.folder / "kernels" / "15_pick.yaml").write_text(yaml.safe_dump(SELECTED))
    project.fake_gpu()
    project.pretend_compiled()
    tuned = project.folder / "results" / "fake-gpu" / "tuned.yaml"
    keep_winners(tuned, "11_two", [winner(cube(40), {}, 1.0)])
    project.ladder("plan", "--tuned", str(tuned))
    project.ladder("measure", "--out", "results/fake-gpu")
    return project


def test_what_is_chosen_has_the_results_of_the_kernel_that_runs(measured: Project) -> None:
    rows = {(row["kernel"], row["n"]): row for row in measured.table("points")}
    for n in (33, 40):
        pick, two = rows["15_pick", n], rows["11_two", n]
        assert json.loads(pick["params"]) == {"RUNG": 11}
        for column in ("status", "time_median_ns", "source_sha256", "cubin_sha256", "eta_max"):
            assert pick[column] == two[column] is not None, column
    assert {row["kernel"] for row in measured.table("builds")} == {"10_one", "11_two"}


def test_every_point_has_all_its_samples_whichever_name_they_were_taken_under(
    measured: Project,
) -> None:
    taken = Counter(
        (row["kernel"], row["params"], row["m"], row["n"], row["k"])
        for row in measured.table("samples")
        if row["phase"] == "sample" and not row["superseded"]
    )
    points = measured.table("points")
    assert {row["kernel"] for row in points} == {"10_one", "11_two", "15_pick"}
    for row in points:
        assert taken[row["kernel"], row["params"], row["m"], row["n"], row["k"]] == row["samples"]


def test_what_is_chosen_is_checked_and_timed_once(measured: Project) -> None:
    found = list(records(measured.folder / "results" / "fake-gpu" / "journal"))
    visits = [(record["key"], record["round"]) for record in found if record["type"] == "visit"]
    assert len(visits) == len(set(visits)) == 2 * 2 * 2  # kernels, sizes, rounds
    assert sum(record["type"] == "check" for record in found) == 2 * 2


def test_a_search_that_finds_another_changes_the_plan(
    make_project: Callable[..., Project], tmp_path: Path
) -> None:
    project = make_project(
        {"sizes": {"square": [40]}, "kernels": {"15_pick": {}}, "architectures": ["sm_90a"]},
        kernels=[],
    )
    for name in ("10_one", "11_two"):
        project.add_kernel(name)
    (project.folder / "kernels" / "15_pick.yaml").write_text(yaml.safe_dump(SELECTED))
    project.fake_gpu()

    def planned() -> str:
        project.snakemake("results/fake-gpu/plan.parquet")
        (row,) = project.table("plan")
        return str(row["params"])

    assert planned() == '{"RUNG":10}'
    tuned = project.folder / "results" / "fake-gpu" / "tuned.yaml"
    keep_winners(tuned, "11_two", [winner(cube(40), {}, 1.0)])
    assert planned() == '{"RUNG":11}'
