"""Sections of the evidence page: all public rows, words under a title, and what stands beside a judged line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from evidence import Line, Section, build, inputs, page, rows, runs, table, wrong
from test_evidence import content, example

from simkit.errors import InputError
from simkit.metrics import measured
from simkit.validation.rows.results import MetricResult, RowResult, RowStudy

ROOT = Path(__file__).resolve().parents[2]

# --- all public rows --------------------------------------------------------------------------------------------------


def public_row(name: str, gpu: str, metric: str, measured: float, predicted: float) -> RowResult:
    error = 100 * (predicted / measured - 1)
    values = MetricResult(measured, predicted, error, None, None)
    return RowResult(name, "s", "vLLM", gpu, "m", 1, 8, 8, None, "all", {metric: values})


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> RowStudy:
    """1,000 rows that took half of the time that is predicted, and 20 that made half of the tokens."""
    shown = [public_row(f"A{i}", "slow", "mean_tpot_ms", 10.0, 20.0) for i in range(1000)]
    shown += [public_row(f"B{i}", "fast", "output_tok_s", 100.0, 200.0) for i in range(20)]
    skipped = {f"C{i}": f"GPU X{i % 2} is unknown; did you mean 'x{i}'?" for i in range(1500)}
    assumed = {"something: assumed": 1, "a batch (small)": 1019}
    found = RowStudy("all", "f", 2520, tuple(shown), skipped, {}, {}, (), assumed, {"roofline": 1020}, {})
    monkeypatch.setattr(table, "_study", lambda path: found)
    monkeypatch.setattr(table, "_used", lambda path: frozenset(f"A{i}" for i in range(10)))
    nothing = RowStudy("covered", "f", 0, (), {}, {}, {}, (), {}, {}, {})
    monkeypatch.setattr(table, "_covered", lambda path, ids: nothing)
    return found


def test_rows_outside_their_interval_are_counted(study: RowStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ((8.0, 12.0), (11.0, 12.0), (5.0, 9.0), (9.0, 11.0))
    shown = tuple(
        replace(public_row(f"I{i}", "g", "mean_tpot_ms", 10.0, 10.0), metrics={
            "mean_tpot_ms": MetricResult(10.0, 10.0, 0.0, None, None, low, high)
        })
        for i, (low, high) in enumerate(ends)
    )  # fmt: skip
    found = RowStudy("covered", "f", 4, shown, {}, {}, {}, (), {}, {}, {})
    monkeypatch.setattr(table, "_covered", lambda path, ids: found)
    (line,) = [each for each in table.TABLE.made(Path()) if each.metric == "rows outside their 90 % interval"]
    assert (line.n, line.error_pct, line.judged) == (4, 50.0, False)
    assert line.text == "2 of 4; upper over lower end 1.50 in the median, 1.80 at most"
    assert line.note == "outside: I1, I2"


def test_times_and_rates_of_public_rows_are_never_averaged_together(study: RowStudy) -> None:
    times, rates, unseen_times, unseen_rates, *rest = table.TABLE.made(Path())
    assert [(each.metric, each.n, each.error_pct) for each in (times, rates, unseen_times, unseen_rates)] == [
        ("TPOT, MAPE", 1000, 100.0),
        ("output throughput, MAPE", 20, 100.0),
        ("TPOT, MAPE", 990, 100.0),
        ("output throughput, MAPE", 20, 100.0),
    ]
    assert times.text == "bias +100.0 %, 0 of 1,000 within 20 %"
    assert [each.evidence for each in rest] == [
        "rows that are left out",
        "what rows leave open",
        "s: vLLM, fast",
        "s: vLLM, slow",
    ]
    assert all("engine_hosts.yaml" in each.fitted and not each.judged for each in (times, rates, *rest))


def test_ttft_of_public_rows_is_told_as_a_factor(study: RowStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice and half the time are as wrong as each other: together 2, and in the mean right. A fitted row is none."""
    shown = [public_row(f"T{i}", "g", "mean_ttft_ms", 10.0, time) for i, time in enumerate((20.0, 5.0, 20.0, 5.0))]
    shown.append(public_row("A0", "g", "mean_ttft_ms", 1.0, 100.0))
    found = RowStudy("all", "f", 5, tuple(shown), {}, {}, {}, (), {}, {}, {})
    monkeypatch.setattr(table, "_study", lambda path: found)
    (line,) = [each for each in table.TABLE.made(Path()) if each.evidence.endswith("TTFT factor")]
    assert (line.n, line.metric, line.error_pct, line.judged) == (4, "TTFT mean, factor", None, False)
    assert line.text == "2.00 times too large or too small (geometric mean), 1.00 in the mean"
    assert line.note == "by set: s 2.00 (4)"


