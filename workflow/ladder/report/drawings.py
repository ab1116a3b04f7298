"""Figures as parts of the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
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
_GLYPH = r'[^"]+-[0-9a-f]+'
"""The id of a letter's outline: its font and its number."""
_PLAIN_IN_DATA = ",:;/()[]{}*=+!@$~'"
"""What need not be escaped in the path of a `data:` address."""


class SharedParts:
    """What the drawings of a page have in common, which it has once: letters, and styles."""

    def __init__(self) -> None:
        self._glyphs: dict[str, str] = {}
        self._classes: dict[str, str] = {}

    @property
    def glyphs(self) -> Markup:
        """An element without extent that defines the letters, to be referred to by their ids."""
        paths = "\n".join(self._glyphs.values())
        return Markup(f'<svg class="glyphs" aria-hidden="true"><defs>\n{paths}\n</defs></svg>')

    @property
    def stylesheet(self) -> Markup:
        rules = (f".{name} {{ {style} }}" for style, name in self._classes.items())
        return Markup("\n".join(rules))

    def taken_out(self, svg: str) -> str:
        """The drawing without these parts."""
        svg = re.sub(rf'<path id="({_GLYPH})"[^>]*/>\s*', self._keep_glyph, svg)
        svg = re.sub(rf'xlink:href="#({_GLYPH})"', r'href="#\1"', svg)
        # A style that refers to a pattern is the drawing's own, as its patterns are.
        return re.sub(r'\bstyle="((?:(?!url\()[^"])*)"', self._class_of, svg)

    def _keep_glyph(self, found: re.Match[str]) -> str:
        self._glyphs.setdefault(found[1], found[0].strip())
        return ""

    def _class_of(self, found: re.Match[str]) -> str:
        return f'class="{self._classes.setdefault(found[1], f"s{len(self._classes)}")}"'


@dataclass(frozen=True)
class FigureViews:
    """The figures of a page, and what they need there."""

    by_topic: dict[str, dict[str, Any]]
    shared: SharedParts


def figure_views(results: Results, figures_dir: Path) -> FigureViews:
    """Figures by topic, each drawn twice: for wide and for narrow screens."""
    groups: dict[str, list[dict[str, Any]]] = {}
    shared = SharedParts()
    records = _in_the_language(results, figures.read_index(figures_dir))
    for number, record in enumerate(records):
        views = {}
        for kind, width in (("svg", "wide"), ("svg_single", "narrow")):
            path = figures_dir / record.files[kind]
            views[kind] = inline_svg(
                path.read_text(encoding="utf-8"),
                f"{width[0]}{number}",  # short, for every mark refers to an id
                f"{record.title}. {record.alt}",
                shared,
            )
        data = (figures_dir / record.files["csv"]).read_text(encoding="utf-8")
        view = {
            "record": record,
            "title": record.title,
            "caption": record.caption,
            "data": f"data:text/csv;charset=utf-8,{quote(data, safe=_PLAIN_IN_DATA)}",
            **views,
        }
        groups.setdefault(record.topic, []).append(view)
    keys = [
        *(key for key in _TITLES if key in groups),
        *(key for key in groups if key not in _TITLES),
    ]
    by_topic = {
        key: {
            "key": key,
            "title": _(_TITLES[key]) if key in _TITLES else key.capitalize(),
            "figures": groups[key],
            "empty": all(item["record"].empty for item in groups[key]),
        }
        for key in keys
    }
    return FigureViews(by_topic, shared)


def _in_the_language(
    results: Results, records: Iterable[figures.FigureRecord]
) -> Iterator[figures.FigureRecord]:
    """The figures with their words in the language spoken; they were drawn with English ones."""
    said = figures.words(results) if spoken() != "en" else {}
    for record in records:
        words = said.get(record.name)
        yield replace(record, **asdict(words)) if words else record


def inline_svg(text: str, prefix: str, label: str, shared: SharedParts) -> Markup:
    """An SVG file as an element of an HTML page: unique ids, the page's colours, a text label.

    Args:
        shared: gets the letters and styles, which the page must have once.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.S)
    text = _with_tips(text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.S)
    for colour, variable in _THEMED.items():
        text = text.replace(colour, variable)
    text = shared.taken_out(text)
    used = {*re.findall(r'xlink:href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    text = re.sub(
        r' id="([^"]+)"',
        lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "",
        text,
    )
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r"<defs>\s*</defs>\s*", "", text)
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
        end = _end_of_group(rest)
        own, others = rest[:end], rest[end:]
        mark = "<use" if "<use" in own else "<path"
        shown.append("<g>" + re.sub(rf"({mark})\b", tipped, own) + others)
    return "".join(shown)


def _end_of_group(text: str) -> int:
    """Where the group ends inside of which the text begins."""
    depth = 1
    for tag in re.finditer(r"<g\b|</g>", text):
        depth += 1 if tag[0] == "<g" else -1
        if depth == 0:
            return tag.start()
    raise ValueError("a group that does not end")
