"""Replicas, their router and the source of requests: who arrives, who is turned away, and who goes where."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from simkit.engine import clock as ranks
from simkit.engine.build import Setup, describe, make_batcher, make_kv, may_ride, reserve_tokens
from simkit.engine.clock import Clock
from simkit.engine.failures import FallibleReplica, Outages
from simkit.engine.fast_path.fast_replica import FastReplica
from simkit.engine.replica import Replica
from simkit.engine.request import RequestState
from simkit.engine.source import ROUTERS, Source
from simkit.engine.warm_cache import warm
from simkit.engine.warmup import warmup_of
from simkit.errors import CheckError
from simkit.kv.prefix import PromptTokens
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.sequence import Sequence
from simkit.types import Request
from simkit.units import s_to_ns
from simkit.workload.build import Workload

MAX_TURNED_AWAY_AT_ONCE = 10_000
"""Requests turned away at one instant after which a closed loop is stuck."""

AnyReplica = TypeVar("AnyReplica", bound=Replica)


class TooMany(Exception):
    """Somebody arrived who is one too many."""


class BlocksMatter(Exception):
    """A run whose blocks have no names cannot go on."""


class Replicas:
    """Replicas, their router and the source of requests. Implements `System` for the replicas."""

    def __init__(
        self,
        setup: Setup,
        workload: Workload,
        *,
        keep_slots: bool,
        progress: Callable[[float, str], None] | None,
        single_step: bool,
    ) -> None:
        scenario = setup.scenario
        self.record = Record(keep_slots)
        self._setup = setup
        self._max_model_len = setup.max_model_len
        self._num_samples = setup.samples
        self._engine = scenario.engine
        self._prefix_caching = setup.prefix_caching
        self._clock = Clock()
        self.workload = workload
        self._first_token_ns = setup.first_token_ns
        self._source = Source(workload, self._clock, self._arrive, self._arrivals_ended, setup.first_token_ns)
        self._progress = progress
        self._router = ROUTERS[scenario.router]
        self._queue_limit = scenario.workload.queue_limit
        timeout_s = scenario.workload.timeout_s
        self._timeout_ns = None if timeout_s is None else s_to_ns(timeout_s)
        self.warmup = warmup_of(setup, workload)
        self._measure = self.warmup.measure(setup.first_token_ns)
        self._blocks_are_nameless = not setup.names_blocks
        self._num_routed = 0
        self._num_left = 0
        self.max_in_system: int | None = None
        self._turned_away_ns = -1
        self._turned_away_at_once = 0
        self._single_step = single_step
        self._replicas: Seq[Replica]
        self._up: Seq[int]
        self._outages: Outages | None = None
        if scenario.failures:
            self._outages = Outages(
                scenario.failures,
                scenario.replicas,
                self._clock,
                self.record,
                make_replica=self._make_fallible,
                choose=self._choose,
                left=self.left,
                stream=setup.stream,
            )
            self._replicas, self._up = self._outages.replicas, self._outages.up
        else:
            self._up = range(scenario.replicas)
            self._replicas = [self._make_replica(index) for index in self._up]

    def _make_replica(self, index: int) -> Replica:
        if not self._single_step and may_ride(self._setup):
            return self._put_together(partial(FastReplica, make_sequences=self._make_sequences), index)
        return self._put_together(Replica, index)

    def _make_fallible(self, index: int, stop_ns: int | None) -> FallibleReplica:
        return self._put_together(partial(FallibleReplica, stop_ns=stop_ns), index)

    def _put_together(self, make: Callable[..., AnyReplica], index: int) -> AnyReplica:
        kv = make_kv(self._setup, count_blocks=not self._single_step)
        if not self._clock.now_ns:  # one that comes back after a failure has lost its cache
            warm(kv, self._setup)
        return make(
            index,
            self._clock,
            kv,
            self._setup.latency,
            lambda listener: make_batcher(self._setup, kv, listener, one_by_one=self._single_step),
            self.record,
            self,
            max_slots=self._setup.max_num_active_seqs,
            settings=describe(self._setup),
            stream=self._setup.stream,
            async_scheduling=self._setup.async_scheduling,
            single_step=self._single_step,
        )

    @property
    def num_in_system(self) -> int:
        """Requests that arrived and have not left."""
        return sum(replica.num_outstanding for replica in self._replicas)

    @property
    def num_requeued(self) -> tuple[int, ...]:
        """Requests that each failure sent back to the queue."""
        return () if self._outages is None else tuple(self._outages.num_requeued)

    def run(self) -> None:
        """Let everything happen; afterwards nobody is left."""
        self._source.start()
        with _no_garbage():
            self._clock.run()
        self.close()

    def close(self) -> None:
        """Let everybody hand over what was noted."""
        if self._outages is not None:
            self._outages.close()
        for replica in self._replicas:
            replica.close()

    @property
    def next_arrival_ns(self) -> int | None:
        """When the next request comes, as far as that is known."""
        return self._source.next_arrival_ns

    def no_arrival_pending(self) -> bool:
        """Nothing is booked; in a closed loop and in sessions only a departure can bring the next request."""
        return self._source.num_booked == 0

    def _arrivals_ended(self) -> None:
        for replica in self._replicas:
            replica.arrivals_ended()

    # --- arrival and departure ---------------------------------------------------------------------------------------

    def _arrive(self, request: Request) -> None:
        now = self._clock.now_ns
        self.record.arrive(now)
        if self.max_in_system is not None and self.record.num_arrived - self._num_left > self.max_in_system:
            raise TooMany
        reserve = reserve_tokens(self._engine, request, self._max_model_len)
        reason = self._reject_reason(request, reserve)
        if reason is not None:
            self._turn_away(request, rec.REJECTED, reason, -1)
            return
        index = self._choose(request)
        if self._queue_limit is not None and self._num_waiting(index) >= self._queue_limit:
            self._turn_away(request, rec.REFUSED, f"queue_limit of {self._queue_limit} reached", index)
            return
        true_output = min(request.output_tokens, request.max_tokens, self._max_model_len - request.prompt_tokens)
        measured = self._measure is None or self._measure(request, now)
        state = RequestState(request, now, index, measured, true_output, reserve)
        replica = self._replicas[index]
        if isinstance(replica, FastReplica):
            replica.welcome(state)
            return
        self._make_sequences(state)
        abandon = replica.abandon
        if self._outages is not None:
            self._outages.send(state, index)
            abandon = self._outages.abandon
        else:
            replica.arrive(state.sequences[0])
        if self._timeout_ns is not None:
            # The client counts from when it sent the request.
            left_ns = max(0, self._timeout_ns - self._first_token_ns)
            self._clock.at(now + left_ns, ranks.ARRIVAL, lambda: abandon(state))

    def _choose(self, request: Request) -> int:
        """The index of a replica that is up, -1 when none is."""
        if not self._up:
            return -1
        self._num_routed += 1
        return self._router(request, self._num_routed - 1, self._replicas, self._up)

    def _num_waiting(self, index: int) -> int:
        """Requests that wait at replica `index`, or for -1 at the router."""
        if index < 0 and self._outages is not None:
            return len(self._outages.waiting)
        return len(self._replicas[index].batcher.waiting)

    def _make_sequences(self, state: RequestState) -> None:
        """Give a request a sequence for each sample, ready to join a replica."""
        request, reserve = state.request, state.reserve_tokens
        state.num_parts = self._num_samples
        first = Sequence(request, reserve, self._identity(request, 0) if self._prefix_caching else None, state)
        for sample in range(1, self._num_samples):
            part = RequestState(
                request, state.arrival_ns, state.replica, state.measured, state.true_output_tokens, lead=state
            )
            tokens = self._identity(request, sample) if self._prefix_caching else None
            first.forks += (Sequence(request, reserve, tokens, part),)
        state.sequences = (first, *first.forks)

    def _identity(self, request: Request, sample: int) -> PromptTokens:
        return PromptTokens(
            request.id,
            request.prefix_group,
            request.prefix_tokens,
            request.prompt_tokens,
            self._engine.block_size,
            sample,
            request.shared,
        )

    def _reject_reason(self, request: Request, reserve: int) -> str | None:
        """What can never be served is rejected on arrival."""
        max_model_len = self._max_model_len
        if request.prompt_tokens >= max_model_len:
            return f"the prompt is not shorter than max_model_len ({max_model_len})"
        longest = min(request.prompt_tokens + request.max_tokens, max_model_len)
        if not self._replicas[0].kv.fits_ever(longest, reserve):
            return f"its KV can never fit the pool of {self._setup.capacity_tokens} tokens"
        return None

    def _turn_away(self, request: Request, status: int, reason: str, index: int) -> None:
        now = self._clock.now_ns
        self._watch_turned_away(now)
        measured = self._measure is None or self._measure(request, now)
        state = RequestState(request, now, index, measured, request.output_tokens)
        state.leave(self.record, status, now, stream=True, reason=self.record.reason(reason))
        self.left(now, request.id)

    def _watch_turned_away(self, now_ns: int) -> None:
        """Clients that do not think and are turned away at once come back at the same instant, for ever."""
        self._turned_away_at_once = self._turned_away_at_once + 1 if now_ns == self._turned_away_ns else 1
        self._turned_away_ns = now_ns
        if self._turned_away_at_once >= MAX_TURNED_AWAY_AT_ONCE and self.workload.concurrency is not None:
            raise CheckError(
                f"no progress: {MAX_TURNED_AWAY_AT_ONCE} requests of the closed loop were turned away at {now_ns} ns "
                "and time stands still: give workload.arrivals a think_time_s, or raise what refuses them"
            )

    def left(self, now_ns: int, request: int) -> None:
        """Request number `request` has left, served or not."""
        self._num_left += 1
        if self._progress is not None and self._num_left % 256 == 0:
            self._progress(self._share_done(now_ns), "")
        self._source.left(now_ns, request)

    def preempted(self) -> None:
        """Somebody was preempted, and might find its blocks again."""
        if self._blocks_are_nameless and self._setup.finds_again:
            raise BlocksMatter

    def _share_done(self, now_ns: int) -> float:
        """Of the requests where their number is known, else of the time in which they come; 0 where neither is."""
        total, duration_ns = self.workload.num_requests, self.workload.duration_ns
        if total:
            return self._num_left / total
        return min(1.0, now_ns / duration_ns) if duration_ns else 0.0


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Requests die with their last reference, so looking for cycles among millions of objects finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
