"""Replaying a published set: by the code that was measured, under the kernel's name of today."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ladder import config as ladder_config
from ladder import schema
from ladder.manifest import load_all
from ladder.plan import write_plan
from ladder.replay import replay
from ladder.status import Status
from project import ROOT

PUBLISHED = ROOT / "results" / "published"
SIZE = (1024, 1024, 1024)


def replayed(
    tmp_path: Path,
    source: Path,
    name: str,
    *,
    edit: tuple[str, str] = ("", ""),
    published: Path = PUBLISHED,
) -> tuple[list[dict[str, object]], set[str]]:
    """The rows of one kernel, a copy of `source` called `name`, and the kernels with samples."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / f"{name}.cu").write_text(source.read_text().replace(*edit))
    shutil.copy(source.with_suffix(".yaml"), folder / f"{name}.yaml")
    shutil.copy(ROOT / "config" / "gpus.yaml", tmp_path)
    given = {"sizes": {"square": [SIZE[0]]}, "kernels": {name: {}}}
    config, kernels = ladder_config.resolve(given, tmp_path, name="test")
    write_plan(tmp_path / "plan.parquet", config, kernels)
    out = tmp_path / "out"
    replay(
        tmp_path / "plan.parquet",
        kernels,
        builds_root=tmp_path / "builds",
        published=published,
        out=out,
        root=ROOT,
    )
    rows = schema.read(out / "points.parquet", "points").to_pylist()
    samples = schema.read(out / "samples.parquet", "samples")
    return rows, set(samples["kernel"].to_pylist())


@pytest.mark.parametrize("name", ["03_shared_tile", "77_renamed"])
def test_a_measurement_belongs_to_the_code_whatever_its_file_is_called(
    name: str, tmp_path: Path
) -> None:
    rows, with_samples = replayed(tmp_path, ROOT / "kernels" / "03_shared_tile.cu", name)
    assert len(rows) == 3  # tile sides 8, 16, 32
    assert {row["kernel"] for row in rows} == {name}
    assert {row["status"] for row in rows} == {Status.OK}
    assert {row["source"] for row in rows} == {"replayed"}
    assert with_samples == {name}


def test_other_code_under_the_same_name_is_not_replayed(tmp_path: Path) -> None:
    rows, with_samples = replayed(
        tmp_path,
        ROOT / "kernels" / "01_naive.cu",
        "01_naive",
        edit=("float acc = 0.0f", "float acc = -0.0f"),
    )
    assert {row["status"] for row in rows} == {Status.SKIPPED_UNSUPPORTED}
    assert all("code is not the one that nvidia-h200 measured" in str(r["detail"]) for r in rows)
    assert not with_samples


def test_a_kernel_that_was_never_measured_says_so(tmp_path: Path) -> None:
    rows, _ = replayed(
        tmp_path,
        ROOT / "kernels" / "01_naive.cu",
        "77_new",
        edit=("float acc = 0.0f", "float acc = -0.0f"),
    )
    assert all("nvidia-h200 does not hold this point" in str(row["detail"]) for row in rows)


def test_the_published_set_is_of_the_code_of_the_first_rungs() -> None:
    """The set holds the shipped naive and tiled kernels: a default run without a GPU shows them."""
    rows = schema.read(PUBLISHED / "nvidia-h200" / "points.parquet", "points").to_pylist()
    measured = {row["source_sha256"] for row in rows}
    kernels = load_all(ROOT / "kernels")
    assert kernels["01_naive"].source_sha256() in measured
    assert kernels["03_shared_tile"].source_sha256() in measured


def test_accuracy_is_replayed_of_the_code_that_was_measured(tmp_path: Path) -> None:
    published = tmp_path / "published"
    shutil.copytree(PUBLISHED / "nvidia-h200", published / "nvidia-h200")
    source = ROOT / "kernels" / "01_naive.cu"
    own = load_all(ROOT / "kernels")["01_naive"].source_sha256()
    given = [
        {"kernel": "01_naive", "source_sha256": own, "distribution": "wide", "eta_rms": 1.9},
        {"kernel": "77_renamed", "source_sha256": "f" * 64, "distribution": "wide"},
        {"kernel": "cublas_fp32", "distribution": "wide"},  # not configured here
    ]
    path = published / "nvidia-h200" / "accuracy.parquet"
    schema.write(path, "accuracy", given)
    replayed(tmp_path, source, "77_renamed", published=published)
    rows = schema.read(tmp_path / "out" / "accuracy.parquet", "accuracy").to_pylist()
    assert [(row["kernel"], row["eta_rms"], row["source"]) for row in rows] == [
        ("77_renamed", 1.9, "replayed")
    ]
    path.unlink()
    shutil.rmtree(tmp_path / "kernels")
    replayed(tmp_path, source, "77_renamed", published=published)
    assert not len(schema.read(tmp_path / "out" / "accuracy.parquet", "accuracy"))


@pytest.mark.parametrize("measured", [True, False])
def test_ceilings_are_replayed_where_the_set_has_them(measured: bool, tmp_path: Path) -> None:
    published = tmp_path / "published"
    shutil.copytree(PUBLISHED / "nvidia-h200", published / "nvidia-h200")
    row = {"name": "fma", "status": "ok", "value": 65.8, "source": "measured"}
    given = [row] if measured else []
    schema.write(published / "nvidia-h200" / "ceilings.parquet", "ceilings", given)
    replayed(tmp_path, ROOT / "kernels" / "01_naive.cu", "01_naive", published=published)
    rows = schema.read(tmp_path / "out" / "ceilings.parquet", "ceilings").to_pylist()
    assert [(row["name"], row["value"], row["source"]) for row in rows] == [
        ("fma", 65.8, "replayed") for _ in given
    ]
