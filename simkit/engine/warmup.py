"""Which requests a run measures, as far as that is known when they arrive.

Owns what `warmup: auto` means: the first fifth of the time in which requests arrive is left out, for the engine starts
empty. A finite load is measured whole, as it starts empty in the field too, and so is a log, which is what was asked
for (and has `trace.warmup_s`). When the clients of a closed loop come again only the run tells. They all start at once,
and then come as fast as they are served: so the first request of each is left out, and a fifth of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simkit.engine.build import Setup
from simkit.metrics.inputs import WarmupRule
from simkit.scenario import WarmupRequests, WarmupSeconds
from simkit.types import Request
from simkit.units import ns_to_s, s_to_ns
from simkit.workload.build import Workload

WARMUP_SHARE = 5
"""One part in so many is left out."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What is left out, and (`auto`) why, where the scenario leaves that to simkit."""

    rule: WarmupRule = "none"
    auto: str | None = None

    def measure(self, first_token_ns: int) -> Callable[[Request, int], bool] | None:
        """Whether a request that reaches the engine at a time counts; None: all do, as far as is known by then.

        The client sent it `first_token_ns` before.
        """
        if isinstance(self.rule, str):
            return None
        kind, value = self.rule
        if kind == "requests":
            return lambda request, now_ns: bool(request.id >= value)
        since_ns = first_token_ns + (s_to_ns(value) if kind == "seconds" else int(value))
        return lambda request, now_ns: now_ns >= since_ns


def warmup_of(setup: Setup, workload: Workload) -> WarmUp:
    """What a run of `workload` leaves out."""
    asked = setup.scenario.warmup
    if isinstance(asked, WarmupRequests):
        return WarmUp(("requests", asked.requests))
    if isinstance(asked, WarmupSeconds):
        return WarmUp(("seconds", asked.seconds))
    if workload.num_warm:
        return WarmUp(("requests", workload.num_warm))
    return _auto(setup, workload) if asked == "auto" else WarmUp(asked)


def _auto(setup: Setup, workload: Workload) -> WarmUp:
    if setup.scenario.workload.is_finite:
        return WarmUp("none", "for the load is finite")
    if setup.scenario.workload.trace is not None:
        return WarmUp("none", "for the load is a log")
    if workload.concurrency is None:
        first_ns, last_ns = workload.arrival_span_ns()
        fifth_ns = -((first_ns - last_ns) // WARMUP_SHARE)
        return WarmUp(("ns", first_ns + fifth_ns), f"a fifth of {_seconds(last_ns - first_ns)} of arrivals")
    if workload.num_requests is not None:
        later = workload.num_requests - workload.concurrency
        if later <= 0:
            return WarmUp("none", "for all requests come at once")
        left_out = workload.concurrency + later // WARMUP_SHARE
        return WarmUp(("requests", left_out), "the first of each client and a fifth of the others")
    assert workload.duration_ns is not None, "a closed loop has a number of requests or a duration"
    return WarmUp(("ns", workload.duration_ns // WARMUP_SHARE), "a fifth of the duration")


def _seconds(duration_ns: int) -> str:
    """Of three digits, and never as a power of ten: a run may last for weeks."""
    seconds = ns_to_s(duration_ns)
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"
