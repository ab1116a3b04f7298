"""What the tables say in words."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from .. import figures, traffic
from ..figures import Results
from ..language import _, sentence
from .grid import as_word
from .lesson import fastest_words
from .steps import largest_step, limit_of_fastest
from .words import between, json_object, number, percent, times

_ARTICLE_SHAPE = (16, 16)
"""The block shape of the naive kernel that the sweep is compared with."""
_LEARNED = 3
_STEPS_IN_WORDS = 4
"""Up to this many steps of the ladder each get a sentence."""


class Finding(NamedTuple):
    """A sentence, and the row of a table that it rests on."""

    text: str
    key: str = ""


def learned(results: Results, ladder: pd.DataFrame, steps: pd.DataFrame) -> list[Finding]:
    """The three sentences that say most: what made the ladder steep, what is left, what misleads.

    Where a table is missing, the next in the list stand in.
    """
    found: list[Finding] = []
    for told in (largest_step(steps), limit_of_fastest(steps)):
        if told is not None:
            found.append(Finding(*told))
    for sentences in (
        _sectors_and_time(results),
        _naive_shapes(results),
        _odd_sizes(results),
        _tf32(results),
        _summit(results, ladder),
    ):
        found += [Finding(text) for text in sentences]
    return found[:_LEARNED]


def findings(results: Results, ladder: pd.DataFrame) -> list[str]:
    """What the tables say in words; each sentence holds only where its rows exist."""
    return [
        *_summit(results, ladder),
        *_steps(ladder),
        *_naive_shapes(results),
        *_sectors_and_time(results),
        *_odd_sizes(results),
        *_tf32(results),
        *_no_tensor_cores(results),
    ]


def _summit(results: Results, ladder: pd.DataFrame) -> list[str]:
    rungs = ladder[ladder["kind"] == "rung"]
    if rungs.empty:
        return []
    top = rungs.sort_values("tflops").iloc[-1]
    text = _("The fastest rung at N = {n} is {series} with {tflops} TFLOPS").format(
        n=int(top["n"]), series=top["series"], tflops=number(top["tflops"])
    )
    if pd.notna(top["vs_reference"]):
        text += _(", {reference} of cuBLAS FP32").format(reference=percent(top["vs_reference"]))
    if pd.notna(top["pct_peak_max_clock"]):
        text += _(" and {peak} of the FP32 peak").format(
            peak=number(top["pct_peak_max_clock"], 3, "%")
        )
    return [sentence(text)]


def _steps(ladder: pd.DataFrame) -> list[str]:
    """Each rung against the one before; of many, the largest step and all that are no gain."""
    sentences: list[str] = []
    gains = []
    rungs = ladder[ladder["kind"] == "rung"]
    for (_before, before), (_row, row) in zip(
        list(rungs.iterrows())[:-1], list(rungs.iterrows())[1:], strict=True
    ):
        ratio, word = row["vs_previous"], as_word(row["verdict_previous"])
        interval = between(row["vs_previous_low"], row["vs_previous_high"], digits=4)
        if word == "same":
            message = _("{rung} is as fast as {previous}: {ratio}{behind}.")
        elif word == "ambiguous":
            message = _("{rung} is not clearly faster or slower than {previous}: {ratio}{behind}.")
        elif ratio < 1:
            message = _("{rung} is slower than the one before, {previous}: {ratio}{behind}.")
        else:
            gains.append((float(ratio), len(sentences)))
            message = _("{rung} is {ratio} as fast as {previous}{behind}.")
        sentences.append(
            message.format(
                rung=row["series"],
                previous=before["series"],
                ratio=times(ratio),
                behind=behind(interval),
            )
        )
    if len(sentences) <= _STEPS_IN_WORDS:
        return sentences
    smaller = {index for _ratio, index in sorted(gains)[:-1]}
    kept = [text for index, text in enumerate(sentences) if index not in smaller]
    return (
        [
            *kept,
            _(
                "The other {smaller} rungs are each faster than the one before; the table has the"
                " ratios."
            ).format(smaller=len(smaller)),
        ]
        if smaller
        else kept
    )


def _naive_shapes(results: Results) -> list[str]:
    """The best block shape of the naive kernel against the article's 16x16."""
    kernel = next((name for name in results.rungs() if "naive" in name), None)
    if kernel is None:
        return []
    rows = figures.squares(results.ranked)
    rows = rows[(rows["kernel"] == kernel) & (rows["cache_mode"] == "rotating")]
    is_square = [tuple(json_object(text).values()) == _ARTICLE_SHAPE for text in rows["params"]]
    square = pd.Series(is_square, index=rows.index, dtype=bool)
    sizes = rows.groupby("n")["params"].nunique()
    sizes = sizes[(sizes > 1) & sizes.index.isin(rows[square]["n"])]
    if sizes.empty:
        return []
    size = 2048 if 2048 in sizes.index else int(sizes.index.max())
    at_size = rows[rows["n"] == size]
    top = at_size.sort_values("tflops").iloc[-1]
    base = at_size[square.loc[at_size.index]].iloc[0]
    if top["params"] == base["params"]:
        return [
            _(
                "At N = {size} the naive kernel's fastest block shape is 16\u00d716 itself,"
                " {tflops}"
                " TFLOPS."
            ).format(size=size, tflops=number(top["tflops"]))
        ]
    interval = figures.speed_up(results, base, top)
    span = between(interval.low, interval.high, digits=4) if interval else ""
    ratio = base["time_median_ns"] / top["time_median_ns"]
    return [
        _(
            "The naive kernel's fastest block shape at N = {size} is {params}: {tflops} TFLOPS,"
            " {ratio} the {square} TFLOPS of 16\u00d716{behind}."
        ).format(
            size=size,
            params=figures.params_label(top["params"]),
            tflops=number(top["tflops"]),
            ratio=times(ratio),
            square=number(base["tflops"]),
            behind=behind(span),
        )
    ]


