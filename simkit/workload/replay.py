"""From a log as played to what a workload needs of it: chunks, who follows whom, measured times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simkit.logs import PlayedLog
from simkit.logs.read.record import UNKNOWN
from simkit.streams import CHUNK
from simkit.types import Bools, Ints, Request

Segments = tuple[tuple[int, int], ...]

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
