"""The HTML report, from synthetic run directories: what it says, what it must never do, and empty corners."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from simkit.errors import InputError
from simkit.report.document import Badge
from simkit.report.figures import gantt, memory, timeline
from simkit.report.read.run import Run, load_run
from simkit.report.render import html, markdown, terminal
from simkit.report.sections import arms as beside
from simkit.report.sections import runs as pages
from simkit.report.words import plain

STEP_NS = 10_000_000
POOL = 200_000
PROMPT = 64
EIGHT = (10, 50, 200, 300, 15, 80, 220, 40)


def simulate(outputs: Sequence[int], slots: int, batching: str, gap_ns: int) -> list[tuple[int, int, int, int]]:
    """(arrival, admitted, last useful token, released) of each request; a step makes one token of everybody."""
    arrivals = [i * gap_ns for i in range(len(outputs))]
    stays: list[tuple[int, int, int, int]] = []
    if batching == "continuous":
        leaving = [0] * slots
        for arrival, output in zip(arrivals, outputs, strict=True):
            slot = leaving.index(min(leaving))
            start = max(leaving[slot], arrival)
            leaving[slot] = start + output * STEP_NS
            stays.append((arrival, start, leaving[slot], leaving[slot]))
        return stays
    free = 0
    for first in range(0, len(outputs), slots):
        batch = range(first, min(first + slots, len(outputs)))
        start = max(free, arrivals[batch[-1]])
        free = start + max(outputs[i] for i in batch) * STEP_NS
        stays += [(arrivals[i], start, start + outputs[i] * STEP_NS, free) for i in batch]
    return stays


def span_rows(stays: Sequence[tuple[int, int, int, int]], reserve: int) -> list[dict[str, int]]:
    """Spans of equal membership with plausible memory columns."""
    times = sorted({t for _, start, useful, released in stays for t in (start, useful, released)})
    rows = []
    for start, end in pairwise(times):
        held = [stay for stay in stays if stay[1] <= start < stay[3]]
        if not held:
            continue
        dead = sum(stay[2] <= start for stay in held)
        used = sum(PROMPT + (min(start, stay[2]) - stay[1]) // STEP_NS for stay in held)
        coming = sum(max(0, stay[2] - start) // STEP_NS for stay in held)
        allocated = max(used + coming, reserve * len(held))
        rows.append(
            {
                "replication": 0,
                "replica": 0,
                "t_start_ns": start,
                "t_end_ns": end,
                "num_steps": (end - start) // STEP_NS,
                "num_decode": len(held) - dead,
                "prefill_tokens": 0,
                "context_tokens": used,
                "running": len(held),
                "waiting": sum(stay[0] <= start < stay[1] for stay in stays),
                "dead_slots": dead,
                "kv_allocated_tokens": allocated,
                "kv_used_tokens": used,
                "kv_reserved_tokens": coming,
                "kv_internal_tokens": allocated - used - coming,
                "kv_external_tokens": (POOL - allocated) // 3 if reserve else 0,
                "kv_free_tokens": POOL - allocated,
                "num_preemptions": 0,
            }
        )
    return rows


def latency(values_ns: Sequence[float]) -> dict[str, float | None]:
    names = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
    if not len(values_ns):
        return dict.fromkeys(("mean", *names))
    values = np.asarray(values_ns) / 1e6
    return {"mean": float(values.mean()), **{name: float(np.percentile(values, q)) for name, q in names.items()}}


def write_table(path: Path, columns: Mapping[str, pa.DataType], rows: Sequence[Mapping[str, Any]]) -> None:
    schema = pa.schema(list(columns.items()))
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)


REQUEST_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("id", "replication", "arrival_ns"), pa.int64()),
    **dict.fromkeys(("first_scheduled_ns", "first_token_ns", "last_token_ns"), pa.int64()),
    **dict.fromkeys(("generated_first_ns", "generated_last_ns"), pa.int64()),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "num_preemptions"), pa.int64()),
    "status": pa.string(),
    "measured": pa.bool_(),
}
STEP_TYPES = dict.fromkeys(span_rows([(0, 0, STEP_NS, STEP_NS)], 0)[0], pa.int64())
SLOT_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("replica", "id", "admitted_ns", "prefill_end_ns", "generated_last_ns", "released_ns"), pa.int64()),
    "end": pa.string(),
}


def make_run(
    run_dir: Path,
    outputs: Sequence[int],
    *,
    batching: str = "continuous",
    allocator: str = "paged",
    slots: int = 4,
    gap_ns: int = 0,
    finish: bool = True,
    lengths: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """A plausible run directory. With `finish` false every request is rejected and no step is run."""
    run_dir.mkdir(parents=True)
    streams = batching == "continuous"
    stays = simulate(outputs, slots, batching, gap_ns) if finish else []
    requests = [
        {
            "id": i,
            "replication": 0,
            "arrival_ns": arrival,
            "first_scheduled_ns": start,
            "first_token_ns": start + STEP_NS if streams else released,
            "last_token_ns": released,
            "generated_first_ns": start + STEP_NS,
            "generated_last_ns": useful,
            "prompt_tokens": PROMPT,
            "output_tokens": outputs[i],
            "num_preemptions": 0,
            "status": "finished",
            "measured": True,
        }
        for i, (arrival, start, useful, released) in enumerate(stays)
    ] or [
        {"id": i, "replication": 0, "arrival_ns": 0, "prompt_tokens": PROMPT, "output_tokens": 0, "num_preemptions": 0}
        | {"status": "rejected", "measured": True}
        for i in range(len(outputs))
    ]
    slot_rows = [
        {"replica": 0, "id": i, "admitted_ns": start, "prefill_end_ns": start + STEP_NS}
        | {"generated_last_ns": useful, "released_ns": released, "end": "finished"}
        for i, (_, start, useful, released) in enumerate(stays)
    ]
    write_table(run_dir / "requests.parquet", REQUEST_TYPES, requests)
    write_table(run_dir / "steps.parquet", STEP_TYPES, span_rows(stays, 2048 if allocator == "contiguous" else 0))
    write_table(run_dir / "slots.parquet", SLOT_TYPES, slot_rows)

    scenario = {
        "name": "synthetic",
        "model": "llama-3-8b",
        "engine": {"batching": batching, "kv_allocator": allocator, "max_num_seqs": slots, "stream": None},
        "workload": {"num_requests": len(outputs), "output_tokens": dict(lengths or {"dist": "list"})},
        "slo": None,
        "seed": 7,
    }
    end = max((released for *_, released in stays), default=0)
    useful = sum(outputs) * STEP_NS
    several = [(r[3] - r[1] - STEP_NS) / (n - 1) for r, n in zip(stays, outputs, strict=False) if n > 1]
    rate = len(stays) / (end / 1e9) if end else None
    summary = {
        "num_requests": {"arrived": len(outputs), "finished": len(stays), "rejected": len(outputs) - len(stays)},
        "makespan_s": end / 1e9 if end else None,
        "throughput": {"requests_per_s": rate, "requests_per_s_ci95": None, "output_tokens_per_s": rate and rate * 100},
        "concurrency_mean": 3.5 if end else None,
        "slot_utilization": useful / (slots * end) if end else None,
        "slot_occupancy": sum(r[3] - r[1] for r in stays) / (slots * end) if end else None,
        "ttft_ms": latency([(r[1] + STEP_NS if streams else r[3]) - r[0] for r in stays]),
        "tpot_ms": latency(several if streams else []),
        "itl_ms": latency(several if streams else []),
        "e2e_ms": latency([r[3] - r[0] for r in stays]),
        "num_preemptions": 0,
        "num_steps": end // STEP_NS,
        "kv": {
            "capacity_tokens": POOL,
            "utilization": 0.31,
            **{
                kind: {"share_of_pool": 0.1, "share_of_allocated": 0.21}
                for kind in ("used", "reserved", "internal", "external")
            },
            "peak_tokens": 12_345,
        },
        "gpu": {"busy": 0.9, "mfu": float("nan"), "mbu": None},
        "latency_source": "roofline (uncalibrated)",
        "not_simulated": ["engine.async_scheduling"],
        "saturated": False,
        "saturation_reason": None,
    }
    manifest = {
        "run_id": f"run-{run_dir.name}",
        "name": "synthetic",
        "version": "9.8.7",
        "scenario": scenario,
        "seed": 7,
        "replications": 1,
        "model": {"name": "llama-3-8b", "num_layers": 32, "source": "https://example.org/config.json"},
        "gpu": {"name": "a100-sxm4-80gb", "peak_flops_per_s": {"bfloat16": 312e12}, "sources": {"all": "data sheet"}},
        "memory": {"kv_gib": 24.4, "kv_bytes_per_token": 131_072},
        "latency_source": "roofline (uncalibrated)",
        "profile": None,
        "notes": ["the <first> note"],
        "warmup": {"method": "none", "dropped_requests": 0, "mser5_proposal_requests": 3},
    }
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        target: Any = {"summary": summary, "manifest": manifest}[parents[0]]
        for parent in parents[1:]:
            target = target[parent]
        target[key] = value
    (run_dir / "summary.json").write_text(json.dumps(summary))
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    return run_dir


def drawn_lengths(num_requests: int, spread: str) -> list[int]:
    rng = np.random.default_rng(1)
    if spread == "uniform":
        return [int(n) for n in rng.integers(32, 97, num_requests)]
    return [int(n) for n in np.clip(rng.lognormal(np.log(64) - 0.35, 0.83, num_requests), 1, 512).round()]


def make_comparison(root: Path, num_requests: int, slots: int, full: bool) -> tuple[dict[str, Path], dict[str, Any]]:
    """Arms of a comparison (with `full` all six and four variants, else three and two) and its compare.json."""
    kinds = [(b, a) for b in ("static", "dynamic", "continuous") for a in ("contiguous", "paged")]
    arms = {}
    for suffix, spread in (("", "lognormal"), ("@lengths=uniform", "uniform")):
        outputs = drawn_lengths(num_requests, spread)
        for batching, allocator in kinds:
            name = f"{batching}+{allocator}"
            wanted = (
                ("static+contiguous", "continuous+paged")
                if not full
                else (
                    ("static+contiguous", "static+paged", "continuous+contiguous", "continuous+paged")
                    if suffix
                    else (name,)
                )
            )
            if name in wanted:
                arms[name + suffix] = make_run(
                    root / f"{name}{suffix}",
                    outputs,
                    batching=batching,
                    allocator=allocator,
                    slots=slots,
                    gap_ns=12_000_000,
                    lengths={"dist": spread, "mean": 64},
                )
    paired = {
        name: {
            "throughput.requests_per_s": {"difference": 1.5, "ci95": None},
            "ttft_ms.p99": {"difference": -80.0, "ci95": None},
        }
        for name in arms
        if name != "static+contiguous"
    }
    return arms, {"arms": {}, "paired": paired, "baseline": "static+contiguous"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, Any], str]:
    arms, comparison = make_comparison(tmp_path_factory.mktemp("arms"), 120, 8, full=False)
    return arms, comparison, html.render(pages.report(arms, "Three generations", comparison))


def assert_well_formed(page: str) -> None:
    """Nothing from outside, no NaN, every id once, every reference answered."""
    assert not re.search(r"""(?:\ssrc|href)\s*=\s*(?!"#)""", page)
    assert not re.search(r"url\((?!#)|@import|<script|<link|<image|xmlns", page)
    assert not re.search(r"\b(?:nan|NaN|None|inf)\b", page)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page)) <= set(ids)


