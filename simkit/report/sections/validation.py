"""The report of a run beside what was measured, from the content of validation.json.

Its parts of any comparison, bands and the sentence about signs, serve the report of rows as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS, WHOLE_RUN
from simkit.metrics.glossary import DEFINITIONS
from simkit.plain import Json
from simkit.report.document import (
    Badge,
    Facts,
    Provenance,
    Report,
    Section,
    Table,
    column,
    present,
    single,
)
from simkit.report.figures import later, picture
from simkit.report.read.validation import (
    HEADLINE,
    Content,
    counts,
    effect_name,
    error_of,
    has_enough,
    key_name,
    latencies,
    left_out,
    missed,
    things,
    whole_run,
)
from simkit.report.words import Show, count, error, known, plain, scenario_yaml

OUTSIDE = " *"
SIGN = (
    "An error is predicted / measured - 1. Positive: the prediction is higher, so too slow for a time and too fast for "
    "a throughput."
)

WORDS: tuple[tuple[str, str], ...] = (
    *(pair for pair in DEFINITIONS if pair[0] in ("TTFT", "TPOT", "ITL", "E2E")),
    ("Makespan", "Time from the first arrival to the last token, of the requests that are compared."),
    ("Requests in the system", "Sum of the E2E divided by the makespan: requests that wait for a slot are in it."),
    ("Measured", "What the log says of the real run. A time that it lacks is left out, never filled in."),
    ("Predicted", "The same requests at the same times on the simulated engine, which knows only their lengths."),
    ("Error", SIGN),
    ("Band", "The largest error that was asked for, in either direction."),
    (
        "Effect",
        "A part of the step time, or of the path of a request, that can be switched off by name (latency.without).",
    ),
)  # fmt: skip


def report(content: Content, fitted: Collection[str]) -> Report:
    """Everything there is something to say of, in order; `fitted` are the effects with numbers fitted to a run."""
    sections = (
        _errors(content, fitted),
        picture("validation.distributions", content, "Distributions", _DISTRIBUTIONS),
        picture("validation.requests", content, "Request by request", _REQUESTS),
        _series(content),
        _ablation(content),
        _effects(content),
        _left_out(content),
    )
    return Report(
        title=f"{content['name']}: predicted against measured",
        answer=_answer(content),
        badges=tuple(_badges(content)),
        sections=tuple(section for section in sections if section is not None),
        definitions=WORDS,
        provenance=_provenance(content),
        version=content.get("version"),
    )


def _answer(content: Content) -> str:
    """What came out, in one sentence."""
    compared, _ = counts(content)
    said = [
        f"{key_name(key)} {error(error_of(content, key))}" for key in HEADLINE if error_of(content, key) is not None
    ]
    found = ", ".join(said) or "no error is known"
    return f"Error of the prediction over {things(compared, 'request')}: {found}."


def _badges(content: Content) -> list[Badge]:
    """Whether the bands hold; none where none was set."""
    found, lost = band_badges(content.get("bands") or (), key_name), left_out(content)
    if not found or not lost:
        return found
    if has_enough(content):
        return [replace(badge, text=f"{badge.text} {lost}") for badge in found]
    return [Badge("outside a band" if missed(content) else "too many left out", f"{found[0].text} {lost}", "bad")]


def band_badges(bands: Sequence[Json], name: Callable[[str], str], show: Show = error) -> list[Badge]:
    """One label for all bands; `name` says what a key is called and `show` how its error reads."""
    if not bands:
        return []
    out = [band for band in bands if not band["ok"]]
    if not out:
        which = ", ".join(f"{name(band['key'])} within {band['limit_pct']:g} %" for band in bands)
        return [Badge("bands met", f"{which}.", "good")]
    which = ", ".join(f"{name(b['key'])} {show(b['error_pct'])} (band {b['limit_pct']:g} %)" for b in out)
    return [Badge("outside a band", f"{len(out)} of {len(bands)}: {which}.", "bad")]


_DISTRIBUTIONS = (
    "The height of a line at x is the share of requests that took x or less. Where the lines lie on each other, the "
    "prediction has the right requests slow as often as they were."
)
_REQUESTS = (
    "A dot is a request: to the right what was measured, upwards what was predicted. On the line both are the same; "
    "the band around it is 10 % to either side. A right distribution with dots far from the line has the wrong "
    "requests slow."
)


# --- numbers ----------------------------------------------------------------------------------------------------------
def _errors(content: Content, fitted: Collection[str]) -> Section:
    compared, by_metric = counts(content)
    over = ", ".join(f"{MEASURED_LATENCIES[metric]} {count(number)}" for metric, number in by_metric.items())
    text = (
        f"The requests of {content['log']} arrive at the simulated engine at the times at which they arrived at the "
        f"real one, with the prompts and answers that they had. {things(compared, 'request')} "
        f"{'is' if compared == 1 else 'are'} compared"
        + (f"; those that have the time in question: {over}." if over else "."),
        f"Step times: {content['latency_source']}. {_fitted(content, fitted)} {SIGN}",
    )
    bands = band_table(content.get("bands") or (), key_name)
    return Section("errors", "Measured, predicted, error", text, present(_latencies(content), _whole(content), bands))


def _fitted(content: Content, fitted: Collection[str]) -> str:
    """Which effects hold numbers that were fitted to a run, and what their sources say."""
    effects = content.get("latency_effects") or {}
    found = [f"{effect_name(name)} ({source})" for name, source in effects.items() if name in fitted]
    return (
        f"Fitted to a run: {'; '.join(found)}." if found else "No source of an effect says that it was fitted to a run."
    )


def _latencies(content: Content) -> Table | None:
    metrics = latencies(content)
    if not metrics:
        return None
    stats = [stat for stat in STATS if any(stat in values for values in metrics.values())]
    names = [
        f"{MEASURED_LATENCIES[metric]} {what}"
        for metric in metrics
        for what in ("measured [ms]", "predicted [ms]", "error")
    ]
    outside = missed(content)
    columns = (column(stat, _cells(metrics, stat, outside)) for stat in stats)
    notes = _outside_note(any(key.partition(".")[0] in metrics for key in outside))
    return Table("Latencies", "latency", tuple(names), single(*columns), notes)


def _cells(metrics: Mapping[str, Json], stat: str, outside: set[str]) -> list[str]:
    cells = []
    for metric, stats in metrics.items():
        values = stats.get(stat) or {}
        cells += [plain(known(values.get("measured"))), plain(known(values.get("predicted")))]
        cells.append(_marked(values.get("error_pct"), f"{metric}.{stat}", outside))
    return cells


def _marked(value: Any, key: str, outside: set[str]) -> str:
    return error(value) + (OUTSIDE if key in outside else "")


def _outside_note(needed: bool) -> tuple[str, ...]:
    return ("* outside its band.",) if needed else ()


def _whole(content: Content) -> Table | None:
    rows = list(whole_run(content))
    if not rows:
        return None
    outside = missed(content)
    group = (
        column("measured", [count(known(values.get("measured"))) for _, values in rows]),
        column("predicted", [count(known(values.get("predicted"))) for _, values in rows]),
        column("error", [_marked(values.get("error_pct"), key, outside) for key, values in rows]),
    )
    names = tuple(WHOLE_RUN.get(key, key) for key, _ in rows)
    return Table("The run as a whole", "run", names, (group,), _outside_note(any(key in outside for key, _ in rows)))


def band_table(bands: Sequence[Json], name: Callable[[str], str], show: Show = error) -> Table | None:
    """The bands, a row each; `name` says what a key is called and `show` how its error reads."""
    if not bands:
        return None
    group = (
        column("band", [f"{band['limit_pct']:g} %" for band in bands]),
        column("error", [show(band["error_pct"]) for band in bands]),
        column("verdict", ["met" if band["ok"] else "MISSED" for band in bands], words=True),
    )
    return Table("Bands", "band of", tuple(name(band["key"]) for band in bands), (group,))


# --- over time, effects, what is missing ------------------------------------------------------------------------------
def _series(content: Content) -> Section | None:
    if not content.get("series"):
        return None
    text = "The real engine at the moments at which it was sampled, and the simulated one at the same moments."
    return picture("validation.series", content, "Over time", text)


def _ablation(content: Content) -> Section | None:
    ablation = content.get("ablation")
    if not ablation:
        return None
    keys = [key for key in HEADLINE if error_of(content, key) is not None]
    groups = []
    for key in keys:
        base = error_of(content, key)
        cells = [error(base), *(_changed(values.get(key), base) for values in ablation.values())]
        groups.append((column(key_name(key), cells),))
    names = ("none: all on", *(effect_name(effect) for effect in ablation))
    text = (
        "The error with one effect switched off, beside that with all of them on; in brackets by how many percentage "
        "points it moves. An effect that moves nothing does not occur in this run, or costs nothing in it."
    )
    table = Table("Ablation", "switched off", names, tuple(groups))
    figures = later("validation.ablation", content)
    return Section("ablation", "What each effect contributes", (text,), (table,), figures=figures)


def _changed(value: Any, base: float | None) -> str:
    found = known(value)
    if found is None or base is None:
        return error(value)
    moved = f"{found - base:+.1f}"
    return f"{error(found)} ({'0' if float(moved) == 0 else moved})"


def _effects(content: Content) -> Section | None:
    effects = content.get("latency_effects") or {}
    if not effects:
        return None
    group = (
        column("name", list(effects)),
        column("source", [str(source) for source in effects.values()], words=True),
    )
    table = Table("Effects", "effect", tuple(effect_name(effect) for effect in effects), (group,))
    by_source: dict[str, list[str]] = {}
    for effect, source in effects.items():
        by_source.setdefault(str(source), []).append(effect_name(effect))
    # Sources are sentences, too long for a column of a terminal.
    brief = tuple(f"- {source}: {', '.join(names)}" for source, names in by_source.items())
    return Section("effects", "Where the effects come from", (), (table,), brief=brief)


def _left_out(content: Content) -> Section:
    """What is not compared and why, and the notes of the run."""
    compared, by_metric = counts(content)
    items = [
        f"{count(compared - number)} of {things(compared, 'request')} "
        f"{'has' if compared - number == 1 else 'have'} no {MEASURED_LATENCIES[metric]} in both."
        for metric, number in by_metric.items()
        if number < compared
    ]
    absent = [name for metric, name in MEASURED_LATENCIES.items() if metric not in content["errors"]]
    if absent:
        items.append(f"{', '.join(absent)}: not in the log, or undefined for this run.")
    if not content.get("series"):
        items.append("Running, waiting and KV use over time: no samples of the real engine were given (--series).")
    if content.get("ablation") is None:
        items.append("What each effect contributes: the run was not repeated with effects switched off (--ablate).")
    elif not content["ablation"]:
        items.append("What each effect contributes: none that can be switched off acts in this run.")
    items += [_sentence(str(note)) for note in content.get("notes") or ()]
    return Section("left-out", "What is left out, and notes", (), (), tuple(items))


def _sentence(note: str) -> str:
    return note if note.endswith((".", "!", "?")) else f"{note}."


def _provenance(content: Content) -> Provenance:
    """Names, sources and counts."""
    compared, _ = counts(content)
    scenario = content.get("scenario")
    facts = [
        ("name", content["name"]),
        ("log", content["log"]),
        *([("scenario", scenario)] if isinstance(scenario, str) else []),
        ("step times", content["latency_source"]),
        ("requests compared", count(compared)),
    ]
    return Provenance(
        "Every number of this page comes from validation.json beside it: from this log and this scenario.",
        (Facts(tuple((name, str(value)) for name, value in facts)),),
        (("The engine that was simulated", scenario_yaml(scenario)),) if isinstance(scenario, Mapping) else (),
    )
