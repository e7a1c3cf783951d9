"""What it costs the host to launch the kernels of a step that no CUDA graph holds.

Owns the cost of a launch and how it adds up. The host launches ahead of the GPU, so that such a step takes the longer
of its kernels and their launches, however it is scheduled; a captured graph is one launch, which costs nothing here.
Launches are counted on the kernels that a step is priced by (`Kernels.launches`), not on those that a profiler would
show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simkit.latency.effects import Origin, Source, nothing
from simkit.types import Floats, Ints

EAGER_US = 70.0
"""A launch by eager PyTorch modules, with all dispatch beside the kernel. *Assumed* for every host, from one: the
thinker of Qwen2.5-Omni-7B on A800 takes 22 to 23 ms a token eager and 13 ms with graphs (vLLM-Omni issue 7960). Its 28
layers are 284 launches, and some 3 of the 13 ms are not kernels, so that a launch takes 67 to 70 us there."""

COMPILED_US = 5.0
"""A launch of a compiled step beyond the largest graph. *Assumed*: what cudaLaunchKernel takes, 5 us, as compiled code
has little dispatch beside it. More is seen nowhere: rows whose prompts lie beyond the graphs fit without it."""


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Microseconds of a launch, and where they come from."""

    us: float
    source: Source


NO_LAUNCHES = LaunchCost(0.0, nothing("launches take no time"))
ALL_CAPTURED = LaunchCost(0.0, nothing("CUDA graphs hold every step"))


def launch_cost(given_us: float | None, *, eager: bool) -> LaunchCost:
    """As the scenario gives it, else as assumed."""
    if given_us is not None:
        return LaunchCost(given_us, Source(Origin.SCENARIO, "scenario"))
    if eager:
        return LaunchCost(EAGER_US, Source(Origin.DEFAULT, f"assumed, {EAGER_US:g} us each without CUDA graphs"))
    return LaunchCost(COMPILED_US, Source(Origin.DEFAULT, f"assumed, {COMPILED_US:g} us each beyond the largest graph"))


@dataclass(frozen=True, slots=True)
class Launches:
    """What the launches of a step of more than `captured_rows` rows take, in ns; 0 for none."""

    ns: float
    captured_rows: int

    def least_ns(self, rows: int) -> float:
        """The least that a step of so many rows takes."""
        return self.ns if rows > self.captured_rows else 0.0

    def step_ns(self, gpu_ns: float, rows: int) -> float:
        """A step whose kernels take `gpu_ns`."""
        least = self.least_ns(rows)
        return gpu_ns if gpu_ns >= least else least

    def steps_ns(self, gpu_ns: Floats, rows: Ints) -> Floats:
        """`step_ns` of many steps."""
        if not self.ns:
            return gpu_ns
        least: Floats = np.where(rows > self.captured_rows, self.ns, 0.0)
        return np.maximum(gpu_ns, least)
