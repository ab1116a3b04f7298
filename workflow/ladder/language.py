"""The language of the report: English in the source, other languages in `workflow/locale/*.po`.

Sentences are marked where they are written: `_("...")` translates now, `plural(...)` picks the form
for a number, `N_("...")` only marks a constant, which is translated where it is shown. Names in
braces are filled in after translation, so a translation may order them as it likes.
"""

from __future__ import annotations

import functools
import gettext
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
LOCALE = Path(__file__).resolve().parents[1] / "locale"

_spoken: ContextVar[Language] = ContextVar("language", default="en")


@contextmanager
def speaking(language: Language) -> Iterator[None]:
    """Every `_` and `plural` within speaks this language."""
    token = _spoken.set(language)
    try:
        yield
    finally:
        _spoken.reset(token)


def spoken() -> Language:
    """The language of `_` and `plural` here."""
    return _spoken.get()


@functools.cache
def _catalogue(language: Language) -> gettext.NullTranslations:
    if language == "en":
        return gettext.NullTranslations()
    import polib  # only for another language than the source's

    compiled = polib.pofile(str(LOCALE / f"{language}.po")).to_binary()
    return gettext.GNUTranslations(io.BytesIO(compiled))


def _messages() -> gettext.NullTranslations:
    return _catalogue(spoken())


def _(message: str) -> str:
    """The message in the language spoken; itself where there is no translation."""
    return _messages().gettext(message) if message else ""


def N_(message: str) -> str:
    """The message itself, marked to be translated where it is shown."""
    return message


def plural(one: str, many: str, count: int) -> str:
    """The form for `count`, with `{count}` filled in."""
    return _messages().ngettext(one, many, count).format(count=f"{count:,}")


def listed(items: Iterable[str]) -> str:
    """Words as a list: `A, B and C`."""
    parts = list(items)
    if len(parts) < 2:
        return "".join(parts)
    return _("{items} and {last}").format(items=_(", ").join(parts[:-1]), last=parts[-1])


def sentence(text: str) -> str:
    """Words with the full stop of the language."""
    return _("{text}.").format(text=text)


def paragraph(*sentences: str) -> str:
    """Sentences one after the other, with what the language puts between them."""
    return functools.reduce(
        lambda before, after: _("{before} {after}").format(before=before, after=after), sentences
    )


def each(text: str) -> str:
    """Translate a message, or a list of messages with semicolons between them."""
    whole = _(text)
    return whole if whole != text else _("; ").join(_(part) for part in text.split("; "))
