"""Every rung on a real GPU at awkward sizes, also under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ladder.device import detect
from project import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not detect() or float(detect()[0].compute_capability) < 9.0,
        reason="no GPU with clusters and tensor maps (compute capability 9.0)",
    ),
]

SIDES = [1, 3, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257]
SIZES = [(SIDES[i], SIDES[(i * 5 + 3) % 14], SIDES[(i * 3 + 7) % 14]) for i in range(14)]
SIZES += [(129, 129, 17), (65, 129, 33), (64, 65, 1), (1, 257, 129), (257, 1, 33), (3, 3, 431)]
SIZES += [(1023, 517, 263), (640, 1000, 520)]


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def run_rungs(
    cubins: Path, sizes: Sequence[tuple[int, int, int]], *under: str
) -> subprocess.CompletedProcess[str]:
    folders = [str(ROOT / "workflow"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    numbers = [str(number) for size in sizes for number in size]
    return subprocess.run(
        [*under, sys.executable, str(ROOT / "tests/gpu_rungs.py"), str(cubins), *numbers],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_every_set_is_exact_at_awkward_sizes(cubins: Path) -> None:
    done = run_rungs(cubins, SIZES)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " 0 wrong" in done.stdout


@pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="no compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_every_set_is_clean_under_compute_sanitizer(cubins: Path, tool: str) -> None:
    # One size smaller than every tile and one of several tiles in each direction, all odd.
    sizes = [(33, 65, 17), (261, 517, 77)]
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    done = run_rungs(cubins, sizes, *sanitizer)
    print(done.stdout[-6000:])
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    expected = "0 errors" if tool == "memcheck" else "0 hazards"
    assert expected in done.stdout
