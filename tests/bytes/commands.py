"""The commands whose output is fingerprinted, in groups that are run each in a folder of its own.

Runs are small, not few: what matters is that every kind of page, table, file and sentence is made once. Those that
users get wrong are in `mistakes` and `mistakes_files`.
"""

from __future__ import annotations

from pathlib import Path

from command import Command, commands
from corpus_logs import READ
from mistakes import MISTAKES
from mistakes_files import FILE_MISTAKES

_SCENARIOS = sorted((Path(__file__).resolve().parents[2] / "scenarios").glob("*.yaml"))
_HALF = len(_SCENARIOS) // 2
_FEW = "--set workload.num_requests=40 --set workload.finite=true"
_SHRUNK = {
    "eight-requests": "--set workload.finite=true",
    "replay-a-log": "--set workload.trace.max_requests=60",
    "recompute-or-swap": "--set workload.num_requests=60",
}
"""What makes a scenario small where `_FEW` does not fit."""

_HELP = (
    "", "run", "compare", "sweep", "plan", "replay", "validate", "memory", "doctor", "trace", "trace info", "trace fit",
    "trace sample", "trace convert", "calibrate", "conform", "init", "models", "gpus", "profiles",
)  # fmt: skip

_WORDS = {
    **{f"help-{name.replace(' ', '-')}" if name else "help": f"{name} --help" for name in _HELP},
    "nothing": "",
    "version": "--version",
    "init": "init",
    "models": "models",
    "models-json": "models --json",
    "gpus": "gpus",
    "gpus-json": "gpus --json",
    "profiles": "profiles",
    "profiles-json": "profiles --json",
    "profile": "profiles h100-sxm5-80gb",
    "doctor-rules": "doctor --rules",
    "doctor-rules-json": "doctor --rules --json",
    "memory": "memory --model llama-3.1-8b --gpu h100-sxm5-80gb --max-model-len 8192 --mean-tokens 700 "
    "--p95-tokens 2000 --out {out}",
    "memory-json": "memory --model llama-3.1-8b --gpu h100-sxm5-80gb --max-model-len 8192 --json",
    "memory-scenario": "memory scenarios/llama3-8b-a100.yaml --set engine.kv_cache_dtype=fp8",
    "memory-stages": "memory --model llama-3-70b --gpu h100-sxm5-80gb --tensor-parallel-size 2 "
    "--pipeline-parallel-size 2 --max-num-seqs 64 --max-num-batched-tokens 4096 --block-size 32 --dtype half "
    "--kv-cache-dtype fp8 --quantization w4a16 --enforce-eager --engine-version 0.19.0",
    "memory-given": "memory --model llama-3.1-8b --gpu l4-24gb --max-model-len 4096 --activation-gib 3 --block-size 48",
    "memory-latent": "memory --model deepseek-v3 --gpu h200-sxm-141gb --tensor-parallel-size 8 --quantization fp8 "
    "--max-model-len 8192",
    "memory-sliding": "memory --model gemma-2-9b --gpu h100-sxm5-80gb",
    "memory-config": "memory --model configs/good/config.json --gpu l4-24gb",
    "memory-refused": "memory --model llama-3.1-8b --gpu rtx-3090 --gpu-memory-utilization 0.9 --max-model-len 29000 "
    "--engine-version 0.6.4 --out {out}",
    "memory-too-large": "memory --model llama-3-70b --gpu l4-24gb --json",
    "conform": "conform tests/golden/dev_01_tiny_fcfs.jsonl.gz tests/golden/dev_04_tiny_prefix.jsonl.gz",
    "conform-json": "conform tests/golden/dev_02_tiny_preempt.jsonl.gz --json",
}

