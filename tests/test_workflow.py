"""The whole workflow through Snakemake: with no GPU, with one that does not exist, and killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fake_ncu
from ladder.compile import compiler_problem
from ladder.emulator import NoCompilerError, find_compiler
from ladder.emulator.toolchain import runtime_object
from project import GEMM, NAIVE_BODY, QUICK, ROOT, Project, with_default_signals

MakeProject = Callable[..., Project]

CONFIG: dict[str, Any] = {
    "sizes": {"square": [33, 40], "shapes": [[3, 5, 43]]},
    "kernels": {
        "01_naive": {"sweep": [{"BLOCK_X": 16, "BLOCK_Y": 16}, {"BLOCK_X": 32, "BLOCK_Y": 8}]},
        "cublas_fp32": {},
    },
    "cache_modes": {"hot": [33]},
    "protocol": QUICK,
    "architectures": ["sm_90a"],
    "profile": {"sizes": [[33, 33, 33]], "every_set": ["01_naive"]},
    "accuracy": {"sides": [16], "depths": [32]},
    "figures": {"formats": ["svg"]},
    "emulator": {"sizes": [[33, 33, 33], [40, 40, 40]]},
}
BOUNDED = "void __launch_bounds__(256, 4) gemm"
POINTS = "results/fake-gpu/points.parquet"

needs_compiler = pytest.mark.skipif(
    compiler_problem() is not None, reason=f"no CUDA compiler: {compiler_problem()}"
)


def measured(project: Project) -> tuple[int, int]:
    """Points measured by the last job, and points it took from the store."""
    log = (project.folder / "results/logs/measure/fake-gpu.log").read_text()
    match = re.search(r"(\d+) measured now, (\d+) from the store", log)
    assert match, log
    return int(match[1]), int(match[2])


@pytest.fixture(scope="module")
def without_gpu(tmp_path_factory: pytest.TempPathFactory, emulator_cache: Path) -> Project:
    """A finished run on a machine without a GPU, which had compiled the emulator's runtime."""
    project = Project(tmp_path_factory.mktemp("without"), CONFIG)
    with suppress(NoCompilerError):
        built = runtime_object(find_compiler(), emulator_cache)
        kept = project.folder / "results/emulated/cache"
        kept.mkdir(parents=True)
        shutil.copy(built, kept)
    project.environment["CUDA_VISIBLE_DEVICES"] = ""
    project.configure(CONFIG | {"gpu": {"use": "none"}})
    project.snakemake()
    return project


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A finished run on the fake GPU, report included."""
    project = Project(tmp_path_factory.mktemp("finished"), CONFIG)
    project.fake_gpu()
    fake_ncu.install(project)
    project.snakemake()
    return project


def copy_of(project: Project, folder: Path) -> Project:
    """The same project in another folder, free to be changed."""
    shutil.copytree(project.folder, folder, dirs_exist_ok=True)
    clone = Project.__new__(Project)
    clone.folder = folder
    clone.environment = {
        name: value.replace(str(project.folder), str(folder))
        for name, value in project.environment.items()
    }
    return clone


@needs_compiler
def test_without_a_gpu_it_compiles_for_real_and_claims_no_measurement(
    without_gpu: Project,
) -> None:
    builds = without_gpu.table("builds", "results/no-gpu")
    assert {row["status"] for row in builds} == {"ok"}
    assert {row["architecture"] for row in builds} == {"sm_90a"}
    points = without_gpu.table("points", "results/no-gpu")
    assert len(points) == 12
    assert all(row["time_median_ns"] is None for row in points), "nothing was published for these"
    report = (without_gpu.folder / "results/no-gpu/report.html").read_text()
    assert "not measured" in report.lower()


@needs_compiler
def test_a_second_run_does_nothing_and_is_quick(without_gpu: Project) -> None:
    started = time.monotonic()
    again = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2"],
        cwd=without_gpu.folder,
        env=without_gpu.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Nothing to be done" in again.stdout + again.stderr
    assert time.monotonic() - started < 10


@needs_compiler
def test_one_command_measures_and_reports(finished: Project) -> None:
    rows = finished.table("points")
    assert len(rows) == 12
    assert {row["status"] for row in rows} <= {"ok", "ok_noisy"}
    assert measured(finished) == (12, 0)
    assert (finished.folder / "results/fake-gpu/report.html").stat().st_size > 20_000
    assert list((finished.folder / "results/fake-gpu/figures").glob("*.svg"))
    counters = finished.table("counters")
    assert {row["source"] for row in counters} == {"theory", "hardware"}
    profiled = {(row["kernel"], row["params"]) for row in counters if row["source"] == "hardware"}
    assert len(profiled) == 3
    accuracy = finished.table("accuracy")
    assert {row["distribution"] for row in accuracy} == {"uniform", "positive", "wide", None}
    assert {row["status"] for row in accuracy} == {"ok"}
    report = (finished.folder / "results/fake-gpu/report.html").read_text()
    assert "which Nsight Compute read" in report


@needs_compiler
def test_snakemakes_own_report_has_every_figure_with_its_caption_and_needs_no_network(
    finished: Project,
) -> None:
    nowhere = "http://127.0.0.1:9"  # the port that discards: whoever asks the network fails
    finished.environment |= {"http_proxy": nowhere, "https_proxy": nowhere}
    finished.snakemake("--report", "snakemake-report.html")
    text = (finished.folder / "snakemake-report.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)=\\?"https?://[^"\\]+', text)
    assert "system-message" not in text, "docutils could not read a caption"
    figures = finished.folder / "results/fake-gpu/figures"
    for record in json.loads((figures / "figures.json").read_text()):
        assert f'"{record["name"]}.svg"' in text
        assert f"<strong>{record['title']}.</strong>" in text
        assert f'"figure": "{record["title"]}"' in text
    assert "_single.svg" not in text


@needs_compiler
def test_one_more_size_measures_only_its_points(finished: Project, tmp_path: Path) -> None:
    project = copy_of(finished, tmp_path)
    sizes = {"square": [33, 40, 48], "shapes": [[3, 5, 43]]}
    project.configure(CONFIG | {"sizes": sizes})
    project.snakemake(POINTS)
    assert measured(project) == (3, 12)


@needs_compiler
def test_one_more_block_shape_compiles_once_and_measures_only_its_points(
    finished: Project, tmp_path: Path
) -> None:
    project = copy_of(finished, tmp_path)
    sweep = [*CONFIG["kernels"]["01_naive"]["sweep"], {"BLOCK_X": 8, "BLOCK_Y": 32}]
    kernels = CONFIG["kernels"] | {"01_naive": {"sweep": sweep}}
    project.configure(CONFIG | {"kernels": kernels})
    project.snakemake(POINTS)
    log = (project.folder / "results/logs/compile.log").read_text()
    builds = re.findall(r"^(results/build/\S+)\.cubin: (kept, )?ok$", log, flags=re.MULTILINE)
    assert [path for path, kept in builds if not kept] == [
        "results/build/sm_90a/01_naive/BLOCK_X=8,BLOCK_Y=32"
    ]
    assert len(builds) == 3
    assert measured(project) == (4, 12)


@needs_compiler
def test_a_comment_in_a_rule_or_a_kernel_measures_nothing(
    finished: Project, tmp_path: Path
) -> None:
    project = copy_of(finished, tmp_path)
    for path in (project.folder / "workflow/rules").glob("*.smk"):
        commented = re.sub(r"^( +)log:", r"\1# why\n\1log:", path.read_text(), flags=re.MULTILINE)
        path.write_text("# a comment\n" + commented)
    for path in (project.folder / "kernels").glob("*.cu"):
        path.write_text("// a comment\n" + path.read_text())
    before = {(row["kernel"], row["run_id"]) for row in project.table("points")}
    project.snakemake(POINTS)
    assert measured(project)[0] in {0, 12}, "12 of the run before, or 0 of a run that found them"
    assert {(row["kernel"], row["run_id"]) for row in project.table("points")} == before


@needs_compiler
def test_a_users_kernel_works_by_adding_two_files(finished: Project, tmp_path: Path) -> None:
    project = copy_of(finished, tmp_path)
    project.add_kernel("70_mine", f"{GEMM} {NAIVE_BODY}".replace("void gemm", BOUNDED))
    project.configure(CONFIG | {"kernels": CONFIG["kernels"] | {"70_mine": {}}})
    project.snakemake(POINTS)
    assert project.statuses()["70_mine"] <= {"ok", "ok_noisy"}
    assert measured(project) == (4, 12)


@needs_compiler
def test_nine_of_ten_configurations_run_when_one_does_not_compile(
    finished: Project, tmp_path: Path
) -> None:
    project = copy_of(finished, tmp_path)
    source = """extern "C" __global__ void gemm(const float*, const float*, float*, int, int, int) {
        static_assert(CHOICE != 7, "seven is not possible");
    }"""
    parameters = {"CHOICE": {"description": "one of ten", "maximum": 10}}
    project.add_kernel(
        "70_choice", source, parameters=parameters, sweep={"CHOICE": list(range(1, 11))}
    )
    project.configure(
        CONFIG | {"kernels": {"70_choice": {}}, "sizes": {"square": [33]}, "cache_modes": {}}
    )
    project.snakemake(POINTS)
    by_params = {row["params"]: row for row in project.table("points")}
    failed = by_params.pop('{"CHOICE":7}')
    assert failed["status"] == "compile_failed"
    assert "seven is not possible" in failed["detail"]
    assert len(by_params) == 9
    assert all(row["status"] != "compile_failed" for row in by_params.values())


@needs_compiler
def test_killing_snakemake_and_its_jobs_loses_at_most_the_point_in_flight(
    finished: Project, tmp_path: Path
) -> None:
    from ladder.store import records

    project = copy_of(finished, tmp_path)
    project.fake_gpu(launch_sleep_s=0.001)
    project.configure(CONFIG | {"sizes": {"square": list(range(50, 60))}})
    running = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "2", POINTS],
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    journal = project.folder / "results/fake-gpu/journal"

    def visits() -> list[tuple[str, int]]:
        return [(r["key"], r["round"]) for r in records(journal) if r["type"] == "visit"]

    old = len(visits())
    deadline = time.monotonic() + 90
    while len(visits()) < old + 8 and time.monotonic() < deadline:
        time.sleep(0.1)
    kept = visits()
    assert len(kept) >= old + 8
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    time.sleep(0.5)
    project.snakemake("--unlock")
    project.fake_gpu()
    project.snakemake(POINTS)
    after = visits()
    assert after[: len(kept)] == kept, "a journal is never rewritten"
    assert len(after) == len(set(after)), "no visit that was kept is measured again"
    assert {row["status"] for row in project.table("points")} <= {"ok", "ok_noisy"}


@needs_compiler
def test_two_runs_at_once_never_time_on_one_gpu_together(
    make_project: MakeProject,
) -> None:
    """Different folders and different commands, one GPU: the lock is the GPU's."""
    few = CONFIG | {"sizes": {"square": [33]}, "cache_modes": {}}
    projects = [make_project(few), make_project(few)]
    running = []
    for project in projects:
        project.fake_gpu(launch_sleep_s=0.001)
        project.environment["LADDER_LOCK_DIR"] = str(projects[0].folder)
        project.pretend_compiled()
        project.ladder("plan")
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "ladder", "measure", "--out", "results/fake-gpu"],
                cwd=project.folder,
                env=project.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    messages = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    spans = []
    for project in projects:
        (run,) = project.table("runs")
        spans.append((run["started_at"], run["finished_at"]))
    (_, end), (start, _) = sorted(spans)
    assert start >= end, "the second run started timing before the first had ended"
    assert any("measured by another run" in message for message in messages)


