"""YAML text to plain data plus line numbers, and dotted keys. Knows nothing of the schema.

Stricter than PyYAML where it is careless (duplicate keys, keys that are not text, ``1:30`` read as 90, dates) and
kinder where it is pedantic (``1e3`` is a number). Every problem is an `InputError` that begins with ``FILE:LINE:``.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simkit.errors import InputError

MAX_FILE_BYTES = 4 << 20
MAX_DEPTH = 40
MAX_VALUES = 1_000_000  # with aliases written out, so that a few lines cannot stand for billions of values

_SCALARS: tuple[tuple[str, str, str], ...] = (
    (
        "tag:yaml.org,2002:bool",
        r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$",
        "yYnNtTfFoO",
    ),
    ("tag:yaml.org,2002:int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^[-+]?(?:(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("tag:yaml.org,2002:merge", r"^(?:<<)$", "<"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader that knows text, integers, floats, booleans and null."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's own class attribute)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(
        _tag, re.compile(_pattern), [*_first.replace("\0", ""), *([""] if "\0" in _first else [])]
    )


class _Broken(Exception):
    """A YAML text that cannot be read: in which of its lines, and why."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(line, text)
        self.line, self.text = line, text


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file: its data, and the node tree that knows the lines."""

    data: dict[str, Any]
    root: yaml.Node


def read(path: str | Path) -> str:
    """The text of a scenario file. Raises InputError when it is missing, unreadable, too large or not UTF-8."""
    file = one_line(path, 4096)
    try:
        raw = Path(path).read_bytes() if Path(path).stat().st_size <= MAX_FILE_BYTES else None
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{file}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{file}: expected a scenario file, got a directory") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if raw is None:
        raise InputError(f"{file}: expected a scenario file, got more than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}:{line}: expected UTF-8 text, got byte 0x{raw[error.start]:02x}") from None


def parse(text: str, file: str) -> Source:
    """Parse the text of a scenario file; `file` begins the error messages."""
    try:
        root, value = _parse_value(text)
    except _Broken as broken:
        raise InputError(broken.text, where=f"{file}:{broken.line}") from None
    if root is None:
        raise InputError(f"{file}:1: expected a scenario, got an empty file")
    if not isinstance(value, dict):
        raise InputError(f"{file}:{_line(root)}: expected a mapping of keys to values, got {shown(value)}")
    return Source(value, root)


def set_label(key: str) -> str:
    """The place that a ``--set`` of this key is in messages."""
    return f"--set {one_line(key)}"


def parse_set(text: str) -> tuple[str, Any]:
    """Split ``KEY=VALUE``; the value is YAML, an empty one null."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError("expected KEY=VALUE, e.g. --set engine.max_num_seqs=64", where=set_label(text))
    return key, parse_value(value, set_label(key))


def parse_value(text: str, label: str) -> Any:
    """One YAML value from the command line; `label` begins the error message."""
    try:
        return _parse_value(text)[1]
    except _Broken as broken:
        raise InputError(f"{broken.text}, got {text!r}", where=label) from None


