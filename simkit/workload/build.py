"""Turns the workload section of a scenario into requests, lazily: memory does not grow with their number.

Knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs import PlayedLog, play_log
from simkit.logs.read.record import UNKNOWN
from simkit.streams import CHUNK, Streams
from simkit.types import Bools, Ints, Request
from simkit.units import s_to_ns
from simkit.workload.arrivals import NEVER_NS, arrival_chunks
from simkit.workload.lengths import Drift, Lengths, build_lengths, build_outputs
from simkit.workload.prefixes import Labels, PromptReuse, Segments, prefix_tokens
from simkit.workload.servegen import ServeGenClients

COUNTERS = (
    "outputs_cut_by_max_tokens",
    "prompt_tokens_clipped",
    "output_tokens_clipped",
    "prefixes_cut_to_prompt",
    "reuse_cut_to_prompt",
    "requests_not_sent",
)


@dataclass
class Workload:
    """Requests in arrival order with ids from 0, and what the engine must know about them.

    `num_requests` is None when the number is not known beforehand (bounded by `duration_ns`, or `piecewise`). In a
    closed loop `concurrency` is set, `arrival_ns` is 0 and means nothing, and the engine sends the next request
    `think_time_ns` after an answer, until `num_requests` were sent or `duration_ns` is reached; with a duration the
    iterator has no end of its own. `notes` says what was detected or left out. `counters` holds, for the requests taken
    from the iterator so far: drawn outputs that `max_tokens` cut (stop: eos), drawn lengths moved to `min` or `max`
    (an implied min of 1 included), prefixes shortened to the prompt, reused beginnings shortened to the longest earlier
    prompt near by, and requests that `num_requests` asked for but the last segment or window ended before.

    Of a replayed log: the requests with ids below `num_warm` are served and not measured. `prefix_known` is False
    when its log says nothing of prompts, so that what they share is unknown. In closed sessions `requests` has only
    those that follow no other, and `successors` those that the end of a request causes; ids are ranks in the recorded
    order all the same, `num_requests` and `counters` are of all requests. `measured` is what the log measured.

    `arrival_span_ns` gives the first and the last arrival without taking any request: (0, 0) where there is none, or
    only the run knows when they come.
    """

    requests: Iterator[Request]
    num_requests: int | None
    duration_ns: int | None
    concurrency: int | None
    think_time_ns: int
    notes: tuple[str, ...]
    counters: dict[str, int]
    num_warm: int = 0
    prefix_known: bool = True
    successors: Successors | None = None
    measured: MeasuredTimes | None = None
    arrival_span_ns: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def everyone(self) -> Iterator[Request]:
        """All requests in order of their ids, those that the end of another causes as the log has them. Takes them."""
        if self.successors is None:
            return self.requests
        followers = (request for caused_by in self.successors.values() for request, _ in caused_by)
        return iter(sorted([*self.requests, *followers], key=lambda request: request.id))


def build_workload(
    workload: scenario.Workload, *, seed: int, replication: int, max_model_len: int, base_dir: Path | None
) -> Workload:
    """The requests of one replication. Files are read now, requests are made when the iterator is advanced.

    Raises InputError, one line, when a trace or an empirical length cannot be read.
    """
    notes: list[str] = []
    counters = dict.fromkeys(COUNTERS, 0)
    streams = Streams(seed, replication)
    arrivals = workload.arrivals
    closed = arrivals if isinstance(arrivals, scenario.ClosedLoop) else None
    duration_ns = None if workload.duration_s is None else s_to_ns(workload.duration_s)
    source = _source(workload, base_dir, streams, max_model_len, notes)
    played = source.played
    num_requests = workload.num_requests if played is None else len(played)
    limits = num_requests, None if closed else duration_ns
    bounded = _bounded(source.chunks, *limits, counters)
    requests = _requests(bounded, workload, streams, max_model_len, counters)
    successors = None
    if played is not None and played.closed:
        requests, successors = caused(requests, played)
    return Workload(
        requests=requests,
        # An end of its own may come first.
        num_requests=None if isinstance(arrivals, scenario.PiecewiseArrivals) or workload.servegen else num_requests,
        duration_ns=duration_ns,
        concurrency=None if closed is None else closed.concurrency,
        think_time_ns=0 if closed is None else s_to_ns(closed.think_time_s),
        notes=tuple(notes),
        counters=counters,
        num_warm=0 if played is None else played.num_warm,
        prefix_known=played is None or played.has_blocks or workload.prefix is not None,
        successors=successors,
        measured=None if played is None else _measured(workload, played, max_model_len),
        arrival_span_ns=lambda: _span_ns(source.arrivals(Streams(seed, replication)), *limits),
    )


class _Source(NamedTuple):
    """Where requests come from: their columns, and their arrivals alone, on fresh streams (a log: known by the run)."""

    chunks: Iterator[Chunk]
    arrivals: Callable[[Streams], Iterator[Ints]]
    played: PlayedLog | None = None


def _source(
    workload: scenario.Workload, base_dir: Path | None, streams: Streams, max_model_len: int, notes: list[str]
) -> _Source:
    """The log, the clients or the processes of a workload; what reading finds goes to `notes`."""
    if workload.trace is not None:
        played = play_log(workload.trace, base_dir, streams=streams, max_model_len=max_model_len)
        notes.extend(played.notes)
        if workload.prefix is not None and played.has_blocks:
            notes.append(f"trace {workload.trace.path}: workload.prefix stands in place of what its prompts share")
            played = replace(played, has_blocks=False)
        return _Source(played_chunks(played), lambda fresh: iter(()), played)
    if workload.servegen is not None:
        clients = ServeGenClients(workload.servegen, base_dir)
        clients.check_count(workload.num_requests, workload.duration_s)
        notes.extend(clients.notes)
        return _Source(
            (Chunk(*columns, {}) for columns in clients.chunks(streams)),
            lambda fresh: (arrival_ns for arrival_ns, *_ in clients.chunks(fresh)),
        )
    arrivals = workload.arrivals
    assert arrivals is not None
    assert workload.prompt_tokens is not None
    assert workload.output_tokens is not None
    prompts = build_lengths(workload.prompt_tokens, "prompt_tokens", base_dir, notes)
    outputs = build_outputs(workload.output_tokens, base_dir, notes)
    chunks = _synthetic_chunks(arrivals, prompts, outputs, workload.drift, streams)
    return _Source(chunks, lambda fresh: arrival_chunks(arrivals, fresh("arrivals")))


def _span_ns(chunks: Iterator[Ints], num_requests: int | None, duration_ns: int | None) -> tuple[int, int]:
    """First and last arrival of the requests that are sent; (0, 0) without one."""
    first_ns = last_ns = None
    whole = (Chunk(arrival_ns, arrival_ns, arrival_ns, {}) for arrival_ns in chunks)
    for chunk in _bounded(whole, num_requests, duration_ns, {}):
        if len(chunk.arrival_ns):
            first_ns = int(chunk.arrival_ns[0]) if first_ns is None else first_ns
            last_ns = int(chunk.arrival_ns[-1])
    return (0, 0) if first_ns is None or last_ns is None else (first_ns, last_ns)


def _measured(workload: scenario.Workload, played: PlayedLog, max_model_len: int) -> MeasuredTimes | None:
    return measured_times(played, _max_tokens(workload, played.prompt_tokens, played.output_tokens, max_model_len))


def _synthetic_chunks(
    arrivals: scenario.Arrivals,
    prompts: Lengths,
    outputs: Lengths,
    periods: Sequence[scenario.Period],
    streams: Streams,
) -> Iterator[Chunk]:
    prompt_stream, output_stream = streams("prompt_tokens"), streams("output_tokens")
    prompt_drift, output_drift = Drift(periods, "prompt_tokens"), Drift(periods, "output_tokens")
    first = 0
    for arrival_ns in arrival_chunks(arrivals, streams("arrivals")):
        n = len(arrival_ns)
        prompt, prompt_clipped = prompts.tokens(first, prompt_drift.draws(arrival_ns, prompt_stream.uniforms(n)))
        u = output_drift.draws(arrival_ns, output_stream.uniforms(n))
        output, output_clipped = outputs.tokens(first, u, prompt)
        flags = {"prompt_tokens_clipped": prompt_clipped, "output_tokens_clipped": output_clipped}
        yield Chunk(arrival_ns, prompt, output, flags)
        first += n


def _bounded(
    chunks: Iterator[Chunk], num_requests: int | None, duration_ns: int | None, counters: dict[str, int]
) -> Iterator[Chunk]:
    """The first `num_requests` requests, and of these the ones that arrive before `duration_ns`."""
    num_sent = 0
    for chunk in chunks:
        n = len(chunk.arrival_ns)
        if num_requests is not None:
            n = min(n, num_requests - num_sent)
        in_time = n if duration_ns is None else int(np.searchsorted(chunk.arrival_ns[:n], duration_ns, side="left"))
        if in_time and chunk.arrival_ns[in_time - 1] >= NEVER_NS:
            raise InputError(
                "the rate is so low that requests arrive after more than 146 years", key="workload.arrivals"
            )
        yield chunk.head(in_time)
        num_sent += in_time
        if in_time < n or num_sent == num_requests:
            return
    if num_requests is not None:
        counters["requests_not_sent"] = num_requests - num_sent


def _requests(
    chunks: Iterator[Chunk], spec: scenario.Workload, streams: Streams, max_model_len: int, counters: dict[str, int]
) -> Iterator[Request]:
    labels = Labels(spec, streams)
    reuse = None if spec.reuse is None else PromptReuse(spec.reuse, streams)
    first = 0
    for chunk in chunks:
        prompt, drawn = chunk.prompt_tokens, chunk.output_tokens
        n = len(prompt)
        max_tokens = _max_tokens(spec, prompt, drawn, max_model_len)
        group, shared_tokens = labels.prefixes(prompt)
        flags = {**chunk.flags, "outputs_cut_by_max_tokens": drawn > max_tokens}
        if spec.prefix is not None:
            flags["prefixes_cut_to_prompt"] = shared_tokens < prefix_tokens(spec.prefix, prompt)
        elif chunk.session is not None:
            # For routers that keep sessions together; what prompts share is in `shared`.
            group = chunk.session
        shared: Iterable[tuple[tuple[int, int], ...]] = repeat(()) if chunk.shared is None else chunk.shared
        if reuse is not None:
            shared, flags["reuse_cut_to_prompt"] = reuse.segments(prompt)
        columns = (
            np.arange(first, first + n),
            chunk.arrival_ns,
            prompt,
            np.minimum(drawn, max_tokens),
            max_tokens,
            labels.priorities(n),
            labels.tenants(n),
            group,
            shared_tokens,
        )
        # As Python ints: faster one by one than numpy's, and without overflow.
        requests = map(Request, *(column.tolist() for column in columns), repeat(spec.samples), shared)
        yield from _counting(requests, flags, counters)
        first += n


def _max_tokens(spec: scenario.Workload, prompt: Ints, drawn: Ints, max_model_len: int) -> Ints:
    """What the client allows: the drawn output (stop: length), its `max_tokens`, or all the model has room for."""
    if spec.stop == "length":
        return drawn
    if spec.max_tokens is not None:
        return np.full(len(prompt), spec.max_tokens, dtype=np.int64)
    return np.maximum(max_model_len - prompt, 1)


def _counting(requests: Iterator[Request], flags: dict[str, Bools], counters: dict[str, int]) -> Iterator[Request]:
    """The requests of a chunk, each counted when it is taken and not before."""
    names_at: dict[int, list[str]] = {}
    for name, flag in flags.items():
        for at in np.flatnonzero(flag).tolist():
            names_at.setdefault(at, []).append(name)
    if not names_at:
        yield from requests
        return
    for at, request in enumerate(requests):
        for name in names_at.get(at, ()):
            counters[name] += 1
        yield request


# --- a log as played --------------------------------------------------------------------------------------------------
Successors = Mapping[int, tuple[tuple[Request, int], ...]]
"""Request id to the requests that its departure causes, each with its think time in ns."""


class Chunk(NamedTuple):
    """Columns of some consecutive requests, and by counter name which of them count.

    `session` and `shared` are for replayed logs: the number of the session, -1 for none, and `Request.shared`.
    """

    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    flags: dict[str, Bools]
    session: Ints | None = None
    shared: list[Segments] | None = None

    def head(self, n: int) -> Chunk:
        """The first `n` requests."""
        return Chunk(
            self.arrival_ns[:n],
            self.prompt_tokens[:n],
            self.output_tokens[:n],
            {name: flag[:n] for name, flag in self.flags.items()},
            None if self.session is None else self.session[:n],
            None if self.shared is None else self.shared[:n],
        )


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """What a replayed log measured, by request id; -1 where it says nothing."""

    ttft_ns: Ints
    e2e_ns: Ints


def played_chunks(played: PlayedLog) -> Iterator[Chunk]:
    """The requests of a log, `CHUNK` at a time; their ids are their positions in it."""
    for first in range(0, len(played), CHUNK):
        part = slice(first, min(first + CHUNK, len(played)))
        shared = [played.shared.of(request) for request in range(part.start, part.stop)] if played.has_blocks else None
        yield Chunk(
            played.arrival_ns[part],
            played.prompt_tokens[part],
            played.output_tokens[part],
            {},
            played.session[part],
            shared,
        )


def measured_times(played: PlayedLog, max_tokens: Ints) -> MeasuredTimes | None:
    """The times that the log measured, None when it has none at all.

    `max_tokens` is what the client allows each request: the times of a longer answer say nothing of the shorter one
    that is played, and are unknown.
    """
    if np.all(played.ttft_ns == UNKNOWN) and np.all(played.e2e_ns == UNKNOWN):
        return None
    cut = played.output_tokens > max_tokens
    return MeasuredTimes(*(np.where(cut, UNKNOWN, times) for times in (played.ttft_ns, played.e2e_ns)))


def caused(requests: Iterator[Request], played: PlayedLog) -> tuple[Iterator[Request], Successors]:
    """(requests that follow no other, in order of arrival; those that do). Makes all of them at once."""
    first: list[Request] = []
    found: dict[int, list[tuple[Request, int]]] = {}
    for request, after, think_ns in zip(requests, played.after.tolist(), played.think_ns.tolist(), strict=True):
        if after < 0:
            first.append(request)
        else:
            found.setdefault(after, []).append((request, think_ns))
    return iter(first), {after: tuple(followers) for after, followers in found.items()}
