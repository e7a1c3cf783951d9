"""What a log holds, as the content of info.json and the curves of its picture."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.logs.play.load import Log, arrange
from simkit.logs.read.format import Format
from simkit.logs.read.log import RowLog
from simkit.logs.read.open import scanning
from simkit.logs.read.record import EPOCH_NS, NO_TIME, Columns
from simkit.logs.running_stats import ArrivalStats, too_fast
from simkit.logs.stats import Stats, session_stats, unlimited_hits
from simkit.plain import Json
from simkit.types import Ints
from simkit.units import NS_PER_S, ns_to_s

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Survey:
    """A first pass over a log: its statistics as far as they can be had in file order, and what was left out."""

    format: Format
    why: str
    rows: RowLog
    stats: Stats
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """`info` is the content of info.json; `curves` are the arrays that its picture draws."""

    info: Json
    curves: Json


def survey(
    spec: scenario.Trace,
    base_dir: Path | None = None,
    report: OnProgress | None = None,
    take: Callable[[Columns, Stats], None] | None = None,
) -> Survey:
    """Read a log once, in memory that does not grow with it. InputError, one line, for anything unreadable.

    `take` is handed each part that has requests, with what is known by then.
    """
    stats = Stats()
    with scanning(spec, base_dir) as scan:
        for part in scan.parts:
            stats.add(part)
            if take is not None and len(part):
                take(part, stats)
            if report is not None:
                report(0.0, f"{stats.num_requests:,} requests read")
        notes = scan.notes()
        rows, found = scan.log, scan.format
    return Survey(found, scan.why, rows, stats, tuple(notes))


def own_times(log: Log) -> Ints:
    """The times that the log itself gives, from the earliest; NO_TIME where it gives none."""
    return np.where(log.untimed, NO_TIME, log.columns.time_ns)


def describe(spec: scenario.Trace, base_dir: Path | None = None, report: OnProgress | None = None) -> Description:
    """Statistics of a log, what was detected and decided, and the dirt in it.

    In memory that does not grow with the log when it is in order and its requests do not depend on each other, else
    the log is read a second time, whole. InputError, one line, for anything unreadable and a log without requests.
    """
    found = survey(spec, base_dir, report)
    stats, rows, notes = found.stats, found.rows, list(found.notes)
    log, hits = None, None
    if not (stats.streams and stats.num_requests):
        with scanning(spec, base_dir) as scan:
            log = arrange(
                Columns.concatenate([part for part in scan.parts if len(part)]), spec, scan.log, scan.format, scan.why
            )
            rows = scan.log
        log = replace(log, columns=replace(log.columns, time_ns=own_times(log)))
        stats = Stats()
        stats.add(log.columns)
        # The first says what the file was read as.
        notes = list(log.notes[1:])
        if log.hash_block_tokens is not None:
            hits = unlimited_hits(log.columns, log.hash_block_tokens)
    # What a log that is read whole tells of its times is among its notes.
    notes += [*(_of_times(stats.times) if log is None else ()), *_warnings(stats)]
    info = {
        "num_requests": stats.num_requests,
        "num_rows": rows.num_rows,
        "format": found.format.name,
        "title": found.format.title,
        "why": found.why,
        **stats.times.summary(),
        "prompt_tokens": stats.prompts.summary(),
        "output_tokens": stats.outputs.summary(),
        "prefix": None
        if hits is None or log is None
        else {"hash_block_tokens": log.hash_block_tokens, "block_hit_share": hits[0], "token_hit_share": hits[1]},
        "sessions": None if log is None else session_stats(log.columns, log.after, log.session),
        "clock": _clock(found.stats, stats),
        "measured": stats.measured(),
        "models": stats.models(),
        "skipped": [
            {"reason": reason, "count": count, "lines": list(lines)} for reason, (count, lines) in rows.skipped.items()
        ],
        "bad": {"count": rows.num_bad, "lines": [str(row) for row in rows.bad]},
        "notes": notes,
    }
    return Description(info, _curves(stats))


def _clock(own: Stats, ordered: Stats) -> Json:
    """`own` has the times as the log has them, `ordered` the same in order and from 0."""
    first, clock = own.least_ns, ordered.times.clock
    return {
        "start_utc": _utc(first) if first > EPOCH_NS else None,
        "tick_s": None if clock is None or clock.tick_ns is None else ns_to_s(clock.tick_ns),
        "tied_share": ordered.times.tied_share,
        "resolution_s": ordered.times.resolution_s,
        "in_order": own.times.in_order,
        "num_without_time": ordered.num_without_time,
    }


def _utc(time_ns: int) -> str:
    seconds, nanos = divmod(time_ns, NS_PER_S)
    start = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return f"{start.isoformat()}.{nanos:09d}".rstrip("0").rstrip(".") + "Z"


def _of_times(times: ArrivalStats) -> list[str]:
    clock = times.clock
    return [*([] if clock is None else [clock.note()]), *too_fast(times.count, times.span_s)]


def _warnings(stats: Stats) -> list[str]:
    """What to beware of beside the times."""
    notes = []
    if stats.num_without_time:
        notes.append(
            f"{stats.num_without_time} of {stats.num_requests} requests have no time of their own and follow the one "
            "before in their session; span, rate and burstiness are those of the others"
        )
    if not stats.has_blocks:
        notes.append("no identities of prompt blocks: how much prompts share is unknown, not 0")
    return notes


def _curves(stats: Stats) -> Json:
    times: ArrivalStats = stats.times
    num_bins = 0 if not times.count else (times.last_ns - times.first_ns) // times.bins.width_ns + 1
    gap_s, share = times.gap_curve()
    return {
        "bin_s": times.bins.width_ns / NS_PER_S,
        "arrivals_per_bin": times.bins.counts[:num_bins],
        "gap_s": gap_s,
        "gap_share": share,
        "prompt_tokens": stats.sample.rows[:, 0],
        "output_tokens": stats.sample.rows[:, 1],
        "sample_stride": stats.sample.stride,
    }
