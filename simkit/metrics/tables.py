"""The parquet tables of a run directory, from column buffers to arrow.

Arrays are made from buffers. So they share the memory of the columns; and pandas is not imported, which `pa.array`
does only to ask whether it was given something of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from simkit.metrics.record import REQUEST_COLUMNS, RESIDENCY_ENDS, STATUS_NAMES, Record
from simkit.types import Bools, Ints

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


def request_table(table: Mapping[str, Ints], reasons: Sequence[str], replication: int) -> pa.Table:
    """One row a request, as in `table` (by id); -1 becomes null in stamps and replica."""
    columns = {}
    for name in REQUEST_ORDER:
        if name == "replication":
            columns[name] = _constant(replication, len(table["id"]))
        elif name == "status":
            columns[name] = _texts(table[name], STATUS_NAMES)
        elif name == "reject_reason":
            columns[name] = _texts(table[name], [None, *reasons[1:]])
        elif name == "measured":
            columns[name] = _flags(table[name] != 0)
        else:
            columns[name] = _ints(table[name], optional=name in _OPTIONAL)
    return pa.table(columns)


def span_table(record: Record, replication: int) -> pa.Table:
    """One row a span, by start and replica."""
    spans = record.spans.sort("t_start_ns", "replica")
    columns = {"replication": _constant(replication, len(record.spans))}
    return pa.table(columns | {name: _ints(column) for name, column in spans.items()})


def slot_table(record: Record) -> pa.Table:
    """One row a stay in a slot, by admission, replica and id."""
    columns = {}
    for name, column in record.slots.sort("admitted_ns", "replica", "id").items():
        if name == "end":
            columns[name] = _texts(column, RESIDENCY_ENDS)
        else:
            columns[name] = _ints(column, optional=name in ("prefill_end_ns", "generated_last_ns"))
    return pa.table(columns)


# --- numpy to arrow ---------------------------------------------------------------------------------------------------
def _ints(values: Ints, optional: bool = False) -> pa.Array:
    """Integers; with `optional` those below 0 are null."""
    validity = _bits(values >= 0) if optional else None
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def _constant(value: int, count: int) -> pa.Array:
    return _ints(np.full(count, value, dtype=np.int64))


def _flags(values: Bools) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def _texts(codes: Ints, names: Sequence[str | None]) -> pa.Array:
    """The name of each code, null where that is None."""
    encoded = [(name or "").encode() for name in names]
    offsets = np.zeros(len(codes) + 1, dtype=np.int64)
    np.cumsum(np.array([len(text) for text in encoded])[codes], out=offsets[1:])
    assert offsets[-1] < 2**31, "texts of a column fit 2 GiB"
    content = b"".join([encoded[code] for code in codes.tolist()])
    validity = _bits(np.array([name is not None for name in names])[codes])
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.string(), len(codes), buffers)


def _bits(values: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
