"""The loads that speed is measured with, each a function of the number of requests.

All serve llama-3-8b on an a100-sxm4-80gb with step times of the roofline, 256 slots and a budget of 2048 tokens a step;
a case names what is different. Plain data, as in a scenario file; imports nothing of simkit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Data = dict[str, Any]
Case = Callable[[int], Data]

BLOCK_SIZE = 16
SLOTS = 256

KV_NEED_BLOCKS = SLOTS * (512 + 256) // BLOCK_SIZE
"""What 256 slots need when each holds a finished request of 512 + 256 tokens: 12,288 blocks, less than the GPU has."""


def fixed(value: int) -> Data:
    """Everybody alike."""
    return {"dist": "fixed", "value": value}


def base(num_requests: int, rate_per_s: float, **engine: Any) -> Data:
    """512 tokens in, 256 out, Poisson arrivals; `engine` changes the plain engine."""
    plain = {
        "batching": "continuous",
        "kv_allocator": "paged",
        "block_size": BLOCK_SIZE,
        "max_num_seqs": SLOTS,
        "max_num_batched_tokens": 2048,
        "async_scheduling": True,
        "enable_prefix_caching": False,
    }
    return {
        "name": "benchmark",
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": plain | engine,
        "workload": {
            "num_requests": num_requests,
            "arrivals": {"process": "poisson", "rate_per_s": rate_per_s},
            "prompt_tokens": fixed(512),
            "output_tokens": fixed(256),
        },
        "latency": {"profile": "roofline"},
        "warmup": "none",
    }


def plain(rate_per_s: float) -> Case:
    """512 in, 256 out."""
    return lambda n: base(n, rate_per_s)


def ragged(n: int) -> Data:
    """More than the GPU can serve, every answer of another length."""
    data = base(n, 20)
    data["workload"]["output_tokens"] = {"dist": "exponential", "mean": 256, "max": 2048}
    return data


def caching(n: int) -> Data:
    """Blocks have identities, and no two prompts share one."""
    return base(n, 5, enable_prefix_caching=True)


def long_answers(**engine: Any) -> Case:
    """Answers ten times as long at a tenth of the rate: as many tokens a second."""

    def build(n: int) -> Data:
        data = base(n, 0.5, **engine)
        data["workload"]["output_tokens"] = fixed(2560)
        return data

    return build


def conversations(n: int) -> Data:
    """Lengths of a real chat service, from the quantiles that ship with simkit."""
    data = base(n, 5)
    lengths = {"dist": "empirical", "preset": "azure-2023-conv"}
    data["workload"] |= {"prompt_tokens": lengths, "output_tokens": lengths}
    return data


def preempting(n: int) -> Data:
    """Memory for a quarter of what full slots need (and the block that the engine never gives out), and a long queue.

    Prompts are admitted while blocks last, then answers grow: running sequences push each other out.
    """
    return base(n, 20, num_gpu_blocks=KV_NEED_BLOCKS // 4 + 1)


def shared_prompts(n: int) -> Data:
    """Three quarters of a prompt are one of twenty that many have in common."""
    data = caching(n)
    data["workload"]["prefix"] = {"groups": 20, "tokens": 384}
    return data


def batches(batching: str) -> Case:
    """Batches that run to their end."""
    return lambda n: base(n, 5, batching=batching)


def four_replicas(n: int) -> Data:
    """Four engines, each with the plain case's share."""
    return base(n, 20) | {"replicas": 4}


CASES: dict[str, Case] = {
    "512/256 at 2": plain(2),
    "512/256 at 5": plain(5),
    "512/256 at 8": plain(8),
    "512/256 at 20": plain(20),
    "ragged at 20": ragged,
    "512/256 at 5, caching": caching,
    "512/2560 at 0.5": long_answers(),
    "512/2560 at 0.5, caching": long_answers(enable_prefix_caching=True),
    "conversations": conversations,
    "preempting": preempting,
    "shared prompts": shared_prompts,
    "static": batches("static"),
    "dynamic": batches("dynamic"),
    "4 replicas": four_replicas,
}
