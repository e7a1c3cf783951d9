"""`simkit doctor`: what is run again, how it is judged, what is printed and written, and what is refused."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from served import as_asked
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.diagnosis.thresholds import PROOF, TABLE
from simkit.errors import InputError
from simkit.metrics import catalogue
from simkit.report.render import html
from simkit.report.sections import runs as pages
from simkit.studies import doctor

BASE: dict[str, Any] = {
    "name": "small",
    "model": "qwen2.5-0.5b",
    "hardware": {"gpu": "l4-24gb"},
    "latency": {"profile": "unit"},
    "engine": {"max_num_seqs": 4, "max_model_len": 512},
    "workload": {
        "num_requests": 120,
        "arrivals": {"process": "closed_loop", "concurrency": 12},
        "prompt_tokens": {"dist": "fixed", "value": 32},
        "output_tokens": {"dist": "uniform", "low": 10, "high": 60},
    },
}


def build(**more: Any) -> scenario.Scenario:
    data = {key: value | more.pop(key, {}) if isinstance(value, dict) else value for key, value in BASE.items()}
    return scenario.from_dict(data | more)


def saved(folder: Path, **more: Any) -> Path:
    return api.write(as_asked(build(**more)), folder, report=False)


def simkit(cwd: Path, *arguments: str) -> Any:
    """Run the command in `cwd`: exit_code, stdout, stderr."""
    with chdir(cwd):
        return CliRunner().invoke(app.app, list(arguments))


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve clients and four slots: slots-limit."""
    return saved(tmp_path_factory.mktemp("runs") / "small")


# --- the command ------------------------------------------------------------------------------------------------------
def test_it_says_what_is_wrong_and_proves_the_advice(patient: Path) -> None:
    done = simkit(patient.parent, "doctor", "small", "--jobs", "1")
    assert done.exit_code == 0, done.stderr
    for text in ("1. slots-limit (warning)", "all 4 slots are taken", ">= 20.0 %", "engine.max_num_seqs=8: helps",
                 "engine.max_num_seqs=16: helps", "this run", "TTFT p99, ms *"):  # fmt: skip
        assert text in done.stdout
    assert done.stderr == ""


def test_json_and_files_hold_the_same_and_do_not_depend_on_jobs(patient: Path, tmp_path: Path) -> None:
    one = simkit(tmp_path, "doctor", str(patient), "--json", "--jobs", "1", "--out", "found", "--quiet")
    two = simkit(tmp_path, "doctor", str(patient), "--json", "--jobs", "2")
    assert (one.exit_code, one.stderr) == (0, "")
    assert one.stdout == two.stdout
    assert (tmp_path / "found" / "doctor.json").read_text() == one.stdout
    found = json.loads(one.stdout)
    (finding,) = found["findings"]
    assert found["run_id"] == json.loads((patient / "manifest.json").read_text())["run_id"]
    assert finding["advice"]["settings"] == {"engine.max_num_seqs": 16}
    assert finding["proof"]["helps"]
    assert finding["proof"]["before"]["ttft_ms.p99"] > finding["proof"]["after"]["ttft_ms.p99"]
    markdown = (tmp_path / "found" / "doctor.md").read_text()
    assert "## 1. slots-limit (warning)" in markdown
    assert "`engine.max_num_seqs=16`" in markdown


def test_the_numbers_are_those_of_a_run_with_the_setting(patient: Path) -> None:
    result = as_asked(build())
    found = doctor.examine(doctor.rebuild(result.manifest, "m"), result)
    settings = found["findings"][0]["advice"]["settings"]
    again = as_asked(scenario.apply_sets(build(), settings)).summary
    after = found["findings"][0]["proof"]["after"]
    assert {key: catalogue.number(again, key) for key in after} == after


