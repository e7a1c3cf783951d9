"""The replay command: a log on a scenario's engine, what it says, and what it sets beside the run."""

# ruff: noqa: E501 (expected messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import Result
from served import MS, request, serving
from typer.testing import CliRunner

from simkit import scenario
from simkit.cli import app
from simkit.engine import run as engine
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.metrics.measured import Compared, compare_measured
from simkit.studies.uniform_twin import BackgroundError, in_background, uniform_load
from simkit.types import Request
from simkit.workload.build import MeasuredTimes, Workload

SCENARIO = """\
name: base
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 512, async_scheduling: false}
workload:
  num_requests: 3
  arrivals: {process: poisson, rate_per_s: 6}
  prompt_tokens: {dist: fixed, value: 5}
  output_tokens: {dist: fixed, value: 2}
  stop: length
  timeout_s: 50
latency: {profile: unit}
slo: {ttft_ms: {p99: 500}}
variants: {other: {engine.max_num_seqs: 8}}
"""
LOG = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:47.1805900,396,9
2023-11-16 18:15:47.6805900,879,55
2023-11-16 18:15:48.6805900,91,16"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    (tmp_path / "log.v1.csv").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def replay(*args: str) -> Result:
    return CliRunner().invoke(app.app, ["replay", *args])


def quick(*args: str) -> Result:
    return replay("log.v1.csv", "--scenario", "s.yaml", "--no-report", *args)


