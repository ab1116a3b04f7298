"""What the documents say is what the code does: commands, keys, examples, links, versions."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import yaml
from pydantic import BaseModel

from ladder import __version__, correctness, measure, schema, timing
from ladder import gpus as gpu_sheets
from ladder import manifest as manifests
from ladder.__main__ import _parser
from ladder.closed_forms import CLOSED_FORMS
from ladder.compare_counters import VERDICTS
from ladder.compile import compile_build, compiler_problem
from ladder.config import Config, load, merge, resolve
from ladder.documents import UserError, parse
from ladder.manifest import Kernel, Manifest, expand
from ladder.plan import plan_points
from ladder.status import EXPLANATIONS

ROOT = Path(__file__).resolve().parent.parent
README, CONFIG_README = ROOT / "README.md", ROOT / "config" / "README.md"
DOCUMENTS = [README, CONFIG_README, *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
BASE = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())

_FENCE = re.compile(
    r"(?:<!-- example: (?P<kind>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def blocks(path: Path) -> list[tuple[str | None, str, str]]:
    """Every fenced block of a document: the kind its comment names, its language, its text."""
    return [
        (match["kind"], match["language"], match["text"])
        for match in _FENCE.finditer(path.read_text())
    ]


def examples(path: Path, kind: str) -> list[str]:
    return [text for found, _, text in blocks(path) if found == kind]


def shell_lines(path: Path) -> list[list[str]]:
    """The commands of a document's shell blocks, without comments."""
    lines = [line for _, language, text in blocks(path) if language == "sh"
             for line in text.splitlines()]  # fmt: skip
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def load_bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "envs" / "bootstrap.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- commands -------------------------------------------------------------------------------------


def test_the_two_commands_of_the_readme_are_what_bootstrap_and_ci_run() -> None:
    bootstrap = load_bootstrap()
    lines = [words for words in shell_lines(README) if words[0] == "python3"]
    assert {words[1] for words in lines} == {"envs/bootstrap.py"}
    calls = [bootstrap.parse(words[2:]).command for words in lines]
    assert calls == [("snakemake", "--cores", "1"), ("pytest",)]
    for call in calls:
        assert " ".join(call) in str(bootstrap.__doc__)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("python3 envs/bootstrap.py pytest")
    sets = bootstrap.sets_needed(bootstrap.parse(["pytest"]), (), lambda: False)
    assert sets == ("default", "test")


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_every_step_that_a_document_types_can_be_typed(path: Path) -> None:
    parser = _parser()
    for words in shell_lines(path):
        if words[:3] == ["python", "-m", "ladder"]:
            parser.parse_args(words[3:])
    # In running text too, where a line may end inside a command.
    for named in re.findall(r"python -m ladder\s+(\w+)", path.read_text()):
        with pytest.raises(SystemExit) as end:
            parser.parse_args([named, "--help"])
        assert end.value.code == 0, named


def test_the_documents_name_every_step() -> None:
    steps = next(action.choices for action in _parser()._actions if action.choices)
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    named = set(re.findall(r"python -m ladder\s+(\w+)", text))
    assert set(steps or ()) - named == {"publish"}  # typed as a target of Snakemake


def test_snakemake_targets_and_rules_in_the_documents_exist() -> None:
    rules = "\n".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    for path in DOCUMENTS:
        for words in shell_lines(path):
            if words[0] != "snakemake":
                continue
            targets = [words[words.index("--forcerun") + 1]] if "--forcerun" in words else []
            targets += [word for word in words[3:] if re.fullmatch(r"[a-z_]+", word)]
            for target in targets:
                assert re.search(rf"^\s*rule {target}:", rules, re.MULTILINE), target


# --- examples -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the kernels of this one and those of the README."""
    root = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "kernels", root / "kernels")
    for kind, _, text in blocks(README):
        if kind and kind.startswith("kernels/"):
            (root / kind).write_text(text)
    return root


def test_every_yaml_and_cuda_block_says_what_it_is_an_example_of() -> None:
    for path in DOCUMENTS:
        for kind, language, text in blocks(path):
            # A block that only quotes a signature is checked below.
            if language == "yaml" or (language == "cuda" and "{" in text):
                assert kind, f"{path.name}: {text[:60]!r}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_examples_of_configurations_are_valid(path: Path, example_root: Path) -> None:
    for text in examples(path, "config"):
        resolve(yaml.safe_load(text), example_root, name="example")
    for text in examples(path, "overlay"):
        resolve(merge(BASE, yaml.safe_load(text)), example_root, name="example")


