"""`tuned.yaml` of a result folder: the fastest parameters of each tuned kernel and size.

A file of its own rather than a table, since people read it and a kernel that chooses its parameters
by size is launched by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from filelock import FileLock

from .documents import Document, UserError, parse, read_yaml

_HEAD = "# Written by `python -m ladder tune`; a kernel tuned again at a size replaces its line.\n"


class Winner(Document):
    """The fastest correct set of one kernel at one size, and where its time comes from."""

    m: int
    n: int
    k: int
    params: dict[str, int]
    tflops: float
    run_id: str
    """The run in whose journal the samples are."""
    measured_at: str
    """ISO date and time, UTC."""
    gpu: str
    """Name as the driver reports it."""
    gpu_uuid: str
    driver: str

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @classmethod
    def of(cls, trial: Mapping[str, Any]) -> Self:
        """The winner that a measured row of the `trials` table is."""
        return cls(
            m=trial["m"],
            n=trial["n"],
            k=trial["k"],
            params=json.loads(trial["params"]),
            tflops=float(f"{trial['tflops']:.4g}"),
            run_id=trial["run_id"],
            measured_at=trial["measured_at"].isoformat(timespec="seconds"),
            gpu=trial["gpu_name"],
            gpu_uuid=trial["gpu_uuid"],
            driver=trial["driver_version"],
        )


def read_winners(path: Path) -> dict[str, list[Winner]]:
    """The winners by kernel; none where nothing was tuned yet.

    Raises:
        UserError: if the file is not as `keep_winners` writes it, naming file, line and key.
    """
    if not path.exists():
        return {}
    data, lines = read_yaml(path)
    winners: dict[str, list[Winner]] = {}
    for kernel, rows in data.items():
        if not isinstance(rows, list):
            raise UserError(f"{path}:{lines[(kernel,)]}: {kernel}: must be a list of winners")
        winners[kernel] = []
        for index, row in enumerate(rows):
            below = {key[2:]: line for key, line in lines.items() if key[:2] == (kernel, index)}
            winners[kernel].append(
                parse(Winner, row, name=f"{path} ({kernel}[{index}])", lines=below)
            )
    return winners


def keep_winners(path: Path, kernel: str, winners: Sequence[Winner]) -> None:
    """Put winners into the file; those of other kernels and sizes stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two kernels may be tuned at once, on two GPUs.
    with FileLock(path.with_name(f"{path.name}.lock")):
        everything = read_winners(path)
        by_size = {winner.size: winner for winner in [*everything.get(kernel, []), *winners]}
        everything[kernel] = [by_size[size] for size in sorted(by_size)]
        data = {
            name: [winner.model_dump() for winner in everything[name]]
            for name in sorted(everything)
        }
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=200)
        temporary.write_text(_HEAD + text, encoding="utf-8")
        os.replace(temporary, path)
