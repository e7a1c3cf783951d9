"""Statistics of a log: arrivals, lengths, sessions, prefix sharing, and the latencies that it measured.

`Stats` takes requests in arrival order, part by part; what cannot be had so (`streams` is false) needs the whole log.
Pure numpy.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from simkit.logs.read.blocks import walk
from simkit.logs.read.record import NO_TIME, Columns
from simkit.logs.running_stats import PERCENTILES, ArrivalStats, Counts
from simkit.plain import Json
from simkit.types import Floats, Ints
from simkit.units import NS_PER_MS, NS_PER_S


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
    known, _ = walk(columns.blocks, columns.prompt_tokens, block_tokens)
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
