"""Manifests: the shipped ones, users' mistakes, and the names and hashes made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ladder.config import Config
from ladder.documents import UserError
from ladder.manifest import (
    Kernel,
    canonical,
    compute_capability,
    expand,
    load,
    load_all,
    parse_slug,
    slug,
)
from ladder.plan import plan_points
from ladder.theory import theory
from project import GEMM, MANIFEST, NAIVE_BODY, ROOT

SHIPPED = load_all(ROOT / "kernels")
WITH_SOURCE = [name for name, kernel in SHIPPED.items() if kernel.source_path]
TILED: dict[str, Any] = MANIFEST | {
    "parameters": {"TILE": {"description": "side", "minimum": 4, "maximum": 32, "multiple_of": 4}},
    "sweep": {"TILE": [8, 16]},
    "launch": {
        "kind": "cuda",
        "block": ["TILE", "TILE"],
        "grid": ["cdiv(N, TILE)", "cdiv(M, TILE)"],
    },
}


@pytest.fixture
def add_kernel(tmp_path: Path) -> Callable[..., Path]:
    """Writes a kernel's two files and returns its manifest's path."""

    def add(manifest: dict[str, Any] | str, source: str | None = f"{GEMM} {NAIVE_BODY}") -> Path:
        path = tmp_path / "mine.yaml"
        text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest, sort_keys=False)
        path.write_text(text)
        if source is not None:
            path.with_suffix(".cu").write_text(source)
        return path

    return add


# --- what ships -----------------------------------------------------------------------------------


def test_every_shipped_manifest_loads_and_every_source_has_one() -> None:
    files = {path.stem for path in (ROOT / "kernels").glob("*.*")}
    assert set(SHIPPED) == files
    assert {"01_naive", "03_shared_tile", "cublas_fp32", "cublas_tf32"} <= files


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_every_shipped_source_opens_with_its_idea_and_its_parameters(name: str) -> None:
    kernel = SHIPPED[name]
    assert kernel.source_path is not None
    lines = kernel.source_path.read_text().splitlines()
    header = lines[: next(i for i, line in enumerate(lines) if not line.startswith("//"))]
    assert header[0].startswith(f"// {name[:2]} "), header[:1]
    for word in ("Idea", "Before", "Expectation", "Measured"):
        assert any(re.match(rf"// {word}\s+\S", line) for line in header), f"{name}.cu: no {word}"
    for parameter in kernel.manifest.parameters:
        assert any(re.match(rf"// {parameter}\s+\S", line) for line in header), parameter


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_the_theory_of_every_shipped_kernel_has_a_value_at_every_default_set(name: str) -> None:
    kernel = SHIPPED[name]
    for params in expand(kernel.manifest.sweep):
        for size in ((127, 129, 131), (2048, 2048, 2048)):
            stated = [item for item in theory(kernel, params, *size) if item.value is not None]
            assert all(item.value >= 0 for item in stated if item.value is not None), size
            assert len(stated) > 3, "more than what follows from the size alone"


# --- mistakes -------------------------------------------------------------------------------------


def changed(**changes: Any) -> dict[str, Any]:
    return TILED | changes


def launch(**changes: Any) -> dict[str, Any]:
    return changed(launch=TILED["launch"] | changes)


def where(**changes: Any) -> dict[str, Any]:
    group = {"require": "N % 8 == 0", "message": "rows start at sectors", "forms": {"fma": "M"}}
    return changed(theory_where=[group | changes])


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown name in the grid": (
        launch(grid=["cdiv(N, TIL)"]),
        "launch.grid[0]",
        "unknown name 'TIL'; did you mean 'TILE'? known: K, M, N, TILE",
    ),
    "a size in the block": (launch(block=["M"]), "launch.block[0]", "unknown name 'M'"),
    "a size in shared memory": (
        launch(dynamic_shared_memory_bytes="4 * K"),
        "launch.dynamic_shared_memory_bytes",
        "unknown name 'K'",
    ),
    "unknown name in a constraint": (
        changed(constraints=[{"require": "TILES > 1", "message": "-"}]),
        "constraints[0].require",
        "unknown name 'TILES'; did you mean 'TILE'?",
    ),
    "unknown name in a precondition": (
        changed(preconditions=[{"require": "KK % 4 == 0", "message": "-"}]),
        "preconditions[0].require",
        "unknown name 'KK'",
    ),
    "unknown name in the theory": (
        changed(theory={"requested_load_bytes": "8 * M * N * L"}),
        "theory.requested_load_bytes",
        "unknown name 'L'",
    ),
    "unknown closed form": (
        changed(theory={"requested_load_byte": "8"}),
        "theory.requested_load_byte",
        "unknown closed form; did you mean 'requested_load_bytes'?",
    ),
    "unknown name in a condition": (
        where(require="N % TIL == 0"), "theory_where[0].require", "unknown name 'TIL'",
    ),
    "a form of a later group": (
        where(forms={"global_load_requests": "async_copies"}),
        "theory_where[0].forms.global_load_requests",
        "unknown name 'async_copies'",
    ),
    "a form that is given twice": (
        changed(theory={"fma": "M"}) | where(forms={"fma": "M"}),
        "theory_where[0].forms.fma",
        "given twice",
    ),
    "a term with another meaning": (
        where(terms={"blocks": "M"}), "theory_where[0].terms.blocks", "another meaning already",
    ),
    "no form": (where(forms={}), "theory_where[0].forms", "at least 1"),
    "no expression": (launch(grid=["cdiv(N, "]), "launch.grid[0]", "is not an expression"),
    "sweep above the domain": (changed(sweep={"TILE": [8, 64]}), "sweep", "must be at most 32"),
    "sweep below the domain": (changed(sweep=[{"TILE": 2}]), "sweep", "at least 4; found 2"),
    "sweep between the steps": (changed(sweep={"TILE": [9]}), "sweep", "must be a multiple of 4"),
    "sweep of another parameter": (
        changed(sweep={"TILES": [8]}), "sweep", "TILES: unknown parameter; did you mean 'TILE'?",
    ),
    "sweep that forgets one": (changed(sweep=[{}]), "sweep", "TILE: no value given"),
    "unknown key": (changed(tittle="x"), "tittle", "unknown key; did you mean 'title'?"),
    "unknown key of the launch": (
        launch(blok=[1]), "launch.blok", "unknown key; did you mean 'block'?",
    ),
    "unknown kind of launch": (
        launch(kind="opencl"), "launch", "'cuda', 'cluster', 'tensor_maps', 'cublas'",
    ),
    "four dimensions": (launch(block=[1, 1, 1, 1]), "launch.block", "at most 3 items"),
    "a fraction as a dimension": (launch(block=[1.5]), "launch.block[0]", "found 1.5"),
    "lower-case parameter": (
        changed(parameters={"tile": {"description": "side"}}), "parameters.tile", "pattern",
    ),
    "no idea": ({k: v for k, v in TILED.items() if k != "idea"}, "idea", "this key is required"),
    "a family without what it asks of the tensor cores": (
        changed(family="tensor"), "family", "{inputs: tf32, products: 3}",
    ),
    "tensor cores of another family": (
        changed(tensor_cores={"inputs": "tf32", "products": 3}), "tensor_cores", "family: tensor",
    ),
    "products that depend on a size": (
        changed(family="tensor", tensor_cores={"inputs": "tf32", "products": "K"}),
        "tensor_cores.products", "unknown name 'K'",
    ),
    "an unknown family": (changed(family="int8"), "family", "'fp32' or 'tensor'; found 'int8'"),
    "no target": (changed(only_architecture="hopper"), "only_architecture", "sm_"),
    "index width": (changed(index_bits=16), "index_bits", "32 or 64; found 16"),
    "parameters of a baseline": (
        changed(launch={"kind": "cublas", "compute": "tf32"}, sweep={}),
        "parameters",
        "a launch of the kind `cublas` has none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_one_line_that_names_file_line_key_and_remedy(
    name: str, add_kernel: Callable[..., Path]
) -> None:
    manifest, key, remedy = MISTAKES[name]
    path = add_kernel(manifest)
    with pytest.raises(UserError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    place = re.fullmatch(rf"{re.escape(str(path))}:(\d+): (\S+): .*", message)
    assert place is not None, message
    assert place[2] == key
    assert remedy in message
    # the line holds the last word of the key, unless the key is missing or stands in a list
    word = re.sub(r"\[\d+\]", "", key.rpartition(".")[2])
    if remedy != "this key is required" and "[" not in key:
        assert word in path.read_text().splitlines()[int(place[1]) - 1]


def test_a_manifest_without_a_source_is_refused_with_the_missing_path(
    add_kernel: Callable[..., Path],
) -> None:
    path = add_kernel(TILED, source=None)
    with pytest.raises(UserError, match=r"mine\.cu does not exist"):
        load(path)


def test_a_source_without_a_manifest_is_refused_with_the_missing_path(
    add_kernel: Callable[..., Path], tmp_path: Path
) -> None:
    add_kernel(TILED)
    (tmp_path / "other.cu").write_text(GEMM)
    with pytest.raises(UserError, match=r"other\.yaml does not exist"):
        load_all(tmp_path)


def test_a_folder_without_kernels_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no kernel manifests"):
        load_all(tmp_path)


@pytest.mark.parametrize("grid", ["N / TILE", "N / 4", "N > 1", "N * 0.5"])
def test_a_grid_that_is_no_whole_number_names_manifest_expression_and_remedy(
    grid: str, add_kernel: Callable[..., Path]
) -> None:
    path = add_kernel(launch(grid=[grid]))
    config = Config.model_validate({"sizes": {"square": [8]}, "kernels": {"mine": {}}})
    with pytest.raises(UserError) as caught:
        plan_points(config, {"mine": load(path)})
    message = str(caught.value)
    assert message.startswith(str(path))
    assert f"{grid!r} gives" in message
    assert "use // or cdiv" in message
    assert '{"TILE":8}' in message


def test_a_division_by_zero_in_a_manifest_names_manifest_and_expression(
    add_kernel: Callable[..., Path],
) -> None:
    path = add_kernel(launch(grid=["N // (TILE - 8)"]))
    config = Config.model_validate({"sizes": {"square": [8]}, "kernels": {"mine": {}}})
    with pytest.raises(UserError, match=r"mine\.yaml: .*'N // \(TILE - 8\)': .*zero"):
        plan_points(config, {"mine": load(path)})


def test_a_violated_rule_is_told_with_the_values_and_the_condition(
    add_kernel: Callable[..., Path],
) -> None:
    kernel = load(
        add_kernel(
            changed(
                constraints=[{"require": "TILE <= 8", "message": "{TILE} is wide, {not a name}"}],
                preconditions=[{"require": "K % TILE == 0", "message": "{K} is no multiple"}],
            )
        )
    )
    assert kernel.violated_constraint({"TILE": 8}) is None
    assert (
        kernel.violated_constraint({"TILE": 16}) == "16 is wide, {not a name} (requires TILE <= 8)"
    )
    assert kernel.violated_precondition({"TILE": 8}, 1, 1, 16) is None
    found = kernel.violated_precondition({"TILE": 8}, 1, 1, 17)
    assert found == "17 is no multiple (requires K % TILE == 0)"


def test_a_parameter_set_may_be_meant_for_some_sizes(add_kernel: Callable[..., Path]) -> None:
    suited = [{"require": "TILE == 16 or M * N >= 4096", "message": "TILE {TILE} is for large C"}]
    kernel = load(add_kernel(changed(suited=suited)))
    assert kernel.unsuited({"TILE": 8}, 64, 64, 1) is None
    assert kernel.unsuited({"TILE": 16}, 1, 1, 1) is None
    found = kernel.unsuited({"TILE": 8}, 64, 63, 1)
    assert found == "TILE 8 is for large C (requires TILE == 16 or M * N >= 4096)"
    with pytest.raises(UserError, match=r"suited\[0\]\.require.*unknown name 'TILES'"):
        load(add_kernel(changed(suited=[{"require": "TILES > M", "message": "no"}])))


# --- parameter sets and their names ---------------------------------------------------------------

names = st.builds(str.__add__, st.sampled_from("ABM"), st.text("AZ09_", max_size=4))
parameter_sets = st.dictionaries(names, st.integers(-(2**31), 2**31), max_size=5)


@given(parameter_sets)
def test_a_parameter_set_survives_its_file_name_and_its_canonical_form(
    params: dict[str, int],
) -> None:
    assert parse_slug(slug(params)) == params
    assert json.loads(canonical(params)) == params


@given(parameter_sets, st.randoms(use_true_random=False))
def test_the_order_in_which_parameters_are_written_does_not_matter(
    params: dict[str, int], random: Any
) -> None:
    items = list(params.items())
    random.shuffle(items)
    assert slug(dict(items)) == slug(params)
    assert canonical(dict(items)) == canonical(params)


@given(parameter_sets, parameter_sets)
def test_different_parameter_sets_have_different_names(
    first: dict[str, int], second: dict[str, int]
) -> None:
    assert (slug(first) == slug(second)) == (first == second)
    assert (canonical(first) == canonical(second)) == (first == second)


@given(parameter_sets)
def test_the_file_name_of_a_parameter_set_is_one_path_component(params: dict[str, int]) -> None:
    assert Path(slug(params)).name == slug(params)
    assert not set(slug(params)) & set(" /\\'\"{}$*?")


@pytest.mark.parametrize("text", ["BLOCK_X", "BLOCK_X=", "BLOCK_X=wide", "A=1,,B=2", "A=1=2", ""])
def test_a_malformed_parameter_set_on_the_command_line_is_a_user_error(text: str) -> None:
    with pytest.raises(UserError, match="BLOCK_X=16,BLOCK_Y=16"):
        parse_slug(text)


@given(st.dictionaries(names, st.lists(st.integers(), min_size=1, max_size=3), max_size=3))
def test_lists_expand_to_every_combination_in_the_order_written(sweep: dict[str, Any]) -> None:
    sets = list(expand(sweep))
    count = 1
    for values in sweep.values():
        count *= len(values)
    assert len(sets) == count
    assert sets[0] == {name: values[0] for name, values in sweep.items()}
    assert sets[-1] == {name: values[-1] for name, values in sweep.items()}


@pytest.mark.parametrize(
    ("architecture", "capability"),
    [("sm_90a", (9, 0)), ("sm_90", (9, 0)), ("sm_120", (12, 0)), ("sm_121f", (12, 1)),
     ("sm_75", (7, 5))],
)  # fmt: skip
def test_an_architecture_has_its_compute_capability(
    architecture: str, capability: tuple[int, int]
) -> None:
    assert compute_capability(architecture) == capability


@pytest.mark.parametrize(
    "text", ["", "sm_", "sm_9", "90a", "compute_90", "sm_90b", "SM_90", "sm_90 "]
)
def test_what_is_no_architecture_is_refused_with_two_that_are(text: str) -> None:
    with pytest.raises(UserError, match="write it as sm_90a or sm_120"):
        compute_capability(text)


# --- the hash of the code -------------------------------------------------------------------------

CODE = """\
#include "tile.cuh"
#define WIDTH 4
extern "C" __global__ void gemm(const float* A, float* C) {
    const char* text = "a // b /* c */";
    const char quote = '"';
    int big = 1'000'000;
    C[0] = A[0] * WIDTH + 8 / 2;
}
"""


def hash_of(folder: Path, source: str, header: str = "inline int f() { return 1; }\n") -> str:
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include" / "tile.cuh").write_text(header)
    (folder / "mine.yaml").write_text(yaml.safe_dump(TILED))
    (folder / "mine.cu").write_text(source)
    digest = load(folder / "mine.yaml").source_sha256()
    assert digest is not None
    return digest


SAME = {
    "a comment line": CODE.replace("#define", "// a \"comment\" with 'quotes'\n#define"),
    "a comment at an end": CODE.replace("1'000'000;", "1'000'000;  // it's a lot"),
    "a comment between": CODE.replace("A[0] * WIDTH", 'A[0] /* " */ * WIDTH'),
    "a comment over lines": CODE.replace("    C[0]", "    /* one\n     * two\n     */\n    C[0]"),
    "a comment that goes on": CODE.replace("    C[0]", "    // one \\\n two\n    C[0]"),
    "a comment after a quote": CODE.replace("'\"';", "'\"';  // \" /* no comment"),
    "a comment in a directive": CODE.replace("WIDTH 4", "WIDTH /* of\n a tile */ 4  // floats"),
    "indentation": CODE.replace("    ", "\t"),
    "blank lines": CODE.replace(";\n", ";\n\n\n"),
    "a broken line": CODE.replace(" + 8", "\n        + 8"),
    "line ends of Windows": CODE.replace("\n", "\r\n"),
    "nothing at the end": CODE.rstrip(),
}
DIFFERENT = {
    "a number": CODE.replace("8 / 2", "8 / 4"),
    "a name": CODE.replace("quote", "mark"),
    "an operator": CODE.replace("* WIDTH", "+ WIDTH"),
    "text after slashes in a string": CODE.replace("// b", "// c"),
    "text in comment marks in a string": CODE.replace("/* c */", "/* d */"),
    "white space in a string": CODE.replace("a // b", "a  // b"),
    "a statement that becomes a comment": CODE.replace("    C[0]", "    // C[0]"),
    "a division that becomes a comment": CODE.replace("8 / 2", "8 // 2"),
    "a word split in two": CODE.replace("quote", "quo te"),
    "a directive's value": CODE.replace("WIDTH 4", "WIDTH 8"),
    "a directive that swallows the next line": CODE.replace("WIDTH 4\n", "WIDTH 4 \\\n"),
    "a directive in the middle of a line": CODE.replace("\n#define", " #define"),
    "code behind a quote": CODE.replace("'\"';", "'\"'; int more = 1;"),
    "nothing": "",
}


@pytest.mark.parametrize("name", SAME)
def test_the_hash_of_the_code_ignores_comments_and_white_space(name: str, tmp_path: Path) -> None:
    assert SAME[name] != CODE
    assert hash_of(tmp_path, SAME[name]) == hash_of(tmp_path, CODE)


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_hash_of_the_code_ignores_nothing_else(name: str, tmp_path: Path) -> None:
    assert DIFFERENT[name] != CODE
    assert hash_of(tmp_path, DIFFERENT[name]) != hash_of(tmp_path, CODE)


def test_the_hash_of_the_code_includes_the_shared_headers_without_their_comments(
    tmp_path: Path,
) -> None:
    plain = hash_of(tmp_path, CODE, "inline int f() { return 1; }\n")
    assert hash_of(tmp_path, CODE, "// one\ninline int f() { return 1; }\n") == plain
    assert hash_of(tmp_path, CODE, "inline int f() { return 2; }\n") != plain


def test_only_headers_that_a_source_includes_belong_to_its_code(tmp_path: Path) -> None:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "other.cuh").write_text("inline int g() { return 1; }\n")
    nested = '#  include "other.cuh"\ninline int f() { return 1; }\n'
    alone, both = hash_of(tmp_path, CODE), hash_of(tmp_path, CODE, nested)
    (folder / "other.cuh").write_text("inline int g() { return 2; }\n")
    assert hash_of(tmp_path, CODE) == alone
    assert hash_of(tmp_path, CODE, nested) != both


def test_headers_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "other.cuh").write_text('#include "tile.cuh"\n')
    assert hash_of(tmp_path, CODE, '#include "other.cuh"\n')


def test_a_baseline_has_no_hash_and_no_geometry() -> None:
    baseline: Kernel = SHIPPED["cublas_fp32"]
    assert baseline.source_sha256() is None
    assert baseline.launch({}, 8, 8, 8) is None
    assert not baseline.needs_build