def test_comparison_names_its_arms_answers_definitions_and_provenance(
    compared: tuple[dict[str, Path], dict[str, Any], str],
) -> None:
    arms, _, page = compared
    assert_well_formed(page)
    for name in arms:
        assert re.search(rf'aria-label="Slots of {re.escape(name)} over time"', page)
        assert f"run-{name}" in page
    low, high = (
        json.loads((arms[name] / "summary.json").read_text())["throughput"]["requests_per_s"]
        for name in ("static+contiguous", "continuous+paged")
    )
    assert f"{high / low:.1f}x static+contiguous" in page
    for text in (
        "Time to first token",
        "Slot occupancy",
        "Dead slot",
        "9.8.7",
        "Provenance",
        "output_tokens:",
        "MSER-5",
    ):
        assert text in page
    assert "the &lt;first&gt; note" in page
    assert "uncalibrated" in page
    assert "engine.async_scheduling" in page
    assert "needs <code>replications: 2</code>" in page


def test_same_input_same_bytes_in_another_process(tmp_path: Path) -> None:
    arms = {"static": make_run(tmp_path / "static", (5, 9, 30), batching="static", slots=2)}
    code = (
        "import pathlib, sys; from simkit.report.render import html; from simkit.report.sections import runs as page\n"
        "out, *arms = map(pathlib.Path, sys.argv[1:])\n"
        "html.write(out, page.report({path.name: path for path in arms}, 'Twice'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "r.html"), *map(str, arms.values())]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo"})
    assert (tmp_path / "r.html").read_bytes() == html.render(pages.report(arms, "Twice")).encode()


