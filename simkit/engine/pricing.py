"""When the steps of a plan end. Asks the latency model and nobody else."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from simkit.batching.plan import StepPlan
from simkit.types import Ints, LatencyModel, ScalarLatency

MAX_RUN_STEPS = 4096
"""Steps priced at once at most; bounds the arrays, not the result."""


class Pricer:
    """Prices plans by the scalar methods of a latency model where it has them, else by arrays."""

    def __init__(self, latency: LatencyModel) -> None:
        self.latency = latency
        self._scalar = latency if isinstance(latency, ScalarLatency) else None
        self._last_ns = 1

    def ends_ns(self, plan: StepPlan, start_ns: int, num_steps: int, until_ns: int | None) -> list[int] | Ints:
        """When the next steps of `plan` end, at least one and at most `num_steps` of them.

        Steps that are likely to start well after `until_ns` are not priced.
        """
        if num_steps > 1 and until_ns is not None:
            likely = 2 + (until_ns - start_ns) // self._last_ns
            if likely < num_steps:
                num_steps = likely if likely > 2 else 2
        if num_steps == 1:
            if self._scalar is not None:
                self._last_ns = duration = self._scalar.one_ns(plan)
            else:
                self._last_ns = duration = int(self.latency.step_ns(plan.shapes(1))[0])
            return [start_ns + duration]
        durations: list[int] | Ints
        if self._scalar is not None:
            durations = self._scalar.decode_ns(plan, num_steps)
        else:
            durations = self.latency.step_ns(plan.shapes(num_steps))
        self._last_ns = int(durations[-1])
        if isinstance(durations, np.ndarray):
            return np.cumsum(durations) + start_ns
        durations[0] += start_ns
        return list(accumulate(durations))
