"""Pairs of multiply-adds: what ptxas makes of them, and what they compute."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from emulator.support import FIRST_COMPILER, PLANTED, RUNGS, needs_compiler
from ladder.compile import compiler_problem, run_nvrtc
from ladder.emulator import emulate, sass
from ladder.manifest import Launch

INCLUDE = RUNGS / "include"


def instructions(name: str, architecture: str) -> Counter[str]:
    """How often each opcode stands in the machine code of a kernel of these tests."""
    source = PLANTED / f"{name}.cu"
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"--include-path={INCLUDE}"]
    cubin, log = run_nvrtc(source.read_text(), source.name, options)
    assert cubin, log
    return Counter(instruction.opcode[0] for instruction in sass.load(cubin).instructions)


@pytest.mark.skipif(
    compiler_problem() is not None or sass.find_nvdisasm() is None,
    reason="needs NVRTC and nvdisasm",
)
@pytest.mark.parametrize(
    ("architecture", "pairs"), [("sm_90a", False), ("sm_100a", True), ("sm_120", False)]
)
def test_only_sm_100a_makes_one_instruction_of_a_pair(architecture: str, pairs: bool) -> None:
    packed, scalar = (instructions(name, architecture) for name in ("packed_fma", "register_tile"))
    assert scalar["FFMA"] == 512 and scalar["FFMA2"] == 0
    assert (packed["FFMA2"], packed["FFMA"]) == ((256, 0) if pairs else (0, 512))
    # Nothing doubles the factor that both halves share.
    difference = scalar.total() - packed.total()
    assert difference == pytest.approx(256, abs=16) if pairs else abs(difference) <= 16


@needs_compiler
def test_pairs_are_rounded_as_two_multiply_adds(cache: Path) -> None:
    draw = np.random.default_rng(3)
    a, b = (draw.uniform(-1, 1, (64, 64)).astype(np.float32) for _ in range(2))
    found = [
        emulate(
            PLANTED / f"{name}.cu", {}, Launch((1, 1, 1), (64, 1, 1), 0), 64, 64, 64,
            a=a, b=b, include=[INCLUDE], cache=cache, compiler=FIRST_COMPILER,
        )
        for name in ("packed_fma", "register_tile")
    ]  # fmt: skip
    assert not found[0].findings
    assert (found[0].c == found[1].c).all()
