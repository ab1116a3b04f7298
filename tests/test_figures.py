"""Figures: which rows they draw, what they say when there is nothing to draw, equal bytes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from PIL import Image

import tables_fixture as tf
from ladder import figures, schema, stats, traffic
from ladder.config import Figures
from ladder.documents import UserError
from ladder.emulator.result import TMA_LOAD_BYTES, TMA_LOAD_SECTORS
from ladder.figures import Results, drawing, marks, rooflines, steps, sweeps
from ladder.manifest import TensorCores
from ladder.status import RANKED, Status
from ladder.tune import TRIALS

KERNELS = tf.repository_kernels()
ROOT = Path(__file__).resolve().parent.parent
NAIVE = {"BLOCK_X": 16, "BLOCK_Y": 16}
WIDE = {"BLOCK_X": 32, "BLOCK_Y": 8}


def results_of(folder: Path, **tables: object) -> Results:
    tf.write(folder / "tables", **tables)  # type: ignore[arg-type]
    return figures.load_results(folder / "tables", KERNELS, tf.gpus_yaml(folder))


def points_of(*pairs: tuple[tf.Row, list[tf.Row]]) -> dict[str, list[tf.Row]]:
    return {
        "points": [row for row, _ in pairs],
        "samples": [sample for _, samples in pairs for sample in samples],
    }


def look_of(results: Results, width: float = figures.DOUBLE_COLUMN_IN) -> figures.Look:
    styles = figures.series_styles(results)
    return figures.Look(width, styles, figures.origin(results), results.replayed)


def words(figure: Figure) -> str:
    found = [text.get_text() for text in figure.findobj(mpl.text.Text)]
    return " | ".join(text for text in found if text)


@pytest.fixture(scope="module")
def typical(typical_results: Path) -> Path:
    return typical_results


@pytest.fixture(scope="module")
def loaded(typical: Path) -> Results:
    return figures.load_results(typical / "tables", KERNELS, typical / "gpus.yaml")


@pytest.fixture
def rc() -> Iterator[None]:
    with mpl.rc_context(figures.rc()):
        yield


def test_every_figure_has_all_its_files(typical: Path) -> None:
    records = figures.read_index(typical / "figures")
    names = {record.name for record in records}
    assert {"ladder", "traffic", "tflops_by_size", "roofline", "shapes", "cache_modes"} <= names
    assert {"speed_up", "samples", "drift", "accuracy", "energy"} <= names
    assert {"block_shape_01_naive", "block_shape_03_shared_tile"} <= names
    listed = {name for record in records for name in record.files.values()} | {"figures.json"}
    assert listed == {path.name for path in (typical / "figures").iterdir()}
    for record in records:
        kinds = {f"{kind}{width}" for kind in ("svg", "pdf", "png") for width in ("", "_single")}
        assert set(record.files) == kinds | {"csv", "caption"}


def test_the_index_places_figures_by_topic_and_kernel(typical: Path) -> None:
    records = figures.read_index(typical / "figures")
    assert {record.topic for record in records} <= set(figures.TOPICS)
    sweeps = {record.kernel for record in records if record.topic == "blocks"}
    assert sweeps == {"01_naive", "03_shared_tile"}
    assert {"samples", "accuracy", "energy", "shapes"} <= {record.topic for record in records}


def test_an_index_of_another_version_says_what_to_do(typical: Path, tmp_path: Path) -> None:
    (record, *_) = json.loads((typical / "figures" / "figures.json").read_text(encoding="utf-8"))
    del record["topic"]
    (tmp_path / "figures.json").write_text(json.dumps([record]), encoding="utf-8")
    with pytest.raises(UserError, match=r"figures\.json: written by another .* ladder figures"):
        figures.read_index(tmp_path)


def test_captions_state_units_samples_gpu_driver_and_date(typical: Path) -> None:
    for record in figures.read_index(typical / "figures"):
        text = (typical / "figures" / record.files["caption"]).read_text(encoding="utf-8")
        assert record.caption in text
        said = {
            "roofline_projected": "nothing was measured",
            "accuracy": "Largest of n = ",
            "accuracy_by_distribution": "Errors against K at M = N = 256",
            "energy": "Nothing could be drawn: no reading of the energy counter.",
        }.get(record.name, "n = 40 samples")
        assert said in text
        assert "Measured on Synthetic GPU, driver 999.00, 2026-01-02." in text
        assert "replayed" not in text.lower()
        assert record.empty or re.search("TFLOPS|flop|percent|hroughput|FP64", text)


def test_the_csv_holds_the_rows_that_were_drawn(typical: Path, loaded: Results) -> None:
    table = pd.read_csv(typical / "figures" / "tflops_by_size.csv")
    ceiling = table[table["kind"] == "ceiling"]
    assert ceiling["tflops"].tolist() == [pytest.approx(tf.PEAK_TFLOPS)]
    drawn = table[table["kind"] != "ceiling"]
    ranked = figures.squares(loaded.ranked)
    assert len(drawn) == (ranked["cache_mode"] == "rotating").sum()


def test_drawings_keep_their_scale_and_lose_digits_that_nobody_sees(typical: Path) -> None:
    for path in sorted((typical / "figures").glob("*.svg")):
        drawing = path.read_text(encoding="utf-8")
        moved = re.findall(r" d=\"([^\"]*)\"|translate\(([^)]*)\)", drawing)
        assert moved and not re.search(r"\.\d{3}", " ".join(map("".join, moved))), path.name
        scales = set(re.findall(r"scale\(([^)]*)\)", drawing))
        assert not scales or "0.015625" in scales, "glyphs are drawn in 64ths of a point"


def test_equal_tables_give_equal_bytes_in_any_number_of_processes(
    typical: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")
    gpus = typical / "gpus.yaml"
    figures.draw_all(typical / "tables", tmp_path, KERNELS, gpus, style=tf.COARSE, workers=2)
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (typical / "figures").iterdir()
    }
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (typical / "figures" / path.name).read_bytes(), path.name


def test_nothing_in_the_files_tells_when_or_by_what_version_they_were_made(typical: Path) -> None:
    for path in (typical / "figures").glob("*.pdf"):
        assert b"CreationDate" not in path.read_bytes()
    for path in (typical / "figures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "dc:date" not in text
        assert "matplotlib.org" not in text


def test_widths_are_those_of_one_and_two_columns(typical: Path) -> None:
    for suffix, points in (("", 7.2 * 72), ("_single", 3.5 * 72)):
        for path in (typical / "figures").glob(f"*{suffix}.svg"):
            if suffix or not path.stem.endswith("_single"):
                width = re.search(r'width="([\d.]+)pt"', path.read_text(encoding="utf-8"))
                assert width is not None
                assert float(width[1]) == pytest.approx(points)


def test_a_style_changes_how_figures_look_and_not_what_they_show(
    typical: Path, loaded: Results, tmp_path: Path
) -> None:
    style = Figures(
        palette="grey", formats=["svg", "png"], png_dpi=72, font_size_pt=9, grid=False,
        double_column_in=6,
    )  # fmt: skip
    look = figures.looks(loaded, style)[""]
    assert {series.colour for series in look.styles.values()} <= {
        figures.INK, figures.MUTED, *figures.PALETTES["grey"]
    }  # fmt: skip
    table = figures.ladder_table(loaded)
    with mpl.rc_context(figures.rc(style)):
        figure = figures.ladder(table, look)
        names = figures.save(figure, tmp_path / "ladder", style)
    assert set(names) == {"svg", "png"}
    with Image.open(tmp_path / "ladder.png") as image:
        assert image.width == 6 * 72
    labels = [text.get_fontsize() for text in figure.axes[0].get_yticklabels()]
    assert labels == pytest.approx([7 * 9 / 7.5] * len(table))
    csv = pd.read_csv(typical / "figures" / "ladder.csv")
    assert len(csv) == len(table)


@pytest.mark.parametrize("palette", figures.PALETTES)
def test_series_of_one_colour_differ_in_marker_or_dash(palette: str, tmp_path: Path) -> None:
    kernels = tf.tall_ladder(tmp_path / "kernels")
    points, _ = tf.full_sweep(kernels, tf.gpu_run(), squares=(512,), shapes=())
    tf.write(tmp_path / "tables", runs=[tf.gpu_run()], points=points)
    results = figures.load_results(tmp_path / "tables", kernels, tf.gpus_yaml(tmp_path))
    styles = figures.series_styles(results, palette).values()
    assert len({(style.marker, style.dash) for style in styles}) >= len(results.rungs())


def test_a_font_that_is_not_installed_is_named_with_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"figures\.font: no font family 'DejaVu Sand' .*'DejaVu Sans'"
    ):
        figures.rc(Figures(font="DejaVu Sand"))


def test_only_ranked_rows_feed_figures(tmp_path: Path) -> None:
    run = tf.gpu_run()
    rows = [
        tf.point("01_naive", NAIVE, tflops=90.0, status=status, run=run)[0]
        | {"m": n, "n": n, "k": n}
        for n, status in enumerate(Status, start=100)
    ]
    results = results_of(tmp_path, runs=[run], points=rows)
    assert set(results.ranked["status"]) == {str(status) for status in RANKED}
    drawn = [plan.table for plan in figures.plans(results)]
    sizes = {n for table in drawn for n in table.get("n", pd.Series()).dropna()}
    assert sizes <= set(results.ranked["n"])


@pytest.mark.parametrize("case", ["empty", "no files", "only failures", "one point"])
def test_little_data_gives_figures_that_say_so(tmp_path: Path, case: str, rc: None) -> None:
    run = tf.gpu_run()
    if case == "empty":
        results = results_of(tmp_path)
    elif case == "no files":
        results = figures.load_results(tmp_path / "none", KERNELS, tf.gpus_yaml(tmp_path))
    elif case == "only failures":
        rows = [
            tf.failed("01_naive", Status.TIMEOUT, "hung"),
            tf.failed("03_shared_tile", Status.OOM, "full", on_gpu=False),
        ]
        results = results_of(tmp_path, runs=[run], points=rows)
    else:
        results = results_of(tmp_path, runs=[run], **points_of(tf.point("01_naive", NAIVE)))
    for plan in figures.plans(results):
        for width in (figures.SINGLE_COLUMN_IN, figures.DOUBLE_COLUMN_IN):
            figure = plan.draw(plan.table, look_of(results, width))
            figure.draw_without_rendering()
            said = re.search(r"No (square|parameter|kernel|rectangular|size|point) ", words(figure))
            assert bool(said) == plan.table.empty, plan.name
        assert ("Nothing could be drawn" in figures.caption(plan, results)) == plan.table.empty
        if case != "one point":
            assert plan.table.empty


def test_figures_that_some_sets_lack_say_so_if_they_are_drawn_all_the_same(
    tmp_path: Path, rc: None
) -> None:
    results = figures.load_results(tmp_path, KERNELS, tf.gpus_yaml(tmp_path))
    tables_and_drawings = [
        (figures.steps_table(results), steps.steps_figure),
        (figures.predictions_table(results), steps.predictions_figure),
        (figures.hierarchical_table(results), rooflines.hierarchical_roofline),
        (figures.projection_table(results), rooflines.projection),
        (figures.pairs_table(results, "01_naive"), sweeps.pairs_figure),
        (sweeps.block_shape_table(results, "01_naive"), sweeps.block_shape_heatmap),
        (figures.ladder_table(results, family="tensor"), figures.ladder),
        (figures.tflops_by_size_table(results, family="tensor"), figures.tflops_by_size),
    ]
    for table, draw in tables_and_drawings:
        assert table.empty
        assert " | No " in words(draw(table, look_of(results))), draw.__name__


def test_every_replayed_figure_carries_the_mark(tmp_path: Path, rc: None) -> None:
    run = tf.gpu_run(source="replayed")
    pairs = [tf.point(name, {}, run=run) for name in ("cublas_fp32", "cublas_tf32")]
    results = results_of(tmp_path, runs=[run, tf.cpu_run()], **points_of(*pairs))
    mark = "replayed: measured on Synthetic GPU, driver 999.00, 2026-01-02"
    assert figures.origin(results) == mark
    for plan in figures.plans(results):
        assert mark in words(plan.draw(plan.table, look_of(results)))
        assert "Replayed: measured on" in figures.caption(plan, results)


def test_tf32_is_never_ranked_with_fp32(loaded: Results, rc: None) -> None:
    for table in (
        figures.ladder_table(loaded),
        figures.roofline_table(loaded),
        figures.shapes_table(loaded),
    ):
        assert "cublas_tf32" not in set(table["kernel"].dropna())
    assert loaded.reference() == "cublas_fp32"
    figure = figures.tflops_by_size(figures.tflops_by_size_table(loaded), look_of(loaded))
    assert "cuBLAS TF32: not FP32 accurate, own scale" in words(figure)
    strip, main = figure.axes
    assert main.get_ylim()[1] < 1.2 * tf.PEAK_TFLOPS < strip.get_ylim()[1]


def test_the_newest_runs_gpu_is_shown_and_others_are_only_named(tmp_path: Path) -> None:
    old = tf.gpu_run("old", gpu_uuid="GPU-other", gpu_name="Other GPU")
    new = tf.gpu_run("new", started_at=tf.START + timedelta(days=1))
    updated = tf.gpu_run("updated", cublas_version="12.0.0")
    pairs = [
        tf.point("01_naive", NAIVE, run=run, tflops=rate)
        for run, rate in ((old, 9.0), (new, 5.0), (updated, 7.0))
    ]
    results = results_of(tmp_path, runs=[new, old, updated], **points_of(*pairs))
    assert results.gpu_name == "Synthetic GPU"
    assert results.points["run_id"].tolist() == ["new"]
    assert results.samples["run_id"].unique().tolist() == ["new"]
    assert [count for _, count in results.others] == [1, 1]
    assert "Other GPU (GPU-other), driver 999.00" in results.others[0][0]
    assert "cuBLAS 12.0.0" in results.others[1][0]


def test_a_newer_run_without_points_of_its_own_still_picks_its_gpu(tmp_path: Path) -> None:
    first, other = tf.gpu_run("first"), tf.gpu_run("other", gpu_uuid="GPU-other")
    other["started_at"] += timedelta(days=1)
    resumed = tf.gpu_run("resumed", started_at=tf.START + timedelta(days=2))
    pairs = [tf.point("01_naive", NAIVE, run=run) for run in (first, other)]
    results = results_of(tmp_path, runs=[first, other, resumed], **points_of(*pairs))
    assert results.points["run_id"].tolist() == ["first"]
    assert results.run is not None
    assert results.run["run_id"] == "resumed"


def test_rows_that_never_met_a_gpu_stay_with_any_gpu(tmp_path: Path) -> None:
    run = tf.gpu_run()
    skipped = tf.failed(
        "01_naive", Status.SKIPPED_CONSTRAINT, "too wide", on_gpu=False, shape=(7, 7, 7)
    )
    skipped["run_id"] = None
    good, _ = tf.point("01_naive", NAIVE, run=run)
    results = results_of(tmp_path, runs=[run], points=[skipped, good])
    assert len(results.points) == 2
    assert results.others == []


def test_the_best_parameter_set_is_chosen_for_each_size(tmp_path: Path) -> None:
    run = tf.gpu_run()
    pairs = [
        tf.point("01_naive", params, (n, n, n), tflops=rate, run=run)
        for params, n, rate in (
            (NAIVE, 512, 2.0),
            (WIDE, 512, 1.0),
            (NAIVE, 1024, 3.0),
            (WIDE, 1024, 4.0),
        )
    ]
    results = results_of(tmp_path, runs=[run], **points_of(*pairs))
    table = figures.tflops_by_size_table(results)
    fastest = table[table["best"].fillna(False).astype(bool)]
    assert [(row.n, figures.params_label(row.params)) for row in fastest.itertuples()] == [
        (512, "16\u00d716"),
        (1024, "32\u00d78"),
    ]


def test_the_ladder_compares_medians_and_samples(tmp_path: Path) -> None:
    run = tf.gpu_run()
    pairs = [
        tf.point("01_naive", NAIVE, tflops=4.0, run=run),
        tf.point("03_shared_tile", {"TILE": 16}, tflops=8.0, run=run),
        tf.point("cublas_fp32", tflops=16.0, run=run),
    ]
    results = results_of(tmp_path, runs=[run], **points_of(*pairs))
    table = figures.ladder_table(results).set_index("kernel")
    assert table.loc["01_naive", "vs_reference"] == pytest.approx(0.25, rel=0.01)
    assert table.loc["03_shared_tile", "vs_previous"] == pytest.approx(2.0, rel=0.01)
    assert table.loc["03_shared_tile", "verdict_previous"] == "faster"
    assert table.loc["03_shared_tile", "verdict_reference"] == "slower"
    assert pd.isna(table.loc["cublas_fp32", "vs_reference"])
    assert table.loc["01_naive", "vs_reference_low"] < table.loc["01_naive", "vs_reference"]
    direct = stats.ratio_interval(*([s["time_per_launch_ns"] for s in pairs[i][1]] for i in (2, 0)))
    assert table.loc["01_naive", "vs_reference_high"] == direct.high


def test_superseded_and_warm_up_samples_are_left_out(tmp_path: Path) -> None:
    row, samples = tf.point("cublas_fp32")
    samples[0]["superseded"] = True
    samples[1]["phase"] = "warmup"
    samples[2]["superseded"] = None
    results = results_of(tmp_path, runs=[tf.gpu_run()], points=[row], samples=samples)
    assert len(figures.times_of(results, results.points.iloc[0])) == len(samples) - 2


def test_intensity_follows_the_manifests_closed_forms(loaded: Results) -> None:
    table = figures.roofline_table(loaded)
    requested = table[table["traffic"] == "requested"].set_index("kernel")["flop_per_byte"]
    assert requested["01_naive"] == pytest.approx(2 * 4096 / (8 * 4096 + 4))
    assert requested["03_shared_tile"] > requested["01_naive"]
    compulsory = table.loc[table["traffic"] == "compulsory", "flop_per_byte"]
    assert compulsory.tolist() == pytest.approx([4096 / 6] * len(compulsory))
    ridge = table.loc[table["kind"] == "ridge", "flop_per_byte"].iloc[0]
    assert ridge == pytest.approx(tf.PEAK_TFLOPS * 1e3 / 2500)


def test_counts_are_drawn_without_times_and_say_who_counted(tmp_path: Path, rc: None) -> None:
    results = results_of(tmp_path, runs=[tf.cpu_run()], counters=tf.counted_ladder(KERNELS))
    table = figures.traffic_table(results)
    assert table["label"].tolist() == [
        *(
            "8\u00d732",
            "16\u00d716",
            "32\u00d78",
            "32\u00d732",
            "64\u00d74",
            "128\u00d71",
            "256\u00d71",
        ),
        "TILE 32",
    ]
    assert table["tflops"].isna().all()
    square = table[table["label"] == "16\u00d716"].iloc[0]
    assert square["sectors_per_request"] == 2.0
    assert square["useful_bytes_per_sector"] == 18.0
    assert square["bytes_per_flop"] == 2.0
    for width in (figures.SINGLE_COLUMN_IN, figures.DOUBLE_COLUMN_IN):
        figure = figures.traffic_figure(table, look_of(results, width))
        figure.draw_without_rendering()
        said = words(figure)
        assert "counted on a CPU, exact" in said
        assert "TFLOPS" not in said
        assert not re.search("measured|replayed", said)
    plan = next(plan for plan in figures.plans(results) if plan.name == "traffic")
    text = figures.caption(plan, results)
    assert text.endswith("Counted on a CPU, exact.")
    assert not re.search("easured|eplayed", text)


def test_counts_beside_times_keep_their_origins_apart(loaded: Results, rc: None) -> None:
    table = figures.traffic_table(loaded)
    assert table["tflops"].notna().all()
    said = words(figures.traffic_figure(table, look_of(loaded)))
    assert "counted on a CPU, exact; TFLOPS measured on Synthetic GPU" in said


def test_a_box_is_a_sector_and_its_filling_what_is_used(tmp_path: Path, rc: None) -> None:
    rows = tf.count("01_naive", WIDE, tf.naive_counts(32))
    results = results_of(tmp_path, runs=[tf.cpu_run()], counters=rows)
    figure = figures.traffic_figure(figures.traffic_table(results), look_of(results))
    boxes = figure.axes[0].patches
    assert len(boxes) == 2 * 3  # 2.5 sectors, each a filling and an outline
    filled, outline = boxes[0], boxes[1]
    assert filled.get_height() / outline.get_height() == pytest.approx(26.4 / 32)
    assert boxes[5].get_width() == pytest.approx(0.5)


def test_faulty_kernels_are_not_drawn(tmp_path: Path) -> None:
    bad = tf.count("01_naive", NAIVE, tf.naive_counts(16), status=Status.RACE, detail="line 9")
    results = results_of(tmp_path, runs=[tf.cpu_run()], counters=bad)
    assert figures.traffic_table(results).empty


def test_a_gpu_without_a_datasheet_has_no_bandwidth_roof(tmp_path: Path, rc: None) -> None:
    run = tf.gpu_run(gpu_name="Unlisted GPU")
    results = results_of(tmp_path, runs=[run], **points_of(tf.point("01_naive", NAIVE, run=run)))
    table = figures.roofline_table(results)
    assert table["memory_gb_s"].isna().all()
    figure = figures.roofline(table, look_of(results))
    assert "datasheet" not in words(figure)
    assert "FP32 peak" in words(figure)


def test_a_kernel_that_no_manifest_knows_is_drawn_all_the_same(tmp_path: Path, rc: None) -> None:
    run = tf.gpu_run()
    results = results_of(
        tmp_path, runs=[run], **points_of(tf.point("99_mine", {"A": 1}, tflops=3.0, run=run))
    )
    for plan in figures.plans(results):
        plan.draw(plan.table, look_of(results)).draw_without_rendering()
    assert figures.ladder_table(results)["series"].tolist() == ["99_mine"]


def test_kernels_with_equal_titles_stay_apart(tmp_path: Path, rc: None) -> None:
    names = ("mine", "yours")
    kernels = {name: tf.with_changes(KERNELS["01_naive"], title="Same") for name in names}
    run = tf.gpu_run()
    rows = [
        tf.point(name, NAIVE, tflops=rate, run=run)[0]
        for name, rate in zip(names, (3.0, 4.0), strict=True)
    ]
    tf.write(tmp_path / "tables", runs=[run], points=rows)
    results = figures.load_results(tmp_path / "tables", kernels, tf.gpus_yaml(tmp_path))
    table = figures.ladder_table(results)
    assert table["series"].tolist() == ["Same (mine)", "Same (yours)"]
    assert len(figures.ladder(table, look_of(results)).axes[0].patches) == 2


def test_a_tall_ladder_keeps_its_series_apart(tmp_path: Path, rc: None) -> None:
    kernels = tf.tall_ladder(tmp_path / "kernels")
    run = tf.gpu_run()
    points, samples = tf.full_sweep(kernels, run, squares=(512, 1024), shapes=())
    tf.write(tmp_path / "tables", runs=[run], points=points, samples=samples)
    results = figures.load_results(tmp_path / "tables", kernels, tf.gpus_yaml(tmp_path))
    styles = figures.series_styles(results)
    rungs = [styles[results.title(name)] for name in results.rungs()]
    assert len({(style.marker, style.dash) for style in rungs}) == len(rungs) == 14
    figure = figures.tflops_by_size(figures.tflops_by_size_table(results), look_of(results))
    figure.draw_without_rendering()
    labels = sorted(text.xyann[1] for text in figure.axes[-1].texts)  # type: ignore[attr-defined]
    assert min(b - a for a, b in pairwise(labels)) > 0.03


def test_what_an_earlier_run_drew_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = ["shapes", "block_shape_01_naive"]
    every = figures.plans
    monkeypatch.setattr(
        drawing, "plans", lambda results: (p for p in every(results) if p.name in drawn)
    )
    run, out, gpus = tf.gpu_run(), tmp_path / "figures", tf.gpus_yaml(tmp_path)
    pairs = [tf.point("01_naive", params, run=run) for params in (NAIVE, WIDE)]
    tf.write(tmp_path / "tables", runs=[run], **points_of(*pairs))
    figures.draw_all(tmp_path / "tables", out, KERNELS, gpus)
    assert (out / "block_shape_01_naive.svg").is_file()
    (out / "mine.txt").write_text("a user's file", encoding="utf-8")
    drawn.pop()
    figures.draw_all(tmp_path / "tables", out, KERNELS, gpus)
    assert {path.name.split(".")[0] for path in out.iterdir()} == {
        "shapes",
        "shapes_single",
        "figures",
        "mine",
    }


def test_the_last_digits_of_a_layout_reach_no_file(tmp_path: Path) -> None:
    """As a layout solver leaves them: equal to any eye, not to the last bit."""
    written = []
    for index, noise in enumerate([0.0, 3e-16, -2e-12]):
        figure = Figure(figsize=(2, 2))
        axes = figure.add_axes((0.2 + noise, 0.2, 0.7, 0.7 - noise))
        axes.plot([0, 1], [0, 1])
        with mpl.rc_context({"svg.hashsalt": "test"}):
            names = figures.save(figure, tmp_path / f"figure{index}")
        written.append({kind: (tmp_path / name).read_bytes() for kind, name in names.items()})
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize(
    ("params", "label"),
    [
        ({"BLOCK_X": 32, "BLOCK_Y": 8}, "32\u00d78"),
        ({"TILE": 16}, "TILE 16"),
        ({}, ""),
        ({"BK": 8, "BM": 64, "BN": 32}, "64\u00d732\u00d78"),
        ({"BK": 8, "BM": 64, "BN": 32, "TM": 8}, "64\u00d732\u00d78, TM 8"),
        (
            {"BK": 8, "BM": 64, "BN": 32, "STAGES": 3, "TM": 8, "TN": 4},
            "64\u00d732\u00d78, 8\u00d74 each, STAGES 3",
        ),
    ],
)
def test_parameter_sets_have_short_labels(params: dict[str, int], label: str) -> None:
    assert figures.params_label(json.dumps(params)) == label


def test_beside_a_tile_a_label_names_what_tells_sets_apart() -> None:
    sets = [json.dumps({"BM": 64, "BN": 32, "GROUP": group, "STAGES": 3}) for group in (1, 8)]
    tile = "64\u00d732"
    assert figures.params_label(sets[0], sets) == f"{tile}, GROUP 1"
    assert figures.params_label(sets[0], sets[:1]) == figures.params_label(sets[0], []) == tile
    assert figures.params_label('{"TILE":16}', []) == "TILE 16"


def with_trials(folder: Path, *trials: tuple[dict[str, int], float, str]) -> None:
    """The table of a search beside the others: parameters, TFLOPS and status of each set."""
    rows = [
        {"kernel": "01_naive", "params": tf.canonical(params), "m": 1024, "n": 1024, "k": 1024,
         "status": status, "tflops": tflops, "gpu_name": tf.GPU_NAME}
        for params, tflops, status in trials
    ]  # fmt: skip
    table = schema.table(TRIALS, rows)
    schema.write(folder / "tune" / "01_naive.parquet", "trials", table)


def test_pairs_of_parameters_show_the_fastest_set_of_a_sweep_or_a_search(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    shape = (1024, 1024, 1024)
    tf.write(folder, runs=[tf.gpu_run()],
             **points_of(tf.point("01_naive", NAIVE, shape, tflops=2.0)))  # fmt: skip
    with_trials(
        folder,
        (WIDE, 3.0, "ok"),
        ({"BLOCK_X": 32, "BLOCK_Y": 16}, 4.0, "ok"),
        ({"BLOCK_X": 16, "BLOCK_Y": 8}, 1.0, "ok"),
        ({"BLOCK_X": 64, "BLOCK_Y": 8}, 9.0, "wrong_result"),
    )
    results = figures.load_results(folder, KERNELS, tf.gpus_yaml(tmp_path))
    table = figures.pairs_table(results, "01_naive")
    cells = {(row.x_value, row.y_value): row.tflops for row in table.itertuples()}
    expected = {(16, 16): 2.0, (32, 8): 3.0, (32, 16): 4.0, (16, 8): 1.0}
    assert cells == pytest.approx(expected, rel=0.02)
    assert set(zip(table["x"], table["y"], strict=True)) == {("BLOCK_X", "BLOCK_Y")}
    assert table["samples"].notna().sum() == 1


def test_values_that_always_went_together_are_no_pair(tmp_path: Path) -> None:
    sets = [{"BLOCK_X": x, "BLOCK_Y": 256 // x} for x in (8, 16, 32, 64)]
    pairs = [tf.point("01_naive", params) for params in sets]
    results = results_of(tmp_path, runs=[tf.gpu_run()], **points_of(*pairs))
    assert figures.pairs_table(results, "01_naive").empty


def test_families_are_never_ranked_together(tmp_path: Path, rc: None) -> None:
    naive = KERNELS["01_naive"]
    cores = TensorCores(inputs="tf32", products=3)
    kernels = {**KERNELS, "tensor_one": dataclasses.replace(
        tf.with_changes(naive, family="tensor", tensor_cores=cores, title="On tensor cores"),
        name="tensor_one",
    )}  # fmt: skip
    run = tf.gpu_run()
    rates = {"01_naive": 5.0, "tensor_one": 99.0, "cublas_fp32": 40.0}
    pairs = [tf.point(name, NAIVE, run=run, tflops=rate) for name, rate in rates.items()]
    tf.write(tmp_path / "tables", runs=[run], **points_of(*pairs))
    results = figures.load_results(tmp_path / "tables", kernels, tf.gpus_yaml(tmp_path))
    for plan in figures.plans(results):
        if "kernel" in plan.table and plan.name not in {"accuracy", "drift"}:
            together = set(plan.table["kernel"].dropna())
            assert together.isdisjoint({"tensor_one"}) or together == {"tensor_one"}, plan.name
    assert figures.ladder_table(results, family="tensor")["kernel"].tolist() == ["tensor_one"]
    names = {plan.name for plan in figures.plans(results)}
    assert {"ladder", "ladder_tensor", "tflops_by_size", "tflops_by_size_tensor"} <= names


def test_public_ladders_are_drawn_on_their_own_gpu_alone_and_say_whose_they_are(
    tmp_path: Path, rc: None
) -> None:
    sheets = tf.gpus_yaml(tmp_path)
    head = "gpu_name,series,source,kernel,m,n,k,samples,time_median_ns"
    rows = [f"{name},Theirs,example.org/theirs,best,1024,1024,1024,9,{time}"
            for name, time in ((tf.GPU_NAME, 2e6), ("Other GPU", 1e6))]  # fmt: skip
    (tmp_path / "public.csv").write_text("\n".join(["# how", head, *rows]), encoding="utf-8")
    run = tf.gpu_run()
    pairs = [tf.point("01_naive", NAIVE, (n, n, n), run=run) for n in (512, 1024)]
    tf.write(tmp_path / "tables", runs=[run], **points_of(*pairs))
    results = figures.load_results(tmp_path / "tables", KERNELS, sheets)
    plan = next(plan for plan in figures.plans(results) if plan.name == "tflops_by_size")
    public = plan.table[plan.table["kind"] == "public"]
    assert public["tflops"].tolist() == [pytest.approx(2 * 1024**3 / 2e6 / 1e3)]
    assert "Theirs*" in words(plan.draw(plan.table, look_of(results)))
    assert "Theirs, example.org/theirs" in figures.caption(plan, results)
    assert "01_naive" in set(figures.ladder_table(results)["kernel"])
    assert "Theirs" not in set(figures.ladder_table(results)["series"])
    (tmp_path / "public.csv").write_text("gpu,time\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"public\.csv: the columns are gpu, time; they must be"):
        figures.load_results(tmp_path / "tables", KERNELS, sheets)


def test_the_projects_own_table_of_public_ladders_is_readable(tmp_path: Path) -> None:
    run = tf.gpu_run(gpu_name="NVIDIA H200")
    tf.write(tmp_path, runs=[run], **points_of(tf.point("01_naive", NAIVE, run=run)))
    results = figures.load_results(tmp_path, KERNELS, ROOT / "config" / "gpus.yaml")
    assert set(results.public["series"]) == {"SGEMM_CUDA", "sgemm.cu"}
    rates = 2.0 * results.public["n"] ** 3 / results.public["time_median_ns"] / 1e3
    assert rates.between(0.1, 67).all()


def test_drift_is_that_of_the_sentinel_and_of_points_between_rounds(tmp_path: Path) -> None:
    run = tf.gpu_run(sentinel_times_ns="[1000.0, 1010.0, 990.0]")
    row, samples = tf.point("cublas_fp32")
    for sample in samples:
        sample["time_per_launch_ns"] = 100.0 + 3.0 * sample["round"]
    results = results_of(tmp_path, runs=[run], points=[row], samples=samples)
    table = figures.drift_table(results)
    sentinel = table[table["what"] == "sentinel"]
    assert sentinel["change_pct"].tolist() == pytest.approx([0.0, 1.0, -1.0])
    assert table[table["what"] == "rounds"]["change_pct"].tolist() == pytest.approx([3.0])
    spread = figures.samples_table(results)
    assert sorted(set(spread["time_ns"])) == [100.0, 103.0]
    assert len(spread) == len(samples)


def test_accuracy_is_the_worst_of_a_kernel_at_each_k(tmp_path: Path) -> None:
    rows = [
        tf.point("01_naive", params, (m, 64, 64), eta_max=eta, eta_rms=eta / 10)[0]
        for params, m, eta in ((NAIVE, 64, 2.0), (WIDE, 64, 5.0), (NAIVE, 128, 3.0))
    ]
    results = results_of(tmp_path, runs=[tf.gpu_run()], points=rows)
    (row,) = figures.accuracy_table(results).to_dict("records")
    assert (row["k"], row["points"], row["eta_max"], row["eta_rms"]) == (64, 3, 5.0, 0.5)
    assert row["elements"] == 128 * 64


def test_energy_is_work_over_joules_and_leaves_out_what_was_not_read(tmp_path: Path) -> None:
    known = {"energy_per_launch_j": 2.0, "gflops_per_w": 30.0, "energy_span_s": 1.0}
    pairs = [tf.point("cublas_fp32", **known), tf.point("01_naive", NAIVE)]
    results = results_of(tmp_path, runs=[tf.gpu_run()], **points_of(*pairs))
    (row,) = figures.energy_table(results).to_dict("records")
    assert row["kernel"] == "cublas_fp32"
    assert row["power_w"] == pytest.approx(2.0 / row["time_median_ns"] * 1e9)


def test_a_sweep_without_any_time_has_no_figure(tmp_path: Path) -> None:
    tables = points_of(tf.point("01_naive", NAIVE), tf.point("01_naive", WIDE))
    tables["points"] += [
        tf.failed("03_shared_tile", Status.SKIPPED_UNSUPPORTED, "no GPU", params={"TILE": tile})
        for tile in (8, 16)
    ]
    results = results_of(tmp_path, runs=[tf.gpu_run()], **tables)
    assert figures.swept_kernels(results) == ["01_naive"]


def test_copies_of_tma_count_as_sectors_and_not_as_requests(tmp_path: Path) -> None:
    loads = tf.naive_counts(16)
    copied = {**tf.tiled_counts(32), TMA_LOAD_BYTES: 3.2e6, TMA_LOAD_SECTORS: 1e5}
    size = (2048, 2048, 2048)
    counters = tf.count("01_naive", NAIVE, loads, size)
    counters += tf.count("03_shared_tile", {"TILE": 32}, copied, size)
    results = results_of(tmp_path, runs=[tf.cpu_run()], counters=counters)
    assert set(figures.traffic_table(results)["kernel"]) == {"01_naive"}
    by_kernel = {point.kernel: point for point in results.counted}
    own = copied["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    assert traffic.sectors(by_kernel["03_shared_tile"]) == own + 1e5


def test_labels_are_moved_apart_but_stay_in_order() -> None:
    placed = figures.spread([0.5, 0.5, 0.52, 0.1], 0.1, 0.0, 1.0)
    assert placed[3] == pytest.approx(0.1)
    middle = sorted(placed[:3])
    assert middle[1] - middle[0] == pytest.approx(0.1, abs=1e-3)
    assert placed[2] == max(placed)


def test_values_of_marks_are_written_as_on_the_axis_and_sizes_in_full() -> None:
    axis = Figure().subplots().xaxis
    axis.set_major_locator(FixedLocator([256, 4096]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}!"))
    assert [marks._value(axis, value) for value in (4096.0, 16384.0, 0.123456, 2.5e7)] == [
        "4096!", "16384", "0.1235", "2.5e+07",
    ]  # fmt: skip
