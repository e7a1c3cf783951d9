"""The bars that the project set itself, and what this machine makes of them.

Seconds are stated for a machine whose SimPy fires 1.1 million bare timeouts a second; here they are scaled to it.
"""

from __future__ import annotations

import tempfile
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cases import CASES
from measure import REFERENCE_TIMEOUTS_PER_S, Speed, command_line, in_own_process, timeouts_per_s, write_scenario

from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment
from simkit.latency.profile import load_profile
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model
from simkit.types import StepShapes

PLAIN = "512/256 at 5"
SWEPT_SLOTS = (144, 160, 176, 192, 208, 224, 240, 256)
"""The sweep: slots that the load never fills, so that its points are equally long."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and its limit; `at_most` says on which side of it the figure must be."""

    what: str
    figure: float
    limit: float
    at_most: bool
    unit: str = ""

    @property
    def passed(self) -> bool:
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit

    def row(self) -> tuple[str, ...]:
        """As a line of a table."""
        sign = "<=" if self.at_most else ">="
        limit = f"{sign} {self.limit:g}{self.unit}"
        return self.what, f"{self.figure:.4g}{self.unit}", limit, "met" if self.passed else "MISSED"


def speed_bars(num_requests: int, rounds: int) -> Iterator[Bar]:
    """Bars on simulation with its metrics, without start-up and writing."""
    known: dict[str, Speed] = {}

    def of(case: str) -> Speed:
        if case not in known:
            known[case] = in_own_process(case, num_requests, rounds)
        return known[case]

    def times(case: str, other: str) -> float:
        """The time of a request, in times of the other's, each in timeouts of its own process."""
        return of(other).ratio / of(case).ratio

    yield Bar("512/256 at 8: requests per bare timeout", of("512/256 at 8").ratio, 0.03, at_most=False)
    yield Bar("ragged at 20: requests per bare timeout", of("ragged at 20").ratio, 0.015, at_most=False)
    yield Bar("answers x 10: time a request", times("512/2560 at 0.5", PLAIN), 1.5, at_most=True, unit=" x")
    with_caching = times("512/2560 at 0.5, caching", f"{PLAIN}, caching")
    yield Bar("answers x 10, caching: time a request", with_caching, 2.5, at_most=True, unit=" x")
    for case in (f"{PLAIN}, caching", "shared prompts", "preempting"):
        yield Bar(f"{case}: requests/s to plain", 1 / times(case, PLAIN), 0.25, at_most=False, unit=" x")


def steps_to_price(num_steps: int) -> StepShapes:
    """Steps as a busy server makes them: batches of all sizes, a prompt beside decodes in every third."""
    rng = np.random.default_rng(0)
    seqs, each = rng.integers(1, 256, num_steps), rng.integers(10, 3000, num_steps)
    prompt = np.where(rng.random(num_steps) < 1 / 3, rng.integers(1, 2048, num_steps), 0)
    return StepShapes.of(
        num_steps, decode_seqs=seqs, decode_context_sum=seqs * each, decode_context_max=2 * each, sampled_seqs=seqs,
        prefill_tokens=prompt, prefill_pairs=prompt * (prompt + 1) // 2,
    )  # fmt: skip


def calibrated(profile: str) -> Calibrated:
    """The latency model of Llama 3 8B on the GPU of a shipped profile."""
    deployment = Deployment(
        load_model("llama-3-8b"), load_gpu(profile), tensor_parallel_size=1, interconnect="nvlink", dtype="bfloat16",
        quantization=None, kv_cache_dtype="auto", async_scheduling=True,
    )  # fmt: skip
    return Calibrated(deployment, load_profile(profile))


def pricing_bars(rounds: int) -> Iterator[Bar]:
    """One call prices 10,000 steps; the fastest of many calls, for others use the machine too."""
    scale = timeouts_per_s() / REFERENCE_TIMEOUTS_PER_S
    shapes = steps_to_price(10_000)
    for profile in ("a100-sxm4-80gb", "h100-sxm5-80gb"):
        model = calibrated(profile)
        ms = min(timeit.repeat(lambda model=model: model.step_ns(shapes), number=1, repeat=20 * rounds)) * 1e3
        yield Bar(f"10,000 steps priced by {profile}, scaled", ms * scale, 5, at_most=True, unit=" ms")


def process_bars(num_requests: int, rounds: int) -> Iterator[Bar]:
    """Bars on whole runs from the command line: `num_requests`, and ten times as many."""
    scale = timeouts_per_s() / REFERENCE_TIMEOUTS_PER_S
    with tempfile.TemporaryDirectory() as folder:
        few, few_mb = _run(Path(folder), num_requests, rounds)
        share = num_requests / 100_000
        yield Bar(f"{num_requests:,} requests: time, scaled", few * scale, 6 * share, at_most=True, unit=" s")
        yield Bar(f"{num_requests:,} requests: peak memory", few_mb, 400, at_most=True, unit=" MB")
        many, many_mb = _run(Path(folder), 10 * num_requests, rounds)
        yield Bar(f"{10 * num_requests:,} requests: time to that of a tenth", many / few, 12, at_most=True, unit=" x")
        yield Bar(f"{10 * num_requests:,} requests: peak memory", many_mb, 1500, at_most=True, unit=" MB")


def sweep_bar(num_requests: int, rounds: int) -> Iterator[Bar]:
    """Eight points in two processes against one."""
    axis = ["--axis", f"engine.max_num_seqs={','.join(map(str, SWEPT_SLOTS))}"]
    with tempfile.TemporaryDirectory() as folder:
        scenario = write_scenario(CASES[PLAIN](num_requests), Path(folder, "s.yaml"))
        seconds = {}
        for jobs in (1, 2):
            out = ["--quiet", "--out", str(Path(folder, f"jobs-{jobs}")), "--jobs", str(jobs)]
            seconds[jobs], _ = command_line(["sweep", str(scenario), *axis, *out], rounds)
    what = f"sweep of {len(SWEPT_SLOTS)} x {num_requests:,} requests: 2 processes to 1"
    yield Bar(what, seconds[1] / seconds[2], 1.7, at_most=False, unit=" x")


def _run(folder: Path, num_requests: int, rounds: int) -> tuple[float, float]:
    scenario = write_scenario(CASES[PLAIN](num_requests), folder / "s.yaml")
    out = ["--no-report", "--quiet", "--out", str(folder / "run")]
    return command_line(["run", str(scenario), *out], rounds)
