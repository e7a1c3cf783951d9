"""The evidence page is what its data gives, its data is what the code gives, and what is wrong is named by the data."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from evidence import AT_ZERO, HIT, MISSED, NO_BAR, NO_FIT, SHOWN, Line, build, exact, inputs, kernels, page, rows, wrong

from simkit.validation.rows.study import study_rows

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "reports" / "validation"


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """What validation.json holds."""
    found: dict[str, Any] = json.loads((FOLDER / "validation.json").read_bytes())
    return found


def of(evidence: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The only line of this evidence."""
    (found,) = [each for each in lines if each["evidence"] == evidence]
    return found


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_pages_and_pictures_are_what_the_data_gives(kept: dict[str, Any]) -> None:
    files = build.files(kept)
    assert {name: (FOLDER / name).read_text(encoding="utf-8") for name in files} == files
    pictures = {f"figures/{path.name}" for path in (FOLDER / "figures").iterdir()}
    assert pictures == {name for name in files if name.startswith("figures/")}


def test_every_section_has_lines(kept: dict[str, Any]) -> None:
    sections = {each["section"] for each in kept["lines"]}
    for section in build.SECTIONS:
        left_out = any(text.startswith(f"{section.title}: left out of this build") for text in kept["gaps"])
        assert (section.title in sections) is not left_out, section.title


def test_lines_made_again_are_those_that_are_kept(kept: dict[str, Any], tmp_path: Path) -> None:
    for made in kernels.KERNELS.made(tmp_path):
        assert asdict(made) in kept["lines"], made.evidence
    (shipped,) = exact.DECISIONS.made(tmp_path)
    found = of(shipped.evidence, kept["lines"])
    assert {key: found[key] for key in ("n", "error_pct", "text", "note")} == {
        key: getattr(shipped, key) for key in ("n", "error_pct", "text", "note")
    }


BARS = {
    "RTX PRO 6000": {3.0, 2.0, 6.0}, "Llama-3.1-8B, TRT-LLM": {5.0}, "Qwen3-32B": {8.0},
    "A100-80GB, Qwen2-7B, vLLM, TP1, test": {10.0}, "Llama-3-8B, vLLM, TP1, test": {12.0},
}  # fmt: skip
"""What part of the evidence of a judged line says: the bars that were set before."""

FITTED = {"Qwen3-32B": {8, 32, 128}, "Qwen2-7B, vLLM, TP1": {10, 30, 100}, "Llama-3-8B, vLLM": {1, 32}}
"""Part of the name of a set: the loads whose rows may be fitted."""


def test_bars_and_rows_of_fits_are_those_that_were_set_before(kept: dict[str, Any]) -> None:
    for part, bars in BARS.items():
        found = [each for each in kept["lines"] if part in each["evidence"] and each["judged"]]
        assert {each["bar_pct"] for each in found} == bars, part
    for part, loads in FITTED.items():
        for name, found in kept["curves"]["sets"].items():
            if part in name:
                assert {point["by"] for point in found["points"] if not point["test"]} == loads, name
    rest = [found for name, found in kept["curves"]["sets"].items() if not any(part in name for part in FITTED)]
    assert all(point["test"] for found in rest for point in found["points"]), "nothing else is fitted"


def test_an_error_of_rows_is_that_of_the_rows_that_were_not_fitted(kept: dict[str, Any]) -> None:
    for name, found in kept["curves"]["sets"].items():
        for end, key in (("", "predicted"), (", host terms at 0", "at_zero")):
            names = (f"{name}, test rows{end}", f"{name}, all rows{end}")
            lines = [each for each in kept["lines"] if each["evidence"] in names]
            errors = [abs(p[key] / p["measured"] - 1) for p in found["points"] if p["test"]]
            assert all(each["n"] == len(errors) for each in lines)
            assert all(each["error_pct"] == pytest.approx(100 * sum(errors) / len(errors), abs=0.01) for each in lines)


