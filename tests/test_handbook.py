"""The generated parts of the documentation are those of the published tables and of the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tables_fixture as tf
from ladder import figures, handbook
from ladder.documents import UserError
from ladder.figures import Results
from ladder.manifest import load_all

ROOT = tf.ROOT
PUBLISHED = ROOT / "results" / "published" / "nvidia-h200"
STALE = "run `python -m ladder handbook`"


@pytest.fixture(scope="module")
def published() -> Results:
    kernels = load_all(ROOT / "kernels")
    return figures.load_results(PUBLISHED, kernels, ROOT / "config" / "gpus.yaml")


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tutorial_has_the_numbers_of_the_published_tables(published: Results) -> None:
    text = handbook.tutorial(published, "../results/published/nvidia-h200")
    assert (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8") == text, STALE
    ladder = figures.ladder_table(published)
    for row in ladder[ladder["kind"] == "rung"].itertuples():
        assert f"## {row.series}" in text
        section = text.split(f"## {row.series}\n")[1].split("\n## ")[0]
        (shown,) = re.findall(r"\\*\\*([\d.]+)\s+TFLOPS\\*\\*", section)
        assert float(shown) == pytest.approx(row.tflops, rel=0.006)


def test_the_readme_has_the_numbers_of_the_published_tables(published: Results) -> None:
    assert handbook.with_numbers(readme(), published) == readme(), STALE


def test_the_readme_shows_the_rules_that_snakemake_would_run() -> None:
    text = readme()
    assert handbook.with_graph(text, ROOT) == text, STALE
    assert "class measure_accuracy,measure_ceilings,measure_points,profile_points gpu" in text


def test_a_number_that_is_not_the_tables_is_replaced(published: Results) -> None:
    stale = re.sub(r"(kernels/12_tma\.cu\).*\| )[\d.]+", r"\g<1>1.25", readme())
    stale = stale.replace("M = N = K = 4096, where", "M = N = K = 77, where")
    assert stale != readme()
    assert handbook.with_numbers(stale, published) == handbook.with_numbers(readme(), published)


def test_a_rung_that_the_readme_leaves_out_is_named(published: Results) -> None:
    text = re.sub(r"^\| \[12 TMA\].*\n", "", readme(), flags=re.MULTILINE)
    with pytest.raises(UserError, match="the table of the ladder has no line for 12_tma"):
        handbook.with_numbers(text, published)
    with pytest.raises(UserError, match="no ```mermaid block"):
        handbook.with_graph("no graph", ROOT)


def test_a_set_without_a_ladder_makes_no_tutorial(tmp_path: Path) -> None:
    results = figures.load_results(tmp_path, {}, ROOT / "config" / "gpus.yaml")
    with pytest.raises(UserError, match="no ladder beside cuBLAS"):
        handbook.tutorial(results, ".")


def test_an_edge_that_a_longer_way_replaces_is_left_out() -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d")}
    assert handbook._direct(edges) == {("a", "b"), ("b", "c"), ("c", "d")}
