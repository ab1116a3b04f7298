"""Everything on the page, in the order in which it stands there, and the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from .. import figures
from ..figures import Results
from ..manifest import Kernel
from .drawings import figure_views
from .energy import energy_grid, energy_note
from .findings import findings
from .glossary import GLOSSARY
from .memory import traffic_view
from .origins import conditions, protocol, provenance
from .outcomes import (
    builds_grid,
    builds_note,
    checks_grid,
    failures_grid,
    not_measured,
    status_grid,
)
from .rungs import ladder_grid, ladder_note
from .steps import ceilings_grid, steps_view
from .summary import banner, facts, subtitle, this_machine, timeless
from .words import amount

TEMPLATE = Path(__file__).resolve().parents[2] / "report" / "report.html.j2"


def render(
    tables_dir: Path,
    figures_dir: Path,
    kernels: Mapping[str, Kernel],
    gpus_path: Path,
    out: Path,
    template: Path = TEMPLATE,
) -> None:
    """Write the report of one result set.

    Args:
        tables_dir: folder of the Parquet tables; missing ones count as empty.
        figures_dir: what `figures.draw_all` wrote; without it the report has no figures.
        kernels: the configured kernels in the order of the ladder.
        gpus_path: `config/gpus.yaml`.
        out: the HTML file.
        template: Jinja template.

    Raises:
        ValueError: if a table has another schema version.
        UserError: if `gpus_path` is wrong.
    """
    results = figures.load_results(tables_dir, kernels, gpus_path)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template(template.name).render(page(results, figures_dir))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")


def page(results: Results, figures_dir: Path) -> dict[str, Any]:
    """Everything the template shows."""
    ladder = figures.ladder_table(results)
    return {
        "title": "gemm-ladder: FP32 matrix multiplication, rung by rung",
        "subtitle": subtitle(results),
        "banner": banner(results),
        "facts": facts(results),
        "facts_head": "Measured on" if (results.run or {}).get("gpu_name") else "This run",
        "here": this_machine(results),
        "ladder": ladder_grid(results, ladder),
        "ladder_note": ladder_note(results, ladder),
        "findings": findings(results, ladder),
        "timeless": timeless(results),
        "steps": steps_view(results),
        "ceilings": ceilings_grid(results),
        "energy": energy_grid(results, ladder),
        "energy_note": energy_note(results, ladder),
        "traffic": traffic_view(results),
        "figures": (views := figure_views(figures_dir)),
        "builds": builds_grid(results),
        "builds_note": builds_note(results),
        "checks": checks_grid(results),
        "statuses": status_grid(results),
        "failures": failures_grid(results),
        "not_measured": not_measured(results, views),
        "others": [f"{name}: {amount(count, 'point')}" for name, count in results.others],
        "conditions": conditions(results),
        "provenance": provenance(results),
        "protocol": protocol(results),
        "glossary": GLOSSARY,
    }
