"""What simkit validate does not compare, and what it cannot: what is left out is counted, and nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from simkit.cli import app
from simkit.report.read import validation as validation_data
from simkit.report.render import html
from simkit.report.sections import validation

MS = 1_000_000
SCENARIO = """\
name: unit
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 512, async_scheduling: false}
workload:
  num_requests: 4
  arrivals: {process: poisson, rate_per_s: 100}
  prompt_tokens: {dist: fixed, value: 5}
  output_tokens: {dist: fixed, value: 5}
latency: {profile: unit}
"""
ROW = {"at": 0.0, "prompt": 5, "output": 5, "ttft": 1.0, "e2e": 5.0}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_log(*changes: dict[str, Any]) -> None:
    """A vLLM log of requests 100 ms apart; `at` in s, `ttft` and `e2e` in ms from the queue."""
    lines = []
    for number, change in enumerate(changes):
        row = ROW | {"at": 0.1 * number} | change
        queued = 50.0 + row["at"]
        lines.append(
            {
                "request_id": str(number), "input_toks": row["prompt"], "output_toks": row["output"],
                "arrival_time": 1_700_000_000.0 + row["at"], "queued_ts": queued,
                "first_token_ts": queued + row["ttft"] / 1000, "last_token_ts": queued + row["e2e"] / 1000,
            }
        )  # fmt: skip
    Path("log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def quick(*args: str) -> Result:
    return CliRunner().invoke(app.app, ["validate", "log.jsonl", "--scenario", "s.yaml", "--no-report", *args])


def written(*args: str) -> dict[str, Any]:
    result = quick(*args)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(Path("runs/unit-log/validation.json").read_bytes())
    return found


def refused(*args: str) -> str:
    result = quick("--quiet", *args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


# --- left out ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("row", "sets"),
    [
        ({"prompt": 500, "output": 50, "e2e": 50.0}, ()),
        ({"output": 9, "e2e": 9.0}, ("--set", "workload.stop=eos", "--set", "workload.max_tokens=7")),
    ],
    ids=["max_model_len", "max_tokens"],
)
def test_an_answer_that_is_cut_is_left_out_and_counted(here: Path, row: dict[str, Any], sets: tuple[str, ...]) -> None:
    write_log({}, row, {})
    content = written(*sets)
    assert content["num_requests"]["compared"] == content["num_requests"]["e2e_ms"] == 2
    assert content["num_requests"]["left_out"] == {"cut": 1}
    said = "1 of 3 requests of the log was cut here, with a shorter answer than they had"
    assert any(note.startswith(said) for note in content["notes"])
    assert content["errors"]["e2e_ms"]["mean"] == {"measured": 5.0, "predicted": 5.0, "error_pct": pytest.approx(0)}
    assert said in html.render(validation.report(content, ()))
    assert said in quick(*sets).output
    summary = json.loads(Path("runs/unit-log/summary.json").read_bytes())
    assert summary["measured"]["e2e_ms"]["num_requests"] == 2


def test_requests_of_the_warm_up_are_no_failures(here: Path) -> None:
    write_log({}, {}, {}, {})
    content = written("--set", "warmup={requests: 3}", "--max-error", "e2e_ms.mean=1")
    assert (content["num_requests"]["compared"], content["num_requests"]["warm_up"]) == (1, 3)
    assert content["num_requests"]["left_out"] == {}
    assert "3 of 4 requests of the log are warm-up (warmup): not compared" in content["notes"]
    assert "Error of the prediction over 1 request:" in quick("--set", "warmup={requests: 3}").stdout
    page = html.render(validation.report(content, ()))
    assert "1 request is compared" in page
    assert "1 requests" not in page


def test_nothing_to_compare_is_refused(here: Path) -> None:
    write_log({}, {"prompt": 600}, {"prompt": 700})
    line = refused("--set", "warmup={requests: 1}", "--json")
    assert line == (
        "MEASURED log.jsonl: no request can be compared: of 3 that are played: 1 warm-up (warmup), 2 rejected here"
    )
    assert not Path("runs/unit-log").exists()


def test_a_band_over_those_that_were_served_alone_does_not_hold(here: Path) -> None:
    write_log({}, {"prompt": 600}, {"prompt": 500, "output": 50, "e2e": 50.0}, {})
    result = quick("--max-error", "e2e_ms.mean=1")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "--max-error: 2 of 4 requests (50 %) are left out: 1 rejected here, 1 cut here, with a shorter answer than "
        "they had (max_model_len, max_tokens); expected at most 1 %"
    )
    assert "too many left out" in result.stdout
    assert "2 of 4 requests left out: 1 rejected, 1 cut." in " ".join(result.stdout.split())
    content = json.loads(Path("runs/unit-log/validation.json").read_bytes())
    assert content["num_requests"]["left_out"] == {"rejected": 1, "cut": 1}
    assert not validation_data.has_enough(content)
    assert quick().exit_code == 0


def test_times_that_cannot_be_are_unknown(here: Path) -> None:
    write_log({}, {"ttft": 9.0}, {}, {"ttft": 7.0, "e2e": 6.0})
    content = written()
    said = "2 requests with a TTFT longer than the E2E (lines 2, 4): the times are taken for unknown"
    assert any(note.endswith(said) for note in content["notes"])
    assert content["num_requests"]["ttft_ms"] == content["num_requests"]["e2e_ms"] == 2
    assert content["errors"]["ttft_ms"]["p99"]["measured"] == pytest.approx(1.0)


# --- bands that cannot be ---------------------------------------------------------------------------------------------
def test_a_band_on_what_is_not_measured_is_refused_before_anything_is_simulated(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("simulated")

    write_log({}, {})
    monkeypatch.setattr("simkit.validation.runs.result.simulate", never)
    line = refused("--max-error", "itl_ms.p50=5")
    assert line.startswith("--max-error itl_ms.p50: there is no such error here")
    assert line.endswith("expected one of the metrics ttft_ms, tpot_ms, e2e_ms, makespan_s, throughput, concurrency")
    assert refused("--max-error", "running.mean=5") == (
        "--max-error running.mean: expected --series FILE, samples over time"
    )
    Path("ts.csv").write_text("t,running\n0,1\n")
    assert refused("--max-error", "waiting.max=5", "--series", "ts.csv") == (
        "--max-error waiting.max: expected waiting recorded in --series"
    )


def test_where_a_band_turns_out_to_have_no_error_the_results_are_there(here: Path) -> None:
    write_log({}, {})
    Path("ts.csv").write_text("t,waiting\n0.001,0\n")
    result = quick("--series", "ts.csv", "--max-error", "waiting.max=5", "--json", "--quiet")
    assert result.exit_code == 2
    assert result.stderr.startswith("--max-error waiting.max: there is no such error here: it was not measured, or 0")
    assert json.loads(result.stdout)["waiting"]["max"]["measured"] == 0
    assert Path("runs/unit-log/validation.json").exists()


# --- as it was --------------------------------------------------------------------------------------------------------
def test_what_would_make_another_run_is_refused(here: Path) -> None:
    write_log({}, {})
    line = refused("--set", "workload.samples=2")
    assert "workload.samples: expected 1, a request of the log made one answer, got 2" in line
    line = refused("--set", "workload.trace.too_long=truncate")
    assert line.startswith("--set workload.trace.too_long: expected reject: ")


def test_notes_say_what_numbers_hold(here: Path) -> None:
    write_log({}, {})
    content = written("--set", "latency={profile: auto, host: {first_token_us: 6000}}")
    assert any("holds the path of a request to the engine and back (6,000 us, first_token_us)" in note
               for note in content["notes"])  # fmt: skip
    assert any(note.startswith("concurrency.mean: requests in the system") for note in content["notes"])
    assert "requests in the system,<wbr> mean" in html.render(validation.report(content, ()))
    content = written("--set", "latency={profile: auto, without: [host], host: {fixed_us: 9}}")
    assert "without effect here: latency.host.fixed_us (latency.without has host)" in content["notes"]
    assert not any("first_token_us" in note for note in content["notes"])
    line = refused("--set", "latency={profile: auto, host: {fixed_us: 1000001}}")
    assert "expected at most 1,000,000 microseconds, got 1,000,001" in line


# --- samples over time ------------------------------------------------------------------------------------------------
def test_samples_end_with_the_requests_that_are_played(here: Path) -> None:
    write_log({}, {}, {}, {})
    Path("ts.csv").write_text("t,running\n0.001,1\n0.101,1\n0.201,1\n0.301,1\n")
    content = written("--series", "ts.csv", "--max-requests", "3")
    assert content["series"]["t_s"] == [0.001, 0.101]
    said = "2 of 4 samples are compared, those up to the last arrival that is played (0.2 s, max_requests)"
    assert any(note.endswith(said) for note in content["notes"])
    assert len(written("--series", "ts.csv")["series"]["t_s"]) == 4
    assert "whose last arrival is at 0 s (max_requests)" in refused("--series", "ts.csv", "--max-requests", "1")


def test_memory_as_a_fraction_is_announced(here: Path) -> None:
    write_log({"output": 400, "e2e": 400.0})
    sets = ("--set", "engine.num_gpu_blocks=64", "--series", "ts.csv")
    Path("ts.csv").write_text("t,running,kv_cache_pct\n0.1,1,0.1\n0.3,1,0.3\n")
    content = written(*sets)
    assert content["series"]["measured"]["kv_pct"] == [10, 30]
    assert any("kv_cache_pct is at most 0.3 and taken for a fraction, times 100" in note for note in content["notes"])
    Path("ts.csv").write_text("t,running,kv_cache_pct\n0.001,1,0.9\n")
    content = written("--set", "engine.num_gpu_blocks=500", *sets[2:])
    assert content["series"]["measured"]["kv_pct"] == [0.9]
    assert any("kv_cache_pct is at most 0.9 and taken for per cent" in note for note in content["notes"])
