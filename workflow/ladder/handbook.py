"""The parts of the documentation that are generated: numbers, and the overview of the workflow.

`docs/tutorial.md` is rendered from the published tables. In README.md the column of TFLOPS, the
size and cuBLAS's number above it are kept current, and so is the graph of the rules.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from . import figures, report
from .documents import UserError
from .figures import Results
from .figures.looks import short, signed
from .manifest import Kernel

TEMPLATE = Path(__file__).resolve().parents[1] / "report" / "tutorial.md.j2"
GENERATED = "Generated from the published tables by `python -m ladder handbook`; do not edit."


def write(
    root: Path, published: Path, kernels: Mapping[str, Kernel], gpus_path: Path
) -> list[Path]:
    """Write `docs/tutorial.md` and the generated parts of README.md; returns what changed.

    Raises:
        UserError: if the published set has no ladder or README.md lacks a place or a rung.
    """
    results = figures.load_results(published, kernels, gpus_path)
    readme = root / "README.md"
    folder = os.path.relpath(published, root / "docs")
    texts = {
        root / "docs" / "tutorial.md": tutorial(results, folder),
        readme: with_graph(with_numbers(readme.read_text(encoding="utf-8"), results), root),
    }
    changed = [
        path
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in changed:
        path.write_text(texts[path], encoding="utf-8")
    return changed


# --- the tutorial ---------------------------------------------------------------------------------


def tutorial(results: Results, folder: str) -> str:
    """The walk from the first rung to the last, as Markdown.

    Args:
        folder: the result folder as seen from the page.
    """
    ladder = _ladder(results)
    steps = figures.steps_table(results)
    sentences = report.step_sentences(steps)
    n = int(ladder["n"].iloc[0])
    flop, least = 2.0 * n**3, 12.0 * n**2
    ceilings = {name: float(results.ceilings[name]["value"]) for name in ("fma", "copy")}
    rows: list[dict[str, Any]] = [dict(row) for _, row in ladder.iterrows()]
    rungs = [row for row in rows if row["kind"] == "rung"]
    (reference,) = (row for row in rows if row["kind"] == "reference")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        generated=f"<!-- {GENERATED} -->",
        gpu=f"one {results.gpu_name}",
        n=n,
        reference=short(reference["tflops"]),
        figure=f"![The ladder]({folder}/figures/ladder.svg)",
        gflop=short(flop / 1e9),
        mbytes=short(least / 1e6),
        fma=short(ceilings["fma"]),
        copy=short(ceilings["copy"]),
        time_fma=short(flop / ceilings["fma"] / 1e9),
        time_copy=short(least / ceilings["copy"] / 1e6),
        rungs=[
            {
                "title": rung["series"],
                "idea": results.kernels[rung["kernel"]].manifest.idea,
                "kernel": rung["kernel"],
                "numbers": _numbers(rung),
                "counters": sentences.get(rung["kernel"], _first_limit(steps, rung["kernel"])),
                "source": _source(results.kernels[rung["kernel"]]),
                "try_it": _emulation(results.kernels[rung["kernel"]], rung["params"]),
            }
            for rung in rungs
        ],
        end=_end(rungs, reference),
        folder=folder,
    )
    return _wrapped(text)


def _ladder(results: Results) -> pd.DataFrame:
    ladder = figures.ladder_table(results)
    if not {"rung", "reference"} <= set(ladder["kind"]) or not {"fma", "copy"} <= set(
        results.ceilings
    ):
        raise UserError("the published set has no ladder beside cuBLAS FP32, or no ceilings")
    return ladder


def _numbers(rung: Mapping[str, Any]) -> str:
    label = figures.params_label(rung["params"], among=[])
    with_set = f" with {label}" if label else ""
    text = f"It reaches **{short(rung['tflops'])} TFLOPS**{with_set}"
    text += f", {100 * rung['vs_reference']:.1f} % of cuBLAS FP32"
    ratio, verdict = rung["vs_previous"], rung["verdict_previous"]
    if pd.isna(ratio):
        return f"{text}."
    if verdict == "same":
        return f"{text}: as fast as the rung before."
    direction = "times as fast as the rung before" if ratio >= 1 else "times the rung before"
    return f"{text}: {short(ratio)} {direction}{'' if ratio >= 1 else ', a step back here'}."


def _first_limit(steps: pd.DataFrame, kernel: str) -> str:
    """What limits a rung that no other is before."""
    rows = steps[(steps["kernel"] == kernel) & steps["limit"].notna()]
    if rows.empty:
        return ""
    row = rows.iloc[0]
    return (
        f"What limits it is {figures.LIMIT_NAMES[row['limit']]}; the model's time is"
        f" {signed(round(row['model_error_pct'], 1))} % off the measured one."
    )


def _source(kernel: Kernel) -> str:
    return f"kernels/{(kernel.source_path or kernel.manifest_path).name}"


def _emulation(kernel: Kernel, params: str) -> str | None:
    """A command that counts the rung's requests at a small size; None if it cannot be emulated."""
    if not (kernel.needs_build and kernel.manifest.emulator):
        return None
    given = ",".join(f"{name}={value}" for name, value in json.loads(params).items())
    return f"python -m ladder emulate {kernel.name} --params {given} --size 256 256 256"


