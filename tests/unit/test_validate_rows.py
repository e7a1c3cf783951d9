"""`simkit validate --summary`: rows of benchmarks to simulations, errors, fits and what is left out.

`tests/data/serving_rows.csv` holds public measurements, each row with its source.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import as_asked
from typer.testing import CliRunner

from simkit import api
from simkit.cli.app import app
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.scenario import Scenario, from_dict
from simkit.validation.rows import study as row_study
from simkit.validation.rows.fit import START, EngineFit, FitRows, parse_fit
from simkit.validation.rows.names import Formats, engine_of, formats_of, gpu_of, model_of
from simkit.validation.rows.read import Row, read_rows, select
from simkit.validation.rows.refusals import Unsuitable
from simkit.validation.rows.results import MetricResult, RowErrors, RowResult, RowStudy, parse_bands, statistics
from simkit.validation.rows.scenario import RowRun, run_of
from simkit.validation.rows.study import study_rows
from simkit.validation.runs.host_fit import HostFit

FACTS = Path(__file__).resolve().parents[1] / "data" / "serving_rows.csv"
PLAIN = {
    "row_id": "R1",
    "set": "a",
    "engine": "vLLM 0.12.0",
    "model": "Qwen/Qwen2.5-0.5B",
    "gpu": "A100 80GB",
    "tp": "1",
    "input_len": "100",
    "output_len": "20",
    "max_concurrency": "2",
    "num_prompts": "6",
    "mean_tpot_ms": "3",
}
LOCKSTEP = "lengths that are all equal: clients go in lockstep, their prompts come at the same moment"


def table(folder: Path, rows: Iterable[Mapping[str, str]], name: str = "rows.csv") -> Path:
    rows = list(rows)
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(tmp_path: Path, **cells: str) -> Row:
    return read_rows(table(tmp_path, [PLAIN | cells])).rows[0]


def simkit(*args: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


def study(*conditions: str, fit: FitRows | None = None) -> RowStudy:
    return study_rows(select(read_rows(FACTS), conditions), fit=fit)


def mape(found: RowStudy, metric: str) -> float:
    return float(found.to_json()["errors"]["all"]["all"][metric]["mape_pct"])


# --- what must come out -----------------------------------------------------------------------------------------------
def test_the_facts_are_all_there_and_say_where_they_are_from() -> None:
    facts = read_rows(FACTS)
    assert len(select(facts, ["model=*3.1-8B*"])) == 42
    assert len(select(facts, ["model=*Qwen3-32B"])) == 30
    assert len(select(facts, ["set=argonne", "model=*Llama-3-8B"])) == 40
    assert [found.id for found in select(facts, ["set=a100_kvsweep"])] == [f"B{n:05d}" for n in range(1235, 1245)]
    assert all("/" in found.text("source") for found in facts.rows), "a repository and a file in it"


def test_trt_llm_with_the_host_terms_that_ship_for_it() -> None:
    found = study("model=*3.1-8B*", "max_concurrency=128")
    assert len(found.rows) == 6
    assert "host terms: TRT-LLM 1.0, shipped (6 rows)" in found.assumptions
    tpot = found.to_json()["errors"]["all"]["all"]["mean_tpot_ms"]
    assert tpot["mape_pct"] <= 3
    assert tpot["mape_pct"] < tpot["mape_zero_pct"], "what the GPU waits between steps is seen at 128 clients, too"


def test_host_terms_of_vllm_fitted_on_some_concurrencies_hold_for_the_others() -> None:
    found = study(
        "model=*Qwen3-32B", "output_len=512", "input_len=1024", fit=FitRows("max_concurrency", ("8", "32", "128"))
    )
    assert {r.role for r in found.rows} == {"fit", "test"}
    assert mape(found, "mean_tpot_ms") <= 8
    stats = found.to_json()["errors"]["all"]["all"]["mean_tpot_ms"]
    assert stats["n"] == 2, "only rows that were not fitted are judged"
    assert stats["mape_zero_pct"] > 15, "without host work vLLM 0.12 would be far faster"
    assert found.to_json()["fit"]["limits"] == ["per_request_us acts here as fixed_us and per_seq_us do together"]


def test_offline_batches_on_a_gpu_with_the_profile_of_another() -> None:
    wanted = ("set=argonne", "model=*Llama-3-8B", "gpu=A100 40GB", "input_len=128")
    found = study(*wanted, fit=FitRows("batch_size", ("1", "32"), "total_tok_s"))
    assert mape(found, "total_tok_s") <= 12
    assert any(source.startswith("step times: profile") for source in found.assumptions)
    assert any("A100" in text.upper() for text in found.assumptions)


def fitted_to_itself(
    folder: Path, rows: Iterable[dict[str, str]], truth: str, fit: FitRows
) -> tuple[dict[str, Any], float]:
    """What rows.json says of a fit to rows that were simulated with the host terms `truth`, and the error of TPOT of
    those that test it."""
    cells = [PLAIN | more | {"row_id": f"R{n}"} for n, more in enumerate(rows)]
    known = study_rows(read_rows(table(folder, cells)).rows, sets=[f"latency.host={truth}"]).rows
    for made, row_ in zip(cells, known, strict=True):
        made["mean_tpot_ms"] = str(row_.metrics["mean_tpot_ms"].predicted)
    found = study_rows(read_rows(table(folder, cells)).rows, fit=fit)
    return found.to_json()["fit"], mape(found, "mean_tpot_ms")


def clients(*counts: int, loops: int = 3, **cells: str) -> list[dict[str, str]]:
    return [cells | {"max_concurrency": str(c), "num_prompts": str(loops * c)} for c in counts]


def test_a_fit_to_two_rows_finds_the_first_two_terms_that_made_them(tmp_path: Path) -> None:
    truth = "{fixed_us: 900, per_seq_us: 21, per_request_us: 0}"
    found, error = fitted_to_itself(tmp_path, clients(1, 4, 16), truth, FitRows("max_concurrency", ("1", "16")))
    terms = found["terms"]
    assert terms["fixed_us"] == pytest.approx(900, rel=0.01)
    assert terms["per_seq_us"] == pytest.approx(21, rel=0.01)
    assert (found["fitted"], terms["per_request_us"], terms["gap_us"]) == (["fixed_us", "per_seq_us"], 0, 0)
    assert (found["rows"], found["test_rows"]) == (["R0", "R2"], ["R1"])
    assert found["limits"] == ["per_seq_us is seen up to 16 running sequences, and continued beyond"]
    assert error < 0.1


def test_a_fit_to_four_rows_finds_what_a_prompt_adds_where_clients_do_not_go_in_lockstep(tmp_path: Path) -> None:
    rows = clients(1, 4, 8, 16, 48, loops=4, dataset="random, range ratio 0.5")
    truth = "{fixed_us: 900, per_seq_us: 21, per_request_us: 3000}"
    found, error = fitted_to_itself(tmp_path, rows, truth, FitRows("max_concurrency", ("1", "4", "16", "48")))
    wanted = {"fixed_us": 900, "per_seq_us": 21, "per_request_us": 3000}
    assert {name: found["terms"][name] for name in found["fitted"]} == pytest.approx(wanted, rel=0.01)
    assert found["idle"] == ["gap_us"], "vLLM 0.12 does not work ahead"
    assert error < 0.1


def test_a_fit_to_an_engine_that_works_ahead_finds_the_gap_alone(tmp_path: Path) -> None:
    big = {"engine": "vLLM 0.15.0", "model": "meta-llama/Llama-3.1-8B-Instruct", "mean_tpot_ms": "20"}
    truth = "{fixed_us: 900, per_seq_us: 21, per_request_us: 0, gap_us: 700}"
    rows, fit = clients(1, 2, 3, 4, 5, **big), FitRows("max_concurrency", ("1", "2", "4", "5"))
    found, error = fitted_to_itself(tmp_path, rows, truth, fit)
    assert (found["fitted"], found["limits"]) == (["gap_us"], [])
    assert found["idle"] == ["fixed_us", "per_seq_us", "per_request_us"], "the GPU takes longer"
    assert found["terms"]["gap_us"] == pytest.approx(700, rel=0.01)
    assert error < 0.1


def test_a_fit_says_which_terms_act_alike(tmp_path: Path) -> None:
    """All rows have four running sequences: nothing tells a term for each of them from one for the step."""
    rows = [PLAIN | {"row_id": f"R{n}", "max_concurrency": "4", "input_len": n} for n in ("100", "200", "400")]
    path, out = table(tmp_path, rows), tmp_path / "out"
    code, stdout, stderr = simkit(
        "validate", "--summary", path, "--out", out, "--no-report", "--jobs", 1, "--fit", "input_len=100,400"
    )
    assert code == 0, stderr
    fit = json.loads((out / "rows.json").read_bytes())["fit"]
    assert (fit["fitted"], fit["alike"]) == (["fixed_us"], ["per_seq_us"])
    assert fit["limits"] == ["per_seq_us acts here as fixed_us does"]
    assert "note: vLLM 0.12: per_seq_us acts here as fixed_us does" in stderr
    assert "vLLM 0.12: per_seq_us acts here as fixed_us does." in " ".join(stdout.split())


def test_a_fit_says_how_many_sequences_ran_at_once_unless_they_were_many() -> None:
    def limits(fitted: tuple[str, ...], reach: int, *alike: str) -> tuple[str, ...]:
        none = np.zeros(0)
        host = HostFit(START, fitted, (), alike, {}, none, none)
        return EngineFit("vLLM 0.12", "mean_tpot_ms", host, (), (), reach).limits

    both = ("fixed_us", "per_seq_us")
    assert limits(both, 99) == ("per_seq_us is seen up to 99 running sequences, and continued beyond",)
    assert limits(both, 100) == limits(("fixed_us",), 8) == limits((), 8, "per_seq_us") == ()


# --- a row as a scenario ----------------------------------------------------------------------------------------------
def test_a_row_becomes_the_scenario_that_it_states(tmp_path: Path) -> None:
    run = run_of(row(tmp_path, max_num_seqs="64", max_num_batched_tokens="4096", max_model_len="2048",
                     kv_cache_tokens="1000", prefix_caching="no", chunked_prefill="true"))  # fmt: skip
    engine = run.scenario.engine
    assert (engine.version, engine.async_scheduling) == ("0.12", False)
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len) == (64, 4096, 2048)
    assert (engine.enable_prefix_caching, engine.enable_chunked_prefill) == (False, True)
    assert arrivals_of(run) == ("closed_loop", 6, 2)
    assert (run.engine, run.assumed) == ("vLLM 0.12", ("A100 80GB: the SXM part", LOCKSTEP))


@pytest.mark.parametrize(("tokens", "capacity"), [("1000", 992), ("1024", 1024), ("93872", 93872)])
def test_the_pool_is_what_the_row_states_in_whole_blocks(tmp_path: Path, tokens: str, capacity: int) -> None:
    result = api.run(run_of(row(tmp_path, kv_cache_tokens=tokens, max_model_len="256")).scenario)
    assert result.summary["kv"]["capacity_tokens"] == capacity


@pytest.mark.parametrize(
    ("engine", "version", "overlaps", "whole", "first", "host"),
    [
        ("vLLM 0.13.1", "0.13", False, False, False, None),
        ("vllm v0.14.0", "0.14", True, False, False, None),
        ("vLLM 0.6.3", "0.6", False, True, True, None),
        ("trtllm 1.0.0rc3", "0.33", True, True, False, "trt-llm 1.0"),
        ("TensorRT-LLM", "0.33", True, True, False, "trt-llm"),
        ("sglang 0.5.1.post1", "0.33", True, True, True, "sglang 0.5"),
        ("SGLang", "0.33", True, True, True, "sglang"),
        ("vLLM", "0.33", True, False, False, None),
    ],
)
def test_the_engine_decides_how_it_schedules_and_whose_host_terms_hold(
    tmp_path: Path, engine: str, version: str, overlaps: bool, whole: bool, first: bool, host: str | None
) -> None:
    run = run_of(row(tmp_path, engine=engine))
    found = run.scenario.engine
    assert (found.version, set_up(run.scenario).async_scheduling) == (version, overlaps)
    assert (not found.enable_chunked_prefill, found.prefill_first) == (whole, first)
    given = run.scenario.latency.host
    assert (given is None) == (host is None)
    if given is not None:
        assert given.model_dump(exclude_none=True) == {"engine": host}
        assert (found.max_num_batched_tokens, found.enable_prefix_caching) == (8192, False)


@pytest.mark.parametrize(
    ("engine", "sets", "host"),
    [
        ("trtllm 1.0.0rc3", ["latency.host={fixed_us: 9}"], {"engine": "trt-llm 1.0", "fixed_us": 9.0}),
        ("trtllm 1.0.0rc3", ["latency.host.fixed_us=9"], {"engine": "trt-llm 1.0", "fixed_us": 9.0}),
        ("SGLang", ["latency.host=", "latency.host.gap_us=4"], {"engine": "sglang", "gap_us": 4.0}),
        ("SGLang", ["latency.host={engine: vllm, gap_us: 4}"], {"engine": "vllm", "gap_us": 4.0}),
        ("SGLang", ["latency.host={gap_us: 4}", "latency.host.engine=vllm"], {"engine": "vllm", "gap_us": 4.0}),
        ("vLLM 0.14.0", ["latency.host={fixed_us: 9}"], {"fixed_us": 9.0}),
    ],
)
def test_terms_that_are_set_leave_the_others_to_the_engine_of_the_row(
    tmp_path: Path, engine: str, sets: list[str], host: dict[str, Any]
) -> None:
    given = run_of(row(tmp_path, engine=engine), None, tuple(sets)).scenario.latency.host
    assert given is not None
    assert given.model_dump(exclude_none=True) == host


def test_a_host_that_is_none_is_the_mistake_of_its_setting(tmp_path: Path) -> None:
    path = table(tmp_path, [PLAIN | {"engine": "SGLang"}])
    for text in ("latency.host=3", "latency.host={fixed: 3}"):
        code, _, err = simkit("validate", "--summary", path, "--set", text)
        assert code == 2
        assert err.startswith("--set latency.host: ")
        assert len(err.splitlines()) == 1


def test_terms_of_a_fit_leave_what_launches_take_to_the_setting(tmp_path: Path) -> None:
    run = run_of(row(tmp_path), None, ("engine.enforce_eager=true", "latency.host.launch_us=100"))
    host = row_study.with_terms(run, START).latency.host
    assert host is not None
    assert (host.launch_us, host.fixed_us) == (100, START.fixed_us)


def arrivals_of(run: RowRun) -> tuple[str, int | None, int | None]:
    arrivals = run.scenario.workload.arrivals
    assert arrivals is not None
    return arrivals.process, run.scenario.workload.num_requests, run.concurrency


def test_the_load_is_the_most_particular_that_is_stated(tmp_path: Path) -> None:
    none = {"max_concurrency": "", "num_prompts": ""}
    assert arrivals_of(run_of(row(tmp_path, num_prompts=""))) == ("closed_loop", 20, 2)
    assert arrivals_of(run_of(row(tmp_path, **none | {"batch_size": "7"}))) == ("all_at_once", 7, 7)
    fewer = none | {"batch_size": "7", "num_prompts": "5"}
    assert arrivals_of(run_of(row(tmp_path, **fewer))) == ("all_at_once", 5, 5)
    at_once = none | {"request_rate": "inf", "num_prompts": "9"}
    assert arrivals_of(run_of(row(tmp_path, **at_once))) == ("all_at_once", 9, 9)
    assert arrivals_of(run_of(row(tmp_path, request_rate="inf"))) == ("closed_loop", 6, 2)
    run = run_of(row(tmp_path, request_rate="2.5"))
    assert arrivals_of(run) == ("poisson", 6, None)
    assert any("cap is left out" in text for text in run.assumed)
    with pytest.raises(Unsuitable, match="no load"):
        run_of(row(tmp_path, **none))
    run = run_of(row(tmp_path, **none | {"request_rate": "inf"}))
    assert arrivals_of(run) == ("all_at_once", 1000, 1000)
    assert "number of requests not stated: 1000 at once" in run.assumed
    assert arrivals_of(run_of(row(tmp_path, request_rate="closed loop"))) == ("closed_loop", 6, 2)
    with pytest.raises(Unsuitable, match="no load"):
        run_of(row(tmp_path, **none | {"request_rate": "closed loop"}))


def test_numbers_may_carry_remarks_and_leave_the_default(tmp_path: Path) -> None:
    stated = run_of(row(tmp_path, max_num_seqs="256 (default)", max_num_batched_tokens="4096 (large-GPU default)"))
    assert (stated.scenario.engine.max_num_seqs, stated.scenario.engine.max_num_batched_tokens) == (256, 4096)
    plain = run_of(row(tmp_path))
    assert run_of(row(tmp_path, max_num_batched_tokens="default")).scenario == plain.scenario
    assert row(tmp_path, tp="default").odd  # no setting of the engine
    mean = run_of(row(tmp_path, input_len="mean 100"))
    assert mean.scenario == plain.scenario
    assert "mean lengths: requests of nearly the same length" in mean.assumed
    assert "mean lengths: requests of nearly the same length" not in plain.assumed


def test_the_kv_cache_of_fp8_checkpoints(tmp_path: Path) -> None:
    for model, dtype in (("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"), ("meta-llama/Llama-3.1-8B-Instruct", "auto")):
        run = run_of(row(tmp_path, model=model, dtype_quant="fp8", mean_tpot_ms="20"))
        assert (run.scenario.engine.quantization, run.scenario.engine.kv_cache_dtype) == ("fp8", dtype)
        assert any(text.startswith("fp8: KV cache in") for text in run.assumed)
    assert not any("KV cache" in text for text in run_of(row(tmp_path)).assumed)


@pytest.mark.parametrize(
    ("gpu", "tp", "link"),
    [
        ("L40S 48GB", "2", "pcie"),
        ("A100-PCIE 80GB", "2", "nvlink"),
        ("A100-PCIE 80GB", "4", "pcie"),
        ("H100 80GB", "8", "nvlink"),
        ("RTX PRO 6000 96GB", "1", "nvlink"),  # alone
    ],
)
def test_cards_are_linked_as_they_can_be(tmp_path: Path, gpu: str, tp: str, link: str) -> None:
    run = run_of(row(tmp_path, gpu=gpu, tp=tp))
    assert run.scenario.hardware.interconnect == link
    assert any("linked by PCIe" in text for text in run.assumed) == (link == "pcie")


@pytest.mark.parametrize("cells", [{"tp": "2", "other_config": "generated 60; 2 nodes"}, {"tp": "14"}])
def test_a_row_over_several_nodes_needs_their_link(tmp_path: Path, cells: dict[str, str]) -> None:
    made = row(tmp_path, **cells)
    with pytest.raises(Unsuitable, match=r"^several nodes, and the link between them is not stated$"):
        run_of(made)
    stated = {"latency_us": 10.0, "gb_per_s": 40.0}
    for linked in (
        run_of(made, sets=("hardware.link={latency_us: 10.0, gb_per_s: 40.0}",)),
        run_of(made, sets=("hardware.link.latency_us=10.0", "hardware.link.gb_per_s=40.0")),
        run_of(made, base_scenario({"gpu": "l4-24gb", "link": stated})),
    ):
        link = linked.scenario.hardware.link
        assert link is not None
        assert link.model_dump() == stated
    content = study_rows([made, row(tmp_path, row_id="R2")]).to_json()
    assert content["skipped_rows"] == {"R1": "several nodes, and the link between them is not stated"}


def test_one_gpu_has_no_link_whatever_the_nodes(tmp_path: Path) -> None:
    assert run_of(row(tmp_path, tp="1", other_config="generated 60; 2 nodes")).scenario.hardware.link is None


@pytest.mark.parametrize(
    ("cells", "possible"),
    [
        # 8.03e9 parameters less 0.53e9 of the embedding, 2 bytes each, at 3.35 TB/s: 4.48 ms a token.
        ({"mean_tpot_ms": "4.40"}, False),
        ({"mean_tpot_ms": "4.55"}, True),
        ({"mean_tpot_ms": "2.30", "tp": "2"}, True),
        ({"mean_tpot_ms": "2.40", "dtype_quant": "fp8"}, True),
        ({"mean_tpot_ms": "", "duration_s": "0.08"}, False),  # 19 tokens decoded
        ({"mean_tpot_ms": "", "duration_s": "0.09"}, True),
        ({"mean_tpot_ms": "", "duration_s": "0.08", "other_config": "generated 60"}, True),
        ({"mean_tpot_ms": "", "duration_s": "0.08", "source": "InferenceX"}, True),  # some answers are shorter
    ],
)
def test_what_no_gpu_can_do_is_left_out(tmp_path: Path, cells: dict[str, str], possible: bool) -> None:
    made = row(tmp_path, **{"model": "meta-llama/Llama-3.1-8B", "gpu": "H100 80GB"} | cells)
    if possible:
        run_of(made)
        return
    with pytest.raises(Unsuitable, match="faster than the GPU can read the weights"):
        run_of(made)


@given(total=st.integers(6, 120))
def test_what_was_generated_is_generated_to_the_token(tmp_path_factory: pytest.TempPathFactory, total: int) -> None:
    run = run_of(row(tmp_path_factory.mktemp("t"), other_config=f"x; generated {total}; max logged running 5"))
    outputs: Any = run.scenario.workload.output_tokens
    lengths = [outputs.value] * 6 if outputs.dist == "fixed" else list(outputs.values)
    assert (sum(lengths), len(lengths)) == (total, 6)
    assert max(lengths) - min(lengths) <= 1
    assert run.logged_running == 5


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"model": "acme/none"}, "model acme/none is unknown"),
        ({"model": "/etc/passwd"}, "is unknown"),
        ({"model": "deepseek-ai/DeepSeek-V3.2"}, "DeepSeek"),
        ({"gpu": "GH200"}, "GPU GH200 is unknown"),
        ({"gpu": "A100"}, "GPU A100 is unknown"),
        ({"gpu": ""}, "not stated"),
        ({"engine": "llama.cpp"}, "engine llama.cpp"),
        ({"pp": "2"}, "pipeline"),
        ({"other_config": "mode=disagg"}, "disaggregated"),
        ({"other_config": "attention_dp=4"}, "attention data"),
        ({"other_config": "tp=4 moe_ep=8"}, "expert"),
        ({"dtype_quant": "nvfp4 gemm=nvfp4 moe=nvfp4"}, "number format"),
        ({"dtype_quant": "gemm=fp8 moe=int8"}, "number format"),
        ({"input_len": ""}, "lengths"),
        ({"mean_tpot_ms": ""}, "nothing was measured"),
        ({"input_len": "40000"}, "longer than the context"),
        ({"max_model_len": "64"}, "longer than max_model_len"),
        ({"other_config": "generated 3"}, "generated tokens"),
        ({"other_config": "generated 121"}, "generated tokens"),
    ],
)
def test_what_cannot_be_simulated_is_left_out_with_its_reason(tmp_path: Path, cells: dict[str, str], why: str) -> None:
    with pytest.raises(Unsuitable, match=why):
        run_of(row(tmp_path, **cells))


def test_a_model_that_is_published_in_one_format_has_that_one(tmp_path: Path) -> None:
    """Whatever a table calls it: gpt-oss in nvfp4 is in mxfp4, DeepSeek in fp8 has scales by block."""
    cell = "fp4 gemm=nvfp4 moe=nvfp4"
    found = run_of(row(tmp_path, model="openai/gpt-oss-120b", dtype_quant=cell, mean_tpot_ms="9"))
    assert found.scenario.engine.quantization == "mxfp4"
    assert "nvfp4 of a model that is published in mxfp4 alone: mxfp4" in found.assumed
    cells = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "h200_sxm", "tp": "8", "mean_tpot_ms": "20"}
    found = run_of(row(tmp_path, dtype_quant="fp8 gemm=fp8 moe=fp8", **cells))
    assert found.scenario.engine.quantization == "fp8_block"


def test_names_of_gpus_models_engines_and_formats() -> None:
    for text in ("h100_sxm", "H100 80GB", "NVIDIA H100 80GB HBM3", "8x H100-SXM", "h100-sxm5-80gb"):
        assert gpu_of(text)[0] == "h100-sxm5-80gb"
    assert gpu_of("A100-SXM4-40GB") == ("a100-sxm4-40gb", None)
    assert gpu_of("a100_sxm")[1] == "a100_sxm: 80 GB of memory"
    assert model_of("meta-llama/Llama-3.1-8B-Instruct")[0].name == "llama-3.1-8b"
    assert model_of("someone/QWEN3-32B")[0].name == "qwen3-32b"
    assert model_of("Qwen/Qwen3-32B-FP8")[:2] == (model_of("qwen3-32b")[0], "fp8_block")
    assert model_of("meta-llama/Llama-3.1-8B-FP8")[1] == "fp8"
    assert engine_of("TensorRT-LLM 1.2.0rc6.post1").label == "TRT-LLM 1.2"
    assert engine_of("sglang", "0.5.6.post2").label == "SGLang 0.5"
    assert engine_of("vLLM (2024)").version is None


def test_number_formats_of_weights_and_of_the_kv_cache() -> None:
    assert formats_of("") == Formats(None, False, None)
    assert [formats_of(text) for text in (" gemm= moe=", "bf16", "16-bit (checkpoint)")] == [
        Formats(None, True, None)
    ] * 3
    assert formats_of("fp8 gemm=fp8 moe=fp8_block") == Formats("fp8", True, None)
    assert formats_of("fp8 gemm=fp8_block moe=fp8_block") == Formats("fp8_block", True, None)
    assert formats_of("bf16 kv=fp8") == Formats(None, True, "fp8")
    assert formats_of("fp8 kv_cache=auto") == Formats("fp8", True, "auto")
    for text in ("gemm=fp8 moe=bf16", "bf16 fp8", "fp8 kv=int4", "fp8 attn=fp8", "nvfp4"):
        with pytest.raises(Unsuitable, match=f"number format {text} is not modelled"):
            formats_of(text)


def base_scenario(hardware: dict[str, Any]) -> Scenario:
    """What rows leave open."""
    return from_dict(
        {
            "model": "llama-3-8b",
            "hardware": hardware,
            "engine": {"max_num_seqs": 48, "max_num_batched_tokens": 512},
            "workload": {
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"dist": "fixed", "value": 1},
                "output_tokens": {"dist": "fixed", "value": 1},
            },
            "latency": {"without": ["graph_padding"]},
        }
    )


def test_a_base_scenario_fills_gaps_and_settings_come_last(tmp_path: Path) -> None:
    base = base_scenario({"gpu": "h100-sxm5-80gb"})
    run = run_of(row(tmp_path, max_num_seqs="32"), base, ("engine.block_size=32",))
    engine = run.scenario.engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens, engine.block_size) == (32, 512, 32)
    assert (run.scenario.model, run.scenario.latency.without) == ("qwen2.5-0.5b", ["graph_padding"])


# --- prompts that were cached before ----------------------------------------------------------------------------------
STEPS = ("latency.profile=unit", "engine.max_num_batched_tokens=256", "engine.max_model_len=2048")
"""Every step takes the same, and computes at most 256 tokens of prompts."""


def ttft_ms(tmp_path: Path, *sets: str, **cells: str) -> float:
    run = run_of(row(tmp_path, **{"max_concurrency": "1"} | cells), None, sets)
    return float(as_asked(run.scenario).summary["ttft_ms"]["mean"])


def test_a_share_of_the_prompts_that_was_cached_is_not_computed(tmp_path: Path) -> None:
    """1,024 tokens are 4 steps of 256. Half of them cached: 2 steps, as 512 tokens take; all but 24: one; all of them:
    the last token is computed, one step."""
    step = ttft_ms(tmp_path, *STEPS, input_len="256")
    assert ttft_ms(tmp_path, *STEPS, input_len="1024") == pytest.approx(4 * step)
    half = ttft_ms(tmp_path, *STEPS, input_len="1024", cached_prompt_share="0.5")
    assert half == ttft_ms(tmp_path, *STEPS, input_len="512") == pytest.approx(2 * step)
    for share in ("0.98", "1"):
        assert ttft_ms(tmp_path, *STEPS, input_len="1024", cached_prompt_share=share) == pytest.approx(step)
    for share in ("0", ""):
        assert ttft_ms(tmp_path, *STEPS, input_len="1024", cached_prompt_share=share) == pytest.approx(4 * step)


def test_a_cached_share_costs_its_context_and_no_more(tmp_path: Path) -> None:
    """On a profile: attention over what is cached comes on top of the prompt that is left."""
    rest, cached, whole = (
        ttft_ms(tmp_path, input_len=tokens, cached_prompt_share=share)
        for tokens, share in (("512", ""), ("4096", "0.875"), ("4096", ""))
    )
    assert rest < cached < 1.5 * rest < whole


def test_a_cached_share_needs_the_prefix_cache(tmp_path: Path) -> None:
    run = run_of(row(tmp_path, cached_prompt_share="0.3", engine="SGLang 0.5.1"))
    assert run.scenario.engine.enable_prefix_caching
    prefix = run.scenario.workload.prefix
    assert prefix is not None
    assert (prefix.groups, prefix.tokens, prefix.share, prefix.warm) == (1, None, 0.3, True)
    assert "cached_prompt_share: the first tokens of all prompts, alike and cached before" in run.assumed
    assert not any("empty at the start" in text for text in run.assumed)
    with pytest.raises(Unsuitable, match="prompts that were cached before, without a prefix cache"):
        run_of(row(tmp_path, cached_prompt_share="0.3", prefix_caching="false"))


@pytest.mark.parametrize("cell", ["1.5", "-0.1", "half"])
def test_a_share_that_is_none_leaves_the_row_out(tmp_path: Path, cell: str) -> None:
    (odd,) = row(tmp_path, cached_prompt_share=cell).odd
    assert odd.startswith("cached_prompt_share: expected a ")
    assert odd.endswith(f"got {cell!r}")


# --- errors -----------------------------------------------------------------------------------------------------------
def test_statistics_by_hand() -> None:
    def part(role: str, concurrency: int | None, *errors: float) -> RowResult:
        metrics = {f"m{i}": MetricResult(1.0, 1.0, e, 1.0, 2 * e) for i, e in enumerate(errors)}
        return RowResult("r", "x", "x", "x", "x", 1, 8, 8, concurrency, role, metrics)

    found = statistics(
        [part("test", 16, 2.0, -1.0), part("test", 8, -4.0), part("all", None, 5.0), part("fit", 8, 99.0)]
    )
    mean = pytest.approx(11 / 3)
    wanted = RowErrors(n=3, mape_pct=mean, bias_pct=1.0, worst_pct=5.0, mape_zero_pct=pytest.approx(22 / 3))
    assert found["all"]["all"]["m0"] == wanted
    assert list(found["concurrency"]) == ["8", "16", "-"]
    assert found["concurrency"]["8"]["m0"].n == 1


def test_the_logged_running_count_is_held_against_mean_and_peak(tmp_path: Path) -> None:
    cells = {"max_concurrency": "", "request_rate": "inf", "num_prompts": "8", "engine": "vLLM 0.10"}
    cells |= {
        "kv_cache_tokens": "512",
        "max_model_len": "256",
        "prefix_caching": "0",
        "other_config": "max logged running 4",
    }
    [found] = study_rows([row(tmp_path, **cells)]).rows
    running = found.metrics["running"]
    assert running.predicted_peak == 4, "512 tokens hold four prompts of 100 and their outputs"
    assert running.predicted_mean <= running.predicted_peak
    assert running.within is True


# --- the file ---------------------------------------------------------------------------------------------------------
def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        ({"input_len": "many"}, "input_len: expected a number, got 'many'"),
        ({"output_len": "-3"}, "output_len: expected tokens > 0"),
        ({"tp": "1.5"}, "tp: expected an integer >= 1"),
        ({"tp": "0"}, "tp: expected an integer >= 1"),
        ({"mean_tpot_ms": "nan"}, "mean_tpot_ms: expected a number"),
        ({"mean_tpot_ms": "-1"}, "mean_tpot_ms: expected a number >= 0"),
        ({"num_prompts": "1e300"}, "num_prompts: expected a number"),
        ({"request_rate": "0"}, "request_rate: expected a rate > 0, inf or 'closed loop'"),
        ({"request_rate": "fast"}, "request_rate: expected a rate > 0, inf or 'closed loop'"),
        ({"tp": "(4)"}, "tp: expected a number"),
        ({"prefix_caching": "maybe"}, "prefix_caching: expected true or false"),
    ],
)
def test_a_bad_cell_leaves_its_row_out_and_is_named_with_its_place(
    tmp_path: Path, cells: dict[str, str], what: str
) -> None:
    path = table(tmp_path, [PLAIN | {"row_id": "R0"}, PLAIN | cells])
    good, odd = read_rows(path).rows
    assert (good.odd, len(odd.odd)) == ((), 1)
    assert (odd.line, odd.odd[0][: len(what)]) == (3, what)
    study = study_rows([good, odd])
    assert [found.id for found in study.rows] == ["R0"]
    assert dict(study.skipped) == {f"unreadable: {odd.odd[0]}": 1}


def test_a_flag_may_be_followed_by_a_remark(tmp_path: Path) -> None:
    cells = {"prefix_caching": "on (repeated runs share a seed)", "chunked_prefill": "off"}
    assert dict(row(tmp_path, **cells).flags) == {"prefix_caching": True, "chunked_prefill": False}


def test_a_bad_table_is_one_line(tmp_path: Path) -> None:
    assert "line 2" in refusal(table(tmp_path, [PLAIN, PLAIN]))
    assert "rows.csv:2: row_id: expected a name" in refusal(table(tmp_path, [PLAIN | {"row_id": ""}]))
    no_gpu = {key: value for key, value in PLAIN.items() if key != "gpu"}
    assert "column gpu: expected it in the header" in refusal(table(tmp_path, [no_gpu]))
    unmeasured = {key: value for key, value in PLAIN.items() if key != "mean_tpot_ms"}
    assert "measured numbers" in refusal(table(tmp_path, [unmeasured]))
    path = tmp_path / "rows.csv"
    text = table(tmp_path, [PLAIN]).read_text(encoding="utf-8")
    path.write_text(text + "R2,x\n", encoding="utf-8")
    assert "expected 11 cells" in refusal(path)
    path.write_text(text.replace("set", "tp"), encoding="utf-8")
    assert "column tp: expected it once" in refusal(path)
    path.write_text(text.replace(",", ";"), encoding="utf-8")
    assert refusal(path) == f"{path}:1: expected commas between the columns, got ';'"
    path.write_text(text.splitlines()[0], encoding="utf-8")
    assert "got none" in refusal(path)
    path.write_bytes(b"\xff\x00")
    assert "not a text file" in refusal(path)
    assert "No such file" in refusal(tmp_path / "none.csv")


def test_packed_files_other_columns_and_zeros(tmp_path: Path) -> None:
    text = table(tmp_path, [PLAIN | {"weather": "fine", "mean_ttft_ms": "0"}]).read_bytes()
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(text))
    found = read_rows(packed)
    assert (found.ignored, found.num_zeros) == (("weather",), 1)
    assert set(found.rows[0].measured) == {"mean_tpot_ms"}


def complaint(do: Callable[[], object]) -> str | None:
    """Why it cannot be done, in one line; None where it can. Any other error passes through."""
    try:
        do()
    except (InputError, Unsuitable) as error:
        lines = str(error).splitlines()
    else:
        return None
    assert len(lines) == 1
    return lines[0]


@given(st.text(alphabet='ab,"\n\r1-.;\x00é ', max_size=60))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, tail: str) -> None:
    path = tmp_path_factory.mktemp("f") / "rows.csv"
    head = table(path.parent, [PLAIN]).read_text(encoding="utf-8")
    path.write_text(head + tail, encoding="utf-8", newline="")
    said = complaint(lambda: read_rows(path))
    assert said is None or said.startswith(str(path))


@given(st.dictionaries(st.sampled_from(sorted(PLAIN)), st.text(max_size=12), max_size=4))
def test_any_cells_are_simulated_left_out_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cells: dict[str, str]
) -> None:
    cells = {key: value.encode(errors="ignore").decode() for key, value in cells.items()}
    complaint(lambda: run_of(row(tmp_path_factory.mktemp("c"), **cells)))


# --- the command ------------------------------------------------------------------------------------------------------
def test_the_command_writes_tables_and_counts_what_it_left_out(tmp_path: Path) -> None:
    rows = [PLAIN, PLAIN | {"row_id": "R2", "gpu": "GH200"}, PLAIN | {"row_id": "R3", "tp": "3", "set": "b"}]
    path, out = table(tmp_path, rows), tmp_path / "out"
    code, stdout, stderr = simkit("validate", "--summary", path, "--out", out, "--json", "--jobs", 1)
    assert code == 0, stderr
    content = json.loads((out / "rows.json").read_bytes())
    assert json.loads(stdout) == content
    assert content["num_rows"] == {"read": 3, "simulated": 1, "skipped": 2}
    assert content["skipped"]["GPU GH200 is unknown; did you mean 'h200'?"] == 1
    assert content["skipped_rows"]["R2"] == "GPU GH200 is unknown; did you mean 'h200'?"
    assert content["skipped_lines"] == {"R2": 3, "R3": 4}
    assert any(reason.startswith("refused") for reason in content["skipped"]), "14 heads do not go into 3 GPUs"
    [only] = content["rows"]
    assert only["metrics"]["mean_tpot_ms"]["measured"] == 3
    assert only["metrics"]["mean_tpot_ms"]["predicted"] > only["metrics"]["mean_tpot_ms"]["predicted_zero"]
    [line] = list(csv.DictReader((out / "rows.csv").open(encoding="utf-8")))
    assert (line["id"], line["metric"], line["role"]) == ("R1", "mean_tpot_ms", "all")
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert manifest["created_by"].startswith("simkit ")
    assert (out / "report.html").is_file()
    again = tmp_path / "again"
    assert simkit("validate", "--summary", path, "--out", again, "-q", "--no-report", "--jobs", 1)[0] == 0
    assert (again / "rows.json").read_bytes() == (out / "rows.json").read_bytes()
    assert not (again / "report.html").exists()


def test_a_band_decides_the_exit_code(tmp_path: Path) -> None:
    path, out = table(tmp_path, [PLAIN]), tmp_path / "out"
    base = ("validate", "--summary", path, "--out", out, "-q", "--no-report", "--jobs", 1)
    assert simkit(*base, "--max-error", "mean_tpot_ms=99")[0] == 0
    code, _, stderr = simkit(*base, "--max-error", "mean_tpot_ms=0.01")
    assert code == 1
    assert "outside its band: mean_tpot_ms" in stderr
    assert json.loads((out / "rows.json").read_bytes())["bands"][0]["ok"] is False
    assert simkit(*base, "--max-error", "mean_tpot_ms=99%")[0] == 0


def test_a_band_on_what_no_judged_row_has_is_told_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_study, "study_rows", None)
    rows = [PLAIN | {"mean_ttft_ms": "9"}, PLAIN | {"row_id": "R2", "max_concurrency": "4"}]
    base = ("validate", "--summary", table(tmp_path, rows), "--out", tmp_path / "out", "--jobs", 1)
    code, _, stderr = simkit(*base, "--fit", "max_concurrency=2", "--max-error", "mean_ttft_ms=5")
    assert code == 2
    assert stderr.startswith("--max-error mean_ttft_ms: expected a metric of the rows that are judged, none has it; ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "sets",
    [["workload.stop=eos", "workload.max_tokens=5"], ["engine.max_model_len=64"], ["workload.timeout_s=0.001"]],
)
def test_rows_that_are_not_served_whole_are_left_out_and_named(tmp_path: Path, sets: list[str]) -> None:
    short = PLAIN | {"row_id": "R2", "input_len": "40", "output_len": "4"}
    rows = read_rows(table(tmp_path, [PLAIN, short])).rows
    with pytest.raises(InputError, match=r"no row can be simulated|requests are cut"):
        study_rows(rows[:1], sets=sets)
    if "timeout_s" in sets[0]:
        return
    found = study_rows(rows, sets=sets)
    assert [row.id for row in found.rows] == ["R2"]
    assert list(found.skipped_rows) == ["R1"]
    assert found.skipped_lines == {"R1": 2}


def test_nothing_is_called_fitted_where_the_gpu_hides_the_host(tmp_path: Path) -> None:
    """Async scheduling with an engine whose GPU takes longer: terms change nothing, and those of the default stay."""
    cells = {"engine": "vLLM 0.15.0", "model": "meta-llama/Llama-3.1-8B-Instruct", "mean_tpot_ms": "9"}
    rows = [PLAIN | cells | {"row_id": f"R{c}", "max_concurrency": c} for c in ("1", "2", "3")]
    path, out = table(tmp_path, rows), tmp_path / "out"
    base = ("validate", "--summary", path, "--out", out, "--no-report", "--jobs", 1)
    code, stdout, stderr = simkit(*base, "--fit", "max_concurrency=1,2")
    assert code == 0, stderr
    assert "nothing could be fitted: host work is hidden behind the GPU" in stderr
    assert "Nothing could be fitted: host work is hidden behind the GPU." in stdout
    assert "0 us a step" not in stderr
    content = json.loads((out / "rows.json").read_bytes())
    assert (content["fit"]["fitted"], content["fit"]["terms"]) == ([], {})
    plain = study_rows(read_rows(path).rows).to_json()["rows"]
    assert [row["metrics"] for row in content["rows"]] == [row["metrics"] for row in plain]


def test_the_assumed_context_is_told_only_where_it_holds_and_fits_the_pool(tmp_path: Path) -> None:
    one = row(tmp_path, kv_cache_tokens="4000")
    assert run_of(one).scenario.engine.max_model_len == 4000
    told = [run_of(one, None, sets).assumed for sets in ((), ("engine.max_model_len=3000",))]
    assert [any("max_model_len" in text for text in texts) for texts in told] == [True, False]


def test_the_terminal_names_the_rows_that_were_left_out(tmp_path: Path) -> None:
    rows = [PLAIN, *(PLAIN | {"row_id": f"G{i}", "gpu": "H1000"} for i in range(5))]
    code, stdout, _ = simkit("validate", "--summary", table(tmp_path, rows), "--out", tmp_path / "o", "--no-report")
    assert code == 0
    assert (
        "5 rows: GPU H1000 is unknown; did you mean 'h100'? (G0 in line 3, G1 in line 4, G2 in line 5 and 2 more)"
        in (" ".join(stdout.split()))
    )
    assert "(1 rows)" not in stdout


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--select", "gqu=x"), "did you mean 'gpu'"),
        (("--select", "gpu"), "expected COLUMN=GLOB"),
        (("--select", "gpu=B*"), "none of the 1 rows is left"),
        (("--fit", "tp"), "expected COLUMN=VALUE"),
        (("--fit", "qq=1"), "expected a column of the file"),
        (("--fit", "tp=4"), "no row that can be simulated has tp 4"),
        (("--fit", "tp=1"), "expected at least 2 rows, got 1"),
        (("--fit", "tp=1", "--fit-metric", "tpot"), "--fit-metric tpot"),
        (("--fit-metric", "mean_tpot_ms"), "expected --fit"),
        (("--max-error", "mean_tpot=3"), "did you mean 'mean_tpot_ms'"),
        (("--max-error", "mean_tpot_ms=x"), "expected a percentage"),
        (("--max-error", "mean_tpot_ms=5", "--max-error", "mean_tpot_ms=6"), "expected each metric once"),
        (("--max-error", "mean_ttft_ms=5"), "none has it; they have mean_tpot_ms"),
        (("--fit", "tp=1", "--set", "latency.host.fixed_us=3"), "latency.host.fixed_us=3: expected without --fit"),
        (("--set", "latency.profile=unit"), "--set latency.profile=unit: expected step times of hardware"),
        (("--set", "engine.max_num_sqs=3"), "max_num_seqs"),
        (("--set", "model=none-such"), "none-such"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path: Path, options: tuple[str, ...], what: str) -> None:
    out = tmp_path / "out"
    code, _, stderr = simkit("validate", "--summary", table(tmp_path, [PLAIN]), "--out", out, "--jobs", 1, *options)
    assert code == 2
    assert what in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_no_more_rows_than_asked_for(tmp_path: Path) -> None:
    rows = read_rows(table(tmp_path, [PLAIN | {"row_id": f"R{i}"} for i in range(4)])).rows
    content = study_rows(rows, max_rows=1).to_json()
    assert content["num_rows"] == {"read": 4, "simulated": 1, "skipped": 3}
    assert content["skipped"] == {"beyond --max-rows": 3}


def test_fit_and_bands_are_parsed() -> None:
    assert parse_fit("max_concurrency = 8, 32").values == ("8", "32")
    assert parse_bands(["mean_tpot_ms=5", "duration_s=1.5"])[1].limit_pct == 1.5