def _parse_value(text: str) -> tuple[yaml.Node | None, Any]:
    """(node, value) of a YAML text. Raises _Broken."""
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return root, None if root is None else _Builder(loader).build(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Broken(mark.line + 1 if mark else 1, f"YAML syntax: {_problem(error)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Broken(line, f"YAML syntax: character #x{error.character:04x} is not allowed") from None
    except RecursionError:
        raise _Broken(1, "YAML syntax: nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()


def _problem(error: yaml.MarkedYAMLError) -> str:
    text = error.problem or error.context or "cannot be parsed"
    return one_line(f"{error.context}, {text}" if text.startswith("but ") and error.context else text)


class _Builder:
    """Nodes to plain data. A node that several aliases share is built once, but counted each time."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._built: dict[int, tuple[Any, int]] = {}  # id of a node -> its value, and how many values that is
        self._open: set[int] = set()

    def build(self, node: yaml.Node) -> Any:
        return self._sized(node)[0]

    def _sized(self, node: yaml.Node) -> tuple[Any, int]:
        known = self._built.get(id(node))
        if known is not None:
            return known
        if len(self._open) > MAX_DEPTH or id(node) in self._open:
            raise _Broken(_line(node), "YAML syntax: nested too deeply")
        self._open.add(id(node))
        built: tuple[Any, int]
        if isinstance(node, yaml.SequenceNode):
            built = self._list(node)
        elif isinstance(node, yaml.MappingNode):
            built = self._mapping(node)
        else:
            built = self._scalar(node), 1
        if built[1] > MAX_VALUES:
            raise _Broken(_line(node), f"YAML syntax: more than {MAX_VALUES:,} values")
        self._open.remove(id(node))
        self._built[id(node)] = built
        return built

    def _scalar(self, node: yaml.Node) -> Any:
        _refuse_tag(node, "tag:yaml.org,2002:str", *(tag for tag, _, _ in _SCALARS))
        if node.tag.endswith((":str", ":merge")):
            return str(node.value)
        try:
            return self._loader.construct_object(node)
        except (ValueError, KeyError, OverflowError):
            raise _Broken(_line(node), f"YAML syntax: {shown(node.value)} is not a value") from None

    def _list(self, node: yaml.SequenceNode) -> tuple[list[Any], int]:
        _refuse_tag(node, "tag:yaml.org,2002:seq")
        items = [self._sized(item) for item in node.value]
        return [value for value, _ in items], 1 + sum(size for _, size in items)

    def _mapping(self, node: yaml.MappingNode) -> tuple[dict[str, Any], int]:
        _refuse_tag(node, "tag:yaml.org,2002:map")
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        total = 1
        for key_node, value_node in node.value:
            value, size = self._sized(value_node)
            total += 1 + size
            if key_node.tag == "tag:yaml.org,2002:merge":
                for base in value if isinstance(value, list) else [value]:
                    if not isinstance(base, dict):
                        got = shown(base)
                        raise _Broken(_line(key_node), f"YAML syntax: expected a mapping after <<, got {got}")
                    merged = {**base, **merged}
                continue
            key = self.build(key_node)
            if not isinstance(key, str):
                raise _Broken(_line(key_node), f"expected a text as key, got {shown(key)}")
            if key in own:
                raise _Broken(_line(key_node), f"{one_line(key)}: duplicate key")
            own[key] = value
        return {**merged, **own}, total


def _refuse_tag(node: yaml.Node, *allowed: str) -> None:
    if node.tag not in allowed:
        raise _Broken(_line(node), f"YAML syntax: tag {one_line(node.tag)} is not supported")


def line_of(root: yaml.Node | None, path: tuple[str | int, ...]) -> int | None:
    """Line (from 1) of the key or list item at `path`, or of its nearest ancestor that the file holds."""
    if root is None:
        return None
    node, line = root, _line(root)
    for part in path:
        found = _child(node, part)
        if found is None:
            break
        line, node = found
    return line


def _child(node: yaml.Node, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return _line(node.value[part]), node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return _line(key), value
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    found = _child(base, part)
                    if found is not None:
                        return found
    return None


def split_key(key: str) -> tuple[str, ...]:
    """Dotted key to path; what follows ``variants.NAME`` is one dotted key of its own."""
    parts = tuple(key.split("."))
    if parts[0] == "variants" and len(parts) > 3:
        return (*parts[:2], ".".join(parts[2:]))
    return parts


def put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Write `value` at `path`, making mappings on the way; a scalar in the way is replaced, a list is not entered."""
    here = data
    for depth, part in enumerate(path[:-1]):
        inner = here.get(part)
        if isinstance(inner, list):
            raise InputError(f"expected a key outside the list {'.'.join(path[: depth + 1])}; set the list whole")
        # Copied, because YAML anchors make two keys share one mapping.
        here[part] = inner = dict(inner) if isinstance(inner, dict) else {}
        here = inner
    here[path[-1]] = value


def plain(value: Any) -> Any:
    """A deep copy with dicts and lists only, so that nobody shares mutable parts."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring, self.maxother, self.maxlong, self.maxlevel = 60, 60, 40, 2

    def repr1(self, x: Any, level: int) -> str:
        if x is None:
            return "null"
        if isinstance(x, bool):
            return "true" if x else "false"
        if isinstance(x, int) and x.bit_length() > 4096:
            return "a huge integer"
        return super().repr1(x, level)


_SHORT = _Short()


def shown(value: Any) -> str:
    """A value as an error message shows it: YAML's words for null and booleans, cut when long, always one line."""
    return one_line(_SHORT.repr(value))


def one_line(text: object, limit: int = 200) -> str:
    """Text on one line of at most `limit` characters."""
    return " ".join(str(text).split())[:limit]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
