"""Drawing the figures of a result set: their files and the index of them."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from ..config import Figures
from ..documents import UserError
from ..manifest import Kernel
from .looks import FONT_SIZE_PT, Look, looks, rc
from .marks import name_marks
from .plans import Plan, Topic, caption, plans
from .results import load_results


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
            figure.savefig(buffer, format=suffix, dpi=style.png_dpi, metadata=metadata[suffix])
        content = buffer.getvalue()
        path = stem.with_name(f"{stem.name}.{suffix}")
        path.write_bytes(_compact(content) if suffix == "svg" else content)
        names[suffix] = path.name
    return names


_COORDINATES = re.compile(rb'(?<= d=")[^"]*|(?<=translate\()[^)]*|(?<= [xy]=")[^"]*')
_INDENTATION = re.compile(rb" \n(?=[A-Zz\"])|\n +(?=<)")
_BEYOND_HUNDREDTHS = re.compile(rb"(\.\d\d)\d+")


def _compact(svg: bytes) -> bytes:
    """Without indentation, and with coordinates to a hundredth of a point, of the six digits that
    matplotlib writes.

    That is a sixth of a dot at 1200 dpi; both make files an eighth smaller.
    """
    short = _COORDINATES.sub(lambda found: _BEYOND_HUNDREDTHS.sub(rb"\1", found[0]), svg)
    return _INDENTATION.sub(b"\n", short)


def _save_png(figure: Figure, buffer: io.BytesIO, dpi: int) -> None:
    """Without the alpha channel that savefig writes, and as 256 colours where no shade counts.

    Of a few colours and their blends at edges 256 are plenty, and take a third of the size.
    """
    before = figure.get_dpi()
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    image = Image.fromarray(pixels).convert("RGB")
    artists = (artist for axes in figure.axes for artist in axes.collections)
    if not any(isinstance(artist, QuadMesh) for artist in artists):
        image = image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    image.save(buffer, "png", dpi=(dpi, dpi), compress_level=6)
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
    """Look for unreachable objects once, and only among those that the drawing made: it makes a
    million small ones, and a search among all that the libraries hold takes a tenth of a second."""
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        gc.collect()
        gc.unfreeze()


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
