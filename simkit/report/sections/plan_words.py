"""What a plan's report says in words: its labels, the sentences of its sections, and what its terms mean.

Thresholds are quoted as the planner has them.
"""

from __future__ import annotations

from collections.abc import Mapping

from simkit.metrics.glossary import DEFINITIONS
from simkit.report.document import Badge
from simkit.report.read.plan import TOO_FEW, Content, extrapolated, label, too_few, word
from simkit.report.sections import plan_choice
from simkit.report.words import TOLD_SHARE, count, known, percent, plain
from simkit.types import Basis

SHARED = ("TTFT", "TPOT", "E2E", "Measured window", "Throughput", "Concurrency", "KV utilisation", "Preemption")
"""Definitions that a plan has in common with a run."""

PLAN_DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Capacity",
        "The highest request rate at which the SLO holds: the measured requests of all replications together cross the "
        "first of its targets there. Every rate and every setting serves the same customers.",
    ),
    (
        "Interval",
        "The 95 % interval of a capacity, from how the replications differ. With other customers the capacity would "
        "lie in such an interval 95 times in 100. A log is the same in every replication: its interval is that of the "
        "jackknife over consecutive parts of it, or there is none. The wider one, of the recommended point, holds the "
        "error of step times too: the point is searched once more with times that err by a draw in each replication, "
        "and what that does to its capacity is added. It is no reason to choose another point, for all err alike.",
    ),
    (
        "Accepted, refused, undecided",
        "A rate is accepted up to the lower end of the interval and refused from its upper end on; between them the "
        "runs that were made do not tell.",
    ),
    (
        "Sustained",
        "Runs last until arrivals have gone on for five times the p99 of E2E, and until requests in the system, "
        "running sequences and KV memory no longer rise from the earlier to the later half (over replications, "
        "one-sided 5 %). "
        "A queue that grows is overload whatever the percentiles say. The lower end of the interval was then served "
        "again, ten times as long with fresh customers, and every run met every objective.",
    ),
    (
        "Chance to pass",
        "The share of replications whose own measured requests meet the whole SLO at a rate: what one run as long as "
        "these would show.",
    ),
    (
        "Soft limit",
        "The chance to pass falls from 0.9 to 0.1 over more than 20 % in rate: no single rate divides what holds from "
        "what does not.",
    ),
    (
        "Too few",
        "Fewer than 1,000 measured requests a replication: fewer than ten of them lie beyond a p99.",
    ),
    (
        "Recommended",
        "The smallest max_num_seqs whose capacity a GPU is as good as the best one's: the 95 % interval of the paired "
        "ratio reaches 1.",
    ),
    ("Knee", "The smallest max_num_seqs from which twice as many slots carry less than 10 % more."),
    (
        "Physical bound",
        "Sequences of the mean length (prompt and half of the answer) that the KV memory holds at once, or those that "
        "one step's token budget can serve, whichever are fewer.",
    ),
    (
        "Limit: slots",
        "In the longest part of the waiting time all slots are taken, and the next larger max_num_seqs carries at "
        "least 3 % more.",
    ),
    (
        "Limit: KV blocks",
        "In the longest part of the waiting time slots are free, and memory for the next prompt is not.",
    ),
    (
        "Limit: token budget",
        "In the longest part of the waiting time slots and memory are free, and steps have at "
        "least 95 % of the tokens that the budget allows.",
    ),
    (
        "Limit: compute",
        "Requests wait for their turn, or for slots of which more would carry less than 3 % more.",
    ),
    (
        "Limit: TTFT, E2E",
        "That objective is missed first, and less than 50 % of the TTFT of the slowest requests passes in the queue: "
        "the steps themselves take too long.",
    ),
    ("Limit: TPOT", "The time between tokens is missed first: a step with this many sequences takes too long."),
    (
        "Pareto front",
        "Rates for which no other rate gives both more output tokens a second and a lower latency.",
    ),
    (
        "Ratio (sensitivity)",
        "Capacity with one setting changed over the recommended point's, same customers, with the 95 % interval of "
        "the paired ratio. An interval that holds 1 shows no clear effect.",
    ),
)


def definitions() -> tuple[tuple[str, str], ...]:
    """The terms of a plan, then those that it shares with a run."""
    return (*PLAN_DEFINITIONS, *((name, text) for name, text in DEFINITIONS if name in SHARED))


def badges(content: Content) -> list[Badge]:
    """Labels before any number: calibration, what cannot be relied upon, and what is missing."""
    found = []
    if not content["reachable"]:
        found.append(Badge("SLO not met", "No setting that was tried meets it, at any rate.", "bad"))
    found += _calibration(content)
    if too_few(content):
        measured = count(content["run_length"]["measured_requests"])
        text = f"A replication measured {measured} requests; a p99 needs 1,000. Every p99 here is marked."
        found.append(Badge(TOO_FEW, text, "warn"))
    chosen = content.get("recommended")
    if chosen and chosen["capacity"] and chosen["capacity"]["soft"]:
        found.append(Badge("soft limit", f"{soft_text(content)}: plan with a margin.", "warn"))
    found += _behaviour(content)
    if content["failed"]:
        names = content["failed"]
        details = tuple(f"{name}: {failure['message']}" for name, failure in names.items())
        text = f"{len(names)} of the points tried: no numbers, the rest stands."
        found.append(Badge("failed", text, "bad", details, "which and why"))
    if content["not_simulated"]:
        keys = ", ".join(content["not_simulated"])
        found.append(Badge("not simulated", f"Accepted but run as off: {keys}.", "warn"))
    return found


