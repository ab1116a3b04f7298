"""Everything on the page, in the order in which it stands there, and the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from .. import figures
from ..figures import Results
from ..language import Language, _, plural, speaking
from ..manifest import Kernel
from .articles import articles
from .devices import comparison_grid, other_sets
from .drawings import figure_views
from .energy import energy_grid, energy_note
from .findings import findings, learned
from .glossary import glossary
from .memory import traffic_view
from .method import method
from .origins import conditions, protocol, provenance
from .outcomes import (
    builds_grid,
    builds_note,
    checks_grid,
    failures_grid,
    not_measured,
    status_grid,
)
from .rungs import ladder_bars, ladder_grid, ladder_note, other_families
from .steps import ceilings_grid, step_sentences, steps_view
from .summary import banner, facts, subtitle, this_machine, tiles, timeless

TEMPLATE = Path(__file__).resolve().parents[2] / "report" / "report.html.j2"


def render(
    tables_dir: Path,
    figures_dir: Path,
    kernels: Mapping[str, Kernel],
    gpus_path: Path,
    out: Path,
    *,
    language: Language = "en",
    others: Iterable[Path] = (),
) -> None:
    """Write the report of one result set.

    Args:
        tables_dir: folder of the Parquet tables; missing ones count as empty.
        figures_dir: what `figures.draw_all` wrote; without it the report has no figures.
        kernels: the configured kernels in the order of the ladder.
        gpus_path: `config/gpus.yaml`.
        out: the HTML file.
        language: of everything but names, figures, and what stands in the tables.
        others: folders of result sets to compare with; those of the same GPU are passed over.

    Raises:
        ValueError: if a table has another schema version.
        UserError: if `gpus_path` is wrong.
    """
    results = figures.load_results(tables_dir, kernels, gpus_path)
    compared = other_sets(others, results, kernels, gpus_path)
    with speaking(language):
        contents = page(results, figures_dir, compared)
        html = _environment(TEMPLATE.parent).get_template(TEMPLATE.name)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(html.render(contents, language=_HTML_LANGUAGES[language]), encoding="utf-8")


_HTML_LANGUAGES: Mapping[Language, str] = {"en": "en", "zh": "zh-Hans"}


def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["_"] = _
    return environment


def page(results: Results, figures_dir: Path, compared: Iterable[Results] = ()) -> dict[str, Any]:
    """Everything the template shows."""
    ladder, steps = figures.ladder_table(results), figures.steps_table(results)
    size = int(ladder["n"].iloc[0]) if len(ladder) else None
    views = figure_views(figures_dir)
    return {
        "title": _("gemm-ladder: FP32 matrix multiplication, rung by rung"),
        "subtitle": subtitle(results),
        "banner": banner(results),
        "tiles": tiles(ladder),
        "bars": ladder_bars(ladder),
        "size": size,
        "facts": facts(results),
        "facts_head": _("Measured on") if (results.run or {}).get("gpu_name") else _("This run"),
        "here": this_machine(results),
        "learned": learned(results, ladder, steps),
        "ladder": ladder_grid(results, ladder),
        "ladder_note": ladder_note(results, ladder),
        "findings": findings(results, ladder),
        "families": other_families(results, size),
        "timeless": timeless(results),
        "articles": articles(results, ladder, steps, step_sentences(steps)),
        "steps": steps_view(results, steps),
        "ceilings": ceilings_grid(results),
        "energy": energy_grid(results, ladder),
        "energy_note": energy_note(results, ladder),
        "traffic": traffic_view(results),
        "figures": views,
        "builds": builds_grid(results),
        "builds_note": builds_note(results),
        "checks": checks_grid(results),
        "statuses": status_grid(results),
        "failures": failures_grid(results),
        "not_measured": not_measured(results, views),
        "others": [
            f"{name}: {plural('{count} point', '{count} points', count)}"
            for name, count in results.others
        ],
        "devices": comparison_grid(results, compared, size),
        "method": method(results),
        "conditions": conditions(results),
        "provenance": provenance(results),
        "protocol": protocol(results),
        "glossary": glossary(),
    }
