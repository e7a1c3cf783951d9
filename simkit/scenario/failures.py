"""Failures of replicas in the scenario schema."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from simkit.scenario.types import Count, PositiveSeconds, Seconds, Strict, conflict
from simkit.units import ns_to_s, s_to_ns


class Failure(Strict):
    """Replica `replica` is down from `at_s` on, for `for_s` seconds or, without a value, for good."""

    replica: Count
    at_s: Seconds
    for_s: PositiveSeconds | None = None

    @property
    def start_ns(self) -> int:
        """When it stops."""
        return s_to_ns(self.at_s)

    @property
    def end_ns(self) -> int | None:
        """When it is up again, at least 1 ns later; None = never."""
        return None if self.for_s is None else self.start_ns + max(1, s_to_ns(self.for_s))


def check_failures(failures: Sequence[Failure], replicas: int) -> None:
    """Refuse a replica that is not there, and outages of one replica that overlap."""
    for index, failure in enumerate(failures):
        if failure.replica >= replicas:
            raise conflict(
                (f"failures.{index}.replica", "replicas"),
                f"a replica from 0 to {replicas - 1} (replicas is {replicas})",
                str(failure.replica),
            )
    for replica in {failure.replica for failure in failures}:
        own = [(failure.start_ns, index) for index, failure in enumerate(failures) if failure.replica == replica]
        for (_, before), (start_ns, index) in pairwise(sorted(own)):
            end_ns = failures[before].end_ns
            if end_ns is None or end_ns > start_ns:
                until = "for good" if end_ns is None else f"until {ns_to_s(end_ns):g} s"
                raise conflict(
                    (f"failures.{index}.at_s",),
                    f"outages of replica {replica} that do not overlap (failures[{before}] lasts {until})",
                    f"{failures[index].at_s:g}",
                )
