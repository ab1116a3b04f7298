"""Every figure of a result set: its table, how it is drawn, and what its caption says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .. import model
from ..language import N_, _, paragraph, plural, sentence
from .accuracy import (
    LINEAR_BIAS,
    accuracy_figure,
    accuracy_table,
    errors_figure,
    errors_table,
)
from .energy import energy_figure, energy_table
from .loads import COUNTED_BY, counted_mark, traffic_figure, traffic_table
from .looks import Look, origin
from .results import Results, params_label, shape_label
from .rooflines import (
    LEVELS,
    hierarchical_roofline,
    hierarchical_table,
    projection,
    projection_table,
    roofline,
    roofline_table,
)
from .rungs import ladder, ladder_table
from .scatter import drift_figure, drift_table, samples_figure, samples_table
from .shapes import shapes, shapes_table, speed_up, speed_up_table
from .sizes import cache_modes, cache_modes_table, tflops_by_size, tflops_by_size_table
from .steps import predictions_figure, predictions_table, steps_figure, steps_table
from .sweeps import (
    block_shape_heatmap,
    block_shape_table,
    pairs_figure,
    pairs_table,
    swept_kernels,
)

Topic = Literal[
    "ladder",
    "traffic",
    "sizes",
    "shapes",
    "blocks",
    "roofline",
    "prediction",
    "samples",
    "accuracy",
    "energy",
]
TOPICS: tuple[Topic, ...] = get_args(Topic)
"""What figures are about, in the report's order."""


@dataclass(frozen=True)
class Plan:
    """A figure before it is drawn; its words are in the language spoken."""

    name: str
    title: str
    topic: Topic
    table: pd.DataFrame
    draw: Callable[[pd.DataFrame, Look], Figure]
    explanation: str
    alt: str
    counted: bool = False
    """Whether it shows counts, which need no GPU, with times at most beside them."""
    projected: bool = False
    """Whether it shows bounds for another GPU, and nothing that was measured."""
    kernel: str | None = None
    """The one kernel that it shows; None if it shows several."""
    needs: str = N_("valid time for this figure")
    """What is missing if the table is empty."""


