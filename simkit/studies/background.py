"""A piece of work in a second process while the first one goes on. Owns that process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simkit.errors import CheckError, InputError

Work = Callable[[], Any]


class BackgroundError(Exception):
    """The work has no result, and why."""


@contextmanager
def in_background(work: Work) -> Iterator[Callable[[], Any]]:
    """Start `work`; inside, the function given waits for its result, and raises BackgroundError when there is none.

    The second process is a copy of this one, so that nothing is loaded twice; where there are no such copies the work
    is done here when it is asked for. Whatever happens to the block, no process is left behind.
    """
    import multiprocessing

    if "fork" not in multiprocessing.get_all_start_methods():
        yield lambda: _result(_outcome(work))
        return
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, there), daemon=True)
    process.start()
    there.close()
    try:
        yield lambda: _receive(here)
    finally:
        here.close()
        process.kill()
        process.join()


def _receive(here: Any) -> Any:
    try:
        outcome = here.recv()
    except EOFError:
        raise BackgroundError("the process that made it died (killed, or out of memory)") from None
    return _result(outcome)


def _send(work: Work, there: Any) -> None:
    # An interrupt is for the first process, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    there.send(_outcome(work))


def _outcome(work: Work) -> tuple[bool, Any]:
    try:
        return True, work()
    except (InputError, CheckError, MemoryError) as error:
        return False, str(error) or "out of memory"


def _result(outcome: tuple[bool, Any]) -> Any:
    done, result = outcome
    if not done:
        raise BackgroundError(result)
    return result
