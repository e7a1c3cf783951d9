"""What a user sees of a run's length: a number of requests that is too small is the least, and what was made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.plain import canonical_json
from simkit.runs import run_length
from simkit.runs.long_enough import MAX_PRECISE_REQUESTS, PRECISION

SLOTS, MEAN_TOKENS = 8, 20
CAPACITY = SLOTS / (MEAN_TOKENS / 1000)
"""Requests per second: each takes so many steps of 1 ms, and so many share a step."""

LOG = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{46 + i}.6805900,{30 + i},{400 + i}\n" for i in range(4)
)


def data(num_requests: int, load: float = 0.6, *, workload: Mapping[str, Any] = {}, **more: Any) -> dict[str, Any]:
    """Poisson arrivals of `load` times what the slots can serve, lognormal answers, steps of 1 ms."""
    base: dict[str, Any] = {
        "name": "tiny",
        "model": "qwen2.5-0.5b",
        "hardware": {"gpu": "l4-24gb", "price_per_gpu_hour": 1.5},
        "latency": {"profile": "unit"},
        "engine": {"max_num_seqs": SLOTS, "max_model_len": 2048, "async_scheduling": False},
        "workload": {
            "num_requests": num_requests,
            "arrivals": {"process": "poisson", "rate_per_s": load * CAPACITY},
            "prompt_tokens": {"dist": "fixed", "value": 30},
            "output_tokens": {"dist": "lognormal", "mean": MEAN_TOKENS, "cv": 0.8, "max": 400},
        }
        | dict(workload),
    }
    return base | more


def long_answers(num_requests: int = 60, **more: Any) -> dict[str, Any]:
    """Sixty requests at 400 a second are there within 0.15 s, and each of them stays for 0.2.

    Gaps and lengths do not vary, so that only the filling asks for more.
    """
    workload = {
        "arrivals": {"process": "constant", "rate_per_s": 400},
        "output_tokens": {"dist": "fixed", "value": 200},
    }
    engine = {"max_num_seqs": 256, "max_model_len": 2048, "async_scheduling": False}
    return data(num_requests, workload=workload | more.pop("workload", {}), engine=engine, **more)


def run(content: Mapping[str, Any], **options: Any) -> api.Result:
    return api.run(scenario.from_dict(dict(content)), **options)


def command(content: Mapping[str, Any], folder: Path, *options: str) -> list[str]:
    """What `simkit run` prints; its run directory is the folder `out`."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump(dict(content)))
    line = ["run", str(folder / "tiny.yaml"), "--out", str(folder / "out"), "--no-report", "--quiet", *options]
    done = CliRunner().invoke(app.app, line, env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    return str(done.stdout).splitlines()


def said(folder: Path) -> Any:
    return json.loads((folder / "out" / "manifest.json").read_bytes())["run_length"]


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def arrived(result: api.Result) -> int:
    return int(result.summary["num_requests"]["arrived"])


# --- a run that is too short ------------------------------------------------------------------------------------------
def test_a_run_of_few_long_answers_is_made_longer_and_says_so(tmp_path: Path) -> None:
    printed = command(long_answers(), tmp_path)
    (line,) = (line for line in printed if line.startswith("run length: "))
    found = said(tmp_path)
    assert line == f"run length: {found['text']}"
    assert (found["asked_requests"], found["asked_duration_s"], found["still_rising"]) == (60, None, None)
    requests = pq.read_table(tmp_path / "out" / "requests.parquet").to_pandas()
    count, least = len(requests), run_length.FILL_TIMES
    assert line.startswith(f"run length: {count} requests instead of 60, so that arrivals last {least} times the p99")
    arrivals = requests["arrival_ns"]
    stays = requests["last_token_ns"] - arrivals
    assert least <= (arrivals.max() - arrivals.min()) / stays.quantile(0.99) < 2 * least
    # What a scenario says is what was run: a reader of the manifest sees both.
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert manifest["scenario"]["workload"]["num_requests"] == count


def test_what_fills_has_levelled_off_in_the_longer_run() -> None:
    """400 a second that stay for 0.2 s each: 80 at once, of which sixty requests can never show more than 60."""
    assert run(long_answers(workload={"finite": True})).summary["concurrency_mean"] < 50
    assert run(long_answers()).summary["concurrency_mean"] == pytest.approx(80, rel=0.02)


def test_a_duration_is_made_longer_as_well() -> None:
    result = run(long_answers(workload={"num_requests": None, "duration_s": 0.15}))
    found = result.manifest["run_length"]
    assert (found["asked_requests"], found["asked_duration_s"]) == (None, 0.15)
    duration_s = result.manifest["scenario"]["workload"]["duration_s"]
    assert duration_s > run_length.FILL_TIMES * 0.2
    assert found["text"].startswith(f"{duration_s:.6g} s instead of 0.15 s, so that ")


STEADY = {
    "arrivals": {"process": "constant", "rate_per_s": 0.6 * CAPACITY},
    "output_tokens": {"dist": "uniform", "low": 5, "high": 35},
}


@pytest.mark.parametrize("content", [long_answers(), data(100, workload=STEADY)], ids=["fills", "precision"])
def test_the_longer_scenario_is_long_enough(content: dict[str, Any], tmp_path: Path) -> None:
    """What stands in the manifest, run again, is the same run, and is made no longer."""
    longer = run(content)
    assert longer.manifest["run_length"]
    again = run(longer.manifest["scenario"])
    assert again.manifest["run_length"] is None
    assert again.manifest | {"run_length": longer.manifest["run_length"]} == longer.manifest
    first, second = (api.write(each, tmp_path / name, report=False) for each, name in ((longer, "a"), (again, "b")))
    files = written(first)
    assert len(files) >= 4
    del files["manifest.json"]
    assert {name: (second / name).read_bytes() for name in files} == files


def test_single_steps_give_the_same_bytes(tmp_path: Path) -> None:
    content = long_answers()
    many, single = tmp_path / "many", tmp_path / "single"
    for folder, options in ((many, ()), (single, ("--single-step",))):
        folder.mkdir()
        command(content, folder, *options)
    assert said(many)
    assert written(many / "out") == written(single / "out")


# --- runs that stay as they are ---------------------------------------------------------------------------------------
def test_a_finite_load_is_not_made_longer(tmp_path: Path) -> None:
    printed = command(long_answers(workload={"finite": True}), tmp_path)
    assert said(tmp_path) is None
    assert not any("run length" in line for line in printed)
    assert pq.read_metadata(tmp_path / "out" / "requests.parquet").num_rows == 60


def test_all_at_once_is_not_made_longer() -> None:
    result = run(long_answers(workload={"arrivals": {"process": "all_at_once"}}))
    assert (arrived(result), result.manifest["run_length"]) == (60, None)


def test_a_saturated_run_is_not_made_longer_and_says_what_it_is(tmp_path: Path) -> None:
    """Nothing would be gained: the queue of twice as many is twice as long."""
    printed = command(data(1000, 1.5), tmp_path)
    assert said(tmp_path) is None
    assert pq.read_metadata(tmp_path / "out" / "requests.parquet").num_rows == 1000
    assert any("saturated" in line.lower() for line in printed)
    assert json.loads((tmp_path / "out" / "summary.json").read_bytes())["saturated"] is True


def test_a_log_is_served_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    content = long_answers() | {"workload": {"trace": {"path": "log.csv"}}}
    printed = command(content, tmp_path)
    assert said(tmp_path) is None
    assert not any("run length" in line for line in printed)
    assert pq.read_metadata(tmp_path / "out" / "requests.parquet").num_rows == 4


def test_failures_are_at_times_of_the_run_that_was_asked_for() -> None:
    result = run(long_answers(replicas=2, failures=[{"replica": 0, "at_s": 0.1, "for_s": 0.1}]))
    assert (arrived(result), result.manifest["run_length"]) == (60, None)


# --- the numbers do not depend on what was asked for ------------------------------------------------------------------
@cache
def at(num_requests: int) -> api.Result:
    return run(data(num_requests))


def test_cost_and_throughput_do_not_depend_on_the_number_of_requests() -> None:
    few, many = at(1000).summary, at(MAX_PRECISE_REQUESTS).summary
    assert not few["saturated"]
    assert few["cost_per_million_output_tokens"] == pytest.approx(many["cost_per_million_output_tokens"], rel=0.02)
    for key in ("requests_per_s", "output_tokens_per_s"):
        assert few["throughput"][key] == pytest.approx(many["throughput"][key], rel=0.02)
    for summary in (few, many):
        assert summary["throughput"]["requests_per_s"] == pytest.approx(0.6 * CAPACITY, rel=0.02)
    assert at(MAX_PRECISE_REQUESTS).manifest["run_length"] is None, "more is not asked for precision alone"


def test_as_many_are_sent_as_the_rate_of_tokens_needs() -> None:
    """(1.96 / 0.02)^2 x (1 + cv^2 of the lengths) are measured, for gaps of a Poisson process have a cv of 1."""
    result = at(1000)
    requests = result.requests
    tokens = requests["output_tokens"].to_numpy(float)
    needed = (1.96 / PRECISION) ** 2 * (1 + tokens.var() / tokens.mean() ** 2)
    measured = int(requests["measured"].sum())
    assert min(needed, 0.79 * MAX_PRECISE_REQUESTS) <= measured < 1.1 * needed
    assert "the rate of tokens is known to 2 %" in result.manifest["run_length"]["text"]


def test_replications_of_the_command_are_those_of_the_function(tmp_path: Path) -> None:
    """The command hands them to processes, of which each must make its replication as long as the first."""
    content = long_answers(replications=2, workload={"arrivals": {"process": "gamma", "rate_per_s": 400, "cv": 0.2}})
    result = run(content)
    command(content, tmp_path, "--jobs", "1")
    assert said(tmp_path) == result.manifest["run_length"] is not None
    assert (tmp_path / "out" / "summary.json").read_bytes() == canonical_json(result.summary)
    counts = result.requests.groupby("replication").size()
    assert counts[0] == counts[1] > 60


def test_replications_that_would_be_the_same_run_are_one_for_both(tmp_path: Path) -> None:
    content = long_answers(replications=3)
    result = run(content)
    printed = command(content, tmp_path, "--jobs", "1")
    assert len(result.replications) == 1
    assert any("1 replication instead of 3" in line for line in printed)
    assert said(tmp_path) == result.manifest["run_length"]
    assert (tmp_path / "out" / "summary.json").read_bytes() == canonical_json(result.summary)
