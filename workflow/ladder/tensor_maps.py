"""The launch kind `tensor_maps`: which matrices its maps cover, and what is copied first.

A tensor map tells the copy engine (TMA) where a matrix lies. Its rows must start at multiples of
16 bytes, which those of A and B do only where K and N are multiples of 4. A matrix that no map can
describe is copied before the kernel runs, with its rows padded, into a workspace; with
`transpose_a` the transpose of A is written there in any case. Two helper kernels copy
(`kernels/include/prepare.cuh`, compiled into the same CUBIN). They belong to the launch: they run
before every `gemm`, and their time counts.

The workspace is allocated once for a launcher, outside every timing. No element of it is read
before the same launch has written it, and the padding is not read at all: a map ends at the last
column of its matrix, and what a tile asks for beyond it arrives as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .expressions import cdiv
from .manifest import SwizzleName, TensorMaps

HELPERS = frozenset({"transpose_a", "pad_rows"})
"""The entry functions that a CUBIN of this kind has beside `gemm`: those of `prepare.cuh`."""
SPLIT_HELPERS = frozenset({"split_rows", "split_columns"})
"""With `split_f16`: those of `prepare_f16.cuh`."""
SHIFTS_HELPERS = frozenset({"shifts_of_a", "shifts_of_b"})
"""With `f16_shifts`: those of `prepare_shifts.cuh`, beside `HELPERS`."""
ELEMENT_BYTES = 4
ROW_ELEMENTS = 4
"""Rows of a mapped matrix start at multiples of so many elements, 16 bytes."""
MOST_BOX_SIDE = 256
"""Elements along a side of the tile that one copy brings, at most."""
SWIZZLE_BYTES: dict[SwizzleName, int] = {"32B": 32, "64B": 64, "128B": 128}
"""Length of a row of a swizzled tile."""
_ALIGN_BYTES = 256
"""Of each matrix in the workspace, as a fresh allocation would have."""

# Geometry of the helpers, mirrored by prepare.cuh: a block turns tiles of 32 x 32, or copies 128
# columns of 8 rows. Along y the blocks walk on, since a grid has at most 65,535 of them there.
_HELPER_BLOCK = (32, 8, 1)
_TRANSPOSE_TILE = 32
_PAD_COLUMNS, _PAD_ROWS = 128, 8
_MOST_BLOCKS_Y = 65_535
# Those of prepare_f16.cuh: a block splits a row, or 32 columns.
_SPLIT_ROWS_BLOCK, _SPLIT_COLUMNS_BLOCK = (256, 1, 1), (512, 1, 1)
_SPLIT_COLUMNS = 32
_LINE_BYTES = 16
# Those of prepare_shifts.cuh: a block looks at the rows of a box, 128 columns of them.
_SHIFTS_BLOCK, _SHIFTS_COLUMNS = (256, 1, 1), 128
_SHIFT_BYTES = 4
_TILE_COLUMNS = {"A": 32, "B": 128}


@dataclass(frozen=True)
class HelperLaunch:
    """One launch of a helper: `entry(matrix, copy, rows, columns, pitch)`.

    Those of shifts are `entry(matrix, shifts, rows, columns, rows of a tile)`.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    rows: int
    columns: int
    """Of the matrix that is read."""


@dataclass(frozen=True)
class MappedMatrix:
    """What one tensor map covers: A, its transpose, or B, where it lies or as a padded copy."""

    matrix: Literal["A", "B"]
    rows: int
    columns: int
    pitch: int
    """Elements from one row to the next."""
    box: tuple[int, int]
    """Columns and rows that one copy brings."""
    helper: HelperLaunch | None
    """What writes the copy; None where the map covers the matrix itself."""
    workspace_offset: int = 0
    """Where the copy begins in the workspace, bytes."""
    swizzle: SwizzleName = "none"
    """Of the tile in shared memory."""
    lines: int = 0
    """Rows of A or columns of B of which a record follows the copy (`Line` of prepare_f16.cuh)."""
    shifts: HelperLaunch | None = None
    """What finds the shifts of its tiles; they follow the copy in the workspace."""

    @property
    def launches(self) -> tuple[HelperLaunch, ...]:
        """The helpers that run for it, in order."""
        return tuple(helper for helper in (self.shifts, self.helper) if helper)

    @property
    def matrix_bytes(self) -> int:
        """Of the copy; the records of its lines begin there."""
        return self.rows * self.pitch * ELEMENT_BYTES

    @property
    def copy_bytes(self) -> int:
        """Room of the copy in the workspace, with the records of its lines."""
        if self.helper is None:
            return 0
        return _aligned(self.matrix_bytes + self.lines * _LINE_BYTES)

    @property
    def shifts_bytes(self) -> int:
        """Room of the shifts in the workspace, behind the copy."""
        if self.shifts is None:
            return 0
        tiles = cdiv(self.rows, self.box[1]) * cdiv(self.columns, _TILE_COLUMNS[self.matrix])
        return _aligned(tiles * _SHIFT_BYTES)

    @property
    def workspace_bytes(self) -> int:
        """Of all that is written for it."""
        return self.copy_bytes + self.shifts_bytes


