"""A study: same bytes however it is spread, failures that stay alone, and going on where it was interrupted."""

# ruff: noqa: E501 (messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served import as_asked
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.engine.build import set_up
from simkit.errors import CheckError, InputError, Interrupted
from simkit.runs.replication import ReplicationResult, assemble, replicate
from simkit.studies import checkpoint, executors, study
from simkit.studies.checkpoint import Checkpoint
from simkit.studies.compare import compare
from simkit.studies.study import Failure, Point, Task, exit_code, run_scenario, run_study

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 128, num_gpu_blocks: 12, async_scheduling: false}
workload:
  num_requests: 12
  finite: true
  arrivals: {process: poisson, rate_per_s: 40}
  prompt_tokens: {dist: uniform, low: 5, high: 140}
  output_tokens: {dist: uniform, low: 1, high: 40}
replications: 2
"""


def build(**sets: Any) -> scenario.Scenario:
    return scenario.apply_sets(scenario.loads(TEXT, file="tiny.yaml"), sets)


def points(**sets: Any) -> list[Point]:
    """Three points that differ in the number of slots."""
    return [
        Point(name, build(**{"engine.max_num_seqs": slots, **sets}), {"engine.max_num_seqs": slots})
        for name, slots in (("one", 1), ("two", 2), ("bad", 3))
    ]


def content(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(result: api.Result, folder: Path) -> dict[str, bytes]:
    return content(api.write(result, folder, report=False))


# --- parts ------------------------------------------------------------------------------------------------------------
def test_parts_in_any_order_give_the_bytes_of_a_run(tmp_path: Path) -> None:
    drawn = build(replications=3)
    setup = set_up(drawn)
    made = [replicate(setup, replication) for replication in (2, 0, 1)]
    assert written(assemble(setup, made), tmp_path / "a") == written(as_asked(drawn), tmp_path / "b")
    assert [part.slots is None for part in made] == [True, False, True]
    frame = as_asked(drawn).requests
    assert frame["replication"].tolist() == [0] * 12 + [1] * 12 + [2] * 12
    with pytest.raises(AssertionError, match="one part a replication"):
        assemble(setup, made[:2])


# --- kept parts -------------------------------------------------------------------------------------------------------
def test_a_kept_part_is_the_part(tmp_path: Path) -> None:
    setup = set_up(build())
    keys = checkpoint.keys([setup])
    made = [replicate(setup, replication) for replication in (0, 1)]
    kept = Checkpoint(tmp_path / "kept", checkpoint.PARTS, pytest.fail)
    for key, part in zip(keys, made, strict=True):
        assert kept.save(key, part)
        assert kept.save(key, part), "in place of the older one"
    loaded = [kept.load(key) for key in keys]
    assert [part for part in loaded if part is not None] == made
    assert {path.suffix for path in (tmp_path / "kept").rglob("*") if path.is_file()} == {".json", ".parquet"}
    assert written(assemble(setup, made), tmp_path / "a") == written(
        assemble(setup, [p for p in loaded if p]), tmp_path / "b"
    )
    checkpoint.clear(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["facts.json", "requests.parquet", "steps.parquet", "slots.parquet", "digests.json"])
@pytest.mark.parametrize("harm", [cut, flip, Path.unlink], ids=["cut", "flipped", "gone"])
def test_a_damaged_part_is_made_anew(
    name: str, harm: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_scenario(build(), resume_dir=tmp_path / "kept")
    first, second = checkpoint.keys([set_up(build())])
    harm(tmp_path / "kept" / first.folder / name)
    made, said = spy(monkeypatch), []
    again = run_scenario(build(), resume_dir=tmp_path / "kept", on_note=said.append)
    assert made == [("tiny", 0)]
    assert (again.summary, again.tables) == (whole.summary, whole.tables)
    assert "is damaged and is made anew" in said[0]
    assert first.folder in said[0]
    assert second.folder not in said[0]


def spy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(point, replication) of everything that is simulated in this process."""
    made: list[tuple[str, int]] = []
    real = study.work

    def work(task: Task, progress: Any = None) -> ReplicationResult | Failure:
        made.append((task.point, task.replication))
        return real(task, progress)

    monkeypatch.setattr(study, "work", work)
    return made


