"""Runs that cannot go well, or hardly: one line and exit code 2, or an honest summary, but never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.errors import InputError
from simkit.plain import canonical_json
from simkit.runs import long_enough, replication
from simkit.runs.manifest import is_run_dir

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def data(engine: dict[str, Any] | None = None, workload: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "tiny",
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"max_num_seqs": 4, "max_model_len": 64} | (engine or {}),
        "workload": {
            "num_requests": 5,
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"dist": "fixed", "value": 8},
            "output_tokens": {"dist": "fixed", "value": 4},
        }
        | (workload or {}),
        "latency": {"profile": "unit"},
    }
    return base | top


def run(*args: Any, **kwargs: Any) -> api.Result:
    return api.run(scenario.from_dict(data(*args, **kwargs)))


Command = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`simkit run` on a scenario file in an empty working directory: exit code and lines of stderr."""
    monkeypatch.chdir(tmp_path)

    def call(content: dict[str, Any], *options: str) -> tuple[int, list[str]]:
        Path("tiny.yaml").write_text(yaml.safe_dump(content))
        result = CliRunner().invoke(app.app, ["run", "tiny.yaml", "--no-report", "--quiet", *options])
        return result.exit_code, result.stderr.splitlines()

    return call


def counts(result: api.Result) -> dict[str, int]:
    return {key: value for key, value in result.summary["num_requests"].items() if not key.endswith("_ci95") and value}


# --- customers that cannot be served ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_a_prompt_longer_than_the_model_is_rejected_and_the_run_goes_on(batching: str) -> None:
    result = run({"batching": batching}, {"prompt_tokens": {"dist": "list", "values": [8, 63, 64, 65, 8]}})
    assert counts(result) == {"arrived": 5, "finished": 3, "rejected": 2}
    assert result.requests["output_tokens"].tolist() == [4, 1, 0, 0, 4]  # 63 + 1 tokens fill the model
    assert any(
        "2 requests turned away: the prompt is not shorter than max_model_len (64)" in n
        for n in result.manifest["notes"]
    )


def test_all_rejected_is_a_summary_of_nulls(command: Command, tmp_path: Path) -> None:
    content = data(workload={"prompt_tokens": {"dist": "fixed", "value": 100}}, slo={"ttft_ms": {"p99": 5.0}})
    code, lines = command(content, "--out", "out")
    assert (code, lines) == (0, [])
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert summary["num_requests"]["rejected"] == summary["num_requests"]["arrived"] == 5
    for key in (
        "makespan_s",
        "concurrency_mean",
        "slot_utilization",
        "goodput_per_s",
        "cost_per_million_output_tokens",
    ):
        assert summary[key] is None, key
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms"):
        assert {summary[metric][statistic] for statistic in ("mean", "p50", "p90", "p95", "p99")} == {None}
    assert summary["throughput"]["requests_per_s"] is None
    assert (summary["num_steps"], summary["kv"]["utilization"]) == (0, None)


@pytest.mark.parametrize("replications", [1, 2])
def test_all_rejected_can_be_reported(replications: int, tmp_path: Path) -> None:
    """Also tables, an HTML report and replications cope with a run in which nothing happened."""
    result = run(workload={"prompt_tokens": {"dist": "fixed", "value": 100}}, replications=replications)
    folder = api.write(result, tmp_path / "out")
    assert (folder / "report.html").stat().st_size > 1000


def test_one_request() -> None:
    result = run(workload={"num_requests": 1, "output_tokens": {"dist": "fixed", "value": 1}})
    summary = result.summary
    assert counts(result) == {"arrived": 1, "finished": 1}
    assert summary["e2e_ms"]["p99"] == summary["ttft_ms"]["mean"] == 1.0
    assert summary["tpot_ms"]["mean"] is None
    assert summary["itl_ms"]["p50"] is None
    assert summary["throughput"]["requests_per_s"] == 1000.0


@pytest.mark.parametrize("warmup", [{"requests": 50}, {"seconds": 1000.0}])
def test_a_warm_up_longer_than_the_run_leaves_nothing_to_describe(warmup: dict[str, Any]) -> None:
    result = run(warmup=warmup, slo={"ttft_ms": {"p99": 5.0}})
    summary = result.summary
    assert counts(result) == {"arrived": 5, "finished": 5}  # nobody is dropped from the counts
    assert result.manifest["warmup"]["dropped_requests"] == 5
    assert not result.requests["measured"].any()
    assert summary["ttft_ms"]["p99"] is summary["itl_ms"]["p50"] is summary["throughput"]["requests_per_s"] is None
    assert summary["goodput_per_s"] is None
    canonical_json(summary)


def test_an_answer_that_the_model_cannot_hold_is_cut_and_counted() -> None:
    result = run(workload={"output_tokens": {"dist": "fixed", "value": 500}})
    assert counts(result) == {"arrived": 5, "finished": 5}
    assert result.requests["output_tokens"].tolist() == [56] * 5
    assert result.summary["num_truncated"] == 5
    assert any("5 answers ended early" in note for note in result.manifest["notes"])


