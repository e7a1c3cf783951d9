"""Everything that a user sees is, byte for byte, what it was when the fingerprints were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import GROUPS
from fingerprints import LIBRARIES, REWRITE, fingerprints_of, kind_of, read_golden, versions


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_user_sees_is_unchanged(group: str, tmp_path: Path) -> None:
    made_with, golden = read_golden()
    here = versions()
    other = {name for name in here if here[name] != made_with.get(name)}
    left_out = {kind: sorted(other & set(names)) for kind, names in LIBRARIES.items() if other & set(names)}

    def compared(fingerprints: dict[str, str]) -> dict[str, str]:
        mine = {name: value for name, value in fingerprints.items() if name.startswith(f"{group}/")}
        return {name: value for name, value in mine.items() if kind_of(name.rpartition(" ")[2]) not in left_out}

    was, now = compared(golden), compared(fingerprints_of(group, tmp_path))
    lines = [f"changed: {name}" for name in was if name in now and now[name] != was[name]]
    lines += [f"missing: {name}" for name in was if name not in now]
    lines += [f"new: {name}" for name in now if name not in was]
    if lines:
        lines.append(f"What was printed and written is in {tmp_path}. If it is meant: {REWRITE}")
        pytest.fail("\n".join(lines), pytrace=False)
    if left_out:
        libraries = sorted({name for names in left_out.values() for name in names})
        here_and_there = ", ".join(f"{name} {here[name]}, not {made_with.get(name)}" for name in libraries)
        pytest.skip(f"{', '.join(left_out)} not compared: {here_and_there}")


def test_every_fingerprint_belongs_to_a_group() -> None:
    assert {name.partition("/")[0] for name in read_golden()[1]} == set(GROUPS)
