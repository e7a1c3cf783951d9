"""The calibrate command: a profile measured, fitted from a kernel table, or fitted to a real run.

`calib` is imported by the command, torch only by what measures. Owns how errors of `calib` become errors of input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simkit.cli import console, host_fit, output
from simkit.cli.options import Map, Printing, Sets, flag_of, given, option, trace_keys, values_of
from simkit.errors import InputError
from simkit.files import new_file

if TYPE_CHECKING:
    from calib.fit.fit import FitResult
    from calib.table import Table
    from calib.tables import Tables
    from simkit.specs.hardware import GpuSpec

SUSPICIOUS_SHARE = 0.05
"""Share of the rows of an op beyond the hardware from which on the table may be of another GPU."""


@dataclass(frozen=True, slots=True)
class ProfileSource:
    """What a profile is made from: exactly one of them."""

    gpu: int | None = given("--gpu", "Measure this CUDA device.", "N", min=0)
    device: str | None = given("--device", "Measure torch on the CPU, to try everything out.", "cpu")
    from_csv: list[Path] | None = given(
        "--from-csv",
        "Fit a kernel table (.csv or .csv.gz), measure nothing; repeatable: parts of one, a table of unequal decodes.",
        "FILE",
    )
    from_run: Path | None = given("--from-run", "Fit the host terms of an engine to this log of a real run.", "LOG")

    def chosen(self) -> str:
        """The option that was given. Raises InputError for several and for none."""
        flags = {flag_of(name): value for name, value in values_of(self).items()}
        given = [flag for flag, value in flags.items() if value not in (None, [])]
        if len(given) != 1:
            raise InputError(f"calibrate: expected one of {', '.join(flags)}, got {' and '.join(given) or 'none'}")
        return given[0]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The part of a log to fit to."""

    format: str | None = given("--format", "Format of the log.", "NAME")
    map: Map = None
    time_unit: str | None = given("--time-unit", "Unit of the log's times.", "s|ms|us|ns")
    start: float | None = given("--start", "Fit to a part of the log, from here.", "S")
    end: float | None = given("--end", "Its end, not included.", "S")
    max_requests: int | None = given("--max-requests", "The first so many of the log.", "N")


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The profile that is made; of its date only with --from-run."""

    date: str | None = given("--date", "Date of the run, for the profile (default: none).", "YYYY-MM-DD")
    name: str | None = given("--name", "Name of the profile (default: of the GPU).")
    gpu_spec: str | None = given(
        "--gpu-spec", "GPU of `simkit gpus`, or a YAML file, when it is not recognised.", "NAME"
    )

    def check(self, out: Path | None) -> None:
        """Refuse, before anything is measured, a name or a file that a profile cannot have."""
        from simkit.latency.profile import NAME

        if self.name is not None and not NAME.fullmatch(self.name):
            raise InputError(f"--name: expected letters, digits, dots, dashes and underscores, got {self.name!a}")
        if out is not None and (out.suffix != ".json" or out.is_dir()):
            raise InputError(f"--out: expected a file that ends in .json, got {str(out)!r}")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What is measured."""

    model: list[str] | None = given(
        "--model", "Model whose shapes are measured; repeatable (default: a set of common shapes)."
    )
    quick: bool = given("--quick", "A coarse grid: under 2 minutes.", default=False)
    restart: bool = given("--restart", "Measure again what an interrupted run measured.", default=False)


def calibrate(
    *,
    source: ProfileSource,
    scenario: Annotated[
        Path | None, option("--scenario", "With --from-run: the engine that served the log.", "FILE")
    ] = None,
    log: LogOptions,
    sets: Sets = None,
    profile: ProfileOptions,
    sweep: SweepOptions,
    out: Annotated[
        Path | None,
        option("--out", "Profile to write (default calibration/<name>/<name>.json).", "P.json"),
    ] = None,
    printing: Printing,
) -> None:
    """Measure the kernels of a GPU and fit a profile of step times, or fit one from a kernel table or to a real run."""
    chosen = source.chosen()
    profile.check(out)
    if source.from_csv or source.from_run is not None:
        for flag in (f"--{name}" for name, value in values_of(sweep).items() if value):
            raise InputError(f"{flag}: nothing is measured with {chosen}")
    trace = trace_keys(log)
    if source.from_run is not None:
        if profile.gpu_spec is not None:
            raise InputError("--gpu-spec: the GPU is that of the scenario with --from-run")
        host_fit.fit_to_run(
            scenario, {"path": str(source.from_run), **trace}, sets, profile.name, profile.date, out, printing
        )
        return
    run_only = {
        "--scenario": scenario,
        "--set": sets,
        "--date": profile.date,
        **{flag_of(k): v for k, v in trace.items()},
    }
    for flag in (flag for flag, value in run_only.items() if value is not None):
        raise InputError(f"{flag}: expected with --from-run only")
    if source.from_csv:
        _from_csv(source.from_csv, profile, out, printing)
        return
    if source.device not in (None, "cpu"):
        raise InputError(f"--device: expected cpu, got {source.device!r}; for a CUDA device use --gpu N")
    _measure("cpu" if source.gpu is None else f"cuda:{source.gpu}", sweep, profile, out, printing)


@contextlib.contextmanager
def _calibrating() -> Iterator[None]:
    """Errors of `calib` as errors of input."""
    from calib import CalibrationError

    try:
        yield
    except CalibrationError as error:
        raise InputError(str(error)) from None


# --- measured, or from a table ----------------------------------------------------------------------------------------
def _from_csv(paths: list[Path], profile: ProfileOptions, out: Path | None, printing: Printing) -> None:
    from simkit.specs.hardware import list_gpus, load_gpu

    with _calibrating():
        from calib.measure.outcome import info_beside, provenance_of, spec_of
        from calib.tables import read_tables

        name, info = profile.name, next(filter(None, map(info_beside, paths)), None)
        if info is not None and profile.gpu_spec is None:
            chosen = name or ("cpu" if info["kind"] == "cpu" else f"{info['identity']['gpu']}-measured")
            _fit(read_tables(paths), spec_of(info, None), chosen, provenance_of(info), out, printing)
            return
        registered = {spec.name for spec in list_gpus()}
        stems = (path.name.partition(".")[0] for path in paths)
        known = profile.gpu_spec or next((text for text in (name, *stems) if text in registered), None)
        if known is None:
            raise InputError(
                f"--gpu-spec: {name or paths[0].name!r} is no registered GPU: say which the table is of (list: simkit "
                "gpus)"
            )
        spec = load_gpu(known)
        _fit(read_tables(paths), spec, name or spec.name, {}, out, printing)


def _measure(device: str, sweep: SweepOptions, profile: ProfileOptions, out: Path | None, printing: Printing) -> None:
    gpu_spec = profile.gpu_spec
    if device == "cpu" and gpu_spec is not None:
        raise InputError("--gpu-spec: a CPU has no specification; its limits are measured")
    with _calibrating():
        from calib.measure.device import find_device
        from calib.measure.outcome import provenance_of, read_info, spec_of
        from calib.measure.sweep import SweepSettings, measure
        from calib.tables import read_tables

        folder = Path("calibration") / device.replace("cuda:", "gpu") if out is None else out.parent
        settings = SweepSettings(
            device, tuple(sweep.model or ()), quick=sweep.quick, out_dir=folder, resume=not sweep.restart,
            gpu_spec=gpu_spec,
        )  # fmt: skip
        found = find_device(device, gpu_spec)
        try:
            with console.progress(printing.quiet) as progress:
                measured = measure(settings, _Announced(found.name, progress, printing.quiet))
        except KeyboardInterrupt:
            kept = f"interrupted; what was measured is kept in {folder}, the same command goes on from it"
            raise output.Stopped(kept) from None
        info = read_info(measured.info_path)
        spec = spec_of(info, gpu_spec)
        output.say(printing, (f"note: {note}" for note in measured.notes))
        chosen = profile.name or ("cpu" if device == "cpu" else f"{spec.name}-measured")
        path = out or folder / f"{chosen}.json"
        try:
            _fit(read_tables([measured.table_path]), spec, chosen, provenance_of(info), path, printing)
        except KeyboardInterrupt:
            again = f"simkit calibrate --from-csv {measured.table_path} --name {chosen}"
            raise output.Stopped(f"interrupted; the measurements are in {measured.table_path}: {again}") from None


class _Announced:
    """Hands progress on, and says in a line of its own what begins: on a pipe there is no bar."""

    def __init__(self, device: str, progress: console.Report | None, quiet: bool) -> None:
        self._device, self._progress, self._silent = device, progress, quiet

    def __call__(self, done: float, label: str) -> None:
        if not self._silent:
            console.say(f"measuring {self._device}: {label}")
            self._silent = True
        if self._progress is not None:
            self._progress(done, label)


def _fit(
    tables: Tables, spec: GpuSpec, name: str, provenance: Mapping[str, Any], out: Path | None, printing: Printing
) -> None:
    from calib.fit.experts import experts_json, formats_of
    from calib.fit.fit import fit_table
    from simkit.latency.profile import describe
    from simkit.report.sections.specs import listing, profile_tables

    dropped = _hosts_of(host_fit.path_of(name, out))
    with console.progress(printing.quiet) as progress:
        if len(tables.files) > 1:
            provenance = {**provenance, "tables": [{"file": file, "sha256": sha256} for file, sha256 in tables.files]}
        formats, notes = ([], []) if tables.experts is None else formats_of(tables.experts, spec)
        experts = [] if tables.experts is None else experts_json(tables.experts, formats, spec)
        table = replace(tables.table, unusable=(*tables.table.unusable, *notes))
        result = fit_table(table, spec, name, provenance, more=tables.launches, experts=experts, progress=progress)
        written = _write(table, result, out, progress)
    described: dict[str, Any] = describe(result.profile)
    # The profile keeps the first of each kind; here all are told.
    full = {(report.op, report.dtype): report.as_json(listed=None) for report in result.reports}
    for row in described["ops"]:
        row["report"] = full.get((row["op"], row["dtype"]), row["report"])
    output.finish(
        printing,
        lambda: profile_tables(described, console.width()),
        described,
        lines=listing(described),
        after=_told(tables, result, str(described["gpu"]), written, dropped),
    )


def _told(tables: Tables, result: FitResult, gpu: str, written: Path, dropped: list[str]) -> Iterator[str]:
    """What is said of a fit beside its tables."""
    if tables.unequal is not None:
        yield f"note: {tables.unequal.text}"
    yield from (f"note: {line}" for line in result.unusable[:20])
    if len(result.unusable) > 20:
        yield f"note: and {len(result.unusable) - 20} more rows that could not be used"
    for report in result.reports:
        if len(report.refused) > report.num_rows * SUSPICIOUS_SHARE:
            share = 100 * len(report.refused) / report.num_rows
            yield (
                f"note: {share:.0f} % of the {report.op} {report.dtype} rows are faster than {gpu} allows: "
                "is the table of that GPU?"
            )
    yield f"wrote {written}; use it with --set latency.profile={written}"
    if dropped:
        yield (
            f"note: the host terms of vLLM {', '.join(dropped)} that {written} had are gone: they were fitted beside "
            "its old step times; fit them again with --from-run"
        )


def _hosts_of(path: Path) -> list[str]:
    """Engine versions that the profile which is replaced has host terms of."""
    from simkit.latency.profile import load_profile

    if not path.is_file():
        return []
    try:
        return list(load_profile(str(path)).engine_hosts)
    except InputError:
        return []


def _write(table: Table, result: FitResult, out: Path | None, progress: console.Report | None) -> Path:
    """The profile, and beside it a page of plots."""
    from calib.plots.page import plot_page

    path = host_fit.path_of(result.profile.name, out)
    if progress is not None:
        progress(0.95, "drawing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as draft, new_file(path.with_suffix(".png")) as picture:
            plot_page(table, result, picture)
            draft.write_text(result.text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out: {path}: {(error.strerror or str(error)).lower()}") from None
    return path
