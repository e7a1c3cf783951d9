"""Where the numbers come from: identity, model, GPU and memory facts, and the scenario written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from simkit.plain import Json
from simkit.report import words
from simkit.report.document import Facts, Note, Provenance, Table, column
from simkit.report.read.run import Run
from simkit.report.read.summary import are_several, gpus_text

IDENTITY = ("run_id", "seed", "replications", "latency_source")
FACTS = (
    ("Model", "model"),
    ("GPU", "gpu"),
    ("Memory budget", "memory"),
    ("Step times", "profile"),
    ("Effects in the latency, and their sources", "latency_effects"),
)
"""Titles of lists of facts, and where they stand in the manifest; each is shown once for every distinct content."""


def provenance(runs: Sequence[Run]) -> Provenance:
    """The provenance block of a report."""
    first = flatten(runs[0].scenario)
    columns = (column(key.replace("_", " "), (_identity(run.manifest.get(key)) for run in runs)) for key in IDENTITY)
    return Provenance(
        origin=(
            f"Scenario {_identity(runs[0].manifest.get('name'))}, written by simkit {runs[0].manifest.get('version')}. "
            "The run id is a hash of scenario, profile, seed and version: equal ids mean equal numbers."
        ),
        facts=tuple(facts for title, key in FACTS for facts in _distinct(runs, title, key)),
        scenarios=tuple((_heading(run.name, first, flatten(run.scenario)), _yaml(run)) for run in runs),
        runs=Table("Runs", "arm", tuple(run.name for run in runs), (tuple(columns),)),
        warmups=tuple(f"{run.name}: {_length(run)}{describe_warmup(run.manifest.get('warmup'))}" for run in runs),
        notes=_notes(runs),
    )


def flatten(nested: Json, prefix: str = "") -> dict[str, object]:
    """Nested mappings as dotted keys, in order."""
    flat: dict[str, object] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _length(run: Run) -> str:
    """What was made of the length that was asked for."""
    said = run.manifest.get("run_length")
    return f"{said['text']}; " if isinstance(said, Mapping) and said.get("text") else ""


def describe_warmup(warmup: Any) -> str:
    """What was left out at the start and what the rule would propose."""
    if not isinstance(warmup, Mapping):
        return "not recorded"
    method, dropped = warmup.get("method") or "none", warmup.get("dropped_requests")
    why = f", {warmup['why']}" if warmup.get("why") else ""
    parts = [f"rule {_text(method)}, {words.plain(dropped)} requests left out{why}"]
    proposal = warmup.get("mser5_proposal_requests", warmup.get("proposal"))
    if proposal is not None:
        parts.append(f"MSER-5 proposes {_text(proposal)} requests")
    if warmup.get("note"):
        parts.append(str(warmup["note"]))
    return "; ".join(parts)


def _identity(value: Any) -> str:
    return str(value) if isinstance(value, int) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or words.MISSING
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value) or words.MISSING
    if isinstance(value, float) and value >= 1e6:
        return f"{value:.4g}"
    if isinstance(value, float) and value == value:
        return f"{value:.6g}"
    return words.plain(value)


def _distinct(runs: Sequence[Run], title: str, key: str) -> list[Facts]:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        found = run.manifest.get(key)
        if isinstance(found, Mapping) and found:
            pairs = tuple((name, _text(value)) for name, value in flatten(found).items() if value not in (None, ""))
            if key == "gpu" and are_several([run.manifest]):
                pairs = (("GPUs of the run", gpus_text(run.manifest)), *pairs)
            groups.setdefault(pairs, []).append(run.name)
    return [Facts(pairs, title, tuple(names) if len(groups) > 1 else ()) for pairs, names in groups.items()]


def _heading(name: str, first: Json, other: Json) -> str:
    """An arm, and its settings that differ from the first one's."""
    keys = dict.fromkeys((*first, *other))
    differences = "; ".join(
        f"{key} = {_text(other.get(key))}" for key in keys if key != "variants" and first.get(key) != other.get(key)
    )
    return f"{name}: {differences}" if differences else name


def _yaml(run: Run) -> str:
    return yaml.safe_dump(dict(run.scenario), sort_keys=False, allow_unicode=True, width=100)


def _notes(runs: Sequence[Run]) -> tuple[Note, ...]:
    """Each note once, and whose it is unless it is of all."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for note in run.manifest.get("notes") or ():
            found.setdefault(str(note), []).append(run.name)
    return tuple(Note(note, "" if len(names) == len(runs) else ", ".join(names)) for note, names in found.items())