@pytest.mark.parametrize("name", ["H100, Llama-3.1-8B, TRT-LLM 1.0.0rc3, TP1", "A100-40GB, Llama-3-8B, vLLM, TP1"])
def test_rows_simulated_again_give_what_is_kept(kept: dict[str, Any], name: str) -> None:
    """Measured from the table, predicted with the terms that the page names, else those that ship, and with none."""
    (spec,) = [each for each in inputs.specs() if each["name"] == name]
    points = {point["row"]: point for point in kept["curves"]["sets"][name]["points"]}
    chosen = [row for row in inputs.rows_of(ROOT, spec) if row.numbers["output_len"] == 128][:3]
    told = next(each["fitted"] for each in kept["lines"] if each["evidence"].startswith(name) and each["judged"])
    terms = [float(text.replace(",", "")) for text in re.findall(r"([\d,.]+) us a", told)]
    given = dict(zip(("fixed_us", "per_seq_us", "per_request_us"), terms, strict=False))
    sets = [f"latency.host={json.dumps(given)}"] if given else []
    for row, again in zip(chosen, study_rows(chosen, sets=sets).rows, strict=True):
        metric = "mean_tpot_ms" if spec["metric"] == "mean_tpot_ms" else "duration_s"
        values, point = again.metrics[metric], points[row.id]
        tokens = row.numbers["output_len"] * row.numbers.get("batch_size", 0)
        for key, value in (("measured", "measured"), ("predicted", "predicted"), ("at_zero", "predicted_zero")):
            made = tokens / getattr(values, value) if metric == "duration_s" else getattr(values, value)
            assert point[key] == pytest.approx(made, rel=2e-3), (row.id, key)


def test_every_judged_line_says_what_was_fitted_and_whose_data_it_is(kept: dict[str, Any]) -> None:
    judged = [each for each in kept["lines"] if each["judged"]]
    assert judged
    assert all(each["fitted"] and each["source"] and each["n"] for each in judged)


def test_the_page_names_every_missed_bar(kept: dict[str, Any]) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    end = text[text.index("## Where simkit is wrong") :]
    for each in kept["lines"]:
        assert (each["verdict"] == MISSED) <= (page.escaped(each["evidence"]) in end), each["evidence"]


def test_a_bar_that_another_assumption_would_miss_says_so(kept: dict[str, Any]) -> None:
    """Those that the page tries: so many requests a client, and host terms of one GPU alone."""
    for judged in (each for each in kept["lines"] if each["verdict"] == HIT and each["section"] == rows.ROWS.title):
        name = judged["evidence"].rpartition(", ")[0]
        own = [each for each in kept["lines"] if each["evidence"].startswith(f"{name}, ")]
        others = [each for each in own if re.search(rf"\d requests a client$|{rows.ALONE}$", each["evidence"])]
        for other in others:
            misses = other["error_pct"] > judged["bar_pct"]
            assert (f" {other['error_pct']:.1f} %: the bar would be missed" in judged["note"]) is misses, other
        for other in (each for each in others if each["evidence"].endswith(rows.ALONE)):
            assert ", ".join(re.findall(r"[\d,.]+ us a \w+", other["fitted"])) in judged["note"]
    assert sum(each["evidence"].endswith(rows.ALONE) for each in kept["lines"]) == 2


# --- how it is made ---------------------------------------------------------------------------------------------------


def test_without_the_data_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(FOLDER.rglob("*")) if "__pycache__" not in path.parts}
    monkeypatch.setattr(build, "SHARED", tmp_path)
    assert build.main() == build.MISSING_INPUT
    told = capsys.readouterr()
    assert told.out == ""
    for section in build.SECTIONS:
        assert (f"{section.title}: cannot be rebuilt without" in told.err) is bool(section.needs)
        assert all(f"../shared/{path}" in told.err for path in section.needs)
    after = {path: path.stat().st_mtime_ns for path in sorted(FOLDER.rglob("*")) if "__pycache__" not in path.parts}
    assert after == before


