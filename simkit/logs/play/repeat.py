"""A played trace several times over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.play.played import Trace
from simkit.logs.read.blocks import Shared
from simkit.logs.read.timestamps import MAX_NS
from simkit.types import Ints
from simkit.units import ns_to_s

MAX_PLAYED = 10_000_000
"""More requests than this are refused."""


def repeated(trace: Trace, part: Shared, spec: scenario.Trace, notes: list[str]) -> Trace:
    """The trace with its measured requests `repeat` times: the same gaps and lengths, other customers and prompts.

    `part` is what the measured prompts have in common among themselves. Between two repetitions lies their mean gap.
    InputError when all requests come at once, and when the trace becomes too long.
    """
    warm, count, times = trace.num_warm, len(trace) - trace.num_warm, spec.repeat
    if times == 1:
        return trace
    where = f"trace {spec.path}: repeat"
    arrival = trace.arrival_ns[warm:]
    span_ns = int(arrival[-1] - arrival[0])
    if span_ns == 0:
        raise InputError(f"{where}: expected requests at different times, no gap is known to put between")
    if warm + count * times > MAX_PLAYED:
        raise InputError(f"{where}: expected at most {MAX_PLAYED:,} requests in all, got {warm + count * times:,}")
    gap_ns = round(span_ns / (count - 1))
    if int(arrival[-1]) + (span_ns + gap_ns) * (times - 1) > MAX_NS:
        raise InputError(f"{where}: expected fewer times, requests would arrive after 146 years")
    # What follows a request of the warm-up, which does not come again, begins a session when it does.
    inner = np.where(trace.after[warm:] >= warm, trace.after[warm:], -1)

    def more(column: Ints, again: Ints | None = None, step: int = 0) -> Ints:
        """A column with its repetitions behind; in each, `step` is added to what is not negative."""
        rest = column[warm:] if again is None else again
        moved = rest + (np.arange(1, times) * step)[:, None] * (rest >= 0)
        return np.concatenate([column, moved.reshape(-1)])

    notes.append(
        f"trace {spec.path}: {count} requests are played {times} times, one time behind the other after the mean gap "
        f"of {ns_to_s(gap_ns):.4g} s: the same gaps and lengths, new customers and prompts"
    )
    return replace(
        trace,
        arrival_ns=more(trace.arrival_ns, step=span_ns + gap_ns),
        prompt_tokens=more(trace.prompt_tokens),
        output_tokens=more(trace.output_tokens),
        after=more(trace.after, inner, count),
        think_ns=more(trace.think_ns, np.where(inner >= 0, trace.think_ns[warm:], 0)),
        session=more(trace.session, step=int(trace.session.max()) + 1),
        shared=_again(trace.shared, part, warm, count, times),
        ttft_ns=more(trace.ttft_ns),
        e2e_ns=more(trace.e2e_ns),
        row=more(trace.row),
        line=more(trace.line),
        gaps=None if trace.gaps is None else trace.gaps.take(more(np.arange(len(trace)))),
    )


def _again(whole: Shared, part: Shared, warm: int, count: int, times: int) -> Shared:
    """Segments of the whole trace and of its part again, each time with owners of its own."""
    shifts = warm + np.arange(1, times) * count
    owners = [whole.owner, (part.owner + shifts[:, None]).reshape(-1)]
    counts = [np.diff(whole.offsets), np.tile(np.diff(part.offsets), times - 1)]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    upto = np.concatenate([whole.upto_tokens, np.tile(part.upto_tokens, times - 1)])
    return Shared(np.concatenate(owners), upto, offsets)