def mapped_matrices(maps: TensorMaps, m: int, n: int, k: int) -> tuple[MappedMatrix, MappedMatrix]:
    """What the maps `a_tiles` and `b_tiles` cover for C (m x n) = A (m x k) B (k x n)."""
    if maps.split_f16:
        return _halves(maps, m, n, k)
    rows, columns = (k, m) if maps.transpose_a else (m, k)
    helper = _transpose(m, k) if maps.transpose_a else _pad(m, k)
    of_a, of_b = (
        (
            _shifts("shifts_of_a", m, k, maps.a_box[1]),
            _shifts("shifts_of_b", k, n, maps.b_box[1]),
        )
        if maps.f16_shifts
        else (None, None)
    )
    a = MappedMatrix(
        "A", rows, columns, _padded(columns), maps.a_box, helper,
        swizzle=maps.a_swizzle, shifts=of_a,
    )  # fmt: skip
    b = MappedMatrix(
        "B", k, n, _padded(n), maps.b_box, _pad(k, n), a.workspace_bytes,
        swizzle=maps.b_swizzle, shifts=of_b,
    )  # fmt: skip
    return a, b


def _halves(maps: TensorMaps, m: int, n: int, k: int) -> tuple[MappedMatrix, MappedMatrix]:
    """A and B as big over small FP16 matrices; an element of the maps is a pair of theirs."""
    rows = HelperLaunch("split_rows", (m, 1, 1), _SPLIT_ROWS_BLOCK, m, k)
    grid = cdiv(n, _SPLIT_COLUMNS), 1, 1
    columns = HelperLaunch("split_columns", grid, _SPLIT_COLUMNS_BLOCK, k, n)
    of_a, of_b = cdiv(k, 2), cdiv(n, 2)
    a = MappedMatrix(
        "A", 2 * m, of_a, _padded(of_a), maps.a_box, rows, swizzle=maps.a_swizzle, lines=m
    )
    b = MappedMatrix(
        "B", 2 * k, of_b, _padded(of_b), maps.b_box, columns, a.workspace_bytes, maps.b_swizzle, n
    )
    return a, b


def copies_bytes(maps: TensorMaps | None, m: int, n: int, k: int) -> int:
    """Device memory that copies of A and B and their shifts take, bytes."""
    if maps is None:
        return 0
    return sum(mapped.workspace_bytes for mapped in mapped_matrices(maps, m, n, k))


def _aligned(size: int) -> int:
    return cdiv(size, _ALIGN_BYTES) * _ALIGN_BYTES


def _shifts(entry: str, rows: int, columns: int, tile_rows: int) -> HelperLaunch:
    grid = cdiv(columns, _SHIFTS_COLUMNS), min(cdiv(rows, tile_rows), _MOST_BLOCKS_Y), 1
    return HelperLaunch(entry, grid, _SHIFTS_BLOCK, rows, columns)


def _padded(columns: int) -> int:
    return cdiv(columns, ROW_ELEMENTS) * ROW_ELEMENTS


def _transpose(rows: int, columns: int) -> HelperLaunch:
    # x along the rows, which may be more than 65,535 tiles
    grid = cdiv(rows, _TRANSPOSE_TILE), min(cdiv(columns, _TRANSPOSE_TILE), _MOST_BLOCKS_Y), 1
    return HelperLaunch("transpose_a", grid, _HELPER_BLOCK, rows, columns)


def _pad(rows: int, columns: int) -> HelperLaunch | None:
    """The padded copy of a matrix; None if its rows already start where a map wants them."""
    if columns % ROW_ELEMENTS == 0:
        return None
    grid = cdiv(columns, _PAD_COLUMNS), min(cdiv(rows, _PAD_ROWS), _MOST_BLOCKS_Y), 1
    return HelperLaunch("pad_rows", grid, _HELPER_BLOCK, rows, columns)
