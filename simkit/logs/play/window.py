"""Which requests of a log are played, and when.

Owns the window, the share of sessions, those too long and the first so many; idle gaps cut short, gaps scaled, and the
think times of closed sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.play.load import Log
from simkit.logs.read.log import counted
from simkit.logs.read.record import MAX_NS, UNKNOWN, known
from simkit.streams import Streams
from simkit.types import Floats, Ints
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


# --- when -------------------------------------------------------------------------------------------------------------
def without_idle(arrival_ns: Ints, spec: scenario.Trace, notes: list[str]) -> Ints:
    """Sorted arrivals with every gap, that before the first request too, at most `idle_gap_cap_s`."""
    if spec.idle_gap_cap_s is None:
        return arrival_ns
    cap_ns = s_to_ns(spec.idle_gap_cap_s)
    gaps = np.diff(arrival_ns, prepend=0)
    long = gaps[gaps > cap_ns]
    if not long.size:
        return arrival_ns
    cut_s = ns_to_s(int((long - cap_ns).sum()))
    many = "s are" if long.size > 1 else " is"
    notes.append(f"{long.size} gap{many} shortened to {spec.idle_gap_cap_s:g} s, {cut_s:.6g} s in all")
    return np.cumsum(np.minimum(gaps, cap_ns))


def speed_of(arrival_ns: Ints, spec: scenario.Trace, notes: list[str]) -> float:
    """What gaps are divided by: `speed`, or what brings the measured arrivals to `rate_per_s`."""
    if spec.rate_per_s is None:
        if spec.speed > 1:
            notes.append(f"gaps divided by {spec.speed:g}")
        elif spec.speed < 1:
            notes.append(f"gaps multiplied by {1 / spec.speed:g}, slower than recorded")
        return spec.speed
    span_s = ns_to_s(int(arrival_ns[-1] - arrival_ns[0]))
    if span_s == 0:
        what = "expected requests at different times, there are no gaps to scale"
        raise InputError(f"trace {spec.path}: rate_per_s: {what}")
    own = (len(arrival_ns) - 1) / span_s
    speed = spec.rate_per_s / own
    if speed == 0:
        raise _too_slow(spec)
    done = f"divided by {speed:.6g}, faster" if speed > 1 else f"multiplied by {1 / speed:.6g}, slower"
    notes.append(f"gaps {done} than recorded: {spec.rate_per_s:g} requests/s in place of {own:.6g}")
    return speed


def scaled(times_ns: Ints, speed: float, spec: scenario.Trace) -> Ints:
    """Times or gaps at another speed, to the nearest ns. InputError beyond 146 years."""
    if speed == 1:
        return times_ns
    with np.errstate(over="ignore"):
        found: Floats = times_ns / speed
    if found.size and not float(found.max()) <= MAX_NS:
        raise _too_slow(spec)
    return np.rint(found).astype(np.int64)


def _too_slow(spec: scenario.Trace) -> InputError:
    key, got = ("speed", spec.speed) if spec.rate_per_s is None else ("rate_per_s", spec.rate_per_s)
    return InputError(
        f"trace {spec.path}: {key}: expected a faster one than {got:g}, requests would arrive after 146 years"
    )


def think_times(log: Log, rows: Ints, after: Ints, arrival_ns: Ints, spec: scenario.Trace, notes: list[str]) -> Ints:
    """Time from the end of the request that each follows to its arrival, in trace time; 0 where it follows none.

    `after` are positions in `rows`. It is the delay that the log gives; else the gap between the two arrivals less the
    E2E that the log measured, at least 0; else the whole gap, which then has the service inside. None is longer than
    `idle_gap_cap_s`.
    """
    follows = np.flatnonzero(after >= 0)
    think = np.zeros(len(rows), dtype=np.int64)
    if not follows.size:
        return think
    before = after[follows]
    gap = np.maximum(arrival_ns[follows] - arrival_ns[before], 0)
    own = known(log.columns.delay_ns, rows[follows])
    # The delay counts from the turn right before; when that is not played only the gap is known.
    own = np.where(log.after[rows[follows]] == rows[before], own, UNKNOWN)
    own = np.where((own == UNKNOWN) & log.untimed[rows[follows]], gap, own)
    e2e = known(log.columns.e2e_ns, rows[before])
    rest = np.where(e2e == UNKNOWN, gap, np.maximum(gap - e2e, 0))
    think[follows] = np.where(own != UNKNOWN, own, rest)
    if spec.idle_gap_cap_s is not None:
        think = np.minimum(think, s_to_ns(spec.idle_gap_cap_s))
    counts = {
        "as the log has it": int(np.count_nonzero(own != UNKNOWN)),
        "the recorded gap less the measured E2E": int(np.count_nonzero((own == UNKNOWN) & (e2e != UNKNOWN))),
        "the recorded gap, which has the service of the turn before inside": int(
            np.count_nonzero((own == UNKNOWN) & (e2e == UNKNOWN))
        ),
    }
    kinds = "; ".join(f"{count} x {what}" for what, count in counts.items() if count)
    mean_s = float(think[follows].mean()) / NS_PER_S
    notes.append(
        f"closed sessions: {follows.size} of {len(rows)} requests start when the turn before them "
        f"has ended and a think time is over, {mean_s:.4g} s in the mean before scaling ({kinds})"
    )
    return think
