"""The configuration: what the shipped one plans, and what a user reads after a mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ladder import config as configuration
from ladder.__main__ import main
from ladder.config import Config, load, merge
from ladder.documents import UserError
from ladder.manifest import Manifest
from ladder.plan import plan_points
from project import ROOT

CONFIG = ROOT / "config"
GOOD = """\
sizes:
  square: [8, 16]
kernels:
  01_naive: {}
"""


@pytest.fixture
def message_for(tmp_path: Path) -> Callable[[str], str]:
    """The error that a configuration text gives, without the folder in front of the file."""

    def read(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            load([path], ROOT)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return read


def test_the_shipped_configuration_is_valid_and_plans_300_points_or_more() -> None:
    config, kernels = load([ROOT / "config/config.yaml"], ROOT)
    planned = plan_points(config, kernels)
    assert len(planned) >= 300
    runnable = [item for item in planned if item.fault is None]
    assert len(runnable) >= 300
    assert {item.point.kernel for item in runnable} == set(config.kernels)


OVERLAYS = sorted(set(CONFIG.glob("*.yaml")) - {CONFIG / "config.yaml", CONFIG / "gpus.yaml"})


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_every_other_shipped_configuration_is_valid_over_the_default(path: Path) -> None:
    config, kernels = load([ROOT / "config/config.yaml", path], ROOT)
    assert plan_points(config, kernels)


MISTAKES: dict[str, tuple[str, str, int | None, str]] = {
    # what is wrong: (configuration, where its key is, line, what the message must say)
    "unknown key below": (
        GOOD.replace("  square", "  squares: [9]\n  square"),
        "sizes.squares",
        2,
        r"unknown key; did you mean 'square'\? known: square, shapes",
    ),
    "unknown key on top": (
        GOOD + "protocl:\n  rounds: 1\n",
        "protocl",
        5,
        r"unknown key; did you mean 'protocol'\?",
    ),
    "unknown protocol key": (
        GOOD + "protocol:\n  rounds: 1\n  warmup: 3\n",
        "protocol.warmup",
        7,
        r"unknown key; did you mean 'warmup_ms'\?",
    ),
    "unknown key of a kernel": (
        GOOD.replace("{}", "{sweeps: default}"),
        "kernels.01_naive.sweeps",
        4,
        r"did you mean 'sweep'\?",
    ),
    "a word for a size": (
        GOOD.replace("16", "big"), "sizes.square[1]", 2, r"valid integer; found 'big'",
    ),
    "half a size": (GOOD.replace("16", "16.5"), "sizes.square[1]", 2, "integer; found 16.5"),
    "a truth value for a size": (GOOD.replace("16", "yes"), "sizes.square[1]", 2, "integer"),
    "a number for a list": (GOOD.replace("[8, 16]", "8"), "sizes.square", 2, "valid list; found 8"),
    "a list for kernels": (
        GOOD.replace("\n  01_naive: {}", " [01_naive]"), "kernels", 3, "dictionary",
    ),
    "nothing after a kernel": (
        GOOD.replace(" {}", ""), "kernels.01_naive", 4, r"write \{\} for its defaults",
    ),
    "unknown kernel": (
        GOOD + "  02_shared_til: {}\n",
        "kernels.02_shared_til",
        5,
        r"no kernels/02_shared_til.yaml; did you mean '03_shared_tile'\? known: 01_naive",
    ),
    "kernel without a configuration": (
        GOOD + "accuracy:\n  kernels: [cublas_fp32]\n",
        "accuracy.kernels[0]",
        6,
        "is not under `kernels` of this configuration",
    ),
    "a distribution that is none": (
        GOOD + "accuracy:\n  distributions: [normal]\n",
        "accuracy.distributions[0]",
        6,
        "'uniform', 'positive' or 'wide'",
    ),
    "a depth twice": (
        GOOD + "accuracy:\n  depths: [64, 64]\n",
        "accuracy.depths",
        6,
        "64 appears twice",
    ),
    "unknown kernel to profile": (
        GOOD + "profile:\n  every_set: [01_naiv]\n",
        "profile.every_set[0]",
        6,
        r"no kernels/01_naiv.yaml; did you mean '01_naive'",
    ),
    "size to profile with two sides": (
        GOOD + "profile:\n  sizes: [[8, 8]]\n", "profile.sizes[0]", 6, "at least 3 items",
    ),
    "parameter above its domain": (
        GOOD + "  03_shared_tile:\n    sweep: {TILE: [8, 64]}\n",
        "kernels.03_shared_tile.sweep",
        None,
        "TILE: must be at most 32; found 64",
    ),
    "parameter below its domain": (
        GOOD + "  03_shared_tile:\n    sweep: [{TILE: 2}]\n",
        "kernels.03_shared_tile.sweep",
        None,
        "TILE: must be at least 4; found 2",
    ),
    "missing parameter": (
        GOOD.replace("{}", "{sweep: {BLOCK_X: [16]}}"),
        "kernels.01_naive.sweep",
        4,
        "BLOCK_Y: no value given; every set needs BLOCK_X, BLOCK_Y",
    ),
    "unknown parameter": (
        GOOD.replace("{}", "{sweep: {BLOCK_X: [16], BLOK_Y: [4]}}"),
        "kernels.01_naive.sweep",
        4,
        r"BLOK_Y: unknown parameter; did you mean 'BLOCK_Y'\?",
    ),
    "a baseline's parameter": (
        GOOD + "  cublas_fp32:\n    sweep: [{TILE: 8}]\n",
        "kernels.cublas_fp32.sweep",
        None,
        "TILE: unknown parameter; this kernel has none",
    ),
    "a number for a sweep": (
        GOOD.replace("{}", "{sweep: 3}"),
        "kernels.01_naive.sweep",
        4,
        "must be 'default' or a valid dictionary or a valid list; found 3",
    ),
    "a number for a sweep's list": (
        GOOD.replace("{}", "{sweep: {BLOCK_X: 16, BLOCK_Y: [4]}}"),
        "kernels.01_naive.sweep.BLOCK_X",
        4,
        "valid list; found 16",
    ),
    "a word in a sweep's set": (
        GOOD.replace("{}", "{sweep: [{BLOCK_X: wide, BLOCK_Y: 4}]}"),
        "kernels.01_naive.sweep[0].BLOCK_X",
        4,
        "valid integer; found 'wide'",
    ),
    "a sweep of nothing": (
        GOOD.replace("{}", "{sweep: {BLOCK_X: [], BLOCK_Y: [4]}}"),
        "kernels.01_naive.sweep.BLOCK_X",
        4,
        "at least 1 item",
    ),
    "no set in a sweep": (
        GOOD.replace("{}", "{sweep: []}"), "kernels.01_naive.sweep", 4, "at least 1 item",
    ),
    "negative size": (GOOD.replace("16", "-16"), "sizes.square[1]", 2, "equal to 1; found -16"),
    "no size at all": (GOOD.replace("16", "0"), "sizes.square[1]", 2, "equal to 1; found 0"),
    "a size beyond int": (GOOD.replace("16", str(2**31)), "sizes.square[1]", 2, "2147483647"),
    "a shape of two": (
        GOOD.replace("kernels", "  shapes: [[8, 4]]\nkernels"), "sizes.shapes[0]", 3, "3 items",
    ),
    "a size twice": (GOOD.replace("16", "8"), "sizes", 1, r"the size \[8, 8, 8\] appears twice"),
    "a size twice in two ways": (
        GOOD.replace("kernels", "  shapes: [[16, 16, 16]]\nkernels"),
        "sizes",
        1,
        r"the size \[16, 16, 16\] appears twice",
    ),
    "no sizes": (GOOD.replace("[8, 16]", "[]"), "sizes", 1, "list at least one under `square`"),
    "no kernels": (GOOD.replace("\n  01_naive: {}", " {}"), "kernels", 3, "at least 1 item"),
    "sizes missing": (GOOD[GOOD.index("kernels") :], "sizes", 1, "this key is required"),
    "bad architecture": (
        GOOD + "architectures: [sm_90a, compute_80]\n",
        "architectures",
        5,
        "'compute_80' is not an architecture; write it as sm_90a or sm_120",
    ),
    "no architecture": (GOOD + "architectures: []\n", "architectures", 5, "at least 1 item"),
    "unknown choice": (
        GOOD + "gpu:\n  use: always\n", "gpu.use", 6, "'required' or 'none'; found 'always'",
    ),
    "constant out of range": (
        GOOD + "protocol:\n  rounds: 0\n", "protocol.rounds", 6, "greater than or equal to 1",
    ),
    "not a number": (GOOD + "protocol:\n  settle_s: .nan\n", "protocol.settle_s", 6, "found nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_one_line_that_names_file_line_key_and_remedy(
    name: str, message_for: Callable[[str], str]
) -> None:
    text, key, line, remedy = MISTAKES[name]
    message = message_for(text)
    assert "\n" not in message
    place = re.match(r"config\.yaml:(\d+): (\S+): ", message)
    assert place is not None, message
    assert place[2] == key
    if line is not None:
        assert int(place[1]) == line, message
    assert re.search(remedy, message), message


def test_several_mistakes_are_all_reported_each_on_its_line(
    message_for: Callable[[str], str],
) -> None:
    message = message_for("sizes: {square: [-1, x]}\nkernels: {01_naive: {large: 3}}\n")
    lines = message.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "sizes.square[0]",
        "sizes.square[1]",
        "kernels.01_naive.large",
    ]


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "a key twice": (GOOD.encode() + b"  01_naive: {}\n", r":5: .*'01_naive' appears twice"),
    "an open bracket": (b"sizes: [\n", r":2: not valid YAML: "),
    "a tab": (b"sizes:\n\tsquare: [8]\n", r":2: not valid YAML: .*tab|:2: not valid YAML: .*\\t"),
    "a control character": (GOOD.encode() + b"# \x01\n", r":5: not valid YAML: "),
    "a list for a key": (b"[1, 2]: 3\n", r":1: not valid YAML: a key must be"),
    "an alias of itself": (b"sizes: &a\n  square: *a\n", r": not valid YAML: "),
    "nothing": (b"", r": expected 'key: value' lines, found NoneType"),
    "only a comment": (b"# later\n", r": expected 'key: value' lines, found NoneType"),
    "a list": (b"- sizes\n", r": expected 'key: value' lines, found list"),
    "another encoding": (b"\xff\xfes\x00i\x00", r": not a text file in UTF-8"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_no_configuration_gives_one_line_that_names_it(
    name: str, tmp_path: Path
) -> None:
    content, words = UNREADABLE[name]
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load([path], ROOT)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert re.search(words, message), message


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(what: str, tmp_path: Path) -> None:
    path = tmp_path / "nowhere.yaml" if what == "missing" else tmp_path
    with pytest.raises(
        UserError, match=r"cannot be read \((No such file|Is a directory)"
    ) as caught:
        load([path], ROOT)
    assert str(path) in str(caught.value)


def test_the_command_line_ends_with_the_message_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD.replace("16", "-16"))
    code = main(["plan", "--config", str(path), "--out", str(tmp_path / "plan.parquet")])
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"error: {path}:2: sizes.square[1]: ")
    assert "Traceback" not in error
    assert not (tmp_path / "plan.parquet").exists()


# --- several files --------------------------------------------------------------------------------

nested = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


def leaves(data: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(data, dict):
        for name, value in data.items():
            yield from leaves(value, (*key, name))
    else:
        yield key, data


@given(mappings, mappings)
def test_merging_keeps_every_value_of_the_later_mapping(
    base: dict[str, Any], overlay: dict[str, Any]
) -> None:
    merged = dict(leaves(merge(base, overlay)))
    for key, value in leaves(overlay):
        assert merged[key] == value
    for key, value in merged.items():
        assert value == dict(leaves(overlay)).get(key, dict(leaves(base)).get(key))


@given(mappings)
def test_merging_with_nothing_changes_nothing(data: dict[str, Any]) -> None:
    assert merge(data, {}) == data
    assert merge({}, data) == data


def test_a_second_file_changes_only_what_it_names(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(GOOD + "protocol: {rounds: 3, seed: 7}\n")
    second.write_text("protocol: {rounds: 1}\nkernels: {cublas_fp32: {}}\n")
    config, kernels = load([first, second], ROOT)
    assert (config.protocol.rounds, config.protocol.seed) == (1, 7)
    assert config.sizes.square == [8, 16]
    assert list(kernels) == ["01_naive", "cublas_fp32"]


def test_a_mistake_in_merged_files_names_both_files_and_the_key(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(GOOD)
    second.write_text("protocol: {round: 1}\n")
    with pytest.raises(UserError) as caught:
        load([first, second], ROOT)
    message = str(caught.value)
    assert str(first) in message
    assert str(second) in message
    assert "protocol.round: unknown key; did you mean 'rounds'?" in message


# --- the resolved configuration -------------------------------------------------------------------


def test_the_dumped_configuration_reads_back_as_itself() -> None:
    config, _ = load([ROOT / "config/config.yaml"], ROOT)
    again = Config.model_validate(yaml.safe_load(configuration.dump(config)))
    assert again == config
    assert again.digest() == config.digest()


@given(st.sampled_from(["rounds", "seed", "sentinel_every"]), st.integers(1, 20))
def test_the_digest_differs_exactly_when_the_configuration_does(name: str, value: int) -> None:
    base = Config.model_validate(yaml.safe_load(GOOD))
    changed = Config.model_validate(yaml.safe_load(GOOD) | {"protocol": {name: value}})
    assert (changed.digest() == base.digest()) == (changed == base)


# --- what is written about it ---------------------------------------------------------------------


def test_the_schema_of_the_configuration_is_the_generated_one() -> None:
    stored = (ROOT / "workflow/schemas/config.schema.json").read_text()
    assert stored == configuration.json_schema(), "run `python -m ladder schema`"


def test_the_schema_of_a_manifest_is_the_generated_one() -> None:
    stored = (ROOT / "workflow/schemas/manifest.schema.json").read_text()
    generated = json.dumps(Manifest.model_json_schema(), indent=2) + "\n"
    assert stored == generated, "run `python -m ladder schema manifest`"


def models_in(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """The models in an annotation, with what stands between their key and the one above."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    is_union = type(None) in getattr(annotation, "__args__", ())
    for argument in getattr(annotation, "__args__", ()):
        for _, model in models_in(argument):
            yield "" if is_union else ".NAME", model


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{above}.{name}" if above else name
        yield key
        for between, nested_model in models_in(field.annotation):
            yield from keys_of(nested_model, key + between)


def test_the_readme_of_the_configuration_documents_every_key() -> None:
    text = (ROOT / "config/README.md").read_text()
    quoted = set(re.findall(r"`([^`\n]+)`", text))
    missing = [key for key in keys_of(Config) if key not in quoted]
    assert not missing, f"config/README.md does not name in backticks: {', '.join(missing)}"


def test_the_readme_of_the_configuration_documents_no_key_that_does_not_exist() -> None:
    text = (ROOT / "config/README.md").read_text()
    known = set(keys_of(Config))
    sections = {key.partition(".")[0] for key in known if "." in key}
    quoted = re.findall(r"`((?:" + "|".join(sorted(sections)) + r")\.[A-Za-z_.]+)`", text)
    unknown = sorted(set(quoted) - known - {"config.yaml"})
    assert not unknown, f"config/README.md explains keys that do not exist: {', '.join(unknown)}"
