"""Names of models: variants of a known one by rule, the cache of the hub, and the hub itself (a stand-in)."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from simkit.cli.app import app
from simkit.errors import InputError
from simkit.specs import hub
from simkit.specs.models import known_model, load_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}

VARIANTS = """
Qwen2-7B-Instruct                                            qwen2-7b-instruct              -
llama3.1-8b-instruct-awq                                     llama-3.1-8b                   awq
Qwen2-7B-Instruct-AWQ                                        qwen2-7b-instruct              awq
RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic              llama-3.1-8b                   fp8
RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-block                llama-3.1-8b                   fp8_block
neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8                   llama-3.1-8b                   fp8
neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16       llama-3.1-8b                   gptq
neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8        llama-3.1-8b                   int8
neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a16       llama-3.1-8b                   gptq_int8
hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4          llama-3.1-70b                  awq
hugging-quants/Meta-Llama-3.1-70B-Instruct-GPTQ-INT4         llama-3.1-70b                  gptq
Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4                           qwen2.5-7b                     gptq
Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8                           qwen2.5-7b                     gptq_int8
Qwen/Qwen2.5-Coder-32B-Instruct-AWQ                          qwen2.5-32b                    awq
nvidia/Llama-3.1-8B-Instruct-FP8                             llama-3.1-8b                   fp8
nvidia/Llama-3.3-70B-Instruct-FP4                            llama-3.1-70b                  nvfp4
nvidia/Llama-3.3-70B-Instruct-NVFP4                          llama-3.1-70b                  nvfp4
nvidia/DeepSeek-R1-0528-NVFP4                                deepseek-v3                    nvfp4
amd/Llama-3.1-70B-Instruct-FP8-KV                            llama-3.1-70b                  fp8
unsloth/llama-3-8b-bnb-4bit                                  llama-3-8b                     bitsandbytes
unsloth/Meta-Llama-3.1-8B-Instruct-unsloth-bnb-4bit          llama-3.1-8b                   bitsandbytes
unsloth/gpt-oss-20b-BF16                                     gpt-oss-20b                    -
unsloth/gpt-oss-20b                                          gpt-oss-20b                    mxfp4
TheBloke/Llama-2-7B-Chat-AWQ                                 llama-2-7b                     awq
TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ                     mixtral-8x7b                   gptq
TheBloke/Mistral-7B-Instruct-v0.2-GPTQ                       mistral-7b-v0.2                gptq
solidrust/Mistral-7B-Instruct-v0.3-AWQ                       mistral-7b-v0.3                awq
RedHatAI/gemma-3-27b-it-quantized.w4a16                      gemma-3-27b                    gptq
Qwen/Qwen3-8B-FP8                                            qwen3-8b                       fp8_block
Qwen3-8B-FP8                                                 qwen3-8b                       fp8_block
RedHatAI/Qwen3-8B-FP8-dynamic                                qwen3-8b                       fp8
Qwen/Qwen3-32B-AWQ                                           qwen3-32b                      awq
Qwen/Qwen3-30B-A3B-Instruct-2507-FP8                         qwen3-30b-a3b-2507             fp8_block
Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8                      qwen3-coder-480b-a35b          fp8_block
zai-org/GLM-4.5-Air-FP8                                      glm-4.5-air                    fp8
DeepSeek-R1-Distill-Qwen-1.5B                                deepseek-r1-distill-qwen-1.5b  -
deepseek-ai/DeepSeek-R1-Distill-Qwen-7B                      deepseek-r1-distill-qwen-7b    -
DeepSeek-R1-Distill-Qwen-14B                                 deepseek-r1-distill-qwen-14b   -
unsloth/DeepSeek-R1-Distill-Qwen-32B-bnb-4bit                deepseek-r1-distill-qwen-32b   bitsandbytes
unsloth/DeepSeek-R1-Distill-Llama-8B                         deepseek-r1-distill-llama-8b   -
casperhansen/deepseek-r1-distill-llama-70b-awq               deepseek-r1-distill-llama-70b  awq
RedHatAI/Llama-4-Scout-17B-16E-Instruct-quantized.w4a16      llama-4-scout                  gptq
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network and an empty cache, whatever the machine has."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def refusal(name: str) -> str:
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("line", VARIANTS.strip().splitlines())
def test_variants_of_a_known_model(line: str) -> None:
    name, base, quantization = line.split()
    spec = load_model(name)
    assert (spec.name, spec.quantization or "-") == (base, quantization)
    assert spec.num_params == load_model(base).num_params
    if not spec.read_as:  # a name of the registry
        assert quantization == "-"
    else:
        weights = "16-bit weights" if quantization == "-" else f"{quantization} weights"
        assert spec.read_as == f"model {name}: read as {base} with {weights}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Llama-3.9-8B", "llama-3.1-8b"),
        ("somebody/Llama-3.9-8B-Instruct-AWQ", "llama-3.1-8b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama-3.1-8b"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama-3.1-70b"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "meta-llama-3.1-8b-instruct"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b-instruct"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-NVFP4", "meta-llama-3.1-8b"),
    ],
)
def test_a_rest_is_never_guessed(name: str, hint: str) -> None:
    assert known_model(name) is None
    assert f"{name!r} is not known; did you mean {hint!r}?" in refusal(name)


