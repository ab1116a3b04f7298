"""Which parameter set moves the fewest sectors, which fills them best, which is fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from .. import figures, traffic
from ..figures import Results
from ..language import _, listed, plural, sentence
from .words import integer, number, plain_number

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
        return _("unknown") if value is None else plain_number(value)

    def share(point: traffic.Point) -> str:
        value = traffic.useful_bytes(point.counts) or 0.0
        return f"{plain_number(100 * value / traffic.SECTOR_BYTES)} %"

    few, full = lesson.fewest[0], lesson.fullest[0] if lesson.fullest else None
    count = len(lesson.points)
    if '"BLOCK_' in few.params:
        swept = plural("{count} block shape", "{count} block shapes", count)
    else:
        swept = plural("{count} parameter set", "{count} parameter sets", count)
    per_request = traffic.sectors_per_request(few.counts)
    start = _("At N = {size}").format(size=figures.shape_label(*size))
    everywhere = len(lesson.fewest) == len(lesson.points)
    if everywhere:
        message = _("{start} the {swept} of {kernel} all move {sectors} sectors")
    elif len(lesson.fewest) > 1:
        message = _(
            "{start}, of the {swept} of {kernel}, {sets} move the fewest sectors: {sectors}"
        )
    else:
        message = _(
            "{start}, of the {swept} of {kernel}, {sets} moves the fewest sectors: {sectors}"
        )
    text = message.format(
        start=start,
        swept=swept,
        kernel=results.title(lesson.kernel),
        sets=set_names(lesson.fewest),
        sectors=integer(traffic.sectors(few)),
    )
    if per_request is not None:
        text += _(", {per_request} per request").format(per_request=plain_number(per_request))
    if not everywhere and full is not None and len({useful(p) for p in lesson.fewest}) == 1:
        text += _(", with {bytes} of 32 bytes ({share}) useful").format(
            bytes=useful(few), share=share(few)
        )
    sentences = [sentence(text)]
    if full is not None and full not in lesson.fewest:
        more = traffic.sectors(full) / traffic.sectors(few) - 1
        message = (
            _(
                "{sets} has the fullest sectors: {bytes} of 32 bytes ({share}) useful, but moves"
                " {more} % more of them."
            )
            if len(lesson.fullest) == 1
            else _(
                "{sets} have the fullest sectors: {bytes} of 32 bytes ({share}) useful, but move"
                " {more} % more of them."
            )
        )
        sentences.append(
            message.format(
                sets=set_names(lesson.fullest),
                bytes=useful(full),
                share=share(full),
                more=plain_number(100 * more),
            )
        )
    elif full is not None and not everywhere:
        sentences.append(
            _("Its sectors are the fullest, too: {full} of 32 bytes useful.").format(
                full=useful(full)
            )
        )
    if lesson.alike:
        worse, better = lesson.alike
        sentences.append(
            _(
                "The number of sectors alone does not tell sets apart: {worse} and {better} move"
                " equally many, with {few} and {many} useful bytes in each."
            ).format(
                worse=set_names([worse]),
                better=set_names([better]),
                few=useful(worse),
                many=useful(better),
            )
        )
    sentences.append(fastest_words(lesson, tflops))
    return sentences


def fastest_words(lesson: traffic.Lesson, tflops: Mapping[traffic.Key, float]) -> str:
    top = lesson.fastest
    if top is None:
        return _(
            "Which of them is fastest, counts do not say, and this result set does not have a"
            " time of each at this size."
        )
    speed = _("{set} with {tflops} TFLOPS").format(
        set=set_names([top]), tflops=number(tflops[top.key])
    )
    if lesson.fewest_is_fastest:
        return _("The fastest, {speed}, is among those that move the fewest sectors.").format(
            speed=speed
        )
    few = max(lesson.fewest, key=lambda point: tflops[point.key])
    more = traffic.sectors(top) / traffic.sectors(few) - 1
    text = _(
        "Fewest sectors is not fastest: the fastest is {speed}, against {tflops} of {few},"
        " although it moves {more} % more sectors"
    ).format(
        speed=speed,
        tflops=number(tflops[few.key]),
        few=set_names([few]),
        more=plain_number(100 * more),
    )
    if top in lesson.fullest:
        text += _("; its sectors are the fullest")
    return sentence(text)


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
        message = (
            _(
                "{kernel} ({set}) moves {sectors} sectors, {factor} times fewer than {other}"
                " ({before})"
            )
            if ratio > 1
            else _(
                "{kernel} ({set}) moves {sectors} sectors, {factor} times more than {other}"
                " ({before})"
            )
        )
        text = message.format(
            kernel=results.title(after.kernel),
            set=set_names([after]),
            sectors=integer(traffic.sectors(after)),
            factor=plain_number(ratio if ratio > 1 else 1 / ratio),
            other=results.title(before.kernel),
            before=set_names([before]),
        )
        names = ("redundancy_a", "redundancy_b")
        now, then = ([p.counts.get(name) for name in names] for p in (after, before))
        if None not in (*now, *then) and now != then:
            text += _(": it fetches {what} times").format(what=_redundancy(now, then))
        sentences.append(sentence(text))
    return sentences[:_MOST_SENTENCES]


def _redundancy(now: Sequence[float | None], then: Sequence[float | None]) -> str:
    (a, b), (a_then, b_then) = ([plain_number(v or 0.0) for v in pair] for pair in (now, then))
    if (a, a_then) == (b, b_then):
        return _("each element of A and B {a} instead of {a_then}").format(a=a, a_then=a_then)
    return _("each element of A {a} instead of {a_then} and of B {b} instead of {b_then}").format(
        a=a, a_then=a_then, b=b, b_then=b_then
    )


def set_names(points: Sequence[traffic.Point], limit: int = 6) -> str:
    ordered = sorted(points, key=lambda point: figures.params_order(point.params))
    names = [figures.params_label(point.params) or _("its only set") for point in ordered]
    return listed(
        [*names[:limit], _("{number} more").format(number=len(names) - limit)]
        if len(names) > limit
        else names
    )
