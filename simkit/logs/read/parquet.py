"""Rows of a parquet file, some thousand at a time.

Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from simkit.logs.read.text import BOMB_BYTES, BOMB_RATIO, Refusal

PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 8192


@contextmanager
def open_parquet(path: Path) -> Iterator[ParquetRows]:
    """The rows of a file. Refusal when it is no complete parquet file."""
    import pyarrow.parquet

    with path.open("rb") as raw:
        with _refused():
            texts = _texts(pyarrow.parquet.read_metadata(raw))
            file = pyarrow.parquet.ParquetFile(raw, read_dictionary=texts)
            columns = tuple(file.schema_arrow.names)
            _check_size(file.metadata, path.stat().st_size)
        with file:
            yield ParquetRows(file, columns)


def _texts(metadata: Any) -> list[str]:
    """The columns of texts, which stay codes into a dictionary: one long text in every row is held once."""
    columns = [metadata.schema.column(at) for at in range(metadata.num_columns)]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY" and "." not in column.path]


def _check_size(metadata: Any, num_bytes: int) -> None:
    """Refuse what is far larger than its file; a value counts for at least a byte, since equal ones pack to nothing."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    unpacked = max(metadata.num_rows, sum(group.total_byte_size for group in groups))
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * num_bytes:
        raise Refusal(f"unpacks to more than {BOMB_RATIO} times its size: not a log")


class ParquetRows:
    """The rows as record batches, taken once; `names` are those of the columns."""

    def __init__(self, file: Any, names: tuple[str, ...]) -> None:
        self.names = names
        self._file = file

    def batches(self, columns: list[str] | None = None) -> Iterator[Any]:
        """Record batches of up to BATCH_ROWS rows, of all columns or of some."""
        with _refused():
            batches = iter(self._file.iter_batches(BATCH_ROWS, columns=columns))
        while True:
            with _refused():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def plain_values(column: Any) -> list[Any]:
    """A column of a batch as Python values; timestamps, of any unit and zone, as int ns since 1970 UTC."""
    import pyarrow

    with _refused():
        if pyarrow.types.is_timestamp(column.type):
            column = column.cast(pyarrow.timestamp("ns", column.type.tz)).cast(pyarrow.int64())
        if not pyarrow.types.is_dictionary(column.type):
            values: list[Any] = column.to_pylist()
            return values
        codes = column.indices.fill_null(-1).to_numpy()
        known, at = np.unique(codes, return_inverse=True)
        texts = column.dictionary.take(pyarrow.array(known, mask=known < 0)).to_pylist()
    return [texts[place] for place in at.tolist()]


@contextmanager
def _refused() -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeError, OverflowError) as error:
        reason = (str(error).splitlines() or ["broken"])[0]
        raise Refusal(f"not readable as parquet: {reason[:200]}") from error