def content(*lines: Line, **curves: Any) -> dict[str, Any]:
    return {"lines": [asdict(each) for each in lines], "curves": curves, "gaps": ["a gap"]}


def example(error_pct: float | None, bar_pct: float | None = 5.0, **more: Any) -> Line:
    """A line as it is kept."""
    given: dict[str, Any] = {"evidence": "e", "source": "who", "n": 3, "metric": "TPOT", **more}
    return Line(error_pct=error_pct, bar_pct=bar_pct, **given).kept(more.get("section", "S"))


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (example(5.0), HIT),
        (example(-5.0), HIT),
        (example(-5.01), MISSED),
        (example(None), MISSED),
        (example(50.0, None), NO_BAR),
        (example(50.0, judged=False), SHOWN),
    ],
)
def test_a_bar_holds_for_the_size_of_the_error(made: Line, verdict: str) -> None:
    assert made.outcome == made.verdict == verdict


def test_what_is_wrong_is_found_in_the_data() -> None:
    points = [
        {"row": str(i), "by": by, "measured": 100.0, "predicted": predicted, "at_zero": 50.0, "test": True}
        for i, (by, predicted) in enumerate([(1, 100.0), (1, 98.0), (8, 70.0), (8, 80.0), (64, 107.0)])
    ]
    sets = {"a set": {"unit": "TPOT [ms]", "by": "batch size", "bar_pct": 5.0, "points": points}}
    lines = [
        example(4.0, evidence="fine"),
        example(9.0, evidence="a little off"),
        example(-30.0, evidence="far off"),
        example(60.0, evidence="shown", judged=False),
        example(70.0, evidence="shown, at zero", rests_on=AT_ZERO, judged=False),
    ]
    assert [text.split(":")[0] for text in wrong.missed(lines)] == ["far off", "a little off"]
    assert wrong.furthest(lines) == ["shown: TPOT 60.0 % (n = 3)"]
    worse = {"unit": "output [tokens/s]", "by": "rate", "points": [points[-1] | {"predicted": 150.0}]}
    assert wrong.worst_groups({"sets": sets | {"another": worse}}) == [
        "another, rate 64: output [tokens/s] +50.0 % (1 row)",
        "a set, batch size 8: TPOT [ms] -25.0 % (2 rows)",
    ]
    assert wrong.biases({"sets": sets}) == ["a set: TPOT [ms] -9.0 % (n = 5)"]


def test_both_pages_say_the_same_and_need_no_network() -> None:
    found = content(example(9.0, evidence="a <b> & `c`"), example(1.0, fitted="none", rests_on=NO_FIT))
    text, html = page.markdown(found, {}), page.html(found, {})
    for said in (
        "1 of 2 bars are met, 1 missed and named below: S 1 of 2.",
        page.COMMAND,
        "a gap",
        "Where simkit is wrong",
    ):
        assert said in text
        assert said in html
    assert "a &lt;b&gt; &amp; `c`" in html
    assert "http" not in html.replace("http://www.w3.org", "")
    assert text.count("**MISSED**") == 2
    assert build.files(found) == build.files(found)


def test_a_step_faster_than_the_hardware_is_counted() -> None:
    """The check sees a latency model that is too fast, and passes the one that ships."""
    model = next(exact._rooflines())
    assert exact.check(model).too_fast == 0

    class TooFast:
        peak_flops_per_s, peak_bytes_per_s, work = model.peak_flops_per_s, model.peak_bytes_per_s, model.work

        def gpu_ns(self, shapes: Any) -> Any:
            return model.gpu_ns(shapes) * 0.5

    found = exact.check(TooFast())  # type: ignore[arg-type]
    assert 0 < found.too_fast < found.steps
    assert found.nearest < 1


def test_no_two_sections_have_one_title() -> None:
    titles = [section.title for section in build.SECTIONS]
    assert len(set(titles)) == len(titles)
