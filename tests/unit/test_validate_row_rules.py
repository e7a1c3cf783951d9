"""What a row of a benchmark table states holds, what it leaves open is told, and what is not simulated is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_validate_rows import LOCKSTEP, row

from simkit.errors import InputError
from simkit.scenario import Scenario, from_dict
from simkit.validation.rows.fit import FitRows
from simkit.validation.rows.read import read_rows
from simkit.validation.rows.refusals import Unsuitable
from simkit.validation.rows.results import parse_bands
from simkit.validation.rows.scenario import RowRun, run_of
from simkit.validation.rows.study import study_rows

H100 = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100 80GB", "mean_tpot_ms": "20"}


SHORT_PROMPTS = "workload.prompt_tokens={dist: fixed, value: 9}"


def base(**engine: Any) -> Scenario:
    return from_dict(
        {
            "model": "qwen2.5-0.5b",
            "hardware": {"gpu": "h100-sxm5-80gb"},
            "engine": engine,
            "workload": {
                "num_requests": 1,
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"dist": "fixed", "value": 1},
                "output_tokens": {"dist": "fixed", "value": 1},
            },
        }
    )


def has(run: RowRun, start: str) -> bool:
    return any(text.startswith(start) for text in run.assumed)


# --- what a row states ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cells", "key", "value"),
    [
        ({"engine": "vLLM 0.12.0"}, "version", "0.12"),
        ({"dtype_quant": "bf16"}, "quantization", None),
        ({"dtype_quant": " gemm= moe="}, "quantization", None),
        ({"dtype_quant": "awq"}, "quantization", "awq"),
        ({"dtype_quant": ""}, "quantization", "fp8"),
        ({"dtype_quant": "fp8 kv=bf16"}, "kv_cache_dtype", "auto"),
        ({"dtype_quant": "bf16"}, "kv_cache_dtype", "fp8"),
        ({"max_num_seqs": "default"}, "max_num_seqs", 77),
        ({"max_num_seqs": "9"}, "max_num_seqs", 9),
        ({"prefix_caching": "default"}, "enable_prefix_caching", False),
    ],
)
def test_a_base_scenario_fills_only_gaps(tmp_path: Path, cells: dict[str, str], key: str, value: object) -> None:
    given = base(version="0.19", quantization="fp8", kv_cache_dtype="fp8", max_num_seqs=77, enable_prefix_caching=False)
    run = run_of(row(tmp_path, **H100 | cells), given)
    assert getattr(run.scenario.engine, key) == value
    assert run.engine == "vLLM 0.12"


def test_a_version_that_a_row_leaves_open_is_the_bases_with_all_that_follows(tmp_path: Path) -> None:
    open_ = row(tmp_path, **H100 | {"engine": "vLLM", "max_concurrency": "", "batch_size": "4", "num_prompts": "4"})
    alone, with_base = run_of(open_), run_of(open_, base(version="0.19"))
    assert (alone.engine, alone.scenario.engine.prefill_first) == ("vLLM 0.6", True)
    assert (with_base.engine, with_base.scenario.engine.prefill_first) == ("vLLM 0.19", False)
    assert has(alone, "vLLM without a version")
    assert not has(with_base, "vLLM without a version")


@pytest.mark.parametrize(("text", "version"), [("vLLM (2024)", "vLLM 0.6"), ("vLLM V1", "vLLM"), ("vLLM 2026", "vLLM")])
def test_a_batch_is_of_2024_unless_its_engine_is_later(tmp_path: Path, text: str, version: str) -> None:
    made = row(tmp_path, **H100 | {"engine": text, "max_concurrency": "", "batch_size": "4", "num_prompts": "4"})
    assert run_of(made).engine == version


def test_chunked_prefill_of_an_early_version_puts_decodes_first(tmp_path: Path) -> None:
    early = H100 | {"engine": "vLLM 0.6.3"}
    whole, chunked = run_of(row(tmp_path, **early)), run_of(row(tmp_path, **early | {"chunked_prefill": "on"}))
    assert (whole.scenario.engine.prefill_first, chunked.scenario.engine.prefill_first) == (True, False)
    assert has(whole, "vLLM before 0.8: whole prompts")
    assert not has(chunked, "vLLM before 0.8")


@pytest.mark.parametrize(
    ("text", "label", "host"),
    [
        ("TensorRT-LLM (2024)", "TRT-LLM 0.14", "trt-llm 0.14"),
        ("TensorRT-LLM", "TRT-LLM 0.14", "trt-llm 0.14"),
        ("TensorRT-LLM 1.0", "TRT-LLM 1.0", "trt-llm 1.0"),
        ("TensorRT-LLM 2026", "TRT-LLM", "trt-llm"),
    ],
)
def test_a_batch_of_trt_llm_is_of_2024_unless_its_engine_is_later(
    tmp_path: Path, text: str, label: str, host: str
) -> None:
    cells = H100 | {"engine": text, "max_concurrency": "", "batch_size": "4", "num_prompts": "4"}
    run = run_of(row(tmp_path, **cells))
    assert run.scenario.latency.host is not None
    assert (run.engine, run.scenario.latency.host.engine) == (label, host)
    assert has(run, "TRT-LLM without a version, of 2024: as 0.14") == (label == "TRT-LLM 0.14")


def test_chunked_prefill_of_sglang_leaves_decodes_first(tmp_path: Path) -> None:
    run = run_of(row(tmp_path, **H100 | {"engine": "sglang 0.5.1", "chunked_prefill": "on"}))
    assert (run.scenario.engine.enable_chunked_prefill, run.scenario.engine.prefill_first) == (True, False)


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        ({"dtype_quant": "fp8"}, "fp8"),
        ({"dtype_quant": "gemm=fp8 moe=fp8"}, "fp8"),
        ({"dtype_quant": "gemm=fp8_block moe=fp8_block"}, "auto"),
        ({"dtype_quant": "gemm=fp8_block moe=fp8_block", "model": "nvidia/Llama-3.1-8B-Instruct-FP8"}, "fp8"),
        ({"dtype_quant": "", "model": "meta-llama/Llama-3.1-8B-FP8"}, "fp8"),
        ({"dtype_quant": "", "model": "meta-llama/Llama-3.1-8B-FP8-block"}, "auto"),
        ({"dtype_quant": "fp8 kv=bf16"}, "auto"),
        ({"dtype_quant": "bf16"}, "auto"),
        ({"dtype_quant": "fp8", "engine": "vLLM 0.12"}, "auto"),
        ({"dtype_quant": "fp8", "engine": "sglang 0.5"}, "auto"),
    ],
)
def test_trt_llm_has_its_kv_cache_in_fp8_where_weights_have_one_scale_a_tensor(
    tmp_path: Path, cells: dict[str, str], dtype: str
) -> None:
    run = run_of(row(tmp_path, **H100 | {"engine": "trtllm 1.0"} | cells))
    assert run.scenario.engine.kv_cache_dtype == dtype


# --- lengths ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cells", "share"),
    [
        ({"dataset": "random, range ratio 0.5"}, 0.5),
        ({"other_config": "--random-range-ratio 0.9"}, 0.9),
        ({"other_config": "random_range_ratio=.25"}, 0.25),
        ({"source": "InferenceX"}, 0.8),
        ({"notes": "of the InferenceMAX runs"}, 0.8),
        ({"notes": "source_file=2026-04-06.csv"}, 0.8),
        ({"notes": "source_file=2026-04-06.csv", "dataset": "range ratio 0.5"}, 0.5),
        ({"source": "InferenceX", "dataset": "random, range ratio 1.0"}, None),
        ({"source": "InferenceX", "dataset": "random, exact"}, None),
        ({"source": "InferenceX", "dataset": "synthetic, stdev 0"}, None),
        ({"source": "InferenceX", "other_config": "generated 120"}, None),
        ({"notes": "source_file=runs.csv"}, None),
        ({}, None),
    ],
)
def test_lengths_are_spread_where_the_benchmark_draws_them(
    tmp_path: Path, cells: dict[str, str], share: float | None
) -> None:
    run = run_of(row(tmp_path, **H100 | cells))
    load = run.scenario.workload
    lengths = [part.model_dump() for part in (load.prompt_tokens, load.output_tokens) if part is not None]
    told = [text for text in run.assumed if text.startswith("lengths ")]
    if share is None:
        assert lengths == [{"dist": "fixed", "value": 100}, {"dist": "fixed", "value": 20}]
        assert told == [LOCKSTEP]
        return
    assert lengths == [{"dist": "uniform", "low": int(share * most), "high": most} for most in (100, 20)]
    assert told == [f"lengths drawn by the benchmark: evenly from {share:g} of the stated one to it"]


@pytest.mark.parametrize(
    ("cells", "locked"),
    [
        ({}, True),
        ({"max_concurrency": "1"}, False),
        ({"num_prompts": "1"}, False),
        ({"request_rate": "2"}, False),  # the cap is left out
        ({"max_concurrency": "", "request_rate": "inf"}, False),
        ({"max_concurrency": "", "batch_size": "6"}, False),
        ({"other_config": "generated 119"}, False),
    ],
)
def test_clients_go_in_lockstep_where_they_wait_for_answers_of_one_length(
    tmp_path: Path, cells: dict[str, str], locked: bool
) -> None:
    assert has(run_of(row(tmp_path, **H100 | cells)), LOCKSTEP) == locked


def test_no_lockstep_is_told_where_a_setting_lets_requests_come_as_they_may(tmp_path: Path) -> None:
    sets = ("workload.arrivals={process: poisson, rate_per_s: 2}",)
    assert not has(run_of(row(tmp_path, **H100), sets=sets), LOCKSTEP)


# --- what is told -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cells", "text", "setting"),
    [
        ({"tp": ""}, "tensor parallelism not stated", "hardware.tensor_parallel_size=2"),
        ({}, "H100 80GB: the SXM part", "hardware.gpu=a100-sxm4-80gb"),
        ({}, "max_model_len not stated", "engine.max_model_len=4096"),
        ({"num_prompts": ""}, "number of requests not stated", "workload.num_requests=9"),
        ({"engine": "trtllm 1.0"}, "TRT-LLM: whole prompts", "engine.enable_chunked_prefill=true"),
        ({"engine": "trtllm 1.0"}, "TRT-LLM: 8192 tokens a step", "engine.max_num_batched_tokens=16384"),
        ({"engine": "sglang 0.5"}, "SGLang: whole prompts, before decodes", "engine.enable_chunked_prefill=true"),
        ({"engine": "sglang 0.5"}, "SGLang: 8192 tokens a step", "engine.max_num_batched_tokens=16384"),
        ({"dtype_quant": "fp8"}, "fp8: KV cache in 16 bits", "engine.kv_cache_dtype=fp8"),
        ({"dtype_quant": "fp8", "engine": "trtllm 1.0"}, "fp8: KV cache in fp8", "engine.kv_cache_dtype=auto"),
        ({"gpu": "L40S", "tp": "2"}, "l40s-48gb: linked by PCIe", "hardware.interconnect=pcie"),
        ({"input_len": "mean 99", "max_concurrency": "1"}, "mean lengths", SHORT_PROMPTS),
        ({}, LOCKSTEP, SHORT_PROMPTS),
        ({}, LOCKSTEP, "workload.output_tokens={dist: uniform, low: 10, high: 20}"),
        ({"source": "InferenceX"}, "lengths drawn by the benchmark: evenly from 0.8", SHORT_PROMPTS),
    ],
)
def test_an_assumption_is_told_unless_a_setting_takes_its_place(
    tmp_path: Path, cells: dict[str, str], text: str, setting: str
) -> None:
    made = row(tmp_path, **H100 | cells)
    assert has(run_of(made), text)
    changed = run_of(made, sets=(setting,))
    assert not has(changed, text)
    assert len(changed.assumed) == len(run_of(made).assumed) - 1


POOL = {"kv_cache_tokens": "64000", "tp": "1"}
OLD = {"engine": "vLLM 0.6"}


@pytest.mark.parametrize(
    ("cells", "settings", "expected"),
    [
        (POOL, {"engine.block_size": "32"}, {"engine.num_gpu_blocks": 2001}),
        ({"kv_cache_tokens": "4810"}, {}, {"engine.num_gpu_blocks": 301, "engine.max_model_len": 4800}),
        ({}, {"engine.num_gpu_blocks": "300"}, {"engine.max_model_len": 4784}),
        (OLD, {"engine.enable_chunked_prefill": "true"}, {"engine.prefill_first": False}),
        ({}, {"engine.version": "'0.14'"}, {"engine.async_scheduling": True}),
        (
            {"engine": "vLLM"},
            {"engine.version": "'0.6'"},
            {
                "engine.prefill_first": True,
                "engine.enable_chunked_prefill": False,
                "engine.enable_prefix_caching": False,
            },
        ),
        ({"engine": "trtllm 1.0"}, {"engine.max_model_len": "16384"}, {"engine.max_num_batched_tokens": 16384}),
        ({"engine": "trtllm 1.0", "max_model_len": "16384"}, {}, {"engine.max_num_batched_tokens": 16384}),
        ({"engine": "trtllm 1.0"}, {"engine.max_num_batched_tokens": "4096"}, {"engine.max_model_len": 4096}),
        ({"chunked_prefill": "off", "max_num_batched_tokens": "2048"}, {}, {"engine.max_model_len": 2048}),
        ({"dtype_quant": "fp8"}, {"engine.quantization": "null"}, {"engine.quantization": None}),
    ],
)
def test_what_follows_from_a_setting_follows_wherever_it_is_set(
    tmp_path: Path, cells: dict[str, str], settings: dict[str, str], expected: dict[str, object]
) -> None:
    def seen(run: RowRun) -> dict[str, object]:
        return {key: getattr(run.scenario.engine, key.rpartition(".")[2]) for key in expected}

    made = row(tmp_path, **H100 | cells)
    run = run_of(made, sets=tuple(f"{key}={value}" for key, value in settings.items()))
    assert seen(run) == expected
    assert not has(run, "fp8") or run.scenario.engine.quantization == "fp8"


@pytest.mark.parametrize(
    "setting", ["engine={block_size: 32}", "latency={profile: unit}", "workload={}", "hardware={}"]
)
def test_no_setting_replaces_all_that_rows_state(tmp_path: Path, setting: str) -> None:
    section = setting.partition("=")[0]
    with pytest.raises(InputError, match=rf"--set {section}: expected a key within it \({section}\.NAME\)"):
        study_rows([row(tmp_path, **H100)], sets=[setting])


def test_another_gpu_brings_its_profile_and_its_links(tmp_path: Path) -> None:
    small = row(tmp_path, **H100 | {"gpu": "A100 40GB"})
    assert run_of(small).scenario.latency.profile == "a100-sxm4-80gb"
    for text, gpu, profile in (
        ("B200", "b200-sxm-180gb", "h200-sxm-141gb"),
        ("GH200 96GB HBM3", "gh200-96gb", "h100-sxm5-80gb"),
    ):
        later = run_of(row(tmp_path, **H100 | {"gpu": text}))
        assert (later.scenario.hardware.gpu, later.scenario.latency.profile) == (gpu, profile)
        assert has(later, f"{gpu}: the profile of {profile}, scaled to its limits")
    changed = run_of(small, sets=("hardware.gpu=h100-sxm5-80gb",))
    assert changed.scenario.latency.profile == "auto"
    card = row(tmp_path, **H100 | {"gpu": "A100-PCIE 80GB", "tp": "4"})
    assert run_of(card, sets=("hardware.gpu=h100-sxm5-80gb",)).scenario.hardware.interconnect == "nvlink"
    pair = run_of(card, sets=("hardware.tensor_parallel_size=2",))
    assert (pair.scenario.hardware.interconnect, has(pair, "a100-pcie-80gb: linked")) == ("nvlink", False)


def test_a_cap_that_is_left_out_is_told_at_any_rate(tmp_path: Path) -> None:
    made = row(tmp_path, **H100 | {"request_rate": "2"})
    assert has(run_of(made, sets=("workload.arrivals.rate_per_s=3",)), "a rate and a cap of concurrency")


def test_clients_are_those_that_are_simulated(tmp_path: Path) -> None:
    assert run_of(row(tmp_path, **H100), sets=("workload.arrivals.concurrency=1",)).concurrency == 1


def test_an_empty_prefix_cache_is_told_where_there_is_one(tmp_path: Path) -> None:
    assert has(run_of(row(tmp_path, **H100 | {"prefix_caching": "on"})), "a prefix cache that is empty")
    assert not has(run_of(row(tmp_path, **H100 | {"prefix_caching": "off"})), "a prefix cache")


def test_the_host_terms_that_ship_for_an_engine_are_left_out_of_the_zero(tmp_path: Path) -> None:
    """Of TRT-LLM 1.0: 2.7 ms a step and 30 us for each of two sequences, where the host works alone; else 0.75 ms."""
    made = row(tmp_path, **H100 | {"engine": "trtllm 1.0"})
    serial = "engine.async_scheduling=false"
    given = "latency.host={fixed_us: 5000, per_seq_us: 0, first_token_us: 0}"
    cases: tuple[tuple[list[str], float], ...] = (([], 0.75), ([serial], 2.76), ([serial, given], 5.0))
    found = [study_rows([made], sets=sets).rows[0].metrics["mean_tpot_ms"] for sets, _ in cases]
    for tpot, (_, host_ms) in zip(found, cases, strict=True):
        assert tpot.predicted_zero is not None
        assert tpot.predicted == pytest.approx(tpot.predicted_zero + host_ms, abs=0.01)
    assert found[1].predicted_zero == found[2].predicted_zero


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"other_config": "dp=4"}, "^data parallelism"),
        ({"other_config": "--data-parallel-size=2"}, "^data parallelism"),
        ({"other_config": "expert_parallel=True"}, "expert parallelism"),
        ({"other_config": "--enable-expert-parallel"}, "expert parallelism"),
        ({"other_config": "expert_parallel_size=4"}, "expert parallelism"),
        ({"other_config": "--expert-parallel-size 8"}, "expert parallelism"),
        ({"other_config": "tp8 ep8", "tp": "8"}, "expert parallelism of a model without experts"),
        ({"other_config": "tp=8 moe_tp=2 moe_ep=4", "tp": "8"}, "expert parallelism"),
        ({"other_config": "moe_tp=8; moe_ep=8", "tp": "8"}, "expert parallelism"),
        ({"other_config": "--data-parallel-size 4"}, "^data parallelism"),
        ({"other_config": "--dp-size 8"}, "^data parallelism"),
        ({"other_config": "--enable-dp-attention"}, "attention data parallelism"),
        ({"other_config": "enable_attention_dp=True"}, "attention data parallelism"),
        ({"other_config": "--pipeline-parallel-size 2"}, "pipeline parallelism"),
        ({"other_config": "pp=2"}, "pipeline parallelism"),
        ({"other_config": "--tensor-parallel-size 4", "tp": ""}, "tensor parallelism is in other_config"),
        ({"n_gpu": "2"}, "more GPUs than tensor parallelism uses"),
        ({"gpu": "8x H100 80GB", "tp": ""}, "more GPUs than tensor parallelism uses"),
        ({"dtype_quant": "gemm=fp8 moe=bf16"}, "number format"),
        ({"model": "Qwen/Qwen3-32B-FP8", "dtype_quant": "bf16"}, "number format bf16 of a model that is called fp8"),
        ({"max_concurrency": "", "batch_size": "4", "num_prompts": "64"}, "batches one after another"),
        ({"input_len": "99.5", "num_prompts": "2000000"}, "of more than 1,000,000 requests"),
        ({"notes": "disaggregated prefill"}, "disaggregated"),
    ],
)
def test_what_is_not_simulated_is_refused(tmp_path: Path, cells: dict[str, str], why: str) -> None:
    with pytest.raises(Unsuitable, match=why):
        run_of(row(tmp_path, **H100 | cells))


@pytest.mark.parametrize(
    "words", ["tp8 ep8", "TP8 with --enable-expert-parallel", "moe_tp=1; moe_ep=8; attention_dp=1"]
)
def test_ranks_that_share_whole_experts_are_simulated(tmp_path: Path, words: str) -> None:
    cells = {"model": "Qwen/Qwen3-30B-A3B", "tp": "8", "other_config": words, "prefix_caching": "1.0"}
    found = run_of(row(tmp_path, **H100 | cells)).scenario
    assert (found.hardware.expert_parallel, found.engine.enable_prefix_caching) == (True, True)


@pytest.mark.parametrize(
    "cells",
    [
        {"other_config": "tp=4 moe_tp=1 ep=1 dp=1 epnone --enable-expert-parallel=false enable_attention_dp=False"},
        {"other_config": "--enable-expert-parallel false; no disaggregation"},
        {"dtype_quant": "auto", "model": "Qwen/Qwen3-32B-FP8", "mean_tpot_ms": "40"},
        {"n_gpu": "2", "tp": "2"},
        {"gpu": "2xH100 80GB", "tp": "2"},
        {"notes": "not disaggregated"},
        {"engine": "vLLM 0.6", "max_num_batched_tokens": "2048"},  # below the context that is assumed
        {"engine": "trtllm 1.0", "max_num_batched_tokens": "2048"},
        {"mean_tpot_ms": "9", "median_itl_ms": "0.02"},  # tokens that come in bursts
        {"model": "Qwen/Qwen3-32B-FP8", "dtype_quant": "fp8", "mean_tpot_ms": "40"},
    ],
)
def test_what_only_looks_like_it_is_simulated(tmp_path: Path, cells: dict[str, str]) -> None:
    run = run_of(row(tmp_path, **H100 | cells))
    assert run.scenario.hardware.tensor_parallel_size == int(cells.get("tp", "1"))
    assert run.scenario.engine.quantization == ("fp8_block" if "FP8" in cells.get("model", "") else None)
    assert run.scenario.workload.num_requests == 6


def test_rows_refused_alike_are_counted_together_with_one_as_an_example(tmp_path: Path) -> None:
    rows = [row(tmp_path, row_id=f"R{n}", **H100, kv_cache_tokens=str(60 + n)) for n in (1, 2)]
    good = row(tmp_path, row_id="R3", **H100)
    found = study_rows([*rows, good], sets=["engine.max_model_len=4096"]).to_json()
    ((reason, count),) = found["skipped"].items()
    assert count == 2
    assert reason.startswith("refused, for example: ")
    assert "max_model_len 4096 needs 256 blocks" in reason
    alone = study_rows([rows[0], good], sets=["engine.max_model_len=4096"]).skipped
    assert next(iter(alone)).startswith("refused: ")


def test_a_fit_takes_a_row_by_its_number(tmp_path: Path) -> None:
    made = row(tmp_path, **H100 | {"max_num_seqs": "256 (default)"})
    assert FitRows("max_num_seqs", ("256",)).takes(made)
    assert not FitRows("max_num_seqs", ("255",)).takes(made)
    assert FitRows("model", ("meta-llama/Llama-3.1-8B",)).takes(made)


# --- what is said -----------------------------------------------------------------------------------------------------
def test_the_host_terms_of_rows_are_among_the_assumptions(tmp_path: Path) -> None:
    engines = ("vLLM 0.12.0", "trtllm 1.0", "sglang 0.5.1", "trtllm 1.2")
    rows = [row(tmp_path, row_id=f"R{n}", **H100 | {"engine": engine}) for n, engine in enumerate(engines)]

    def told(*sets: str) -> list[str]:
        return [text for text in study_rows(rows, sets=sets).assumptions if text.startswith("host terms: ")]

    assert told() == [
        "host terms: vLLM 0.12 to 0.13, shipped (1 row)",
        "host terms: TRT-LLM 1.0, shipped (1 row)",
        "host terms: SGLang 0.0 to 0.5, shipped (1 row)",
        "host terms: those shipped for TRT-LLM 1.0, the nearest (1 row)",
    ]
    assert told("latency.host={fixed_us: 9, per_seq_us: 1}") == ["host terms: fitted, or as set (4 rows)"]


def test_a_scenario_that_fills_gaps_is_told(tmp_path: Path) -> None:
    text = "what rows leave open of engine, latency and interconnect: as the scenario has it"
    assert text in run_of(row(tmp_path, **H100), base()).assumed
    assert text not in run_of(row(tmp_path, **H100)).assumed


@pytest.mark.parametrize(
    ("band", "meant"),
    [("tpot_ms.mean", "mean_tpot_ms"), ("tpot", "mean_tpot_ms"), ("ttft_ms.p50", "median_ttft_ms")],
)
def test_a_band_in_the_words_of_a_run_is_told_those_of_the_table(band: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        parse_bands([f"{band}=3"])


def test_all_columns_that_lack_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("row_id,engine,gpu,mean_tpot_ms\n")
    with pytest.raises(InputError, match=r"t\.csv:1: column model: .* got none \(nor input_len, output_len\)"):
        read_rows(tmp_path / "t.csv")
