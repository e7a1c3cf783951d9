"""The uniform twin of a log: requests at the same mean rate with the same mean lengths, and nothing uneven.

Owns what is uniform about it, and the second process in which it is simulated while the log is.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from simkit.engine.build import Setup
from simkit.engine.run import simulate
from simkit.errors import CheckError, InputError
from simkit.plain import Json, plain
from simkit.runs.replication import metrics_of
from simkit.scenario import Scenario, apply_sets
from simkit.scenario.load import REPLAYED_KEYS
from simkit.studies.offered_load import played
from simkit.units import NS_PER_S

MAX_REQUESTS = 5000
"""Of the twin: it is the same all the time, so that more of it would not change its percentiles."""


@dataclass(frozen=True, slots=True)
class UniformLoad:
    """Poisson arrivals and fixed lengths: the means, lengths rounded to whole tokens."""

    num_requests: int
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int

    @classmethod
    def of_means(cls, num_requests: int, rate_per_s: float, prompt_tokens: float, output_tokens: float) -> UniformLoad:
        """The load of these means; a request has a token at least."""
        return cls(num_requests, rate_per_s, max(1, round(prompt_tokens)), max(1, round(output_tokens)))

    def to_workload(self) -> Json:
        """As the section of a scenario."""
        return {
            "num_requests": self.num_requests,
            "arrivals": {"process": "poisson", "rate_per_s": self.rate_per_s},
            "prompt_tokens": {"dist": "fixed", "value": self.prompt_tokens},
            "output_tokens": {"dist": "fixed", "value": self.output_tokens},
        }


def uniform_load(setup: Setup) -> UniformLoad:
    """The means of the requests that the engine of `setup` takes and that count for the statistics.

    Times are those of the log, even where turns wait for the last one. Raises InputError without two times.
    """
    limit = setup.max_model_len
    requests, num_warm = played(setup.scenario, limit)
    taken = [request for request in requests if request.id >= num_warm and request.prompt_tokens < limit]
    span_ns = taken[-1].arrival_ns - taken[0].arrival_ns if taken else 0
    if not span_ns:
        raise InputError("requests at one instant have no rate")
    outputs = sum(min(request.output_tokens, limit - request.prompt_tokens) for request in taken)
    return UniformLoad.of_means(
        min(len(taken), MAX_REQUESTS),
        (len(taken) - 1) * NS_PER_S / span_ns,
        sum(request.prompt_tokens for request in taken) / len(taken),
        outputs / len(taken),
    )


def uniform_twin(scenario: Scenario, load: UniformLoad) -> Scenario:
    """The scenario with the uniform load in place of its own."""
    own = scenario.workload.model_dump(mode="json", exclude_unset=True)
    workload = {key: value for key, value in own.items() if key in REPLAYED_KEYS}
    changes = {"workload": {**workload, **load.to_workload()}, "warmup": "none", "replications": 1, "variants": {}}
    return apply_sets(scenario, changes, label="even workload")


def serve_uniform_twin(setup: Setup) -> Json:
    """Simulate the twin: {workload, ttft_ms, tpot_ms}, latencies as in a summary.

    Raises InputError where there is no twin, and CheckError for a livelock.
    """
    load = uniform_load(setup)
    setup = replace(setup, scenario=uniform_twin(setup.scenario, load))
    facts = simulate(setup)
    summary = metrics_of(setup, facts).summary
    return {"workload": plain(load), "ttft_ms": plain(summary.ttft_ms), "tpot_ms": plain(summary.tpot_ms)}


# --- in a second process ----------------------------------------------------------------------------------------------
Work = Callable[[], Any]


class BackgroundError(Exception):
    """The work has no result, and why."""


@contextmanager
def in_background(work: Work) -> Iterator[Callable[[], Any]]:
    """Start `work`; inside, the function given waits for its result, and raises BackgroundError when there is none.

    The second process is a copy of this one, so that nothing is loaded twice; where there are no such copies the work
    is done here when it is asked for. Whatever happens to the block, no process is left behind.
    """
    import multiprocessing

    if "fork" not in multiprocessing.get_all_start_methods():
        yield lambda: _result(_outcome(work))
        return
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, there), daemon=True)
    process.start()
    there.close()
    try:
        yield lambda: _receive(here)
    finally:
        here.close()
        process.kill()
        process.join()


def _receive(here: Any) -> Any:
    try:
        outcome = here.recv()
    except EOFError:
        raise BackgroundError("the process that made it died (killed, or out of memory)") from None
    return _result(outcome)


def _send(work: Work, there: Any) -> None:
    # An interrupt is for the first process, which then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    there.send(_outcome(work))


def _outcome(work: Work) -> tuple[bool, Any]:
    try:
        return True, work()
    except (InputError, CheckError, MemoryError) as error:
        return False, str(error) or "out of memory"


def _result(outcome: tuple[bool, Any]) -> Any:
    done, result = outcome
    if not done:
        raise BackgroundError(result)
    return result
