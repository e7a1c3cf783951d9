"""A plan in words: its answer in one sentence, why this point and this fleet, what a reader must know, why there is no
answer.

Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simkit.metrics.catalogue import LATENCIES
from simkit.metrics.glossary import LIMITS
from simkit.planner import advise
from simkit.planner.capacity import Capacity
from simkit.planner.result import FleetSize, PlanResult, PointResult
from simkit.planner.search import rate_text
from simkit.planner.trial import SloTerm
from simkit.runs import run_length
from simkit.studies.study import value_text


def notes(result: PlanResult) -> list[str]:
    """What a reader must know of the numbers."""
    found = []
    chosen = result.recommended
    if chosen is not None and chosen.capacity is not None:
        if chosen.capacity.interval == "parts":
            found.append(
                f"all replications would be the same run: it is made once, and the interval is that of "
                f"{len(chosen.capacity.without_per_s)} consecutive parts of it"
            )
        if chosen.capacity.interval == "none":
            found.append("all replications would be the same run, too short to be parted: it is made once, no interval")
        if chosen.confirmation is None:
            found.append("the answer could not be served again for longer: see the failed points")
        sent, rejected = (chosen.mean_at_capacity(f"num_requests.{kind}") for kind in ("arrived", "rejected"))
        whole = [trial for trial in chosen.at_capacity if not trial.gave_up] or chosen.at_capacity
        lost = sum(trial.waits["lost"] for trial in whole) / len(whole)
        if rejected:
            share = 100 * rejected / sent
            found.append(f"{share:.2g} % of requests can never be served and are rejected; rates count them")
        if lost:
            lost_text = "are refused, give up or do not end at the capacity; rates count them"
            found.append(f"{100 * lost:.2g} % of requests {lost_text}")
    return found


def answer(result: PlanResult) -> str:
    """The answer in one sentence."""
    chosen = result.recommended
    if chosen is None or chosen.capacity is None:
        return unreachable(result)
    found = chosen.capacity
    held = " and ".join(
        f"{LATENCIES.get(term.metric, term.metric)} {term.stat} <= {term.target_ms:g} ms"
        for term in result.terms
        if term.target_ms is not None
    )
    others = "".join(f", {key}={value_text(value)}" for key, value in advise.further(chosen).items())
    where, verb = _gpus(chosen)
    text = (
        f"Set max_num_seqs to {chosen.point.slots}{others}: {where} then {verb} {rate_text(found.estimate_per_s)} "
        f"requests/s ({_interval(found)}) with {held}, {_how_long(chosen)}"
    )
    fleet = advise.fleet(result, chosen)
    if fleet is not None:
        gpus, verb = f"{fleet.gpus:,} GPU{'s' * (fleet.gpus != 1)}", "needs" if fleet.target_per_s == 1 else "need"
        text += f"; {rate_text(fleet.target_per_s)} requests/s {verb} {gpus} ({_replicas(fleet.replicas)}"
        text += f" and {fleet.spare:,} spare" if fleet.spare else ""
        text += f", {fleet.gpus_per_replica:,} GPUs each)" if fleet.gpus_per_replica > 1 else ")"
    return text + "."


def _rate_down(per_s: float) -> str:
    """The text of a rate that is promised: not rounded up."""
    step = 1.0 if per_s >= 1000 else 10.0 ** (math.floor(math.log10(per_s)) - 2)
    return rate_text(math.floor(per_s / step + 1e-9) * step)


def _replicas(count: int) -> str:
    return f"{count:,} replica{'s' * (count != 1)}"


def _gpus(item: PointResult) -> tuple[str, str]:
    """(the GPUs of a point, and the verb that goes with them)."""
    replicas, name = item.point.scenario.replicas, item.point.setup.gpu.name
    each = item.point.gpus // replicas
    if replicas > 1:
        return f"{_replicas(replicas)} x {each:,} {name}", "carry"
    return (f"one {name}", "carries") if each == 1 else (f"{each:,} x {name}", "carry")


def _interval(found: Capacity) -> str:
    if found.interval == "none":
        return "no interval: every replication is the same run"
    of = f", from {len(found.without_per_s)} parts of the run" if found.interval == "parts" else ""
    alone, wide = f"{_rate_down(found.low_per_s)} to {rate_text(found.high_per_s)}{of}", found.range_per_s
    if wide is None:
        return f"95 % interval {alone}"
    return f"95 % interval {_rate_down(wide[0])} to {rate_text(wide[1])}; simulation alone {alone}"


def _how_long(item: PointResult) -> str:
    """For how long the rate can go on, as far as that was seen."""
    workload, served = item.scenario.workload, item.confirmation
    held = None if served is None else served.held
    if workload.is_finite:
        return f"for a batch of {workload.num_requests:,} requests" if workload.num_requests else "for a finite load"
    if not run_length.can_grow(item.point.scenario):
        return "for this course of arrivals, which has an end"
    if item.rising is not None or held is None or served is None:
        return "while the system was still filling: not seen to be sustained"
    runs = f"{len(held.trials)} runs" if len(held.trials) > 1 else "a run"
    text = f"sustained: {runs} {served.times:g} times as long held at {_rate_down(held.rate_per_s)}"
    if served.moved:
        first = served.served[0]
        text += f" (the search alone began at {_rate_down(first.rate_per_s)}, where {first.num_held} of "
        text += f"{len(first.trials)} held)"
    return text


HOURS_A_MONTH = 730


def fleet_choice(result: PlanResult, chosen: PointResult) -> str | None:
    """Why this fleet and none smaller: what that did when it was simulated, and what the difference buys and costs."""
    fleet = advise.fleet(result, chosen)
    if fleet is None:
        return None
    less = fleet.replicas - 1
    text = _smaller(result, chosen, fleet.target_per_s, less) if less else _single(chosen, fleet.target_per_s)
    if less and fleet.spare:
        text += ", and none may be lost"
    bought = [f"the {_ordinal(fleet.replicas)} replica buys 95 % confidence that the target holds"] if less else []
    if fleet.spare:
        which = "the spare one buys" if fleet.spare == 1 else f"the {fleet.spare:,} spare ones buy"
        bought.append(f"{which} the loss of {_replicas(fleet.spare)} at the target rate{_when_lost(result)}")
    parts = [text, f"{' and '.join(bought)}{_paid(chosen, bool(less) + fleet.spare)}" if bought else ""]
    if not fleet.spare:
        parts.append("without a spare (--spare) no replica may be lost")
    if _simulated(result, fleet.replicas, 0) is False:
        parts.append(f"when simulated, {_replicas(fleet.replicas)} missed the SLO too: requests do not spread evenly")
    return "; ".join(part for part in parts if part) + "."


def _smaller(result: PlanResult, chosen: PointResult, target_per_s: float, replicas: int) -> str:
    """What one replica less did when it was simulated, and why that does not recommend it."""
    seen = _simulated(result, replicas, 0)
    found, own = chosen.capacity, chosen.point.scenario.replicas
    assert found is not None
    each = target_per_s / replicas
    held = round(found.chance(each * own) * found.replications)
    least, most = found.range_per_s or (found.low_per_s, found.high_per_s)
    low, estimate, high = (value / own for value in (least, found.estimate_per_s, most))
    where = f"between the lower end ({rate_text(low)}) and the estimate ({rate_text(estimate)}) of"
    if each > estimate:
        where = f"between the estimate ({rate_text(estimate)}) and the upper end ({rate_text(high)}) of"
    if each >= high:
        where = f"above the interval ({rate_text(low)} to {rate_text(high)}) of"
    said = {True: "met the SLO when simulated, but", False: "missed the SLO when simulated:", None: "are too few:"}[
        seen
    ]
    if replicas == 1 and seen is None:
        said = "is too few:"
    return (
        f"{_replicas(replicas)} {said} {rate_text(each)} requests/s a replica lie {where} what a replica carries, "
        f"where {held:,} of {found.replications:,} replications meet it"
    )


def _single(chosen: PointResult, target_per_s: float) -> str:
    """A fleet of one."""
    assert chosen.capacity is not None
    low = chosen.capacity.carried_per_s / chosen.point.scenario.replicas
    return (
        f"One replica is enough: {rate_text(target_per_s)} requests/s are no more than the lower end "
        f"({rate_text(low)}) of what it carries"
    )


def _simulated(result: PlanResult, replicas: int, lost: int) -> bool | None:
    """Whether a fleet met the SLO at the target rate, all its runs together; None where it was not simulated."""
    trials = result.fleets.get(FleetSize(replicas, lost))
    if not trials:
        return None
    return all(sum(margins) >= 0 for margins in zip(*(trial.margins for trial in trials), strict=True))


def _when_lost(result: PlanResult) -> str:
    """What the loss did when it was simulated."""
    met = next((_simulated(result, *size) for size in result.fleets if size.lost), None)
    return "" if met is not False else " (but requests that a loss halfway sends back missed the SLO when simulated)"


def _paid(chosen: PointResult, replicas: int) -> str:
    """What so many replicas cost; empty without a price."""
    hardware = chosen.point.scenario.hardware
    if hardware.price_per_gpu_hour is None:
        return ""
    hourly = hardware.price_per_gpu_hour * hardware.tensor_parallel_size * replicas
    both = " together" if replicas > 1 else ""
    return f", for {hourly:,.4g} an hour ({hourly * HOURS_A_MONTH:,.0f} a month){both}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def reason(result: PlanResult, chosen: PointResult) -> str:
    """Why this point."""
    assert chosen.capacity is not None
    fine = [item for item in result.points.values() if item.capacity is not None and item.effort == chosen.effort]
    best = max(fine, key=lambda item: item.per_gpu_per_s)
    again = f"Of the points searched with {chosen.capacity.replications} replications"
    if best is chosen:
        return f"{again} it carries the most a GPU, and no smaller max_num_seqs as much."
    assert best.capacity is not None
    return (
        f"{again} {best.point.name} carries the most ({best.capacity.estimate_per_s:.4g}/s); this is the smallest "
        "max_num_seqs that is as good within the 95 % interval of the paired ratio."
    )


def unreachable(result: PlanResult) -> str:
    """Why no setting meets the SLO, and by how much one request alone misses it."""
    items = list(result.points.values())
    best = max(items, key=lambda item: min(item.lowest.margins))
    missed = []
    for index, term in enumerate(result.terms):
        if best.lowest.margins[index] >= 0 or term.target_ms is None:
            continue
        value = best.lowest.numbers.get(term.name)
        if _is_lost(best, term):
            missed.append(f"{term.name} <= {term.target_ms:g} ms is missed by {_turned_away(best)}")
        elif value is None:
            missed.append(f"{term.name} <= {term.target_ms:g} ms is missed")
        else:
            times = value / term.target_ms
            missed.append(
                f"{term.name} <= {term.target_ms:g} ms is missed by a request alone, which takes {value:.4g} ms "
                f"({times:.3g} times as long)"
            )
    limit = "no rate, however low, meets it"
    where = f"at {best.point.name}, {best.lowest.rate_per_s:.3g} requests/s"
    binds = _binding(best, result.terms)
    return f"The SLO cannot be met at any setting: {'; '.join(missed) or limit} ({where}). What binds: {binds}."


def _is_lost(best: PointResult, term: SloTerm) -> bool:
    """Whether all who are served are served in time, so that it is the others who miss a term."""
    value = best.lowest.numbers.get(term.name)
    return value is not None and term.target_ms is not None and value <= term.target_ms


def _turned_away(best: PointResult) -> str:
    """The requests that no rate serves."""
    numbers = best.lowest.numbers
    sent, rejected = numbers.get("num_requests.arrived") or 0.0, numbers.get("num_requests.rejected") or 0.0
    lost = best.lowest.waits["lost"]
    if rejected and sent:
        return f"the {100 * rejected / sent:.2g} % of requests that can never be served and are rejected"
    return f"the {100 * lost:.2g} % of requests that are refused, give up or do not end"


def _binding(best: PointResult, terms: Sequence[SloTerm]) -> str:
    worst = min(range(len(best.lowest.margins)), key=lambda index: best.lowest.margins[index])
    if _is_lost(best, terms[worst]):
        return f"{_turned_away(best)}: leave them out, or raise what turns them away"
    key = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "TPOT", "e2e_ms": "E2E"}.get(terms[worst].metric, "compute")
    return f"{key}: {LIMITS[key]}"
