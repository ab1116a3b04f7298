"""Inputs, FP64 references and the correctness protocol, for NumPy and CuPy arrays alike.

Every function takes the array module `xp` (`numpy` or `cupy`), so that the GPU's outputs and the
emulator's are judged by the same code, on inputs whose bits are the same on both.

Notation: u = 2^-24 (unit roundoff of FP32), R = A B in FP64, G = |A| |B| in FP64,
eta = |C - R| / (u G). On random zero-mean data a correct FP32 product has an rms eta near 0.4 for
every K (the statistical bound: Higham & Mary, "Sharper probabilistic backward error analysis for
basic linear algebra kernels with random data", SIAM J. Sci. Comput. 42, 2020). The worst-case bound
gamma_K would be no test: at K = 16384 a kernel that forgets a term passes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from .status import Status

Array = Any
Launcher = Callable[[Array, Array, Array], None]
"""Runs a kernel once: A, B and C as flat float32 arrays, C overwritten."""
Kind = Literal["exact", "uniform", "positive", "wide"]

PROTOCOL_VERSION = 1
UNIT_ROUNDOFF = 2.0**-24
STATISTICAL_SEEDS = (1, 2, 3)
REPEATS = 3
ETA_MAX = {"fp32": 16.0, "tf32": 2 * 2.0**13 + 16}
"""Largest accepted eta. TF32 rounds both inputs to 2^-11, that is 2^13 u each."""
ETA_RMS = {"fp32": 1.0, "tf32": 2.0**13}
EXACT_LARGEST_K = (2**24 - 1) // 9
"""Sums of K products of {-3..3} are exact in FP32 while 9 K < 2^24."""

POISON_BITS = 0x7FC0_DEAD
"""A quiet NaN with a payload no arithmetic produces: what C holds before each check."""
GUARD_BITS = 0x7FC0_BEEF
"""The pattern around C."""
WIDE_EXPONENT = 20
"""Magnitudes of the data set `wide` reach from 2^-20 to 2^20."""
GUARD_ELEMENTS = 65_536
"""Elements of guard on either side of each matrix in a check: 256 KiB."""
_PANEL_ELEMENTS = 2**24
"""Elements that a comparison holds in FP64 at a time."""


# --- inputs ---------------------------------------------------------------------------------------


def _hash32(xp: Any, index: Array, seed: int) -> Array:
    """A mixing function over uint32 (C. Wellons, "lowbias32"), equal bits on every machine."""
    h = index ^ xp.uint32((seed * 0x9E3779B9) & 0xFFFFFFFF)
    h ^= h >> xp.uint32(16)
    h *= xp.uint32(0x7FEB352D)
    h ^= h >> xp.uint32(15)
    h *= xp.uint32(0x846CA68B)
    h ^= h >> xp.uint32(16)
    return h


def fill(xp: Any, out: Array, kind: Kind, seed: int) -> None:
    """Fill a flat float32 array in place.

    Args:
        kind: `uniform`, U[-1, 1) on a grid of 2^-23; `positive`, U[0, 1) on a grid of 2^-24;
            `wide`, s f 2^e with a random sign s, f of U[1, 2) on a grid of 2^-23 and e one of -20,
            -19, ..., 19; `exact`, {-3, -2, -1, 1, 2, 3}.
        seed: different seeds give unrelated data.
    """
    for start in range(0, out.size, _PANEL_ELEMENTS):
        stop = min(start + _PANEL_ELEMENTS, out.size)
        h = _hash32(xp, xp.arange(start, stop, dtype=xp.uint32), seed)
        if kind == "uniform":
            mantissa = (h >> xp.uint32(8)).astype(xp.float32)
            out[start:stop] = mantissa * xp.float32(2.0**-23) - xp.float32(1.0)
        elif kind == "positive":
            out[start:stop] = (h >> xp.uint32(8)).astype(xp.float32) * xp.float32(2.0**-24)
        elif kind == "wide":
            # By its bits: equal on every machine, as no exponential function is.
            exponent = _hash32(xp, h, seed) % xp.uint32(2 * WIDE_EXPONENT)
            exponent += xp.uint32(127 - WIDE_EXPONENT)
            bits = (h & xp.uint32(0x807FFFFF)) | (exponent << xp.uint32(23))
            out[start:stop] = bits.view(xp.float32)
        else:
            value = (h % xp.uint32(6)).astype(xp.float32)
            out[start:stop] = xp.where(value < 3, value - 3, value - 2)


def fill_inputs(xp: Any, a: Array, b: Array, kind: Kind, seed: int) -> None:
    """Fill A and B (flat) with the data set `(kind, seed)`; the two are unrelated."""
    fill(xp, a, kind, 2 * seed)
    fill(xp, b, kind, 2 * seed + 1)


def poison(xp: Any, out: Array, bits: int = POISON_BITS) -> None:
    """Fill a float32 array with one bit pattern."""
    out.view(xp.uint32)[...] = xp.uint32(bits)


# --- references and comparisons -------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """R = A B and G = |A| |B| (M x N, FP64) of one data set."""

    kind: Kind
    seed: int
    product: Array
    magnitude: Array | None
    """None for the exact data set, which needs no scale."""


def reference(
    xp: Any, a: Array, b: Array, m: int, n: int, k: int, kind: Kind, seed: int
) -> Reference:
    """The FP64 product of flat A (M x K) and B (K x N), row-major."""
    a64 = a.reshape(m, k).astype(xp.float64)
    b64 = b.reshape(k, n).astype(xp.float64)
    product = a64 @ b64
    if kind == "exact":
        return Reference(kind, seed, product, None)
    xp.abs(a64, out=a64)
    xp.abs(b64, out=b64)
    return Reference(kind, seed, product, a64 @ b64)


def row_panels(rows: int, columns: int) -> Iterator[slice]:
    """Slices of rows, so many at a time that a comparison in FP64 fits beside the matrices."""
    step = max(1, _PANEL_ELEMENTS // max(columns, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


@dataclass(frozen=True)
class Wrong:
    """Elements of an output that fail a test: how many, and the first one's row and column."""

    count: int
    row: int
    col: int
    value: float
    expected: float

    def __str__(self) -> str:
        return (
            f"{self.count:,} wrong elements; the first is C[{self.row}, {self.col}] = "
            f"{self.value:.9g}, expected {self.expected:.9g}"
        )


