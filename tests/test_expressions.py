"""Expressions of manifests: what they can say, and everything they cannot reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.expressions import ExpressionError, cdiv, evaluate, names_in

NAMES = {"M": 7, "N": 12, "TILE": 4}
numbers = st.integers(-1000, 1000)
positive = st.integers(1, 10**9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("M + N", 19),
        ("M - N", -5),
        ("M * N", 84),
        ("N / 8", 1.5),
        ("M // TILE", 1),
        ("M % TILE", 3),
        ("-M", -7),
        ("2 + 3 * TILE", 14),
        ("(2 + 3) * TILE", 20),
        ("M == 7", True),
        ("M != 7", False),
        ("M < N", True),
        ("N <= 11", False),
        ("M > 6", True),
        ("M >= 8", False),
        ("4 <= TILE < 8", True),
        ("4 <= TILE < 4", False),
        ("M == 7 and N == 13", False),
        ("M == 8 or N == 12", True),
        ("not M == 7", False),
        ("M if N % TILE == 0 else 1", 7),
        ("M if N % TILE else 1", 1),
        ("cdiv(M, TILE)", 2),
        ("min(M, N, TILE)", 4),
        ("max(M, N)", 12),
        ("abs(M - N)", 5),
        ("gcd(N, 8)", 4),
        ("cuts(12, 3, 4)", 0),  # at 4 and 8: between pieces
        ("cuts(12, 5, 4)", 3),  # at 2, 4, 7 and 9
        ("cuts(0, 0, 4)", 0),
        (64, 64),
    ],
)
def test_an_allowed_expression_has_the_value_that_arithmetic_gives_it(
    text: str | int, value: float
) -> None:
    assert evaluate(text, NAMES) == value


@given(numbers, numbers, numbers)
def test_operators_and_precedence_are_those_of_integers(a: int, b: int, c: int) -> None:
    names = {"A": a, "B": b, "C": c}
    assert evaluate("A + B * C - A", names) == a + b * c - a
    assert evaluate("A < B or B < A or A == B", names) is True
    assert evaluate("max(A, B) - min(A, B)", names) == abs(a - b)
    if c:
        assert evaluate("A // C * C + A % C", names) == a


@given(positive, positive)
def test_cdiv_is_the_least_number_of_tiles_that_covers(a: int, b: int) -> None:
    tiles = cdiv(a, b)
    assert (tiles - 1) * b < a <= tiles * b


@pytest.mark.parametrize(
    "text",
    [
        "M.real",
        "M.__class__.__bases__",
        "().__class__",
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "print(M)",
        "pow(2, 9)",
        "cdiv.__globals__",
        "(lambda: 1)()",
        "min(*M)",
        "max(x for x in M)",
        "min(M, key=N)",
        "M(1)",
        "2 ** 9",
        "M ** N",
        "1 << 60",
        "M & 1",
        "M | 1",
        "M ^ 1",
        "~M",
        "+M",
        "M @ N",
        "'text'",
        "b'text'",
        "f'{M}'",
        "None",
        "...",
        "2j",
        "[M]",
        "(M, N)",
        "{M: N}",
        "M[0]",
        "M in N",
        "M is N",
        "(M := 1)",
        "[x for x in M]",
    ],
)
def test_nothing_else_of_python_can_be_reached(text: str) -> None:
    with pytest.raises(ExpressionError, match="is not allowed"):
        evaluate(text, NAMES)


@pytest.mark.parametrize("text", ["", "M +", "M N", "import os", "M = 1", "(M", "M; N", "\0"])
def test_what_is_no_expression_is_refused_in_words(text: str) -> None:
    with pytest.raises(ExpressionError, match="is not an expression"):
        evaluate(text, NAMES)
    with pytest.raises(ExpressionError, match="is not an expression"):
        names_in(text)


@pytest.mark.parametrize(
    "text", ["M // 0", "M % 0", "M / 0", "cdiv(M, 0)", "cdiv(M)", "min(M)", "abs()", "M < (N)(1)"]
)
def test_a_failing_evaluation_names_the_expression(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, NAMES)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "1" + "0" * 400 + " / 3",
        "9" * 4000 + " * 1.5",
        "-" * 20_000 + "1",
        "(" * 500 + "1" + ")" * 500,
    ],
    ids=["quotient", "product", "signs", "brackets"],
)
def test_an_expression_beyond_every_limit_is_refused_and_does_not_crash(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, NAMES)


@given(st.sampled_from(["m", "TILES", "K", "os", "BLOCK_X", "cdiv", "min"]))
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(name: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(f"{name} + 1", NAMES)
    assert repr(name) in str(caught.value)
    assert "M, N, TILE" in str(caught.value)


def test_the_names_an_expression_reads_exclude_its_functions() -> None:
    assert names_in("cdiv(M, TILE) * min(N, 3) if K else abs(X)") == {"M", "TILE", "N", "K", "X"}
    assert names_in(5) == frozenset()


@given(st.text(alphabet="MN0123456789+-*/%()<>=! ,.'[]{}:andorotifelscv", max_size=30))
def test_any_text_gives_a_number_or_an_expression_error(text: str) -> None:
    try:
        value = evaluate(text, NAMES)
    except ExpressionError:
        return
    assert isinstance(value, int | float)


def test_a_loop_that_takes_long_is_refused() -> None:
    with pytest.raises(ExpressionError, match="65,536 parts at most"):
        evaluate("cuts(M, 10 * 10000, 4)", NAMES)
