"""Numbers, dates and lists in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..language import _


def number(value: Any, digits: int = 3, unit: str = "") -> str:
    """`digits` significant digits, thousands separated from 10,000 on; en dash for unknown."""
    if value is None or pd.isna(value):
        return "\u2013"
    value = float(value)
    # Rounded first: 9.996 has one digit before the point, but is shown as 10.0.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - exponent) if value else 0
    text = f"{value:,.{decimals}f}" if abs(value) >= 10_000 else f"{value:.{decimals}f}"
    return f"{text}\u202f{unit}" if unit else text


def integer(value: Any) -> str:
    """A whole number; an en dash for unknown."""
    if value is None or pd.isna(value):
        return "\u2013"
    return f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}"


def percent(ratio: float | None, digits: int = 3) -> str:
    """A ratio as percent; an en dash for unknown."""
    return "\u2013" if ratio is None or pd.isna(ratio) else number(100 * ratio, digits, "%")


def between(low: Any, high: Any, scale: float = 1.0, digits: int = 3) -> str:
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return ""
    ends = {"low": number(low * scale, digits), "high": number(high * scale, digits)}
    return _("{low}\u00a0to\u00a0{high}").format(**ends)


def day(value: Any) -> str:
    return "\u2013" if value is None or pd.isna(value) else f"{value:%Y-%m-%d}"


def moment(value: Any) -> str:
    return "\u2013" if value is None or pd.isna(value) else f"{value:%Y-%m-%d %H:%M} UTC"


def json_object(text: Any) -> dict[str, Any]:
    """A JSON object of a table, or an empty one where there is none."""
    if not isinstance(text, str):
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def joined(*values: Any) -> str | None:
    known = [str(value) for value in values if value is not None]
    return ", ".join(known) or None


def range_of(run: Mapping[str, Any], name: str, unit: str, digits: int) -> str | None:
    mean = run.get(f"{name}_mean_mhz")
    if mean is None:
        return None
    low, high = run.get(f"{name}_min_mhz"), run.get(f"{name}_max_mhz")
    span = f" ({between(low, high, digits=digits)})" if low is not None and high is not None else ""
    return _("mean {mean} {unit}").format(mean=number(mean, digits), unit=unit) + span


def power(run: Mapping[str, Any]) -> str | None:
    mean, limit = run.get("power_mean_w"), run.get("gpu_power_limit_w")
    if mean is None and limit is None:
        return None
    if mean is None:
        return _("limit {limit} W").format(limit=number(limit))
    if limit is None:
        return _("mean {mean} {unit}").format(mean=number(mean), unit="W")
    return _("mean {mean} W of {limit} W").format(mean=number(mean), limit=number(limit))


def times(ratio: Any) -> str:
    return "\u2013" if ratio is None or pd.isna(ratio) else f"{number(ratio)}\u00d7"


def minus(text: str) -> str:
    return text.replace("-", "\u2212")


def scaled(value: float) -> str:
    """A count with three digits and G, M or k behind it."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return number(value / size, 3, unit)
    return number(value)


def plain_number(value: float) -> str:
    """Up to two decimals, without trailing zeros."""
    text = f"{value:,.2f}" if abs(value) >= 10_000 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")


def byte_words(value: float) -> str:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return number(value / scale, 4, unit)
    return number(value, 4, "B")


def signed_percent(ratio: float) -> str:
    """How far a ratio is from one: \u221237.5 %."""
    away = 100 * (ratio - 1)
    if away == 0:
        return "0\u202f%"
    sign = "\u2212" if away < 0 else "+"
    return sign + number(abs(away), 3, "%")


def with_unit(value: Any, unit: str, digits: int = 3) -> str | None:
    return None if value is None else f"{number(value, digits)} {unit}"


def joined_unit(run: Mapping[str, Any], names: Sequence[str], unit: str) -> str | None:
    known = [number(run[name], 4) for name in names if run.get(name) is not None]
    return f"{', '.join(known)} {unit}" if known else None


def plain(value: Any) -> str | None:
    return None if value is None else f"{int(value)}"


def flags(run: Mapping[str, Any], names: Sequence[str]) -> str | None:
    known = [run.get(name) for name in names]
    if all(value is None for value in known):
        return None
    words = (_("unknown") if value is None else _("on") if value else _("off") for value in known)
    return ", ".join(words)
