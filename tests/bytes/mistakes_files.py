"""Files of one kind with one mistake each, and the commands that meet them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from mistakes import ROWS, RUN, VALIDATE

_TRACE = Path(__file__).resolve().parents[1] / "golden" / "dev_02_tiny_preempt.jsonl.gz"
_HEADER, *_RECORDS = (json.loads(line) for line in gzip.decompress(_TRACE.read_bytes()).splitlines())


def _trace(header: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> str:
    """A recorded trace with something changed in its header."""
    changed = _HEADER | (header or {}) | {"config": _HEADER["config"] | (config or {})}
    return "".join(json.dumps(row) + "\n" for row in (changed, *_RECORDS))


_REQUESTS = _HEADER["requests"]

_TRACES = {
    "empty": "",
    "format": _trace({"format": 9}),
    "cut": _trace().rpartition('{"')[0],
    "not-modelled": _trace(config={"speculative": True}),
    "value": _trace(config={"block_size": 0}),
    "type": _trace(config={"block_size": "16"}),
    "policy": _trace(config={"policy": "fsfc"}),
    "watermark": _trace(config={"watermark": 2.0}),
    "count": _trace({"n_requests": 1}),
    "no-requests": _trace({"requests": []}),
    "twice": _trace({"requests": [_REQUESTS[0], *_REQUESTS[:-1]]}),
    "request": _trace({"requests": [{}, *_REQUESTS[1:]]}),
    "record": "\n".join([*_trace().splitlines()[:2], '{"t": 1}', *_trace().splitlines()[2:]]) + "\n",
    "other-decision": _trace(config={"max_num_seqs": 1}),
}

_CLIENT = "0,20,1,Gamma,1,1\n"
_LENGTHS = json.dumps({"0": {"input_tokens": "{45: 1}", "output_tokens": "{9: 1}"}})
_CLIENTS = {
    "cells": ("0,1,1\n", _LENGTHS),
    "number": ("x,1,1,Gamma,1,1\n", _LENGTHS),
    "pattern": ("0,1,1,Pareto,1,1\n", _LENGTHS),
    "order": (_CLIENT + _CLIENT, _LENGTHS),
    "idle": ("0,0,0,,0,0\n", _LENGTHS),
    "no-windows": ("\n", _LENGTHS),
    "no-json": (_CLIENT, "{"),
    "list": (_CLIENT, "[]"),
    "later": (_CLIENT, _LENGTHS.replace('"0"', '"600"')),
    "period": (_CLIENT, '{"0": 3}'),
    "text": (_CLIENT, '{"0": {"input_tokens": 3}}'),
    "weights": (_CLIENT, '{"0": {"input_tokens": "{5: -1}"}}'),
    "no-lengths": (_CLIENT, '{"0": {"input_tokens": "{}"}}'),
}

_ROW_HEADER = "row_id,engine,model,gpu,tp,input_len,output_len,max_concurrency,num_prompts,mean_tpot_ms\n"
_ROW = "R1,vLLM 0.12.0,Qwen/Qwen2.5-0.5B,A100 80GB,1,100,20,2,6,3\n"
_TABLES = {
    "column-twice": _ROW_HEADER.replace("tp,", "gpu,") + _ROW,
    "no-name": _ROW_HEADER + _ROW.replace("R1", ""),
    "odd-number": _ROW_HEADER + _ROW.replace(",6,3", ",6,fast"),
    "negative": _ROW_HEADER + _ROW.replace(",6,3", ",6,-3"),
    "odd-setting": _ROW_HEADER + _ROW.replace("80GB,1,", "80GB,one,"),
    "odd-rate": _ROW_HEADER.replace("max_concurrency", "request_rate") + _ROW.replace(",20,2,", ",20,often,"),
    "odd-engine": _ROW_HEADER + _ROW.replace("vLLM 0.12.0", "Other 1"),
    "disaggregated": _ROW_HEADER + _ROW.replace("vLLM 0.12.0", "vLLM 0.12.0 disaggregated"),
}

_SERIES = {
    "cells": "t,running\n0\n",
    "since-1970": "t,running\n1764432000,1\n1764432001,1\n",
    "outside": "t,running\n5000,1\n",
    "column-twice": "t,running,running\n0,1,1\n",
}

_JSON = {
    "array-cut": '[{"timestamp": 1, "input_length": 2, "output_length": 3}, {"timestamp": 2',
    "array-comma": '[{"timestamp": 1, "input_length": 2, "output_length": 3} 5]',
    "bench-array": json.dumps({"input_lens": [1], "output_lens": [1], "ttfts": [1], "start_times": 5}),
    "guidellm-requests": json.dumps({"benchmarks": [{"requests": 5}]}),
}

FILES = (
    {f"traces/{name}.jsonl": text for name, text in _TRACES.items()}
    | {f"clients-{name}/chunk-0-trace.csv": trace for name, (trace, _) in _CLIENTS.items()}
    | {f"clients-{name}/chunk-0-dataset.json": lengths for name, (_, lengths) in _CLIENTS.items()}
    | {f"odd-rows-{name}.csv": text for name, text in _TABLES.items()}
    | {f"odd-series-{name}.csv": text for name, text in _SERIES.items()}
    | {f"odd-{name}.json": text for name, text in _JSON.items()}
    | {"odd-gpu.yaml": "- a\n"}
)

_CALIBRATE = "calibrate --from-csv kernels.csv --out {out}.json"

FILE_MISTAKES = (
    {f"trace-{name}": f"conform traces/{name}.jsonl" for name in _TRACES}
    | {
        f"clients-{name}": f"run servegen.yaml --no-report --set workload.servegen.path=clients-{name} --out {{out}}"
        for name in _CLIENTS
    }
    | {f"rows-{name}": f"validate --summary odd-rows-{name}.csv --jobs 1 --no-report --out {{out}}" for name in _TABLES}
    | {f"series-{name}": f"{VALIDATE} --series odd-series-{name}.csv" for name in _SERIES}
    | {f"json-{name}": f"trace info odd-{name}.json" for name in _JSON}
    | {
        "trace-none": "conform configs",
        "band-form": f"{ROWS} --max-error mean_tpot=3",
        "band-text": f"{ROWS} --max-error mean_tpot_ms=x",
        "band-twice": f"{VALIDATE} --max-error tpot_ms.mean=3 --max-error tpot_ms.mean=4",
        "band-unmeasured": f"{VALIDATE} --max-error itl_ms.mean=3",
        "set-of-rows": f"{ROWS} --set workload.arrivals=3",
        "gpu-list": f"{RUN} --set hardware.gpu=odd-gpu.yaml --set latency.profile=auto",
        "gpu-nowhere": f"{RUN} --set hardware.gpu=./nowhere.yaml --set latency.profile=auto",
        "nvlink": f"{RUN} --set hardware.gpu=l4-24gb --set hardware.tensor_parallel_size=2 --set "
        "hardware.interconnect=nvlink --set latency.profile=roofline",
        "nodes": f"{RUN} --set hardware.tensor_parallel_size=16 --set latency.profile=auto",
        "host-large": f"{RUN} --set 'latency.host={{fixed_us: 1.0e+9}}' --set latency.profile=auto",
        "without-of-unit": f"{RUN} --set 'latency.without=[host]'",
        "samples": f"{RUN} --set workload.samples=300",
        "buddy": f"{RUN} --set engine.kv_allocator=contiguous --set engine.placement=buddy --set "
        "engine.num_gpu_blocks=18 --set engine.max_model_len=257",
        "workload-alone": "run --workload part.yaml",
        "compare-three": "compare tiny.yaml free.yaml arms.yaml --out {out}",
        "compare-other-replications": "compare tiny.yaml replicated.yaml --out {out}",
        "calibrate-device": "calibrate --device tpu --out {out}.json",
        "calibrate-name": f"{_CALIBRATE} --name a/b",
        "calibrate-quick": f"{_CALIBRATE} --quick",
        "calibrate-start": f"{_CALIBRATE} --start 3",
        "fit-onto-folder": "trace fit scenarios/example-log.csv --no-check --out others",
        "convert-onto-folder": "trace convert logs/azure.csv --out folder.jsonl",
        "memory-length": "memory --model llama-3-8b --gpu l4-24gb --max-model-len 0",
        "memory-quantization": "memory --model llama-3-8b --gpu l4-24gb --quantization fp9",
        "format-fields": "trace info logs/mooncake.jsonl --format bailian",
        "format-text": "trace info logs/words.txt --map prompt=a,output=b,time=c",
        "format-csv": "trace info logs/mooncake.jsonl --format azure",
        "rows-none-asked": f"{ROWS} --max-rows 0",
    }
)
