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

SETTINGS = settings(max_examples=60, derandomize=True, deadline=None, stateful_step_count=40)


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
        self.number = 0

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

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(1, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        seq = data.draw(st.sampled_from(self.held))
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

    @precondition(lambda self: self.held)
    @rule(data=st.data(), limit=st.integers(1, 12))
    def run(self, data: st.DataObject, limit: int) -> None:
        seqs = [seq for seq in self.held if seq.num_computed_tokens == seq.num_known_tokens]
        if not seqs:
            return
        for seq in seqs:
            seq.num_output_tokens += 1
            if not self.kv.try_grow(seq, seq.num_computed_tokens + 1):
                seq.num_output_tokens -= 1
                return
            seq.num_computed_tokens += 1
        promised = self.kv.steps_until_full(seqs, limit)
        assert promised == most_steps(self.kv, seqs, limit)
        num_steps = data.draw(st.integers(0, promised))
        check_run(self.kv, seqs, num_steps)
        for seq in seqs:
            seq.num_computed_tokens += num_steps

    @precondition(lambda self: self.held)
    @rule(data=st.data(), comes_back=st.booleans())
    def free(self, data: st.DataObject, comes_back: bool) -> None:
        seq = data.draw(st.sampled_from(self.held))
        self.held.remove(seq)
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


def one_by_one(kv: PagedAllocator, seqs: list[Sequence], num_steps: int) -> int:
    """Grow step by step, sequence by sequence, as single-stepping does; the number of steps that found memory."""
    computed = [seq.num_computed_tokens for seq in seqs]
    for step in range(1, num_steps + 1):
        for seq, start in zip(seqs, computed, strict=True):
            seq.num_output_tokens += 1
            if not kv.try_grow(seq, start + step):
                return step - 1
    return num_steps


def twin(kv: PagedAllocator, seqs: list[Sequence]) -> tuple[PagedAllocator, list[Sequence]]:
    """A deep copy of the pool and of these sequences in it."""
    return copy.deepcopy((kv, seqs))


def most_steps(kv: PagedAllocator, seqs: list[Sequence], limit: int) -> int:
    """What `steps_until_full` promises, by trying."""
    return one_by_one(*twin(kv, seqs), limit)


def check_run(kv: PagedAllocator, seqs: list[Sequence], num_steps: int) -> None:
    """`grow_run` leaves what `num_steps` single steps leave (block ids only with caching, where order matters)."""
    other, others = twin(kv, seqs)
    one_by_one(other, others, num_steps)
    for seq in seqs:
        seq.num_output_tokens += num_steps
    kv.grow_run(seqs, num_steps)
    assert [len(seq.kv.blocks) for seq in seqs] == [len(seq.kv.blocks) for seq in others]
    if kv.cache is not None:
        assert state(kv, seqs) == state(other, others)


@pytest.mark.parametrize("machine", [PagedMachine, CachingMachine])
def test_random_operations(machine: type[PagedMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


@given(st.data())
@settings(max_examples=150, derandomize=True, deadline=None)
def test_steps_until_full_is_exact(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 2, 4, 16]))
    usable = data.draw(st.integers(1, 40))
    kv, seqs = PagedAllocator(usable + 1, block_size), []
    for number in range(data.draw(st.integers(1, 5))):
        seq = sequence(number, data.draw(st.integers(1, 30)), block_size=block_size)
        if not kv.try_admit(seq, seq.num_known_tokens, 0, headroom=False):
            break
        seq.num_computed_tokens = seq.num_known_tokens
        seqs.append(seq)
    limit = data.draw(st.integers(1, 200))
    if seqs:
        assert kv.steps_until_full(seqs, limit) == most_steps(kv, seqs, limit)


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


def test_grow_run_takes_blocks_in_step_then_position_order() -> None:
    """With caching the order decides which content is evicted first; sequence 1 needs its block a step earlier."""
    kv = pool(6)
    a, b = sequence(0, 5), sequence(1, 7)
    admit(kv, a)  # 1 2
    admit(kv, b)  # 3 4
    for seq in (a, b):
        seq.num_output_tokens += 4
    kv.grow_run([a, b], 4)  # b: tokens 8 | 9 begins block 5; a: tokens 6 7 8 | 9 begins block 6
    assert kv.blocks_of(b) == [3, 4, 5]
    assert kv.blocks_of(a) == [1, 2, 6]
