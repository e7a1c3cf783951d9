"""What a log holds: its statistics, the content of info.json and the curves of its picture.

`Stats` takes requests in arrival order, part by part; what cannot be had so (`streams` is false) needs the whole log.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.logs.play.load import Log, arrange
from simkit.logs.read.blocks import walk
from simkit.logs.read.format import Format
from simkit.logs.read.log import RowLog
from simkit.logs.read.open import scanning
from simkit.logs.read.record import EPOCH_NS, NO_TIME, Columns
from simkit.logs.running_stats import PERCENTILES, ArrivalStats, Counts, too_fast
from simkit.plain import Json
from simkit.types import Floats, Ints
from simkit.units import NS_PER_MS, NS_PER_S, ns_to_s

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


# --- statistics -------------------------------------------------------------------------------------------------------
def unlimited_hits(columns: Columns, block_tokens: int) -> tuple[float, float] | None:
    """(share of the prompt blocks, share of the prompt tokens) that an unlimited cache, empty at first, already holds.

    A hit is a block that an earlier request of `columns` has behind the same blocks; hits never count more tokens than
    the prompt has. Requests without identities are left out; None when there are no others.
    """
    if columns.blocks is None:
        return None
    counts = np.diff(columns.blocks.offsets)
    with_ids = counts > 0
    num_tokens = int(columns.prompt_tokens[with_ids].sum())
    if not num_tokens:
        return None
    known = walk(columns.blocks, columns.prompt_tokens, block_tokens).known
    hit_tokens = np.minimum(known * block_tokens, columns.prompt_tokens)
    return float(known.sum() / counts.sum()), float(hit_tokens.sum() / num_tokens)


SAMPLE_ROWS = 8192
"""At most so many requests are kept for a picture of their lengths."""

MAX_NAMED_MODELS = 20


class Sample:
    """Every k-th row of two columns, k a power of two so that at most `SAMPLE_ROWS` are kept."""

    def __init__(self) -> None:
        self.stride = 1
        self._seen = 0
        self._rows: Ints = np.zeros((0, 2), dtype=np.int64)

    def add(self, prompts: Ints, outputs: Ints) -> None:
        """Take the next rows."""
        fresh = np.stack([prompts, outputs], axis=1)[-self._seen % self.stride :: self.stride]
        self._seen += len(prompts)
        self._rows = np.concatenate([self._rows, fresh])
        while len(self._rows) > SAMPLE_ROWS:
            self._rows = self._rows[::2]
            self.stride *= 2

    @property
    def rows(self) -> Ints:
        """int64[n, 2]: prompt and output tokens."""
        return self._rows


class Stats:
    """What is known of a log so far."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_without_time = 0
        self.has_sessions = False
        self.has_blocks = False
        self.times = ArrivalStats()
        self.prompts = Counts()
        self.outputs = Counts()
        self.sample = Sample()
        self.first_ns: int | None = None
        self._least_ns: int | None = None
        self._models: Counter[str] = Counter()
        self._measured: dict[str, list[Ints]] = {"ttft_ns": [], "e2e_ns": []}
        self._cached: list[int] = [0, 0]

    @property
    def streams(self) -> bool:
        """Whether parts in file order say it all: in order of time, and no request depends on an earlier one."""
        return self.times.in_order and not (self.num_without_time or self.has_sessions or self.has_blocks)

    @property
    def least_ns(self) -> int:
        """The earliest time, on the log's own clock; 0 when no request has one."""
        return self._least_ns or 0

    def add(self, columns: Columns) -> None:
        """Take the next requests."""
        if not len(columns):
            return
        timed = columns.time_ns[columns.time_ns != NO_TIME]
        if timed.size:
            least = int(timed.min())
            self.first_ns = int(timed[0]) if self.first_ns is None else self.first_ns
            self._least_ns = least if self._least_ns is None else min(self._least_ns, least)
        self.num_requests += len(columns)
        self.num_without_time += len(columns) - timed.size
        self.has_sessions |= columns.session is not None or columns.parent is not None
        self.has_blocks |= columns.blocks is not None
        self.times.add(timed)
        self.prompts.add(columns.prompt_tokens)
        self.outputs.add(columns.output_tokens)
        self.sample.add(columns.prompt_tokens, columns.output_tokens)
        if columns.model is not None:
            self._models.update(name for name in columns.model if name is not None)
        for name, parts in self._measured.items():
            column = getattr(columns, name)
            if column is not None:
                parts.append(column[column >= 0])
        if columns.cached_tokens is not None:
            known = columns.cached_tokens >= 0
            self._cached[0] += int(columns.cached_tokens[known].sum())
            self._cached[1] += int(columns.prompt_tokens[known].sum())

    def models(self) -> dict[str, int]:
        """How many requests each model has, the most frequent first."""
        ranked = sorted(self._models.items(), key=lambda item: (-item[1], item[0]))
        named = dict(ranked[:MAX_NAMED_MODELS])
        if len(ranked) > MAX_NAMED_MODELS:
            named["others"] = sum(count for _, count in ranked[MAX_NAMED_MODELS:])
        return named

    def measured(self) -> dict[str, float | dict[str, float]] | None:
        """Latencies in ms and the share of the prompt tokens found in a cache, as logged; None when nothing is."""
        found: dict[str, float | dict[str, float]] = {}
        for name, parts in self._measured.items():
            values = np.concatenate(parts) / NS_PER_MS if parts else np.zeros(0)
            if values.size:
                found[f"{name[:-3]}_ms"] = _spread(values)
        if self._cached[1]:
            found["cached_token_share"] = self._cached[0] / self._cached[1]
        return found or None


def session_stats(columns: Columns, after: Ints, session: Ints | None) -> Json | None:
    """Number of sessions, their turns, logged think times and the time from turn to turn; None without sessions.

    `after` is the row of a request's predecessor, -1 for the first of a session; `session` its number, -1 for none: it
    then is one of its own.
    """
    if session is None:
        return None
    turns = np.append(np.bincount(session[session >= 0]), np.ones(np.count_nonzero(session < 0), dtype=np.int64))
    think = columns.delay_ns[columns.delay_ns >= 0] if columns.delay_ns is not None else np.zeros(0, dtype=np.int64)
    both = (after >= 0) & (columns.time_ns != NO_TIME) & (columns.time_ns[after] != NO_TIME)
    steps = (columns.time_ns - columns.time_ns[after])[both]
    return {
        "num_sessions": len(turns),
        "num_with_several_turns": int(np.sum(turns > 1)),
        "turns": {"mean": float(turns.mean()), "max": int(turns.max())},
        "think_s": _spread(think / NS_PER_S) if think.size else None,
        "between_turns_s": _spread(steps / NS_PER_S) if steps.size else None,
    }


def _spread(values: Floats) -> dict[str, float]:
    found = {"mean": float(np.mean(values))}
    found |= {f"p{percent}": float(np.percentile(values, percent)) for percent in PERCENTILES}
    return found | {"max": float(np.max(values))}
