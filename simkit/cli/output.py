"""What a command writes and says: the directory it writes, how it is interrupted, and its epilogue."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkit.cli import console
from simkit.errors import Interrupted, unwritable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from simkit.cli.options import Printing, RunOptions, StudyOptions
    from simkit.runs.replication import Result
    from simkit.studies.study import Failure, Options


class Stopped(Exception):
    """An interrupt that has something to say, which typer would drop from a KeyboardInterrupt."""


# --- the directory ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Target:
    """The directory that a command writes, chosen before the work; `label` names it in messages.

    `replaced` is the name of the run of simkit that is there already. The finished simulations of a study that does not
    end are kept in `kept`.
    """

    path: Path
    label: str
    replaced: str | None
    kept: Path

    @classmethod
    def choose(cls, out: Path | None, name: str) -> Target:
        """`out`, or ``./runs/NAME`` where it is not given. Raises InputError for a place that cannot be written."""
        from simkit.runs import directory

        path, overwrite = directory.choose(out, name)
        replaced = directory.name_of(path) if overwrite else None
        return cls(path, _label(out, path), replaced, directory.kept_dir(path))

    def options(self, study: StudyOptions, printing: Printing) -> Options:
        """How a study is run whose finished simulations are kept."""
        options = study.options(printing)
        options["resume_dir"], options["resume"] = self.kept, study.resume
        return options

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """SIGTERM stops like Ctrl-C; both say how to go on where something was kept."""

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        before: Any = None
        with contextlib.suppress(ValueError):  # not in the main thread
            before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        except Interrupted as error:
            raise Stopped(str(error)) from None
        except KeyboardInterrupt:
            if self.kept.is_dir():
                raise Stopped("interrupted: the simulations are kept; add --resume to go on") from None
            raise
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def writing(self, progress: console.Report | None = None) -> Iterator[Path]:
        """Where to write. Says in one line why it could not be written (disk full, permission)."""
        if progress is not None:
            progress(1.0, "writing")
        with _writable(self.label):
            yield self.path

    def clear_kept(self) -> None:
        """Drop what was kept: there is nothing left to go on with."""
        if self.kept.is_dir():
            from simkit.studies import checkpoint

            checkpoint.clear(self.kept)


def writing(out: Path | None, path: Path) -> contextlib.AbstractContextManager[None]:
    """The same for a single file, `out` being what the user gave."""
    return _writable(_label(out, path))


def _label(out: Path | None, path: Path) -> str:
    return f"--out {out}" if out is not None else str(path)


@contextlib.contextmanager
def _writable(label: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(label, error) from None


# --- the epilogue -----------------------------------------------------------------------------------------------------
def finish(
    printing: Printing,
    tables: Callable[[], Iterable[RenderableType]],
    json: object,
    *,
    lines: Iterable[str] = (),
    before: Iterable[str] = (),
    after: Iterable[str] = (),
) -> None:
    """What a command ends with: notes, its tables and plain lines under them, or its JSON, and what is said beneath.

    `json` is the file that holds it, or what becomes it. What is not shown is not asked for.
    """
    from simkit.plain import canonical_json

    say(printing, before)
    if printing.json:
        console.out_bytes(json.read_bytes() if isinstance(json, Path) else canonical_json(json))
    else:
        console.out(*tables())
        console.out_lines(list(lines))
    say(printing, after)


def say(printing: Printing, lines: Iterable[str]) -> None:
    """Lines to stderr, but for a quiet command, which does not even ask for them."""
    if not printing.quiet:
        for line in lines:
            console.say(line)


def wrote(written: Path, printing: RunOptions, page: str = "report.html") -> str:
    """Where the output is, and the page to open."""
    return f"wrote {written}" + ("" if printing.no_report else f"; open {written / page}")


def notes(replaced: str | None, results: Iterable[Result]) -> Iterator[str]:
    """What the reader should know about one or several runs, a line each, nothing twice.

    `replaced` names the run that was in the same place before.
    """
    if replaced is not None:
        yield f"note: replaced the earlier run {replaced!r} in the same place; choose --out to keep both"
    manifests = [result.manifest for result in results]
    said = [note for manifest in manifests for note in manifest.get("notes") or []]
    keys = [key for manifest in manifests for key in manifest.get("not_simulated") or []]
    yield from dict.fromkeys([*said, *not_simulated(list(dict.fromkeys(keys)))])


def not_simulated(keys: Iterable[str]) -> list[str]:
    """The line that names settings which were accepted but have no effect yet, if there are any."""
    listed = ", ".join(keys)
    return [f"note: accepted but not simulated yet, run as off: {listed}"] if listed else []


def alarms(result: Result, written: Path) -> Iterator[str]:
    """One line when a rule of the doctor finds something to do."""
    from simkit.diagnosis.rules import alarm_line, diagnose
    from simkit.studies.doctor import facts_of

    line = alarm_line(diagnose(facts_of(result)))
    if line is not None:
        yield f"doctor: {line}; `simkit doctor {written}` proves what helps"


def tell_failures(word: str, failed: Mapping[str, Failure], target: Target, printing: Printing) -> int:
    """One line for everything that failed, and the exit code; kept simulations are of no more use without failures."""
    from simkit.studies.study import exit_code

    for name, failure in failed.items():
        console.say(f"{word} {failure.line(name)}")
    if not failed:
        target.clear_kept()
    elif target.kept.is_dir():
        say(printing, ["note: the finished simulations are kept; with --resume only the others are made again"])
    return exit_code(failed)