def plans(results: Results) -> Iterator[Plan]:
    """Every figure of a result set with its table, in the report's order."""
    table = ladder_table(results)
    yield Plan(
        "ladder",
        _("The ladder at one size"),
        "ladder",
        table,
        ladder,
        _(
            "Throughput of each rung with its fastest parameter set at the largest square size that"
            " most rungs have, in TFLOPS (2MNK flop over the median time) and percent of cuBLAS"
            " FP32 (dashed line). The dark stroke at a bar's end is the median's 95 % interval."
        ),
        _alt_values(table, _("Bars of TFLOPS")),
    )
    tensor = ladder_table(results, family="tensor")
    if len(tensor):
        yield Plan(
            "ladder_tensor",
            _("The ladder of the tensor cores"),
            "ladder",
            tensor,
            ladder,
            _(
                "Throughput of each kernel that computes FP32 products on the tensor cores, with"
                " its fastest parameter set at the largest square size that most of them have, in"
                " TFLOPS (2MNK flop over the median time). They are ranked among themselves and not"
                " with the kernels of the FP32 units. The dark stroke at a bar's end is the"
                " median's 95 % interval."
            ),
            _alt_values(tensor, _("Bars of TFLOPS")),
        )
    table = traffic_table(results)
    size = shape_label(*table.iloc[0][["m", "n", "k"]]) if len(table) else ""
    yield Plan(
        "traffic",
        _("What a load of a warp moves, and what of it is used"),
        "traffic",
        table,
        traffic_figure,
        _(
            "Loads of global memory at N = {size}, for every parameter set of the first rung and"
            " the best of each other. A warp's 32 lanes load together: one request. Memory answers"
            " in sectors of 32 bytes (boxes), whole ones only; the filled part are the bytes that"
            " some lane asked for. Few boxes and full boxes are both good. Right of them, the"
            " sectors of the whole product: how often the rung asks at all."
        ).format(size=size),
        _alt_traffic(table),
        counted=True,
        needs=N_("counts in this result set"),
    )
    table = tflops_by_size_table(results)
    fastest = table[table["best"].fillna(False).astype(bool)]
    largest = fastest.loc[fastest.groupby("series", sort=False)["n"].idxmax()]
    yield Plan(
        "tflops_by_size",
        _("Throughput by matrix size"),
        "sizes",
        table,
        tflops_by_size,
        paragraph(
            _(
                "Throughput in TFLOPS (2N\u00b3 flop over the median time) of square products,"
                " rotating buffers. Bold lines: the fastest parameter set at each size that is a"
                " multiple of 32; hollow markers: other sizes; thin lines: the other parameter"
                " sets. Vertical strokes are the medians' 95 % intervals, often smaller than the"
                " marker. TF32 rounds its inputs to 10 mantissa bits; it is drawn on a scale of its"
                " own and takes no part in the ranking."
            ),
            *_ceiling_words(table),
            *_public_words(table),
        ),
        _alt_values(largest, _("Lines of TFLOPS against matrix size; at the largest size")),
    )
    tensor = tflops_by_size_table(results, family="tensor")
    if len(tensor):
        yield Plan(
            "tflops_by_size_tensor",
            _("Throughput on the tensor cores by matrix size"),
            "sizes",
            tensor,
            tflops_by_size,
            _(
                "Throughput in TFLOPS (2N\u00b3 flop over the median time) of square products by"
                " the kernels that compute FP32 products on the tensor cores, rotating buffers."
                " Bold lines: the fastest parameter set at each size that is a multiple of 32;"
                " hollow markers: other sizes."
            ),
            _alt_values(
                tensor[tensor["best"]].drop_duplicates("series", keep="last"),
                _("Lines of TFLOPS against matrix size; at the largest size"),
            ),
        )
    for name in swept_kernels(results):
        table = block_shape_table(results, name)
        top = table[table["best"]].drop_duplicates("n")
        yield Plan(
            f"block_shape_{name}",
            _("Parameter sweep: {kernel}").format(kernel=results.title(name)),
            "blocks",
            table,
            block_shape_heatmap,
            _(
                "Throughput in TFLOPS of every parameter set (rows) at every square size (columns),"
                " rotating buffers. The shade is the percentage of the fastest set at that size,"
                " which is framed and bold; a dash is a point without a valid time."
            ),
            _("Heat map; fastest set by size: {sets}").format(
                sets=_("; ").join(
                    _("N = {n}: {set}, {tflops} TFLOPS").format(
                        n=row.n, set=row.label, tflops=f"{row.tflops:.3g}"
                    )
                    for row in top.itertuples()
                )
            ),
            kernel=name,
        )
        table = pairs_table(results, name)
        if table.empty:
            continue
        first = table.sort_values("tflops").iloc[-1]
        yield Plan(
            f"pairs_{name}",
            _("Pairs of parameters: {kernel}").format(kernel=results.title(name)),
            "blocks",
            table,
            pairs_figure,
            _(
                "Throughput in TFLOPS at N = {size} for each pair of parameters of which some value"
                " was tried with several of the other, rotating buffers. A cell is the fastest set"
                " with these two values, whatever its other parameters; the shade is its percentage"
                " of the fastest set of all. The fastest cell of a panel is framed and bold; a dash"
                " is a pair of values that was not tried."
            ).format(size=shape_label(*first[["m", "n", "k"]])),
            _("Heat maps of {pairs}; fastest set: {set}, {tflops} TFLOPS.").format(
                pairs=plural(
                    "{count} pair", "{count} pairs", len(table.drop_duplicates(["x", "y"]))
                ),
                set=params_label(str(first["params"])),
                tflops=f"{first['tflops']:.3g}",
            ),
            kernel=name,
        )
    table = roofline_table(results)
    yield Plan(
        "roofline",
        _("Roofline"),
        "roofline",
        table,
        roofline,
        _(
            "Throughput against arithmetic intensity, both logarithmic. Filled markers count the"
            " bytes that the kernel's threads request (closed form of its manifest), hollow ones"
            " the compulsory bytes, every matrix moved once. A filled marker above the DRAM roof"
            " means that registers, shared memory and caches served most requests. Solid roofs were"
            " measured on this GPU: a loop of multiply-adds on registers, and a copy in DRAM."
            " Dashed ones are no measurement: the FP32 peak at the maximum clock, and the"
            " datasheet's DRAM bandwidth."
        ),
        _alt_values(
            table[table["traffic"] == "requested"],
            _("Roofline; requested intensity"),
            "flop_per_byte",
            "flop/byte",
        ),
    )
    if results.projected:
        yield _projected(results, results.projected.name)
    if results.ceilings:
        yield from _under_measured_roofs(results)
    table = predictions_table(results)
    if results.ceilings:
        yield Plan(
            "predictions",
            _("Predicted against measured"),
            "prediction",
            table,
            predictions_figure,
            _(
                "Time of a launch by the step model, from its counts and the measured ceilings of"
                " this GPU, against the measured median, ms, both logarithmic: each kernel's"
                " fastest set at every square size that was counted. On the line both agree; in the"
                " shaded band they are within {tolerance} %. Nothing of the model is fitted to"
                " these times."
            ).format(tolerance=f"{100 * model.TOLERANCE:.0f}"),
            _alt_ranges(table, _("Model less measured time"), "model_error_pct"),
        )
    yield from _by_shape(results)
    yield from _quality(results)
    yield _caches(results)


