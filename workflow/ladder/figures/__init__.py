"""Tables -> figures: one pure function a figure, from a tidy table to a matplotlib Figure.

Every figure goes through three steps that can be used alone: a `*_table` function picks the rows
(and is what the CSV beside the figure holds), a drawing function turns them into a picture, and
`save` writes SVG, PDF and PNG that are byte-identical whenever the table is.

Only rows whose status is in `status.RANKED` are drawn, and only those of one GPU and driver: the
newest run's. Series are told apart by marker and dash as well as by colour, so that the figures
read in grey.
"""

from .accuracy import DISTRIBUTIONS, accuracy_table, errors_table
from .drawing import FigureRecord, draw_all, read_index, save
from .energy import energy_table
from .loads import COUNTED_BY, traffic_figure, traffic_table
from .looks import (
    DOUBLE_COLUMN_IN,
    GRID,
    INK,
    MARK,
    MUTED,
    PALETTES,
    PAPER,
    SINGLE_COLUMN_IN,
    Look,
    looks,
    origin,
    rc,
    series_styles,
    spread,
)
from .marks import name_marks, read_marks
from .plans import TOPICS, caption, plans, words
from .results import (
    Results,
    as_record,
    best,
    load_results,
    params_label,
    params_order,
    shape_label,
    speed_up,
    squares,
    times_of,
)
from .rooflines import hierarchical_table, projection_table, roofline, roofline_table
from .rungs import ladder, ladder_table
from .scatter import drift_table, samples_table
from .shapes import shapes_table, speed_up_table
from .sizes import tflops_by_size, tflops_by_size_table
from .steps import LIMIT_NAMES, RESOURCE_NAMES, predictions_table, steps_table
from .sweeps import pairs_table, swept_kernels

__all__ = [
    "COUNTED_BY",
    "DISTRIBUTIONS",
    "DOUBLE_COLUMN_IN",
    "GRID",
    "INK",
    "LIMIT_NAMES",
    "MARK",
    "MUTED",
    "PALETTES",
    "PAPER",
    "RESOURCE_NAMES",
    "SINGLE_COLUMN_IN",
    "TOPICS",
    "FigureRecord",
    "Look",
    "Results",
    "accuracy_table",
    "as_record",
    "best",
    "caption",
    "draw_all",
    "drift_table",
    "energy_table",
    "errors_table",
    "hierarchical_table",
    "ladder",
    "ladder_table",
    "load_results",
    "looks",
    "name_marks",
    "origin",
    "pairs_table",
    "params_label",
    "params_order",
    "plans",
    "predictions_table",
    "projection_table",
    "rc",
    "read_index",
    "read_marks",
    "roofline",
    "roofline_table",
    "samples_table",
    "save",
    "series_styles",
    "shape_label",
    "shapes_table",
    "speed_up",
    "speed_up_table",
    "spread",
    "squares",
    "steps_table",
    "swept_kernels",
    "tflops_by_size",
    "tflops_by_size_table",
    "times_of",
    "traffic_figure",
    "traffic_table",
    "words",
]
