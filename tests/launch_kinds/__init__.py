"""Kernels of the launch kinds `cluster` and `tensor_maps`, for tests with and without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ODD_SIZES = [[1, 1, 1], [65, 129, 33], [257, 255, 100], [33, 64, 36], [33, 64, 35]]
"""[M, N, K]; rows that a tensor map can describe and rows that it cannot, on either side."""


def cluster_sum(split: int) -> tuple[str, dict[str, Any]]:
    """Source and manifest of a kernel whose clusters have `split` blocks."""
    return (HERE / "cluster_sum.cu").read_text(), {
        "parameters": {"SPLIT": {"description": "blocks of a cluster", "maximum": 16}},
        "sweep": {"SPLIT": [split]},
        "launch": {
            "kind": "cluster",
            "block": [16, 16],
            "grid": ["cdiv(N, 16)", "cdiv(M, 16)", "SPLIT"],
            "cluster": [1, 1, "SPLIT"],
        },
        "minimum_compute_capability": "9.0",
    }


def tensor_tile(*, turned: bool, clustered: bool = False) -> tuple[str, dict[str, Any]]:
    """Source and manifest of a kernel that reads tensor maps.

    Args:
        turned: whether the map of A covers its transpose.
        clustered: whether two blocks beside each other form a cluster.
    """
    launch: dict[str, Any] = {
        "kind": "tensor_maps",
        "block": [32, 8],
        "grid": ["cdiv(N, 32)", "cdiv(M, 32)"],
        "a_box": [32, 8] if turned else [8, 32],
        "b_box": [32, 8],
        "transpose_a": turned,
    }
    if clustered:
        launch |= {"cluster": [2], "grid": ["2 * cdiv(N, 64)", "cdiv(M, 32)"]}
    return (HERE / "tensor_tile.cu").read_text(), {
        "parameters": {"TURNED": {"description": "whether A is turned", "values": [0, 1]}},
        "sweep": {"TURNED": [int(turned)]},
        "launch": launch,
        "minimum_compute_capability": "9.0",
    }


KERNELS = {
    "10_pair": cluster_sum(2),
    "11_largest_portable": cluster_sum(8),
    "12_turned": tensor_tile(turned=True),
    "13_as_it_lies": tensor_tile(turned=False),
    "14_both": tensor_tile(turned=True, clustered=True),
}
"""Source and manifest by a kernel's name."""
LARGEST = cluster_sum(16)
"""More blocks than every GPU with clusters allows: compute capability 9.0 and 10.0 only."""
