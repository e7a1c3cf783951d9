"""Runs as tests ask for them: of exactly as many requests as their scenario says, or of requests that are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from simkit import api
from simkit.engine import run as engine
from simkit.engine.build import set_up
from simkit.scenario import Scenario
from simkit.types import Request
from simkit.workload.build import Workload

MS = 1_000_000

Turns = dict[int, tuple[tuple[Request, int], ...]]
"""Who follows a request when it has left, and how much later in ns."""


def as_asked(scenario: Scenario, *, single_step: bool = False) -> api.Result:
    """The run of a scenario, as long as it says: what `api.run` does but for making it long enough."""
    return api.run_set_up(set_up(scenario), single_step=single_step)


def request(number: int, at_ms: float, prompt: int, output: int, **more: Any) -> Request:
    """A request that asks for as much as it gets."""
    return Request(number, round(at_ms * MS), prompt, output, output, **more)


@contextmanager
def serving(requests: Sequence[Request], *, successors: Turns | None = None, **facts: Any) -> Iterator[None]:
    """Inside, every run has these requests, as if a reader of logs had made them of a log, instead of those of its
    scenario; `facts` are further fields of the workload."""
    total = len(requests) + sum(map(len, (successors or {}).values()))

    def build_workload(*_: Any, **__: Any) -> Workload:
        return Workload(iter(requests), total, None, None, 0, (), {}, successors=successors, **facts)

    with patch.object(engine, "build_workload", build_workload):
        yield
