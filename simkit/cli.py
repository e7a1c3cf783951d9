"""The command line: parses, calls `api` and `planner`, prints, and is the only place that exits.

Exit codes: 0 done, 1 a check failed, 2 the input is wrong (one line on stderr), 130 interrupted. Heavy modules are
imported by the commands that need them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from simkit import __version__, console
from simkit.errors import CheckError, InputError

if TYPE_CHECKING:
    from simkit.scenario import Scenario

# Typer brings click along under a private name in some releases and as a package in others.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class _Group(TyperGroup):
    """Turns every outcome into an exit code and at most one line on stderr."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command. Standalone (the default) exits with the code; else exceptions reach the caller."""
        parsed = functools.partial(
            super().main, args, prog_name, complete_var, standalone_mode=False,
            windows_expand_args=windows_expand_args, **extra,
        )  # fmt: skip
        if not standalone_mode:
            return parsed()
        sys.exit(_code(parsed))


def _code(command: Callable[[], Any]) -> int:
    """The exit code of a command, its error printed."""
    try:
        code = command()
    except InputError as error:
        return _fail(2, str(error))
    except CheckError as error:
        return _fail(1, str(error))
    except MemoryError:
        return _fail(2, "out of memory: expected a smaller workload.num_requests, or fewer requests inside at a time")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except (console.StdoutClosed, BrokenPipeError):
        _discard_stdout()
        return 0
    except SystemExit:  # what click makes of a closed pipe while it prints help
        return 0
    except _UsageError as error:
        return _fail(2, _usage(error))
    if code == 130:
        return _fail(130, "interrupted; nothing was written")
    return code if isinstance(code, int) else 0


def _fail(code: int, text: str) -> int:
    console.say(text)
    return code


def _usage(error: Any) -> str:
    """A usage error in one line, with the help that applies."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", None) or "simkit"
    return f"{error.format_message().rstrip('.')}; see `{command} --help`"


def _discard_stdout() -> None:
    """Keep the interpreter from flushing into the closed pipe on its way out."""
    import os

    with contextlib.suppress(OSError, ValueError):
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Group,
    name="simkit",
    help="Simulate LLM serving: what batching, KV memory and GPUs do to throughput and latency.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_File = Annotated[Path | None, typer.Argument(metavar="SCENARIO", help="Scenario file; `simkit init` prints one.")]
_Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run directory (default ./runs/<name>).")]
_Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a scenario key; repeatable.")
]
_Seed = Annotated[int | None, typer.Option("--seed", help="Shorthand for --set seed=N.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or paths on stderr.")]
_NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html.")]


def _version(value: bool) -> None:
    if value:
        print(f"simkit {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        console.out_bytes((context.get_help() + "\n").encode())


@app.command()
def run(
    scenario: _File = None,
    model: Annotated[str | None, typer.Option("--model", help="Instead of a file: model name.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Instead of a file: GPU name.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Instead of a file: requests per second.")] = None,
    prompt: Annotated[int | None, typer.Option("--prompt", help="Instead of a file: prompt tokens.")] = None,
    output: Annotated[int | None, typer.Option("--output", help="Instead of a file: output tokens.")] = None,
    out: _Out = None,
    sets: _Sets = None,
    seed: _Seed = None,
    json: _Json = False,
    quiet: _Quiet = False,
    no_report: _NoReport = False,
) -> None:
    """Simulate one scenario and write its run directory."""
    flags = {"--model": model, "--gpu": gpu, "--rate": rate, "--prompt": prompt, "--output": output}
    settings = _settings(sets, seed)
    chosen = _from_flags(flags, settings) if scenario is None else _from_file(scenario, flags, settings)
    from simkit import api, rundir

    out_dir, overwrite = rundir.choose(out, chosen.name)
    with console.progress(quiet) as progress:
        result = api.run(chosen, base_dir=chosen.base_dir, progress=progress)
        replaced = rundir.name_of(out_dir) if overwrite else None
        if progress is not None:
            progress(1.0, "writing")
        with _writing(out, out_dir):
            written = api.write(result, out_dir, overwrite=True, report=not no_report)
    if not quiet:
        _notes(replaced, result.manifest)
        idle = result.manifest.get("without_effect")
        if idle:
            console.say(f"note: without effect here: {', '.join(idle)}")
    if json:
        console.out_bytes((written / "summary.json").read_bytes())
    else:
        from simkit.report import tables

        console.out(*tables.run_tables(result.summary, result.manifest, console.width()))
    if not quiet:
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))


@app.command()
def compare(
    scenarios: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO [OTHER]", help="Scenario file, or two to set side by side.")
    ],
    axis: Annotated[
        list[str] | None,
        typer.Option("--axis", metavar="KEY=A,B", help="Further arms, one a value; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output directory (default ./runs/<name>-compare).")
    ] = None,
    sets: _Sets = None,
    seed: _Seed = None,
    json: _Json = False,
    quiet: _Quiet = False,
    no_report: _NoReport = False,
) -> None:
    """Serve the same customers with every batcher and KV allocator, or set two scenarios side by side."""
    from simkit import scenario as schema

    if len(scenarios) > 2:
        raise InputError(f"compare: expected one or two scenario files, got {len(scenarios)}")
    if len(scenarios) == 2 and axis:
        raise InputError("--axis: expected one scenario file with it, got two")
    chosen, *other = [schema.load(path, _settings(sets, seed)) for path in scenarios]
    axes = schema.parse_axes(chosen, axis or [])
    from simkit import api, rundir

    out_dir, overwrite = rundir.choose(out, f"{chosen.name}-compare")
    with console.progress(quiet) as progress:
        if other:
            from simkit.planner.compare import compare_files

            comparison = compare_files(chosen, other[0], progress=progress)
        else:
            from simkit.planner.compare import compare as compare_arms

            comparison = compare_arms(chosen, axes=axes, base_dir=chosen.base_dir, progress=progress)
        replaced = rundir.name_of(out_dir) if overwrite else None
        if progress is not None:
            progress(1.0, "writing")
        with _writing(out, out_dir):
            written = api.write_comparison(comparison, out_dir, overwrite=True, report=not no_report)
    if not quiet:
        _notes(replaced, *(arm.manifest for arm in comparison.arms.values()))
    if json:
        console.out_bytes((written / "compare.json").read_bytes())
    else:
        from simkit.report import tables

        arms = {name: (arm.summary, arm.manifest) for name, arm in comparison.arms.items()}
        console.out(*tables.compare_tables(arms, comparison.paired, console.width()))
    if not quiet:
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))


@app.command()
def conform(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recorded traces, or folders of them.")],
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Replay recorded decisions of the real scheduler and compare every integer."""
    from simkit.conformance import check
    from simkit.conformance.trace import find_traces
    from simkit.manifest import canonical_json

    files = [file for path in paths for file in find_traces(path)]
    verdicts = []
    with console.progress(quiet) as progress:
        for index, file in enumerate(files):
            if progress is not None:
                progress(index / len(files), file.name)
            verdicts.append(check.check_file(file))
            if not json:
                console.out_lines(check.describe(verdicts[-1]))
    exact = sum(verdict.exact for verdict in verdicts)
    if json:
        console.out_bytes(canonical_json({"exact": exact, "cases": len(verdicts), "verdicts": verdicts}))
    else:
        console.out_lines([f"{exact} of {len(verdicts)} exact"])
    if exact < len(verdicts):
        raise CheckError(f"{len(verdicts) - exact} of {len(verdicts)} cases differ from the recorded scheduler")


