"""Scheduler decisions: recorded passes of the real scheduler, replayed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from evidence.line import Line
from simkit.conformance.check import Verdict, check_file
from simkit.conformance.recorded import find_recordings, read_recording

SECTION = "Scheduler decisions"
GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
RECORDED = "data/vllm_scheduler_traces"
NEEDS = (RECORDED,)
PARTIAL = True
EXACT_PCT = 0.0
"""The bar: not one trace may differ (`simkit conform` exits 1 when one does)."""


def lines(shared: Path | None) -> list[Line]:
    """One line for the traces that ship; one for all that were recorded, where `shared` has them."""
    all_are_here = shared is not None and (shared / RECORDED).is_dir()
    found = [_line("recorded traces that ship (tests/golden)", GOLDEN, judged=not all_are_here)]
    if shared is not None and all_are_here:
        found.append(_line("all recorded traces", shared / RECORDED, judged=True))
    return found


@functools.cache
def _line(evidence: str, folder: Path, *, judged: bool) -> Line:
    paths = find_recordings(folder)
    verdicts: list[Verdict] = [check_file(path) for path in paths]
    traces = [read_recording(path) for path in paths]
    integers = sum(_integers(trace.records) + _integers(trace.summary) for trace in traces)
    differ = [verdict for verdict in verdicts if not verdict.exact]
    sources = sorted({trace.source for trace in traces})
    passes = sum(verdict.num_passes for verdict in verdicts)
    preemptions = sum(verdict.num_preemptions for verdict in verdicts)
    first = "" if not differ else f"; first: {differ[0].case}"
    return Line(
        section=SECTION,
        evidence=evidence,
        source=f"passes recorded from {', '.join(sources)}",
        n=len(verdicts),
        metric="traces in which any decision differs",
        error_pct=100.0 * len(differ) / len(verdicts),
        bar_pct=EXACT_PCT,
        judged=judged,
        fitted="none",
        text=f"{len(verdicts) - len(differ)} of {len(verdicts)} identical{first}",
        note=f"{passes:,} passes, {preemptions:,} preemptions, {integers:,} integers compared",
    )


def _integers(value: Any) -> int:
    """How many whole numbers a record holds, at any depth."""
    if isinstance(value, dict):
        return sum(map(_integers, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_integers, value))
    return int(isinstance(value, int) and not isinstance(value, bool))
