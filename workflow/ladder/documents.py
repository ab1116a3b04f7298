"""Reading what a user wrote: YAML, checked by pydantic; errors name file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

Key = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound="Document")


class UserError(Exception):
    """Something the user wrote or asked for cannot work; the message is all they need to read."""


class Document(BaseModel):
    """Base of every user-written structure: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class _UniqueKeyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in which a repeated key is an error instead of a silent overwrite.

    The parser in C takes a fifteenth of the time; PyYAML has it wherever it is not built by hand.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a word or a number", key_node.start_mark
                )
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    """The mapping in a YAML file and the line (from 1) of each of its keys.

    Raises:
        UserError: if the file is missing, is not YAML, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file in UTF-8 ({error.reason})") from None
    try:
        loader = _UniqueKeyLoader(text)
        root = loader.get_single_node()
        data = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        tab = ", a tab: indent by spaces" if mark and text[mark.index :][:1] == "\t" else ""
        raise UserError(f"{path}:{line}: not valid YAML: {error.problem}{tab}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}:{line}: not valid YAML: {error.reason}") from None
    except RecursionError:
        raise UserError(f"{path}: not valid YAML: nested too deeply") from None
    if not isinstance(data, dict) or root is None:
        raise UserError(f"{path}: expected 'key: value' lines, found {type(data).__name__}")
    lines: dict[Key, int] = {}
    try:
        _collect_lines(root, (), lines)
    except RecursionError:
        raise UserError(f"{path}: not valid YAML: an alias refers to itself") from None
    return data, lines


def _collect_lines(node: yaml.Node, key: Key, lines: dict[Key, int]) -> None:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            child = (*key, key_node.value)
            lines[child] = key_node.start_mark.line + 1
            _collect_lines(value_node, child, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines(item, (*key, index), lines)


def parse(
    model: type[ModelT],
    data: Mapping[str, Any],
    *,
    name: str,
    lines: Mapping[Key, int] | None = None,
    context: Any = None,
) -> ModelT:
    """Validate `data` as `model`; `name` is what errors call the file.

    Raises:
        UserError: one line per fault: file, line, key, what was found and what would be right.
    """
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        faults = [
            _describe(model, fault, name, lines or {}) for fault in _one_per_union(error.errors())
        ]
        raise UserError("\n".join(dict.fromkeys(faults))) from None


def read(model: type[ModelT], path: Path, *, context: Any = None) -> ModelT:
    """Read and validate one YAML file. Raises `UserError` as `read_yaml` and `parse` do."""
    data, lines = read_yaml(path)
    return parse(model, data, name=str(path), lines=lines, context=context)


def dotted(key: Sequence[str | int]) -> str:
    """``("sizes", "square", 2)`` as ``sizes.square[2]``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(top level)"


def suggestion(wrong: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the closest known one, and all of them."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(known)}"


def _one_per_union(faults: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Of the faults that the branches of a union report, those of the branch that fits best.

    Where no branch fits better than another, one fault that says what each would accept.
    """
    groups: dict[Key, list[ErrorDetails]] = {}
    for number, fault in enumerate(faults):
        location = fault["loc"]
        branch = next((i for i, part in enumerate(location) if _is_union_branch(part)), None)
        group = (*location[:branch], "|") if branch is not None else (*location, number)
        groups.setdefault(group, []).append(fault)
    kept: list[ErrorDetails] = []
    for group, members in groups.items():
        depths = [sum(not _is_union_branch(part) for part in fault["loc"]) for fault in members]
        if group[-1] != "|" or max(depths) >= len(group):
            kept += [f for f, depth in zip(members, depths, strict=True) if depth == max(depths)]
            continue
        # Right type, wrong value: the branch that was meant.
        meant = [f for f in members if not f["type"].endswith(("_type", "literal_error"))]
        if meant:
            kept += meant
            continue
        words = [fault["msg"].removeprefix("Input should be ") for fault in members]
        kept.append({**members[0], "type": "union", "msg": f"must be {' or '.join(words)}"})
    return kept


def _describe(
    model: type[BaseModel], fault: ErrorDetails, name: str, lines: Mapping[Key, int]
) -> str:
    # Union branches and validators add parts to the location that the file does not have.
    key: Key = ()
    _, kind_places = _follow(model, fault["loc"])
    for index, part in enumerate(fault["loc"]):
        last = index == len(fault["loc"]) - 1
        if index in kind_places:
            continue
        if not _is_union_branch(part) and (last or not lines or (*key, part) in lines):
            key = (*key, part)
    match fault["type"]:
        case "extra_forbidden":
            fields = _fields_at(model, fault["loc"][:-1])
            message = (
                f"unknown key; {suggestion(str(key[-1]), fields)}" if fields else "unknown key"
            )
        case "missing":
            message = "this key is required"
        case "value_error" | "assertion_error":
            message = str(fault.get("ctx", {}).get("error", fault["msg"]))
            # A validator of a whole structure names the key below it that it complains about.
            inner, _, rest = message.partition(": ")
            depth = len(key)
            for longer in lines:
                if longer[:depth] == key and rest and dotted(longer[depth:]) == inner:
                    key, message = longer, rest
                    break
        case "model_type":
            message = f"must hold keys (write {{}} for its defaults); found {fault['input']!r}"
        case _:
            shown = repr(fault["input"])
            found = shown if len(shown) <= 60 else shown[:57] + "..."
            message = f"{fault['msg'][0].lower()}{fault['msg'][1:]}; found {found}"
    position = next((lines[key[:n]] for n in range(len(key), -1, -1) if key[:n] in lines), None)
    where = f"{name}:{position}" if position else name
    return f"{where}: {dotted(key)}: {message}"


def _is_union_branch(part: str | int) -> bool:
    return isinstance(part, str) and (
        "[" in part or part in {"int", "str", "bool", "float", "constrained-int", "constrained-str"}
    )


def _follow(model: type[BaseModel], location: Key) -> tuple[Any, set[int]]:
    """What a fault's location leads to: an annotation, None where the user chooses the names.

    Also the places at which the location names a kind, as in ``launch.cuda.block``: no key of the
    file, though one may have the same name.
    """
    current: Any = model
    kind_places: set[int] = set()
    for place, part in enumerate(location):
        fields = getattr(current, "model_fields", None)
        if fields is not None and part in fields:
            current = fields[part].annotation
            continue
        nested = _models_in(current)
        if not nested:
            return None, kind_places
        meant = [candidate for candidate in nested if part in _kinds_of(candidate)]
        if meant:
            kind_places.add(place)
        current = (meant or nested)[0]
    return current, kind_places


def _fields_at(model: type[BaseModel], location: Key) -> list[str]:
    """The field names that are valid below a location, or [] where the model holds free names."""
    nested = _models_in(_follow(model, location)[0])
    return list(nested[0].model_fields) if nested else []


def _kinds_of(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [
        model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)
    ]