@app.command()
def init() -> None:
    """Print a commented scenario to start from."""
    from simkit.scenario import template

    console.out_bytes(template().encode())


@app.command()
def models(json: _Json = False) -> None:
    """List the models, and what is not modelled."""
    from simkit import models as registry
    from simkit.manifest import canonical_json

    found = registry.list_models()
    if json:
        console.out_bytes(canonical_json(found))
        return
    from simkit.report import spec_tables

    console.out(*spec_tables.model_tables(found, registry.NOT_MODELLED, console.width()))


@app.command()
def gpus(json: _Json = False) -> None:
    """List the GPUs."""
    from simkit import hardware
    from simkit.manifest import canonical_json

    found = hardware.list_gpus()
    if json:
        console.out_bytes(canonical_json(found))
        return
    from simkit.report import spec_tables

    console.out(*spec_tables.gpu_tables(found, console.width()))


def _settings(sets: list[str] | None, seed: int | None) -> list[str]:
    return [*(sets or []), *([f"seed={seed}"] if seed is not None else [])]


def _from_file(path: Path, flags: dict[str, Any], settings: list[str]) -> Scenario:
    from simkit.scenario import load

    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise InputError(f"{given[0]}: expected a scenario file or {', '.join(flags)}, got both; use --set with a file")
    return load(path, settings)


def _from_flags(flags: dict[str, Any], settings: list[str]) -> Scenario:
    from simkit.scenario import from_flags

    missing = [name for name, value in flags.items() if value is None]
    if len(missing) == len(flags):
        raise InputError(f"run: expected a scenario file or {', '.join(flags)}; `simkit init` prints a scenario")
    if missing:
        raise InputError(
            f"run: {', '.join(missing)} missing; without a scenario file all of {', '.join(flags)} are needed"
        )
    model, gpu, rate, prompt, output = flags.values()
    return from_flags(model, gpu, rate, prompt, output, settings)


def _notes(replaced: str | None, *manifests: dict[str, Any]) -> None:
    """What the reader should know about one or several runs, a line each, nothing twice.

    `replaced` names the run that was in the same place before.
    """
    if replaced is not None:
        console.say(f"note: replaced the earlier run {replaced!r} in the same place; choose --out to keep both")
    notes = [note for manifest in manifests for note in manifest.get("notes") or []]
    keys = [key for manifest in manifests for key in manifest.get("not_simulated") or []]
    line = console.not_simulated_line(list(dict.fromkeys(keys)))
    for text in dict.fromkeys([*notes, *([line] if line else [])]):
        console.say(text)


class _writing:
    """Says in one line why an output directory could not be written (disk full, permission)."""

    def __init__(self, out: Path | None, out_dir: Path) -> None:
        self._label = f"--out {out}" if out is not None else str(out_dir)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            from simkit.rundir import unwritable

            raise unwritable(self._label, error) from None


def main() -> NoReturn:
    """Entry point of the ``simkit`` command."""
    app()
    sys.exit(0)