def test_without_proof_nothing_is_run(patient: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = simkit(patient.parent, "doctor", "small", "--no-proof")
    assert done.exit_code == 0
    assert "engine.max_num_seqs=16: not proven: no re-run was made" in done.stdout
    assert "before and after" not in done.stdout
    monkeypatch.setattr("simkit.studies.doctor.run_study", lambda *_, **__: pytest.fail("something was run"))
    (finding,) = doctor.examine(None, as_asked(build()))["findings"]
    assert finding["proof"] is None
    assert finding["advice"]["settings"] == {"engine.max_num_seqs": 8}


def test_a_healthy_run_is_told_so_with_the_checks(tmp_path: Path) -> None:
    saved(tmp_path / "run", engine={"max_num_seqs": 12})
    done = simkit(tmp_path, "doctor", "run")
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert said.startswith(f"small: nothing found ({len(TABLE)} rules checked: replica-failed, rejected,")


def test_all_thresholds_can_be_read() -> None:
    done = simkit(Path.cwd(), "doctor", "--rules")
    assert done.exit_code == 0
    for rule, bounds in (*TABLE, ("proof", PROOF)):
        assert rule in done.stdout
        assert all(bound.name in done.stdout for bound in bounds)


def test_run_tells_of_alarms_in_one_line(tmp_path: Path) -> None:
    scenario_file = tmp_path / "small.yaml"
    scenario_file.write_text(json.dumps(BASE))
    done = simkit(tmp_path, "run", "small.yaml", "--no-report")
    assert "doctor: 1 finding: slots-limit; `simkit doctor runs/small` proves what helps\n" in done.stderr
    done = simkit(tmp_path, "run", "small.yaml", "--no-report", "--set", "engine.max_num_seqs=12")
    assert "doctor" not in done.stderr


def test_an_arm_of_a_comparison_is_a_patient_and_the_comparison_is_not(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(json.dumps(BASE))
    assert simkit(tmp_path, "compare", "small.yaml", "--out", "all", "--no-report", "--quiet").exit_code == 0
    done = simkit(tmp_path, "doctor", "all")
    assert done.exit_code == 2
    assert done.stderr == (
        "all: expected one run, got 6 arms: name one of them, e.g. all/arms/static+contiguous, "
        "all/arms/static+paged, all/arms/dynamic+contiguous\n"
    )
    done = simkit(tmp_path, "doctor", "all/arms/static+contiguous")
    assert done.exit_code == 0, done.stderr
    assert "dead-slots" in done.stdout
    assert "engine.batching=continuous: helps" in done.stdout


# --- bad input --------------------------------------------------------------------------------------------------------
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, patient: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text("{}")
    for arguments, said in (
        (["nowhere"], "nowhere/manifest.json: cannot be read"),
        (["other"], "other: expected a run directory of simkit"),
        ([], "doctor: expected a run directory"),
        ([str(patient), "--out", str(patient)], "expected another directory than the run"),
        ([str(patient), "--out", "file"], "--out file: expected a directory, got a file"),
    ):
        done = simkit(tmp_path, "doctor", *arguments)
        assert done.exit_code == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_log_that_is_gone_is_named_and_can_be_pointed_to(tmp_path: Path) -> None:
    rows = "\n".join(f"2023-11-16 18:15:{i * 0.01:010.7f},32,{20 + i % 9}" for i in range(150))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    given = build().to_dict()
    given["workload"] = {"trace": {"path": "log.csv"}}
    given["engine"] = {"max_num_seqs": 1, "max_model_len": 512}
    result = api.run(scenario.from_dict(given), base_dir=tmp_path / "data")
    api.write(result, tmp_path / "run", report=False)
    done = simkit(tmp_path, "doctor", "run")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "log.csv: no such file; relative paths of the scenario start in the working directory" in done.stderr
    assert simkit(tmp_path, "doctor", "run", "--no-proof").exit_code == 0
    done = simkit(tmp_path, "doctor", "run", "--base-dir", "data", "--jobs", "1")
    assert done.exit_code == 0, done.stderr
    assert "slots-limit" in done.stdout
    assert "helps" in done.stdout
    with (tmp_path / "data" / "log.csv").open("a") as log:
        log.write("2023-11-16 18:15:59.0,32,20\n")
    done = simkit(tmp_path, "doctor", "run", "--base-dir", "data")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "log.csv: expected the log of this run, but its content has changed since" in done.stderr


# --- rebuilding and judging -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_the_scenario_of_a_manifest_is_the_one_that_was_run(batching: str) -> None:
    result = as_asked(build(engine={"batching": batching}))
    rebuilt = doctor.rebuild(json.loads(json.dumps(result.manifest)), "m")
    assert as_asked(rebuilt).manifest["run_id"] == result.manifest["run_id"]
    other = scenario.apply_sets(rebuilt, {"engine.batching": "continuous", "engine.max_num_seqs": 2})
    assert other.engine.max_num_active_seqs is None, "follows max_num_seqs"
    assert as_asked(other).manifest["scenario"]["engine"]["stream"] is True, "follows batching"


def test_a_run_of_other_step_times_is_made_again_first() -> None:
    result = as_asked(build())
    result.manifest["run_id"] = "of an older version"
    found = doctor.examine(doctor.rebuild(result.manifest, "m"), result)
    assert found["remade"]
    assert found["findings"][0]["proof"]["before"]["ttft_ms.p99"] == result.summary["ttft_ms"]["p99"]


def summary(tokens: float, tpot: float, ttft: float = 100.0, finished: int = 10) -> dict[str, Any]:
    return {
        "throughput": {"output_tokens_per_s": tokens},
        "tpot_ms": {"p99": tpot},
        "ttft_ms": {"p99": ttft},
        "num_requests": {"finished": finished},
        "num_preemptions": 0,
    }


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (summary(100, 15), "helps"),
        (summary(100, 15, ttft=120), "helps, but makes TTFT p99 worse"),
        (summary(96, 15), "helps, but makes output tokens/s worse"),
        (summary(98, 15, ttft=109), "helps"),
        (summary(100, 19.5), "does not help"),
        (summary(100, 23), "does not help, and makes TPOT p99 worse"),
        (summary(100, 15, finished=9), "helps, but makes requests finished worse"),
        ("too large", "cannot be run: too large"),
        (summary(100, 15) | {"saturated": True}, "helps; saturated, so latencies depend on the run's length"),
    ],
)
def test_verdicts(after: Any, expected: str) -> None:
    keys = ("tpot_ms.p99", *doctor.watched())
    before = {key: catalogue.number(summary(100, 20), key) for key in keys}
    proof = doctor.judge(("tpot_ms.p99",), {"engine.max_num_seqs": 8}, before, after)
    assert proof.verdict == expected
    assert proof.helps == expected.startswith("helps")


