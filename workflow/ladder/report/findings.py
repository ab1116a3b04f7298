"""What the tables say in words."""

from __future__ import annotations

import pandas as pd

from .. import figures, traffic
from ..figures import Results
from .grid import as_word
from .lesson import fastest_words
from .words import between, json_object, number, percent, times

_ARTICLE_SHAPE = (16, 16)
"""The block shape of the naive kernel that the sweep is compared with."""
_STEPS_IN_WORDS = 4
"""Up to this many steps of the ladder each get a sentence."""


def findings(results: Results, ladder: pd.DataFrame) -> list[str]:
    """What the tables say in words; each sentence holds only where its rows exist."""
    sentences = [
        *_summit(results, ladder),
        *_steps(ladder),
        *_naive_shapes(results),
        *_sectors_and_time(results),
        *_odd_sizes(results),
        *_tf32(results),
    ]
    return sentences


def _summit(results: Results, ladder: pd.DataFrame) -> list[str]:
    rungs = ladder[ladder["kind"] == "rung"]
    if rungs.empty:
        return []
    top = rungs.sort_values("tflops").iloc[-1]
    text = (
        f"The fastest rung at N = {int(top['n'])} is {top['series']} with"
        f" {number(top['tflops'])} TFLOPS"
    )
    if pd.notna(top["vs_reference"]):
        text += f", {percent(top['vs_reference'])} of cuBLAS FP32"
    if pd.notna(top["pct_peak_max_clock"]):
        text += f" and {number(top['pct_peak_max_clock'], 3, '%')} of the FP32 peak"
    return [f"{text}."]


def _steps(ladder: pd.DataFrame) -> list[str]:
    """Each rung against the one before; of many, the largest step and all that are no gain."""
    sentences: list[str] = []
    gains = []
    rungs = ladder[ladder["kind"] == "rung"]
    for (_, before), (_, row) in zip(
        list(rungs.iterrows())[:-1], list(rungs.iterrows())[1:], strict=True
    ):
        ratio, word = row["vs_previous"], as_word(row["verdict_previous"])
        interval = between(row["vs_previous_low"], row["vs_previous_high"], digits=4)
        behind = f" (95 % interval {interval})" if interval else ""
        start = f"{row['series']} is"
        if word == "same":
            text = f"{start} as fast as {before['series']}: {times(ratio)}{behind}"
        elif word == "ambiguous":
            text = (
                f"{start} not clearly faster or slower than {before['series']}:"
                f" {times(ratio)}{behind}"
            )
        elif ratio < 1:
            text = f"{start} slower than the one before, {before['series']}: {times(ratio)}{behind}"
        else:
            gains.append((float(ratio), len(sentences)))
            text = f"{start} {times(ratio)} as fast as {before['series']}{behind}"
        sentences.append(f"{text}.")
    if len(sentences) <= _STEPS_IN_WORDS:
        return sentences
    smaller = {index for _, index in sorted(gains)[:-1]}
    kept = [text for index, text in enumerate(sentences) if index not in smaller]
    return (
        [
            *kept,
            f"The other {len(smaller)} rungs are each faster than the one before; the table"
            " has the ratios.",
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
            f"At N = {size} the naive kernel's fastest block shape is 16\u00d716 itself,"
            f" {number(top['tflops'])} TFLOPS."
        ]
    interval = figures.speed_up(results, base, top)
    behind = (
        f" (95 % interval {between(interval.low, interval.high, digits=4)})" if interval else ""
    )
    ratio = base["time_median_ns"] / top["time_median_ns"]
    return [
        f"The naive kernel's fastest block shape at N = {size} is"
        f" {figures.params_label(top['params'])}: {number(top['tflops'])} TFLOPS,"
        f" {times(ratio)} the {number(base['tflops'])} TFLOPS of 16\u00d716{behind}."
    ]


def _sectors_and_time(results: Results) -> list[str]:
    """Whether the parameter set of fewest sectors is the fastest, if both are known."""
    size, tflops = traffic.common_size(results.counted), results.tflops()
    points = traffic.at_size(results.counted, size)
    for name in results.counted_rungs():
        lesson = traffic.lesson(name, points, tflops)
        if size is not None and lesson is not None and lesson.fastest is not None:
            words = fastest_words(lesson, tflops)
            where = f"{results.title(name)} at N = {figures.shape_label(*size)}"
            return [f"{where}: {words[0].lower()}{words[1:]}"]
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
    direction = "less" if change < 0 else "more"
    return [
        f"At N = {size - 1} instead of {size}, where tiles stay partly empty,"
        f" {results.title(kernel['kernel'])} has {percent(abs(change), 2)} {direction}"
        f" throughput."
    ]


def _tf32(results: Results) -> list[str]:
    rows = results.ranked[results.ranked["kernel"].map(results.kind) == "tf32"]
    if rows.empty:
        return []
    top = rows.sort_values("tflops").iloc[-1]
    error = rows["eta_rms"].max()
    text = (
        f"{results.title(top['kernel'])} reaches {number(top['tflops'])} TFLOPS but is not FP32"
        f" accurate"
    )
    if pd.notna(error):
        text += (
            f": its rms error is up to {number(error, 2)} in units of 2\u207b\u00b2\u2074"
            f"|A||B|, where FP32 stays below 1"
        )
    return [f"{text}. It is shown apart and never ranked with the FP32 kernels."]