def test_examples_of_manifests_and_datasheets_are_valid(tmp_path: Path) -> None:
    (text,) = examples(CONFIG_README, "manifest")
    example = parse(Manifest, yaml.safe_load(text), name="example")
    assert len(list(expand(example.sweep))) == 4
    kernel = Kernel("example", example, tmp_path / "example.yaml", None)
    allowed = [kernel.violated_constraint(params) for params in expand(example.sweep)]
    assert allowed.count(None) == 4
    launch = kernel.launch({"TILE": 16, "STAGES": 2}, 100, 100, 100)
    assert launch and launch.grid == (7, 7, 1) and launch.dynamic_shared_memory_bytes == 4096
    (text,) = examples(CONFIG_README, "launch")
    maps = yaml.safe_load(text)
    sizes = {name: {"description": name} for name in ("BM", "BN", "BK", "STAGES")}
    changes = {"parameters": sizes, "sweep": [{key: 32 for key in sizes}], "launch": maps}
    data = example.model_dump() | changes | {"minimum_compute_capability": "9.0"}
    parse(
        Manifest,
        data | {"constraints": [], "theory": {}, "theory_where": [], "tune": {}},
        name="example",
    )
    (text,) = examples(CONFIG_README, "gpus")
    (tmp_path / "gpus.yaml").write_text(text)
    assert gpu_sheets.load(tmp_path / "gpus.yaml") == [
        sheet.model_copy(update={"source": yaml.safe_load(text)["gpus"][0]["source"]})
        for sheet in gpu_sheets.load(ROOT / "config" / "gpus.yaml")
        if sheet.name == "GeForce RTX 5080"
    ]


def test_every_closed_form_is_explained_with_its_unit() -> None:
    text = CONFIG_README.read_text(encoding="utf-8")
    for name, form in CLOSED_FORMS.items():
        assert f"| `{name}` | {form.unit} | {form.meaning} |" in text, name


def test_every_verdict_on_counters_is_explained() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    for name, meaning in VERDICTS.items():
        assert f"| `{name}` | {meaning} |" in text, name


def test_the_three_forms_of_a_sweep_give_the_sets_that_the_text_says(example_root: Path) -> None:
    (text,) = examples(CONFIG_README, "config")
    config, kernels = resolve(yaml.safe_load(text), example_root, name="example")
    counts = {name: len(config.parameter_sets(kernel)) for name, kernel in kernels.items()}
    assert counts == {"01_naive": 4, "03_shared_tile": 2, "cublas_fp32": 1}


def test_nested_values_on_snakemakes_command_line_are_refused() -> None:
    # What `--config sizes='{square: [512]}'` arrives as.
    with pytest.raises(UserError, match=r"sizes\.square\[0\]"):
        resolve(merge(BASE, {"sizes": {"square": ["512"]}}), ROOT, name="command line")


def test_the_quick_overlay_is_a_small_part_of_the_default() -> None:
    folder = ROOT / "config"
    full, kernels = load([folder / "config.yaml"], ROOT)
    quick, _ = load([folder / "config.yaml", folder / "quick.yaml"], ROOT)
    assert len(quick.sizes.all()) == 2
    assert len(plan_points(quick, kernels)) < len(plan_points(full, kernels)) / 4
    assert quick.protocol.minimum_total_ms < full.protocol.minimum_total_ms


def test_the_readmes_kernel_can_be_planned(example_root: Path) -> None:
    (text,) = examples(README, "config")
    config, kernels = resolve(yaml.safe_load(text), example_root, name="example")
    points = [item for item in plan_points(config, kernels) if item.point.kernel == "50_mine"]
    assert len(points) == 4 * 4
    assert not [item for item in points if item.fault]


@pytest.mark.skipif(compiler_problem() is not None, reason="no CUDA compiler on this machine")
def test_the_readmes_kernel_compiles_without_spills(example_root: Path) -> None:
    kernel = manifests.load_all(example_root / "kernels")["50_mine"]
    for params in expand(kernel.manifest.sweep):
        row, cubin = compile_build(kernel, params, "sm_90a")
        assert row["status"] == "ok", row["log"]
        assert cubin and row["spill_store_bytes"] == row["stack_frame_bytes"] == 0


_ONE_THREAD_AT_A_TIME = """
struct Index {{ int x, y, z; }};
static Index blockIdx, threadIdx;
#define __global__
#include "{source}"
extern "C" void run(const float* A, const float* B, float* C, int M, int N, int K,
                    int gx, int gy, int bx, int by) {{
    for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x)
            for (threadIdx.y = 0; threadIdx.y < by; ++threadIdx.y)
                for (threadIdx.x = 0; threadIdx.x < bx; ++threadIdx.x) gemm(A, B, C, M, N, K);
}}
"""


def references(m: int, n: int, k: int) -> correctness.ReferenceOf:
    return lambda a, b, kind, seed: correctness.reference(np, a, b, m, n, k, kind, seed)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
