"""Every figure of a result set with its caption, and the files of each."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from .. import model
from ..config import Figures
from ..documents import UserError
from ..manifest import Kernel
from .loads import COUNTED_BY, counted_mark, traffic_figure, traffic_table
from .looks import FONT_SIZE_PT, Look, looks, origin, rc
from .marks import name_marks
from .results import Results, load_results, shape_label
from .rooflines import (
    hierarchical_roofline,
    hierarchical_table,
    projection,
    projection_table,
    roofline,
    roofline_table,
)
from .rungs import ladder, ladder_table
from .sizes import (
    cache_modes,
    cache_modes_table,
    shapes,
    shapes_table,
    tflops_by_size,
    tflops_by_size_table,
)
from .steps import steps_figure, steps_table
from .sweeps import block_shape_heatmap, block_shape_table, swept_kernels

_COMPRESSION = 4
"""Of PNG files: 9 takes twice the time for 3 % of the size."""

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
class FigureRecord:
    """One figure and its files, as `figures.json` lists them."""

    name: str
    title: str
    topic: Topic
    """What it is about: the report places a figure by this and not by its name."""
    kernel: str | None
    """The one kernel that it shows; None if it shows several."""
    caption: str
    """What is drawn, units, how to read it, number of samples, GPU, driver, date, origin."""
    alt: str
    """The figure's content for those who cannot see it."""
    empty: bool
    """Whether the figure only says that there is nothing to draw."""
    files: dict[str, str]
    """File names beside the index: svg, pdf, png, csv, caption; `*_single` for one column."""


@dataclass(frozen=True)
class Plan:
    """A figure before it is drawn."""

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


def plans(results: Results) -> Iterator[Plan]:
    """Every figure of a result set with its table, in the report's order."""
    table = ladder_table(results)
    yield Plan(
        "ladder",
        "The ladder at one size",
        "ladder",
        table,
        ladder,
        "Throughput of each rung with its fastest parameter set at the largest square size that"
        " most rungs have, in TFLOPS (2MNK flop over the median time) and percent of cuBLAS FP32"
        " (dashed line). The dark stroke at a bar's end is the median's 95 % interval.",
        _alt_values(table, "Bars of TFLOPS"),
    )
    table = traffic_table(results)
    size = shape_label(*table.iloc[0][["m", "n", "k"]]) if len(table) else ""
    yield Plan(
        "traffic",
        "What a load of a warp moves, and what of it is used",
        "traffic",
        table,
        traffic_figure,
        f"Loads of global memory at N = {size}, for every parameter set of the first rung and the"
        " best of each other. A warp's 32 lanes load together: one request. Memory answers in"
        " sectors of 32 bytes (boxes), whole ones only; the filled part are the bytes that some"
        " lane asked for. Few boxes and full boxes are both good. Right of them, the sectors of the"
        " whole product: how often the rung asks at all.",
        _alt_traffic(table),
        counted=True,
    )
    table = tflops_by_size_table(results)
    fastest = table[table["best"].fillna(False).astype(bool)]
    largest = fastest.sort_values("n").drop_duplicates("series", keep="last")
    yield Plan(
        "tflops_by_size",
        "Throughput by matrix size",
        "sizes",
        table,
        tflops_by_size,
        "Throughput in TFLOPS (2N\u00b3 flop over the median time) of square products, rotating"
        " buffers. Bold lines: the fastest parameter set at each size that is a multiple of 32;"
        " hollow markers: other sizes; thin lines: the other parameter sets. Vertical strokes are"
        " the medians' 95 % intervals, often smaller than the marker. TF32 rounds its inputs to"
        " 10 mantissa bits; it is drawn on a scale of its own and takes no part in the ranking.",
        _alt_values(largest, "Lines of TFLOPS against matrix size; at the largest size"),
    )
    for name in swept_kernels(results):
        table = block_shape_table(results, name)
        top = table[table["best"]].drop_duplicates("n")
        yield Plan(
            f"block_shape_{name}",
            f"Parameter sweep: {results.title(name)}",
            "blocks",
            table,
            block_shape_heatmap,
            "Throughput in TFLOPS of every parameter set (rows) at every square size (columns),"
            " rotating buffers. The shade is the percentage of the fastest set at that size, which"
            " is framed and bold; a dash is a point without a valid time.",
            "Heat map; fastest set by size: "
            + "; ".join(
                f"N = {row.n}: {row.label}, {row.tflops:.3g} TFLOPS" for row in top.itertuples()
            ),
            kernel=name,
        )
    table = roofline_table(results)
    yield Plan(
        "roofline",
        "Roofline",
        "roofline",
        table,
        roofline,
        "Throughput against arithmetic intensity, both logarithmic. Filled markers count the bytes"
        " that the kernel's threads request (closed form of its manifest), hollow ones the"
        " compulsory bytes, every matrix moved once. A filled marker above the DRAM roof means"
        " that registers, shared memory and caches served most requests. Solid roofs were measured"
        " on this GPU: a loop of multiply-adds on registers, and a copy in DRAM. Dashed ones are"
        " no measurement: the FP32 peak at the maximum clock, and the datasheet's DRAM bandwidth.",
        _alt_values(
            table[table["traffic"] == "requested"],
            "Roofline; requested intensity",
            "flop_per_byte",
            "flop/byte",
        ),
    )
    if results.projected:
        yield _projected(results, results.projected.name)
    if results.ceilings:
        yield from _under_measured_roofs(results)
    table = shapes_table(results)
    yield Plan(
        "shapes",
        "Rectangular and odd shapes",
        "shapes",
        table,
        shapes,
        "Speed in percent of cuBLAS FP32 in the same run (100, vertical line) for rectangular sizes"
        " M\u00d7N\u00d7K and for squares that are no multiple of 32, with each kernel's fastest"
        " parameter set; logarithmic.",
        _alt_ranges(table, "Percent of cuBLAS FP32 by shape", "pct_of_reference"),
    )
    table = cache_modes_table(results)
    yield Plan(
        "cache_modes",
        "Hot, cold and rotating buffers",
        "sizes",
        table,
        cache_modes,
        "Throughput relative to rotating buffers (100 %) by the parameter set that is fastest"
        " there. Rotating: launches alternate between buffers that together exceed twice the L2"
        " cache; hot: one set of buffers; cold: the L2 cache is cleared before each launch.",
        _alt_ranges(table, "Percent of rotating throughput", "pct_of_rotating"),
    )