def _sectors_and_time(results: Results) -> list[str]:
    """Whether the parameter set of fewest sectors is the fastest, if both are known."""
    size, tflops = traffic.common_size(results.counted), results.tflops()
    points = traffic.at_size(results.counted, size)
    for name in results.counted_rungs():
        lesson = traffic.lesson(name, points, tflops)
        if size is not None and lesson is not None and lesson.fastest is not None:
            words = fastest_words(lesson, tflops)
            where = _("{name} at N = {size}").format(
                name=results.title(name), size=figures.shape_label(*size)
            )
            return [_("{where}: {words}").format(where=where, words=words[0].lower() + words[1:])]
    return []


def _odd_sizes(results: Results) -> list[str]:
    """What the fastest rung loses where a power of two minus one does not fill its tiles."""
    rows = figures.squares(results.ranked)
    rows = figures.best(rows[rows["cache_mode"] == "rotating"])
    rows = rows[rows["kernel"].map(results.kind) == "rung"]
    sizes = set(rows["n"])
    pairs = [n for n in sizes if n - 1 in sizes and n % 32 == 0]
    if not pairs:
        return []
    size = max(pairs)
    at_size = rows[rows["n"] == size].sort_values("tflops")
    if at_size.empty:
        return []
    kernel = at_size.iloc[-1]
    odd = rows[(rows["n"] == size - 1) & (rows["kernel"] == kernel["kernel"])]
    if odd.empty:
        return []
    change = odd["tflops"].iloc[0] / kernel["tflops"] - 1
    message = (
        _(
            "At N = {odd} instead of {size}, where tiles stay partly empty, {rung} has {change}"
            " less throughput."
        )
        if change < 0
        else _(
            "At N = {odd} instead of {size}, where tiles stay partly empty, {rung} has {change}"
            " more throughput."
        )
    )
    return [
        message.format(
            odd=size - 1,
            size=size,
            rung=results.title(kernel["kernel"]),
            change=percent(abs(change), 2),
        )
    ]


def _tf32(results: Results) -> list[str]:
    rows = results.ranked[results.ranked["kernel"].map(results.kind) == "tf32"]
    if rows.empty:
        return []
    top = rows.sort_values("tflops").iloc[-1]
    error = rows["eta_rms"].max()
    text = _("{kernel} reaches {tflops} TFLOPS but is not FP32 accurate").format(
        kernel=results.title(top["kernel"]), tflops=number(top["tflops"])
    )
    if pd.notna(error):
        text += _(
            ": its rms error is up to {error} in units of 2\u207b\u00b2\u2074|A||B|,"
            " where FP32 stays below 1"
        ).format(error=number(error, 2))
    return [sentence(text) + _(" It is shown apart and never ranked with the FP32 kernels.")]


def _no_tensor_cores(results: Results) -> list[str]:
    """Why the tensor-core ladder is not for this GPU, or for the one projected to."""
    if not any(results.kind(name) == "tensor" for name in results.kernels):
        return []
    sentences = []
    for sheet in filter(None, (results.sheet, results.projected)):
        bound = sheet.tensor_peak_tflops("tf32", 3)
        if bound is not None and bound < sheet.fp32_peak_tflops:
            message = _(
                "On a {gpu} FP32-accurate products on the tensor cores would be slower than those"
                " of the FP32 units, so they are not run there: each takes three TF32 products,"
                " which bounds them at {bound} TFLOPS, and the FP32 units reach {peak} (datasheet)."
            )
            sentences.append(
                message.format(
                    gpu=sheet.name, bound=number(bound), peak=number(sheet.fp32_peak_tflops)
                )
            )
    return sentences


def behind(interval: str) -> str:
    """An interval as it follows its value in a sentence; nothing where there is none."""
    return _(" (95 % interval {interval})").format(interval=interval) if interval else ""
