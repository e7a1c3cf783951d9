"""What is said of a run of several replicas: its GPUs, and which numbers are of all of them and which of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit.cli import app

TEXT = """\
name: fleet
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_model_len: 256, num_gpu_blocks: 129}
workload:
  num_requests: 30
  finite: true
  arrivals: {process: poisson, rate_per_s: 100}
  prompt_tokens: {dist: fixed, value: 20}
  output_tokens: {dist: fixed, value: 10}
latency: {profile: unit}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(TEXT)


def simkit_(*args: str) -> Any:
    result = CliRunner().invoke(app.app, [*args, "--quiet"])
    assert result.exit_code == 0, result.stderr
    return result


def test_the_title_counts_gpus_by_the_replica() -> None:
    for sets, said in (
        ((), "on 1 x a100-sxm4-80gb,"),
        (("replicas=2",), "on 2 replicas x 1 a100-sxm4-80gb,"),
        (("replicas=2", "hardware.tensor_parallel_size=4"), "on 2 replicas x 4 a100-sxm4-80gb,"),
    ):
        result = simkit_("run", "fleet.yaml", *(word for text in sets for word in ("--set", text)))
        assert said in result.stdout
        page = Path("runs/fleet/report.html").read_text()
        title = "fleet: " + said[3:-1] if sets else "fleet"
        assert f"<title>{title}</title>" in page
        assert f"<h1>{title}</h1>" in page
        assert ("GPUs of the run" in page) is bool(sets)


def test_numbers_of_all_replicas_and_of_each_are_marked() -> None:
    one = simkit_("run", "fleet.yaml", "--no-report").stdout
    assert re.search(r"requests per second +\d", one)
    assert re.search(r"KV capacity +2,048 tokens", one)
    assert "of every replica" not in one
    two = simkit_("run", "fleet.yaml", "--set", "replicas=2").stdout
    for label in (
        "requests per second, all",
        "concurrency, mean, all",
        "KV capacity, each",
        "KV blocks, each",
        "steps, all",
    ):
        assert label in two
    assert re.search(r"KV capacity, each +2,048 tokens", two), "twice one replica's memory is not one pool"
    assert re.search(r"slot utilisation +\d", two)
    assert "all: of all replicas together; each: of every replica" in two
    page = Path("runs/fleet/report.html").read_text()
    assert "[req/s, all replicas]" in page
    assert "[tokens, fullest replica]" in page


def test_arms_of_several_replicas_say_which_numbers_are_sums() -> None:
    told = simkit_("sweep", "fleet.yaml", "--axis", "replicas=1,2", "--jobs", "1").stdout
    assert "of all replicas together: req/s, out tok/s, goodput/s, preempted" in told
    assert (
        "of all replicas together"
        not in simkit_("sweep", "fleet.yaml", "--axis", "engine.max_num_seqs=1,2", "--jobs", "1").stdout
    )
