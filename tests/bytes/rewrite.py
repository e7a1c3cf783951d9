"""Rewrite the fingerprints and say what changed: ``python tests/bytes/rewrite.py``; ``--keep DIR`` keeps all outputs.

The outputs that two trees keep can be compared with ``diff -r``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from commands import GROUPS
from fingerprints import GOLDEN, fingerprints_of, read_golden, write_golden


def main() -> None:
    """Run all groups, or with --keep some of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all outputs in this new folder, rewrite nothing")
    parser.add_argument("--group", action="append", choices=GROUPS, help="with --keep: of these groups only")
    options = parser.parse_args()
    if options.group and options.keep is None:
        parser.error("--group: expected with --keep")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.keep is None else options.keep.resolve()
        found: dict[str, str] = {}
        for group in options.group or GROUPS:
            start = time.perf_counter()
            found |= fingerprints_of(group, folder / group)
            print(f"{group}: {len(GROUPS[group])} commands, {time.perf_counter() - start:.1f} s", flush=True)
    if options.keep is None:
        before = read_golden()[1] if GOLDEN.exists() else {}
        write_golden(found)
        _tell(before, found)


def _tell(before: dict[str, str], now: dict[str, str]) -> None:
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    new, gone = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
    for word, names in (("changed", changed), ("new", new), ("gone", gone)):
        for name in names:
            print(f"{word}: {name}")
    print(f"{len(now)} fingerprints: {len(changed)} changed, {len(new)} new, {len(gone)} gone")


if __name__ == "__main__":
    main()
