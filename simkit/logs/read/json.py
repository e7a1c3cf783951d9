"""Objects of a JSON file with their line numbers: one a line, an array, or documents over many lines.

A file is never held whole: a line, an element of an array or a document at a time. Knows no format.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from simkit.errors import InputError
from simkit.logs.read.log import RowLog, shown

MAX_LINE_CHARACTERS = 64 * 2**20
"""Of a line, and of an element of an array."""
MAX_DOCUMENT_CHARACTERS = 256 * 2**20
CHARACTERS_PER_PART = 16
"""As many on average, of these limits, that there is no list or object more: an empty one takes 64 bytes and more."""
NUM_HEAD_OBJECTS = 50
HEAD_CHARACTERS = 4 * 2**20
"""The beginning of a file is at most so many objects, and ends with the one that passes so many characters."""

PAGING = ("meta", "object", "has_more", "first_id", "last_id", "total", "page", "limit", "next_cursor", "pagination")

_CHUNK = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_WORD = 16  # an escape or -Infinity: where text ends inside one, the error lies this close to the end

_BEGINNING = re.compile(r"\s*(?:\{|\[\s*(?:[\[{\]]|$))")

JsonRow = Mapping[str, object]
"""An object of a file, as it stands there."""

Found = tuple[int, JsonRow]


def begins_json(text: str) -> bool:
    """Whether the beginning of a file is an object or an array of them: [ alone also begins the lines of some logs."""
    return _BEGINNING.match(text) is not None


def head_and_objects(text: IO[str], log: RowLog) -> tuple[tuple[JsonRow, ...], Iterator[Found]]:
    """(first objects, all objects with their lines) of a file that begins with { or [, `log.line` following.

    Some of the rows are read ahead, by number and by size. Rows that are no object, or no proper JSON (a name twice,
    NaN, an integer beyond 4,300 digits, nesting too deep) are logged as bad, a last one that is cut short as cut.
    InputError for what is too long (`MAX_LINE_CHARACTERS`, `MAX_DOCUMENT_CHARACTERS`) and where an array or a document
    cannot be followed any further.
    """
    rows = _sized_objects(text, log)
    peeked: list[Found] = []
    num_characters = 0
    for line, found, size in rows:
        peeked.append((line, found))
        num_characters += size
        if len(peeked) >= NUM_HEAD_OBJECTS or num_characters >= HEAD_CHARACTERS:
            break
    rest = ((line, found) for line, found, _ in rows)
    return tuple(found for _, found in peeked), itertools.chain(peeked, rest)


def _sized_objects(text: IO[str], log: RowLog) -> Iterator[tuple[int, JsonRow, int]]:
    """(line, object, characters it takes)."""
    for line, value, problem, size, is_cut in _values(text, log):
        log.line = line
        if problem is None and not isinstance(value, dict):
            problem = f"{shown(value)}, expected an object"
        if problem is None:
            rows = _wrapped(value)
            if rows is None:
                yield line, value, size
                continue
            log.remark("the rows are those of data, as an API wraps them")
            yield from ((line, row, size) for row in rows)
        else:
            log.num_rows += 1
            log.add_bad(line, problem, cut=is_cut)


def _wrapped(value: JsonRow) -> list[JsonRow] | None:
    """The rows of an API's answer, which is no row itself: objects under `data`, and nothing but paging beside them."""
    rows = value.get("data")
    if not isinstance(rows, list) or not value.keys() <= {"data", *PAGING}:
        return None
    return rows if all(isinstance(row, dict) for row in rows) else None


class _Value(NamedTuple):
    """A value, or the `problem` with it, and on how many characters from which line; `is_cut`: the file ends inside."""

    line: int
    value: Any
    problem: str | None
    size: int
    is_cut: bool = False


def _cut(line: int, size: int) -> _Value:
    return _Value(line, None, "cut short", size, is_cut=True)


def _values(text: IO[str], log: RowLog) -> Iterator[_Value]:
    number, first = 0, ""
    while not first.strip():
        first = text.readline(MAX_LINE_CHARACTERS + 1)
        number += 1
        if not first:
            return iter(())
    if first.lstrip().startswith("[") or _goes_on(first):
        return _streamed(_Stream(text, first, number, log.where))
    return _lines(text, first, number, log.where)


def _goes_on(line: str) -> bool:
    """Whether a document begins here that the next lines go on with: printed so, lines end behind { [ , or :"""
    end = line.rstrip()
    if end[-1] not in "{[,:" or len(line) > MAX_LINE_CHARACTERS:
        return False
    try:
        json.loads(end)
    except json.JSONDecodeError as error:
        return error.pos >= len(end) - 1
    except (ValueError, RecursionError):
        return False
    return False


class _Decoder:
    """JSON as its standard has it: `problem` says what of the last value the standard does not allow."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._json = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)

    def line(self, text: str) -> Any:
        """The one value of a text. ValueError, RecursionError."""
        self.problem = None
        return self._json.decode(text)

    def beginning(self, text: str, at: int) -> tuple[Any, int]:
        """(value, end) of the value that begins at `at`. ValueError, RecursionError."""
        self.problem = None
        return self._json.raw_decode(text, at)

    def _object(self, pairs: list[tuple[str, object]]) -> JsonRow:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            self.problem = f"no JSON: the name {shown(twice)} twice in one object"
        return found

    def _constant(self, word: str) -> None:
        self.problem = f"no JSON: {word} is no number"


def _why(error: ValueError | RecursionError) -> str:
    """What is wrong, in words that name no line: the caller knows it."""
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg.rstrip(': ')} (character {error.colno})"
    if isinstance(error, RecursionError):
        return "no JSON that can be read: nested too deeply"
    return "no JSON that can be read: an integer of more than 4,300 digits"


def _lines(text: IO[str], first: str, number: int, where: str) -> Iterator[_Value]:
    """The values of a file that has one a line."""
    decoder = _Decoder()
    line = first
    while line:
        if len(line) > MAX_LINE_CHARACTERS:
            raise InputError(f"{where}: line {number} is longer than {MAX_LINE_CHARACTERS // 2**20} MiB")
        if not line.isspace():
            _check_parts(line, 0, MAX_LINE_CHARACTERS, where, number)
            try:
                found = _Value(number, decoder.line(line), decoder.problem, len(line))
            except (ValueError, RecursionError) as error:
                is_cut = isinstance(error, json.JSONDecodeError) and not line.endswith(("\n", "\r"))
                found = _cut(number, len(line)) if is_cut else _Value(number, None, _why(error), len(line))
            yield found
        line = text.readline(MAX_LINE_CHARACTERS + 1)
        number += 1


def _check_parts(text: str, at: int, limit: int, where: str, line: int) -> None:
    """InputError for more lists and objects than fit in memory, before they are made."""
    most = limit // CHARACTERS_PER_PART
    if len(text) - at > most and text.count("[", at) + text.count("{", at) > most:
        raise InputError(f"{where}: line {line}: more than {most:,} lists and objects in one piece")


def _streamed(stream: _Stream) -> Iterator[_Value]:
    """The elements of arrays and the documents of a file, in their order."""
    depth = num_values = 0
    while first := stream.peek():
        if depth and first == "]":
            depth = 0
            stream.skip()
            continue
        if not depth and first == "[":
            depth = 1
            stream.skip()
            continue
        found = stream.value(MAX_LINE_CHARACTERS if depth else MAX_DOCUMENT_CHARACTERS)
        if found.is_cut and not num_values:
            raise InputError(f"{stream.where}: line {found.line}: the JSON that begins here is cut short")
        num_values += 1
        yield found
        if found.is_cut:
            return
        if depth and (then := stream.peek()) != "]":
            if then not in ("", ","):
                raise InputError(f"{stream.where}: line {stream.line}: no JSON: expected , or ] behind an element")
            stream.skip()
    if depth:
        yield _cut(stream.line, 0)


class _Stream:
    """Values one after the other, from a buffer that grows to the longest of them."""

    def __init__(self, text: IO[str], start: str, line: int, where: str) -> None:
        self.line = line
        self.where = where
        self._text = text
        self._buffer = start
        self._at = 0
        self._is_new = True
        self._ended = False
        self._decoder = _Decoder()

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            self._pass(_SPACE.match(self._buffer, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if self._ended:
                return ""
            self._grow()

    def skip(self) -> None:
        """Pass the character that `peek` gave."""
        self._at += 1

    def value(self, limit: int) -> _Value:
        """The value that begins here, of at most `limit` characters."""
        line = self.line
        while True:
            if self._is_new:  # once a buffer: counting for every value in it would take too long
                _check_parts(self._buffer, self._at, limit, self.where, line)
                self._is_new = False
            try:
                found, end = self._decoder.beginning(self._buffer, self._at)
                problem = self._decoder.problem
                # A number that ends with the buffer may go on behind it.
                if end < len(self._buffer) or self._ended:
                    break
            except json.JSONDecodeError as error:
                near_end = error.pos >= len(self._buffer) - _LONGEST_WORD
                if not near_end and not error.msg.startswith("Unterminated string"):
                    raise InputError(f"{self.where}: line {self._line_of(error.pos)}: {_why(error)}") from error
                if self._ended:
                    return self._passed(_cut(line, len(self._buffer) - self._at))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{self.where}: line {line}: {_why(error)}") from error
            if len(self._buffer) - self._at > limit:
                raise InputError(
                    f"{self.where}: line {line}: more than {limit // 2**20} MiB in one piece; write one object, or one "
                    "export, a line"
                )
            self._grow()
        return self._passed(_Value(line, found, problem, end - self._at))

    def _passed(self, found: _Value) -> _Value:
        self._pass(self._at + found.size)
        return found

    def _line_of(self, at: int) -> int:
        return self.line + self._buffer.count("\n", self._at, at)

    def _pass(self, end: int) -> None:
        self.line = self._line_of(end)
        self._at = end

    def _grow(self) -> None:
        """Drop what is passed and double what is left, so that reading a long value again costs no more than itself."""
        rest = self._buffer[self._at :]
        more = self._text.read(max(_CHUNK, len(rest)))
        self._ended = not more
        self._buffer, self._at, self._is_new = rest + more, 0, True
