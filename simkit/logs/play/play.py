"""What is played of a log, and how: the window, the gaps, the sessions, the prompts in common, several times over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.errors import InputError, about
from simkit.logs.play.clock import spread
from simkit.logs.play.load import Log, load_log
from simkit.logs.play.window import cut, scaled, speed_of, think_times, without_idle
from simkit.logs.read.blocks import Shared, walk
from simkit.logs.read.log import RemarkKind, counted, numbers
from simkit.logs.read.record import MAX_NS, UNKNOWN, Gaps, known, offsets_of
from simkit.streams import Streams
from simkit.types import Ints
from simkit.units import ns_to_s


@dataclass(frozen=True, slots=True)
class PlayedLog:
    """Requests as they are played, in arrival order, request i being the i-th; `arrival_ns` counts from the window.

    The first `num_warm` are served to warm the caches and not measured. `after` is the request that each follows, -1
    for none, and `think_ns` the time from the end of that (closed sessions; 0 elsewhere). `closed`: those that follow
    another arrive when it lets them, their `arrival_ns` only says when they came in the log. `session` numbers the
    sessions, -1 for none. `shared` says what prompts have in common, as far as `has_blocks`. `row` and `line` say where
    in the log a request is from, `ttft_ns` and `e2e_ns` what was measured there (UNKNOWN where nothing was), and `gaps`
    the times between tokens (None where the log has none at all). `notes` tell all that was detected, decided and left
    out, each with the name of the log, and `remarks` of what kinds they are.
    """

    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    after: Ints
    think_ns: Ints
    session: Ints
    shared: Shared
    ttft_ns: Ints
    e2e_ns: Ints
    row: Ints
    line: Ints
    num_warm: int
    closed: bool
    has_blocks: bool
    notes: tuple[str, ...]
    remarks: frozenset[RemarkKind] = frozenset()
    gaps: Gaps | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)


MAX_PLAYED = 10_000_000
"""More requests than this are refused."""


def repeated(played: PlayedLog, part: Shared, spec: scenario.Trace, notes: list[str]) -> PlayedLog:
    """The log with its measured requests `repeat` times: the same gaps and lengths, other customers and prompts.

    `part` is what the measured prompts have in common among themselves. Between two repetitions lies their mean gap.
    InputError when all requests come at once, and when the log becomes too long.
    """
    warm, count, times = played.num_warm, len(played) - played.num_warm, spec.repeat
    if times == 1:
        return played
    where = f"trace {spec.path}: repeat"
    arrival = played.arrival_ns[warm:]
    span_ns = int(arrival[-1] - arrival[0])
    if span_ns == 0:
        raise InputError(f"{where}: expected requests at different times, no gap is known to put between")
    if warm + count * times > MAX_PLAYED:
        raise InputError(f"{where}: expected at most {MAX_PLAYED:,} requests in all, got {warm + count * times:,}")
    gap_ns = round(span_ns / (count - 1))
    if int(arrival[-1]) + (span_ns + gap_ns) * (times - 1) > MAX_NS:
        raise InputError(f"{where}: expected fewer times, requests would arrive after 146 years")
    # What follows a request of the warm-up, which does not come again, begins a session when it does.
    inner = np.where(played.after[warm:] >= warm, played.after[warm:], -1)

    def more(column: Ints, again: Ints | None = None, step: int = 0) -> Ints:
        """A column with its repetitions behind; in each, `step` is added to what is not negative."""
        rest = column[warm:] if again is None else again
        moved = rest + (np.arange(1, times) * step)[:, None] * (rest >= 0)
        return np.concatenate([column, moved.reshape(-1)])

    notes.append(
        f"{count} requests are played {times} times, one time behind the other after the mean gap "
        f"of {ns_to_s(gap_ns):.4g} s: the same gaps and lengths, new customers and prompts"
    )
    return replace(
        played,
        arrival_ns=more(played.arrival_ns, step=span_ns + gap_ns),
        prompt_tokens=more(played.prompt_tokens),
        output_tokens=more(played.output_tokens),
        after=more(played.after, inner, count),
        think_ns=more(played.think_ns, np.where(inner >= 0, played.think_ns[warm:], 0)),
        session=more(played.session, step=int(played.session.max()) + 1),
        shared=_again(played.shared, part, warm, count, times),
        ttft_ns=more(played.ttft_ns),
        e2e_ns=more(played.e2e_ns),
        row=more(played.row),
        line=more(played.line),
        gaps=None if played.gaps is None else played.gaps.take(more(np.arange(len(played)))),
    )


def _again(whole: Shared, part: Shared, warm: int, count: int, times: int) -> Shared:
    """Segments of the whole log and of its part again, each time with owners of its own."""
    shifts = warm + np.arange(1, times) * count
    owners = [whole.owner, (part.owner + shifts[:, None]).reshape(-1)]
    counts = [np.diff(whole.offsets), np.tile(np.diff(part.offsets), times - 1)]
    upto = np.concatenate([whole.upto_tokens, np.tile(part.upto_tokens, times - 1)])
    return Shared(np.concatenate(owners), upto, offsets_of(np.concatenate(counts)))


@about("workload.trace.path", says_key=False)
def play_log(
    spec: scenario.Trace, base_dir: Path | None, *, streams: Streams | None = None, max_model_len: int | None = None
) -> PlayedLog:
    """Read `spec.path` and play it. InputError, one line, for anything unreadable and for an empty window."""
    return play(load_log(spec, base_dir), spec, streams=streams, max_model_len=max_model_len)


def play(
    log: Log, spec: scenario.Trace, *, streams: Streams | None = None, max_model_len: int | None = None
) -> PlayedLog:
    """What `spec` plays of a log. `streams` draw what is drawn; prompts are held against `max_model_len` if given."""
    notes = list(log.notes)
    streams = streams or Streams(0, 0)
    window = cut(log, _spread(log, spec, streams, notes), spec, streams, max_model_len, notes)
    rows, columns = window.rows, log.columns
    arrival = without_idle(window.time_ns, spec, notes)
    after = _nearest_played(log.after, rows)
    closed = spec.sessions == "closed" and bool(np.any(after >= 0))
    think = np.zeros(len(rows), dtype=np.int64)
    if closed:
        think = think_times(log, rows, after, arrival, spec, notes)
    elif spec.sessions == "closed":
        notes.append("no request follows another: all arrive at their recorded times")
    elif untimed := int(np.count_nonzero(log.untimed[rows])):
        notes.append(
            f"{counted(untimed, 'request')} without a time: placed the delay after the "
            "arrival of the one before, without its service time (sessions: closed waits for it)"
        )
    speed = speed_of(arrival[window.num_warm :], spec, notes)
    prompts, outputs = _lengths(log, rows, spec, max_model_len, notes)
    played = PlayedLog(
        arrival_ns=scaled(arrival, speed, spec),
        prompt_tokens=prompts,
        output_tokens=outputs,
        after=after,
        think_ns=scaled(think, speed, spec),
        session=known(log.session, rows),
        shared=_shared(log, rows, prompts),
        ttft_ns=known(columns.ttft_ns, rows),
        e2e_ns=known(columns.e2e_ns, rows),
        row=rows,
        line=columns.line[rows],
        num_warm=window.num_warm,
        closed=closed,
        has_blocks=log.hash_block_tokens is not None,
        notes=(),
        remarks=log.remarks,
        gaps=None if columns.gaps is None else columns.gaps.take(rows),
    )
    played = _possible(played, notes)
    warm = window.num_warm
    # What comes again is not the warm-up, so what it has in common with that counts once.
    part = played.shared if warm == 0 or spec.repeat == 1 else _shared(log, rows[warm:], prompts[warm:])
    played = repeated(played, part, spec, notes)
    return replace(played, notes=tuple(f"trace {spec.path}: {note}" for note in notes))


def _possible(played: PlayedLog, notes: list[str]) -> PlayedLog:
    """The log without measured times that cannot be: a first token behind the last."""
    wrong = np.flatnonzero((played.e2e_ns != UNKNOWN) & (played.ttft_ns > played.e2e_ns))
    if not len(wrong):
        return played
    lines = numbers(played.line[wrong].tolist())
    notes.append(
        f"{counted(len(wrong), 'request')} with a TTFT longer than the E2E ({lines}): the times are taken for unknown"
    )
    ttft, e2e = played.ttft_ns.copy(), played.e2e_ns.copy()
    ttft[wrong] = e2e[wrong] = UNKNOWN
    return replace(played, ttft_ns=ttft, e2e_ns=e2e)


def _spread(log: Log, spec: scenario.Trace, streams: Streams, notes: list[str]) -> Ints:
    """The times of the log, ties spread over the clock's tick when asked for."""
    time_ns = log.columns.time_ns
    if spec.spread_ties == "none":
        return time_ns
    tick_ns = None if log.clock is None else log.clock.tick_ns
    if tick_ns is None:
        notes.append("spread_ties has no effect: the clock has no coarse tick")
        return time_ns
    timed = np.flatnonzero(~log.untimed)
    moved = time_ns.copy()
    moved[timed] = spread(time_ns[timed], tick_ns, spec.spread_ties, streams("trace_ties"))
    # A request without a time keeps its distance to the one before it, which is an earlier row.
    for row in np.flatnonzero(log.untimed).tolist():
        moved[row] += moved[log.after[row]] - time_ns[log.after[row]]
    notes.append(f"requests of a tick are spread over its {ns_to_s(tick_ns):g} s ({spec.spread_ties})")
    return moved


