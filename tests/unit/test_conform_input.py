"""`simkit conform` and files that are not traces: exit code 2 and one line with file and line, never a traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from simkit.cli import app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SYNC = (GOLDEN / "dev_02_tiny_preempt.jsonl.gz").read_bytes()
SMALL = (GOLDEN / "dev_38_tiny_priority_uncomputed_hit.jsonl.gz").read_bytes()
ASYNC = (GOLDEN / "dev_33_async_tiny.jsonl.gz").read_bytes()

Lines = list[Any]


def lines_of(packed: bytes) -> Lines:
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def dump(lines: Lines) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def conform(*args: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. Anything that is not an exit code fails the test as the traceback it would be."""
    result = CliRunner().invoke(app.app, ["conform", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"a traceback instead of an exit code: {result.exception!r}")
    return result.exit_code, result.stdout, result.stderr


def refused(path: Path, *args: object) -> str:
    """The one line on stderr with which `path` is turned down, the same with --json."""
    code, out, err = conform(path, *args)
    assert (code, out) == (2, ""), (code, out[:200], err[:200])
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1
    assert conform(path, "--json", *args) == (2, "", err)
    return err.removesuffix("\n")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_missing_file(trace: Path) -> None:
    assert refused(trace) == f"{trace}: no such file or directory"


def test_a_name_that_is_too_long() -> None:
    assert "a" * 300 in refused(Path("a" * 300))


def test_an_empty_file(trace: Path) -> None:
    trace.write_bytes(b"")
    assert refused(trace).startswith(f"{trace}:1: the file is empty")


def test_an_empty_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b""))
    assert refused(path).startswith(f"{path}:1: the file is empty")


