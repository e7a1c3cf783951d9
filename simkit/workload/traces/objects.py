"""From JSON objects to columns: one function a format reads one object; what it refuses is logged with its line.

Imports its own siblings only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from simkit.workload.traces.format import Source
from simkit.workload.traces.log import BadCell
from simkit.workload.traces.record import Columns, Record

ROWS_A_PART = 8192

ReadRow = Callable[[int, dict[str, Any], Source], Record | None]
"""(line, object, source) to a request; None for what is none, which the function has logged. BadCell: unreadable."""


def read_objects(source: Source, read_row: ReadRow) -> Iterator[Columns]:
    """The requests of a JSON file in file order, `ROWS_A_PART` at a time."""
    records: list[Record] = []
    for line, row in source.rows:
        source.log.num_rows += 1
        if not isinstance(row, dict):
            source.log.add_bad(line, f"{type(row).__name__}, expected an object")
            continue
        try:
            found = read_row(line, row, source)
        except BadCell as error:
            source.log.add_bad(line, str(error))
            continue
        if found is not None:
            records.append(found)
        if len(records) >= ROWS_A_PART:
            yield Columns.of(records)
            records = []
    yield Columns.of(records)
