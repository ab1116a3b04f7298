"""How the numbers come about, with the constants of the run that is shown."""

from __future__ import annotations

from ..figures import Results
from ..language import _
from .words import json_object


def method(results: Results) -> list[tuple[str, str]]:
    """Subject and explanation."""
    constants = json_object((results.run or {}).get("protocol"))
    rounds = constants.get("rounds")
    texts = [
        (
            _("Work"),
            _(
                "2MNK floating-point operations: a multiplication and an addition for each term."
                " TFLOPS are work over the median time."
            ),
        ),
        (
            _("Time"),
            _(
                "CUDA events around batches of launches that are replayed as one graph; the median"
                " of the samples, with its 95 % interval from order statistics."
            ),
        ),
        (
            _("Ratios"),
            _("The ratio of two medians, with a 95 % bootstrap interval over the samples of both."),
        ),
        (
            _("Caches"),
            _(
                "Launches walk over several sets of buffers that together exceed twice the L2"
                " cache,"
                " unless hot or cold is said."
            ),
        ),
        (
            _("Checks"),
            _(
                "Before it is timed, every kernel is held against the FP64 product, on small"
                " integers"
                " exactly; guards, inputs and repeatability are checked, and the result again after"
                " timing. What fails is neither drawn nor ranked."
            ),
        ),
        (
            _("Counters"),
            _(
                "From up to four sources: closed forms of the manifest, exact emulation of the"
                " source on a CPU, machine code, and hardware counters read apart from timing."
            ),
        ),
        (
            _("Model"),
            _(
                "A launch takes a p-norm of what each resource would need alone, by its counters"
                " and"
                " the ceilings measured on this GPU."
            ),
        ),
    ]
    if rounds is not None:
        order = _(
            "Every point is visited in {rounds} rounds, each in a new random order (seed {seed})."
            " Between them cuBLAS is timed as a sentinel; if it drifts, the visits are repeated."
        ).format(rounds=rounds, seed=(results.run or {}).get("seed"))
        texts.insert(2, (_("Order"), order))
    return texts