def test_a_directory_without_traces(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert refused(tmp_path).startswith(f"{tmp_path}: no *.jsonl")


def test_a_directory_called_like_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").mkdir()
    assert refused(tmp_path).startswith(f"{tmp_path / 't.jsonl'}: cannot be read")


@pytest.mark.parametrize("kept", [1, 2, 5, 9, 10, 11, 100, len(SYNC) // 2, len(SYNC) - 9, len(SYNC) - 1])
def test_a_truncated_gzip_file(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(SYNC[:kept])
    assert refused(path).startswith(f"{path}:")


@pytest.mark.parametrize("place", [3, 30, len(SYNC) // 2, len(SYNC) - 6, len(SYNC) - 2])
def test_a_damaged_gzip_file(tmp_path: Path, place: int) -> None:
    damaged = bytearray(SYNC)
    damaged[place] ^= 0xFF
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(bytes(damaged))
    assert refused(path).startswith(f"{path}:")


def test_gzip_followed_by_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(SYNC + b"rubbish")
    assert refused(path).startswith(f"{path}:")


def test_a_plain_file_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "anything"
    path.write_bytes(gzip.decompress(SYNC))
    assert conform(path)[0] == 0


def test_text_that_is_not_utf8(trace: Path) -> None:
    content = gzip.decompress(SYNC).splitlines(keepends=True)
    content[3] = content[3].replace(b'"i"', b'"\xff"')
    trace.write_bytes(b"".join(content))
    assert refused(trace) == f"{trace}:4: expected UTF-8 text"


@pytest.mark.parametrize("line", ["what is this", "{'i': 0}", '{"i":0', "", "[1,2", "nul", '{"i":01}'])
def test_a_line_that_is_not_json(trace: Path, line: str) -> None:
    content = gzip.decompress(SYNC).decode().splitlines()
    content[6] = line
    trace.write_text("\n".join(content) + "\n")
    assert refused(trace).startswith(f"{trace}:7: ")


def test_the_last_line_is_cut(trace: Path) -> None:
    content = gzip.decompress(SYNC)
    number = content.count(b"\n")
    trace.write_bytes(content[:-20])
    assert refused(trace).startswith(f"{trace}:{number}: ")
    trace.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    assert refused(trace).startswith(f"{trace}:{number - 1}: expected a summary line")
    trace.write_bytes(content.splitlines(keepends=True)[0])
    assert refused(trace).startswith(f"{trace}:1: expected a summary line")


def test_the_summary_stands_in_the_middle(trace: Path) -> None:
    lines = lines_of(SYNC)
    trace.write_bytes(dump([*lines[:5], lines[-1], *lines[5:]]))
    assert refused(trace).startswith(f"{trace}:6: the summary line must be the last")


@pytest.mark.parametrize("depth", [10, 300, 700, 950, 100_000])
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_nesting_is_a_mismatch_or_refused_but_no_crash(trace: Path, depth: int, flags: tuple[str, ...]) -> None:
    content = gzip.decompress(SYNC).splitlines()
    record = json.loads(content[1])
    del record["s"]
    content[1] = (json.dumps(record)[:-1] + ',"s":' + "[" * depth + "]" * depth + "}").encode()
    trace.write_bytes(b"\n".join(content) + b"\n")
    code, _, err = conform(trace, *flags)
    assert code in (1, 2)
    assert len(err.splitlines()) == 1


def test_a_bad_file_stops_after_the_good_ones(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(SYNC)
    (tmp_path / "b.jsonl").write_text("{}\n")
    code, out, err = conform(tmp_path)
    assert code == 2
    assert out.startswith("exact     dev_02")
    assert err.startswith(f"{tmp_path / 'b.jsonl'}:1: ")


def test_one_of_several_paths_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(SYNC)
    code, _, err = conform(tmp_path / "a.jsonl.gz", tmp_path / "none.jsonl")
    assert (code, err) == (2, f"{tmp_path / 'none.jsonl'}: no such file or directory\n")


def test_no_path_at_all() -> None:
    code, out, err = conform()
    assert (code, out, len(err.splitlines())) == (2, "", 1)


# --- the header -------------------------------------------------------------------------------------------------------


def header(**changed: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0].update(changed)


def config(**changed: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0]["config"].update(changed)


def first(**changed: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0]["requests"][0].update(changed)


def without(*keys: str) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        holder = lines[0]
        for key in keys[:-1]:
            holder = holder[key]
        del holder[keys[-1]]

    return change


def unsorted(lines: Lines) -> None:
    lines[0]["requests"].reverse()


def twice(lines: Lines) -> None:
    lines[0]["requests"][-1]["id"] = lines[0]["requests"][-2]["id"]
    lines[0]["requests"][-1]["at"] = lines[0]["requests"][-2]["at"] + 1


HEADERS: dict[str, tuple[Callable[[Lines], None], str]] = {
    "a list": (lambda lines: lines.__setitem__(0, [1]), "expected a header"),
    "a number": (lambda lines: lines.__setitem__(0, 5), "expected a header"),
    "a record": (lambda lines: lines.pop(0), "expected a header"),
    "no config": (without("config"), "expected a header"),
    "another format": (header(format=2), "format: expected 1, got 2"),
    "format as text": (header(format="1"), "format: expected 1, got '1'"),
    "no format": (without("format"), "format: expected 1"),
    "config is a list": (header(config=[]), "config"),
    "feature not modelled": (config(num_speculative_tokens=3), "config.num_speculative_tokens"),
    "misspelt setting": (config(max_num_seq=3), "did you mean 'max_num_seqs'"),
    "setting missing": (without("config", "block_size"), "config.block_size: missing"),
    "unknown policy": (config(policy="sjf"), "config.policy"),
    "policy is a number": (config(policy=1), "config.policy"),
    "bool as a number": (config(max_num_seqs=True), "config.max_num_seqs"),
    "number as a bool": (config(enable_prefix_caching=1), "config.enable_prefix_caching"),
    "number as text": (config(num_gpu_blocks="20"), "config.num_gpu_blocks"),
    "float as integer": (config(block_size=16.0), "config.block_size"),
    "setting is null": (config(max_model_len=None), "config.max_model_len"),
    "negative budget": (config(max_num_batched_tokens=-1), "config.max_num_batched_tokens"),
    "no slot": (config(max_num_seqs=0), "config.max_num_seqs"),
    "no block": (config(num_gpu_blocks=1), "config.num_gpu_blocks"),
    "blocks of nothing": (config(block_size=0), "config.block_size"),
    "interval of nothing": (config(prefill_schedule_interval=0), "config.prefill_schedule_interval"),
    "negative watermark": (config(watermark=-0.1), "config.watermark"),
    "watermark of everything": (config(watermark=1.0), "config.watermark"),
    "watermark without a value": (config(watermark=float("nan")), "config.watermark"),
    "endless watermark": (config(watermark=float("inf")), "config.watermark"),
    "more blocks than there is memory": (config(num_gpu_blocks=10**15), "config.num_gpu_blocks"),
    "no duration": (without("duration"), "duration"),
    "duration is a number": (header(duration=5), "duration"),
    "duration as float": (lambda lines: lines[0]["duration"].update(base_ns=5.0), "duration"),
    "time that falls": (lambda lines: lines[0]["duration"].update(base_ns=-5), "duration"),
    "no requests": (without("requests"), "requests"),
    "empty requests": (header(requests=[], n_requests=0), "requests"),
    "requests as text": (header(requests="abcd"), "requests"),
    "wrong count": (header(n_requests=9), "n_requests"),
    "unsorted": (unsorted, "sorted by (at, id)"),
    "an id twice": (twice, "requests"),
    "request is a number": (lambda lines: lines[0]["requests"].__setitem__(0, 1), "requests[0]"),
    "request without id": (lambda lines: lines[0]["requests"][0].pop("id"), "requests[0]"),
    "id as text": (first(id="0"), "requests[0]"),
    "negative id": (first(id=-1), "requests[0]"),
    "negative arrival": (first(at=-1), "requests[0]"),
    "arrival as float": (first(at=0.0), "requests[0]"),
    "output as bool": (first(out=True), "requests[0]"),
    "no output": (first(out=0), "requests[0]"),
    "negative output": (first(out=-3), "requests[0]"),
    "priority as text": (first(pr="high"), "requests[0]"),
    "empty prompt": (first(segs=[]), "requests[0]"),
    "segments as text": (first(segs="ab"), "requests[0]"),
    "segment of three": (first(segs=[[1, 2, 3]]), "requests[0]"),
    "segment of no tokens": (first(segs=[[1, 0]]), "requests[0]"),
    "segment of negative length": (first(segs=[[1, -5], [2, 25]]), "requests[0]"),
    "a prompt the front door refuses": (first(segs=[[1, 100_000]]), "requests[0]"),
}


@pytest.mark.parametrize(("change", "said"), HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_is_wrong(trace: Path, change: Callable[[Lines], None], said: str) -> None:
    lines = lines_of(SYNC)
    change(lines)
    trace.write_bytes(dump(lines))
    line = refused(trace)
    assert line.startswith(f"{trace}:1: ")
    assert said in line


@pytest.mark.parametrize("name", ["\ud800", "two\nlines", "a\u2028b", 7])
def test_a_case_is_one_line_whatever_its_name(trace: Path, name: Any) -> None:
    lines = lines_of(SYNC)
    lines[0]["case"] = name
    trace.write_bytes(dump(lines))
    code, out, err = conform(trace)
    assert (code, err) == (0, "") or (code, out) == (2, "")
    assert len(out.split("\n")) == 3 if code == 0 else len(err.splitlines()) == 1
    assert conform(trace, "--json")[0] == code


# --- the records ------------------------------------------------------------------------------------------------------

RECORDS: dict[str, tuple[bytes, Any]] = {
    "a number": (SYNC, lambda record: 5),
    "a list": (SYNC, lambda record: [record]),
    "null": (SYNC, lambda record: None),
    "empty": (SYNC, lambda record: {}),
    "key missing": (SYNC, lambda record: {key: record[key] for key in record if key != "fs"}),
    "key not modelled": (SYNC, lambda record: record | {"speculated": 3}),
    "asynchronous event": (SYNC, lambda record: record | {"ev": "s", "g": 0}),
    "synchronous record": (ASYNC, lambda record: {key: record[key] for key in record if key != "ev"}),
    "unknown event": (ASYNC, lambda record: record | {"ev": "x"}),
    "event key missing": (ASYNC, lambda record: {key: record[key] for key in record if key != "t"}),
}


@pytest.mark.parametrize(("packed", "change"), RECORDS.values(), ids=RECORDS.keys())
def test_a_record_that_is_wrong(trace: Path, packed: bytes, change: Callable[[Any], Any]) -> None:
    lines = lines_of(packed)
    lines[4] = change(lines[4])
    trace.write_bytes(dump(lines))
    assert refused(trace).startswith(f"{trace}:5: ")


@pytest.mark.parametrize("key", ["schedule_calls", "t_end", "preemptions", "req"])
def test_a_summary_that_lacks_a_total_is_not_exact(trace: Path, key: str) -> None:
    lines = lines_of(SYNC)
    del lines[-1][key]
    trace.write_bytes(dump(lines))
    code, out, _ = conform(trace)
    assert code != 0
    assert "1 of 1 exact" not in out


def test_a_summary_with_a_total_that_is_not_modelled_is_not_exact(trace: Path) -> None:
    lines = lines_of(SYNC)
    lines[-1]["swapped"] = 3
    trace.write_bytes(dump(lines))
    assert conform(trace)[0] != 0


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 10**30, 0.5, True, [[[1]]]])
@pytest.mark.parametrize("key", ["i", "t", "a", "s", "n", "c", "p", "r", "w", "fs", "b", "d", "f", "fu"])
def test_a_value_of_any_type_is_compared_or_refused(trace: Path, key: str, value: Any) -> None:
    lines = lines_of(SYNC)
    if json.dumps(lines[2][key]) == json.dumps(value):
        value = 77
    lines[2][key] = value
    trace.write_bytes(dump(lines))
    code, out, err = conform(trace)
    assert code in (1, 2)
    assert len(err.splitlines()) == 1
    assert f"{trace}:3" in (out if code == 1 else err)


# --- anything ---------------------------------------------------------------------------------------------------------

FUZZ = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("packed", [False, True], ids=["text", "gzip"])
@given(data=st.data())
@FUZZ
def test_flipped_bytes_never_give_a_traceback(scratch: Path, packed: bool, data: st.DataObject) -> None:
    content = bytearray(SMALL if packed else gzip.decompress(SMALL))
    places = st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(1, 255)), min_size=1, max_size=3)
    for place, mask in data.draw(places):
        content[place] ^= mask
    path = scratch / ("t.jsonl.gz" if packed else "t.jsonl")
    path.write_bytes(bytes(content))
    code, _, err = conform(path)
    assert code in (0, 1, 2)
    assert len(err.splitlines()) == (0 if code == 0 else 1)


DIGITS = [i for i, byte in enumerate(gzip.decompress(SMALL)) if byte in b"0123456789"]


@given(place=st.sampled_from(DIGITS), digit=st.integers(1, 9))
@FUZZ
def test_another_digit_never_goes_unnoticed_in_the_records(scratch: Path, place: int, digit: int) -> None:
    """A digit of the header may not matter; in records and summary every one does."""
    content = bytearray(gzip.decompress(SMALL))
    old = content[place] - ord("0")
    content[place] = ord("0") + (old + digit) % 10
    path = scratch / "digit.jsonl"
    path.write_bytes(bytes(content))
    code, out, err = conform(path)
    number = bytes(content[:place]).count(b"\n") + 1
    if number == 1:
        assert code in (0, 1, 2)
    else:
        assert code in (1, 2)
        assert f"{path}:{number}" in out + err


@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
)
@FUZZ
def test_any_bytes_are_refused(scratch: Path, content: bytes) -> None:
    path = scratch / "any"
    path.write_bytes(content)
    assert refused(path).startswith(f"{path}:")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data(), value=JSON)
@FUZZ
def test_any_json_anywhere_never_gives_a_traceback(scratch: Path, data: st.DataObject, value: Any) -> None:
    lines = lines_of(SMALL)
    holder: Any = lines
    place: Any = data.draw(st.integers(0, len(lines) - 1))
    while isinstance(holder[place], list | dict) and holder[place] and data.draw(st.booleans()):
        holder = holder[place]
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        place = data.draw(st.sampled_from(keys))
    holder[place] = value
    path = scratch / "json.jsonl"
    path.write_bytes(dump(lines))
    assert conform(path)[0] in (0, 1, 2)
    assert conform(path, "--json")[0] in (0, 1, 2)
