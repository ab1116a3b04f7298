"""Medians, intervals, ratios and verdicts."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder import stats

times = st.floats(min_value=1e-3, max_value=1e9, allow_nan=False)
sample_lists = st.lists(times, min_size=1, max_size=200)

# Machines that share their cores make single examples slow now and then.
unhurried = settings(deadline=None, max_examples=60)


def miss_probability(n: int, low: int) -> float:
    return 2 * sum(math.comb(n, i) for i in range(low + 1)) / 2**n


@pytest.mark.parametrize(
    ("n", "ranks_from_one"),
    # Tables of the distribution-free 95 % interval of the median.
    [
        (6, (1, 6)),
        (8, (1, 8)),
        (9, (2, 8)),
        (10, (2, 9)),
        (20, (6, 15)),
        (25, (8, 18)),
        (30, (10, 21)),
        (50, (18, 33)),
        (100, (40, 61)),
    ],
)
def test_ranks_are_those_of_the_published_tables(n: int, ranks_from_one: tuple[int, int]) -> None:
    low, high = stats.median_interval_ranks(n)
    assert (low + 1, high + 1) == ranks_from_one


@unhurried
@given(st.integers(min_value=6, max_value=1200))
def test_the_interval_covers_at_least_95_percent_and_no_narrower_one_does(n: int) -> None:
    low, high = stats.median_interval_ranks(n)
    assert low + high == n - 1
    assert miss_probability(n, low) <= 0.05 < miss_probability(n, low + 1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_too_few_samples_give_the_extremes(n: int) -> None:
    assert stats.median_interval_ranks(n) == (0, n - 1)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        stats.median_interval_ranks(0)
    with pytest.raises(ValueError, match="no samples"):
        stats.quantiles([])
    with pytest.raises(ValueError, match="no samples"):
        stats.ratio_interval([1.0], [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_samples_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        stats.quantiles([1.0, bad])


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_ratios_of_times_that_cannot_be_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        stats.ratio_interval([1.0, 2.0], [bad, 2.0])


@unhurried
@given(sample_lists)
def test_quantiles_are_ordered_and_surround_the_median(values: list[float]) -> None:
    q = stats.quantiles(values)
    chain = [q[name] for name in ("min", "p05", "p25", "median", "p75", "p95", "max")]
    assert chain == sorted(chain)
    assert q["min"] <= q["ci_low"] <= q["median"] <= q["ci_high"] <= q["max"]
    assert q["median"] == pytest.approx(np.median(values), rel=1e-12)
    assert {q["ci_low"], q["ci_high"]} <= set(values)


@unhurried
@given(sample_lists, st.randoms())
def test_quantiles_do_not_depend_on_the_order_of_the_samples(values: list[float], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = values[:]
    random.shuffle(shuffled)
    first, second = stats.quantiles(values), stats.quantiles(shuffled)
    assert first == pytest.approx(second, rel=1e-12)


@unhurried
@given(sample_lists, sample_lists, st.integers(min_value=0, max_value=2**32))
def test_a_ratio_is_deterministic_and_within_the_extremes(
    baseline: list[float], samples: list[float], seed: int
) -> None:
    result = stats.ratio_interval(baseline, samples, seed)
    assert result == stats.ratio_interval(baseline, samples, seed)
    assert result.ratio == np.median(baseline) / np.median(samples)
    slack = 1 + 1e-9
    assert result.low <= result.high
    assert min(baseline) / max(samples) <= result.low * slack
    assert result.high <= max(baseline) / min(samples) * slack


@unhurried
@given(sample_lists, sample_lists, st.floats(min_value=1e-3, max_value=1e3))
def test_a_ratio_has_no_unit(baseline: list[float], samples: list[float], unit: float) -> None:
    ratio = stats.ratio_interval(baseline, samples)
    scaled = stats.ratio_interval([t * unit for t in baseline], [t * unit for t in samples])
    assert scaled == pytest.approx(ratio, rel=1e-9)


@unhurried
@given(times, times)
def test_single_samples_give_an_interval_of_no_width(baseline: float, sample: float) -> None:
    ratio = baseline / sample
    assert stats.ratio_interval([baseline], [sample]) == (ratio, ratio, ratio)


@pytest.mark.parametrize("n", [5, 6, 30, 31])
def test_the_short_cut_agrees_with_an_ordinary_bootstrap(n: int) -> None:
    generator = np.random.default_rng(7)
    baseline, samples = generator.gamma(9, 1, n) + 10, generator.gamma(9, 1, n) + 5
    picks = generator.integers(0, n, (2, 40_000, n))
    ratios = np.median(baseline[picks[0]], axis=1) / np.median(samples[picks[1]], axis=1)
    expected = np.quantile(ratios, [0.025, 0.975])
    result = stats.ratio_interval(baseline, samples)
    width = expected[1] - expected[0]
    assert abs(result.low - expected[0]) < 0.05 * width
    assert abs(result.high - expected[1]) < 0.05 * width


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(11)
    hits = 0
    for trial in range(300):
        result = stats.ratio_interval(
            generator.normal(200, 4, 40), generator.normal(100, 2, 40), trial
        )
        hits += result.low <= 2.0 <= result.high
    assert 0.91 <= hits / 300 <= 1.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.02, 1.03, "faster"),
        (0.95, 0.98, "slower"),
        (0.995, 1.005, "same"),
        (1.0, 1.02, "ambiguous"),
        (0.98, 1.0, "ambiguous"),
        (0.5, 2.0, "ambiguous"),
        (1.009, 1.02, "ambiguous"),
    ],
)
def test_verdicts(low: float, high: float, expected: str) -> None:
    assert stats.verdict(stats.RatioInterval((low + high) / 2, low, high)) == expected


def test_importing_needs_numpy_only() -> None:
    heavy = ("pandas", "scipy", "seaborn", "matplotlib", "pyarrow")
    code = f"import sys, ladder.stats; print([m for m in {heavy} if m in sys.modules])"
    root = Path(stats.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
