"""Infinities, NaN, subnormal numbers and near overflow: what a kernel makes of them.

Each case is a product of 256 x 256 x 256 with special values at known places. What IEEE 754
arithmetic gives is known without a GPU: R = A B in FP64, rounded to FP32. It is held against the
kernel's C element by element. Everything here is NumPy's, on the host, so that neither another
GPU library nor flushing to zero can get into what is expected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .correctness import ETA_MAX, UNIT_ROUNDOFF, fill

SIDE = 256
"""M = N = K: whole tiles of every kernel, so that nothing meets the zeros around a matrix."""
LARGEST = float(np.finfo(np.float32).max)
LARGEST_TF32 = float.fromhex("0x1.ffcp127")
"""The largest number that TF32 holds; what lies above may round to infinity."""
_SMALLEST = 2.0**-149
"""The distance of subnormal numbers, and so of results below 2^-126."""
_ROW, _OTHER_ROW, _COLUMN, _DEPTH, _OTHER_DEPTH = 3, 200, 9, 5, 100
"""Where special values stand, in different tiles of every kernel."""

Matrices = tuple[np.ndarray, np.ndarray]
Outcome = Literal[
    "same", "other_nonfinite", "made_finite", "made_nonfinite", "flushed", "inaccurate"
]
OUTCOMES: dict[Outcome, str] = {
    "same": "as IEEE 754: infinite, NaN and finite where that is, finite ones as accurate as ever",
    "other_nonfinite": "infinite or NaN where IEEE 754 has one of them, but not always that one",
    "made_finite": "a finite number where IEEE 754 has infinity or NaN",
    "made_nonfinite": "infinity or NaN where the rounded result is finite",
    "flushed": "zero where the result is not",
    "inaccurate": "finite, but with errors beyond the bound that holds for other inputs",
}


@dataclass(frozen=True)
class SpecialCase:
    """A product with special values in it."""

    name: str
    title: str
    make: Callable[[], Matrices]
    """A and B (256 x 256, float32)."""


def _uniform(seed: int) -> np.ndarray:
    """U[-1, 1), as the data set of this name."""
    values = np.empty(SIDE * SIDE, dtype=np.float32)
    fill(np, values, "uniform", seed)
    return values.reshape(SIDE, SIDE)


def _plain() -> Matrices:
    return _uniform(2), _uniform(3)


def _infinities() -> Matrices:
    a, b = _plain()
    a[_ROW, _DEPTH], a[_OTHER_ROW, _OTHER_DEPTH] = np.inf, -np.inf
    b[_OTHER_DEPTH, _COLUMN] = -np.inf
    return a, b


def _nans() -> Matrices:
    a, b = _plain()
    a[_ROW, _DEPTH] = b[_OTHER_DEPTH, _COLUMN] = np.nan
    return a, b


def _infinities_times_zero() -> Matrices:
    a, b = _plain()
    a[_ROW, _DEPTH] = np.inf
    b[_DEPTH, ::2] = 0.0
    return a, b


def _scaled(matrix: np.ndarray, exponent: int) -> np.ndarray:
    return np.ldexp(matrix.astype(np.float64), exponent).astype(np.float32)


def _subnormal_inputs() -> Matrices:
    a, b = _plain()
    return _scaled(a, -127), _scaled(b, 20)


def _subnormal_results() -> Matrices:
    a, b = _plain()
    return _scaled(a, -66), _scaled(b, -66)


def _near_largest() -> Matrices:
    """Magnitudes of 2^126 up to the largest of TF32, times the unit matrix."""
    a = _uniform(2).astype(np.float64)
    a = np.copysign(2.0**126 + np.abs(a) * (LARGEST_TF32 - 2.0**126), a)
    a[_ROW, _DEPTH] = LARGEST_TF32
    return a.astype(np.float32), np.eye(SIDE, dtype=np.float32)


def _largest() -> Matrices:
    a = _uniform(2)
    a[_ROW, _DEPTH], a[_OTHER_ROW, _OTHER_DEPTH] = LARGEST, -LARGEST
    return a, np.eye(SIDE, dtype=np.float32)


def _overflow() -> Matrices:
    a, b = _uniform(2), np.abs(_uniform(3))
    a[_ROW], a[_OTHER_ROW] = 2.0**127, -(2.0**127)
    return a, b


def _cancelled_overflow() -> Matrices:
    """2^127 + 2^127 + ... - 2^127 - 2^127: the sum is small, the sum of the first two is not."""
    a, b = _plain()
    a[_ROW, :2], a[_ROW, -2:] = 2.0**127, -(2.0**127)
    b[:2] = b[-2:] = 1.0
    return a, b


CASES: dict[str, SpecialCase] = {
    case.name: case
    for case in (
        SpecialCase("infinity", "infinities in A and B", _infinities),
        SpecialCase("nan", "NaN in A and B", _nans),
        SpecialCase("infinity_times_zero", "infinity times zero", _infinities_times_zero),
        SpecialCase("subnormal_inputs", "subnormal A, normal results", _subnormal_inputs),
        SpecialCase("subnormal_results", "normal A and B, subnormal results", _subnormal_results),
        SpecialCase("near_largest", "magnitudes from 2^126 to 0x1.ffcp127", _near_largest),
        SpecialCase("largest", "the largest float, 0x1.fffffep127", _largest),
        SpecialCase("overflow", "sums beyond the largest float", _overflow),
        SpecialCase("cancelled_overflow", "partial sums beyond the largest float that cancel",
                    _cancelled_overflow),
    )
}  # fmt: skip


@functools.cache
def expected(case: str) -> Matrices:
    """R = A B and G = |A| |B| (256 x 256, FP64) of a case."""
    a, b = (matrix.astype(np.float64) for matrix in CASES[case].make())
    with np.errstate(all="ignore"):  # infinity times zero is what is wanted
        # einsum, not BLAS, which may leave out what is multiplied by zero.
        return np.einsum("ik,kj->ij", a, b), np.einsum("ik,kj->ij", np.abs(a), np.abs(b))


def judge(case: str, c: np.ndarray, accuracy: Literal["fp32", "tf32"]) -> tuple[Outcome, int]:
    """What a kernel made of a case.

    A finite result may be off by the largest eta that `accuracy` allows, and by a subnormal
    number's distance for each of its K terms.

    Args:
        c: the kernel's output (256 x 256, float32).

    Returns:
        The outcome, of several the first that applies in the order of `made_finite`,
        `made_nonfinite`, `other_nonfinite`, `flushed` and `inaccurate`; and the number of
        elements that differ.
    """
    product, magnitude = expected(case)
    with np.errstate(all="ignore"):
        rounded = product.astype(np.float32)
        finite = np.isfinite(rounded)
        equal = (np.isnan(rounded) & np.isnan(c)) | (rounded == c)
        bound = ETA_MAX[accuracy] * UNIT_ROUNDOFF * magnitude + SIDE * _SMALLEST
        near = np.isfinite(c) & (np.abs(c.astype(np.float64) - product) <= bound)
    differs = ~np.where(finite, near, equal)
    outcome: Outcome = "same"
    if bool((~finite & np.isfinite(c)).any()):
        outcome = "made_finite"
    elif bool((finite & ~np.isfinite(c)).any()):
        outcome = "made_nonfinite"
    elif bool((differs & ~finite).any()):
        outcome = "other_nonfinite"
    elif bool(differs.any()):
        outcome = "flushed" if bool((c[differs] == 0).all()) else "inaccurate"
    return outcome, int(differs.sum())


def run_case(
    xp: Any, launch: Callable[[Any, Any, Any], None], case: str, accuracy: Literal["fp32", "tf32"]
) -> tuple[Outcome, int]:
    """Launch a case on the device and judge it.

    Args:
        xp: the device's array module.
        launch: runs the kernel once on flat A, B and C and returns when it has finished.
    """
    a, b = (xp.asarray(matrix.ravel()) for matrix in CASES[case].make())
    c = xp.full(SIDE * SIDE, xp.nan, dtype=xp.float32)
    launch(a, b, c)
    on_host = c.get() if hasattr(c, "get") else c
    return judge(case, on_host.reshape(SIDE, SIDE), accuracy)
