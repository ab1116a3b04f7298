"""Errors by distribution and K, special values, and the step on a GPU that does not exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import matplotlib as mpl
import numpy as np
import pytest

import tables_fixture as tf
from ladder import figures, report, schema, special_values
from ladder.config import Figures
from ladder.correctness import UNIT_ROUNDOFF, Kind, fill, reference
from ladder.error_statistics import error_summary
from ladder.figures import Results
from ladder.manifest import expand, load, load_all
from ladder.report import accuracy
from ladder.special_values import CASES, OUTCOMES, SIDE, judge
from project import ROOT, Project

MakeProject = Callable[..., Project]
OUT = "results/fake-gpu"
KERNELS = {
    name: kernel
    for name, kernel in load_all(ROOT / "kernels").items()
    if name in ("01_naive", "03_shared_tile", "21_tf32", "24_wgmma", "cublas_fp32", "cublas_tf32")
}


def filled(kind: Kind, size: int, seed: int = 1) -> np.ndarray:
    values = np.empty(size, dtype=np.float32)
    fill(np, values, kind, seed)
    return values


# --- inputs ---------------------------------------------------------------------------------------


def test_distributions_are_what_they_are_called() -> None:
    positive = filled("positive", 100_000)
    assert positive.min() >= 0 and positive.max() < 1
    assert np.allclose(np.histogram(positive, 10, (0, 1))[0] / 10_000, 1, atol=0.05)
    wide = filled("wide", 100_000)
    exponents = np.floor(np.log2(np.abs(wide.astype(float))))
    assert (exponents.min(), exponents.max()) == (-20, 19)
    assert np.allclose(np.histogram(exponents, 40, (-20, 20))[0] / 2500, 1, atol=0.1)
    assert abs(np.sign(wide).mean()) < 0.02
    significands = np.abs(wide) / np.exp2(exponents)
    assert significands.mean() == pytest.approx(1.5, abs=0.01)
    # The exponent and what is below it must not go together.
    assert abs(np.corrcoef(exponents, significands)[0, 1]) < 0.02


# --- errors ---------------------------------------------------------------------------------------


def product_with(errors: np.ndarray, kind: Kind = "positive") -> Any:
    """C (M x N) whose signed errors, in units of u G, are the given ones but for C's rounding."""
    m, n = errors.shape
    k = 8
    a, b = filled(kind, m * k, 2), filled(kind, k * n, 3)
    ref = reference(np, a, b, m, n, k, kind, 1)
    assert ref.magnitude is not None
    return ref, ref.product + np.sign(ref.product) * errors * UNIT_ROUNDOFF * ref.magnitude


def test_errors_are_counted_in_units_of_roundoff_and_away_from_zero() -> None:
    errors = np.random.default_rng(1).normal(-300.0, 1000.0, (64, 48))
    for kind in ("positive", "uniform"):
        ref, exact = product_with(errors, kind)
        summary = error_summary(np, exact.astype(np.float32), ref)
        signed = np.sign(ref.product) * errors
        assert summary.bias == pytest.approx(signed.mean(), abs=0.5), "rounding of C adds little"
        assert summary.shrinkage == pytest.approx(-errors.mean(), abs=0.5)
        assert summary.eta_rms == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-3)
        assert summary.eta_max == pytest.approx(np.abs(errors).max(), rel=1e-3)


def test_standard_errors_know_that_rows_and_columns_share_their_inputs() -> None:
    random = np.random.default_rng(7)
    found, means, roots = [], [], []
    for _ in range(60):
        errors = (
            200.0 * random.normal(size=(40, 1))
            + 100.0 * random.normal(size=(1, 30))
            + 400.0 * random.normal(size=(40, 30))
        )
        ref, exact = product_with(errors)
        summary = error_summary(np, exact.astype(np.float32), ref)
        found.append((summary.bias_se, summary.eta_rms_se))
        means.append(summary.bias)
        roots.append(summary.eta_rms)
    bias_se, rms_se = np.median(found, axis=0)
    assert bias_se == pytest.approx(np.std(means), rel=0.25)
    assert rms_se == pytest.approx(np.std(roots), rel=0.3)
    assert bias_se > 2 * 460 / np.sqrt(40 * 30), "more than of independent elements"


# --- special values -------------------------------------------------------------------------------


def single(case: str) -> np.ndarray:
    """A case in FP32, in order of k, as a kernel of the FP32 units has it."""
    a, b = CASES[case].make()
    c = np.zeros((SIDE, SIDE), dtype=np.float32)
    with np.errstate(all="ignore"):
        for k in range(SIDE):
            c += a[:, k : k + 1] * b[k]
    return c


def test_the_outcomes_are_a_closed_set() -> None:
    assert tuple(OUTCOMES) == get_args(special_values.Outcome)


