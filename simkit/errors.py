"""The errors that a user can cause or must be told of, and the wording helpers they share.

All exceptions, each with what it means; below its name the module of one that a single room raises. Those whose name
begins with an underscore never leave their module.

    KeyboardInterrupt
    └── Interrupted             a study was stopped; what is finished is kept
    Exception
    ├── InputError              the input is wrong
    │   └── ProfileError        a profile cannot be used (simkit.latency.profile.values)
    │       └── NotMeasured     it lacks an operation of the model (simkit.latency.profile.values)
    ├── CheckError              a check failed
    ├── Stopped                 an interrupt that has something to say (simkit.cli.output)
    ├── StdoutClosed            nobody reads any more (simkit.cli.console)
    ├── Overload                a run was given up (simkit.engine.run)
    ├── TooMany                 an arrival is one too many (simkit.engine.system)
    ├── BlocksMatter            blocks need names after all (simkit.engine.system)
    ├── BackgroundError         a second process has no result (simkit.studies.uniform_twin)
    ├── Unsuitable              a row cannot become a simulation (simkit.validation.rows.refusals)
    ├── NoConfig                a model's config is not to be had (simkit.specs.hub)
    ├── Refusal                 a file is refused while it is read (simkit.logs.read.text)
    ├── CalibrationError        calibration cannot start or go on (calib)
    └── Refused                 an operation cannot be measured here (calib.measure.bench)
    ValueError
    └── BadCell                 a value of a log cannot be read (simkit.logs.read.log)

Only `simkit.cli.app` makes exit codes of them: `InputError` 2, `CheckError` 1, `Interrupted` and `Stopped` 130.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(Exception):
    """The input is wrong, in one line: `text` says what was expected, what came instead and the nearest valid name.

    `key` is the dotted key of the scenario that is to blame, None where nobody has said which; `where` is the place
    that wrote it (``file:line``, ``--set KEY``), empty where only the scenario knows. `str()` is ``WHERE: KEY: TEXT``.
    A text that names the thing itself (``model m: ...``) does without the key until the place is known: `says_key`
    is then false.
    """

    def __init__(self, text: str, *, key: str | None = None, where: str = "", says_key: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.key = key
        self.where = where
        self.says_key = says_key

    @property
    def said(self) -> str:
        """``KEY: TEXT``, what is said behind the place."""
        key = self.key if self.says_key or self.where else None
        return f"{key}: {self.text}" if key else self.text

    def __str__(self) -> str:
        return f"{self.where}: {self.said}" if self.where else self.said


@contextmanager
def about(key: str, *, says_key: bool = True) -> Iterator[None]:
    """Blame `key` for every InputError inside that names no key of its own."""
    try:
        yield
    except InputError as error:
        if error.key is None:
            error.key, error.says_key = key, says_key
        raise


class CheckError(Exception):
    """A check failed: a broken invariant, a livelock, a missed target."""


class Interrupted(KeyboardInterrupt):
    """The user stopped a study whose finished simulations are kept; the text says how many and how to go on."""


def unwritable(label: str, error: Exception) -> InputError:
    """The line for an output that cannot be written."""
    return InputError(f"{label}: cannot be written: {getattr(error, 'strerror', None) or error}")


OUT_OF_MEMORY = "out of memory: expected a smaller workload.num_requests, or fewer requests inside at a time"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A clause naming the closest valid name, e.g. ``"; did you mean 'policy'?"``, or ``""`` when none is close."""
    names = sorted(valid)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    match = match or [other for other in names if name and other.startswith(name)]
    return f"; did you mean {match[0]!r}?" if match else ""
