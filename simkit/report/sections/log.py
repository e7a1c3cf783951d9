"""The terminal's tables of a log (`simkit trace info`) and of the workload fitted to it (`simkit trace fit`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from simkit.plain import Json
from simkit.report.document import column, single
from simkit.report.render.terminal import fit
from simkit.report.words import error, percent, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

STATS = ("mean", "p50", "p95", "p99", "max")


def trace_tables(info: Json) -> list[RenderableType]:
    """What was read and why, arrivals, lengths, sharing, sessions, and all notes on what was decided and left out."""
    title = f"{info['title']}, by {info['why']}" if info["why"] != "as the format says" else f"{info['title']}, as told"
    parts: list[RenderableType] = [Text(title), Text(""), _spreads(info), Text(""), _facts(_lines(info))]
    if info["notes"]:
        parts += [Text(""), _facts(("note", note) for note in info["notes"])]
    return parts


def _spreads(info: Json) -> Table:
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    table.add_column("")
    for stat in STATS:
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
            table.add_row(name, *(plain(spread[stat]) for stat in STATS))
    return table


def _facts(lines: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
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