_RUNS = {
    "grows": "run tiny.yaml --set engine.max_num_seqs=4 --out {out}",
    "single-step": f"run tiny.yaml {_FEW} --single-step --no-report --out {{out}}",
    "replaced": f"run tiny.yaml {_FEW} --seed 5 --no-report --out out/grows",
    "no-place": f"run tiny.yaml {_FEW} --no-report --set name=elsewhere",
    "json": f"run scenarios/llama3-8b-a100.yaml {_FEW} --json --no-report --out {{out}}",
    "quiet": f"run scenarios/llama3-8b-a100.yaml {_FEW} --quiet --no-report --out {{out}}",
    "replicated": f"run scenarios/long-prompt-stall.yaml {_FEW} --set replications=3 --jobs 1 --out {{out}}",
    "eager": f"run scenarios/llama3-8b-a100.yaml {_FEW} --set engine.enforce_eager=true --out {{out}}",
    "flags": "run --model llama-3-8b --gpu l4-24gb --rate 2 --prompt 100 --output 20 --set workload.num_requests=30 "
    "--set workload.finite=true --no-report --out {out}",
    "workload-of-another": "run tiny.yaml --workload part.yaml --no-report --resume --out {out}",
    "replica-lost": f"run scenarios/lose-a-replica.yaml {_FEW} --set 'failures=[{{replica: 0, at_s: 3, for_s: 2}}]' "
    "--out {out}",
    "all-lost": f"run scenarios/lose-a-replica.yaml {_FEW} --set replicas=1 --set 'failures=[{{replica: 0, at_s: 3}}]' "
    "--no-report --out {out}",
    "one-request": "run tiny.yaml --set workload.num_requests=1 --set workload.finite=true --out {out}",
    "all-rejected": "run tiny.yaml --set 'workload.prompt_tokens={dist: fixed, value: 300}' --out {out}",
    "truncated": f"run tiny.yaml {_FEW} --set 'workload.output_tokens={{dist: fixed, value: 500}}' --no-report "
    "--out {out}",
    "overloaded": "run scenarios/llama3-8b-a100.yaml --set workload.arrivals.rate_per_s=200 --set "
    "workload.num_requests=100 --set workload.finite=true --no-report --out {out}",
    "timeouts": f"run tiny.yaml {_FEW} --set workload.timeout_s=0.02 --set engine.max_num_seqs=2 --set "
    "workload.queue_limit=3 --no-report --out {out}",
    "swapped": f"run scenarios/recompute-or-swap.yaml {_FEW} --set engine.preemption=swap --out {{out}}",
    "no-effect": f"run tiny.yaml {_FEW} --set engine.max_wait_s=1 --set engine.placement=buddy --no-report "
    "--out {out}",
    "static": "run scenarios/eight-requests.yaml --set engine.batching=static --set engine.kv_allocator=contiguous "
    "--out {out}",
    "dynamic": "run scenarios/eight-requests.yaml --set engine.batching=dynamic --no-report --out {out}",
    "uncalibrated": f"run scenarios/llama3-8b-a100.yaml {_FEW} --set hardware.gpu=rtx-3090 --no-report --out {{out}}",
    "other-version": f"run scenarios/llama3-8b-a100.yaml {_FEW} --set engine.version=0.8.5 --no-report --out {{out}}",
    "without-effect": f"run scenarios/llama3-8b-a100.yaml {_FEW} --set 'latency.without=[host]' --no-report "
    "--out {out}",
    "eos": f"run tiny.yaml {_FEW} --set workload.stop=eos --set workload.max_tokens=8 --no-report --out {{out}}",
    "samples": f"run tiny.yaml {_FEW} --set workload.samples=2 --no-report --out {{out}}",
    "priorities": f"run tiny.yaml {_FEW} --set 'workload.priority={{values: [0, 1], weights: [1, 9]}}' --set "
    "engine.policy=priority --set engine.max_num_seqs=4 --out {out}",
    "servegen": "run servegen.yaml --no-report --out {out}",
    "config": f"run tiny.yaml {_FEW} --set model=configs/good/config.json --set latency.profile=roofline --no-report "
    "--out {out}",
    "tensor-parallel": f"run scenarios/llama3-8b-a100.yaml {_FEW} --set hardware.tensor_parallel_size=2 --set "
    "replicas=2 --no-report --out {out}",
    "over-pcie": f"run scenarios/validate-rtx-pro-6000.yaml {_FEW} --set hardware.tensor_parallel_size=2 --set "
    "hardware.interconnect=pcie --no-report --out {out}",
    "linked": f"run scenarios/llama3-8b-a100.yaml {_FEW} --set hardware.tensor_parallel_size=16 --set "
    "'hardware.link={latency_us: 10, gb_per_s: 40}' --no-report --out {out}",
    "doctor": "doctor out/static --jobs 1 --out {out}",
    "doctor-json": "doctor out/static --json --no-proof",
    "doctor-healthy": "doctor out/grows --no-proof",
    "doctor-replicated": "doctor out/replicated --jobs 1 --quiet",
    "doctor-replica-lost": "doctor out/replica-lost --no-proof",
    "doctor-swapped": "doctor out/swapped --jobs 1",
    "doctor-rejected": "doctor out/all-rejected --no-proof",
    "doctor-onto-file": "doctor out/static --out tiny.yaml",
    "doctor-onto-run": "doctor out/static --out out/static",
}

