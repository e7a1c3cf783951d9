"""What a plan says of its recommended point: rates, loads, fleets, money, neighbouring settings, how long it holds."""

from __future__ import annotations

from collections.abc import Sequence

from simkit.metrics.catalogue import LATENCIES
from simkit.plain import Json
from simkit.report.document import Badge, Column, Table, column
from simkit.report.read.plan import (
    STATS,
    Content,
    Row,
    ci_of,
    mean_of,
    means_text,
    metrics_shown,
    preemptions_per_1000,
    rates_text,
    stat_label,
    word,
)
from simkit.report.words import MISSING, Show, count, formed, known, percent, plain, plain_down

SHARES = {0.5: "half", 1.0: "as asked", 2.0: "double"}


def _turned(
    title: str, head: str, names: Sequence[str], groups: Sequence[Sequence[Column]], rows: Sequence[Row]
) -> Table:
    """A table of few rates and many numbers, with a row a number."""
    columns = [column for group in groups for column in group]
    cells = [column(name, [column.cells[index] for column in columns]) for index, name in enumerate(names)]
    notes = (means_text(rows),)
    return Table(title, head, tuple(column.name for column in columns), tuple((one,) for one in cells), notes)


def _spread(mean: float | None, half: float | None, show: Show = plain) -> str:
    text = show(mean)
    return text if half is None or text == MISSING else f"{text} ± {show(half)}"


def _cells(rows: Sequence[Row], key: str, show: Show = plain) -> list[str]:
    return [_spread(mean_of(row, key), ci_of(row, key), show) for row in rows]


def _rates(content: Content, rows: Sequence[Row]) -> list[tuple[Column, ...]]:
    """What is told of every rate."""
    latencies = [
        tuple(
            column(f"{LATENCIES[metric]} [ms]\n{stat_label(content, stat)}", _cells(rows, f"{metric}.{stat}"))
            for stat in STATS
        )
        for metric in metrics_shown(content)
    ]
    pressed = [preemptions_per_1000(row) for row in rows]
    return [
        *latencies,
        (
            column("done\n[1/s]", _cells(rows, "throughput.requests_per_s")),
            column("output\ntokens/s", _cells(rows, "throughput.output_tokens_per_s")),
            column("concur-\nrency", _cells(rows, "concurrency_mean")),
        ),
        (
            column("KV use,\nmean", _cells(rows, "kv.utilization", percent)),
            column("KV use,\npeak", [percent(known(row["waits"].get("peak_kv"))) for row in rows]),
            column("preempted\nper 1,000", [_spread(mean, half) for mean, half in pressed]),
        ),
    ]


def _meets(rows: Sequence[Row]) -> Column:
    """Whether the runs at a rate, taken together, met the SLO."""
    return column("meets\nthe SLO", ["yes" if row["meets"] else "no" for row in rows], words=True)


def curve(content: Content) -> Table | None:
    """A row a rate at which the recommended point was looked at."""
    rows: Sequence[Row] = content.get("curve") or ()
    if not rows:
        return None
    verdict = (column("verdict", [row["verdict"] or MISSING for row in rows], words=True), _meets(rows))
    return Table(
        "All rates of the recommended point",
        "rate [1/s]",
        tuple(plain(row["rate_per_s"]) for row in rows),
        (verdict, *_rates(content, rows)),
        (means_text(rows),),
        folded=True,
    )


def loads(content: Content) -> Table | None:
    """A row for half, once and twice the load."""
    rows: Sequence[Row] = content.get("loads") or ()
    if not rows:
        return None
    names = tuple(SHARES.get(row["share"], f"{row['share']:g} x") for row in rows)
    first = (
        column("rate\n[1/s]", [plain(row["rate_per_s"]) for row in rows]),
        column("verdict", [row["verdict"] or MISSING for row in rows], words=True),
        _meets(rows),
    )
    return _turned("Loads", "load", names, (first, *_rates(content, rows)), rows)


def fleet(content: Content) -> list[Table]:
    """How many GPUs the target takes, and what simulated fleets did at it; empty without a target."""
    found = content.get("fleet")
    if not found:
        return []
    facts = (
        ("target", f"{plain(found['target_per_s'])} requests/s"),
        ("replicas that carry it", count(found["replicas"])),
        ("they carry, by the interval's lower end", f"{plain(found['carries_per_s'])} requests/s"),
        ("spare replicas", count(found["spare"])),
        ("GPUs a replica", count(found["gpus_per_replica"])),
        ("GPUs", count(found["gpus"])),
    )
    sheets = [
        Table(
            "GPUs",
            "fleet",
            tuple(name for name, _ in facts),
            ((column("value", [text for _, text in facts], words=True),),),
        )
    ]
    checks: Sequence[Row] = found["checks"]
    if checks:
        names = tuple(map(_size, checks))
        first = (_meets(checks),)
        sheets.append(
            _turned("Simulated at the target rate", "fleet", names, (first, *_rates(content, checks)), checks)
        )
    return sheets


def _size(row: Row) -> str:
    """A simulated fleet: its replicas, and how many of them are lost."""
    count_of = f"{row['replicas']:,} replica{'s' if row['replicas'] != 1 else ''}"
    return count_of + (f",\n{row['lost']:,} lost halfway" if row.get("lost") else "")


