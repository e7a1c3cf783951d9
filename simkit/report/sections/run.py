"""The terminal's tables of one run, and of several: a row an arm or a point, and paired differences of arms.

A missing number is ``-`` with its reason under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simkit.metrics.catalogue import (
    ALL,
    COMPARE,
    LATENCIES,
    NUMBER,
    RUN,
    SHARE,
    STATS,
    SWEEP,
    Kind,
    Metric,
    Place,
    find,
    shown,
    value,
)
from simkit.plain import Json
from simkit.report.document import Column
from simkit.report.render.terminal import EDGE, GAP, fit, new_table
from simkit.report.words import (
    MISSING,
    REMARK,
    are_several,
    difference,
    gpus_text,
    largest_parts,
    marked,
    percent,
    plain,
    show_of,
    why_missing,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NAMED_SHARE = 0.005
"""Extrapolated shares of GPU time from which on they are named."""

WASTE = ("reserved", "internal", "external")
UNITS = ("s", "tokens")
"""Units that a label does not say itself."""

_LABELS = {
    **LATENCIES,
    **{metric.key: metric.name(RUN) for metric in shown(RUN)},
    "gpu": "GPU busy, MFU, MBU",
    "cost_per_million_output_tokens": "cost",
    "goodput_per_s": "goodput",
    "kv": "KV",
}
"""What misses a number, by its key or the first part of it."""


class Cells:
    """Numbers of runs as text, and why those that are missing are."""

    def __init__(self) -> None:
        self._users: dict[str, list[tuple[str, str]]] = {}

    def text(self, summary: Json, manifest: Json, key: str, kind: Kind, who: str = "") -> str:
        """A number of a run; `who` is the arm that it is of, where there are several."""
        found = value(summary, key)
        if found is None:
            user = who, _LABELS.get(key.partition(".")[0], _LABELS.get(key, key))
            users = self._users.setdefault(why_missing(summary, manifest, key), [])
            if user not in users:
                users.append(user)
        return show_of(kind)(found)

    def with_interval(self, summary: Json, manifest: Json, key: str, kind: Kind) -> str:
        """A number with half the width of its interval, where it has one."""
        text, interval = self.text(summary, manifest, key, kind), value(summary, f"{key}_ci95")
        return text if interval is None or text == MISSING else f"{text} ± {show_of(kind)(interval)}"

    def reasons(self, num_runs: int = 1) -> list[Text]:
        """A line a reason."""
        return [Text(f"- {reason}: {_grouped(users, num_runs)}") for reason, users in self._users.items()]


def _grouped(users: Sequence[tuple[str, str]], num_runs: int) -> str:
    """TPOT and ITL of the arms a and b as ``TPOT, ITL (a, b)`` when some of the arms are named, else a list."""
    arms: dict[str, list[str]] = {}
    for arm, label in users:
        arms.setdefault(arm, []).append(label)
    by_labels: dict[str, list[str]] = {}
    for arm, labels in arms.items():
        by_labels.setdefault(", ".join(labels), []).append(arm)
    return "; ".join(
        labels + (f" ({', '.join(names)})" if any(names) and not len(names) == num_runs > 1 else "")
        for labels, names in by_labels.items()
    )


def run_tables(summary: Json, manifest: Json, width: int = 100) -> list[RenderableType]:
    """What was run, latencies, throughput and memory, counts, why numbers are missing, the SLO, length and warm-up."""
    cells = Cells()
    parts: list[RenderableType] = [_title(summary, manifest)]
    columns = [
        (Column(stat, tuple(cells.with_interval(summary, manifest, f"{key}.{stat}", NUMBER) for key in LATENCIES)),)
        for stat in STATS
    ]
    parts += fit("latency, ms", list(LATENCIES.values()), columns, width)
    parts.append(_halves(_numbers(summary, manifest, cells), width))
    parts += [Text(REMARK)] if are_several([manifest]) else []
    parts += cells.reasons()
    lines = [*_range_lines(summary), *_slo_lines(summary), *_length_lines(manifest)]
    parts += [Text(line) for line in (*lines, *_warmup_lines(manifest.get("warmup") or {}))]
    return parts


def _title(summary: Json, manifest: Json) -> Text:
    scenario = manifest.get("scenario") or {}
    engine = scenario.get("engine") or {}
    text = Text(f"{manifest.get('name', 'run')}", style="bold")
    served = f"{scenario.get('model', '?')} on {gpus_text(manifest)}"
    how = f"{engine.get('batching', '?')} batching, {engine.get('kv_allocator', '?')} KV"
    text.append(f"  {served}, {how}\nstep times: {summary.get('latency_source', '?')}", style="not bold")
    text.append(_not_measured(summary), style="not bold")
    if summary.get("saturated"):
        text.append(f"\nsaturated: {summary.get('saturation_reason') or 'the queue grows'}", style="bold")
    return text


def _not_measured(summary: Json) -> str:
    """Which shares of GPU time a calibrated profile had to extrapolate; those too small to matter are only counted."""
    found = value(summary, "gpu.extrapolated")
    if not found or not found.get("share"):
        return ""
    named = [f"{name} {percent(share)}" for name, share in largest_parts(found["parts"]) if share >= NAMED_SHARE]
    return f"\nnot measured: {percent(found['share'])} of GPU time" + (f" ({'; '.join(named)})" if named else "")


def _numbers(summary: Json, manifest: Json, cells: Cells) -> list[tuple[str, str]]:
    """Everything that is one number: label and value."""
    rows: list[tuple[str, str]] = []
    several = are_several([manifest])
    for metric in shown(RUN):
        if metric.rare:
            continue
        text = cells.with_interval(summary, manifest, metric.key, metric.kind)
        unit = metric.unit if metric.unit in UNITS else ""
        rows.append((marked(metric, RUN, several), f"{text} {unit}" if unit and text != MISSING else text))
    for kind in WASTE:
        pool = percent(value(summary, f"kv.{kind}.share_of_pool"))
        allocated = percent(value(summary, f"kv.{kind}.share_of_allocated"))
        rows.append((f"KV {kind}", f"{pool} pool, {allocated} alloc."))
    counts: Json = summary.get("num_requests") or {}
    rows += [(f"requests {kind}", plain(count)) for kind, count in counts.items() if not kind.endswith("_ci95")]
    rows += [
        (metric.name(RUN), plain(summary[metric.key]))
        for metric in shown(RUN)
        if metric.rare and summary.get(metric.key)
    ]
    return rows


def _halves(rows: Sequence[tuple[str, str]], width: int) -> Table:
    """Labels and values, side by side in two halves where the width allows."""
    half = (len(rows) + 1) // 2
    halves = [rows[:half], [*rows[half:], ("", "")][:half]]
    indent = 2  # sets the halves apart
    if sum(max(len(row[side]) for row in part) + GAP for part in halves for side in (0, 1)) + indent + EDGE > width:
        halves = [rows]
    table = new_table()
    table.show_header = False
    for _ in halves:
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
    for cells in zip(*halves, strict=True):
        table.add_row(
            *(text for index, (label, number) in enumerate(cells) for text in (" " * indent * index + label, number))
        )
    return table


RANGED = ("ttft_ms", "tpot_ms", "e2e_ms")
"""Latencies whose intervals are told in full."""


def _range_lines(summary: Json) -> list[str]:
    """Intervals that hold the error of step times, beside those of the simulation alone."""
    numbers = [
        (f"{key}.{stat}", f"{LATENCIES[key]} {stat}", NUMBER, "ms") for key in RANGED for stat in ("mean", "p99")
    ]
    rates = [metric for metric in shown(RUN) if metric.key in ("requests_per_s", "output_tokens_per_s")]
    numbers += [(metric.key, metric.name(RUN), metric.kind, metric.unit) for metric in rates]
    told = []
    for key, label, kind, unit in numbers:
        text = both_widths(summary, key, kind)
        if text:
            told.append(f"  {label} {show_of(kind)(value(summary, key))} {unit} ({text})")
    return ["95 % intervals with the error of step times (± above: without it):", *told] if told else []


def both_widths(summary: Json, key: str, kind: Kind) -> str:
    """``9.3 to 11.9; simulation alone 10.4 to 11.2``; empty for a number that has no such interval."""
    found, show = value(summary, f"{key}_range95"), show_of(kind)
    mean, half = value(summary, key), value(summary, f"{key}_ci95")
    if not found or mean is None or half is None:
        return ""
    return f"{show(found[0])} to {show(found[1])}; simulation alone {show(mean - half)} to {show(mean + half)}"


def _slo_lines(summary: Json) -> list[str]:
    """What the SLO asks and what the run gave."""
    lines = []
    for metric, values in (summary.get("slo") or {}).items():
        for key, result in values.items():
            verdict = {True: "met", False: "MISSED", None: "not applicable"}[result.get("met")]
            share, given_ms = result.get("share_within"), result.get("value_ms")
            given = f"{plain(given_ms)} ms" if given_ms else MISSING
            given = given if share is None else f"{percent(share)} of requests"
            name = metric.removesuffix("_ms").upper()
            lines.append(f"slo: {name} {key} <= {result['target_ms']:g} ms {verdict} ({given})")
    if lines and summary.get("saturated"):
        lines.append("slo: the queue grows, so this rate cannot be sustained, whatever a run of this length meets")
    return lines


def _length_lines(manifest: Json) -> list[str]:
    """What was made of the length that was asked for, where that was too short, or did not suffice."""
    said = manifest.get("run_length")
    return [f"run length: {said['text']}"] if said else []


def _warmup_lines(warmup: Json) -> list[str]:
    """What was left out and why, and what MSER-5 proposes, whether it was asked or not, in one line."""
    if not warmup:
        return []
    dropped, proposal = warmup.get("dropped_requests") or 0, warmup.get("mser5_proposal_requests")
    done = f"first {plain(dropped)} requests left out" if dropped else "nothing left out"
    done += f", {warmup['why']}" if warmup.get("why") else ""
    # The note of the manifest is longer than what is left of the line.
    proposed = "MSER-5: no steady state" if warmup.get("note") else f"MSER-5 proposes {plain(proposal)}"
    return [f"warm-up ({warmup.get('method')}): {done}; {proposed}"]


if TYPE_CHECKING:
    from rich.console import RenderableType

# --- several runs -----------------------------------------------------------------------------------------------------
Runs = Mapping[str, tuple[Json, Json]]
"""(summary, manifest) by the name of a run."""


def compare_tables(arms: Runs, paired: Json, width: int = 100) -> list[RenderableType]:
    """One row an arm, then the paired differences; split to fit `width` columns."""
    note = "latencies in ms; KV reserved, internal, external as shares of the allocated memory"
    parts = [*summary_tables("arm", arms, COMPARE, note, width), *_paired_tables(paired, width)]
    if any(value(summary, "e2e_ms.mean_range95") for summary, _ in arms.values()):
        parts.append(Text("intervals that hold the error of step times: *_range95 in compare.json, and in the report"))
    return parts


def sweep_tables(points: Runs, failed: Sequence[str], width: int = 100) -> list[RenderableType]:
    """One row a point, split to fit `width` columns, and which points `failed`."""
    note = "latencies in ms; KV utilisation is the used share of the pool; cost is per million output tokens"
    parts = summary_tables("point", points, SWEEP, note, width)
    return [*parts, *([Text(f"failed, no numbers: {'; '.join(failed)}")] if failed else [])]


def summary_tables(head: str, runs: Runs, place: Place, note: str, width: int) -> list[RenderableType]:
    """One row a run, under `head`; then `note`, who is saturated and why numbers miss."""
    cells, metrics = Cells(), shown(place)
    groups: dict[int, list[Column]] = {}
    for metric in metrics:
        texts = (cells.text(s, m, metric.key, metric.kind, name) for name, (s, m) in runs.items())
        # What shares its tens stays together.
        groups.setdefault(metric.shown[place] // 10, []).append(Column(metric.name(place), tuple(texts)))
    names = tuple(name + (" *" if s.get("saturated") else "") for name, (s, _) in runs.items())
    parts: list[RenderableType] = [*fit(head, names, [tuple(group) for group in groups.values()], width), Text(note)]
    if are_several(manifest for _, manifest in runs.values()):
        sums = [Column(metric.name(place), ()).name for metric in metrics if metric.scope is ALL]
        parts.append(Text(f"of all replicas together: {', '.join(sums)}"))
    parts += _source_lines(runs)
    if any(summary.get("saturated") for summary, _ in runs.values()):
        parts.append(
            Text("* saturated: the queue grows for as long as requests come, so latencies depend on the run's length")
        )
    return parts + cells.reasons(len(runs))


def _source_lines(runs: Runs) -> list[Text]:
    """Where the step times of each run come from, and the largest share of GPU time that was not measured."""
    names_of: dict[str, list[str]] = {}
    shares: dict[str, tuple[float, str]] = {}
    for name, (summary, _) in runs.items():
        source = str(summary.get("latency_source", "?"))
        names_of.setdefault(source, []).append(name)
        share = value(summary, "gpu.extrapolated.share") or 0.0
        shares[source] = max(shares.get(source, (0.0, "")), (share, name), key=lambda found: found[0])
    lines = []
    for source, names in names_of.items():
        whose = "" if len(names_of) == 1 else f" of {', '.join(names)}"
        share, name = shares[source]
        most = f"; not measured: up to {percent(share)} of GPU time ({name})" if share else ""
        lines.append(Text(f"step times{whose}: {source}{most}"))
    return lines


def _paired_tables(paired: Json, width: int) -> Sequence[RenderableType]:
    names = [name for name, metrics in paired.items() if isinstance(metrics, Mapping) and metrics]
    keys = list(dict.fromkeys(key for name in names for key in paired[name]))
    columns = []
    for key in keys:
        metric = find(key)
        cells = (_difference(paired[name].get(key), metric) for name in names)
        columns.append((Column(_header(key, metric), tuple(cells)),))
    if not columns:
        return []
    return fit("arm", names, columns, width, title="\npaired differences to the baseline, same customers")


def _header(key: str, metric: Metric | None) -> str:
    if metric is not None and COMPARE in metric.shown:
        return metric.name(COMPARE)
    return key.replace(".", "\n").replace("share_of_allocated", "alloc.")


def _difference(found: Json | None, metric: Metric | None) -> str:
    if not found or found.get("difference") is None:
        return MISSING
    return " ".join(difference(found, metric is not None and metric.kind is SHARE)).rstrip()
