"""How the plain data of a plan is read: points by their further settings, numbers of a rate, what may be missing.

Knows the keys of plan.json and no planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from simkit.plain import Json
from simkit.report.words import MISSING, known, plain, plain_down

Content = Json
Row = Json
SLOTS = "engine.max_num_seqs"
STATS = ("p50", "p95", "p99")
TOO_FEW = "too few"


def mean_of(row: Row, key: str) -> float | None:
    """The mean over replications of a number of one rate."""
    return known((row["numbers"].get(key) or {}).get("mean"))


def ci_of(row: Row, key: str) -> float | None:
    """Half the width of its 95 % interval."""
    return known((row["numbers"].get(key) or {}).get("ci95"))


def means_text(rows: Sequence[Row], drawn: bool = False) -> str:
    """What a number of a rate is, in a table or `drawn`."""
    counts = sorted({row["replications"] for row in rows})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if counts == [1]:
        return "One replication: how far chance moves these numbers is unknown."
    how = "with 95 % intervals" if drawn else "± half the width of a 95 % interval"
    return f"Means over {number} replications {how}."


def further(point: Json) -> dict[str, object]:
    """The settings of a point besides max_num_seqs."""
    return {key: value for key, value in point["settings"].items() if key != SLOTS}


def setting_text(settings: Json) -> str:
    """Settings in one line, without the section that they stand in."""
    return ", ".join(f"{key.rpartition('.')[2]} {word(value)}" for key, value in settings.items())


def word(value: Any) -> str:
    """A value of a setting as the scenario file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def combinations(content: Content) -> dict[str, list[Json]]:
    """Points by their further settings, each by max_num_seqs; the name is empty when there are none."""
    found: dict[str, list[Json]] = {}
    for point in content["points"]:
        found.setdefault(setting_text(further(point)), []).append(point)
    return {name: sorted(points, key=lambda point: point["max_num_seqs"]) for name, points in found.items()}


def has_axes(content: Content) -> bool:
    """Whether anything besides max_num_seqs is varied."""
    return any(key != SLOTS for key in content["axes"])


def several_gpus(content: Content) -> bool:
    """Whether points differ in how many GPUs they take, so that only a capacity a GPU compares them."""
    return len({point["gpus"] for point in content["points"]}) > 1


def label(content: Content, point: Json) -> str:
    """A point as a row is named: its max_num_seqs, with its further settings where there are any."""
    return str(point["name"]) if has_axes(content) else str(point["max_num_seqs"])


def rates_text(found: Json | None) -> str:
    """A capacity with its interval, in requests/s."""
    if found is None:
        return MISSING
    low, high = ends(found)
    text = f"{plain(found['estimate_per_s'])} requests/s"
    if low is None or high is None:
        same = found.get("interval") == "none"
        why = "every replication is the same run" if same else "that takes two replications"
        return f"{text} (no interval: {why})"
    of = ", from parts of the run" if found.get("interval") == "parts" else ""
    alone, wide = f"{plain_down(low)} to {plain(high)}{of}", found.get("range_per_s")
    if not wide:
        return f"{text} (95 % interval {alone})"
    return f"{text} (95 % interval {plain_down(wide[0])} to {plain(wide[1])}; simulation alone {alone})"


def ends(found: Json | None) -> tuple[float | None, float | None]:
    """The interval of a capacity, both ends or none."""
    if found is None or found.get("interval") == "none":
        return None, None
    low, high = known(found["low_per_s"]), known(found["high_per_s"])
    return (None, None) if low is None or high is None else (low, high)


def stat_label(content: Content, stat: str) -> str:
    """The name of a percentile, marked where too few requests stand behind it."""
    return f"{stat} ({TOO_FEW})" if stat == "p99" and too_few(content) else stat


def too_few(content: Content) -> bool:
    """Whether a p99 rests on too few requests."""
    return bool((content.get("run_length") or {}).get("too_few"))


def metrics_shown(content: Content) -> list[str]:
    """TTFT and TPOT, and E2E where the SLO speaks of it: the latencies that are kept at every rate."""
    asked = {term["metric"] for term in content["slo"]}
    return ["ttft_ms", "tpot_ms", *(["e2e_ms"] if "e2e_ms" in asked else [])]


def targets(content: Content, metric: str) -> Iterator[tuple[str, float]]:
    """(percentile, target in ms) of a metric in the SLO."""
    for term in content["slo"]:
        target = known(term["target_ms"])
        if term["metric"] == metric and target is not None:
            yield term["stat"], target


def extrapolated(content: Content) -> tuple[float, float] | None:
    """(rate, share of GPU time that the profile extrapolates) of the accepted rate with most of it, else of any."""
    rows: Sequence[Row] = content.get("curve") or ()
    accepted = [row for row in rows if row["verdict"] == "accepted"] or rows
    shares = [(mean_of(row, "gpu.extrapolated.share"), row["rate_per_s"]) for row in accepted]
    found = [(share, rate) for share, rate in shares if share is not None]
    if not found:
        return None
    share, rate = max(found)
    return rate, share


def preemptions_per_1000(row: Row) -> tuple[float | None, float | None]:
    """(mean, half the width of the interval) of preemptions per 1,000 finished requests."""
    finished = mean_of(row, "num_requests.finished")
    count, half = mean_of(row, "num_preemptions"), ci_of(row, "num_preemptions")
    if not finished or count is None:
        return None, None
    return 1000 * count / finished, None if half is None else 1000 * half / finished
