"""The validate command: a measured run served again, every error of it, bands, samples over time, and refusals."""

# ruff: noqa: E501 (expected messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from json_logs import EPOCH_S
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.logs import play_log
from simkit.logs.formats.canonical import CanonicalWriter, Meta
from simkit.logs.read.record import Columns, Record
from simkit.validation.bands import KEYS, parse_bands
from simkit.validation.samples import read_samples

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "runs"
RUN = SHARED / "vllm-0.19_rtx-pro-6000_llama-3.1-8b"
ROOT = Path(__file__).resolve().parents[2]

MS = 1_000_000
STATS = ["mean", "p50", "p90", "p95", "p99"]
SCENARIO = """\
name: unit
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 512, async_scheduling: false}
workload:
  num_requests: 40
  finite: true
  arrivals: {process: poisson, rate_per_s: 100}
  prompt_tokens: {dist: uniform, low: 4, high: 60}
  output_tokens: {dist: uniform, low: 1, high: 60}
latency: {profile: unit}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own_log(path: str, slower: float = 1.0) -> None:
    """The requests of a run of s.yaml as its log, all times but the arrivals `slower` times as long.

    A step of the unit profile takes 1 ms, and everybody who runs makes a token in each.
    """
    table = api.run(scenario.load("s.yaml")).tables["requests"].to_pydict()
    rows = []
    for row in range(len(table["id"])):
        at, first, last = (table[name][row] for name in ("arrival_ns", "first_token_ns", "last_token_ns"))
        count = table["output_tokens"][row]
        assert last - first == (count - 1) * MS
        ttft, e2e = (round((time - at) * slower) for time in (first, last))
        gaps = [round(MS * slower)] * (count - 1)
        rows.append(Record(row + 1, at, table["prompt_tokens"][row], count, ttft_ns=ttft, e2e_ns=e2e, gaps_ns=gaps))
    write_log(path, rows)


def write_log(path: str, rows: list[Record]) -> None:
    """A canonical log of some requests in order of arrival, each with everything that was measured of it."""
    start = rows[0].time_ns or 0
    writer = CanonicalWriter(Path(path))
    writer.add(Columns.of([row._replace(time_ns=(row.time_ns or 0) - start) for row in rows]))
    writer.close(Meta("generic", "table", start))


def validate(*args: str) -> Result:
    return CliRunner().invoke(app.app, ["validate", *args])


def quick(*args: str) -> Result:
    return validate("log.parquet", "--scenario", "s.yaml", "--no-report", *args)


def errors_of(*args: str) -> dict[str, Any]:
    result = quick("--json", "--quiet", *args)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal(*args: str) -> str:
    result = validate(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def refused(*args: str) -> str:
    return refusal("log.parquet", "--scenario", "s.yaml", "--no-report", "--quiet", *args)


def written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("runs/unit-log/validation.json").read_bytes())
    return found


# --- errors -----------------------------------------------------------------------------------------------------------
def test_a_run_beside_its_own_log_has_no_error_at_all(here: Path) -> None:
    own_log("log.parquet")
    found = errors_of()
    assert {metric: list(stats) for metric, stats in found.items()} == {
        "ttft_ms": STATS, "tpot_ms": STATS, "itl_ms": STATS, "e2e_ms": STATS, "makespan_s": ["value"],
        "throughput": ["requests_per_s", "output_tokens_per_s"], "concurrency": ["mean"],
    }  # fmt: skip
    for stats in found.values():
        for numbers in stats.values():
            assert list(numbers) == ["measured", "predicted", "error_pct"]
            assert numbers["measured"] == numbers["predicted"] > 0
            assert numbers["error_pct"] == 0
    assert found["itl_ms"]["p99"]["predicted"] == 1.0
    summary = json.loads(Path("runs/unit-log/summary.json").read_bytes())
    # Over all of the run, as the tools count that measure.
    assert summary["makespan_throughput"]["requests_per_s"] == found["throughput"]["requests_per_s"]["predicted"]
    assert summary["makespan_s"] == found["makespan_s"]["value"]["predicted"]
    assert summary["measured"]["ttft_ms"]["p90"] == found["ttft_ms"]["p90"]


def test_times_twice_as_long_are_errors_of_half(here: Path) -> None:
    own_log("log.parquet", slower=2.0)
    found = errors_of()
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        for stat in STATS:
            assert found[metric][stat]["error_pct"] == pytest.approx(-50), (metric, stat)
    whole = {key: found["makespan_s"]["value"][key] for key in ("measured", "predicted")}
    assert whole["predicted"] < whole["measured"] < 2 * whole["predicted"]
    assert found["throughput"]["requests_per_s"]["error_pct"] == pytest.approx(
        100 * (whole["measured"] / whole["predicted"] - 1)
    )


def three(**changes: Any) -> None:
    """Three requests. One by one a prompt takes 1 ms and each further token 1 ms: TTFT 1, E2E 3, 2 and 1 ms."""
    rows = [
        Record(1, 0, 5, 3, ttft_ns=2 * MS, e2e_ns=4 * MS, gaps_ns=[MS, MS]),
        Record(2, 10 * MS, 5, 2, ttft_ns=1 * MS, e2e_ns=2 * MS, gaps_ns=[MS]),
        Record(3, 20 * MS, 5, 1, ttft_ns=2 * MS, e2e_ns=2 * MS),
    ]
    write_log("log.parquet", [row._replace(**changes) for row in rows])


def test_errors_computed_by_hand(here: Path) -> None:
    """Mean TTFT 5/3 against 1 ms, E2E 8/3 against 2; TPOT of two requests 1 and 1. From 0 to 22 against 21 ms."""
    three()
    found = errors_of()
    assert found["ttft_ms"]["mean"] == {
        "measured": pytest.approx(5 / 3), "predicted": 1.0, "error_pct": pytest.approx(-40)
    }  # fmt: skip
    assert found["e2e_ms"]["mean"]["error_pct"] == pytest.approx(-25)
    assert found["tpot_ms"]["mean"] == {"measured": 1.0, "predicted": 1.0, "error_pct": 0.0}
    assert found["makespan_s"]["value"] == {
        "measured": 0.022, "predicted": 0.021, "error_pct": pytest.approx(100 * (21 / 22 - 1))
    }  # fmt: skip
    rates = found["throughput"]
    assert (rates["requests_per_s"]["measured"], rates["requests_per_s"]["predicted"]) == (
        3 * 1e9 / 22e6,
        3 * 1e9 / 21e6,
    )
    assert rates["output_tokens_per_s"]["measured"] == 6 * 1e9 / 22e6
    concurrency = found["concurrency"]["mean"]
    assert (concurrency["measured"], concurrency["predicted"]) == (pytest.approx(8 / 22), pytest.approx(6 / 21))
    content = written()
    assert content["num_requests"] == {
        "compared": 3, "ttft_ms": 3, "tpot_ms": 2, "e2e_ms": 3,
        "played": 3, "warm_up": 0, "left_out": {}, "enough_for_bands": True,
    }  # fmt: skip
    assert content["requests"]["ttft_ms"] == [[2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    assert content["curves"]["e2e_ms"] == {
        "share": [0.0, 0.5, 1.0], "measured": [2.0, 2.0, 4.0], "predicted": [1.0, 2.0, 3.0]
    }  # fmt: skip
    assert content["curves"]["itl_ms"]["predicted"] == [1.0, 1.0, 1.0]


def test_what_the_log_does_not_have_is_not_compared(here: Path) -> None:
    three(ttft_ns=None, gaps_ns=None)
    assert list(errors_of()) == ["e2e_ms", "makespan_s", "throughput", "concurrency"]
    three(e2e_ns=None, gaps_ns=None)
    assert list(errors_of()) == ["ttft_ms"]
    before = Path("runs/unit-log/validation.json").read_bytes()
    three(ttft_ns=None, e2e_ns=None, gaps_ns=None)
    assert refused().startswith("MEASURED log.parquet: no request has a measured time: expected a log with TTFT or E2E")
    assert Path("runs/unit-log/validation.json").read_bytes() == before


def test_gaps_stay_with_their_requests_whatever_is_played(here: Path) -> None:
    gaps = [[1], [], [3, 4], [5]]
    write_log("log.parquet", [Record(n + 1, n * 10 * MS, 5, 3, ttft_ns=MS, gaps_ns=gaps[n]) for n in range(4)])

    def played(**keys: Any) -> list[list[int]]:
        trace = play_log(scenario.Trace(path="log.parquet", **keys), None)
        assert trace.gaps is not None
        return [trace.gaps.of(row).tolist() for row in range(len(trace))]

    assert played() == gaps
    assert played(start_s=0.005) == gaps[1:]
    assert played(start_s=0.02, warmup_s=0.01, repeat=2) == [[], [3, 4], [5], [3, 4], [5]]
    assert played(max_requests=2) == gaps[:2]


def test_a_part_of_a_run_and_requests_that_do_not_finish_are_told(here: Path) -> None:
    rows = [Record(n + 1, n * 10 * MS, 600 if n == 1 else 5, 3, ttft_ns=MS, e2e_ns=3 * MS) for n in range(4)]
    write_log("log.parquet", rows)
    result = quick("--max-requests", "3")
    assert result.exit_code == 0, result.output
    notes = written()["notes"]
    assert "1 of 3 requests of the log was rejected here: not compared" in notes
    assert (
        "a part of the log is served: the real engine had what came before and after it beside these requests" in notes
    )
    assert all(f"note: {note}" in result.stderr or note in result.stderr for note in notes)
    assert written()["num_requests"]["compared"] == 2


def test_the_run_directory_holds_the_run_and_the_validation(here: Path) -> None:
    three()
    result = validate("log.parquet", "--scenario", "s.yaml", "--out", "out")
    assert result.exit_code == 0, result.output
    names = {path.name for path in Path("out").iterdir()}
    assert names >= {"manifest.json", "summary.json", "measured.json", "requests.parquet", "steps.parquet",
                     "validation.json", "validation.html", "report.html"}  # fmt: skip
    content = json.loads(Path("out/validation.json").read_bytes())
    assert list(content) == ["name", "version", "log", "scenario", "latency_source", "latency_effects", "num_requests",
                             "bands", "errors", "curves", "requests", "series", "ablation", "notes"]  # fmt: skip
    assert (content["name"], content["log"], content["series"], content["ablation"]) == (
        "unit-log",
        "log.parquet",
        None,
        None,
    )
    assert result.stderr.splitlines()[-1] == "wrote out; open out/validation.html"
    first = Path("out/validation.json").read_bytes()
    validate("log.parquet", "--scenario", "s.yaml", "--out", "out", "--no-report")
    assert Path("out/validation.json").read_bytes() == first
    assert not Path("out/validation.html").exists()


# --- bands ------------------------------------------------------------------------------------------------------------
def test_bands_decide_the_exit_code_and_say_by_how_much(here: Path) -> None:
    three()
    inside = quick("--quiet", "--max-error", "ttft_ms.mean=40.01", "--max-error", "tpot_ms.mean=0")
    assert inside.exit_code == 0, inside.output
    outside = quick("--quiet", "--json", "--max-error", "ttft_ms.mean=30", "--max-error", "e2e_ms.mean=24%",
                    "--max-error", "tpot_ms.p99=1")  # fmt: skip
    assert outside.exit_code == 1
    assert outside.stderr == (
        "--max-error: ttft_ms.mean is off by -40.00 %, 10.00 points outside 30 %; e2e_ms.mean is off by -25.00 %, 1.00 points outside 24 %\n"
    )
    assert json.loads(outside.stdout)["ttft_ms"]["mean"]["error_pct"] == pytest.approx(-40)
    bands = written()["bands"]
    assert [(band["key"], band["limit_pct"], band["ok"]) for band in bands] == [
        ("ttft_ms.mean", 30.0, False), ("e2e_ms.mean", 24.0, False), ("tpot_ms.p99", 1.0, True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpt_ms.mean=3", "expected METRIC.STAT, METRIC one of ttft_ms, tpot_ms, itl_ms, e2e_ms, makespan_s, throughput, concurrency, running, waiting, kv_pct; did you mean 'tpot_ms.mean'?"),
        ("tpot_ms=3", "expected a statistic of tpot_ms: mean, p50, p90, p95, p99; did you mean 'tpot_ms.mean'?"),
        ("tpot_ms.p98=3", "expected a statistic of tpot_ms: mean, p50, p90, p95, p99; did you mean 'tpot_ms.p9"),
        ("makespan_s=3", "expected a statistic of makespan_s: value; did you mean 'makespan_s.value'?"),
        ("tpot_ms.mean", "expected METRIC.STAT=PERCENT, e.g. --max-error tpot_ms.mean=3"),
        ("tpot_ms.mean=few", "expected a number of per cent >= 0, got few"),
        ("tpot_ms.mean=-1", "expected a number of per cent >= 0, got -1"),
        ("tpot_ms.mean=nan", "expected a number of per cent >= 0, got nan"),
    ],
)  # fmt: skip
def test_wrong_bands_are_refused_with_the_nearest_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_bands([text])
    assert str(refusal.value).startswith(f"--max-error {text}: {said}")


def test_every_key_can_have_a_band_once(here: Path) -> None:
    assert [band.key for band in parse_bands([f"{key}=2.5" for key in KEYS])] == list(KEYS)
    with pytest.raises(InputError, match=r"expected each key once, got concurrency\.mean twice"):
        parse_bands(["concurrency.mean=1", " concurrency.mean = 2"])
    three(gaps_ns=None)
    assert "--max-error itl_ms.p50: there is no such error here" in refused("--max-error", "itl_ms.p50=5")


# --- samples over time ------------------------------------------------------------------------------------------------
def test_samples_are_set_beside_the_steps_at_the_same_times(here: Path) -> None:
    """Two slots, three prompts at once, answers of 40 tokens: 2 run and 1 waits for 40 ms, then 1 runs."""
    write_log("log.parquet", [Record(n + 1, 0, 5, 40, e2e_ns=50 * MS) for n in range(3)])
    rows = ["t,gen_throughput,running,waiting,kv_cache_pct", "0.0205,9,2,1,0.5", "0.0705,9,1,0,0.25", "0.2,0,0,0,0"]
    Path("ts.csv").write_text("\n".join(rows) + "\n")
    found = errors_of("--set", "engine.max_num_seqs=2", "--set", "engine.num_gpu_blocks=101", "--series", "ts.csv")
    series = written()["series"]
    assert series["t_s"] == [0.0205, 0.0705, 0.2]
    assert series["predicted"]["running"] == [2, 1, 0]
    assert series["predicted"]["waiting"] == [1, 0, 0]
    # 100 blocks of 16 tokens: two of 25 tokens, then one of 35.
    assert series["predicted"]["kv_pct"] == [pytest.approx(4, abs=2), pytest.approx(3, abs=1), 0]
    assert found["running"]["mean"] == {"measured": 1.0, "predicted": 1.0, "error_pct": 0.0}
    assert found["waiting"]["max"] == {"measured": 1.0, "predicted": 1.0, "error_pct": 0.0}
    assert list(found["kv_pct"]) == ["mean", "max"]


def test_samples_of_a_window_and_memory_that_was_not_recorded(here: Path) -> None:
    write_log("log.parquet", [Record(n + 1, n * 1000 * MS, 5, 40, e2e_ns=50 * MS) for n in range(3)])
    Path("ts.csv").write_text("t,running,waiting,kv_cache_pct\n2.02,2,0,0\n1.01,1,0,0\n0.01,1,0,0\n")
    result = quick("--start", "0.5", "--series", "ts.csv", "--end", "2")
    assert result.exit_code == 0, result.output
    assert written()["series"] == {
        "t_s": [pytest.approx(0.51)], "measured": {"running": [1], "waiting": [0]},
        "predicted": {"running": [1], "waiting": [0]},
    }  # fmt: skip
    assert "kv_cache_pct is 0 while requests run: not recorded, left out" in result.stderr
    assert "t is taken for s after the first arrival; 1 of 3 samples is compared" in result.stderr
    assert "expected samples in the window that is played" in refused(
        "--start", "0.5", "--end", "1.005", "--series", "ts.csv"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected columns t and any of running, waiting, kv_cache_pct, got ''"),
        ("time,running\n1,2\n", "expected columns t and any of running, waiting, kv_cache_pct, got 'time,running'"),
        ("t,runing\n1,2\n", "got 't,runing'; did you mean 'running'?"),
        ("t,wating\n1,2\n", "got 't,wating'; did you mean 'waiting'?"),
        ("t,running,running\n1,2,3\n", "expected column running once, got it 2 times"),
        ("t,t,running\n1,2,3\n", "expected column t once, got it 2 times"),
        ("t,running\n1,2\n1,2,3\n", "line 3: expected 2 cells as in the header, got 3"),
        ('t,running\n1,"2\n', "not readable as CSV"),
        ("t;running\n1;2\n", "got 't;running'; expected commas between the columns"),
        ("t\n1\n", "got 't'"),
        ("x,running\n1,2\n", "got 'x,running'"),
        ("t,running\n", "no samples"),
        ("t,running\n1\n", "line 2: running '', expected a number from 0 to 1e+12"),
        ("t,running\n1,2\n2,-1\n", "line 3: running '-1', expected a number from 0 to 1e+12"),
        ("t,running\nnan,2\n", "line 2: t 'nan', expected a number from 0 to 1e+12"),
        ("t,kv_cache_pct\n1,300\n", "line 2: kv_cache_pct '300', expected a number from 0 to 100"),
        ("time,running\n1,2\n", "got 'time,running'"),
        ("t,running\n1764432000,2\n", "expected s after the first arrival, not since 1970"),
    ],
)
def test_wrong_samples_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "ts.csv").write_text(text)
    with pytest.raises(InputError) as refusal:
        read_samples(tmp_path / "ts.csv")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_samples_out_of_order_and_columns_that_are_not_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "ts.csv").write_text("t,runing,waiting,\n2,9,4,0\n1,9,3,0\n")
    found = read_samples(tmp_path / "ts.csv")
    assert (found.t_s.tolist(), found.values["waiting"].tolist()) == ([1, 2], [3, 4])
    told = " ".join(found.notes)
    assert "not in the order of t: sorted" in told
    assert "columns that are not read: runing, (no name)" in told


# --- ablation ---------------------------------------------------------------------------------------------------------
def test_each_effect_that_acts_is_switched_off_alone(here: Path) -> None:
    own_log("log.parquet")
    settings = ("--set", "latency={profile: auto, without: [mixed_launches]}", "--set", "engine.async_scheduling=false")
    found = errors_of(*settings, "--ablate", "--jobs", "1")
    content = written()
    acting = [name for name, source in content["latency_effects"].items() if not source.startswith(("off", "none"))]
    assert sorted(content["ablation"]) == sorted(acting)
    assert {"mixed_launches", "overlap", "all_reduce"}.isdisjoint(acting)
    assert {"host", "unequal_decodes", "sampled_rows"} <= set(acting)
    keys = ["ttft_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "makespan_s.value"]
    assert all(list(errors) == keys for errors in content["ablation"].values())
    # Without asynchronous scheduling the host's work is added to every step: without it all is faster.
    assert content["ablation"]["host"]["tpot_ms.mean"] < found["tpot_ms"]["mean"]["error_pct"]


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_options_that_do_not_fit_are_refused(here: Path) -> None:
    three()
    assert refusal() == "validate: expected either MEASURED, the log of a run, or --summary ROWS, got nothing"
    assert "got both" in refusal("log.parquet", "--summary", "rows.csv")
    assert refusal("log.parquet").startswith("validate: expected --scenario FILE, whose engine serves the log")
    assert refused("--fit", "N=1") == "--fit: expected without MEASURED"
    assert refusal("--summary", "r.csv", "--ablate") == "--ablate: expected without --summary"
    assert refusal("--summary", "r.csv", "--start", "1") == "--start: expected without --summary"
    assert refused("--set", "workload.trace.speed=2").startswith(
        "--set workload.trace.speed: expected 1.0: the requests that were measured"
    )
    assert (
        refused("--set", "workload.trace.path=x")
        == "--set workload.trace.path: expected either this or MEASURED, got both"
    )
    assert "replications: expected 1, a log happened once, got 3" in refused("--set", "replications=3")


# --- benchmark results ------------------------------------------------------------------------------------------------
BENCH = {
    "backend": "openai", "request_rate": 2.0, "max_concurrency": None, "duration": 1.5,
    "input_lens": [5, 6, 7], "output_lens": [3, 2, 0], "ttfts": [0.25, 0.5, 0.0], "itls": [[0.125, 0.25], [0.5], []],
    "start_times": [100.5, 101.0, 101.25], "generated_texts": ["a", "b", ""], "errors": ["", "", "refused"],
}  # fmt: skip


def bench(here: Path, **changes: Any) -> None:
    (here / "b.json").write_text(
        json.dumps({key: value for key, value in {**BENCH, **changes}.items() if value != ...})
    )


def bench_errors(*args: str) -> dict[str, Any]:
    result = validate("b.json", "--scenario", "s.yaml", "--no-report", "--json", "--quiet", *args)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_benchmark_result_is_compared_with_its_gaps(here: Path) -> None:
    bench(here)
    found = bench_errors()
    assert found["ttft_ms"]["mean"]["measured"] == 375
    assert found["e2e_ms"]["mean"]["measured"] == (625 + 1000) / 2
    assert found["itl_ms"]["mean"]["measured"] == pytest.approx((125 + 250 + 500) / 3)
    assert found["makespan_s"]["value"]["measured"] == 1.5  # from 100.5 to 102
    content = json.loads(Path("runs/unit-b/validation.json").read_bytes())
    assert any("skipped 1 of 3 rows (33.3 %): 1 with an error (line 3)" in note for note in content["notes"])


def test_a_benchmark_result_says_its_model_and_when_its_times_cannot_be_seconds(here: Path) -> None:
    def notes() -> list[str]:
        bench_errors()
        found: list[str] = json.loads(Path("runs/unit-b/validation.json").read_bytes())["notes"]
        return found

    bench(here, model_id="Qwen/Qwen3-32B")
    assert "the result is of model 'Qwen/Qwen3-32B'" in " ".join(notes())
    assert "are start_times, ttfts and itls in s?" not in " ".join(notes())
    bench(here, duration=10**400)
    assert "are start_times, ttfts and itls in s?" not in " ".join(notes())
    bench(here, ttfts=[250, 500, 0], itls=[[125, 250], [500], []])
    assert any("duration says 1.5 s, and the last request ends 1000 s after the first came" in note for note in notes())


def test_a_benchmark_result_without_start_times_is_served_at_once_or_not_at_all(here: Path) -> None:
    bench(here, start_times=..., request_rate="inf")
    found = bench_errors()
    assert found["makespan_s"]["value"]["measured"] == 1.0
    notes = json.loads(Path("runs/unit-b/validation.json").read_bytes())["notes"]
    assert any("no start_times; request_rate is inf: all requests come at once, at 0" in note for note in notes)
    for changes, why in (
        ({"request_rate": 4.0}, "request_rate 4.0"),
        ({"request_rate": "inf", "max_concurrency": 8}, "max_concurrency 8"),
    ):
        bench(here, start_times=..., **changes)
        line = refusal("b.json", "--scenario", "s.yaml")
        assert f"no start_times, and with {why} arrivals are not known: expected a result of a version of vLLM" in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ttfts": [0.25]}, "input_lens has 3 values and ttfts 1, expected one a request"),
        ({"itls": "none"}, "itls 'none', expected an array with a value a request"),
        ({"itls": [[0.5], ["x"], []]}, "line 2: itls 'x', expected a time in s"),
        ({"ttfts": [0.25, -1, 0]}, "line 2: ttfts -1, expected a time >= 0 in s"),
        ({"ttfts": ..., "mean_ttft_ms": 3.0, "request_throughput": 2.0}, "it has means and no requests; save them as well (vllm bench serve --save-result --save-detailed)"),
    ],
)  # fmt: skip
def test_broken_benchmark_results_are_refused_in_one_line(here: Path, changes: dict[str, Any], said: str) -> None:
    bench(here, **changes)
    assert said in refusal("b.json", "--scenario", "s.yaml")


def test_several_results_in_a_file_are_refused(here: Path) -> None:
    bench(here)
    Path("b.json").write_text(Path("b.json").read_text() + "\n" + Path("b.json").read_text())
    assert "several results in one file: expected one, each run by itself" in refusal("b.json", "--scenario", "s.yaml")


def test_pieces_of_several_tokens_and_limits_of_concurrency_are_told(here: Path) -> None:
    bench(here, max_concurrency=2, output_lens=[9, 2, 0])
    result = validate("b.json", "--scenario", "s.yaml", "--no-report")
    assert result.exit_code == 0, result.output
    assert "1 of 3 requests have not one gap in itls for each token behind the first" in result.stderr
    assert "max_concurrency 2: requests were sent when others had ended" in result.stderr


def test_gaps_of_some_requests_are_not_set_beside_those_of_all(here: Path) -> None:
    bench(here, itls=[[0.125, 0.25], [], []])
    result = validate("b.json", "--scenario", "s.yaml", "--no-report", "--out", "out")
    assert result.exit_code == 0, result.output
    content = json.loads(Path("out/validation.json").read_bytes())
    assert "itl_ms" not in content["errors"]
    assert "itl_ms: the log has the gaps of 1 of 2 requests: not compared" in content["notes"]


def test_guidellm_results_of_every_version(here: Path) -> None:
    start = EPOCH_S + 0.5
    new = {"request_id": "a", "prompt_tokens": 5, "output_tokens": 3, "info": {"timings": {
        "request_start": start, "first_token_iteration": start + 0.25, "last_token_iteration": start + 0.75,
        "request_end": start + 0.8}}}  # fmt: skip
    older = {"request_id": "b", "prompt_tokens": 5, "output_tokens": 3, "scheduler_info": {"request_timings": {
        "request_start": start + 1, "first_iteration": start + 1.5, "last_iteration": start + 2}}}  # fmt: skip
    oldest = {"request_id": "c", "prompt_tokens": 5, "output_tokens": 3, "start_time": start + 2,
              "first_token_time": start + 2.75, "end_time": start + 3}  # fmt: skip
    lost = {"request_id": "d", "info": {"timings": {"request_start": start}}}
    run = {"requests": {"successful": [new, older, oldest], "incomplete": [lost], "errored": [], "total": None}}
    path = here / "benchmarks.json"
    path.write_text(json.dumps({"metadata": {}, "benchmarks": [run]}))
    result = validate("benchmarks.json", "--scenario", "s.yaml", "--no-report", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["ttft_ms"]["mean"]["measured"] == pytest.approx((250 + 500 + 750) / 3)
    assert found["e2e_ms"]["mean"]["measured"] == pytest.approx((750 + 1000 + 1000) / 3)
    assert found["makespan_s"]["value"]["measured"] == pytest.approx(3.0)
    assert "read as GuideLLM benchmark results, 3 requests over 2.000 s" in result.stderr
    assert "1 incomplete (line 4)" in result.stderr
    path.write_text(json.dumps({"benchmarks": [run, run]}))
    line = refusal("benchmarks.json", "--scenario", "s.yaml")
    assert "several benchmarks in one file: expected one, each run by itself" in line


# --- a real run -------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not RUN.is_dir(), reason="the real run (../shared/data/runs) is not here")
def test_the_real_run_is_within_its_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.1 8B on an RTX PRO 6000: kernel tables and the one default host term, nothing fitted."""
    monkeypatch.chdir(tmp_path)
    (log,) = RUN.glob("requests.jsonl*")
    (samples,) = RUN.glob("timeseries.csv*")
    bars = ("e2e_ms.mean=3", "tpot_ms.mean=2", "ttft_ms.mean=6", "makespan_s.value=3")
    bands = [part for bar in bars for part in ("--max-error", bar)]
    path = ROOT / "scenarios" / "validate-rtx-pro-6000.yaml"
    result = validate(
        str(log), "--scenario", str(path), "--series", str(samples), *bands, "--no-report", "--out", "out"
    )
    assert result.exit_code == 0, result.output
    content = json.loads(Path("out/validation.json").read_bytes())
    assert content["num_requests"]["compared"] == 300
    assert content["num_requests"]["left_out"] == {}
    predicted = content["series"]["predicted"]["running"]
    assert np.max(predicted) == 128


def test_the_shipped_scenario_fits_nothing(here: Path) -> None:
    setup = set_up(scenario.load(ROOT / "scenarios" / "validate-rtx-pro-6000.yaml"))
    assert setup.effects["host"].text == "vLLM 0.14 to 0.19, shipped"
    assert "calibrated" in setup.latency.source
