"""The pages of predictions beside measurements, from hand-made contents: what a reader sees of a run and of rows."""

from __future__ import annotations

import copy
import html
import io
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simkit.errors import InputError
from simkit.latency.effects import EFFECTS
from simkit.report.document import Report
from simkit.report.read import rows as rows_data
from simkit.report.read import validation as validation_data
from simkit.report.render import html as pages
from simkit.report.render import terminal
from simkit.report.sections import rows, validation
from tests.unit.test_report import assert_well_formed

STATS = ("mean", "p50", "p90", "p95", "p99")
HOSTILE = '<script>alert("x")</script> & $\\frac{1}{0}$ {{ 7*7 }} \udcff'

Content = dict[str, Any]


# --- contents ---------------------------------------------------------------------------------------------------------
def compared(measured: float, predicted: float) -> dict[str, float | None]:
    return {
        "measured": measured,
        "predicted": predicted,
        "error_pct": 100 * (predicted / measured - 1) if measured else None,
    }


def run_content() -> Content:
    """40 requests; TPOT is off by +2.5 %, TTFT by -11 %, ITL is not in the log."""
    requests = {
        metric: [[base * (1 + 0.2 * i), base * (1 + 0.2 * i) * (1 + error / 100)] for i in range(40)]
        for metric, base, error in (("ttft_ms", 31.0, -11.0), ("tpot_ms", 12.0, 2.5), ("e2e_ms", 3170.0, 1.2))
    }
    errors: dict[str, Any] = {
        metric: {
            stat: compared(pairs[at][0], pairs[at][1]) for stat, at in zip(STATS, (20, 19, 35, 37, 39), strict=True)
        }
        for metric, pairs in requests.items()
    }
    errors |= {
        "makespan_s": {"value": compared(301.0, 298.0)},
        "throughput": {"requests_per_s": compared(2.62, 2.63), "output_tokens_per_s": compared(547.0, 549.6)},
        "concurrency": {"mean": compared(13.4, 12.1)},
        "waiting": {"mean": compared(0.0, 0.25), "max": compared(16.0, 17.0)},
    }
    share = [i / 39 for i in range(40)]
    held = {"running": [1, 5, 9, 4], "waiting": [0, 0, 2, 0], "kv_pct": [3.0, 20.5, 31.0, 12.0]}
    return {
        "name": "chat log",
        "log": "requests.jsonl",
        "scenario": {"model": "llama-3-8b", "engine": {"max_num_seqs": 128}},
        "latency_source": "profile h100 (calibrated)",
        "latency_effects": {"host": "profile, fitted to a run of vLLM 0.19", "overlap": "scheduler rules"},
        "num_requests": {"compared": 40, "ttft_ms": 40, "tpot_ms": 37, "e2e_ms": 40},
        "bands": [
            {"key": "tpot_ms.mean", "limit_pct": 3.0, "error_pct": 2.5, "ok": True},
            {"key": "ttft_ms.mean", "limit_pct": 6.0, "error_pct": -11.0, "ok": False},
        ],
        "errors": errors,
        "curves": {
            metric: {"share": share, "measured": [a for a, _ in pairs], "predicted": [b for _, b in pairs]}
            for metric, pairs in requests.items()
        },
        "requests": requests,
        "series": {"t_s": [0.0, 10.0, 20.0, 30.0], "measured": held, "predicted": held},
        "ablation": {
            "host": {"e2e_ms.mean": -7.5, "tpot_ms.mean": -5.3, "ttft_ms.mean": -13.0, "makespan_s.value": -4.5},
            "overlap": {"e2e_ms.mean": 1.2, "tpot_ms.mean": None},
        },
        "notes": ["3 rows of the log failed"],
    }


ENGINES = (("vllm 0.12", "h100", "qwen3-32b", 8), ("trt-llm 1.0", "h100", "llama-3.1-8b", 1))


