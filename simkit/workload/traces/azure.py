"""Azure LLM inference trace, CSV with columns TIMESTAMP, ContextTokens, GeneratedTokens.

Source of the format: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023. Its times are naive with 7 fractional
digits (`2023-11-16 18:15:46.6805900`); zones and any other number of digits are read as well.
Imports `errors`, `units` and `rows`.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterable, Sequence

from simkit.errors import InputError
from simkit.units import NS_PER_S
from simkit.workload.traces.rows import Columns, Row, RowLog

TITLE = "Azure 2023 CSV"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[ T](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_MAX_DIGITS = 12


def matches(header: Sequence[str]) -> bool:
    """Whether a file with these column names is in this format; the order of columns does not matter."""
    return set(COLUMNS) <= set(header)


@functools.lru_cache(maxsize=64)
def _day_s(date: str) -> int:
    return (datetime.date.fromisoformat(date) - datetime.date(1970, 1, 1)).days * 86_400


def parse_time_ns(text: str) -> tuple[int, bool]:
    """A timestamp as (ns since 1970 UTC, whether it names its zone). Exact; digits beyond 1 ns are cut.

    ValueError when it is not of the form `YYYY-MM-DD hh:mm:ss[.fraction][Z|+hh:mm]`.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    date, hour, minute, second, fraction, zone = match.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise ValueError(text)
    seconds = _day_s(date) + int(hour) * 3600 + int(minute) * 60 + int(second)
    if zone is not None and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        seconds -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    nanos = int((fraction or "").ljust(9, "0")[:9])
    return seconds * NS_PER_S + nanos, zone is not None


def _tokens(cell: str) -> int | None:
    cell = cell.strip()
    return int(cell) if cell.isascii() and cell.isdecimal() and len(cell) <= _MAX_DIGITS else None


def read(header: Sequence[str], rows: Iterable[Row], log: RowLog) -> Columns:
    """The requests of the file in file order. InputError when a column is missing; rows left out go to `log`."""
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(f"{log.where}: format azure needs column {missing[0]!r}, header was {','.join(header)!r}")
    doubled = [name for name in COLUMNS if list(header).count(name) > 1]
    if doubled:
        raise InputError(f"{log.where}: column {doubled[0]!r} appears more than once in the header")
    ignored = [name for name in header if name not in COLUMNS]
    if ignored:
        log.remarks.append(f"{log.where}: columns not used: {', '.join(ignored)}")
    time_at, prompt_at, output_at = (list(header).index(name) for name in COLUMNS)
    columns, width = Columns(), len(header)
    any_naive = False
    for line, cells in rows:
        log.num_rows += 1
        if len(cells) != width:
            log.add_bad(line, f"{len(cells)} cells, expected {width}", short=len(cells) < width)
            continue
        try:
            time_ns, has_zone = parse_time_ns(cells[time_at].strip())
        except ValueError:
            log.add_bad(line, f"TIMESTAMP {cells[time_at]!r}, expected YYYY-MM-DD hh:mm:ss.fraction")
            continue
        counts = []
        for name, at in zip(COLUMNS[1:], (prompt_at, output_at), strict=True):
            tokens = _tokens(cells[at])
            if tokens is None:
                log.add_bad(line, f"{name} {cells[at]!r}, expected an integer >= 0", short=not cells[-1])
                break
            counts.append(tokens)
        if len(counts) < 2:
            continue
        any_naive |= not has_zone
        if 0 in counts:
            log.add_skipped(line, f"0 {COLUMNS[1 + counts.index(0)]}, a request that was not served")
            continue
        columns.add(time_ns, *counts)
    if any_naive:
        log.remarks.append(f"{log.where}: times name no zone and are read as UTC")
    return columns
