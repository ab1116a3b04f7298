"""What a rung's source changes: a line diff from the rung before it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

CONTEXT_LINES = 3
_TRAILING_COMMENT = re.compile(r"(?<=\S)\s*//.*$")

Change = Literal["same", "removed", "added", "gap"]


class Line(NamedTuple):
    """A line of a diff; a gap stands for equal lines that are left out."""

    change: Change
    text: str


def source_diff(before: Path, after: Path) -> list[Line]:
    """How `after` differs from `before`, with three equal lines around each change.

    The header that explains a kernel, white space and comments at the end of a line do not count;
    what is shown of equal lines is the newer text.
    """
    old, new = _code(before), _code(after)
    matcher = difflib.SequenceMatcher(None, _keys(old), _keys(new), autojunk=False)
    return list(_lines(matcher, old, new))


def counted(lines: Sequence[Line]) -> tuple[int, int]:
    """How many lines a diff adds and removes."""
    changes = [line.change for line in lines]
    return changes.count("added"), changes.count("removed")


def _code(path: Path) -> list[str]:
    """The lines below the header, without blank ones at the ends."""
    lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("//")):
        del lines[0]
    return lines


def _keys(lines: Sequence[str]) -> list[str]:
    return [_TRAILING_COMMENT.sub("", line).strip() for line in lines]


def _lines(matcher: difflib.SequenceMatcher[str], old: list[str], new: list[str]) -> Iterator[Line]:
    for index, group in enumerate(matcher.get_grouped_opcodes(CONTEXT_LINES)):
        if index:
            yield Line("gap", "")
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from (Line("same", text) for text in new[new_from:new_to])
                continue
            yield from (Line("removed", text) for text in old[old_from:old_to])
            yield from (Line("added", text) for text in new[new_from:new_to])
