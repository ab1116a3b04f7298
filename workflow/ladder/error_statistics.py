"""Size and direction of the errors of a product, with their standard errors.

Notation as in `correctness`: u = 2^-24, R = A B and G = |A| |B| in FP64. The signed error of an
element of C is

    e = (C - R) / (u G),

whose mean is the bias; |e| is eta. Rounding to nearest errs either way alike; what cuts off, as
tensor cores do, errs towards zero. Where R has both signs the bias does not show that, but the
shrinkage does, the mean of -sign(R) e.

Elements of a row of C share a row of A, those of a column a column of B, so their errors are not
independent. The standard error of a mean over M x N elements therefore takes rows and columns as
clusters: s_rows^2 / M + s_columns^2 / N - s^2 / (M N), with the sample variances of the rows'
means, of the columns' means and of the elements (Cameron, Gelbach & Miller, "Robust inference with
multiway clustering", J. Bus. Econ. Stat. 29(2), 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .correctness import UNIT_ROUNDOFF, Array, Reference, row_panels


@dataclass(frozen=True)
class ErrorSummary:
    """Errors of one product, all in units of u G."""

    eta_max: float
    """Largest |e| of an element."""
    eta_rms: float
    """Root of the mean of e^2."""
    eta_rms_se: float
    """Standard error of `eta_rms`."""
    bias: float
    """Mean of e."""
    bias_se: float
    """Standard error of `bias`."""
    shrinkage: float
    """Mean of -sign(R) e; positive: results are nearer to zero than they should be."""
    shrinkage_se: float
    """Standard error of `shrinkage`."""


def error_summary(xp: Any, c: Array, ref: Reference) -> ErrorSummary:
    """The errors of C (M x N, float32, finite) against a reference.

    Args:
        xp: array module of all arrays.
    """
    assert ref.magnitude is not None, "the exact data set has no error scale"
    signed, inward, squared = (_Mean(xp, *c.shape) for _ in range(3))
    largest = 0.0
    for rows in row_panels(*c.shape):
        product = ref.product[rows]
        # G is 0 only where every product is; e is then 0 if C is 0 and huge otherwise.
        scale = xp.maximum(ref.magnitude[rows] * UNIT_ROUNDOFF, 1e-300)
        errors = (c[rows].astype(xp.float64) - product) / scale
        largest = max(largest, float(xp.abs(errors).max()))
        signed.add(rows, errors)
        inward.add(rows, -xp.sign(product) * errors)
        squared.add(rows, errors * errors)
    bias, bias_se = signed.result()
    shrinkage, shrinkage_se = inward.result()
    square, square_se = squared.result()
    rms = math.sqrt(square)
    return ErrorSummary(
        eta_max=largest,
        eta_rms=rms,
        eta_rms_se=square_se / (2 * rms) if rms else 0.0,  # the root's slope
        bias=bias,
        bias_se=bias_se,
        shrinkage=shrinkage,
        shrinkage_se=shrinkage_se,
    )


class _Mean:
    """The mean of an M x N matrix that comes in panels of rows, and its standard error."""

    def __init__(self, xp: Any, m: int, n: int):
        self._xp, self._m, self._n = xp, m, n
        self._rows = xp.zeros(m, dtype=xp.float64)
        self._columns = xp.zeros(n, dtype=xp.float64)
        self._squares = 0.0

    def add(self, rows: slice, panel: Array) -> None:
        self._rows[rows] = panel.sum(axis=1)
        self._columns += panel.sum(axis=0)
        self._squares += float((panel * panel).sum())

    def result(self) -> tuple[float, float]:
        """Mean and standard error."""
        m, n = self._m, self._n
        mean = float(self._rows.sum()) / (m * n)
        variance = max(0.0, self._squares - m * n * mean * mean) / max(1, m * n - 1)
        of_rows = _variance(self._xp, self._rows / n, mean)
        of_columns = _variance(self._xp, self._columns / m, mean)
        independent = variance / (m * n)
        # The estimate can come out below that of independent elements by chance alone.
        return mean, math.sqrt(max(of_rows / m + of_columns / n - independent, independent))


def _variance(xp: Any, means: Array, mean: float) -> float:
    """Sample variance of means about a known mean; 0 for a single one."""
    squares = float(xp.square(means - mean).sum())
    return squares / max(1, len(means) - 1)