@pytest.mark.parametrize("case", CASES)
def test_fp32_arithmetic_gives_what_is_expected_unless_the_order_of_terms_decides(
    case: str,
) -> None:
    outcome = "made_nonfinite" if case == "cancelled_overflow" else "same"
    differing = SIDE if case == "cancelled_overflow" else 0
    assert judge(case, single(case), "fp32") == (outcome, differing)


def test_what_comes_out_otherwise_is_named() -> None:
    def changed(case: str, row: int, value: float) -> Any:
        c = single(case)
        c[row] = value
        return judge(case, c, "fp32")

    assert changed("infinity", 3, np.nan)[0] == "other_nonfinite"
    assert changed("infinity", 3, 1.0) == ("made_finite", SIDE)
    assert changed("infinity", 4, np.inf)[0] == "made_nonfinite"
    assert changed("nan", 3, np.inf)[0] == "other_nonfinite"
    assert changed("subnormal_results", 0, 0.0)[0] == "flushed"
    assert changed("largest", 5, 0.25)[0] == "inaccurate"
    flushed = np.zeros((SIDE, SIDE), dtype=np.float32)
    assert judge("subnormal_inputs", flushed, "fp32")[0] == "flushed"
    rounded = (single("near_largest").view(np.uint32) & 0xFFFFE000).view(np.float32)
    assert judge("near_largest", rounded, "fp32")[0] == "inaccurate"
    assert judge("near_largest", rounded, "tf32")[0] == "same"


def test_inputs_that_are_called_subnormal_are() -> None:
    a, _ = CASES["subnormal_inputs"].make()
    assert np.abs(a[a != 0]).min() > 0 and np.abs(a).max() < 2.0**-126
    results, _ = special_values.expected("subnormal_results")
    assert (np.abs(results) < 2.0**-126).mean() > 0.99


# --- the step -------------------------------------------------------------------------------------


SIZED: dict[str, Any] = {
    "parameters": {"TILE": {"description": "side of the tile", "values": [4, 8]}},
    "sweep": [{"TILE": 4}, {"TILE": 8}],
    "suited": [{"require": "TILE == 8 or K >= 64", "message": "a short k wants wide tiles"}],
}
"""A kernel whose first set is not meant for every size."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Measured once: one kernel crashes its worker, one forgets a term, one is never built."""
    names = ["01_naive", "03_shared_tile", "05_dies", "06_nan", "07_missing", "08_sized"]
    kernels: dict[str, Any] = {name: {} for name in names}
    made = Project(
        tmp_path_factory.mktemp("accuracy"),
        {
            "sizes": {"square": [33]},
            "kernels": kernels | {"cublas_fp32": {}, "cublas_tf32": {}},
            "architectures": ["sm_90a"],
            "accuracy": {"sides": [16], "depths": [32, 64]},
        },
        kernels=["01_naive", "03_shared_tile", "cublas_fp32", "cublas_tf32"],
    )
    for name in ("05_dies", "06_nan", "07_missing"):
        made.add_kernel(name)
    made.add_kernel("08_sized", **SIZED)
    faults = {"05_dies": "sigkill", "06_nan": "one_nan", "03_shared_tile": "drop_last_k"}
    made.fake_gpu(faults=faults)
    made.pretend_compiled()
    for path in made.folder.glob("results/build/*/07_missing/*"):
        path.unlink()
    made.ladder("plan")
    made.output = made.ladder("accuracy", "--out", OUT)  # type: ignore[attr-defined]
    return made


def rows_of(project: Project, kernel: str) -> list[dict[str, Any]]:
    table = schema.read(project.folder / OUT / "accuracy.parquet", "accuracy").to_pylist()
    return [row for row in table if row["kernel"] == kernel]


def test_every_kernel_has_a_row_for_every_data_set_and_case(project: Project) -> None:
    for name in ("01_naive", "05_dies", "07_missing", "cublas_fp32"):
        rows = rows_of(project, name)
        errors = [(r["m"], r["n"], r["k"], r["distribution"]) for r in rows if r["distribution"]]
        assert errors == [
            (16, 16, k, kind) for k in (32, 64) for kind in ("uniform", "positive", "wide")
        ]
        special = [row["special"] for row in rows if row["special"]]
        assert special == list(CASES)
    (params,) = {row["params"] for row in rows_of(project, "01_naive")}
    manifest = load(project.folder / "kernels/01_naive.yaml").manifest
    assert json.loads(params) == next(expand(manifest.sweep)), "the first set alone"