def test_what_public_rows_leave_out_and_open_is_counted(study: RowStudy) -> None:
    *_, left_out, left_open = table.TABLE.made(Path())[:6]
    assert (left_out.n, left_out.text) == (1500, "750: GPU X0 is unknown; 750: GPU X1 is unknown")
    assert (left_open.n, left_open.text) == (1020, "1,019: a batch (small); 1: something: assumed")
    assert left_open.note == "step times: 1,020: roofline"


def test_groups_of_public_rows_are_ranked_alike_for_times_and_rates(study: RowStudy) -> None:
    """Twice the time is as wrong as twice the rate, and a tenth of the time is worse than thrice."""
    kept = table.TABLE.curves(Path())["public"]
    assert [round(group["times"], 6) for group in kept] == [2.0, 2.0]
    assert [round(group["slower"], 6) for group in kept] == [0.5, 2.0]
    more = [("thrice", 3.0, 10), ("a tenth", 0.1, 10), ("few rows", 9.0, 9)]
    rows_of = [public_row("D", gpu, "mean_tpot_ms", 1.0, factor) for gpu, factor, n in more for _ in range(n)]
    groups = table.grouped(rows_of)
    public = [*kept, *({"name": group.name, "metric": group.metric, **table.off(group)} for group in groups)]
    assert wrong.worst_public({"public": public}) == [
        "s: vLLM, a tenth: TPOT mean off by a factor of 10.00, in the mean 10.00 too fast (n = 10)",
        "s: vLLM, thrice: TPOT mean off by a factor of 3.00, in the mean 3.00 too slow (n = 10)",
        "s: vLLM, fast: output throughput off by a factor of 2.00, in the mean 2.00 too fast (n = 20)",
        "s: vLLM, slow: TPOT mean off by a factor of 2.00, in the mean 2.00 too slow (n = 1,000)",
    ]
    assert wrong.worst_public({}) == []
    found = content(*table.TABLE.made(Path()), example(9.0, judged=False), public=public)
    assert wrong.furthest([Line(**each) for each in found["lines"]]) == ["e: TPOT 9.0 % (n = 3)"], (
        "public rows have a list of their own"
    )
    for text in (page.markdown(found, {}), page.html(found, {})):
        assert wrong.PUBLIC_TITLE.partition(" (")[0] in text
        assert "10.00 too fast" in text


def test_what_sums_a_section_up_stays_open(study: RowStudy) -> None:
    """Where nothing is judged and much is folded away."""
    groups = [example(1.0, section=table.TABLE.title, evidence=f"group {i}", judged=False) for i in range(20)]
    found = content(*table.TABLE.made(Path())[:6], *groups)
    (part,) = [each for each in page.parts(found, {}) if each.title == table.TABLE.title]
    kept_open, folded = part.tables
    assert list(kept_open.names)[4:] == ["rows that are left out", "what rows leave open"]
    assert (kept_open.title, folded.title) == ("", "20 groups of rows, each of one set, engine and GPU")
    other = content(*(example(1.0, judged=False) for _ in range(20)))
    (part,) = [each for each in page.parts(other, {}) if each.title == "S"]
    assert [(len(each.names), each.title) for each in part.tables] == [(3, ""), (17, "17 further rows")]
    judged = content(example(1.0), *(example(1.0, judged=False) for _ in range(20)))
    (part,) = [each for each in page.parts(judged, {}) if each.title == "S"]
    assert [(len(each.names), each.title) for each in part.tables] == [(1, ""), (20, "20 further rows")]


