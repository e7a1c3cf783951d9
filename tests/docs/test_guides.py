"""The guides name what is there: files, functions, the rooms of the house, and each word that numbers have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/recipes.md", "docs/metrics.md")
OWN = ("simkit", "calib", "tests", "scenarios", "reports", "docs")
"""Folders of the repository."""


def text_of(guide: str) -> str:
    return (ROOT / guide).read_text(encoding="utf-8")


@pytest.mark.parametrize("guide", GUIDES)
def test_every_path_is_there(guide: str) -> None:
    named = re.findall(rf"`((?:{'|'.join(OWN)})/[\w./-]*)`", text_of(guide))
    gone = [path for path in named if not (ROOT / path).exists() and not re.search(r"NAME|SUBJECT", path)]
    assert gone == []
    assert named or guide == "docs/metrics.md"


@pytest.mark.parametrize("guide", GUIDES)
def test_what_it_says_of_a_file_is_in_it(guide: str) -> None:
    """``path.py`: `name`` and names after a comma: a function, class, table or field of that file."""
    for path, names in re.findall(r"`((?:simkit|calib)/[\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", text_of(guide)):
        code = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            found = re.search(rf"^\s*(?:def|class) {name}\b|^\s*{name}\b\s*[:=]", code, flags=re.MULTILINE)
            assert found, f"{guide}: {path} has no {name}"


@pytest.mark.parametrize("guide", GUIDES)
def test_every_name_in_code_is_in_the_code(guide: str) -> None:
    """A lone identifier with an underscore or a capital is one of ours, of the scenario file or of its outputs."""
    everything = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("simkit", "calib", "tests", "scenarios", ".ci")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".yaml", ".sh", ".j2"} and path.name != "test_guides.py"
    )
    names = set(re.findall(r"`([a-z]+_\w+|[A-Z]\w*[a-z]\w*)`", text_of(guide)))
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", everything)] == []


@pytest.mark.parametrize("path", sorted(path.name for path in (ROOT / "scenarios").glob("*.yaml")))
def test_what_a_scenario_names_is_there(path: str) -> None:
    text = text_of(f"scenarios/{path}")
    named = re.findall(rf"\b((?:{'|'.join(OWN)})/[\w./-]*\w)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_life_of_a_request_has_eight_lines() -> None:
    life = text_of("docs/architecture.md").split("## The life of a request\n")[1].split("\n## ")[0]
    lines = life.strip().splitlines()
    assert [line.split()[0] for line in lines] == [f"{n}." for n in range(1, 9)]
    rooms = {name for name in re.findall(r"`(\w+)`", life) if (ROOT / "simkit" / name).is_dir()}
    assert rooms >= {"workload", "engine", "batching", "kv", "latency", "metrics"}


def test_the_rooms_are_the_tree() -> None:
    text = text_of("docs/architecture.md")
    rooms = set(re.findall(r"^simkit/(\w+)/|\bsimkit/(\w+)/ ", text, flags=re.MULTILINE))
    named = {first or second for first, second in rooms} | set(re.findall(r"`(\w+)`", text.split("| floor |")[1]))
    here = {
        path.stem
        for path in (ROOT / "simkit").iterdir()
        if (path.suffix == ".py" and not path.name.startswith("__"))
        or (path.is_dir() and (path / "__init__.py").exists())
    }
    assert here - named - {"version"} == set(), "a room is missing from the guide"


def test_every_recipe_counts_its_touch_points() -> None:
    recipes = text_of("docs/recipes.md").split("\n## ")[1:]
    assert [recipe.splitlines()[0] for recipe in recipes if not re.search(r"Touch points: \*\*\d", recipe)] == []
    counted = {recipe.splitlines()[0]: re.search(r"Touch points: \*\*(\d)", recipe) for recipe in recipes}
    for title, number in (("A batching policy", 2), ("A metric", 2), ("A chart", 2)):
        found = counted[title]
        assert found is not None
        assert int(found[1]) == number


def test_the_page_of_metrics_has_the_terms_and_the_tables() -> None:
    text = text_of("docs/metrics.md")
    for term in ("TTFT", "TPOT", "ITL", "E2E", "Goodput", "Throughput", "Concurrency", "Saturated", "External"):
        assert term in text
    for name in ("requests", "steps", "slots"):
        assert f"{name}.parquet" in text