@needs_compiler
def test_compiling_in_parallel_never_overlaps_with_measuring(
    finished: Project, tmp_path: Path
) -> None:
    """`snakemake --cores 8`, whatever `--resources` the user adds: timing has the host alone."""
    project = copy_of(finished, tmp_path)
    shutil.rmtree(project.folder / "results")
    done = project.snakemake(POINTS, "--cores", "8", "--resources", "mem_mb=1000")
    text = done.stdout + done.stderr
    measuring = text.index("Check and time on")
    assert text.count("Check and time on") == 1
    assert text.rindex("Compile what is new") < measuring


def test_a_wrong_configuration_stops_before_any_job_with_one_clear_line(
    make_project: MakeProject,
) -> None:
    project = make_project(CONFIG)
    for change, words in [
        ({"sizes": {"square": [-5]}}, ["sizes.square[0]", "-5"]),
        ({"kernels": {"01_naiv": {}}}, ["kernels.01_naiv", "did you mean '01_naive'"]),
        ({"kernels": {"01_naive": {"sweep": {"BLOCK_X": [0], "BLOCK_Y": [1]}}}}, ["BLOCK_X"]),
        ({"protocl": {}}, ["protocl", "did you mean 'protocol'"]),
    ]:
        project.configure(CONFIG | change)
        failed = project.snakemake(check=False)
        output = failed.stdout + failed.stderr
        assert failed.returncode != 0
        assert "config/config.yaml" in output
        assert all(word in output for word in words), output
        assert "Traceback" not in output
        assert not (project.folder / "results").exists()