def _projected(results: Results, name: str) -> Plan:
    """The roofline of a GPU that nothing was measured on."""
    table = projection_table(results)
    return Plan(
        "roofline_projected",
        f"What a datasheet says of the {name}",
        "roofline",
        table,
        projection,
        f"A projection: nothing was measured on a {name}, and no time is claimed for it. The roofs"
        " are its FP32 peak and DRAM bandwidth by the vendor's datasheet; they meet at its machine"
        " balance. Markers stand at the intensities of the kernels, which do not depend on the"
        " GPU, and at what the roofs allow there. The compulsory intensity (hollow) is a bound for"
        " certain; caches may lift a kernel above that of its requests (filled).",
        _alt_values(
            table[table["kind"] == "ridge"],
            "Projected roofline; ridge",
            "flop_per_byte",
            "flop/byte",
        ),
        projected=True,
    )


def _under_measured_roofs(results: Results) -> Iterator[Plan]:
    """The figures that need the ceilings of this GPU."""
    table = hierarchical_table(results)
    yield Plan(
        "roofline_hierarchical",
        "Roofline at every level of the memory",
        "roofline",
        table,
        hierarchical_roofline,
        "Each kernel's fastest parameter set at the intensity of the traffic that was counted at a"
        f" level ({_counted_by(table)}): sectors of 32 bytes that global accesses touch (L1),"
        " wavefronts of 128 bytes (shared memory), bytes between L2 and the SMs, bytes of DRAM."
        " Solid roofs were measured on this GPU by kernels that do nothing else; dashed ones are of"
        " the datasheet. A marker on the slope of a panel waits for that level; one under the flat"
        " roof of every panel for something else.",
        _alt_levels(table),
    )
    table = steps_table(results)
    yield Plan(
        "steps",
        "What limits each rung, by the model",
        "prediction",
        table,
        steps_figure,
        "Markers: the time that each resource alone would take, from the counts of the launch and"
        " the measured ceilings of this GPU, in percent of the measured time. Bar: the model's"
        " time, a p-norm of these. In the shaded band it is within"
        f" {100 * model.TOLERANCE:.0f} % of the measured time; elsewhere the model does not hold."
        " The rightmost marker is what limits the rung.",
        _alt_values(table, "Model by rung", "model_error_pct", "% off the measured time"),
    )


