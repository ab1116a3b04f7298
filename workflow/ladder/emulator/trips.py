"""Many trips of a loop at once: guess what each of them starts from, run all, and compare.

A loop's registers mostly advance by constants, or take turns among a few values as the halves of a
double buffer do. From the first trips follows a guess of what the next ones start from, so they can
run side by side, one row of an array a trip. The guess need not be right, because it is proved or
dropped: the first trip starts from what is there; if a trip starts right, what it leaves is right;
and where that equals the guess for the next trip, that one started right as well. Trips beyond the
first that differs are thrown away.

Values are what `compiled` computes with: arrays over the threads, or a token for what is not
computed. An array with two axes has the trips along its first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MASK = 0xFFFF_FFFF
LONGEST_PERIOD = 4
"""Values that take turns: two for a double buffer, more for deeper pipelines."""
REMEMBERED = LONGEST_PERIOD + 2
"""How many starts of a trip tell the longest period, and that it holds."""


class GuessError(Exception):
    """No guess can be made of a value that a trip needs."""


@dataclass(frozen=True)
class Guess:
    """A value at the start of each trip: those of the last period, and what a period adds."""

    recent: Sequence[Any]
    """The last value comes last; a single one that is no array, or does not change, stays."""
    step: np.ndarray | None
    """What is added modulo 2^32; None if nothing is."""

    @property
    def constant(self) -> bool:
        return self.step is None and len(self.recent) == 1

    def starts(self, trips: int) -> Any:
        """The value at the starts of `trips` trips and after them, `trips` + 1 rows; one without
        rows if it is constant."""
        if self.constant:
            return self.recent[-1]
        period = len(self.recent)
        rows = np.stack([np.atleast_1d(value) for value in np.broadcast_arrays(*self.recent)])
        # Start 0 is now, the last that was seen; start n repeats one seen ceil(n / period) before.
        n = np.arange(trips + 1)
        periods = -(-n // period)
        values = rows[period - 1 + n - periods * period]
        return values if self.step is None else (values + periods[:, None] * self.step) & MASK


def guess(seen: Sequence[Any]) -> Guess | None:
    """The guess that a value's last starts (three at least, oldest first) suggest; None if they
    suggest nothing."""
    last = seen[-1]
    if seen[-2] is last or (not _known(last) and not _known(seen[-2]) and seen[-2] == last):
        return Guess([last], None)
    for period in range(1, len(seen) - 1):
        steps = [_difference(now, then) for now, then in zip(seen[period:], seen, strict=False)]
        step = steps[-1]
        if step is None or any(s is None or not np.array_equal(s, step) for s in steps):
            continue
        if not step.any():
            return Guess(seen[-period:], None)
        if step.dtype != np.bool_:
            return Guess(seen[-period:], step)
    return None


def _known(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def _difference(now: Any, then: Any) -> np.ndarray | None:
    if not _known(now) or not _known(then):
        return None
    return np.asarray(now ^ then if now.dtype == np.bool_ else (now - then) & MASK)


class Trips(dict[str, Any]):
    """Registers (or predicates) of many trips: guessed when first read, and what is written."""

    def __init__(self, history: Sequence[Mapping[str, Any]], trips: int) -> None:
        super().__init__()
        self.history, self.trips = history, trips
        self.read: dict[str, Any] = {}
        """Values at the starts and after the last trip, of names read before they were written."""
        self.written: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            return self[name]
        if name in self.read:  # found to be absent
            return default
        if name not in self.history[-1]:
            self.read[name] = None
            return default
        found = guess([start.get(name) for start in self.history])
        if found is None:
            raise GuessError(name)
        starts = self.read[name] = found.starts(self.trips)
        value = starts if found.constant else starts[:-1]
        super().__setitem__(name, value)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.written.add(name)
        super().__setitem__(name, value)

    def proved(self) -> int:
        """How many trips started as guessed; at least one, since the first starts from what is."""
        proved = self.trips
        for name, starts in self.read.items():
            end = self.get(name)
            if _known(end) and _known(starts):
                same = end == (starts[1:] if starts.ndim == 2 else starts)
            else:
                same = not _known(end) and not _known(starts) and end == starts
            proved = min(proved, 1 + leading(same, self.trips))
        return proved

    def after(self, trip: int) -> dict[str, Any]:
        """What one of the trips leaves."""
        left = dict(self.history[-1])
        for name in self.written:
            value = self[name]
            if _known(value) and value.ndim == 2:
                value = value[trip] if value.shape[1] > 1 else value[trip, 0]
            left[name] = value
        return left


def leading(true: Any, trips: int) -> int:
    """How many trips from the first on are true for every thread."""
    true = np.asarray(true)
    if true.ndim < 2:
        return trips if true.all() else 0
    each = true.all(axis=1)
    return trips if each.all() else int(each.argmin())