def test_figures_follow_the_page_colours(compared: tuple[dict[str, Path], dict[str, Any], str]) -> None:
    svgs = re.findall(r"<svg.*?</svg>", compared[2], flags=re.DOTALL)
    # four arms: slots, memory and timeline each; latencies once per group of arms
    assert len(svgs) == 3 * 4 + 2
    for svg in svgs:
        assert "currentColor" in svg
        assert not re.search(r"(?:fill|stroke): #(?:0{6}|f{6})", re.sub(r"<text.*?</text>", "", svg, flags=re.DOTALL))


def test_spread_of_lengths_is_computed_from_the_runs(compared: tuple[dict[str, Path], dict[str, Any], str]) -> None:
    arms, _, page = compared
    runs = [load_run(name, path) for name, path in arms.items()]
    section = beside.lengths(runs)
    assert section is not None
    wide, narrow = zip(*(column.cells for column in section.tables[0].columns), strict=True)
    outputs = drawn_lengths(120, "lognormal")
    longest = [max(outputs[i : i + 8]) for i in range(0, 120, 8)]
    assert wide[3] == plain(float(np.mean(outputs)))
    assert wide[5] == plain(float(np.mean(longest)))
    assert float(wide[0].removesuffix("x")) > float(narrow[0].removesuffix("x"))
    assert f"<td>{wide[0]}</td>" in page
    assert beside.lengths(runs[:2]) is None


