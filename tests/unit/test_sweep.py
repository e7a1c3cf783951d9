"""A sweep: which points there are, what is written of them, and what is said when one fails."""

# ruff: noqa: E501 (messages and rows are easier to read in one piece)
from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.errors import CheckError, InputError
from simkit.runs import directory as run_dir
from simkit.runs.replication import replicate
from simkit.studies import study
from simkit.studies.compare import sweep

TEXT = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 64}
workload:
  num_requests: 6
  finite: true
  arrivals: {process: poisson, rate_per_s: 6}
  prompt_tokens: {dist: uniform, low: 5, high: 20}
  output_tokens: {dist: uniform, low: 1, high: 9}
latency: {profile: unit}
"""
GRID = ("--axis", "engine.max_num_seqs=1,2", "--axis", "engine.batching=static,continuous")
NAMES = [
    "max_num_seqs=1,batching=static",
    "max_num_seqs=1,batching=continuous",
    "max_num_seqs=2,batching=static",
    "max_num_seqs=2,batching=continuous",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TEXT)
    return tmp_path


def load() -> scenario.Scenario:
    return scenario.load("tiny.yaml")


def simkit_(*args: str) -> Any:
    result = CliRunner().invoke(app.app, ["sweep", "tiny.yaml", "--jobs", "1", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_grid_is_written_point_by_point() -> None:
    result = simkit_(*GRID)
    assert result.exit_code == 0, result.stderr
    folder = Path("runs/tiny-sweep")
    swept = json.loads((folder / "sweep.json").read_bytes())
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert list(swept["points"]) == NAMES
    assert swept["failed"] == {}
    assert swept["axes"] == {"engine.max_num_seqs": [1, 2], "engine.batching": ["static", "continuous"]}
    assert swept["points"][NAMES[1]]["settings"] == {"engine.max_num_seqs": 1, "engine.batching": "continuous"}
    alone = api.run(scenario.load("tiny.yaml", ["engine.max_num_seqs=1", "engine.batching=continuous"]))
    assert json.loads((folder / manifest["points"][NAMES[1]] / "summary.json").read_bytes()) == alone.summary
    assert swept["points"][NAMES[1]]["summary"] == alone.summary
    assert manifest["run_ids"][NAMES[1]] == alone.manifest["run_id"]
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "points", "sweep.csv", "sweep.json"]
    for text in (*NAMES, "req/s", "- no slo: goodput", "cost"):
        assert text in " ".join(result.stdout.split())
    assert "- not streamed: TPOT (max_num_seqs=1,batching=static, max_num_seqs=2,batching=static)" in " ".join(
        result.stdout.split()
    )


def test_points_serve_the_same_customers() -> None:
    points = sweep(load(), {"engine.max_num_seqs": [1, 2], "workload.arrivals.rate_per_s": [600]}).points
    first, second = (
        points[name].requests for name in ("max_num_seqs=1,rate_per_s=600", "max_num_seqs=2,rate_per_s=600")
    )
    columns = ["id", "arrival_ns", "prompt_tokens", "output_tokens"]
    assert first[columns].equals(second[columns])
    assert not first["last_token_ns"].equals(second["last_token_ns"])


def test_the_csv_has_a_row_a_point_with_the_numbers_of_the_summary() -> None:
    simkit_(
        "--axis",
        "workload.arrivals.rate_per_s=6,600",
        "--set",
        "slo={ttft_ms: {p99: 5}}",
        "--set",
        "hardware.price_per_gpu_hour=2",
    )
    swept = json.loads(Path("runs/tiny-sweep/sweep.json").read_bytes())
    with open("runs/tiny-sweep/sweep.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["point"] for row in rows] == list(swept["points"]) == ["rate_per_s=6", "rate_per_s=600"]
    assert [row["workload.arrivals.rate_per_s"] for row in rows] == ["6", "600"]
    for row, point in zip(rows, swept["points"].values(), strict=True):
        summary = point["summary"]
        assert float(row["requests_per_s"]) == summary["throughput"]["requests_per_s"]
        assert float(row["goodput_per_s"]) == summary["goodput_per_s"]
        assert float(row["tpot_ms_p95"]) == summary["tpot_ms"]["p95"]
        assert float(row["kv_utilization"]) == summary["kv"]["utilization"]
        assert float(row["cost_per_million_output_tokens"]) == summary["cost_per_million_output_tokens"]
        assert row["saturated"] in ("true", "false")
        assert row["failed"] == ""
    assert rows[0]["requests_per_s"] != rows[1]["requests_per_s"]


def test_a_missing_number_is_an_empty_cell() -> None:
    simkit_("--axis", "engine.batching=static")
    header, row = Path("runs/tiny-sweep/sweep.csv").read_text().splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert (cells["tpot_ms_p50"], cells["goodput_per_s"]) == ("", "")


def test_json_is_the_bytes_of_the_file() -> None:
    result = simkit_(*GRID, "--json", "--quiet", "--out", "there")
    assert result.stdout_bytes == Path("there/sweep.json").read_bytes()
    assert result.stderr == ""


def test_a_failing_point_among_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(setup: Any, *args: Any, **options: Any) -> Any:
        if setup.max_num_seqs == 2:
            raise CheckError("no progress")
        return replicate(setup, *args, **options)

    monkeypatch.setattr(study, "replicate", fail)
    result = simkit_("--axis", "engine.max_num_seqs=1,2,3")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "point max_num_seqs=2: no progress (with engine.max_num_seqs=2)"
    assert "failed, no numbers: max_num_seqs=2" in result.stdout
    swept = json.loads(Path("runs/tiny-sweep/sweep.json").read_bytes())
    assert list(swept["points"]) == ["max_num_seqs=1", "max_num_seqs=3"]
    assert swept["failed"] == {"max_num_seqs=2": {"settings": {"engine.max_num_seqs": 2}, "message": "no progress"}}
    rows = Path("runs/tiny-sweep/sweep.csv").read_text().splitlines()
    assert rows[2] == "max_num_seqs=2,2" + "," * 19 + "no progress"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--axis", "engine.max_num_seqs=2", "--set", "engine.max_num_seq=3"], "--set engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?"),
        (["--axis", "engine.max_num_seqs=0"], "--axis engine.max_num_seqs: expected an integer >= 1, got 0"),
        (["--axis", "engine.max_num_seqs=1", "--axis", "engine.max_num_seqs=2"], "--axis engine.max_num_seqs: expected each key once; list all its values after one ="),
        (["--axis", "engine.num_gpu_blocks=3,2"], "point num_gpu_blocks=3: tiny.yaml:4: engine.max_model_len: max_model_len 64 needs 4 blocks, 2 fit"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_nothing_runs(args: list[str], line: str) -> None:
    result = simkit_(*args)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert result.stderr.startswith(line)
    assert os.listdir() == ["tiny.yaml"]


def test_a_point_that_does_not_fit_is_named_and_the_others_are_made() -> None:
    result = simkit_("--axis", "engine.num_gpu_blocks=3,100,2")
    assert result.exit_code == 2
    assert [line.split(":")[0] for line in result.stderr.splitlines()[:2]] == [
        "point num_gpu_blocks=3",
        "point num_gpu_blocks=2",
    ]
    swept = json.loads(Path("runs/tiny-sweep/sweep.json").read_bytes())
    assert (list(swept["points"]), list(swept["failed"])) == (
        ["num_gpu_blocks=100"],
        ["num_gpu_blocks=3", "num_gpu_blocks=2"],
    )


def test_keys_that_end_alike_are_written_out() -> None:
    names = list(sweep(load(), {"workload.prompt_tokens.high": [30], "workload.output_tokens.high": [3]}).points)
    assert names == ["workload.prompt_tokens.high=30,workload.output_tokens.high=3"]
    with pytest.raises(InputError, match="at least one"):
        sweep(load(), {})


def test_long_and_odd_names_make_folders() -> None:
    names = ["a/b", "x" * 300, "x" * 301, "..", "a b,c=1"]
    folders = [run_dir.file_safe(name) for name in names]
    assert len(set(folders)) == len(names)
    for folder in folders:
        (Path("made") / folder).mkdir(parents=True)
    assert sorted(os.listdir("made")) == sorted(folders)
