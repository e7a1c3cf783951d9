"""The catalogue of metrics: its keys are in the summaries of runs, lists follow it, and a guide explains it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simkit
from simkit.cli import app
from simkit.metrics import catalogue
from simkit.metrics import summary as summaries
from simkit.metrics.catalogue import HIGHER, METRICS, Metric, Place, shown
from simkit.metrics.summary import RequestCounts
from simkit.plain import plain

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "scenarios" / "eight-requests.yaml"


@pytest.fixture(scope="module")
def summary() -> Any:
    return simkit.run(simkit.load(SCENARIO)).summary


def test_every_metric_stands_in_the_summary_of_a_run(summary: Any) -> None:
    for metric in METRICS:
        group, _, last = metric.key.rpartition(".")
        home = catalogue.value(summary, group) if group else summary
        assert metric.rare or home is None or last in home, metric.key


def test_no_two_metrics_share_a_key_or_a_position() -> None:
    assert len({metric.key for metric in METRICS}) == len(METRICS)
    for place in set(Place) - {Place.HTML}:
        positions = [metric.shown[place] for metric in shown(place)]
        assert len(set(positions)) == len(positions), place


def test_what_shares_its_heading_in_the_report_stands_together() -> None:
    headings = [metric.heading for metric in shown(Place.HTML)]
    assert len(set(headings)) == sum(a != b for a, b in zip(["", *headings], headings, strict=False))


def test_every_metric_has_a_definition() -> None:
    assert all(metric.definition.endswith(".") for metric in METRICS)
    assert not any(metric.meaning and metric.term for metric in METRICS), "one of both"


def test_the_page_of_metrics_explains_every_metric() -> None:
    text = re.sub(r"\W+", " ", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")).lower()
    spoken = {
        "Throughput of the makespan": "makespan throughput",
        "MFU, MBU": "mfu mbu",
        "KV used": "kv allocated used",
        "KV reserved": "reserved",
        "KV internal": "internal",
        "KV external": "external",
    }
    own = {"KV utilisation", "Preemption", "Requeued"}
    terms = {metric.term for metric in METRICS if not metric.meaning}
    assert own < terms, "these say what they are by their names"
    assert {term for term in terms - own if spoken.get(term, term).lower() not in text} == set()


def test_a_value_is_looked_up_by_its_path() -> None:
    data = {"kv": {"used": {"share": 0.5}}, "gpu": None, "saturated": True}
    assert catalogue.value(data, "kv.used.share") == 0.5
    assert catalogue.value(data, "gpu.busy") is catalogue.value(data, "kv.used.share.more") is None
    assert catalogue.number(data, "saturated") == 1.0
    assert catalogue.number(data, "no.such") is None


def test_a_new_metric_is_an_entry_and_what_computes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class WithMore(RequestCounts):
        per_step: float

    def called(*arguments: object) -> str:
        """What a command prints, and the pages and tables that it writes."""
        out = tmp_path / str(arguments[0])
        done = CliRunner().invoke(app.app, [str(each) for each in (*arguments, "--out", out)], env={"COLUMNS": "500"})
        assert done.exit_code == 0, done.output
        return done.output + "".join(path.read_text() for path in (*out.glob("*.html"), *out.glob("*.csv")))

    counted = summaries._counts
    last = dict.fromkeys((Place.HTML, Place.RUN, Place.COMPARE, Place.PAIRED, Place.SWEEP, Place.SWEEP_CSV), 99)
    names = {Place.RUN: "invented, run", Place.COMPARE: "invented, compare", Place.SWEEP: "invented, sweep"}
    invented = Metric("num_requests.per_step", "invented, html", better=HIGHER, heading="Requests", shown=last,
                      names={**names, Place.SWEEP_CSV: "invented, csv"}, meaning="Invented.")  # fmt: skip
    monkeypatch.setattr(catalogue, "METRICS", (*METRICS, invented))
    monkeypatch.setattr(summaries, "_counts", lambda *args: WithMore(**plain(counted(*args)), per_step=1.5))
    ran = called("run", SCENARIO)
    assert "invented, run" in ran
    assert "invented, html" in ran
    compared = called("compare", SCENARIO, "--jobs", 1)
    assert compared.count("invented, compare") == 2, "a column, and its paired differences"
    assert "invented, html" in compared
    swept = called("sweep", SCENARIO, "--axis", "engine.max_num_seqs=2", "--jobs", 1)
    assert "invented, sweep" in swept
    (row,) = csv.DictReader(io.StringIO((tmp_path / "sweep" / "sweep.csv").read_text()))
    assert row["invented, csv"] == "1.5"