# --- words under a title, and what stands beside a judged line --------------------------------------------------------


def test_an_introduction_stands_under_its_title(tmp_path: Path) -> None:
    with_words = Section("S", lambda shared: [example(1.0)], intro="Words & more.")
    without = Section("T", lambda shared: [example(1.0)])
    found = build.content([with_words, without], tmp_path)
    assert found["intros"] == {"S": "Words & more."}
    assert "\n## S\n\nWords" in page.markdown(found, {})
    assert "<h2>S</h2>\n<p>Words &amp; more.</p>" in page.html(found, {})
    del found["intros"]
    assert "Words" not in page.markdown(found, {}) + page.html(found, {})


def log_of(shared: Path, *times: tuple[float, float, float]) -> None:
    """A log with arrival_time, queued_ts and last_token_ts of requests."""
    folder = shared / inputs.run()["folder"]
    folder.mkdir(parents=True)
    names = ("arrival_time", "queued_ts", "last_token_ts")
    (folder / "requests.jsonl").write_text("\n".join(json.dumps(dict(zip(names, each, strict=True))) for each in times))


class Compared:
    """A comparison of two requests with a makespan of 99 s."""

    errors = {"makespan_s": {"value": measured.Compared(101.0, 99.0, 100 * (99 / 101 - 1))}}  # noqa: RUF012
    num_requests = {"compared": 2}  # noqa: RUF012


def test_a_makespan_on_one_clock_stands_beside_that_on_two(tmp_path: Path) -> None:
    log_of(tmp_path, (1e9, 50.0, 149.0), (1e9 + 1, 52.0, 150.0))
    one = runs._on_one_clock(tmp_path, Compared())  # type: ignore[arg-type]
    assert one.error_pct == pytest.approx(-1.0)
    assert (one.judged, one.bar_pct) == (False, None)
    assert one.text == "measured 100 s, predicted 99 s"
    assert "queued_ts" in one.note
    judged = runs._with_clocks(runs._line(runs.MAKESPAN, Compared(), judged=True), one)  # type: ignore[arg-type]
    assert judged.error_pct == pytest.approx(-1.98, abs=0.01)
    assert "arrival_time" in judged.note
    assert judged.note.endswith("-1.00 %")


def test_a_makespan_on_one_clock_is_of_the_same_requests(tmp_path: Path) -> None:
    log_of(tmp_path, (1e9, 50.0, 149.0))
    with pytest.raises(InputError, match="all 1 requests"):
        runs._on_one_clock(tmp_path, Compared())  # type: ignore[arg-type]


def test_a_line_that_is_met_names_the_assumption_that_would_miss_it() -> None:
    judged, other = example(4.9), example(6.27, judged=False)
    assert rows.beyond(judged, "5 requests", other) == "with 5 requests 6.3 %: the bar would be missed"
    assert rows.beyond(judged, "20 requests", example(4.4, judged=False)) == ""
    assert rows.beyond(example(5.5), "5 requests", other) == "", "it is missed as it is"
    assert rows.beyond(example(4.9, judged=False), "5 requests", other) == "", "nothing is judged"


def test_terms_that_move_when_fitted_alone_are_called_poorly_determined() -> None:
    joint = {"fixed_us": 1000.0, "per_seq_us": 50.0}
    near, far = {"fixed_us": 1200.0, "per_seq_us": 45.0}, {"fixed_us": 0.0, "per_seq_us": 55.0}
    assert rows.apart(joint, near) == f"{rows.ALONE}: 1,200 us a step, 45.0 us a sequence"
    assert rows.apart(joint, far).endswith("0 us a step, 55.0 us a sequence, so that the pair is poorly determined")
