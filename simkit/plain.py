"""Plain data of values, as JSON has it, and the values again; canonical bytes: the same values give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Json = Mapping[str, Any]
"""Plain data of an object, as it stands in a JSON file."""

Value = TypeVar("Value")


def optional() -> Any:
    """A field of a dataclass that is None by default, and has no key in the plain data then."""
    return field(default=None, metadata={"optional": True})


def plain(value: Any) -> Any:
    """JSON-able data from dataclasses, mappings, sequences and numpy scalars. Raises TypeError for anything else."""
    if value is None or isinstance(value, str | bool):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        items = {part: getattr(value, part.name) for part in fields(value)}
        return {part.name: plain(item) for part, item in items.items() if item is not None or not part.metadata}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # numpy scalars, without importing numpy
        return plain(value.item())
    if isinstance(value, int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in a JSON file")


def canonical_json(obj: Any) -> bytes:
    """UTF-8 JSON with two-space indent, insertion order, shortest exact floats and a final newline.

    Raises ValueError for NaN and infinity: a value that does not exist is None, and who computes it says so.
    """
    text = json.dumps(plain(obj), indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", errors="surrogatepass")


def typed(kind: type[Value], data: object) -> Value:
    """The dataclass, by the type hints of its fields, of which `plain` made `data`.

    Raises TypeError, KeyError, ValueError or AttributeError for data that were made of something else.
    """
    found: Value = _typed(kind, data)
    return found


def _typed(hint: Any, data: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return hint(**{name: _typed(hints[name], item) for name, item in data.items()})
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        known = [each for each in inner if each is not NoneType]
        return _typed(known[0], data) if len(known) == 1 and data is not None else data
    if origin is tuple:
        each = inner[:1] * len(data) if inner[-1] is ... else inner
        return tuple(map(_typed, each, data))
    if origin in (list, Sequence):
        return [_typed(inner[0], item) for item in data]
    if origin in (dict, Mapping):
        return {key: _typed(inner[1], item) for key, item in data.items()}
    return data
