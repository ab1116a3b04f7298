"""Which blocks of a large grid stand for all of them, and when their counts are the grid's exactly.

Blocks of a row or a column of the grid do the same work but for two things. The first and the last
block may meet the matrix's edge; each is a class of its own. And a block's addresses start at a
multiple of its tile side, so the alignment of its rows to 32-byte sectors (8 floats) repeats after
at most 8 blocks; interior blocks whose indices agree modulo 8 are one class, and where every tile
starts on a sector all interior blocks are. The K loop is the same in every block.

Two members of each class run, and the emulator refuses the sample if their counts differ, which is
how a kernel that treats blocks in another way (by a rasterised block index, say) is noticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SECTOR_FLOATS = 8
_WHOLE_TILES = 256
"""No tile of a sensible kernel is wider; a multiple of it has no ragged edge."""


@dataclass(frozen=True)
class Sample:
    """Linear block indices, how many blocks each stands for, and the class of each."""

    blocks: np.ndarray
    weights: np.ndarray
    classes: list[tuple[int, ...]]


def sampling_fault(
    grid: Sequence[int], m: int, n: int, cluster: Sequence[int] = (1, 1, 1)
) -> str | None:
    """Why no sample of this grid would be exact; None if one is."""
    x, y, z = grid
    if any(side > 1 for side in cluster):
        return "the blocks of a cluster work together; run all blocks"
    if z > 1:
        return "the grid has a third dimension; run all blocks"
    if y == 1 and x > 1 and m > 1 and (m % _WHOLE_TILES or n % _WHOLE_TILES):
        return (
            f"a one-dimensional grid hides which blocks lie at an edge; use M and N that are "
            f"multiples of {_WHOLE_TILES}, or run all blocks"
        )
    return None


def alignment_period(blocks: int, extent: int, others: Sequence[int]) -> int:
    """After how many blocks along an axis the alignment to sectors repeats.

    Args:
        blocks: blocks along the axis; extent: matrix elements along it.
        others: the remaining matrix extents; they are the strides of rows.
    """
    aligned = all(size % SECTOR_FLOATS == 0 for size in (extent, *others))
    whole = extent % blocks == 0 and extent // blocks % SECTOR_FLOATS == 0
    return 1 if aligned and whole else SECTOR_FLOATS


def axis_classes(blocks: int, period: int) -> list[list[tuple[int, int]]]:
    """For each class of an axis, its members that run, as (index, weight)."""
    if blocks <= 2:
        return [[(index, 1)] for index in range(blocks)]
    classes = [[(0, 1)]]
    for residue in range(period):
        members = [index for index in range(1, blocks - 1) if index % period == residue]
        if len(members) == 1:
            classes.append([(members[0], 1)])
        elif members:
            classes.append([(members[0], len(members) - 1), (members[1], 1)])
    return [*classes, [(blocks - 1, 1)]]


def sample_grid(grid: Sequence[int], m: int, n: int, k: int) -> Sample | None:
    """The blocks to run for a grid over an M x N output; None if that would be all of them."""
    x, y, _ = grid
    columns = axis_classes(x, alignment_period(x, n if y > 1 or m == 1 else m * n, (m, n, k)))
    rows = axis_classes(y, alignment_period(y, m, (n, k)))
    blocks: list[int] = []
    weights: list[int] = []
    classes: list[tuple[int, ...]] = []
    for (row_class, row_members), (column_class, column_members) in itertools.product(
        enumerate(rows), enumerate(columns)
    ):
        for (row, row_weight), (column, column_weight) in itertools.product(
            row_members, column_members
        ):
            blocks.append(row * x + column)
            weights.append(row_weight * column_weight)
            classes.append((row_class, column_class))
    if len(blocks) >= x * y:
        return None
    return Sample(np.array(blocks, np.uint64), np.array(weights, np.uint64), classes)


def one_per_class(sample: Sample) -> Sample:
    """The first member of each class, standing for the whole class; for counts already compared."""
    first: dict[tuple[int, ...], int] = {}
    weights = sample.weights.copy()
    for index, key in enumerate(sample.classes):
        if key in first:
            weights[first[key]] += sample.weights[index]
        else:
            first[key] = index
    chosen = list(first.values())
    return Sample(sample.blocks[chosen], weights[chosen], list(first))


def disagreement(sample: Sample, counts: Sequence[tuple[int, int, int, int, int]]) -> str | None:
    """Why the members of a class do not stand for one another; None if they do.

    Args:
        counts: for each block that ran, (block, requests, sectors, unique bytes, wavefronts).
    """
    first: dict[tuple[int, ...], tuple[int, int, int, int, int]] = {}
    for key, count in zip(sample.classes, counts, strict=True):
        known = first.setdefault(key, count)
        if known[1:] != count[1:]:
            return (
                f"blocks {known[0]} and {count[0]} should do the same work and do not "
                f"(requests, sectors, bytes, wavefronts: {known[1:]} and {count[1:]}); "
                "run all blocks"
            )
    return None
