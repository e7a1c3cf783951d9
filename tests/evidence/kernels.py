"""Kernels: errors of the shipped profiles on measurements held out of their fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evidence.line import Line
from simkit.latency.profile import Profile, describe, list_profiles
from simkit.report.sections.profile import LISTED

SECTION = "Kernels"
NEEDS: tuple[str, ...] = ()
WHERE = {"held_out_inside": "between measured sizes", "held_out_outside": "at the edge of measured sizes"}


def lines(shared: Path | None) -> list[Line]:
    """By profile: all ops together, each op and region, launches of unlike sequences, rows not simply used."""
    found: list[Line] = []
    for profile in list_profiles():
        source = f"{profile.provenance['measured_by']} ({profile.provenance['software']})"
        ops = describe(profile)["ops"]
        found.append(_whole(profile, source, ops))
        found += [line for op in ops for line in _op(profile.name, source, op)]
        found += _launches(profile, source)
        found += [line for op in ops for line in _left_out(profile.name, source, op)]
    return found


def curves(shared: Path | None) -> dict[str, Any]:
    """Held-out error and bias by profile and op, for the figure."""
    found: dict[str, Any] = {}
    for profile in list_profiles():
        ops = {
            f"{o['op']} {o['dtype']}": dict(_errors(o["report"], "held_out_inside")) for o in describe(profile)["ops"]
        }
        found[profile.name] = {name: error for name, error in ops.items() if error.get("num")}
    return {"kernels": found}


def gaps(shared: Path | None) -> list[str]:
    """What no profile, or not every profile, has measured."""
    profiles = list_profiles()
    lacking = {
        "a chunk beside decodes in one launch": [p.name for p in profiles if not p.mixed.measured],
        "decodes of unequal length": [p.name for p in profiles if not (p.launches.get("skew") or {}).get("measured")],
        "the host's work of a step": [p.name for p in profiles if p.host is None and not p.engine_hosts],
        "elementwise kernels and the sampler": [p.name for p in profiles if p.op("sampler", "bfloat16") is None],
        "8-bit matrix products": [p.name for p in profiles if p.op("gemm", "fp8") is None],
        "all-reduce": [p.name for p in profiles if p.op("all_reduce", "bfloat16") is None],
    }
    return [
        f"Not measured on {len(names)} of {len(profiles)} profiles ({', '.join(names)}): {what}."
        for what, names in lacking.items()
        if names
    ]


def _fit(profile: str, op: str) -> str:
    return f"the profile {profile}: {op}, on the rest of its rows"


def _errors(report: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (report.get("errors") or {}).get(key) or {}
    return found


def _whole(profile: Profile, source: str, ops: list[dict[str, Any]]) -> Line:
    """Mean over the held-out rows of all ops, inside and outside: each row counts once."""
    parts = [_errors(op["report"], key) for op in ops for key in WHERE]
    parts = [part for part in parts if part.get("num")]
    total = sum(part["num"] for part in parts)
    bias = sum(part["num"] * part["bias_pct"] for part in parts) / total
    return Line(
        section=SECTION,
        evidence=f"{profile.name}: all ops",
        source=source,
        n=total,
        metric="kernel time, held out, MAPE",
        error_pct=sum(part["num"] * part["mape_pct"] for part in parts) / total,
        fitted=_fit(profile.name, "all ops"),
        text=f"bias {bias:+.2f} %",
        note=f"{profile.provenance['table_rows']:,} rows in its table",
    )


def _op(profile: str, source: str, op: dict[str, Any]) -> Iterator[Line]:
    name = f"{op['op']} {op['dtype']}"
    for key, where in WHERE.items():
        error = _errors(op["report"], key)
        if error.get("num"):
            yield Line(
                section=SECTION,
                evidence=f"{profile}: {name}, {where}",
                source=source,
                n=error["num"],
                metric="kernel time, held out, MAPE",
                error_pct=error["mape_pct"],
                judged=False,
                fitted=_fit(profile, name),
                text=_spread(error),
            )


def _launches(profile: Profile, source: str) -> Iterator[Line]:
    """Chunks beside decodes, and decodes of unequal length, where these were measured; else that they were not."""
    mixed, skew = profile.launches.get("mixed") or {}, profile.launches.get("skew") or {}
    if not mixed.get("measured"):
        yield _unmeasured(profile.name, source, "a chunk beside decodes", f"rule: {mixed.get('rule', 'sum')}")
    for name, error in (mixed.get("held_out") or {}).items():
        yield _launch(profile.name, source, f"a chunk beside {name}", error, f"rule: {mixed['rule']}")
    if not skew.get("measured"):
        yield _unmeasured(profile.name, source, "decodes of unequal length", "rule of another GPU" if skew else "none")
        return
    yield _launch(profile.name, source, "decodes of unequal length", skew["held_out"], "")
    at_mean = skew["held_out_at_the_mean"]
    yield _launch(
        profile.name, source, "decodes of unequal length, priced at their mean length", at_mean, "the effect off"
    )


def _launch(profile: str, source: str, name: str, error: Mapping[str, Any], note: str) -> Line:
    return Line(
        section=SECTION,
        evidence=f"{profile}: {name}",
        source=source,
        n=error["num"],
        metric="launch time, held out, MAPE",
        error_pct=error["mape_pct"],
        judged=False,
        fitted=_fit(profile, "launches of unlike sequences"),
        text=_spread(error),
        note=note,
    )


def _spread(error: Mapping[str, Any]) -> str:
    return f"median {error['median_pct']:.2f} %, p95 {error['p95_pct']:.1f} %, bias {error['bias_pct']:+.2f} %"


def _unmeasured(profile: str, source: str, name: str, note: str) -> Line:
    return Line(
        SECTION, f"{profile}: {name}", source, 0, "launch time", None, judged=False, text="not measured", note=note
    )


def _left_out(profile: str, source: str, op: dict[str, Any]) -> Iterator[Line]:
    report, name = op["report"], f"{op['op']} {op['dtype']}"
    for key, why in LISTED:
        count = (report.get(key) or {}).get("count", 0)
        if count:
            yield _rows(profile, source, name, count, report["rows"], why)
    tested = sum(_errors(report, region).get("num", 0) for region in WHERE)
    clamped = (report.get("errors") or {}).get("clamped", 0)
    if clamped:
        yield _rows(profile, source, name, clamped, tested, "held-out prices raised to what the hardware allows")


def _rows(profile: str, source: str, op: str, count: int, total: int, why: str) -> Line:
    text = f"{count:,} of {total:,}: {why}"
    return Line(SECTION, f"{profile}: {op}, rows", source, count, "rows", None, judged=False, text=text)
