"""Imports run one way. The table is the architecture: a line names the rooms that a room imports, or their modules."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Modules that form one room under the name of its front door.
ROOM_OF = {
    "__init__": "simkit",
    "__main__": "main",
}

VALUES = {"units", "types", "errors", "sequence", "plain"}
SPECS = {"specs"}
PARTS = {"batching", "kv", "latency", "workload"}
LOADS = {"streams", "logs"}
# What the numbers of a summary are and mean: values and text, which a reader of run directories may know as well.
WORDS = {"metrics.catalogue", "metrics.glossary", "metrics.latencies"}

MAY_IMPORT: dict[str, set[str]] = {
    "version": set(),
    "units": set(),
    "plain": set(),
    "files": set(),
    "errors": set(),
    "types": set(),
    "streams": {"types"},
    "sequence": {"types"},
    "scenario": {"units", "errors"},
    "specs": {"units", "errors"},
    "memory": {"units", "errors", *SPECS},
    # A batcher knows no allocator.
    "batching": {*VALUES, "kv.protocol"},
    "kv": VALUES,
    "latency": {"units", "types", "errors", *SPECS},
    # Logs of others become columns, and those become arrivals; the scenario only for how a log is to be replayed.
    "logs": {"files", "plain", "units", "types", "errors", "streams", "scenario"},
    "workload": {"units", "types", "errors", "streams", "scenario", "logs"},
    "metrics": {"units", "types", "errors", "plain"},
    "engine": {*VALUES, "scenario", "memory", "metrics", *SPECS, *PARTS, *LOADS},
    # A recorded schedule is checked against a batcher: no engine, no clock.
    "conformance": {*VALUES, "batching", "kv"},
    # Rules from the numbers of a run to findings; shared by report, planner and the command line.
    "diagnosis": {"units", *WORDS},
    # Reads a run directory; knows specs as values to tabulate, and no engine.
    "report": {"units", "types", "errors", "plain", "diagnosis", *WORDS, *SPECS},
    # One run: its replications put together, how long it must last (rules that a plan needs as well), its directory.
    "runs": {
        "files",
        "units",
        "types",
        "errors",
        "plain",
        "batching.policies",
        "engine",
        "metrics",
        "scenario",
        "version",
    },
    # The report to write one; the result of a study only as a type.
    "api": {"plain", "runs", "engine", "errors", "scenario", "report", "studies"},
    # A study's unit of work is a replication. "logs" for where its files are.
    "studies": {
        *VALUES,
        "files",
        "runs",
        "diagnosis",
        "engine",
        "memory",
        "metrics",
        "scenario",
        "logs",
        "workload",
        "version",
    },
    "planner": {*VALUES, *SPECS, "batching.policies", "studies", "runs", "engine", "metrics", "scenario", "version"},
    # Runs that others measured, simulated again; above the studies that it starts.
    "validation": {
        *VALUES,
        *SPECS,
        "studies",
        "runs",
        "engine",
        "latency",
        "memory",
        "metrics",
        "scenario",
        *LOADS,
        "workload",
        "version",
    },
    "simkit": {"api", "errors", "version"},
    "main": {"cli"},
    # The top: `cli` may import everything.
}

CALIB_MAY_IMPORT = {"simkit.latency.profile", "simkit.units", "simkit.specs.hardware", "simkit.specs.models"}

# Slow to import, so only inside functions; where a line names a room, that room is itself imported inside functions.
HEAVY = {"matplotlib", "pandas", "scipy", "pyarrow", "jinja2", "dask", "distributed"}
HEAVY_ROOMS = {"simkit.report": {"matplotlib", "jinja2"}, "simkit.metrics.tables": {"pyarrow"}}

NEVER = {"torch", "triton", "pynvml", "vllm"}

PURE_ROOMS = {"batching", "kv", "latency", "engine", "metrics", "workload", "logs"}
IMPURE = {"time", "random", "secrets", "uuid", "threading", "asyncio"}

# Import name to distribution; the last two are what jinja2 and pydantic are built on, in step with them.
DISTRIBUTION_OF = {
    "yaml": "pyyaml",
    "pynvml": "nvidia-ml-py",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
}


@dataclass(frozen=True)
class Import:
    """One imported module, as written at one place. `lazy`: inside a function or only for type checkers."""

    importer: str
    imported: str
    line: int
    lazy: bool
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def known_modules() -> set[str]:
    return {module_name(path) for path in (ROOT / "simkit").rglob("*.py")}


def imports_of(source: str, importer: str, modules: set[str]) -> Iterator[Import]:
    """All imports of a module's source, `from a import b` resolved to a.b where that is a module."""

    def visit(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(importer, alias.name, child.lineno, lazy, typing_only)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{importer}:{child.lineno}: relative import"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    name = full if full in modules else str(child.module)
                    yield Import(importer, name, child.lineno, lazy, typing_only)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from visit(ast.Module(body=child.body, type_ignores=[]), True, True)
                yield from visit(ast.Module(body=child.orelse, type_ignores=[]), lazy, typing_only)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, lazy or inside, typing_only)

    yield from visit(ast.parse(source), False, False)


