"""Policies: in which order sequences are considered for admission, and whom to preempt when memory runs short.

A waiting queue owns the order only; ties are broken by (arrival, id). A victim is named by a pure rule over the running
list; it may be the one in need, and ties are decided by position, never by id. Knows no memory, no clock, no true
output length.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import ClassVar

from simkit.batching.protocol import WaitingQueue
from simkit.sequence import Sequence


class FcfsQueue:
    """First come, first served; preempted sequences go to the front."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def push(self, seq: Sequence) -> None:
        """Join at the end."""
        self._queue.append(seq)

    def push_preempted(self, seq: Sequence) -> None:
        """Join at the front, so that several victims of one pass keep their order."""
        self._queue.appendleft(seq)

    def peek(self) -> Sequence:
        """The head."""
        return self._queue[0]

    def pop(self) -> Sequence:
        """Remove and return the head."""
        return self._queue.popleft()

    def remove(self, seq: Sequence) -> None:
        """Remove `seq`."""
        self._queue.remove(seq)


class SortedQueue:
    """Smallest key first; a preempted sequence returns to the place its key gives it.

    Samples of one prompt have equal keys and keep the order in which they came.
    """

    __slots__ = ("_heap", "_key", "_num_pushed")

    def __init__(self, key: Callable[[Sequence], tuple[int, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], int, Sequence]] = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for *_, seq in sorted(self._heap, key=lambda entry: entry[:2]))

    def push(self, seq: Sequence) -> None:
        """Join at the place of its key."""
        heapq.heappush(self._heap, (self._key(seq), self._num_pushed, seq))
        self._num_pushed += 1

    push_preempted = push

    def peek(self) -> Sequence:
        """The sequence with the smallest key."""
        return self._heap[0][2]

    def pop(self) -> Sequence:
        """Remove and return the sequence with the smallest key."""
        return heapq.heappop(self._heap)[2]

    def remove(self, seq: Sequence) -> None:
        """Remove `seq`."""
        self._heap = [entry for entry in self._heap if entry[2] is not seq]
        heapq.heapify(self._heap)


class FairQueue:
    """Least served tenant first, within a tenant first come first served; who was preempted goes to its tenant's front.

    `served` counts scheduled tokens a tenant. A tenant that returns from idleness starts at the least count of those
    that wait, so that idling earns no credit (the virtual token counter of Sheng et al., OSDI 2024). Arrivals stand
    aside until `place_arrivals` at the next pass, for between passes the counts are not up to date.
    """

    __slots__ = ("_arrived", "_queues", "served")

    def __init__(self) -> None:
        self.served: dict[int, int] = {}
        self._queues: dict[int, deque[Sequence]] = {}
        self._arrived: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._arrived) + sum(len(queue) for queue in self._queues.values())

    def __iter__(self) -> Iterator[Sequence]:
        tenants = sorted(self._queues, key=self._rank)
        return chain((seq for tenant in tenants for seq in self._queues[tenant]), self._arrived)

    def place_arrivals(self) -> None:
        """Let those who arrived since the last pass take their places."""
        for seq in self._arrived:
            self._join(seq.tenant).append(seq)
        self._arrived.clear()

    def _rank(self, tenant: int) -> tuple[int, int, int]:
        head = self._queues[tenant][0]
        return (self.served[tenant], head.arrival_ns, head.id)

    def _join(self, tenant: int) -> deque[Sequence]:
        if tenant not in self._queues:
            least = min((self.served[other] for other in self._queues), default=0)
            self.served[tenant] = max(self.served.get(tenant, 0), least)
            self._queues[tenant] = deque()
        return self._queues[tenant]

    def push(self, seq: Sequence) -> None:
        """Join at the end of the tenant's queue."""
        self._arrived.append(seq)

    def push_preempted(self, seq: Sequence) -> None:
        """Join at the front of the tenant's queue."""
        self._join(seq.tenant).appendleft(seq)

    def peek(self) -> Sequence:
        """The head of the least served tenant's queue."""
        self.place_arrivals()
        return self._queues[min(self._queues, key=self._rank)][0]

    def pop(self) -> Sequence:
        """Remove and return the head."""
        seq = self.peek()
        self.remove(seq)
        return seq

    def remove(self, seq: Sequence) -> None:
        """Remove `seq`."""
        if seq in self._arrived:
            self._arrived.remove(seq)
            return
        queue = self._queues[seq.tenant]
        queue.remove(seq)
        if not queue:
            del self._queues[seq.tenant]


