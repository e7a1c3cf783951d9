"""Small files that the commands read, most of them with a mistake in them. Logs are in `corpus_logs`."""

from __future__ import annotations

import json

from corpus_logs import LOGS
from mistakes_files import FILES as ODD

TINY = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb, price_per_gpu_hour: 3.6}
engine: {max_model_len: 256, num_gpu_blocks: 129}
workload:
  num_requests: 60
  arrivals: {process: poisson, rate_per_s: 100}
  prompt_tokens: {dist: uniform, low: 20, high: 60}
  output_tokens: {dist: uniform, low: 5, high: 35}
latency: {profile: unit}
slo: {ttft_ms: {p90: 10}, tpot_ms: {p99: 5}}
"""

_SCENARIOS = {
    "tiny.yaml": TINY,
    "free.yaml": TINY.replace(", price_per_gpu_hour: 3.6", ""),
    "no-slo.yaml": TINY.partition("slo:")[0],
    "arms.yaml": TINY + "variants:\n  few: {engine.max_num_seqs: 4}\n  long: {engine.max_model_len: 8000}\n",
    "bad-arm.yaml": TINY + "variants:\n  few: {engine.max_num_sqs: 4}\n",
    "named-arm.yaml": TINY + "variants:\n  few: {name: other}\n",
    "engine.yaml": "name: engine\nmodel: llama-3-8b\nhardware: {gpu: a100-sxm4-80gb}\n"
    "engine: {max_num_seqs: 8, max_model_len: 2048}\nwarmup: none\n"
    "workload:\n  num_requests: 20\n  arrivals: {process: poisson, rate_per_s: 2}\n"
    "  prompt_tokens: {dist: fixed, value: 100}\n  output_tokens: {dist: fixed, value: 20}\n"
    "slo: {ttft_ms: {p90: 500}}\n",
    "replicated.yaml": TINY.replace("name: tiny", "name: replicated") + "replications: 2\n",
    "part.yaml": "workload:\n  finite: true\n  num_requests: 30\n  arrivals: {process: poisson, rate_per_s: 50}\n"
    "  prompt_tokens: {dist: fixed, value: 9}\n  output_tokens: {dist: fixed, value: 9}\n",
    "part-and-more.yaml": TINY.partition("latency:")[0],
    "mixed.yaml": TINY.replace("  num_requests: 60\n", "  trace: {path: logs/azure.csv}\n"),
    "sessions.yaml": TINY.partition("workload:")[0]
    + "workload:\n  trace: {path: logs/sessions.jsonl, sessions: closed}\nslo: {ttft_ms: {p90: 10}}\n",
    "lengths.yaml": TINY.replace(
        "{dist: uniform, low: 20, high: 60}", "{dist: empirical, path: lengths.csv, column: p}"
    ),
    "servegen.yaml": TINY.partition("workload:")[0] + "workload: {num_requests: 30, servegen: {path: clients}}\n"
    "latency: {profile: unit}\n",
    "empty.yaml": "",
    "list.yaml": "- a\n- b\n",
    "syntax.yaml": "name: tiny\nengine: {max_num_seqs: 4\nworkload: 3\n",
    "tab.yaml": "name: tiny\nengine:\n\tmax_num_seqs: 4\n",
    "twice.yaml": TINY + "name: again\n",
    "tag.yaml": "name: !!python/object:os.system x\n",
    "number-key.yaml": "name: tiny\n3: 4\n",
    "merge.yaml": "name: tiny\nengine: {<<: 3}\n",
    "control.yaml": "name: ti\x07ny\n",
    "missing.yaml": "name: tiny\nmodel: llama-3-8b\n",
    "unknown-key.yaml": TINY.replace("engine:", "egnine:"),
    "wrong-type.yaml": TINY.replace("num_requests: 60", "num_requests: many"),
}

_CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip

_CONFIGS = {
    "good": _CONFIG,
    "no-heads": {key: value for key, value in _CONFIG.items() if key != "num_attention_heads"},
    "odd-heads": _CONFIG | {"num_key_value_heads": 3},
    "text-layers": _CONFIG | {"num_hidden_layers": "four"},
    "mamba": _CONFIG | {"model_type": "mamba"},
    "vision": {"model_type": "llava", "vision_config": {}},
    "quantised": _CONFIG | {"quantization_config": {"quant_method": "gptq"}},
    "list": [1],
}

_ROWS = """\
row_id,engine,model,gpu,tp,input_len,output_len,max_concurrency,num_prompts,mean_tpot_ms
R1,vLLM 0.12.0,Qwen/Qwen2.5-0.5B,A100 80GB,1,100,20,2,6,3
R2,vLLM 0.12.0,Qwen/Qwen2.5-0.5B,GH200,1,100,20,2,6,3
R3,vLLM 0.12.0,Qwen/Qwen2.5-0.5B,A100 80GB,3,100,20,2,6,3
R4,vLLM 0.12.0,Qwen/Qwen2.5-0.5B,A100 80GB,1,100,20,4,6,4
R5,vLLM 0.12.0,none/such-model,A100 80GB,1,100,20,4,6,4
"""

_TABLES = {
    "rows.csv": _ROWS,
    "rows-column.csv": _ROWS.replace("gpu,tp", "gqu,tp"),
    "rows-cells.csv": _ROWS + "R6,vLLM\n",
    "rows-number.csv": _ROWS.replace("R4,vLLM 0.12.0,Qwen/Qwen2.5-0.5B,A100 80GB,1,100", "R4,vLLM,Qwen,A100,1,many"),
    "rows-twice.csv": _ROWS.replace("R4", "R1"),
    "rows-empty.csv": _ROWS.partition("\n")[0] + "\n",
    "rows-semicolons.csv": _ROWS.replace(",", ";"),
    "rows-unmeasured.csv": "\n".join(line.rpartition(",")[0] for line in _ROWS.splitlines()) + "\n",
    "lengths.csv": "p\n5\n7\nx\n",
    "series.csv": "t,running,waiting,kv_cache_pct\n0,1,0,0.5\n5,3,1,1.5\n10,2,0,1\n",
    "series-order.csv": "t,running,speed\n5,3,1\n0,1,1\n10,2,0\n",
    "series-column.csv": "time,running\n0,1\n",
    "series-cell.csv": "t,running\n0,one\n",
    "series-empty.csv": "t,running\n",
    "clients/chunk-0-trace.csv": "0,20,1,Gamma,1,1\n600,1,1,Gamma,1,1\n",
    "clients/chunk-0-dataset.json": json.dumps(
        {"0": {"input_tokens": "{45: 0.5, 46: 0.5}", "output_tokens": "{9: 1}"}}
    ),
    "bad-clients/chunk-0-trace.csv": "0,1,1,Pareto,1,1\n",
    "bad-clients/chunk-0-dataset.json": "{}",
    "not-a-run/manifest.json": "{}\n",
    "no-json/manifest.json": "{\n",
    "others/notes.txt": "not of simkit\n",
    "folder.jsonl/nothing": "nothing",
    "gpu.yaml": "name: mine\nmemory_gib: 80\n",
    "profile.json": "{}\n",
    "no-profile.json": "x\n",
    "kernels.csv": "op,dtype\nmatmul,bf16\n",
    "bad.jsonl.gz": "not packed\n",
    "bad.jsonl": '{"kind": "nothing"}\n',
}

FILES: dict[str, bytes] = {
    name: content.encode()
    for name, content in (
        *_SCENARIOS.items(),
        *((f"configs/{name}/config.json", json.dumps(config)) for name, config in _CONFIGS.items()),
        *_TABLES.items(),
        *ODD.items(),
    )
} | {"bytes.yaml": b"name: \xff\n", "configs/broken/config.json": b"{", **LOGS}
