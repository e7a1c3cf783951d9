"""The terminal's tables of host terms fitted to a real run (`simkit calibrate --from-run`). Reads plain data.

Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from simkit.report.document import Column
from simkit.report.render.terminal import fit
from simkit.report.words import MISSING, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

STATS = ("mean", "p50", "p90", "p95", "p99")
METRICS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
TERMS = {
    "fixed_us": "a step, us",
    "per_seq_us": "a step and sequence, us",
    "first_token_us": "a request, us",
}


def fit_tables(facts: Mapping[str, Any], width: int = 100) -> list[RenderableType]:
    """Terms before and after, then the errors on the run they were fitted to."""
    counts = ", ".join(f"{METRICS[metric]} of {count:,}" for metric, count in facts["num_requests"].items())
    met = [row["requests_met"] for row in facts["numbers"]]
    rms, where = facts["rms_pct"], facts["scenario"]
    lines = [
        f"fitted to {len(facts['numbers'])} numbers of {facts['log']} ({counts} requests), "
        f"{where['model']} on {where['gpu']}, {facts['num_simulations']} simulations",
        f"{plain(min(met))} to {plain(max(met))} requests at once, by group: the wider, the better a step's fixed "
        "work is told from that for each of its sequences",
        f"error of these numbers, root mean square: {rms['before']:.2f} % before, {rms['after']:.2f} % after",
    ]
    return [
        *_terms(facts, width),
        *(Text(f"{TERMS[name].split(',')[0]}: {term['why']}") for name, term in facts["terms"].items() if term["why"]),
        *(Text(line) for line in lines),
        *_errors(facts["errors"], width),
        Text("a positive error: the prediction is too slow; measured on the run that was fitted, not on another"),
    ]


def hosts_lines(hosts: Mapping[str, Any]) -> list[str]:
    """A line an engine version that a profile has host terms of."""
    lines = []
    for version, host in hosts.items():
        line = (
            f"host of vLLM {version}: {host['fixed_us']:,.0f} us a step, {host['per_seq_us']:.2f} us a running "
            f"sequence, {host['first_token_us']:,.0f} us a request"
        )
        origin = host["provenance"]
        log, rms = origin.get("log"), origin.get("rms_pct")
        ends = [rms.get(key) for key in ("before", "after")] if isinstance(rms, Mapping) else [None]
        if isinstance(log, str):
            line += f"; fitted to {log}"
        if all(type(end) in (int, float) for end in ends):
            line += f", error there {ends[0]:.1f} % before, {ends[1]:.1f} % after"
        lines.append(line)
    return lines


def _terms(facts: Mapping[str, Any], width: int) -> list[Table]:
    terms = facts["terms"]
    names = tuple(TERMS[name] for name in terms)
    rows = list(terms.values())
    groups = (
        (Column("before", tuple(f"{row['before']:,.1f}" for row in rows)),),
        (Column("after", tuple(f"{row['after']:,.1f}" for row in rows)),),
        (Column("+/-", tuple(_uncertain(row["standard_error"]) for row in rows)),),
        (Column("", tuple("fitted" if row["state"] == "fitted" else "left" for row in rows)),),
        (Column("before from", tuple(row["source"] for row in rows)),),
    )
    return fit(f"host of vLLM {facts['version']}", names, groups, width, f"{facts['name']}")


def _errors(errors: Mapping[str, Any], width: int) -> list[Table]:
    rows: list[tuple[str, list[str]]] = []
    for metric, stats in errors.items():
        name = METRICS[metric]
        rows += [
            (f"{name} measured [ms]", [plain(stats[stat]["measured"]) for stat in STATS]),
            (f"{name} error before", [_error(stats[stat]["before_pct"]) for stat in STATS]),
            (f"{name} error after", [_error(stats[stat]["after_pct"]) for stat in STATS]),
        ]
    groups = tuple((Column(stat, tuple(cells[i] for _, cells in rows)),) for i, stat in enumerate(STATS))
    return fit("", tuple(name for name, _ in rows), groups, width)


def _uncertain(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.1f}"


def _error(percent: float | None) -> str:
    return MISSING if percent is None else f"{percent:+.1f} %"