def _first_wrong(
    xp: Any, wrong: Array, c: Array, expected: Array, first_row: int, total: int
) -> Wrong:
    row, col = divmod(int(xp.argmax(wrong.ravel())), wrong.shape[1])
    return Wrong(total, first_row + row, col, float(c[row, col]), float(expected[row, col]))


def compare_exact(xp: Any, c: Array, ref: Reference) -> Wrong | None:
    """Bitwise comparison of C (M x N, float32) with an exact reference; None if equal."""
    first: Wrong | None = None
    total = 0
    for rows in row_panels(*c.shape):
        expected = ref.product[rows].astype(xp.float32)
        wrong = c[rows].view(xp.uint32) != expected.view(xp.uint32)
        count = int(wrong.sum())
        if count and first is None:
            first = _first_wrong(xp, wrong, c[rows], expected, rows.start, count)
        total += count
    return (
        None if first is None else Wrong(total, first.row, first.col, first.value, first.expected)
    )


def count_nonfinite(xp: Any, c: Array) -> int:
    """Elements of C that are NaN or infinite."""
    return sum(int((~xp.isfinite(c[rows])).sum()) for rows in row_panels(*c.shape))


def count_unwritten(xp: Any, c: Array) -> int:
    """Elements of C that still hold the poison."""
    bits = c.view(xp.uint32)
    return sum(int((bits[rows] == xp.uint32(POISON_BITS)).sum()) for rows in row_panels(*c.shape))


def error_statistics(
    xp: Any, c: Array, ref: Reference, bound: float
) -> tuple[float, float, Wrong | None]:
    """Largest and rms eta of C (M x N, float32), and the elements over `bound`.

    A NaN anywhere makes both statistics NaN and counts as over the bound.
    """
    assert ref.magnitude is not None, "the exact data set has no error scale"
    largest, squares, total = 0.0, 0.0, 0
    first: Wrong | None = None
    for rows in row_panels(*c.shape):
        # G is 0 only where every product is; eta is then 0 if C is 0 and infinite otherwise.
        scale = xp.maximum(ref.magnitude[rows] * UNIT_ROUNDOFF, 1e-300)
        eta = xp.abs(c[rows].astype(xp.float64) - ref.product[rows]) / scale
        panel_largest = float(eta.max())
        # Python's max() would drop a NaN; once NaN, it stays NaN.
        if not (math.isnan(largest) or panel_largest <= largest):
            largest = panel_largest
        squares += float((eta * eta).sum())
        wrong = ~(eta <= bound)
        count = int(wrong.sum())
        if count and first is None:
            first = _first_wrong(xp, wrong, c[rows], ref.product[rows], rows.start, count)
        total += count
    rms = (squares / c.size) ** 0.5
    if first is None:
        return largest, rms, None
    return largest, rms, Wrong(total, first.row, first.col, first.value, first.expected)


