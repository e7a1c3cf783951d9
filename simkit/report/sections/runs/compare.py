"""The terminal's tables of several runs: a row an arm or a point of a sweep, and paired differences of arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simkit.metrics.catalogue import ALL, COMPARE, SHARE, SWEEP, Metric, Place, find, shown, value
from simkit.plain import Json
from simkit.report.document import Column
from simkit.report.read.summary import are_several
from simkit.report.render.terminal import fit
from simkit.report.sections.runs.run import Cells
from simkit.report.words import MISSING, difference, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

Runs = Mapping[str, tuple[Json, Json]]
"""(summary, manifest) by the name of a run."""


def compare_tables(arms: Runs, paired: Json, width: int = 100) -> list[RenderableType]:
    """One row an arm, then the paired differences; split to fit `width` columns."""
    note = "latencies in ms; KV reserved, internal, external as shares of the allocated memory"
    return [*summary_tables("arm", arms, COMPARE, note, width), *_paired_tables(paired, width)]


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
