"""Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens, and NumImages in 2025.

Source of the format: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023, 2024 and AzureLMMInferenceDataset2025.
Their times have 7 fractional digits and no zone, a zone and any number of digits, or `T` and `Z`; all are read.
Imports its siblings only.
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.errors import InputError
from simkit.workload.traces.fields import tokens, wall
from simkit.workload.traces.format import Format, Head, Source
from simkit.workload.traces.log import BadCell
from simkit.workload.traces.record import Columns, Record

NEEDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
ROWS_A_PART = 8192


def matches(head: Head) -> str | None:
    """By its three columns, in any order."""
    return f"columns {', '.join(NEEDS)}" if head.kind == "csv" and set(NEEDS) <= set(head.columns) else None


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    header, log = source.head.columns, source.log
    missing = [name for name in NEEDS if name not in header]
    if missing:
        raise InputError(f"{log.where}: format azure needs column {missing[0]!r}, header was {','.join(header)!r}")
    doubled = [name for name in NEEDS if header.count(name) > 1]
    if doubled:
        raise InputError(f"{log.where}: column {doubled[0]!r} appears more than once in the header")
    ignored = [name for name in header if name not in NEEDS]
    if ignored:
        log.remark(f"columns not used: {', '.join(ignored)}")
    records: list[Record] = []
    for line, cells in source.rows:
        log.num_rows += 1
        if len(cells) != len(header):
            log.add_bad(line, f"{len(cells)} cells, expected {len(header)}", cut=len(cells) < len(header))
            continue
        row = dict(zip(header, cells, strict=True))
        try:
            time_ns, has_zone = wall(row, "TIMESTAMP")
            found = Record(line, time_ns, tokens(row, "ContextTokens"), tokens(row, "GeneratedTokens"))
        except BadCell as error:
            log.add_bad(line, str(error), cut=not cells[-1])
            continue
        if not has_zone:
            log.remark("times name no zone and are read as UTC")
        records.append(found)
        if len(records) >= ROWS_A_PART:
            yield Columns.of(records)
            records = []
    yield Columns.of(records)


FORMAT = Format("azure", "Azure 2023 CSV", matches, read, NEEDS)
