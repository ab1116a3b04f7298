"""Where builds are kept: a CUBIN and its record at results/build/ARCHITECTURE/KERNEL/PARAMS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .manifest import slug

BuildRow = dict[str, Any]


def build_paths(root: Path, architecture: str, kernel: str, params: Mapping[str, int]) -> Path:
    """Path of a build without its suffix; `.cubin` and `.parquet` lie beside each other."""
    return root / architecture / kernel / slug(params)


def cubin_path(root: Path, architecture: str, kernel: str, params: Mapping[str, int]) -> Path:
    base = build_paths(root, architecture, kernel, params)
    return base.with_name(base.name + ".cubin")


def record_path(root: Path, architecture: str, kernel: str, params: Mapping[str, int]) -> Path:
    base = build_paths(root, architecture, kernel, params)
    return base.with_name(base.name + ".parquet")


def read_build(path: Path) -> BuildRow:
    """The one row of a build record."""
    from . import schema  # pyarrow starts threads, with which the emulator could not fork

    row: BuildRow = schema.read(path, "builds").to_pylist()[0]
    return row


def read_builds(root: Path) -> list[BuildRow]:
    """Every build record below a folder, sorted by path."""
    return [read_build(path) for path in sorted(root.glob("*/*/*.parquet"))]