FAIR_FLOOR_TOKENS = 32
"""Under `fair`, tokens a sequence may generate after each admission before it becomes a victim, while others can be."""


class Policy:
    """Who is admitted first, who is preempted, and what is charged for: here, first come first served.

    A batcher makes an object of its own. A further policy is a class that changes some of this, and an entry in
    `POLICIES`; its name stands in the schema of scenario files as well.
    """

    in_vllm: ClassVar[bool] = False
    """Whether the real engine has it, under the same name."""
    drawn_key: ClassVar[str | None] = None
    """The key of the workload whose draws it decides by."""
    charges: ClassVar[bool] = False
    """Whether it counts what each pass schedules: only continuous batching, which decides every step, can serve it."""
    preempts_last: ClassVar[bool] = True
    """Whether the victim is the last one admitted, whoever else runs."""

    def __init__(self) -> None:
        self.waiting: WaitingQueue = FcfsQueue()

    def begin_pass(self) -> None:
        """A pass begins; called only where the policy `charges`."""

    def charge(self, scheduled: Mapping[Sequence, int], group: Mapping[int, int], num_steps: int = 1) -> None:
        """A pass scheduled so many tokens of sequences; called only where the policy `charges`.

        In `num_steps` steps each of a `group` got a token as well, which has so many sequences of each tenant.
        """

    def victim(self, running: dict[Sequence, None]) -> Sequence:
        """Whom to preempt of those that run, in order of admission: the last (scheduler specification, section 4)."""
        return next(reversed(running))


class Fcfs(Policy):
    """First come, first served."""

    in_vllm = True


class Priority(Policy):
    """The smallest (priority, arrival) first."""

    in_vllm = True
    drawn_key = "priority"
    preempts_last = False

    def __init__(self) -> None:
        self.waiting = SortedQueue(lambda seq: (seq.priority, seq.arrival_ns, seq.id))

    def victim(self, running: dict[Sequence, None]) -> Sequence:
        """The largest (priority, arrival); on a tie the one admitted earliest (section 4)."""
        return max(running, key=lambda seq: (seq.priority, seq.arrival_ns))


class ShortestFirst(Policy):
    """The shortest prompt first."""

    def __init__(self) -> None:
        self.waiting = SortedQueue(lambda seq: (seq.num_prompt_tokens, seq.arrival_ns, seq.id))


class Fair(Policy):
    """The least served tenant first."""

    drawn_key = "tenants"
    charges = True
    preempts_last = False
    waiting: FairQueue

    def __init__(self) -> None:
        self.waiting = FairQueue()

    def begin_pass(self) -> None:
        """Let those who arrived since the last pass take their places."""
        self.waiting.place_arrivals()

    def charge(self, scheduled: Mapping[Sequence, int], group: Mapping[int, int], num_steps: int = 1) -> None:
        """Count the tokens as served."""
        served = self.waiting.served
        for seq, num_tokens in scheduled.items():
            served[seq.tenant] += num_tokens
        for tenant, count in group.items():
            if count:
                served[tenant] += count * num_steps

    def victim(self, running: dict[Sequence, None]) -> Sequence:
        """The last admitted of the most served tenant; below the floor only when nobody else is left."""
        served = self.waiting.served
        above = [seq for seq in running if seq.num_output_tokens - seq.num_tokens_at_admission >= FAIR_FLOOR_TOKENS]
        candidates = above or list(running)
        most = max(served[seq.tenant] for seq in candidates)
        return next(seq for seq in reversed(candidates) if served[seq.tenant] == most)


POLICIES: dict[str, type[Policy]] = {"fcfs": Fcfs, "priority": Priority, "sjf": ShortestFirst, "fair": Fair}
"""Policy name in the scenario file to what it is."""
