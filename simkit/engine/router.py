"""Which replica serves an arriving request. Ties go to the lowest index."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from simkit.types import Request


class Routable(Protocol):
    """What a router may know of a replica."""

    @property
    def num_outstanding(self) -> int:
        """Requests sent there that have not left."""


Router = Callable[[Request, int, Seq[Routable], Seq[int]], int]
"""(request, how many were routed before, replicas, indices of those that are up) to one of these indices."""


def round_robin(request: Request, num_routed: int, replicas: Seq[Routable], up: Seq[int]) -> int:
    """Each in turn, of those that are up."""
    return up[num_routed % len(up)]


def least_outstanding(request: Request, num_routed: int, replicas: Seq[Routable], up: Seq[int]) -> int:
    """The replica with the fewest requests that have not left."""
    return min(up, key=lambda index: replicas[index].num_outstanding)


def prefix_affinity(request: Request, num_routed: int, replicas: Seq[Routable], up: Seq[int]) -> int:
    """All requests of a prefix group to the same replica; those without a group in turn.

    While that replica is down its groups are spread over the others; the groups of the others stay where they are.
    """
    group = request.prefix_group
    if group < 0:
        return up[num_routed % len(up)]
    home = group % len(replicas)
    return home if home in up else up[group // len(replicas) % len(up)]


ROUTERS: dict[str, Router] = {
    "round_robin": round_robin,
    "least_outstanding": least_outstanding,
    "prefix_affinity": prefix_affinity,
}
"""Router name in the scenario file to its rule."""
