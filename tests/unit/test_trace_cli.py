"""The `trace` commands as a user meets them: what they print, the files they write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from simkit.cli.app import app

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")

LOG = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02d}.25,{100 + second},{1 + second % 7}\n" for second in range(60)
)
KEYS = [
    "num_requests", "num_rows", "format", "title", "why", "span_s", "rate_per_s", "interarrival_cv", "dispersion_10s",
    "num_same_time", "prompt_tokens", "output_tokens", "prefix", "sessions", "clock", "measured", "models", "skipped",
    "bad", "notes",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")


def trace(*args: str) -> Result:
    return CliRunner().invoke(app, ["trace", *args])


def info(*args: str) -> dict[str, Any]:
    result = trace("info", *args, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def refusal(*args: str) -> str:
    result = trace(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_info_as_json() -> None:
    found = info("log.csv")
    assert list(found) == KEYS
    assert found["num_requests"] == 60
    assert found["format"] == "azure"
    assert found["why"] == "columns TIMESTAMP, ContextTokens, GeneratedTokens"
    assert (found["span_s"], found["rate_per_s"], found["interarrival_cv"]) == (59.0, 1.0, 0.0)
    assert found["prompt_tokens"]["max"] == 159
    assert found["prompt_tokens"]["p50"] == 129.5
    assert found["clock"]["start_utc"] == "2023-11-16T18:00:00.25Z"
    assert found["clock"]["resolution_s"] == 1.0
    assert found["prefix"] is None
    assert "unknown, not 0" in " ".join(found["notes"])
    assert "read as UTC" in " ".join(found["notes"])


def test_dirt_is_told_with_its_lines(tmp_path: Path) -> None:
    rows = LOG.splitlines()
    rows[3] = rows[3].rsplit(",", 1)[0] + ",0"
    rows[5] = rows[5].replace("2023-11-16", "yesterday")
    (tmp_path / "dirty.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert "more than 1 %" in refusal("info", "dirty.csv")
    found = info("dirty.csv", "--allow-bad")
    assert found["num_requests"] == 58
    assert [(skip["count"], skip["lines"]) for skip in found["skipped"]] == [(1, [4])]
    assert found["bad"]["count"] == 1
    assert found["bad"]["lines"][0].startswith("line 6: TIMESTAMP")
    text = trace("info", "dirty.csv", "--allow-bad").stdout
    assert "line 6" in text
    assert "line 4" in text


def test_the_terminal_fits_80_columns_and_says_what_and_why() -> None:
    result = trace("info", "log.csv")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    for text in ("Azure", "by columns TIMESTAMP", "60 of 60 rows", "1.0000 requests/s", "prefix sharing  unknown"):
        assert text in result.stdout, text


def test_info_writes_a_picture_and_the_same_bytes_again(tmp_path: Path) -> None:
    first = trace("info", "log.csv", "--out", "a", "--json")
    assert first.stderr == "wrote a; open a/trace.svg\n"
    assert (tmp_path / "a/info.json").read_text(encoding="utf-8") == first.stdout
    assert trace("info", "log.csv", "--out", "b", "--json", "--quiet").stderr == ""
    for name in ("info.json", "trace.svg", "trace.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine.txt").touch()
    assert "--out c" in refusal("info", "log.csv", "--out", "c")


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_log_of_few_requests_has_a_picture(tmp_path: Path, rows: int) -> None:
    (tmp_path / "few.csv").write_text("\n".join(LOG.splitlines()[: rows + 1]) + "\n", encoding="utf-8")
    assert info("few.csv", "--out", f"few{rows}")["num_requests"] == rows
    assert (tmp_path / f"few{rows}/trace.png").stat().st_size > 1000


def test_all_at_one_time(tmp_path: Path) -> None:
    line = LOG.splitlines()[1]
    (tmp_path / "same.csv").write_text("\n".join([LOG.splitlines()[0], *[line] * 5]) + "\n", encoding="utf-8")
    found = info("same.csv", "--out", "same")
    assert (found["span_s"], found["rate_per_s"], found["num_same_time"]) == (0.0, None, 4)
    assert found["interarrival_cv"] is None
    assert "unknown" in trace("info", "same.csv").stdout


def test_sessions_turns_and_think_times(tmp_path: Path) -> None:
    assert trace("convert", "log.csv", "--out", "log.parquet").exit_code == 0
    from simkit.logs.formats.canonical import CanonicalWriter, Meta
    from simkit.logs.read.record import Columns, Record

    writer = CanonicalWriter(tmp_path / "s.parquet")
    writer.add(
        Columns.of(
            [
                Record(1, 0, 600, 20, session="a", block_ids=[1, 2], ttft_ns=250_000_000),
                Record(2, 10**9, 64, 2, session="b", block_ids=[7], ttft_ns=10**9),
                Record(3, 6 * 10**9, 1100, 30, session="a", block_ids=[1, 2, 3], delay_ns=5 * 10**9, model="m"),
            ]
        )
    )
    writer.close(Meta("mooncake", "Mooncake JSONL", 0, 512))
    found = info("s.parquet")
    assert found["format"] == "canonical"
    assert found["sessions"]["num_sessions"] == 2
    assert found["sessions"]["turns"] == {"mean": 1.5, "max": 2}
    assert found["sessions"]["think_s"]["p50"] == 5.0
    assert found["sessions"]["between_turns_s"]["p50"] == 6.0
    assert found["measured"]["ttft_ms"]["mean"] == 625.0
    assert found["models"] == {"m": 1}
    assert found["prefix"] == {
        "hash_block_tokens": 512,
        "block_hit_share": 2 / 6,
        "token_hit_share": 1024 / (600 + 64 + 1100),
    }
    text = trace("info", "s.parquet").stdout
    for said in ("2, 1 of them with several turns", "measured TTFT [ms]", "logged think time [s]", "m (1)"):
        assert said in text, said


def test_convert_and_sample(tmp_path: Path) -> None:
    done = trace("convert", "log.csv", "--out", "a.parquet")
    assert done.exit_code == 0
    assert "note: times name no zone" in done.stderr
    assert done.stderr.endswith("wrote a.parquet: 60 requests over 59.000 s\n")
    assert trace("convert", "a.parquet", "--out", "b.parquet", "--quiet").stderr == ""
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert trace("sample", "a.parquet", "--out", "c.jsonl", "--start", "10", "--end", "20").exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["timestamp"] for line in lines] == [1000 * i for i in range(10)]
    assert lines[0]["input_length"] == 110
    few = trace(
        "sample", "a.parquet", "--out", "d.parquet", "--keep-share", "0.5", "--seed", "1", "--max-requests", "7"
    )
    assert few.exit_code == 0
    assert info("d.parquet")["num_requests"] == 7


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("info", "none.csv"), "none.csv: No such file"),
        (("info", "log.csv", "--format", "azur"), "did you mean 'azure'"),
        (("info", "log.csv", "--time-unit", "h"), "--time-unit: expected one of"),
        (("info", "log.csv", "--failed", "keep"), "--failed: expected one of"),
        (("info", "log.csv", "--on-restart", "x"), "--on-restart: expected one of"),
        (("info", "log.csv", "--hash-block-tokens", "0"), "--hash-block-tokens: expected"),
        (("info", "log.csv", "--map", "prompt"), "--map 'prompt': expected NAME=COLUMN"),
        (("info", "log.csv", "--map", "prompt=a,prompt=b"), "--map prompt: expected each name once"),
        (("convert", "log.csv", "--out", "a.csv"), "--out a.csv: expected a name that ends in .parquet or .jsonl"),
        (("convert", "log.csv"), "--out"),
        (("sample", "log.csv", "--out", "a.jsonl", "--start", "9", "--end", "5"), "--end"),
        (("sample", "log.csv", "--out", "a.jsonl", "--keep-share", "1.5"), "--keep-share: expected"),
        (("sample", "log.csv", "--out", "a.jsonl", "--max-requests", "0"), "--max-requests: expected"),
        (("sample", "log.csv", "--out", "a.jsonl", "--start", "99"), "no requests from 99 s"),
        (("inf", "log.csv"), "No such command 'inf'"),
    ],
)
def test_refusals_name_the_flag_in_one_line(args: tuple[str, ...], said: str) -> None:
    assert said in refusal(*args)
    assert not Path("a.jsonl").exists()


def test_without_a_command_the_help_is_printed() -> None:
    result = trace()
    assert result.exit_code == 0
    assert "convert" in result.stdout


@needs_traces
@pytest.mark.parametrize("name", ["azure_llm_2023_conv.csv.gz", "mooncake_conversation_0-20min.jsonl"])
def test_real_logs(name: str, tmp_path: Path) -> None:
    result = trace("info", str(TRACES / name), "--out", "real")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "real/trace.svg").stat().st_size < 2_000_000


@pytest.mark.parametrize(
    ("counts", "span_s", "rates", "edges", "width_s"),
    [
        ([3, 1, 0, 0, 0, 2], 5.6, [3, 1, 0, 0, 0, 2 / 0.6], [0, 1, 2, 3, 4, 5, 5.6], 1),
        ([3, 1, 0, 0, 0, 2], 5.1, [3, 1, 0, 0, 2 / 1.1], [0, 1, 2, 3, 4, 5.1], 1),
        ([5] * 12, 12.0, [5] * 12, list(range(13)), 1),
        ([1] * 12, 12.0, [1] * 6, [0, 2, 4, 6, 8, 10, 12], 2),
    ],
)
def test_rates_of_the_picture_count_every_request(
    counts: list[int], span_s: float, rates: list[float], edges: list[float], width_s: float
) -> None:
    import numpy as np

    from simkit.report.figures.log import rate_bins

    found, ends, width = rate_bins(np.array(counts), 1.0, span_s)
    assert found.tolist() == pytest.approx(rates)
    assert ends.tolist() == pytest.approx(edges)
    assert width == width_s
    assert float(found @ np.diff(ends)) == pytest.approx(sum(counts))


@pytest.mark.parametrize("name", ["new\nline.csv", "\x1b[31mred", "bad\udcff.csv", "del\x7f"])
def test_names_that_no_message_can_show_are_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LOG, encoding="utf-8")
    said = refusal("info", name)
    assert said.startswith(
        "FILE: expected a path of 1 to 4096 characters that is Unicode without newlines and control "
    )
    assert said.isprintable() or said.removesuffix("\n").isprintable()


def test_a_mooncake_copy_says_that_it_does_not_hold_the_start() -> None:
    told = trace("convert", "log.csv", "--out", "copy.jsonl")
    assert "note: Mooncake JSONL counts times from the first request: when the log began is left out" in told.stderr
    (again := Path("seconds.jsonl")).write_text('{"timestamp": 5, "input_length": 1, "output_length": 1}\n')
    assert "began" not in trace("convert", str(again), "--out", "other.jsonl").stderr
