"""The values behind the marks of a figure, kept in its SVG so that a page can show them.

Matplotlib writes an artist's `gid` as the id of its group. Here it holds what each mark of the
artist stands for, in the order in which the marks are drawn; `read_marks` gives it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from .looks import SeriesStyle

_PREFIX = "marks:"
CLOUD = "_cloud"
"""Label of a line whose marks are moved aside to be seen, so that their places tell no value."""
_MOST_MARKS = 400
"""An artist with more marks shows a cloud: nobody points at one of them."""


def name_marks(figure: Figure, styles: Mapping[str, SeriesStyle]) -> None:
    """Give every bar and every artist with markers an id that tells its values.

    Args:
        styles: by series, the looks by which an artist tells whose values it shows.
    """
    for axes in figure.axes:
        for line in axes.get_lines():
            if line.get_label() == CLOUD:
                continue
            if line.get_marker() not in ("None", "none", "", " ", None):
                points = np.asarray(line.get_xydata(), dtype=float)
                line.set_gid(_id(_texts(axes, _series(line, styles), points)))
        for collection in axes.collections:
            if isinstance(collection, PathCollection):
                points = np.asarray(np.ma.getdata(collection.get_offsets()), dtype=float)
                collection.set_gid(_id(_texts(axes, None, points)))
        for container in axes.containers if axes.get_xlabel() else ():
            for bar in container if isinstance(container, BarContainer) else ():
                middle = bar.get_y() + bar.get_height() / 2
                end = np.array([[bar.get_x() + bar.get_width(), middle]])
                bar.set_gid(_id(_texts(axes, None, end)))


def _series(line: Line2D, styles: Mapping[str, SeriesStyle]) -> str | None:
    """The series with the line's marker and colour; None if it is not one alone."""
    colours = {
        to_hex(colour)
        for colour in (line.get_color(), line.get_markeredgecolor(), line.get_markerfacecolor())
        if colour not in ("none", "auto")
    }
    found = [
        name
        for name, style in styles.items()
        if style.marker == line.get_marker() and to_hex(style.colour) in colours
    ]
    return found[0] if len(found) == 1 else None


def read_marks(name: str) -> list[str] | None:
    """What the marks of a group with this id stand for; None if it has no such id."""
    if not name.startswith(_PREFIX):
        return None
    texts: list[str] = json.loads(unquote(name.removeprefix(_PREFIX)))
    return texts


def _id(texts: list[str]) -> str | None:
    if not 0 < len(texts) <= _MOST_MARKS:
        return None
    return _PREFIX + quote(json.dumps(texts, ensure_ascii=False), safe="")


def _texts(axes: Axes, series: str | None, points: np.ndarray) -> list[str]:
    named = [series] if series else []
    return [
        "\n".join([*named, *_coordinates(axes, point)])
        for point in points
        if np.isfinite(point).all()  # others are not drawn
    ]


def _coordinates(axes: Axes, point: np.ndarray) -> Iterable[str]:
    for axis, value in zip((axes.xaxis, axes.yaxis), point, strict=True):
        name = re.split(r"\s*\(", " ".join(axis.get_label_text().split()))[0]
        text = _value(axis, float(value))
        yield f"{name}: {text}" if name else text


def _value(axis: Axis, value: float) -> str:
    """A number, or the name that stands at that place of the axis."""
    if isinstance(axis.get_major_locator(), FixedLocator):
        for place in axis.get_majorticklocs():
            name = axis.get_major_formatter()(place)
            if abs(place - value) < 1e-6 and name:
                return " ".join(name.split())
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.4g}"
