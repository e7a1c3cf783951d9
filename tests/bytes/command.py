"""What a command of the fingerprints is: a name and what is typed behind `simkit`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """`name` is one of its group's; what it writes to out/NAME is told without that folder."""

    name: str
    arguments: tuple[str, ...]


def commands(lines: Mapping[str, str]) -> tuple[Command, ...]:
    """Of lines as they are typed into a shell, by name; {out} is the place of the command's own files."""
    return tuple(
        Command(name, tuple(shlex.split(line.replace("{out}", f"out/{name}")))) for name, line in lines.items()
    )