def refusal(*args: str) -> str:
    result = quick(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_a_log_on_the_engine_of_a_scenario(here: Path) -> None:
    """Everything but the workload is the scenario's; the longest prompt is turned away and counted."""
    result = quick()
    assert result.exit_code == 0, result.output
    run = here / "runs/base-log.v1"
    manifest = json.loads((run / "manifest.json").read_bytes())
    assert manifest["name"] == "base-log.v1"
    workload = manifest["scenario"]["workload"]
    assert workload["trace"]["path"] == "log.v1.csv"
    assert (workload["arrivals"], workload["timeout_s"]) == (None, 50)
    assert manifest["scenario"]["slo"] == {"ttft_ms": {"p99": 500}}
    assert manifest["scenario"]["variants"] == {}
    summary = json.loads((run / "summary.json").read_bytes())
    assert summary["num_requests"] | {"arrived": 4, "finished": 3, "rejected": 1} == summary["num_requests"]
    assert summary["measured"] is None
    assert not (run / "measured.json").exists()
    said = result.stderr.splitlines()
    assert (
        said[0]
        == "note: the log replaces workload.arrivals, num_requests, output_tokens, prompt_tokens of s.yaml; stop, timeout_s stay"
    )
    assert said[1] == "note: variants of s.yaml are not run: other"
    assert "read as Azure 2023 CSV, 4 requests over 2.000 s" in said[2]
    assert said[-1] == "wrote runs/base-log.v1"
    assert "the log does not say which prompts are alike: prefix cache hits" in result.stdout


def test_the_even_twin_has_the_means_of_what_the_engine_takes(here: Path) -> None:
    """Three of the four requests: (374 + 396 + 91) / 3 and (44 + 9 + 16) / 3 tokens, two gaps in 2 s."""
    even = json.loads(quick("--json", "--quiet").stdout)["even_workload"]
    assert even["workload"] == {"num_requests": 3, "rate_per_s": 1.0, "prompt_tokens": 287, "output_tokens": 23}
    assert even["tpot_ms"]["p99"] == 1.0
    table = quick("--quiet").stdout
    assert "The log beside an even workload with equal means" in table
    assert (
        "even workload: 3 requests, Poisson arrivals at 1.00 a second, each of 287 prompt and 23 output tokens"
        in " ".join(table.split())
    )
    without = quick("--no-twin", "--json", "--quiet")
    assert json.loads(without.stdout)["even_workload"] is None
    assert without.stderr == ""


def test_json_prints_the_bytes_of_the_summary_and_they_are_always_the_same(here: Path) -> None:
    first = quick("--json", "--out", "a")
    again = quick("--json", "--out", "b")
    assert first.stdout.encode() == (here / "a/summary.json").read_bytes() == (here / "b/summary.json").read_bytes()
    assert first.stdout == again.stdout


def test_there_is_no_twin_of_requests_at_one_instant(here: Path) -> None:
    result = quick("--max-requests", "1")
    assert result.exit_code == 0
    assert "note: no even workload beside it: requests at one instant have no rate" in result.stderr.splitlines()


def test_every_flag_reaches_its_key(here: Path) -> None:
    """Whatever the reader makes of them."""
    flags = {
        "--format": ("azure", "format", "azure"),
        "--time-unit": ("ms", "time_unit", "ms"),
        "--hash-block-tokens": ("64", "hash_block_tokens", 64),
        "--failed": ("prefill", "failed", "prefill"),
        "--on-restart": ("append", "on_restart", "append"),
        "--start": ("1", "start_s", 1.0),
        "--end": ("3", "end_s", 3.0),
        "--warmup": ("0.5", "warmup_s", 0.5),
        "--max-requests": ("2", "max_requests", 2),
        "--keep-share": ("0.5", "keep_share", 0.5),
        "--idle-gap-cap": ("9", "idle_gap_cap_s", 9.0),
        "--spread-ties": ("even", "spread_ties", "even"),
        "--rate": ("3", "rate_per_s", 3.0),
        "--repeat": ("2", "repeat", 2),
        "--sessions": ("closed", "sessions", "closed"),
        "--too-long": ("truncate", "too_long", "truncate"),
    }
    seen: list[scenario.Trace] = []

    def build_workload(spec: scenario.Workload, **_: Any) -> Workload:
        assert spec.trace is not None
        seen.append(spec.trace)
        return Workload(iter([request(0, 0, 8, 2)]), 1, None, None, 0, (), {})

    args = [part for flag, (text, _, _) in flags.items() for part in (flag, text)]
    with patch.object(engine, "build_workload", build_workload):
        result = quick(
            *args, "--map", "prompt=a, output=b", "--map", "time=c", "--allow-bad", "--no-twin", "--no-headroom"
        )
        assert quick("--speed", "2", "--no-twin", "--no-headroom").exit_code == 0
    assert result.exit_code == 0, result.output
    found = seen[0].model_dump()
    assert {key: found[key] for _, key, _ in flags.values()} == {key: value for _, key, value in flags.values()}
    assert found["map"] == {"prompt": "a", "output": "b", "time": "c"}
    assert found["allow_bad"] is True
    assert seen[-1].speed == 2
    assert set(found) - {key for _, key, _ in flags.values()} == {"path", "map", "allow_bad", "speed"}, (
        "a key without a flag"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--speed", "0"), "--speed: expected a number > 0 (and <= 1e12), got 0.0"),
        (("--speed", "1e300"), "--speed: expected a number > 0 (and <= 1e12), got 1e+300"),
        (("--speed", "2", "--rate", "3"), "--rate: expected either speed or rate_per_s, got both"),
        (("--start", "3", "--end", "2"), "--end: expected end_s > start_s (3), got 2"),
        (("--warmup", "5"), "--warmup: expected warmup_s <= start_s (0), got 5"),
        (("--failed", "42"), "--failed: expected one of skip, prefill, error, got '42'"),
        (("--sessions", "opn"), "--sessions: expected one of open, closed, got 'opn'; did you mean 'open'?"),
        (("--map", "prompt"), "--map 'prompt': expected NAME=COLUMN,..., e.g. --map prompt=in_tokens,time=at"),
        (("--map", "time=a,time=b"), "--map time: expected each name once"),
        (
            ("--set", "engine.max_num_seq=2"),
            "--set engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?",
        ),
        (
            ("--set", "workload.trace.speed=-1"),
            "--set workload.trace.speed: expected a number > 0 (and <= 1e12), got -1",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here: Path, args: tuple[str, ...], said: str) -> None:
    assert refusal(*args) == said
    assert not (here / "runs").exists()


def test_files_that_are_missing(here: Path) -> None:
    for args, said in (
        (("log.v1.csv",), "replay: expected --scenario FILE, whose engine serves the log; `simkit init` prints one"),
        (
            ("log.v1.csv", "--scenario", "s.yaml", "--keep-share", "1e-9"),
            "TRACE: trace log.v1.csv: no requests from 0 s to the end",
        ),
        (("no.csv", "--scenario", "s.yaml"), "TRACE: trace no.csv: No such file or directory"),
        (("log.v1.csv", "--scenario", "no.yaml"), "no.yaml: No such file or directory"),
    ):
        result = replay(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.splitlines()[0].startswith(said.split(":")[0])
        assert said in result.stderr or "no.yaml" in said


def test_paths_start_where_the_user_is(here: Path) -> None:
    """The log's at the working directory, the scenario's own at its folder; `doctor` finds both again."""
    folder = here / "cases"
    folder.mkdir()
    (folder / "gpu.yaml").write_text("name: mine\n")
    (folder / "s.yaml").write_text(SCENARIO.replace("a100-sxm4-80gb", "gpu.yaml"))
    found = scenario.for_replay(scenario.load("cases/s.yaml"), {"path": "log.v1.csv"}, {}, ["engine.max_num_seqs=2"])
    assert found.hardware.gpu == str(Path("cases/gpu.yaml"))
    assert found.base_dir is None
    assert found.engine.max_num_seqs == 2


def test_a_warm_up_window_takes_the_place_of_a_warm_up(here: Path) -> None:
    (here / "s.yaml").write_text(SCENARIO + "warmup: {requests: 2}\n")
    found = scenario.for_replay(scenario.load("s.yaml"), {"path": "log.v1.csv", "start_s": 1, "warmup_s": 1}, {}, [])
    assert found.warmup == "auto"
    assert scenario.for_replay(scenario.load("s.yaml"), {"path": "log.v1.csv"}, {}, []).warmup != "auto"
    assert "note: --warmup replaces warmup of s.yaml" in quick("--start", "1", "--warmup", "1").stderr


def test_the_run_directory_is_a_normal_one(here: Path) -> None:
    assert replay("log.v1.csv", "--scenario", "s.yaml", "--out", "r").exit_code == 0
    page = (here / "r/report.html").read_text()
    assert "The log beside an even workload with equal means" in page
    examined = CliRunner().invoke(app.app, ["doctor", "r", "--json", "--jobs", "1"])
    assert examined.exit_code == 0, examined.output


# --- measured ---------------------------------------------------------------------------------------------------------


def test_the_page_and_the_tables_set_what_was_measured_beside_the_prediction(here: Path) -> None:
    """One alone: 4 tokens in 4 steps of 1 ms where the log measured 2 and 14 ms; the other has no times."""
    times = MeasuredTimes(np.array([2 * MS, -1]), np.array([14 * MS, -1]))
    with (
        serving([request(0, 0, 8, 4), request(1, 50, 8, 4)], measured=times),
        patch("simkit.studies.uniform_twin.uniform_load") as no,
    ):
        no.side_effect = InputError("not here")
        result = replay("log.v1.csv", "--scenario", "s.yaml", "--out", "r")
    assert result.exit_code == 0, result.output
    written = json.loads((here / "r/measured.json").read_bytes())
    assert written == json.loads((here / "r/summary.json").read_bytes())["measured"]
    assert written["ttft_ms"]["p99"] == {"measured": 2.0, "predicted": 1.0, "error_pct": -50.0}
    assert written["tpot_ms"]["mean"] == {"measured": 4.0, "predicted": 1.0, "error_pct": -75.0}
    assert written["e2e_ms"]["num_requests"] == 1
    assert "Predicted against measured" in result.stdout
    assert "-75.0 %" in result.stdout
    page = (here / "r/report.html").read_text()
    assert "Predicted against measured" in page
    assert "-75.0 %" in page


def table(**columns: list[int]) -> dict[str, Any]:
    size = len(columns["last_token_ns"])
    base = {
        "id": list(range(size)), "arrival_ns": [0] * size, "first_token_ns": [MS] * size, "status": [0] * size,
        "measured": [1] * size, "output_tokens": [3] * size, "wanted_tokens": [3] * size, "samples": [1] * size,
    }  # fmt: skip
    return {name: np.array(values) for name, values in (base | columns).items()}


def test_only_what_finished_in_both_and_counts_is_compared() -> None:
    """Of five: rejected, warming up, not timed by the log, one token, and one that has everything."""
    rows = table(
        last_token_ns=[3 * MS] * 5, status=[1, 0, 0, 0, 0], measured=[1, 0, 1, 1, 1], wanted_tokens=[3, 3, 3, 1, 3],
        output_tokens=[0, 3, 3, 1, 3],
    )  # fmt: skip
    ttft, e2e = np.array([1, 1, -1, 2, 4]) * MS, np.array([9, 9, -1, 2, 10]) * MS
    found = compare_measured(rows, ttft, e2e, stream=True)
    assert {metric: values.num_requests for metric, values in found.items()} == {
        "ttft_ms": 2,
        "tpot_ms": 1,
        "e2e_ms": 2,
    }
    assert found["tpot_ms"].p50 == Compared(3.0, 1.0, pytest.approx(-200 / 3))
    assert found["ttft_ms"].mean == Compared(3.0, 1.0, pytest.approx(-200 / 3))
    batch = compare_measured(rows, ttft, e2e, stream=False)
    assert set(batch) == {"ttft_ms", "e2e_ms"}
    assert compare_measured(rows, np.full(5, -1), np.full(5, -1), stream=True) == {}


def test_a_time_of_zero_has_no_error_in_per_cent() -> None:
    found = compare_measured(table(last_token_ns=[3 * MS]), np.array([0]), np.array([-1]), stream=True)
    assert found["ttft_ms"].mean.error_pct is None


def test_a_plain_run_of_a_log_writes_what_it_measured_too(here: Path) -> None:
    (here / "t.yaml").write_text(
        SCENARIO.split("workload:")[0] + "workload: {trace: {path: log.v1.csv}}\nlatency: {profile: unit}\n"
    )
    with serving([request(0, 0, 8, 4)], measured=MeasuredTimes(np.array([2 * MS]), np.array([-1]))):
        result = CliRunner().invoke(app.app, ["run", "t.yaml", "--out", "r", "--quiet"])
    assert result.exit_code == 0, result.output
    assert set(json.loads((here / "r/measured.json").read_bytes())) == {"ttft_ms"}
    assert "measured" not in json.loads((here / "r/summary.json").read_bytes())
    assert "Predicted against measured" in (here / "r/report.html").read_text()


# --- beside -----------------------------------------------------------------------------------------------------------


def test_work_is_done_by_another_process_and_none_is_left() -> None:
    with in_background(os.getpid) as found:
        worker = found()
    assert worker != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def _leave_early() -> None:
    with in_background(signal.pause):
        raise KeyError


def test_work_that_nobody_waits_for_is_ended() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(KeyError):
        _leave_early()
    assert set(multiprocessing.active_children()) <= before


def _refuse() -> None:
    raise InputError("nothing to do")


def test_why_there_is_no_result() -> None:
    with in_background(_refuse) as found, pytest.raises(BackgroundError, match="nothing to do"):
        found()
    with in_background(lambda: os._exit(3)) as found, pytest.raises(BackgroundError, match="died"):
        found()
    with patch("multiprocessing.get_all_start_methods", lambda: ["spawn"]), in_background(os.getpid) as found:
        assert found() == os.getpid()


def test_warm_requests_are_not_in_the_means(here: Path) -> None:
    drawn = scenario.for_replay(scenario.load("s.yaml"), {"path": "log.v1.csv"}, {}, [])
    made: list[Request] = [request(n, 1000 * n, 100 * (n + 1), 10) for n in range(4)]

    def build_workload(*_: Any, **__: Any) -> Workload:
        return Workload(iter(made), 4, None, None, 0, (), {}, num_warm=2)

    with patch("simkit.studies.offered_load.build_workload", build_workload):
        even = uniform_load(set_up(drawn))
    assert (even.num_requests, even.prompt_tokens, even.rate_per_s) == (2, 350, 1.0)