def _alt_values(
    table: pd.DataFrame, start: str, column: str = "tflops", unit: str = "TFLOPS"
) -> str:
    values = [
        f"{row['series']} {row[column]:.3g} {unit}"
        for _, row in table.iterrows()
        if row.get("kind") != "ceiling" and pd.notna(row[column])
    ]
    return f"{start}: {'; '.join(values)}." if values else "No data."


def _counted_by(table: pd.DataFrame) -> str:
    kinds = table["counted_by"].dropna().unique()
    return "; ".join(COUNTED_BY.get(str(kind), "closed forms") for kind in kinds) or "none was"


def _alt_levels(table: pd.DataFrame) -> str:
    parts = [
        f"{row.series} {row.flop_per_byte:.3g} flop/byte of {row.level}"
        for row in table[table["level"].notna()].itertuples()
    ]
    return f"Rooflines by level: {'; '.join(parts)}." if parts else "No data."


def _alt_traffic(table: pd.DataFrame) -> str:
    parts = [
        f"{row.series} {row.label} {row.sectors_per_request:.3g} sectors per request,"
        f" {row.useful_bytes_per_sector:.3g} of 32 bytes used, {row.sectors:.3g} sectors in all"
        for row in table.itertuples()
    ]
    return f"Boxes for sectors, filled by use: {'; '.join(parts)}." if parts else "No data."


def _alt_ranges(table: pd.DataFrame, start: str, column: str) -> str:
    parts = [
        f"{name} {group[column].min():.3g} to {group[column].max():.3g} %"
        for name, group in table.groupby("series", sort=False)
    ]
    return f"{start}: {'; '.join(parts)}." if parts else "No data."


def caption(plan: Plan, results: Results) -> str:
    """The caption's text: explanation, number of samples, GPU, driver, date, origin."""
    mark = origin(results)
    mark = f"{mark[0].upper()}{mark[1:]}."
    if plan.table.empty:
        wanted = "counts in this result set" if plan.counted else "valid time for this figure"
        return f"Nothing could be drawn: no {wanted}. {mark}"
    if plan.projected:
        return f"{plan.explanation} Kernels and parameter sets are those of: {mark}"
    if plan.counted:
        words = counted_mark(plan.table.assign(tflops=np.nan), "")
        text = f"{plan.explanation} {words[0].upper()}{words[1:]}."
        if plan.table["tflops"].isna().all():
            return text
        plan = replace(plan, explanation=f"{text} TFLOPS:", table=plan.table.dropna())
    counts = plan.table["samples"].dropna()
    low, high = int(counts.min()), int(counts.max())
    size = f"{low}" if low == high else f"{low} to {high}"
    medians = "medians" if plan.counted else "Medians"
    return f"{plan.explanation} {medians} of n = {size} samples. {mark}"


def save(figure: Figure, stem: Path, style: Figures | None = None) -> dict[str, str]:
    """Write `stem`.svg, .pdf and .png, or those that the style names; equal figures, equal bytes.

    Returns:
        file names by format.
    """
    style = style or Figures()
    if style.font_size_pt != FONT_SIZE_PT:
        for text in figure.findobj(Text):
            text.set_fontsize(float(text.get_fontsize()) * style.font_size_pt / FONT_SIZE_PT)
    engine = figure.get_layout_engine()
    if engine is not None and figure.axes:
        engine.execute(figure)
    figure.set_layout_engine("none")  # the layout is settled; do not solve it once a format
    for axes in figure.axes:
        if axes.get_axes_locator() is None:
            # The solver's last digits vary from run to run; SVG names clip paths by all of them.
            x, y, width, height = (round(value, 6) for value in axes.get_position().bounds)
            axes.set_position((x, y, width, height))
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    names: dict[str, str] = {}
    for suffix in style.formats:
        buffer = io.BytesIO()
        if suffix == "png":
            _save_png(figure, buffer, style.png_dpi)
        else:
            figure.savefig(buffer, format=suffix, metadata=metadata[suffix])
        path = stem.with_name(f"{stem.name}.{suffix}")
        path.write_bytes(buffer.getvalue())
        names[suffix] = path.name
    return names


