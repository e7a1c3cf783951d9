"""`simkit calibrate` and `simkit profiles` as a user meets them: files, messages, exit codes."""

# ruff: noqa: E501 (expected messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import rows, text
from typer.testing import CliRunner

from simkit.cli import app

SCENARIO = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_num_seqs: 4, max_model_len: 2048}
workload:
  num_requests: 3
  arrivals: {process: poisson, rate_per_s: 6}
  prompt_tokens: {dist: fixed, value: 50}
  output_tokens: {dist: fixed, value: 20}
latency: {profile: mine.json}
"""
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(text(), encoding="utf-8")
    (tmp_path / "tiny.yaml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path


def simkit(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app.app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_a_table_becomes_a_profile_that_runs(home: Path) -> None:
    code, out, err = simkit(
        "calibrate", "--from-csv", "mine.csv", "--name", "mine", "--gpu-spec", "a100-sxm4-80gb", "--out", "mine.json"
    )
    assert code == 0, err
    assert "gemm bfloat16" in out
    assert "attention_decode bfloat16" in out
    assert "mean of the main ops' splits" in out
    assert err.splitlines()[-1] == "wrote mine.json; use it with --set latency.profile=mine.json"
    assert json.loads((home / "mine.json").read_text())["name"] == "mine"
    assert (home / "mine.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = simkit("run", "tiny.yaml", "--no-report")
    assert code == 0, err
    assert "step times: profile mine (calibrated)" in out
    assert "not measured: " in out


def test_a_refit_drops_the_host_terms_of_the_old_step_times_and_says_so(home: Path) -> None:
    """They were fitted to what the old times left over."""
    fit = (
        "calibrate",
        "--from-csv",
        "mine.csv",
        "--name",
        "mine",
        "--gpu-spec",
        "a100-sxm4-80gb",
        "--out",
        "mine.json",
    )
    assert simkit(*fit)[0] == 0
    data = json.loads((home / "mine.json").read_text())
    host = {"version": "0.19", "fixed_us": 9.0, "per_seq_us": 1.0, "first_token_us": 2.0, "provenance": {}}
    (home / "mine.json").write_text(json.dumps(data | {"engine_hosts": [host]}))
    code, out, err = simkit(*fit)
    assert code == 0
    assert (
        "note: the host terms of vLLM 0.19 that mine.json had are gone: they were fitted beside its old step times; fit them again with --from-run"
        in err.splitlines()
    )
    assert "host of vLLM" not in out
    assert json.loads((home / "mine.json").read_text()) == data


def test_the_name_of_a_gpu_is_enough_and_json_is_the_report(home: Path) -> None:
    code, out, err = simkit("calibrate", "--from-csv", "mine.csv", "--name", "a100-sxm4-80gb", "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["gpu"] == "a100-sxm4-80gb"
    gemm = next(row for row in found["ops"] if row["op"] == "gemm")
    assert gemm["valid"] == {"m": [1.0, 4096.0], "n": [256.0, 16384.0], "k": [256.0, 8192.0]}
    assert gemm["report"]["errors"]["held_out_inside"]["num"] > 10
    assert (home / "calibration" / "a100-sxm4-80gb" / "a100-sxm4-80gb.json").exists()


def test_rows_that_are_not_used_are_listed(home: Path) -> None:
    table = list(rows())
    table[5]["latency_us"], table[6]["latency_us"] = 1e-3, "NaN"
    (home / "mine.csv").write_text(text(table), encoding="utf-8")
    code, out, err = simkit("calibrate", "--from-csv", "mine.csv", "--name", "x", "--gpu-spec", "a100-sxm4-80gb")
    assert code == 0
    assert "1 gemm bfloat16 rows faster than the hardware allows, not used:\n  gemm bfloat16 m=1 " in out
    assert "note: mine.csv:8: gemm bfloat16: latency_us is missing or out of range" in err


def test_a_table_that_looks_like_another_gpu_is_told(home: Path) -> None:
    table = [row | {"latency_us": row["latency_us"] / 1.9} for row in rows()]
    (home / "mine.csv").write_text(text(table), encoding="utf-8")
    code, _, err = simkit("calibrate", "--from-csv", "mine.csv", "--name", "x", "--gpu-spec", "a100-sxm4-80gb")
    assert code == 0
    assert re.search(
        r"note: \d+ % of the attention_decode bfloat16 rows are faster than a100-sxm4-80gb allows: is", err
    )


@pytest.mark.parametrize("step", ["fit_table", "plot_page"])
def test_an_interrupted_fit_writes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    import calib.fit.fit
    import calib.plots.page

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calib.fit.fit if step == "fit_table" else calib.plots.page, step, interrupted)
    before = sorted(path.name for path in home.iterdir())
    code, _, err = simkit("calibrate", "--from-csv", "mine.csv", "--name", "a100-sxm4-80gb", "--out", "mine.json")
    assert (code, err) == (130, "interrupted; nothing was written\n")
    assert sorted(path.name for path in home.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "calibrate: expected one of --gpu, --device, --from-csv, --from-run, got none"),
        (["--gpu", "0", "--device", "cpu"], "expected one of --gpu, --device, --from-csv, --from-run, got --gpu and --device"),
        (["--device", "tpu"], "--device: expected cpu, got 'tpu'; for a CUDA device use --gpu N"),
        (["--from-csv", "mine.csv"], "--gpu-spec: 'mine.csv' is no registered GPU: say which the table is of (list: simkit gpus)"),
        (["--from-csv", "mine.csv", "--name", "x", "--gpu-spec", "a101"], "hardware.gpu: 'a101' is not known; did you mean"),
        (["--from-csv", "none.csv", "--name", "h200-sxm-141gb"], "none.csv: no such file"),
        (["--from-csv", "mine.csv", "--quick"], "--quick: nothing is measured with --from-csv"),
        (["--from-csv", "mine.csv", "--name", "a100-sxm4-80gb", "--out", "x.txt"], "--out: expected a file that ends in .json"),
        (["--from-csv", "tiny.yaml", "--name", "a100-sxm4-80gb"], "tiny.yaml: not a CSV file: "),
        (["--from-csv", "mine.csv", "--name", "t4-16gb"], "t4-16gb has no bfloat16"),
        (["--from-csv", "mine.csv", "--name", "a/b", "--gpu-spec", "a100-sxm4-80gb"], "--name: expected letters, digits, dots, dashes and underscores, got 'a/b'"),
        (["--from-csv", "mine.csv", "--name", "a$b_{$", "--gpu-spec", "a100-sxm4-80gb"], "--name: expected letters"),
        (["--device", "cpu", "--out", "x.txt"], "--out: expected a file that ends in .json, got 'x.txt'"),
        (["--device", "cpu", "--gpu-spec", "a100-sxm4-80gb"], "--gpu-spec: a CPU has no specification; its limits are measured"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_2(home: Path, arguments: list[str], message: str) -> None:
    code, out, err = simkit("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_no_gpu_is_one_clear_line(home: Path) -> None:
    code, out, err = simkit("calibrate", "--gpu", "0")
    if HAS_TORCH and "there " not in err:
        assert "no CUDA device" in err
    elif not HAS_TORCH:
        assert "needs PyTorch, which is not installed: pip install 'simkit-llm[calibrate]'" in err
    assert (code, out, len(err.splitlines())) == (2, "", 1)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed (pip install 'simkit-llm[calibrate]')")
def test_a_cpu_is_measured_fitted_and_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real measurement of this machine on the coarse grid, with less time for each point than a user gives it."""
    from calib.measure import grid

    monkeypatch.setattr(grid, "_CEILING_S", 0.05)
    monkeypatch.setitem(grid.CPU_PACE, True, replace(grid.CPU_PACE[True], point_s=0.003))
    code, out, err = simkit("calibrate", "--device", "cpu", "--quick", "--out", "mine.json")
    assert code == 0, err
    assert "gemm" in out
    assert {"kernels.csv", "measured.json", "mine.json", "mine.png"} <= {path.name for path in home.iterdir()}
    code, out, err = simkit("run", "tiny.yaml", "--no-report")
    assert code == 0, err
    assert "step times: profile cpu (calibrated on cpu, not on a100-sxm4-80gb" in " ".join(out.split())


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed (pip install 'simkit-llm[calibrate]')")
def test_an_interrupt_says_that_what_was_measured_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calib.measure import sweep

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "measure", interrupted)
    code, out, err = simkit("calibrate", "--device", "cpu", "--quick", "--quiet")
    assert (code, out) == (130, "")
    assert err == "interrupted; what was measured is kept in calibration/cpu, the same command goes on from it\n"


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed (pip install 'simkit-llm[calibrate]')")
def test_an_interrupt_after_measuring_says_where_the_measurements_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import calib.fit.fit
    from calib.measure import grid

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "_CEILING_S", 0.02)
    monkeypatch.setitem(grid.CPU_PACE, True, replace(grid.CPU_PACE[True], point_s=0.001))
    monkeypatch.setattr(calib.fit.fit, "fit_table", interrupted)
    code, _, err = simkit("calibrate", "--device", "cpu", "--quick", "--out", "mine.json", "--quiet")
    assert code == 130
    assert err == (
        "interrupted; the measurements are in kernels.csv: simkit calibrate --from-csv kernels.csv --name cpu\n"
    )
    monkeypatch.undo()
    monkeypatch.chdir(home)
    code, _, err = simkit("calibrate", "--from-csv", "kernels.csv", "--name", "cpu", "--out", "mine.json")
    assert code == 0, err
    assert json.loads((home / "mine.json").read_text())["gpu"]["name"] == "cpu"


def test_profiles_lists_errors_and_ranges() -> None:
    code, out, err = simkit("profiles")
    assert (code, err) == (0, "")
    for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "rtx-pro-6000"):
        assert f"{name}  measured on {name}: " in out
    assert "Apache-2.0" in out
    assert "gemm fp8: m 1 to 32,768, n 32 to 65,536, k 32 to 65,536" in out
    code, out, _ = simkit("profiles", "--json")
    assert code == 0
    found = {profile["name"]: profile for profile in json.loads(out)}
    assert found["rtx-pro-6000"]["launches"]["mixed"]["measured"] is True
    assert found["h200-sxm-141gb"]["ops"][0]["report"]["rows"] > 0
