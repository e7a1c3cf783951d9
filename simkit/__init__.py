"""simkit: a discrete-event simulator of LLM serving. Owns the public names; importing it imports nothing heavy.

import simkit
result = simkit.run(simkit.load("scenario.yaml"))
result.summary["throughput"]["requests_per_s"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simkit.version import __version__

if TYPE_CHECKING:
    from simkit.api import Result, load, run, write
    from simkit.errors import CheckError, InputError

__all__ = ["CheckError", "InputError", "Result", "__version__", "load", "run", "write"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    from importlib import import_module

    if name in ("Result", "load", "run", "write"):
        return getattr(import_module("simkit.api"), name)
    if name in ("CheckError", "InputError"):
        return getattr(import_module("simkit.errors"), name)
    raise AttributeError(f"module 'simkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