def test_eight_requests_show_everything(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "eight", EIGHT, batching="static")
    page = html.render(pages.report({"eight-requests": run_dir}, "Eight requests"))
    assert_well_formed(page)
    assert "all 4 slots that were ever held (max_num_seqs 4), the whole run" in page
    assert "8 of 8 requests finished" in page
    assert "pool 200,000 tokens (24.41 GiB)" in page
    assert "not streamed" in page
    for i, output in enumerate(EIGHT):
        assert (f"#{i}<" in page) == (output > 25)  # narrow stays carry no name


@pytest.mark.parametrize(
    ("outputs", "options", "expected"),
    [
        (
            (5, 6),
            {"finish": False},
            ["none of 2 requests finished (2 rejected)", "No figure for only: no step was run."],
        ),
        ((1,), {}, ["1 of 1 requests finished", "no finished request has two or more output tokens"]),
        (
            (5, 9),
            {
                "changes": {
                    "summary.tpot_ms": None,
                    "summary.saturated": True,
                    "summary.saturation_reason": "queue grew",
                }
            },
            ["queue grew. Latencies depend on how long", "no finished request has two or more output tokens"],
        ),
    ],
)
def test_empty_corners(tmp_path: Path, outputs: Sequence[int], options: dict[str, Any], expected: list[str]) -> None:
    page = html.render(pages.report({"only": make_run(tmp_path / "only", outputs, **options)}, "Corner"))
    assert_well_formed(page)
    for text in expected:
        assert text in page


def test_labels_before_any_number(tmp_path: Path) -> None:
    saturated = {"summary.saturated": True, "summary.saturation_reason": "queue grew"}
    runs = [load_run(n, make_run(tmp_path / n, EIGHT, changes=saturated if n < "c" else None)) for n in ("a", "b", "c")]
    found = {badge.label: badge for badge in pages.badges(runs)}
    assert list(found) == ["uncalibrated", "saturated", "not simulated"]
    assert found["saturated"].text.startswith("2 of 3 arms")
    assert found["saturated"].details == ("a: queue grew", "b: queue grew")
    measured = {"summary.latency_source": "profile a100", "summary.not_simulated": [], "manifest.not_simulated": []}
    assert pages.badges([load_run("d", make_run(tmp_path / "d", EIGHT, changes=measured))]) == []


