"""Kernels outside CUDA graphs wait for the host to launch them: how many, how long, and when it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_calibrated import calibrated, chunk, decodes
from test_roofline import MIXTRAL, roofline

import simkit
from simkit.engine.build import Setup, set_up
from simkit.errors import InputError
from simkit.latency.effects import OFF
from simkit.latency.host import ALL_CAPTURED, EAGER_US, Launches, launch_cost
from simkit.latency.step import HardwareLatency
from simkit.scenario import Scenario, from_dict
from simkit.studies.memory import scenario_account
from simkit.types import StepShapes

EAGER = launch_cost(None, eager=True)
COMPILED = launch_cost(None, eager=False)
EAGER_MS_A_TOKEN = (22.0, 23.0)
"""Qwen2.5-Omni-7B, its thinker, on A800 (vLLM-Omni issue 7960)."""


def scenario(
    *, model: str = "qwen2.5-7b", prompt: int = 100, requests: int = 8, **sections: dict[str, Any]
) -> Scenario:
    """Some prompts at once; a section given replaces the one here."""
    workload = {
        "num_requests": requests,
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"dist": "fixed", "value": prompt},
        "output_tokens": {"dist": "fixed", "value": 32},
    }
    engine = {"max_model_len": 4096, **sections.pop("engine", {})}
    return from_dict(
        {"model": model, "hardware": {"gpu": "a100-sxm4-80gb"}, "engine": engine, "workload": workload, **sections}
    )


def tpot_ms(asked: Scenario) -> float:
    return float(simkit.run(asked).summary["tpot_ms"]["mean"])


def timed(setup: Setup) -> HardwareLatency:
    assert isinstance(setup.latency, HardwareLatency)
    return setup.latency


def test_launches_are_the_kernels_that_a_step_is_priced_by() -> None:
    """4 products, 5 other kernels and attention a layer; embedding, last norm, LM head and sampler once."""
    assert calibrated().kernels.launches == roofline().kernels.launches == 32 * 10 + 4
    assert calibrated(tensor_parallel_size=2).kernels.launches == 32 * 12 + 5
    # Router and combination of the outputs of experts beside them.
    assert roofline(MIXTRAL).kernels.launches == 32 * 12 + 4


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("build", [calibrated, roofline])
def test_an_eager_step_takes_the_longer_of_kernels_and_launches(build: Any, asynchronous: bool) -> None:
    plain, eager = (build(async_scheduling=asynchronous, **more) for more in ({}, {"launch": EAGER}))
    launches = eager.kernels.launches * EAGER_US * 1000
    few, many = decodes(4, 100), decodes(0, 0, **chunk(8192))
    assert plain.gpu_ns(few)[0] < launches < plain.gpu_ns(many)[0]
    # The engine's own work is added to the launches as it is to the kernels.
    outside = int(plain.step_ns(few)[0] - plain.gpu_ns(few)[0])
    assert eager.step_ns(few)[0] == launches + outside
    assert eager.step_ns(many) == plain.step_ns(many)
    # The GPU is idle meanwhile.
    assert eager.gpu_ns(few) == plain.gpu_ns(few)
    assert eager.step_ns(StepShapes.of(1)) == plain.step_ns(StepShapes.of(1))


@pytest.mark.parametrize("build", [calibrated, roofline])
def test_with_graphs_only_steps_beyond_the_largest_wait(build: Any) -> None:
    slow = launch_cost(1000.0, eager=False)
    plain, graphed = (build(graph_sizes=(1, 64, 512), **more) for more in ({}, {"launch": slow}))
    for shapes in (decodes(3, 100), decodes(512, 100), decodes(12, 100, **chunk(500))):
        assert graphed.step_ns(shapes) == plain.step_ns(shapes)
    for shapes in (decodes(513, 100), decodes(12, 100, **chunk(501))):
        outside = plain.step_ns(shapes)[0] - plain.gpu_ns(shapes)[0]
        assert graphed.step_ns(shapes)[0] == graphed.kernels.launches * 1_000_000 + outside > plain.step_ns(shapes)[0]


def test_many_steps_wait_as_single_ones_do() -> None:
    launches = Launches(1000.5, 4)
    gpu, rows = np.array([0.0, 900.25, 2000.125, 900.25]), np.array([0, 5, 9, 4])
    assert launches.steps_ns(gpu, rows).tolist() == [
        launches.step_ns(float(g), int(r)) for g, r in zip(gpu, rows, strict=True)
    ]
    assert Launches(0.0, 0).steps_ns(gpu, rows) is gpu


def test_tokens_take_what_was_measured_of_an_eager_engine() -> None:
    eager = tpot_ms(scenario(requests=1, engine={"enforce_eager": True}))
    low, high = EAGER_MS_A_TOKEN
    assert 0.85 * low <= eager <= 1.15 * high
    assert eager > 1.6 * tpot_ms(scenario(requests=1))


def test_launches_hide_behind_kernels_that_take_longer() -> None:
    """64 sequences of a model of 32 billion parameters, and its 64 layers."""
    asked, without = (
        scenario(model="qwen2.5-32b", requests=32, engine={"enforce_eager": True}, latency={"without": off})
        for off in ([], ["launches"])
    )
    assert tpot_ms(asked) == tpot_ms(without)


def test_an_eager_engine_says_so_and_captures_nothing() -> None:
    plain, eager = set_up(scenario()), set_up(scenario(engine={"enforce_eager": True}))
    assert plain.effects["launches"].text == "assumed, 5 us each beyond the largest graph"
    assert eager.effects["launches"].text == "assumed, 70 us each without CUDA graphs"
    assert plain.effects["graph_padding"].text == "scheduler rules"
    assert eager.effects["graph_padding"].text == "none: no CUDA graphs"
    assert eager.memory.cuda_graph_gib == 0 < plain.memory.cuda_graph_gib
    assert eager.memory.kv_gib == pytest.approx(plain.memory.kv_gib + plain.memory.cuda_graph_gib)
    assert eager.num_gpu_blocks > plain.num_gpu_blocks
    # `simkit memory` sizes the same engine.
    assert scenario_account(scenario(engine={"enforce_eager": True})).num_gpu_blocks == eager.num_gpu_blocks
    assert scenario_account(scenario(), enforce_eager=True).num_gpu_blocks == eager.num_gpu_blocks


def test_no_step_waits_where_graphs_hold_the_token_budget() -> None:
    held = {"max_num_batched_tokens": 512}
    assert set_up(scenario(engine=held)).effects["launches"] == ALL_CAPTURED.source
    assert set_up(scenario(engine=held | {"batching": "static"})).effects["launches"] == COMPILED.source
    assert set_up(scenario(engine=held | {"enforce_eager": True})).effects["launches"] == EAGER.source


def test_a_batch_that_runs_to_completion_may_be_eager_too() -> None:
    static = {"batching": "static", "max_num_seqs": 4}
    eager = scenario(engine=static | {"enforce_eager": True})
    assert set_up(eager).without_effect == ()
    slow, quick = (simkit.run(asked).summary["e2e_ms"]["mean"] for asked in (eager, scenario(engine=static)))
    assert slow > 1.5 * quick


def test_the_cost_of_a_launch_is_the_scenarios_where_it_has_one() -> None:
    eager = {"enforce_eager": True}
    quick, slow = (
        set_up(scenario(engine=eager, latency={"host": {"launch_us": us, "gap_us": 0.0}})) for us in (5.0, 100.0)
    )
    assert quick.effects["launches"].text == "scenario"
    few = decodes(4, 100)
    assert timed(slow).step_ns(few)[0] == 284 * 100_000 > timed(quick).step_ns(few)[0]
    off = set_up(scenario(engine=eager, latency={"without": ["launches"], "host": {"launch_us": 100.0, "gap_us": 0.0}}))
    assert off.effects["launches"] == OFF
    assert off.without_effect == ("latency.host.launch_us (latency.without has launches)",)
    assert timed(off).step_ns(few) == timed(quick).step_ns(few)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"latency": {"profile": "unit"}, "engine": {"enforce_eager": True}},
         "engine.enforce_eager: has no effect with latency.profile: unit"),
        ({"latency": {"profile": "unit", "host": {"launch_us": 3.0}}},
         "latency.host.launch_us: has no effect with latency.profile: unit"),
        ({"latency": {"host": {"launch_us": 1e7}}}, "latency.host.launch_us: expected "),
        ({"engine": {"enforce_eager": 1}}, "engine.enforce_eager: expected true or false, got 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(sets: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        set_up(scenario(**sets))
    assert message in str(error.value)
