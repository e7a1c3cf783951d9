"""Where simkit is wrong: found in the content of validation.json, never written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from evidence import AT_ZERO, MISSED, SHOWN, Curves, Line, off_pct

WORST = 5
"""How many groups are named."""

WITHOUT_PARTS = ("Ablation", "Step times", "Host terms fitted to runs", "All public rows")
"""Sections whose predictions leave out on purpose what simkit has, or whose rows stand in another section already."""

AS_FAR_OFF_PCT = 3.0
"""From which mean error on a bias is named."""

MIN_ROWS = 3
"""Rows from which a mean error with its sign is called a bias."""

MIN_PUBLIC_ROWS = 10
"""Rows from which a group of public rows is named."""

PUBLIC_TITLE = (
    f"Of all public rows, the groups furthest off (those of {MIN_PUBLIC_ROWS} rows or more, by the mean size of the "
    "logarithm of predicted over measured, which is the same for a time and a rate)"
)


def missed(lines: Sequence[Line]) -> list[str]:
    """Every bar that was missed, the furthest beyond it first."""
    found = [line for line in lines if line.verdict == MISSED]
    found.sort(key=lambda line: -_beyond(line))
    return [_missed(line) for line in found]


def _beyond(line: Line) -> float:
    """By how many percent the bar is missed; without end where there is no number at all."""
    return float("inf") if line.error_pct is None else abs(line.error_pct) - (line.bar_pct or 0.0)


def _missed(line: Line) -> str:
    error = "no number" if line.error_pct is None else f"{line.error_pct:.1f} %"
    text = f"{line.evidence}: {line.metric} {error}, bar {line.bar_pct:g} % (n = {line.n:,})"
    return f"{text}; {line.text}" if line.text else text


def furthest(lines: Sequence[Line]) -> list[str]:
    """What is shown as predicted, not judged, and most off."""
    found = [
        line
        for line in lines
        if line.verdict == SHOWN and line.error_pct is not None and line.section not in WITHOUT_PARTS
        and line.rests_on != AT_ZERO
    ]  # fmt: skip
    found.sort(key=lambda line: -abs(line.error_pct or 0.0))
    return [f"{line.evidence}: {line.metric} {line.error_pct:.1f} % (n = {line.n:,})" for line in found[:WORST]]


def worst_groups(curves: Curves) -> list[str]:
    """The groups of rows (one set, one concurrency) that are furthest off, one of each set."""
    found = sorted(_groups(curves), key=lambda group: -abs(group[0]))
    return [text for _, text in found[:WORST]]


def _groups(curves: Curves) -> Iterator[tuple[float, str]]:
    """The worst group of each set."""
    for name, found in (curves.get("sets") or {}).items():
        groups: dict[int, list[float]] = {}
        for point in found["points"]:
            groups.setdefault(point["by"], []).append(off_pct(point["predicted"], point["measured"]))
        if groups:
            value, errors = max(groups.items(), key=lambda group: abs(fmean(group[1])))
            rows = f"{len(errors)} row" + ("s" if len(errors) > 1 else "")
            yield fmean(errors), f"{name}, {found['by']} {value}: {found['unit']} {fmean(errors):+.1f} % ({rows})"


def worst_public(curves: Curves) -> list[str]:
    """The groups of public rows that are furthest off: too fast and too slow count alike, times and rates too."""
    found = [group for group in curves.get("public") or () if group["n"] >= MIN_PUBLIC_ROWS]
    found.sort(key=lambda group: -group["times"])
    return [_public(group) for group in found[:WORST]]


def _public(group: Curves) -> str:
    slower = group["slower"]
    way = f"{slower:.2f} too slow" if slower >= 1 else f"{1 / slower:.2f} too fast"
    off = f"{group['metric']} off by a factor of {group['times']:.2f}, in the mean {way}"
    return f"{group['name']}: {off} (n = {group['n']:,})"


def biases(curves: Curves) -> list[str]:
    """Mean errors with their sign, of more than a few rows and more than a few percent, the largest first."""
    found = [(bias, text) for bias, n, text in _biases(curves) if abs(bias) >= AS_FAR_OFF_PCT and n >= MIN_ROWS]
    return [text for _, text in sorted(found, key=lambda each: -abs(each[0]))]


def _biases(curves: Curves) -> Iterator[tuple[float, int, str]]:
    for name, found in (curves.get("sets") or {}).items():
        errors = [off_pct(point["predicted"], point["measured"]) for point in found["points"]]
        yield _bias(errors, f"{name}: {found['unit']}")
    pairs = {"KV tokens": "kv_tokens", "step time by kernels alone": "steps"}
    for what, key in pairs.items():
        for name, points in (curves.get(key) or {}).items():
            if points:
                yield _bias([off_pct(predicted, measured) for measured, predicted in points], f"{name}: {what}")
    for profile, ops in (curves.get("kernels") or {}).items():
        for op, error in ops.items():
            yield error["bias_pct"], error["num"], f"{profile}: {op} {error['bias_pct']:+.1f} % (n = {error['num']:,})"


def _bias(errors: list[float], what: str) -> tuple[float, int, str]:
    bias = fmean(errors)
    return bias, len(errors), f"{what} {bias:+.1f} % (n = {len(errors):,})"