def _by_shape(results: Results) -> Iterator[Plan]:
    table = speed_up_table(results)
    yield Plan(
        "speed_up",
        _("Speed relative to cuBLAS at every size"),
        "shapes",
        table,
        speed_up,
        _(
            "Speed in percent of cuBLAS FP32 in the same run, rotating buffers: each rung's fastest"
            " parameter set (columns) at each size N or M\u00d7N\u00d7K (rows). Framed and bold:"
            " faster than cuBLAS. The shade is the logarithm of the ratio; a dash is a size that"
            " the rung did not run or has no valid time for."
        ),
        _alt_ranges(table, _("Percent of cuBLAS FP32 over all sizes"), "pct_of_reference"),
    )
    table = shapes_table(results)
    yield Plan(
        "shapes",
        _("Rectangular and odd shapes"),
        "shapes",
        table,
        shapes,
        _(
            "Speed in percent of cuBLAS FP32 in the same run (100, vertical line) for rectangular"
            " sizes M\u00d7N\u00d7K and for squares that are no multiple of 32, with each kernel's"
            " fastest parameter set; logarithmic."
        ),
        _alt_ranges(table, _("Percent of cuBLAS FP32 by shape"), "pct_of_reference"),
    )


def _caches(results: Results) -> Plan:
    table = cache_modes_table(results)
    return Plan(
        "cache_modes",
        _("Hot, cold and rotating buffers"),
        "sizes",
        table,
        cache_modes,
        _(
            "Throughput relative to rotating buffers (100 %) by the parameter set that is fastest"
            " there. Rotating: launches alternate between buffers that together exceed twice the L2"
            " cache; hot: one set of buffers; cold: the L2 cache is cleared before each launch."
        ),
        _alt_ranges(table, _("Percent of rotating throughput"), "pct_of_rotating"),
    )