def test_a_gpu_that_is_required_but_absent_is_named(make_project: MakeProject) -> None:
    project = make_project(CONFIG | {"gpu": {"use": "required"}})
    project.fake_gpu(uuids=[])
    failed = project.snakemake(check=False)
    assert failed.returncode != 0
    assert "no NVIDIA GPU answers" in failed.stdout + failed.stderr


@needs_compiler
def test_a_gpu_elsewhere_can_be_planned_for_without_seeing_one(make_project: MakeProject) -> None:
    expect = {"name": "Fake GPU", "compute_capability": "9.0"}
    project = make_project(CONFIG | {"gpu": {"use": "required", "expect": expect}})
    dry = project.snakemake("--dry-run", "--quiet", "all")
    assert dry.returncode == 0
    project.snakemake("results/build/sm_90a/01_naive/BLOCK_X=16,BLOCK_Y=16.cubin")
    project.fake_gpu()
    project.snakemake(POINTS)
    assert measured(project) == (12, 0)


def test_the_files_of_the_workflow_are_formatted_and_linted(make_project: MakeProject) -> None:
    files = [str(ROOT / "Snakefile"), str(ROOT / "workflow/Snakefile")]
    files += map(str, (ROOT / "workflow/rules").glob("*.smk"))
    checked = subprocess.run(
        [sys.executable, "-m", "snakefmt.snakefmt", "--check", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    project = make_project(CONFIG)
    linted = project.snakemake("--lint", check=False)
    faults = [
        line.strip()
        for line in (linted.stdout + linted.stderr).splitlines()
        if line.strip().startswith("* ")
    ]
    # Every rule runs `python -m ladder` with the interpreter of the run itself, which the bootstrap
    # or conda (envs/environment.yaml) has set up: an environment per rule would be a second one.
    allowed = ("Specify a conda environment or container", "No log directive defined")
    assert not [fault for fault in faults if not fault.startswith(tuple(f"* {a}" for a in allowed))]


@pytest.mark.parametrize("tool", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]])
def test_the_code_is_clean(tool: list[str]) -> None:
    command = [sys.executable, "-m", *tool, *(["."] if tool[0] == "ruff" else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@needs_compiler
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_report_opens_in_a_browser_alone_and_without_a_complaint(
    finished: Project, tmp_path: Path
) -> None:
    """Copied away from its folder, with no network: the page, its text and no console error."""
    page = tmp_path / "report.html"
    shutil.copy(finished.folder / "results/fake-gpu/report.html", page)
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
        "--v=0", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    opened = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert opened.returncode == 0, opened.stderr[-2000:]
    assert "Fake GPU" in opened.stdout
    assert opened.stdout.rstrip().endswith("</html>")
    assert "CONSOLE" not in opened.stderr, opened.stderr[-2000:]
    assert not re.findall(r"""(?:src|href)=["']https?://""", page.read_text())


def test_an_interrupt_keeps_what_is_finished(make_project: MakeProject) -> None:
    project = make_project(CONFIG | {"sizes": {"square": list(range(50, 60))}})
    project.fake_gpu(launch_sleep_s=0.001)
    project.pretend_compiled()
    project.ladder("plan")
    running = subprocess.Popen(
        [sys.executable, "-m", "ladder", "measure", "--out", "results/fake-gpu"],
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_default_signals,
    )
    journal = project.folder / "results/fake-gpu/journal"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if any('"type":"visit"' in path.read_text() for path in journal.glob("*.jsonl")):
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "run again to go on" in errors
    (run,) = project.table("runs")
    assert run["end_reason"] == "interrupted"
    assert project.table("points")
