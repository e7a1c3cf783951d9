"""Parquet as `simkit trace convert` writes it: every field of a request."""

from __future__ import annotations

from collections.abc import Iterator

from simkit.errors import InputError
from simkit.logs.canonical import NEEDED, read_parts
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.record import Columns

NEEDS = ("arrival_ns", "prompt_tokens", "output_tokens")


def matches(head: Head) -> str | None:
    """By all of its columns."""
    if head.kind != "parquet" or not set(NEEDED) <= set(head.columns):
        return None
    return f"parquet with {', '.join(NEEDS)} and all other canonical columns"


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order, which is that of arrival."""
    if source.head.kind != "parquet":
        raise InputError(f"{source.log.where}: format canonical is a parquet file, got {source.head.kind}")
    return read_parts(source.path, source.log)


FORMAT = Format("canonical", "simkit canonical parquet", matches, read, NEEDS)
