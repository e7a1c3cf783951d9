"""GuideLLM benchmark results (benchmarks.json): requests of one benchmark, with times since 1970 and token counts.

Source of the format: vllm-project/guidellm, schemas of GenerativeBenchmarksReport and GenerativeRequestStats, whose
times moved between versions: `info.timings`, `scheduler_info.request_timings`, or fields of the request itself, in s;
`time_to_first_token_ms` in ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simkit.errors import InputError
from simkit.logs.read.fields import Row, note_unit, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell, shown
from simkit.logs.read.record import Columns, Record

NEEDS = ("benchmarks",)
FAILED = {"errored": "with an error", "incomplete": "incomplete"}
STARTS = ("request_start", "request_start_time", "start_time")
FIRSTS = ("first_token_iteration", "first_iteration", "first_token_time")
LASTS = ("last_token_iteration", "last_iteration", "last_token_time", "request_end", "request_end_time", "end_time")
_STATUS = "simkit status"  # where it stands among the requests, in none of their own fields


def matches(head: Head) -> str | None:
    """By benchmarks with requests in them."""
    if head.kind != "json":
        return None
    reports = [found.get("benchmarks") for found in head.objects]
    runs = [run for report in reports if isinstance(report, list) for run in report]
    fits = any(isinstance(run, dict) and "requests" in run for run in runs)
    return "field benchmarks[].requests" if fits else None


def read(source: Source) -> Iterator[Columns]:
    """The requests, those that were served first; their line is their place. InputError for several benchmarks."""
    require(source, source.format.needs)
    note_unit(source, "request_start", "s")
    return read_objects(replace(source, rows=_rows(source)), record)


def _rows(source: Source) -> Iterator[tuple[int, Any]]:
    where, line, num_runs = source.log.where, 0, 0
    for _, report in source.rows:
        runs = report.get("benchmarks")
        if not isinstance(runs, list):
            raise InputError(f"{where}: benchmarks {shown(runs)}, expected a list")
        for run in runs:
            num_runs += 1
            if num_runs > 1:
                raise InputError(f"{where}: several benchmarks in one file: expected one, each run by itself")
            for row in _of_run(run, where):
                line += 1
                source.log.line = line
                yield line, row


def _of_run(run: object, where: str) -> Iterator[dict[str, object]]:
    groups = run.get("requests") if isinstance(run, dict) else None
    if not isinstance(groups, dict):
        raise InputError(f"{where}: requests {shown(groups)}, expected successful, incomplete and errored ones")
    for status in ("successful", *FAILED):
        rows = groups.get(status) or []
        if not isinstance(rows, list):
            raise InputError(f"{where}: {status} requests {shown(rows)}, expected a list")
        for row in rows:
            yield {**(row if isinstance(row, dict) else {"request": row}), _STATUS: status}


def record(row: Row) -> Record:
    """One request."""
    times = row.within(_times(row))
    at, first, last = (_time(times, names) for names in (STARTS, FIRSTS, LASTS))
    if at is None:
        raise BadCell("request_start", None, "a time in s since 1970")
    failed = FAILED.get(str(row.get(_STATUS)))
    return Record(
        line=row.line,
        time_ns=at,
        prompt_tokens=_count(row, "prompt_tokens", failed),
        output_tokens=_count(row, "output_tokens", failed),
        id=row.text("request_id"),
        failed=failed,
        ttft_ns=row.elapsed(at, first, "first token"),
        e2e_ns=row.elapsed(at, last, "last token"),
    )


def _times(row: Row) -> dict[str, object]:
    """All times of a request, wherever its version has them."""
    info, older = row.get("info"), row.get("scheduler_info")
    inner = info.get("timings") if isinstance(info, dict) else None
    outer = older.get("request_timings") if isinstance(older, dict) else None
    found = {name: row.get(name) for name in (*STARTS, *FIRSTS, *LASTS) if row.get(name) is not None}
    for timings in (outer, inner):
        if isinstance(timings, dict):
            found.update({name: value for name, value in timings.items() if value is not None})
    return found


def _time(times: Row, names: tuple[str, ...]) -> int | None:
    name = times.first(*names)
    return None if name is None else times.time(name, "s")


def _count(row: Row, name: str, failed: str | None) -> int:
    """A count; 0 where a request that failed has none."""
    return 0 if failed is not None and row.get(name) is None else row.tokens(name)


FORMAT = Format("guidellm-results", "GuideLLM benchmark results", matches, read, NEEDS)