def test_a_profile_that_covers_too_little_says_what_it_does_not(tmp_path: Path) -> None:
    known = {"summary.latency_source": "profile a100", "summary.not_simulated": [], "manifest.not_simulated": []}

    def badges(**parts: float) -> list[Badge]:
        found = {"share": sum(parts.values()), "parts": {**parts, "lm_head_ci95": None}}
        changes = known | {"summary.gpu": {"busy": 1.0, "mfu": 0.5, "mbu": 0.5, "extrapolated": found}}
        name = f"run{len(list(tmp_path.iterdir()))}"
        return pages.badges([load_run(name, make_run(tmp_path / name, EIGHT, changes=changes))])

    assert badges(lm_head=0.04) == []
    (badge,) = badges(lm_head=0.04, mixed=0.3)
    assert (badge.label, badge.text[:18]) == ("extrapolated", "Up to 34.0 % of GP")
    assert badge.details[0].endswith(": mixed 30.0 %; lm_head 4.0 %")


def test_null_metrics_have_a_reason(tmp_path: Path) -> None:
    run = load_run("a", make_run(tmp_path / "a", EIGHT, batching="dynamic"))
    assert run.value("gpu.mfu") is None
    assert beside.reason(run, "tpot_ms.p99").startswith("not streamed")
    assert beside.reason(run, "gpu.mfu") == "the latency model has no hardware behind it"
    assert beside.reason(run, "goodput_per_s") == "the scenario states no SLO"
    grid = beside.grid([run], "")
    marks = {cell.mark for _, rows in grid.groups for row in rows for cell in row.cells if cell.text == "-"}
    assert marks == {note.about for note in grid.notes}
    assert "" not in marks


def test_paired_differences_carry_their_interval(tmp_path: Path) -> None:
    runs = [load_run(name, make_run(tmp_path / name, EIGHT)) for name in ("base", "other")]
    paired = {
        "other": {
            "slot_utilization": {"difference": -0.125, "ci95": 0.02},
            "makespan_s": {"difference": 3, "ci95": None},
        }
    }
    grid = beside.paired_grid(runs, {"baseline": "base", "paired": paired}, "")
    assert grid is not None
    ((_, rows),) = grid.groups
    assert [(row.label, row.cells[0].text, row.cells[0].interval) for row in rows] == [
        ("Slot utilisation", "-12.5 pp", "± 2.00 pp"),
        ("Makespan", "+3", ""),
    ]
    assert beside.paired_grid(runs, {"baseline": "base", "paired": {}}, "") is None


def test_headline_compares_with_the_baseline_and_survives_zero(tmp_path: Path) -> None:
    def run(name: str, **options: Any) -> Run:
        return load_run(name, make_run(tmp_path / name, EIGHT, **options))

    slow, fast, none = run("slow", batching="static"), run("fast"), run("none", finish=False)
    ratio = fast.value("throughput.requests_per_s") / slow.value("throughput.requests_per_s")
    assert f"fast delivers 2.67 req/s, {ratio:.1f}x slow" in pages.sentence([slow, fast, none], None)
    assert "none finished no request" in pages.sentence([none, fast], {"baseline": "none"})
    assert "none of 8 requests finished" in pages.sentence([fast, none], {"baseline": "fast"})


def test_means_over_replications_read_as_counts(tmp_path: Path) -> None:
    counts = {"arrived": 8.0, "arrived_ci95": 0.0, "finished": 7.5, "finished_ci95": 0.4, "rejected": 0.5}
    run = load_run("run", make_run(tmp_path / "run", EIGHT, changes={"summary.num_requests": counts}))
    assert pages.sentence([run], None).endswith("7.50 of 8 requests finished.")
    rows = {row.label: row.cells[0] for _, group in beside.grid([run], "").groups for row in group}
    assert (rows["Finished"].text, rows["Finished"].interval) == ("7.50", "± 0.4")


def test_lowest_free_slot_and_leavers_first() -> None:
    admitted = np.array([0.0, 0.0, 0.0, 5.0, 7.0, 7.0])
    released = np.array([9.0, 5.0, 7.0, 8.0, 9.0, 9.0])
    assert gantt.lowest_free_slots(admitted, released).tolist() == [0, 1, 2, 1, 2, 3]


def test_window_covers_a_few_batches_of_a_long_run(tmp_path: Path) -> None:
    run = load_run("long", make_run(tmp_path / "long", [50] * 400, batching="static", slots=40))
    stays = gantt.residencies(run.slots, timeline.end_ns(run))
    assert stays is not None
    window = gantt.choose_window(stays)
    assert (window.num_slots, window.slots_used, window.whole_run) == (32, 40, False)
    assert (window.end_ns - window.start_ns) / (50 * STEP_NS) == pytest.approx(3)


