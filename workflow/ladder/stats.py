"""Statistics of timing samples: medians, their intervals, ratios and verdicts.

The measuring worker imports this module between two launches, so it needs NumPy and nothing else.
Intervals treat the samples as independent; slow drift of a GPU's clock is not in them and is
watched separately, by the sentinel and by the spread between rounds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
"""Bootstrap resamples behind a ratio's interval."""
SAME_WITHIN = 0.01
"""Relative difference up to which two kernels count as equally fast. Two runs of one point agree
within about 1 %, so a smaller difference would not survive a repetition."""

Verdict = Literal["faster", "slower", "same", "ambiguous"]


class RatioInterval(NamedTuple):
    """A ratio of medians with its 95 % bootstrap interval (dimensionless)."""

    ratio: float
    low: float
    high: float


@lru_cache(maxsize=4096)
def median_interval_ranks(n: int) -> tuple[int, int]:
    """Indices, from 0, of the sorted samples that bound the median with at least 95 % confidence.

    The number of samples below the true median is Binomial(n, 1/2) whatever the distribution, so
    [sorted[low], sorted[n - 1 - low]] misses the median with probability
    2 * sum(comb(n, i) for i <= low) / 2**n (David & Nagaraja, Order Statistics, 7.1). The largest
    `low` for which that is at most 5 % is taken, in exact integer arithmetic.

    For n <= 5 no pair of samples reaches 95 %; the ranks of the extremes are returned.

    Raises:
        ValueError: if n < 1.
    """
    if n < 1:
        raise ValueError(f"a median needs at least one sample, found {n}")
    low, binomial, tail = -1, 1, 1  # binomial = comb(n, low + 1), tail = sum of it so far
    while 40 * tail <= 2**n:  # 2 * tail / 2**n <= 0.05
        low += 1
        binomial = binomial * (n - low) // (low + 1)
        tail += binomial
    low = max(low, 0)
    return low, n - 1 - low


def quantiles(times: ArrayLike) -> dict[str, float]:
    """Quantiles, mean and the median's 95 % interval of timing samples, in the samples' own unit.

    Keys are those of the `points` table without ``time_`` and the unit: ``min``, ``p05``, ``p25``,
    ``median``, ``p75``, ``p95``, ``max``, ``mean``, ``ci_low``, ``ci_high``.

    Raises:
        ValueError: if there is no sample, or one is not finite.
    """
    ordered = np.sort(_samples(times))
    low, high = median_interval_ranks(len(ordered))
    p05, p25, median, p75, p95 = np.quantile(ordered, [0.05, 0.25, 0.5, 0.75, 0.95])
    values = {
        "min": ordered[0],
        "p05": p05,
        "p25": p25,
        "median": median,
        "p75": p75,
        "p95": p95,
        "max": ordered[-1],
        "mean": ordered.mean(),
        "ci_low": ordered[low],
        "ci_high": ordered[high],
    }
    return {name: float(value) for name, value in values.items()}


def ratio_interval(baseline: ArrayLike, samples: ArrayLike, seed: int = 0) -> RatioInterval:
    """median(baseline) / median(samples) with its 95 % percentile-bootstrap interval.

    With times as input this is the speed-up over the baseline: above 1 where `samples` are faster.
    Equal inputs and seed give equal bits.

    Raises:
        ValueError: if either side has no sample, or one is not finite and positive.
    """
    first, second = np.sort(_samples(baseline)), np.sort(_samples(samples))
    if first[0] <= 0 or second[0] <= 0:
        raise ValueError("a ratio of medians needs positive samples")
    generator = np.random.default_rng(seed)
    ratios = _resampled_medians(first, generator) / _resampled_medians(second, generator)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return RatioInterval(float(np.median(first) / np.median(second)), float(low), float(high))


def verdict(interval: RatioInterval, same_within: float = SAME_WITHIN) -> Verdict:
    """What a speed-up's interval says about the difference, at a tolerance of `same_within`.

    ``faster`` and ``slower``: the whole interval lies beyond the tolerance. ``same``: it lies
    within. ``ambiguous``: it crosses the tolerance, so more samples are needed to say.
    """
    low, high = interval.low, interval.high
    if low > 1 + same_within:
        return "faster"
    if high < 1 - same_within:
        return "slower"
    if low >= 1 - same_within and high <= 1 + same_within:
        return "same"
    return "ambiguous"


def _samples(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError("no samples")
    if not np.isfinite(array).all():
        raise ValueError("a sample is not finite")
    return array


def _resampled_medians(
    ordered: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Medians of `RESAMPLES` bootstrap resamples of `ordered` (sorted), without drawing them.

    Drawing n samples with replacement is drawing n uniforms U and taking ordered[floor(n * U)], so
    the resample's middle order statistics are those of the uniforms, which are Beta distributed:
    U_(r) ~ Beta(r, n - r + 1) and (U_(r+1) - U_(r)) / (1 - U_(r)) ~ Beta(1, n - r)
    (David & Nagaraja, Order Statistics, 2.5). That costs two draws a resample instead of n.
    """
    n = len(ordered)
    rank = (n + 1) // 2
    lower = generator.beta(rank, n - rank + 1, RESAMPLES)
    middle = ordered[np.minimum((n * lower).astype(np.int64), n - 1)]
    if n % 2:
        return middle
    upper = lower + (1 - lower) * generator.beta(1, n - rank, RESAMPLES)
    return (middle + ordered[np.minimum((n * upper).astype(np.int64), n - 1)]) / 2
