"""What a step may not import, because that takes longer than the step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def imported(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split("|")[-1].strip() for line in done.stderr.splitlines()]


@pytest.mark.parametrize("step", ["plan", "compile"])
def test_a_step_without_data_frames_imports_no_pandas(step: str, tmp_path: Path) -> None:
    words = {
        "plan": ["--out", str(tmp_path / "plan.parquet")],
        "compile": [
            *("01_naive", "--params", "BLOCK_X=16,BLOCK_Y=16"),
            *("--architecture", "sm_90a", "--builds", str(tmp_path)),
        ],
    }
    names = imported("-m", "ladder", step, *words[step])
    assert "pyarrow" in names
    assert not [name for name in names if name.startswith(("pandas.", "matplotlib", "seaborn"))]
    assert list(tmp_path.glob("**/*.parquet"))


def test_seaborn_does_without_scipy() -> None:
    """Its import is half of what figures and report import; no figure needs it."""
    program = (
        "import sys; from ladder.__main__ import _Hidden; "
        "sys.meta_path.insert(0, _Hidden(('scipy',))); from ladder import figures, report"
    )
    names = imported("-c", program)
    assert "seaborn" in names
    assert not [name for name in names if name.startswith("scipy.stats.")]


def test_a_program_that_calls_main_keeps_its_packages(tmp_path: Path) -> None:
    out = str(tmp_path / "plan.parquet")
    program = f"from ladder.__main__ import main; main(['plan', '--out', {out!r}]); import pandas"
    assert "pandas.core.frame" in imported("-c", program)
