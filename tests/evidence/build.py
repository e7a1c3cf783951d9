"""Rebuild the evidence page and its data: ``python tests/evidence/build.py`` (minutes on two cores).

Writes validation.json (all lines and curves), README.md, index.html and figures/. Exit 2, and nothing is written, where
the logs and tables that sections need are not beside this clone; with ``--partial`` what they would show is left out,
and the page says so. Progress goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "reports" / "validation"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence import charts, page  # noqa: E402  (the repository is made importable first)
from simkit.plain import plain  # noqa: E402

SECTIONS = (
    "decisions", "memory", "kernels", "step_times", "runs", "rows", "table", "from_run", "ablation", "papers", "theory",
    "limits",
)  # fmt: skip
"""Modules of the page, in its order. Each has `lines(shared)`, and may have an `INTRO` (words under its title),
`curves`, `figures` (charts), `gaps`, and the files it `NEEDS`; with `PARTIAL` it shows what it can without them, and
says the rest in `gaps`."""

SHARED = ROOT.parent / "shared"
MISSING_INPUT = 2


def sections() -> dict[str, ModuleType]:
    """The modules by name."""
    return {name: importlib.import_module(f"evidence.{name}") for name in SECTIONS}


def missing(modules: Mapping[str, ModuleType], shared: Path) -> dict[str, list[str]]:
    """What each section needs of `shared` and is not there."""
    needs = {name: getattr(module, "NEEDS", ()) for name, module in modules.items()}
    found = {name: [path for path in paths if not (shared / path).exists()] for name, paths in needs.items()}
    return {name: paths for name, paths in found.items() if paths}


def content(modules: Mapping[str, ModuleType], shared: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON has it."""
    lines: list[Any] = []
    curves: dict[str, Any] = {}
    charts: dict[str, Any] = {}
    gaps: list[str] = []
    for name, paths in missing(modules, shared).items():
        if not hasattr(modules[name], "PARTIAL"):
            listed = ", ".join(f"../shared/{path}" for path in paths)
            gaps.append(f"{modules[name].SECTION}: left out of this build, for want of {listed}")
            modules = {key: module for key, module in modules.items() if key != name}
    for name, module in modules.items():
        begun = time.perf_counter()
        lines += [line.plain() for line in module.lines(shared)]
        curves |= module.curves(shared) if hasattr(module, "curves") else {}
        if hasattr(module, "figures"):
            charts |= {key: {"section": module.SECTION, **chart} for key, chart in module.figures().items()}
        gaps += module.gaps(shared) if hasattr(module, "gaps") else []
        print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    intros = {module.SECTION: module.INTRO for module in modules.values() if hasattr(module, "INTRO")}
    found: dict[str, Any] = plain(
        {"lines": lines, "curves": _rounded(plain(curves | {"charts": charts})), "gaps": gaps, "intros": intros}
    )
    return found


def files(found: Mapping[str, Any]) -> dict[str, str]:
    """Name to text of everything that is kept here, from the content alone."""
    drawn = charts.drawn(found["curves"])
    kept = {f"figures/{name}": text for name, text in page.pictures(drawn).items()}
    data = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    return {
        "validation.json": data,
        "README.md": page.markdown(found, drawn),
        "index.html": page.html(found, drawn),
        **kept,
    }


def main(arguments: Sequence[str] = ()) -> int:
    """Build everything, then write it."""
    modules = sections()
    lacking = missing(modules, SHARED)
    if lacking and "--partial" not in arguments:
        for name, paths in lacking.items():
            print(
                f"{name}: cannot be rebuilt without {', '.join(f'../shared/{path}' for path in paths)}", file=sys.stderr
            )
        return MISSING_INPUT
    written = files(content(modules, SHARED))
    shutil.rmtree(OUT / "figures", ignore_errors=True)
    (OUT / "figures").mkdir()
    for name, text in written.items():
        (OUT / name).write_bytes(text.encode())
    print(f"wrote {len(written)} files to reports/validation", file=sys.stderr)
    return 0


def _rounded(value: Any) -> Any:
    """Numbers of curves to six significant digits: what a picture can show."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
