"""Clean copies of logs: canonical parquet loses nothing and gives the same bytes again, Mooncake JSONL keeps times."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit import scenario
from simkit.errors import InputError
from simkit.logs import export
from simkit.logs.formats import canonical
from simkit.logs.formats.canonical import NAMES, CanonicalWriter, Meta, meta_of, read_parts
from simkit.logs.formats.mooncake import MooncakeWriter
from simkit.logs.play.load import load_log
from simkit.logs.read.log import RowLog
from simkit.logs.read.record import Columns, Record
from simkit.workload import build_workload

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")

META = Meta("azure", "Azure 2023 CSV", 123, 16, ("times name no zone and are read as UTC",))

texts = st.one_of(st.none(), st.text(max_size=4).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
tokens = st.integers(0, 2**31 - 1)
nanos = st.integers(0, 2**60)
records = st.lists(
    st.builds(
        Record,
        line=st.integers(1, 10**9),
        time_ns=st.one_of(nanos, st.none()),
        prompt_tokens=tokens,
        output_tokens=tokens,
        id=texts,
        session=texts,
        turn=st.one_of(st.none(), tokens),
        parent=texts,
        delay_ns=st.one_of(st.none(), nanos),
        block_ids=st.one_of(st.none(), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4)),
        model=texts,
        failed=texts,
        ttft_ns=st.one_of(st.none(), nanos),
        e2e_ns=st.one_of(st.none(), nanos),
        cached_tokens=st.one_of(st.none(), tokens),
        gaps_ns=st.one_of(st.none(), st.lists(nanos, min_size=1, max_size=4)),
    ),
    max_size=12,
)


def same(left: Columns, right: Columns) -> bool:
    """Whether all values are equal; a column without values and no column are the same."""
    for field in fields(Columns):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if a is None or b is None:
            if a is not b:
                return False
        elif field.name in ("blocks", "gaps"):
            if not (np.array_equal(a.values, b.values) and np.array_equal(a.offsets, b.offsets)):
                return False
        elif not np.array_equal(np.asarray(a, dtype=object), np.asarray(b, dtype=object)):
            return False
    return True


def written(path: Path, parts: list[Columns], meta: Meta = META) -> bytes:
    writer = CanonicalWriter(path)
    for part in parts:
        writer.add(part)
    writer.close(meta)
    return path.read_bytes()


def read(path: Path) -> tuple[Columns, RowLog]:
    log = RowLog("trace x")
    return Columns.concatenate(list(read_parts(path, log))), log


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canonical")


# --- round trips ------------------------------------------------------------------------------------------------------
@given(rows=records, at=st.lists(st.integers(0, 12), max_size=3), group=st.sampled_from([1, 3, 1 << 16]))
@settings(max_examples=40, deadline=None)
def test_any_requests_come_back_and_parts_do_not_show(
    here: Path, rows: list[Record], at: list[int], group: int
) -> None:
    columns = Columns.of(rows)
    parts = [columns.take(part) for part in np.split(np.arange(len(rows)), sorted(at))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "ROWS_A_GROUP", group)
        first = written(here / "a.parquet", [columns])
        assert written(here / "b.parquet", parts) == first
        found, log = read(here / "a.parquet")
    assert log.num_bad == 0
    assert log.num_rows == len(rows)
    shifted = [row if row.time_ns is None else row._replace(time_ns=row.time_ns + META.start_ns) for row in rows]
    assert same(found, Columns.of(shifted))
    assert meta_of(here / "a.parquet") == META


def test_files_without_gaps_between_tokens_are_read_and_impossible_gaps_refused(here: Path) -> None:
    rows = [Record(line + 1, line, 5, 3, gaps_ns=gaps) for line, gaps in enumerate(([7, 8], None, [9, -1]))]
    path = here / "gaps.parquet"
    written(path, [Columns.of(rows)])
    found, log = read(path)
    assert found.gaps is not None
    assert [found.gaps.of(row).tolist() for row in range(len(found))] == [[7, 8], []]
    assert str(log.bad[0]).startswith("line 3: gaps_ns with a value that is not 0 to ")
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["gaps_ns"]), here / "older.parquet")
    older, log = read(here / "older.parquet")
    assert (older.gaps, log.num_bad, len(older)) == (None, 0, 3)


def in_ms(line: str) -> float:
    return float(json.loads(line)["timestamp"])


@given(
    gaps=st.lists(st.one_of(st.just(0), st.integers(0, 10**7), st.integers(0, 10**13)), min_size=1, max_size=12),
    rows=records.filter(len),
)
@settings(max_examples=60, deadline=None)
def test_mooncake_keeps_times_ids_and_sessions(here: Path, gaps: list[int], rows: list[Record]) -> None:
    at = np.cumsum([0, *gaps[1:]]).tolist()
    rows = [row._replace(time_ns=time) for row, time in zip(rows, at, strict=False)]
    columns = Columns.of(rows)
    writer = MooncakeWriter(here / "m.jsonl")
    writer.add(columns)
    writer.close(META)
    lines = (here / "m.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(rows)
    for row, line in zip(rows, map(json.loads, lines), strict=True):
        assert abs(line["timestamp"] * 1e6 - row.time_ns) <= 1000, "1 us, where 1 ms is asked for"
        assert (line["input_length"], line["output_length"]) == (row.prompt_tokens, row.output_tokens)
        assert line.get("hash_ids") == row.block_ids
        assert line.get("session_id") == row.session
        assert line.get("request_id") == row.id
        assert line.get("wait_for") == row.parent
        assert (line.get("turn"), line.get("model")) == (row.turn, row.model)
        assert row.delay_ns is None or abs(line["delay"] * 1e6 - row.delay_ns) <= 1000
    told = " ".join(writer.notes(META))
    assert ("measured TTFT" in told) == any(row.ttft_ns is not None for row in rows)
    assert "--hash-block-tokens 16" in told


@needs_traces
@pytest.mark.parametrize(
    "name", ["azure_llm_2023_conv.csv.gz", "azure_llm_2023_code.csv", "mooncake_conversation_0-20min.jsonl"]
)
def test_real_logs_go_through_both_formats(tmp_path: Path, name: str) -> None:
    first, again, lines = tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.jsonl"
    done = export.convert(scenario.Trace(path=name), first, TRACES)
    export.convert(scenario.Trace(path=str(first)), again)
    assert first.read_bytes() == again.read_bytes()
    export.convert(scenario.Trace(path=str(first)), lines)
    original, copy, third = (load_log(scenario.Trace(path=path), TRACES) for path in (name, str(first), str(lines)))
    assert done.num_requests == len(original) == len(third)
    assert same(original.columns, copy.columns)
    assert same(replace(original.columns, line=third.columns.line), replace(third.columns, line=third.columns.line))
    assert copy.hash_block_tokens == original.hash_block_tokens


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = tuple(f"2023-11-16 18:00:{second:02d}.5,{100 + second},{1 + second}" for second in range(20))


def csv(path: Path, rows: tuple[str, ...] = ROWS) -> scenario.Trace:
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return scenario.Trace(path=str(path))


def test_a_log_out_of_order_is_sorted_and_gives_the_bytes_of_the_sorted_one(tmp_path: Path) -> None:
    ordered = csv(tmp_path / "a.csv")
    mixed = csv(tmp_path / "b.csv", (*ROWS[5:], *ROWS[:5]))
    export.convert(ordered, tmp_path / "a.parquet")
    done = export.convert(mixed, tmp_path / "b.parquet")
    a, b = (pq.read_table(tmp_path / f"{name}.parquet") for name in "ab")
    assert a.drop_columns(["line"]).equals(b.drop_columns(["line"]))
    assert any("sorted by time" in note for note in done.notes)
    found = meta_of(tmp_path / "b.parquet")
    assert found is not None
    assert found.notes == done.notes
    assert found.start_ns == meta_of(tmp_path / "a.parquet").start_ns  # type: ignore[union-attr]
    assert (found.format, found.hash_block_tokens) == ("azure", None)
    export.convert(scenario.Trace(path=str(tmp_path / "b.parquet")), tmp_path / "c.parquet")
    assert (tmp_path / "c.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_the_clock_of_the_log_is_kept(tmp_path: Path) -> None:
    export.convert(csv(tmp_path / "a.csv"), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet")["arrival_ns"][0].as_py() == 0
    columns, _ = read(tmp_path / "a.parquet")
    assert columns.time_ns[0] == 1_700_157_600_500_000_000


# --- parts ------------------------------------------------------------------------------------------------------------
def test_a_window_counts_from_its_first_request(tmp_path: Path) -> None:
    spec = csv(tmp_path / "a.csv")
    done = export.sample(spec.model_copy(update={"start_s": 5.0, "end_s": 8.0}), tmp_path / "w.parquet")
    columns, _ = read(tmp_path / "w.parquet")
    assert columns.prompt_tokens.tolist() == [105, 106, 107]
    assert pq.read_table(tmp_path / "w.parquet")["arrival_ns"].to_pylist() == [0, 10**9, 2 * 10**9]
    assert (done.num_requests, done.span_s) == (3, 2.0)
    assert any("requests 6 to 8 of 20" in note for note in done.notes)
    with pytest.raises(InputError, match="no requests from 30 s to the end; the trace lasts 19 s"):
        export.sample(spec.model_copy(update={"start_s": 30.0}), tmp_path / "n.parquet")
    assert not (tmp_path / "n.parquet").exists()


def test_a_sample_holds_what_a_replay_serves_and_sessions_whole(tmp_path: Path) -> None:
    rows = [Record(i + 1, i * 10**9, 50 + i, 1, session=f"s{i % 13}" if i % 3 else None) for i in range(90)]
    written(tmp_path / "a.parquet", [Columns.of(rows)])
    spec = scenario.Trace(path=str(tmp_path / "a.parquet"), keep_share=0.4)
    done = export.sample(spec, tmp_path / "s.parquet", seed=3)
    columns, _ = read(tmp_path / "s.parquet")
    workload = scenario.Workload.model_validate({"trace": {"path": spec.path, "keep_share": 0.4}})
    served = build_workload(workload, seed=3, replication=0, max_model_len=8192, base_dir=None)
    assert columns.prompt_tokens.tolist() == [request.prompt_tokens for request in served.requests]
    assert 10 < done.num_requests < 70
    kept = set(columns.prompt_tokens.tolist())
    for name in {row.session for row in rows} - {None}:
        members = {row.prompt_tokens for row in rows if row.session == name}
        assert members <= kept or not members & kept


# --- what is in the way, what is damaged ------------------------------------------------------------------------------
def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    spec = csv(tmp_path / "a.csv")
    for name in ("x.parquet", "x.jsonl"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(InputError, match="--force"):
            export.convert(spec, tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"
        export.convert(spec, tmp_path / name, force=True)
        assert load_log(scenario.Trace(path=str(tmp_path / name))).columns.prompt_tokens.tolist()[0] == 100
    export.convert(spec, tmp_path / "x.parquet")  # our own
    with pytest.raises(InputError, match="another file than the log"):
        export.convert(scenario.Trace(path=str(tmp_path / "x.parquet")), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"\.parquet or \.jsonl"):
        export.convert(spec, tmp_path / "x.csv")
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(InputError, match="got a directory"):
        export.convert(spec, tmp_path / "d.jsonl")
    with pytest.raises(InputError, match="cannot be written"):
        export.convert(spec, tmp_path / "no" / "x.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "x.parquet", "x.jsonl", "d.jsonl"}


def table(**changed: Any) -> pa.Table:
    """A canonical table of three requests with some columns replaced."""
    made = canonical.to_arrow(Columns.of([Record(i + 1, i, 10, 10) for i in range(3)]))
    for name, values in changed.items():
        array = values if isinstance(values, pa.Array) else pa.array(values)
        made = made.set_column(NAMES.index(name), name, array)
    return made


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt_tokens": [1, -5, 2]}, "row 2|line 2: prompt_tokens -5"),
        ({"output_tokens": [1, 5, None]}, "line 3: output_tokens -1, expected 0 to"),
        ({"arrival_ns": [0, 1, 2**63 - 1]}, "line 3: arrival_ns"),
        ({"prompt_tokens": [2**40, 1, 1]}, "line 1: prompt_tokens 1099511627776"),
        ({"prompt_tokens": ["a", "b", "c"]}, "not the columns of a canonical file"),
        ({"id": pa.array([[1], [2], [3]])}, "not the columns of a canonical file"),
    ],
)
def test_values_that_make_no_sense_are_told_by_row(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    pq.write_table(table(**changed), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=said) as caught:
        load_log(scenario.Trace(path=str(tmp_path / "x.parquet")))
    assert "\n" not in str(caught.value)


def test_a_missing_column_and_a_strange_origin(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table().drop_columns(["turn"]), path)
    with pytest.raises(InputError, match="'turn'"):
        load_log(scenario.Trace(path=str(path), format="canonical"))
    for content in (b"{", b"[1]", b'{"version":2}', b'{"version":1,"start_ns":"x"}', b"\xff"):
        pq.write_table(table().replace_schema_metadata({b"simkit.trace": content}), path)
        with pytest.raises(InputError) as caught:
            load_log(scenario.Trace(path=str(path)))
        assert "\n" not in str(caught.value)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_files_give_one_line(here: Path, data: st.DataObject) -> None:
    """Any byte of a canonical file may be another; it is read or refused, in one line."""
    content = bytearray(
        written(here / "whole.parquet", [Columns.of([Record(i + 1, i, 9, 9, id=str(i)) for i in range(9)])])
    )
    for at in data.draw(st.lists(st.integers(4, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(4, len(content))))
    (here / "broken.parquet").write_bytes(bytes(content[:cut]))
    said = ""
    try:
        load_log(scenario.Trace(path=str(here / "broken.parquet")))
    except InputError as error:
        said = str(error)
    assert "\n" not in said
