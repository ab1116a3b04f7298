"""Everything on the page, in the order in which it stands there, and the files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import jinja2

from .. import figures
from ..figures import Results
from ..language import Language, _, plural, sentence, speaking
from ..manifest import Kernel
from .accuracy import (
    errors_grid,
    errors_note,
    missing_note,
    outcomes_explained,
    special_grid,
)
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
from .summary_page import DEFAULT_FONT, font_for, write_summary

Format = Literal["html", "md", "pdf"]
ALL_FORMATS: tuple[Format, ...] = get_args(Format)
SUMMARY = "summary.pdf"
_TEMPLATES = Path(__file__).resolve().parents[2] / "report"
_HTML_LANGUAGES: Mapping[Language, str] = {"en": "en", "zh": "zh-Hans"}


def render(
    tables_dir: Path,
    figures_dir: Path,
    kernels: Mapping[str, Kernel],
    gpus_path: Path,
    out: Path,
    *,
    language: Language = "en",
    others: Iterable[Path] = (),
    formats: Collection[Format] = ALL_FORMATS,
) -> None:
    """Write the report of one result set, as HTML, as Markdown, and on one page as PDF.

    Beside `out` lie `report.md` and `summary.pdf`. The PDF is in English if no font of this machine
    can write the language.

    Args:
        tables_dir: folder of the Parquet tables; missing ones count as empty.
        figures_dir: what `figures.draw_all` wrote; without it the report has no figures.
        kernels: the configured kernels in the order of the ladder.
        gpus_path: `config/gpus.yaml`.
        out: the HTML file.
        language: of everything but names, what is written inside figures, and what stands in the
            tables.
        others: folders of result sets to compare with; those of the same GPU are passed over.
        formats: `html`, `md`, `pdf`; the last two lie beside `out`.

    Raises:
        ValueError: if a table has another schema version.
        UserError: if `gpus_path` is wrong.
    """
    results = figures.load_results(tables_dir, kernels, gpus_path)
    compared = other_sets(others, results, kernels, gpus_path)
    out.parent.mkdir(parents=True, exist_ok=True)
    with speaking(language):
        contents = page(results, figures_dir, compared)
        for path in (out, out.with_suffix(".md")):
            if path.suffix[1:] not in formats:
                continue
            template = _environment(path.suffix).get_template(f"report{path.suffix}.j2")
            text = template.render(contents, language=_HTML_LANGUAGES[language])
            path.write_text(text, encoding="utf-8")
    if "pdf" not in formats:
        return
    font = font_for(language)
    written: Language = language if font else "en"
    with speaking(written):
        if written != language:
            contents = page(results, figures_dir, compared)
        write_summary(contents, font or DEFAULT_FONT, out.with_name(SUMMARY))


def _environment(suffix: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=suffix == ".html",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"_": _, "sentence": sentence}
    environment.filters["md"] = _in_a_table
    return environment


def _in_a_table(text: str) -> str:
    """Text as a cell of a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def page(results: Results, figures_dir: Path, compared: Iterable[Results] = ()) -> dict[str, Any]:
    """Everything the template shows."""
    ladder, steps = figures.ladder_table(results), figures.steps_table(results)
    size = int(ladder["n"].iloc[0]) if len(ladder) else None
    views = figure_views(results, figures_dir)
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
        "figures": views.by_topic,
        "shared": views.shared,
        "builds": builds_grid(results),
        "builds_note": builds_note(results),
        "checks": checks_grid(results),
        "errors": errors_grid(results),
        "errors_note": errors_note(results),
        "errors_missing": missing_note(results),
        "special": special_grid(results),
        "outcomes": list(outcomes_explained(results)),
        "statuses": status_grid(results),
        "failures": failures_grid(results),
        "not_measured": not_measured(results, views.by_topic),
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
