"""Tables and figures -> one self-contained HTML page.

Every sentence with a number in it is made here from the tables; the template holds none. The page
needs no network and, but for sorting its tables, no script. A module makes a section of the page.
"""

from .drawings import inline_svg
from .findings import findings
from .grid import Cell, Grid
from .lesson import lesson_sentences
from .page import page, render
from .sources import agreement_sentences
from .steps import largest_step, step_sentences, steps_view
from .words import integer, number, percent

__all__ = [
    "Cell",
    "Grid",
    "agreement_sentences",
    "findings",
    "inline_svg",
    "integer",
    "largest_step",
    "lesson_sentences",
    "number",
    "page",
    "percent",
    "render",
    "step_sentences",
    "steps_view",
]
