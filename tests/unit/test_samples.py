"""Several samples of one prompt: all are delivered, the prompt is held once, and only what differs is copied."""

from __future__ import annotations

from typing import Any

import pytest

from simkit import api, scenario
from simkit.engine import build as engine_build
from simkit.errors import InputError
from simkit.kv.paged import PagedAllocator
from simkit.sequence import Sequence

MS = 1_000_000


def build(engine: dict[str, Any], workload: dict[str, Any]) -> scenario.Scenario:
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {
            "async_scheduling": False,
            "enable_prefix_caching": False,
            "max_model_len": 1024,
            "max_num_batched_tokens": 1024,
            "max_num_seqs": 8,
        }
        | engine,
        "workload": {"num_requests": 1, "arrivals": {"process": "all_at_once"}} | workload,
        "latency": {"profile": "unit"},
    }
    return scenario.from_dict(data)


def lengths(prompt: int, output: int, samples: int) -> dict[str, Any]:
    return {
        "prompt_tokens": {"dist": "fixed", "value": prompt},
        "output_tokens": {"dist": "fixed", "value": output},
        "samples": samples,
    }


class Counting(PagedAllocator):
    """Counts blocks of a table that are replaced by another: the copies of copy-on-write."""

    made: list[Counting] = []  # noqa: RUF012 (emptied by the fixture)

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.num_copies = 0
        Counting.made.append(self)

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        before = list(self.blocks_of(seq))
        grown = super().try_grow(seq, num_tokens)
        self.num_copies += sum(a != b for a, b in zip(before, self.blocks_of(seq), strict=False))
        return grown


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setattr(engine_build, "PagedAllocator", Counting)
    return Counting.made


@pytest.mark.parametrize("caching", [False, True], ids=["plain", "caching"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 16, 100, 128, 255, 256])
@pytest.mark.parametrize("samples", [1, 2, 4, 8])
def test_prompt_blocks_are_held_once_and_the_last_one_copied_for_all_but_one(
    counting: list[Counting], samples: int, block_size: int, caching: bool
) -> None:
    prompt = 130
    engine = {"block_size": block_size, "enable_prefix_caching": caching}
    whole, partial = divmod(prompt, block_size)
    for output in (1, 2, 3, 9):
        result = api.run(build(engine, lengths(prompt, output, samples)), single_step=True)
        copies = samples - 1 if partial and output > 1 else 0
        assert counting.pop().num_copies == copies
        # The last step computes token number prompt + output - 1, and memory only grows.
        own = -(-(prompt + output - 1) // block_size) - whole
        blocks = whole + (samples * own if output > 1 else own)
        assert result.summary["kv"]["peak_tokens"] == blocks * block_size
        if output > 1:
            # The first pass holds the prompt; in the second every sample has a token and a partial block of its own.
            used = [int(tokens) for tokens in result.steps["kv_used_tokens"]]
            assert used[:2] == [prompt, prompt + samples + (samples - 1) * partial]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("prompt", [1, 5, 15, 17, 33, 40])
@pytest.mark.parametrize("samples", [2, 3, 5])
def test_copies_are_those_of_partial_blocks(
    counting: list[Counting], samples: int, prompt: int, asynchronous: bool
) -> None:
    """Several requests at once; each copies its last prompt block for all samples but one."""
    engine = {"async_scheduling": asynchronous, "block_size": 16, "max_num_seqs": 20}
    api.run(build(engine, {"num_requests": 4} | lengths(prompt, 20, samples)))
    assert counting[0].num_copies == 4 * (samples - 1)


@pytest.mark.parametrize("samples", [1, 2, 3, 7])
@pytest.mark.parametrize("usable", [12, 16, 200])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_every_sample_is_delivered(samples: int, usable: int, preemption: str) -> None:
    engine = {
        "block_size": 4,
        "max_model_len": 48,
        "num_gpu_blocks": usable + 1,
        "preemption": preemption,
        "host_pool_gib": 1.0,
        "max_num_batched_tokens": 64,
    }
    result = api.run(build(engine, {"num_requests": 5} | lengths(9, 14, samples)))
    assert list(result.requests["output_tokens"]) == [14 * samples] * 5
    assert result.summary["num_requests"]["finished"] == 5
    if usable == 12 and samples > 2:
        assert result.summary["num_preemptions"] > 0


def test_samples_cost_less_than_as_many_requests() -> None:
    """19 tokens in, 58 out, block size 16: one whole prompt block is shared, a partial one is not."""
    several = api.run(build({}, lengths(19, 58, 6))).summary["kv"]["peak_tokens"]
    alone = api.run(build({}, {"num_requests": 6} | lengths(19, 58, 1))).summary["kv"]["peak_tokens"]
    assert alone - several == 5 * 16


def test_all_samples_get_their_first_token_in_the_same_step_and_slots_are_kept_for_them() -> None:
    workload = {"num_requests": 2} | lengths(10, 5, 3)
    result = api.run(build({"max_num_seqs": 5}, workload))
    assert [int(ns) for ns in result.requests["first_token_ns"]] == [MS, 6 * MS]
    assert [int(ns) for ns in result.requests["last_token_ns"]] == [5 * MS, 10 * MS]
    assert int(result.steps["running"].max()) == 3


def test_more_samples_than_slots_are_refused() -> None:
    with pytest.raises(InputError, match=r"workload\.samples: expected at most the 2 slots of the engine, got 3"):
        api.run(build({"max_num_seqs": 2}, lengths(10, 5, 3)))


@pytest.mark.parametrize("block_size", [0, 257, -1])
def test_block_sizes_beyond_the_limits_are_refused(block_size: int) -> None:
    with pytest.raises(InputError, match="block_size"):
        build({"block_size": block_size}, lengths(10, 5, 3))


@pytest.mark.parametrize("prompt", range(13, 20))
def test_a_sample_that_starves_while_the_first_one_ends_keeps_its_own_block(prompt: int) -> None:
    """Long prompts eat the budget of the passes after the fork; run ahead, the first sample has begun a block."""
    engine = {
        "async_scheduling": True,
        "enable_prefix_caching": True,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
        "max_model_len": 256,
    }
    workload = {
        "num_requests": 3,
        "prompt_tokens": {"dist": "list", "values": [100, prompt, 200]},
        "output_tokens": {"dist": "list", "values": [2, 2, 2]},
        "samples": 2,
    }
    result = api.run(build(engine, workload))
    assert list(result.requests["output_tokens"]) == [4, 4, 4]
