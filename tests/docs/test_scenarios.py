"""Every scenario that ships loads, says what it is for, and runs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit import scenario
from simkit.cli import app

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
SHIPPED = {"azure-conversation", "eight-requests", "llama3-8b-a100", "long-prompt-stall", "three-generations"}
GENERATIONS = ("static", "dynamic", "continuous")
LEAVINGS = {"finished", "rejected", "refused", "aborted", "unfinished"}
MAX_REQUESTS = 60
"""Enough to reach the one long prompt in fifty of long-prompt-stall; the full sizes are for people."""


def simkit(cwd: Path, *arguments: str) -> Any:
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app.app, list(arguments))
    assert done.exit_code == 0, done.stderr
    return done


def cap(path: Path) -> list[str]:
    """The options that run a scenario with few customers; nothing for one bounded by time or by a trace."""
    num_requests = scenario.load(path).workload.num_requests
    return [] if num_requests is None else ["--set", f"workload.num_requests={min(MAX_REQUESTS, num_requests)}"]


def as_few(path: Path) -> list[str]:
    """Further options of `run`, which would serve as many as its numbers need."""
    has_end = scenario.load(path).workload.trace is not None
    return ["--no-headroom", *([] if has_end else ["--set", "workload.finite=true"])]


def test_the_scenarios_that_were_promised_are_here() -> None:
    assert {path.stem for path in SCENARIOS} >= SHIPPED


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_its_name_is_its_files_and_it_explains_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert scenario.load(path).name == path.stem
    assert f"scenarios/{path.name}" in text, "the comment shows the command to run it"
    assert sum(line.startswith("#") for line in text.splitlines()) >= 5


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    done = simkit(
        tmp_path, "run", str(path), "--no-report", "--quiet", "--json", "--out", "run", *cap(path), *as_few(path)
    )
    counts = json.loads(done.stdout)["num_requests"]
    assert done.stderr == ""
    assert done.stdout.encode() == (tmp_path / "run" / "summary.json").read_bytes()
    assert counts["finished"] > 0
    assert counts["arrived"] == sum(count for name, count in counts.items() if name in LEAVINGS)
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("name", ["three-generations", "long-prompt-stall"])
def test_scenarios_with_variants_compare(name: str, tmp_path: Path) -> None:
    path = ROOT / "scenarios" / f"{name}.yaml"
    done = simkit(tmp_path, "compare", str(path), "--no-report", "--quiet", "--json", "--out", "arms", *cap(path))
    arms = json.loads(done.stdout)["arms"]
    generations = [f"{batching}+{kv}" for batching in GENERATIONS for kv in ("contiguous", "paged")]
    assert list(arms) == [*generations, *scenario.load(path).variants]
    assert {arm["num_requests"]["finished"] for arm in arms.values()} == {MAX_REQUESTS}
