"""What is told of a log: what it holds (`simkit trace info`), the workload fitted to it (`trace fit`), and a replay.

A replay has tables beside its run, for the terminal and for the page: measured against predicted, and the log against
an even workload (`measured` and `even_workload` of a summary).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table as RichTable
from rich.text import Text

from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS
from simkit.plain import Json
from simkit.report.document import Table, across, column, single
from simkit.report.render.terminal import fit
from simkit.report.words import error, percent, plain, times

if TYPE_CHECKING:
    from rich.console import RenderableType

SPREAD = ("mean", "p50", "p95", "p99", "max")


def trace_tables(info: Json) -> list[RenderableType]:
    """What was read and why, arrivals, lengths, sharing, sessions, and all notes on what was decided and left out."""
    title = f"{info['title']}, by {info['why']}" if info["why"] != "as the format says" else f"{info['title']}, as told"
    parts: list[RenderableType] = [Text(title), Text(""), _spreads(info), Text(""), _facts(_lines(info))]
    if info["notes"]:
        parts += [Text(""), _facts(("note", note) for note in info["notes"])]
    return parts


def _spreads(info: Json) -> RichTable:
    table = RichTable(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    table.add_column("")
    for stat in SPREAD:
        table.add_column(stat, justify="right")
    measured, sessions = info["measured"] or {}, info["sessions"] or {}
    for name, spread in (
        ("prompt tokens", info["prompt_tokens"]),
        ("output tokens", info["output_tokens"]),
        ("measured TTFT [ms]", measured.get("ttft_ms")),
        ("measured E2E [ms]", measured.get("e2e_ms")),
        ("logged think time [s]", sessions.get("think_s")),
        ("turn to turn [s]", sessions.get("between_turns_s")),
    ):
        if spread is not None:
            table.add_row(name, *(plain(spread[stat]) for stat in SPREAD))
    return table


def _facts(lines: Iterator[tuple[str, str]]) -> RichTable:
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(Text(name), Text(text))
    return table


def _lines(info: Json) -> Iterator[tuple[str, str]]:
    clock = info["clock"]
    start = f", from {clock['start_utc']}" if clock["start_utc"] else ""
    yield "requests", f"{plain(info['num_requests'])} of {plain(info['num_rows'])} rows"
    yield "span", f"{_span(info['span_s'])}{start}"
    rate = info["rate_per_s"]
    yield "rate", "unknown: all arrive at one time" if rate is None else f"{_rate(rate)} requests/s"
    yield (
        "burstiness",
        (
            f"CV of the gaps {plain(info['interarrival_cv'])}, variance/mean of the counts in 10 s "
            f"{plain(info['dispersion_10s'])} (Poisson: 1 and 1)"
        ),
    )
    yield "clock", _clock(info)
    yield "prefix sharing", _prefix(info["prefix"])
    yield "sessions", _sessions(info["sessions"])
    cached = (info["measured"] or {}).get("cached_token_share")
    if cached is not None:
        yield "measured cache", f"{percent(cached)} of the prompt tokens came from the server's cache"
    if info["models"]:
        yield "models", ", ".join(f"{name} ({plain(count)})" for name, count in info["models"].items())


def _prefix(prefix: Json | None) -> str:
    if prefix is None:
        return "unknown: the log has no identities of prompt blocks"
    return (
        f"{percent(prefix['token_hit_share'])} of the prompt tokens ({percent(prefix['block_hit_share'])} of the "
        f"blocks of {prefix['hash_block_tokens']}) are in an unlimited cache that starts empty"
    )


def _sessions(sessions: Json | None) -> str:
    if sessions is None:
        return "none"
    return (
        f"{plain(sessions['num_sessions'])}, {plain(sessions['num_with_several_turns'])} of them with several turns; "
        f"{plain(sessions['turns']['mean'])} turns on average, at most {plain(sessions['turns']['max'])}"
    )


def _clock(info: Json) -> str:
    clock = info["clock"]
    if clock["tick_s"] is not None:
        return f"ticks every {clock['tick_s']:g} s; {percent(clock['tied_share'])} have the time of the one before"
    if clock["resolution_s"] is None:
        return "one time for all"
    same = f"; {plain(info['num_same_time'])} have the time of the one before" if info["num_same_time"] else ""
    return f"steps of {clock['resolution_s']:g} s{same}"


def _span(span_s: float) -> str:
    for unit, seconds in (("days", 86_400), ("h", 3600), ("min", 60)):
        if span_s >= 2 * seconds:
            return f"{span_s:,.3f} s ({span_s / seconds:.1f} {unit})"
    return f"{span_s:,.3f} s"


def _rate(rate_per_s: float) -> str:
    return f"{rate_per_s:.4f}" if rate_per_s >= 0.01 else f"{rate_per_s:.3g}"


# --- a workload fitted to a log ---------------------------------------------------------------------------------------
def fit_tables(check: Json, width: int = 100) -> list[RenderableType]:
    """A row a metric and statistic, then the hit rates and how the log was played."""
    rows = [
        (f"{metric.removesuffix('_ms').upper()} {stat}", values)
        for metric, stats in check["metrics"].items()
        for stat, values in stats.items()
    ]
    names = (*(name for name, _ in rows), "prefix cache hit rate")
    rates = check["prefix_cache_hit_rate"]
    columns = (
        column(header, (*(show(values[key]) for _, values in rows), percent(rates[key]) if key in rates else ""))
        for header, key, show in (
            ("original", "original", plain),
            ("fitted", "fitted", plain),
            ("difference", "fitted_difference_pct", error),
            ("even", "even", plain),
            ("difference", "even_difference_pct", error),
        )
    )
    speed = check["speed"]
    played = "as it was recorded" if speed == 1 else f"at {speed:.3g} of its speed, 70 % of what the engine sustains"
    requests = check["requests"]["original"]
    return [
        *fit("latency, ms", names, single(*columns), width),
        Text(
            f"{check['model']} on {check['gpu']}; the log is played {played}: {requests['arrived']:,} requests, "
            f"{requests['rejected']:,} rejected. Fitted and even are means over 3 seeds; even has Poisson arrivals "
            "and the mean lengths for all."
        ),
    ]


if TYPE_CHECKING:
    from rich.console import RenderableType


# --- a replay beside its run ------------------------------------------------------------------------------------------
def replay_tables(summary: Json, measured: Json | None, arm: str = "") -> list[Table]:
    """Those that a run has; none for most."""
    found = [_measured(measured, arm)] if measured else []
    even = summary.get("even_workload")
    return [*found, _even(summary, even, arm)] if even else found


def replay_terminal(summary: Json, width: int = 100) -> list[RenderableType]:
    """They as a terminal shows them."""
    parts: list[RenderableType] = []
    for table in replay_tables(summary, summary.get("measured")):
        parts += [*fit(table.head, table.names, table.groups, width, table.title), *map(Text, table.notes)]
    return parts


def _table(title: str, rows: dict[str, tuple[str, ...]], note: str, arm: str) -> Table:
    """A row a number of a latency, with its statistics."""
    groups = single(*across(STATS, tuple(rows.values())))
    return Table(title, "", tuple(rows), groups, (note,), arm=arm)


def _measured(measured: Json, arm: str) -> Table:
    rows: dict[str, tuple[str, ...]] = {}
    for metric, values in measured.items():
        name = MEASURED_LATENCIES[metric]
        rows[f"{name} measured [ms]"] = tuple(plain(values[stat]["measured"]) for stat in STATS)
        rows[f"{name} predicted [ms]"] = tuple(plain(values[stat]["predicted"]) for stat in STATS)
        rows[f"{name} error"] = tuple(error(values[stat]["error_pct"]) for stat in STATS)
    counts = ", ".join(f"{MEASURED_LATENCIES[key]} {plain(values['num_requests'])}" for key, values in measured.items())
    note = f"requests that finished in both: {counts}; a positive error: the prediction is too slow"
    return _table("Predicted against measured", rows, note, arm)


def _even(summary: Json, even: Json, arm: str) -> Table:
    rows: dict[str, tuple[str, ...]] = {}
    for metric in ("ttft_ms", "tpot_ms"):
        log: Json = summary.get(metric) or {}
        smooth: Json = even.get(metric) or {}
        name = MEASURED_LATENCIES[metric]
        rows[f"{name} of the log [ms]"] = tuple(plain(log.get(stat)) for stat in STATS)
        rows[f"{name} of the even one [ms]"] = tuple(plain(smooth.get(stat)) for stat in STATS)
        rows[f"{name} log / even"] = tuple(times(log.get(stat), smooth.get(stat)) for stat in STATS)
    made = even["workload"]
    count, rate, prompt, output = (
        plain(made[key]) for key in ("num_requests", "rate_per_s", "prompt_tokens", "output_tokens")
    )
    note = (
        f"even workload: {count} requests, Poisson arrivals at {rate} a second, each of {prompt} prompt and {output} "
        "output tokens"
    )
    return _table("The log beside an even workload with equal means", rows, note, arm)
