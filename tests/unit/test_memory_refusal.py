"""Refusals of the start-up: the right reason, and advice that is true when it is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from simkit.memory.budget import MemorySettings, Refusal, refusal_of
from simkit.memory.rules import quantizations
from simkit.memory.sizing import HIGHEST_UTILIZATION, size
from simkit.specs.hardware import list_gpus, load_gpu
from simkit.specs.models import list_models, load_model


def ask(model: str, gpu: str, **changes: Any) -> MemorySettings:
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    return MemorySettings(model=load_model(model), gpu=load_gpu(gpu), **limits | changes)


def refused(settings: MemorySettings) -> Refusal:
    found = refusal_of(size(settings))
    assert found is not None
    assert "\n" not in found.text
    return found


def starts(settings: MemorySettings) -> bool:
    return refusal_of(size(settings)) is None


def test_a_long_sequence_on_a_small_gpu() -> None:
    """A Llama of 8 billion on an RTX 3090 with prompts of 29,000: 23,648 tokens fitted (A002)."""
    settings = ask(
        "llama-3.1-8b", "rtx-3090", gpu_memory_utilization=0.9, max_model_len=29000, max_num_batched_tokens=29000,
        engine_version="0.6.4",
    )  # fmt: skip
    found = refused(settings)
    assert found.kind == "max_model_len"
    assert found.text == (
        "max_model_len 29000 needs 1,813 blocks, 1,498 fit: lower it to 23,968, raise gpu_memory_utilization to 0.93, "
        "set kv_cache_dtype to fp8, quantize to fp8, or raise tensor_parallel_size to 2"
    )
    # One less of each would not do.
    assert not starts(replace(settings, max_model_len=23969))
    assert not starts(replace(settings, gpu_memory_utilization=0.92))


def test_the_two_other_reasons() -> None:
    weights = refused(ask("llama-3-70b", "a100-sxm4-80gb"))
    assert weights.kind == "weights"
    assert "131.4 GiB of weights per GPU; a100-sxm4-80gb offers 72.9 GiB" in weights.reason
    nothing = refused(ask("llama-3-70b", "a100-sxm4-80gb", quantization="fp8", gpu_memory_utilization=0.86))
    assert nothing.kind == "kv"
    assert "leaves no memory for KV" in nothing.reason


def test_utilization_beyond_what_can_be_had_is_not_advised() -> None:
    for share in (0.97, 0.98, 1.0):
        found = refused(ask("llama-3-70b", "a100-sxm4-80gb", tensor_parallel_size=1, gpu_memory_utilization=share))
        assert "gpu_memory_utilization to" not in found.text
    # Before 0.21 graphs lie outside the budget: more utilization must leave them room.
    old = ask("llama-3.1-8b", "rtx-3090", max_model_len=48000, engine_version="0.19", gpu_memory_utilization=0.9)
    new = replace(old, engine_version="0.33")
    for settings in (old, new):
        for way in refused(settings).ways:
            after = size(replace(settings, **way.changes))
            assert after.graph_bytes <= after.spare_bytes


@pytest.mark.parametrize(
    ("gpu", "model", "version", "seqs", "highest"),
    [
        ("l4-24gb", "llama-3.1-8b", "0.33", 256, 0.93),  # 1.0 GiB and 4 x 256 x 128,256 x 4 bytes of 22.03
        ("l4-24gb", "gpt-oss-20b", "0.29", 1024, 0.81),  # the engine died at 0.9
        ("l4-24gb", "gpt-oss-20b", "0.29", 512, 0.88),  # it ran at 0.85
        ("h100-sxm5-80gb", "llama-3.1-8b", "0.33", 1024, 0.96),
        ("h100-sxm5-80gb", "llama-3.1-8b", "0.19", 1024, 0.95),  # A047 ran at 0.95, its graphs beside the budget
        ("h100-sxm5-80gb", "gpt-oss-20b", "0.19", 1024, 0.94),  # D18 died at 0.95 and ran at 0.90
        ("a100-sxm4-80gb", "llama-3-70b", "0.7", 256, 0.98),  # A010 ran at 0.98
    ],
)
def test_as_much_is_left_beside_the_budget_as_start_up_logs_needed(
    gpu: str, model: str, version: str, seqs: int, highest: float
) -> None:
    assert size(ask(model, gpu, engine_version=version, max_num_seqs=seqs)).highest_utilization == highest


def test_a_small_gpu_is_not_advised_what_a_large_one_is() -> None:
    """A sequence that needs 0.95 of either: the large GPU has 4 GiB beside that, the small one 1.1."""
    for gpu, seqs, advised in (("l4-24gb", 256, False), ("h100-sxm5-80gb", 1024, True)):
        settings = ask("llama-3.1-8b", gpu, max_num_seqs=seqs)
        length = size(replace(settings, gpu_memory_utilization=0.95)).kv_tokens
        model = replace(settings.model, max_position=length)
        found = refused(replace(settings, model=model, gpu_memory_utilization=0.9, max_model_len=length))
        assert ("raise gpu_memory_utilization to 0.95" in found.text) is advised


def test_a_larger_gpu_is_named_when_nothing_else_helps() -> None:
    settings = ask("llama-3-8b", "l4-24gb", activation_gib=30.0)
    found = refused(settings)
    (way,) = found.ways
    assert way.text == "use a larger GPU such as h100-pcie-80gb"
    assert starts(replace(settings, **way.changes))
    # Nor does the largest help here.
    assert refused(replace(settings, activation_gib=300.0)).text.endswith(": no single change makes it start")


def test_an_override_of_the_blocks_leaves_memory_out_of_it() -> None:
    settings = ask("llama-3-8b", "a100-sxm4-80gb", max_model_len=8192, num_gpu_blocks=100)
    found = refused(settings)
    assert found.text == "max_model_len 8192 needs 512 blocks, 99 fit: lower it to 1,584 or raise num_gpu_blocks to 513"
    for way in found.ways:
        assert starts(replace(settings, **way.changes))


def test_a_refusal_counts_every_group_of_layers() -> None:
    """gemma-3-27b: 10 of 62 layers keep everything, 52 in six groups a window of 1,024 and 2 x 2,048 under way."""
    settings = ask("gemma-3-27b", "h100-sxm5-80gb", max_model_len=131072)
    need = 8192 + 6 * 321
    found = refused(replace(settings, num_gpu_blocks=need))
    assert (found.kind, found.reason.split("needs ")[1]) == (
        "max_model_len", "10,118 blocks in 7 groups of layers, 10,117 fit"
    )  # fmt: skip
    assert starts(replace(settings, num_gpu_blocks=need + 1))
    for way in found.ways:
        assert starts(replace(settings, num_gpu_blocks=need, **way.changes) if "num_gpu_blocks" not in way.changes
                      else replace(settings, **way.changes))  # fmt: skip
    # Engines before groups keep every layer in full.
    old = replace(settings, engine_version="0.8.5", num_gpu_blocks=8192)
    assert "needs 8,192 blocks, 8,191 fit" in refused(old).reason


def test_only_formats_that_the_gpu_has_are_advised() -> None:
    """vLLM documentation, "Supported Hardware for Quantization Kernels": from Volta 7.0 to Hopper 9.0, and AMD."""
    formats = {
        gpu: quantizations(load_gpu(gpu).compute_capability)
        for gpu in ("v100-sxm2-32gb", "t4-16gb", "a100-sxm4-80gb", "l4-24gb", "h100-sxm5-80gb", "mi300x")
    }
    assert formats == {
        "v100-sxm2-32gb": ("gptq", "bitsandbytes"),
        "t4-16gb": ("int8", "awq", "gptq", "bitsandbytes"),
        "a100-sxm4-80gb": ("fp8", "int8", "awq", "gptq", "mxfp4", "nvfp4", "bitsandbytes"),
        "l4-24gb": ("fp8", "int8", "awq", "gptq", "mxfp4", "nvfp4", "bitsandbytes"),
        "h100-sxm5-80gb": ("fp8", "int8", "awq", "gptq", "mxfp4", "nvfp4", "bitsandbytes"),
        "mi300x": ("fp8", "mxfp4"),
    }
    assert quantizations("8.0", (0, 5, 0)) == ("int8", "awq", "gptq"), "fp8 weights on Ampere came with 0.5.3"
    assert quantizations("gfx906") == ()
    for gpu, share, advised in (("v100-sxm2-32gb", 0.45, "gptq"), ("t4-16gb", 0.92, "int8"), ("mi300x", 0.08, "fp8")):
        text = refused(ask("llama-3-8b", gpu, dtype="float16", gpu_memory_utilization=share, max_num_seqs=64)).text
        assert text.count("quantize to") == 1
        assert f"quantize to {advised}" in text


def test_a_larger_gpu_must_have_the_format_of_the_weights() -> None:
    """A V100 has room for them where an RTX 5090 has none, but no fp8."""
    settings = ask("llama-3-8b", "l4-24gb", dtype="float16")
    for quantization, gib, larger in (("fp8", 19.7, "a100-pcie-40gb"), ("gptq", 22.9, "v100-sxm2-32gb")):
        found = refused(replace(settings, quantization=quantization, activation_gib=gib))
        assert [way.text for way in found.ways] == [f"use a larger GPU such as {larger}"]


def test_a_budget_below_the_longest_prompt_before_prompts_were_chunked() -> None:
    settings = ask("llama-3-8b", "a100-sxm4-80gb", engine_version="0.4", max_model_len=8192)
    found = refused(settings)
    assert found.kind == "max_num_batched_tokens"
    assert found.text == (
        "max_num_batched_tokens 2048 is below max_model_len 8192, and engine 0.4 takes prompts whole: "
        "raise it to 8192 or lower max_model_len to 2048"
    )
    assert starts(replace(settings, max_num_batched_tokens=8192))
    assert not starts(replace(settings, max_num_batched_tokens=8191))
    assert starts(replace(settings, enable_chunked_prefill=True))
    assert "set enable_chunked_prefill to true" in refused(replace(settings, engine_version="0.7.3")).text
    assert starts(replace(settings, engine_version="0.8.0"))
    assert not starts(replace(settings, engine_version="0.8.0", enable_chunked_prefill=False))
    # Longer ones were chunked without being asked (A015: 131,072 with a budget of 2,048).
    long = ask("llama-3.1-8b", "a100-sxm4-80gb", engine_version="0.6.4", max_model_len=40000)
    assert starts(long)
    assert not starts(replace(long, max_model_len=32768))


@given(
    model=st.sampled_from(list_models()),
    gpu=st.sampled_from(list_gpus()),
    share=st.integers(5, 100),
    length=st.integers(1, 200_000),
    ranks=st.sampled_from([1, 2, 4, 8]),
    stages=st.sampled_from([1, 1, 2]),
    seqs=st.sampled_from([1, 16, 256, 1024]),
    budget=st.sampled_from([2048, 8192, 50_000]),
    version=st.sampled_from(["0.2.7", "0.6.4", "0.10", "0.16", "0.19", "0.33"]),
    quantization=st.sampled_from([None, None, "fp8", "awq"]),
    cache=st.sampled_from(["auto", "fp8"]),
)
@hypothesis_settings(max_examples=150, deadline=None)
def test_advice_is_true(
    model: Any, gpu: Any, share: int, length: int, ranks: int, stages: int, seqs: int, budget: int, version: str,
    quantization: str | None, cache: str,
) -> None:  # fmt: skip
    """Whatever is advised makes the same start-up pass, and a notch less of it does not."""
    if model.num_attention_heads % ranks or (model.num_kv_heads % ranks and ranks % model.num_kv_heads):
        return
    settings = MemorySettings(
        model=model, gpu=gpu, max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=length,
        tensor_parallel_size=ranks, pipeline_parallel_size=stages, gpu_memory_utilization=share / 100,
        engine_version=version, quantization=quantization, kv_cache_dtype=cache,
    )  # fmt: skip
    found = refusal_of(size(settings))
    if found is None:
        sizing = size(settings)
        assert sizing.longest >= length
        return
    for way in found.ways:
        assert starts(replace(settings, **way.changes)), way.text
        if "max_model_len" in way.changes:
            assert not starts(replace(settings, max_model_len=way.changes["max_model_len"] + 1))
        if "gpu_memory_utilization" in way.changes:
            advised = way.changes["gpu_memory_utilization"]
            if found.kind in ("cuda_graphs", "sampler"):
                assert advised < settings.gpu_memory_utilization
                continue
            assert settings.gpu_memory_utilization < advised <= HIGHEST_UTILIZATION
            after = size(replace(settings, **way.changes))
            assert after.outside_bytes >= after.outside_needed_bytes - 1
        if "quantization" in way.changes:
            assert way.changes["quantization"] in quantizations(gpu.compute_capability, settings.version)
        if "max_num_batched_tokens" in way.changes:
            assert way.changes["max_num_batched_tokens"] >= settings.max_num_seqs
