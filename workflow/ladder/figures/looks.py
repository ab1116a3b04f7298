"""What all figures share: colours and markers, the frame with its mark and legend, axes, labels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import seaborn as sns
from fontTools import subset
from fontTools.ttLib import TTFont
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..config import Figures
from ..documents import UserError, suggestion
from ..language import _
from .results import Results

SINGLE_COLUMN_IN = Figures().single_column_in
DOUBLE_COLUMN_IN = Figures().double_column_in
FONT_SIZE_PT = Figures().font_size_pt
"""The size for which positions of words are worked out; another one scales all of them."""

INK = "#1f2328"
MUTED = "#59636e"
GRID = "#d8dee4"
MARK = "#9a3412"
PAPER = "#ffffff"
"""The colours that are not data. The report swaps them for its own in dark mode."""
ON_DARK = "#fefefe"
"""White writing on a dark shade, which stays white on any page."""

# Okabe & Ito's colours without yellow and black, which vanish on white or on a dark page; Tol's
# bright ones without grey; and six greys that a printer still tells apart.
PALETTES = {
    "okabe-ito": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    "tol-bright": ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"),
    "grey": ("#303030", "#8c8c8c", "#5a5a5a", "#b4b4b4", "#747474", "#a0a0a0"),
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "p", "d", "*", "8")
_DASHES: tuple[tuple[float, ...] | str, ...] = ("", (5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5))


@dataclass(frozen=True)
class SeriesStyle:
    """How one kernel looks in every figure."""

    colour: str
    marker: str
    dash: tuple[float, ...] | str
    """On-off lengths in points; empty for a solid line."""


@dataclass(frozen=True)
class Look:
    """What a drawing function needs besides its table."""

    width_in: float
    styles: Mapping[str, SeriesStyle]
    """By series name."""
    mark: str
    """Where and when the numbers were measured; stands in every figure."""
    replayed: bool = False
    scale: float = 1.0
    """Size of words, relative to the default's."""
    palette: tuple[str, ...] = PALETTES["okabe-ito"]
    """Colours of what is no kernel, such as resources or states of the cache."""

    @property
    def narrow(self) -> bool:
        """Whether the figure is for a single column."""
        return self.width_in < 5


