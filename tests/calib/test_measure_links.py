"""All-reduces between processes: two of them over the loopback of this machine, and groups that fail."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import rows, text
from test_measure_sweep import MODELS, FakeOps, device

from calib.fit.fit import fit_table
from calib.measure.bench import Bench, Refused
from calib.measure.device import Device
from calib.measure.grid import LINK_START_S, make_plan
from calib.measure.links import Links, _answer
from calib.measure.shapes import Point, memory_bytes, parse_model, point_of, work
from calib.measure.sweep import SweepSettings, run
from calib.measure.timing import MAX_SAMPLES, CpuTimer, GroupTimer, Timing
from calib.table import read_table
from simkit.specs.hardware import load_gpu

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
TIMING = Timing(5.0, 4.0, 6.0, 3, 1, "perf_counter")


def reduce(world_size: int, num_bytes: int) -> Point:
    return Point("all_reduce", world_size=world_size, bytes=num_bytes)


class FakeLinks(AbstractContextManager["FakeLinks"]):
    """A ring of 10 GB/s with 5 us of latency."""

    source = "fake links"

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.closed = False

    def __exit__(self, *raised: object) -> None:
        self.closed = True

    def time(self, point: Point, budget_s: float) -> Timing:
        self.asked.append((point.get("world_size"), point.get("bytes")))
        if point.get("world_size") == 8:
            raise Refused("8 GPUs did not answer")
        us = 5 + work(point, 2).bytes / 1e4
        return replace(TIMING, median_us=us, p10_us=us, p90_us=us)


def sweep(folder: Path, kind: str, peers: tuple[int, ...], links: FakeLinks | None) -> tuple[list[dict[str, Any]], Any]:
    ops = FakeOps()
    bench = Bench(ops, CpuTimer(ops.clock_s), lambda: (), ops.clock_s, links=links)
    settings = SweepSettings(device=kind, quick=True, out_dir=folder, budget_s=float("inf"))
    done = run(settings, device(kind, peers=peers), MODELS, bench)
    table = read_table(done.table_path).rows.get(("all_reduce", "bfloat16"))
    found = [] if table is None else [
        {"world_size": int(n), "bytes": int(size), "us": us}
        for n, size, us in zip(table.sizes["world_size"], table.sizes["bytes"], table.us, strict=True)
    ]  # fmt: skip
    return found, done


def test_links_are_measured_between_2_and_4_of_several_gpus(tmp_path: Path) -> None:
    links = FakeLinks()
    found, done = sweep(tmp_path, "cuda", (0, 1, 2, 3, 4), links)
    sizes = [4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20]
    assert links.asked == [(n, size) for n in (2, 4) for size in sizes]
    assert links.closed
    assert [(row["world_size"], row["bytes"]) for row in found] == links.asked
    # 16 MiB on 4 GPUs: 1.5 of them over each link at 10 GB/s.
    assert next(row["us"] for row in found if row["bytes"] == 16 << 20 and row["world_size"] == 4) == pytest.approx(
        5 + 1.5 * (16 << 20) / 1e4, abs=0.06
    )
    assert not any("links between GPUs" in note for note in done.notes)


def test_one_gpu_says_that_links_were_not_measured(tmp_path: Path) -> None:
    found, done = sweep(tmp_path, "cuda", (0,), FakeLinks())
    assert found == []
    assert "links between GPUs were not measured: there is one GPU of this kind" in done.notes


def test_a_group_that_fails_is_skipped_and_the_others_are_kept(tmp_path: Path) -> None:
    found, done = sweep(tmp_path, "cuda", tuple(range(8)), FakeLinks())
    assert {row["world_size"] for row in found} == {2, 4}
    assert {item.reason for item in done.skipped} == {"8 GPUs did not answer"}
    info = json.loads(done.info_path.read_text())
    assert info["skipped"][0]["point"] == "all_reduce world_size=8 bytes=4096"


def test_the_plan_counts_the_start_of_each_group() -> None:
    models = [parse_model("llama-3-8b")]
    one, four = (make_plan(models, cpu=False, quick=True, cache_bytes=1 << 20, num_gpus=n) for n in (1, 4))
    assert len(four.points) - len(one.points) == 12
    assert four.estimated_s - one.estimated_s == pytest.approx(2 * LINK_START_S + 12 * 0.06, abs=0.1)
    assert point_of(reduce(4, 1024).cells()) == reduce(4, 1024)
    assert (work(reduce(4, 1024), 2).bytes, memory_bytes(reduce(4, 1024), 2)) == (1536.0, 1024)


def test_processes_agree_on_the_number_of_calls() -> None:
    """The slower process takes 1 ms a call: both make as many as it asks for."""
    now = [0.0]

    def call() -> None:
        now[0] += 1e-4

    fast = GroupTimer(lambda us: max(us, 1000.0), lambda: now[0])
    timing = fast.time(call, 0.02)
    assert (timing.samples, timing.median_us) == (20, pytest.approx(100.0))
    assert GroupTimer(lambda us: us, lambda: now[0]).time(lambda: None, 1.0).samples == MAX_SAMPLES


@needs_torch
def test_two_processes_reduce_over_the_loopback(tmp_path: Path) -> None:
    """A real group: the rows that it leaves behind become a table of all-reduces in a profile."""
    with Links(device(peers=(0, 1)), "float32") as links:
        timings = {size: links.time(reduce(2, size), 0.02) for size in (1 << 12, 1 << 16, 1 << 20)}
    assert all(timing.samples >= 3 and timing.median_us > 0 for timing in timings.values())
    assert timings[1 << 20].median_us > timings[1 << 12].median_us
    measured = [
        {"op": "all_reduce", "dtype": "bfloat16", "world_size": 2, "bytes": size, "latency_us": timing.median_us}
        for size, timing in timings.items()
    ]
    (tmp_path / "table.csv").write_text(text([*rows(), *measured]), encoding="utf-8")
    result = fit_table(read_table(tmp_path / "table.csv"), load_gpu("a100-sxm4-80gb"), "mine", {})
    fit = result.profile.op("all_reduce", "bfloat16")
    assert fit is not None
    for size, timing in timings.items():
        us = float(fit.predict({"world_size": 2.0, "bytes": float(size)}).us)
        assert us == pytest.approx(timing.median_us, rel=2e-3)


def test_a_group_that_failed_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Broken:
        def __init__(self, device: Device, dtype: str, world_size: int) -> None:
            self.world_size = world_size
            happened.append(f"started {world_size}")

        def time(self, num_bytes: int, budget_s: float) -> Timing:
            if self.world_size == 4:
                raise Refused("no way between GPUs 0 and 2")
            return TIMING

        def close(self) -> None:
            happened.append(f"ended {self.world_size}")

    monkeypatch.setattr("calib.measure.links._Group", Broken)
    with Links(device(peers=(0, 1, 2, 3)), "bfloat16") as links:
        assert [links.time(reduce(2, size), 0.01) for size in (1024, 2048)] == [TIMING, TIMING]
        for _ in range(2):
            with pytest.raises(Refused, match="no way between GPUs 0 and 2"):
                links.time(reduce(4, 1024), 0.01)
        assert links.time(reduce(2, 4096), 0.01) == TIMING
    assert happened == ["started 2", "ended 2", "started 4", "ended 4", "started 2", "ended 2"]


def test_a_process_that_ends_is_told() -> None:
    mine, theirs = multiprocessing.Pipe()
    theirs.close()
    assert _answer(mine) == "a process of the group ended"