def _quality(results: Results) -> Iterator[Plan]:
    """How sure the times are, how right the results, and what they cost."""
    table = samples_table(results)
    spread = table.groupby("series", sort=False)["pct_of_median"]
    yield Plan(
        "samples",
        _("The samples behind the medians"),
        "samples",
        table,
        samples_figure,
        _(
            "Each sample of each rung's fastest set at the ladder's size: its time less the point's"
            " median, percent; the scale is linear within 1 % and logarithmic beyond. Filled and"
            " hollow markers are the rounds, in which the point was visited anew; strokes are the"
            " quartiles of what is shown, at most 40 samples of a round."
        ),
        _alt(
            _("Samples less median, quartiles"),
            [
                _range_of(name, own.quantile(0.25), own.quantile(0.75), " %", digits=2)
                for name, own in spread
            ],
        ),
    )
    table = drift_table(results)
    yield Plan(
        "drift",
        _("What moved during the run"),
        "samples",
        table,
        drift_figure,
        _(
            "The sentinel, cuBLAS FP32 at one size timed between the visits to points, by its"
            " change since its first timing (where the run recorded it); and every point by the"
            " change of its median from the first round to the last, percent, a row a kernel: box"
            " from quartile to quartile, whiskers over all points. The scale of the latter is"
            " linear within 1 % and logarithmic beyond."
        ),
        _alt_ranges(table[table["what"] == "rounds"], _("Change between rounds"), "change_pct"),
        needs=N_("point that was visited in several rounds"),
    )
    table = accuracy_table(results)
    yield Plan(
        "accuracy",
        _("Error by length of the sums"),
        "accuracy",
        table,
        accuracy_figure,
        _(
            "Error \u03b7 against K, both logarithmic: the difference from the FP64 product over"
            " 2\u207b\u00b2\u2074 times the sum of the absolute terms, on uniform data in"
            " [\u22121, 1). Shown are the root mean square over a product and the largest of an"
            " element, of each the largest value over the kernel's parameter sets and all M and N"
            " at this K. Lines join the K that are multiples of 32; kernels that add in the same"
            " order coincide. Dotted: what a result of FP32 arithmetic must keep to be timed at"
            " all; TF32 has a bound of its own."
        ),
        _alt_ranges(table, _("Rms error"), "eta_rms", ""),
        needs=N_("check on random data"),
    )
    yield from _errors(results)
    table = energy_table(results)
    yield Plan(
        "energy",
        _("Work for a joule"),
        "energy",
        table,
        energy_figure,
        _(
            "Left: GFLOPS per watt, that is work over the energy of a launch, of each rung's"
            " fastest set at the ladder's size. Right: mean power of the whole card while the point"
            " ran. Both by NVML's energy counter; host and cooling are not included. Rungs without"
            " a reading of half a second or more are left out. Dashed: cuBLAS FP32."
        ),
        _alt_values(table, _("Bars of GFLOPS per watt"), "gflops_per_w", "GFLOPS/W"),
        needs=N_("reading of the energy counter"),
    )


def _errors(results: Results) -> Iterator[Plan]:
    """Of the largest products, and of the smallest, of which cuBLAS adds up several sums."""
    table = errors_table(results)
    sides = sorted(set(table["n"]))
    own = table[table["n"] == max(sides, default=0)]
    title = _("Error by distribution of the inputs")
    yield _errors_plan("accuracy_by_distribution", title, own.reset_index(drop=True))
    if len(sides) > 1:
        own = table[table["n"] == sides[0]]
        title = _("Error by distribution of the inputs, small products")
        yield _errors_plan("accuracy_of_small_products", title, own.reset_index(drop=True))


def _errors_plan(name: str, title: str, table: pd.DataFrame) -> Plan:
    return Plan(
        name,
        title,
        "accuracy",
        table,
        errors_figure,
        _(
            "Errors against K at M = N = {side}, by the distribution of A and B, of each kernel's"
            " first parameter set that is meant for the size: root mean square and largest of"
            " \u03b7, the difference from the FP64 product over 2\u207b\u00b2\u2074 times the sum"
            " of the absolute terms, and the bias, the mean of that difference with its sign."
            " Strokes at the bias are two standard errors either way. Its scale is linear within"
            " {linear} and logarithmic beyond. Thick: cuBLAS FP32; grey: from the least to the most"
            " of the FP32 units' kernels."
        ).format(side=int(table["n"].iloc[0]) if len(table) else 0, linear=f"{LINEAR_BIAS:g}"),
        _alt_ranges(table, _("Rms error"), "eta_rms", ""),
        needs=N_("measurement of errors by distribution"),
    )