def series_styles(results: Results, palette: str = "okabe-ito") -> dict[str, SeriesStyle]:
    """A colour, marker and dash for every kernel; rungs keep theirs when others are added after."""
    styles = {}
    colours = PALETTES[palette]
    index = 0
    for name in dict.fromkeys([*results.order(), *results.counted_rungs()]):
        kind = results.kind(name)
        if kind == "reference":
            style = SeriesStyle(INK, "o", "")
        elif kind == "tf32":
            style = SeriesStyle(MUTED, "o", (4, 2))
        else:
            style = SeriesStyle(
                colours[index % len(colours)],
                _MARKERS[index % len(_MARKERS)],
                _DASHES[index // len(colours) % len(_DASHES)],
            )
            index += 1
        styles[results.title(name)] = style
    return styles


def origin(results: Results) -> str:
    """The mark of every figure: measured or replayed, GPU, driver, date."""
    run = results.run or {}
    if not run.get("gpu_name"):
        return _("no GPU in this result set")
    parts = [results.gpu_name]
    if run.get("driver_version"):
        parts.append(_("driver {version}").format(version=run["driver_version"]))
    dates = results.points["measured_at"].dropna()
    if len(dates):
        parts.append(f"{dates.max():%Y-%m-%d}")
    said = _("replayed: measured on {gpu}") if results.replayed else _("measured on {gpu}")
    return said.format(gpu=_(", ").join(parts))


def looks(results: Results, style: Figures) -> dict[str, Look]:
    """The look of the two widths, by the ending of their files' names."""
    shared: dict[str, Any] = {
        "styles": series_styles(results, style.palette),
        "mark": origin(results),
        "replayed": results.replayed,
        "scale": style.font_size_pt / FONT_SIZE_PT,
        "palette": PALETTES[style.palette],
    }
    widths = {"": style.double_column_in, "_single": style.single_column_in}
    return {ending: Look(width, **shared) for ending, width in widths.items()}


def rc(style: Figures | None = None) -> Any:  # of matplotlib's names, a type of its stubs alone
    style = style or Figures()
    return {
        **sns.axes_style("ticks"),
        "font.family": [lean_font(style.font), style.font],
        "font.size": FONT_SIZE_PT,
        "axes.titlesize": 8,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": FONT_SIZE_PT,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": style.grid,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "figure.facecolor": "white",
        "grid.color": GRID,
        "grid.linewidth": 0.5,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "lines.linewidth": 1.3,
        "lines.markersize": 4,
        "hatch.linewidth": 0.4,
        "svg.hashsalt": "gemm-ladder",
        "svg.fonttype": "path",
        "pdf.fonttype": 42,
    }


_USUAL_LETTERS = (range(0x20, 0x250), range(0x370, 0x400), range(0x2000, 0x2300))
"""Latin; Greek; punctuation, superscripts, arrows and mathematics."""


@functools.cache
def lean_font(family: str) -> str:
    """A name for the part of a font family that labels use: Latin, Greek and mathematics.

    A PDF embeds the glyphs that it uses; to choose them among all of a font, with its layout
    tables, takes as long as to draw the figure. Other letters come from the family itself, which is
    named behind this one. What is no TrueType file is used as it is.

    Raises:
        UserError: if no such family is installed.
    """
    folder = Path(_lean_fonts().name)
    for weight in (400, 700):
        try:
            found = Path(
                font_manager.findfont(
                    font_manager.FontProperties(family=[family], weight=weight),
                    fallback_to_default=False,
                )
            )
        except ValueError:
            known = sorted({entry.name for entry in font_manager.fontManager.ttflist})
            raise UserError(
                f"figures.font: no font family {family!r} is installed; "
                + suggestion(family, known)
            ) from None
        if found.suffix.lower() != ".ttf":
            return family
        lean = folder / found.name
        options = subset.Options(
            drop_tables=["FFTM", "GDEF", "GPOS", "GSUB", "MATH"], legacy_kern=True, name_IDs=["*"]
        )
        with TTFont(found, recalcTimestamp=False) as font:
            subsetter = subset.Subsetter(options)
            subsetter.populate(unicodes=itertools.chain(*_USUAL_LETTERS))
            subsetter.subset(font)
            font.save(lean)
        entry = font_manager.FontEntry(fname=str(lean), name=f"{family}, lean", weight=weight)
        font_manager.fontManager.ttflist.append(entry)
    return f"{family}, lean"


@functools.cache
def _lean_fonts() -> TemporaryDirectory[str]:
    """Where this process keeps them; removed when it ends."""
    return TemporaryDirectory(prefix="figure-fonts-")


_MARK_IN = 0.17
_LEGEND_ROW_IN = 0.15


def new_figure(look: Look, height_in: float, legend: Sequence[Artist] = ()) -> Figure:
    """An empty figure with its mark and, between the mark and the axes, a legend.

    `height_in` does not count the legend, for which the figure grows.
    """
    longest = max((len(str(handle.get_label())) for handle in legend), default=0)
    columns = max(1, min(len(legend), int(look.width_in / (0.45 + 0.056 * look.scale * longest))))
    rows = math.ceil(len(legend) / columns)
    mark_in = _MARK_IN + 0.11 * look.scale * look.mark.count("\n")
    bottom = mark_in + rows * _LEGEND_ROW_IN * look.scale + (0.05 if rows else 0.0)
    height_in += bottom - _MARK_IN
    figure = Figure(figsize=(look.width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    free = (0, bottom / height_in, 1, 1 - bottom / height_in)  # left, bottom, width, height
    engine.set(w_pad=0.04, h_pad=0.04, rect=free)
    if legend:
        box = figure.legend(
            handles=list(legend),
            loc="lower left",
            bbox_to_anchor=(0, mark_in / height_in),
            ncols=columns,
            handlelength=2.2,
            columnspacing=1.4,
            borderaxespad=0.1,
            labelspacing=0.35,
        )
        box.set_in_layout(False)
    figure.text(
        0.04 / look.width_in,
        0.05 / height_in,
        look.mark,
        fontsize=6,
        va="bottom",
        ha="left",
        color=MARK if look.replayed else MUTED,
        in_layout=False,
    )
    return figure


def message_figure(look: Look, sentence: str) -> Figure:
    """A figure that says in words why there is nothing to draw."""
    figure = new_figure(look, 1.1)
    figure.text(0.5, 0.55, sentence, ha="center", va="center", color=MUTED, fontsize=8, wrap=True)
    return figure


def size_axis(axes: Axes, sizes: Iterable[float], label: str = "N  (M = N = K)") -> None:
    """A logarithmic axis of matrix sizes with ticks at the powers of two in between."""
    low, high = min(sizes), max(sizes)
    axes.set_xscale("log", base=2)
    powers = [2**p for p in range(int(math.log2(low)) - 1, int(math.log2(high)) + 2)]
    ticks = [p for p in powers if low / 1.1 <= p <= high * 1.1] or [low]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xlabel(label)


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved apart to at least `gap`, in their order, kept within [low, high]."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = [min(max(positions[i], low), high) for i in order]
    for _round in range(200):
        moved = False
        for i in range(len(placed) - 1):
            overlap = gap - (placed[i + 1] - placed[i])
            if overlap > 1e-6:
                placed[i] -= overlap / 2
                placed[i + 1] += overlap / 2
                moved = True
        if placed and placed[0] < low:
            placed = [value + low - placed[0] for value in placed]
        if placed and placed[-1] > high:
            placed = [value + high - placed[-1] for value in placed]
        if not moved:
            break
    result = [0.0] * len(positions)
    for i, value in zip(order, placed, strict=True):
        result[i] = value
    return result


def end_labels(
    axes: Axes, labels: Sequence[tuple[float, str, str, bool]], height_in: float
) -> None:
    """Names at the right end of lines: (y in data, text, colour, bold), moved apart.

    `height_in` is the height of the axes, about, in inches.
    """
    low, high = axes.get_ylim()
    fractions = [(y - low) / (high - low) for y, *_ in labels]
    placed = spread(fractions, 0.115 / height_in, 0.0, 1.02)
    for (_value, text, colour, bold), at, was in zip(labels, placed, fractions, strict=True):
        axes.plot(
            [1.0, 1.025],
            [was, at],
            transform=axes.transAxes,
            color=colour,
            linewidth=1.0,
            clip_on=False,
        )
        axes.annotate(
            text,
            xy=(1.03, at),
            xycoords="axes fraction",
            va="center",
            ha="left",
            fontsize=7,
            color=INK,
            fontweight="bold" if bold else "normal",
            annotation_clip=False,
        )


def legend_handles(look: Look, series: Iterable[str], *, line: bool = True) -> list[Line2D]:
    handles = []
    for name in series:
        style = look.styles[name]
        handle = Line2D(
            [],
            [],
            color=style.colour,
            marker=style.marker,
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=name,
        )
        if not line:
            handle.set_linestyle("none")
        elif style.dash:
            handle.set_dashes(style.dash)  # type: ignore[arg-type]
        handles.append(handle)
    return handles


def short(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def heat_map(
    axes: Axes,
    shades: np.ndarray,
    words: Sequence[Sequence[str]],
    marked: Callable[[int, int], bool],
    *,
    cmap: Colormap,
    limits: tuple[float, float],
    fontsize: float,
    dark: Callable[[float], bool],
) -> QuadMesh:
    """Cells with words in them, row 0 on top; `marked` ones are framed and bold.

    Args:
        shades: rows x columns; NaN for a cell without a value, which is muted and has no shade.
        dark: whether a shade needs light writing.
    """
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(shades), cmap=cmap, vmin=limits[0], vmax=limits[1], edgecolors=PAPER,
        linewidth=0.7,
    )  # fmt: skip
    for (row, column), shade in np.ndenumerate(shades):
        known, first = not math.isnan(shade), marked(row, column)
        colour = MUTED if not known else ON_DARK if dark(float(shade)) else INK
        axes.text(
            column + 0.5, row + 0.5, words[row][column], ha="center", va="center", color=colour,
            fontsize=fontsize, fontweight="bold" if first else "normal", in_layout=False,
        )  # fmt: skip
        if first:
            box = Rectangle((column + 0.04, row + 0.06), 0.92, 0.88, fill=False, edgecolor=INK,
                            linewidth=1.1 if fontsize > 6 else 0.7)  # fmt: skip
            axes.add_artist(box).set_in_layout(False)
    rows, columns = shades.shape
    axes.set_xticks(np.arange(columns) + 0.5)
    axes.set_yticks(np.arange(rows) + 0.5)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.tick_params(axis="both", length=0)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    return mesh


def signed(value: float) -> str:
    """A difference with its sign, as print writes it."""
    return f"{value:+g}".replace("-", "\u2212") if value else "0"
