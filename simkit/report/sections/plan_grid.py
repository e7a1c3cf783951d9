"""The tables of a plan as plain text cells, one source for the page, the Markdown and the terminal.

Owns columns and how numbers read in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simkit.plain import Json
from simkit.report.document import Column, Table, column
from simkit.report.read.plan import Content, ends, has_axes, label, several_gpus
from simkit.report.words import MISSING, Show, count, known, percent, plain, plain_down

EVIDENCE: dict[str, tuple[str, Show]] = {
    "waiting": ("requests\nwait", percent),
    "slots": ("no slot\nfree", percent),
    "kv": ("no memory\nfree", percent),
    "budget": ("budget\nspent", percent),
    "turn": ("not their\nturn", percent),
    "full": ("full\nsteps", percent),
    "tail_queued": ("queue share\nof tail TTFT", percent),
    "peak_running": ("running,\npeak", plain),
    "peak_kv": ("KV use,\npeak", percent),
    "concurrency": ("concur-\nrency", plain),
    "gpu_busy": ("GPU\nbusy", percent),
    "preemptions": ("preemp-\ntions", plain),
    "capacity_with_more_slots": ("gain by\nmore slots", lambda gain: f"{100 * (gain - 1):+.1f} %"),
}
"""What is seen just beyond a capacity: (header, how it reads)."""


def points(content: Content) -> Table:
    """A row a point: its capacity, what binds, what it costs."""
    rows: Sequence[Json] = content["points"]
    found = [row["capacity"] or {} for row in rows]
    intervals = [ends(row["capacity"]) for row in rows]
    marks = [_mark(content, row) for row in rows]
    groups: list[tuple[Column, ...]] = [
        (
            column("low\n[1/s]", [plain_down(low) for low, _ in intervals]),
            column("capacity\n[1/s]", [plain(known(item.get("estimate_per_s"))) for item in found]),
            column("high\n[1/s]", [plain(high) for _, high in intervals]),
        ),
    ]
    if several_gpus(content):
        each = column("a GPU\n[1/s]", [plain(known(row["per_gpu_per_s"])) for row in rows])
        groups.append((column("GPUs", [count(row["gpus"]) for row in rows]), each))
    groups += [
        (
            column("limit", [(row["limit"] or {}).get("name") or MISSING for row in rows], words=True),
            column("soft", [plain(item.get("soft")) for item in found], words=True),
        ),
        (column("cost", [money(row["cost"], "output") for row in rows]),) if _priced(content) else (),
        (column("mark", marks, words=True),) if any(marks) else (),
    ]
    names = tuple(label(content, row) for row in rows)
    return Table("Points", _head(content), names, tuple(filter(None, groups)), tuple(_point_notes(content, rows)))


def _mark(content: Content, row: Json) -> str:
    """Whether a point is the recommended one, the knee, or both."""
    keys = ("recommended", "knee")
    return " and ".join(key for key in keys if (content.get(key) or {}).get("name") == row["name"])


def _point_notes(content: Content, rows: Sequence[Json]) -> Iterator[str]:
    """Why points have no capacity, where intervals are narrower, and what the cost is of."""
    whys: dict[str, list[str]] = {}
    counts: dict[int, list[str]] = {}
    for row in rows:
        if row["capacity"] is None:
            whys.setdefault(row["no_capacity"] or "no reason given", []).append(label(content, row))
        else:
            counts.setdefault(row["capacity"]["replications"], []).append(label(content, row))
    for why, names in whys.items():
        yield f"No capacity, {why}: {', '.join(names)}."
    if len(counts) > 1:
        most = max(counts)
        narrower = ", ".join(counts.pop(most))
        yield f"Intervals are narrower with {most} replications, at {narrower}, than with {max(counts)}."
    if _priced(content):
        yield "Cost: per million output tokens at the capacity."


def _head(content: Content) -> str:
    return "point" if has_axes(content) else "max_num_seqs"


def _priced(content: Content) -> bool:
    return bool(content.get("cost")) or any(point["cost"] for point in content["points"])


def money(cost: Json | None, kind: str) -> str:
    """Cost of a million output or total tokens."""
    found = None if cost is None else known(cost[f"per_million_{kind}_tokens"])
    return MISSING if found is None else f"{found:.3g}"


def limits(content: Content) -> Table | None:
    """A row a point: what binds it and what was seen just beyond its capacity."""
    rows = [point for point in content["points"] if point["limit"] is not None]
    if not rows:
        return None
    seen = dict.fromkeys(name for row in rows for name in row["limit"]["evidence"])
    order = [*(name for name in EVIDENCE if name in seen), *(name for name in seen if name not in EVIDENCE)]
    evidence = []
    for name in order:
        header, show = EVIDENCE.get(name, (name, plain))
        values = [known(row["limit"]["evidence"].get(name)) for row in rows]
        evidence.append((column(header, [MISSING if value is None else show(value) for value in values]),))
    first = (
        column("limit", [row["limit"]["name"] for row in rows], words=True),
        column("missed first", [row["limit"]["term"] for row in rows], words=True),
    )
    return Table("Evidence", _head(content), tuple(label(content, row) for row in rows), (first, *evidence))


def chance(content: Content) -> Table | None:
    """A row a rate from which on one replication more misses the SLO."""
    rows = content.get("chance") or ()
    if not rows:
        return None
    names = tuple(f"{row['rate_per_s']:.4g}" for row in rows)
    chances = column("chance", [f"{row['chance']:.3g}" for row in rows])
    return Table("Chance to pass, step by step", "above [1/s]", names, ((chances,),), folded=True)