def _ceiling_words(table: pd.DataFrame) -> Iterator[str]:
    """What the horizontal lines are."""
    names = table.loc[table["kind"] == "ceiling", "series"]
    if any("peak" in name for name in names):
        yield _("Dotted line: the FP32 peak at the maximum clock, which is computed.")
    if any("measured" in name for name in names):
        yield _("Thin solid line: multiply-adds on registers, as measured on this GPU.")


def _public_words(table: pd.DataFrame) -> Iterator[str]:
    """Whose the lines with a star are, and how their times came about."""
    public = table[table["kind"] == "public"]
    if len(public):
        sources = dict(zip(public["series"], public["kernel"].str.split(" ").str[0], strict=True))
        yield _(
            "Names with a star: the fastest kernel at each size of other projects ({sources}),"
            " timed on a GPU of this model by a program of their own, on one set of buffers and"
            " under another protocol (config/public.csv): to set the scale, not to rank."
        ).format(
            sources=_("; ").join(
                _("{name}, {source}").format(name=name, source=source)
                for name, source in sources.items()
            )
        )


def _projected(results: Results, name: str) -> Plan:
    """The roofline of a GPU that nothing was measured on."""
    table = projection_table(results)
    return Plan(
        "roofline_projected",
        _("What a datasheet says of the {gpu}").format(gpu=name),
        "roofline",
        table,
        projection,
        _(
            "A projection: nothing was measured on a {gpu}, and no time is claimed for it. The"
            " roofs are its FP32 peak and DRAM bandwidth by the vendor's datasheet; they meet at"
            " its machine balance. Markers stand at the intensities of the kernels, which do not"
            " depend on the GPU, and at what the roofs allow there. The compulsory intensity"
            " (hollow) is a bound for certain; caches may lift a kernel above that of its requests"
            " (filled)."
        ).format(gpu=name),
        _alt(
            _("Projected roofline"),
            [
                _("ridge at {intensity} flop/byte").format(intensity=f"{intensity:.3g}")
                for intensity in table.loc[table["kind"] == "ridge", "flop_per_byte"]
            ],
        ),
        projected=True,
    )


def _under_measured_roofs(results: Results) -> Iterator[Plan]:
    """The figures that need the ceilings of this GPU."""
    table = hierarchical_table(results)
    yield Plan(
        "roofline_hierarchical",
        _("Roofline at every level of the memory"),
        "roofline",
        table,
        hierarchical_roofline,
        _(
            "Each kernel's fastest parameter set at the intensity of the traffic that was counted"
            " at a level ({counted}): sectors of 32 bytes that global accesses touch (L1),"
            " wavefronts of 128 bytes (shared memory), bytes between L2 and the SMs, bytes of DRAM."
            " Solid roofs were measured on this GPU by kernels that do nothing else; dashed ones"
            " are of the datasheet. A marker on the slope of a panel waits for that level; one"
            " under the flat roof of every panel for something else."
        ).format(counted=_counted_by(table)),
        _alt_levels(table),
    )
    table = steps_table(results)
    yield Plan(
        "steps",
        _("What limits each rung, by the model"),
        "prediction",
        table,
        steps_figure,
        _(
            "Markers: the time that each resource alone would take, from the counts of the launch"
            " and the measured ceilings of this GPU, in percent of the measured time. Bar: the"
            " model's time, a p-norm of these. In the shaded band it is within {tolerance} % of the"
            " measured time; elsewhere the model does not hold. The rightmost marker is what limits"
            " the rung."
        ).format(tolerance=f"{100 * model.TOLERANCE:.0f}"),
        _alt_values(table, _("Model by rung"), "model_error_pct", _("% off the measured time")),
    )


def _alt(start: str, parts: list[str]) -> str:
    if not parts:
        return _("No data.")
    return _("{start}: {values}.").format(start=start, values=_("; ").join(parts))


