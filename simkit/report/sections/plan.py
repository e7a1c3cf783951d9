"""The report of a plan, from the content of plan.json: its sections in order, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simkit.metrics.catalogue import LATENCIES
from simkit.metrics.glossary import LIMITS
from simkit.plain import Json
from simkit.report.document import Facts, Provenance, Report, Section, Table, column, present
from simkit.report.figures import later, picture
from simkit.report.read.plan import Content, rates_text, word
from simkit.report.sections import doctor, plan_choice, plan_grid, plan_words
from simkit.report.sections.doctor import settings_text
from simkit.report.words import count, plain, scenario_yaml


def report(content: Content) -> Report:
    """All that the content has something for."""
    around = [] if content.get("recommended") is None else _around(content)
    decisions = [] if content.get("recommended") is None else _decisions(content)
    sections = (
        _capacity(content), *around, *_limits(content), *decisions, *_doctor(content), *_failed(content),
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
        (plan_grid.points(content),),
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
    chance = plan_grid.chance(content)
    steps = [] if chance is None else zip(chance.names, chance.columns[0].cells, strict=True)
    # A curve as one sentence: it falls at every rate that is named.
    falls = f"Above {', '.join(f'{rate}/s: {share}' for rate, share in steps)}."
    brief = says if chance is None else (*says, falls)
    figures = later("capacity.chance", content)
    sections = [Section("chance", "Chance to pass", says, present(chance), figures=figures, brief=brief)]
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
    sheet = plan_grid.limits(content)
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


def _doctor(content: Content) -> list[Section]:
    """What the doctor found, where the plan brings it."""
    found = content.get("doctor")
    if not found:
        return []
    return [
        Section("doctor", "What the doctor says", (_examined(found),), _evidence(found["findings"]), _advised(found))
    ]


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


# --- what the doctor says of the recommended point --------------------------------------------------------------------
_NAMES = {"num_preemptions": "preemptions", "num_requests.finished": "finished requests"}


def _examined(found: Json) -> str:
    """What was examined, and how much was found."""
    load = "" if found.get("rate_per_s") is None else f" at {plain(float(found['rate_per_s']))} requests/s"
    what = f"One run of the recommended point{load}, the rate that it is sure to carry, by rules of thumb"
    if not found["findings"]:
        return f"{what}: nothing found."
    count = len(found["findings"])
    return f"{what}: {count} finding{'s' if count > 1 else ''}."


def _advised(found: Json) -> tuple[str, ...]:
    """A line a finding, and one a sentence of advice with the settings that were tried and what came of them."""
    lines = []
    for finding in found["findings"]:
        lines.append(f"{_title(finding)}: {finding['diagnosis']}")
        tried: dict[str, list[str]] = {}
        for entry in doctor.entries_of(finding):
            verdicts = tried.setdefault(entry["text"], [])
            if entry["settings"]:
                verdict = entry["proof"]["verdict"] if entry["proof"] else doctor.NO_PROOF
                verdicts.append(f"{settings_text(entry['settings'])} {verdict}")
        for text, verdicts in tried.items():
            outcome = f" Tried: {'; '.join(verdicts)}." if verdicts else ""
            lines.append(f"{finding['rule']}, advice: {text}{outcome}")
    return tuple(lines)


def _evidence(findings: Sequence[Json]) -> tuple[Table, ...]:
    """The evidence of every finding, and what its metrics were before and after."""
    tables = []
    for finding in findings:
        title = _title(finding)
        rows = doctor.evidence_rows(finding)
        columns = (
            column("value", [row[1] for row in rows], words=True),
            column("looked for", [row[2] for row in rows], words=True),
        )
        tables.append(Table(title, title, tuple(row[0] for row in rows), (columns,), folded=True))
        compared = doctor.before_and_after(finding, _label, "as planned", _header)
        tables += [] if compared is None else [compared]
    return tuple(tables)


def _title(finding: Json) -> str:
    return f"{finding['rule']} ({finding['severity']})"


def _header(settings: Json) -> str:
    """Settings without their sections, over several lines of a narrow column."""
    text = settings_text({key.rpartition(".")[2]: value for key, value in settings.items()})
    return text.replace(", ", ",\n").replace("=", "\n")


def _label(key: str) -> str:
    metric, _, stat = key.partition(".")
    return f"{LATENCIES[metric]} {stat}" if metric in LATENCIES else _NAMES.get(key, (stat or metric).replace("_", " "))
