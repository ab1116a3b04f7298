"""The step model: bounds from counts and ceilings, their norm, and what it says of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tables_fixture as tf
from ladder import figures, model, report
from ladder.emulator.compiled import FFMA, INSTRUCTIONS
from ladder.emulator.result import (
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    GLOBAL_STORE_REQUESTS,
    GLOBAL_STORE_SECTORS,
    SHARED_LOAD_WAVEFRONTS,
    SHARED_STORE_WAVEFRONTS,
    TMA_LOAD_BYTES,
)
from ladder.figures import Results
from ladder.hardware import DRAM_READ, DRAM_WRITTEN, GLOBAL_TAGS
from ladder.manifest import load_all
from ladder.model import Demand, Machine, demand_of, machine_of, norm, norm_exponent, predict

KERNELS = tf.repository_kernels()
RUN = tf.gpu_run()
H200 = Machine(132, 252.0, 0.99, 5500.0, 4100.0, 1.9)
NAIVE, WIDE, TILE = {"BLOCK_X": 16, "BLOCK_Y": 16}, {"BLOCK_X": 32, "BLOCK_Y": 8}, {"TILE": 32}
N = 2048
TIMES = st.floats(1.0, 1e6)


# --- the machine ----------------------------------------------------------------------------------


@given(first=TIMES, second=TIMES, p=st.floats(1.1, 6.0))
def test_the_exponent_is_the_one_that_gives_the_time_together(
    first: float, second: float, p: float
) -> None:
    together = norm((first, second), p)
    found = norm((first, second), norm_exponent(first, second, together))
    assert found == pytest.approx(together, rel=1e-6)


def test_the_exponent_ends_where_nothing_or_everything_overlaps() -> None:
    assert norm_exponent(2.0, 1.0, 3.5) == 1.0
    assert norm_exponent(2.0, 1.0, 1.9) == 16.0


def test_the_machine_is_what_its_ceilings_say() -> None:
    machine = machine_of({row["name"]: row for row in tf.ceilings(RUN)})
    assert machine is not None
    assert (machine.sms, machine.flop_per_clock) == (100, 250.0)
    assert machine.lines_per_clock == pytest.approx(126 / 128)
    assert machine.l2_gb_s == pytest.approx(22 * 100 * 1.6)
    # Per trip of a warp: 1084 instructions on 4 schedulers, 48 loads of 512 bytes at 252 a clock,
    # and 1024 multiply-adds of 32 lanes at 224 flop a clock.
    together = norm((1084 / 4, 48 * 512 / 252), machine.norm)
    assert together == pytest.approx(1024 * 64 / 224, rel=1e-6)


@pytest.mark.parametrize("missing", model.NEEDED_CEILINGS)
def test_without_a_ceiling_there_is_no_model(missing: str) -> None:
    rows = {row["name"]: row for row in tf.ceilings(RUN) if row["name"] != missing}
    assert machine_of(rows) is None


# --- one launch -----------------------------------------------------------------------------------


def test_the_naive_kernel_is_bound_by_the_lines_that_l1_looks_up() -> None:
    """By hand, at 2048 on an H200: published medians are 3.147, 5.208 and 2.573 ms."""
    pairs = N**3 / 32  # of loads, one of A and one of B
    for lines_per_pair, measured_ms in ((3, 3.147), (5, 5.208), (2, 2.573)):
        demand = Demand(
            instructions=4.585 * pairs,
            ffma=float(N**3),
            wavefronts=0.0,
            lines=lines_per_pair * pairs,
            l2_bytes=None,
            dram_bytes=12.0 * N * N,
        )
        found = predict(demand, H200, clock_mhz=1980, blocks=N * N // 256)
        assert found is not None and found.limit == "l1"
        assert found.time_ns / 1e6 == pytest.approx(measured_ms, rel=model.TOLERANCE)


def test_the_sm_with_most_blocks_decides() -> None:
    demand = Demand(1e9, 1e9, 0.0, 0.0, None, None)
    times = {
        blocks: predict(demand, H200, clock_mhz=1980, blocks=blocks) for blocks in (66, 132, 133)
    }
    assert [round(item.imbalance, 3) for item in times.values() if item] == [2.0, 1.0, 1.985]
    even = predict(demand, H200, clock_mhz=1980, blocks=None)
    assert even is not None and even.imbalance == 1.0


@given(times=st.lists(TIMES, min_size=1, max_size=4), p=st.floats(1.0, 16.0))
def test_no_time_is_shorter_than_its_longest_part_or_longer_than_all_in_turn(
    times: list[float], p: float
) -> None:
    together = norm(tuple(times), p)
    assert max(times) * (1 - 1e-9) <= together <= sum(times) * (1 + 1e-9)


def test_hardware_counts_go_first_and_what_is_a_bound_is_said() -> None:
    counts = {
        INSTRUCTIONS: 10.0, FFMA: 100.0, SHARED_LOAD_WAVEFRONTS: 6.0, SHARED_STORE_WAVEFRONTS: 2.0,
        GLOBAL_LOAD_REQUESTS: 3.0, GLOBAL_LOAD_SECTORS: 24.0, GLOBAL_STORE_REQUESTS: 2.0,
        GLOBAL_STORE_SECTORS: 2.0, TMA_LOAD_BYTES: 256.0,
    }  # fmt: skip
    demand = demand_of(counts, bytes_min=1000.0)
    assert demand.wavefronts == 8 + 2  # two lines arrive by TMA
    assert demand.lines == 6 + 2  # 24 sectors need six lines, two requests two
    assert (demand.l2_bytes, demand.dram_bytes) == (None, 1000.0)
    assert len(demand.notes) == 3
    better = demand_of(
        counts
        | {GLOBAL_TAGS: 20.0, "l1tex__m_xbar2l1tex_read_bytes.sum": 640.0, DRAM_READ: 300.0,
           DRAM_WRITTEN: 50.0},
        bytes_min=1000.0,
    )  # fmt: skip
    assert (better.lines, better.l2_bytes, better.dram_bytes) == (20, 640 + 64, 350)
    assert better.notes == ()


def test_unknown_instructions_or_accesses_give_no_time() -> None:
    for unknown in ({"instructions": None}, {"wavefronts": None}, {"lines": None}):
        values: dict[str, Any] = {"instructions": 1.0, "wavefronts": 1.0, "lines": 1.0}
        demand = Demand(**(values | unknown), ffma=1.0, l2_bytes=None, dram_bytes=None)
        assert predict(demand, H200, clock_mhz=1980, blocks=1) is None


# --- steps ----------------------------------------------------------------------------------------


@given(
    before=st.lists(TIMES, min_size=4, max_size=4),
    after=st.lists(TIMES, min_size=4, max_size=4),
    p=st.floats(1.0, 4.0),
)
def test_the_shares_of_a_step_are_all_of_it(
    before: list[float], after: list[float], p: float
) -> None:
    sides = [
        model.Prediction(
            norm(tuple(times), p), dict(zip(model.RESOURCES, times, strict=True)), "l1", 1.0
        )
        for times in (before, after)
    ]
    shares = model.step_shares(*sides, p)
    if shares is None:
        assert sides[0].time_ns == pytest.approx(sides[1].time_ns, rel=1.001 * model.SAME)
    else:
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)


def test_a_step_counted_differently_on_both_sides_is_not_split() -> None:
    first = model.Prediction(2.0, {"instructions": 2.0, "l1": 1.0}, "issue", 1.0)
    second = model.Prediction(1.0, {"instructions": 1.0, "l1": 0.5, "l2": 0.1}, "issue", 1.0)
    assert model.step_shares(first, second, 2.0) is None


@pytest.mark.parametrize(
    ("modelled", "measured", "explained"),
    [
        (1.39, 1.46, True),
        (0.82, 0.82, True),
        (1.03, 1.36, False),  # far off
        (1.29, 1.13, False),  # near in the ratio, and more than twice the gain
        (1.07, 1.15, False),  # near in the ratio, and less than half of the gain
        (0.99, 1.02, True),  # nothing happened, and the model says so
        (1.08, 1.02, False),
        (0.97, 1.07, False),  # the other direction
    ],
)
def test_a_speed_up_is_explained_by_most_of_it_and_not_by_much_more(
    modelled: float, measured: float, explained: bool
) -> None:
    assert model.explains_step(modelled, measured) == explained


# --- from the tables ------------------------------------------------------------------------------


def modelled(
    folder: Path,
    speed: dict[str, float] | None = None,
    ceilings: list[tf.Row] | None = None,
    **columns: float,
) -> Results:
    """Two rungs at N = 2048, counted by hardware, as fast as the model says times `speed`.

    Args:
        columns: further ones of `points`.
    """
    machine = machine_of({row["name"]: row for row in tf.ceilings(RUN)})
    assert machine is not None
    points, samples, counters = [], [], []
    for kernel, params, lines, instructions in (
        ("01_naive", WIDE, 2.0, 4.6),
        ("03_shared_tile", TILE, 1.6, 3.0),
    ):
        warps_k = N**3 / 32
        counts = {
            INSTRUCTIONS: instructions * warps_k,
            FFMA: float(N**3),
            SHARED_LOAD_WAVEFRONTS: 0.0 if kernel == "01_naive" else 1.5 * warps_k,
            SHARED_STORE_WAVEFRONTS: 0.0,
            GLOBAL_TAGS: (lines if kernel == "01_naive" else 0.1) * warps_k,
            "l1tex__m_xbar2l1tex_read_bytes.sum": 8e9 if kernel == "01_naive" else 1e9,
            DRAM_READ: 8.0 * N * N,
            DRAM_WRITTEN: 4.0 * N * N,
        }
        counters += tf.count(kernel, params, counts, source="hardware", architecture="sm_90")
        demand = demand_of(counts, 12.0 * N * N)
        found = predict(demand, machine, clock_mhz=1600, blocks=100)
        assert found is not None
        factor = (speed or {}).get(kernel, 1.0)
        row, some = tf.point(
            kernel, params, (N, N, N), tflops=2 * N**3 / found.time_ns / 1e3 * factor, run=RUN,
            sm_clock_mean_mhz=1600.0, grid_x=10, grid_y=10, grid_z=1, **columns,
        )  # fmt: skip
        points.append(row)
        samples += some
    given = tf.ceilings(RUN) if ceilings is None else ceilings
    tf.write(folder, runs=[RUN], points=points, samples=samples, counters=counters, ceilings=given)
    return figures.load_results(folder, KERNELS, tf.gpus_yaml(folder.parent))


def test_a_step_is_explained_where_model_and_time_agree(tmp_path: Path) -> None:
    table = figures.steps_table(modelled(tmp_path / "tables")).set_index("kernel")
    assert table["counted_by"].tolist() == ["hardware", "hardware"]
    assert table["model_error_pct"].abs().max() < 1
    step = table.loc["03_shared_tile"]
    assert step["explained"] and step["limit"] == "l1"
    assert step["model_vs_previous"] == pytest.approx(step["vs_previous"], rel=0.02)
    shares = [step[f"share_{name}"] for name in model.RESOURCES]
    assert sum(shares) == pytest.approx(1.0) and step["share_dram"] == pytest.approx(0.0)
    assert pd.isna(table.loc["01_naive", "vs_previous"])


def test_a_step_is_not_explained_where_the_model_is_off(tmp_path: Path) -> None:
    slow = figures.steps_table(modelled(tmp_path / "tables", {"03_shared_tile": 0.6}))
    step = slow.set_index("kernel").loc["03_shared_tile"]
    assert step["model_error_pct"] == pytest.approx(-40, abs=1)
    assert not step["explained"]


def test_ceilings_of_another_gpu_or_that_failed_are_not_used(tmp_path: Path) -> None:
    cases = {
        "other": tf.ceilings(tf.gpu_run(gpu_name="Other GPU")),
        "failed": tf.ceilings(RUN, l2={"status": "implausible"}),
    }
    for name, ceilings in cases.items():
        results = modelled(tmp_path / name / "tables", ceilings=ceilings)
        assert figures.steps_table(results).empty, name


PUBLISHED = tf.ROOT / "results/published/nvidia-h200"


@pytest.mark.skipif(
    not (PUBLISHED / "ceilings.parquet").exists(), reason="published without ceilings"
)
def test_the_model_holds_for_two_thirds_of_the_published_rungs() -> None:
    kernels = load_all(tf.ROOT / "kernels")
    results = figures.load_results(PUBLISHED, kernels, tf.ROOT / "config/gpus.yaml")
    table = figures.steps_table(results)
    rungs = table[table["kind"] == "rung"]
    assert (rungs["model_error_pct"].abs() <= 100 * model.TOLERANCE).mean() >= 2 / 3


# --- in the report --------------------------------------------------------------------------------


def test_a_step_is_told_with_its_counters_their_share_and_the_limit_now(tmp_path: Path) -> None:
    results = modelled(tmp_path / "tables")
    view = report.steps_view(results)
    (sentence,) = view["sentences"]
    table = figures.steps_table(results).set_index("kernel")
    share = report.percent(table.loc["03_shared_tile", "share_l2"], 2)
    for said in (
        "From 1 Naive to 3 Shared tile: ",
        "by measurement",
        "by the model. What moved: ",
        f"bytes of L2 8.00\u202fG \u2192 1.00\u202fG (\u221287.5\u202f%): {share}",
        "warp instructions 1.23\u202fG \u2192 805\u202fM",
        "What limits 3 Shared tile: the data path of L1 and shared memory.",
    ):
        assert said in sentence, said
    assert "DRAM" not in sentence  # nothing moved there
    assert "for 2 of 2 rungs" in view["intro"]


def test_the_report_says_where_the_model_fails(tmp_path: Path) -> None:
    view = report.steps_view(modelled(tmp_path / "tables", {"03_shared_tile": 0.6}))
    assert "for 1 of 2 rungs. It fails for 3 Shared tile (\u221240.0\u202f%)." in view["intro"]
    (sentence,) = view["sentences"]
    assert "which does not explain it; its time is off, that of 3 Shared tile by" in sentence
    assert "bytes of L2 8.00" in sentence and "of the saving" not in sentence


def test_the_largest_step_is_told_by_the_counters_that_are_known(tmp_path: Path) -> None:
    table = figures.steps_table(modelled(tmp_path / "tables")).astype(object)
    counters = ["instructions", "wavefronts", "lines", "l2_bytes", "dram_bytes"]
    table.loc[:, counters] = None  # as without a GPU's counters
    table["explained"] = None
    told = report.largest_step(table)
    assert told is not None and "\u2192" not in told[0] and "Shared tile" in told[0]
    table["dram_bytes"] = [8e9, *[1e9] * (len(table) - 1)]
    told = report.largest_step(table)
    assert told is not None and "bytes of DRAM" in told[0]


def test_without_ceilings_no_step_is_explained_and_the_report_says_why(tmp_path: Path) -> None:
    view = report.steps_view(modelled(tmp_path / "tables", ceilings=[]))
    assert view["grid"] is None and view["sentences"] == []
    assert "no measured ceilings of its GPU" in view["intro"]


def test_the_page_has_steps_ceilings_and_energy(tmp_path: Path) -> None:
    results = modelled(tmp_path / "tables", gflops_per_w=80.0, energy_per_launch_j=0.2)
    assert results.ceilings
    out = tmp_path / "report.html"
    gpus = tf.gpus_yaml(tmp_path)
    tables, figures_dir = tmp_path / "tables", tmp_path / "figures"
    report.render(tables, figures_dir, KERNELS, gpus, out, formats=("html",))
    html = out.read_text(encoding="utf-8")
    section = html[html.index('<section id="steps"') :].partition("</section>")[0]
    assert "1024 FFMA, 48 LDS.128" in section
    section = html[html.index('<section id="energy-section"') :].partition("</section>")[0]
    for said in ("does most for a watt: 80.0", "J per product"):
        assert said in section, said


# --- rooflines ------------------------------------------------------------------------------------


def test_measured_roofs_stand_beside_the_datasheets(tmp_path: Path) -> None:
    results = modelled(tmp_path / "tables")
    table = figures.roofline_table(results)
    roofs = table[table["kind"] == "roof"]
    measured = roofs[roofs["measured"].astype(bool)]
    assert measured["tflops"].dropna().tolist() == pytest.approx([250 * 160e9 / 1e12])
    assert measured["memory_gb_s"].dropna().tolist() == pytest.approx([14 * 160.0])
    assert set(roofs["measured"]) == {True, False}


def test_intensity_at_a_level_is_flop_over_its_bytes(tmp_path: Path) -> None:
    table = figures.hierarchical_table(modelled(tmp_path / "tables"))
    naive = table[table["kernel"] == "01_naive"].set_index("level")["flop_per_byte"]
    assert naive["l2"] == pytest.approx(2 * N**3 / 8e9)
    assert naive["dram"] == pytest.approx(2 * N**3 / (12 * N * N))
    assert "shared" not in naive
    tile = table[table["kernel"] == "03_shared_tile"].set_index("level")["flop_per_byte"]
    assert tile["shared"] == pytest.approx(2 * N**3 / (128 * 1.5 * N**3 / 32))
    roofs = table[table["kind"] == "roof"].set_index("series")["memory_gb_s"].dropna()
    assert {"L1", "shared memory", "L2", "DRAM, copy"} <= set(roofs.index)


def test_another_gpus_roofline_is_a_projection_and_claims_no_measurement(tmp_path: Path) -> None:
    """The RTX 5080: 84 x 128 x 2 x 2.617 GHz = 56.28 TFLOPS over 960 GB/s, 58.625 flop/byte."""
    tf.write(tmp_path / "tables", runs=[RUN], points=[tf.point("01_naive", NAIVE)[0]])
    results = figures.load_results(tmp_path / "tables", KERNELS, tf.ROOT / "config/gpus.yaml")
    table = figures.projection_table(results)
    ridge = table[table["kind"] == "ridge"].iloc[0]
    assert ridge["flop_per_byte"] == pytest.approx(58.625)
    assert not {"tflops", "time_median_ns", "samples"} & set(table.columns)
    naive = table[table["traffic"] == "requested"].iloc[0]
    assert naive["bound_tflops"] == pytest.approx(naive["flop_per_byte"] * 0.96)
    plan = next(plan for plan in figures.plans(results) if plan.name == "roofline_projected")
    assert "nothing was measured on a GeForce RTX 5080" in figures.caption(plan, results)


def test_the_projected_gpu_itself_has_no_projection(tmp_path: Path) -> None:
    run = tf.gpu_run(gpu_name="NVIDIA GeForce RTX 5080")
    tf.write(tmp_path / "tables", runs=[run], points=[tf.point("01_naive", NAIVE, run=run)[0]])
    results = figures.load_results(tmp_path / "tables", KERNELS, tf.ROOT / "config/gpus.yaml")
    assert figures.projection_table(results).empty
