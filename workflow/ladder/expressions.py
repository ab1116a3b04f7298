"""Integer expressions of a kernel's manifest: launch geometry, constraints and closed forms.

Manifests are data that users share, so the expressions are evaluated on their syntax tree with a
short list of operators; nothing else of Python can be reached.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

Number = int | float
_MOST_PARTS = 65_536

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def cdiv(a: int, b: int) -> int:
    """Ceiling division: how many tiles of `b` cover `a`."""
    return -(-a // b)


def cuts(length: int, parts: int, side: int) -> int:
    """How many of the inner boundaries of `parts` equal parts of `length` lie within a piece of
    `side`: those of the boundaries length * i // parts that are no multiple of it.

    Raises:
        OverflowError: beyond 65,536 parts, which would take long to go through.
    """
    if parts > _MOST_PARTS:
        raise OverflowError(f"cuts() goes through {_MOST_PARTS:,} parts at most, found {parts:,}")
    return sum(length * i // parts % side != 0 for i in range(1, parts))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cdiv": cdiv,
    "cuts": cuts,
    "gcd": math.gcd,
    "min": min,
    "max": max,
    "abs": abs,
}
FUNCTION_NAMES = frozenset(_FUNCTIONS)


class ExpressionError(ValueError):
    """The expression cannot be parsed or evaluated; the message says what would be right."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL, before Python 3.12
        raise ExpressionError(f"{text!r} is not an expression: {error}") from None
    except (RecursionError, MemoryError):
        raise ExpressionError(f"{text[:40]!r}... is nested too deeply") from None


def names_in(text: str | int) -> frozenset[str]:
    """The variables an expression reads (functions excluded)."""
    tree = _parse(str(text))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(names - FUNCTION_NAMES)


def evaluate(text: str | int, names: Mapping[str, Number]) -> Any:
    """The value of `text` with `names` bound.

    Operators: ``+ - * / // %``, comparisons, ``and or not``, ``a if condition else b`` and the
    functions ``cdiv(a, b)``, ``gcd(a, b)``, ``min``, ``max``, ``abs`` and
    ``cuts(length, parts, side)``.

    Raises:
        ExpressionError: on any other syntax, an unknown name, or a division by zero.
    """
    if isinstance(text, int):
        return text
    # Sweeps and searches ask for the same few values of one expression again and again.
    used = _names(text)
    values = tuple(names.get(name) for name in used)
    if all(type(value) is int for value in values):  # 1 and 1.0 would be one key
        with suppress(ExpressionError):  # told below, with every name that is known
            return _evaluated(text, used, values)
    return _value(text, names)


@lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted(names_in(text)))


@lru_cache(maxsize=2**16)
def _evaluated(text: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _value(text, dict(zip(names, values, strict=True)))


def _value(text: str, names: Mapping[str, Number]) -> Any:
    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float()):
                return node.value
            case ast.Name(id=name):
                if name not in names:
                    known = ", ".join(sorted(names))
                    raise ExpressionError(f"{text!r} uses {name!r}; known names: {known}")
                return names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not value(operand)
            case ast.BoolOp(op=ast.And(), values=values):
                return all(value(item) for item in values)
            case ast.BoolOp(op=ast.Or(), values=values):
                return any(value(item) for item in values)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return value(body) if value(test) else value(orelse)
            case ast.Compare(left=left, ops=ops, comparators=comparators) if all(
                type(op) in _COMPARE for op in ops
            ):
                operands = [value(left), *map(value, comparators)]
                return all(
                    _COMPARE[type(op)](a, b)
                    for op, a, b in zip(ops, operands, operands[1:], strict=False)
                )
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*map(value, args))
        raise ExpressionError(
            f"{text!r}: {ast.unparse(node)!r} is not allowed; use + - * / // %, comparisons, "
            f"and/or/not, a if c else b, and {', '.join(sorted(FUNCTION_NAMES))}"
        )

    try:
        return value(_parse(text))
    except (ZeroDivisionError, OverflowError, TypeError) as error:
        raise ExpressionError(f"{text!r}: {error}") from None
    except RecursionError:
        raise ExpressionError(f"{text[:40]!r}... is nested too deeply") from None
