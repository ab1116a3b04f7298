"""Errors by distribution, held against cuBLAS FP32's, and what becomes of special values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import figures
from ..figures import Results
from ..language import N_, _, listed, plural
from ..special_values import CASES, OUTCOMES, Outcome
from ..status import RANKED
from .grid import Cell, Grid
from .words import minus, number

STANDARD_ERRORS = 3.0
"""By more than so many of the difference, a mean counts as larger than another: of a hundred
comparisons, chance alone decides hardly one."""
LARGEST_SCATTERS = 1.1
"""The largest of millions of errors varies by some percent from data to data."""

_WORDS: Mapping[Outcome, str] = {
    "same": N_("as IEEE 754"),
    "other_nonfinite": N_("another of infinity and NaN"),
    "made_finite": N_("finite"),
    "made_nonfinite": N_("infinity or NaN"),
    "flushed": N_("zero"),
    "inaccurate": N_("inaccurate"),
}


@dataclass(frozen=True)
class Judgement:
    """A kernel's errors beside those of cuBLAS FP32, on the same inputs."""

    row: Mapping[str, Any]
    """Of the kernel, as `figures.errors_table` has it."""
    reference: Mapping[str, Any]

    @property
    def worse(self) -> list[str]:
        """Which of rms, largest and bias are larger than the reference's; [] for none."""
        found = []
        if _exceeds(self.row, self.reference, "eta_rms"):
            found.append(_("rms"))
        if self.row["eta_max"] > LARGEST_SCATTERS * self.reference["eta_max"]:
            found.append(_("largest"))
        if _exceeds(self.row, self.reference, "bias"):
            found.append(_("bias"))
        return found


def _exceeds(row: Mapping[str, Any], reference: Mapping[str, Any], name: str) -> bool:
    """Whether the absolute value is larger by more than its standard errors explain."""
    difference = abs(row[name]) - abs(reference[name])
    error = math.hypot(row[f"{name}_se"], reference[f"{name}_se"])
    return bool(difference > STANDARD_ERRORS * error)


def judgements(results: Results) -> list[Judgement]:
    """Every row of a kernel of the tensor cores that cuBLAS FP32 has a row beside."""
    rows = figures.errors_table(results).to_dict("records")
    references = {_place(row): row for row in rows if row["kind"] == "reference"}
    return [
        Judgement(row, references[_place(row)])  # type: ignore[arg-type]
        for row in rows
        if _place(row) in references and _on_tensor_cores(results, row["kernel"])
    ]


