"""The report of one run or of several beside each other, from their directories.

Owns its order, the answer in one sentence, the labels a reader must see before any number, and where numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simkit.errors import InputError
from simkit.metrics.glossary import DEFINITIONS
from simkit.plain import Json
from simkit.report import words
from simkit.report.document import Badge, Facts, Note, Provenance, Report, Section, Table, column
from simkit.report.read.run import Run, load_run
from simkit.report.sections import arms, doctor, log
from simkit.report.words import are_several, gpus_text
from simkit.types import Basis


def report(directories: Mapping[str, Path], title: str, comparison: Json | None = None) -> Report:
    """The report of finished run directories, by the name of their arm.

    `comparison` is the parsed compare.json (``baseline``, ``paired``, ``failed``); without it the first arm is the
    baseline. Raises InputError when a run directory cannot be used.
    """
    if not directories:
        raise InputError("a report needs at least one run directory")
    runs = [load_run(name, directory) for name, directory in directories.items()]
    if len(runs) == 1 and are_several([runs[0].manifest]):
        title = f"{title}: {gpus_text(runs[0].manifest)}"
    told = (_numbers(runs, comparison), _log(runs), doctor.section(runs), arms.lengths(runs))
    sections = (*told, *arms.charts(runs))
    return Report(
        title=title,
        answer=sentence(runs, comparison),
        badges=tuple(badges(runs, comparison)),
        sections=tuple(section for section in sections if section is not None),
        definitions=DEFINITIONS,
        provenance=provenance(runs),
        version=runs[0].manifest.get("version"),
        layout="runs",
    )


def _numbers(runs: Sequence[Run], comparison: Json | None) -> Section:
    """Every metric, and the paired differences where arms were compared."""
    title = "Numbers" if len(runs) == 1 else "The arms side by side"
    replications = max(int(run.manifest.get("replications") or 1) for run in runs)
    caption = f"Means over {replications} replications, ± half a 95 % interval of the simulation alone"
    erring = any(run.value("e2e_ms.mean_range95") or run.value("makespan_s_range95") for run in runs)
    caption += "; then the interval that holds the error of step times." if erring else "."
    if replications == 1:
        caption = "Numbers of summary.json. Latencies over finished, measured requests."
    grids = (arms.grid(runs, caption),)
    baseline = (comparison or {}).get("baseline", runs[0].name)
    interval = ", mean over replications, ± half a 95 % interval."
    if replications == 1:
        interval = "; no interval (needs replications)."
    paired = arms.paired_grid(runs, comparison, f"Arm minus {baseline}{interval}") if comparison else None
    if paired is None:
        return Section("numbers", title, grids=grids, short="Numbers")
    says = "Every arm served the same customers, so differences are taken request stream by request stream.\n"
    if replications == 1:
        says += (
            "One replication: how far chance moves these differences is unknown; an interval needs `replications: 2` "
            "or more."
        )
    part = Section("paired", f"Paired differences to {baseline}", (says,), grids=(paired,))
    return Section("numbers", title, grids=grids, parts=(part,), short="Numbers")


def _log(runs: Sequence[Run]) -> Section | None:
    """What logs measured beside the runs, and the logs beside even workloads."""
    found: list[Table] = []
    for run in runs:
        found += log.replay_tables(run.summary, run.measured, "" if len(runs) == 1 else run.name)
    return Section("log", "The log", tables=tuple(found)) if found else None


# --- the answer, and labels -------------------------------------------------------------------------------------------
BEST = "continuous+paged"

TOLD_PARTS = 4


def sentence(runs: Sequence[Run], comparison: Json | None) -> str:
    """What came out, in one sentence."""
    if len(runs) == 1:
        return _single(runs[0])
    by_name = {run.name: run for run in runs}
    baseline = by_name.get(str((comparison or {}).get("baseline")), runs[0])
    others = [run for run in runs if run is not baseline]
    best = by_name.get(BEST)
    if best is None or best is baseline:
        best = max(others, key=lambda run: _rate(run) or 0.0)
    low, high = _rate(baseline), _rate(best)
    if high is None:
        return f"{best.name} has no throughput: {_nothing(best)}."
    if not low:
        return f"{best.name} delivers {words.plain(high)} req/s; {baseline.name} finished no request."
    return (
        f"{best.name} delivers {words.plain(high)} req/s, {high / low:.1f}x {baseline.name} ({words.plain(low)} req/s)."
    )


def badges(runs: Sequence[Run], comparison: Json | None = None) -> list[Badge]:
    """Labels: arms that failed, uncalibrated times, saturated arms, and what was asked for but not simulated."""
    found = []
    failed: Mapping[str, str] = (comparison or {}).get("failed") or {}
    if failed:
        text = f"{', '.join(failed)}: no numbers, the other arms stand alone."
        details = tuple(f"{name}: {message}" for name, message in failed.items())
        found.append(Badge("failed", text, "bad", details, "why"))
    sources = {str(run.summary.get("latency_source") or run.manifest.get("latency_source") or "") for run in runs}
    uncalibrated = sorted(source for source in sources if source and Basis.of(source) is Basis.DATA_SHEET)
    if uncalibrated:
        found.append(
            Badge(
                "uncalibrated",
                f"Step times come from {', '.join(uncalibrated)}, not from measurements on this GPU.",
                "warn",
            )
        )
    guessed = [run for run in runs if (run.value("gpu.extrapolated.share") or 0.0) >= words.TOLD_SHARE]
    if guessed:
        found.append(_extrapolated(guessed))
    saturated = [run for run in runs if run.summary.get("saturated")]
    if saturated:
        found.append(_saturated(saturated, len(runs)))
    skipped: dict[str, None] = {}
    for run in runs:
        skipped.update(
            dict.fromkeys(map(str, run.summary.get("not_simulated") or run.manifest.get("not_simulated") or ()))
        )
    if skipped:
        found.append(Badge("not simulated", f"Accepted but run as off: {', '.join(skipped)}.", "warn"))
    return found


def _extrapolated(runs: Sequence[Run]) -> Badge:
    """The shares of GPU time that a calibrated profile does not cover, the largest run first."""
    shares = {run.name: float(run.value("gpu.extrapolated.share")) for run in runs}
    most = max(shares.values())
    details = []
    for run in sorted(runs, key=lambda run: -shares[run.name]):
        largest = words.largest_parts(run.value("gpu.extrapolated.parts"))[:TOLD_PARTS]
        details.append(f"{run.name}: " + "; ".join(f"{name} {words.percent(share)}" for name, share in largest))
    text = f"Up to {words.percent(most)} of GPU time does not rest on measurements of this GPU."
    return Badge("extrapolated", text, "warn", tuple(details), "what")


def _saturated(saturated: Sequence[Run], num_runs: int) -> Badge:
    reasons = [str(run.summary.get("saturation_reason") or "the queue grows") for run in saturated]
    if num_runs == 1:
        return Badge("saturated", f"{reasons[0]}. Latencies depend on how long the run lasts.", "bad")
    details = tuple(f"{run.name}: {reason}" for run, reason in zip(saturated, reasons, strict=True))
    text = (
        f"{len(saturated)} of {num_runs} arms. Their queues grow, so their latencies depend on how long the run lasts."
    )
    return Badge("saturated", text, "bad", details)


def _rate(run: Run) -> float | None:
    found = run.value("throughput.requests_per_s")
    return None if found is None else float(found)


def _nothing(run: Run) -> str:
    counts = {kind: run.value(f"num_requests.{kind}") for kind in ("rejected", "refused", "aborted", "unfinished")}
    rest = ", ".join(f"{words.count(value)} {kind}" for kind, value in counts.items() if value)
    arrived = words.count(run.value("num_requests.arrived"))
    return f"none of {arrived} requests finished" + (f" ({rest})" if rest else "")


def _single(run: Run) -> str:
    rate = _rate(run)
    finished = run.value("num_requests.finished")
    if not rate or not finished:
        return f"{run.name}: {_nothing(run)}."
    parts = [f"{run.name} delivers {words.plain(rate)} req/s"]
    tokens = run.value("throughput.output_tokens_per_s")
    if tokens is not None:
        parts[0] += f" ({words.plain(tokens)} output tokens/s)"
    tails = [
        f"{label} p50 {words.plain(run.value(f'{key}.p50'))} ms, p99 {words.plain(run.value(f'{key}.p99'))} ms"
        for label, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2e_ms"))
        if run.value(f"{key}.p99") is not None
    ]
    arrived = words.count(run.value("num_requests.arrived"))
    told = f"{'; '.join([*parts, *tails])}; {words.count(finished)} of {arrived} requests finished."
    room = run.value("headroom.text")
    return f"{told} {room[0].upper()}{room[1:]}." if room else told


# --- where the numbers come from --------------------------------------------------------------------------------------
IDENTITY = ("run_id", "seed", "replications", "latency_source")
FACTS = (
    ("Model", "model"),
    ("GPU", "gpu"),
    ("Memory budget", "memory"),
    ("Step times", "profile"),
    ("Effects in the latency, and their sources", "latency_effects"),
)
"""Titles of lists of facts, and where they stand in the manifest; each is shown once for every distinct content."""


def provenance(runs: Sequence[Run]) -> Provenance:
    """The provenance block of a report."""
    first = flatten(runs[0].scenario)
    columns = (column(key.replace("_", " "), (_identity(run.manifest.get(key)) for run in runs)) for key in IDENTITY)
    return Provenance(
        origin=(
            f"Scenario {_identity(runs[0].manifest.get('name'))}, written by simkit {runs[0].manifest.get('version')}. "
            "The run id is a hash of scenario, profile, seed and version: equal ids mean equal numbers."
        ),
        facts=tuple(facts for title, key in FACTS for facts in _distinct(runs, title, key)),
        scenarios=tuple(
            (_heading(run.name, first, flatten(run.scenario)), f"{words.scenario_yaml(run.scenario)}\n") for run in runs
        ),
        runs=Table("Runs", "arm", tuple(run.name for run in runs), (tuple(columns),)),
        warmups=tuple(f"{run.name}: {_length(run)}{describe_warmup(run.manifest.get('warmup'))}" for run in runs),
        notes=_notes(runs),
    )


def flatten(nested: Json, prefix: str = "") -> dict[str, object]:
    """Nested mappings as dotted keys, in order."""
    flat: dict[str, object] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _length(run: Run) -> str:
    """What was made of the length that was asked for."""
    said = run.manifest.get("run_length")
    return f"{said['text']}; " if isinstance(said, Mapping) and said.get("text") else ""


def describe_warmup(warmup: Any) -> str:
    """What was left out at the start and what the rule would propose."""
    if not isinstance(warmup, Mapping):
        return "not recorded"
    method, dropped = warmup.get("method") or "none", warmup.get("dropped_requests")
    why = f", {warmup['why']}" if warmup.get("why") else ""
    parts = [f"rule {_text(method)}, {words.plain(dropped)} requests left out{why}"]
    proposal = warmup.get("mser5_proposal_requests", warmup.get("proposal"))
    if proposal is not None:
        parts.append(f"MSER-5 proposes {_text(proposal)} requests")
    if warmup.get("note"):
        parts.append(str(warmup["note"]))
    return "; ".join(parts)


def _identity(value: Any) -> str:
    return str(value) if isinstance(value, int) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or words.MISSING
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value) or words.MISSING
    if isinstance(value, float) and value >= 1e6:
        return f"{value:.4g}"
    if isinstance(value, float) and value == value:
        return f"{value:.6g}"
    return words.plain(value)


def _distinct(runs: Sequence[Run], title: str, key: str) -> list[Facts]:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        found = run.manifest.get(key)
        if isinstance(found, Mapping) and found:
            pairs = tuple((name, _text(value)) for name, value in flatten(found).items() if value not in (None, ""))
            if key == "gpu" and are_several([run.manifest]):
                pairs = (("GPUs of the run", gpus_text(run.manifest)), *pairs)
            groups.setdefault(pairs, []).append(run.name)
    return [Facts(pairs, title, tuple(names) if len(groups) > 1 else ()) for pairs, names in groups.items()]


def _heading(name: str, first: Json, other: Json) -> str:
    """An arm, and its settings that differ from the first one's."""
    keys = dict.fromkeys((*first, *other))
    differences = "; ".join(
        f"{key} = {_text(other.get(key))}" for key in keys if key != "variants" and first.get(key) != other.get(key)
    )
    return f"{name}: {differences}" if differences else name


def _notes(runs: Sequence[Run]) -> tuple[Note, ...]:
    """Each note once, and whose it is unless it is of all."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for note in run.manifest.get("notes") or ():
            found.setdefault(str(note), []).append(run.name)
    return tuple(Note(note, "" if len(names) == len(runs) else ", ".join(names)) for note, names in found.items())
