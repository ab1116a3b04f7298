"""Which parameter set moves the fewest sectors, which fills them best, which is fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from .. import figures, traffic
from ..figures import Results
from .words import amount, integer, listed, number, plain_number

_MOST_SENTENCES = 4


def lesson_sentences(results: Results, size: tuple[int, int, int] | None) -> list[str]:
    """Which parameter set moves the fewest sectors, which fills them best, which is fastest."""
    rungs = results.counted_rungs()
    points = sorted(
        traffic.at_size(results.counted, size),
        key=lambda point: figures.params_order(point.params),
    )
    if not rungs or size is None:
        return []
    tflops, sentences = results.tflops(), []
    first = next((name for name in rungs if any(p.kernel == name for p in points)), "")
    lesson = traffic.lesson(first, points, tflops)
    if lesson:
        sentences += _lesson_words(results, lesson, size, tflops)
    sentences += _fetches(results, rungs, points, tflops)
    return sentences


def _lesson_words(
    results: Results,
    lesson: traffic.Lesson,
    size: tuple[int, int, int],
    tflops: Mapping[traffic.Key, float],
) -> list[str]:
    def useful(point: traffic.Point) -> str:
        value = traffic.useful_bytes(point.counts)
        return "unknown" if value is None else plain_number(value)

    def share(point: traffic.Point) -> str:
        value = traffic.useful_bytes(point.counts) or 0.0
        return f"{plain_number(100 * value / traffic.SECTOR_BYTES)} %"

    few, full = lesson.fewest[0], lesson.fullest[0] if lesson.fullest else None
    noun = "block shape" if '"BLOCK_' in few.params else "parameter set"
    per_request = traffic.sectors_per_request(few.counts)
    start = f"At N = {figures.shape_label(*size)}"
    where = f"of the {amount(len(lesson.points), noun)} of {results.title(lesson.kernel)}"
    everywhere = len(lesson.fewest) == len(lesson.points)
    text = (
        f"{start} the {amount(len(lesson.points), noun)} of {results.title(lesson.kernel)} all"
        f" move {integer(traffic.sectors(few))} sectors"
        if everywhere
        else f"{start}, {where}, {set_names(lesson.fewest)} moves the fewest sectors:"
        f" {integer(traffic.sectors(few))}"
    )
    if len(lesson.fewest) > 1 and not everywhere:
        text = text.replace(" moves the", " move the", 1)
    if per_request is not None:
        text += f", {plain_number(per_request)} per request"
    if not everywhere and full is not None and len({useful(p) for p in lesson.fewest}) == 1:
        text += f", with {useful(few)} of 32 bytes ({share(few)}) useful"
    sentences = [f"{text}."]
    if full is not None and full not in lesson.fewest:
        more = traffic.sectors(full) / traffic.sectors(few) - 1
        verb, moves = ("has", "moves") if len(lesson.fullest) == 1 else ("have", "move")
        sentences.append(
            f"{set_names(lesson.fullest)} {verb} the fullest sectors: {useful(full)} of 32 bytes"
            f" ({share(full)}) useful, but {moves} {plain_number(100 * more)} % more of them."
        )
    elif full is not None and not everywhere:
        sentences.append(f"Its sectors are the fullest, too: {useful(full)} of 32 bytes useful.")
    if lesson.alike:
        worse, better = lesson.alike
        sentences.append(
            f"The number of sectors alone does not tell sets apart: {set_names([worse])} and"
            f" {set_names([better])} move equally many, with {useful(worse)} and {useful(better)}"
            " useful bytes in each."
        )
    sentences.append(fastest_words(lesson, tflops))
    return sentences


def fastest_words(lesson: traffic.Lesson, tflops: Mapping[traffic.Key, float]) -> str:
    top = lesson.fastest
    if top is None:
        return (
            "Which of them is fastest, counts do not say, and this result set does not have a"
            " time of each at this size."
        )
    speed = f"{set_names([top])} with {number(tflops[top.key])} TFLOPS"
    if lesson.fewest_is_fastest:
        return f"The fastest, {speed}, is among those that move the fewest sectors."
    few = max(lesson.fewest, key=lambda point: tflops[point.key])
    more = traffic.sectors(top) / traffic.sectors(few) - 1
    text = (
        f"Fewest sectors is not fastest: the fastest is {speed}, against"
        f" {number(tflops[few.key])} of {set_names([few])}, although it moves"
        f" {plain_number(100 * more)} % more sectors"
    )
    return f"{text}; its sectors are the fullest." if top in lesson.fullest else f"{text}."


def _fetches(
    results: Results,
    rungs: Sequence[str],
    points: Sequence[traffic.Point],
    tflops: Mapping[traffic.Key, float],
) -> list[str]:
    """How each rung's best set lowers the fetches of an element and the sectors."""
    chosen = [
        point
        for name in rungs
        if (point := traffic.representative(name, points, tflops)) and traffic.sectors(point)
    ]
    sentences = []
    for before, after in itertools.pairwise(chosen):
        ratio = traffic.sectors(before) / traffic.sectors(after)
        if math.isclose(ratio, 1.0, rel_tol=0.01):
            continue
        factor = f"{plain_number(ratio if ratio > 1 else 1 / ratio)} times"
        text = (
            f"{results.title(after.kernel)} ({set_names([after])}) moves"
            f" {integer(traffic.sectors(after))} sectors, {factor}"
            f" {'fewer' if ratio > 1 else 'more'} than {results.title(before.kernel)}"
            f" ({set_names([before])})"
        )
        names = ("redundancy_a", "redundancy_b")
        now, then = ([p.counts.get(name) for name in names] for p in (after, before))
        if None not in (*now, *then) and now != then:
            text += f": it fetches {_redundancy(now, then)} times"
        sentences.append(f"{text}.")
    return sentences[:_MOST_SENTENCES]


def _redundancy(now: Sequence[float | None], then: Sequence[float | None]) -> str:
    (a, b), (a_then, b_then) = ([plain_number(v or 0.0) for v in pair] for pair in (now, then))
    if (a, a_then) == (b, b_then):
        return f"each element of A and B {a} instead of {a_then}"
    return f"each element of A {a} instead of {a_then} and of B {b} instead of {b_then}"


def set_names(points: Sequence[traffic.Point], limit: int = 6) -> str:
    ordered = sorted(points, key=lambda point: figures.params_order(point.params))
    names = [figures.params_label(point.params) or "its only set" for point in ordered]
    return listed([*names[:limit], f"{len(names) - limit} more"] if len(names) > limit else names)
