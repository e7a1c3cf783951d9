"""What a request carries besides times and lengths: priority, tenant, shared prefix, and beginnings of earlier prompts.

Each has its own random stream and is drawn only when the scenario asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simkit import scenario
from simkit.scenario.workload import Prefix
from simkit.streams import Streams
from simkit.types import Bools, Floats, Ints
from simkit.workload.lengths import BinnedQuantiles


def pick(u: Floats, weights: Sequence[float]) -> Ints:
    """Index i with probability weights[i] / sum(weights), from uniform draws; weights are >= 0 and not all 0."""
    cumulative = np.cumsum(np.asarray(weights, dtype=np.float64))
    return np.searchsorted(cumulative / cumulative[-1], u, side="right").astype(np.int64)


class Labels:
    """Draws priorities, tenants and prefixes, a chunk of requests at a time and in request order."""

    def __init__(self, spec: scenario.Workload, streams: Streams) -> None:
        self._spec = spec
        self._priority = streams("priority")
        self._tenant = streams("tenant")
        self._group = streams("prefix_group")

    def priorities(self, n: int) -> Ints:
        """Priorities of the next `n` requests, 0 without the key."""
        spec = self._spec.priority
        if spec is None:
            return np.zeros(n, dtype=np.int64)
        return np.asarray(spec.values, dtype=np.int64)[pick(self._priority.uniforms(n), spec.weights)]

    def tenants(self, n: int) -> Ints:
        """Tenants of the next `n` requests, 0 without the key."""
        spec = self._spec.tenants
        if spec is None:
            return np.zeros(n, dtype=np.int64)
        u = self._tenant.uniforms(n)
        return (u * spec.count).astype(np.int64) if spec.weights is None else pick(u, spec.weights)

    def prefixes(self, prompt_tokens: Ints) -> tuple[Ints, Ints]:
        """(group, shared tokens) of the next requests; group -1 and 0 tokens when nothing is shared.

        Groups are equally likely. The prompt length includes the prefix and has at least one token of its own.
        """
        n, spec = len(prompt_tokens), self._spec.prefix
        if spec is None:
            return np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
        group = (self._group.uniforms(n) * spec.groups).astype(np.int64)
        shared = np.minimum(prompt_tokens - 1, prefix_tokens(spec, prompt_tokens))
        return np.where(shared > 0, group, -1), shared


def prefix_tokens(spec: Prefix, prompt_tokens: Ints) -> Ints:
    """How many of the first tokens of prompts of these lengths are shared, were there as many."""
    if spec.tokens is not None:
        return np.full_like(prompt_tokens, spec.tokens)
    assert spec.share is not None
    # A share of 0.29 of 100 tokens is 29, whatever its last bit.
    shared: Ints = np.floor(prompt_tokens * spec.share + 1e-9).astype(np.int64)
    return shared


Segments = tuple[tuple[int, int], ...]
"""As `Request.shared`: (request id, upto_tokens), rising."""

MAX_STEPS = 256
"""How far to look either way for an earlier prompt that is long enough."""


class PromptReuse:
    """Draws what each request shares, in request order; remembers as many requests as the schema looks back."""

    def __init__(self, spec: scenario.Reuse, streams: Streams) -> None:
        self._share_stream, self._back_stream = streams("reuse_share"), streams("reuse_back")
        self._shares, self._backs = _binned(spec.prompt_shares), _binned(spec.requests_back)
        furthest = int(max(part.quantiles[-1][1] for part in spec.requests_back))
        # Rings of the last requests: the one with id i is at i modulo the size.
        self._size = furthest + MAX_STEPS
        self._prompts: list[int] = []
        self._segments: list[Segments] = []
        self._next_id = 0

    def segments(self, prompt_tokens: Ints) -> tuple[list[Segments], Bools]:
        """What the next requests share, and which of them found no earlier prompt that is long enough."""
        n = len(prompt_tokens)
        shares = self._shares.values(prompt_tokens, self._share_stream.uniforms(n))
        wanted = np.rint(shares * prompt_tokens).astype(np.int64)
        backs = np.rint(self._backs.values(wanted, self._back_stream.uniforms(n))).astype(np.int64)
        found, cut = [], np.zeros(n, dtype=np.bool_)
        for at, (prompt, tokens, back) in enumerate(
            zip(prompt_tokens.tolist(), wanted.tolist(), backs.tolist(), strict=True)
        ):
            segments: Segments = ()
            if tokens and self._next_id:
                owner = self._next_id - self._earlier(tokens, back)
                place = owner % self._size
                segments = inherited(owner, self._segments[place], min(tokens, self._prompts[place]))
                cut[at] = segments[-1][1] < tokens
            found.append(segments)
            self._remember(prompt, segments)
        return found, cut

    def _remember(self, prompt: int, segments: Segments) -> None:
        if self._next_id < self._size:
            self._prompts.append(prompt)
            self._segments.append(segments)
        else:
            place = self._next_id % self._size
            self._prompts[place], self._segments[place] = prompt, segments
        self._next_id += 1

    def _earlier(self, tokens: int, back: int) -> int:
        """How far back the request `back` before this one is, or the nearest to it with a prompt of `tokens`.

        Those further back come first. Near the start there are fewer requests than `back`: it is counted round.
        """
        prompts, size, here = self._prompts, self._size, self._next_id
        known = min(here, size)
        back = 1 + (back - 1) % known
        longest, most = back, 0
        further = range(back, min(known, back + MAX_STEPS - 1) + 1)
        nearer = range(back - 1, max(0, back - MAX_STEPS), -1)
        for places in (further, nearer):
            for place in places:
                length = prompts[(here - place) % size]
                if length >= tokens:
                    return place
                if length > most:
                    longest, most = place, length
        return longest


def inherited(owner: int, segments: Segments, tokens: int) -> Segments:
    """What a prompt shares that begins with `tokens` of request `owner`, which itself shares `segments`.

    Every token keeps the name of the request in which it first occurred.
    """
    kept: list[tuple[int, int]] = []
    for request, upto in segments:
        if upto >= tokens:
            return (*kept, (request, tokens))
        kept.append((request, upto))
    return (*kept, (owner, tokens))


def _binned(bins: Sequence[scenario.ShareBin] | Sequence[scenario.BackBin]) -> BinnedQuantiles:
    return BinnedQuantiles([part.upto_tokens for part in bins[:-1]], [part.quantiles for part in bins])
