"""What a run leaves on disk: which files, which columns, that they agree with each other, and never half of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from simkit import api, scenario
from simkit.errors import InputError
from simkit.runs.manifest import is_run_dir
from simkit.studies.compare import compare

FILES = ["manifest.json", "requests.parquet", "slots.parquet", "steps.parquet", "summary.json"]
REQUEST_COLUMNS = (
    "id replication arrival_ns first_scheduled_ns first_token_ns last_token_ns generated_first_ns generated_last_ns "
    "prompt_tokens output_tokens num_preemptions cached_tokens status reject_reason replica tenant priority measured"
)
STEP_COLUMNS = (
    "replication replica t_start_ns t_end_ns num_steps num_decode prefill_tokens context_tokens running waiting "
    "dead_slots kv_allocated_tokens kv_used_tokens kv_reserved_tokens kv_internal_tokens kv_external_tokens "
    "kv_free_tokens num_preemptions"
)
SLOT_COLUMNS = "replica id admitted_ns prefill_end_ns generated_last_ns released_ns end"
SUMMARY_KEYS = (
    "num_requests makespan_s throughput concurrency_mean slot_utilization slot_occupancy ttft_ms tpot_ms itl_ms e2e_ms "
    "queue_ms num_preemptions num_steps kv prefix_cache_hit_rate gpu goodput_per_s cost_per_million_output_tokens "
    "latency_source not_simulated saturated saturation_reason num_truncated"
)


def build(engine: dict[str, Any] | None = None, **top: Any) -> scenario.Scenario:
    """40 requests through a pool that is small enough to preempt."""
    data: dict[str, Any] = {
        "name": "tiny",
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"max_num_seqs": 8, "max_model_len": 128, "num_gpu_blocks": 20, "async_scheduling": False}
        | (engine or {}),
        "workload": {
            "num_requests": 40,
            "finite": True,
            "arrivals": {"process": "poisson", "rate_per_s": 40.0},
            "prompt_tokens": {"dist": "uniform", "low": 5, "high": 140},
            "output_tokens": {"dist": "uniform", "low": 1, "high": 60},
        },
        "latency": {"profile": "roofline"},
    }
    return scenario.from_dict(data | top)


@pytest.fixture(scope="module")
def result() -> api.Result:
    return api.run(build(replications=2, replicas=2))


def test_files_and_columns(result: api.Result, tmp_path: Path) -> None:
    folder = api.write(result, tmp_path / "deep" / "run", report=False)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert is_run_dir(folder)
    for name, columns in (("requests", REQUEST_COLUMNS), ("steps", STEP_COLUMNS), ("slots", SLOT_COLUMNS)):
        assert pq.read_table(folder / f"{name}.parquet").column_names == columns.split()
    summary = json.loads((folder / "summary.json").read_bytes())
    assert set(SUMMARY_KEYS.split()) <= {key.removesuffix("_ci95") for key in summary}
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["scenario"]["engine"]["max_num_batched_tokens"] == 8 * 128  # every default written out
    assert manifest["scenario"]["engine"]["stream"] is True
    assert (manifest["seed"], manifest["replications"]) == (0, 2)
    assert str(tmp_path) not in (folder / "manifest.json").read_text()


def test_the_manifest_scenario_runs_to_the_same_bytes(result: api.Result, tmp_path: Path) -> None:
    """Scenario, seed and version are all there is to a run: the resolved scenario reproduces it."""
    again = api.run(scenario.from_dict(result.manifest["scenario"]))
    first, second = api.write(result, tmp_path / "a", report=False), api.write(again, tmp_path / "b", report=False)
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_undefined_values_are_null(result: api.Result) -> None:
    frame = result.requests
    turned = frame[frame["status"] == "rejected"]
    assert len(turned) > 0
    stamps = ["first_scheduled_ns", "first_token_ns", "last_token_ns", "generated_first_ns", "generated_last_ns"]
    assert turned[[*stamps, "replica"]].isna().all().all()
    assert turned["reject_reason"].str.contains("max_model_len").all()
    served = frame[frame["status"] == "finished"]
    assert served[[*stamps, "replica"]].notna().all().all()
    assert served["reject_reason"].isna().all()


def test_tables_agree_with_each_other(result: api.Result) -> None:
    requests, steps, slots = result.requests, result.steps, result.slots
    assert (steps["t_start_ns"] < steps["t_end_ns"]).all()
    for _, part in steps.groupby(["replication", "replica"]):
        assert (part["t_end_ns"].to_numpy()[:-1] <= part["t_start_ns"].to_numpy()[1:]).all()
    parts = steps["kv_used_tokens"] + steps["kv_reserved_tokens"] + steps["kv_internal_tokens"]
    assert (parts == steps["kv_allocated_tokens"]).all()
    assert (steps["kv_allocated_tokens"] + steps["kv_free_tokens"] == 19 * 16).all()
    assert steps["num_preemptions"].sum() == requests["num_preemptions"].sum() > 0
    first = requests[requests["replication"] == 0]
    assert (slots["end"] == "preempted").sum() == first["num_preemptions"].sum()
    assert (slots["end"] == "finished").sum() == (first["status"] == "finished").sum()
    assert (slots["admitted_ns"] < slots["released_ns"]).all()
    order = slots.dropna(subset=["prefill_end_ns", "generated_last_ns"])
    assert (order["admitted_ns"] < order["prefill_end_ns"]).all()
    assert (order["prefill_end_ns"] <= order["generated_last_ns"]).all()
    assert (order["generated_last_ns"] <= order["released_ns"]).all()


def test_prefill_tokens_of_the_steps_are_prompts_and_recomputation(result: api.Result) -> None:
    requests, steps = result.requests, result.steps
    served = requests[requests["status"] == "finished"]
    prompts = served["prompt_tokens"].sum() - served["cached_tokens"].sum()
    assert steps["prefill_tokens"].sum() > prompts  # something was preempted and computed again
    roomy = api.run(build({"num_gpu_blocks": 200, "enable_prefix_caching": False}))
    served = roomy.requests[roomy.requests["status"] == "finished"]
    assert roomy.summary["num_preemptions"] == 0
    assert roomy.steps["prefill_tokens"].sum() == served["prompt_tokens"].sum()
    decoded = (roomy.steps["num_decode"] * roomy.steps["num_steps"]).sum()
    assert decoded == (served["output_tokens"] - 1).sum()


def test_dead_slots_of_a_static_batch() -> None:
    result = api.run(build({"batching": "static", "kv_allocator": "contiguous", "num_gpu_blocks": 200}))
    slots, steps = result.slots, result.steps
    assert (slots["generated_last_ns"] < slots["released_ns"]).any()
    dead = int((slots["released_ns"] - slots["generated_last_ns"]).sum())
    assert int((steps["dead_slots"] * (steps["t_end_ns"] - steps["t_start_ns"])).sum()) == dead


def test_only_an_earlier_run_is_replaced(result: api.Result, tmp_path: Path) -> None:
    folder = api.write(result, tmp_path / "run", report=False)
    with pytest.raises(InputError, match="already there"):
        api.write(result, folder, report=False)
    (folder / "stale.txt").write_text("old")
    api.write(result, folder, overwrite=True, report=False)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="already there"):
        api.write(result, mine, overwrite=True, report=False)
    assert (mine / "thesis.txt").read_text() == "precious"
    empty = tmp_path / "empty"
    empty.mkdir()
    api.write(result, empty, report=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "mine", "run"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_the_old_run_and_nothing_else(
    failure: BaseException, result: api.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = api.write(result, tmp_path / "run", report=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*args: Any, **kwargs: Any) -> None:
        raise failure

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    for name in ("run", "new"):
        with pytest.raises(type(failure)):
            api.write(result, tmp_path / name, overwrite=True, report=False)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_comparison_has_a_run_directory_for_each_arm(tmp_path: Path) -> None:
    drawn = build({"num_gpu_blocks": 200}, variants={"few slots": {"engine.max_num_seqs": 2}}, replications=2)
    comparison = compare(drawn)
    folder = api.write_comparison(comparison, tmp_path / "cmp", report=False)
    content = json.loads((folder / "compare.json").read_bytes())
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert list(content["arms"]) == list(manifest["arms"])
    assert len(content["arms"]) == 7
    for name, place in manifest["arms"].items():
        assert sorted(path.name for path in (folder / place).iterdir()) == FILES
        assert json.loads((folder / place / "summary.json").read_bytes()) == content["arms"][name]
    assert "static+contiguous" not in content["paired"]
    arms = comparison.arms
    rates = [
        np.array([one["throughput"]["requests_per_s"] for one in arms[name].replications])
        for name in ("continuous+paged", "static+contiguous")
    ]
    paired = content["paired"]["continuous+paged"]["throughput.requests_per_s"]
    assert paired["difference"] == pytest.approx((rates[0] - rates[1]).mean())
    assert paired["ci95"] > 0
    customers = [arm.requests[["id", "arrival_ns", "prompt_tokens", "tenant"]] for arm in arms.values()]
    assert all(frame.equals(customers[0]) for frame in customers[1:])
