"""Where words go: results to stdout, talk and progress to stderr. Used by `cli` only.

The wall clock is read here, for the progress bar alone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from simkit.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PROGRESS_AFTER_S = 2.0
MIN_PIPED_WIDTH = 100
MIN_WIDTH = 40


class Report(Protocol):
    """What a long task calls: `done` from 0 to 1, `label` says what it is at."""

    def __call__(self, done: float, label: str) -> None: ...


class StdoutClosed(Exception):
    """The reader of stdout went away (``simkit models | head``): stop quietly."""


def width() -> int:
    """Columns of stdout, at least 100 when it is no terminal and COLUMNS does not say otherwise."""
    return _stdout().width


def _stdout() -> Console:
    from rich.console import Console

    if sys.stdout is None:  # the shell closed it (>&-)
        raise StdoutClosed
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.width = max(MIN_WIDTH, console.width)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = max(MIN_PIPED_WIDTH, console.width)
    return console


def out(*renderables: RenderableType) -> None:
    """Print tables to stdout. Raises StdoutClosed."""
    console = _stdout()
    try:
        for renderable in renderables:
            console.print(renderable)
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as error:
        raise _cannot_print(error) from None


def _cannot_print(error: OSError) -> InputError:
    return InputError(f"stdout: cannot be written: {error.strerror or error}")


def out_bytes(content: bytes) -> None:
    """Write bytes to stdout exactly as they are. Raises StdoutClosed."""
    if sys.stdout is None:
        raise StdoutClosed
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as error:
        raise _cannot_print(error) from None


def out_lines(lines: Sequence[str]) -> None:
    """Print plain lines to stdout, not wrapped. Raises StdoutClosed."""
    out_bytes("".join(f"{line}\n" for line in lines).encode())


def say(text: str) -> None:
    """One line to stderr."""
    if sys.stderr is None:
        return
    # The text may quote a file name that no encoding can print; stderr escapes what it must.
    print(" ".join(text.splitlines()), file=sys.stderr, flush=True)


@contextmanager
def progress(quiet: bool) -> Iterator[Report | None]:
    """A progress callback that draws a bar on stderr once the task has taken 2 s; None when nobody would see it."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.stop()


class _Bar:
    """Opens by itself after a while: a study may be silent until its first simulation is finished."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._last: tuple[float, str] = (0.0, "")
        self._bar: Any = None
        self._task: Any = None
        self._timer = threading.Timer(PROGRESS_AFTER_S, self._open)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, done: float, label: str) -> None:
        with self._lock:
            self._last = (min(1.0, max(0.0, done)), label)
            self._show()

    def _show(self) -> None:
        if self._bar is not None:
            done, label = self._last
            self._bar.update(self._task, completed=done, description=label)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            TimeRemainingColumn(),
            TextColumn("to go"),
        )
        with self._lock:
            if self._timer.finished.is_set():  # stopped meanwhile
                return
            # A single simulation may take minutes: the speed is that of the whole time, not of the last seconds.
            bar = Progress(
                *columns, console=Console(file=sys.stderr), transient=True, speed_estimate_period=float("inf")
            )
            self._task = bar.add_task("", total=1.0)
            bar.tasks[0].start_time = self._start
            bar.start()
            self._bar = bar
            self._show()

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