def test_an_id_that_nobody_knows_says_what_helps() -> None:
    said = refusal("somebody/Nova-8B")
    assert said.endswith("; HF_HUB_OFFLINE is set, or give the path of its config.json (list: simkit models)")


def test_a_bare_name_is_never_looked_for_on_the_hub() -> None:
    assert refusal("jamba-large") == "model: 'jamba-large' is not known (list: simkit models)"


# --- the cache
def cache(folder: Path, repo: str, revision: str, config: dict[str, Any], *, main: str = "") -> Path:
    home = folder / f"models--{repo.replace('/', '--')}"
    snapshot = home / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if main:
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / "main").write_text(main, encoding="utf-8")
    return snapshot


def test_the_cache_of_the_hub_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home" / "hub"
    cache(folder, "somebody/Nova-8B", "aaa", CONFIG | {"num_hidden_layers": 16}, main="aaa")
    cache(folder, "somebody/Nova-8B", "bbb", CONFIG)
    spec = load_model("somebody/Nova-8B")
    assert (spec.name, spec.hf_id, spec.num_layers) == ("Nova-8B", "somebody/Nova-8B", 16)
    assert spec.read_as == "model somebody/Nova-8B: read from its config.json, with 16-bit weights"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    cache(tmp_path / "elsewhere", "somebody/Nova-8B", "ccc", CONFIG)
    assert load_model("somebody/Nova-8B").num_layers == 32


def test_a_quantised_checkpoint_in_the_cache(tmp_path: Path) -> None:
    own = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    cache(tmp_path / "home" / "hub", "somebody/Nova-8B-Magic", "a", CONFIG | own)
    assert load_model("somebody/Nova-8B-Magic").quantization == "awq"


def test_the_format_beside_the_config(tmp_path: Path) -> None:
    snapshot = cache(tmp_path / "home" / "hub", "somebody/Nova-8B", "a", CONFIG)
    content = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
    }
    (snapshot / "hf_quant_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert load_model("somebody/Nova-8B").quantization == "nvfp4"


def test_a_family_that_is_not_modelled_is_named(tmp_path: Path) -> None:
    cache(tmp_path / "home" / "hub", "ai21/Jamba-9", "a", CONFIG | {"model_type": "jamba", "attn_layer_period": 8})
    assert refusal("ai21/Jamba-9").endswith("config.json: attn_layer_period: hybrid layers are not modelled")


# --- the hub
class GatedRepoError(Exception):
    """Called as the hub's own."""


def stand_in(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))


def test_the_hub_is_asked_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str, float]] = []

    def download(*, repo_id: str, filename: str, etag_timeout: float) -> str:
        asked.append((repo_id, filename, etag_timeout))
        if filename != "config.json":
            raise FileNotFoundError
        file = tmp_path / filename
        file.write_text(json.dumps(CONFIG), encoding="utf-8")
        return str(file)

    stand_in(monkeypatch, download)
    assert load_model("somebody/Nova-8B").num_params == load_model("llama-3.1-8b").num_params
    assert asked == [("somebody/Nova-8B", name, 10.0) for name in ("config.json", "hf_quant_config.json")]
    load_model("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic")
    assert len(asked) == 2


