"""When requests are played: idle gaps cut short, gaps scaled, think times of closed sessions."""

from __future__ import annotations

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.play.load import Log
from simkit.logs.read.record import MAX_NS, UNKNOWN, known
from simkit.types import Floats, Ints
from simkit.units import NS_PER_S, ns_to_s, s_to_ns


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