@pytest.mark.parametrize("rows", [1, 8])
def test_the_readmes_kernel_multiplies_correctly(
    example_root: Path, tmp_path: Path, rows: int
) -> None:
    # It has no barrier, so its threads may run one after the other, on a CPU.
    kernel = manifests.load_all(example_root / "kernels")["50_mine"]
    (tmp_path / "run.cpp").write_text(_ONE_THREAD_AT_A_TIME.format(source=kernel.source_path))
    library = tmp_path / "run.so"
    command = ["g++", "-shared", "-fPIC", "-O1", f"-DROWS={rows}", "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "run.cpp")], check=True)
    run = ctypes.CDLL(str(library)).run

    for m, n, k in [(1, 1, 1), (3, 3, 31), (17, 33, 5), (64, 65, 63), (127, 129, 31)]:
        geometry = kernel.launch({"ROWS": rows}, m, n, k)
        assert geometry

        def launch(a: Any, b: Any, c: Any, size: Any = (m, n, k), geometry: Any = geometry) -> None:
            pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c)]
            run(*pointers, *size, *geometry.grid[:2], *geometry.block[:2])

        verdict = correctness.check(
            np, launch, m, n, k, accuracy="fp32", deterministic=True,
            reference_of=references(m, n, k),
        )  # fmt: skip
        assert verdict.status == "ok", (m, n, k, verdict.detail)


