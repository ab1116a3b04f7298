"""The `counters` table as points, what a table of them shows, and the lesson."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import tables_fixture as tf
from ladder import schema, traffic
from ladder.emulator import result
from ladder.status import Status
from ladder.traffic import Source

KERNELS = tf.repository_kernels()
NAIVE = {"BLOCK_X": 16, "BLOCK_Y": 16}
WIDE = {"BLOCK_X": 32, "BLOCK_Y": 8}
TALL = {"BLOCK_X": 8, "BLOCK_Y": 32}
MACHINE_CODE = Source("compiled", "sm_90a")


def points_of(*groups: list[tf.Row]) -> list[traffic.Point]:
    """What `gather` makes of rows that have been through the table's schema."""
    rows = [row for group in groups for row in group]
    return traffic.gather(schema.table(schema.COUNTERS, rows).to_pylist())


def one(*groups: list[tf.Row]) -> traffic.Point:
    (point,) = points_of(*groups)
    return point


def naive(params: Mapping[str, int]) -> list[tf.Row]:
    return tf.count("01_naive", params, tf.naive_counts(params["BLOCK_X"]))


def as_compiled(values: Mapping[str, float], architecture: str = "sm_90a") -> list[tf.Row]:
    return tf.count("01_naive", NAIVE, values, source="compiled", architecture=architecture)


def test_a_point_holds_every_source() -> None:
    theory = {result.REQUESTED_LOAD_BYTES: 8.0 * 2048**3}
    point = one(
        tf.count("01_naive", NAIVE, theory, source="theory"),
        naive(NAIVE),
        as_compiled({result.GLOBAL_LOAD_REQUESTS: 1.0}),
    )
    assert set(point.values) == {traffic.THEORY, traffic.EMULATOR, MACHINE_CODE}
    assert point.lead == traffic.EMULATOR
    assert point.status == Status.OK
    assert point.size == (2048, 2048, 2048)


@pytest.mark.parametrize(
    ("params", "sectors", "per_request", "useful"),
    [
        (NAIVE, 1_073_741_824, 2.0, 18.0),
        (WIDE, 1_342_177_280, 2.5, 26.4),
        (TALL, 1_342_177_280, 2.5, 9.6),
    ],
)
def test_the_articles_figures_follow(
    params: dict[str, int], sectors: int, per_request: float, useful: float
) -> None:
    point = one(naive(params))
    assert traffic.requests(point) == 536_870_912
    assert traffic.sectors(point) == sectors
    assert traffic.sectors_per_request(point.counts) == per_request
    assert traffic.useful_bytes(point.counts) == pytest.approx(useful)


def test_a_planned_point_without_counts_is_no_emulated_one() -> None:
    point = one(tf.count("01_naive", NAIVE, {result.REQUESTED_LOAD_BYTES: 8.0}, source="theory"))
    assert point.lead is None
    assert traffic.emulated([point]) == []
    assert traffic.common_size([point]) is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.OK, "right"),
        (Status.RACE, "fault"),
        (Status.WRONG_RESULT, "fault"),
        (Status.COMPILE_FAILED, "fault"),
        (Status.MISSING_METRIC, "inexact"),
        (Status.SKIPPED_UNSUPPORTED, "skipped"),
        (Status.SKIPPED_PRECONDITION, "skipped"),
    ],
)
def test_every_status_is_an_outcome(status: Status, expected: str) -> None:
    rows = tf.count("01_naive", NAIVE, {result.SHARED_LOADS: 1.0}, status=status, detail="why")
    point = one(rows)
    assert traffic.outcome(point) == expected
    assert (point.lead is not None) == (expected == "right")


def test_counts_of_a_faulty_kernel_are_not_shown_as_its_traffic() -> None:
    bad = tf.count("01_naive", NAIVE, tf.naive_counts(16), status=Status.RACE, detail="naive.cu:9")
    point = one(bad)
    assert point.lead is None
    assert point.detail == "naive.cu:9"
    assert traffic.ran(point)


def test_a_point_that_could_not_run_says_why() -> None:
    row = tf.not_emulated("01_naive", NAIVE, Status.SKIPPED_UNSUPPORTED, "no g++ or clang++")
    point = one([row])
    assert not traffic.ran(point)
    assert point.missing == {traffic.EMULATOR: "no g++ or clang++"}


