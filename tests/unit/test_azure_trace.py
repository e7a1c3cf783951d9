"""The Azure 2023 trace reader on small files written here, and on the real traces where they are at hand."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.formats import FORMATS
from simkit.logs.read.cells import wall_ns as parse_time_ns
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.record import Columns, Record
from simkit.logs.read.tables import CsvRows
from simkit.workload import Workload, build_workload

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
CONV, CODE = "azure_llm_2023_conv.csv.gz", "azure_llm_2023_code.csv"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")


def text_of(*rows: str, header: str = HEADER) -> str:
    """As the real files are: CRLF, no newline at the end."""
    return "\r\n".join([header, *rows])


def replay(base_dir: Path, name: str = "t.csv", workload: dict[str, Any] | None = None, **trace: Any) -> Workload:
    spec = scenario.Workload.model_validate({"trace": {"path": name, **trace}, **(workload or {})})
    return build_workload(spec, seed=0, replication=0, max_model_len=8192, base_dir=base_dir)


def rows(workload: Workload) -> list[tuple[int, int, int]]:
    return [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in workload.requests]


def refusal(tmp_path: Path, content: str | bytes, **trace: Any) -> str:
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        replay(tmp_path, **trace)
    assert "\n" not in str(caught.value)
    return str(caught.value)


GOOD = (
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:51.2224670,879,55",
    "2023-11-16 18:15:51.2224671,91,16",
)
ARRIVALS = [0, 4_314_579_000, 4_541_877_000, 4_541_877_100]
GOOD_ROWS = list(zip(ARRIVALS, [374, 396, 879, 91], [44, 109, 55, 16], strict=True))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", text_of(*GOOD).encode()),
        ("plain-in-spite-of-its-name.gz", text_of(*GOOD).encode()),
        ("zipped.csv", gzip.compress(text_of(*GOOD).encode())),
        ("unix.csv", (text_of(*GOOD).replace("\r\n", "\n") + "\n\n").encode()),
        ("bom.csv", text_of(*GOOD).encode("utf-8-sig")),
        ("utf16.csv", text_of(*GOOD).encode("utf-16")),
    ],
)
def test_times_are_exact_whatever_the_wrapping(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    for format_name in ("auto", "azure"):
        workload = replay(tmp_path, name, format=format_name)
        assert workload.num_requests == 4
        assert rows(workload) == GOOD_ROWS
        assert workload.notes[0].startswith(f"trace {name}: read as Azure 2023 CSV, 4 requests over 4.542 s")
        assert workload.notes[1:] == (f"trace {name}: times name no zone and are read as UTC",)


def test_columns_are_found_by_name_and_others_are_named(tmp_path: Path) -> None:
    lines = [f"{line.split(',')[2]},x,{line.split(',')[1]},{line.split(',')[0]}" for line in GOOD]
    content = text_of(*lines, header="GeneratedTokens,Model,ContextTokens,TIMESTAMP")
    (tmp_path / "t.csv").write_text(content, newline="")
    workload = replay(tmp_path)
    assert rows(workload) == GOOD_ROWS
    assert "trace t.csv: columns not used: Model" in workload.notes


def test_timestamp_forms() -> None:
    base = 1_700_158_546 * 10**9  # 2023-11-16 18:15:46 UTC
    assert parse_time_ns("2023-11-16 18:15:46.6805900") == (base + 680_590_000, False)
    assert parse_time_ns("2023-11-16T18:15:46Z") == (base, True)
    assert parse_time_ns("2023-11-16 19:45:46.000000001+01:30") == (base + 1, True)
    assert parse_time_ns("2023-11-16 13:15:46.5-0500") == (base + 500_000_000, True)
    for text in ("2023-11-16", "2023-02-30 00:00:00", "2023-11-16 24:00:00", "16/11/2023 18:15:46", ""):
        with pytest.raises(ValueError):
            parse_time_ns(text)


def test_window_speed_and_max_requests(tmp_path: Path) -> None:
    stamps = [f"2023-11-16 18:15:{second:02d}.0000000,{second + 1},7" for second in range(0, 50, 10)]
    (tmp_path / "t.csv").write_text(text_of(*stamps), newline="")

    def seconds(**trace: Any) -> list[tuple[float, int]]:
        return [(r.arrival_ns / 1e9, r.prompt_tokens) for r in replay(tmp_path, **trace).requests]

    assert seconds(start_s=10, end_s=40) == [(0, 11), (10, 21), (20, 31)]
    assert seconds(start_s=5.0, max_requests=2) == [(5, 11), (15, 21)]
    assert seconds(speed=2.0) == [(0, 1), (5, 11), (10, 21), (15, 31), (20, 41)]
    assert seconds(speed=0.5, start_s=5.0, end_s=20.5) == [(10, 11), (30, 21)]
    notes = replay(tmp_path, start_s=5.0, end_s=30.5, speed=2.0).notes
    assert "trace t.csv: requests 2 to 4 of 5 are replayed" in notes
    assert "trace t.csv: gaps divided by 2" in notes
    with pytest.raises(InputError, match=r"trace t\.csv: no requests from 41 s to the end; the trace lasts 40 s"):
        replay(tmp_path, start_s=41.0)


def test_ties_keep_the_order_of_the_file_and_jumps_back_are_named(tmp_path: Path) -> None:
    content = text_of(
        "2023-11-05 02:00:01.0,1,1",
        "2023-11-05 02:00:02.0,2,1",
        "2023-11-05 02:00:02.0,3,1",
        "2023-11-05 02:00:00.5,4,1",
        "2023-11-05 02:00:02.0,5,1",
    )
    (tmp_path / "t.csv").write_text(content, newline="")
    workload = replay(tmp_path)
    assert [(a, p) for a, p, _ in rows(workload)] == [
        (0, 4),
        (500_000_000, 1),
        (1_500_000_000, 2),
        (1_500_000_000, 3),
        (1_500_000_000, 5),
    ]
    (note,) = [note for note in workload.notes if "earlier" in note]
    assert "1 row is earlier than the row before (by up to 1.5 s): sorted by time" in note
    assert "clock change" not in note
    set_back = content.replace("02:00:00.5", "01:00:03.0").replace("02:00:02.0,5", "01:00:04.0,5")
    (tmp_path / "t.csv").write_text(set_back, newline="")
    workload = replay(tmp_path)
    assert any("clock change" in note and "the hour is added" in note for note in workload.notes)
    assert [a for a, _, _ in rows(workload)] == [0, 1_000_000_000, 1_000_000_000, 2_000_000_000, 3_000_000_000]


def test_requests_with_no_tokens_are_skipped_counted_and_named(tmp_path: Path) -> None:
    lines = [f"2023-11-16 18:15:46.{i:07d},100,{0 if i in (1, 3) else 5}" for i in range(8)]
    lines.append("2023-11-16 18:15:47.0000000,0,5")
    (tmp_path / "t.csv").write_text(text_of(*lines), newline="")
    workload = replay(tmp_path)
    assert workload.num_requests == 6
    assert [a for a, _, _ in rows(workload)] == [0, 200, 400, 500, 600, 700]
    assert (
        "trace t.csv: skipped 3 of 9 rows (33.3 %): 1 zero prompt (line 10); 2 zero output (lines 3, 5)"
    ) in workload.notes


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("16.11.2023 18:15,1,1", "TIMESTAMP '16.11.2023 18:15', expected YYYY-MM-DD hh:mm:ss.fraction"),
        ("2023-11-16 18:15:46.0,-1,1", "ContextTokens '-1', expected a number of tokens >= 0"),
        ("2023-11-16 18:15:46.0,1,1.5", "GeneratedTokens '1.5', expected a number of tokens >= 0"),
        ("2023-11-16 18:15:46.0,1,1,1", "4 cells, expected 3"),
        ("2023-11-16 18:15:46.0,99999999999999999999,1", "ContextTokens '99999999999999999999'"),
    ],
)
def test_unreadable_rows_up_to_one_percent_are_left_out_and_more_are_refused(
    tmp_path: Path, bad: str, problem: str
) -> None:
    good = [f"2023-11-16 18:15:46.{i:07d},100,5" for i in range(99)]
    (tmp_path / "t.csv").write_text(text_of(*good[:50], bad, *good[50:]), newline="")
    workload = replay(tmp_path)
    assert workload.num_requests == 99
    (note,) = [note for note in workload.notes if "cannot be read" in note]
    assert note.startswith("trace t.csv: left out 1 of 100 rows (1 %) that cannot be read: line 52: ")
    assert problem in note
    message = refusal(tmp_path, text_of(*good[:50], bad, *good[50:98]))
    assert message.startswith(
        "trace t.csv: 1 of 99 rows cannot be read, more than 1 % "
        "(--allow-bad, or allow_bad of a trace, reads the rest): line 52: "
    )
    assert problem in message


@pytest.mark.parametrize("cut", ["2023-11-16 18:1", "2023-11-16 18:15:52.0,37", "2023-11-16 18:15:52.0,37,"])
def test_a_cut_last_line_is_a_note(tmp_path: Path, cut: str) -> None:
    (tmp_path / "t.csv").write_text(text_of(*GOOD, cut), newline="")
    workload = replay(tmp_path)
    assert rows(workload) == GOOD_ROWS
    assert "trace t.csv: the last line (6) is cut short and was left out" in workload.notes


def test_empty_traces(tmp_path: Path) -> None:
    assert refusal(tmp_path, "") == "trace t.csv: no requests"
    assert refusal(tmp_path, "\n\n") == "trace t.csv: no requests"
    assert refusal(tmp_path, HEADER + "\r\n") == "trace t.csv: no requests"
    assert refusal(tmp_path, text_of("2023-11-16 18:15:46.0,1,0")).startswith("trace t.csv: no requests (")


def test_other_formats_and_unreadable_files(tmp_path: Path) -> None:
    burst = "Timestamp,Model,Request tokens,Total tokens\n5,ChatGPT,472,490\n"
    message = refusal(tmp_path, burst)
    assert message.startswith(
        "trace t.csv: format not recognised: header was 'Timestamp,Model,Request tokens,Total tokens'; nearest is "
        "BurstGPT CSV, which also needs Response tokens; expected arrival, prompt tokens and output tokens"
    )
    assert "--map prompt=COLUMN,output=COLUMN,time=COLUMN" in message
    assert "needs column 'TIMESTAMP'" in refusal(tmp_path, burst, format="azure")
    message = refusal(tmp_path, burst, format="azur")
    assert message.startswith("trace t.csv: format 'azur' is not one of auto, ")
    assert message.endswith("; did you mean 'azure'?")
    json_lines = '{"timestamp": 0, "input_length": 6755, "outputs": 500, "hash_ids": [' + "0, " * 500 + "1]}\n"
    message = refusal(tmp_path, json_lines)
    assert "format not recognised" in message
    assert "fields are 'hash_ids,input_length,outputs,timestamp'" in message
    assert "appears more than once" in refusal(
        tmp_path, text_of("2023-11-16 18:15:46.0,1,1,1", header=HEADER + ",TIMESTAMP")
    )
    zipped = gzip.compress(text_of(*GOOD).encode())
    assert "not a complete gzip file" in refusal(tmp_path, zipped[: len(zipped) // 2])
    assert "not a complete gzip file" in refusal(tmp_path, zipped[:9] + b"\xff" * 40)
    assert "not a text file" in refusal(tmp_path, HEADER.encode() + b"\r\n\xff\xfe\xfa,1,1")
    for name, reason in (("missing.csv", "No such file or directory"), (".", "this is a directory, expected a file")):
        with pytest.raises(InputError, match=reason):
            replay(tmp_path, name)


def test_a_further_format_is_one_entry_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(source: Source) -> Iterator[Columns]:
        assert isinstance(source.table, CsvRows)
        for block in source.table.blocks():
            rows = zip(block.lines.tolist(), block.rows, strict=True)
            yield Columns.of([Record(line, int(cells[0]), int(cells[1]), 1) for line, cells in rows])

    def matches(head: Head) -> str | None:
        return "columns t and n" if head.columns == ("t", "n") else None

    monkeypatch.setitem(FORMATS, "tiny", Format("tiny", "tiny CSV", matches, read))
    (tmp_path / "t.csv").write_text("t,n\n5,10\n9,11\n")
    workload = replay(tmp_path)
    assert rows(workload) == [(0, 10, 1), (4, 11, 1)]
    assert "read as tiny CSV" in workload.notes[0]


def test_a_trace_takes_stop_and_labels_from_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text_of(*GOOD), newline="")
    keys = {"stop": "eos", "max_tokens": 50, "tenants": {"count": 2}, "prefix": {"groups": 1, "tokens": 100}}
    workload = replay(tmp_path, workload=keys)
    requests = list(workload.requests)
    assert [(r.output_tokens, r.max_tokens) for r in requests] == [(44, 50), (50, 50), (50, 50), (16, 50)]
    assert [r.prefix_tokens for r in requests] == [100, 100, 100, 90]
    assert workload.counters["outputs_cut_by_max_tokens"] == 2
    assert workload.counters["prefixes_cut_to_prompt"] == 1


# --- the real traces --------------------------------------------------------------------------------------------------
README = {
    CONV: (19_366, 5.5301, 3501.72, (1155, 1020, 4083, 4142), (211, 129, 451, 601)),
    CODE: (8_819, 2.5664, 3435.95, (2048, 1469, 7303, 7436), (28, 13, 90, 252)),
}
PRESET_OF = {CONV: "azure-2023-conv", CODE: "azure-2023-code"}


def statistics(tokens: np.ndarray) -> list[float]:
    return [float(tokens.mean()), *np.percentile(tokens, [50, 95, 99]).tolist()]


@needs_traces
@pytest.mark.parametrize("name", [CONV, CODE])
def test_real_traces_have_the_documented_statistics(name: str) -> None:
    count, rate, span_s, prompt, output = README[name]
    workload = replay(TRACES, name)
    arrival, prompts, outputs = (np.array(values) for values in zip(*rows(workload), strict=True))
    assert workload.num_requests == len(arrival) == count
    assert round((count - 1) / (arrival[-1] / 1e9), 4) == rate
    assert arrival[-1] / 1e9 == pytest.approx(span_s, abs=0.006)
    assert (arrival[0], arrival.min()) == (0, 0)
    assert np.all(np.diff(arrival) > 0)
    assert np.rint(statistics(prompts)).tolist() == pytest.approx(prompt, abs=1)
    assert np.rint(statistics(outputs)).tolist() == pytest.approx(output, abs=1)
    assert workload.notes[1:] == (f"trace {name}: times name no zone and are read as UTC",)


@pytest.mark.parametrize("name", [CONV, CODE])
def test_presets_reproduce_the_documented_statistics(name: str) -> None:
    """Of the distribution itself, taken at equally spaced probabilities in place of random draws."""
    from simkit.workload.lengths import build_lengths

    for column, expected in zip(("prompt_tokens", "output_tokens"), README[name][3:], strict=True):
        spec = scenario.EmpiricalLength(dist="empirical", preset=PRESET_OF[name])
        tokens, clipped = build_lengths(spec, column, None, []).tokens(0, (np.arange(400_000) + 0.5) / 400_000)
        assert not clipped.any()
        # 1 %, plus the half token by which the documented figures are rounded.
        for value, documented in zip(statistics(tokens), expected, strict=True):
            assert value == pytest.approx(documented, abs=0.01 * documented + (0.5 if documented < 50 else 0))


@needs_traces
@pytest.mark.parametrize("name", [CONV, CODE])
def test_presets_are_the_quantiles_of_the_real_traces(name: str) -> None:
    from importlib.resources import files

    preset = files("simkit.workload").joinpath(f"presets/{PRESET_OF[name]}.csv").read_text(encoding="utf-8")
    comments = [line for line in preset.splitlines() if line.startswith("#")]
    assert any("CC-BY-4.0" in line for line in comments)
    assert any(f"{README[name][0]} rows" in line for line in comments)
    table = list(csv.DictReader(io.StringIO("\n".join(preset.splitlines()[len(comments) :]))))
    quantiles = np.array([float(row["quantile"]) for row in table])
    assert (quantiles[0], quantiles[-1]) == (0, 1)
    _, prompts, outputs = (np.array(values) for values in zip(*rows(replay(TRACES, name)), strict=True))
    for column, tokens in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        shipped = np.array([float(row[column]) for row in table])
        assert np.abs(shipped - np.quantile(tokens, quantiles)).max() <= 5.1e-5