def rms_limit(accuracy: Literal["fp32", "tf32"], elements: int) -> float:
    """Largest accepted rms eta of an output: `ETA_RMS`, and more below 16 elements.

    The rms of a few elements scatters: of correct sums in order, one 1 x 1 output in 20 exceeds 1
    (up to 3.6 in 5000), one of 3 x 3 in 1000 (up to 1.2), and none of 16 elements or more.
    """
    return ETA_RMS[accuracy] * max(1.0, 4.0 / math.sqrt(elements))


def fingerprint(xp: Any, array: Array) -> str:
    """A 128-bit checksum of a float32 array's bits, computed where the array lives."""
    bits = array.ravel().view(xp.uint32)
    plain, weighted = 0, 0
    for start in range(0, bits.size, _PANEL_ELEMENTS):
        words = bits[start : start + _PANEL_ELEMENTS].astype(xp.uint64)
        plain += int(words.sum(dtype=xp.uint64))
        # Odd weights make the second sum depend on where each word stands.
        weights = xp.arange(start, start + words.size, dtype=xp.uint64)
        weights *= xp.uint64(0x9E3779B97F4A7C15)
        weights |= xp.uint64(1)
        weighted += int((words * weights).sum(dtype=xp.uint64))
    return f"{plain % 2**64:016x}{weighted % 2**64:016x}"


# --- guarded buffers ------------------------------------------------------------------------------


class Guarded:
    """A, B and C with guard bands: NaN around A and B, a pattern around C."""

    def __init__(self, xp: Any, m: int, n: int, k: int, guard_elements: int = GUARD_ELEMENTS):
        self._xp = xp
        self._guard = guard_elements
        sizes = (m * k, k * n, m * n)
        self._whole = [xp.empty(size + 2 * guard_elements, dtype=xp.float32) for size in sizes]
        for whole in self._whole:
            poison(xp, whole, GUARD_BITS)
        self.a, self.b, self.c = (
            whole[guard_elements : guard_elements + size]
            for whole, size in zip(self._whole, sizes, strict=True)
        )

    def violated(self) -> str | None:
        """Which guard no longer holds its pattern, and at what distance from the matrix."""
        xp, guard = self._xp, self._guard
        for name, whole in zip("ABC", self._whole, strict=True):
            bits = whole.view(xp.uint32)
            before = bits[:guard] != xp.uint32(GUARD_BITS)
            after = bits[bits.size - guard :] != xp.uint32(GUARD_BITS)
            if bool(before.any()):
                distance = guard - int(xp.nonzero(before)[0].max())
                return (
                    f"{int(before.sum())} words before {name} were overwritten (up to {distance})"
                )
            if bool(after.any()):
                distance = int(xp.argmax(after)) + 1
                return f"{int(after.sum())} words after {name} were overwritten (first: {distance})"
        return None


# --- the protocol ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What the correctness protocol found for one kernel and one size."""

    status: Status
    detail: str | None = None
    exact: bool | None = None
    wrong_elements: int | None = None
    eta_max: float | None = None
    eta_rms: float | None = None
    guards_intact: bool | None = None
    inputs_intact: bool | None = None
    deterministic: bool | None = None
    fingerprints: dict[str, str] | None = None
    """Checksum of the accepted output by data-set seed; the timing step compares with them."""


ReferenceOf = Callable[[Array, Array, Kind, int], Reference]