def _place(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return row["n"], row["k"], row["distribution"]


def _on_tensor_cores(results: Results, kernel: str) -> bool:
    known = results.kernels.get(kernel)
    return known is not None and known.manifest.family == "tensor"


def errors_grid(results: Results) -> Grid | None:
    """A row a kernel, size and distribution; a column a K, with the verdict and the numbers.

    Large products first, for which these kernels are, and last what is not held to FP32's errors.
    """
    judged = judgements(results)
    if not judged:
        return None
    judged.sort(key=lambda item: (_tf32(results, item.row["kernel"]), -item.row["n"]))
    depths = sorted({item.row["k"] for item in judged})
    rows: dict[tuple[Any, ...], dict[int, Judgement]] = {}
    for item in judged:
        key = (item.row["series"], item.row["n"], item.row["distribution"])
        rows.setdefault(key, {})[item.row["k"]] = item
    return Grid(
        [_("Kernel"), "M = N", _("Inputs"), *(f"K = {k}" for k in depths)],
        [
            [
                Cell(series, note=_not_held(results, by_depth)),
                Cell(f"{side}", float(side), True),
                Cell(figures.DISTRIBUTIONS[distribution]),
                *(_judged_cell(results, by_depth.get(k)) for k in depths),
            ]
            for (series, side, distribution), by_depth in rows.items()
        ],
        _(
            "Errors beside those of cuBLAS FP32 on the same inputs: rms and largest as multiples of"
            " its own; the bias, the mean error, in units of 2\u207b\u00b2\u2074 |A| |B|, with its"
            " standard error, and in brackets that of cuBLAS FP32; the shrinkage, the mean error"
            " towards zero, which shows what is cut off where results have both signs. Worse is an"
            " rms or an absolute bias that is larger by more than three standard errors of the"
            " difference, or a largest error of more than {most} times that of cuBLAS FP32."
        ).format(most=f"{LARGEST_SCATTERS:g}"),
        [False, True, *(False for _k in (0, *depths))],
        dense=True,
        source="accuracy",
    )


def _not_held(results: Results, by_depth: Mapping[int, Judgement]) -> str:
    kernel = next(iter(by_depth.values())).row["kernel"]
    return _("TF32, not held to it") if _tf32(results, kernel) else ""


def _tf32(results: Results, kernel: str) -> bool:
    return results.kind(kernel) == "tf32"


def _judged_cell(results: Results, item: Judgement | None) -> Cell:
    if item is None:
        return Cell("\u2013")
    row, reference = item.row, item.reference
    note = _("rms {rms}, largest {largest}, bias {bias} ({other}), shrinkage {shrinkage}").format(
        rms=_ratio(row, reference, "eta_rms"),
        largest=_ratio(row, reference, "eta_max"),
        bias=_with_error(row, "bias"),
        other=_with_error(reference, "bias"),
        shrinkage=_with_error(row, "shrinkage"),
    )
    meant = _set_for_the_size(results, row)
    worse = item.worse
    text = _("worse: {what}").format(what=listed(worse)) if worse else _("no worse")
    held = not _tf32(results, row["kernel"])
    note = f"{meant}: {note}" if meant else note
    return Cell(text, note=note, tone="good" if not worse else "bad" if held else "")


def _set_for_the_size(results: Results, row: Mapping[str, Any]) -> str:
    """What tells the kernel's parameter sets for this size from those for others."""
    known = results.kernels.get(row["kernel"])
    params = json.loads(row["params"] or "{}")
    names = known.sized_parameters() if known else []
    return ", ".join(f"{name} {params[name]}" for name in names if name in params)


def _ratio(row: Mapping[str, Any], reference: Mapping[str, Any], name: str) -> str:
    return f"\u00d7\u202f{number(row[name] / reference[name])}" if reference[name] else "\u2013"


def _with_error(row: Mapping[str, Any], name: str) -> str:
    return minus(f"{number(row[name], 2)} \u00b1 {number(row[f'{name}_se'], 1)}")


def errors_note(results: Results) -> str:
    """Where FP32-accurate kernels of the tensor cores are worse than cuBLAS FP32; in sentences."""
    judged = [item for item in judgements(results) if results.kind(item.row["kernel"]) == "tensor"]
    if not judged:
        return ""
    worse = [item for item in judged if item.worse]
    if not worse:
        return _(
            "On all of {inputs}, the FP32 products of the tensor cores are no worse than those of"
            " cuBLAS FP32: neither in rms nor in largest error nor in bias."
        ).format(inputs=plural("{count} set of inputs", "{count} sets of inputs", len(judged)))
    kernels = dict.fromkeys(item.row["series"] for item in judged)
    told = []
    for side in sorted({item.row["n"] for item in judged}, reverse=True):
        counts = [
            _("{kernel} in {worse} of {all}").format(
                kernel=name,
                worse=sum((item.row["series"], item.row["n"]) == (name, side) for item in worse),
                all=sum((item.row["series"], item.row["n"]) == (name, side) for item in judged),
            )
            for name in kernels
        ]
        told.append(
            _("at M = N = {side}, {counts} sets of inputs").format(side=side, counts=listed(counts))
        )
    text = _("Worse than cuBLAS FP32 in rms or largest error or bias: {told}.")
    return text.format(told="; ".join(told))


def special_grid(results: Results) -> Grid | None:
    """A column a case; kernels with equal outcomes and the same promise share a row."""
    rows = results.accuracy
    rows = rows[rows["special"].notna() & rows["status"].isin(RANKED)]
    if rows.empty:
        return None
    shared: dict[tuple[str, tuple[str | None, ...]], list[str]] = {}
    for name in results.order():
        own = rows[rows["kernel"] == name]
        if len(own):
            found = dict(zip(own["special"], own["outcome"], strict=True))
            shared.setdefault((_promise(results, name), tuple(map(found.get, CASES))), []).append(
                name
            )
    return Grid(
        [_("Kernel"), *(_(case.title) for case in CASES.values())],
        [
            [
                Cell(listed(map(results.title, names)), note=promise),
                *(_outcome_cell(outcome) for outcome in found),
            ]
            for (promise, found), names in shared.items()
        ],
        _(
            "What comes out where inputs or results are infinite, NaN, subnormal or near overflow,"
            " beside IEEE 754 arithmetic (the FP64 product, rounded). Kernels with equal outcomes"
            " share a row; below their names is what their manifests promise."
        ),
        [False] * (1 + len(CASES)),
        dense=True,
        source="accuracy",
    )


def _promise(results: Results, name: str) -> str:
    known = results.kernels.get(name)
    return (known.manifest.limits if known else None) or ""


def _outcome_cell(outcome: Any) -> Cell:
    if outcome not in _WORDS:
        return Cell("\u2013")
    return Cell(_(_WORDS[outcome]), tone="good" if outcome == "same" else "warn")


def outcomes_explained(results: Results) -> Iterator[tuple[str, str]]:
    """The words of `special_grid` that occur, and what they mean."""
    for outcome, words in _WORDS.items():
        if (results.accuracy["outcome"] == outcome).any():
            yield _(words), _(OUTCOMES[outcome])


def missing_note(results: Results) -> str:
    """Kernels that were to be looked at and gave nothing, with the reason."""
    rows = results.accuracy[~results.accuracy["status"].isin(RANKED)]
    reasons = rows.drop_duplicates(["kernel", "status"]).to_dict("records")
    if not reasons:
        return ""
    told = [f"{results.title(row['kernel'])}: {row['status']}, {row['detail']}" for row in reasons]
    return _("Without errors, in some rows or all: {told}.").format(told="; ".join(told))
