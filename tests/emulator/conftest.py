"""Caches of compiled kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from emulator.support import COMPILERS
from ladder.emulator import find_compiler
from ladder.emulator.toolchain import precompiled_header, runtime_object


@pytest.fixture(scope="session")
def cache(emulator_cache: Path) -> Path:
    """One for all processes of the session."""
    return emulator_cache


@pytest.fixture
def fresh_cache(cache: Path, tmp_path: Path) -> Path:
    """One that holds nothing but the compiled runtime and headers, which take seconds to build."""
    fresh = tmp_path / "cache"
    fresh.mkdir()
    for name in COMPILERS:
        built = runtime_object(find_compiler(name), cache)
        shutil.copy(built, fresh / built.name)
        header = precompiled_header(find_compiler(name), cache)
        shutil.copytree(header.parent, fresh / header.parent.name)
    return fresh
