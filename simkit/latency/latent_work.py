"""What a whole attention layer with one latent a token (multi-head latent attention) computes and moves on one GPU.

Owns the counts of a *module*: projections down and up, their norms, attention and the output projection, as one call.
Shapes are those of DeepSeek-V2 and V3 (arXiv 2405.04434, section 2.1, and their `config.json`): queries go through a
rank of `q_lora` (0: straight), keys and values through one of `kv_lora`, beside `rope` elements that carry the
position; a head has `nope` further elements of a key and `v_dim` of a value.

A query that is absorbed attends to latents themselves, as decodes do: 2 x (2 kv_lora + rope) FLOPs a (query, key) pair
and head. Longer chunks expand the latents to keys and values first: 2 x (nope + rope + v_dim) FLOPs a pair, and the
expansion of what was cached before.
"""

from __future__ import annotations

from collections.abc import Mapping

from simkit.types import Floats

DIMS = ("hidden", "q_lora", "kv_lora", "rope", "nope", "v_dim")
"""Sizes of a model that only the counts look at."""

OF_DEEPSEEK_V3 = {"hidden": 7168, "q_lora": 1536, "kv_lora": 512, "rope": 64, "nope": 128, "v_dim": 128}
"""Those of every table that does not name them."""

ABSORBED_TOKENS = 512.0
"""Chunks up to which vLLM attends to latents: from there on the tables have the other kernel (`kernel` of the rows of
vLLM 0.24 and 0.25 on L40S, H100, H200, RTX PRO 6000: 512 and less against 1,024 and more)."""

Counts = tuple[Floats, Floats, Floats, Floats]
"""FLOPs in the format of the projections, bytes, serial chain and pieces of each call."""


def decode(width: float, out: float, s: Mapping[str, Floats]) -> Counts:
    """Decodes: `batch` sequences of `kv_len` tokens with the new one."""
    batch, keys = s["batch"], s["batch"] * s["kv_len"]
    flops, weights = _projections(width, batch, s)
    flops = flops + _sixteen_bit(width) * keys * _absorbed_flops(s)
    return flops, weights + _cache_bytes(keys, s), s["kv_len"] + 0.0 * keys, batch * s["num_heads"]


def prefill(width: float, out: float, s: Mapping[str, Floats]) -> Counts:
    """`batch` chunks of `q_len` tokens over `kv_len` cached ones."""
    batch, q, before = s["batch"], s["q_len"], s["kv_len"]
    flops, weights = _projections(width, batch * q, s)
    pairs = batch * q * (before + (q + 1.0) / 2.0)
    expanded = pairs * 2.0 * s["num_heads"] * (s["nope"] + s["rope"] + s["v_dim"]) + batch * before * _up_flops(s)
    short = 1.0 * (q <= ABSORBED_TOKENS)
    attention = short * pairs * _absorbed_flops(s) + (1.0 - short) * expanded
    flops = flops + _sixteen_bit(width) * attention
    return flops, weights + _cache_bytes(batch * (before + q), s), before + q + 0.0 * batch, batch * s["num_heads"]


def _projections(width: float, tokens: Floats, s: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """(FLOPs, bytes) of all projections of `tokens`; those between latents and heads stay in 16 bits."""
    heads, latent = s["num_heads"], s["kv_lora"] + s["rope"]
    queries = heads * (s["nope"] + s["rope"])
    straight = 1.0 * (s["q_lora"] == 0)
    elements = straight * s["hidden"] * queries + s["q_lora"] * (s["hidden"] + queries)
    elements = elements + s["hidden"] * (latent + heads * s["v_dim"])
    flops = tokens * (2.0 * elements + _sixteen_bit(width) * _up_flops(s))
    return flops, width * elements + _up_flops(s) + 0.0 * tokens


def _up_flops(s: Mapping[str, Floats]) -> Floats:
    """From a latent to the keys and values of the heads; as many bytes as the 16-bit weights have."""
    return 2.0 * s["kv_lora"] * s["num_heads"] * (s["nope"] + s["v_dim"])


def _absorbed_flops(s: Mapping[str, Floats]) -> Floats:
    return 2.0 * s["num_heads"] * (2.0 * s["kv_lora"] + s["rope"])


def _cache_bytes(tokens: Floats, s: Mapping[str, Floats]) -> Floats:
    """The cache holds 16 bits an element."""
    return 2.0 * (s["kv_lora"] + s["rope"]) * tokens


def _sixteen_bit(width: float) -> float:
    """By how much FLOPs in 16 bits count among those of operands of `width` bytes, whose peak is so much higher."""
    return max(2.0 / width, 1.0) if width < 2.0 else 1.0
