"""Shared fixtures: throw-away projects, and the GPU marker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladder.device import detect
from project import Project


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Project]:
    """Makes a project: `make_project(config, kernels=[...])`."""

    def make(config: dict[str, Any], **options: Any) -> Project:
        folder = tmp_path / f"project{sum(1 for _ in tmp_path.iterdir())}"
        folder.mkdir()
        return Project(folder, config, **options)

    return make


LONGEST = ("test_workflow", "test_bootstrap", "test_tune", "test_measure", "test_profile",
           "test_report", "test_figures", "test_hopper")  # fmt: skip
"""Files that take a minute or more: first, so that the two processes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not detect():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