def test_errors_and_outcomes_are_measured_with_where_they_come_from(project: Project) -> None:
    row, *_ = rows_of(project, "01_naive")
    assert row["status"] == "ok" and row["elements"] == 256
    assert 0.01 < row["eta_rms"] < 1 and row["eta_rms"] < row["eta_max"] < 16
    assert 0 < row["bias_se"] < 0.2 and abs(row["bias"]) < 6 * row["bias_se"]
    assert row["gpu_name"] == "Fake GPU" and row["cublas_version"] == "13.1.0"
    assert row["measured_at"] and len(row["source_sha256"]) == 64 and row["source"] == "measured"
    tf32 = [r["eta_rms"] for r in rows_of(project, "cublas_tf32") if r["distribution"]]
    assert min(tf32) > 50
    wrong = [r["eta_max"] for r in rows_of(project, "03_shared_tile") if r["distribution"]]
    assert min(wrong) > 1000, "a forgotten term is an error like any other"
    outcomes = {r["special"]: r["outcome"] for r in rows_of(project, "cublas_fp32") if r["special"]}
    assert outcomes["infinity"] == outcomes["nan"] == outcomes["largest"] == "same"


def test_the_set_that_is_meant_for_the_size_is_looked_at(project: Project) -> None:
    rows = rows_of(project, "08_sized")
    found = {(row["k"], row["params"]) for row in rows if row["distribution"]}
    assert found == {(32, '{"TILE":8}'), (64, '{"TILE":4}')}
    assert {row["params"] for row in rows if row["special"]} == {'{"TILE":4}'}, "the first"


def test_a_kernel_that_fails_costs_no_other_and_its_worker_once(project: Project) -> None:
    assert {row["status"] for row in rows_of(project, "05_dies")} == {"worker_crash"}
    assert {row["status"] for row in rows_of(project, "07_missing")} == {"compile_failed"}
    nan = rows_of(project, "06_nan")
    assert {row["status"] for row in nan if row["distribution"]} == {"nonfinite"}
    assert all("1 of 256 elements" in row["detail"] for row in nan if row["distribution"])
    assert {r["outcome"] for r in nan if r["special"] == "largest"} == {"made_nonfinite"}
    assert {row["status"] for row in rows_of(project, "cublas_fp32")} == {"ok"}
    done = project.output  # type: ignore[attr-defined]
    assert done.stderr.count("05_dies: worker_crash") == 1
    assert "worker_crash" in done.stdout and str(Path(OUT) / "accuracy.parquet") in done.stdout


def test_a_gpu_that_is_absent_or_in_use_is_named(make_project: MakeProject) -> None:
    made = make_project({"sizes": {"square": [33]}, "kernels": {"01_naive": {}}},
                        kernels=["01_naive"])  # fmt: skip
    made.fake_gpu(other_processes=[4711])
    made.ladder("plan")
    done = made.ladder("accuracy", "--out", OUT, check=False)
    assert done.returncode == 2 and "in use by process 4711" in done.stderr
    assert not (made.folder / OUT / "accuracy.parquet").exists()


# --- what is shown --------------------------------------------------------------------------------


def shown(folder: Path, rows: list[tf.Row], run: tf.Row | None = None) -> Results:
    run = run or tf.gpu_run()
    tables = tf.write(folder / "tables", runs=[run], accuracy=rows)
    return figures.load_results(tables, KERNELS, tf.gpus_yaml(folder))


def test_the_figure_has_the_largest_products_and_says_whose_gpu(tmp_path: Path) -> None:
    rows = tf.accuracy(KERNELS, tf.gpu_run())
    elsewhere = [{**row, "gpu_name": "Another GPU", "eta_rms": 1e6} for row in rows]
    results = shown(tmp_path, [*rows, *elsewhere])
    (plan,) = [plan for plan in figures.plans(results) if plan.name == "accuracy_by_distribution"]
    assert set(plan.table["n"]) == {2048} and plan.table["eta_rms"].max() < 1e6
    assert len(plan.table) == len(KERNELS) * 4 * 3
    assert "M = N = 2048" in figures.caption(plan, results)
    with mpl.rc_context(figures.rc()):
        for look in figures.looks(results, Figures()).values():
            figure = plan.draw(plan.table, look)
            assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == list(
                figures.DISTRIBUTIONS.values()
            )
            legend = {text.get_text() for text in figure.legends[0].get_texts()}
            assert legend == {"24 WGMMA", "21 TF32", "cuBLAS FP32", "cuBLAS TF32", "FP32 units"}
            widths = {line.get_color(): line.get_linewidth() for line in figure.axes[0].lines}
            assert max(widths, key=lambda colour: widths[colour]) == figures.INK
            markers = [line.get_marker() for line in figure.axes[0].lines]
            assert len(set(markers)) == len(markers), "kernels of one colour differ by markers"


