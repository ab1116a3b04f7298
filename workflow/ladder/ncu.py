"""Nsight Compute's command line: finding it, running a program under it, reading what it prints.

Results are read from the CSV of the very `ncu` that counted. NVIDIA's Python module `ncu_report`
reads binary reports instead, but only those that are not newer than itself, only on Linux and
Windows, and would add 50 MB to every installation. It would give no digit more: we ask for counts,
which the CSV has in full, and make ratios ourselves.

The CSV follows the user's locale and scales its units unless told otherwise. It is told otherwise,
and checked all the same: a cell that could be read in two ways is refused by name, never guessed
and never 0.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .documents import UserError

NCU_VARIABLE = "LADDER_NCU"
_ELSEWHERE = ("usr/local/cuda/bin/ncu", "opt/nvidia/nsight-compute/*/ncu")
_POLL_S = 0.2
_LOCALE = {"LC_ALL": "C", "LANG": "C"}

Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class Profiler:
    """An installed Nsight Compute."""

    program: str
    version: str


@dataclass(frozen=True)
class ProfiledLaunch:
    """One launch in the profiler's table."""

    kernel: str
    grid: Dimensions
    block: Dimensions
    cells: Mapping[str, tuple[str, str]]
    """Unit and text of every metric, as printed."""

    def is_of(self, kernel: str, grid: Dimensions, block: Dimensions) -> bool:
        """Whether this is a launch of that kernel with that geometry; names may list arguments."""
        name = self.kernel == kernel or self.kernel.startswith(f"{kernel}(")
        return name and self.grid == grid and self.block == block

    def __str__(self) -> str:
        return f"{self.kernel} with grid {self.grid} and block {self.block}"


@dataclass(frozen=True)
class Run:
    """How one run of the profiler ended."""

    log: str
    """All that Nsight Compute itself said, results included."""
    exit_code: int | None
    """None if it was stopped because nothing came any more."""

    @property
    def errors(self) -> list[str]:
        """What it calls errors, but for the one that only says that the program failed."""
        lines = [line[len("==ERROR==") :].strip() for line in self.log.splitlines()
                 if line.startswith("==ERROR==")]  # fmt: skip
        return [line for line in lines if line and "application returned an error" not in line]

    @property
    def forbidden(self) -> bool:
        """Whether this user may not read hardware counters."""
        return "ERR_NVGPUCTRPERM" in self.log

    @property
    def unusable(self) -> bool:
        """Whether no kernel at all can be profiled, as long as the machine stays as it is."""
        permanent = (
            "driver resource was unavailable",
            "failed to connect to the CUDA driver",
            "Failed to initialize the profiler",
        )
        return any(words in self.log for words in permanent)

    @property
    def incomplete(self) -> bool:
        """Whether a launch may be missing from the table."""
        return any("Failed to profile" in line for line in self.errors)

    def refused(self, metrics: Sequence[str]) -> dict[str, str]:
        """The metrics that it says it cannot collect, with its words."""
        lines = [line for line in self.errors if "metric" in line]
        return {
            name: line.split(":")[0]
            for line in lines
            for name in metrics
            if name in re.split(r"[\s,:;'\"]+", line)
        }


class TableError(ValueError):
    """What the profiler printed is not the table that its manual describes."""


