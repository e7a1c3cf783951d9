"""The livelock of the scheduler specification, section 11 item 6: three prompts evict each other in a circle for ever.

With priority ties, no full-sequence gate and no caching none of them ever gets a token. The real engine hangs; simkit
must say so, in bounded time, and must not say so of the neighbours that do finish.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simkit.cli import app

SCENARIO = """\
name: livelock
model: llama-3-8b
hardware: {{gpu: a100-sxm4-80gb}}
engine:
  max_num_seqs: 8
  max_num_batched_tokens: 128
  max_model_len: 2900
  num_gpu_blocks: 190
  long_prefill_token_threshold: 48
  policy: {policy}
  scheduler_reserve_full_isl: {gate}
  enable_prefix_caching: {caching}
  async_scheduling: {asynchronous}
workload:
  num_requests: 3
  finite: true
  arrivals: {arrivals}
  prompt_tokens: {{dist: fixed, value: 2300}}
  output_tokens: {{dist: fixed, value: 4}}
latency: {{profile: {profile}}}
"""
STUCK = {
    "policy": "priority",
    "gate": "false",
    "caching": "false",
    "asynchronous": "false",
    "arrivals": "{process: all_at_once}",
    "profile": "unit",
}
AT_MOST_S = 10.0


def run(tmp_path: Path, **changed: str) -> tuple[int, str, str]:
    """`simkit run`: exit code, stdout, stderr."""
    path = tmp_path / "livelock.yaml"
    path.write_text(SCENARIO.format(**STUCK | changed))
    out = tmp_path / "out"
    result = CliRunner().invoke(app.app, ["run", str(path), "--json", "--quiet", "--no-report", "--out", str(out)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert out.exists() is (result.exit_code == 0)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("profile", ["unit", "roofline"])
@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_it_ends_with_an_error_that_names_sequences_and_settings(
    tmp_path: Path, profile: str, asynchronous: str
) -> None:
    start = time.process_time()
    code, out, err = run(tmp_path, profile=profile, asynchronous=asynchronous)
    assert time.process_time() - start < AT_MOST_S
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "no progress" in err
    assert "requests" in err
    assert any(str(number) in err.split("requests", 1)[1].split(")")[0] for number in range(3))
    for setting in (
        "policy priority",
        "scheduler_reserve_full_isl false",
        "enable_prefix_caching false",
        "long_prefill_token_threshold 48",
        "max_num_batched_tokens 128",
        "num_gpu_blocks 190",
    ):
        assert setting in err


CURES = {
    "fcfs": {"policy": "fcfs"},
    "sjf": {"policy": "sjf"},
    "the gate": {"gate": "true"},
    "caching": {"caching": "true"},
    "distinct arrivals": {"arrivals": "{process: constant, rate_per_s: 900}"},
}


@pytest.mark.parametrize("asynchronous", ["false", "true"])
@pytest.mark.parametrize("cure", CURES.values(), ids=CURES.keys())
def test_each_cure_lets_the_same_three_finish(tmp_path: Path, cure: dict[str, str], asynchronous: str) -> None:
    code, out, err = run(tmp_path, asynchronous=asynchronous, **cure)
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["num_requests"]["finished"] == 3


def test_many_passes_without_a_token_are_no_livelock_while_a_prompt_advances(tmp_path: Path) -> None:
    """Two prompts of 6,000 tokens, a token a pass: 12,000 passes with hardly an output are progress all the same."""
    path = tmp_path / "slow.yaml"
    text = SCENARIO.format(**STUCK | {"policy": "fcfs"})
    text = (
        text.replace("value: 2300", "value: 6000").replace("2900", "8000").replace("num_requests: 3", "num_requests: 2")
    )
    text = text.replace("max_num_batched_tokens: 128", "max_num_batched_tokens: 1").replace(
        "num_gpu_blocks: 190", "num_gpu_blocks: 1000"
    )
    path.write_text(text.replace("max_num_seqs: 8", "max_num_seqs: 1").replace("threshold: 48", "threshold: 0"))
    result = CliRunner().invoke(
        app.app, ["run", str(path), "--json", "-q", "--no-report", "--out", str(tmp_path / "o")]
    )
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["num_requests"]["finished"] == 2