def test_what_gets_better_for_one_and_worse_for_the_other_goal_does_not_help() -> None:
    before = {"tpot_ms.p99": 20.0, "ttft_ms.p99": 100.0}
    proof = doctor.judge(("tpot_ms.p99", "ttft_ms.p99"), {}, before, summary(100, 10, ttft=200))
    assert proof.verdict == "does not help, and makes TTFT p99 worse"


def test_what_the_replications_are_not_sure_of_is_not_certain() -> None:
    before = {"tpot_ms.p99": 20.0, "ttft_ms.p99": 100.0}
    worse = summary(100, 15, ttft=150)
    wide = doctor.judge(("tpot_ms.p99",), {}, before, worse, {"tpot_ms.p99": 6.0, "ttft_ms.p99": 60.0})
    assert wide.verdict == "not certain: TPOT p99 better on average, within the interval of the replications"
    assert not wide.helps
    narrow = doctor.judge(("tpot_ms.p99",), {}, before, worse, {"tpot_ms.p99": 4.0, "ttft_ms.p99": 60.0})
    assert narrow.verdict == "helps", "the price is not certain"


def test_differences_are_paired_by_replication() -> None:
    """Before 100 and 300, after 90 and 291: the difference is -9.5 within 6.4, though the runs differ by 200."""
    before, after = ([{"x": a}, {"x": b}] for a, b in ((100, 300), (90, 291)))
    found = doctor.paired_ci95(["x", "y"], before, after)
    assert found == {"x": pytest.approx(12.706 * 0.5, rel=1e-3)}
    assert doctor.paired_ci95(["x"], before[:1], after[:1]) is None


def test_several_replications_are_judged_by_their_interval(tmp_path: Path) -> None:
    saved(tmp_path / "run", replications=3)
    done = simkit(tmp_path, "doctor", "run", "--json", "--jobs", "1")
    found = json.loads(done.stdout)
    proof = found["findings"][0]["proof"]
    assert not found["remade"]
    assert proof["helps"]
    assert proof["difference_ci95"]["ttft_ms.p99"] > 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert proof["before"]["ttft_ms.p99"] == summary["ttft_ms"]["p99"]


def test_advice_that_the_engine_refuses_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from simkit.diagnosis import remedies
    from simkit.diagnosis.findings import Advice

    choices = ({"engine.max_num_seqs": 8}, {"engine.max_model_len": 10**9})
    monkeypatch.setattr(remedies, "more_slots", lambda _: Advice("Try.", choices))
    result = as_asked(build())
    (finding,) = doctor.examine(doctor.rebuild(result.manifest, "m"), result)["findings"]
    assert finding["advice"]["settings"] == {"engine.max_num_seqs": 8}
    assert finding["also_tried"][0]["proof"]["verdict"].startswith("cannot be run: ")
    assert not finding["also_tried"][0]["proof"]["helps"]


def test_a_file_that_is_gone_is_an_error_of_the_caller() -> None:
    result = as_asked(build())
    result.manifest["scenario"]["latency"]["profile"] = "gone/profile.json"
    with pytest.raises(InputError, match="or give --base-dir"):
        doctor.examine(doctor.rebuild(result.manifest, "m"), result)


# --- in reports -------------------------------------------------------------------------------------------------------
def test_the_report_of_a_run_has_the_findings_open(patient: Path) -> None:
    page = html.render(pages.report({"small": patient}, "small"))
    section = page.split('<section id="doctor">')[1].split("</section>")[0]
    assert 'href="#doctor"' in page
    for text in ("slots-limit", "all 4 slots are taken", "&gt;= 20.0 %", "engine.max_num_seqs=8", "simkit doctor"):
        assert text in section
    assert "<details>" not in section


def test_the_report_of_a_comparison_folds_them_by_arm(patient: Path, tmp_path: Path) -> None:
    healthy = saved(tmp_path / "run", engine={"max_num_seqs": 12})
    page = html.render(pages.report({"few": patient, "many": healthy}, "both"))
    section = page.split('<section id="doctor">')[1].split("</section>")[0]
    assert section.count("<details>") == 2
    assert "<summary>few: 1 finding: slots-limit</summary>" in section
    assert f"<summary>many: nothing found by {len(TABLE)} rules</summary>" in section