def test_the_readmes_table_snippet_finds_the_best_of_each_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"params": "{}", "m": 8, "n": 8, "k": 8, "cache_mode": "rotating"}
    rows = [
        {**common, "kernel": "one", "status": "ok", "tflops": 1.5},
        {**common, "kernel": "one", "status": "ok_noisy", "tflops": 2.5},
        {**common, "kernel": "one", "status": "wrong_result", "tflops": 99.0},
        {**common, "kernel": "one", "status": "ok", "tflops": 98.0, "cache_mode": "hot"},
        {**common, "kernel": "two", "status": "ok", "tflops": 3.5},
    ]
    schema.write(tmp_path / "results" / "nvidia-h200" / "points.parquet", "points", rows)
    monkeypatch.chdir(tmp_path)
    (snippet,) = [text for _, language, text in blocks(README) if language == "python"]
    exec(compile(snippet, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "2.5" in shown and "3.5" in shown
    assert "99" not in shown and "98" not in shown and "1.5" not in shown


# --- config/README.md is complete -----------------------------------------------------------------


def rows_of(path: Path) -> dict[str, list[str]]:
    """Table rows of a document by the name in backticks in their first cell."""
    found = {}
    for line in path.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = cells
    return found


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a model's leaves with its default."""
    for name, field in model.model_fields.items():
        nested, free = _nested(field.annotation)
        inner = f"{prefix}{name}." + ("NAME." if free else "")
        if nested and not free and len(nested) > 1:  # kinds of one thing, told apart by `kind`
            for kind in nested:
                yield from keys_of(kind, inner)
        elif nested:
            if field.default is None:  # a section that may be absent
                yield f"{prefix}{name}", None
            yield from keys_of(nested[0], inner)
        else:
            yield f"{prefix}{name}", field.get_default(call_default_factory=True)


def _nested(annotation: Any) -> tuple[list[type[BaseModel]], bool]:
    """The models inside an annotation, and whether names of the user's choice lead to them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation], False
    if get_origin(annotation) is list:
        return [], False
    found = [model for part in get_args(annotation) for model in _nested(part)[0]]
    return found, get_origin(annotation) is dict


def as_written(value: Any) -> str:
    """A default as a document writes it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return f'"{value}"' if re.fullmatch(r"[\d.]+", value) else value
    return json.dumps(value).replace('"', "")


@pytest.mark.parametrize("model", [Config, Manifest], ids=["config", "manifest"])
def test_every_key_is_explained_with_its_default(model: type[BaseModel]) -> None:
    rows = rows_of(CONFIG_README)
    keys = dict(keys_of(model))
    assert len(keys) > 15
    assert not [key for key in keys if key not in rows]
    for key, default in keys.items():
        if "PydanticUndefined" in repr(default) or key == "launch.kind":
            continue  # required
        assert rows[key][1].strip("`") == as_written(default), key


def test_no_key_is_explained_that_does_not_exist() -> None:
    known = {*dict(keys_of(Config)), *dict(keys_of(Manifest))}
    for name in rows_of(CONFIG_README):
        if name.split(".")[0] in {*Config.model_fields, "parameters", "launch"}:
            assert name in known, name


def test_every_field_of_a_datasheet_is_explained() -> None:
    rows = rows_of(CONFIG_README)
    assert not [name for name in gpu_sheets.Datasheet.model_fields if name not in rows]


def test_every_status_is_explained_in_the_codes_own_words() -> None:
    rows = rows_of(CONFIG_README)
    assert {str(status): rows[str(status)][1] for status in EXPLANATIONS} == {
        str(status): words for status, words in EXPLANATIONS.items()
    }


def test_the_protocols_constants_are_those_of_the_code() -> None:
    text = " ".join(CONFIG_README.read_text().split())
    for stated in [
        f"## Protocol version {correctness.PROTOCOL_VERSION}",
        f"{correctness.GUARD_ELEMENTS:,} guard words",
        f"left out for K > {correctness.EXACT_LARGEST_K:,}",
        f"{len(correctness.STATISTICAL_SEEDS)} seeds",
        f"max eta <= {correctness.ETA_MAX['fp32']:g}",
        f"rms eta <= {correctness.ETA_RMS['fp32']:g}",
        f"{correctness.ETA_MAX['tf32']:,.0f} and {correctness.ETA_RMS['tf32']:,.0f}",
        f"{correctness.REPEATS} runs",
        f"2 to {timing.MAXIMUM_SETS} sets",
        f"at most {timing.MAXIMUM_LAUNCHES:,} launches",
        f"at the first visit at least {timing.WARMUP_LAUNCHES} launches",
        f"over {timing.SLOW_KERNEL_NS / 1e9:g} s needs {timing.SLOW_KERNEL_SAMPLES} samples",
        f"over {timing.WALL_CHECK_NS / 1e6:g} ms, host time",
        f"within {timing.WALL_TOLERANCE:.0%}".replace("%", " %"),
    ]:
        assert stated in text, stated


def test_environment_variables_are_explained() -> None:
    rows = rows_of(CONFIG_README)
    for name in [*measure.TF32_VARIABLES, measure.COMMIT_VARIABLE, "LADDER_LOCK_DIR",
                 "CUPY_CACHE_DIR"]:  # fmt: skip
        assert name in rows


# --- links, versions, and what must not be said ---------------------------------------------------

MADE_BY_A_RUN = re.compile(
    r"results/(?!published/$).*|\.venv.*|kernels/(50_mine|NAME)\..*|kernels/include/.*|my\.yaml"
)
"""Paths that a run or a user makes. `results/published/` appears with the first published set."""


def paths_in(document: Path) -> Iterator[tuple[str, Path]]:
    """What a document links to or names, as written and as a path."""
    text = _FENCE.sub("", document.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in link:
            yield link, document.parent / link.split("#")[0] if link[0] != "#" else document
    folders = "|".join(
        re.escape(path.name) for path in ROOT.iterdir() if path.is_dir() and path.name != ".git"
    )
    for name in re.findall(rf"`((?:{folders})/[^`\s]*)`", text):
        yield name, ROOT / name


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    for written, path in paths_in(document):
        if MADE_BY_A_RUN.fullmatch(written) or written.startswith("results/published/"):
            continue
        assert path.exists(), f"{document.name}: {written}"
        anchor = written.partition("#")[2]
        if anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{document.name}: {written}"


def test_citation_and_changelog_name_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["authors"] == [{"name": "The gemm-ladder authors"}]
    assert str(citation["version"]) == __version__
    assert citation["license"] == "MIT"
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ in versions
    assert "The gemm-ladder authors" in (ROOT / "LICENSE").read_text()


def test_the_catalog_entry_and_the_profiles_are_yaml_mappings() -> None:
    catalog = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    assert {"software-stack-deployment", "report"} <= set(catalog["usage"])
    for path in (ROOT / "profiles").glob("*/config.yaml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict), path
    slurm = yaml.safe_load((ROOT / "profiles" / "slurm" / "config.yaml").read_text())
    assert slurm["executor"] == "slurm"
    rules = "\n".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    for setting in slurm["set-resources"]:
        assert f"rule {setting.partition(':')[0]}:" in rules
    # The configuration it sets is valid, in the form in which Snakemake hands it over.
    (setting,) = slurm["config"]
    key, _, value = setting.partition("=")
    overlay = {key: yaml.load(value, Loader=yaml.BaseLoader)}
    config, _ = resolve(merge(BASE, overlay), ROOT, name="profile")
    assert config.gpu.use == "required"


# In pieces, so that this file is no offender itself.
_FORBIDDEN = re.compile(
    "|".join(
        [
            r"\bpypi" r"\.(?:org|nvidia)",
            r"python" r"hosted\.org",
            r"\bana" r"conda\.(?:org|com)",
            r"registry\.np" r"mjs",
            r"(?<![\w.])/(?:ho" r"me|Us" r"ers)/\w+/",
            r"(?<![\w.])/(?:ro" r"ot|wo" r"rk)/",
        ]
    )
)


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def test_no_tracked_text_names_a_package_host_or_a_private_path() -> None:
    found = []
    for path in tracked_files():
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            match = _FORBIDDEN.search(line)
            if match:
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert not found
