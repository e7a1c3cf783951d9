"""Logs as CSV and other tables: wrapping, lines, the fast way against the exact one, formats, maps, any bytes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.play.load import Log, load_log
from simkit.logs.read import tables
from simkit.logs.read import text as files
from simkit.logs.read.cells import COUNT, TEXT, TOKENS, WALL, Parse, number, optional
from simkit.logs.read.layout import Field, read_blocks
from simkit.logs.read.log import RowLog
from simkit.logs.read.open import scanning
from simkit.logs.read.record import UNKNOWN, Columns
from simkit.logs.read.tables import Block, CsvRows

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MAP = {"prompt": "p", "output": "o", "time": "t"}


def load(tmp_path: Path, content: str | bytes, **keys: Any) -> Log:
    (tmp_path / "t").write_bytes(content.encode() if isinstance(content, str) else content)
    return load_log(scenario.Trace(path="t", **keys), tmp_path)


def refusal(tmp_path: Path, content: str | bytes, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(tmp_path, content, **keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


def notes(log: Log) -> str:
    return "\n".join(log.notes)


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


# --- wrapping ---------------------------------------------------------------------------------------------------------
BODY = (AZURE + "2024-05-10 00:00:00+00:00,10,2\n2024-05-10 00:00:01.5+00:00,20,3\n").encode()


@pytest.mark.parametrize(
    "packed",
    [
        BODY,
        gzip.compress(BODY),
        gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]),
        zstd(BODY),
        zstd(BODY[:50]) + zstd(BODY[50:]),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + zstd(BODY),
        BODY.decode().encode("utf-16"),
        BODY.replace(b",", b";"),
        BODY.replace(b",", b"\t"),
        BODY.replace(b"\n", b"\r\n"),
        BODY.replace(b"\n", b"\r"),
        b"# exported\n\n" + BODY,
    ],
    ids=[
        "plain",
        "gzip",
        "gzip-twice",
        "zstd",
        "zstd-twice",
        "zstd-skippable",
        "utf-16",
        "semicolons",
        "tabs",
        "crlf",
        "cr",
        "preamble",
    ],
)
def test_wrapping_is_recognised_by_content(tmp_path: Path, packed: bytes) -> None:
    log = load(tmp_path, packed)
    assert log.columns.time_ns.tolist() == [0, 1_500_000_000]
    assert log.columns.prompt_tokens.tolist() == [10, 20]
    assert log.format.title == "Azure 2024 CSV"


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "gzip"), (zstd, "zstd")])
def test_broken_archives(tmp_path: Path, pack: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    whole = pack(BODY + rng.integers(48, 58, 5000, dtype=np.uint8).tobytes())
    for broken in (whole[:-5], whole[: len(whole) // 2], whole[:6], whole + b"garbage"):
        assert refusal(tmp_path, broken).endswith(f"not a complete {name} file")


def test_bombs_and_lines_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BOMB_BYTES", 2**20)
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**20)
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 2**20)
    rows = AZURE.encode() + b"2024-05-10 00:00:00+00:00,10,2\n" * 100_000
    for bomb in (gzip.compress(rows), zstd(rows)):
        assert "unpacks to more than 200 times its size" in refusal(tmp_path, bomb)
    assert len(load(tmp_path, rows).columns) == 100_000
    assert refusal(tmp_path, BODY + b"1" * (2**20 + 2**18)).endswith("line 4: longer than 64 MiB")
    open_quote = BODY + b'2024-05-10 00:00:00+00:00,"10,2\n' + b"2024-05-10 00:00:00+00:00,10,2\n" * 50_000
    assert "line 4: a row longer than 64 MiB (a quote that is not closed?)" in refusal(tmp_path, open_quote)


@pytest.mark.parametrize("columns", ["," * 60_000, '"a"' + "," * 60_000, '"\n' + '"' + "," * 60_000])
def test_a_line_of_very_many_columns_is_refused(tmp_path: Path, columns: str) -> None:
    assert refusal(tmp_path, BODY.decode() + columns).endswith("line 4: more than 50000 columns")
    assert refusal(tmp_path, columns).endswith("line 1: more than 50000 columns")


# --- lines ------------------------------------------------------------------------------------------------------------
def test_lines_are_counted_through_quoted_newlines_and_blank_lines(tmp_path: Path) -> None:
    text = 'x,TIMESTAMP,ContextTokens,GeneratedTokens\r\n"a\r\nb\nc",2024-05-10 00:00:00Z,1,1\r\n\r\n'
    text += '1,2024-05-10 00:00:01Z,2,1\r\n"say ""hi"",\n",bad,3,1\r\n' + "".join(
        f"1,2024-05-10 00:00:02Z,{4 + i},1\r\n" for i in range(100)
    )
    log = load(tmp_path, text)
    assert log.columns.line.tolist() == [2, 6, *range(9, 109)]
    assert "line 7: TIMESTAMP 'bad', expected YYYY-MM-DD hh:mm:ss.fraction" in notes(log)


def test_a_quote_that_is_never_closed_does_not_hide_the_rows_it_takes_in(tmp_path: Path) -> None:
    good = "2024-05-10 00:00:00Z,1,1\n"
    message = refusal(tmp_path, AZURE + good * 50 + '"' + good * 50)
    assert "50 of 100 rows cannot be read" in message
    assert "line 52: 1 cells, expected 3 (a quote in it is never closed, to line 101)" in message
    assert "the last line (52) is cut short" in notes(load(tmp_path, AZURE + good * 50 + '"2024-05-10 00:0'))


def test_cells_longer_than_the_csv_modules_own_limit(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    for long in ("x" * 200_000, '"' + "x," * 100_000 + '"'):
        log = load(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens,prompt\n2024-05-10 00:00:00Z,1,1,{long}\n")
        assert len(log) == 1
    assert csv.field_size_limit() == before


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    rows = [
        f"2024-05-10 00:00:{i % 60:02d}.{i:07d}Z,{i % 999},{'x' if i % 500 == 7 else i % 99}\n" for i in range(60_000)
    ]

    def peak(count: int) -> int:
        (tmp_path / "t").write_text(AZURE + "".join(rows[:count]))
        tracemalloc.start()
        try:
            with scanning(scenario.Trace(path="t"), tmp_path) as scan:
                num_read = sum(len(part) for part in scan.parts)
                assert num_read < count
                assert f"left out {count // 500} of {count} rows (0.2 %)" in " ".join(scan.notes())
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(60_000) < 1.2 * peak(20_000)


# --- the fast way and the exact one -----------------------------------------------------------------------------------
def slow(parse: Parse) -> Parse:
    """The cells of every column but texts are odd, and so read the exact way."""
    return parse if parse is TEXT else Parse(parse.expected, parse.one, lambda cells: None, parse.remark)


PARSES = (WALL, TOKENS, optional(COUNT), optional(WALL), TEXT, number("s"), optional(number("ms")), number("ns"))
NAMES = ("time_ns", "prompt_tokens", "turn", "first", "session", "output_tokens", "e2e_ns", "delay_ns")


def read_with(rows: list[list[str]], parses: Sequence[Parse], size: int) -> tuple[Columns, list[str], list[str], int]:
    log = RowLog("trace t", allow_bad=True)
    header = [f"c{at}" for at in range(len(parses))]
    fields = [Field(name, column, parse) for name, column, parse in zip(NAMES, header, parses, strict=True)]
    blocks = (
        Block(np.arange(at, min(at + size, len(rows))) + 2, rows[at : at + size]) for at in range(0, len(rows), size)
    )
    parts = list(read_blocks(blocks, header, fields, None, log))
    return Columns.concatenate(parts), log.bad, sorted(remark.text for remark in log.remarks), log.num_bad


digits = st.integers(0, 10**12).map(str)
usual_walls = st.tuples(
    st.dates().map(str) | st.just("2024-05-10"), st.sampled_from(" T"), st.times(), st.sampled_from(["", "Z", "+02:00"])
).map(lambda p: f"{p[0]}{p[1]}{p[2].isoformat()}{p[3]}")
ODD_NUMBERS = " -1 +5 1_0 ٣ 1. .5 1.50 1e3 nan inf 12.0 1.5 ² 1,5 x 2147483647 2147483648 4611686018.427387904"
ODD_STAMPS = (
    "2024-05-10 00:00:60Z|2024-02-30 00:00:00|2024-05-10 00:00:00.Z|2024-05-10 00:00:00,5|9999-01-01|"
    "9999-01-01 00:00:00|1969-12-31 23:59:59.5|2024-05-10 00:00:00.1234567899|2024-05-10 00:00:00 UTC|"
    "2116-02-20 23:53:38.5Z|2116-02-20 23:53:39Z|2024-05-10 00:00:0٣Z|2024-05-10  00:00:00Z|2024-05-10T00:00:00.5+0200"
)
odd_cells = st.sampled_from(
    [*ODD_NUMBERS.split(" "), *ODD_STAMPS.split("|"), " ", "5 ", "0" * 20 + "1", "9" * 19, "9" * 30, "4611686018.5"]
)
cells = st.one_of(usual_walls, digits, odd_cells, st.decimals(0, 10**10, places=3).map(str), st.text(max_size=12))
good_row = st.tuples(
    usual_walls,
    st.integers(0, 9999).map(str),
    digits | st.just(""),
    usual_walls | st.just(""),
    st.text(max_size=5),
    st.decimals(0, 10**9, places=3).map(str),
    st.integers(0, 9999).map(str) | st.just(""),
    st.integers(0, 10**18).map(str),
).map(list)
mixed_row = st.one_of(good_row, st.tuples(*[cells] * len(PARSES)).map(list), st.lists(cells, max_size=9))


@settings(max_examples=120, deadline=None)
@given(rows=st.lists(mixed_row, min_size=1, max_size=30), size=st.integers(1, 40))
def test_the_fast_way_is_the_exact_way(rows: list[list[str]], size: int) -> None:
    fast = read_with(rows, PARSES, size)
    exact = read_with(rows, [slow(parse) for parse in PARSES], 1)
    assert fast[1:] == exact[1:]
    for name in ("line", "time_ns", "prompt_tokens", "turn", "session", "e2e_ns", "delay_ns", "output_tokens"):
        one, other = getattr(fast[0], name), getattr(exact[0], name)
        if len(fast[0]) or name == "line":
            assert (one is None) == (other is None), name
            assert one is None or list(one) == list(other), name


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.text(st.sampled_from('ab,"\r\n;'), max_size=4), min_size=1, max_size=4), max_size=20),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 40),
)
def test_rows_in_blocks_are_the_rows_of_the_csv_module(rows: list[list[str]], end: str, size: int) -> None:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator=end)
    writer.writerow(["h", "i"])
    writer.writerows(rows)
    text = written.getvalue()
    expected, reader = [], csv.reader(io.StringIO(text, newline=""))
    next(reader)
    line = reader.line_num
    for row in reader:
        if row:
            expected.append((line + 1, row))
        line = reader.line_num
    before = tables.BLOCK_CHARACTERS
    tables.BLOCK_CHARACTERS = size
    try:
        blocks = list(CsvRows(io.StringIO(text, newline="")).blocks())
        assert [row for block in blocks for row in zip(block.lines, block.rows, strict=True)] == expected
    finally:
        tables.BLOCK_CHARACTERS = before


# --- formats ----------------------------------------------------------------------------------------------------------
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt(tmp_path: Path) -> None:
    rows = "19440110.0,s1,43,GPT-4,906,446,1352,Conversation log\n19440110.0,,0.5,ChatGPT,36,0,36,API log\n"
    log = load(tmp_path, BURST + rows + "19440161.0,,2.25,ChatGPT,36,29,65,API log\n")
    assert log.format.title == "BurstGPT v2 CSV"
    assert log.columns.time_ns.tolist() == [0, 51 * 10**9]
    assert log.columns.session == ("s1", None)
    assert log.columns.model == ("GPT-4", "ChatGPT")
    assert log.columns.e2e_ns is not None
    assert log.columns.e2e_ns.tolist() == [43 * 10**9, 2_250_000_000]
    assert "skipped 1 of 3 rows (33.3 %): 1 zero output (line 3)" in notes(log)
    swapped = "Response tokens,Request tokens,Timestamp\n18,472,5\n230,1087,45\n"
    log = load(tmp_path, swapped)
    assert log.format.title == "BurstGPT v1 CSV"
    assert log.columns.prompt_tokens.tolist() == [472, 1087]
    assert log.columns.e2e_ns is None
    assert load(tmp_path, swapped, time_unit="ms").columns.time_ns.tolist() == [0, 40_000_000]


def test_vidur(tmp_path: Path) -> None:
    assert load(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,3,4\n0.1,5,6\n").columns.time_ns[
        1
    ] == pytest.approx(10**8, abs=0)
    old = "Time,PromptTokenCount,GeneratedTokenCount\n"
    assert load(tmp_path, old + "1,3,4\n3.5,5,6\n").columns.time_ns.tolist() == [0, 2_500_000_000]
    assert load(tmp_path, old + "2024-01-01 00:00:00,3,4\n2024-01-01 00:00:01,5,6\n").columns.time_ns[1] == 10**9
    message = refusal(tmp_path, "num_prefill_tokens,num_decode_tokens,num_total_tokens\n3,4,7\n")
    assert "no arrival times" in message
    assert "workload.prompt_tokens: {dist: empirical, path: FILE, column: num_prefill_tokens}" in message


def test_blis_behind_a_yaml_header(tmp_path: Path) -> None:
    header = "trace_version: 2\nserver:\n  model: m\n  args:\n    - a\n---\n"
    names = "request_id,session_id,round_index,input_tokens,output_tokens,server_input_tokens,arrival_time_us,"
    names += "first_chunk_time_us,last_chunk_time_us,status\n"
    rows = "0,s,0,512,128,520,1000,181000,1901000,ok\n1,s,1,300,5,0,2000,0,0,ok\n2,,,300,0,0,3000,0,0,error\n"
    log = load(tmp_path, header + names + rows)
    assert log.columns.line.tolist() == [8, 9]
    assert log.columns.time_ns.tolist() == [0, 1_000_000]
    assert log.columns.prompt_tokens.tolist() == [520, 300]
    assert log.columns.turn is not None
    assert log.columns.turn.tolist() == [0, 1]
    assert log.columns.ttft_ns is not None
    assert log.columns.ttft_ns.tolist() == [180_000_000, UNKNOWN]
    assert log.columns.e2e_ns is not None
    assert log.columns.e2e_ns.tolist() == [1_900_000_000, UNKNOWN]
    assert "1 status error (line 10)" in notes(log)


def test_litellm_answers_that_were_not_streamed_have_no_first_token(tmp_path: Path) -> None:
    rows = [
        "startTime,endTime,completionStartTime,prompt_tokens,completion_tokens",
        "2025-11-29 16:00:00,2025-11-29 16:00:02,2025-11-29 16:00:00.5,9,8",
        "2025-11-29 16:00:01,2025-11-29 16:00:03,2025-11-29 16:00:03,9,8",
        "2025-11-29 16:00:02,,,9,8",
    ]
    columns = load(tmp_path, "\n".join(rows)).columns
    assert columns.ttft_ns is not None
    assert columns.e2e_ns is not None
    assert columns.ttft_ns.tolist() == [500_000_000, UNKNOWN, UNKNOWN]
    assert columns.e2e_ns.tolist() == [2_000_000_000, 2_000_000_000, UNKNOWN]


def test_what_was_not_served_is_skipped_kept_for_its_prompt_or_an_error(tmp_path: Path) -> None:
    text = AZURE + "".join(f"2024-05-10 00:00:0{i}Z,{p},{o}\n" for i, (p, o) in enumerate([(5, 1), (6, 0), (0, 0)]))
    log = load(tmp_path, text, failed="prefill")
    assert list(zip(log.columns.prompt_tokens.tolist(), log.columns.output_tokens.tolist(), strict=True)) == [
        (5, 1),
        (6, 0),
    ]
    assert "kept 1 of 3 rows (33.3 %) that were not served for their prompt alone" in notes(log)
    assert "1 zero prompt and output (line 4)" in notes(log)
    assert "line 3: zero output; expected requests that were served" in refusal(tmp_path, text, failed="error")


def test_reasons_from_a_file_do_not_grow_without_end(tmp_path: Path) -> None:
    names = "arrival_time_us,input_tokens,output_tokens,status\n"
    log = load(tmp_path, names + "1,1,1,ok\n" + "".join(f'{i},1,1,"bad\n{i}"\n' for i in range(1000)))
    (note,) = [note for note in log.notes if "skipped" in note]
    assert "skipped 1000 of 1001 rows (99.9 %)" in note
    assert "980 for other reasons" in note
    assert "\n" not in note


@needs_traces
@pytest.mark.parametrize(
    ("name", "title", "count"),
    [
        ("azure_llm_2024_code_excerpt.csv", "Azure 2024 CSV", 10),
        ("azure_llm_2024_conv_excerpt.csv", "Azure 2024 CSV", 10),
        ("azure_lmm_2025_excerpt.csv", "Azure multimodal 2025 CSV", 10),
        ("burstgpt3_nofail_head.csv", "BurstGPT v2 CSV", 105),
        ("burstgpt_v1_rows.csv", "BurstGPT v1 CSV", 7),
        ("burstgpt_v2_rows.csv", "BurstGPT v2 CSV", 4),
        ("vidur_splitwise_conv_head1000.csv", "vidur CSV", 1000),
        ("splitwise_sim_test_trace.csv", "splitwise-sim CSV", 3),
        ("format_examples/blis_tracev2.csv", "BLIS TraceV2 CSV", 1),
        ("format_examples/litellm_spend_logs.csv", "LiteLLM spend log CSV", 1),
    ],
)
def test_real_files(name: str, title: str, count: int) -> None:
    log = load_log(scenario.Trace(path=name), TRACES)
    assert (log.format.title, len(log)) == (title, count)


@needs_traces
def test_real_files_in_detail() -> None:
    burst = load_log(scenario.Trace(path="burstgpt3_nofail_head.csv"), TRACES).columns
    assert burst.time_ns[-1] == 32_700 * 10**9
    assert np.rint(np.percentile(burst.prompt_tokens, [50, 95, 99])).tolist() == [384, 5704, 13082]
    assert burst.session is not None
    assert burst.model is None
    litellm = load_log(scenario.Trace(path="format_examples/litellm_spend_logs.csv"), TRACES)
    assert litellm.columns.ttft_ns is not None
    assert (litellm.columns.ttft_ns[0], litellm.columns.prompt_tokens[0]) == (300_000_000, 1021)
    for reason in ("1 status failure (line 3)", "1 call type aembedding (line 4)", "1 cache hit (line 5)"):
        assert reason in notes(litellm)
    blis = load_log(scenario.Trace(path="format_examples/blis_tracev2.csv"), TRACES)
    assert blis.columns.prompt_tokens.tolist() == [520]
    assert "skipped 1 of 2 rows (50 %): 1 status timeout (line 3)" in notes(blis)
    for name, advice in (
        ("vidur_arxiv_lengths_head1000.csv", "no arrival times"),
        ("servegen/reason/deepseek-r1/chunk-0-trace.csv", "workload.servegen"),
    ):
        with pytest.raises(InputError, match=advice):
            load_log(scenario.Trace(path=name), TRACES)


# --- maps -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "gap", "unit"),
    [
        (1_700_000_000, 2, "s"),
        (1_700_000_000_000, 2000, "ms"),
        (1_700_000_000_000_000, 2 * 10**6, "us"),
        (1_700_000_000_000_000_001, 2 * 10**9, "ns"),
    ],
)
def test_epochs_are_read_by_their_size_and_exactly(tmp_path: Path, first: int, gap: int, unit: str) -> None:
    rows = [{"p": 3, "o": 4, "t": first}, {"p": 5, "o": 6, "t": first + gap}]
    table = "p,o,t\n" + "".join(f"{row['p']},{row['o']},{row['t']}\n" for row in rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for content in (table, lines):
        log = load(tmp_path, content, map=MAP)
        assert log.columns.time_ns.tolist() == [0, 2 * 10**9]
        assert f"t is read as {unit} since 1970, by its size" in notes(log)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
    assert load_log(scenario.Trace(path="t", map=MAP), tmp_path).columns.time_ns.tolist() == [0, 2 * 10**9]


def test_small_numbers_need_a_unit(tmp_path: Path) -> None:
    text = "p,o,t\n3,4,0\n5,6,1.5\n"
    assert "column 't' begins with 0, which could be s, ms, us or ns: expected time_unit" in refusal(
        tmp_path, text, map=MAP
    )
    for unit, expected in (("s", 1_500_000_000), ("ms", 1_500_000), ("us", 1_500), ("ns", 2)):
        assert load(tmp_path, text, map=MAP, time_unit=unit).columns.time_ns[1] == expected
    named = load(tmp_path, text.replace("t\n", "sent_ms\n", 1), map=MAP | {"time": "sent_ms"})
    assert named.columns.time_ns[1] == 1_500_000
    assert "sent_ms is read as ms, by its name" in notes(named)
    epochs = "p,o,t\n" + "3,4,1700000000\n" * 200 + "5,6,17\n"
    assert "t '17', expected a time in s since 1970, as in the rows before" in notes(load(tmp_path, epochs, map=MAP))


def test_maps_name_everything_a_table_may_hold(tmp_path: Path) -> None:
    wanted = MAP | {"id": "i", "session": "s", "model": "m", "ttft": "ttft_ms", "e2e": "e2e (s)", "turn": "n"}
    text = "t,p,o,i,s,m,ttft_ms,e2e (s),n,rest\n2024-05-10T00:00:00Z,3,4.0,a,x,big,12.5,1.25,0,z\n"
    text += "2024-05-10T00:00:01Z,3,4,b,x,big,,,1,z\n"
    columns = load(tmp_path, text, map=wanted).columns
    assert (columns.id, columns.session, columns.model) == (("a", "b"), ("x", "x"), ("big", "big"))
    assert columns.ttft_ns is not None
    assert columns.e2e_ns is not None
    assert (columns.ttft_ns.tolist(), columns.e2e_ns.tolist()) == ([12_500_000, UNKNOWN], [1_250_000_000, UNKNOWN])


def test_maps_reach_into_objects(tmp_path: Path) -> None:
    rows = [{"u": {"in": [7 + i], "out": 2.0}, "a.b": "2024-05-10 00:00:00.5Z", "k": i} for i in range(3)]
    wanted = {"prompt": "u.in.0", "output": "u.out", "time": "a.b", "id": "k"}
    log = load(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), map=wanted)
    assert log.columns.prompt_tokens.tolist() == [7, 8, 9]
    assert log.columns.id == ("0", "1", "2")
    cut = "".join(json.dumps(row) + "\n" for row in rows) + '{"u": {"in": [3'
    assert "the last line (4) is cut short" in notes(load(tmp_path, cut, map=wanted))


def test_parquet_columns_with_dots_and_of_one_name(tmp_path: Path) -> None:
    table = pa.table({"a.b": [3, 4], "a": [1, 1], "o": ["5", None], "t": [1.7e9, 1.7e9 + 0.25]})
    pq.write_table(table, tmp_path / "t")
    spec = scenario.Trace(path="t", map={"prompt": "a.b", "output": "o", "time": "t"}, allow_bad=True)
    log = load_log(spec, tmp_path)
    assert log.columns.prompt_tokens.tolist() == [3]
    assert "line 2: o '', expected a number of tokens >= 0" in notes(log)
    pq.write_table(table.rename_columns(["a.b", "o", "o", "t"]), tmp_path / "t")
    assert "column 'o' appears more than once" in refusal(tmp_path, (tmp_path / "t").read_bytes(), map=spec.map)


def test_one_long_text_in_every_parquet_row_is_held_once(tmp_path: Path) -> None:
    num = 20_000  # 20 GiB, if each had its own
    text = pa.DictionaryArray.from_arrays(pa.array([0] * num, pa.int32()), ["x" * 2**20])
    pq.write_table(pa.table({"p": [1] * num, "o": [1] * num, "t": [1.7e9] * num, "s": text}), tmp_path / "t")
    log = load_log(scenario.Trace(path="t", map=MAP | {"session": "s"}), tmp_path)
    assert log.columns.session is not None
    assert len(set(map(len, log.columns.session))) == 1


def test_maps_read_parquet_by_batches(tmp_path: Path) -> None:
    count = 20_000
    stamps = pa.array([1_700_000_000_000_000 + i for i in range(count)], pa.timestamp("us", "UTC"))
    usage = pa.array([{"in": i % 100 + 1, "out": 3} for i in range(count)])
    table = pa.table({"t": stamps, "u": usage, "s": pa.array(["a", "b"] * (count // 2)).dictionary_encode()})
    pq.write_table(table, tmp_path / "t", row_group_size=7000)
    keys = {"prompt": "u.in", "output": "u.out", "time": "t", "session": "s"}
    log = load_log(scenario.Trace(path="t", map=keys), tmp_path)
    assert log.columns.time_ns.tolist() == list(range(0, count * 1000, 1000))
    assert log.columns.line[-1] == count
    assert log.columns.prompt_tokens[:3].tolist() == [1, 2, 3]
    assert log.columns.session is not None
    assert log.columns.session[:2] == ("a", "b")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"map": MAP | {"promt": "p"}}, "map names 'promt', expected prompt, output, time"),
        ({"map": {"prompt": "p"}}, "needs map with output, time"),
        ({"map": MAP | {"prompt": "prompts"}}, "map prompt=prompts: no column 'prompts' among"),
        ({"map": MAP, "format": "azure"}, "map is for format generic, and format is 'azure'"),
        ({"format": "generic"}, "needs map with prompt, output, time"),
        ({"map": MAP | {"ttft": "rest"}}, "the unit of 'rest' is not known"),
        ({"map": MAP | {"time": "rest"}}, "column 'rest' begins with 'z', expected a wall clock or a number"),
    ],
)
def test_maps_that_do_not_fit(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    assert said in refusal(tmp_path, "p,o,t,rest\n1,2,3,z\n", **keys)


def test_what_is_not_recognised_is_told_with_what_is_needed(tmp_path: Path) -> None:
    message = refusal(tmp_path, "arrived_at,num_prefill_tokens,tokens_out\n1,2,3\n")
    assert "nearest is vidur CSV, which also needs num_decode_tokens" in message
    assert "--map prompt=COLUMN,output=COLUMN,time=COLUMN" in message
    assert "a header line with column names is missing" in refusal(tmp_path, "1,2,3\n4,5,6\n")
    assert "which is no CSV header and no JSON" in refusal(tmp_path, "the server has started and is ready now\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t")
    assert "columns are 'a'" in refusal(tmp_path, (tmp_path / "t").read_bytes())
    assert "not readable as parquet" in refusal(tmp_path, b"PAR1 and then something else")


# --- any bytes --------------------------------------------------------------------------------------------------------
def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"p": [1, 2], "o": [3, 4], "t": [1.7e9, 1.7e9], "s": ["a", "b"]}), sink)
    return sink.getvalue()


GOOD = (
    BODY,
    gzip.compress(BODY),
    zstd(BODY),
    BODY.decode().encode("utf-16"),
    (BURST + "1,s,2,m,3,4,7,x\n2,,,m,3,0,3,x\n").encode(),
    b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,1,2\n1e3,3,4\n",
    b"Time,PromptTokenCount,GeneratedTokenCount\n1,2,3\n",
    b"arrival_timestamp,prompt_size,token_size\n1,2,3\n",
    b'a: b\n---\narrival_time_us,input_tokens,output_tokens,status\n1,2,3,"o\nk"\n4,5,6,ok\n',
    b'startTime,endTime,prompt_tokens,completion_tokens,metadata\n2024-05-10 00:00:00,,1,2,"{""a"": 1}"\n',
    b"0,0,0,,0,0\n600,1.5,1,Gamma,1,2\n",
    b'{"p": 1, "o": 2, "t": 1700000000}\n{"p": [], "o": {}, "t": "x"}\n',
    b"p;o;t\n1;2;1700000000000\n",
    parquet_bytes(),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 8))
        data[at : at + cut] = draw(st.binary(max_size=8) | st.sampled_from([b'"', b"\n", b",", b"\x00", b"9" * 400]))
    return bytes(data)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=mutated() | st.binary(max_size=300),
    keys=st.sampled_from(
        [{}, {"map": MAP}, {"format": "azure"}, {"format": "blis", "time_unit": "ns"}, {"map": MAP, "time_unit": "ms"}]
    ),
    rules=st.fixed_dictionaries({"failed": st.sampled_from(["skip", "prefill", "error"]), "allow_bad": st.booleans()}),
)
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path: Path, content: bytes, keys: dict[str, Any], rules: dict[str, Any]
) -> None:
    try:
        log = load(tmp_path, content, **keys, **rules)
    except InputError as error:
        said = [str(error)]
    else:
        said = list(log.notes)
        assert (log.columns.prompt_tokens > 0).all()
    assert said
    assert not any("\n" in text or len(text) > 2000 for text in said)


def test_a_number_that_is_no_time_is_not_said_to_be_none(tmp_path: Path) -> None:
    for stamp in ("18446744073709551415", "-1e30"):
        (tmp_path / "t.csv").write_text(f"at,p,o\n{stamp},1,1\n", encoding="utf-8")
        spec = scenario.Trace(path=str(tmp_path / "t.csv"), map={"time": "at", "prompt": "p", "output": "o"})
        with pytest.raises(InputError, match="expected a time that even in ns is within 146 years of 0"):
            load_log(spec)