def test_small_products_have_a_figure_of_their_own(tmp_path: Path) -> None:
    results = shown(tmp_path, tf.accuracy(KERNELS, tf.gpu_run()))
    found = [plan for plan in figures.plans(results) if plan.topic == "accuracy"]
    small = next(plan for plan in found if plan.name == "accuracy_of_small_products")
    assert set(small.table["n"]) == {256} and "M = N = 256" in figures.caption(small, results)
    (tmp_path / "one").mkdir()
    one_side = shown(tmp_path / "one", tf.accuracy(KERNELS, tf.gpu_run(), sides=[256]))
    names = [plan.name for plan in figures.plans(one_side)]
    assert "accuracy_by_distribution" in names and "accuracy_of_small_products" not in names


def verdicts(grid: report.Grid, series: str) -> dict[tuple[str, str], list[str]]:
    return {
        (row[1].text, row[2].text): [cell.text for cell in row[3:]]
        for row in grid.rows
        if row[0].text == series
    }


def test_the_table_says_where_a_kernel_is_worse_than_cublas(tmp_path: Path) -> None:
    run = tf.gpu_run()
    rows = tf.accuracy(KERNELS, run)
    for row in rows:
        if row["kernel"] == "24_wgmma" and row.get("distribution") == "positive":
            if row["k"] == 256:
                row["bias"] = -10 * row["bias_se"]
            elif row["k"] == 1024:
                row["eta_rms"] += 10 * row["eta_rms_se"]
            elif row["k"] == 4096:
                row["eta_max"] *= 1.2
    results = shown(tmp_path, rows, run)
    grid = accuracy.errors_grid(results)
    assert grid is not None
    sides = [(row[0].text, row[1].text) for row in grid.rows]
    assert sides[0] == ("24 WGMMA", "2048") and sides[-1][0] in ("21 TF32", "cuBLAS TF32")
    found = verdicts(grid, "24 WGMMA")
    assert found["2048", "U[0, 1)"] == ["worse: bias", "worse: rms", "worse: largest", "no worse"]
    assert found["256", "U[\u22121, 1)"] == ["no worse"] * 4
    assert verdicts(grid, "21 TF32")["256", "U[0, 1)"][0] == "worse: rms and largest"
    assert not verdicts(grid, "1 Naive"), "the FP32 units' kernels are not judged"
    of_set = [cell.note for row in grid.rows if row[0].text == "24 WGMMA" for cell in row[3:]]
    assert all(note.startswith("PROMOTE 4, COMPENSATE 0: rms") for note in of_set), of_set
    assert accuracy.errors_note(results) == (
        "Worse than cuBLAS FP32 in rms or largest error or bias: at M = N = 2048, 24 WGMMA in 3 of"
        " 12 sets of inputs; at M = N = 256, 24 WGMMA in 3 of 12 sets of inputs."
    )


def test_what_the_same_order_of_terms_gives_is_no_worse(tmp_path: Path) -> None:
    results = shown(tmp_path, tf.accuracy(KERNELS, tf.gpu_run()))
    assert accuracy.errors_note(results).startswith("On all of 24 sets of inputs")


def test_special_values_are_told_by_outcome_with_what_the_manifests_promise(tmp_path: Path) -> None:
    rows = tf.accuracy(KERNELS, tf.gpu_run())
    for row in rows:
        if row["kernel"] == "24_wgmma" and row.get("special") == "infinity":
            row["outcome"] = "other_nonfinite"
    rows.append({**rows[0], "kernel": "03_shared_tile", "status": "timeout", "detail": "silence"})
    results = shown(tmp_path, rows)
    grid = accuracy.special_grid(results)
    assert grid is not None
    others, wgmma = grid.rows
    assert "1 Naive" in others[0].text and {cell.text for cell in others[1:]} == {"as IEEE 754"}
    assert wgmma[0].text == "24 WGMMA" and wgmma[0].note == KERNELS["24_wgmma"].manifest.limits
    assert wgmma[1].text == "another of infinity and NaN"
    words = [word for word, _ in accuracy.outcomes_explained(results)]
    assert words == ["as IEEE 754", "another of infinity and NaN"]
    assert "3 Shared tile: timeout, silence" in accuracy.missing_note(results)


def test_nothing_measured_is_no_table_and_a_figure_that_says_so(tmp_path: Path) -> None:
    results = shown(tmp_path, [])
    assert accuracy.errors_grid(results) is None and accuracy.special_grid(results) is None
    assert accuracy.errors_note(results) == accuracy.missing_note(results) == ""
    (plan,) = [plan for plan in figures.plans(results) if plan.name == "accuracy_by_distribution"]
    assert plan.table.empty
    assert "no measurement of errors by distribution" in figures.caption(plan, results)