def test_only_parts_of_the_same_simulation_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = tmp_path / "kept", spy(monkeypatch)
    run_study(points(), resume_dir=folder)
    assert len(made) == 6
    run_study(points(), resume_dir=folder)
    assert len(made) == 6, "everything was there"
    said: list[str] = []
    fresh = run_study(points(), resume_dir=folder, resume=False, on_note=said.append)
    assert len(made) == 12, "not used without resume, which the user is told"
    assert said == [
        "note: 6 of 6 simulations were kept when this study was interrupted; they are made anew, add --resume to use them"
    ]
    changed = run_study(points(seed=1), resume_dir=folder)
    assert len(made) == 18
    assert changed.results["one"].summary != fresh.results["one"].summary
    assert len(list(folder.iterdir())) == 6, "those of the other study are gone"


def test_a_changed_input_file_is_a_changed_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("n\n5\n6\n")
    drawn = build(**{"workload.output_tokens": {"dist": "empirical", "path": str(lengths), "column": "n"}})
    made = spy(monkeypatch)
    run_scenario(drawn, resume_dir=tmp_path / "kept")
    run_scenario(drawn, resume_dir=tmp_path / "kept")
    assert len(made) == 2
    lengths.write_text("n\n7\n6\n")
    run_scenario(drawn, resume_dir=tmp_path / "kept")
    assert len(made) == 4


def test_nothing_is_kept_of_a_single_simulation(tmp_path: Path) -> None:
    run_scenario(build(replications=1), resume_dir=tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    result = run_scenario(build(), resume_dir=tmp_path / "file" / "kept", resume=False, on_note=said.append)
    assert result.summary == api.run(build()).summary
    assert len(said) == 1
    assert said[0].startswith("note: finished simulations cannot be kept in ")


# --- failures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "kind", "text", "code"),
    [
        (InputError("engine: no"), "input", "engine: no", 2),
        (CheckError("no progress"), "check", "no progress", 1),
        (ZeroDivisionError("two\nlines"), "error", "ZeroDivisionError: two lines (test_study.py:", 1),
        (MemoryError(), "input", "out of memory: expected a smaller workload.num_requests", 2),
    ],
    ids=["input", "check", "unexpected", "memory"],
)
def test_a_point_that_fails_leaves_the_others_alone(
    error: Exception, kind: str, text: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(setup: Any, replication: int, *args: Any, **options: Any) -> ReplicationResult:
        if setup.max_num_seqs == 2:
            raise error
        return replicate(setup, replication, *args, **options)

    monkeypatch.setattr(study, "replicate", fail)
    made = spy(monkeypatch)
    done = run_study(points())
    assert list(done.results) == ["one", "bad"]
    assert list(done.failed) == ["two"]
    failure = done.failed["two"]
    assert (failure.kind, failure.message[: len(text)]) == (kind, text)
    assert failure.line("two") == f"two: {failure.message} (with engine.max_num_seqs=2)"
    assert failure.line("x@engine.max_num_seqs=2") == f"x@engine.max_num_seqs=2: {failure.message}"
    assert exit_code(done.failed) == code
    assert ("two", 1) not in made, "the rest of a point that failed is not simulated"
    assert exit_code({}) == 0


def test_the_failure_told_is_that_of_the_first_replication() -> None:
    setups = [set_up(build())]
    tasks = [Task("tiny", build(), replication, False, "", "") for replication in (0, 1)]
    outcomes: dict[int, ReplicationResult | Failure] = {1: Failure("check", "late"), 0: Failure("input", "early")}
    assert study._sort_out([Point("tiny", build())], setups, tasks, outcomes).failed["tiny"].message == "early"


def test_a_run_fails_with_the_error_of_its_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (InputError("x"), CheckError("y")):
        monkeypatch.setattr(study, "replicate", lambda *args, error=error, **options: (_ for _ in ()).throw(error))
        with pytest.raises(type(error), match=str(error)):
            run_scenario(build())


def test_a_run_whose_replication_fails_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(setup: Any, replication: int, *args: Any, **options: Any) -> ReplicationResult:
        if replication == 1:
            raise CheckError("no progress")
        return replicate(setup, replication, *args, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "replicate", fail)
    Path("tiny.yaml").write_text(TEXT)
    result = simkit_("run", "tiny.yaml", "--jobs", "1", "--out", "out")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "no progress (finished replications are kept; --resume uses them)\n"
    assert sorted(os.listdir()) == [".out.kept", "tiny.yaml"]


def test_what_does_not_fit_is_a_result_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Point("no", build(**{"engine.num_gpu_blocks": 3}), {"engine.num_gpu_blocks": 3})
    outcome = run_study([points()[0], refused, *points()[1:]], word="arm")
    assert list(outcome.results) == [point.name for point in points()]
    assert list(outcome.failed) == ["no"]
    assert (outcome.failed["no"].kind, outcome.failed["no"].settings) == ("input", {"engine.num_gpu_blocks": 3})
    assert "max_model_len" in outcome.failed["no"].message
    made = spy(monkeypatch)
    with pytest.raises(InputError, match=r"^arm no: .*max_model_len"):
        run_study([refused], word="arm")
    assert made == []


def test_another_version_of_simkit_is_refused_by_the_worker() -> None:
    outcome = study.work(Task("p", build(), 0, False, "0.0.0", os.getcwd()))
    assert isinstance(outcome, Failure)
    assert "expected 0.0.0" in outcome.message


def test_a_worker_elsewhere_finds_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lengths.csv").write_text("n\n5\n6\n")
    drawn = build(**{"workload.output_tokens": {"dist": "empirical", "path": "lengths.csv", "column": "n"}})
    monkeypatch.chdir(tmp_path)
    (task, _) = study._tasks([Point("p", drawn)], single_step=False)
    monkeypatch.chdir(ROOT)
    assert isinstance(study.work(task), ReplicationResult)
    assert isinstance(study.work(replace(task, cwd=str(ROOT))), Failure)


BAD_ARM = "variants:\n  gone: {workload.output_tokens: {dist: empirical, path: none.csv, column: n}}\n"


def simkit_(*args: str) -> Any:
    result = CliRunner().invoke(app.app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_compare_writes_the_arms_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TEXT + BAD_ARM)
    result = simkit_("compare", "tiny.yaml", "--jobs", "1", "--set", "replications=1")
    assert result.exit_code == 2
    told = [line for line in result.stderr.splitlines() if line.startswith("arm ")]
    assert len(told) == 1
    assert told[0].startswith("arm gone: ")
    assert "none.csv" in told[0]
    folder = Path("runs/tiny-compare")
    compared = json.loads((folder / "compare.json").read_bytes())
    assert list(compared["failed"]) == ["gone"]
    assert told[0].startswith(f"arm gone: {compared['failed']['gone']} (with ")
    assert len(compared["arms"]) == len(list((folder / "arms").iterdir())) == 6
    assert len(compared["paired"]) == 5
    page = (folder / "report.html").read_text()
    assert "gone: no numbers" in page
    assert "the finished simulations are kept" in result.stderr
    (tmp_path / "none.csv").write_text("n\n5\n6\n")
    again = simkit_("compare", "tiny.yaml", "--jobs", "1", "--set", "replications=1", "--resume", "--no-report")
    assert again.exit_code == 0
    assert "note: 6 of 7 simulations were kept, the others are made now" in again.stderr
    assert sorted(os.listdir("runs")) == ["tiny-compare"]


def test_without_its_baseline_a_comparison_has_no_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(setup: Any, replication: int, *args: Any, **options: Any) -> ReplicationResult:
        engine = setup.scenario.engine
        if (engine.batching, engine.kv_allocator) == ("static", "contiguous"):
            raise CheckError("no progress")
        return replicate(setup, replication, *args, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "replicate", fail)
    Path("tiny.yaml").write_text(TEXT)
    result = simkit_("compare", "tiny.yaml", "--jobs", "1", "--out", "out")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0].startswith("arm static+contiguous: no progress")
    assert "the baseline static+contiguous failed, so there are no paired differences" in result.stderr
    compared = json.loads(Path("out/compare.json").read_bytes())
    assert (compared["paired"], len(compared["arms"])) == ({}, 5)
    assert Path("out/report.html").exists()


