"""The report of a plan, from the content of plan.json: its sections in order, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simkit.metrics.catalogue import LATENCIES
from simkit.metrics.glossary import LIMITS
from simkit.plain import Json
from simkit.report.document import Column, Facts, Provenance, Report, Section, Table, column, present
from simkit.report.figures import later, picture
from simkit.report.read.plan import Content, ends, has_axes, label, rates_text, several_gpus, word
from simkit.report.sections import doctor, plan_choice, plan_words
from simkit.report.words import MISSING, Show, count, known, percent, plain, plain_down, scenario_yaml


def report(content: Content) -> Report:
    """All that the content has something for."""
    around = [] if content.get("recommended") is None else _around(content)
    decisions = [] if content.get("recommended") is None else _decisions(content)
    sections = (
        _capacity(content), *around, *_limits(content), *decisions, *doctor.of_plan(content), *_failed(content),
        *_notes(content),
    )  # fmt: skip
    return Report(
        title=f"Plan of {content['name']}",
        answer=str(content["answer"]),
        badges=tuple(plan_words.badges(content)),
        sections=sections,
        definitions=plan_words.definitions(),
        provenance=_provenance(content),
        version=content["version"],
    )


def _capacity(content: Content) -> Section:
    text = [f"{_slo(content)} {plan_words.length_text(content)}"]
    if content.get("recommended") is not None:
        text += [plan_words.compared_text(content), plan_words.knee_text(content), plan_words.bound_text(content)]
    text += plan_words.scaling_texts(content)
    return Section(
        "capacity",
        "Capacity against max_num_seqs",
        tuple(text),
        (points(content),),
        figures=later("capacity.capacity", content),
    )


def _slo(content: Content) -> str:
    """What must hold."""
    terms = [
        f"{LATENCIES.get(term['metric'], term['metric'])} {term['stat']} ≤ {term['target_ms']:,g} ms"
        for term in content["slo"]
    ]
    return f"SLO: {' and '.join(terms)}."


def _around(content: Content) -> list[Section]:
    """The recommended point against the rate."""
    found = content["recommended"]["capacity"]
    verdict = "this is a soft limit" if found["soft"] else "not a soft limit (that takes more than 20 %)"
    says = (
        f"Capacity: {rates_text(found)}. {plan_words.soft_text(content)}: {verdict}.",
        *plan_choice.confirm_texts(content["recommended"]),
    )
    steps_down = chance(content)
    steps = [] if steps_down is None else zip(steps_down.names, steps_down.columns[0].cells, strict=True)
    # A curve as one sentence: it falls at every rate that is named.
    falls = f"Above {', '.join(f'{rate}/s: {share}' for rate, share in steps)}."
    brief = says if steps_down is None else (*says, falls)
    figures = later("capacity.chance", content)
    sections = [Section("chance", "Chance to pass", says, present(steps_down), figures=figures, brief=brief)]
    if content.get("curve"):
        curve = present(plan_choice.curve(content))
        sections += [
            picture("curves.throughput", content, "Throughput and concurrency against the rate"),
            picture("curves.latency", content, "Latency against the rate", _slo(content), tables=curve),
            picture("curves.pareto", content, "Throughput against latency"),
            picture("curves.pressure", content, "Memory and preemptions against the rate"),
        ]
    return sections


def _limits(content: Content) -> list[Section]:
    sheet = limits(content)
    if sheet is None:
        return []
    seen: dict[str, None] = {}
    for point in content["points"]:
        if point["limit"] is not None:
            name = point["limit"]["name"]
            seen[f"{name}: {LIMITS[name]}."] = None
    text = (
        "What was seen at the first rate that each replication fails, as means. Shares are of the time after warm-up; "
        "the first share is that in which a request waits, the next four say what it waits for."
    )
    brief = tuple(f"- {item}" for item in seen)
    return [Section("limits", "What binds", (text,), (sheet,), tuple(seen), brief=brief)]


def _decisions(content: Content) -> list[Section]:
    """What follows: loads, GPUs, money, neighbouring settings, the command."""
    found = []
    loads = plan_choice.loads(content)
    if loads is not None:
        found.append(Section("loads", "Half the load, and double", (plan_words.loads_text(content),), (loads,)))
    fleet = plan_choice.fleet(content)
    if fleet:
        found.append(Section("fleet", "GPUs for the target rate", plan_words.fleet_text(content), tuple(fleet)))
    cost = plan_choice.cost(content)
    if cost is None:
        text = "Cost is left out: the scenario gives no hardware.price_per_gpu_hour."
    else:
        price = content["scenario"]["hardware"].get("price_per_gpu_hour")
        text = f"At {plain(price)} a GPU hour, in the currency of that price; every GPU is paid for all the time."
    found.append(Section("cost", "Cost", (text,), present(cost)))
    sensitivity = plan_choice.sensitivity(content)
    if sensitivity is not None:
        text = (
            "Neighbours of the recommended point that the engine would start with, one setting changed in each, beside "
            "that point with as few replications as they have; the narrowest interval is that of the grid of rates."
        )
        figures = later("capacity.sensitivity", content)
        found.append(Section("sensitivity", "Sensitivity", (text,), (sensitivity,), figures=figures))
    notes = tuple(f"{note}." for note in content.get("command_notes") or ())
    command = content.get("command")
    if command or notes:
        text = "The engine as it was planned." if command else "There is no command line of the engine for this plan."
        found.append(Section("command", "Engine command", (text,), (), notes, command))
    return found


def _failed(content: Content) -> list[Section]:
    failed: Mapping[str, Json] = content["failed"]
    if not failed:
        return []
    items = tuple(f"{name}: {failure['message']}" for name, failure in failed.items())
    return [Section("failed", "Failed points", ("They have no numbers; the other points stand alone.",), (), items)]


def _notes(content: Content) -> list[Section]:
    notes = tuple(str(note) for note in content["notes"])
    return [Section("notes", "Notes", (), (), notes)] if notes else []


def _gpus(content: Content) -> str | None:
    """Its replicas and GPUs; None where one replica is all there is."""
    chosen = content.get("recommended") or {}
    replicas = chosen.get("replicas", 1)
    return f"{replicas:,} replicas x {chosen['gpus'] // replicas:,} {content['gpu']}" if replicas > 1 else None


# --- tables of points -------------------------------------------------------------------------------------------------
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
        (column("cost", [plan_choice.money(row["cost"], "output") for row in rows]),) if _priced(content) else (),
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


# --- where the numbers come from --------------------------------------------------------------------------------------
def _provenance(content: Content) -> Provenance:
    """Scenario, profile, seed, length and number of runs, version."""
    profile, length = content["profile"] or {}, content["run_length"] or {}
    chosen = (content.get("recommended") or {}).get("capacity") or {}
    sizes = content["lengths"]
    warmup = length.get("warmup")
    if isinstance(warmup, Mapping):
        warmup = ", ".join(f"{word(value)} {key}" for key, value in warmup.items() if value is not None)
    axes = [(f"axis {key}", ", ".join(map(word, values))) for key, values in content["axes"].items()]
    facts = (
        ("scenario", content["name"]),
        ("model", content["model"]),
        ("GPU", content["gpu"]),
        ("GPUs of the recommended point", _gpus(content)),
        ("step times", content["latency_source"]),
        ("profile", profile.get("name")),
        ("profile hash", profile.get("hash")),
        ("seed", str(content["seed"])),
        ("requests a run", length.get("num_requests")),
        ("duration of a run [s]", length.get("duration_s")),
        ("trace", length.get("trace")),
        ("times the trace is played", length.get("times_played")),
        ("requests arrive for [s]", length.get("span_s")),
        ("E2E p99 at the capacity [s]", length.get("e2e_p99_s")),
        ("left out at the start", warmup),
        ("measured requests a replication", length.get("measured_requests")),
        ("replications of the recommended point", chosen.get("replications")),
        ("simulations of all points", sum(point["trials"] for point in content["points"])),
        *axes,
        ("target rate [requests/s]", content["target_rate_per_s"]),
        ("scenario's own rate [requests/s]", content["base_rate_per_s"]),
        ("prompt, mean [tokens]", sizes["prompt_tokens"]),
        ("answer, mean [tokens]", sizes["output_tokens"]),
        ("prompt and answer, p95 [tokens]", sizes["p95_tokens"]),
        ("written by", content["created_by"]),
    )
    return Provenance(
        "Every number of this page comes from this scenario, profile, seed and version.",
        (Facts(tuple((name, v if isinstance(v, str) else count(v)) for name, v in facts if v is not None)),),
        (("The file that the plan was made from", scenario_yaml(content["scenario"])),),
    )
