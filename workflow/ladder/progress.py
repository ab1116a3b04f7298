"""Progress of a long step: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

_PLAIN_EVERY_S = 10.0


def duration(seconds: float) -> str:
    """``75`` as ``1:15``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """Counts steps; shows the current one, how many are done, and the time left.

    Safe to use from several threads.
    """

    def __init__(self, title: str, total: int, stream: TextIO | None = None):
        self._title = title
        self._total = total
        self._done = 0
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._printed = 0.0
        self._lock = threading.Lock()
        self._bar = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[current]}"),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task(title, total=total, current="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, current: str, *, done: int = 1) -> None:
        """`done` more steps are finished; `current` is the kernel and size at hand."""
        with self._lock:
            self._done += done
            if self._bar:
                self._bar.update(self._task, advance=done, current=current)
                return
            now = time.monotonic()
            if now - self._printed >= _PLAIN_EVERY_S or self._done == self._total:
                self._printed = now
                self._line(f"{self._done}/{self._total} {current}{self._left(now)}")

    def extend(self, steps: int) -> None:
        """More steps than planned: repeats after drift."""
        with self._lock:
            self._total += steps
            if self._bar:
                self._bar.update(self._task, total=self._total)

    def note(self, message: str) -> None:
        """A line that stays: a failure, a drift, a restart."""
        with self._lock:
            if self._bar:
                self._bar.console.print(message, highlight=False, markup=False)
            else:
                self._line(message)

    def _left(self, now: float) -> str:
        if not 0 < self._done < self._total:
            return ""
        left = (now - self._started) / self._done * (self._total - self._done)
        return f" ({duration(left)} left)"

    def _line(self, text: str) -> None:
        print(f"{self._title}: {text}", file=self._stream, flush=True)
