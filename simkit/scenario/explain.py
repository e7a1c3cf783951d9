"""Pydantic's complaints as one line for people: where, which key, what was expected, the nearest valid name.

Works on any `Strict` model.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simkit.errors import InputError, nearest
from simkit.scenario.yaml import line_of, shown

Path = tuple[str | int, ...]
Model = type[BaseModel]

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_COMPARED = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


NO_FILE = "scenario"
"""The place of a value that neither a file nor a setting wrote."""


@dataclass(slots=True)
class Origin:
    """Where values came from: a file with its node tree, and the settings that replaced parts of it (path -> label)."""

    file: str | None = None
    root: yaml.Node | None = None
    labels: dict[tuple[str, ...], str] = field(default_factory=dict)

    def copy(self) -> Origin:
        """The same, with labels of its own."""
        return Origin(self.file, self.root, dict(self.labels))

    def error(self, text: str, path: Path, others: tuple[Path, ...] = ()) -> InputError:
        """An error about the value at `path`, which together with those at `others` is wrong."""
        where, key = self.place(path, others)
        return InputError(text, where=where, key=key)

    def place(self, path: Path, others: tuple[Path, ...] = ()) -> tuple[str, str]:
        """What wrote the value, and which key of it: a setting's label and what is below it, else file and line."""
        for candidate in (path, *others):
            for length in range(len(candidate), 0, -1):
                label = self.labels.get(cast("tuple[str, ...]", candidate[:length]))
                if label is not None:
                    rest = path[length:] if candidate == path else path
                    return label, dotted(rest) if rest else ""
        line = line_of(self.root, path)
        where = self.file or NO_FILE
        return f"{where}:{line}" if line is not None else where, dotted(path)


def explain(error: ValidationError, root: Model, data: Mapping[str, Any], origin: Origin) -> InputError:
    """The first problem as an InputError of one line, and how many more there are."""
    problems = [(details, _data_path(details, data)) for details in error.errors(include_url=False)]
    # An unknown key is usually the misspelt one that is then also missing, so it goes first.
    problems.sort(key=lambda p: (p[0]["type"] == "missing", line_of(origin.root, p[1]) or 0))
    details, path = problems[0]
    text, keys = _message(details, path, root, data)
    blamed, *others = [(*path, *_parts(key)) for key in keys] or [path]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return origin.error(f"{text}{more}", blamed, tuple(others))


def _parts(key: str) -> Path:
    """``a.0.b`` as a path; digits are a place in a list."""
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def key_error(root: Model, path: tuple[str, ...], data: Mapping[str, Any]) -> str | None:
    """What is wrong with a dotted key that is to be set, or None; `data` decides between alternatives in use."""
    here: Any = data
    models = [root]
    for depth, part in enumerate(path):
        models = _narrow(models, here)
        annotations = _annotations(models, part)
        if not annotations:
            if not models:  # below a field that is no model (variants, SLO values): validation decides
                return None if _open(root, path[:depth]) else f"unknown key; {dotted(path[:depth])} has no parts"
            chosen = [f"{tag[0]}: {tag[1]}" for model in models if len(models) == 1 and (tag := _tag_key(model))]
            with_tag = f" with {chosen[0]}" if chosen else ""
            return f"unknown key{with_tag}" + _suggest(root, path, depth, models)
        models = _below(annotations)
        here = here.get(part) if isinstance(here, Mapping) else None
    return None


def is_text(root: Model, path: tuple[str, ...]) -> bool:
    """Whether the key at `path` holds free text, so that ``--set engine.version=0.33`` needs no quotes."""
    models = [root]
    for part in path[:-1]:
        models = _below(_annotations(models, part))
    found = _annotations(models, path[-1])
    return bool(found) and all(annotation is str or str in get_args(annotation) for annotation in found)


def submodels(annotation: Any) -> Iterator[Model]:
    """The model classes inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from submodels(argument)


def _annotations(models: list[Model], key: str) -> list[Any]:
    """What those of the models that have the key say of it."""
    return [model.model_fields[key].annotation for model in models if key in model.model_fields]


def _below(annotations: list[Any]) -> list[Model]:
    return [model for annotation in annotations for model in submodels(annotation)]


def dotted(path: Path) -> str:
    """``("a", "b", 0)`` as ``a.b[0]``, on one line."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return " ".join(text.split())[:200] or "scenario"


def _open(root: Model, path: tuple[str, ...]) -> bool:
    """Whether the field at `path` is a free mapping."""
    models = [root]
    for part in path:
        annotations = _annotations(models, part)
        if any(map(_has_dict, annotations)):
            return True
        models = _below(annotations)
    return False


