"""The answer in one sentence, and the labels a reader must see before any number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simkit.plain import Json
from simkit.report import words
from simkit.report.document import Badge
from simkit.report.read.run import Run
from simkit.types import Basis

BEST = "continuous+paged"

TOLD_SHARE = 0.05
"""Extrapolated shares of GPU time from which on a reader is told."""

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
    guessed = [run for run in runs if (run.value("gpu.extrapolated.share") or 0.0) >= TOLD_SHARE]
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
        parts = run.value("gpu.extrapolated.parts")
        named = {name: share for name, share in parts.items() if not name.endswith("_ci95") and share}
        largest = sorted(named, key=lambda name: -named[name])[:TOLD_PARTS]
        details.append(f"{run.name}: " + "; ".join(f"{name} {words.percent(named[name])}" for name in largest))
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
