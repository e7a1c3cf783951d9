"""Which replica serves an arriving request. Ties go to the lowest index. Imports `types` only."""

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


Router = Callable[[Request, int, Seq[Routable]], int]
"""(request, how many were routed before, replicas) to the index of a replica."""


def round_robin(request: Request, num_routed: int, replicas: Seq[Routable]) -> int:
    """Each in turn."""
    return num_routed % len(replicas)


def least_outstanding(request: Request, num_routed: int, replicas: Seq[Routable]) -> int:
    """The replica with the fewest requests that have not left."""
    return min(range(len(replicas)), key=lambda index: replicas[index].num_outstanding)


def prefix_affinity(request: Request, num_routed: int, replicas: Seq[Routable]) -> int:
    """All requests of a prefix group to the same replica; those without a group in turn."""
    return (request.prefix_group if request.prefix_group >= 0 else num_routed) % len(replicas)


ROUTERS: dict[str, Router] = {
    "round_robin": round_robin,
    "least_outstanding": least_outstanding,
    "prefix_affinity": prefix_affinity,
}
"""Router name in the scenario file to its rule."""