def _behaviour(content: Content) -> list[Badge]:
    """What the rates that were looked at say against the capacity."""
    found = []
    rows = [row for row in content.get("curve") or () if row["verdict"] == "accepted"]
    missed = [plain(row["rate_per_s"]) for row in rows if not row["meets"]]
    if missed:
        text = f"Runs at {', '.join(missed)} requests/s miss the SLO, though a higher rate meets it."
        found.append(Badge("low rates miss it", text, "bad"))
    chosen = content.get("recommended")
    if chosen:
        found += plan_choice.holding_badges(chosen)
    return found


def _calibration(content: Content) -> list[Badge]:
    source = content["latency_source"]
    if source is None:
        return [Badge("unknown step times", "No point could be set up.", "warn")]
    basis = Basis.of(source)
    if basis is Basis.DATA_SHEET:
        text = f"Step times come from {source}, not from measurements on this GPU."
        return [Badge("uncalibrated", text, "warn")]
    if basis is not Basis.PROFILE:
        return [Badge("step times", f"They come from: {source}.", "warn")]
    found = extrapolated(content)
    if found is None:
        return [Badge("calibrated", f"Step times: {source}.", "good")]
    rate, share = found
    text = f"{percent(share)} of GPU time at {plain(rate)} requests/s does not rest on measurements of this GPU"
    badges = [Badge("calibrated", f"Step times: {source}; {text}.", "good")]
    if share >= TOLD_SHARE:
        told = f"{text}."
        badges = [Badge("calibrated", f"Step times: {source}.", "good"), Badge("extrapolated", told, "warn")]
    return badges


def soft_text(content: Content) -> str:
    """Over which rates the chance to pass falls."""
    found = content["recommended"]["capacity"]
    likely, unlikely = known(found["likely_per_s"]), known(found["unlikely_per_s"])
    if not likely or unlikely is None:
        return "It is not known over which rates the chance of a single run to pass falls"
    return (
        f"The chance of a single run to pass falls from 0.9 at {plain(likely)} to 0.1 at {plain(unlikely)} requests/s, "
        f"over {percent(unlikely / likely - 1)} in rate"
    )


def bound_text(content: Content) -> str:
    """What memory and budget hold at the recommended point."""
    facts = content["recommended"]["physical"]
    return (
        f"Physical bound: {count(facts['bound'])} sequences. {count(facts['num_gpu_blocks'])} KV blocks hold "
        f"{count(facts['kv_tokens'])} tokens: {count(facts['memory_seqs'])} sequences of "
        f"{plain(facts['held_tokens'])} tokens (prompt and half of the answer), or {count(facts['longest_seqs'])} of "
        f"the longest that the model allows. A step's token budget serves {count(facts['budget_seqs'])}."
    )


def knee_text(content: Content) -> str:
    """Where more slots stop paying."""
    knee = content.get("knee")
    if not knee:
        return "Knee: not within the grid; at its end twice as many slots still carry 10 % more, or it is too short."
    return f"Knee: max_num_seqs {knee['max_num_seqs']}; from there twice as many slots carry less than 10 % more."


def loads_text(content: Content) -> str:
    """What the loads are shares of."""
    fleet = content.get("fleet")
    if fleet:
        count_of = f"{fleet['replicas']:,} replica{'s' if fleet['replicas'] != 1 else ''}"
        return (
            f"The load that is asked for is the target rate, {plain(fleet['target_per_s'])} requests/s, spread over "
            f"{count_of}; rates are those of the recommended point by itself."
        )
    return f"The load that is asked for is the scenario's own rate, {plain(content['base_rate_per_s'])} requests/s."


def fleet_text(content: Content) -> tuple[str, ...]:
    """Why so many replicas, and what was simulated of them."""
    checks, choice = content["fleet"]["checks"], content["fleet"].get("choice")
    found = [choice] if choice else []
    if not checks:
        found.append("The fleet is not simulated: its replicas are counted from the capacity of the recommended point.")
    elif any(row.get("lost") for row in checks):
        found.append(
            "A replica that is lost fails when half of the requests have come, and stays away; its requests return to "
            "the queue."
        )
    return tuple(found)


def compared_text(content: Content) -> str:
    """What the recommendation goes by."""
    chosen = content["recommended"]
    return f"Recommended: {label(content, chosen)}. {chosen['reason']}"


def length_text(content: Content) -> str:
    """How long a run is, and what of it counts."""
    length = content["run_length"] or {}
    warmup = length.get("warmup")
    left_out = ""
    if isinstance(warmup, Mapping):
        left_out = ", " + ", ".join(f"{word(value)} {key}" for key, value in warmup.items()) + " left out at the start"
    if length.get("num_requests"):
        text = f"A run has {length['num_requests']:,} requests{left_out}"
    elif length.get("duration_s"):
        text = f"A run lasts {length['duration_s']:,g} s{left_out}"
    else:
        times = length.get("times_played") or 1
        text = f"A run replays {length.get('trace')}{f' {times} times over' if times > 1 else ''}{left_out}"
    stay = length.get("e2e_p99_s")
    if stay and length.get("span_s"):
        text += (
            f"; requests arrive for {plain(length['span_s'])} s, {plain(length['span_s'] / stay)} times the p99 of E2E"
        )
    return f"{text}."


def scaling_texts(content: Content) -> list[str]:
    """What more replicas carry beside fewer, a sentence each."""
    found = []
    for row in content.get("scaling") or ():
        low, estimate, high = (row["ratio"][name] for name in ("low", "estimate", "high"))
        text = (
            f"{row['name']} carries {estimate:.3g} times what {row['of']} does (95 % interval {low:.3g} to {high:.3g})"
        )
        found.append(f"{text}, with {row['replicas']:g} times the replicas.")
    return found