@cache
def all_imports(package: str) -> list[Import]:
    modules = known_modules()
    return [
        found
        for path in sorted((ROOT / package).rglob("*.py"))
        for found in imports_of(path.read_text(encoding="utf-8"), module_name(path), modules)
    ]


def room(module: str) -> str:
    """The room of a simkit module: simkit.kv.paged -> kv, simkit.specs.hf_config -> specs, simkit -> simkit."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return ROOM_OF.get(name, name)


def layering_breach(found: Import) -> bool:
    """Whether an import of a simkit module, by a simkit module, is not in the table. Types count as imports."""
    if found.imported.split(".")[0] != "simkit":
        return False
    importer, imported = room(found.importer), room(found.imported)
    if importer in ("cli", imported):
        return False
    if (importer, imported) == ("api", "studies") and not found.typing_only:
        return True
    return MAY_IMPORT[importer].isdisjoint({imported, found.imported.removeprefix("simkit.")})


def heavy_breach(found: Import) -> bool:
    """Whether something slow is imported at module level where it may not be."""
    top = found.imported.split(".")[0]
    if found.lazy or top not in HEAVY:
        return False
    return not any(
        top in allowed and (found.importer == where or found.importer.startswith(where + "."))
        for where, allowed in HEAVY_ROOMS.items()
    )


def simpy_breach(found: Import) -> bool:
    return found.imported.split(".")[0] == "simpy" and room(found.importer) != "engine"


def calib_breach(found: Import) -> bool:
    return found.imported.split(".")[0] == "simkit" and found.imported not in CALIB_MAY_IMPORT


def breaches(rule: object, found: list[Import]) -> list[str]:
    assert callable(rule)
    return [str(item) for item in found if rule(item)]


def test_every_room_is_in_the_table() -> None:
    rooms = {room(module) for module in known_modules()}
    assert rooms - {"cli"} == set(MAY_IMPORT), "add the new room to MAY_IMPORT, or remove the one that is gone"


def assert_no_circle(edges: dict[str, set[str]]) -> None:
    """Take away, again and again, whoever imports nothing of the rest; in a circle somebody always does."""
    while edges:
        leaves = {name for name, targets in edges.items() if not targets & set(edges)}
        assert leaves, f"a circle among {sorted(edges)}"
        edges = {name: targets for name, targets in edges.items() if name not in leaves}


def test_the_table_has_no_circle() -> None:
    assert_no_circle({room: {target.split(".")[0] for target in targets} for room, targets in MAY_IMPORT.items()})


def test_no_import_closes_a_circle() -> None:
    """Neither of modules, nor of rooms; inside functions and for types alone neither."""
    modules: dict[str, set[str]] = {}
    rooms: dict[str, set[str]] = {}
    for found in all_imports("simkit"):
        if found.imported.startswith("simkit"):
            modules.setdefault(found.importer, set()).add(found.imported)
            if room(found.importer) != room(found.imported):
                rooms.setdefault(room(found.importer), set()).add(room(found.imported))
    assert len(modules) > 100
    assert_no_circle(modules)
    assert_no_circle(rooms)


@pytest.mark.parametrize("edges", [{"a": {"b"}, "b": {"c"}, "c": {"a"}}, {"a": {"a"}}])
def test_a_circle_is_seen(edges: dict[str, set[str]]) -> None:
    with pytest.raises(AssertionError, match="a circle among"):
        assert_no_circle(edges)


def test_imports_run_one_way() -> None:
    assert breaches(layering_breach, all_imports("simkit")) == []


def test_simpy_is_the_engines_alone() -> None:
    found = all_imports("simkit")
    assert any(item.imported.startswith("simpy") for item in found)
    assert breaches(simpy_breach, found) == []


def test_simkit_never_imports_torch_and_friends() -> None:
    assert breaches(lambda found: found.imported.split(".")[0] in NEVER, all_imports("simkit")) == []


def test_calib_is_imported_only_by_the_command_that_calls_it() -> None:
    def breach(found: Import) -> bool:
        return found.imported.split(".")[0] == "calib" and not (room(found.importer) == "cli" and found.lazy)

    assert breaches(breach, all_imports("simkit")) == []


def test_calib_imports_only_four_modules_of_simkit() -> None:
    assert breaches(calib_breach, all_imports("calib")) == []


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    assert breaches(heavy_breach, all_imports("simkit")) == []


def test_what_is_simulated_knows_no_wall_clock_and_no_global_randomness() -> None:
    assert (
        breaches(
            lambda found: room(found.importer) in PURE_ROOMS and found.imported.split(".")[0] in IMPURE,
            all_imports("simkit"),
        )
        == []
    )


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]

    def names(requirements: list[str]) -> set[str]:
        return {line.split(";")[0].split("[")[0].split(">")[0].split("=")[0].strip().lower() for line in requirements}

    def undeclared(found: Import) -> bool:
        top = found.imported.split(".")[0]
        if top in sys.stdlib_module_names or top in ("simkit", "calib"):
            return False
        declared = names(project["dependencies"]) | (names(extras) if found.lazy else set())
        return DISTRIBUTION_OF.get(top, top).lower() not in declared

    assert breaches(undeclared, all_imports("simkit")) == []


@pytest.mark.parametrize(
    ("importer", "source", "rule"),
    [
        ("simkit.batching.continuous", "from simkit.engine.clock import Clock", layering_breach),
        ("simkit.batching.continuous", "from simkit import engine", layering_breach),
        ("simkit.report.render.html", "import simkit.engine.run", layering_breach),
        ("simkit.report.render.html", "def f():\n    from simkit.api import run", layering_breach),
        ("simkit.api", "from simkit.studies.compare import compare", layering_breach),
        (
            "simkit.units",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import simkit.types",
            layering_breach,
        ),
        ("simkit.kv.paged", "import simpy.events", simpy_breach),
        ("simkit.api", "import pandas as pd", heavy_breach),
        ("simkit.metrics.summary", "from pyarrow import parquet", heavy_breach),
        ("simkit.report.read.run", "try:\n    import pandas\nexcept ImportError:\n    pass", heavy_breach),
        ("calib.fit.fit", "from simkit.latency.roofline import Roofline", calib_breach),
        ("calib.fit.fit", "from simkit import api", calib_breach),
    ],
)
def test_the_rules_see_a_breach(importer: str, source: str, rule: object) -> None:
    assert breaches(rule, list(imports_of(source, importer, known_modules())))


@pytest.mark.parametrize(
    ("importer", "source", "rule"),
    [
        ("simkit.engine.run", "from simkit.batching.plan import Hold", layering_breach),
        ("simkit.cli.app", "import simkit.engine.run", layering_breach),
        ("simkit.api", "if TYPE_CHECKING:\n    from simkit.studies.compare import Comparison", layering_breach),
        ("simkit.api", "def f():\n    import pandas", heavy_breach),
        ("simkit.report.figures.style", "import matplotlib as mpl", heavy_breach),
        ("simkit.engine.clock", "import simpy", simpy_breach),
        ("calib.fit.fit", "from simkit.units import NS_PER_S\nfrom simkit.specs import hardware", calib_breach),
    ],
)
def test_the_rules_let_the_rest_pass(importer: str, source: str, rule: object) -> None:
    assert breaches(rule, list(imports_of(source, importer, known_modules()))) == []


@pytest.mark.parametrize("statement", ["import simkit", "import simkit.cli.app", "import simkit.errors"])
def test_importing_the_command_line_imports_nothing_heavy(statement: str) -> None:
    heavy = sorted(HEAVY | NEVER | {"numpy", "simpy", "pydantic", "rich"})
    script = f"{statement}\nimport sys\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
