"""The parquet tables of a run directory, from column buffers to arrow. Imports pyarrow and `metrics.record`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from simkit.metrics.record import REQUEST_COLUMNS, RESIDENCY_ENDS, STATUS_NAMES, Record
from simkit.types import Ints

_INTERNAL = ("wanted_tokens", "samples", "left_ns")
REQUEST_ORDER = ("id", "replication", *(c for c in REQUEST_COLUMNS[1:] if c not in _INTERNAL), "measured")
_OPTIONAL = (
    "first_scheduled_ns",
    "first_token_ns",
    "last_token_ns",
    "generated_first_ns",
    "generated_last_ns",
    "replica",
)


def request_table(replications: Sequence[tuple[dict[str, Ints], list[str]]]) -> pa.Table:
    """One row a request, by replication and id; -1 becomes null in stamps and replica."""
    parts = []
    for replication, (table, reasons) in enumerate(replications):
        columns = {}
        for name in REQUEST_ORDER:
            if name == "replication":
                columns[name] = pa.array(np.full(len(table["id"]), replication, dtype=np.int64))
            elif name == "status":
                columns[name] = _texts(table[name], STATUS_NAMES)
            elif name == "reject_reason":
                columns[name] = _texts(table[name], [None, *reasons[1:]])
            elif name == "measured":
                columns[name] = pa.array(table[name].astype(bool))
            else:
                columns[name] = _ints(table[name], optional=name in _OPTIONAL)
        parts.append(pa.table(columns))
    return pa.concat_tables(parts).combine_chunks()


def span_table(records: Sequence[Record]) -> pa.Table:
    """One row a span, by replication, start and replica."""
    parts = []
    for replication, record in enumerate(records):
        spans = record.spans.to_dict()
        order = np.lexsort((spans["replica"], spans["t_start_ns"]))
        columns = {"replication": pa.array(np.full(len(order), replication, dtype=np.int64))}
        columns |= {name: pa.array(column[order]) for name, column in spans.items()}
        parts.append(pa.table(columns))
    return pa.concat_tables(parts).combine_chunks()


def slot_table(record: Record) -> pa.Table:
    """One row a stay in a slot, by admission, replica and id."""
    slots = record.slots.to_dict()
    order = np.lexsort((slots["id"], slots["replica"], slots["admitted_ns"]))
    columns = {}
    for name, column in slots.items():
        if name == "end":
            columns[name] = _texts(column[order], RESIDENCY_ENDS)
        else:
            columns[name] = _ints(column[order], optional=name in ("prefill_end_ns", "generated_last_ns"))
    return pa.table(columns)


def _ints(values: Ints, optional: bool) -> pa.Array:
    return pa.array(values, mask=values < 0) if optional else pa.array(values)


def _texts(codes: Ints, names: Sequence[str | None]) -> pa.Array:
    return pa.array([names[code] for code in codes], type=pa.string())