def check(
    xp: Any,
    launch: Launcher,
    m: int,
    n: int,
    k: int,
    *,
    accuracy: Literal["fp32", "tf32"],
    deterministic: bool,
    reference_of: ReferenceOf,
) -> Verdict:
    """Run the whole protocol: exact, statistical, poison, fences, repeat.

    Args:
        launch: runs the kernel once and returns when it has finished.
        accuracy: which statistical bound applies.
        deterministic: whether repeated runs must give equal bits.
        reference_of: gives the FP64 reference of inputs (it may keep them between kernels).

    Returns:
        The verdict; the first failing step decides the status.
    """
    buffers = Guarded(xp, m, n, k)
    c = buffers.c.reshape(m, n)

    def run(kind: Kind, seed: int) -> Verdict | None:
        """Fill, poison, launch, and judge what needs no reference; None if nothing is wrong."""
        fill_inputs(xp, buffers.a, buffers.b, kind, seed)
        before = fingerprint(xp, buffers.a), fingerprint(xp, buffers.b)
        poison(xp, buffers.c)
        launch(buffers.a, buffers.b, buffers.c)
        violation = buffers.violated()
        if violation:
            return Verdict(Status.GUARD_VIOLATION, violation, guards_intact=False)
        if (fingerprint(xp, buffers.a), fingerprint(xp, buffers.b)) != before:
            fault = "the kernel changed A or B"
            return Verdict(Status.GUARD_VIOLATION, fault, guards_intact=True, inputs_intact=False)
        unwritten = count_unwritten(xp, c)
        if unwritten:
            fault = f"{unwritten:,} of {m * n:,} elements of C were never written"
            first = int(xp.argmax(buffers.c.view(xp.uint32) == xp.uint32(POISON_BITS)))
            fault += f"; the first is C[{first // n}, {first % n}]"
            return Verdict(Status.WRONG_RESULT, fault, wrong_elements=unwritten)
        nonfinite = count_nonfinite(xp, c)
        if nonfinite:
            fault = f"{nonfinite:,} of {m * n:,} elements of C are NaN or infinite"
            first = int(xp.argmax(~xp.isfinite(buffers.c)))
            fault += f"; the first is C[{first // n}, {first % n}]"
            return Verdict(Status.NONFINITE, fault, wrong_elements=nonfinite)
        return None

    exact: bool | None = None
    if k <= EXACT_LARGEST_K:
        failure = run("exact", 0)
        if failure:
            return failure
        ref = reference_of(buffers.a, buffers.b, "exact", 0)
        wrong = compare_exact(xp, c, ref)
        if wrong:
            return Verdict(
                Status.WRONG_RESULT, f"exact test: {wrong}", exact=False, wrong_elements=wrong.count
            )
        exact = True

    eta_max, squares = 0.0, 0.0
    fingerprints: dict[str, str] = {}
    for seed in STATISTICAL_SEEDS:
        failure = run("uniform", seed)
        if failure:
            return failure
        ref = reference_of(buffers.a, buffers.b, "uniform", seed)
        largest, rms, wrong = error_statistics(xp, c, ref, ETA_MAX[accuracy])
        limit = rms_limit(accuracy, m * n)
        if wrong or not rms <= limit:
            fault = str(wrong) if wrong else f"rms eta {rms:.2f} exceeds {limit:g}"
            return Verdict(
                Status.WRONG_RESULT,
                f"seed {seed}: {fault} (eta max {largest:.3g})",
                exact=exact,
                wrong_elements=wrong.count if wrong else None,
                eta_max=largest,
                eta_rms=rms,
            )
        eta_max = max(eta_max, largest)
        squares += rms * rms
        fingerprints[str(seed)] = fingerprint(xp, buffers.c)

    # The last data set again: a race shows as bits that change although the inputs do not.
    repeated = {fingerprints[str(STATISTICAL_SEEDS[-1])]}
    for _ in range(REPEATS - 1):
        failure = run("uniform", STATISTICAL_SEEDS[-1])
        if failure:
            return failure
        repeated.add(fingerprint(xp, buffers.c))
    same_bits = len(repeated) == 1
    verdict = Verdict(
        Status.OK,
        exact=exact,
        wrong_elements=0,
        eta_max=eta_max,
        eta_rms=(squares / len(STATISTICAL_SEEDS)) ** 0.5,
        guards_intact=True,
        inputs_intact=True,
        deterministic=same_bits,
        fingerprints=fingerprints,
    )
    if deterministic and not same_bits:
        fault = f"{len(repeated)} different outputs in {REPEATS} runs on equal inputs"
        return Verdict(
            Status.NONDETERMINISTIC, fault, exact=exact, eta_max=eta_max, deterministic=False
        )
    return verdict
