"""Settings given for all rows (``KEY=VALUE``), by section of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simkit.errors import InputError
from simkit.scenario.yaml import parse_set

SECTIONS = ("engine", "hardware", "latency", "workload")
"""Made of what each row states."""


def check_settings(sets: Sequence[str]) -> None:
    """InputError for a setting that would replace what rows state."""
    for key, _ in map(parse_set, sets):
        if key in SECTIONS:
            raise InputError(f"--set {key}: expected a key within it ({key}.NAME), the section is what each row states")


def given_in(sets: Sequence[str], section: str) -> dict[str, Any]:
    """What `sets` say of the keys right below a section, the last of several."""
    parsed = [(key.rpartition("."), value) for key, value in map(parse_set, sets)]
    return {name: value for (within, _, name), value in parsed if within == section}
