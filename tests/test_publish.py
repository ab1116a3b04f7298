"""Publishing a result set: complete, small, and with what makes its numbers traceable."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tables_fixture as tf
from ladder import figures, schema
from ladder import publish as publishing
from ladder.__main__ import main
from ladder.documents import UserError
from ladder.publish import LARGEST_SET_BYTES, compare, publish, untraced_winners
from ladder.replay import published_sets
from ladder.tune import TRIALS
from ladder.tuned import Winner, keep_winners

KERNEL = "07_conflict_free"
SIZES = ((512, 512, 512), (64, 4096, 4096))


def trial(size: tuple[int, int, int], tflops: float, **changes: Any) -> dict[str, Any]:
    run = tf.gpu_run()
    m, n, k = size
    return {
        "kernel": KERNEL, "params": json.dumps({"BM": 64, "BN": 64}, separators=(",", ":")),
        "sets": 1, "m": m, "n": n, "k": k, "status": "ok", "detail": None, "tflops": tflops,
        "registers_per_thread": 128, "measured_at": datetime(2026, 1, 2, tzinfo=UTC),
        "run_id": run["run_id"], "gpu_name": run["gpu_name"], "gpu_uuid": run["gpu_uuid"],
        "driver_version": run["driver_version"], **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured result folder with a search of two sizes and what a run leaves beside."""
    folder = tf.typical(tmp_path_factory.mktemp("made") / "fake-gpu")
    (folder / "figures").mkdir()
    for name in ("report.html", "report.md", "summary.pdf", "figures/ladder.svg"):
        (folder / name).write_text(name)
    rows = [trial(size, tflops) for size, tflops in zip(SIZES, (10.0, 20.0), strict=True)]
    schema.write(folder / "tune" / f"{KERNEL}.parquet", "trials", rows)
    keep_winners(folder / "tuned.yaml", KERNEL, [Winner.of(row) for row in rows])
    (folder / "tune" / f"{KERNEL}.plan.parquet").write_bytes(b"a plan")
    (folder / "journal").mkdir()
    (folder / "journal" / "run.jsonl").write_text("{}")
    return folder


def test_a_published_set_holds_every_trial_that_a_winner_comes_from(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", str(made), "--published", str(tmp_path)]) == 0
    assert not capsys.readouterr().err
    target = tmp_path / made.name
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert {"tuned.yaml", f"tune/{KERNEL}.parquet", "figures/ladder.svg"} <= files
    assert not {name for name in files if "plan" in name or "journal" in name or "lock" in name}
    assert untraced_winners(target) == []
    [copy] = (target / "tune").iterdir()
    assert pq.read_table(copy).schema.names == TRIALS.names
    # What reads published sets goes by the names of its tables; more of them change nothing.
    assert published_sets(tmp_path) == [made.name]
    assert compare(made, target, 0.0).within_pct == 100
    kernels, gpus = tf.repository_kernels(), tf.gpus_yaml(tmp_path)
    both = [figures.load_results(folder, kernels, gpus).trials for folder in (made, target)]
    assert len(both[0]) == len(SIZES)
    assert both[0].equals(both[1])


@pytest.mark.parametrize("lost", ["table", "size", "run"])
def test_winners_without_their_trial_are_named(
    lost: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / made.name
    shutil.copytree(made, source)
    if lost == "table":
        shutil.rmtree(source / "tune")
    else:
        first, second = (trial(size, 10.0) for size in SIZES)
        rows = [first] if lost == "size" else [first, second | {"run_id": "another"}]
        schema.write(source / "tune" / f"{KERNEL}.parquet", "trials", rows)
    named = [f"{KERNEL} at {m}x{n}x{k}" for m, n, k in sorted(SIZES)]
    expected = named if lost == "table" else [f"{KERNEL} at 64x4096x4096"]
    assert untraced_winners(source) == expected
    assert main(["publish", str(source), "--published", str(tmp_path / "published")]) == 0
    assert ", ".join(expected) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("samples.parquet", "not a complete result set; missing: .*samples.parquet"),
        ("figures", "not a complete result set; missing: .*figures"),
        ("replayed", "only complete measured runs are published; .*replayed, complete"),
        ("interrupted", "only complete measured runs are published; .*measured, interrupted"),
        ("large", "MB; a published set may have 20"),
    ],
)
def test_what_is_no_result_of_a_whole_run_is_refused_and_nothing_is_written(
    fault: str, words: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / made.name
    shutil.copytree(made, source)
    if fault == "large":
        monkeypatch.setattr(publishing, "LARGEST_SET_BYTES", LARGEST_SET_BYTES // 10**6)
        words = "MB; a published set may have"
    elif fault == "figures":
        shutil.rmtree(source / fault)
    elif fault in ("replayed", "interrupted"):
        changed = {"source": fault} if fault == "replayed" else {"end_reason": fault}
        rows = [tf.gpu_run(**changed)]
        schema.write(source / "runs.parquet", "runs", schema.table(schema.RUNS, rows))
    else:
        (source / fault).unlink()
    with pytest.raises(UserError, match=words):
        publish(source, tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_what_is_published_takes_the_place_of_the_set_before(made: Path, tmp_path: Path) -> None:
    old = tmp_path / made.name / "figures" / "of_a_kernel_that_is_gone.svg"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    publish(made, tmp_path)
    assert not old.exists()
