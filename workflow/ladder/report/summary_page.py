"""The result set on one page: the ladder, what was measured on what, and what it says, as PDF."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from .. import figures
from ..language import Language, _
from .rungs import Bar

DEFAULT_FONT = "DejaVu Sans"
A4_IN = (8.27, 11.69)
_CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Heiti SC",
    "Microsoft YaHei",
    "SimHei",
)
_MARGIN = 0.09
_LOWEST = 0.07
"""Where text stops, of the page's height."""
_BAR = "#8fb4d6"
_TOP = "#0b5cad"


def font_for(language: Language) -> str | None:
    """An installed font that can write a language; None if this machine has none."""
    if language == "en":
        return DEFAULT_FONT
    installed = {font.name for font in fontManager.ttflist}
    return next((name for name in _CHINESE_FONTS if name in installed), None)


def write_summary(contents: Mapping[str, Any], font: str, out: Path) -> None:
    """Draw what `page` gives on one page A4; equal contents give equal bytes.

    Args:
        contents: what the report shows, in the language that `font` can write.
    """
    style: Any = {
        "font.family": [font, DEFAULT_FONT],
        "pdf.fonttype": 42,
        "text.color": figures.INK,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=A4_IN)
        FigureCanvasPdf(figure)
        text = _Column(figure)
        text.write(contents["title"], size=15, weight="bold", gap=0.006)
        text.write(contents["subtitle"], size=9.5, colour=figures.MUTED, gap=0.012)
        if contents["banner"]:
            notice = f"{contents['banner']['head']} {contents['banner']['text']}"
            text.write(notice, size=9, colour=figures.MARK, gap=0.012)
        if contents["tiles"]:
            text.tiles(contents["tiles"])
        if contents["bars"]:
            _draw_bars(figure, text, contents["bars"])
        said = [finding.text for finding in contents["learned"]]
        for number, sentence in enumerate(said or contents["here"], start=1):
            text.write(f"{number}  {sentence}", size=9, gap=0.006)
        text.skip(0.01)
        text.write(contents["facts_head"], size=11, weight="bold", gap=0.006)
        text.pairs(contents["facts"])
        text.skip(0.02)
        for sentence in contents["findings"]:
            if sentence not in said and text.y > _LOWEST:
                text.write(sentence, size=8, colour=figures.MUTED, gap=0.003)
        out.parent.mkdir(parents=True, exist_ok=True)
        # No date: equal tables give equal bytes.
        figure.savefig(
            out, format="pdf", metadata={"CreationDate": None, "Title": contents["title"]}
        )


class _Column:
    """Text that runs down the page."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.y = 1 - 0.065

    def skip(self, height: float) -> None:
        self.y -= height

    def write(
        self,
        text: str,
        *,
        size: float,
        weight: str = "normal",
        colour: str = figures.INK,
        gap: float = 0.0,
    ) -> None:
        width = int(72 * A4_IN[0] * (1 - 2 * _MARGIN) / (0.545 * size))
        for line in _wrapped(text, width):
            self.figure.text(
                _MARGIN, self.y, line, size=size, weight=weight, color=colour, va="top"
            )
            self.y -= 1.42 * size / 72 / A4_IN[1]
        self.y -= gap

    def tiles(self, tiles: Sequence[tuple[str, str, str]]) -> None:
        step = (1 - 2 * _MARGIN) / 3
        for index, (value, of, interval) in enumerate(tiles):
            x = _MARGIN + index * step
            self.figure.text(x, self.y, value, size=17, weight="bold", va="top", color=_TOP)
            self.figure.text(x, self.y - 0.026, of, size=8, va="top", color=figures.MUTED)
            self.figure.text(x, self.y - 0.039, interval, size=8, va="top", color=figures.MUTED)
        self.y -= 0.082

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        half = (len(pairs) + 1) // 2
        top = self.y
        for index, (label, value) in enumerate(pairs):
            x = _MARGIN + (index // half) * (0.5 - _MARGIN / 2)
            y = top - (index % half) * 0.0185
            self.figure.text(x, y, label, size=8, va="top", color=figures.MUTED)
            shown = textwrap.shorten(value, 38, placeholder=" \u2026")
            self.figure.text(x + 0.165, y, shown, size=8, va="top")
        self.y = top - half * 0.0185


def _wrapped(text: str, width: int) -> Iterable[str]:
    """Lines of at most `width` columns; a wide character takes two and may end a line."""
    if not any(unicodedata.east_asian_width(sign) in "WF" for sign in text):
        return textwrap.wrap(text, width)
    lines, used = [""], 0
    for sign in text:
        columns = 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if used + columns > width:
            lines.append("")
            used = 0
        lines[-1] += sign
        used += columns
    return lines


def _draw_bars(figure: Figure, column: _Column, bars: Sequence[Bar]) -> None:
    height = 0.0195 * len(bars) + 0.01
    column.skip(height)
    axes: Axes = figure.add_axes((_MARGIN + 0.16, column.y, 1 - 2 * _MARGIN - 0.42, height))
    longest = max((bar.width for bar in bars if bar.kind != "reference"), default=0.0)
    for index, bar in enumerate(bars):
        reference = bar.kind == "reference"
        top = not reference and bar.width == longest
        axes.barh(
            index,
            bar.width,
            height=0.62,
            color="none" if reference else _TOP if top else _BAR,
            edgecolor=figures.MUTED if reference else "none",
            hatch="////" if reference else None,
            linewidth=0.5,
        )
        axes.plot([bar.low, bar.high], [index, index], color=figures.INK, linewidth=1.2)
        weight = "bold" if top else "normal"
        words = (
            (-0.02, bar.title),
            (1.18, bar.tflops),
            (1.38, bar.of_reference),
            (1.58, bar.of_peak),
        )
        for x, word in words:
            axes.text(
                x,
                index,
                word,
                ha="right",
                va="center",
                size=8,
                weight=weight,
                transform=axes.get_yaxis_transform(),
            )
    for x, word in ((1.18, "TFLOPS"), (1.38, _("of cuBLAS")), (1.58, _("of peak"))):
        axes.text(
            x,
            -0.9,
            word,
            ha="right",
            size=7.5,
            color=figures.MUTED,
            transform=axes.get_yaxis_transform(),
        )
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.axis("off")
    column.skip(0.02)
