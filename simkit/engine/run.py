"""One run: requests arrive at a system of replicas until all have left, and what that leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from simkit.engine.build import Setup
from simkit.engine.system import BlocksMatter, Replicas, TooMany
from simkit.engine.warmup import WarmUp
from simkit.errors import InputError
from simkit.logs.read.text import resolve, sha256_of
from simkit.metrics.record import Record, check_run
from simkit.workload.build import MeasuredTimes, Workload, build_workload

Progress = Callable[[float, str], None]
"""Called now and then with (share done, label)."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run leaves behind. Counters hold what the workload cut or clipped, by name."""

    record: Record
    notes: tuple[str, ...]
    counters: dict[str, int]
    num_requeued: tuple[int, ...]
    """Requests that each of the scenario's failures sent back to the queue."""
    warmup: WarmUp = field(default_factory=WarmUp)
    """What the statistics leave out."""
    prefix_known: bool = True
    """Whether it is known which prompts are alike."""
    measured: MeasuredTimes | None = None
    """What the log measured of its requests."""


class Overload(Exception):
    """A run that was given up because more requests were in the system than it was allowed.

    `facts` hold what had left by then; everybody else is unfinished.
    """

    def __init__(self, facts: RunFacts) -> None:
        super().__init__("more requests in the system than allowed")
        self.facts = facts


def simulate(
    setup: Setup,
    replication: int = 0,
    progress: Progress | None = None,
    *,
    single_step: bool = False,
    max_in_system: int | None = None,
) -> RunFacts:
    """Run one replication from empty to empty.

    `single_step` prices one step at a time instead of runs of equal steps; the result is the same.
    Raises CheckError for a livelock or a broken invariant, and Overload as soon as an arrival finds `max_in_system`
    requests in the system.
    """
    scenario = setup.scenario

    def run(setup: Setup, workload: Workload) -> RunFacts:
        system = Replicas(setup, workload, keep_slots=replication == 0, progress=progress, single_step=single_step)
        system.max_in_system = max_in_system
        try:
            system.run()
        except TooMany:
            system.close()
            raise Overload(_facts_of(system)) from None
        check_run(system.record, unfinished=system.num_in_system)
        return _facts_of(system)

    def requests() -> Workload:
        return build_workload(
            scenario.workload,
            seed=scenario.seed,
            replication=replication,
            max_model_len=setup.max_model_len,
            base_dir=scenario.base_dir,
        )

    try:
        workload = requests()
        if not single_step and _finds_nothing(setup, workload):
            try:
                return run(replace(setup, names_blocks=False), workload)
            except BlocksMatter:
                workload = requests()
        return run(setup, workload)
    except InputError as error:
        raise scenario.blame(error) from None


def _facts_of(system: Replicas) -> RunFacts:
    """What a run, which is over, leaves behind."""
    workload, record, counters = system.workload, system.record, dict(system.workload.counters)
    if workload.successors is not None and workload.num_requests is not None:
        counters["turns_not_sent"] = workload.num_requests - record.num_arrived
    return RunFacts(
        record,
        workload.notes,
        counters,
        system.num_requeued,
        system.warmup,
        workload.prefix_known,
        workload.measured,
    )


def _finds_nothing(setup: Setup, workload: Workload) -> bool:
    """Whether no prompt begins as another, so that only who was preempted can find anything in the prefix cache.

    A run without preemptions is then the same when blocks are merely counted, and made in half the time.
    """
    spec = setup.scenario.workload
    alone = spec.prefix is None and spec.reuse is None and (spec.trace is None or not workload.prefix_known)
    return setup.prefix_caching and alone and setup.samples == 1


def log_sha256(setup: Setup) -> str | None:
    """What identifies the content of the log that is replayed; None without one."""
    trace = setup.scenario.workload.trace
    return None if trace is None else sha256_of(resolve(trace.path, setup.scenario.base_dir))