def rows_content() -> Content:
    """Two engines at three concurrencies; concurrency 8 and 128 are fitted on, 32 tests."""
    rows = []
    for engine, gpu, model, tp in ENGINES:
        for concurrency in (8, 32, 128):
            measured = 5.0 + 0.05 * concurrency + tp
            off, zero = 1.5 + 0.01 * concurrency + 0.3 * tp, -24.0 - 0.05 * concurrency
            rows.append(
                {
                    "id": f"B{len(rows):05d}",
                    "set": "silicon",
                    "engine": engine,
                    "gpu": gpu,
                    "model": model,
                    "tp": tp,
                    "input_len": 1024,
                    "output_len": 256,
                    "concurrency": concurrency,
                    "role": "test" if concurrency == 32 else "fit",
                    "metrics": {
                        "mean_tpot_ms": {
                            "measured": measured,
                            "predicted": measured * (1 + off / 100),
                            "error_pct": off,
                            "predicted_zero": measured * (1 + zero / 100),
                            "error_zero_pct": zero,
                        }
                    },
                    "note": "",
                }
            )
    return with_errors(
        {
            "name": "bench",
            "source": "bench.csv",
            "num_rows": {"read": 9, "simulated": 6, "skipped": 3},
            "skipped": {"the model is unknown": 2, "no concurrency": 1},
            "fit": {
                "engine": "vllm 0.12",
                "metric": "mean_tpot_ms",
                "terms": {"fixed_us": 1503.0, "per_seq_us": 47.1, "first_token_us": 0.0},
                "fitted": ["fixed_us", "per_seq_us"],
                "idle": ["first_token_us"],
                "rows": ["B00000", "B00002", "B00003", "B00005"],
                "test_rows": ["B00001", "B00004"],
            },
            "rows": rows,
            "assumptions": ["max_num_seqs: 256 (6 rows)"],
        }
    )


def with_errors(content: Content) -> Content:
    """The statistics of rows.json, over the rows that were not fitted on."""
    found: dict[str, Any] = {}
    for group in ("all", "engine", "gpu", "model", "concurrency", "set"):
        for row in content["rows"]:
            if row["role"] == "fit":
                continue
            for metric, values in row["metrics"].items():
                name = "all" if group == "all" else str(row[group])
                found.setdefault(group, {}).setdefault(name, {}).setdefault(metric, []).append(values["error_pct"])
    errors = {
        group: {
            value: {
                metric: {
                    "n": len(off),
                    "mape_pct": sum(map(abs, off)) / len(off),
                    "bias_pct": sum(off) / len(off),
                    "worst_pct": max(off, key=abs),
                }
                for metric, off in metrics.items()
            }
            for value, metrics in values.items()
        }
        for group, values in found.items()
    }
    return content | {"errors": errors}


# --- reading ----------------------------------------------------------------------------------------------------------
@cache
def run_page() -> str:
    return render_run(run_content())


@cache
def rows_text() -> str:
    return render_rows(rows_content())


def run_report(content: Content) -> Report:
    """Its host terms were fitted."""
    return validation.report(content, ("host",))


def render_run(content: Content) -> str:
    return pages.render(run_report(content))


def render_rows(content: Content) -> str:
    return pages.render(rows.report(content))