def find() -> Profiler | str:
    """The installed Nsight Compute, or why there is none."""
    program = os.environ.get(NCU_VARIABLE) or shutil.which("ncu") or _newest_elsewhere()
    if program is None:
        return (
            "Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit, or alone as"
            f" nsight-compute. If it is not on the PATH, set {NCU_VARIABLE} to the program"
        )
    try:
        done = subprocess.run(
            [program, "--version"],
            env={**os.environ, **_LOCALE},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run: {error}"
    version = re.search(r"^Version (\S+)", done.stdout, re.MULTILINE)
    if version is None:
        said = (done.stdout + done.stderr).strip().splitlines()
        return f"{program} does not tell its version; it said: {said[0] if said else 'nothing'}"
    return Profiler(program, version[1])


def _newest_elsewhere() -> str | None:
    found = [path for pattern in _ELSEWHERE for path in Path("/").glob(pattern)]
    return str(max(found, key=lambda path: path.resolve().stat().st_mtime)) if found else None


def run(
    profiler: Profiler,
    metrics: Sequence[str],
    target: Sequence[str],
    *,
    environment: Mapping[str, str],
    progress: Path,
    log: Path,
    output: BinaryIO,
    silence_s: float,
) -> Run:
    """Run a program under the profiler: every launch between its profiler calls is counted.

    Caches are flushed before each of the passes that a launch is repeated for, and clocks are left
    alone: not everyone may lock them, and no time is taken here.

    Args:
        progress: a file that the program writes to as it proceeds.
        log: where Nsight Compute writes its words and results.
        output: takes what the program itself prints.
        silence_s: the run is stopped when neither file has changed for this long.

    Raises:
        UserError: if the profiler cannot be started.
    """
    command = [
        profiler.program,
        *("--config-file", "off"),  # a user's own defaults would change what is printed
        *("--target-processes", "all"),
        *("--profile-from-start", "off"),
        *("--replay-mode", "kernel"),
        *("--cache-control", "all"),
        *("--clock-control", "none"),
        *("--metrics", ",".join(metrics)),
        "--csv",
        *("--page", "raw"),
        *("--print-units", "base"),
        *("--log-file", str(log)),
        *target,
    ]
    log.unlink(missing_ok=True)
    try:
        process = subprocess.Popen(
            command,
            env={**environment, **_LOCALE},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all of it can be stopped at once
        )
    except OSError as error:
        raise UserError(f"{profiler.program} does not start: {error}") from None
    started = time.time()
    exit_code = None
    try:
        while exit_code is None and time.time() - _last_change(started, progress, log) < silence_s:
            with suppress(subprocess.TimeoutExpired):
                exit_code = process.wait(timeout=_POLL_S)
    finally:
        with suppress(ProcessLookupError, PermissionError):  # mostly it is gone already
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = log.read_text(errors="replace") if log.exists() else ""
    return Run(text, exit_code)


def _last_change(started: float, *paths: Path) -> float:
    return max([started, *(path.stat().st_mtime for path in paths if path.exists())])


# --- the table ----------------------------------------------------------------------------------

_FIXED = ("ID", "Kernel Name", "Block Size", "Grid Size")
_DIMENSIONS = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TWO_WAYS = re.compile(r"\d{1,3}\.\d{3}")
"""A decimal fraction in one locale, thousands in another."""
_SCALED = re.compile(r"[KMGTP]i?[a-z]+")
_MOST_PERCENT = 200.0
"""A share of a peak may come out a little above 100; a lost decimal point gives far more."""


def read_table(log: str) -> list[ProfiledLaunch]:
    """The launches that Nsight Compute printed with `--csv --page raw`, in order.

    Raises:
        TableError: if there is a table, but not of the form that the manual describes.
    """
    lines = log.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith('"ID",')]
    if not starts:
        return []
    body = [line for line in lines[starts[0] :] if line.strip() and not line.startswith("==")]
    try:
        head, *rows = csv.reader(body, strict=True)
    except csv.Error as error:
        raise TableError(f"the table cannot be split into cells: {error}") from None
    absent = [name for name in _FIXED if name not in head]
    if absent:
        raise TableError(f"the table has no column {absent[0]!r}")
    for row in rows:
        if len(row) != len(head):
            raise TableError(f"a row has {len(row)} cells, the head has {len(head)}: {row[:5]}")
    if not rows or rows[0][head.index("ID")]:
        raise TableError("the row of units below the head is missing")
    units, *launches = [dict(zip(head, row, strict=True)) for row in rows]
    if [row["ID"] for row in launches] != [str(number) for number in range(len(launches))]:
        raise TableError("the launches are not numbered 0, 1, 2, ... in order")
    return [
        ProfiledLaunch(
            row["Kernel Name"],
            _dimensions(row["Grid Size"]),
            _dimensions(row["Block Size"]),
            {name: (units[name], row[name]) for name in head if "__" in name},
        )
        for row in launches
    ]


def _dimensions(text: str) -> Dimensions:
    match = _DIMENSIONS.fullmatch(text.strip())
    if match is None:
        raise TableError(f"{text!r} is no grid or block; three numbers are expected")
    x, y, z = map(int, match.groups())
    return x, y, z


def read_value(unit: str, printed_unit: str, text: str) -> float | str:
    """The number in a cell, or why it is none that can be relied on.

    Args:
        unit: the metric's own unit, as in the module `hardware`.
        printed_unit: what the row of units says.
    """
    text = text.strip()
    if _SCALED.fullmatch(printed_unit) or (unit == "byte" and printed_unit != "byte"):
        return f"printed in {printed_unit!r}, not in its base unit"
    if not _NUMBER.fullmatch(text):
        return f"Nsight Compute gives {text!r}, which is no number of the locale C"
    value = float(text.replace(",", ""))
    if unit == "%":
        return value if value <= _MOST_PERCENT else f"{text} % cannot be: a lost decimal point?"
    if _TWO_WAYS.fullmatch(text):
        return f"{text!r} may be a fraction or thousands; the locale C was asked for"
    return value
