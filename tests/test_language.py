"""The report in another language: every message is translated, with the same names to fill in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest
from babel.messages.extract import extract_from_dir

import tables_fixture as tf
from ladder import (
    ceilings,
    compare_counters,
    figures,
    report,
    special_values,
    stats,
    status,
    traffic,
)
from ladder.language import LANGUAGES, LOCALE, _, listed, plural, speaking
from ladder.manifest import load_all
from test_report import Page

PACKAGE = tf.ROOT / "workflow"
KEYWORDS: dict[str, tuple[int, ...] | None] = {"_": None, "N_": None, "plural": (1, 2)}
METHODS = [
    ("ladder/**.py", "python"),
    ("report/**.j2", "jinja2.ext.babel_extract"),
]
TRANSLATIONS = [name for name in LANGUAGES if name != "en"]
Message = str | tuple[str, str]


def marked() -> Iterator[Message]:
    """The messages that the source and the templates mark."""
    for _file, _line, message, _comments, _context in extract_from_dir(
        str(PACKAGE), METHODS, keywords=KEYWORDS
    ):
        yield message


def stated() -> Iterator[str]:
    """Constants of other modules that the report shows."""
    yield from status.EXPLANATIONS.values()
    yield from compare_counters.VERDICTS
    yield from compare_counters.VERDICTS.values()
    yield from (quantity.name for quantity in compare_counters.QUANTITIES)
    for quantity in (*traffic.GLOBAL_MEMORY, *traffic.SHARED_MEMORY):
        yield from (quantity.name, quantity.heading)
    yield from figures.COUNTED_BY.values()
    yield from figures.RESOURCE_NAMES.values()
    yield from figures.LIMIT_NAMES.values()
    yield from (ceiling.title for ceiling in ceilings.CEILINGS)
    yield from (case.title for case in special_values.CASES.values())
    yield from special_values.OUTCOMES.values()
    yield from stats.Verdict.__args__
    yield from ("threads", "blocks", "registers", "shared memory")
    yield from (kernel.manifest.idea for kernel in load_all(tf.ROOT / "kernels").values())
    yield from _sentences(compare_counters.__file__, until="_IDLE_LOADS")
    yield from _appended(tf.ROOT / "workflow/ladder/model.py", "notes")


def _sentences(module: str | None, until: str) -> Iterator[str]:
    """Module-level constants in capitals that hold a sentence."""
    tree = ast.parse(Path(str(module)).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            if name == until:
                return
            if name.isupper() and isinstance(value, ast.Constant) and " " in str(value.value):
                yield str(value.value)


def _appended(path: Path, name: str) -> Iterator[str]:
    """Constants that a module appends to a list."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == f"{name}.append"
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


@pytest.fixture(scope="module")
def messages() -> set[Message]:
    return {*marked(), *stated()}


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_every_message_is_translated_and_no_translation_is_left_over(
    name: str, messages: set[Message]
) -> None:
    entries = polib.pofile(str(LOCALE / f"{name}.po"))
    known: dict[Message, bool] = {
        (entry.msgid, entry.msgid_plural) if entry.msgid_plural else entry.msgid: entry.translated()
        for entry in entries
    }
    missing = sorted(map(str, (message for message in messages if not known.get(message))))
    assert not missing, f"workflow/locale/{name}.po lacks:\n" + "\n".join(missing)
    assert not sorted(map(str, set(known) - messages)), "no longer in use"


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_a_translation_fills_in_the_same_names_and_keeps_the_same_signs(name: str) -> None:
    for entry in polib.pofile(str(LOCALE / f"{name}.po")):
        for text in [entry.msgstr, *entry.msgstr_plural.values()]:
            if text:
                assert _names(text) == _names(entry.msgid), entry.msgid
                assert ("<" in text) == ("<" in entry.msgid), "text is escaped, not markup"


def _names(text: str) -> set[str]:
    return set(re.findall(r"\{(\w*)\}", text))


