"""The content of plan.json and plan.csv: a plan as plain data.

Owns names. Writes no file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from simkit.metrics.intervals import half_width_95
from simkit.plain import Json, plain
from simkit.planner import advise
from simkit.planner.answer import answer, fleet_choice, notes, reason, unreachable
from simkit.planner.capacity import Capacity, ratio, to_json
from simkit.planner.result import Confirmation, PlanResult, PointResult
from simkit.planner.search import COARSE
from simkit.planner.sensitivity import LOADS, load_rates
from simkit.planner.trial import QUEUE, Trial
from simkit.runs.manifest import CREATED_BY
from simkit.studies.offered_load import MIN_FOR_P99
from simkit.studies.study import value_text
from simkit.version import __version__

CSV_NUMBERS = ("estimate_per_s", "low_per_s", "high_per_s", "likely_per_s", "unlikely_per_s", "term", "soft",
               "replications")  # fmt: skip


def plan_json(result: PlanResult) -> Json:
    """Everything a report needs, plain. Numbers that do not exist are None."""
    some = next(iter(result.points.values())) if result.points else None
    chosen = result.recommended
    setup = (chosen or some).point.setup if (chosen or some) is not None else None  # type: ignore[union-attr]
    content = {
        "name": result.scenario.name,
        "answer": answer(result),
        "reachable": chosen is not None,
        "created_by": CREATED_BY,
        "version": __version__,
        "seed": result.scenario.seed,
        "scenario": result.scenario.to_dict(),
        "model": None if setup is None else setup.model.name,
        "gpu": None if setup is None else setup.gpu.name,
        "latency_source": None if setup is None else setup.latency.source,
        "profile": None if setup is None else {"name": setup.profile, "hash": setup.profile_hash},
        "not_simulated": [] if setup is None else list(setup.not_simulated),
        "run_length": None if (chosen or some) is None else _run_length(chosen or some),  # type: ignore[arg-type]
        "slo": [plain(term) for term in result.terms if term != QUEUE],
        "base_rate_per_s": result.base_per_s,
        "target_rate_per_s": result.target_per_s,
        "spare": result.spare,
        "lengths": plain(result.lengths) | {"held_tokens": result.lengths.held_tokens},
        "axes": result.axes,
        "points": [_point(item) for item in result.points.values()],
        "failed": {
            name: {"settings": dict(failure.settings), "message": failure.message}
            for name, failure in result.failed.items()
        },
        "recommended": None,
        "notes": [*(() if setup is None else setup.names), *result.notes, *notes(result)],
        "scaling": scaling(result),
    }
    if chosen is not None and chosen.capacity is not None:
        content |= _around(result, chosen, chosen.capacity)
    else:
        content["unreachable"] = unreachable(result)
    return plain(content)  # type: ignore[no-any-return]


def _run_length(item: PointResult) -> Json:
    """How long the runs of a point are. `span_s` and `e2e_p99_s`: how long requests arrive, and how long the slowest
    percent stay, at the capacity (at the lowest rate without one)."""
    scenario = item.scenario
    workload, warmup = scenario.workload, scenario.warmup
    measured = min(trial.num_measured for trial in item.trials)
    tails = {"p99"} & {stat for values in (scenario.to_dict()["slo"] or {}).values() for stat in values}
    there = item.at_capacity if item.capacity is not None else (item.lowest,)
    stays = [trial.numbers["e2e_ms.p99"] for trial in there]
    return {
        "num_requests": workload.num_requests,
        "duration_s": workload.duration_s,
        "trace": None if workload.trace is None else workload.trace.path,
        "times_played": None if workload.trace is None else workload.trace.repeat,
        "finite": workload.is_finite,
        "factor": item.factor,
        "span_s": sum(trial.span_s for trial in there) / len(there),
        "e2e_p99_s": max(value for value in stays if value is not None) / 1000 if any(stays) else None,
        "warmup": warmup if isinstance(warmup, str) else warmup.model_dump(),
        "measured_requests": measured,
        "too_few": bool(tails) and measured < MIN_FOR_P99,
    }


def _confirmation(found: Confirmation) -> Json:
    """What came of serving the answer again."""
    return {
        "times": found.times,
        "moved": found.moved,
        "before": to_json(found.before),
        "served": [
            {
                "rate_per_s": one.rate_per_s,
                "runs": len(one.trials),
                "held": one.num_held,
                "together": one.together,
                "measured_requests": sum(trial.num_measured for trial in one.trials),
                "span_s": max(trial.span_s for trial in one.trials),
                "gave_up": sum(trial.gave_up for trial in one.trials),
            }
            for one in found.served
        ],
    }


def _point(item: PointResult) -> Json:
    point, limit = item.point, item.limit
    found = item.capacity
    money = None if found is None else advise.cost(item, found.estimate_per_s, point.gpus)
    return {
        "name": point.name,
        "settings": dict(point.settings),
        "max_num_seqs": point.slots,
        "replicas": point.scenario.replicas,
        "gpus": point.gpus,
        "physical": plain(point.physical) | {"bound": point.physical.bound},
        "capacity": None if found is None else to_json(found),
        "no_capacity": None if found is not None else ("every rate passes" if item.always_passes else "no rate passes"),
        "per_gpu_per_s": None if found is None else item.per_gpu_per_s,
        "limit": None if limit is None else {**plain(limit), "text": limit.text},
        "sustained": None if found is None else item.is_sustained,
        "rising": item.rising,
        "run_length": _run_length(item),
        "confirmation": None if item.confirmation is None else _confirmation(item.confirmation),
        "cost": plain(money),
        "trials": len(item.trials),
    }


def _around(result: PlanResult, chosen: PointResult, found: Capacity) -> Json:
    """What is known of the recommended point alone."""
    loads = load_rates(result, chosen)
    knee = advise.knee(list(result.points.values()), advise.further(chosen))
    line, missing = advise.command(chosen)
    rows = {rate: row(trials, result, found) for rate, trials in _by_rate(result.other_rates).items()}
    content = {
        "recommended": {**_point(chosen), "reason": reason(result, chosen)},
        "knee": None if knee is None else {"name": knee.point.name, "max_num_seqs": knee.point.slots},
        "chance": [{"rate_per_s": rate, "chance": found.chance(rate)} for rate in sorted(found.crossings_per_s)],
        "curve": [rows[rate] for rate in sorted(rows)],
        "loads": [{"share": share, **rows[loads[share]]} for share in LOADS if loads[share] in rows],
        "sensitivity": [
            _variation(result, chosen, item) for item in result.variations.values() if item.point is not chosen.point
        ],
        "fleet": None,
        "cost": plain(advise.cost(chosen, found.estimate_per_s, chosen.point.gpus)),
        "doctor": result.doctor,
        "command": line,
        "command_notes": list(missing),
    }
    fleet = advise.fleet(result, chosen)
    if fleet is not None:
        money = advise.cost(chosen, fleet.target_per_s, fleet.gpus)
        checks = [
            {"replicas": size.replicas, "lost": size.lost, **row(trials, result, None)}
            for size, trials in sorted(result.fleets.items())
        ]
        content["fleet"] = plain(fleet) | {
            "gpus": fleet.gpus,
            "choice": fleet_choice(result, chosen),
            "cost": plain(money),
            "checks": checks,
        }
    return content


def _by_rate(trials: Sequence[Trial]) -> dict[float, list[Trial]]:
    found: dict[float, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.rate_per_s, []).append(trial)
    return found


def row(trials: Sequence[Trial], result: PlanResult, found: Capacity | None) -> Json:
    """One rate: means over replications with half widths of 95 % intervals (None where there is none)."""
    paths = list(trials[0].numbers)
    numbers = {path: _mean([trial.numbers[path] for trial in trials]) for path in paths}
    margins = {term.name: _mean([trial.margins[index] for trial in trials]) for index, term in enumerate(result.terms)}
    rate = trials[0].rate_per_s
    return {
        "rate_per_s": rate,
        "replications": len(trials),
        "verdict": None if found is None else found.verdict(rate),
        "meets": all(margin["mean"] is not None and margin["mean"] >= 0 for margin in margins.values()),
        "margins": margins,
        "numbers": numbers,
        "waits": {name: _mean([trial.waits[name] for trial in trials])["mean"] for name in trials[0].waits},
    }


def _mean(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return {"mean": None, "ci95": None}
    return {"mean": sum(known) / len(known), "ci95": half_width_95(known)}


def _variation(result: PlanResult, chosen: PointResult, item: PointResult) -> Json:
    key = next(key for key in item.point.settings if chosen.point.settings.get(key) != item.point.settings[key])
    engine = chosen.point.setup.scenario.engine
    compared, again = None, result.variations.get(chosen.point.name)
    if item.capacity is not None and again is not None and again.capacity is not None:
        compared = plain(ratio(item.capacity, again.capacity, COARSE.resolution))
    return {
        "key": key,
        "value": item.point.settings[key],
        "instead_of": getattr(engine, key.rpartition(".")[2]),
        "capacity": None if item.capacity is None else to_json(item.capacity),
        "ratio": compared,
        "num_gpu_blocks": item.point.setup.num_gpu_blocks,
    }


def scaling(result: PlanResult) -> Sequence[Json]:
    """What more replicas carry beside the fewest, all other settings equal: the paired ratio of capacities."""
    found = []
    groups: dict[str, list[PointResult]] = {}
    for item in result.points.values():
        if item.capacity is not None:
            others = {key: value for key, value in item.point.settings.items() if key != "replicas"}
            groups.setdefault(value_text(others), []).append(item)
    for group in groups.values():
        fewest = min(group, key=lambda item: item.point.scenario.replicas)
        for item in group:
            if item.point.scenario.replicas > fewest.point.scenario.replicas:
                assert item.capacity is not None
                assert fewest.capacity is not None
                resolution = max(item.effort.resolution, fewest.effort.resolution)
                compared = plain(ratio(item.capacity, fewest.capacity, resolution))
                more = item.point.scenario.replicas / fewest.point.scenario.replicas
                found.append({"name": item.point.name, "of": fewest.point.name, "replicas": more, "ratio": compared})
    return found


def plan_csv(content: Json) -> str:
    """The content of plan.csv: a row a point; a number that does not exist is empty."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    axes = list(content["axes"])
    rows.writerow(["point", *axes, "gpus", *CSV_NUMBERS, "limit", "per_million_output_tokens", "recommended", "failed"])
    chosen = (content["recommended"] or {}).get("name")
    for point in content["points"]:
        found = point["capacity"] or {}
        numbers = [_cell(found.get(name)) for name in CSV_NUMBERS]
        limit = (point["limit"] or {}).get("name")
        money = (point["cost"] or {}).get("per_million_output_tokens")
        values = [value_text(point["settings"][axis]) for axis in axes]
        rows.writerow(
            [point["name"], *values, point["gpus"], *numbers, limit, money, _cell(point["name"] == chosen), None]
        )
    for name, failure in content["failed"].items():
        given = failure["settings"]
        known = [value_text(given[axis]) if axis in given else None for axis in axes]
        rows.writerow([name, *known, None, *(None for _ in CSV_NUMBERS), None, None, None, failure["message"]])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return value_text(value) if isinstance(value, bool) else value