def _nearest_played(after: Ints, rows: Ints) -> Ints:
    """For each of `rows` the position of the nearest request before it in its session that is played, else -1."""
    position = np.full(len(after) + 1, -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    before = after[rows]
    if np.all(position[before] >= 0, where=before >= 0):
        return position[before]
    # A predecessor is an earlier row, so one pass over the log knows the nearest for each.
    nearest: list[int] = []
    for at, previous in zip(position.tolist(), after.tolist(), strict=False):
        nearest.append(at if at >= 0 or previous < 0 else nearest[previous])
    return np.where(before >= 0, np.array(nearest, dtype=np.int64)[before], -1)


def _lengths(
    log: Log, rows: Ints, spec: scenario.Trace, max_model_len: int | None, notes: list[str]
) -> tuple[Ints, Ints]:
    """Prompt and output tokens: an output at least, and prompts cut short with `too_long: truncate`."""
    prompts, outputs = log.columns.prompt_tokens[rows], log.columns.output_tokens[rows]
    if empty := int(np.count_nonzero(outputs == 0)):
        notes.append(f"{counted(empty, 'request')} with 0 output tokens played for the prompt alone, with 1 token")
        outputs = np.maximum(outputs, 1)
    if spec.too_long == "truncate" and max_model_len is not None:
        room = np.maximum(max_model_len - outputs, 1)
        if cut_short := int(np.count_nonzero(prompts > room)):
            many = "s are" if cut_short > 1 else " is"
            lost = int(np.maximum(prompts - room, 0).sum())
            notes.append(
                f"{cut_short} prompt{many} cut at the end, by {lost} tokens in all, so that prompt and output "
                f"fit max_model_len ({max_model_len})"
            )
            prompts = np.minimum(prompts, room)
    return prompts, outputs


def _shared(log: Log, rows: Ints, prompts: Ints) -> Shared:
    if log.hash_block_tokens is None or log.columns.blocks is None:
        return Shared.nothing(len(rows))
    return walk(log.columns.blocks.take(rows), prompts, log.hash_block_tokens).shared
