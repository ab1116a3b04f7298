"""Tables of the page: cells that know what they are sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Cell:
    """One table cell: what is shown, and what it is sorted by."""

    text: str
    sort: float | str | None = None
    numeric: bool = False
    note: str = ""
    """A second, smaller line."""
    tone: str = ""
    """good, bad, warn, or nothing."""
    key: str = ""
    """Of a row's first cell: the row of a table that the numbers come from; see `row_key`."""


@dataclass(frozen=True)
class Grid:
    """A table: headings, rows, and the sentence that stands over it."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    numeric: Sequence[bool] = field(default_factory=list)
    dense: bool = False
    """Whether headings may wrap, so that many columns fit."""
    plain: bool = False
    """Whether it is too small to sort or filter."""
    source: str = ""
    """The Parquet tables that the numbers come from."""


TONES = {"faster": "good", "slower": "bad", "same": "", "ambiguous": "warn"}


def as_word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def sortable(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


_KEYS = {
    "points": ("kernel", "params", "m", "n", "k", "cache_mode"),
    "counters": ("kernel", "params", "m", "n", "k"),
    "builds": ("kernel", "params", "architecture"),
    "ceilings": ("name",),
}


def row_key(table: str, row: Mapping[str, Any] | pd.Series) -> str:
    """How to find a row again: the table and the columns that select it."""
    return f"{table}: " + ", ".join(f"{name}={row[name]}" for name in _KEYS[table])
