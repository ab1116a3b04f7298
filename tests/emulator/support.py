"""What the emulator's tests share: kernels by name, their launches, recorded measurements."""

from __future__ import annotations

import csv
import functools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ladder import correctness
from ladder.emulator import Compiler, EmulationResult, NoCompilerError, emulate, find_compiler
from ladder.manifest import Launch

HERE = Path(__file__).resolve().parent
PLANTED = HERE / "kernels"
RUNGS = HERE.parents[1] / "kernels"


def _usable(name: str) -> bool:
    try:
        return shutil.which(name) is not None and bool(find_compiler(name))
    except NoCompilerError:
        return False


COMPILERS = [name for name in ("g++", "clang++") if _usable(name)]
needs_compiler = pytest.mark.skipif(
    not COMPILERS, reason="no C++ compiler that the emulator can use"
)
FIRST_COMPILER = find_compiler(COMPILERS[0]) if COMPILERS else Compiler("", "gcc", "")
each_compiler = pytest.mark.parametrize(
    "compiler",
    [find_compiler(name) for name in COMPILERS] or [None],
    ids=COMPILERS or ["no compiler"],
)


@dataclass(frozen=True)
class Gemm:
    """A GEMM kernel of these tests: its source, and its tile and block sides."""

    source: Path
    tile: tuple[int, int]
    """Columns and rows of C per block."""
    block: tuple[int, int]
    dynamic_shared_memory_bytes: int = 0

    def launch(self, m: int, n: int) -> Launch:
        grid = (-(-n // self.tile[0]), -(-m // self.tile[1]), 1)
        return Launch(grid, (*self.block, 1), self.dynamic_shared_memory_bytes)


def gemm(name: str, params: Mapping[str, int]) -> Gemm:
    """A kernel by the name that the recorded measurements use."""
    if name == "01_naive":
        sides = params["BLOCK_X"], params["BLOCK_Y"]
        return Gemm(RUNGS / "01_naive.cu", sides, sides)
    if name == "03_shared_tile":
        sides = params["TILE"], params["TILE"]
        return Gemm(RUNGS / "03_shared_tile.cu", sides, sides)
    if name == "register_tile":
        return Gemm(PLANTED / "register_tile.cu", (64, 64), (64, 1))
    if name == "async_double_buffer":
        width = 16 + params.get("A_PAD", 4)
        return Gemm(
            PLANTED / "async_double_buffer.cu",
            (64, 64),
            (256, 1),
            4 * (2 * 64 * width + 2 * 16 * 64),
        )
    assert name == "warp_broadcast"
    return Gemm(PLANTED / "warp_broadcast.cu", (32, 8), (32, 8))


def inputs(
    m: int, n: int, k: int, kind: correctness.Kind = "uniform", seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Flat A and B of a data set, the same bits as on a GPU."""
    a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
    correctness.fill_inputs(np, a, b, kind, seed)
    return a, b


def run(
    name: str,
    params: Mapping[str, int],
    m: int,
    n: int,
    k: int,
    cache: Path,
    compiler: Compiler | None = None,
    **options: bool,
) -> EmulationResult:
    """Emulate one of the kernels above, once for all tests that ask for the same."""
    return _run(
        name,
        tuple(params.items()),
        m,
        n,
        k,
        cache,
        compiler or FIRST_COMPILER,
        tuple(options.items()),
    )


@functools.cache
def _run(
    name: str,
    items: tuple[tuple[str, int], ...],
    m: int,
    n: int,
    k: int,
    cache: Path,
    compiler: Compiler,
    options: tuple[tuple[str, bool], ...],
) -> EmulationResult:
    params = dict(items)
    kernel = gemm(name, params)
    a, b = inputs(m, n, k)
    return emulate(
        kernel.source,
        params,
        kernel.launch(m, n),
        m,
        n,
        k,
        a=a,
        b=b,
        cache=cache,
        compiler=compiler,
        **dict(options),
    )


def parse_params(text: str) -> dict[str, int]:
    return {
        name: int(value) for name, value in (item.split("=") for item in text.split(";") if item)
    }


def records(name: str) -> Iterator[dict[str, str]]:
    """Rows of a recorded measurement; its first lines say where it comes from."""
    with (HERE / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def line_of(source: Path, mark: str) -> int:
    """The line (from 1) of a source that carries a comment."""
    lines = [
        number for number, text in enumerate(source.read_text().splitlines(), 1) if mark in text
    ]
    assert len(lines) == 1, f"{mark!r} stands on lines {lines} of {source.name}"
    return lines[0]