def test_without_the_emulator_the_next_source_leads() -> None:
    hardware = tf.count(
        "01_naive", NAIVE, {result.GLOBAL_LOAD_REQUESTS: 2.0}, source="hardware", architecture="x"
    )
    point = one(hardware)
    assert point.lead == Source("hardware", "x")
    assert point.counts == {result.GLOBAL_LOAD_REQUESTS: 2.0}


def test_large_grids_are_sampled_unless_they_cannot_be() -> None:
    kernel = KERNELS["01_naive"]
    small = one(tf.count("01_naive", NAIVE, tf.naive_counts(16), (65, 129, 33)))
    large = one(naive(NAIVE))
    assert traffic.ran_whole(small, None, NAIVE)
    assert not traffic.ran_whole(large, kernel, NAIVE)
    assert not traffic.ran_whole(large, None, NAIVE)


def test_the_common_size_is_the_largest_that_most_kernels_have() -> None:
    points = points_of(
        tf.count("a", {}, {"x": 1.0}, (4096, 4096, 4096)),
        tf.count("a", {}, {"x": 1.0}, (2048, 2048, 2048)),
        tf.count("b", {}, {"x": 1.0}, (2048, 2048, 2048)),
        tf.count("b", {}, {"x": 1.0}, (64, 64, 64)),
        tf.count("a", {}, {"x": 1.0}, (64, 64, 64)),
    )
    assert traffic.common_size(points) == (2048, 2048, 2048)


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = points_of(naive(NAIVE))
    assert traffic.columns(traffic.SHARED_MEMORY, plain) == []
    headings = [quantity.name for quantity in traffic.columns(traffic.GLOBAL_MEMORY, plain)]
    assert "global load sectors" in headings
    assert "sectors copied by TMA" not in headings


def lesson_of(tflops: Mapping[str, float]) -> traffic.Lesson:
    points = points_of(naive(TALL), naive(NAIVE), naive(WIDE))
    names = {"tall": 0, "square": 1, "wide": 2}
    rates = {points[names[name]].key: value for name, value in tflops.items()}
    lesson = traffic.lesson("01_naive", points, rates)
    assert lesson is not None
    return lesson


def test_fewest_sectors_fullest_sectors_and_time_are_three_questions() -> None:
    lesson = lesson_of({"tall": 4.0, "square": 5.5, "wide": 6.6})
    assert ['"BLOCK_X":16' in point.params for point in lesson.fewest] == [True]
    assert ['"BLOCK_X":32' in point.params for point in lesson.fullest] == [True]
    assert lesson.fastest == lesson.fullest[0]
    assert not lesson.fewest_is_fastest
    assert [round(traffic.useful_bytes(p.counts) or 0, 1) for p in lesson.alike] == [9.6, 26.4]


def test_nothing_is_called_fastest_while_a_time_is_missing() -> None:
    lesson = lesson_of({"square": 5.5, "wide": 6.6})
    assert lesson.fastest is None
    assert not lesson.fewest_is_fastest


def test_the_set_of_fewest_sectors_may_be_the_fastest() -> None:
    assert lesson_of({"tall": 4.0, "square": 7.5, "wide": 6.6}).fewest_is_fastest


def test_one_parameter_set_teaches_nothing() -> None:
    assert traffic.lesson("01_naive", points_of(naive(NAIVE)), {}) is None
    assert traffic.lesson("other", points_of(naive(NAIVE), naive(WIDE)), {}) is None


def test_a_kernel_is_represented_by_its_fastest_set_else_by_fewest_sectors() -> None:
    points = points_of(naive(NAIVE), naive(WIDE))
    assert traffic.representative("01_naive", points, {}) == points[0]
    assert traffic.representative("01_naive", points, {points[1].key: 6.6}) == points[1]
    assert traffic.representative("other", points, {}) is None


def test_a_metric_without_a_value_has_its_own_reason() -> None:
    (row,) = tf.count("01_naive", NAIVE, {"fma": 0.0}, source="theory", detail="rows are ragged")
    point = one(naive(NAIVE), [{**row, "value": None, "status": Status.MISSING_METRIC}])
    assert point.absent == {traffic.THEORY: {"fma": "rows are ragged"}}
    assert point.missing == {}, "theory as a whole is there"
