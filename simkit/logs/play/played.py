"""Requests of a log as they are played."""

from __future__ import annotations

from dataclasses import dataclass

from simkit.logs.read.blocks import Shared
from simkit.logs.read.record import Gaps
from simkit.types import Ints


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they are played, in arrival order, request i being the i-th; `arrival_ns` counts from the window.

    The first `num_warm` are served to warm the caches and not measured. `after` is the request that each follows, -1
    for none, and `think_ns` the time from the end of that (closed sessions; 0 elsewhere). `closed`: those that follow
    another arrive when it lets them, their `arrival_ns` only says when they came in the log. `session` numbers the
    sessions, -1 for none. `shared` says what prompts have in common, as far as `has_blocks`. `row` and `line` say where
    in the log a request is from, `ttft_ns` and `e2e_ns` what was measured there (UNKNOWN where nothing was), and `gaps`
    the times between tokens (None where the log has none at all).
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
    gaps: Gaps | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)