_STUDIES = {
    "generations": "compare scenarios/eight-requests.yaml --jobs 1 --out {out}",
    "variants": f"compare scenarios/three-generations.yaml {_FEW} --jobs 1 --no-report --out {{out}}",
    "axis": f"compare tiny.yaml {_FEW} --axis engine.max_num_seqs=2,8 --jobs 1 --no-report --out {{out}}",
    "itself": f"compare tiny.yaml tiny.yaml {_FEW} --jobs 1 --no-report --out {{out}}",
    "two": f"compare tiny.yaml free.yaml {_FEW} --jobs 1 --out {{out}}",
    "replicated": f"compare tiny.yaml {_FEW} --set replications=3 --jobs 1 --json --no-report --out {{out}}",
    "broken-arm": f"compare arms.yaml {_FEW} --jobs 1 --no-report --out {{out}}",
    "doctor-arm": "doctor out/generations/arms/static+paged --no-proof",
    "doctor-comparison": "doctor out/generations",
    "sweep": "sweep scenarios/eight-requests.yaml --axis engine.max_num_seqs=2,4 --jobs 1 --out {out}",
    "sweep-grid": f"sweep tiny.yaml {_FEW} --axis engine.max_num_seqs=2,8 --axis workload.arrivals.rate_per_s=50,500 "
    "--jobs 1 --json --out {out}",
    "sweep-broken": f"sweep tiny.yaml {_FEW} --axis engine.max_num_seqs=0,8 --jobs 1 --out {{out}}",
    "sweep-resume": f"sweep tiny.yaml {_FEW} --axis engine.max_num_seqs=2,8 --jobs 1 --resume --out {{out}}",
}

_SOON = "--set workload.num_requests=20 --jobs 1"
_ONE_GOAL = "--set 'slo={ttft_ms: {p90: 10}}' --jobs 1"

_PLANS = {
    "plan": "plan tiny.yaml --axis engine.max_num_seqs=2,4 --set 'slo={ttft_ms: {p50: 10}}' --set "
    f"'workload.output_tokens={{dist: fixed, value: 5}}' {_SOON} --out {{out}}",
    "json": f"plan tiny.yaml --axis engine.max_num_seqs=4 --target-rate 5000 --spare 2 {_ONE_GOAL} --json --no-report "
    "--out {out}",
    "free": f"plan free.yaml --axis engine.max_num_seqs=4 --axis replicas=1,2 {_ONE_GOAL} {_SOON} --no-report "
    "--out {out}",
    "unreachable": "plan tiny.yaml --axis engine.max_num_seqs=4 --set 'slo.ttft_ms={p90: 0.5}' --jobs 1 --out {out}",
    "rejected": "plan tiny.yaml --axis engine.max_num_seqs=4 --set 'workload.prompt_tokens={dist: list, "
    "values: [8, 8, 8, 8, 500]}' --set engine.max_model_len=128 --jobs 1 --no-report --out {out}",
    "broken-point": "plan tiny.yaml --axis engine.max_num_seqs=0,4 --set 'slo.ttft_ms={p90: 0.5}' --jobs 1 --no-report "
    "--quiet --out {out}",
    "batch": "plan tiny.yaml --axis engine.max_num_seqs=32 --set workload.num_requests=6 --set workload.finite=true "
    "--jobs 1 --no-report --out {out}",
}

_LOGS = {
    **{f"info-{name.replace('.', '-')}": f"trace info logs/{name}" for name in READ if name not in ("home.csv",)},
    "info-home-csv": "trace info logs/home.csv --map time=at_ms,prompt=in,output=out",
    "info-failed": "trace info logs/litellm.jsonl --failed prefill",
    "info-append": "trace info logs/azure-runs.csv --on-restart append",
    "info-allow-bad": "trace info logs/bad-cells.csv --allow-bad",
    "info-delta": "trace info logs/sessions.jsonl --format mooncake-delta",
    "info-utf-16": "trace info logs/utf-16.csv",
    "info-json": "trace info logs/sessions.jsonl --json",
    "info-out": "trace info scenarios/example-log.csv --out {out}",
    "info-sessions-out": "trace info logs/sessions.jsonl --out {out}",
    "convert-jsonl": "trace convert scenarios/example-log.csv --out {out}.jsonl",
    "convert-parquet": "trace convert logs/sessions.jsonl --out {out}.parquet",
    "convert-measured": "trace convert scenarios/example-run.jsonl --out {out}.parquet --quiet",
    "convert-again": "trace convert out/convert-parquet.parquet --out {out}.jsonl",
    "sample": "trace sample scenarios/example-log.csv --start 10 --end 200 --keep-share 0.5 --seed 1 --max-requests 40 "
    "--out {out}.parquet",
    "fit": "trace fit scenarios/example-log.csv --end 120 --jobs 1 --out {out}.yaml",
    "fit-ties": "trace fit scenarios/example-log.csv --no-check --json --out {out}.yaml",
}

