"""`simkit calibrate --gpu 0` and `--device cpu`: runs a plan on a device and writes the kernel table.

Owns the order of events (correctness, ceilings, grid), what is skipped and why, the time budget and going on after an
interruption. Knows no shapes and no kernels: `device` and the op modules do, when called.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from calib import CalibrationError
from calib.measure import outcome
from calib.measure.bench import Bench, Check, Compiled, Refused, measure_point
from calib.measure.device import Device, Reading, find_device, import_torch, summary
from calib.measure.gpu_ops import refused_ops
from calib.measure.grid import Planned, default_models, make_plan
from calib.measure.journal import Entry, Journal, open_journal
from calib.measure.links import Links
from calib.measure.outcome import Info
from calib.measure.shapes import ModelShapes, Point, parse_model
from calib.measure.timing import CpuTimer, CudaTimer

TABLE_NAME = "kernels.csv"
INFO_NAME = "measured.json"
JOURNAL_NAME = "kernels.journal.csv"
INFO_SCHEMA = 1
OUT_OF_TIME = "time was up"

# Seconds by (kind, quick). Correctness checks and compilation count.
_BUDGET_S = {("cuda", False): 330.0, ("cuda", True): 100.0, ("cpu", False): 240.0, ("cpu", True): 25.0}
_READ_EVERY_S = 1.0


class Progress(Protocol):
    """What a measurement calls: `done` from 0 to 1 of the estimated time, `label` says what it is at."""

    def __call__(self, done: float, label: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What to measure, and where the table goes.

    `device` is cpu, cuda or cuda:N; `models` are NAME or NAME@TP, none for the default set; `budget_s` None for that
    of the kind of device; `gpu_spec` names the GPU where its CUDA name is not known.
    """

    device: str = "cuda:0"
    models: tuple[str, ...] = ()
    quick: bool = False
    out_dir: Path = Path("calibration")
    resume: bool = True
    budget_s: float | None = None
    gpu_spec: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A point that is not in the table, and why."""

    point: Point
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Where the results are. `notes` are lines for the user."""

    table_path: Path
    info_path: Path
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


def measure(settings: SweepSettings, progress: Progress | None = None) -> Measured:
    """Measure on the device of the settings. Raises CalibrationError; an interrupt keeps what is finished."""
    device = find_device(settings.device, settings.gpu_spec)
    models = plan_models(settings)
    return run(settings, device, models, _bench(device, models[0]), progress)


def plan_models(settings: SweepSettings) -> tuple[ModelShapes, ...]:
    """The shapes of the models of the settings. Raises InputError or CalibrationError."""
    cpu = settings.device == "cpu"
    return tuple(parse_model(text) for text in settings.models or default_models(cpu=cpu, quick=settings.quick))


def _bench(device: Device, step_model: ModelShapes) -> Bench:
    if device.kind == "cpu":
        from calib.measure.cpu_ops import CpuOps

        cpu_ops = CpuOps(device)
        return Bench(cpu_ops, CpuTimer(), lambda: (), links=Links(device, cpu_ops.dtype))
    from calib.measure.gpu_ops import GpuOps

    torch, ops = import_torch(), GpuOps(device, step_model)
    dtype = getattr(torch, ops.dtype)

    def verify() -> Iterable[Check]:
        checks: Iterable[Check] = importlib.import_module("calib.verify.verify").verify(device.torch_name, (dtype,))
        return checks

    def compile_kernels() -> Compiled:
        compiled = importlib.import_module("calib.verify.compiled")
        reports = compiled.compile_all(compiled.variants(device.capability, dtype), device.capability)
        faults = tuple(f"{report.name}: {report.reason}" for report in reports if not report.ok)
        return Compiled(len(reports), max((report.shared_bytes or 0 for report in reports), default=0), faults)

    return Bench(ops, CudaTimer(torch), verify, compile=compile_kernels, links=Links(device, ops.dtype))


def run(
    settings: SweepSettings,
    device: Device,
    models: tuple[ModelShapes, ...],
    bench: Bench,
    progress: Progress | None = None,
) -> Measured:
    """Run the plan of the models with the given bench. Everything but finding the device."""
    return _Sweep(settings, device, models, bench, progress).run()


