"""The terminal's tables of calibrated profiles (`simkit profiles`, `calibrate`). Reads plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from simkit.report.document import Column
from simkit.report.render.terminal import fit
from simkit.report.sections.hosts import hosts_lines
from simkit.report.words import MISSING

if TYPE_CHECKING:
    from rich.console import RenderableType

Described = Mapping[str, Any]
"""A profile as `simkit.latency.profile.describe` gives it."""

MAIN_OPS = ("gemm", "attention_decode", "attention_prefill")

LISTED = (
    ("refused", "faster than the hardware allows, not used"),
    ("outliers", "far from their neighbours, kept as measured"),
    ("far_apart", "equal sizes measured far apart, median used"),
)


def profiles_tables(profiles: Sequence[Described], width: int = 100) -> list[RenderableType]:
    """For each profile where it comes from, how wrong it is, and where it is valid."""
    parts: list[RenderableType] = []
    for profile in profiles:
        parts += [*profile_tables(profile, width), *(Text(line) for line in _valid(profile)), Text("")]
    parts.append(
        Text(
            "Errors in percent on 20 % of the shapes, not seen by the fit. Inside: measured neighbours on both sides"
            " along every axis. Extrapolated: trained up to half of the largest size of an axis, tested above."
        )
    )
    return parts


def profile_tables(profile: Described, width: int = 100) -> list[RenderableType]:
    """A row an op: rows used, held-out errors, errors beyond."""
    ops = profile["ops"]
    names = tuple(f"{row['op']} {row['dtype']}" for row in ops)
    reports = [row["report"] for row in ops]
    errors = [report.get("errors") or {} for report in reports]
    inside = [error.get("held_out_inside") or {} for error in errors]
    outside = [error.get("held_out_outside") or {} for error in errors]
    groups = (
        _column("rows", (_count(report.get("rows")) for report in reports)),
        _column("refused", (_count((report.get("refused") or {}).get("count")) for report in reports)),
        _column("merged", (_count(report.get("merged")) for report in reports)),
        _column("spikes", (_count((report.get("outliers") or {}).get("count")) for report in reports)),
        _column("inside\nMAPE", (_percent(error.get("mape_pct")) for error in inside)),
        _column("\nmedian", (_percent(error.get("median_pct")) for error in inside)),
        _column("\np95", (_percent(error.get("p95_pct")) for error in inside)),
        _column("outside\nMAPE", (_percent(error.get("mape_pct")) for error in outside)),
        _column("\np95", (_percent(error.get("p95_pct")) for error in outside)),
    )
    title = Text(f"{profile['name']}  ", style="bold")
    title.append(_origin(profile), style="not bold")
    lines = [*_extrapolated(ops), *_launches(profile)]
    return [title, *fit("op", names, groups, width), *(Text(line) for line in lines)]


def listing(profile: Described) -> list[str]:
    """Lines about rows that were not simply used."""
    lines = []
    for row in profile["ops"]:
        for key, why in LISTED:
            found = row["report"].get(key) or {"count": 0, "first": []}
            if found["count"]:
                lines.append(f"{found['count']} {row['op']} {row['dtype']} rows {why}:")
                lines += [f"  {text}" for text in found["first"]]
                left = found["count"] - len(found["first"])
                lines += [f"  and {left} more"] if left else []
    return lines


def _origin(profile: Described) -> str:
    origin = profile["provenance"]
    parts = [str(origin[key]) for key in ("measured_by", "software", "licence") if origin.get(key)]
    parts.append(f"{origin.get('table_rows', 0):,} rows")
    return f"measured on {profile['gpu']}: " + ", ".join(parts)


def _launches(profile: Described) -> list[str]:
    mixed, skew = profile["launches"].get("mixed") or {}, profile["launches"].get("skew")
    if mixed.get("measured"):
        found = (mixed.get("held_out") or {}).items()
        errors = "; ".join(f"{name} {e['mape_pct']:.1f} % MAPE, bias {e['bias_pct']:+.1f} %" for name, e in found)
        how = "priced as the sum of its parts" if mixed["rule"] == "sum" else "fitted"
        lines = [f"a chunk beside decodes: {mixed['rows']:,} launches, {how}, held out: {errors}"]
    else:
        how = "as the sum of its parts" if mixed.get("rule") == "sum" else "by constants of another GPU"
        few = f"only {mixed['rows']} launches measured" if mixed.get("rows") else "not measured"
        lines = [f"a chunk beside decodes: {few}, priced {how}"]
    if skew and skew.get("measured"):
        error, at_mean = skew["held_out"]["mape_pct"], skew["held_out_at_the_mean"]["mape_pct"]
        lines.append(
            f"decodes of unequal length: {skew['rows']:,} launches fitted, held out {error:.1f} % MAPE (at the mean "
            f"length: {at_mean:.1f} %)"
        )
    host = profile.get("host")
    if host:
        lines.append(f"host: {host['fixed_us']:,.0f} us a step, {host['per_seq_us']:.2f} us a running sequence")
    else:
        lines.append("host: not measured, the assumed 500 us a step")
    return [*lines, *hosts_lines(profile["engine_hosts"])]


def _valid(profile: Described) -> list[str]:
    lines = ["valid for"]
    for row in profile["ops"]:
        ranges = ", ".join(f"{axis} {low:,g} to {high:,g}" for axis, (low, high) in row["valid"].items())
        lines.append(f"  {row['op']} {row['dtype']}: {ranges}")
    return lines


def _extrapolated(ops: Sequence[Mapping[str, Any]]) -> list[str]:
    """The split of each axis, and their mean over the main ops."""
    parts, main = [], []
    for row in ops:
        found = (row["report"].get("errors") or {}).get("beyond_half_of") or {}
        errors = {axis: error["mape_pct"] for axis, error in found.items() if error["mape_pct"] is not None}
        if errors:
            parts.append(f"{row['op']} {row['dtype']} " + ", ".join(f"{axis} {e:.1f}" for axis, e in errors.items()))
        if row["op"] in MAIN_OPS and row["dtype"] != "fp8":
            main += list(errors.values())
    if not main:
        return []
    return [f"extrapolated, MAPE: {'; '.join(parts)}; mean of the main ops' splits {sum(main) / len(main):.1f}"]


def _column(header: str, cells: Iterable[str]) -> tuple[Column, ...]:
    return (Column(header, tuple(cells)),)


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"
