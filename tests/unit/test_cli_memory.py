"""The `memory` command as a user meets it: JSON, tables, files, refusals and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from simkit.cli.app import app

SCENARIO = str(Path(__file__).resolve().parents[2] / "scenarios/llama3-8b-a100.yaml")
FLAGS = ("--model", "llama-3.1-8b", "--gpu", "h100-sxm5-80gb", "--max-model-len", "8192", "--engine-version", "0.19.0")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def memory(*args: str) -> Result:
    return CliRunner().invoke(app, ["memory", *args])


def found(*args: str, code: int = 0) -> dict[str, Any]:
    result = memory(*args, "--json")
    assert result.exit_code == code, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_json_of_the_shipped_scenario_is_what_a_run_has() -> None:
    content = found(SCENARIO)
    assert (content["kv_tokens"], content["num_gpu_blocks"]) == (450_656, 28_167)
    assert content["refusal"] is None
    parts = content["weights_by_part_gib"]
    assert sum(parts.values()) == pytest.approx(content["weights_gib"], rel=1e-12)
    used = sum(content[f"{part}_gib"] for part in ("weights", "activation", "non_torch", "cuda_graph", "kv"))
    assert content["cuda_graph_in_budget"]
    assert used == pytest.approx(content["requested_gib"], abs=1e-6)
    assert content["requested_gib"] + content["outside_gib"] == pytest.approx(content["total_gib"])
    assert content["kv_bytes_per_token"] == 131_072
    assert content["max_concurrency"] == 28_167 / 512
    # Every request of the scenario is 512 + 256 tokens long.
    assert content["concurrency"]["mean"] == content["concurrency"]["p95"]
    assert content["concurrency"]["mean"] == {"tokens": 768.0, "blocks": 48, "sequences": 28_166 / 48}
    assert "2,000 requests of the scenario" in " ".join(content["notes"])


def test_set_changes_the_scenario() -> None:
    assert found(SCENARIO, "--set", "engine.kv_cache_dtype=fp8")["num_gpu_blocks"] == 2 * 28_167 + 1
    cut = found(SCENARIO, "--set", "workload.prompt_tokens={dist: list, values: [100, 9000, 8000]}")
    assert cut["concurrency"]["p95"]["tokens"] == 8192
    assert "667 of 2,000 requests are too long" in " ".join(cut["notes"])


def test_flags_have_vllms_names() -> None:
    content = found(*FLAGS, "--gpu-memory-utilization", "0.95", "--mean-tokens", "700", "--p95-tokens", "2000")
    assert content["kv_gib"] == pytest.approx(58.11, abs=0.05)
    assert content["weights_gib"] == pytest.approx(14.99, rel=0.01)
    assert not content["cuda_graph_in_budget"]
    assert content["concurrency"]["mean"]["blocks"] == 44
    assert content["concurrency"]["p95"]["blocks"] == 125
    assert content["rules"]["activation"]["rows"].startswith("A047")
    settings = found(
        *FLAGS, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--max-num-seqs", "64",
        "--max-num-batched-tokens", "4096", "--block-size", "32", "--dtype", "half", "--kv-cache-dtype", "fp8",
        "--quantization", "w4a16", "--enforce-eager",
    )["settings"]  # fmt: skip
    assert settings == {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "gpu_memory_utilization": 0.92, "max_model_len": 8192,
        "max_num_seqs": 64, "max_num_batched_tokens": 4096, "block_size": 32, "dtype": "float16",
        "kv_cache_dtype": "fp8", "quantization": "gptq", "engine_version": "0.19.0", "enforce_eager": True,
        "num_gpu_blocks": None, "activation_gib": None, "gpu_memory_used_gib": 0.0,
    }  # fmt: skip


def test_a_given_activation_is_said() -> None:
    content = found(*FLAGS, "--activation-gib", "3")
    assert content["activation_gib"] == 3
    assert "activation 3 GiB as given, in place of the table" in content["notes"]
    assert content["rules"]["activation"] == {"rows": "", "sureness": "given", "about": ""}


def test_stages_of_a_pipeline() -> None:
    content = found(*FLAGS, "--pipeline-parallel-size", "4", "--gpu-memory-utilization", "0.95")
    assert content["num_gpus"] == 4
    assert content["weights_gib"] == pytest.approx(4.26, rel=0.01)
    assert content["num_gpu_blocks"] == min(stage["num_gpu_blocks"] for stage in content["stages"])
    assert content["limiting_stage"] == 3
    assert content["kv_bytes_per_token_all_gpus"] == 131_072
    assert "runs do not simulate pipeline parallelism" in " ".join(content["notes"])


def test_a_latent_cache_and_sliding_windows() -> None:
    latent = found("--model", "deepseek-v3", "--gpu", "h200-sxm-141gb", "--tensor-parallel-size", "8",
                   "--quantization", "fp8", "--max-model-len", "8192")  # fmt: skip
    assert latent["kv_bytes_per_token"] == 61 * 576 * 2
    assert "one latent a token" in " ".join(latent["notes"])
    assert (latent["groups"][0]["block_size"], latent["kv_tokens"] % 64) == (64, 0)
    assert "no log of a model with a latent cache" in latent["rules"]["weights"]["sureness"]
    sliding = found("--model", "gemma-2-9b", "--gpu", "h100-sxm5-80gb")
    assert "21 of 42 layers see a window of 4,096 tokens" in " ".join(sliding["notes"])
    assert [(group["kind"], group["num_layers"], group["blocks"]) for group in sliding["groups"]] == [
        ("sliding", 21, 513), ("full", 21, 512),
    ]  # fmt: skip
    old = found("--model", "gemma-2-9b", "--gpu", "h100-sxm5-80gb", "--engine-version", "0.8.5")
    assert "engine 0.8.5 keeps every layer in full all the same" in " ".join(old["notes"])


def test_tables_fit_80_columns() -> None:
    for args in ((SCENARIO,), (*FLAGS, "--tensor-parallel-size", "4"), ("--model", "gpt-oss-120b", "--gpu",
                 "mi300x", "--quantization", "mxfp4", "--pipeline-parallel-size", "3")):  # fmt: skip
        result = memory(*args)
        assert result.exit_code == 0, result.output
        assert max(len(line) for line in result.stdout.splitlines()) <= 80
        assert "…" not in result.stdout
        for word in ("KV pool", "activation peak", "outside the budget", "max concurrency", "How sure"):
            assert word in result.stdout


def test_files_are_written_on_request_only(tmp_path: Path) -> None:
    assert memory(*FLAGS).exit_code == 0
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):  # the second replaces the first
        result = memory(*FLAGS, "--out", "out")
        assert result.exit_code == 0
        assert "wrote out; open out/memory.svg" in result.stderr
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["manifest.json", "memory.json", "memory.png", "memory.svg"]
    assert (tmp_path / "out/memory.json").read_text() == memory(*FLAGS, "--json").stdout
    picture = (tmp_path / "out/memory.svg").read_text()
    for word in ("KV pool", "activation peak", "unused, outside the budget", "memory of one GPU [GiB]"):
        assert word in picture
    first = (tmp_path / "out/memory.svg").read_bytes()
    assert memory(*FLAGS, "--out", "out", "--quiet").stderr == ""
    assert (tmp_path / "out/memory.svg").read_bytes() == first


def test_a_refusal_prints_the_table_and_exits_1(tmp_path: Path) -> None:
    args = ("--model", "llama-3.1-8b", "--gpu", "rtx-3090", "--gpu-memory-utilization", "0.9", "--max-model-len",
            "29000", "--engine-version", "0.6.4")  # fmt: skip
    result = memory(*args, "--out", "out")
    assert result.exit_code == 1
    assert "weights" in result.stdout
    last = result.stderr.splitlines()[-1]
    assert last.startswith("start-up refused: max_model_len 29000 needs 1,813 blocks, 1,498 fit: lower it to 23,968")
    content = found(*args, code=1)
    assert last == f"start-up refused: {content['refusal']}"
    assert content["refusal_kind"] == "max_model_len"
    assert content["ways"][0] == {"text": "lower it to 23,968", "changes": {"max_model_len": 23968}}
    assert (tmp_path / "out/memory.png").stat().st_size > 5000
    # The advice holds.
    assert memory(*args[:4], "--gpu-memory-utilization", "0.93", *args[6:]).exit_code == 0
    assert memory(*args[:6], "--max-model-len", "23968", *args[8:]).exit_code == 0


def test_a_run_is_refused_with_the_same_words() -> None:
    sets = ("--set", "engine.gpu_memory_utilization=0.21")
    refused = memory(SCENARIO, *sets)
    assert refused.exit_code == 1
    run = CliRunner().invoke(app, ["run", SCENARIO, *sets])
    assert run.exit_code == 2
    reason = refused.stderr.strip().removeprefix("start-up refused: ")
    assert run.stderr.strip().endswith(reason)
    assert "llama3-8b-a100.yaml" in run.stderr, "the line to blame"


def test_a_budget_that_cannot_hold_a_whole_prompt_is_refused_before_0_8() -> None:
    args = ("--model", "llama-3-8b", "--gpu", "l4-24gb", "--engine-version", "0.4", "--max-model-len", "8192")
    refused = found(*args, "--max-num-batched-tokens", "2048", code=1)
    assert refused["refusal_kind"] == "max_num_batched_tokens"
    assert refused["ways"][0]["changes"] == {"max_num_batched_tokens": 8192}
    assert found(*args)["settings"]["max_num_batched_tokens"] == 8192
    chunked = ("--set", "engine.enable_chunked_prefill=true")
    assert memory(*args, "--max-num-batched-tokens", "2048", *chunked).exit_code == 0
    # A run says the same, unless its file asks for chunks.
    Path("old.yaml").write_text(
        "name: old\nmodel: llama-3-8b\nhardware: {gpu: a100-sxm4-80gb}\n"
        "engine: {version: '0.6.4', max_num_batched_tokens: 2048}\n"
        "workload:\n  arrivals: {process: all_at_once}\n  num_requests: 3\n"
        "  prompt_tokens: {dist: fixed, value: 9}\n  output_tokens: {dist: fixed, value: 9}\n"
    )
    run = CliRunner().invoke(app, ["run", "old.yaml"])
    assert run.exit_code == 2
    assert "max_num_batched_tokens 2048 is below max_model_len 8192" in run.stderr
    assert "old.yaml" in run.stderr, "the line to blame"
    assert memory("old.yaml").exit_code == 1
    assert memory("old.yaml", *chunked).exit_code == 0
    assert CliRunner().invoke(app, ["run", "old.yaml", *chunked]).exit_code == 0


GEMMA = ("--model", "gemma-3-27b", "--gpu", "h100-sxm5-80gb")


def test_windows_leave_room_for_longer_sequences() -> None:
    """gemma-3-27b: 8,192 blocks for the full layers of the longest sequence, 6 x 1,089 for the others."""
    content = found(*GEMMA, code=1)
    assert content["refusal"].startswith("max_model_len 131072 needs 14,726 blocks in 7 groups of layers, 13,767 fit:")
    longest = content["ways"][0]["changes"]["max_model_len"]
    shorter = found(*GEMMA, "--max-model-len", str(longest))
    assert longest > 8 * shorter["num_gpu_blocks"]
    assert shorter["engine_log"][1] == f"Maximum concurrency for {longest:,} tokens per request: 1.00x"
    assert found(*GEMMA, "--max-num-batched-tokens", "2048")["refusal"] is None
    # Before groups every layer was kept in full.
    assert "needs 8,192 blocks, 1,685 fit" in found(*GEMMA, "--engine-version", "0.8.5", code=1)["refusal"]


def test_memory_that_others_use() -> None:
    refused = memory(*FLAGS, "--gpu-memory-used", "10")
    assert refused.exit_code == 1
    assert "start-up refused: free memory on h100-sxm5-80gb (69.19/79.19 GiB) is less than" in refused.stderr
    assert found(*FLAGS, "--gpu-memory-used", "2")["refusal"] is None
    wrong = memory(*FLAGS, "--gpu-memory-used", "-1")
    assert (wrong.exit_code, wrong.stderr.strip()) == (
        2, "--gpu-memory-used: expected GiB >= 0 (and <= 1e6), got -1",
    )  # fmt: skip


def test_what_the_engine_does_not_have_is_said() -> None:
    assert found(*FLAGS)["notes"] == []

    def notes(*args: str) -> str:
        return " ".join(found(*FLAGS, *args)["notes"])

    for version in ("1.0", "0.34"):
        said = f"engine {version}: no rule is that new; those of the newest, 0.33, are used"
        assert said in notes("--engine-version", version)
    assert "no rule" not in notes("--engine-version", "0.33.2")
    assert "block size 7: most attention kernels of the engine take multiples of 16" in notes("--block-size", "7")
    assert "block size" not in notes("--block-size", "96")
    old = ("--engine-version", "0.10")
    assert "block size 64: older engines take at most 32 on a CUDA GPU" in notes("--block-size", "64", *old)
    assert "block size" not in notes("--block-size", "32")
    volta = ("--gpu", "v100-sxm2-32gb", "--dtype", "half")
    assert "documents no fp8 weights for v100-sxm2-32gb (7.0)" in notes(*volta, "--quantization", "fp8")
    assert notes(*volta, "--quantization", "gptq") == ""


def test_contiguous_memory_without_a_region_is_refused_like_a_run() -> None:
    """5,000 tokens need a region of 8,192 where regions are powers of two; 6,384 tokens are there."""
    sets = ("--set", "engine.kv_allocator=contiguous", "--set", "engine.max_model_len=5000")
    sets += ("--set", "engine.num_gpu_blocks=400")
    assert memory(SCENARIO, *sets).exit_code == 0
    sets += ("--set", "engine.placement=buddy")
    refused = memory(SCENARIO, *sets)
    run = CliRunner().invoke(app, ["run", SCENARIO, *sets])
    assert (refused.exit_code, run.exit_code) == (1, 2)
    assert refused.stderr.startswith("start-up refused: no region of 5000 tokens can be placed in 6384 tokens")
    assert "no region of 5000 tokens can be placed in 6384 tokens" in run.stderr


def test_the_weights_do_not_fit_picture(tmp_path: Path) -> None:
    result = memory("--model", "llama-3-70b", "--gpu", "l4-24gb", "--out", "out")
    assert result.exit_code == 1
    assert "missing for KV" in result.stdout
    assert "start-up refused" in (tmp_path / "out/memory.svg").read_text()


SMALL = ("--model", "llama-3-8b", "--gpu", "l4-24gb")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "memory: --model and --gpu missing; expected a scenario file or --model and --gpu; `simkit init`"),
        (("--model", "llama-3-8b"), "memory: --gpu missing"),
        (("--gpu", "l4-24gb", "--max-num-seqs", "5"), "memory: --model missing"),
        ((SCENARIO, "--model", "llama-3-8b"), "--model: expected a scenario file or flags, got both"),
        ((SCENARIO, "--mean-tokens", "5"), "--mean-tokens: expected a scenario file or flags, got both"),
        (("nope.yaml",), "nope.yaml: no such file"),
        (("--model", "llama-3-8", "--gpu", "l4-24gb"), "--model: 'llama-3-8' is not known; did you mean 'llama-3-8b'?"),
        (("--model", "llama-3-8b", "--gpu", "l4-24"), "--gpu: 'l4-24' is not known; did you mean 'l4-24gb'?"),
        ((*SMALL, "--quantization", "fp88"),
         "compressed-tensors, got 'fp88'; did you mean 'fp8'?"),
        ((*SMALL, "--quantization", "compressed-tensors"),
         "--quantization: compressed-tensors does not say which format: expected fp8, int8, w4a16 or nvfp4"),
        (("--model", "llama-3.9-8b", "--gpu", "l4-24gb"), "--model: 'llama-3.9-8b' is not known; did you mean"),
        ((*SMALL, "--quantization", "mxfp4"), "--quantization: mxfp4 is for the experts of a MoE model"),
        ((*SMALL, "--engine-version", "latest"), "--engine-version: expected an engine version"),
        ((*SMALL, "--dtype", "fp12"), "--dtype: expected one of"),
        ((*SMALL[:3], "t4-16gb"), "--dtype: hardware.gpu t4-16gb has no bfloat16"),
        ((*SMALL, "--kv-cache-dtype", "int3"), "--kv-cache-dtype: expected one of"),
        ((*SMALL, "--gpu-memory-utilization", "7"), "--gpu-memory-utilization: expected a number > 0 and <= 1, got 7"),
        ((*SMALL, "--gpu-memory-utilization", "nan"), "--gpu-memory-utilization: expected a number > 0"),
        ((*SMALL, "--max-model-len", "99999"), "--max-model-len: expected <= 8192 (the longest context"),
        ((*SMALL, "--max-num-seqs", "0"), "--max-num-seqs: expected an integer >= 1"),
        ((*SMALL, "--max-num-seqs", "99", "--max-num-batched-tokens", "9"), "--max-num-batched-tokens: expected >= "),
        ((*SMALL, "--block-size", "999"), "--block-size: expected an integer from 1 to 256"),
        ((*SMALL, "--tensor-parallel-size", "3"), "--tensor-parallel-size: 3 GPUs cannot split"),
        ((*SMALL, "--pipeline-parallel-size", "33"), "--pipeline-parallel-size: expected 1 to 32 (the layers"),
        ((*SMALL, "--pipeline-parallel-size", "0"), "--pipeline-parallel-size: expected an integer >= 1"),
        ((*SMALL, "--activation-gib", "-1"), "--activation-gib: expected GiB >= 0"),
        ((*SMALL, "--activation-gib", "nan"), "--activation-gib: expected GiB >= 0"),
        ((*SMALL, "--mean-tokens", "0"), "--mean-tokens: expected a number of tokens"),
        ((*SMALL, "--set", "workload.stop=eos"), "--set workload.stop: expected --mean-tokens"),
        ((*SMALL, "--set", "engine.max_num_seq=5"), "--set engine.max_num_seq: unknown key; did you mean"),
        ((*SMALL, "--max-model-length", "5"), "--max-model-len"),
        ((*SMALL, "--out", "."), "--out .: expected a directory of its own"),
    ],
)  # fmt: skip
def test_bad_input(args: tuple[str, ...], said: str) -> None:
    result = memory(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr
