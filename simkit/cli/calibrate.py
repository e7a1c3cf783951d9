"""The commands about calibrated step times: calibrate, profiles. They parse, call `calib`, write and print.

`calib` is imported by the command that needs it, torch only by what measures. Owns how errors of `calib` become errors
of input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console
from simkit.cli.from_run import from_run as fit_from_run
from simkit.cli.studies import Json, Quiet, Sets, Stopped
from simkit.cli.trace import Map, columns_of, flag_of
from simkit.errors import InputError

if TYPE_CHECKING:
    from calib.fit.fit import FitResult
    from calib.table import Table
    from simkit.specs.hardware import GpuSpec

SUSPICIOUS_SHARE = 0.05
"""Share of the rows of an op beyond the hardware from which on the table may be of another GPU."""

Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="Model whose shapes are measured; repeatable (default: a set of common shapes)."),
]


def calibrate(
    gpu: Annotated[int | None, typer.Option("--gpu", metavar="N", min=0, help="Measure this CUDA device.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu", help="Measure torch on the CPU, to try everything out.")
    ] = None,
    from_csv: Annotated[
        Path | None,
        typer.Option("--from-csv", metavar="FILE", help="Fit a kernel table (.csv or .csv.gz), measure nothing."),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option("--from-run", metavar="LOG", help="Fit the host terms of an engine to this log of a real run."),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="With --from-run: the engine that served the log.")
    ] = None,
    format: Annotated[str | None, typer.Option("--format", metavar="NAME", help="Format of the log.")] = None,
    map: Map = None,
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", metavar="s|ms|us|ns", help="Unit of the log's times.")
    ] = None,
    start: Annotated[
        float | None, typer.Option("--start", metavar="S", help="Fit to a part of the log, from here.")
    ] = None,
    end: Annotated[float | None, typer.Option("--end", metavar="S", help="Its end, not included.")] = None,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", metavar="N", help="The first so many of the log.")
    ] = None,
    sets: Sets = None,
    date: Annotated[
        str | None,
        typer.Option("--date", metavar="YYYY-MM-DD", help="Date of the run, for the profile (default: none)."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile (default: of the GPU).")] = None,
    gpu_spec: Annotated[
        str | None,
        typer.Option(
            "--gpu-spec", metavar="NAME", help="GPU of `simkit gpus`, or a YAML file, when it is not recognised."
        ),
    ] = None,
    model: Models = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid: under 2 minutes.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Measure again what an interrupted run measured.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="P.json", help="Profile to write (default calibration/<name>/<name>.json)."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the kernels of a GPU and fit a profile of step times, or fit one from a kernel table or to a real run."""
    sources = {"--gpu": gpu, "--device": device, "--from-csv": from_csv, "--from-run": from_run}
    chosen = [flag for flag, value in sources.items() if value is not None]
    if len(chosen) != 1:
        raise InputError(f"calibrate: expected one of {', '.join(sources)}, got {' and '.join(chosen) or 'none'}")
    _check_names(name, out)
    measured_only = {"--model": model, "--quick": quick, "--restart": restart}
    if from_csv is not None or from_run is not None:
        for flag in (flag for flag, value in measured_only.items() if value):
            raise InputError(f"{flag}: nothing is measured with {chosen[0]}")
    log = {
        "format": format, "map": columns_of(map) or None, "time_unit": time_unit, "start_s": start, "end_s": end,
        "max_requests": max_requests,
    }  # fmt: skip
    if from_run is not None:
        if gpu_spec is not None:
            raise InputError("--gpu-spec: the GPU is that of the scenario with --from-run")
        given = {"path": str(from_run)} | {key: value for key, value in log.items() if value is not None}
        fit_from_run(scenario, given, sets, name=name, date=date, out=out, json=json, quiet=quiet)
        return
    run_only = {"--scenario": scenario, "--set": sets, "--date": date, **{flag_of(k): v for k, v in log.items()}}
    for flag in (flag for flag, value in run_only.items() if value is not None):
        raise InputError(f"{flag}: expected with --from-run only")
    if from_csv is not None:
        _from_csv(from_csv, name, gpu_spec, out, json, quiet)
        return
    if device not in (None, "cpu"):
        raise InputError(f"--device: expected cpu, got {device!r}; for a CUDA device use --gpu N")
    _measure("cpu" if gpu is None else f"cuda:{gpu}", name, gpu_spec, model, quick, restart, out, json, quiet)


def _check_names(name: str | None, out: Path | None) -> None:
    """Refuse, before anything is measured, a name or a file that a profile cannot have."""
    from simkit.latency.profile import NAME

    if name is not None and not NAME.fullmatch(name):
        raise InputError(f"--name: expected letters, digits, dots, dashes and underscores, got {name!a}")
    if out is not None and (out.suffix != ".json" or out.is_dir()):
        raise InputError(f"--out: expected a file that ends in .json, got {str(out)!r}")


def _from_csv(path: Path, name: str | None, gpu_spec: str | None, out: Path | None, json: bool, quiet: bool) -> None:
    from simkit.specs.hardware import list_gpus, load_gpu

    with _calibrating():
        from calib.measure.outcome import info_beside, provenance_of, spec_of
        from calib.table import read_table

        info = info_beside(path)
        if info is not None and gpu_spec is None:
            chosen = name or ("cpu" if info["kind"] == "cpu" else f"{info['identity']['gpu']}-measured")
            _fit(read_table(path), spec_of(info, None), chosen, provenance_of(info), out, json, quiet)
            return
        registered = {spec.name for spec in list_gpus()}
        known = gpu_spec or next((text for text in (name, path.name.partition(".")[0]) if text in registered), None)
        if known is None:
            raise InputError(
                f"--gpu-spec: {name or path.name!r} is no registered GPU: say which the table is of (list: simkit gpus)"
            )
        spec = load_gpu(known)
        table = read_table(path)
        _fit(table, spec, name or spec.name, {}, out, json, quiet)