def test_a_hub_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(**_: Any) -> str:
        raise GatedRepoError("401 Client Error.\nCannot access gated repo")

    stand_in(monkeypatch, download)
    said = refusal("somebody/Nova-8B")
    assert "; the hub shows it only to accounts that were let in, or give the path of its config.json" in said


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def download(**_: Any) -> str:
        never.wait()
        return ""

    stand_in(monkeypatch, download)
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.01)
    assert "; the hub does not answer within 0.01 s, or give the path" in refusal("somebody/Nova-8B")
    never.set()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert '; pip install "simkit-llm[hub]" asks the hub for it, or give the path' in refusal("somebody/Nova-8B")


# --- what is said of it
def memory(*args: str) -> Result:
    return CliRunner().invoke(app, ["memory", *args])


def test_memory_says_what_names_were_read_as() -> None:
    result = memory("--model", "nvidia/Llama-3.1-8B-Instruct-FP8", "--gpu", "h100", "--json")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "note: model nvidia/Llama-3.1-8B-Instruct-FP8: read as llama-3.1-8b with fp8 weights",
        "note: hardware.gpu h100: read as h100-sxm5-80gb",
    ]
    content = json.loads(result.stdout)
    assert (content["model"], content["gpu"]) == ("llama-3.1-8b", "h100-sxm5-80gb")
    assert content["settings"]["quantization"] == "fp8"
    assert content["weights_gib"] == pytest.approx(8.49, abs=0.05)  # A058


def test_memory_of_a_model_that_is_published_quantised() -> None:
    result = memory("--model", "gpt-oss-120b", "--gpu", "h100-sxm5-80gb", "--max-model-len", "8192", "--json")
    assert result.stderr == "note: model gpt-oss-120b: mxfp4 weights, as it is published\n"
    assert json.loads(result.stdout)["weights_gib"] == pytest.approx(60.97, abs=0.01)  # its model card: 60.8 GiB
    plain = memory("--model", "gpt-oss-120b", "--gpu", "mi300x", "--quantization", "none", "--json")
    assert plain.stderr.startswith("start-up refused: model gpt-oss-120b needs 217.6 GiB of weights per GPU")
    assert json.loads(plain.stdout)["weights_gib"] == pytest.approx(217.6, abs=0.1)


def test_a_run_says_it_and_keeps_it(tmp_path: Path) -> None:
    args = ["run", "--model", "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "--gpu", "a100", "--rate", "2"]
    args += ["--prompt", "64", "--output", "4", "--no-headroom", "--no-report", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*args, "--set", "workload.num_requests=20"])
    assert result.exit_code == 0, result.stderr
    said = result.stderr.splitlines()
    assert "model hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4: read as llama-3.1-8b with awq weights" in said
    assert "hardware.gpu a100: read as a100-sxm4-80gb" in said
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["scenario"]["engine"]["quantization"] == "awq"
    assert manifest["scenario"]["hardware"]["gpu"] == "a100-sxm4-80gb"
    assert manifest["profile"]["name"] == "a100-sxm4-80gb"


@pytest.mark.parametrize(
    ("gpu", "given", "said"),
    [
        ("v100", "nvfp4", "the engine has no nvfp4 weights for v100-sxm2-32gb (compute capability 7.0); it has gptq"),
        ("t4", "fp8", "the engine has no fp8 weights for t4-16gb (compute capability 7.5); it has int8, awq, gptq"),
    ],
)
def test_a_run_needs_kernels_for_the_format(gpu: str, given: str, said: str) -> None:
    args = ["run", "--model", "llama-3.2-1b", "--gpu", gpu, "--rate", "2", "--prompt", "9", "--output", "4"]
    result = CliRunner().invoke(
        app, [*args, "--set", "engine.dtype=float16", "--set", f"engine.quantization={given}", "--no-report"]
    )
    assert result.exit_code == 2
    assert result.stderr.startswith(f"--set engine.quantization: {said}")
    assert len(result.stderr.splitlines()) == 1