def _save_png(figure: Figure, buffer: io.BytesIO, dpi: int) -> None:
    """Without the alpha channel that savefig writes: a third less to compress."""
    before = figure.get_dpi()
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    image = Image.fromarray(pixels).convert("RGB")
    image.save(buffer, "png", dpi=(dpi, dpi), compress_level=_COMPRESSION)
    figure.set_dpi(before)


def draw_all(
    tables_dir: Path,
    out_dir: Path,
    kernels: Mapping[str, Kernel],
    gpus_path: Path,
    workers: int = 1,
    style: Figures | None = None,
) -> list[FigureRecord]:
    """Draw every figure of a result set, in both widths, and write `out_dir`/figures.json.

    Beside each figure lie its caption (.md) and exactly the rows it was drawn from (.csv).
    Nothing to draw is no error: the figure then says so. Files of earlier runs that no longer
    belong to a figure are removed.

    Args:
        workers: processes to draw in, this one among them. More than one needs a caller that can
            be imported again (``if __name__ == "__main__"``); the files are the same.
        style: how they look; what they show does not depend on it.

    Raises:
        ValueError: if a table has another schema version.
        UserError: if `gpus_path` is wrong.
    """
    results = load_results(tables_dir, kernels, gpus_path)
    out_dir.mkdir(parents=True, exist_ok=True)
    index = out_dir / "figures.json"
    before = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else []
    style = style or Figures()
    widths = looks(results, style)
    todo = [(plan, caption(plan, results), widths, out_dir, style) for plan in plans(results)]
    records = _draw_with_others(todo, workers - 1) if workers > 1 else [_draw(*job) for job in todo]
    current = {name for record in records for name in record.files.values()}
    for stale in {name for record in before for name in record["files"].values()} - current:
        (out_dir / Path(stale).name).unlink(missing_ok=True)
    text = json.dumps([asdict(record) for record in records], indent=2, ensure_ascii=False)
    index.write_text(text + "\n", encoding="utf-8")
    return records


@contextmanager
def _garbage_at_the_end() -> Iterator[None]:
    """Look for unreachable objects once: a drawing makes a million small ones, and each search
    among all that the libraries hold takes a tenth of a second."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        gc.collect()


def _draw_with_others(todo: Sequence[_Job], others: int) -> list[FigureRecord]:
    """Draw in other processes from the front and in this one from the back, until they meet.

    They take seconds to import what they need, in which this process draws already.
    """
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
    with ProcessPoolExecutor(others, mp_context=context) as pool:
        jobs = [pool.submit(_draw, *job) for job in todo]
        own = {
            index: _draw(*todo[index])
            for index in reversed(range(len(todo)))
            if jobs[index].cancel()  # false once another process has it
        }
        return [own.get(index) or job.result() for index, job in enumerate(jobs)]


_Job = tuple[Plan, str, Mapping[str, Look], Path, Figures]


def _draw(
    plan: Plan, text: str, widths: Mapping[str, Look], out_dir: Path, style: Figures
) -> FigureRecord:
    files: dict[str, str] = {}
    with mpl.rc_context(rc(style)), _garbage_at_the_end():
        for suffix, look in widths.items():
            figure = plan.draw(plan.table, look)
            name_marks(figure, look.styles)
            written = save(figure, out_dir / f"{plan.name}{suffix}", style)
            files |= {f"{kind}{suffix}": name for kind, name in written.items()}
    csv, words = out_dir / f"{plan.name}.csv", out_dir / f"{plan.name}.md"
    plan.table.to_csv(csv, index=False, lineterminator="\n")
    words.write_text(f"**{plan.title}.** {text}\n", encoding="utf-8")
    files |= {"csv": csv.name, "caption": words.name}
    return FigureRecord(
        name=plan.name,
        title=plan.title,
        topic=plan.topic,
        kernel=plan.kernel,
        caption=text,
        alt=plan.alt,
        empty=plan.table.empty,
        files=files,
    )


def read_index(figures_dir: Path) -> list[FigureRecord]:
    """The records that `draw_all` wrote; none if it never ran there.

    Raises:
        UserError: if another version wrote them.
    """
    path = figures_dir / "figures.json"
    if not path.is_file():
        return []
    records = json.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(FigureRecord)}
    if any(set(record) != known for record in records):
        raise UserError(
            f"{path}: written by another version of this project; draw the figures again:"
            f" python -m ladder figures {figures_dir.parent}"
        )
    return [FigureRecord(**record) for record in records]
