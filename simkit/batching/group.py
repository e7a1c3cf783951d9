"""Who runs: the sequences that decode together, those looked at one by one, and those whose last token is under way.

Owns the running list and the counts over it, and of the decode group the sum and maximum of contexts and when a visible
limit stops somebody. A step costs nothing for each member of the group. Makes no decision, but for how much of prompts
a pass may compute beside those who run.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simkit.batching.plan import ContinuousSettings, PassState, ScheduledChunk, StepPlan
from simkit.batching.protocol import OutputListener, WaitingQueue
from simkit.kv.protocol import KVAllocator
from simkit.sequence import Phase, Sequence, StepCounter


class DecodeGroup:
    """The grouped sequences of a batcher. Contexts are as after the steps scheduled so far."""

    __slots__ = ("_by_tenant", "_computed", "_longest", "_when", "count", "counter", "newest", "stops", "tenants")

    def __init__(self, counter: StepCounter, *, by_tenant: bool = False) -> None:
        self.counter = counter
        self.count = 0
        self.newest = -1
        """Largest admission number of those that joined since nobody was in the group."""
        self.tenants: dict[int, int] = {}
        """How many a tenant has, if they are counted `by_tenant`."""
        self._by_tenant = by_tenant
        self._computed = 0
        self._longest: list[tuple[int, int, Sequence]] = []
        self.stops: dict[int, list[Sequence]] = {}
        """Who is to `stop`, by the number of the last step that schedules them."""
        self._when: dict[Sequence, tuple[int, int]] = {}

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._when

    def contexts(self) -> tuple[int, int]:
        """Computed tokens of all of them: (sum, maximum); 0 without any."""
        scheduled, longest, when = self.counter.scheduled, self._longest, self._when
        while longest:
            least, _, seq = longest[0]
            if seq in when and when[seq][0] == -least:
                return self._computed + self.count * scheduled, scheduled - least
            heappop(longest)
        return 0, 0

    def join(self, seq: Sequence, num_steps: int) -> None:
        """`seq` joins; after `num_steps` further scheduled steps a limit that everybody sees stops it."""
        counter = self.counter
        base = seq.num_computed_tokens - counter.scheduled
        seq.join_group(counter)
        self.count += 1
        self._computed += base
        stop = counter.scheduled + num_steps
        stopping = self.stops.get(stop)
        if stopping is None:
            self.stops[stop] = [seq]
        else:
            stopping.append(seq)
        self._when[seq] = (base, stop)
        if len(self._longest) > 64 + 2 * self.count:
            self._longest = [entry for entry in self._longest if entry[2] in self._when]
            heapify(self._longest)
        heappush(self._longest, (-base, seq.number, seq))
        if seq.number > self.newest:
            self.newest = seq.number
        if self._by_tenant:
            self.tenants[seq.tenant] = self.tenants.get(seq.tenant, 0) + 1

    def leave(self, seq: Sequence) -> None:
        """`seq` counts alone again."""
        stop = self._drop(seq)
        stopping = self.stops[stop]
        stopping.remove(seq)
        if not stopping:
            del self.stops[stop]
        seq.leave_group()

    def stop(self) -> list[Sequence]:
        """Let those go whom a limit keeps from being scheduled from now on; what is under way still comes."""
        stopping = self.stops.pop(self.counter.scheduled)
        for seq in stopping:
            self._drop(seq)
            seq.stop()
        return stopping

    def _drop(self, seq: Sequence) -> int:
        base, stop = self._when.pop(seq)
        self.count -= 1
        self._computed -= base
        if self._by_tenant:
            self.tenants[seq.tenant] -= 1
        if not self.count:
            self.newest = -1
        return stop


class Roster:
    """Sequences with a slot, in order of admission, and the plans whose outputs are to come.

    Each of them is *grouped*, *ungrouped* (looked at one by one) or *stopped* (its last token is under way).
    """

    def __init__(
        self, kv: KVAllocator, listener: OutputListener, max_model_len: int, *, by_tenant: bool, one_by_one: bool
    ) -> None:
        self.running: dict[Sequence, None] = {}
        self.ungrouped: dict[Sequence, None] = {}
        self.stopped: dict[Sequence, None] = {}
        self.counter = StepCounter()
        self.group = DecodeGroup(self.counter, by_tenant=by_tenant)
        self.joining: list[Sequence] = []
        """Those that sampled a token in the last step, and may join the group from the next one on."""
        self.open_plans: list[StepPlan] = []
        self.num_computed_tokens = 0
        self.num_pending_forks = 0
        """Slots set aside for further samples of those that run."""
        self.version = 0
        """Moves when somebody takes or leaves a slot."""
        self._kv = kv
        self._listener = listener
        self._max_model_len = max_model_len
        self._one_by_one = one_by_one
        self._num_admitted = 0

    def schedule(self, plan: StepPlan) -> list[ScheduledChunk]:
        """All that `plan`, the last one made, schedules, in schedule order: for recordings."""
        grouped = [seq for seq in self.running if seq in self.group] if plan.num_scheduled else []
        decodes = [ScheduledChunk(seq, "D", seq.num_computed_tokens - 1, 1, True) for seq in grouped]
        return sorted([*plan.explicit, *decodes], key=lambda chunk: chunk.seq.number)

    def has_decodes(self) -> bool:
        """Whether anybody who runs has its prompt computed."""
        return bool(self.group.count or self.stopped or any(not seq.in_prefill for seq in self.ungrouped))

    def take_slot(self, seq: Sequence) -> None:
        """`seq` runs, and is ungrouped."""
        seq.phase = Phase.RUNNING
        self.running[seq] = self.ungrouped[seq] = None
        self.num_computed_tokens += seq.num_computed_tokens
        seq.num_tokens_at_admission = seq.num_output_tokens
        seq.number = self._num_admitted
        self._num_admitted += 1
        self.version += 1

    def leave_slot(self, seq: Sequence) -> None:
        """`seq` runs no more; its memory is given back."""
        if seq in self.stopped:
            del self.stopped[seq]
            seq.leave_group()
        elif seq.is_grouped:
            self.group.leave(seq)
        else:
            del self.ungrouped[seq]
        del self.running[seq]
        self.num_computed_tokens -= seq.num_computed_tokens
        self._kv.free(seq)
        self.num_pending_forks -= len(seq.forks)
        self.version += 1

    # --- the decode group --------------------------------------------------------------------------------------------

    def regroup(self) -> None:
        """Before a pass: let those join the group, and those leave it, for whom it is time."""
        if self.joining:
            self._admit_to_group()
        if self.counter.scheduled in self.group.stops:
            for seq in self.group.stop():
                self._kv.leave(seq)
                self.stopped[seq] = None
                self._listener.stopped(seq)

    def _admit_to_group(self) -> None:
        """Whoever sampled a token in the last step decodes from now on, with the group."""
        joining, self.joining = self.joining, []
        for seq in joining:
            if seq.phase is Phase.RUNNING and not seq.forks and self._kv.can_join(seq):
                self._kv.join(seq)
                end = min(seq.num_prompt_tokens + seq.max_tokens, self._max_model_len) - 1
                self.group.join(seq, end - seq.num_computed_tokens)
                del self.ungrouped[seq]
                self._listener.joined(seq, self.counter.committed)

    def disband(self) -> None:
        """The group is no more: all are looked at one by one again, and so are their outputs that are to come."""
        if not (self.group.count or self.stopped):
            return
        for seq in self.running:
            if seq.is_grouped:
                self.leave_group(seq)
        self.ungrouped.clear()
        self.ungrouped.update(self.running)

    def leave_group(self, seq: Sequence) -> None:
        """`seq` is looked at by itself again, and so are those of its outputs that are to come."""
        self._listener.left(seq)
        if seq in self.stopped:
            del self.stopped[seq]
            seq.leave_group()
        else:
            self.group.leave(seq)
            self._kv.leave(seq)
        self.ungrouped[seq] = None
        for plan in self.open_plans:
            if plan.number > seq.last_step:
                plan.outputs = [*plan.outputs, ScheduledChunk(seq, "D", seq.num_computed_tokens - 1, 1, True)]
        seq.last_step = self.counter.scheduled

    def run_ahead(self, num_steps: int, known: int) -> None:
        """`num_steps` further passes only let the group decode; the outputs of those before the last came in."""
        self.counter.committed += num_steps
        grown = self._kv.grow_all(num_steps, known)
        assert grown, "steps_until_full promised this memory"
        self.counter.scheduled += num_steps
        self.num_computed_tokens += num_steps * self.group.count

    # --- plans -------------------------------------------------------------------------------------------------------

    def plan_group(self) -> StepPlan:
        """A pass that only lets the group decode; its memory is there."""
        group, counter = self.group, self.counter
        counter.scheduled = number = counter.scheduled + 1
        plan = StepPlan()
        plan.number = number
        plan.version = self.version
        plan.num_decode = plan.num_sampled = plan.num_scheduled = count = group.count
        plan.held_slots = len(self.running)
        plan.decode_context_sum, plan.decode_context_max = group.contexts()
        plan.stable = not self.stopped
        self.num_computed_tokens += count
        self.open_plans.append(plan)
        return plan

    def make_plan(self, state: PassState) -> StepPlan:
        """The plan of a pass, counters advanced; `stable` where all it holds goes on from the step before."""
        plan = StepPlan()
        plan.preemptions = state.preemptions
        plan.held_slots = len(self.running)
        group, counter = self.group, self.counter
        if state.group_size or state.scheduled:
            assert state.group_size == group.count, "the group is scheduled together or not at all"
            counter.scheduled += 1
            if state.group_size:
                plan.num_decode = plan.num_sampled = plan.num_scheduled = state.group_size
                plan.decode_context_sum, plan.decode_context_max = group.contexts()
            self.open_plans.append(plan)
        plan.number = counter.scheduled
        plan.stable = self._add_each(plan, state) if state.scheduled else True
        self.num_computed_tokens += plan.num_scheduled_tokens
        plan.version = self.version
        return plan

    def _add_each(self, plan: StepPlan, state: PassState) -> bool:
        """Enter in the plan what was scheduled one by one; whether all of it goes on from the step before."""
        plan.explicit = []
        all_decode = True
        for seq, num_tokens in state.scheduled.items():
            before = seq.num_computed_tokens
            samples = seq.schedule(num_tokens)
            kind = state.kind_of.get(seq, "D")
            chunk = ScheduledChunk(seq, kind, before, num_tokens, samples)
            plan.explicit.append(chunk)
            plan.add(chunk)
            if kind != "D" or seq.last_step != plan.number - 1 or not self._kv.can_join(seq):
                all_decode = False
            if samples:
                seq.last_step = plan.number
                if not self._one_by_one:
                    self.joining.append(seq)
        plan.outputs = plan.explicit
        return all_decode

    def take_apart(self, state: PassState) -> None:
        """The group was scheduled together, but now it matters who is in it."""
        one_by_one = state.scheduled
        state.scheduled = {seq: 1 for seq in self.running if seq in self.group}
        state.scheduled.update(one_by_one)
        state.group_size = 0
        self.disband()

    # --- everybody comes and goes ------------------------------------------------------------------------------------

    def resume(self, scheduled: int, committed: int, seqs: list[Sequence], plan: StepPlan | None) -> None:
        """Go on with `seqs`, in order of admission, and `plan`, whose outputs are to come; nobody was here before.

        All of them sampled a token in the last step, or are to.
        """
        assert not self.running, "only an empty roster can resume"
        self.counter.scheduled, self.counter.committed = scheduled, committed
        for seq in seqs:
            placed = self._kv.try_reserve(seq, seq.num_computed_tokens)
            assert placed, "their memory was theirs before"
            self.take_slot(seq)
        self.joining = list(seqs)
        if plan is not None:
            plan.version = self.version
            self.open_plans.append(plan)

    def dismiss(self) -> list[Sequence]:
        """Let everybody go, slots and memory with them: they go on elsewhere. All are in the group."""
        seqs = list(self.running)
        for seq in seqs:
            self.group.leave(seq)
            self._kv.free(seq)
        self.running.clear()
        self.open_plans.clear()
        self.num_computed_tokens = 0
        return seqs


class PrefillLimits:
    """How much of prompts a pass may compute: the cap on each, and the passes that leave prompts alone."""

    def __init__(self, settings: ContinuousSettings) -> None:
        self._settings = settings
        self.last_prefill_pass = -settings.prefill_schedule_interval
        self.backlog = False
        """Whether somebody still waited after the last pass that was free to admit."""

    def begin_pass(self, roster: Roster, waiting: WaitingQueue) -> PassState:
        """The budget of the next pass, its cap (0: none), and whether it holds prompts back."""
        settings = self._settings
        cap, interval = settings.long_prefill_token_threshold, settings.prefill_schedule_interval
        if cap > 0:
            num_requests = len(roster.running) + len(waiting)
            if num_requests <= 1:
                cap = 0
            elif settings.long_prefill_token_threshold_adaptive:
                cap = max(cap, settings.max_num_batched_tokens // num_requests)
        is_early = interval > 1 and roster.counter.scheduled + 1 - self.last_prefill_pass < interval
        hold = is_early and not self.backlog and roster.has_decodes()
        return PassState(settings.max_num_batched_tokens, cap, hold)