def test_long_series_are_thinned_without_losing_the_integral() -> None:
    rng = np.random.default_rng(3)
    edges = np.cumsum(rng.integers(1, 9, 2001))
    steps = {
        "replica": np.zeros(2000, dtype=int),
        "t_start_ns": edges[:-1],
        "t_end_ns": edges[1:] - (np.arange(2000) % 7 == 0),  # some idle gaps
        "waiting": rng.integers(0, 50, 2000),
        "running": rng.integers(0, 50, 2000),
    }
    found = timeline.over_time(steps, ("waiting", "running"), held=("waiting",))
    assert found is not None
    assert found.thinned
    assert len(found.values["running"]) == timeline.MAX_POINTS
    busy = (steps["running"] * (steps["t_end_ns"] - steps["t_start_ns"])).sum()
    assert (found.values["running"] * np.diff(found.times_ns)).sum() == pytest.approx(busy)
    held = (steps["waiting"] * np.diff(edges)).sum() - steps["waiting"][-1] * (edges[-1] - steps["t_end_ns"][-1])
    assert (found.values["waiting"] * np.diff(found.times_ns)).sum() == pytest.approx(held)


def test_replicas_are_summed() -> None:
    steps = {
        "replica": np.array([0, 1]),
        "t_start_ns": np.array([0, 0]),
        "t_end_ns": np.array([300, 150]),
        "running": np.array([2, 3]),
    }
    found = timeline.over_time(steps, ("running",))
    assert found is not None
    assert found.values["running"][[0, -1]].tolist() == [5.0, 2.0]


def test_memory_grows_inside_a_span_out_of_the_reserve(tmp_path: Path) -> None:
    run = load_run("eight", make_run(tmp_path / "eight", EIGHT, batching="static"))
    grown = memory.grown(run.steps)
    assert grown["t_start_ns"][0] == 0
    assert grown["t_start_ns"][1:].tolist() == grown["t_end_ns"][:-1].tolist()
    # the last piece is the last recorded span plus one token of its single live sequence a step
    before_end = grown["kv_used_tokens"][-1] - run.steps["kv_used_tokens"][-1]
    assert 0 < before_end < run.steps["num_steps"][-1]
    total = grown["kv_used_tokens"] + grown["kv_reserved_tokens"]
    assert sorted(set(total.tolist())) == sorted(
        set((run.steps["kv_used_tokens"] + run.steps["kv_reserved_tokens"]).tolist())
    )


def _drop_column(run_dir: Path) -> None:
    table = pq.read_table(run_dir / "steps.parquet")
    pq.write_table(table.drop_columns(["waiting"]), run_dir / "steps.parquet")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "summary.json").unlink(), "summary.json: cannot be read"),
        (lambda d: (d / "manifest.json").write_text("{"), "manifest.json: not valid JSON"),
        (lambda d: (d / "slots.parquet").unlink(), "slots.parquet: cannot be read"),
        (lambda d: (d / "slots.parquet").write_text("no table"), "slots.parquet: not a parquet file"),
        (_drop_column, "steps.parquet: column 'waiting' is missing"),
    ],
)
def test_a_damaged_run_directory_is_one_clear_line(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    run_dir = make_run(tmp_path / "run", EIGHT)
    damage(run_dir)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load_run("run", run_dir)
    assert "\n" not in str(caught.value)


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", (5, 6), finish=False)
    with pytest.raises(InputError, match="cannot be written"):
        html.write(tmp_path / "no" / "such" / "r.html", pages.report({"run": run_dir}, "t"))
    with pytest.raises(InputError, match="at least one"):
        pages.report({}, "t")


def test_markdown_and_terminal_say_what_the_page_says(compared: tuple[dict[str, Path], dict[str, Any], str]) -> None:
    arms, comparison, page = compared
    report = pages.report(arms, "Three generations", comparison)
    console = Console(file=io.StringIO(), width=200, highlight=False, markup=False)
    for part in terminal.render(report, 200):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    for text in (markdown.render(report, report.title), console.file.getvalue()):
        for section in report.sections:
            assert section.title in text
            for row in (row for grid in section.grids for _, rows in grid.groups for row in rows):
                assert row.label in text
                assert all(cell.text in text and f"<td>{cell.text}" in page for cell in row.cells)
