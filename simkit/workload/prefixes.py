"""What a request carries besides times and lengths: priority, tenant, shared prefix.

Each has its own random stream and is drawn only when the scenario asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simkit import scenario
from simkit.streams import Streams
from simkit.types import Floats, Ints


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
        shared = np.minimum(prompt_tokens - 1, spec.tokens)
        return np.where(shared > 0, group, -1), shared