_REPLAY = "replay scenarios/example-log.csv --scenario scenarios/llama3-8b-a100.yaml --max-requests 60"
_MEASURED = "scenarios/example-run.jsonl --scenario scenarios/fit-to-a-run.yaml"

_REAL_RUNS = {
    "replay": f"{_REPLAY} --out {{out}}",
    "replay-json": f"{_REPLAY} --no-headroom --no-twin --json --no-report --out {{out}}",
    "replay-changed": f"{_REPLAY} --start 20 --end 200 --warmup 10 --keep-share 0.7 --idle-gap-cap 2 --speed 2 "
    "--repeat 2 --no-headroom --no-report --out {out}",
    "replay-sessions": "replay logs/sessions.jsonl --scenario engine.yaml --sessions closed --no-report --out {out}",
    "replay-ties": "replay logs/azure-ties.csv --scenario engine.yaml --spread-ties uniform --rate 5 --no-report "
    "--out {out}",
    "replay-long": "replay logs/azure-long.csv --scenario engine.yaml --too-long truncate --no-twin --no-report "
    "--out {out}",
    "replay-dropped": "replay logs/azure-long.csv --scenario engine.yaml --too-long drop --no-twin --no-report "
    "--out {out}",
    "replay-one": "replay logs/azure-one.csv --scenario engine.yaml --no-report --out {out}",
    "replay-measured": f"replay {_MEASURED} --max-requests 40 --no-report --out {{out}}",
    "replay-arms": "replay logs/azure.csv --scenario arms.yaml --no-report --no-twin --set latency.profile=unit "
    "--out {out}",
    "doctor-replay": "doctor out/replay --no-proof",
    "validate": f"validate {_MEASURED} --jobs 1 --out {{out}}",
    "validate-ablate": f"validate {_MEASURED} --max-requests 40 --ablate --jobs 1 --no-report --out {{out}}",
    "validate-json": f"validate {_MEASURED} --max-requests 40 --max-error tpot_ms.mean=3 --json --jobs 1 --no-report "
    "--out {out}",
    "validate-outside": f"validate {_MEASURED} --max-requests 40 --max-error ttft_ms.p99=0.001 --jobs 1 --out {{out}}",
    "validate-series": f"validate {_MEASURED} --series series.csv --jobs 1 --out {{out}}",
    "validate-unordered": f"validate {_MEASURED} --max-requests 40 --series series-order.csv --jobs 1 --no-report "
    "--out {out}",
    "rows": "validate --summary rows.csv --jobs 1 --out {out}",
    "rows-fit": "validate --summary rows.csv --fit max_concurrency=2,4 --jobs 1 --no-report --out {out}",
    "rows-band": "validate --summary rows.csv --max-error mean_tpot_ms=0.01 --jobs 1 --no-report --json --out {out}",
    "rows-public": "validate --summary tests/data/serving_rows.csv --select 'model=*3.1-8B*' --select "
    "max_concurrency=8 --max-rows 3 --jobs 1 --out {out}",
    "rows-scenario": "validate --summary rows.csv --scenario scenarios/llama3-8b-a100.yaml --max-rows 1 --jobs 1 "
    "--no-report --out {out}",
    "from-run": f"calibrate --from-run {_MEASURED} --max-requests 20 --date 2026-05-04 --out {{out}}/host.json",
    "from-run-hidden": f"calibrate --from-run {_MEASURED} --max-requests 20 --set engine.async_scheduling=true --json "
    "--out {out}/host.json",
}


def _run(path: Path) -> Command:
    line = f"run scenarios/{path.name} {_SHRUNK.get(path.stem, _FEW)} --out {{out}}"
    return commands({path.stem: line})[0]


GROUPS: dict[str, tuple[Command, ...]] = {
    "real-runs": commands(_REAL_RUNS),
    "plans": commands(_PLANS),
    "runs": commands(_RUNS),
    "studies": commands(_STUDIES),
    "scenarios-1": tuple(map(_run, _SCENARIOS[:_HALF])),
    "scenarios-2": tuple(map(_run, _SCENARIOS[_HALF:])),
    "logs": commands(_LOGS),
    "words": commands(_WORDS),
    **{group: commands(lines) for group, lines in MISTAKES.items()},
    "file-mistakes": commands(FILE_MISTAKES),
}
