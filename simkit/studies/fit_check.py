"""How well a fitted workload stands for the log: both simulated on the same engine, beside a uniform workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.logs.fit.fit import Fit
from simkit.logs.play.load import Log
from simkit.metrics.catalogue import STATS, number
from simkit.metrics.latencies import PER_REQUEST
from simkit.plain import Json
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets, from_dict
from simkit.studies.offered_load import at_rate
from simkit.studies.study import Options, Point, Study, run_study
from simkit.studies.uniform_twin import UniformLoad

REPLICATIONS = 3
"""Of the fitted and the even workload, each with its own draws; a log has only one."""
LOAD = 0.7
"""Share of what the engine sustains to which a log with a higher rate is slowed."""
MODELS = (("llama-3-8b", 8192), ("llama-3.1-8b", 131072))
"""Without a scenario: the first model whose context holds nearly all requests, else the last."""
MAX_TOO_LONG = 0.01


@dataclass(frozen=True, slots=True)
class FitCheck:
    """Summaries of the log as it is (`original`), of the `fitted` and of the `even` workload, all at one `speed`."""

    scenario: Scenario
    speed: float
    original: Result
    fitted: Result
    even: Result

    @property
    def fitted_shares(self) -> bool:
        """Whether the fitted workload says which prompts are alike."""
        return "reuse" in self.fitted.manifest["scenario"]["workload"]

    def to_json(self) -> Json:
        """Metric to statistic to the three values, and how much the last two differ from the first in %."""
        return {
            "model": self.scenario.model,
            "gpu": self.scenario.hardware.gpu,
            "speed": self.speed,
            "requests": {name: result.summary["num_requests"] for name, result in self._arms()},
            "prefix_cache_hit_rate": {
                "original": self.original.summary["prefix_cache_hit_rate"],
                # Of a log that does not say what its prompts share, the fit does not know it either.
                "fitted": self.fitted.summary["prefix_cache_hit_rate"] if self.fitted_shares else None,
            },
            "metrics": {metric: {stat: self._compared(metric, stat) for stat in STATS} for metric in PER_REQUEST},
        }

    def _arms(self) -> tuple[tuple[str, Result], ...]:
        return (("original", self.original), ("fitted", self.fitted), ("even", self.even))

    def _compared(self, metric: str, stat: str) -> dict[str, float | None]:
        values = {name: number(result.summary, f"{metric}.{stat}") for name, result in self._arms()}
        base = values["original"]
        for name in ("fitted", "even"):
            value = values[name]
            values[f"{name}_difference_pct"] = 100 * (value / base - 1) if base and value is not None else None
        return values


def default_scenario(log: Log) -> Scenario:
    """Llama 3 8B on an A100 80GB, or Llama 3.1 8B where requests are too long for that."""
    totals = log.columns.prompt_tokens + log.columns.output_tokens
    model, length = next(
        ((model, length) for model, length in MODELS if np.mean(totals > length) <= MAX_TOO_LONG), MODELS[-1]
    )
    return from_dict(
        {
            "name": "fit",
            "model": model,
            "hardware": {"gpu": "a100-sxm4-80gb"},
            "engine": {"max_model_len": length},
            # Replaced by those that are compared.
            "workload": {
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"dist": "fixed", "value": 1},
                "output_tokens": {"dist": "fixed", "value": 1},
            },
        }
    )


def check_fit(
    scenario: Scenario,
    trace: dict[str, Any],
    fit: Fit,
    *,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> FitCheck:
    """Simulate the log (`trace` is its section of a scenario), the fit and an even workload of the same means.

    The log is played as it was recorded; when that is more than `LOAD` of what the engine sustains, all are slowed.
    InputError when the scenario cannot be run, CheckError when a simulation fails.
    """
    scenario = apply_sets(scenario, {"replications": 1, "variants": {}, "warmup": "none"}, label="fit")
    original = apply_sets(scenario, {"workload": {"trace": trace}}, label="fit")
    repeated = apply_sets(scenario, {"replications": REPLICATIONS}, label="fit")
    fitted = apply_sets(repeated, {"workload": fit.workload}, label="fit")
    rate = fit.num_requests / fit.span_s
    load = UniformLoad.of_means(fit.num_requests, rate, fit.mean_prompt_tokens, fit.mean_output_tokens)
    even = apply_sets(repeated, {"workload": load.to_workload()}, label="fit")
    # All at once, so that the engine is never idle: what it sustains of these requests.
    crowd = _done(run_study([Point("crowd", at_rate(original, fit.span_s, 1.0))], progress=progress, **options))
    sustained = crowd["crowd"].summary["makespan_throughput"]["requests_per_s"]
    speed = min(1.0, LOAD * sustained / rate)
    arms = {"original": original, "fitted": fitted, "even": even}
    points = [Point(name, at_rate(arm, speed * rate, rate) if speed < 1 else arm) for name, arm in arms.items()]
    found = _done(run_study(points, progress=progress, **options))
    return FitCheck(scenario, speed, found["original"], found["fitted"], found["even"])


def _done(study: Study) -> dict[str, Result]:
    for name, failure in study.failed.items():
        raise (InputError if failure.kind == "input" else CheckError)(f"check of the fit, {failure.line(name)}")
    return study.results