def test_words_follow_the_language_and_return_to_english() -> None:
    with speaking("zh"):
        assert _("Sector") == "扇区"
        assert listed(["A", "B", "C"]) == "A、B和C"
        assert plural("{count} rung", "{count} rungs", 1) == "1 级"
    assert _("Sector") == "Sector"
    assert listed(["A", "B", "C"]) == "A, B and C"
    assert plural("{count} rung", "{count} rungs", 1) == "1 rung"
    assert plural("{count} rung", "{count} rungs", 1500) == "1,500 rungs"


@pytest.fixture(scope="module")
def pages(typical_results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The report with its figures, which were drawn once."""
    folder, made = tmp_path_factory.mktemp("languages"), {}
    for name in LANGUAGES:
        out = folder / name / "report.html"
        report.render(
            typical_results / "tables", typical_results / "figures", tf.repository_kernels(),
            tf.gpus_yaml(folder), out, language=name, formats=("html", "md"),
        )  # fmt: skip
        made[name] = Page(out.read_text(encoding="utf-8"))
    return made


def test_the_chinese_report_has_the_same_tables_and_figures(pages: dict[str, Page]) -> None:
    english, chinese = pages["en"], pages["zh"]
    assert chinese.named("html")[0]["lang"] == "zh-Hans"
    numbers = [
        [attributes.get("data-v") for attributes in page.named("td")] for page in pages.values()
    ]
    assert numbers[0] == numbers[1]
    for element in ("section", "figure"):
        ids = [[attributes.get("id") for attributes in page.named(element)]
               for page in pages.values()]  # fmt: skip
        assert ids[0] == ids[1]
        assert len(ids[0]) > 5
    assert len(english.named("svg")) == len(chinese.named("svg"))
    for word in ("扇区", "存储体冲突", "占用率", "算术强度", "测量环境", "阶梯"):
        assert word in chinese.text
    for word in ("Measured on", "The ladder", "faster", "Glossary", "From the table", "Throughput"):
        assert word not in chinese.text, word
    assert not re.search(r"\{\w+\}", chinese.text.replace("{&", ""))


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_figures_speak_another_language_with_the_same_numbers_without_being_drawn_again(
    name: str, pages: dict[str, Page], typical_results: Path
) -> None:
    kernels = tf.repository_kernels()
    results = figures.load_results(
        typical_results / "tables", kernels, typical_results / "gpus.yaml"
    )
    with speaking(name):  # type: ignore[arg-type]
        spoken = figures.words(results)
    records = figures.read_index(typical_results / "figures")
    assert set(spoken) == {record.name for record in records}
    labels = {attributes.get("aria-label") for attributes in pages[name].named("svg")}
    for record in records:
        words = spoken[record.name]
        if not record.empty:
            assert " ".join(words.caption.split()) in pages[name].text, record.name
            assert f"{words.title}. {words.alt}" in labels
        for kind, said in vars(words).items():
            english = getattr(record, kind)
            assert _ideographs(said), (record.name, kind)
            assert _numbers(said) == _numbers(english), (record.name, kind)
            assert not ENGLISH.search(said), (record.name, kind, said)


ENGLISH = re.compile(r"(?:\b[a-z]{2,}\b[ ,;]+){3}")
"""Several words in a row, which names of kernels and of parameters are not."""


def _ideographs(text: str) -> list[str]:
    return re.findall(r"[\u4e00-\u9fff]", text)


def _numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d+(?:[.,]\d+)*", text))


def test_every_sentence_of_a_figure_is_marked_to_be_translated() -> None:
    tree = ast.parse((tf.ROOT / "workflow/ladder/figures/plans.py").read_text(encoding="utf-8"))
    fit = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in KEYWORDS:
            fit |= {id(argument) for argument in call.args}
    bare = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in fit
        if " " in node.value.strip()
    ]
    assert not bare
