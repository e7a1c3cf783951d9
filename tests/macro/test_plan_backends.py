"""A plan of many points is the same table wherever it is computed."""

from __future__ import annotations

from typing import Any

import pytest

from simkit import scenario
from simkit.plain import canonical_json
from simkit.planner import plan as planner
from simkit.planner import sensitivity
from simkit.planner.content import plan_csv, plan_json
from simkit.planner.search import Effort

TEXT = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_model_len: 128, num_gpu_blocks: 65, enable_prefix_caching: false}
workload:
  num_requests: 25
  arrivals: {process: poisson, rate_per_s: 100}
  prompt_tokens: {dist: uniform, low: 10, high: 40}
  output_tokens: {dist: uniform, low: 2, high: 12}
latency: {profile: unit}
slo: {ttft_ms: {p90: 5}}
"""
AXES = {
    "engine.max_num_seqs": [1, 2, 4, 8, 16],
    "engine.policy": ["fcfs", "sjf", "priority"],
    "engine.max_num_batched_tokens": [32, 64, 128, 256],
}


def test_sixty_points_on_dask_are_those_of_one_process_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    # The effort travels with each task; two replications are as good as ten for this, and quicker.
    for module in (planner, sensitivity):
        monkeypatch.setattr(module, "COARSE", Effort(replications=2, gap=8))
    monkeypatch.setattr(planner, "FINE", Effort(replications=2, gap=4))
    monkeypatch.setattr(sensitivity, "RATE_REPLICATIONS", 1)

    def planned(**options: Any) -> tuple[str, bytes]:
        content = plan_json(planner.plan(scenario.loads(TEXT, file="tiny.yaml"), AXES, options=options))
        return plan_csv(content), canonical_json(content)

    table, content = planned(jobs=1)
    assert len(table.splitlines()) == 1 + 5 * 3 * 4
    assert planned(dask="auto", jobs=2) == (table, content)
