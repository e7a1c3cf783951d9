"""The terminal's tables of one run and of a comparison. Reads summaries and manifests; knows no engine.

A number is never cut: when the columns do not fit the width, a table continues in a second one under it. A missing
number is ``-`` with its reason under the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from simkit.report.document import Column
from simkit.report.read.summary import REMARK, SCOPES, TOGETHER, are_several, gpus_text, marked
from simkit.report.render.terminal import EDGE, GAP, fit, new_table
from simkit.report.words import MISSING, percent, plain, signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Show = Callable[[Any], str]
STATS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("e2e_ms", "E2E"), ("queue_ms", "Queue"))
TOLD_SHARE = 0.005
"""Extrapolated shares of GPU time from which on they are named."""
WASTE = ("reserved", "internal", "external")

# Columns of the comparison, in groups that stay together: (header, key in the summary, how it reads).
COMPARED: tuple[tuple[tuple[str, str, Show], ...], ...] = (
    (
        ("req/s", "throughput.requests_per_s", plain),
        ("out\ntok/s", "throughput.output_tokens_per_s", plain),
        ("concur-\nrency", "concurrency_mean", plain),
        ("slot\nutil.", "slot_utilization", percent),
        ("slot\noccup.", "slot_occupancy", percent),
    ),
    tuple((f"KV {kind[:2]}-\n{kind[2:]}", f"kv.{kind}.share_of_allocated", percent) for kind in WASTE),
    (("pre-\nempted", "num_preemptions", plain), ("cache\nhits", "prefix_cache_hit_rate", percent)),
    *(
        tuple((f"{name}\n{stat}", f"{key}.{stat}", plain) for stat in ("p50", "p95", "p99"))
        for key, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))
    ),
    (("ITL\np99", "itl_ms.p99", plain),),
)


def value(summary: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, None when any part of it is missing."""
    here: Any = summary
    for part in key.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def run_tables(summary: Mapping[str, Any], manifest: Mapping[str, Any], width: int = 100) -> list[RenderableType]:
    """The tables of one run: what was run, latencies, throughput and memory, counts, and why numbers are missing."""
    reasons: dict[str, list[str]] = {}
    parts: list[RenderableType] = [_title(summary, manifest)]
    parts += [*_latency_tables(summary, manifest, reasons, width), _metric_table(summary, manifest, reasons, width)]
    parts += [Text(REMARK)] if are_several([manifest]) else []
    parts += _reason_lines(reasons)
    lines = (*_slo_lines(summary), *_length_lines(manifest), *_warmup_lines(manifest.get("warmup") or {}))
    parts += [Text(line) for line in lines]
    return parts


def _slo_lines(summary: Mapping[str, Any]) -> list[str]:
    """What the SLO asks and what the run gave."""
    lines = []
    for metric, values in (summary.get("slo") or {}).items():
        for key, result in values.items():
            verdict = {True: "met", False: "MISSED", None: "not applicable"}[result.get("met")]
            share, value = result.get("share_within"), result.get("value_ms")
            given = f"{percent(share)} of requests" if share is not None else f"{plain(value)} ms" if value else "-"
            name = metric.removesuffix("_ms").upper()
            lines.append(f"slo: {name} {key} <= {result['target_ms']:g} ms {verdict} ({given})")
    if lines and summary.get("saturated"):
        lines.append("slo: the queue grows, so this rate cannot be sustained, whatever a run of this length meets")
    return lines


def _length_lines(manifest: Mapping[str, Any]) -> list[str]:
    """What was made of the length that was asked for, where that was too short, or did not suffice."""
    said = manifest.get("run_length")
    return [f"run length: {said['text']}"] if said else []


def _warmup_lines(warmup: Mapping[str, Any]) -> list[str]:
    """What was left out and why, and what MSER-5 proposes, whether it was asked or not, in one line."""
    if not warmup:
        return []
    dropped, proposal = warmup.get("dropped_requests") or 0, warmup.get("mser5_proposal_requests")
    done = f"first {plain(dropped)} requests left out" if dropped else "nothing left out"
    done += f", {warmup['why']}" if warmup.get("why") else ""
    # The note of the manifest is longer than what is left of the line.
    proposed = "MSER-5: no steady state" if warmup.get("note") else f"MSER-5 proposes {plain(proposal)}"
    return [f"warm-up ({warmup.get('method')}): {done}; {proposed}"]


def compare_tables(
    arms: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]], paired: Mapping[str, Any], width: int = 100
) -> list[RenderableType]:
    """One row an arm, (summary, manifest) each, then the paired differences; split to fit `width` columns."""
    note = "latencies in ms; KV reserved, internal, external as shares of the allocated memory"
    return [*summary_tables("arm", arms, COMPARED, note, width), *_paired_tables(paired, width)]


