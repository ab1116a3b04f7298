"""Figures as parts of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from .. import figures
from ..figures import Results
from ..language import N_, _, spoken

_THEMED = {
    figures.INK: "var(--ink)",
    figures.MUTED: "var(--muted)",
    figures.GRID: "var(--grid)",
    figures.MARK: "var(--mark)",
    figures.PAPER: "var(--card)",
}
_TITLES = {
    "ladder": N_("The ladder"),
    "traffic": N_("Memory traffic, counted"),
    "sizes": N_("Sizes and caches"),
    "shapes": N_("Shapes"),
    "blocks": N_("Parameter sweeps"),
    "roofline": N_("Roofline"),
    "prediction": N_("Steps explained"),
    "samples": N_("Samples and drift"),
    "accuracy": N_("Accuracy"),
    "energy": N_("Energy and clocks"),
}
"""Sections by the topic of their figures, in the page's order; others follow these."""


def figure_views(results: Results, figures_dir: Path) -> dict[str, dict[str, Any]]:
    """Figures by topic, each drawn twice: for wide and for narrow screens."""
    groups: dict[str, list[dict[str, Any]]] = {}
    records = _in_the_language(results, figures.read_index(figures_dir))
    for number, record in enumerate(records):
        views = {}
        for kind, width in (("svg", "wide"), ("svg_single", "narrow")):
            path = figures_dir / record.files[kind]
            views[kind] = inline_svg(
                path.read_text(encoding="utf-8"),
                f"{width[0]}{number}",  # short, for every letter refers to an id
                f"{record.title}. {record.alt}",
            )
        data = (figures_dir / record.files["csv"]).read_text(encoding="utf-8")
        view = {
            "record": record,
            "title": record.title,
            "caption": record.caption,
            "data": f"data:text/csv;charset=utf-8,{quote(data)}",
            **views,
        }
        groups.setdefault(record.topic, []).append(view)
    keys = [
        *(key for key in _TITLES if key in groups),
        *(key for key in groups if key not in _TITLES),
    ]
    return {
        key: {
            "key": key,
            "title": _(_TITLES[key]) if key in _TITLES else key.capitalize(),
            "figures": groups[key],
            "empty": all(item["record"].empty for item in groups[key]),
        }
        for key in keys
    }


def _in_the_language(
    results: Results, records: Iterable[figures.FigureRecord]
) -> Iterator[figures.FigureRecord]:
    """The figures with their words in the language spoken; they were drawn with English ones."""
    said = figures.words(results) if spoken() != "en" else {}
    for record in records:
        words = said.get(record.name)
        yield replace(record, **asdict(words)) if words else record


def inline_svg(text: str, prefix: str, label: str) -> Markup:
    """An SVG file as an element of an HTML page: unique ids, the page's colours, a text label."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = _with_tips(text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    for colour, variable in _THEMED.items():
        text = text.replace(colour, variable)
    text = re.sub(r'(<svg[^>]*?) width="[^"]+" height="[^"]+"', r"\1", text, count=1)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    attributes = Markup('<svg role="img" aria-label="{}"').format(label)
    text = re.sub(r"\n\s*", "\n", text)
    return Markup(str(attributes) + text[len("<svg") :])


def _with_tips(text: str) -> str:
    """Groups whose id tells the values of their marks: each mark gets its own as a tooltip."""
    parts = re.split(r'<g id="(marks:[^"]*)">', text)
    shown = [parts[0]]
    for name, rest in zip(parts[1::2], parts[2::2], strict=True):
        tips = iter(figures.read_marks(name) or ())

        def tipped(found: re.Match[str], tips: Iterator[str] = tips) -> str:
            tip = next(tips, None)
            return found[0] if tip is None else f'{found[1]} data-tip="{escape(tip)}"'

        # Markers are uses of one path; a bar is a path of its own.
        own, end, others = rest.partition("\n  </g>\n")
        mark = "<use" if "<use" in own else "<path"
        shown.append("<g>" + re.sub(rf"({mark})\b", tipped, own) + end + others)
    return "".join(shown)
