"""Closed forms: what they say, where they say nothing, and what follows from them.

That they are what the emulator counts is shown in tests/emulator/test_ladder.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tables_fixture as tf
from ladder import schema
from ladder import theory as th
from ladder.closed_forms import CLOSED_FORMS
from ladder.config import load
from ladder.counters import collect_counters
from ladder.emulator import point, result
from ladder.emulator.compiled import FFMA
from ladder.manifest import Kernel, canonical, expand, load_all
from ladder.plan import write_plan
from ladder.status import Status
from project import ROOT

KERNELS = load_all(ROOT / "kernels")
SIDES = st.integers(1, 5000)


def values(kernel: Kernel, params: dict[str, int], *size: int) -> dict[str, float]:
    return {
        item.metric: item.value
        for item in th.theory(kernel, params, *size)
        if item.value is not None
    }


@pytest.mark.parametrize(
    ("x", "y", "sectors", "per_request", "useful"),
    [
        (16, 16, 1_073_741_824, 2.0, 18.0),
        (32, 8, 1_342_177_280, 2.5, 26.4),
        (8, 32, 1_342_177_280, 2.5, 9.6),
    ],
)
def test_the_naive_kernel_has_the_articles_numbers(
    x: int, y: int, sectors: int, per_request: float, useful: float
) -> None:
    known = values(KERNELS["01_naive"], {"BLOCK_X": x, "BLOCK_Y": y}, 2048, 2048, 2048)
    assert known[result.GLOBAL_LOAD_REQUESTS] == 536_870_912
    assert known[result.GLOBAL_LOAD_SECTORS] == sectors
    assert known[th.SECTORS_PER_REQUEST] == per_request
    assert known[th.BYTES_PER_SECTOR] == pytest.approx(useful)
    assert known[FFMA] == 2048**3
    # Twice 2048 flop for 8 bytes a step; the stores add one part in 4096.
    assert known[th.REQUESTED_INTENSITY] == pytest.approx(0.25, rel=1e-3)


def test_the_fma_share_follows_the_loads_that_a_rung_saves() -> None:
    """Shared loads for each FMA: 2, then (TM + 1) / TM, 1 / TM + 1 / TN, and a quarter of that."""
    names = ("03_shared_tile", "04_register_column", "05_register_tile", "06_vector_loads")
    shares = [
        values(KERNELS[name], next(expand(KERNELS[name].manifest.sweep)), 2048, 2048, 2048)
        for name in names
    ]
    found = [share[th.FMA_SHARE] for share in shares]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(16 / 17, abs=0.02)


def test_a_form_whose_condition_fails_has_a_reason_and_no_value() -> None:
    items = th.theory(KERNELS["03_shared_tile"], {"TILE": 32}, 100, 100, 100)
    by_metric = {item.metric: item for item in items}
    sectors = by_metric[result.GLOBAL_LOAD_SECTORS]
    assert sectors.value is None
    assert "tiles are whole and rows start at sectors" in (sectors.detail or "")
    assert by_metric[result.REQUESTED_LOAD_BYTES].value == 4 * 100 * 100 * 4 * 2
    assert by_metric[result.SHARED_LOADS].value is not None, "shared memory knows no edges"
    # What would follow from a form without a value has none either.
    assert th.L2_READ_BOUND not in by_metric
    assert th.SECTORS_PER_REQUEST not in by_metric


@given(m=SIDES, n=SIDES, k=SIDES)
def test_what_follows_from_the_size_alone_holds_for_kernels_without_forms(
    m: int, n: int, k: int
) -> None:
    known = values(KERNELS["cublas_fp32"], {}, m, n, k)
    assert known[th.COMPULSORY_BYTES] == 4 * (m * k + k * n + m * n)
    assert known[th.DRAM_READ_BOUND] == known[th.COMPULSORY_BYTES] - 4 * m * n
    assert known[th.COMPULSORY_INTENSITY] * known[th.COMPULSORY_BYTES] == pytest.approx(
        2 * m * n * k
    )
    assert len(known) == 3


def test_a_kernel_that_selects_has_the_forms_of_what_it_runs() -> None:
    params = next(expand(KERNELS["11_raster"].manifest.sweep))
    assert th.theory(KERNELS["15_auto"], {**params, "RUNG": 11}, 512, 512, 512) == th.theory(
        KERNELS["11_raster"], params, 512, 512, 512
    )


@given(
    counts=st.dictionaries(
        st.sampled_from([form.metric for form in CLOSED_FORMS.values()]),
        st.integers(0, 2**40).map(float),
    )
)
def test_ratios_of_partly_known_counts_are_left_out(counts: dict[str, float]) -> None:
    found = th.ratios(counts, 64, 64, 64)
    assert all(value >= 0 for value in found.values())
    sectors, requests = (
        counts.get(name) for name in (result.GLOBAL_LOAD_SECTORS, result.GLOBAL_LOAD_REQUESTS)
    )
    assert (th.SECTORS_PER_REQUEST in found) == (sectors is not None and bool(requests))


def test_names_and_units_are_those_of_the_counters() -> None:
    counted: dict[str, Any] = {**result.UNITS, **point.INSTRUCTION_UNITS}
    for name, form in CLOSED_FORMS.items():
        assert counted.get(form.metric) == form.unit, name
    shared = set(th.UNITS) & set(counted)
    assert {name: th.UNITS[name] for name in shared} == {name: counted[name] for name in shared}


def test_a_form_that_cannot_be_evaluated_has_the_fault_for_a_reason() -> None:
    kernel = tf.with_changes(KERNELS["01_naive"], theory={"fma": "M // (N - N)"}, theory_where=[])
    (item,) = th.theory(kernel, {"BLOCK_X": 16, "BLOCK_Y": 16}, 8, 8, 8)[:1]
    assert item.value is None and "zero" in (item.detail or "")


def test_what_was_counted_has_its_closed_forms_though_nobody_planned_it(tmp_path: Path) -> None:
    naive = {"BLOCK_X": 16, "BLOCK_Y": 16}
    rows = tf.count("01_naive", naive, {FFMA: 1.0}, (384, 384, 384))
    rows += tf.count("of another project", {}, {FFMA: 1.0}, (384, 384, 384))
    rows.append(tf.not_emulated("03_shared_tile", {"TILE": 9}, Status.SKIPPED_CONSTRAINT, "no"))
    plan, counted, out = (tmp_path / f"{name}.parquet" for name in ("plan", "counted", "out"))
    settings, _ = load([ROOT / "config" / "config.yaml", ROOT / "config" / "quick.yaml"], ROOT)
    planned = write_plan(plan, settings, KERNELS)
    schema.write(counted, "counters", schema.table(schema.COUNTERS, rows))
    collect_counters(plan, KERNELS, [counted], out)
    found = schema.read(out, "counters").to_pylist()
    stated = {(r["kernel"], r["params"], r["m"]) for r in found if r["source"] == "theory"}
    assert ("01_naive", canonical(naive), 384) in stated
    assert not {key for key in stated if key[0] == "of another project" or "9" in key[1]}
    able = {(p.point.kernel, p.point.params, p.point.m) for p in planned if p.fault is None}
    assert able <= stated
    keys = [(r["kernel"], r["params"], r["m"], r["n"], r["k"], r["metric"]) for r in found]
    assert len(keys) == len(set(keys)) + 1, "FFMA of the naive point has two sources"