# --- what the real engine refuses at start-up -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "llama-3-70b"}, ["GiB", "70b"]),
        ({"engine": {"num_gpu_blocks": 4}}, ["engine.max_model_len", "64", "4", "3 fit"]),
        (
            {"engine": {"num_gpu_blocks": 6, "kv_allocator": "contiguous", "placement": "buddy", "max_model_len": 80}},
            ["buddy"],
        ),
        ({"engine": {"max_model_len": 1_000_000}}, ["engine.max_model_len", "8192"]),
        ({"engine": {"max_num_batched_tokens": 2}}, ["max_num_batched_tokens", "max_num_seqs (4)"]),
        ({"engine": {"max_num_seqs": 0}}, ["max_num_seqs", "an integer >= 1"]),
        ({"engine": {"gpu_memory_utilization": 0.1}}, ["GiB"]),
        ({"latency": {"profile": "unitt"}}, ["latency.profile", "unit"]),
        ({"model": "llama-3-9b"}, ["llama-3-8b"]),
        ({"hardware": {"gpu": "a1000"}}, ["a100"]),
        ({"workload": {"arrivals": {"process": "poisson", "rate_per_s": -1.0}}}, ["rate_per_s", "> 0"]),
    ],
)
def test_start_up_refusals_are_one_line_and_exit_2(
    change: dict[str, Any], words: list[str], command: Command, tmp_path: Path
) -> None:
    content = data(change.pop("engine", None), change.pop("workload", None), **change)
    code, lines = command(content, "--out", "out")
    assert code == 2
    assert len(lines) == 1
    for word in words:
        assert word.lower() in lines[0].lower(), lines[0]
    assert not (tmp_path / "out").exists()


def test_an_arm_that_cannot_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = data({"num_gpu_blocks": 10}, variants={"long": {"engine.max_model_len": 8000}})
    Path("tiny.yaml").write_text(yaml.safe_dump(content))
    result = CliRunner().invoke(app.app, ["compare", "tiny.yaml", "--quiet", "--out", "out"])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "arm long" in result.stderr
    assert len(list((tmp_path / "out" / "arms").iterdir())) == 6


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", AZURE, AZURE + "\n\n"], ids=["no bytes", "header only", "blank lines"])
def test_an_empty_trace_is_refused(content: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(content)
    drawn = data()
    drawn["workload"] = {"trace": {"path": "log.csv"}}
    code, lines = command(drawn, "--out", "out")
    assert code == 2
    assert len(lines) == 1
    assert "log.csv" in lines[0]
    assert not (tmp_path / "out").exists()


def test_a_trace_window_without_requests_is_refused(command: Command, tmp_path: Path) -> None:
    row = "2023-11-16 18:15:46.6805900,374,44\n"
    (tmp_path / "log.csv").write_text(AZURE + row)
    drawn = data()
    drawn["workload"] = {"trace": {"path": "log.csv", "start_s": 100.0}}
    code, lines = command(drawn)
    assert (code, len(lines)) == (2, 1)


def test_a_missing_trace_and_a_missing_scenario(command: Command) -> None:
    drawn = data()
    drawn["workload"] = {"trace": {"path": "nowhere.csv"}}
    code, lines = command(drawn)
    assert (code, len(lines)) == (2, 1)
    assert "nowhere.csv" in lines[0]
    result = CliRunner().invoke(app.app, ["run", "nothing.yaml"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "nothing.yaml" in result.stderr


def test_an_output_directory_that_cannot_be_made(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/below"):
        code, lines = command(data(), "--out", place)
        assert (code, len(lines)) == (2, 1)
        assert place in lines[0]
    assert (tmp_path / "file").read_text() == "in the way"


# --- interrupted ------------------------------------------------------------------------------------------------------


def test_an_interrupt_in_the_middle_of_a_run_reaches_the_caller() -> None:
    calls = []

    def progress(done: float, label: str) -> None:
        calls.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.run(scenario.from_dict(data(workload={"num_requests": 2000})), progress=progress)
    assert len(calls) == 1
    assert 0 < calls[0] < 1


@pytest.mark.parametrize("moment", ["simulate", "summarise", "write_run"])
def test_ctrl_c_leaves_no_directory_that_looks_finished(
    moment: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"simulate": long_enough, "summarise": replication, "write_run": api}[moment]
    real = getattr(module, moment)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, moment, interrupted)
    for options in (["--out", "out"], []):
        code, lines = command(data(), *options)
        assert code == 130
        assert lines == ["interrupted; nothing was written"]
    assert not any(is_run_dir(path) for path in tmp_path.rglob("*"))
    assert not (tmp_path / "out").exists()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["tiny.yaml"]


def test_an_interrupted_rerun_keeps_the_earlier_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(data(), "--out", "out") == (0, [])
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(long_enough, "simulate", interrupted)
    assert command(data(seed=1), "--out", "out")[0] == 130
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_api_errors_are_input_errors() -> None:
    with pytest.raises(InputError, match="max_model_len"):
        run({"num_gpu_blocks": 3})
