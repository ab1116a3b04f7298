"""Progress: plain lines where nobody watches, a bar where somebody does, and right counts."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder import progress as module
from ladder.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that the test moves: `clock[0]` is now, seconds."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    yield now


def test_without_a_terminal_progress_is_plain_lines_with_count_work_and_time_left(
    clock: list[float],
) -> None:
    out = io.StringIO()
    with Progress("measure", 4, out) as progress:
        for step in ("01_naive 512", "01_naive 1024", "cublas_fp32 512", "cublas_fp32 1024"):
            clock[0] += 30
            progress.step(step)
    assert out.getvalue().splitlines() == [
        "measure: 1/4 01_naive 512 (1:30 left)",
        "measure: 2/4 01_naive 1024 (1:00 left)",
        "measure: 3/4 cublas_fp32 512 (0:30 left)",
        "measure: 4/4 cublas_fp32 1024",
    ]


def test_plain_lines_come_at_most_every_ten_seconds_and_always_at_the_end(
    clock: list[float],
) -> None:
    out = io.StringIO()
    with Progress("check", 1000, out) as progress:
        for number in range(1000):
            clock[0] += 0.1
            progress.step(f"point {number}")
    lines = out.getvalue().splitlines()
    assert 10 <= len(lines) <= 12
    assert lines[-1] == "check: 1000/1000 point 999"


def test_plain_lines_hold_no_control_characters() -> None:
    out = io.StringIO()
    with Progress("check", 2, out) as progress:
        progress.note("the worker died")
        progress.step("a")
        progress.step("b")
    assert re.fullmatch(r"(?:[ -~]+\n)+", out.getvalue())
    assert "check: the worker died\n" in out.getvalue()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 10))
def test_the_last_line_counts_every_step_and_every_extension(done: list[int], more: int) -> None:
    out = io.StringIO()
    progress = Progress("p", sum(done), out)
    progress.extend(more)
    for number in done:
        progress.step("x", done=number)
    if more:
        progress.step("y", done=more)
    assert out.getvalue().splitlines()[-1].startswith(f"p: {sum(done) + more}/{sum(done) + more} ")


def test_steps_of_several_threads_are_all_counted() -> None:
    out = io.StringIO()
    progress = Progress("p", 800, out)

    def work() -> None:
        for _ in range(100):
            progress.step("x")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = out.getvalue().splitlines()
    assert lines[-1] == "p: 800/800 x"
    assert all(re.match(r"p: \d+/800 x", line) for line in lines)


def test_on_a_terminal_a_bar_shows_count_and_current_work_and_notes_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with Progress("measure", 3, out) as progress:
        progress.note("drift of 3 % [repeated]")
        progress.step("01_naive 512", done=2)
        progress.extend(1)
        progress.step("cublas_fp32 512", done=2)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "drift of 3 % [repeated]" in text
    assert "4/4" in text
    assert "cublas_fp32 512" in text
    assert "\x1b" in out.getvalue()


@given(st.integers(0, 10**6))
def test_a_duration_reads_back_as_its_seconds(seconds: int) -> None:
    text = duration(seconds)
    parts = [int(part) for part in text.split(":")]
    assert re.fullmatch(r"(\d+:)?\d{1,2}:\d\d", text)
    total = 0
    for part in parts:
        total = total * 60 + part
    assert total == seconds
    assert all(part < 60 for part in parts[1:])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (75, "1:15"), (59.6, "1:00"), (3600, "1:00:00"), (3661, "1:01:01")],
)
def test_a_duration_is_rounded_to_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text
