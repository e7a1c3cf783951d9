"""What a plan's report says of how long its answer holds: its labels, and what came of serving it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simkit.report.document import Badge
from simkit.report.read.plan import rates_text
from simkit.report.words import count, plain_down


def badges(chosen: Mapping[str, Any]) -> list[Badge]:
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


def finite_text(length: Mapping[str, Any]) -> str:
    """What the load is, where it has an end of its own."""
    if length.get("finite"):
        if length.get("num_requests"):
            return (
                f"The load is a batch of {count(length['num_requests'])} requests, from an empty engine to an empty one"
            )
        return "The load is finite, from an empty engine to an empty one"
    return "The course of arrivals has an end of its own"


def moved_text(confirmed: Mapping[str, Any]) -> str:
    """What the first answer was, and what became of it."""
    first = confirmed["served"][0]
    return (
        f"The search alone said {rates_text(confirmed['before'])}; at {plain_down(first['rate_per_s'])} requests/s "
        f"{first['held']} of {first['runs']} long runs held, so the answer moved."
    )


def confirm_texts(point: Mapping[str, Any]) -> tuple[str, ...]:
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