def _end(rungs: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> str:
    first = rungs[0]
    top = max(rungs, key=lambda rung: float(rung["tflops"]))
    return (
        f"{top['series']} is the fastest here: {short(top['tflops'])} TFLOPS,"
        f" {short(top['tflops'] / first['tflops'])} times the first rung,"
        f" {100 * top['vs_reference']:.1f} % of cuBLAS FP32 and"
        f" {top['pct_peak_max_clock']:.1f} % of the FP32 peak at the maximum clock, of which"
        f" cuBLAS reaches {reference['pct_peak_max_clock']:.1f} %."
    )


def _wrapped(text: str) -> str:
    """Paragraphs in lines of at most 100 characters; code, headings and pictures as they are."""
    blocks = []
    for block in re.split(r"\n{2,}", text.strip()):
        if block.startswith(("#", "```", "!", "<")):
            blocks.append(block)
        elif "```" in block:
            head, code = block.split("\n```", 1)
            blocks.append(f"{textwrap.fill(head, 100)}\n```{code}")
        else:
            blocks.append(textwrap.fill(block, 100, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(blocks) + "\n"


# --- README.md ------------------------------------------------------------------------------------

_ROW = re.compile(r"^(\| \[[^\]]+\]\(kernels/([^).]+)\.\w+\) \|.*\| )([^|]+)( \|)$", re.MULTILINE)
_SIZE = re.compile(r"(M = N = K = )(\d+)(, where cuBLAS\s+FP32 has )(\d+(?:\.\d+)?)")


def with_numbers(text: str, results: Results) -> str:
    """README.md with the TFLOPS of every rung, the size, and cuBLAS's number of this result set.

    Raises:
        UserError: if a rung has no line in the table, or the sentence above it is not there.
    """
    ladder = _ladder(results)
    found = {row["kernel"]: short(row["tflops"]) for row in ladder.to_dict("records")}
    rungs = ladder.loc[ladder["kind"] == "rung", "kernel"].tolist()
    listed = [name for _, name, *_ in _ROW.findall(text)]
    missing = [name for name in rungs if name not in listed]
    if missing or not _SIZE.search(text):
        what = f"no line for {', '.join(missing)}" if missing else "no sentence on size and cuBLAS"
        raise UserError(f"README.md: the table of the ladder has {what}")
    (reference,) = ladder.loc[ladder["kind"] == "reference", "kernel"]
    size = int(ladder["n"].iloc[0])
    text = _SIZE.sub(lambda m: f"{m[1]}{size}{m[3]}{found[reference]}", text)
    return _ROW.sub(lambda m: f"{m[1]}{found.get(m[2], m[3])}{m[4]}", text)


_GRAPH = re.compile(r"(```mermaid\n).*?(```)", re.DOTALL)
_NODE, _EDGE = re.compile(r"^\s*(id\d+)\[(\w+)\]", re.M), re.compile(r"(id\d+) --> (id\d+)")
_ANY_GPU = {"gpu": {"expect": {"name": "any GPU", "compute_capability": "9.0"}}}


def with_graph(text: str, root: Path) -> str:
    """README.md with the graph of the rules, those of a machine with a GPU and of one without.

    Raises:
        UserError: if README.md has no Mermaid block, or Snakemake cannot tell its rules.
    """
    if not _GRAPH.search(text):
        raise UserError("README.md: no ```mermaid block for the graph of the rules")
    with_gpu, without = _rules(root, _ANY_GPU), _rules(root, {"gpu": {"use": "none"}})
    edges = sorted(_direct(with_gpu) | _direct(without))
    names = list(dict.fromkeys(name for edge in edges for name in edge))
    lines = ["flowchart LR"]
    lines += [f'    {name}["{name.replace("_", " ")}"]' for name in names]
    lines += [f"    {first} --> {second}" for first, second in edges]
    for style, own in (("gpu", with_gpu - without), ("cpu", without - with_gpu)):
        only = sorted(_nodes(own) - _nodes(without if style == "gpu" else with_gpu))
        lines.append(f"    class {','.join(only)} {style}")
    lines += [
        "    classDef gpu stroke:#0072b2,stroke-width:2px",
        "    classDef cpu stroke:#d55e00,stroke-width:2px,stroke-dasharray:4 2",
    ]
    return _GRAPH.sub(lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text)


_Edges = set[tuple[str, str]]


def _nodes(edges: _Edges) -> set[str]:
    return {name for edge in edges for name in edge}


def _rules(root: Path, overlay: Mapping[str, Any]) -> _Edges:
    """The edges of Snakemake's rule graph under an overlay of the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overlay.yaml"
        path.write_text(json.dumps(overlay), encoding="utf-8")
        command = [sys.executable, "-m", "snakemake", "--rulegraph", "mermaid-js",
                   "--forceall", "--nolock", "--configfile", str(path)]  # fmt: skip
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"snakemake --rulegraph failed:\n{done.stderr[-2000:]}")
    names = dict(_NODE.findall(done.stdout))
    edges = {(names[first], names[second]) for first, second in _EDGE.findall(done.stdout)}
    return {edge for edge in edges if "default" not in edge and "all" not in edge}


def _direct(edges: _Edges) -> _Edges:
    """The edges that no longer way replaces (transitive reduction)."""
    after: dict[str, set[str]] = {}
    for first, second in edges:
        after.setdefault(first, set()).add(second)

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        for following in after.get(name, ()):
            found |= {following} | reached(following)
        return found

    return {
        (first, second)
        for first, second in edges
        if not any(second in reached(other) for other in after[first] - {second})
    }