def printed(report: Callable[[Content], Report], content: Mapping[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, color_system=None)
    for part in terminal.render(report(content), width):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table_rows(page: str, heading: str) -> dict[str, list[str]]:
    """The first table behind a heading: row name to its cells."""
    part = page[page.index(heading) :]
    part = part[: part.index("</table>")]
    found = {}
    for line in re.findall(r'<tr><th scope="row">(.*?)</tr>', part, re.S):
        name, _, cells = line.partition("</th>")
        found[html.unescape(name.replace("<wbr>", ""))] = [
            html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", cells)
        ]
    return found


def section(page: str, key: str) -> str:
    start = page.index(f'<section id="{key}">')
    return page[start : page.index("</section>", start)]


# --- a run ------------------------------------------------------------------------------------------------------------
def test_the_numbers_of_the_page_are_those_of_the_json() -> None:
    page, content = run_page(), run_content()
    assert_well_formed(page)
    found = table_rows(page, "<h3>Latencies</h3>")
    for metric, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E")):
        values = content["errors"][metric]
        for at, stat in enumerate(STATS):
            for what in ("measured", "predicted"):
                shown = float(found[f"{name} {what} [ms]"][at].replace(",", ""))
                assert shown == pytest.approx(values[stat][what], rel=5e-3)
            error = found[f"{name} error"][at].removesuffix(" *")
            assert error == f"{values[stat]['error_pct']:+.1f} %"
    whole = table_rows(page, "<h3>The run as a whole</h3>")
    assert whole["makespan [s]"] == ["301", "298", "-1.0 %"]
    assert whole["waiting, mean"] == ["0", "0.25", "-"]
    assert set(whole) >= {"requests/s", "output tokens/s", "requests in the system, mean", "waiting, peak"}


def test_the_first_sentence_has_the_errors_and_how_many_requests_they_are_over() -> None:
    sentence = "over 40 requests: E2E mean +1.2 %, TPOT mean +2.5 %, TTFT mean -11.0 %, makespan -1.0 %."
    assert sentence in run_page()
    assert sentence in " ".join(printed(run_report, run_content()).split())


def test_a_missed_band_is_marked_wherever_its_number_stands() -> None:
    page = run_page()
    assert '<span class="badge bad">outside a band</span> 1 of 2: TTFT mean -11.0 % (band 6 %).' in page
    assert table_rows(page, "<h3>Bands</h3>") == {
        "TPOT mean": ["3 %", "+2.5 %", "met"],
        "TTFT mean": ["6 %", "-11.0 %", "MISSED"],
    }
    latencies = table_rows(page, "<h3>Latencies</h3>")
    marked = [name for name, cells in latencies.items() for cell in cells if cell.endswith("*")]
    assert marked == ["TTFT error"]
    assert latencies["TTFT error"][0] == "-11.0 % *"
    text = printed(run_report, run_content())
    assert re.search(r"TTFT mean\s+6 %\s+-11.0 %\s+MISSED", text)
    met = without_pictures(run_content())
    met["bands"] = met["bands"][:1]
    page = render_run(met)
    assert '<span class="badge good">bands met</span> TPOT mean within 3 %.' in page
    assert "MISSED" not in page


def test_every_effect_has_its_error_when_off_its_source_and_a_name() -> None:
    found = table_rows(run_page(), 'id="ablation"')
    assert found["none: all on"] == ["+1.2 %", "+2.5 %", "-11.0 %", "-1.0 %"]
    assert found["host work of a step"] == ["-7.5 % (-8.7)", "-5.3 % (-7.8)", "-13.0 % (-2.0)", "-4.5 % (-3.5)"]
    assert found["host work beside the GPU"] == ["+1.2 % (0)", "-", "-", "-"]
    sources = table_rows(run_page(), 'id="effects"')
    assert sources["host work of a step"] == ["host", "profile, fitted to a run of vLLM 0.19"]
    assert "Fitted to a run: host work of a step (profile, fitted to a run of vLLM 0.19)." in run_page()
    assert set(validation_data.EFFECTS) == set(EFFECTS)
    bars = re.findall(r">(no host work of a step|all on|-7.5 %)<", section(run_page(), "ablation"))
    assert {"no host work of a step", "all on", "-7.5 %"} <= set(bars)


def test_what_is_left_out_is_said() -> None:
    page = run_page()
    left_out = section(page, "left-out")
    assert "3 of 40 requests have no TPOT in both." in left_out
    assert "ITL: not in the log, or undefined for this run." in left_out
    assert "3 rows of the log failed." in left_out
    assert "TTFT 40, TPOT 37, E2E 40" in page
    assert "max_num_seqs: 128" in page


def without_pictures(content: Content) -> Content:
    return content | {"curves": {}, "requests": {}, "series": None, "ablation": None}


def test_what_was_not_made_leaves_the_rest_as_it_is() -> None:
    everything = run_content()
    whole = re.findall(r'<section id="([^"]+)">', run_page())
    bare = without_pictures(everything) | {"latency_effects": {}, "bands": [], "notes": []}
    for key in ("series", "ablation", ""):
        page = render_run(bare | ({key: everything[key]} if key else {}))
        assert_well_formed(page)
        sections = re.findall(r'<section id="([^"]+)">', page)
        gone = {"distributions", "requests", "series", "ablation", "effects"} - {key}
        assert sections == [name for name in whole if name not in gone]
        said = {"series": "no samples of the real engine", "ablation": "not repeated with effects switched off"}
        assert [name for name, text in said.items() if text in section(page, "left-out")] == [
            name for name in said if name != key
        ]
    assert "TPOT" in printed(run_report, bare)


def test_a_log_without_a_single_time_is_no_error() -> None:
    content = without_pictures(run_content()) | {"errors": {}, "num_requests": {"compared": 0}, "bands": []}
    page = render_run(content)
    assert_well_formed(page)
    assert "over 0 requests: no error is known." in page
    assert "TTFT, TPOT, ITL, E2E: not in the log, or undefined for this run." in page
    assert "no error is known" in printed(run_report, content)


def test_the_dots_are_the_requests_and_of_many_only_some() -> None:
    few = section(run_page(), "requests")
    assert few.count("<use ") >= 3 * 40
    assert "TTFT: 40 drawn; 0 % within 10 %. TPOT: 37" not in few
    assert "E2E: 40 drawn; 100 % within 10 %" in few
    content = without_pictures(run_content())
    content["requests"] = {"e2e_ms": [[100.0 + i, 101.0 + i] for i in range(4000)]}
    content["num_requests"]["e2e_ms"] = 12_000
    many = section(render_run(content), "requests")
    assert "E2E: 1,500 of 12,000 drawn, evenly thinned; 100 % within 10 %." in many
    assert 1500 <= many.count("<use ") < 1600
    seconds = [float(i) for i in range(3600)]
    long = {"t_s": seconds, "measured": {"running": seconds}, "predicted": {"running": seconds}}
    over_time = section(render_run(without_pictures(run_content()) | {"series": long}), "series")
    assert "1,000 of 3,600 instants, evenly thinned" in over_time
    assert "waiting" not in over_time


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_terminal_keeps_to_its_width_and_cuts_no_number(width: int) -> None:
    text = printed(run_report, run_content(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for number in ("-11.0 % *", "-7.5 % (-8.7)", "301", "MISSED"):
        assert number in text


# --- rows -------------------------------------------------------------------------------------------------------------
def test_the_errors_of_rows_are_those_of_the_json_with_the_terms_at_0_beside_them() -> None:
    page, content = rows_text(), rows_content()
    assert_well_formed(page)
    found = table_rows(page, 'id="errors"')
    stats = content["errors"]["all"]["all"]["mean_tpot_ms"]
    zero = -24.0 - 0.05 * 32
    assert found["TPOT mean, test rows"] == [
        "2",
        f"{stats['mape_pct']:.1f} %",
        f"{-zero:.1f} %",
        f"{stats['bias_pct']:+.1f} %",
        f"{zero:+.1f} %",
        f"{stats['worst_pct']:+.1f} %",
        f"{zero:+.1f} %",
    ]
    fit = [row["metrics"]["mean_tpot_ms"]["error_pct"] for row in content["rows"] if row["role"] == "fit"]
    assert found["TPOT mean, rows fitted on"][:2] == ["4", f"{sum(fit) / 4:.1f} %"]
    by_engine = table_rows(page, "<h3>By engine</h3>") if "<h3>By engine</h3>" in page else table_rows(page, "groups")
    for engine, *_ in ENGINES:
        stats = content["errors"]["engine"][engine]["mean_tpot_ms"]
        assert by_engine[f"TPOT mean, {engine}"][:2] == ["1", f"{stats['mape_pct']:.1f} %"]
    text = printed(rows.report, content)
    assert f"over test rows: TPOT mean {content['errors']['all']['all']['mean_tpot_ms']['mape_pct']:.1f} %" in text
    assert re.search(r"TPOT mean, rows fitted on\s+4 ", text)


def test_what_was_fitted_and_on_which_rows() -> None:
    fit = section(rows_text(), "fit")
    assert "2 numbers were fitted, on 4 rows, and tested on 2 others." in fit
    assert "Fitted on: B00000, B00002, B00003, B00005." in fit
    assert table_rows(rows_text(), 'id="fit"') == {
        "a step, fixed": ["1,503", "yes"],
        "a step, for each sequence": ["47.1", "yes"],
        "a request, to its first token": ["0", "no: changes nothing"],
    }
    several = rows_content()
    several["fit"] = [several["fit"], several["fit"] | {"engine": "trt-llm 1.0"}]
    text = printed(rows.report, several)
    assert "4 numbers were fitted, on 8 rows" in text
    assert "host term of trt-llm 1.0" in text


def test_every_row_is_shown_with_the_terms_at_0_and_fitted() -> None:
    shown = table_rows(rows_text(), "TPOT mean [ms], 6 rows")
    assert list(shown) == [f"B{i:05d}" for i in range(6)]
    row = rows_content()["rows"][1]
    values = row["metrics"]["mean_tpot_ms"]
    assert shown["B00001"][:8] == ["vllm 0.12", "h100", "qwen3-32b", "8", "1024", "256", "32", "test"]
    assert [float(cell.removesuffix(" %")) for cell in shown["B00001"][8:]] == pytest.approx(
        [values[key] for key in ("measured", "predicted", "error_pct", "predicted_zero", "error_zero_pct")], rel=0.02
    )
    picture = section(rows_text(), "agreement")
    for text in ("vllm 0.12, qwen3-32b (3)", "hollow: rows fitted on", "host terms at 0", "host terms fitted"):
        assert text in picture


def test_rows_without_a_fit_or_host_terms_have_no_columns_for_them() -> None:
    content = rows_content()
    content["fit"] = None
    for row in content["rows"]:
        row["role"] = "all"
        for values in row["metrics"].values():
            del values["predicted_zero"], values["error_zero_pct"]
    content = with_errors(content)
    page = render_rows(content)
    assert_well_formed(page)
    assert "at 0" not in page.replace("predicted at 0", "at 0")
    assert "Nothing: no number was fitted to these rows." in page
    assert "hollow" not in page
    assert list(table_rows(page, 'id="errors"')) == ["TPOT mean, rows"]


def test_rows_left_out_assumptions_and_counts() -> None:
    page = rows_text()
    assert "9 read, 6 simulated, 3 left out" in page
    assert "<li>2 rows: the model is unknown</li>" in page
    assert "<li>1 row: no concurrency</li>" in page
    assert "<li>max_num_seqs: 256 (6 rows)</li>" in page
    content = rows_content()
    for row in content["rows"]:
        row["metrics"] = {
            "running": {"measured": 29, "predicted": 30, "error_pct": 3.4, "predicted_zero": 30, "error_zero_pct": 3.4,
                        "predicted_mean": 28.5, "predicted_peak": 30, "within": row["id"] != "B00001"}
        }  # fmt: skip
    content["errors"] = {"all": {}}
    page = render_rows(content)
    assert_well_formed(page)
    assert table_rows(page, 'id="errors"')["B00001"] == ["32", "29", "28.5", "30", "no"]
    assert "5 of 6 rows within" in page


def test_many_groups_are_put_together_until_marks_tell_them_apart() -> None:
    rows = [{"engine": f"e{i % 3}", "gpu": f"g{i % 4}", "model": f"m{i}", "set": "s"} for i in range(24)]
    found = rows_data.labels(rows, 9)
    assert len(found) <= 9
    assert sum(map(len, found.values())) == 24
    alone = [{"engine": f"e{i}", "gpu": f"g{i}", "model": f"m{i}", "set": f"s{i}"} for i in range(24)]
    found = rows_data.labels(alone, 9)
    assert len(found) == 9
    assert len(found["others"]) == 16


# --- both -------------------------------------------------------------------------------------------------------------
def hostile(value: Any) -> Any:
    """Every name and text replaced by one that tries to break out; keys of known meaning stay."""
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE + value if isinstance(value, str) else value


def hostile_run() -> Content:
    content = without_pictures(run_content()) | {"ablation": run_content()["ablation"]}
    for key in ("name", "log", "scenario", "latency_source", "latency_effects", "notes"):
        content[key] = hostile(content[key])
    content["latency_effects"][HOSTILE] = HOSTILE
    content["ablation"][HOSTILE] = {"e2e_ms.mean": 1.0}
    content["errors"][HOSTILE] = {HOSTILE: compared(1.0, 2.0)}
    return content


def hostile_rows() -> Content:
    content = rows_content()
    for row in content["rows"]:
        for key in ("id", "set", "engine", "gpu", "model", "note"):
            row[key] = HOSTILE + row[key]
        row["metrics"][HOSTILE] = copy.deepcopy(row["metrics"]["mean_tpot_ms"])
    for key in ("name", "source", "assumptions"):
        content[key] = hostile(content[key])
    content["skipped"][HOSTILE] = 1
    content["fit"]["engine"] = HOSTILE
    return with_errors(content)


@pytest.mark.parametrize(
    ("report", "make"),
    [(run_report, hostile_run), (rows.report, hostile_rows)],
    ids=["run", "rows"],
)
def test_names_from_outside_are_text(report: Callable[[Content], Report], make: Callable[[], Content]) -> None:
    content = make()
    page = pages.render(report(content))
    assert_well_formed(page)
    assert "&lt;script&gt;" in page
    assert "{{ 7*7 }}" in page
    assert "$\\frac{1}{0}$" in page
    assert "<script>" in printed(report, content, 200)


@pytest.mark.parametrize(
    ("report", "make", "page"),
    [(run_report, run_content, run_page), (rows.report, rows_content, rows_text)],
    ids=["run", "rows"],
)
def test_the_same_content_gives_the_same_bytes(
    report: Callable[[Content], Report], make: Callable[[], Content], page: Callable[[], str], tmp_path: Path
) -> None:
    """Also when it was read back from its file."""
    content = make()
    pages.write(tmp_path / "a.html", report(json.loads(json.dumps(content))))
    assert (tmp_path / "a.html").read_bytes() == page().encode()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none/a\.html: cannot be written"):
        pages.write(tmp_path / "none" / "a.html", run_report(without_pictures(run_content())))
