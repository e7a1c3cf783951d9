"""When the steps of a plan end. Imports batching.plan and `types`; asks the latency model and nobody else."""

from __future__ import annotations

from itertools import accumulate

from simkit.batching.plan import StepPlan
from simkit.types import LatencyModel, ScalarLatency


class Pricer:
    """Prices plans by the scalar methods of a latency model where it has them, else by arrays."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._scalar = latency if isinstance(latency, ScalarLatency) else None

    def end_ns(self, plan: StepPlan, start_ns: int) -> int:
        """When the one step of `plan` ends that starts at `start_ns`."""
        if self._scalar is not None:
            return start_ns + self._scalar.one_ns(plan)
        return start_ns + int(self._latency.step_ns(plan.shapes(1))[0])

    def ends_ns(self, plan: StepPlan, start_ns: int, num_steps: int, until_ns: int | None) -> list[int]:
        """When up to `num_steps` equal steps end; steps that start well after `until_ns` are not priced."""
        first_ns = self.end_ns(plan, start_ns)
        if until_ns is not None:
            num_steps = min(num_steps, 2 + max(0, until_ns - start_ns) // (first_ns - start_ns))
        if num_steps == 1:
            return [first_ns]
        if self._scalar is not None:
            durations = self._scalar.decode_ns(plan, num_steps)
        else:
            durations = self._latency.step_ns(plan.shapes(num_steps)).tolist()
        ends = list(accumulate(durations, initial=start_ns))
        del ends[0]
        return ends
