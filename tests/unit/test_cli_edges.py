"""What a shell can do to the command: where errors are, closed and full streams, odd widths, odd places to write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit.cli import app

TEXT = """\
model: qwen2.5-0.5b
hardware:
  gpu: l4-24gb
engine: {max_num_seqs: 4, max_model_len: 256}
workload:
  num_requests: 8
  arrivals: {process: all_at_once}
  prompt_tokens: {dist: fixed, value: 4}
  output_tokens: {dist: fixed, value: 4}
latency: {profile: unit}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "s.yaml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simkit(*arguments: str, **environment: str) -> Any:
    """The command in this process, for what does not depend on the streams of one."""
    return CliRunner().invoke(app.app, list(arguments), env=environment)


def shell(*arguments: str, redirect: str) -> subprocess.CompletedProcess[str]:
    command = " ".join(f"'{part}'" for part in (sys.executable, "-m", "simkit", *arguments))
    return subprocess.run(["sh", "-c", f"{command} {redirect}"], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("qwen2.5-0.5b", "qwen2.5-0.4b", "s.yaml:1: model: 'qwen2.5-0.4b' is not known; did you mean 'qwen2.5-0.5b'?"),
        ("l4-24gb", "l4-24", "s.yaml:3: hardware.gpu: 'l4-24' is not known; did you mean 'l4-24gb'?"),
        ("qwen2.5-0.5b", "llama-3-70b", "s.yaml:1: model: model llama-3-70b needs"),
        ("max_model_len: 256", "max_model_len: 99999", "s.yaml:4: engine.max_model_len: expected <= 32768"),
        ("max_num_seqs: 4,", "max_num_seqs: 04,", "s.yaml:4: engine.max_num_seqs: expected an integer >= 1, got '04'"),
        ("profile: unit", "profile: nowhere", "s.yaml:10: latency.profile: 'nowhere' is not available"),
    ],
)
def test_errors_found_late_still_name_the_line(here: Path, old: str, new: str, said: str) -> None:
    (here / "s.yaml").write_text(TEXT.replace(old, new))
    done = simkit("run", "s.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
    assert not (here / "runs").exists()


def test_a_trace_that_is_empty_names_the_line(here: Path) -> None:
    (here / "log.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    head, _, tail = TEXT.partition("workload:")
    (here / "s.yaml").write_text(f"{head}workload:\n  trace: {{path: log.csv}}\n{tail[tail.index('latency') :]}")
    done = simkit("run", "s.yaml")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("s.yaml:6: workload.trace.path: trace ")
    assert "no requests" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["tables", "json"])
def test_a_full_standard_output_is_one_line(here: Path, flags: tuple[str, ...]) -> None:
    done = shell("run", "s.yaml", "--quiet", "--no-report", *flags, redirect=">/dev/full")
    assert done.returncode == 2
    assert done.stderr == "stdout: cannot be written: No space left on device\n"


@pytest.mark.parametrize("redirect", [">&-", "2>&- >/dev/null"])
def test_closed_streams_lose_words_and_nothing_else(here: Path, redirect: str) -> None:
    done = shell("run", "s.yaml", "--no-report", redirect=redirect)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert (here / "runs" / "s" / "summary.json").is_file()


@pytest.mark.parametrize("columns", ["0", "1", "40"])
def test_no_width_hides_the_numbers(here: Path, columns: str) -> None:
    done = simkit("run", "s.yaml", "--no-report", COLUMNS=columns)
    assert done.exit_code == 0
    assert "TTFT" in done.stdout


def test_the_current_directory_is_no_run_directory(here: Path) -> None:
    (here / "empty").mkdir()
    os.chdir(here / "empty")
    done = simkit("run", "../s.yaml", "--out", ".")
    assert (done.exit_code, list((here / "empty").iterdir())) == (2, [])
    assert done.stderr.startswith("--out .: expected a directory of its own")


def test_a_link_to_a_run_stays_a_link(here: Path) -> None:
    assert simkit("run", "s.yaml", "--no-report", "--out", "first").exit_code == 0
    (here / "link").symlink_to("first")
    done = simkit("run", "s.yaml", "--no-report", "--out", "link", "--seed", "5")
    assert done.exit_code == 0
    assert (here / "link").is_symlink()
    assert '"seed": 5' in (here / "first" / "manifest.json").read_text()
    assert "replaced the earlier run 's'" in done.stderr


def test_settings_without_effect_are_named(here: Path) -> None:
    done = simkit("run", "s.yaml", "--no-report", "--set", "engine.max_wait_s=1", "--set", "engine.placement=buddy")
    assert done.exit_code == 0
    assert "without effect here: engine.max_wait_s (needs batching: static), engine.placement" in done.stderr
    done = simkit("run", "s.yaml", "--no-report", "--set", "engine.preemption=swap", "--set", "engine.host_pool_gib=0")
    assert "host_pool_gib is 0, so every victim is recomputed" in done.stderr


def test_an_axis_names_each_value_once(here: Path) -> None:
    done = simkit("compare", "s.yaml", "--axis", "engine.max_num_seqs=2,2")
    assert done.exit_code == 2
    assert done.stderr == "--axis engine.max_num_seqs: expected each value once, got 2 twice\n"


def test_two_files_are_set_side_by_side(here: Path) -> None:
    (here / "t.yaml").write_text(TEXT.replace("max_num_seqs: 4", "max_num_seqs: 2"))
    done = simkit("compare", "s.yaml", "t.yaml", "--no-report", "--out", "both")
    assert done.exit_code == 0
    assert sorted(p.name for p in (here / "both" / "arms").iterdir()) == ["s", "t"]
    assert simkit("compare", "s.yaml", "t.yaml", "s.yaml").exit_code == 2
    assert simkit("compare", "s.yaml", "t.yaml", "--axis", "engine.max_num_seqs=1").exit_code == 2


def test_a_variant_with_the_name_of_an_arm_names_the_line(here: Path) -> None:
    (here / "s.yaml").write_text(TEXT + "variants:\n  static+paged: {engine.max_num_seqs: 2}\n")
    done = simkit("compare", "s.yaml")
    assert (done.exit_code, done.stderr.partition(" expected")[0]) == (2, "s.yaml:11: variants:")


def test_a_rate_that_never_comes_names_its_setting(here: Path) -> None:
    done = simkit("run", "s.yaml", "--set", "workload.arrivals={process: poisson, rate_per_s: 1.0e-300}")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("--set workload.arrivals: the rate is so low")


def test_a_cut_gzip_trace_names_the_line_where_it_ends(here: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "dev_20_priority_tight_nocache.jsonl.gz"
    (here / "cut.jsonl.gz").write_bytes(golden.read_bytes()[:20_000])
    done = simkit("conform", "cut.jsonl.gz")
    assert done.exit_code == 2
    place, _, what = done.stderr.partition(": ")
    assert what == "the gzip data is cut or damaged here\n"
    assert int(place.rpartition(":")[2]) > 100
