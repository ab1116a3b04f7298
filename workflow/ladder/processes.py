"""Equal work in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def in_processes(
    function: Callable[..., _Result], tasks: Sequence[tuple[Any, ...]], workers: int
) -> list[_Result]:
    """`function(*task)` of every task: in this process if one is to work, else in as many others.

    The first results are asked for first, so that an error is that of the first task that failed.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        return [function(*task) for task in tasks]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, *zip(*tasks, strict=True)))
