"""Rebuild the evidence page and its data: ``python tests/evidence/build.py`` (minutes on two cores).

Writes validation.json (all lines and curves), README.md, index.html and figures/. Exit 2, and nothing is written, where
the logs and tables that sections need are not beside this clone; with ``--partial`` what they would show is left out,
and the page says so. Progress goes to stderr.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "reports" / "validation"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# The repository is made importable first.
from evidence import (  # noqa: E402
    Section,
    contributions,
    exact,
    kernels,
    memory,
    page,
    papers,
    rows,
    runs,
    table,
)
from simkit.plain import plain  # noqa: E402

SECTIONS = (
    exact.DECISIONS, memory.MEMORY, kernels.KERNELS, kernels.STEP_TIMES, runs.RUNS, rows.ROWS, table.TABLE,
    contributions.FITS, contributions.ABLATION, papers.PAPERS, exact.THEORY, exact.LIMITS,
)  # fmt: skip
"""What the page shows, in its order."""

SHARED = ROOT.parent / "shared"
MISSING_INPUT = 2


def content(sections: Sequence[Section], shared: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON has it."""
    lines: list[Any] = []
    curves: dict[str, Any] = {}
    charts: dict[str, Any] = {}
    left_out = [section for section in sections if section.missing(shared) and not section.partial]
    gaps = [
        f"{section.title}: left out of this build, for want of {_listed(section.missing(shared))}"
        for section in left_out
    ]
    shown = [section for section in sections if section not in left_out]
    for section in shown:
        begun = time.perf_counter()
        lines += [asdict(line) for line in section.made(shared)]
        curves |= section.curves(shared)
        charts |= {key: {"section": section.title, **asdict(chart)} for key, chart in section.charts().items()}
        gaps += section.gaps(shared)
        print(f"{section.title}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    intros = {section.title: section.intro for section in shown if section.intro}
    found: dict[str, Any] = plain(
        {"lines": lines, "curves": _rounded(plain(curves | {"charts": charts})), "gaps": gaps, "intros": intros}
    )
    return found


def files(found: Mapping[str, Any]) -> dict[str, str]:
    """Name to text of everything that is kept here, from the content alone."""
    return {"validation.json": json.dumps(found, indent=1, ensure_ascii=False) + "\n", **page.files(found)}


def main(arguments: Sequence[str] = ()) -> int:
    """Build everything, then write it."""
    lacking = {section.title: section.missing(SHARED) for section in SECTIONS if section.missing(SHARED)}
    if lacking and "--partial" not in arguments:
        for title, paths in lacking.items():
            print(f"{title}: cannot be rebuilt without {_listed(paths)}", file=sys.stderr)
        return MISSING_INPUT
    written = files(content(SECTIONS, SHARED))
    shutil.rmtree(OUT / "figures", ignore_errors=True)
    (OUT / "figures").mkdir()
    for name, text in written.items():
        (OUT / name).write_bytes(text.encode())
    print(f"wrote {len(written)} files to reports/validation", file=sys.stderr)
    return 0


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(f"../shared/{path}" for path in paths)


def _rounded(value: Any) -> Any:
    """Numbers of curves to six significant digits: what a picture can show."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