class _Sweep:
    """A measurement under way: what it is of, and what has happened so far.

    `_refused` maps an op to the reason why its kernel is not timed.
    """

    def __init__(
        self,
        settings: SweepSettings,
        device: Device,
        models: tuple[ModelShapes, ...],
        bench: Bench,
        progress: Progress | None,
    ) -> None:
        self._settings, self._device, self._bench = settings, device, bench
        self._report: Progress = progress or (lambda done, label: None)
        self._start_s = bench.clock_s()
        cpu, caches = device.kind == "cpu", device.cache_bytes
        self._plan = make_plan(models, cpu=cpu, quick=settings.quick, cache_bytes=caches, num_gpus=len(device.peers))
        self._shapes = [f"{model.name}@{model.ranks}" for model in models]
        own = {"dtype": bench.ops.dtype, "models": self._shapes, "quick": settings.quick}
        self._identity: dict[str, object] = {**device.identity(), **own}
        self._entries: dict[Point, Entry] = {}
        self._num_resumed = 0
        self._skipped: list[Skipped] = []
        self._readings: list[Reading] = []
        self._checks: list[Check] = []
        self._compiled: Compiled | None = None
        self._refused: Mapping[str, str] = {}
        self._out_of_time = False
        self._read_s = float("-inf")

    def run(self) -> Measured:
        """All that is left of the plan, as far as time reaches, and then the files."""
        folder, device, bench = self._settings.out_dir, self._device, self._bench
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CalibrationError(f"{folder}: {error.strerror or error}") from None
        journal, self._entries = open_journal(folder / JOURNAL_NAME, self._identity, resume=self._settings.resume)
        self._num_resumed = len(self._entries)
        clocks = {"before": device.monitor.read()}
        self._report(0.0, f"{self._plan.describe()}, shapes of {', '.join(self._shapes)}")
        with journal, bench.ops.session(), bench.links or contextlib.nullcontext():
            left = [planned for planned in self._plan.points if planned.point not in self._entries]
            if left and device.kind == "cuda":
                self._check_kernels()
            self._measure(left, journal)
        self._report(1.0, "writing the table")
        info = self._info(clocks | {"after": device.monitor.read()})
        return self._write(info | {"elapsed_s": round(bench.clock_s() - self._start_s, 1)})

    def _check_kernels(self) -> None:
        """Compile all kernels, then refuse to time those with wrong results."""
        self._report(0.0, "compiling the kernels")
        self._compiled = self._bench.compile()
        self._report(0.0, "checking the results of the kernels")
        self._checks = list(self._bench.verify())
        self._refused = refused_ops(self._checks)

    def _measure(self, left: Sequence[Planned], journal: Journal) -> None:
        """Measure what is left of the plan, until time is up."""
        settings, bench = self._settings, self._bench
        usual_s = _BUDGET_S[self._device.kind, settings.quick]
        end_s = self._start_s + (usual_s if settings.budget_s is None else settings.budget_s)
        total_s = self._plan.estimated_s
        done_s = total_s - sum(planned.estimated_s for planned in left)
        for planned in left:
            self._out_of_time = self._out_of_time or bench.clock_s() > end_s
            self._report(done_s / total_s, planned.point.label())
            try:
                if reason := OUT_OF_TIME if self._out_of_time else self._refused.get(planned.point.op):
                    raise Refused(reason)
                entry = measure_point(planned, bench, self._device)
            except Refused as refusal:
                self._skipped.append(Skipped(planned.point, str(refusal)))
            else:
                self._entries[planned.point] = entry
                journal.add(entry)
            done_s += planned.estimated_s
            self._watch()

    def _watch(self) -> None:
        """Ask the driver for clocks and throttling, once a second."""
        now_s = self._bench.clock_s()
        if now_s - self._read_s >= _READ_EVERY_S:
            self._read_s = now_s
            reading = self._device.monitor.read()
            if reading is not None:
                self._readings.append(reading)

    def _info(self, clocks: Mapping[str, Reading | None]) -> Info:
        device, plan, entries, during = self._device, self._plan, list(self._entries.values()), summary(self._readings)
        return {
            "schema": INFO_SCHEMA,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": device.kind,
            "identity": self._identity,
            "memory_bytes": device.memory_bytes,
            "cache_bytes": device.cache_bytes,
            "clocks": {when: reading and reading.to_json() for when, reading in clocks.items()} | {"during": during},
            "throttling_seen": during.get("throttling") if during else None,
            "ceilings": outcome.ceilings(entries),
            "gemm_backends": outcome.gemm_backends(entries),
            "spreads": {op: asdict(spread) for op, spread in outcome.spreads(entries).items()},
            "checks": [
                {name: getattr(check, name) for name in ("name", "passed", "max_error")} for check in self._checks
            ],
            "compiled": self._compiled and asdict(self._compiled),
            "skipped": [{"point": item.point.label(), "reason": item.reason} for item in self._skipped],
            "plan": {
                "points": len(plan.points),
                "estimated_s": round(plan.estimated_s, 1),
                "resumed": self._num_resumed,
            },
        }

    def _notes(self, info: Info) -> tuple[str, ...]:
        """What the user should know, one line each."""
        device, notes = self._device, []
        if self._num_resumed:
            notes.append(f"went on from {self._num_resumed} points measured before")
        late = sum(item.reason == OUT_OF_TIME for item in self._skipped)
        if late:
            notes.append(f"{late} points were left out because time was up; the same command measures them next")
        if len(self._skipped) > late:
            notes.append(f"{len(self._skipped) - late} points were skipped, see {INFO_NAME}")
        if self._compiled and self._compiled.faults:
            notes.append(f"{len(self._compiled.faults)} compiled kernels spill or do not fit, see {INFO_NAME}")
        failed = [check.name for check in self._checks if not check.passed]
        if failed:
            notes.append(f"kernels with wrong results, not timed: {', '.join(failed)}")
        if device.kind == "cuda" and device.monitor.missing:
            notes.append(f"clocks and throttling are not known: {device.monitor.missing}")
        if info["throttling_seen"]:
            notes.append(f"the GPU slowed itself down while measured: {', '.join(info['throttling_seen'])}")
        uncaptured = sum(bool(entry.timing.note) for entry in self._entries.values())
        if uncaptured:
            notes.append(f"{uncaptured} points could not be captured as a graph: gaps between launches may count")
        if device.kind == "cuda" and len(device.peers) < 2:
            notes.append("links between GPUs were not measured: there is one GPU of this kind")
        if device.kind == "cpu":
            notes.append("no host_overhead on a CPU: the time of each call includes its launch")
        return tuple(notes)

    def _write(self, info: Info) -> Measured:
        """Table and info; the journal goes away once nothing is left to go on with."""
        folder = self._settings.out_dir
        table_path, info_path = folder / TABLE_NAME, folder / INFO_NAME
        table, notes = outcome.table_text(self._entries.values()), self._notes(info)
        outcome.write_text(table_path, table)
        outcome.write_info(info_path, info | {"notes": list(notes), "table": outcome.table_info(table)})
        if not self._out_of_time:
            (folder / JOURNAL_NAME).unlink()
        return Measured(table_path, info_path, tuple(self._skipped), notes)
