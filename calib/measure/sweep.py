"""`simkit calibrate --gpu 0` and `--device cpu`: runs a plan on a device and writes the kernel table.

Owns the order of events (correctness, ceilings, grid), what is skipped and why, the time budget and going on after an
interruption. Knows no shapes and no kernels.device` and the op modules do, when called.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from calib import CalibrationError
from calib.measure import outcome
from calib.measure.bench import Bench, Check, Compiled, Refused, measure_point
from calib.measure.device import Device, Reading, find_device, import_torch, summary
from calib.measure.gpu_ops import refused_ops
from calib.measure.grid import Plan, Planned, default_models, make_plan
from calib.measure.journal import Entry, Journal, open_journal
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


@dataclass(slots=True)
class _State:
    """What has happened so far. `refused` maps an op to the reason why its kernel is not timed."""

    entries: dict[Point, Entry]
    num_resumed: int
    skipped: list[Skipped] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    compiled: Compiled | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    out_of_time: bool = False
    read_s: float = float("-inf")


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

        return Bench(CpuOps(device), CpuTimer(), lambda: ())
    from calib.measure.gpu_ops import GpuOps

    torch, ops = import_torch(), GpuOps(device, step_model)
    dtype = getattr(torch, ops.dtype)

    def verify() -> Iterable[Check]:
        checks: Iterable[Check] = importlib.import_module("calib.verify.verify").verify(device.torch_name, (dtype,))
        return checks

    def compile_kernels() -> Compiled:
        compiled = importlib.import_module("calib.verify.compiled")
        wanted = importlib.import_module("calib.verify.compiled").variants(device.capability, dtype)
        reports = compiled.compile_all(wanted, device.capability)
        faults = tuple(f"{report.name}: {report.reason}" for report in reports if not report.ok)
        return Compiled(len(reports), max((report.shared_bytes or 0 for report in reports), default=0), faults)

    return Bench(ops, CudaTimer(torch), verify, compile=compile_kernels)


def run(
    settings: SweepSettings,
    device: Device,
    models: tuple[ModelShapes, ...],
    bench: Bench,
    progress: Progress | None = None,
) -> Measured:
    """Run the plan of the models with the given bench. Everything but finding the device."""
    start_s = bench.clock_s()
    plan = make_plan(models, cpu=device.kind == "cpu", quick=settings.quick, cache_bytes=device.cache_bytes)
    identity = {
        **device.identity(),
        "dtype": bench.ops.dtype,
        "models": [f"{model.name}@{model.ranks}" for model in models],
        "quick": settings.quick,
    }
    try:
        settings.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalibrationError(f"{settings.out_dir}: {error.strerror or error}") from None
    journal, entries = open_journal(settings.out_dir / JOURNAL_NAME, identity, resume=settings.resume)
    state = _State(entries, len(entries))
    before = device.monitor.read()
    report = progress or (lambda done, label: None)
    shapes = ", ".join(f"{model.name}@{model.ranks}" for model in models)
    report(0.0, f"{plan.describe()}, shapes of {shapes}")
    with journal, bench.ops.session():
        left = [planned for planned in plan.points if planned.point not in entries]
        if left and device.kind == "cuda":
            report(0.0, "compiling the kernels")
            state.compiled = bench.compile()
            report(0.0, "checking the results of the kernels")
            state.checks = list(bench.verify())
            state.refused = refused_ops(state.checks)
        end_s = start_s + (_BUDGET_S[device.kind, settings.quick] if settings.budget_s is None else settings.budget_s)
        _run_points(left, plan, state, bench, device, end_s, journal, report)
    report(1.0, "writing the table")
    clocks = {"before": before, "after": device.monitor.read()}
    info = _info(identity, device, plan, state, clocks) | {"elapsed_s": round(bench.clock_s() - start_s, 1)}
    return _write(settings, device, state, info)


def _run_points(
    left: Sequence[Planned],
    plan: Plan,
    state: _State,
    bench: Bench,
    device: Device,
    end_s: float,
    journal: Journal,
    report: Progress,
) -> None:
    """Measure what is left of the plan, until time is up."""
    total_s = plan.estimated_s
    done_s = total_s - sum(planned.estimated_s for planned in left)
    for planned in left:
        state.out_of_time = state.out_of_time or bench.clock_s() > end_s
        report(done_s / total_s, planned.point.label())
        try:
            if reason := OUT_OF_TIME if state.out_of_time else state.refused.get(planned.point.op):
                raise Refused(reason)
            entry = measure_point(planned, bench, device)
        except Refused as refusal:
            state.skipped.append(Skipped(planned.point, str(refusal)))
        else:
            state.entries[planned.point] = entry
            journal.add(entry)
        done_s += planned.estimated_s
        _watch(state, device, bench)


def _watch(state: _State, device: Device, bench: Bench) -> None:
    """Ask the driver for clocks and throttling, once a second."""
    now_s = bench.clock_s()
    if now_s - state.read_s >= _READ_EVERY_S:
        state.read_s = now_s
        reading = device.monitor.read()
        if reading is not None:
            state.readings.append(reading)


def _info(
    identity: Mapping[str, object], device: Device, plan: Plan, state: _State, clocks: Mapping[str, Reading | None]
) -> Info:
    entries = list(state.entries.values())
    during = summary(state.readings)
    return {
        "schema": INFO_SCHEMA,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "kind": device.kind,
        "identity": dict(identity),
        "memory_bytes": device.memory_bytes,
        "cache_bytes": device.cache_bytes,
        "clocks": {when: reading and reading.to_json() for when, reading in clocks.items()} | {"during": during},
        "throttling_seen": during.get("throttling") if during else None,
        "ceilings": outcome.ceilings(entries),
        "gemm_backends": outcome.gemm_backends(entries),
        "spreads": {op: asdict(spread) for op, spread in outcome.spreads(entries).items()},
        "checks": [
            {"name": check.name, "passed": check.passed, "max_error": check.max_error} for check in state.checks
        ],
        "compiled": state.compiled and asdict(state.compiled),
        "skipped": [{"point": item.point.label(), "reason": item.reason} for item in state.skipped],
        "plan": {"points": len(plan.points), "estimated_s": round(plan.estimated_s, 1), "resumed": state.num_resumed},
    }


def _notes(device: Device, state: _State, info: Info) -> tuple[str, ...]:
    """What the user should know, one line each."""
    entries, notes = state.entries.values(), []
    if state.num_resumed:
        notes.append(f"went on from {state.num_resumed} points measured before")
    late = sum(item.reason == OUT_OF_TIME for item in state.skipped)
    if late:
        notes.append(f"{late} points were left out because time was up; the same command measures them next")
    if len(state.skipped) > late:
        notes.append(f"{len(state.skipped) - late} points were skipped, see {INFO_NAME}")
    if state.compiled and state.compiled.faults:
        notes.append(f"{len(state.compiled.faults)} compiled kernels spill or do not fit, see {INFO_NAME}")
    failed = [check.name for check in state.checks if not check.passed]
    if failed:
        notes.append(f"kernels with wrong results, not timed: {', '.join(failed)}")
    if device.kind == "cuda" and device.monitor.missing:
        notes.append(f"clocks and throttling are not known: {device.monitor.missing}")
    if info["throttling_seen"]:
        notes.append(f"the GPU slowed itself down while measured: {', '.join(info['throttling_seen'])}")
    uncaptured = sum(bool(entry.timing.note) for entry in entries)
    if uncaptured:
        notes.append(f"{uncaptured} points could not be captured as a graph: gaps between launches may count")
    if device.kind == "cpu":
        notes.append("no host_overhead on a CPU: the time of each call includes its launch")
    return tuple(notes)


def _write(settings: SweepSettings, device: Device, state: _State, info: Info) -> Measured:
    """Table and info; the journal goes away once nothing is left to go on with."""
    table_path, info_path = settings.out_dir / TABLE_NAME, settings.out_dir / INFO_NAME
    table = outcome.table_text(state.entries.values())
    notes = _notes(device, state, info)
    outcome.write_text(table_path, table)
    outcome.write_info(info_path, info | {"notes": list(notes), "table": outcome.table_info(table)})
    if not state.out_of_time:
        (settings.out_dir / JOURNAL_NAME).unlink()
    return Measured(table_path, info_path, tuple(state.skipped), notes)
