"""Every scenario that ships loads, says what it is for, and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simkit import scenario

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
SHIPPED = {"azure-conversation", "eight-requests", "llama3-8b-a100", "long-prompt-stall", "three-generations"}
MAX_REQUESTS = 60
"""Enough to reach the one long prompt in fifty of long-prompt-stall; the full sizes are for people."""


def simkit(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simkit", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def cap(path: Path) -> int:
    """Customers to run a scenario with."""
    return min(MAX_REQUESTS, scenario.load(path).workload.num_requests or MAX_REQUESTS)


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
    num_requests = cap(path)
    size = f"workload.num_requests={num_requests}"
    done = simkit(tmp_path, "run", str(path), "--no-report", "--quiet", "--json", "--out", "run", "--set", size)
    summary = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.stdout.encode() == (tmp_path / "run" / "summary.json").read_bytes()
    assert summary["num_requests"]["arrived"] == summary["num_requests"]["finished"] == num_requests
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("name", ["three-generations", "long-prompt-stall"])
def test_scenarios_with_variants_compare(name: str, tmp_path: Path) -> None:
    path = ROOT / "scenarios" / f"{name}.yaml"
    size = f"workload.num_requests={cap(path)}"
    done = simkit(tmp_path, "compare", str(path), "--no-report", "--quiet", "--json", "--out", "arms", "--set", size)
    arms = json.loads(done.stdout)["arms"]
    generations = [
        f"{batching}+{kv}" for batching in ("static", "dynamic", "continuous") for kv in ("contiguous", "paged")
    ]
    assert list(arms) == [*generations, *scenario.load(path).variants]
    assert {arm["num_requests"]["finished"] for arm in arms.values()} == {cap(path)}
