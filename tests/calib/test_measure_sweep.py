"""The sweep with stand-in ops on a clock of its own: going on, skipping, refusing, and what is written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from calib import CalibrationError
from calib.measure.bench import Bench, Check, Compiled, Prepared, Refused
from calib.measure.device import Device, Monitor, Reading
from calib.measure.gpu_ops import refused_ops
from calib.measure.journal import Entry, read_journal
from calib.measure.outcome import ceilings, gemm_backends, latency_text, spreads, table_text
from calib.measure.shapes import Point, parse_model, work
from calib.measure.sweep import INFO_NAME, JOURNAL_NAME, OUT_OF_TIME, TABLE_NAME, Measured, SweepSettings, measure, run
from calib.measure.timing import CpuTimer, Timing
from calib.table import COLUMNS

MODELS = (parse_model("llama-3.2-1b"),)


class Watch(Monitor):
    """A driver that says what the test wants."""

    def __init__(self, *readings: Reading, missing: str = "") -> None:
        super().__init__(None, None, missing)
        self._readings = list(readings)

    def read(self) -> Reading | None:
        return self._readings.pop(0) if len(self._readings) > 1 else next(iter(self._readings), None)


def device(kind: str = "cpu", **changes: Any) -> Device:
    made = Device(
        kind=kind,
        index=0,
        name="A Device",
        spec=None,
        capability=(9, 0),
        cache_bytes=1 << 20,
        memory_bytes=1 << 50,
        driver="1.2",
        software={"simkit": "0.1.0", "torch": "2.13.0"},
        monitor=Watch(),
    )
    return replace(made, **changes)


class FakeOps:
    """A call takes what its bytes and FLOPs ask for, on a clock that nothing else moves."""

    dtype, element_bytes = "bfloat16", 2

    def __init__(self) -> None:
        self.now_s = 0.0
        self.prepared: list[Point] = []
        self.released = 0
        self.fail: Callable[[Point], BaseException | None] = lambda point: None
        self.interrupt_after = -1

    def clock_s(self) -> float:
        return self.now_s

    def source(self, op: str) -> str:
        return f"fake {op}"

    def session(self) -> AbstractContextManager[object]:
        return nullcontext()

    def release(self) -> None:
        self.released += 1

    def prepare(self, point: Point) -> Prepared:
        if len(self.prepared) == self.interrupt_after:
            raise KeyboardInterrupt
        self.prepared.append(point)
        if error := self.fail(point):
            raise error
        least = work(point, 2)
        seconds = 1e-6 + least.flops / 1e14 + least.bytes / 1e12
        slower = {"big\n tile": 3.0, "small tile": 2.0} if point.op == "gemm_triton" else {"": 1.0}
        return Prepared(
            {way: (lambda factor=factor: self.spend(seconds * factor),) for way, factor in slower.items()},
            launch=point.op == "host_overhead",
        )

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True)
class Result:
    name: str
    passed: bool
    max_error: float = 0.001


@dataclass
class Rig:
    """A measurement that can be run again, in the same directory."""

    out_dir: Path
    ops: FakeOps = field(default_factory=FakeOps)
    checks: Sequence[Check] = ()
    compiled: Compiled | None = None
    made_on: Device = field(default_factory=device)
    progress: list[tuple[float, str]] = field(default_factory=list)

    def run(self, **settings: Any) -> Measured:
        values = {"device": "cpu", "quick": True, "out_dir": self.out_dir, "budget_s": float("inf")} | settings
        bench = Bench(
            self.ops, CpuTimer(self.ops.clock_s), lambda: self.checks, self.ops.clock_s, lambda: self.compiled
        )
        report = lambda done, label: self.progress.append((done, label))  # noqa: E731
        return run(SweepSettings(**values), self.made_on, MODELS, bench, report)

    def table(self) -> str:
        return (self.out_dir / TABLE_NAME).read_text()

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out_dir / INFO_NAME).read_text())
        return found

    @property
    def journal(self) -> Path:
        return self.out_dir / JOURNAL_NAME


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "out")


def rows(rig: Rig) -> list[dict[str, str]]:
    return list(csv.DictReader(rig.table().splitlines()))


def test_the_table_has_the_columns_and_one_row_a_point(rig: Rig) -> None:
    measured = rig.run()
    assert rig.table().splitlines()[0] == ",".join(COLUMNS)
    assert measured.table_path == rig.out_dir / TABLE_NAME
    assert measured.info_path == rig.out_dir / INFO_NAME
    assert len(rows(rig)) == len(rig.ops.prepared) - 1  # the copy within the cache is no row
    assert measured.skipped == ()
    by_op = {row["op"]: row for row in rows(rig)}
    assert by_op["gemm"]["source"] == "fake gemm"
    assert by_op["gemm"]["dtype"] == "bfloat16"
    assert by_op["attention_decode"]["m"] == ""
    assert not rig.journal.exists()


def test_rows_are_sorted_and_the_same_again(rig: Rig, tmp_path: Path) -> None:
    rig.run()
    again = Rig(tmp_path / "again")
    again.run()
    assert again.table() == rig.table()
    gemms = [tuple(int(row[name]) for name in ("n", "k", "m")) for row in rows(rig) if row["op"] == "gemm"]
    assert gemms == sorted(gemms)


@pytest.mark.parametrize("after", [0, 1, 7, 60])
def test_an_interrupted_measurement_goes_on_and_gives_the_same_table(rig: Rig, tmp_path: Path, after: int) -> None:
    whole = Rig(tmp_path / "whole")
    whole.run()
    rig.ops.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    assert not (rig.out_dir / TABLE_NAME).exists()
    assert len(read_journal(rig.journal)[1]) == after
    rig.ops.interrupt_after = -1
    measured = rig.run()
    assert rig.table() == whole.table()
    assert rig.ops.prepared == whole.ops.prepared  # nothing was measured twice
    assert measured.notes[:1] == ((f"went on from {after} points measured before",) if after else measured.notes[:1])
    assert rig.info()["ceilings"] == whole.info()["ceilings"]
    assert rig.info()["spreads"] == whole.info()["spreads"]


def test_a_last_line_that_a_crash_tore_is_measured_again(rig: Rig, tmp_path: Path) -> None:
    whole = Rig(tmp_path / "whole")
    whole.run()
    rig.ops.interrupt_after = 9
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    rig.journal.write_bytes(rig.journal.read_bytes()[:-20])
    assert len(read_journal(rig.journal)[1]) == 8
    rig.ops.interrupt_after = -1
    rig.run()
    assert rig.table() == whole.table()


@pytest.mark.parametrize("text", ["", "op,dtype\n", "# simkit calibrate journal {\nop\n", "MARK\nbad,bfloat16\n"])
def test_a_journal_that_is_none_is_refused_not_overwritten(rig: Rig, text: str) -> None:
    rig.ops.interrupt_after = 2
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    good = "\n".join(rig.journal.read_text().splitlines()[:2])
    text = text.replace("MARK", good)
    rig.journal.write_text(text)
    with pytest.raises(CalibrationError, match="not a calibration journal"):
        rig.run()
    assert rig.journal.read_text() == text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"quick": False}}, "quick True, now False"),
        ({"made_on": device(name="Another")}, "device 'A Device', now 'Another'"),
        ({"made_on": device(driver="1.3")}, "driver '1.2', now '1.3'"),
        ({"made_on": device(software={"simkit": "0.1.0", "torch": "2.14.0"})}, "torch '2.13.0', now '2.14.0'"),
    ],
)
def test_other_settings_or_another_device_start_only_anew(rig: Rig, change: dict[str, Any], words: str) -> None:
    rig.ops.interrupt_after = 5
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    rig.ops.interrupt_after = -1
    rig.made_on = change.get("made_on", rig.made_on)
    settings = change.get("settings", {})
    with pytest.raises(CalibrationError) as failure:
        rig.run(**settings)
    assert words in str(failure.value)
    assert len(read_journal(rig.journal)[1]) == 5
    rig.run(resume=False, **settings)
    assert rig.info()["plan"]["resumed"] == 0


def test_a_finished_measurement_is_made_anew(rig: Rig) -> None:
    rig.run()
    count = len(rig.ops.prepared)
    rig.run()
    assert len(rig.ops.prepared) == 2 * count


def test_a_point_that_does_not_fit_is_skipped_and_listed(rig: Rig) -> None:
    def fail(point: Point) -> BaseException | None:
        if point.op == "sampler":
            return RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return ValueError("group of 7") if point.op == "attention_skew" else None

    rig.ops.fail = fail
    measured = rig.run()
    reasons = {(item.point.op, item.reason) for item in measured.skipped}
    assert reasons == {("sampler", "out of memory"), ("attention_skew", "ValueError: group of 7")}
    assert rig.ops.released == len(measured.skipped)
    assert {row["op"] for row in rows(rig)}.isdisjoint({"sampler", "attention_skew"})
    assert {"point": "sampler m=1 n=128256", "reason": "out of memory"} in rig.info()["skipped"]
    assert f"{len(measured.skipped)} points were skipped, see {INFO_NAME}" in measured.notes


def test_a_point_larger_than_the_memory_is_not_tried(rig: Rig) -> None:
    rig.made_on = device(memory_bytes=1 << 29)  # the LM head alone has half a GiB of weights
    measured = rig.run()
    assert {item.reason for item in measured.skipped} == {"needs 0.5 GiB of 0.5"}
    assert {(item.point.op, item.point.n) for item in measured.skipped} == {("gemm", 128256)}
    assert not {item.point for item in measured.skipped} & set(rig.ops.prepared)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), TypeError("a bug")])
def test_what_is_no_points_fault_ends_the_measurement_and_keeps_what_is_done(rig: Rig, error: Exception) -> None:
    rig.ops.fail = lambda point: error if point.op == "rms_norm" else None
    with pytest.raises((CalibrationError, TypeError), match=r"rms_norm.*illegal|a bug"):
        rig.run()
    assert len(read_journal(rig.journal)[1]) == len(rig.ops.prepared) - 1


def test_when_time_is_up_the_rest_is_listed_and_measured_by_the_next_run(rig: Rig, tmp_path: Path) -> None:
    whole = Rig(tmp_path / "whole")
    whole.run()
    measured = rig.run(budget_s=1.5)
    late = [item for item in measured.skipped if item.reason == OUT_OF_TIME]
    assert 0 < len(late) < len(whole.ops.prepared)
    assert len(rig.ops.prepared) + len(late) == len(whole.ops.prepared)
    assert any("time was up" in note for note in measured.notes)
    assert rig.journal.exists()
    rig.run()
    assert rig.table() == whole.table()


def test_progress_rises_from_the_plan_to_the_table(rig: Rig) -> None:
    rig.run()
    done = [share for share, _ in rig.progress]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0.0, 1.0)
    assert rig.progress[0][1].endswith(" s, shapes of llama-3.2-1b@1")
    assert "points, about" in rig.progress[0][1]
    assert rig.progress[1][1].startswith("memcpy_d2d bytes=")


def test_kernels_with_wrong_results_are_not_timed(rig: Rig) -> None:
    rig.made_on = device("cuda")
    rig.checks = [Result("paged_decode bfloat16", False, 0.5), Result("rms_norm", True), Result("gemm 1x1", False)]
    measured = rig.run()
    refused = {item.point.op for item in measured.skipped}
    assert refused == {"attention_decode", "attention_skew", "host_overhead", "gemm_triton"}
    assert not refused & {point.op for point in rig.ops.prepared}
    assert {"name": "gemm 1x1", "passed": False, "max_error": 0.001} in rig.info()["checks"]
    assert "kernels with wrong results, not timed: paged_decode bfloat16, gemm 1x1" in measured.notes


def test_what_compiling_found_is_kept_beside_the_table(rig: Rig) -> None:
    rig.made_on = device(kind="cuda")
    rig.compiled = Compiled(60, 200_000, ("gemm 128x256x64: spills registers: 4 stores, 4 loads",))
    notes = rig.run().notes
    assert rig.info()["compiled"]["faults"] == ["gemm 128x256x64: spills registers: 4 stores, 4 loads"]
    assert f"1 compiled kernels spill or do not fit, see {INFO_NAME}" in notes
    assert [label for _, label in rig.progress].index("compiling the kernels") == 1


def test_a_wrong_result_of_an_unknown_kernel_refuses_all_kernels() -> None:
    refused = refused_ops([Result("rotary", False)])
    assert "gemm" not in refused
    assert {"gemm_triton", "attention_prefill", "attention_mixed", "rotary_kv_write", "rms_norm"} <= set(refused)
    assert refused_ops([Result("mixed", True)]) == {}


def test_the_faster_way_is_kept_and_named(rig: Rig) -> None:
    rig.made_on = device("cuda")
    rig.run()
    backends = rig.info()["gemm_backends"]
    assert backends["triton_faster"] == 0
    assert backends["vendor_faster"] == backends["points"] == len(backends["by_point"])
    assert backends["mean_time_ratio_triton_to_vendor"] == pytest.approx(2.0, rel=0.01)
    assert {row["config"] for row in backends["by_point"]} == {"small tile"}


def test_the_rows_of_a_gpu_hold_every_op_of_the_table(rig: Rig) -> None:
    rig.made_on = device("cuda")
    rig.run()
    ops = {row["op"] for row in rows(rig)}
    assert {"gemm", "gemm_triton", "host_overhead", "memcpy_h2d", "memcpy_d2h", "memcpy_d2d", "sampler"} <= ops
    assert "memcpy_d2d_cached" not in ops
    assert {row["method"] for row in csv_of_journal(rig)} == {"perf_counter"}


def csv_of_journal(rig: Rig) -> Iterator[dict[str, str]]:
    rig.ops.interrupt_after = len(rig.ops.prepared) + 3
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    yield from csv.DictReader(rig.journal.read_text().splitlines()[1:])


def test_clocks_and_throttling_are_recorded(rig: Rig) -> None:
    calm, hot = Reading(1980, 3201, 50, 300.0), Reading(1200, 3201, 85, 700.0, ("power cap",))
    rig.made_on = device("cuda", monitor=Watch(calm, hot))
    measured = rig.run()
    clocks = rig.info()["clocks"]
    assert clocks["before"]["sm_clock_mhz"] == 1980
    assert clocks["after"]["throttling"] == ["power cap"]
    assert clocks["during"]["throttling"] == ["power cap"]
    assert rig.info()["throttling_seen"] == ["power cap"]
    assert "the GPU slowed itself down while measured: power cap" in measured.notes


def test_that_clocks_are_not_known_is_recorded(rig: Rig) -> None:
    rig.made_on = device("cuda", monitor=Watch(missing="nvidia-ml-py is not installed"))
    measured = rig.run()
    assert "clocks and throttling are not known: nvidia-ml-py is not installed" in measured.notes
    assert rig.info()["throttling_seen"] is None
    assert rig.info()["clocks"] == {"before": None, "after": None, "during": {}}


def test_the_info_names_the_table_and_its_ceilings(rig: Rig) -> None:
    rig.run()
    info = rig.info()
    assert info["table"]["rows"] == len(rows(rig))
    assert len(info["table"]["sha256"]) == 64
    assert set(info["ceilings"]) == {"copy_bytes_per_s", "cached_copy_bytes_per_s", "matmul_flops_per_s"}
    assert info["ceilings"]["copy_bytes_per_s"] == pytest.approx(1e12, rel=0.01)
    assert info["identity"]["models"] == ["llama-3.2-1b@1"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match="file/out"):
        Rig(tmp_path / "file" / "out").run()


def test_a_device_that_is_not_there_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CalibrationError, match="PyTorch"):
        measure(SweepSettings(device="cpu", out_dir=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("latency_us", "text"),
    [(2.41649, "2.416"), (12.3456, "12.346"), (381.816, "381.82"), (15287.54, "15288"), (1234567.0, "1234600")],
)
def test_latencies_have_sensible_digits(latency_us: float, text: str) -> None:
    assert latency_text(latency_us) == text


def entries(times_us: Iterable[tuple[Point, float]]) -> list[Entry]:
    return [Entry(point, "bfloat16", "s", Timing(us, 0.9 * us, 1.2 * us, 5, 1, "m")) for point, us in times_us]


def test_derived_figures_by_hand() -> None:
    gemm, own = Point("gemm", m=2, n=10, k=50), Point("gemm_triton", m=2, n=10, k=50)
    found = entries([(gemm, 2.0), (own, 1.0), (Point("memcpy_d2d", bytes=1000), 4.0)])
    assert ceilings(found) == {
        "copy_bytes_per_s": 2000 / 4e-6,
        "cached_copy_bytes_per_s": None,
        "matmul_flops_per_s": 2000 / 1e-6,
    }
    backends = gemm_backends(found)
    assert backends is not None
    assert (backends["triton_faster"], backends["mean_time_ratio_triton_to_vendor"]) == (1, 0.5)
    assert gemm_backends(found[:1]) is None
    assert spreads(found[:1])["gemm"].median_spread == 0.3
    assert table_text(found).count("\n") == 4


def test_refusals_of_the_ops_are_reasons(rig: Rig) -> None:
    rig.ops.fail = lambda point: Refused("not here") if point.op == "embedding" else None
    assert {item.reason for item in rig.run().skipped} == {"not here"}
