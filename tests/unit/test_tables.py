"""Facts in columns, columns in arrow, arrow in parquet: nothing is lost, held twice or dependent on how it came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simkit.metrics import record as rec
from simkit.metrics.record import REQUEST_COLUMNS, SLOT_COLUMNS, SPAN_COLUMNS, Columns, Record
from simkit.metrics.tables import request_table, slot_table, span_table
from simkit.runs import directory as run_dir


@pytest.mark.parametrize("fresh_values", [1, 6, 7, 1 << 17])
def test_columns_keep_rows_in_the_order_in_which_they_came(fresh_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rec, "FRESH_VALUES", fresh_values)
    columns = Columns(("a", "b"))
    assert [list(column) for column in columns.to_dict().values()] == [[], []]
    columns.append((1, -1))
    columns.extend(np.array([[2, -2], [3, -3]]))
    columns.extend(np.arange(12).reshape(2, 6)[:, ::3])  # not contiguous
    columns.append((5, -5))
    assert len(columns) == 6
    found = {name: list(column) for name, column in columns.to_dict().items()}
    assert found == {"a": [1, 2, 3, 0, 6, 5], "b": [-1, -2, -3, 3, 9, -5]}
    assert len(columns) == 6


def test_columns_sort_by_several_keys() -> None:
    columns = Columns(("a", "b", "c"))
    columns.extend(np.array([[1, 0, 10], [0, 1, 11], [1, -1, 12], [0, 1, 13]]))
    assert list(columns.sort("a", "b")["c"]) == [11, 13, 12, 10]
    assert list(columns.to_dict()["a"]) == [0, 0, 1, 1]
    assert list(columns.sort("a", "b")["c"]) == [11, 13, 12, 10]


def test_columns_are_given_out_and_not_copied() -> None:
    columns = Columns(("a",))
    columns.extend(np.arange(100)[:, None])
    given, again = columns.to_dict()["a"], columns.sort("a")["a"]
    assert np.shares_memory(given, again)


def full_record() -> Record:
    record = Record(keep_slots=True)
    record.spans.extend(np.arange(2 * len(SPAN_COLUMNS)).reshape(2, -1))
    record.residency((*range(len(SLOT_COLUMNS) - 1), 1))
    record.residency((0, 9, 1, -1, -1, 5, 0))
    return record


def rows(table: pa.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.to_pylist()
    return found


def test_tables_hold_what_the_columns_hold_and_null_what_is_undefined() -> None:
    table = {name: np.array([0, 1, 2]) for name in (*REQUEST_COLUMNS, "measured")}
    table |= {"first_token_ns": np.array([5, -1, 7]), "priority": np.array([-1, 0, 1])}
    found = request_table(table, ["", "too long", "zu lang für ihn"], replication=4)
    found.validate(full=True)
    assert found["first_token_ns"].to_pylist() == [5, None, 7]
    assert found["priority"].to_pylist() == [-1, 0, 1]
    assert found["replication"].to_pylist() == [4, 4, 4]
    assert found["status"].to_pylist() == ["finished", "rejected", "refused"]
    assert found["reject_reason"].to_pylist() == [None, "too long", "zu lang für ihn"]
    assert found["measured"].to_pylist() == [False, True, True]


def test_spans_and_slots_as_tables() -> None:
    record = full_record()
    spans, slots = span_table(record, replication=1), slot_table(record)
    for table in (spans, slots):
        table.validate(full=True)
    width = len(SPAN_COLUMNS)
    assert rows(spans)[1] == {"replication": 1} | {name: width + i for i, name in enumerate(SPAN_COLUMNS)}
    assert slots["id"].to_pylist() == [9, 1]
    assert slots["prefill_end_ns"].to_pylist() == [None, 3]
    assert slots["end"].to_pylist() == ["finished", "preempted"]


def test_empty_tables() -> None:
    record = Record(keep_slots=False)
    requests = request_table({name: np.zeros(0, dtype=np.int64) for name in (*REQUEST_COLUMNS, "measured")}, [""], 0)
    for table in (requests, span_table(record, 0), slot_table(record)):
        table.validate(full=True)
        assert table.num_rows == 0


@pytest.mark.parametrize("rows_a_group", [1024, 5000, 1 << 20])
def test_the_file_is_what_pyarrow_writes_however_rows_are_chunked(
    rows_a_group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "ROWS_A_GROUP", rows_a_group)
    whole = pa.table({"a": np.arange(3000) ** 2, "b": ["x", None, "y"] * 1000})
    pieces = pa.concat_tables([whole.slice(0, 7), whole.slice(7, 1500), whole.slice(1507)])
    pq.write_table(whole, tmp_path / "expected", row_group_size=rows_a_group)
    for name, table in (("whole", whole), ("pieces", pieces)):
        run_dir.write_table(table, tmp_path / name)
        assert (tmp_path / name).read_bytes() == (tmp_path / "expected").read_bytes()


def test_a_file_without_rows(tmp_path: Path) -> None:
    run_dir.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "empty")
    assert pq.read_table(tmp_path / "empty").num_rows == 0
