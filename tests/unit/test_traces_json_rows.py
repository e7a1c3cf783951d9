"""Objects of a JSON file of any layout: their lines, what is bad about them, and what ends reading."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from json_logs import written

from simkit.errors import InputError
from simkit.logs.read import json as json_rows
from simkit.logs.read.json import head_and_objects
from simkit.logs.read.log import RowLog


def rows_of(tmp_path: Path, text: str) -> tuple[list[tuple[int, Any]], list[str]]:
    """((line, object) of a text, notes), with too many bad rows allowed."""
    path = tmp_path / "t.json"
    path.write_bytes(text.encode())
    log = RowLog("t", allow_bad=True)
    with path.open(encoding="utf-8", newline="") as file:
        found = list(head_and_objects(file, log)[1])
    log.num_rows += len(found)
    return found, log.finish()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": 0}\n{"a": 1}\n', [1, 2]),
        ('\n\n{"a": 0}\r\n\r\n{"a": 1}', [3, 5]),
        ('[{"a": 0}, {"a": 1}]', [1, 1]),
        ('[\n{"a": 0},\n\n{"a": 1}\n]\n', [2, 4]),
        ('[{"a": 0}]\n[{"a": 1}]', [1, 2]),
        ('[\n {\n  "a": 0\n },\n {\n  "a": 1\n }\n]', [2, 5]),
        ('{\n "a": 0\n}\n{\n "a": 1\n}\n', [1, 4]),
        ("[]", []),
    ],
)
def test_objects_come_with_their_lines_from_any_layout(tmp_path: Path, text: str, lines: list[int]) -> None:
    found, notes = rows_of(tmp_path, text)
    assert found == [(line, {"a": number}) for number, line in enumerate(lines)]
    assert notes == []


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"a": NaN}', "no JSON: NaN is no number"),
        ('{"a": 1, "b": -Infinity}', "no JSON: -Infinity is no number"),
        ('{"a": 1, "a": 2}', "no JSON: the name 'a' twice in one object"),
        ('{"b": {"a": 1, "a": 2}}', "no JSON: the name 'a' twice in one object"),
        ("7", "7, expected an object"),
        ('["x"]', "['x'], expected an object"),
    ],
)
@pytest.mark.parametrize("layout", ["{}\n{}\n{}\n", "[{},\n{},\n{}]"])
def test_a_row_that_is_no_proper_object_is_bad_and_the_next_is_read(
    tmp_path: Path, row: str, problem: str, layout: str
) -> None:
    found, notes = rows_of(tmp_path, layout.format('{"a": 0}', row, '{"a": 1}'))
    assert found == [(1, {"a": 0}), (3, {"a": 1})]
    assert notes == [f"left out 1 of 3 rows (33.3 %) that cannot be read: line 2: {problem}"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"a": ' + "9" * 5000 + "}", "an integer of more than 4,300 digits"),
        ('{"a": ' + "[" * 100_000 + "}", "nested too deeply"),
        ('{"a": 1} {"a": 2}', "no JSON: Extra data (character 10)"),
        ('{"a": tru}', "no JSON: Expecting value (character 7)"),
    ],
)
def test_a_line_that_is_no_json_is_bad_and_the_next_is_read(tmp_path: Path, row: str, problem: str) -> None:
    found, notes = rows_of(tmp_path, f'{{"a": 0}}\n{row}\n{{"a": 1}}\n')
    assert found == [(1, {"a": 0}), (3, {"a": 1})]
    assert len(notes) == 1
    assert f"line 2: {problem}" in notes[0] or f"line 2: no JSON that can be read: {problem}" in notes[0]


@pytest.mark.parametrize("text", ['{"a": 0}\n{"a": 1', '[{"a": 0},\n{"a": 1', '[{"a": 0},\n', '[{"a": 0},\n{"a": "x\\'])
def test_a_cut_end_is_a_note(tmp_path: Path, text: str) -> None:
    found, notes = rows_of(tmp_path, text)
    assert found == [(1, {"a": 0})]
    assert notes == ["the last line (2) is cut short and was left out"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n "a": 1,\n "b": [\n', "line 1: the JSON that begins here is cut short"),
        ('{\n "a": 1\n "b": 2,\n "c": 1234567890123456\n}', "line 3: no JSON: Expecting ',' delimiter"),
        ('[{"a": 0}\n {"a": 1}, {"a": 2}]', "line 2: no JSON: expected , or ] behind an element"),
        ('[{"a": 0},\n' + "[" * 100_000, "line 2: no JSON that can be read: nested too deeply"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^t: ") as caught:
        rows_of(tmp_path, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "' + "x" * 3_000 + '"}\n', "line 1 is longer than"),
        ('[{"a": "' + "x" * 3_000_000 + '"}]', "line 1: more than"),
        ('{\n "a": "' + "x" * 3_000_000 + '"}', "line 1: more than"),
        ('[{"a": 0},\n"' + "x" * 3_000_000, "line 2: more than"),
    ],
)
def test_pieces_that_are_too_long_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setattr(json_rows, "MAX_LINE_CHARACTERS", 2_000)
    monkeypatch.setattr(json_rows, "MAX_DOCUMENT_CHARACTERS", 2_000)
    with pytest.raises(InputError) as caught:
        rows_of(tmp_path, text)
    assert message in str(caught.value)


def test_an_element_longer_than_the_buffer_is_read_whole(tmp_path: Path) -> None:
    long = "x" * (3 * 2**20)
    found, notes = rows_of(tmp_path, f'[{{"a": "{long}"}},\n{{"a": 1}}, 12345]')
    assert found == [(1, {"a": long}), (2, {"a": 1})]
    assert notes == ["left out 1 of 3 rows (33.3 %) that cannot be read: line 2: 12345, expected an object"]


def test_the_rows_of_an_answer_of_an_api_are_unwrapped(tmp_path: Path) -> None:
    page = json.dumps({"data": [{"a": 0}, {"a": 1}], "meta": {"page": 1}}, indent=1)
    found, notes = rows_of(tmp_path, page + "\n" + page)
    assert [row["a"] for _, row in found] == [0, 1, 0, 1]
    assert {line for line, _ in found} == {1, 1 + len(page.splitlines())}
    assert notes == ["the rows are those of data, as an API wraps them"]
    for row in ({"data": [{"a": 0}], "prompt": 1}, {"data": [7]}, {"data": {"a": 0}}):
        assert rows_of(tmp_path, json.dumps(row))[0] == [(1, row)]


def test_few_objects_are_read_ahead_when_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "HEAD_CHARACTERS", 100)
    path = written(tmp_path, *({"a": "x" * 40, "b": number} for number in range(9)))
    with path.open(newline="") as file:
        head, rows = json_rows.head_and_objects(file, RowLog("t"))
        assert len(head) == 2
        assert [row["b"] for _, row in rows] == list(range(9))


@pytest.mark.parametrize("begin", ['{"a": [', '[{"a": ['])
def test_a_piece_of_too_many_lists_is_refused_before_it_is_made(begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "MAX_LINE_CHARACTERS", 2**16)
    monkeypatch.setattr(json_rows, "MAX_DOCUMENT_CHARACTERS", 2**16)
    with pytest.raises(InputError, match="line 1: more than 4,096 lists and objects in one piece"):
        list(head_and_objects(io.StringIO(begin + "[]," * 2**13), RowLog("trace t"))[1])
