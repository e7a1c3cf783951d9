"""What stands in reports/ is what the code makes of the scenarios as they are, and of the evidence that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evidence import plans

from simkit import scenario
from simkit.plain import plain
from simkit.planner.capacity import to_json
from simkit.planner.content import plan_csv
from simkit.planner.jobs import CapacityJob, run_job
from simkit.planner.points import make_points
from simkit.planner.result import result_of_point
from simkit.planner.search import COARSE
from simkit.report.render import html, markdown
from simkit.report.sections import plan as sections
from simkit.studies.offered_load import base_rate, lengths
from simkit.studies.study import Failure

ROOT = Path(__file__).resolve().parents[2]


NAMES = list(plans.PLANS)


def content(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "reports" / name / "plan.json").read_bytes())
    return found


def load(name: str) -> scenario.Scenario:
    return scenario.load(ROOT / "scenarios" / f"{name}.yaml")


def test_every_plan_is_kept_and_no_other() -> None:
    kept = sorted(path.name for path in (ROOT / "reports").iterdir() if path.is_dir() and path.name != "__pycache__")
    assert kept == sorted([*NAMES, plans.EVIDENCE])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_of_the_scenario_as_it_is(name: str) -> None:
    assert content(name)["scenario"] == json.loads(json.dumps(plain(load(name).to_dict())))


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_are_what_the_numbers_give(name: str) -> None:
    numbers, folder = content(name), ROOT / "reports" / name
    report = sections.report(numbers)
    assert (folder / "plan.csv").read_text(encoding="utf-8") == plan_csv(numbers)
    assert (folder / "report.md").read_text(encoding="utf-8") == markdown.render(report, f"simkit plan: {name}")
    assert (folder / "report.html").read_text(encoding="utf-8") == html.render(report)


@pytest.mark.parametrize("name", NAMES[:1])
def test_the_numbers_are_those_that_the_code_gives(name: str) -> None:
    """One capacity and one row of the curve, made again, to the last digit."""
    numbers, asked = content(name), load(name)
    point = next(p for p in reversed(numbers["points"]) if p["capacity"]["replications"] == COARSE.replications)
    made = make_points(asked, {"engine.max_num_seqs": [point["max_num_seqs"]]})[0][0]
    first = make_points(asked, {"engine.max_num_seqs": [numbers["points"][0]["max_num_seqs"]]})[0][0]
    sizes = lengths(first.scenario, first.setup.max_model_len)
    job = CapacityJob(made.name, made.scenario, base_rate(asked), (), sizes, COARSE, grows=True)
    answer = run_job(job)
    assert not isinstance(answer, Failure)
    found = result_of_point(made, answer, COARSE)
    assert found.capacity is not None
    assert json.loads(json.dumps(plain(to_json(found.capacity)))) == point["capacity"]

    row = numbers["curve"][0]
    chosen = make_points(asked, {"engine.max_num_seqs": [numbers["recommended"]["max_num_seqs"]]})[0][0]
    looked = run_job(
        CapacityJob("", chosen.scenario, base_rate(asked), rates_per_s=(row["rate_per_s"],),
              replications=row["replications"], factor=numbers["run_length"].get("factor", 1.0))
    )  # fmt: skip
    assert not isinstance(looked, Failure)
    for path, value in row["numbers"].items():
        each = [trial.numbers[path] for trial in looked.trials]
        assert value["mean"] == (None if None in each else sum(each) / len(each)), path
