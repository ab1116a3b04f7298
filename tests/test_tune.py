"""Tuning: which sets are left out and why, what is tried, and that nothing is measured twice."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder import schema
from ladder.compile import compiler_problem
from ladder.config import Config
from ladder.documents import UserError
from ladder.manifest import Kernel, Manifest, Params, canonical, expand, load, load_all
from ladder.status import Status
from ladder.store import records
from ladder.tune import (
    TRIALS,
    candidates,
    deciding_parameters,
    fault_at_size,
    fault_before_compiling,
    fault_of_build,
    narrowed,
    propose,
)
from ladder.tuned import Winner, keep_winners, read_winners
from project import GEMM, MANIFEST, NAIVE_BODY, QUICK, ROOT, Project, with_default_signals

MakeProject = Callable[..., Project]
needs_nvrtc = pytest.mark.skipif(
    compiler_problem() is not None, reason=f"no compiler here: {compiler_problem()}"
)
SOURCE = f"__device__ int unique = 1000 * WIDE + STEP;\n{GEMM} {NAIVE_BODY}"
TUNABLE: dict[str, Any] = {
    "parameters": {
        "WIDE": {"description": "threads of a block", "maximum": 4096},
        "STEP": {"description": "anything", "maximum": 64},
    },
    "sweep": {"WIDE": [256], "STEP": [1]},
    "tune": {"WIDE": [128, 256, 2048], "STEP": [1, 2, 3, 60]},
    "constraints": [{"require": "STEP <= 32", "message": "{STEP} steps are too many"}],
    "launch": {
        "kind": "cuda",
        "block": [16, "WIDE // 16"],
        "grid": ["cdiv(N, 16)", "cdiv(M, 16)"],
        "dynamic_shared_memory_bytes": "100 * 1024 * (STEP - 1) + 0",
    },
}
SIZE = (256, 192, 160)


def kernel_of(**changes: Any) -> Kernel:
    manifest = Manifest.model_validate(MANIFEST | TUNABLE | changes)
    return Kernel("10_mine", manifest, Path("kernels/10_mine.yaml"), Path("kernels/10_mine.cu"))


# --- the space ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "key", "remedy"),
    [
        ({"WIDE": [128], "STEPS": [1]}, "tune", "STEPS: unknown parameter; did you mean 'STEP'?"),
        ({"WIDE": [128], "STEP": [1, 65]}, "tune", "STEP: must be at most 64; found 65"),
        ({"WIDE": [128]}, "tune", "STEP: no values given; every parameter needs some"),
        ({"WIDE": [128, 128], "STEP": [1]}, "tune.WIDE", "a value appears twice in [128, 128]"),
        ({"WIDE": [], "STEP": [1]}, "tune.WIDE", "at least 1 item"),
    ],
)
def test_a_mistake_in_the_space_names_file_line_key_and_remedy(
    space: dict[str, list[int]], key: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(MANIFEST | TUNABLE | {"tune": space}))
    path.with_suffix(".cu").write_text(SOURCE)
    with pytest.raises(UserError) as caught:
        load(path)
    found = re.fullmatch(r"\S+mine\.yaml:\d+: (\S+): (.*)", str(caught.value))
    assert found, str(caught.value)
    assert found[1] == key
    assert remedy in found[2]


def test_the_space_is_every_combination_and_must_be_declared() -> None:
    sets = list(candidates(kernel_of()))
    assert len(sets) == len({canonical(params) for params in sets}) == 12
    with pytest.raises(UserError, match=r"10_mine\.yaml: tune: 10_mine declares no space"):
        candidates(kernel_of(tune={}))
    parameters = {name: {"description": name} for name in ("P", "Q", "R")}
    many = kernel_of(
        parameters=parameters, sweep=[dict.fromkeys(parameters, 1)],
        tune={name: list(range(1, 201)) for name in parameters},
        launch=MANIFEST["launch"], constraints=[],
    )  # fmt: skip
    with pytest.raises(UserError, match="8,000,000 sets; at most 2,000,000 can be looked at"):
        candidates(many)


def test_a_space_can_be_narrowed_to_values_that_it_lists() -> None:
    kernel = kernel_of()
    name, values = next(iter(kernel.manifest.tune.items()))
    part = narrowed(kernel, [f"{name}={values[0]}"])
    assert list(candidates(part)) == [
        params for params in candidates(kernel) if params[name] == values[0]
    ]
    for choice, words in [("NONE=1", "write NAME=V,V"), (f"{name}=999", f"tune.{name} lists")]:
        with pytest.raises(UserError, match=re.escape(f"--values {choice}") + f".*{words}"):
            narrowed(kernel, [choice])


@pytest.mark.parametrize(
    ("params", "architecture", "status", "words"),
    [
        ({"WIDE": 256, "STEP": 2}, "sm_90a", None, ""),
        ({"WIDE": 256, "STEP": 60}, "sm_90a", Status.SKIPPED_CONSTRAINT, "60 steps are too many"),
        ({"WIDE": 2048, "STEP": 1}, "sm_90a", Status.INFEASIBLE_THREADS, "2048 threads per block"),
        ({"WIDE": 256, "STEP": 4}, "sm_90a", Status.INFEASIBLE_SMEM, "sm_90a allows 232,448"),
        ({"WIDE": 256, "STEP": 2}, "sm_120", Status.INFEASIBLE_SMEM, "sm_120 allows 101,376"),
    ],
)
def test_what_cannot_run_is_left_out_before_compiling_with_the_reason(
    params: Params, architecture: str, status: Status | None, words: str
) -> None:
    fault = fault_before_compiling(kernel_of(), params, architecture)
    if status is None:
        assert fault is None
    else:
        assert fault is not None
        assert fault[0] is status
        assert words in fault[1]


def test_the_parameters_that_decide_are_those_that_rules_and_launch_name() -> None:
    assert deciding_parameters(kernel_of()) == ["STEP", "WIDE"]
    plain = {"launch": MANIFEST["launch"], "constraints": []}
    assert deciding_parameters(kernel_of(**plain)) == []
    told = plain | {"constraints": [{"require": "WIDE > 1", "message": "not at {STEP} {M}"}]}
    assert deciding_parameters(kernel_of(**told)) == ["STEP", "WIDE"]
    sized = plain | {"preconditions": [{"require": "K % STEP == 0", "message": "odd"}]}
    assert deciding_parameters(kernel_of(**sized)) == ["STEP"]


def test_a_set_may_be_possible_at_one_size_alone() -> None:
    kernel = kernel_of(preconditions=[{"require": "K % STEP == 0", "message": "odd"}])
    params = {"WIDE": 256, "STEP": 2}
    assert fault_at_size(kernel, params, (8, 8, 8)) is None
    fault = fault_at_size(kernel, params, (8, 8, 7))
    assert fault is not None
    assert fault[0] is Status.SKIPPED_PRECONDITION
    wide = {"kind": "cuda", "block": [16, "WIDE // 16"], "grid": ["N", "65536 * STEP"]}
    fault = fault_at_size(kernel_of(launch=wide), params, (8, 8, 8))
    assert fault is not None
    assert fault[0] is Status.INFEASIBLE_GRID


@pytest.mark.parametrize(
    ("build", "status", "words"),
    [
        ({}, None, ""),
        ({"spill_store_bytes": 24, "spill_load_bytes": 40}, None, ""),
        ({"spill_store_bytes": 24, "spill_load_bytes": 44}, Status.SKIPPED_SPILLS, "24 bytes"),
        (
            {"status": "infeasible_registers", "detail": "200 registers x 1024 threads"},
            Status.INFEASIBLE_REGISTERS,
            "200 registers",
        ),
        ({"status": "compile_failed", "detail": "error"}, Status.COMPILE_FAILED, "error"),
    ],
)
def test_what_the_compiler_says_leaves_a_set_out_with_the_reason(
    build: dict[str, Any], status: Status | None, words: str
) -> None:
    row = {"status": "ok", "detail": None, "spill_store_bytes": 0, "spill_load_bytes": 0,
           "registers_per_thread": 255} | build  # fmt: skip
    fault = fault_of_build(row)
    assert (fault and fault[0]) == status
    assert words in (fault[1] if fault else "")


# --- the search -----------------------------------------------------------------------------------

SPACE = {"WIDE": list(range(16, 16 * 17, 16)), "STEP": list(range(1, 17))}
SETS = [
    {"STEP": step, "WIDE": wide}
    for wide, step in itertools.product(SPACE["WIDE"], SPACE["STEP"])
    if (wide // 16 + step) % 3
]


def hill(params: Params) -> float | None:
    """A smooth hill with its top at WIDE 192, STEP 4; some sets turn out not to run."""
    if params["STEP"] == 9:
        return None
    return 50.0 - (params["WIDE"] / 16 - 12) ** 2 - 2.0 * (params["STEP"] - 4) ** 2


def searched(budget: int, seed: int, outcome: Callable[[Params], Any] = hill) -> list[list[Params]]:
    return list(propose(SPACE, SETS, budget=budget, seed=seed, outcome=outcome))


def test_a_search_tries_as_many_possible_sets_as_it_may_and_none_twice() -> None:
    tried = [canonical(params) for batch in searched(45, 1) for params in batch]
    assert len(tried) == len(set(tried)) == 45
    assert set(tried) <= {canonical(params) for params in SETS}


def test_a_search_repeats_itself_and_another_seed_goes_another_way() -> None:
    assert searched(25, 1) == searched(25, 1)
    assert searched(25, 1) != searched(25, 2)


def test_a_search_finds_more_than_chance_does() -> None:
    best = [max(hill(params) or 0 for batch in searched(40, s) for params in batch)
            for s in range(5)]  # fmt: skip
    everything = sorted((hill(params) or 0 for params in SETS), reverse=True)
    assert min(best) >= everything[8]
    assert sum(best) / len(best) > everything[4]


def test_a_search_ends_where_no_set_is_left_or_none_runs() -> None:
    assert sum(len(batch) for batch in searched(10_000, 1)) == len(SETS)
    assert sum(len(batch) for batch in searched(30, 1, lambda params: None)) == 30


# --- the file of winners --------------------------------------------------------------------------


def winner(m: int, tflops: float = 1.0) -> Winner:
    return Winner(
        m=m, n=8, k=8, params={"TILE": 8}, tflops=tflops, run_id="r", gpu="Fake GPU",
        measured_at="2026-01-01T00:00:00+00:00", gpu_uuid="GPU-1", driver="580.0",
    )  # fmt: skip


def test_a_winner_replaces_that_of_its_kernel_and_size_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    assert read_winners(path) == {}
    keep_winners(path, "b", [winner(16), winner(8)])
    keep_winners(path, "a", [winner(8)])
    keep_winners(path, "b", [winner(16, 2.0)])
    assert read_winners(path) == {"a": [winner(8)], "b": [winner(8), winner(16, 2.0)]}
    assert path.read_text().startswith("# Written by `python -m ladder tune`")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 3\n", r"tuned\.yaml:1: a: must be a list of winners"),
        ("a:\n  - {m: 8, n: 8, k: x}\n", r"tuned\.yaml \(a\[0\]\):2: k: .*integer"),
        ("a:\n  - {m: 8, tile: 8}\n", r"tile: unknown key"),
    ],
)
def test_a_damaged_file_of_winners_is_told_with_file_line_and_key(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "tuned.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        read_winners(tmp_path / "tuned.yaml")


# --- whole runs on a GPU that does not exist ------------------------------------------------------


def tunable(make_project: MakeProject, **changes: Any) -> Project:
    config = {
        "sizes": {"square": [33]},
        "kernels": {"10_mine": {}},
        "protocol": QUICK,
        "architectures": ["sm_90a"],
    }
    project = make_project(config, kernels=[])
    project.add_kernel("10_mine", SOURCE, **(TUNABLE | changes))
    project.fake_gpu(speed={"10_mine/STEP=2,WIDE=128": 0.6, "10_mine/STEP=1,WIDE=256": 0.1})
    return project


def tune(project: Project, *arguments: str, check: bool = True) -> Any:
    sizes = [] if "--size" in arguments else ["--size", *map(str, SIZE)]
    return project.ladder("tune", "10_mine", *sizes, "--workers", "1", *arguments, check=check)


def trials(project: Project) -> list[dict[str, Any]]:
    path = project.folder / "results/fake-gpu/tune/10_mine.parquet"
    return list(schema.read(path, "trials").to_pylist())


def journal(project: Project) -> list[dict[str, Any]]:
    return list(records(project.folder / "results/fake-gpu/journal"))


def measured_once(project: Project, rounds: int = 2) -> int:
    """How many points were measured; each of them checked once and visited once a round."""
    found = journal(project)
    checks = Counter(row["key"] for row in found if row["type"] == "check")
    visits = Counter((row["key"], row["round"]) for row in found if row["type"] == "visit")
    assert set(checks.values()) == {1}
    assert set(visits.values()) == {1}
    assert len(visits) == rounds * len(checks)
    return len(checks)


@needs_nvrtc
def test_a_small_space_is_tried_out_and_every_set_has_a_time_or_a_reason(
    make_project: MakeProject,
) -> None:
    project = tunable(make_project)
    done = tune(project)
    rows = trials(project)
    assert sum(row["sets"] for row in rows) == 12
    found = Counter(row["status"] for row in rows)
    # one row for each reason: STEP 60 breaks the constraint, WIDE 2048 has too many threads
    assert found == {"ok": 6, "skipped_constraint": 1, "infeasible_threads": 1}
    left_out = [row for row in rows if row["status"] != "ok"]
    assert [(row["sets"], row["m"]) for row in left_out] == [(3, None), (3, None)]
    assert "3 infeasible_threads, 6 ok, 3 skipped_constraint" in done.stdout
    assert all(bool(row["tflops"]) == (row["status"] == "ok") for row in rows)
    assert all(bool(row["detail"]) == (row["status"] != "ok") for row in rows)
    assert measured_once(project) == 6
    assert "256x192x160: every one of 6 sets is tried" in done.stdout
    assert "TFLOPS by STEP=2 WIDE=128" in done.stdout

    [best] = read_winners(project.folder / "results/fake-gpu/tuned.yaml")["10_mine"]
    assert best.size == SIZE
    assert best.params == {"STEP": 2, "WIDE": 128}
    assert best.tflops == pytest.approx(max(row["tflops"] or 0 for row in rows), rel=1e-3)
    assert (best.gpu, best.gpu_uuid, best.driver) == ("Fake GPU", "GPU-fake-0", "580.0")
    assert best.run_id in {row["run_id"] for row in journal(project)}

    tune(project)
    assert measured_once(project) == 6, "a second search measures nothing"
    project.measure()
    measured_once(project)
    assert len(project.table("builds")) == 1, "the sweep's tables hold the sweep's builds"


@needs_nvrtc
def test_a_sweep_of_tuned_sets_measures_nothing_again(make_project: MakeProject) -> None:
    project = tunable(make_project)
    tune(project, "--size", "33", "33", "33")
    before = measured_once(project)
    project.measure()
    assert measured_once(project) == before


@needs_nvrtc
def test_sets_that_spill_or_do_not_compile_are_left_out_and_the_rest_is_tuned(
    make_project: MakeProject,
) -> None:
    project = tunable(make_project)
    held = """{
        float held[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) held[i] = A[i * N + threadIdx.x];
        __syncthreads();
        float sum = 0.0f;
#pragma unroll
        for (int i = 63; i >= 0; --i) sum = sum * held[i] + held[63 - i];
        C[threadIdx.x] = sum;
    }"""
    source = f"""#if STEP == 1
{GEMM.replace("void gemm", "void __launch_bounds__(1024, 2) gemm")} {held}
#elif STEP == 2
#error two is not implemented
#else
{SOURCE}
#endif
"""
    project.add_kernel("10_mine", source, **TUNABLE)
    tune(project)
    found = {
        (json.loads(row["params"])["WIDE"], json.loads(row["params"])["STEP"]): row
        for row in trials(project)
        if row["m"]
    }
    assert found[128, 1]["status"] == "skipped_spills"
    assert re.match(r"\d+ bytes of registers are spilled", found[128, 1]["detail"])
    assert found[128, 2]["status"] == "compile_failed"
    assert "two is not implemented" in found[128, 2]["detail"]
    assert found[128, 3]["status"] == "ok"
    assert measured_once(project) == 2


@needs_nvrtc
def test_a_large_space_is_searched_within_its_budget_and_size_by_size(
    make_project: MakeProject,
) -> None:
    space = {"WIDE": [32, 64, 128, 256], "STEP": [1, 2, 3]}
    project = tunable(make_project, tune=space)
    sizes = ["--size", "32", "32", "32", "--size", *map(str, SIZE)]
    done = tune(project, *sizes, "--budget", "5")
    assert "32x32x32: 5 of 12 sets are searched" in done.stdout
    by_size = Counter((row["m"], row["n"], row["k"]) for row in trials(project))
    assert by_size == {(32, 32, 32): 5, SIZE: 5}
    assert measured_once(project) == 10
    winners = read_winners(project.folder / "results/fake-gpu/tuned.yaml")["10_mine"]
    assert [best.size for best in winners] == [(32, 32, 32), SIZE]
    again = trials(project)
    tune(project, "--budget", "5")  # at one of the sizes
    assert measured_once(project) == 10
    assert trials(project) == again, "the same seed tries the same sets; other sizes keep theirs"


@needs_nvrtc
def test_a_search_that_was_killed_goes_on_where_it_ended(make_project: MakeProject) -> None:
    space = {"WIDE": [32, 64, 128, 256], "STEP": [1, 2, 3]}
    project = tunable(make_project, tune=space)
    project.fake_gpu(launch_sleep_s=0.02)
    arguments = ["tune", "10_mine", "--size", *map(str, SIZE), "--budget", "8", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ladder", *arguments], cwd=project.folder, env=project.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=with_default_signals,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len([row for row in journal(project) if row["type"] == "check"]) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = sum(row["type"] == "check" for row in journal(project))
    assert 3 <= before < 8
    project.fake_gpu()
    tune(project, "--budget", "8")
    assert measured_once(project) == 8


@needs_nvrtc
def test_a_space_without_a_right_result_has_no_winner_and_an_exit_code(
    make_project: MakeProject,
) -> None:
    project = tunable(make_project)
    project.fake_gpu(faults={"10_mine": "write_zeros"})
    done = tune(project, check=False)
    assert done.returncode == 1
    assert "no set gave a right result" in done.stderr
    assert not (project.folder / "results/fake-gpu/tuned.yaml").exists()


@needs_nvrtc
def test_the_target_tune_searches_what_the_configuration_names(make_project: MakeProject) -> None:
    project = tunable(make_project)
    config = yaml.safe_load((project.folder / "config/config.yaml").read_text())
    # Small: Snakemake gives OpenBLAS a thread per core, and these would wait for each other.
    project.configure(config | {"tune": {"sizes": [[33, 33, 33]], "budget": 20}})
    earlier = {"kernel": "10_mine", "sets": 1, "m": 7, "n": 7, "k": 7, "status": "ok"}
    path = project.folder / "results/fake-gpu/tune/10_mine.parquet"
    schema.write(path, "trials", schema.table(TRIALS, [earlier]))
    project.snakemake("tune", "--cores", "2")
    assert {row["status"] for row in trials(project)} >= {"ok"}
    assert {row["m"] for row in trials(project)} >= {7, 33}, "a trial of another size is kept"
    assert measured_once(project) == 6


# --- mistakes on the command line -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["10_mien"], "no kernel '10_mien'; did you mean '10_mine'?"),
        (["cublas_fp32"], "cublas_fp32 is a baseline; it has no parameters to tune"),
        (["11_plain"], "11_plain.yaml: tune: 11_plain declares no space to search"),
        (["10_mine", "--size", "0", "1", "1"], "--size: M, N and K must be at least 1"),
        (["10_mine", "--budget", "0"], "--budget: at least one set must be tried; found 0"),
        (["12_new"], "12_new needs compute capability 12.0 or newer; Fake GPU has 9.0"),
        (["13_none"], "13_none: no set of its space can run; the most frequent reason: 2048 th"),
        (["10_mine"], "no NVIDIA GPU answers on this machine"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_says_what_is_right(
    arguments: list[str], words: str, make_project: MakeProject, tmp_path: Path
) -> None:
    project = tunable(make_project)
    project.add_kernel("11_plain")
    project.add_kernel("12_new", SOURCE, **TUNABLE, minimum_compute_capability="12.0")
    wide = TUNABLE | {"tune": {"WIDE": [2048], "STEP": [1, 2]}}
    project.add_kernel("13_none", SOURCE, **wide)
    project.add_kernel("cublas_fp32", launch={"kind": "cublas", "compute": "fp32_pedantic"})
    (project.folder / "kernels/cublas_fp32.cu").unlink()
    if words.startswith("no NVIDIA"):
        empty = tmp_path / "no_gpu.json"
        empty.write_text(json.dumps({"uuids": []}))
        project.environment["LADDER_FAKE_GPU"] = str(empty)
    done = project.ladder("tune", *arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_kernel_to_tune_that_does_not_exist_is_told_with_file_line_and_key(
    make_project: MakeProject,
) -> None:
    project = tunable(make_project)
    text = "sizes: {square: [8]}\nkernels: {10_mine: {}}\ntune:\n  kernels: [10_mien]\n"
    (project.folder / "config/config.yaml").write_text(text)
    done = project.ladder("plan", check=False)
    assert done.returncode == 2
    assert "config.yaml:4: tune.kernels[0]: no kernels/10_mien.yaml; did you mean" in done.stderr


def test_the_default_budget_and_size_are_those_of_the_configuration() -> None:
    config = Config.model_validate({"sizes": {"square": [8]}, "kernels": {"mine": {}}})
    assert config.tune.sizes == [[4096, 4096, 4096]]
    assert config.tune.budget == 60


# --- the shipped spaces ---------------------------------------------------------------------------

SHIPPED = {
    name: kernel for name, kernel in load_all(ROOT / "kernels").items() if kernel.manifest.tune
}


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_shipped_space_holds_the_default_sweep_and_sets_that_can_run(name: str) -> None:
    kernel = SHIPPED[name]
    for params in expand(kernel.manifest.sweep):
        outside = {key: value for key, value in params.items()
                   if value not in kernel.manifest.tune[key]}  # fmt: skip
        assert not outside
        assert fault_before_compiling(kernel, params, "sm_90a") is None
    feasible = sum(
        fault_before_compiling(kernel, params, "sm_90a") is None for params in candidates(kernel)
    )
    assert feasible >= 100