def _has_dict(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(_has_dict(argument) for argument in get_args(annotation))


def _tag_key(model: Model) -> tuple[str, str] | None:
    """(discriminator key, its value) of a member of a tagged union."""
    for key in ("process", "dist"):
        if key in model.model_fields:
            return key, get_args(model.model_fields[key].annotation)[0]
    return None


def _narrow(models: list[Model], data: Any) -> list[Model]:
    """Of several alternatives, the one that `data` chose; all of them when it chose none."""
    if len(models) > 1 and isinstance(data, Mapping):
        chosen = [m for m in models if (tag := _tag_key(m)) and data.get(tag[0]) == tag[1]]
        return chosen or models
    return models


def _suggest(root: Model, path: tuple[str, ...], depth: int, models: list[Model]) -> str:
    """The nearest full dotted key: first among the siblings, then anywhere."""
    siblings = sorted({key for model in models for key in model.model_fields})
    close = difflib.get_close_matches(path[depth], siblings, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {dotted((*path[:depth], close[0]))!r}?"
    if any(_tag_key(model) for model in models):
        return f"; valid here: {', '.join(siblings)}"
    everywhere = sorted(set(_all_keys(root)))
    leaf = path[-1]
    same = [key for key in everywhere if key.rpartition(".")[2] == leaf]
    by_leaf = difflib.get_close_matches(leaf, [key.rpartition(".")[2] for key in everywhere], n=1, cutoff=0.75)
    if not same and by_leaf:
        same = [key for key in everywhere if key.rpartition(".")[2] == by_leaf[0]]
    return f"; did you mean {same[0]!r}?" if same else nearest(".".join(path), everywhere)


def _all_keys(model: Model, prefix: str = "") -> Iterator[str]:
    for key, info in model.model_fields.items():
        yield prefix + key
        for sub in submodels(info.annotation):
            yield from _all_keys(sub, f"{prefix}{key}.")


def _data_path(details: ErrorDetails, data: Mapping[str, Any]) -> Path:
    """Pydantic's location without union tags and ``[key]`` markers: the path in the data."""
    path: list[str | int] = []
    here: Any = data
    loc = [part for part in details["loc"] if part != "[key]"]
    for index, part in enumerate(loc):
        inside = (isinstance(here, Mapping) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        if inside:
            path.append(part)
            here = here[part]
        elif index == len(loc) - 1 and details["type"] == "missing":
            path.append(part)
    return tuple(path)


def _message(details: ErrorDetails, path: Path, root: Model, data: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """(text, keys below `path` that are to blame)."""
    kind, context, got = details["type"], details.get("ctx", {}), shown(details["input"])
    if kind == "conflict":
        return f"expected {context['expected']}, got {context['got']}", context["keys"]
    if kind == "extra_forbidden":
        return "unknown key" + _nearest_sibling(str(path[-1]), _siblings(root, path[:-1], data)), ()
    if kind == "missing":
        return "missing; this key is required", ()
    if kind == "literal_error":
        return _choice(re.findall(r"'([^']*)'", context["expected"]), details["input"]), ()
    if kind == "union_tag_invalid":
        key = context["discriminator"].strip("'")
        chosen = details["input"].get(key) if isinstance(details["input"], Mapping) else details["input"]
        return _choice(re.findall(r"'([^']*)'", context["expected_tags"]), chosen), (key,)
    if kind == "union_tag_not_found":
        key = context["discriminator"].strip("'")
        return f"expected a mapping with the key {key!r}, got {got}", ()
    if kind == "expected":
        return f"expected {context['expected']}, got {got}", ()
    if kind in _COMPARED:
        key, sign = _COMPARED[kind]
        noun = "an integer" if isinstance(context[key], int) else "a number"
        return f"expected {noun} {sign} {context[key]}, got {got}", ()
    if kind in ("too_short", "too_long"):
        bound = context["min_length"] if kind == "too_short" else context["max_length"]
        return f"expected at {'least' if kind == 'too_short' else 'most'} {bound} item(s), got {got}", ()
    return f"expected {_EXPECTED.get(kind, details['msg'].lower())}, got {got}", ()


def _choice(valid: list[str], got: Any) -> str:
    hint = nearest(got, valid) if isinstance(got, str) else ""
    return f"expected one of {', '.join(valid)}, got {shown(got)}{hint}"


def _siblings(root: Model, path: Path, data: Mapping[str, Any]) -> list[str]:
    """Valid keys of the mapping at `path`."""
    models, here = _narrow([root], data), cast("Any", data)
    for part in path:
        here = here[part]
        if isinstance(part, str):
            models = _below(_annotations(models, part))
        models = _narrow(models, here)
    return sorted({key for model in models for key in model.model_fields})


def _nearest_sibling(name: str, valid: list[str]) -> str:
    hint = nearest(name, valid)
    return hint or (f"; valid here: {', '.join(valid)}" if 0 < len(valid) <= 8 else "")