def summary_tables(
    head: str,
    runs: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
    groups: Sequence[Sequence[tuple[str, str, Show]]],
    note: str,
    width: int,
) -> list[RenderableType]:
    """One row a run, (summary, manifest) each, under `head`; then `note`, who is saturated and why numbers miss."""
    reasons: dict[str, list[str]] = {}
    columns = [
        tuple(
            Column(header, tuple(_cell(s, m, key, show, reasons, f"{name}: ") for name, (s, m) in runs.items()))
            for header, key, show in group
        )
        for group in groups
    ]
    names = tuple(name + (" *" if s.get("saturated") else "") for name, (s, _) in runs.items())
    parts: list[RenderableType] = [*fit(head, names, columns, width), Text(note)]
    if are_several(manifest for _, manifest in runs.values()):
        sums = [Column(header, ()).name for group in groups for header, key, _ in group if SCOPES.get(key) == TOGETHER]
        parts.append(Text(f"of all replicas together: {', '.join(sums)}"))
    parts += _source_lines(runs)
    if any(summary.get("saturated") for summary, _ in runs.values()):
        parts.append(
            Text("* saturated: the queue grows for as long as requests come, so latencies depend on the run's length")
        )
    return parts + _reason_lines(reasons, len(runs))


def _title(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Text:
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


def _source_lines(runs: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Text]:
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
        whose = "" if len(names_of) == 1 else f" of {_grouped(names, len(runs))}"
        share, name = shares[source]
        most = f"; not measured: up to {percent(share)} of GPU time ({name})" if share else ""
        lines.append(Text(f"step times{whose}: {source}{most}"))
    return lines


def _not_measured(summary: Mapping[str, Any]) -> str:
    """Which shares of GPU time a calibrated profile had to extrapolate; those too small to matter are only counted."""
    found = value(summary, "gpu.extrapolated")
    if not found or not found.get("share"):
        return ""
    parts = {name: share for name, share in found["parts"].items() if not name.endswith("_ci95") and share}
    largest = sorted(parts, key=lambda name: -parts[name])
    named = [f"{name} {percent(parts[name])}" for name in largest if parts[name] >= TOLD_SHARE]
    return f"\nnot measured: {percent(found['share'])} of GPU time" + (f" ({'; '.join(named)})" if named else "")


def _latency_tables(
    summary: Mapping[str, Any], manifest: Mapping[str, Any], reasons: dict[str, list[str]], width: int
) -> list[Table]:
    columns = []
    for stat in STATS:
        cells = (_with_ci(summary, manifest, f"{key}.{stat}", plain, reasons) for key, _ in LATENCIES)
        columns.append((Column(stat, tuple(cells)),))
    return fit("latency, ms", [name for _, name in LATENCIES], columns, width)


def _metric_table(
    summary: Mapping[str, Any], manifest: Mapping[str, Any], reasons: dict[str, list[str]], width: int
) -> Table:
    """Everything that is one number: label and value, side by side in two halves where the width allows."""
    rows: list[tuple[str, str]] = []
    several = are_several([manifest])
    for label, key, show, unit in _METRICS:
        text = _with_ci(summary, manifest, key, show, reasons)
        rows.append((marked(label, key, several), f"{text} {unit}" if unit and text != MISSING else text))
    for kind in WASTE:
        pool = percent(value(summary, f"kv.{kind}.share_of_pool"))
        allocated = percent(value(summary, f"kv.{kind}.share_of_allocated"))
        rows.append((f"KV {kind}", f"{pool} pool, {allocated} alloc."))
    counts = summary.get("num_requests") or {}
    rows += [(f"requests {kind}", plain(count)) for kind, count in counts.items() if not kind.endswith("_ci95")]
    rows += [(label, plain(summary[key])) for label, key in _RARE if summary.get(key)]
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


_METRICS: tuple[tuple[str, str, Show, str], ...] = (
    ("requests per second", "throughput.requests_per_s", plain, ""),
    ("output tokens per second", "throughput.output_tokens_per_s", plain, ""),
    ("total tokens per second", "throughput.total_tokens_per_s", plain, ""),
    ("measured window", "window_s", plain, "s"),
    ("concurrency, mean", "concurrency_mean", plain, ""),
    ("slot utilisation", "slot_utilization", percent, ""),
    ("slot occupancy", "slot_occupancy", percent, ""),
    ("goodput per second", "goodput_per_s", plain, ""),
    ("cost per million output tokens", "cost_per_million_output_tokens", plain, ""),
    ("makespan", "makespan_s", plain, "s"),
    ("requests per s of makespan", "makespan_throughput.requests_per_s", plain, ""),
    ("output tokens per s of makespan", "makespan_throughput.output_tokens_per_s", plain, ""),
    ("total tokens per s of makespan", "makespan_throughput.total_tokens_per_s", plain, ""),
    ("GPU busy", "gpu.busy", percent, ""),
    ("MFU", "gpu.mfu", percent, ""),
    ("MBU", "gpu.mbu", percent, ""),
    ("steps", "num_steps", plain, ""),
    ("preemptions", "num_preemptions", plain, ""),
    ("prefix cache hits", "prefix_cache_hit_rate", percent, ""),
    ("KV capacity", "kv.capacity_tokens", plain, "tokens"),
    ("KV blocks", "kv.num_gpu_blocks", plain, ""),
    ("KV peak", "kv.peak_tokens", plain, "tokens"),
    ("KV utilisation", "kv.utilization", percent, ""),
)
_RARE = (("outputs cut short", "num_truncated"), ("requests requeued", "num_requeued"))


def _with_ci(
    summary: Mapping[str, Any], manifest: Mapping[str, Any], key: str, show: Show, reasons: dict[str, list[str]]
) -> str:
    text = _cell(summary, manifest, key, show, reasons)
    interval = value(summary, f"{key}_ci95")
    return text if interval is None or text == MISSING else f"{text} ± {show(interval)}"


def _cell(
    summary: Mapping[str, Any],
    manifest: Mapping[str, Any],
    key: str,
    show: Show,
    reasons: dict[str, list[str]],
    who: str = "",
) -> str:
    found = value(summary, key)
    if found is None:
        label = who + _LABELS.get(key.partition(".")[0], _LABELS.get(key, key))
        users = reasons.setdefault(why_missing(summary, manifest, key), [])
        if label not in users:
            users.append(label)
    return show(found)


_LABELS = {
    **dict(LATENCIES),
    **{key: label for label, key, _, _ in _METRICS},
    "gpu": "GPU busy, MFU, MBU",
    "cost_per_million_output_tokens": "cost",
    "prefix_cache_hit_rate": "prefix cache hits",
    "goodput_per_s": "goodput",
    "kv": "KV",
}


def why_missing(summary: Mapping[str, Any], manifest: Mapping[str, Any], key: str) -> str:
    """Why the number at a dotted key is null: the summary's own reason, else what the scenario implies."""
    top = key.partition(".")[0]
    given = value(summary, f"{top}.reason") or summary.get(f"{top.removesuffix('_per_s')}_reason")
    if isinstance(given, str):
        return given
    scenario = manifest.get("scenario") or {}
    engine = scenario.get("engine") or {}
    if top == "goodput_per_s" and not scenario.get("slo"):
        return "the scenario states no SLO"
    if top == "cost_per_million_output_tokens" and (scenario.get("hardware") or {}).get("price_per_gpu_hour") is None:
        return "no hardware.price_per_gpu_hour"
    if top == "prefix_cache_hit_rate":
        return "no prefix caching"
    if key == "kv.num_gpu_blocks":
        return "contiguous memory has no blocks"
    if top == "gpu":
        return "the latency model has no hardware behind it"
    if not value(summary, "num_requests.finished"):
        return "no request finished"
    if (
        top in ("tpot_ms", "itl_ms", "goodput_per_s")
        and engine.get("batching") != "continuous"
        and not engine.get("stream")
    ):
        return "not streamed"
    if top in ("tpot_ms", "itl_ms"):
        return "no finished request has two or more output tokens"
    return "undefined in this run"


def _reason_lines(reasons: Mapping[str, Sequence[str]], num_runs: int = 1) -> list[RenderableType]:
    return [Text(f"- {reason}: {_grouped(users, num_runs)}") for reason, users in reasons.items()]


def _grouped(users: Sequence[str], num_runs: int) -> str:
    """``a: TPOT``, ``a: ITL``, ``b: TPOT`` as ``TPOT, ITL (a, b)`` when some of the arms are named, else a list."""
    arms: dict[str, list[str]] = {}
    for user in users:
        arm, _, label = user.rpartition(": ")
        arms.setdefault(arm, []).append(label)
    by_labels: dict[str, list[str]] = {}
    for arm, labels in arms.items():
        by_labels.setdefault(", ".join(labels), []).append(arm)
    return "; ".join(
        labels + (f" ({', '.join(names)})" if any(names) and not len(names) == num_runs > 1 else "")
        for labels, names in by_labels.items()
    )


def _paired_tables(paired: Mapping[str, Any], width: int) -> list[RenderableType]:
    names = [name for name, metrics in paired.items() if isinstance(metrics, Mapping) and metrics]
    metrics = list(dict.fromkeys(metric for name in names for metric in paired[name]))
    columns = []
    for metric in metrics:
        cells = tuple(_difference(paired[name].get(metric), metric) for name in names)
        columns.append((Column(_metric_header(metric), cells),))
    if not columns:
        return []
    return list(fit("arm", names, columns, width, title="\npaired differences to the baseline, same customers"))


def _metric_header(metric: str) -> str:
    for group in COMPARED:
        for header, key, _ in group:
            if metric == key:
                return header
    return metric.replace(".", "\n").replace("share_of_allocated", "alloc.")


def _difference(found: Mapping[str, Any] | None, metric: str) -> str:
    if not found or found.get("difference") is None:
        return MISSING
    share = any(word in metric for word in ("utilization", "occupancy", "share_of", "gpu.", "hit_rate"))
    text, interval = signed(found["difference"], share), found.get("ci95")
    if isinstance(interval, list | tuple):
        return f"{text} [{signed(interval[0], share)}, {signed(interval[1], share)}]"
    return text if interval is None else f"{text} ± {signed(interval, share).lstrip('+')}"
