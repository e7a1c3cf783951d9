"""The command line: its commands and options, and the only place that exits. A command is a module of its own, but for
those that only print.

Exit codes: 0 done, 1 a check failed, 2 the input is wrong (one line on stderr), 130 interrupted. Heavy modules are
imported by the commands that need them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from simkit.cli import calibrate, compare, console, doctor, log, memory, output, plan, run, validate
from simkit.cli.options import Json, Printing, expanded
from simkit.errors import OUT_OF_MEMORY, CheckError, InputError
from simkit.version import __version__

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
        return _fail(2, OUT_OF_MEMORY)
    except output.Stopped as stopped:
        return _fail(130, str(stopped))
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


# In the order in which --help lists them.
for _command in (
    run.run, compare.compare, compare.sweep, plan.plan, run.replay, validate.validate, memory.memory, doctor.doctor,
):  # fmt: skip
    app.command()(expanded(_command))
app.add_typer(log.app)
app.command()(expanded(calibrate.calibrate))


@app.command()
@expanded
def conform(
    *,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recorded traces, or folders of them.")],
    printing: Printing,
) -> None:
    """Replay recorded decisions of the real scheduler and compare every integer."""
    from simkit.conformance import check
    from simkit.conformance.recorded import find_recordings

    files = [file for path in paths for file in find_recordings(path)]
    verdicts = []
    with console.progress(printing.quiet) as progress:
        for index, file in enumerate(files):
            if progress is not None:
                progress(index / len(files), file.name)
            verdicts.append(check.check_file(file))
            if not printing.json:
                console.out_lines(check.describe(verdicts[-1]))
    exact = sum(verdict.exact for verdict in verdicts)
    output.finish(
        printing,
        tuple,
        {"exact": exact, "cases": len(verdicts), "verdicts": verdicts},
        lines=[f"{exact} of {len(verdicts)} exact"],
    )
    if exact < len(verdicts):
        raise CheckError(f"{len(verdicts) - exact} of {len(verdicts)} cases differ from the recorded scheduler")


@app.command()
def init() -> None:
    """Print a commented scenario to start from."""
    from simkit.scenario import template

    console.out_bytes(template().encode())


@app.command()
def models(json: Json = False) -> None:
    """List the models, and what is not modelled."""
    from simkit.report.sections import specs
    from simkit.specs import models as registry

    found = registry.list_models()
    output.finish(
        Printing(json=json),
        lambda: specs.model_tables(found, registry.NOT_MODELLED, console.width()),
        found,
    )


@app.command()
def gpus(json: Json = False) -> None:
    """List the GPUs."""
    from simkit.report.sections import specs
    from simkit.specs import hardware

    found = hardware.list_gpus()
    output.finish(Printing(json=json), lambda: specs.gpu_tables(found, console.width()), found)


@app.command()
def profiles(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One that ships, or a profile file (default: all that ship).")
    ] = None,
    json: Json = False,
) -> None:
    """List the calibrated profiles that ship, their errors, and where they are valid."""
    from simkit.latency import profile as known
    from simkit.report.sections import specs as sections

    chosen = known.list_profiles() if name is None else [known.load_profile(name)]
    found = [known.describe(one) for one in chosen]
    output.finish(Printing(json=json), lambda: sections.profiles_tables(found, console.width()), found)


def main() -> NoReturn:
    """Entry point of the ``simkit`` command."""
    # What is imported and read stays to the end: looking for garbage among it takes a tenth of a short command's time.
    gc.set_threshold(100_000, 50, 50)
    app()
    sys.exit(0)
