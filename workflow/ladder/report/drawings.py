"""Figures as parts of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from .. import figures

_THEMED = {
    figures.INK: "var(--ink)",
    figures.MUTED: "var(--muted)",
    figures.GRID: "var(--grid)",
    figures.MARK: "var(--mark)",
    figures.PAPER: "var(--card)",
}
_TITLES = {
    "ladder": "The ladder",
    "traffic": "Memory traffic, counted",
    "sizes": "Sizes and caches",
    "shapes": "Shapes",
    "blocks": "Parameter sweeps",
    "roofline": "Roofline",
    "prediction": "Steps explained",
    "samples": "Samples and drift",
    "accuracy": "Accuracy",
    "energy": "Energy",
}


def figure_views(figures_dir: Path) -> list[dict[str, Any]]:
    """Figures by section, each drawn twice: for wide and for narrow screens."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in figures.read_index(figures_dir):
        views = {}
        for kind in ("svg", "svg_single"):
            path = figures_dir / record.files[kind]
            views[kind] = inline_svg(
                path.read_text(encoding="utf-8"),
                f"{record.name}-{kind}",
                f"{record.title}. {record.alt}",
            )
        groups.setdefault(record.topic, []).append({"record": record, **views})
    return [
        {
            "key": key,
            "title": _TITLES.get(key, key),
            "figures": items,
            "empty": all(item["record"].empty for item in items),
        }
        for key, items in groups.items()
    ]


def inline_svg(text: str, prefix: str, label: str) -> Markup:
    """An SVG file as an element of an HTML page: unique ids, the page's colours, a text label."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
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