def cost(content: Content) -> Table | None:
    """Money per million tokens; None without a price."""
    rows: list[tuple[str, Json]] = []
    if content.get("cost"):
        rows.append(("recommended point at capacity", content["cost"]))
    found = content.get("fleet")
    if found and found["cost"]:
        rows.append(("fleet at the target, with spares", found["cost"]))
    if not rows:
        return None
    columns = (
        column("rate\n[1/s]", [plain(known(paid["rate_per_s"])) for _, paid in rows]),
        column("GPUs", [count(paid["gpus"]) for _, paid in rows]),
        column("a million\noutput tokens", [money(paid, "output") for _, paid in rows]),
        column("a million\ntotal tokens", [money(paid, "total") for _, paid in rows]),
    )
    return Table("Cost", "for", tuple(name for name, _ in rows), (columns,))


def money(cost: Json | None, kind: str) -> str:
    """Cost of a million output or total tokens."""
    found = None if cost is None else known(cost[f"per_million_{kind}_tokens"])
    return formed(found, ".3g")


def variation_name(item: Json) -> str:
    """A neighbouring setting, and what it stands instead of."""
    key = item["key"].rpartition(".")[2]
    return f"{key} {word(item['value'])} (not {word(item['instead_of'])})"


def differs(item: Json) -> str:
    """What the interval of a ratio says."""
    found = item["ratio"]
    if found is None or known(found["low"]) is None or known(found["high"]) is None:
        return MISSING
    if found["low"] > 1:
        return "carries more"
    return "carries less" if found["high"] < 1 else "no clear effect"


def sensitivity(content: Content) -> Table | None:
    """A row a neighbouring setting: its capacity as a ratio to the recommended one."""
    rows = content.get("sensitivity") or ()
    if not rows:
        return None
    ratios = [row["ratio"] or {} for row in rows]
    groups = (
        tuple(
            column(header, [plain(known(item.get(key))) for item in ratios])
            for header, key in (("low", "low"), ("ratio", "estimate"), ("high", "high"))
        ),
        (column("reading", [differs(row) for row in rows], words=True),),
        (
            column("capacity\n[1/s]", [plain(known((row["capacity"] or {}).get("estimate_per_s"))) for row in rows]),
            column("KV blocks", [count(row["num_gpu_blocks"]) for row in rows]),
        ),
    )
    return Table("Sensitivity", "setting", tuple(map(variation_name, rows)), groups)


# --- how long the answer holds ----------------------------------------------------------------------------------------
def holding_badges(chosen: Json) -> list[Badge]:
    """Whether the answer holds for as long as one likes, and what had to be done for that."""
    confirmed = chosen.get("confirmation")
    if chosen["sustained"] and confirmed:
        found = [Badge("sustained", confirm_texts(chosen)[-1], "good")]
        if confirmed["moved"]:
            found.append(Badge("moved", moved_text(confirmed), "warn"))
        return found
    if chosen.get("rising"):
        text = f"{FILLS[chosen['rising']]} still rose at the end of the longest runs: a steady state was not seen."
        return [Badge("not levelled off", text, "warn")]
    return [Badge("finite load", f"{finite_text(chosen['run_length'])}: not a rate that goes on for ever.", "warn")]


FILLS = {
    "in_system": "Requests in the system",
    "running": "Running sequences",
    "kv_tokens": "KV memory in use",
}
"""What fills, by its name in plan.json."""


def finite_text(length: Json) -> str:
    """What the load is, where it has an end of its own."""
    if length.get("finite"):
        if length.get("num_requests"):
            return (
                f"The load is a batch of {count(length['num_requests'])} requests, from an empty engine to an empty one"
            )
        return "The load is finite, from an empty engine to an empty one"
    return "The course of arrivals has an end of its own"


def moved_text(confirmed: Json) -> str:
    """What the first answer was, and what became of it."""
    first = confirmed["served"][0]
    return (
        f"The search alone said {rates_text(confirmed['before'])}; at {plain_down(first['rate_per_s'])} requests/s "
        f"{first['held']} of {first['runs']} long runs held, so the answer moved."
    )


def confirm_texts(point: Json) -> tuple[str, ...]:
    """What came of serving the answer again, a sentence a rate, the last of them that of the answer."""
    confirmed = point.get("confirmation")
    if not confirmed:
        return ()
    times = confirmed["times"]
    how = f"{times:g} times as long as those of the search" if times > 1 else "as long as those of the search"
    missed: list[str] = []
    held: list[str] = []
    for one in sorted(confirmed["served"], key=lambda one: -one["rate_per_s"]):
        runs = "1 run" if one["runs"] == 1 else f"{one['runs']} runs"
        who = "the same customers again" if one["runs"] == 1 else "fresh customers"
        verdict = "every objective held" if one["held"] == one["runs"] else f"{one['held']} of {one['runs']} held"
        if one["held"] < one["runs"] and one["together"]:
            verdict += ", all together would"
        (held if one["held"] == one["runs"] else missed).append(
            f"Served again at {plain_down(one['rate_per_s'])} requests/s, {runs} of {who} {how} "
            f"({count(one['measured_requests'])} measured requests): {verdict}."
        )
    # The answer is the highest rate that held: lower ones only led to it.
    return (*missed, *reversed(held))
