"""The same bytes from one process, from two, and from Dask, whatever dies on the way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from dask.distributed import LocalCluster
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.studies import executors, study
from simkit.studies.compare import Sweep, sweep

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 128, num_gpu_blocks: 20}
workload:
  num_requests: 40
  finite: true
  arrivals: {process: poisson, rate_per_s: 40}
  prompt_tokens: {dist: uniform, low: 5, high: 140}
  output_tokens: {dist: uniform, low: 1, high: 60}
replications: 3
"""
AXES = {"engine.max_num_seqs": [2, 4], "engine.policy": ["fcfs", "sjf"]}


def run_sweep(**options: Any) -> Sweep:
    return sweep(scenario.loads(TEXT, file="tiny.yaml"), AXES, **options)


def written(swept: Sweep, folder: Path) -> dict[str, bytes]:
    """Every file of the sweep's directory."""
    api.write_sweep(swept, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes."""
    return written(run_sweep(), tmp_path_factory.mktemp("alone") / "sweep")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A scheduler that tries once more what killed a worker, and two worker processes of one thread."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as running,
    ):
        yield running


def test_two_processes_write_the_bytes_of_one(alone: dict[str, bytes], tmp_path: Path) -> None:
    assert len(alone) == 3 + 4 * 5
    assert written(run_sweep(jobs=2), tmp_path / "two") == alone


def test_dask_writes_the_bytes_of_one_process_though_a_worker_dies(
    alone: dict[str, bytes], cluster: Any, tmp_path: Path
) -> None:
    killed: list[int] = []
    shares: list[float] = []

    def progress(share: float, label: str) -> None:
        shares.append(share)
        if share > 0 and not killed:
            killed.append(cluster.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    swept = run_sweep(dask=cluster.scheduler_address, progress=progress)
    assert len(killed) == 1
    assert shares == pytest.approx([n / 12 for n in range(13)])
    assert swept.failed == {}
    assert written(swept, tmp_path / "dask") == alone


def test_a_local_cluster_from_the_command_line(alone: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TEXT)
    axes = [part for key, values in AXES.items() for part in ("--axis", f"{key}={','.join(map(str, values))}")]
    done = subprocess.run(
        [sys.executable, "-m", "simkit", "sweep", "tiny.yaml", *axes, "--dask", "auto", "--jobs", "2", "--out", "out"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "wrote out; out/sweep.csv has a row a point"
    assert "distributed" not in done.stderr
    assert not (tmp_path / ".out.kept").exists()
    files = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == alone


def fatal(item: int) -> int:
    """Kills whoever works on 3, but not the tests: where no process can be started, work is done in theirs."""
    if item == 3:
        assert os.environ.get("TESTS_PID") != str(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


@pytest.mark.parametrize("use_dask", [False, True], ids=["processes", "dask"])
def test_work_that_kills_its_worker_is_lost_alone(
    use_dask: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTS_PID", str(os.getpid()))
    address = request.getfixturevalue("cluster").scheduler_address if use_dask else None
    found = dict(executors.spread(fatal, range(6), 2, address, lambda index: True))
    lost = found.pop(3)
    assert isinstance(lost, executors.Lost)
    assert "died (killed, or out of memory)" in lost.reason
    assert found == {item: item * item for item in range(6) if item != 3}


def test_tasks_are_slotted() -> None:
    """What travels to a worker holds what it says and nothing else."""
    (task, *_) = study._tasks([study.Point("p", scenario.loads(TEXT, file="tiny.yaml"))], single_step=False)
    assert not hasattr(task, "__weakref__")


# --- what can be wrong with Dask --------------------------------------------------------------------------------------
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> str:
    """The one line of `simkit run --dask ADDRESS`, which exits with 2 and writes nothing."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TEXT)
    result = CliRunner().invoke(app.app, ["run", "tiny.yaml", "--dask", address])
    assert (result.exit_code, result.stdout, os.listdir()) == (2, "", ["tiny.yaml"])
    (line,) = result.stderr.splitlines()
    return line


def test_an_address_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = said(tmp_path, monkeypatch, "tcp://127.0.0.1:1")
    assert line == "--dask tcp://127.0.0.1:1: no Dask scheduler answers there (Connection refused)"


@pytest.mark.parametrize(("greeting", "reason"), [
    (b"SSH-2.0-Other\r\n", "something else listens there"),
    (b"220", "something else listens there"),
    (b"", "timed out"),
])  # fmt: skip
def test_what_is_no_scheduler_is_not_waited_for(
    greeting: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def greet() -> None:
            visitor, _ = server.accept()
            with visitor, contextlib.suppress(OSError):  # it may have gone before
                if greeting:
                    visitor.sendall(greeting)
                    visitor.shutdown(socket.SHUT_WR)
                visitor.recv(1)  # until the other side has gone

        greeter = threading.Thread(target=greet)
        greeter.start()
        line = said(tmp_path, monkeypatch, address)
        greeter.join()
    assert line == f"--dask {address}: no Dask scheduler answers there ({reason})"


@pytest.mark.parametrize("address", ["", "here", "host:", "http://host:80", "tcp://host:port", "a b:1"])
def test_what_is_no_address(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"--dask {address}: expected auto, or a scheduler such as tcp://host:8786"
    assert said(tmp_path, monkeypatch, address) == expected


def test_a_scheduler_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "ANSWER_S", 0.5)
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL
    ) as empty:
        line = said(tmp_path, monkeypatch, empty.scheduler_address)
    assert line.endswith(": the scheduler has no workers; start some with `dask worker`")


def test_without_dask_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask", None)
    line = said(tmp_path, monkeypatch, "auto")
    assert line == '--dask auto: Dask is not installed; pip install "simkit-llm[distributed]"'
