"""End-to-end runs: a real run with a record for each request, replayed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evidence import AT_ZERO, NO_FIT, Curves, Line, Section, inputs, off_pct
from simkit import scenario
from simkit.api import run_set_up
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.logs import play_log
from simkit.logs.read.cells import number_ns
from simkit.logs.read.log import RowLog
from simkit.logs.read.open import opened
from simkit.metrics.measured import Compared
from simkit.scenario import Scenario
from simkit.units import ns_to_s
from simkit.validation.runs.comparison import Comparison, compare
from simkit.validation.runs.result import arms

NEEDS = (str(inputs.run()["folder"]),)
ENGINE = inputs.ROOT / "scenarios" / "validate-rtx-pro-6000.yaml"
LOGS = "requests*.json*"
"""The log in the folder of the run, plain or packed."""

JUDGED = "the shipped host terms"
HIDDEN = "this engine schedules asynchronously: host work is hidden behind the GPU, so that the terms change nothing"
TWO_CLOCKS = "arrivals by arrival_time, ends by the engine's clock (arrival_time + E2E, which counts from queued_ts)"
ONE_CLOCK = "first queued_ts to last last_token_ts, both by the engine's clock"
ZERO_TERMS = ("latency.host={fixed_us: 0.0, per_seq_us: 0.0, first_token_us: 0.0}",)
MAKESPAN = "makespan_s.value"
NAMES = {
    "e2e_ms.mean": "E2E, mean",
    "tpot_ms.mean": "TPOT, mean",
    "ttft_ms.mean": "TTFT, mean",
    MAKESPAN: "makespan",
}
ABLATED = ("e2e_ms.mean", "ttft_ms.mean")
"""What the ablation shows."""


def _lines(shared: Path) -> list[Line]:
    """The judged statistics, the makespan on one clock, the same with host terms at 0, and every other statistic."""
    found, at_zero = _compared(shared), _compared(shared, ZERO_TERMS)
    one_clock = _on_one_clock(shared, found)
    judged = [_line(key, found, judged=True) for key in inputs.run()["bars_pct"]]
    judged = [_with_clocks(line, one_clock) if line.metric == NAMES[MAKESPAN] else line for line in judged]
    zero = [_line(key, at_zero, judged=False, which=AT_ZERO) for key in inputs.run()["bars_pct"]]
    rest = [
        f"{metric}.{stat}"
        for metric, stats in found.errors.items()
        for stat, values in stats.items()
        if f"{metric}.{stat}" not in inputs.run()["bars_pct"] and values.error_pct is not None
    ]
    return [*judged, one_clock, *zero, *(_line(key, found, judged=False) for key in rest)]


def _curves(shared: Path) -> Curves:
    """Distributions of the run, measured and predicted."""
    return {"run": _compared(shared).curves}


def _gaps(shared: Path) -> list[str]:
    """What limits the comparison."""
    return [f"{inputs.run()['name']}: {note}." for note in _compared(shared).notes]


def errors_without(shared: Path) -> dict[str, tuple[float, Mapping[str, float]]]:
    """By statistic: the error with all effects on, and by the effect that is switched off alone."""
    found = _compared(shared)
    without = {effect: _compare(off) for effect, off in arms(asked(shared)).items()}
    return {
        key: (error_pct(found, key), {effect: error_pct(other, key) for effect, other in without.items()})
        for key in ABLATED
    }


def error_pct(found: Comparison, key: str) -> float:
    """The error of a statistic, e.g. `e2e_ms.mean`, in percent."""
    value = _values(found, key).error_pct
    assert value is not None, key
    return value


def fitted_text() -> str:
    """What this run rests on."""
    return f"none on this run; {JUDGED} of this version of vLLM"


def asked(shared: Path, sets: Sequence[str] = ()) -> Scenario:
    """The engine of the run with its log as the workload. Raises InputError when the folder has not exactly one log."""
    return scenario.for_replay(scenario.load(ENGINE), {"path": str(_log(shared))}, {"path": "the log"}, list(sets))


def _log(shared: Path) -> Path:
    folder: Path = shared / inputs.run()["folder"]
    logs = sorted(folder.glob(LOGS))
    if len(logs) != 1:
        raise InputError(f"{inputs.run()['folder']}: expected one {LOGS}, got {len(logs)}")
    return logs[0]


@functools.cache
def _compared(shared: Path, sets: tuple[str, ...] = ()) -> Comparison:
    return _compare(asked(shared, sets))


def _compare(asked: Scenario) -> Comparison:
    assert asked.workload.trace is not None
    setup = set_up(asked)
    trace = play_log(asked.workload.trace, None, max_model_len=setup.max_model_len)
    return compare(run_set_up(setup), trace)


def _values(found: Comparison, key: str) -> Compared:
    metric, _, stat = key.partition(".")
    return found.errors[metric][stat]


def _line(key: str, found: Comparison, *, judged: bool, which: str = JUDGED) -> Line:
    values, run = _values(found, key), inputs.run()
    metric, _, stat = key.partition(".")
    unit = next((f" {unit}" for unit in ("ms", "s") if metric.endswith(f"_{unit}")), "")
    name = NAMES.get(key, f"{metric.removesuffix('_ms').replace('_', ' ')} {stat.replace('_', ' ')}")
    return Line(
        evidence=f"{run['name']}, {which}",
        source=run["source"],
        n=found.num_requests.get(metric, found.num_requests["compared"]),
        metric=name,
        error_pct=values.error_pct,
        bar_pct=run["bars_pct"].get(key),
        judged=judged,
        peer=run["peers"].get(key, "") if judged else "",
        fitted=fitted_text() if which == JUDGED else "none",
        rests_on=NO_FIT if which == JUDGED else AT_ZERO,
        note="" if which == JUDGED else HIDDEN,
        text=f"measured {_told(values.measured)}{unit}, predicted {_told(values.predicted)}{unit}",
    )


def _on_one_clock(shared: Path, found: Comparison) -> Line:
    """The makespan, measured by the clock of the engine alone. Raises InputError when requests are left out."""
    first, last, count = _engine_span(shared)
    if count != found.num_requests["compared"]:
        raise InputError(f"{inputs.run()['folder']}: expected all {count} requests compared")
    line, predicted = _line(MAKESPAN, found, judged=False), _values(found, MAKESPAN).predicted
    assert predicted is not None
    measured = ns_to_s(last - first)
    return replace(
        line,
        metric="makespan on the engine's own clock",
        error_pct=off_pct(predicted, measured),
        bar_pct=None,
        text=f"measured {_told(measured)} s, predicted {_told(predicted)} s",
        note=ONE_CLOCK,
    )


def _engine_span(shared: Path) -> tuple[int, int, int]:
    """(first queued_ts, last last_token_ts, number of requests) of the log, ns."""
    path = _log(shared)
    with opened(path, RowLog(path.name)) as (_, rows, _):
        times = [(number_ns(row["queued_ts"], "s"), number_ns(row["last_token_ts"], "s")) for _, row in rows]
    queued, last = zip(*times, strict=True)
    return min(queued), max(last), len(times)


def _with_clocks(line: Line, one_clock: Line) -> Line:
    """The judged makespan with what its clocks are, and its error on one."""
    return replace(line, note=f"{TWO_CLOCKS}; on the engine's clock alone {one_clock.error_pct:+.2f} %")


def _told(value: float | None) -> str:
    """Four digits, large numbers whole."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


RUNS = Section(
    "End-to-end runs",
    _lines,
    curves=_curves,
    gaps=_gaps,
    needs=NEEDS,
    intro="A real run with a record for each request: in the simulation the same requests arrive at the same times. "
    "No number was fitted to it: its steps come from the profile of the GPU and the default host term.",
)
