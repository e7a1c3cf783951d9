"""Prompts that begin alike: a number of tokens or a share of each, in the prefix cache from the start or not."""

from __future__ import annotations

import numpy as np
import pytest
from served import as_asked

from simkit.errors import InputError
from simkit.scenario import Scenario, loads

SCENARIO = """\
name: warm
model: qwen2.5-0.5b
warmup: none
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 4096, num_gpu_blocks: 1025}
latency: {profile: unit}
workload:
  num_requests: 20
  arrivals: {process: closed_loop, concurrency: 3}
  prompt_tokens: {dist: uniform, low: 100, high: 400}
  output_tokens: {dist: fixed, value: 8}
"""


def scenario(prefix: str, *sets: str) -> Scenario:
    return loads(SCENARIO, [f"workload.prefix={prefix}", *sets])


def cached(found: Scenario, *, single_step: bool = False) -> np.ndarray:
    result = as_asked(found, single_step=single_step)
    return result.requests.sort_values("id")[["prompt_tokens", "cached_tokens"]].to_numpy()


@pytest.mark.parametrize("groups", [1, 3])
def test_a_warm_cache_holds_that_share_of_each_prompt_from_the_first(groups: int) -> None:
    table = cached(scenario(f"{{groups: {groups}, share: 0.5, warm: true}}"))
    assert (table[:, 1] == table[:, 0] // 2 // 16 * 16).all()
    cold = cached(scenario(f"{{groups: {groups}, share: 0.5}}"))
    assert cold[0, 1] == 0
    assert (cold[:, 1] <= table[:, 1]).all()


def test_a_warm_cache_holds_a_number_of_tokens() -> None:
    table = cached(scenario("{groups: 2, tokens: 64, warm: true}"))
    assert (table[:, 1] == 64).all()


def test_more_than_fits_is_held_as_far_as_it_fits() -> None:
    """64 blocks: a prefix of 2,048 tokens is twice what there is."""
    sets = ("engine.num_gpu_blocks=65", "engine.max_model_len=1024")
    table = cached(scenario("{groups: 5, share: 1, warm: true}", *sets))
    assert table[0, 1] == (table[0, 0] - 1) // 16 * 16 or table[0, 1] == 0
    assert len(table) == 20


@pytest.mark.parametrize("groups", [1, 40])
def test_many_steps_at_once_take_what_single_ones_do(groups: int) -> None:
    found = scenario(f"{{groups: {groups}, share: 0.7, warm: true}}", "engine.num_gpu_blocks=300")
    assert (cached(found) == cached(found, single_step=True)).all()


def test_who_comes_back_after_a_failure_has_lost_its_cache() -> None:
    """Requests come every tenth of a second, each is served at once: the first after the failure computes it all."""
    sets = (
        "workload.arrivals={process: constant, rate_per_s: 10}",
        "failures=[{replica: 0, at_s: 0.55, for_s: 0.01}]",
    )
    table = cached(scenario("{groups: 1, share: 0.5, warm: true}", *sets))
    assert np.flatnonzero(table[:, 1] == 0).tolist() in ([5], [6])


@pytest.mark.parametrize(
    ("prefix", "got"), [("{groups: 1}", "neither"), ("{groups: 1, tokens: 5, share: 0.5, warm: true}", "both")]
)
def test_a_prefix_is_of_so_many_tokens_or_of_a_share(prefix: str, got: str) -> None:
    with pytest.raises(InputError, match=f"expected either tokens or share, got {got}"):
        scenario(prefix)
