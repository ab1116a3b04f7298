"""Flags between blocks: partial sums that one block leaves for the next, and what can go wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from emulator.support import RUNGS, line_of, needs_compiler
from ladder.emulator.point import EmulatedPoint, emulate_point
from ladder.manifest import Kernel, load
from ladder.status import Status

pytestmark = needs_compiler

PARAMS = {
    "BM": 32, "BN": 64, "BK": 8, "TM": 4, "TN": 4, "LANES_M": 4, "STAGES": 2, "UNROLL": 2,
    "GROUP": 2, "ORDER": 0, "AHEAD": 1, "WORKERS": 5,
}  # fmt: skip
"""Twelve tiles at SIZE on five blocks: two go to each, and two are cut."""
SIZE = (90, 250, 40)
AWAIT = "if (lane == 0) flag_await(&scratch.left[blockIdx.x - 1][warp]);"
RAISE = "if (lane == 0) flag_raise(&scratch.left[blockIdx.x][warp]);"
READ = "const float4 front = scratch.partial"


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A copy of the stream-k rung that a test may break."""
    shutil.copytree(RUNGS / "include", tmp_path / "include")
    for suffix in (".cu", ".yaml"):
        shutil.copy(RUNGS / f"14_stream_k{suffix}", tmp_path)
    return load(tmp_path / "14_stream_k.yaml")


def run(kernel: Kernel, cache: Path, *edits: tuple[str, str], **params: int) -> EmulatedPoint:
    assert kernel.source_path is not None
    text = kernel.source_path.read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    kernel.source_path.write_text(text)
    return emulate_point(kernel, {**PARAMS, **params}, *SIZE, cache=cache)


def only_finding(point: EmulatedPoint) -> tuple[str, int, str]:
    assert point.result is not None
    (finding,) = point.result.findings
    return finding.kind, finding.line, finding.message


@pytest.mark.parametrize("workers", [1, 2, 5, 7, 40])
def test_any_number_of_workers_gives_the_product(workers: int, kernel: Kernel, cache: Path) -> None:
    """With 40 for twelve tiles of five steps each, a tile is cut into up to five pieces."""
    point = run(kernel, cache, WORKERS=workers)
    assert point.status is Status.OK, point.detail
    assert point.result is not None and not point.result.findings
    helpers = 4 * (90 * 40 + 40 * 250)  # A is transposed, and rows of 250 are padded
    partial_sums = point.result.counters["unique_load_bytes"] - helpers
    assert (partial_sums > 0) == (12 % workers != 0)


def test_a_missing_await_is_a_race_between_blocks(kernel: Kernel, cache: Path) -> None:
    point = run(kernel, cache, (AWAIT, ""))
    assert point.status is Status.RACE
    kind, line, message = only_finding(point)
    assert kind == "race_between_blocks" and "scratch" in message
    assert kernel.source_path and line == line_of(kernel.source_path, READ)


def test_a_flag_that_nobody_raises_is_a_deadlock(kernel: Kernel, cache: Path) -> None:
    point = run(kernel, cache, (RAISE, ""))
    assert point.status is Status.TIMEOUT
    kind, line, message = only_finding(point)
    assert kind == "deadlock" and "no earlier block has raised" in message
    assert kernel.source_path and line == line_of(kernel.source_path, AWAIT)


def test_a_flag_raised_before_the_writes_orders_none_of_them(kernel: Kernel, cache: Path) -> None:
    leave = "if (piece.last < schedule.depth) {  // the block after has the back"
    point = run(kernel, cache, (RAISE, ""), (leave, f"{leave}\n{RAISE}"))
    assert only_finding(point)[0] == "race_between_blocks"


def test_a_leader_that_does_not_wait_for_its_warp_speaks_for_itself_alone(
    kernel: Kernel, cache: Path
) -> None:
    indent = " " * 12
    point = run(kernel, cache, (f"{indent}__syncwarp();\n{indent}{RAISE}", f"{indent}{RAISE}"))
    kind, line, message = only_finding(point)
    assert kind == "race_between_blocks" and "thread 1 " in message
    assert kernel.source_path and line == line_of(kernel.source_path, READ)


def test_a_flag_outside_its_buffer_is_out_of_bounds(kernel: Kernel, cache: Path) -> None:
    beyond = RAISE.replace("[blockIdx.x][warp]", "[blockIdx.x + WORKERS][warp]")
    point = run(kernel, cache, (RAISE, beyond))
    assert only_finding(point)[0] == "out_of_bounds"


def test_blocks_that_leave_results_for_each_other_are_not_sampled(
    kernel: Kernel, cache: Path
) -> None:
    point = emulate_point(kernel, PARAMS, 512, 512, 8, sample=True, cache=cache)
    assert point.status is Status.SKIPPED_UNSUPPORTED
    assert "run all blocks" in str(point.detail)
