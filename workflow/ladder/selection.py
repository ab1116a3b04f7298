"""Which kernel and parameters a kernel of the kind `selected` runs at a size.

The fastest set that `ladder tune` has measured there; at a size that nobody has tuned, the fastest
at the nearest one; without any, the manifest's fallback. The choice is made when a run is planned
and stands in the parameters of its points, so that every table tells what ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from .manifest import SELECTED, Kernel, SelectedLaunch, number_of, parameter_fault
from .tuned import Winner

Size = tuple[int, int, int]
Winners = Mapping[str, Sequence[Winner]]


def distance(first: Size, second: Size) -> float:
    """How far two sizes are apart: sum over M, N, K of squared differences of log2."""
    return sum((math.log2(a) - math.log2(b)) ** 2 for a, b in zip(first, second, strict=True))


def select(kernel: Kernel, winners: Winners, size: Size) -> dict[str, int]:
    """The parameters of a point: those of the chosen kernel, and its number under `RUNG`.

    Args:
        kernel: of the kind `selected`.
        winners: what was tuned on the GPU at hand, by kernel.
    """
    launch = kernel.manifest.launch
    assert isinstance(launch, SelectedLaunch)
    usable = list(_usable(kernel, winners, size))
    if not usable:
        return _chosen(launch.fallback.kernel, launch.fallback.params)
    nearest = min(distance(size, winner.size) for _, winner in usable)
    at_nearest = [item for item in usable if distance(size, item[1].size) == nearest]
    name, winner = max(at_nearest, key=lambda item: (item[1].tflops, item[0]))
    return _chosen(name, winner.params)


def _usable(kernel: Kernel, winners: Winners, size: Size) -> Iterator[tuple[str, Winner]]:
    """Winners of the candidates whose sets still exist and may run at this size."""
    for candidate in kernel.candidates.values():
        for winner in winners.get(candidate.name, []):
            if (
                parameter_fault(candidate.manifest, winner.params) is None
                and candidate.violated_constraint(winner.params) is None
                and candidate.violated_precondition(winner.params, *size) is None
            ):
                yield candidate.name, winner


def _chosen(name: str, params: Mapping[str, int]) -> dict[str, int]:
    number = number_of(name)
    assert number is not None, "candidates are numbered"
    return dict(sorted({**params, SELECTED: number}.items()))
