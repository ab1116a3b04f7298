"""Tensor maps: the matrix, and the tile of it that one TMA copy brings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..manifest import SwizzleName
from ..tensor_maps import MOST_BOX_SIDE, SWIZZLE_BYTES
from .toolchain import EmulatorError


@dataclass(frozen=True)
class TensorMap2D:
    """A launch argument for a kernel's ``const __grid_constant__ TensorMap``.

    Refuses what cuTensorMapEncodeTiled refuses, and a matrix that leaves its array.
    """

    array: np.ndarray
    """1-D, contiguous, float32; arguments that have one array share its buffer."""
    offset: int
    """Floats from the start of the array to element (0, 0)."""
    rows: int
    columns: int
    """The matrix; elements outside it are copied as zeros."""
    pitch: int
    """Floats from row to row."""
    box_rows: int
    box_columns: int
    swizzle: SwizzleName = "none"

    @property
    def swizzle_bytes(self) -> int:
        """Width of the swizzle; 0 without one."""
        return SWIZZLE_BYTES.get(self.swizzle, 0)

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise EmulatorError(f"no tensor map can describe this tile: {fault}")

    def _fault(self) -> str | None:
        array = self.array
        if array.dtype != np.float32 or array.ndim != 1 or not array.flags.c_contiguous:
            return f"a flat float32 array is needed, found {array.ndim}-D {array.dtype}"
        if self.offset < 0 or self.offset % 4:
            return f"it must begin on a 16-byte boundary, found offset {self.offset} floats"
        if min(self.rows, self.columns) < 1 or self.pitch < self.columns:
            return f"{self.rows} x {self.columns} at pitch {self.pitch} is no matrix"
        if self.pitch % 4:
            return f"rows must lie a multiple of 16 bytes apart, found {4 * self.pitch} bytes"
        if not all(1 <= side <= MOST_BOX_SIDE for side in (self.box_rows, self.box_columns)):
            return (
                f"the sides of a box are 1 to {MOST_BOX_SIDE}, found "
                f"{self.box_rows} x {self.box_columns}"
            )
        if self.box_columns % 4:
            return f"a box row must be a multiple of 16 bytes, found {4 * self.box_columns}"
        if self.swizzle_bytes and 4 * self.box_columns != self.swizzle_bytes:
            return (
                f"a box row must be as long as the swizzle {self.swizzle} is wide, found "
                f"{4 * self.box_columns} bytes"
            )
        end = self.offset + (self.rows - 1) * self.pitch + self.columns
        if end > array.size:
            return f"it ends at element {end:,} of an array of {array.size:,}"
        return None
