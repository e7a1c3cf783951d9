"""ServeGen clients as a workload: rates and lengths of the files, order, chunks, and what is refused."""

# ruff: noqa: E501 (a case and what it must say are easier to read in one piece)
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simkit import scenario
from simkit.errors import InputError
from simkit.streams import Streams
from simkit.studies.offered_load import at_rate, base_rate, for_trials
from simkit.types import Request
from simkit.workload import Workload, build_workload
from simkit.workload.servegen import ServeGenClients, window_gaps
from simkit.workload.servegen_files import read_clients

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "servegen" / "reason" / "deepseek-r1"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files (../shared/data/traces) are not here")
Z = 3.29
LENGTHS = {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{5: 1.0}"}
LATER = {"input_tokens": "{200: 1}", "output_tokens": "{7: 0.5, 9: 0.5}"}
ROWS = (
    "0,0,0,,0,0",
    "600,2.0,1.5,Gamma,0.44,1.1",
    "1200,0.5,0.9,Weibull,1.2,2.1",
    "21600,1.0,1.0,Gamma,1,1",
)


def client(folder: Path, number: int = 0, rows: tuple[str, ...] = ROWS, periods: Any = None) -> Path:
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    periods = {"0": LENGTHS, "21600": LATER} if periods is None else periods
    text = periods if isinstance(periods, str) else json.dumps(periods)
    (folder / f"chunk-{number}-dataset.json").write_text(text, encoding="utf-8")
    return folder


def build(folder: Path, seed: int = 0, **keys: Any) -> Workload:
    extra = {key: keys.pop(key) for key in ("num_requests", "duration_s") if key in keys}
    spec = scenario.Workload.model_validate({"servegen": {"path": str(folder), **keys}, **extra})
    return build_workload(spec, seed=seed, replication=0, max_model_len=2**20, base_dir=None)


def requests(folder: Path, seed: int = 0, **keys: Any) -> list[Request]:
    return list(build(folder, seed, **keys).requests)


def seconds(found: list[Request]) -> np.ndarray:
    return np.array([request.arrival_ns for request in found]) / 1e9


def test_windows_have_their_rates_and_periods_their_lengths(tmp_path: Path) -> None:
    client(tmp_path)
    counts: dict[tuple[int, int], list[int]] = {(0, 600): [], (600, 1200): [], (1200, 1800): [], (21600, 22200): []}
    for seed in range(30):
        found = requests(tmp_path, seed)
        times = seconds(found)
        assert np.all(np.diff(times) >= 0)
        for start, end in counts:
            counts[start, end].append(int(np.sum((times >= start) & (times < end))))
        assert sum(map(len, (found,))) == sum(count[-1] for count in counts.values())  # silence elsewhere
        assert {request.prompt_tokens for request in found if request.arrival_ns < 21600e9} == {10, 30}
        assert {request.output_tokens for request in found if request.arrival_ns > 21600e9} == {7, 9}
    assert counts[0, 600] == [0] * 30
    # A renewal process has variance cv^2 a request; the first gap starts with the window, (cv^2 - 1) / 2 ahead.
    for (start, end), expected, cv in (((600, 1200), 1200, 1.5), ((1200, 1800), 300, 1.5), ((21600, 22200), 600, 1.0)):
        assert abs(np.mean(counts[start, end]) - expected) < Z * cv * math.sqrt(expected / 30) + 1
    long = np.mean([r.prompt_tokens == 30 for r in requests(tmp_path) if r.arrival_ns < 21600e9])
    assert abs(long - 0.75) < Z * math.sqrt(0.75 * 0.25 / 1500)


@pytest.mark.parametrize(
    ("row", "cv"), [("0,1,2.5,Gamma,1,1", 2.5), ("0,1,0.3,Gamma,1,1", 0.3), ("0,1,9,Weibull,0.6,2", None)]
)
def test_gaps_have_mean_1_and_the_cv_of_the_window(tmp_path: Path, row: str, cv: float | None) -> None:
    client(tmp_path, rows=(row,))
    (found,) = read_clients(scenario.ServeGen(path=str(tmp_path)), None)
    if cv is None:  # a Weibull gap of shape k: its coefficient of variation is not the one in the file
        one, two = math.gamma(1 + 1 / 0.6), math.gamma(1 + 2 / 0.6)
        cv = math.sqrt(two / one**2 - 1)
    gaps = window_gaps(found.windows[0])(Streams(1, 0)("x").uniforms(100_000))
    assert abs(gaps.mean() - 1) < Z * cv / math.sqrt(100_000)
    assert gaps.std() == pytest.approx(cv, rel=0.05)


def test_clients_are_merged_in_order_of_time_and_do_not_disturb_each_other(tmp_path: Path) -> None:
    alone = requests(client(tmp_path))
    client(tmp_path, 12, rows=("0,3,1,Gamma,1,1", "600,3,1,Gamma,1,1"), periods={"0": LATER})
    client(tmp_path, 3, rows=("1200,1,1,Gamma,1,1",), periods={"0": LATER})
    both = requests(tmp_path)
    assert [request.id for request in both] == list(range(len(both)))
    assert np.all(np.diff(seconds(both)) >= 0)
    early = [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in both if r.prompt_tokens < 200]
    assert early == [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in alone if r.prompt_tokens < 200]


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_requests_do_not_depend_on_the_chunks(tmp_path: Path, chunk: int) -> None:
    client(tmp_path, rows=("0,0.3,3,Gamma,1,1", "600,1,0.5,Gamma,1,1", "1200,0.01,1,Weibull,0.5,1"))
    client(tmp_path, 1)
    clients = ServeGenClients(scenario.ServeGen(path=str(tmp_path)), None)
    one, other = (
        [np.concatenate(columns) for columns in zip(*clients.chunks(Streams(4, 0), size), strict=True)]
        for size in (4096, chunk)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_windows_scale_and_bounds(tmp_path: Path) -> None:
    client(tmp_path)
    whole = requests(tmp_path)
    assert [len(requests(tmp_path, num_requests=100)), len(requests(tmp_path, duration_s=600.0))] == [100, 0]
    cut = requests(tmp_path, start_s=900, end_s=1000)
    assert seconds(cut).min() >= 0
    assert seconds(cut).max() < 100
    assert abs(len(cut) - 200) < Z * 1.5 * math.sqrt(200)
    twice = requests(tmp_path, rate_scale=2.0)
    assert len(twice) / len(whole) == pytest.approx(2, rel=0.15)
    assert build(tmp_path).num_requests is None
    assert "1 ServeGen client, 22200 s, 0.09459 requests/s expected" in build(tmp_path).notes[0]


def test_the_planner_knows_the_rate_and_can_change_it(tmp_path: Path) -> None:
    client(tmp_path)
    data = {"model": "qwen2.5-0.5b", "hardware": {"gpu": "l4-24gb"}, "workload": {"servegen": {"path": str(tmp_path)}}}
    drawn = scenario.from_dict(data)
    assert base_rate(drawn) == pytest.approx((1200 + 300 + 600) / 22200)
    faster = at_rate(drawn, 3 * base_rate(drawn), base_rate(drawn))
    assert base_rate(faster) == pytest.approx(3 * base_rate(drawn))
    assert for_trials(drawn, 1).warmup.seconds == pytest.approx(22200 / 5)  # type: ignore[union-attr]


@needs_real
def test_the_real_client_comes_out_as_its_files_say() -> None:
    (found,) = read_clients(scenario.ServeGen(path=str(REAL)), None)
    expected = sum(window.expected for window in found.windows)
    made = [requests(REAL, seed) for seed in range(12)]
    # The gaps are so bursty (cv up to 6.7) that the spread between seeds is the measure.
    counts = np.array([len(one) for one in made])
    assert abs(counts.mean() - expected) < Z * counts.std(ddof=1) / math.sqrt(len(counts)) + 25
    for name, key in (("prompt_tokens", "input_tokens"), ("output_tokens", "output_tokens")):
        mean = _mean_length(found.windows, name)
        values = np.concatenate([[getattr(request, name) for request in one] for one in made])
        assert values.mean() == pytest.approx(mean, rel=0.02), key


def _mean_length(windows: Any, name: str) -> float:
    total = weight = 0.0
    for window in windows:
        if window.rate_per_s:
            histogram = getattr(window, name)
            weights = np.diff(histogram.cumulative, prepend=0.0)
            total += window.expected * float(np.sum(weights * histogram.tokens) / weights.sum())
            weight += window.expected
    return total / weight


def test_lengths_of_0_are_left_out_and_told(tmp_path: Path) -> None:
    periods = {"0": LENGTHS | {"output_tokens": "{0: 0.25, 8: 0.75}"}}
    built = build(client(tmp_path, rows=("0,1,1,Gamma,1,1",), periods=periods))
    assert {request.output_tokens for request in built.requests} == {8}
    assert any("left out lengths of 0, 25 % of output_tokens from 0 s on" in note for note in built.notes)


@pytest.mark.parametrize(
    ("rows", "periods", "message"),
    [
        (("600,1,1,Gamma,1",), None, "chunk-0-trace.csv:1: 5 cells, expected 6"),
        (("0,0,0,,0,0", "x,1,1,Gamma,1,1"), None, "chunk-0-trace.csv:2: window start 'x', expected a number"),
        (("0,-1,1,Gamma,1,1",), None, "chunk-0-trace.csv:1: rate '-1', expected a number from 0"),
        (("0,nan,1,Gamma,1,1",), None, "chunk-0-trace.csv:1: rate 'nan'"),
        (("0,1,1,Pareto,1,1",), None, "chunk-0-trace.csv:1: pattern 'Pareto', expected Gamma or Weibull"),
        (("0,1,0,,0,0",), None, "chunk-0-trace.csv:1: pattern '', expected Gamma or Weibull where the rate is not 0"),
        (("0,1,0,Gamma,1,1",), None, "chunk-0-trace.csv:1: cv '0', expected a number from 0.01 to 100"),
        (("0,1,1,Weibull,0,1",), None, "chunk-0-trace.csv:1: Weibull shape '0'"),
        (("600,1,1,Gamma,1,1", "600,1,1,Gamma,1,1"), None, "chunk-0-trace.csv:2: window start 600, expected one after"),
        (("0,0,0,,0,0",), None, "no window with requests from 0 s to inf s"),
        (("",), None, "chunk-0-trace.csv: expected 1 to 1000000 windows, got 0"),
        (("0,1,1,Gamma,1,1",), "{", "chunk-0-dataset.json: no JSON"),
        (("0,1,1,Gamma,1,1",), "[" * 100_000, "chunk-0-dataset.json: no JSON"),
        (("0,1,1,Gamma,1,1",), "[]", "chunk-0-dataset.json: expected an object of periods"),
        (("0,1,1,Gamma,1,1",), {"later": LENGTHS}, "chunk-0-dataset.json: period 'later', expected a number"),
        (("0,1,1,Gamma,1,1",), {"600": LENGTHS}, "chunk-0-trace.csv:1: rate > 0, but servegen"),
        (("0,1,1,Gamma,1,1",), {"0": {}}, "chunk-0-dataset.json: period 0: input_tokens: expected a text like"),
        (("0,1,1,Gamma,1,1",), {"0": {"input_tokens": "{}"}}, "period 0: input_tokens: no lengths > 0"),
        (("0,1,1,Gamma,1,1",), {"0": {"input_tokens": "{5: -1}"}}, "input_tokens: expected a text like"),
        (("0,1,1,Gamma,1,1",), {"0": {"input_tokens": "{5.5: 1}"}}, "input_tokens: expected a text like"),
        (("0,1,1,Gamma,1,1",), {"0": {"input_tokens": "{1e400: 1}"}}, "input_tokens: expected a text like"),
        (("0,1,1,Gamma,1,1",), {"0": {"input_tokens": "(" * 5000}}, "input_tokens: expected a text like"),
        (("0,1,1,Gamma,1,1",), {"0": {"input_tokens": "__import__('os').getcwd()"}}, "input_tokens: expected a text like"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line_with_file_and_line(
    tmp_path: Path, rows: tuple[str, ...], periods: Any, message: str
) -> None:
    client(tmp_path, rows=rows, periods=periods)
    with pytest.raises(InputError) as found:
        build(tmp_path)
    assert message in str(found.value)
    assert str(found.value).startswith("workload.servegen.path: ")
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 600


def test_folders_that_hold_no_clients_are_refused(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none", "expected a folder of chunk-N-trace.csv"),
        (tmp_path, "no chunk-N-trace"),
    ):
        with pytest.raises(InputError, match=message):
            build(path)
    client(tmp_path)
    (tmp_path / "chunk-0-dataset.json").unlink()
    with pytest.raises(InputError, match=r"chunk-0-dataset.json: No such file or directory"):
        build(tmp_path)


@pytest.mark.parametrize("bound", [{}, {"num_requests": 10}])
def test_more_requests_than_fit_in_memory_are_refused_before_they_are_drawn(
    tmp_path: Path, bound: dict[str, int]
) -> None:
    client(tmp_path)
    with pytest.raises(InputError, match=r"servegen .*: expected at most 10,000,000 requests, got [0-9,]+: lower rate"):
        build(tmp_path, rate_scale=1e5, **bound)
    assert len(requests(tmp_path, rate_scale=100, num_requests=10)) == 10
