"""Paged KV memory: books that balance after every operation, the eviction order, gate and watermark arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from simkit.kv.paged import PagedAllocator
from simkit.sequence import Sequence
from simkit.types import Request

SETTINGS = settings(max_examples=40, derandomize=True, deadline=None, stateful_step_count=40)


class Tokens:
    """Content: the first `prefix` tokens of all sequences of a group are equal, everything else is unique."""

    def __init__(self, own: int, group: int, prefix: int, block_size: int) -> None:
        self.own, self.group, self.num_shared = own, group, prefix // block_size

    def block_key(self, index: int) -> Hashable:
        return (-1 - self.group, index) if self.group >= 0 and index < self.num_shared else (self.own, index)


def sequence(number: int, prompt: int, group: int = -1, prefix: int = 0, block_size: int = 4) -> Sequence:
    """A sequence that has generated nothing yet."""
    request = Request(number, 0, prompt, 1000, 1000, prefix_group=group, prefix_tokens=prefix)
    return Sequence(request, tokens=Tokens(number, group, prefix, block_size))


def state(kv: PagedAllocator, seqs: list[Sequence]) -> dict[str, Any]:
    """All that decides what the allocator does next: tables, what is cached, the order in which free blocks go out."""
    other, others = copy.deepcopy((kv, seqs))
    tables = [list(other.blocks_of(seq)) for seq in others]
    hits = [other.lookup(seq) if seq.kv is None else None for seq in others]
    taker = sequence(10**6, 1)
    assert other.try_reserve(taker, other.num_free_blocks * other.block_size)
    return {"tables": tables, "hits": hits, "free": other.blocks_of(taker)}


class PagedMachine(RuleBasedStateMachine):
    """Random operations as a batcher would make them, checked after each."""

    caching = False

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Sequence] = []
        self.held: list[Sequence] = []
        self.joined: list[Sequence] = []
        self.number = self.num_admitted = 0

    @initialize(usable=st.integers(1, 14), block_size=st.sampled_from([1, 2, 4]), watermark=st.sampled_from([0, 0.2]))
    def build(self, usable: int, block_size: int, watermark: float) -> None:
        self.block_size = block_size
        self.kv = PagedAllocator(usable + 1, block_size, watermark, self.caching)

    def everyone(self) -> list[Sequence]:
        return self.waiting + self.held

    @rule(prompt=st.integers(1, 20), group=st.integers(-1, 1), prefix=st.integers(1, 12))
    def arrive(self, prompt: int, group: int, prefix: int) -> None:
        prefix = min(prefix, prompt - 1)
        group = group if prefix else -1
        self.waiting.append(sequence(self.number, prompt, group, prefix, self.block_size))
        self.number += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), gate=st.booleans(), headroom=st.booleans())
    def admit(self, data: st.DataObject, gate: bool, headroom: bool) -> None:
        seq = data.draw(st.sampled_from(self.waiting))
        before = state(self.kv, self.everyone())
        computed = self.kv.lookup(seq)
        assert computed < seq.num_known_tokens
        assert computed % self.block_size == 0
        assert state(self.kv, self.everyone()) == before
        num_tokens = computed + data.draw(st.integers(1, seq.num_known_tokens - computed))
        if self.kv.try_admit(seq, num_tokens, seq.num_known_tokens if gate else 0, headroom):
            assert len(seq.kv.blocks) == -(-num_tokens // self.block_size)
            self.waiting.remove(seq)
            self.held.append(seq)
            seq.num_computed_tokens = num_tokens
            seq.number = self.num_admitted
            self.num_admitted += 1
        else:
            assert state(self.kv, self.everyone()) == before
            assert seq.kv is None

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), pad=st.integers(0, 20))
    def reserve(self, data: st.DataObject, pad: int) -> None:
        seq = data.draw(st.sampled_from(self.waiting))
        before, free = state(self.kv, self.everyone()), self.kv.num_free_blocks
        needed = -(-(seq.num_known_tokens + pad) // self.block_size)
        if self.kv.try_reserve(seq, seq.num_known_tokens + pad):
            assert len(seq.kv.blocks) == needed
            self.kv.free(seq)  # a batch that runs to completion never grows or shares
        else:
            assert needed > free
            assert state(self.kv, self.everyone()) == before

    @precondition(lambda self: len(self.held) > len(self.joined))
    @rule(data=st.data(), more=st.integers(1, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.held if seq not in self.joined]))
        free = self.kv.num_free_blocks
        if seq.num_computed_tokens == seq.num_known_tokens:
            seq.num_output_tokens += 1
        num_tokens = min(seq.num_computed_tokens + more, seq.num_known_tokens)
        needed = -(-num_tokens // self.block_size) - len(seq.kv.blocks)
        before = state(self.kv, self.everyone())
        if self.kv.try_grow(seq, num_tokens):
            seq.num_computed_tokens = num_tokens
        else:
            assert needed > free
            assert state(self.kv, self.everyone()) == before

    @precondition(lambda self: len(self.held) > len(self.joined))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.held if seq not in self.joined]))
        if seq.num_known_tokens - seq.num_computed_tokens > 1:
            return
        assert self.kv.can_join(seq)
        seq.num_output_tokens += (
            seq.num_known_tokens == seq.num_computed_tokens
        )  # the token that the next step computes
        self.kv.join(seq)
        self.joined.append(seq)

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.joined))
        self.kv.leave(seq)
        self.joined.remove(seq)

    @precondition(lambda self: self.joined)
    @rule(data=st.data(), limit=st.integers(1, 12))
    def run(self, data: st.DataObject, limit: int) -> None:
        promised = self.kv.steps_until_full(limit)
        assert promised == most_steps(self.kv, self.joined, limit)
        if promised < limit:
            before = state(self.kv, self.everyone())
            assert not self.kv.grow_all(promised + 1, 1)
            assert state(self.kv, self.everyone()) == before
        check_run(self.kv, self.joined, data.draw(st.integers(0, promised)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), comes_back=st.booleans())
    def free(self, data: st.DataObject, comes_back: bool) -> None:
        seq = data.draw(st.sampled_from(self.held))
        self.held.remove(seq)
        if seq in self.joined:
            self.joined.remove(seq)
        self.kv.free(seq)
        assert seq.kv is None
        if comes_back:
            seq.num_computed_tokens = 0
            self.waiting.append(seq)

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity()
        usage = self.kv.usage()
        assert usage.allocated_tokens + usage.free_tokens == usage.capacity_tokens
        distinct = {block for seq in self.held for block in seq.kv.blocks}
        assert usage.allocated_tokens == len(distinct) * self.block_size


class CachingMachine(PagedMachine):
    """The same with prefix caching."""

    caching = True


def one_by_one(kv: PagedAllocator, seqs: list[Sequence], num_steps: int, known: int = 1) -> int:
    """Grow step by step, in order of admission, as single-stepping does; the number of steps that found memory.

    The token that a step computes is `known` before, or seen only afterwards.
    """
    for step in range(num_steps):
        for seq in sorted(seqs, key=lambda seq: seq.number):
            assert seq.num_known_tokens == seq.num_computed_tokens + known
            if not kv.try_grow(seq, seq.num_computed_tokens + 1):
                return step
            seq.num_computed_tokens += 1
            seq.num_output_tokens += 1
    return num_steps


def twin(kv: PagedAllocator, seqs: list[Sequence]) -> tuple[PagedAllocator, list[Sequence]]:
    """A deep copy of the pool and of these sequences in it."""
    return copy.deepcopy((kv, seqs))


def most_steps(kv: PagedAllocator, seqs: list[Sequence], limit: int, known: int = 1) -> int:
    """What `steps_until_full` promises, by trying."""
    return one_by_one(*twin(kv, seqs), limit, known)


def check_run(kv: PagedAllocator, seqs: list[Sequence], num_steps: int) -> None:
    """`grow_all` leaves what `num_steps` single steps leave, in the same blocks."""
    other, others = twin(kv, seqs)
    one_by_one(other, others, num_steps)
    assert kv.grow_all(num_steps, 1)
    for seq in seqs:
        seq.num_computed_tokens += num_steps
        seq.num_output_tokens += num_steps
    assert state(kv, seqs) == state(other, others)


@pytest.mark.parametrize("machine", [PagedMachine, CachingMachine])
def test_random_operations(machine: type[PagedMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


@given(st.data())
@settings(max_examples=75, derandomize=True, deadline=None)
def test_steps_until_full_is_exact(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 2, 4, 16]))
    usable = data.draw(st.integers(1, 40))
    kv, seqs = PagedAllocator(usable + 1, block_size), []
    for number in range(data.draw(st.integers(1, 5))):
        seq = sequence(number, data.draw(st.integers(1, 30)), block_size=block_size)
        if not kv.try_admit(seq, seq.num_known_tokens, 0, headroom=False):
            break
        seq.num_computed_tokens = seq.num_known_tokens
        seq.num_output_tokens += 1
        kv.join(seq)
        seqs.append(seq)
    limit = data.draw(st.integers(1, 200))
    assert kv.steps_until_full(limit) == most_steps(kv, seqs, limit)


class Trio:
    """Three pools in which the same happens: grown by runs of steps, step by step, and sequence by sequence."""

    def __init__(self, usable: int, block_size: int, caching: bool, known: int) -> None:
        self.pools = [PagedAllocator(usable + 1, block_size, 0.0, caching) for _ in range(3)]
        self.block_size, self.known = block_size, known
        self.everyone: list[list[Sequence]] = [[], [], []]
        self.joined: set[int] = set()
        self.num_arrived = 0

    def loose(self) -> list[int]:
        """Places of those that hold memory and did not join."""
        return [i for i, seq in enumerate(self.everyone[0]) if seq.kv is not None and i not in self.joined]

    def admit(self, prompt: int, group: int, prefix: int) -> None:
        prefix = min(prefix, prompt - 1)
        done = []
        for kv, seqs in zip(self.pools, self.everyone, strict=True):
            seq = sequence(self.num_arrived, prompt, group if prefix else -1, prefix, self.block_size)
            kv.lookup(seq)
            done.append(kv.try_admit(seq, prompt, 0, False))
            if done[-1]:
                seq.number = len(seqs)
                seq.num_computed_tokens = prompt
                seq.num_output_tokens = self.known
                seqs.append(seq)
        self.num_arrived += 1
        assert len(set(done)) == 1

    def fork(self, i: int) -> None:
        for kv, seqs in zip(self.pools, self.everyone, strict=True):
            parent, child = seqs[i], sequence(self.num_arrived, seqs[i].num_prompt_tokens, block_size=self.block_size)
            child.tokens.own = 10**6 + self.num_arrived  # what it generates is its own
            child.number = len(seqs)
            assert kv.try_fork(parent, child)
            child.num_computed_tokens = parent.num_prompt_tokens
            child.num_output_tokens = self.known
            seqs.append(child)
        self.num_arrived += 1

    def grow_one(self, i: int) -> None:
        done = [one_by_one(kv, [seqs[i]], 1, self.known) for kv, seqs in zip(self.pools, self.everyone, strict=True)]
        assert len(set(done)) == 1

    def join(self, i: int) -> None:
        can = [kv.can_join(seqs[i]) for kv, seqs in zip(self.pools, self.everyone, strict=True)]
        assert len(set(can)) == 1
        if can[0]:
            self.joined.add(i)
            for kv, seqs in zip(self.pools[:2], self.everyone[:2], strict=True):
                kv.join(seqs[i])

    def leave(self, i: int) -> None:
        self.joined.discard(i)
        for kv, seqs in zip(self.pools[:2], self.everyone[:2], strict=True):
            kv.leave(seqs[i])

    def free(self, i: int) -> None:
        self.joined.discard(i)
        for kv, seqs in zip(self.pools, self.everyone, strict=True):
            kv.free(seqs[i])

    def enter(self, i: int) -> None:
        """An output was seen: what is computed may be entered before the next step is made."""
        for kv, seqs in zip(self.pools, self.everyone, strict=True):
            kv.enter(seqs[i], seqs[i].num_computed_tokens)

    def run(self, limit: int) -> None:
        together, by_step, by_sequence = self.pools
        chosen = [[seqs[i] for i in sorted(self.joined)] for seqs in self.everyone]
        steps = together.steps_until_full(limit)
        assert steps == most_steps(by_sequence, chosen[2], limit, self.known)
        if steps < limit:
            assert not together.grow_all(limit, self.known)
        assert together.grow_all(steps, self.known)
        assert all(by_step.grow_all(1, self.known) for _ in range(steps))
        assert one_by_one(by_sequence, chosen[2], steps, self.known) == steps
        for seq in chosen[0] + chosen[1]:
            seq.num_computed_tokens += steps
            seq.num_output_tokens += steps

    def check(self) -> None:
        for kv in self.pools:
            kv.check_integrity()
        states = [state(kv, seqs) for kv, seqs in zip(self.pools, self.everyone, strict=True)]
        assert states[0] == states[2]
        assert states[1] == states[2]
        keys = [kv.cache._keys if kv.cache is not None else None for kv in self.pools]
        assert keys[0] == keys[1] == keys[2]


@given(st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_growing_together_is_growing_one_by_one(data: st.DataObject) -> None:
    """Runs of steps, single steps and single sequences end in the same blocks, with the same ones cached and free."""
    draw = data.draw
    trio = Trio(
        draw(st.integers(4, 40)), draw(st.sampled_from([1, 2, 4])), draw(st.booleans()), draw(st.integers(0, 1))
    )
    for _ in range(draw(st.integers(1, 4))):
        trio.admit(draw(st.integers(1, 9)), draw(st.integers(-1, 1)), draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(2, 14))):
        loose, verb = (
            trio.loose(),
            draw(st.sampled_from(["run", "run", "join", "join", "admit", "fork", "one", "end", "see"])),
        )
        if verb == "run":
            trio.run(draw(st.integers(1, 20)))
        elif verb == "admit":
            trio.admit(draw(st.integers(1, 9)), draw(st.integers(-1, 1)), draw(st.integers(0, 9)))
        elif verb == "see" and trio.joined:
            trio.enter(draw(st.sampled_from(sorted(trio.joined))))
        elif verb == "end" and loose + sorted(trio.joined):
            i = draw(st.sampled_from(loose + sorted(trio.joined)))
            if i in trio.joined and draw(st.booleans()):
                trio.leave(i)
            else:
                trio.free(i)
        elif loose and verb in ("join", "fork", "one"):
            i = draw(st.sampled_from(loose))
            {"join": trio.join, "fork": trio.fork, "one": trio.grow_one}[verb](i)
        trio.check()


# --- by hand: scheduler specification, section 5 ----------------------------------------------------------------------


def admit(kv: PagedAllocator, seq: Sequence) -> None:
    computed = kv.lookup(seq)
    assert kv.try_admit(seq, seq.num_known_tokens, 0, headroom=False)
    seq.num_computed_tokens = max(computed, seq.num_known_tokens)


def pool(usable: int, caching: bool = True, watermark: float = 0.0) -> PagedAllocator:
    return PagedAllocator(usable + 1, 4, watermark, caching)


def test_blocks_are_handed_out_from_one_upwards_and_never_the_dummy() -> None:
    for caching in (False, True):
        kv, seq = pool(5, caching), sequence(0, 20)
        admit(kv, seq)
        assert kv.blocks_of(seq) == [1, 2, 3, 4, 5]
        assert kv.num_free_blocks == 0
        assert kv.capacity_tokens == 20


def test_without_caching_the_last_freed_is_taken_first_and_the_tail_last() -> None:
    kv = pool(6, caching=False)
    a, b = sequence(0, 8), sequence(1, 8)
    admit(kv, a)
    admit(kv, b)
    kv.free(a)  # walked 2, 1; the group goes to the front in walk order: 2, 1, 5, 6
    c = sequence(2, 12)
    admit(kv, c)
    assert kv.blocks_of(c) == [2, 1, 5]


def test_keyless_blocks_go_to_the_front_and_keyed_ones_to_the_back() -> None:
    kv = pool(6)
    a = sequence(0, 10)  # blocks 1, 2 full (keyed), 3 half full (no key)
    admit(kv, a)
    kv.free(a)  # queue: 3 | 4 5 6 | 2 1
    b = sequence(1, 23)
    admit(kv, b)
    assert kv.blocks_of(b) == [3, 4, 5, 6, 2, 1]


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    kv = pool(4)
    a = sequence(0, 12)
    admit(kv, a)  # 1 2 3 keyed
    kv.free(a)  # queue: 4 | 3 2 1
    b = sequence(1, 7)
    admit(kv, b)
    assert kv.blocks_of(b) == [4, 3]
    again = sequence(0, 12)
    assert kv.lookup(again) == 8  # 1 and 2 are left


def test_least_recently_freed_content_goes_first() -> None:
    kv = pool(4)
    a, b = sequence(0, 8), sequence(1, 8)
    admit(kv, a)  # 1 2
    admit(kv, b)  # 3 4
    kv.free(b)
    kv.free(a)  # queue: 4 3 2 1
    c = sequence(2, 8)
    admit(kv, c)
    assert kv.blocks_of(c) == [4, 3]


def test_a_full_hit_leaves_the_last_block_to_be_computed() -> None:
    kv = pool(8)
    admit(kv, sequence(0, 9, group=5, prefix=8))
    exact = sequence(1, 8, group=5, prefix=8)
    assert kv.lookup(exact) == 4  # the last known token is always computed, so block 2 is not a hit
    longer = sequence(2, 9, group=5, prefix=8)
    assert kv.lookup(longer) == 8


def test_two_admitted_in_one_pass_share() -> None:
    """Keys are entered at allocation, before anything is computed."""
    kv = pool(8)
    a, b = sequence(0, 10, group=0, prefix=8), sequence(1, 10, group=0, prefix=8)
    admit(kv, a)
    admit(kv, b)
    assert kv.blocks_of(a)[:2] == kv.blocks_of(b)[:2]
    assert kv.blocks_of(a)[2] != kv.blocks_of(b)[2]
    assert kv.usage().allocated_tokens == 4 * 4
    kv.free(a)
    kv.check_integrity()
    assert kv.num_free_blocks == 8 - 3  # b still holds the shared two


def test_duplicates_are_kept_and_the_first_entered_is_found() -> None:
    """Two fill equal blocks without having looked each other up; the earlier holder is returned while it is there."""
    kv = pool(3)
    a, b = sequence(0, 4, group=0, prefix=8), sequence(1, 4, group=0, prefix=8)
    admit(kv, a)  # block 1; a prompt of 4 can hit nothing (its last token must be computed)
    admit(kv, b)  # block 2, the same content
    seeker = sequence(2, 6, group=0, prefix=8)
    kv.lookup(seeker)
    assert kv.try_admit(seeker, 5, 0, headroom=False)
    assert kv.blocks_of(seeker) == [1, 3]
    for seq in (seeker, a, b):
        kv.free(seq)  # queue: 3, then 1 (no user once a is gone), then 2
    taker = sequence(3, 8)
    admit(kv, taker)
    assert kv.blocks_of(taker) == [3, 1]
    assert kv.lookup(sequence(4, 6, group=0, prefix=8)) == 4
    kv.check_integrity()


def test_a_hit_that_lies_free_counts_as_needed() -> None:
    """Free 2 blocks, both cached for the head: it hits them, and still needs 3 blocks in all."""
    kv = pool(4)
    a, other = sequence(0, 8), sequence(1, 8)
    admit(kv, a)
    admit(kv, other)
    kv.free(a)
    assert kv.num_free_blocks == 2
    back = sequence(0, 9)
    assert kv.lookup(back) == 8
    assert not kv.try_admit(back, 9, 0, headroom=False)
    kv.free(other)
    assert kv.lookup(back) == 8
    assert kv.try_admit(back, 9, 0, headroom=False)
    assert kv.blocks_of(back)[:2] == [1, 2]


def test_a_hit_that_another_uses_saves_capacity() -> None:
    kv = pool(3)
    a, b = sequence(0, 9, group=0, prefix=8), sequence(1, 8, group=0, prefix=8)
    admit(kv, a)  # the whole pool
    assert kv.lookup(b) == 4
    assert not kv.try_admit(b, 8, 0, headroom=False)  # 2 blocks - 1 shared = 1, free 0
    kv.free(a)
    admit(kv, a)
    short = sequence(2, 5, group=0, prefix=4)
    assert kv.lookup(short) == 4
    assert not kv.try_admit(short, 5, 0, headroom=False)


def test_the_gate_counts_the_whole_sequence() -> None:
    kv = pool(4, caching=False)
    admit(kv, sequence(0, 8))
    seq = sequence(1, 12)
    assert not kv.try_admit(seq, 4, gate_tokens=12, headroom=True)
    assert kv.try_admit(seq, 4, gate_tokens=0, headroom=True)
    assert len(kv.blocks_of(seq)) == 1  # a test only: nothing is set aside


@pytest.mark.parametrize(("watermark", "spare"), [(0.0, 0), (0.1, 1), (0.19, 1), (0.2, 2), (0.5, 5)])
def test_the_watermark_counts_the_dummy_block_and_is_truncated(watermark: float, spare: int) -> None:
    """10 blocks, the dummy included: W = floor(watermark x 10) blocks stay free while something runs."""
    for blocks in range(1, 10):
        kv = pool(9, caching=False, watermark=watermark)
        assert kv.try_admit(sequence(0, 4 * blocks), 4 * blocks, 0, headroom=True) is (blocks <= 9 - spare)
        kv = pool(9, caching=False, watermark=watermark)
        assert kv.try_admit(sequence(0, 4 * blocks), 4 * blocks, 0, headroom=False)


def test_growth_ignores_the_watermark() -> None:
    kv = pool(9, caching=False, watermark=0.5)
    seq = sequence(0, 4)
    admit(kv, seq)
    assert kv.try_grow(seq, 36)
    assert kv.num_free_blocks == 0
    assert not kv.try_grow(seq, 37)


def test_fits_ever_knows_the_usable_blocks() -> None:
    kv = pool(3)
    assert kv.fits_ever(12, 0)
    assert not kv.fits_ever(13, 0)


def test_grow_all_takes_blocks_in_the_order_of_steps_and_of_admission() -> None:
    """The order decides which content is evicted first; sequence 2 needs its block a step earlier than the others."""
    for caching in (False, True):
        kv = pool(9, caching)
        a, b, c = sequence(0, 5), sequence(1, 5), sequence(2, 7)
        for number, seq in enumerate((a, b, c)):
            admit(kv, seq)  # 1 2, then 3 4, then 5 6
            seq.number = number
            seq.num_output_tokens += 1
        for seq in (c, b, a):  # joined last, and first in order all the same
            kv.join(seq)
        assert kv.grow_all(4, 1)  # c: tokens 8 | 9 begins block 7; a, b: tokens 6 7 8 | 9 begins blocks 8, 9
        assert [kv.blocks_of(seq) for seq in (a, b, c)] == [[1, 2, 8], [3, 4, 9], [5, 6, 7]]
        assert kv.num_free_blocks == 0
        assert kv.steps_until_full(100) == 1
        assert not kv.grow_all(2, 1)
