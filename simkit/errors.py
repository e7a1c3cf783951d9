"""The errors a user can cause or must be told of, and the wording helpers they share.

Only ``simkit.cli.app`` turns them into an exit code: `InputError` 2, `CheckError` 1, `Interrupted` 130.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """The input is wrong: one line with where (file:line or ``--set KEY``), key path, what was expected, nearest."""


class CheckError(Exception):
    """A check failed: a broken invariant, a livelock, a missed target."""


class Interrupted(KeyboardInterrupt):
    """The user stopped a study whose finished simulations are kept; the text says how many and how to go on."""


OUT_OF_MEMORY = "out of memory: expected a smaller workload.num_requests, or fewer requests inside at a time"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A clause naming the closest valid name, e.g. ``"; did you mean 'policy'?"``, or ``""`` when none is close."""
    names = sorted(valid)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    match = match or [other for other in names if name and other.startswith(name)]
    return f"; did you mean {match[0]!r}?" if match else ""
