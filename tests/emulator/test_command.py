"""``python -m ladder emulate``: text, JSON, exit codes and the table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulator.support import PLANTED, RUNGS, line_of, needs_compiler
from ladder import schema
from ladder.__main__ import _parser
from ladder.documents import UserError
from ladder.emulator import command
from ladder.emulator.point import emulate_point
from ladder.manifest import load
from ladder.status import Status

REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
MANIFEST = """
title: Planted
idea: A kernel of the tests.
launch: {kind: cuda, block: [16, 16], grid: ["cdiv(N, 16)", "cdiv(M, 16)"]}
"""


def emulate(*arguments: str, root: Path = RUNGS.parent) -> int:
    parsed = _parser().parse_args(["--root", str(root), "emulate", *arguments])
    code: int = parsed.run(parsed)
    return code


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A project root with kernels that have faults."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("unguarded", "inline_ptx"):
        shutil.copy(PLANTED / f"{name}.cu", folder / f"{name}.cu")
        (folder / f"{name}.yaml").write_text(MANIFEST)
    (folder / "wrong.cu").write_text(
        (PLANTED / "unguarded.cu").read_text().replace("k < K", "k < K - 1")
    )
    (folder / "wrong.yaml").write_text(MANIFEST)
    (folder / "endless.cu").write_text(
        'extern "C" __global__ void gemm(const float*, const float*, float*, int, int, int) {\n'
        "    volatile int go = 1;\n    while (go) {}\n}\n"
    )
    (folder / "endless.yaml").write_text(MANIFEST)
    (folder / "leaving.cu").write_text(
        'extern "C" void _exit(int);\n'
        'extern "C" __global__ void gemm(const float*, const float*, float*, int M, int, int) {\n'
        "    if (M == 7) _exit(3);\n}\n"
    )
    (folder / "leaving.yaml").write_text(MANIFEST)
    return tmp_path


OUTSIDE = line_of(PLANTED / "unguarded.cu", "planted: reads")
NAIVE = ("01_naive", "--set", "BLOCK_X=16", "--set", "BLOCK_Y=16")


@needs_compiler
def test_the_text_shows_counters_beside_the_source(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert emulate(*NAIVE, "--size", "2048", "2048", "2048", "--cache", str(cache)) == 0
    text = capsys.readouterr().out
    assert "536,870,912" in text and "1,073,741,824" in text
    assert "findings: none" in text
    assert "acc += A[row * K + k] * B[k * N + col];" in text
    assert (
        "268,435,456 requests, 536,870,912 sectors, 2.00 per request, 32.0 bytes per sector" in text
    )


@needs_compiler
def test_json_says_the_same(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert emulate(*NAIVE, "--size", "33", "17", "65", "--json", "--cache", str(cache)) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"counters", "findings", "sites", "eta_max", "bitwise_hash"} <= set(shown)
    assert all(type(value) is int for value in shown["counters"].values())
    assert shown["counters"][REQUESTS] == sum(
        site["requests"]
        for site in shown["sites"]
        if site["space"] == "global" and site["kind"] == "load"
    )
    assert shown["findings"] == [] and shown["status"] == "ok"
    assert 0 < shown["eta_max"] < 16 and len(shown["bitwise_hash"]) == 64


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "size", "words"),
    [
        ("unguarded", ("17", "17", "5"), f"unguarded.cu:{OUTSIDE}: out_of_bounds"),
        ("wrong", ("16", "16", "8"), "wrong_result"),
    ],
)
def test_a_fault_gives_exit_code_1(
    kernel: str,
    size: tuple[str, str, str],
    words: str,
    planted: Path,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = emulate(kernel, "--size", *size, "--cache", str(cache), root=planted)
    assert code == command.FAULT_FOUND
    assert words in capsys.readouterr().out


@needs_compiler
def test_a_loop_that_touches_no_memory_is_given_up(planted: Path, cache: Path) -> None:
    out = planted / "endless.parquet"
    size = ("--size", "8", "8", "8", "--cache", str(cache), "--timeout", "3", "--out", str(out))
    assert emulate("endless", *size, root=planted) == 0
    (row,) = schema.read(out, "counters").to_pylist()
    assert row["status"] == Status.TIMEOUT and "3 s" in row["detail"]


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "limit_s", "expected"),
    [
        ("endless", 5, {7: Status.TIMEOUT}),
        ("leaving", 100, {7: Status.WORKER_CRASH, 8: Status.WRONG_RESULT}),
    ],
)
def test_the_step_forks_and_a_hang_or_a_crash_still_costs_one_size(
    kernel: str, limit_s: int, expected: dict[int, Status], planted: Path, fresh_cache: Path
) -> None:
    out = planted / "forked.parquet"
    sizes = [word for m in expected for word in ("--size", str(m), "8", "8")]
    ladder = [sys.executable, "-X", "importtime", "-m", "ladder", "--root", str(planted)]
    options = ["--cache", str(fresh_cache), "--timeout", str(limit_s), "--out", str(out)]
    done = subprocess.run(
        [*ladder, "emulate", kernel, *sizes, *options],
        env={**os.environ, "PYTHONPATH": str(RUNGS.parent / "workflow")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {row["m"]: row["status"] for row in schema.read(out, "counters").to_pylist()} == expected
    imported = [line.split("|")[-1].strip() for line in done.stderr.splitlines()]
    assert imported.count("ladder.emulator.point") == 1  # a process that is not forked imports anew
    assert not any(name.startswith("pandas.") for name in imported)


@needs_compiler
def test_what_cannot_run_is_an_error_by_hand_and_a_row_in_a_table(
    planted: Path, cache: Path
) -> None:
    with pytest.raises(UserError, match="inline PTX"):
        emulate("inline_ptx", "--size", "8", "8", "8", "--cache", str(cache), root=planted)
    out = planted / "counters.parquet"
    assert (
        emulate(
            "inline_ptx",
            "--size",
            "8",
            "8",
            "8",
            "--cache",
            str(cache),
            "--out",
            str(out),
            root=planted,
        )
        == 0
    )
    (row,) = schema.read(out, "counters").to_pylist()
    assert row["status"] == Status.SKIPPED_UNSUPPORTED and "inline PTX" in row["detail"]
    assert row["value"] is None and row["source"] == "emulator"


def test_without_a_compiler_the_table_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    out = tmp_path / "counters.parquet"
    assert emulate(*NAIVE, "--size", "8", "8", "8", "--out", str(out)) == 0
    (row,) = schema.read(out, "counters").to_pylist()
    assert row["status"] == Status.SKIPPED_UNSUPPORTED and "no C++ compiler" in row["detail"]


@needs_compiler
def test_the_table_holds_counts_and_ratios_of_every_size(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "counters.parquet"
    assert (
        emulate(
            "01_naive",
            "--params",
            "BLOCK_X=8,BLOCK_Y=32",
            "--size",
            "64",
            "64",
            "64",
            "--size",
            "2048",
            "2048",
            "2048",
            "--cache",
            str(cache),
            "--out",
            str(out),
        )
        == 0
    )
    rows = schema.read(out, "counters").to_pylist()
    values = {(row["m"], row["metric"]): row["value"] for row in rows}
    assert values[2048, SECTORS] == 1_342_177_280
    assert values[2048, "bytes_per_load_sector"] == pytest.approx(9.6)
    assert values[64, REQUESTS] == 2 * 64**3 / 32
    assert {row["params"] for row in rows} == {'{"BLOCK_X":8,"BLOCK_Y":32}'}
    assert all(row["unit"] for row in rows) and {row["status"] for row in rows} == {"ok"}


@needs_compiler
def test_a_configuration_is_emulated_once_and_again_only_where_something_changed(
    planted: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = planted / "config.yaml"
    config.write_text(
        "sizes: {square: [64]}\narchitectures: [sm_90a]\nemulator: {sizes: [[8, 8, 8]]}\n"
        "kernels: {unguarded: {}, inline_ptx: {}}\n"
    )
    out = planted / "counters.parquet"

    def run(workers: int = 1) -> tuple[list[dict[str, Any]], list[str]]:
        options = ["--config", str(config), "--builds", str(planted), "--out", str(out)]
        options += ["--cache", str(planted / "kept"), "--workers", str(workers)]
        assert emulate(*options, root=planted) == 0
        kept = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "kept" in line]
        return schema.read(out, "counters").to_pylist(), kept

    first, kept = run()
    assert kept == []
    assert {(row["kernel"], row["status"]) for row in first} == {
        ("unguarded", Status.GUARD_VIOLATION),
        ("inline_ptx", Status.SKIPPED_UNSUPPORTED),
    }
    assert run() == (first, ["unguarded", "inline_ptx"])
    source = planted / "kernels" / "unguarded.cu"
    source.write_text("// a line above moves the one that a finding names\n" + source.read_text())
    again, kept = run(workers=2)
    assert kept == ["inline_ptx"]
    assert {row["detail"] for row in again} != {row["detail"] for row in first}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--out"),
        (("01_naive",), "--size"),
        (("01_naiv", "--size", "1", "1", "1"), "01_naive"),
        (("cublas_fp32", "--size", "1", "1", "1"), "baseline"),
        (("01_naive", "--set", "BLOCK_X", "--size", "1", "1", "1"), "NAME=VALUE"),
        (("01_naive", "--set", "BLOCK=3", "--size", "1", "1", "1"), "unknown parameter"),
        ((*NAIVE, "--size", "0", "1", "1"), "at least 1"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        emulate(*arguments)


def test_refused_sizes_and_parameters_are_statuses() -> None:
    kernel = load(RUNGS / "01_naive.yaml")
    point = emulate_point(kernel, {"BLOCK_X": 64, "BLOCK_Y": 64}, 8, 8, 8)
    assert point.status is Status.SKIPPED_CONSTRAINT and "1024 threads" in str(point.detail)


def test_a_size_that_takes_too_long_is_a_status_with_both_numbers(cache: Path) -> None:
    """Judged by the blocks that run: of a large grid a few stand for all."""
    kernel = load(RUNGS / "01_naive.yaml")
    params = {"BLOCK_X": 16, "BLOCK_Y": 16}
    point = emulate_point(kernel, params, 64, 64, 64, most_fma=64**3 - 1, cache=cache)
    assert point.status is Status.SKIPPED_UNSUPPORTED
    assert "262,144 multiply-adds, of which 262,143 may run" in str(point.detail)
    assert emulate_point(kernel, params, 64, 64, 64, most_fma=64**3, cache=cache).correct
    sampled = emulate_point(kernel, params, 512, 512, 512, most_fma=512**3 // 50, cache=cache)
    assert sampled.correct and sampled.result and sampled.result.sampled_blocks
