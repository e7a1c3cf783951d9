"""Which requests of a log are played: the window, the share of sessions, those too long, the first so many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.play.load import Log
from simkit.logs.read.log import counted
from simkit.streams import Streams
from simkit.types import Ints
from simkit.units import NS_PER_S, ns_to_s, s_to_ns


@dataclass(frozen=True, slots=True)
class Window:
    """`rows` of the log in order of their times, the first `num_warm` to warm the caches; `time_ns` counts from where
    the window begins, warm-up included."""

    rows: Ints
    time_ns: Ints
    num_warm: int


def cut(
    log: Log, time_ns: Ints, spec: scenario.Trace, streams: Streams, max_model_len: int | None, notes: list[str]
) -> Window:
    """The rows that `spec` plays. `time_ns` are the log's times, sorted or not (spread times may cross).

    InputError when none is left behind `start_s`.
    """
    start_ns = s_to_ns(spec.start_s)
    from_ns = start_ns - s_to_ns(spec.warmup_s)
    rows = np.argsort(time_ns, kind="stable")
    first = int(np.searchsorted(time_ns[rows], from_ns, side="left"))
    end = len(rows) if spec.end_s is None else int(np.searchsorted(time_ns[rows], s_to_ns(spec.end_s), side="left"))
    last = max(first, end)
    rows = rows[first:last]
    rows, thinned = _thinned(log, rows, spec, streams)
    rows, dropped = _short_enough(log, rows, spec, max_model_len)
    num_warm = int(np.searchsorted(time_ns[rows], start_ns, side="left"))
    if len(rows) == num_warm:
        until = "the end" if spec.end_s is None else f"{spec.end_s:g} s"
        left = "".join(f"; {note}" for note in (*thinned, *dropped))
        span_s = ns_to_s(int(time_ns.max()))
        found = f"no requests from {start_ns / NS_PER_S:g} s to {until}; the trace lasts {span_s:g} s"
        key = "workload.trace.start_s" if "start_s" in spec.model_fields_set else None
        raise InputError(f"trace {spec.path}: {found}{left}", key=key, says_key=False)
    if spec.max_requests is not None and len(rows) - num_warm > spec.max_requests:
        rows = rows[: num_warm + spec.max_requests]
        if not thinned and not dropped:
            last = first + len(rows)
        else:
            dropped.append(f"of what remains the first {spec.max_requests} requests from start_s on are replayed")
    if first > 0 or last < len(log):
        notes.append(f"requests {first + 1} to {last} of {len(log)} are replayed")
    notes += [*thinned, *dropped]
    if num_warm:
        notes.append(
            f"the caches are warmed by the first {counted(num_warm, 'request')}, from "
            f"{spec.start_s - spec.warmup_s:g} s to {spec.start_s:g} s, not measured"
        )
    return Window(rows, time_ns[rows] - from_ns, num_warm)


def _thinned(log: Log, rows: Ints, spec: scenario.Trace, streams: Streams) -> tuple[Ints, list[str]]:
    """The rows of the sessions that are kept, requests without one each for itself.

    Session i of the log is kept when value i of the stream is below `keep_share`: whatever the window is, and more of
    the same with a larger share.
    """
    if spec.keep_share == 1:
        return rows, []
    roots, at = np.unique(_first_rows(log), return_inverse=True)
    drawn = streams("trace_keep_share").uniforms(len(roots))[at]
    kept = rows[drawn[rows] < spec.keep_share]
    what = "requests" if log.session is None else "requests, sessions kept whole"
    return kept, [f"keep_share {spec.keep_share:g} keeps {len(kept)} of {len(rows)} {what}"]


def _first_rows(log: Log) -> Ints:
    """For each row the first one of its session, itself where it has none."""
    alone = np.arange(len(log), dtype=np.int64)
    if log.session is None:
        return alone
    _, first, at = np.unique(log.session, return_index=True, return_inverse=True)
    return np.where(log.session >= 0, first[at], alone)


def _short_enough(log: Log, rows: Ints, spec: scenario.Trace, max_model_len: int | None) -> tuple[Ints, list[str]]:
    """With `too_long: drop`, the rows whose prompt leaves room for an answer."""
    if spec.too_long != "drop" or max_model_len is None:
        return rows, []
    kept = rows[log.columns.prompt_tokens[rows] < max_model_len]
    count = len(rows) - len(kept)
    if not count:
        return rows, []
    is_dropped = "s are" if count > 1 else " is"
    return kept, [
        f"{count} request{is_dropped} dropped whose prompt is not shorter than max_model_len ({max_model_len})"
    ]
