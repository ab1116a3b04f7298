"""Shared fixtures: throw-away projects, what is made once for all processes, the GPU marker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ladder.device import detect
from project import Project


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all its processes have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def emulator_cache(shared_folder: Path) -> Path:
    """Where the emulator keeps what it compiles; its runtime takes a compiler many seconds."""
    folder = shared_folder / "emulator-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def typical_results(shared_folder: Path) -> Path:
    """The typical tables with all their figures, drawn once; not to be changed."""
    import tables_fixture as tf  # here: most files need no Matplotlib
    from ladder import figures

    folder = shared_folder / "typical"
    with FileLock(shared_folder / "typical.lock"):
        if not (folder / "figures" / "figures.json").exists():
            tables = tf.typical(folder / "tables")
            kernels, gpus = tf.repository_kernels(), tf.gpus_yaml(folder)
            figures.draw_all(tables, folder / "figures", kernels, gpus, style=tf.COARSE)
    return folder


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Project]:
    """Makes a project: `make_project(config, kernels=[...])`."""

    def make(config: dict[str, Any], **options: Any) -> Project:
        folder = tmp_path / f"project{sum(1 for _ in tmp_path.iterdir())}"
        folder.mkdir()
        return Project(folder, config, **options)

    return make


def pytest_configure() -> None:
    # Where it is set, as in many container images, each of the hundreds of processes that the tests
    # start would compile the package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Threads of OpenBLAS wait for each other on cores that all processes share, at full speed.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


LONGEST = ("test_workflow", "test_profile", "test_measure", "test_bootstrap", "test_figures",
           "test_findings", "test_ladder", "test_browser", "test_counters", "test_tune",
           "test_hopper", "test_compiled", "test_command", "test_report")  # fmt: skip
"""Files that take half a minute or more: first, so that the two processes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not detect():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
