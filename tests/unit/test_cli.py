"""The command line: exit codes, one line for every mistake, and what goes to stdout, stderr and disk."""

# ruff: noqa: E501 (expected messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import simkit
from simkit.cli import app, console, output
from simkit.diagnosis import facts as doctor
from simkit.errors import CheckError, InputError
from simkit.plain import canonical_json
from simkit.report.sections import run as compare
from simkit.report.sections import run as tables
from simkit.runs import manifest

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4}
workload:
  num_requests: 3
  arrivals: {process: poisson, rate_per_s: 6}
  prompt_tokens: {dist: fixed, value: 5}
  output_tokens: {dist: fixed, value: 2}
"""
STATS = {"mean": 12.5, "p50": 10.0, "p90": 20.0, "p95": 123_456.0, "p99": 1_234_567.0}
WASTE = {"share_of_pool": 0.125, "share_of_allocated": 0.5}
SUMMARY: dict[str, Any] = {
    "num_requests": {"arrived": 3, "finished": 3, "rejected": 0, "refused": 0, "aborted": 0, "unfinished": 0},
    "makespan_s": 1.5,
    "throughput": {"requests_per_s": 2.0, "output_tokens_per_s": 4.0, "total_tokens_per_s": 14.0},
    "concurrency_mean": 1.25,
    "slot_utilization": 0.4399,
    "slot_occupancy": 0.5,
    **dict.fromkeys(("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms"), STATS),
    "num_preemptions": 7,
    "num_steps": 520,
    "kv": {
        "capacity_tokens": 400_000, "num_gpu_blocks": 25_001, "utilization": 0.25,
        "reserved": WASTE, "internal": WASTE, "external": WASTE, "peak_tokens": 1000,
    },
    "prefix_cache_hit_rate": None,
    "gpu": {"busy": 0.9, "mfu": 0.3, "mbu": 0.6},
    "goodput_per_s": None,
    "cost_per_million_output_tokens": None,
    "latency_source": "roofline (uncalibrated)",
    "not_simulated": ["engine.async_scheduling"],
    "saturated": False,
    "saturation_reason": None,
    "num_truncated": 0,
}  # fmt: skip


NO_ROWS = {
    "requests": pa.table({name: pa.array([], pa.int64()) for name in doctor.REQUEST_COLUMNS}),
    "steps": pa.table({name: pa.array([], pa.int64()) for name in doctor.STEP_COLUMNS}),
}


class FakeApi(ModuleType):
    """Stands in for the engine: remembers how it was called and writes what a run directory must have."""

    def __init__(self) -> None:
        super().__init__("simkit.api")
        self.scenario: Any = None
        self.error: BaseException | None = None
        self.write_error: OSError | None = None
        self.report: bool | None = None
        self.single_step: bool | None = None

    def result(self, scenario: Any) -> Any:
        self.scenario = scenario
        facts = {
            "name": scenario.name, "scenario": scenario.to_dict(), "not_simulated": ["engine.async_scheduling"],
            "notes": ["trace: 1 row skipped"], "created_by": manifest.CREATED_BY,
        }  # fmt: skip
        return SimpleNamespace(summary=SUMMARY, manifest=facts, tables=NO_ROWS)

    def run(self, scenario: Any, *, base_dir: Path | None, progress: Any, single_step: bool) -> Any:
        self.single_step = single_step
        if self.error is not None:
            raise self.error
        if progress is not None:
            progress(0.5, "half")
        return self.result(scenario)

    def write(self, result: Any, out_dir: Path, overwrite: bool, report: bool) -> Path:
        if self.write_error is not None:
            raise self.write_error
        out_dir.mkdir(parents=True, exist_ok=overwrite)
        (out_dir / "summary.json").write_bytes(canonical_json(result.summary))
        (out_dir / "manifest.json").write_bytes(canonical_json(result.manifest))
        self.report = report
        return out_dir

    def write_comparison(self, comparison: Any, out_dir: Path, overwrite: bool, report: bool) -> Path:
        out_dir.mkdir(parents=True, exist_ok=overwrite)
        (out_dir / "compare.json").write_bytes(canonical_json(comparison.to_json()))
        (out_dir / "manifest.json").write_bytes(canonical_json({"created_by": manifest.CREATED_BY}))
        self.report = report
        return out_dir


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "simkit.api", fake)
    monkeypatch.setattr(simkit, "api", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return fake


def simkit_(*args: str) -> Any:
    """Run the real app; returns exit_code, stdout, stderr. No exception but SystemExit may come out."""
    result = CliRunner().invoke(app.app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# --- run --------------------------------------------------------------------------------------------------------------
def test_run_prints_tables_and_writes_the_default_directory(api: FakeApi) -> None:
    result = simkit_("run", "s.yaml")
    assert result.exit_code == 0
    assert "tiny" in result.stdout
    assert "roofline (uncalibrated)" in result.stdout
    assert "44.0 %" in result.stdout
    assert result.stderr.splitlines() == [
        "trace: 1 row skipped",
        "note: accepted but not simulated yet, run as off: engine.async_scheduling",
        "doctor: 2 findings: ttft-tail, prefill-stall; `simkit doctor runs/tiny` proves what helps",
        "wrote runs/tiny; open runs/tiny/report.html",
    ]
    assert json.loads(Path("runs/tiny/summary.json").read_text()) == SUMMARY
    assert api.report is True


def test_json_is_the_bytes_of_the_summary_and_nothing_else(api: FakeApi) -> None:
    result = simkit_("run", "s.yaml", "--json", "--quiet", "--no-report", "--out", "there")
    assert result.stdout_bytes == Path("there/summary.json").read_bytes()
    assert result.stderr == ""
    assert api.report is False


def test_set_and_seed_reach_the_engine(api: FakeApi) -> None:
    assert (
        simkit_("run", "s.yaml", "--set", "engine.max_num_seqs=9", "--set", "name=other", "--seed", "5").exit_code == 0
    )
    assert (api.scenario.engine.max_num_seqs, api.scenario.seed) == (9, 5)
    assert Path("runs/other/summary.json").exists()


def test_single_step_reaches_the_engine(api: FakeApi) -> None:
    assert simkit_("run", "s.yaml").exit_code == 0
    assert api.single_step is False
    assert simkit_("run", "s.yaml", "--single-step").exit_code == 0
    assert api.single_step is True


def test_run_needs_no_file(api: FakeApi) -> None:
    flags = ["--model", "llama-3-8b", "--gpu", "l4-24gb", "--rate", "2", "--prompt", "100", "--output", "20"]
    assert simkit_("run", *flags).exit_code == 0
    assert api.scenario.hardware.gpu == "l4-24gb"
    assert Path("runs/llama-3-8b-l4-24gb").is_dir()


def test_a_run_of_simkit_is_replaced_and_nothing_else_is(api: FakeApi, tmp_path: Path) -> None:
    assert simkit_("run", "s.yaml").exit_code == 0
    assert simkit_("run", "s.yaml").exit_code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    api.scenario = None
    result = simkit_("run", "s.yaml", "--out", "mine")
    assert result.exit_code == 2
    assert result.stderr == "--out mine: expected an empty directory or an earlier run of simkit, got other files\n"
    assert api.scenario is None, "refused before the simulation, not after"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_output_directory_that_cannot_be_written(api: FakeApi) -> None:
    Path("file").write_text("x")
    result = simkit_("run", "s.yaml", "--out", "file/run")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("--out file/run: cannot be written: ")
    assert simkit_("run", "s.yaml", "--out", "file").stderr.startswith("--out file: expected a directory, got a file")
    api.write_error = OSError(28, "No space left on device")
    result = simkit_("run", "s.yaml", "--out", "new", "--quiet")
    assert (result.exit_code, result.stderr) == (2, "--out new: cannot be written: No space left on device\n")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    result = simkit_("run", "s.yaml", "--out", "locked/run")
    assert result.exit_code == 2
    assert "no permission to write" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("hardware.gpu: 'x' is not known"), 2, "hardware.gpu: 'x' is not known\n"),
        (CheckError("no progress in 10,000 passes"), 1, "no progress in 10,000 passes\n"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
    ],
    ids=["input", "check", "interrupt"],
)
def test_exit_codes(error: BaseException, code: int, line: str, api: FakeApi, tmp_path: Path) -> None:
    api.error = error
    result = simkit_("run", "s.yaml")
    assert (result.exit_code, result.stderr, result.stdout) == (code, line, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.yaml"]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["run", "none.yaml"], "none.yaml: no such file"),
        (["run", "."], ".: expected a scenario file, got a directory"),
        (["run"], "run: expected a scenario file or --model, --gpu, --rate, --prompt, --output; `simkit init` prints a scenario"),
        (["run", "--model", "m"], "run: --gpu, --rate, --prompt, --output missing; without a scenario file all of --model, --gpu, --rate, --prompt, --output are needed"),
        (["run", "s.yaml", "--rate", "3"], "--rate: expected a scenario file or --model, --gpu, --rate, --prompt, --output, got both; use --set with a file"),
        (["run", "s.yaml", "--set", "engine.max_num_seq=3"], "--set engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?"),
        (["run", "s.yaml", "--set", "engine.max_num_seqs=0"], "--set engine.max_num_seqs: expected an integer >= 1, got 0"),
        (["run", "s.yaml", "--set", "workload.arrivals.rate_per_s=-6"], "--set workload.arrivals.rate_per_s: expected a rate per second > 0 (and <= 1e9), got -6"),
        (["run", "s.yaml", "--seed", "-1"], "--set seed: expected an integer >= 0 and < 2**63, got -1"),
        (["compare", "s.yaml", "--axis", "engine.polcy=fcfs"], "--axis engine.polcy: unknown key; did you mean 'engine.policy'?"),
        (["sweep", "s.yaml", "--axis", "engine.polcy=fcfs"], "--axis engine.polcy: unknown key; did you mean 'engine.policy'?"),
        (["sweep", "s.yaml"], "--axis: expected at least one, e.g. --axis engine.max_num_seqs=32,64"),
        (["sweep", "none.yaml"], "none.yaml: no such file"),
        (["run", "s.yaml", "--dask", "tcp://host:1", "--jobs", "2"], "--jobs: expected without --dask tcp://host:1, whose workers are those of that scheduler"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_are_one_line_and_exit_2(args: list[str], line: str, api: FakeApi) -> None:
    result = simkit_(*args)
    assert (result.exit_code, result.stderr, result.stdout) == (2, line + "\n", "")


@pytest.mark.parametrize(
    "args",
    [["rum"], ["run", "--foo"], ["run", "s.yaml", "--seed", "x"], ["run", "s.yaml", "--set"], ["run", "s.yaml", "--jobs", "0"], ["compare"], ["sweep"], ["run", "a", "b"]],
    ids=" ".join,
)  # fmt: skip
def test_usage_errors_are_one_line_without_a_box(args: list[str], api: FakeApi) -> None:
    result = simkit_(*args)
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert "--help`" in result.stderr
    assert "│" not in result.stderr


def test_scenario_mistakes_name_file_line_and_key(api: FakeApi) -> None:
    Path("bad.yaml").write_text(SCENARIO.replace("max_num_seqs", "max_num_seqz"))
    result = simkit_("run", "bad.yaml")
    expected = "bad.yaml:4: engine.max_num_seqz: unknown key; did you mean 'max_num_seqs'?\n"
    assert (result.exit_code, result.stderr) == (2, expected)
    Path("bad.yaml").write_text(SCENARIO.replace("{max_num_seqs: 4}", "{max_num_seqs: 4"))
    result = simkit_("run", "bad.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("bad.yaml:5: YAML syntax: ")


# --- compare, lists, init ---------------------------------------------------------------------------------------------
def test_compare_prints_every_arm_and_the_differences(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    paired = {"continuous+paged": {"throughput.requests_per_s": {"difference": 3.25, "ci95": 0.5}}}
    seen: dict[str, Any] = {}

    def compare(scenario: Any, *, axes: Any, base_dir: Any, progress: Any, **options: Any) -> Any:
        seen.update(axes=axes, jobs=options["jobs"], dask=options["dask"], resume=options["resume"])
        arms = {name: api.result(scenario) for name in ("static+contiguous", "continuous+paged")}
        as_json = {"arms": {name: arm.summary for name, arm in arms.items()}, "paired": paired}
        return SimpleNamespace(
            arms=arms, paired=paired, failed={}, baseline="static+contiguous", to_json=lambda: as_json
        )

    monkeypatch.setattr("simkit.studies.compare.compare", compare)
    result = simkit_("compare", "s.yaml", "--axis", "engine.max_num_seqs=8,16", "--no-report")
    assert result.exit_code == 0, result.stderr
    assert seen == {"axes": {"engine.max_num_seqs": [8, 16]}, "jobs": None, "dask": None, "resume": False}
    for text in ("static+contiguous", "continuous+paged", "+3.25 ± 0.5", "1,234,567"):
        assert text in result.stdout
    assert "wrote runs/tiny-compare\n" in result.stderr
    result = simkit_("compare", "s.yaml", "--json", "--quiet", "--jobs", "3", "--dask", "auto", "--resume")
    assert (seen["jobs"], seen["dask"], seen["resume"]) == (3, "auto", True)
    assert json.loads(result.stdout)["paired"] == paired
    assert result.stdout_bytes == Path("runs/tiny-compare/compare.json").read_bytes()


def test_init_prints_a_scenario_that_runs(api: FakeApi) -> None:
    Path("new.yaml").write_bytes(simkit_("init").stdout_bytes)
    assert simkit_("run", "new.yaml", "--no-headroom").exit_code == 0


@pytest.mark.parametrize(("command", "count", "known"), [("models", 25, "llama-3-8b"), ("gpus", 18, "a100-sxm4-80gb")])
def test_lists(command: str, count: int, known: str) -> None:
    listed = json.loads(simkit_(command, "--json").stdout)
    assert len(listed) >= count
    assert known in [entry["name"] for entry in listed]
    text = simkit_(command).stdout
    assert all(entry["name"] in text for entry in listed)


def test_models_prints_what_is_not_modelled() -> None:
    from simkit.specs.models import NOT_MODELLED

    text = " ".join(simkit_("models").stdout.split())
    assert all(line in text for line in NOT_MODELLED)


def test_version_and_help() -> None:
    assert simkit_("--version").stdout == f"simkit {simkit.__version__}\n"
    assert f'version = "{simkit.__version__}"' in (ROOT / "pyproject.toml").read_text()
    for args in ([], ["--help"], ["run", "--help"], ["compare", "--help"], ["sweep", "--help"]):
        assert simkit_(*args).exit_code == 0
        assert "Usage:" in simkit_(*args).stdout


# --- in a real process ------------------------------------------------------------------------------------------------
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from simkit.cli import app as cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'matplotlib', 'scipy', 'simpy', 'pyarrow', 'jinja2', 'torch', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr == "[]\n"


def test_a_closed_pipe_is_no_error() -> None:
    # The pipe's reader is gone before the first byte is written.
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "simkit", "models"], stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_in_a_real_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simkit", "run", "none.yaml"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "none.yaml: no such file\n")
    assert list(tmp_path.iterdir()) == []


# --- tables -----------------------------------------------------------------------------------------------------------
def rendered(parts: Any, width: int) -> str:
    from rich.console import Console

    console_ = Console(width=width, color_system=None, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in parts:
        console_.print(part, markup=False)
    return console_.export_text()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    facts = {"name": "x", "scenario": {"engine": {"batching": "continuous"}, "slo": {"ttft_ms": {"p99": 1}}}}
    arms = dict.fromkeys(("static+contiguous", "continuous+paged@engine.max_num_seqs=128"), (SUMMARY, facts))
    text = rendered(compare.compare_tables(arms, {}, width), width)
    assert text.count("1,234,567") == 4 * len(arms)
    assert text.count("44.0 %") == len(arms)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    text = rendered(tables.run_tables(SUMMARY, facts, width), width)
    assert text.count("1,234,567") == 5
    assert "…" not in text


def test_a_missing_number_has_its_reason() -> None:
    summary = {**SUMMARY, "tpot_ms": dict.fromkeys(STATS), "itl_ms": None}
    static = {"name": "x", "scenario": {"engine": {"batching": "static", "stream": None}, "slo": None}}
    text = rendered(tables.run_tables(summary, static), 100)
    assert "- not streamed: TPOT, ITL" in text
    assert "- the scenario states no SLO: goodput" in text
    arms = {"static+paged": (summary, static), "continuous+paged": (SUMMARY, static)}
    assert "- not streamed: TPOT, ITL (static+paged)" in rendered(compare.compare_tables(arms, {}), 100)


def test_confidence_intervals_and_saturation_are_shown() -> None:
    summary = {**SUMMARY, "concurrency_mean_ci95": 0.5, "saturated": True, "saturation_reason": "the queue grew to 90"}
    text = rendered(tables.run_tables(summary, {"name": "x"}), 100)
    assert "1.25 ± 0.5" in text
    assert "saturated: the queue grew to 90" in text
    assert "arm *" in rendered(compare.compare_tables({"arm": (summary, {})}, {}), 100)


# --- manifest and console ---------------------------------------------------------------------------------------------
def test_canonical_json_is_stable_exact_and_refuses_nan() -> None:
    assert canonical_json({"b": 0.1, "a": [1, None, True], "é": "x"}) == (
        '{\n  "b": 0.1,\n  "a": [\n    1,\n    null,\n    true\n  ],\n  "é": "x"\n}\n'.encode()
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})
    with pytest.raises(TypeError, match="set"):
        canonical_json({"a": {1}})


def test_run_id_depends_on_each_of_its_four_parts() -> None:
    base = manifest.run_id({"a": 1}, "p", 0, "1")
    assert base == manifest.run_id({"a": 1}, "p", 0, "1")
    others = [({"a": 2}, "p", 0, "1"), ({"a": 1}, "q", 0, "1"), ({"a": 1}, "p", 1, "1"), ({"a": 1}, "p", 0, "2")]
    assert len({base, *(manifest.run_id(*other) for other in others)}) == 5


def test_what_is_not_simulated_is_named_in_one_line() -> None:
    assert output.not_simulated([]) == []
    assert output.not_simulated(["a", "b"]) == ["note: accepted but not simulated yet, run as off: a, b"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_by_itself_and_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.progress(quiet=False) as progress:
        assert isinstance(progress, console._Bar)
        progress._timer.join()  # nothing was reported yet
        progress(0.5, "1 of 2")
    for text in ("1 of 2", "50%", "elapsed", "to go"):
        assert text in sys.stderr.getvalue()  # type: ignore[attr-defined]
    with console.progress(quiet=True) as progress:
        assert progress is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with console.progress(quiet=False) as progress:
        assert progress is None