def _alt_values(
    table: pd.DataFrame, start: str, column: str = "tflops", unit: str = "TFLOPS"
) -> str:
    values = [
        f"{row['series']} {row[column]:.3g} {unit}"
        for _index, row in table.iterrows()
        if row.get("kind") not in ("ceiling", "public") and pd.notna(row[column])
    ]
    return _alt(start, values)


def _counted_by(table: pd.DataFrame) -> str:
    kinds = table["counted_by"].dropna().unique()
    words = [_(COUNTED_BY[kind]) if kind in COUNTED_BY else _("closed forms") for kind in kinds]
    return _("; ").join(words) or _("none was")


def _alt_levels(table: pd.DataFrame) -> str:
    parts = [
        _("{series} {intensity} flop/byte of {level}").format(
            series=row.series, intensity=f"{row.flop_per_byte:.3g}", level=_(LEVELS[str(row.level)])
        )
        for row in table[table["level"].notna()].itertuples()
    ]
    return _alt(_("Rooflines by level"), parts)


def _alt_traffic(table: pd.DataFrame) -> str:
    parts = [
        _(
            "{rung} {set} {per_request} sectors per request, {useful} of 32 bytes used, {sectors}"
            " sectors in all"
        ).format(
            rung=row.series,
            set=row.label,
            per_request=f"{row.sectors_per_request:.3g}",
            useful=f"{row.useful_bytes_per_sector:.3g}",
            sectors=f"{row.sectors:.3g}",
        )
        for row in table.itertuples()
    ]
    return _alt(_("Boxes for sectors, filled by use"), parts)


def _alt_ranges(table: pd.DataFrame, start: str, column: str, unit: str = " %") -> str:
    parts = [
        _range_of(name, group[column].min(), group[column].max(), unit)
        for name, group in table.groupby("series", sort=False)
    ]
    return _alt(start, parts)


def _range_of(name: Any, low: Any, high: Any, unit: str, digits: int = 3) -> str:
    first, last = f"{low:.{digits}g}", f"{high:.{digits}g}"
    if first == last:
        return f"{name} {first}{unit}"
    return _("{name} {low} to {high}{unit}").format(name=name, low=first, high=last, unit=unit)


def caption(plan: Plan, results: Results) -> str:
    """The caption's text: explanation, number of samples, GPU, driver, date, origin."""
    mark = _as_sentence(origin(results))
    if plan.table.empty:
        return paragraph(_("Nothing could be drawn: no {what}.").format(what=_(plan.needs)), mark)
    if plan.projected:
        source = _("Kernels and parameter sets are those of: {source}").format(source=mark)
        return paragraph(plan.explanation, source)
    if plan.counted:
        counted = plan.table.assign(tflops=np.nan)
        text = paragraph(plan.explanation, _as_sentence(counted_mark(counted, "")))
        timed = plan.table.dropna()
        if timed.empty:
            return text
        of = _("TFLOPS: medians of n = {count} samples.")
        return paragraph(text, of.format(count=_range(timed["samples"])), mark)
    if "points" in plan.table:
        of = _("Largest of n = {count} points.").format(count=_range(plan.table["points"]))
    elif "samples" not in plan.table or plan.table["samples"].isna().all():
        return paragraph(plan.explanation, mark)
    else:
        of = _("Medians of n = {count} samples.").format(count=_range(plan.table["samples"]))
    return paragraph(plan.explanation, of, mark)


@dataclass(frozen=True)
class Words:
    """What is said of a figure."""

    title: str
    caption: str
    alt: str


def words(results: Results) -> dict[str, Words]:
    """What is said of each figure, by its name, in the language spoken.

    From the tables alone: a figure speaks another language without being drawn again.
    """
    return {
        plan.name: Words(plan.title, caption(plan, results), plan.alt) for plan in plans(results)
    }


def _as_sentence(words: str) -> str:
    return sentence(f"{words[0].upper()}{words[1:]}")


def _range(counts: pd.Series) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else _("{low} to {high}").format(low=low, high=high)