def _measure(
    device: str,
    name: str | None,
    gpu_spec: str | None,
    models: list[str] | None,
    quick: bool,
    restart: bool,
    out: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    if device == "cpu" and gpu_spec is not None:
        raise InputError("--gpu-spec: a CPU has no specification; its limits are measured")
    with _calibrating():
        from calib.measure import sweep
        from calib.measure.device import find_device
        from calib.measure.outcome import provenance_of, read_info, spec_of
        from calib.table import read_table

        folder = Path("calibration") / device.replace("cuda:", "gpu") if out is None else out.parent
        settings = sweep.SweepSettings(
            device, tuple(models or ()), quick=quick, out_dir=folder, resume=not restart, gpu_spec=gpu_spec
        )
        found = find_device(device, gpu_spec)
        try:
            with console.progress(quiet) as progress:
                measured = sweep.measure(settings, _Announced(found.name, progress, quiet))
        except KeyboardInterrupt:
            raise Stopped(
                f"interrupted; what was measured is kept in {folder}, the same command goes on from it"
            ) from None
        info = read_info(measured.info_path)
        spec = spec_of(info, gpu_spec)
        if not quiet:
            for note in measured.notes:
                console.say(f"note: {note}")
        chosen = name or ("cpu" if device == "cpu" else f"{spec.name}-measured")
        path = out or folder / f"{chosen}.json"
        try:
            _fit(read_table(measured.table_path), spec, chosen, provenance_of(info), path, json, quiet)
        except KeyboardInterrupt:
            again = f"simkit calibrate --from-csv {measured.table_path} --name {chosen}"
            raise Stopped(f"interrupted; the measurements are in {measured.table_path}: {again}") from None


def _path_of(name: str, out: Path | None) -> Path:
    return out or Path("calibration") / name / f"{name}.json"


def _fit(
    table: Table, spec: GpuSpec, name: str, provenance: dict[str, Any], out: Path | None, json: bool, quiet: bool
) -> None:
    from calib.fit.fit import fit_table

    dropped = _hosts_of(_path_of(name, out))
    with console.progress(quiet) as progress:
        result = fit_table(table, spec, name, provenance, progress=progress)
        written = _write(table, result, out, progress)
    _show(result, written, json, quiet)
    if dropped and not quiet:
        console.say(
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

    name = result.profile.name
    path = _path_of(name, out)
    if progress is not None:
        progress(0.95, "drawing")
    picture = path.with_suffix(".png")
    drafts = {picture: picture.with_name(f"{name}.draft.png"), path: path.with_name(f"{name}.draft.json")}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plot_page(table, result, drafts[picture])
        drafts[path].write_text(result.text, encoding="utf-8")
        for target, draft in drafts.items():
            draft.replace(target)
    except OSError as error:
        raise InputError(f"--out: {path}: {(error.strerror or str(error)).lower()}") from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return path


def _show(result: FitResult, written: Path, json: bool, quiet: bool) -> None:
    from simkit.latency.profile import describe
    from simkit.plain import canonical_json
    from simkit.report.sections import profile

    described: dict[str, Any] = describe(result.profile)
    # The profile keeps the first of each kind; here all are told.
    full = {(report.op, report.dtype): report.as_json(listed=None) for report in result.reports}
    for row in described["ops"]:
        row["report"] = full[row["op"], row["dtype"]]
    if json:
        console.out_bytes(canonical_json(described))
    else:
        console.out(*profile.profile_tables(described, console.width()))
        console.out_lines(profile.listing(described))
    if not quiet:
        for line in result.unusable[:20]:
            console.say(f"note: {line}")
        if len(result.unusable) > 20:
            console.say(f"note: and {len(result.unusable) - 20} more rows that could not be used")
        for report in result.reports:
            if len(report.refused) > report.num_rows * SUSPICIOUS_SHARE:
                share = 100 * len(report.refused) / report.num_rows
                console.say(
                    f"note: {share:.0f} % of the {report.op} {report.dtype} rows are faster than "
                    f"{described['gpu']} allows: is the table of that GPU?"
                )
        console.say(f"wrote {written}; use it with --set latency.profile={written}")


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


@contextlib.contextmanager
def _calibrating() -> Iterator[None]:
    """Errors of `calib` as errors of input."""
    from calib import CalibrationError

    try:
        yield
    except CalibrationError as error:
        raise InputError(str(error)) from None


def profiles(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One that ships, or a profile file (default: all that ship).")
    ] = None,
    json: Json = False,
) -> None:
    """List the calibrated profiles that ship, their errors, and where they are valid."""
    from simkit.latency import profile as known
    from simkit.plain import canonical_json

    chosen = known.list_profiles() if name is None else [known.load_profile(name)]
    found = [known.describe(one) for one in chosen]
    if json:
        console.out_bytes(canonical_json(found))
        return
    from simkit.report.sections import profile

    console.out(*profile.profiles_tables(found, console.width()))