def test_when_every_arm_fails_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(
        TEXT.replace("{dist: uniform, low: 1, high: 40}", "{dist: empirical, path: x.csv, column: n}")
    )
    result = simkit_("compare", "tiny.yaml", "--jobs", "1", "--quiet")
    assert result.exit_code == 2
    assert [line[:4] for line in result.stderr.splitlines()] == ["arm "] * 6
    assert os.listdir() == ["tiny.yaml"]


# --- a worker dies ----------------------------------------------------------------------------------------------------
def fatal(task: Task) -> ReplicationResult | Failure:
    """A worker that is killed by one point and does the others; the tests themselves are not killed."""
    if task.point == "bad":
        assert os.environ.get("TESTS_PID") != str(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    return WORK(task)


WORK = study.work


def test_a_killed_worker_takes_no_other_point_along(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run_study(points())
    monkeypatch.setenv("TESTS_PID", str(os.getpid()))
    monkeypatch.setattr(study, "work", fatal)
    seen: list[float] = []
    done = run_study(points(), jobs=2, progress=lambda share, label: seen.append(share))
    assert list(done.failed) == ["bad"]
    assert done.failed["bad"].kind == "lost"
    assert "died" in done.failed["bad"].message
    for name in ("one", "two"):
        assert done.results[name].summary == alone.results[name].summary
        assert done.results[name].tables == alone.results[name].tables
    assert seen == sorted(seen)
    assert seen[:2] == pytest.approx([0, 1 / 6])


def heavy_modules(item: int) -> list[str]:
    outcome = WORK(study._tasks([Point("p", build())], single_step=False)[0])
    assert isinstance(outcome, ReplicationResult)
    return sorted({"matplotlib", "jinja2", "scipy.stats", "simkit.report"} & set(sys.modules))


def test_workers_import_no_report() -> None:
    found = dict(executors.spread(heavy_modules, [0, 1], 2, None, lambda index: True))
    assert found == {0: [], 1: []}


def test_what_is_not_wanted_is_left_out() -> None:
    assert dict(executors.spread(abs, [-1, -2, -3], 2, None, lambda index: index != 1)) == {0: (1), 2: 3}


# --- interrupt and resume ---------------------------------------------------------------------------------------------
DRIVER = """\
import sys
from simkit.cli import app as cli
from simkit.studies import checkpoint, study
real, made = {hook}, []
def hooked(*args):
    if len(made) == 5:
        raise KeyboardInterrupt
    made.append(args)
    return real(*args)
{hook} = hooked
if __name__ == "__main__":
    cli.main()
"""


@pytest.mark.parametrize(("hook", "jobs"), [("study.work", "1"), ("checkpoint.Checkpoint.save", "2")])
def test_an_interrupted_comparison_goes_on_to_the_same_bytes(
    hook: str, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(TEXT)
    (tmp_path / "driver.py").write_text(DRIVER.format(hook=hook))
    command = ["compare", "tiny.yaml", "--out", "out", "--no-report", "--jobs"]
    stopped = subprocess.run(
        [sys.executable, "driver.py", *command, jobs], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert stopped.stderr == "interrupted: 5 of 12 simulations kept; add --resume to go on\n"
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / ".out.kept").iterdir())) == 5
    monkeypatch.chdir(tmp_path)
    done = simkit_(*command, "1", "--resume")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("note: 5 of 12 simulations were kept, the others are made now\n")
    assert not (tmp_path / ".out.kept").exists()
    whole = compare(scenario.load("tiny.yaml"))
    assert content(tmp_path / "out") == content(api.write_comparison(whole, tmp_path / "whole", report=False))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_study_and_says_what_is_kept(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(task: Task, progress: Any = None) -> ReplicationResult | Failure:
        outcome = WORK(task, progress)
        if task.replication == 1:
            os.kill(os.getpid(), number)
        return outcome

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "work", work)
    Path("tiny.yaml").write_text(TEXT)
    result = simkit_("run", "tiny.yaml", "--jobs", "1", "--out", "out")
    assert result.exit_code == 130
    assert result.stderr == "interrupted: 1 of 2 simulations kept; add --resume to go on\n"
    monkeypatch.setattr(study, "work", WORK)
    assert simkit_("run", "tiny.yaml", "--jobs", "1", "--out", "out", "--resume", "--no-report").exit_code == 0
    assert content(tmp_path / "out") == written(api.run(scenario.load("tiny.yaml")), tmp_path / "whole")


def test_without_a_place_to_keep_things_an_interrupt_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(task: Task, progress: Any = None) -> ReplicationResult | Failure:
        if task.replication == 1:
            raise KeyboardInterrupt
        return WORK(task, progress)

    monkeypatch.setattr(study, "work", work)
    with pytest.raises(KeyboardInterrupt) as caught:
        compare(build())
    assert not isinstance(caught.value, Interrupted)
    with pytest.raises(Interrupted, match="1 of 12"):
        compare(build(), resume_dir=tmp_path / "kept")


# --- what a single run imports ----------------------------------------------------------------------------------------
def test_a_single_run_imports_nothing_of_studies(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TEXT)
    heavy = [
        "concurrent.futures.process",
        "dask",
        "distributed",
        "matplotlib",
        "scipy.stats",
        "pandas",
        "simkit.planner",
        "simkit.studies",
    ]
    code = (
        "import sys; from simkit.cli import app as cli\n"
        "try: cli.app(['run', 'tiny.yaml', '--set', 'replications=1', '--no-report', '--quiet'])\n"
        f"except SystemExit as end: print(end.code, [name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == "0 []\n"
