"""The correctness protocol: right kernels pass it, and every kind of wrong one is caught."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fake_gpu import tf32
from ladder import correctness
from ladder.correctness import (
    ETA_MAX,
    ETA_RMS,
    EXACT_LARGEST_K,
    GUARD_ELEMENTS,
    POISON_BITS,
    Verdict,
    check,
    compare_exact,
    error_statistics,
    fill,
    fill_inputs,
    fingerprint,
    reference,
    rms_limit,
)
from ladder.status import Status

Matrix = NDArray[np.float32]
Kernel = Callable[[Matrix, Matrix, Matrix], None]
"""A kernel under test: A (M x K), B (K x N), C (M x N), views of the buffers it got."""

AWKWARD = [1, 3, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257]
awkward_shapes = st.tuples(*[st.sampled_from(AWKWARD)] * 3)
small = st.integers(1, 40)
shapes = st.tuples(small, small, small)
few = settings(max_examples=12, deadline=None)


def judge(
    kernel: Kernel,
    shape: tuple[int, int, int],
    accuracy: Literal["fp32", "tf32"] = "fp32",
    deterministic: bool = True,
) -> Verdict:
    m, n, k = shape

    def launch(a: Matrix, b: Matrix, c: Matrix) -> None:
        with np.errstate(invalid="ignore"):
            kernel(a.reshape(m, k), b.reshape(k, n), c.reshape(m, n))

    return check(
        np,
        launch,
        m,
        n,
        k,
        accuracy=accuracy,
        deterministic=deterministic,
        reference_of=lambda a, b, kind, seed: reference(np, a, b, m, n, k, kind, seed),
    )


def right(a: Matrix, b: Matrix, c: Matrix) -> None:
    np.matmul(a, b, out=c)


def count_and_first(verdict: Verdict) -> tuple[int, int, int]:
    """The number of bad elements, and the row and column of the first one, as users read them."""
    assert verdict.detail is not None
    count = re.search(r"([\d,]+) (?:wrong|of [\d,]+) elements", verdict.detail)
    first = re.search(r"the first is C\[(\d+), (\d+)\]", verdict.detail)
    assert count is not None, verdict.detail
    assert first is not None, verdict.detail
    found = int(count[1].replace(",", ""))
    assert verdict.wrong_elements == found
    return found, int(first[1]), int(first[2])


# --- right kernels --------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(awkward_shapes)
def test_a_right_kernel_passes_at_awkward_sizes(shape: tuple[int, int, int]) -> None:
    verdict = judge(right, shape)
    assert verdict.status is Status.OK, verdict
    assert verdict.exact is True
    assert verdict.wrong_elements == 0
    assert verdict.guards_intact
    assert verdict.inputs_intact
    assert verdict.deterministic
    assert verdict.eta_max is not None
    assert verdict.eta_rms is not None
    assert 0 <= verdict.eta_rms <= verdict.eta_max <= ETA_MAX["fp32"]
    assert set(verdict.fingerprints or {}) == {"1", "2", "3"}


@pytest.mark.parametrize("side", AWKWARD)
def test_a_right_kernel_passes_at_every_awkward_side_as_row_column_and_depth_one(side: int) -> None:
    for shape in [(side, side, side), (1, side, 33), (side, 1, 33), (33, side, 1)]:
        assert judge(right, shape).status is Status.OK, shape


@pytest.mark.parametrize("k", [1024, 16_384])
def test_sums_in_order_and_in_parts_both_pass_at_any_depth(k: int) -> None:
    def in_order(a: Matrix, b: Matrix, c: Matrix) -> None:
        c[...] = 0
        for i in range(a.shape[1]):
            c += a[:, i : i + 1] * b[i : i + 1]

    def in_parts(a: Matrix, b: Matrix, c: Matrix) -> None:
        half = a.shape[1] // 2
        c[...] = a[:, half:] @ b[half:] + a[:, :half] @ b[:half]

    for kernel in (in_order, in_parts):
        verdict = judge(kernel, (4, 5, k))
        assert verdict.status is Status.OK, verdict
        assert verdict.eta_rms is not None
        assert verdict.eta_rms < ETA_RMS["fp32"]


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1), (3, 3), (1, 16)])
def test_a_right_kernel_with_few_outputs_is_not_refused_by_chance(shape: tuple[int, int]) -> None:
    m, n = shape
    assert judge(right, (1, 1, 2)).status is Status.OK  # rms eta of seed 3 is 1.2
    for k in (*range(1, 130), 1000):
        for seed in range(1, 6):
            a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
            fill_inputs(np, a, b, "uniform", seed)
            products = a.reshape(m, k, 1) * b.reshape(1, k, n)
            in_order = np.cumsum(products, axis=1, dtype=np.float32)[:, -1]
            ref = reference(np, a, b, m, n, k, "uniform", seed)
            _, rms, wrong = error_statistics(np, in_order, ref, ETA_MAX["fp32"])
            assert wrong is None
            assert rms <= rms_limit("fp32", m * n), (k, seed)


@pytest.mark.parametrize(("k", "exact"), [(EXACT_LARGEST_K, True), (EXACT_LARGEST_K + 1, None)])
def test_the_exact_test_is_made_as_long_as_sums_are_exact(k: int, exact: bool | None) -> None:
    verdict = judge(right, (1, 1, k))
    assert verdict.status is Status.OK, verdict
    assert verdict.exact is exact


# --- wrong kernels --------------------------------------------------------------------------------


def returns_at_once(a: Matrix, b: Matrix, c: Matrix) -> None:
    pass


def writes_nan(a: Matrix, b: Matrix, c: Matrix) -> None:
    c[...] = np.nan


def writes_infinity(a: Matrix, b: Matrix, c: Matrix) -> None:
    c[...] = -np.inf


def writes_zeros(a: Matrix, b: Matrix, c: Matrix) -> None:
    c[...] = 0.0


def writes_ones(a: Matrix, b: Matrix, c: Matrix) -> None:
    c[...] = 1.0


@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        (returns_at_once, Status.WRONG_RESULT),
        (writes_nan, Status.NONFINITE),
        (writes_infinity, Status.NONFINITE),
    ],
)
@few
@given(shape=shapes)
def test_a_kernel_that_does_no_work_is_caught_at_every_element(
    kernel: Kernel, status: Status, shape: tuple[int, int, int]
) -> None:
    verdict = judge(kernel, shape)
    assert verdict.status is status
    assert count_and_first(verdict) == (shape[0] * shape[1], 0, 0)


@pytest.mark.parametrize("kernel", [writes_zeros, writes_ones])
@few
@given(shape=st.tuples(st.integers(4, 40), st.integers(4, 40), small))
def test_a_kernel_that_writes_a_constant_is_wrong(
    kernel: Kernel, shape: tuple[int, int, int]
) -> None:
    assert judge(kernel, shape).status is Status.WRONG_RESULT


@few
@given(st.data(), shapes, st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_element_that_is_not_finite_is_found_where_it_is(
    data: st.DataObject, shape: tuple[int, int, int], value: float
) -> None:
    row, col = data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, shape[1] - 1))

    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        right(a, b, c)
        c[row, col] = value

    verdict = judge(kernel, shape)
    assert verdict.status is Status.NONFINITE
    assert count_and_first(verdict) == (1, row, col)


@few
@given(st.data(), shapes, st.sampled_from([1.0, -1.0, 1e-6, 1e30]))
def test_wrong_elements_are_counted_and_the_first_is_named(
    data: st.DataObject, shape: tuple[int, int, int], off_by: float
) -> None:
    places = st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1))
    bad = data.draw(st.sets(places, min_size=1, max_size=5))

    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        right(a, b, c)
        for place in bad:
            c[place] += np.float32(off_by) * (1 + abs(c[place]))

    verdict = judge(kernel, shape)
    assert verdict.status is Status.WRONG_RESULT
    assert verdict.exact is False
    assert count_and_first(verdict) == (len(bad), *min(bad))


@few
@given(st.data(), shapes)
def test_a_tile_that_was_never_written_is_counted_and_its_first_element_named(
    data: st.DataObject, shape: tuple[int, int, int]
) -> None:
    m, n, _ = shape
    row, col = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))

    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        kept = c[row:, col:].copy()
        right(a, b, c)
        c[row:, col:] = kept

    verdict = judge(kernel, shape)
    assert verdict.status is Status.WRONG_RESULT
    assert count_and_first(verdict) == ((m - row) * (n - col), row, col)


@pytest.mark.parametrize("times", [-1.0, 1.0], ids=["dropped", "doubled"])
@few
@given(data=st.data(), shape=shapes)
def test_a_term_that_is_dropped_or_doubled_is_wrong_wherever_it_is(
    data: st.DataObject, times: float, shape: tuple[int, int, int]
) -> None:
    term = data.draw(st.integers(0, shape[2] - 1))

    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        c[...] = a @ b + np.float32(times) * a[:, term : term + 1] * b[term : term + 1]

    verdict = judge(kernel, shape)
    assert verdict.status is Status.WRONG_RESULT
    assert verdict.exact is False
    assert count_and_first(verdict) == (shape[0] * shape[1], 0, 0)


def test_one_term_in_16384_is_missed_by_neither_test() -> None:
    m, n, k = 3, 3, 16_384

    def forgetful(a: Matrix, b: Matrix, c: Matrix) -> None:
        np.matmul(a[:, :-1], b[:-1], out=c)

    verdict = judge(forgetful, (m, n, k))
    assert verdict.status is Status.WRONG_RESULT
    assert verdict.exact is False

    a, b, c = (np.empty(size, np.float32) for size in (m * k, k * n, m * n))
    fill_inputs(np, a, b, "uniform", 1)
    forgetful(a.reshape(m, k), b.reshape(k, n), c.reshape(m, n))
    ref = reference(np, a, b, m, n, k, "uniform", 1)
    _, rms, wrong = error_statistics(np, c.reshape(m, n), ref, ETA_MAX["fp32"])
    assert wrong is not None
    assert rms > ETA_RMS["fp32"]


def bf16(x: Matrix) -> Matrix:
    """Round to 8 significant bits."""
    bits = (x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF_0000)
    return bits.view(np.float32)


@pytest.mark.parametrize("rounded", [tf32, bf16], ids=["TF32", "BF16"])
@few
@given(shape=awkward_shapes)
def test_inputs_rounded_to_a_shorter_format_are_not_fp32(
    rounded: Callable[[Matrix], Matrix], shape: tuple[int, int, int]
) -> None:
    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        np.matmul(rounded(a.copy()), rounded(b.copy()), out=c)

    verdict = judge(kernel, shape)
    assert verdict.status is Status.WRONG_RESULT
    assert verdict.exact is True
    assert verdict.eta_max is not None
    assert verdict.eta_max > ETA_RMS["fp32"]


@few
@given(awkward_shapes)
def test_tf32_passes_as_tf32_and_a_dropped_term_does_not_even_there(
    shape: tuple[int, int, int],
) -> None:
    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        np.matmul(tf32(a.copy()), tf32(b.copy()), out=c)

    def forgetful(a: Matrix, b: Matrix, c: Matrix) -> None:
        kernel(a[:, :-1], b[:-1], c)

    assert judge(kernel, shape, accuracy="tf32").status is Status.OK
    assert judge(forgetful, shape, accuracy="tf32").status is Status.WRONG_RESULT


@few
@given(shapes)
def test_a_sum_kept_in_half_precision_is_wrong(shape: tuple[int, int, int]) -> None:
    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        total = np.zeros(c.shape, np.float16)
        for i in range(a.shape[1]):
            total = (total + a[:, i : i + 1] * b[i : i + 1]).astype(np.float16)
        c[...] = total

    assert judge(kernel, shape).status is Status.WRONG_RESULT


@few
@given(st.integers(2, 40), small)
def test_a_transposed_output_is_wrong(n: int, k: int) -> None:
    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        c[...] = (a @ b).T

    assert judge(kernel, (n, n, k)).status is Status.WRONG_RESULT


@few
@given(st.integers(1, 5), shapes)
def test_an_output_of_an_earlier_run_is_wrong(fresh: int, shape: tuple[int, int, int]) -> None:
    assume(shape[0] * shape[1] > 4)
    outputs: list[Matrix] = []

    def replaying(a: Matrix, b: Matrix, c: Matrix) -> None:
        # runs 1 to 4 have inputs of their own; a replay of run 5 in run 6 would be right
        if len(outputs) < min(fresh, 3):
            outputs.append(a @ b)
        c[...] = outputs[-1]

    assert judge(replaying, shape).status is Status.WRONG_RESULT


@few
@given(st.integers(1, 5), shapes)
def test_an_output_that_is_left_in_place_after_some_runs_is_wrong(
    runs: int, shape: tuple[int, int, int]
) -> None:
    done = 0

    def lazy(a: Matrix, b: Matrix, c: Matrix) -> None:
        nonlocal done
        if done < runs:
            right(a, b, c)
        done += 1

    verdict = judge(lazy, shape)
    assert verdict.status is Status.WRONG_RESULT
    assert count_and_first(verdict) == (shape[0] * shape[1], 0, 0)


def around(matrix: Matrix, distance: int, after: bool) -> tuple[NDArray[np.float32], int]:
    """The allocation around a matrix, and the index `distance` words before or after it."""
    whole = matrix.base
    while whole.base is not None:
        whole = whole.base
    first = (matrix.ctypes.data - whole.ctypes.data) // 4
    return whole, first + matrix.size - 1 + distance if after else first - distance


distances = st.integers(1, 64) | st.integers(1, GUARD_ELEMENTS)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from("ABC"), st.booleans(), distances, shapes)
def test_a_write_out_of_bounds_is_found_with_matrix_side_and_distance(
    name: str, after: bool, distance: int, shape: tuple[int, int, int]
) -> None:
    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        right(a, b, c)
        whole, index = around({"A": a, "B": b, "C": c}[name], distance, after)
        whole[index] = 1.0

    verdict = judge(kernel, shape)
    assert verdict.status is Status.GUARD_VIOLATION
    assert verdict.guards_intact is False
    assert verdict.detail is not None
    side = "after" if after else "before"
    assert verdict.detail.startswith(f"1 words {side} {name} were overwritten")
    assert re.search(rf"\b{distance}\)", verdict.detail)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from("AB"), st.booleans(), distances, shapes, st.sampled_from([0.0, 1.0, 1e-30]))
def test_a_read_out_of_bounds_shows_in_the_output_even_times_zero(
    name: str, after: bool, distance: int, shape: tuple[int, int, int], factor: float
) -> None:
    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        right(a, b, c)
        whole, index = around({"A": a, "B": b}[name], distance, after)
        c[-1, -1] += whole[index] * np.float32(factor)

    verdict = judge(kernel, shape)
    assert verdict.status is Status.NONFINITE
    assert count_and_first(verdict) == (1, shape[0] - 1, shape[1] - 1)


@few
@given(st.data(), st.sampled_from("AB"), shapes)
def test_a_write_into_an_input_is_a_violation(
    data: st.DataObject, name: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    index = data.draw(st.integers(0, (m if name == "A" else n) * k - 1))

    def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
        right(a, b, c)
        flat = (a if name == "A" else b).reshape(-1)
        flat[index] = np.nextafter(flat[index], np.float32(9))

    verdict = judge(kernel, shape)
    assert verdict.status is Status.GUARD_VIOLATION
    assert verdict.inputs_intact is False
    assert verdict.detail == "the kernel changed A or B"


@few
@given(st.data(), shapes)
def test_bits_that_change_between_equal_runs_are_nondeterministic_unless_declared(
    data: st.DataObject, shape: tuple[int, int, int]
) -> None:
    odd_run = data.draw(st.sampled_from([5, 6]))
    row, col = data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, shape[1] - 1))

    def racing() -> Kernel:
        runs = 0

        def kernel(a: Matrix, b: Matrix, c: Matrix) -> None:
            nonlocal runs
            runs += 1
            right(a, b, c)
            if runs == odd_run:
                c[row, col] = np.nextafter(c[row, col], np.float32(np.inf))

        return kernel

    verdict = judge(racing(), shape)
    assert verdict.status is Status.NONDETERMINISTIC
    assert verdict.detail == "2 different outputs in 3 runs on equal inputs"
    declared = judge(racing(), shape, deterministic=False)
    assert declared.status is Status.OK
    assert declared.deterministic is False


# --- error statistics -----------------------------------------------------------------------------


def case(m: int, n: int, k: int, scale: float = 1.0) -> tuple[Matrix, Any]:
    a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
    fill_inputs(np, a, b, "uniform", 1)
    a *= np.float32(scale)
    b *= np.float32(scale)
    c = a.reshape(m, k) @ b.reshape(k, n)
    return c, reference(np, a, b, m, n, k, "uniform", 1)


@given(st.data(), shapes, st.sampled_from([np.nan, np.inf, -np.inf]))
def test_statistics_with_a_value_that_is_not_finite_pass_no_bound(
    data: st.DataObject, shape: tuple[int, int, int], value: float
) -> None:
    c, ref = case(*shape)
    row, col = data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, shape[1] - 1))
    c[row, col] = value
    panel = data.draw(st.integers(1, 200))
    with patch.object(correctness, "_PANEL_ELEMENTS", panel):
        largest, rms, wrong = error_statistics(np, c, ref, 1e300)
    assert not largest <= 1e300
    assert not rms <= 1e300
    assert np.isnan(largest) == np.isnan(rms) == np.isnan(value)
    assert wrong is not None
    assert (wrong.count, wrong.row, wrong.col) == (1, row, col)


@given(shapes, st.floats(1e-15, 1e15))
def test_small_inputs_excuse_no_zeros_and_large_ones_raise_no_alarm(
    shape: tuple[int, int, int], scale: float
) -> None:
    c, ref = case(*shape, scale=scale)
    largest, rms, wrong = error_statistics(np, c, ref, ETA_MAX["fp32"])
    assert wrong is None
    assert rms <= largest <= ETA_MAX["fp32"]
    zeros = np.zeros_like(c)
    _, rms, wrong = error_statistics(np, zeros, ref, ETA_MAX["fp32"])
    assert wrong is not None
    assert rms > ETA_RMS["fp32"]


@given(st.data(), shapes, st.integers(1, 500))
def test_comparisons_do_not_depend_on_the_size_of_their_panels(
    data: st.DataObject, shape: tuple[int, int, int], panel: int
) -> None:
    m, n, k = shape
    c, ref = case(m, n, k)
    a, b = np.empty(m * k, np.float32), np.empty(k * n, np.float32)
    fill_inputs(np, a, b, "exact", 0)
    exact = a.reshape(m, k) @ b.reshape(k, n)
    exact_ref = reference(np, a, b, m, n, k, "exact", 0)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))
        c[place] += 1
        exact[place] += 1
    whole = error_statistics(np, c, ref, 16.0), compare_exact(np, exact, exact_ref)
    with patch.object(correctness, "_PANEL_ELEMENTS", panel):
        parts = error_statistics(np, c, ref, 16.0), compare_exact(np, exact, exact_ref)
    assert parts[1] == whole[1]
    assert parts[0][2] == whole[0][2]
    assert parts[0][0] == whole[0][0]
    assert parts[0][1] == pytest.approx(whole[0][1], rel=1e-12)


# --- inputs ---------------------------------------------------------------------------------------

kinds = st.sampled_from(["exact", "uniform"])
seeds = st.integers(0, 2**16)


def lowbias32(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = h * 0x846CA68B % 2**32
    return h ^ h >> 16


@given(kinds, seeds, st.integers(0, 50))
def test_inputs_have_the_bits_that_the_definition_gives_in_plain_integers(
    kind: Literal["exact", "uniform"], seed: int, size: int
) -> None:
    out = np.empty(size, np.float32)
    fill(np, out, kind, seed)
    hashes = [lowbias32(i ^ seed * 0x9E3779B9 % 2**32) for i in range(size)]
    if kind == "uniform":
        expected = [(h >> 8) / 2**23 - 1 for h in hashes]
    else:
        expected = [[-3, -2, -1, 1, 2, 3][h % 6] for h in hashes]
    assert out.tolist() == expected


@given(kinds, seeds, st.integers(1, 3000), st.integers(1, 700))
def test_inputs_have_the_same_bits_whatever_the_size_of_a_panel(
    kind: Literal["exact", "uniform"], seed: int, size: int, panel: int
) -> None:
    whole, parts = np.empty(size, np.float32), np.empty(size, np.float32)
    fill(np, whole, kind, seed)
    with patch.object(correctness, "_PANEL_ELEMENTS", panel):
        fill(np, parts, kind, seed)
    assert whole.tobytes() == parts.tobytes()


def test_the_uniform_set_fills_its_range_evenly_and_the_exact_set_its_six_values() -> None:
    out = np.empty(60_000, np.float32)
    fill(np, out, "uniform", 1)
    assert out.min() >= -1.0
    assert out.max() < 1.0
    assert abs(float(out.mean())) < 0.01
    counts, _ = np.histogram(out, bins=10, range=(-1, 1))
    assert counts.min() > 5_600
    assert counts.max() < 6_400
    fill(np, out, "exact", 1)
    values, counts = np.unique(out, return_counts=True)
    assert values.tolist() == [-3, -2, -1, 1, 2, 3]
    assert counts.min() > 9_600
    assert counts.max() < 10_400


@given(kinds, seeds, seeds)
def test_different_seeds_and_the_two_matrices_of_one_seed_are_unrelated(
    kind: Literal["exact", "uniform"], first: int, second: int
) -> None:
    assume(first != second)
    size = 4000
    a, b, other = (np.empty(size, np.float32) for _ in range(3))
    fill_inputs(np, a, b, kind, first)
    fill_inputs(np, other, np.empty(1, np.float32), kind, second)
    for x, y in ((a, b), (a, other), (a[:-1], a[1:]), (b, other)):
        assert abs(float(np.corrcoef(x, y)[0, 1])) < 0.1


@settings(max_examples=30)
@given(st.integers(1, 3000), seeds)
def test_sums_of_the_exact_set_have_the_same_bits_in_every_order(k: int, seed: int) -> None:
    a, b = np.empty(k, np.float32), np.empty(k, np.float32)
    fill_inputs(np, a, b, "exact", 0)
    expected = int(np.dot(a.astype(np.int64), b.astype(np.int64)))
    order = np.random.default_rng(seed).permutation(k)
    in_order = np.cumsum(a * b, dtype=np.float32)[-1]
    shuffled = np.cumsum((a * b)[order], dtype=np.float32)[-1]
    assert in_order == shuffled == expected
    assert reference(np, a, b, 1, 1, k, "exact", 0).product[0, 0] == expected


def test_sums_of_the_exact_set_stay_exact_up_to_the_largest_depth_and_no_further() -> None:
    assert 9 * EXACT_LARGEST_K < 2**24 <= 9 * (EXACT_LARGEST_K + 1)
    threes = np.full(EXACT_LARGEST_K, 9, np.float32)
    assert int(np.cumsum(threes, dtype=np.float32)[-1]) == 9 * EXACT_LARGEST_K


def test_the_poison_is_a_quiet_nan_that_arithmetic_does_not_produce() -> None:
    poison = np.array([POISON_BITS], np.uint32).view(np.float32)
    assert np.isnan(poison[0])
    with np.errstate(invalid="ignore"):
        made = np.array([np.inf - np.inf, np.float32(0) * np.inf, np.sqrt(np.float32(-1))])
    assert POISON_BITS not in made.astype(np.float32).view(np.uint32) & 0x7FFF_FFFF


# --- checksums ------------------------------------------------------------------------------------

arrays = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60).map(
    lambda words: np.array(words, np.uint32).view(np.float32)
)


@given(arrays, st.data())
def test_a_checksum_changes_with_any_single_bit(array: Matrix, data: st.DataObject) -> None:
    before = fingerprint(np, array)
    index, bit = data.draw(st.integers(0, array.size - 1)), data.draw(st.integers(0, 31))
    array.view(np.uint32)[index] ^= np.uint32(1 << bit)
    assert fingerprint(np, array) != before


@given(arrays, st.data())
def test_a_checksum_changes_when_two_elements_change_places(
    array: Matrix, data: st.DataObject
) -> None:
    first, second = (data.draw(st.integers(0, array.size - 1)) for _ in range(2))
    words = array.view(np.uint32)
    assume(words[first] != words[second])
    before = fingerprint(np, array)
    words[[first, second]] = words[[second, first]]
    assert fingerprint(np, array) != before


@given(arrays, st.integers(1, 70))
def test_a_checksum_depends_on_the_bits_alone(array: Matrix, panel: int) -> None:
    with patch.object(correctness, "_PANEL_ELEMENTS", panel):
        in_parts = fingerprint(np, array.copy())
    assert in_parts == fingerprint(np, array) == fingerprint(np, array.reshape(1, -1))
    assert re.fullmatch("[0-9a-f]{32}", in_parts)
