"""Plain data of values, as JSON has it, and its canonical bytes: the same values give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """JSON-able data from dataclasses, mappings, sequences and numpy scalars. Raises TypeError for anything else."""
    if value is None or isinstance(value, str | bool):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
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
