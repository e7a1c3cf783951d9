"""Counted blocks decide and count as blocks with names do, where nothing is shared."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simkit.kv.counted import CountedAllocator
from simkit.kv.paged import PagedAllocator
from simkit.kv.protocol import CanFork, CountsBlocks, HasHoles, KVPool, SharesBlocks
from simkit.sequence import Sequence
from simkit.types import Request

SETTINGS = settings(max_examples=50, derandomize=True, deadline=None, stateful_step_count=40)


class Pair:
    """One sequence, as either pool knows it."""

    def __init__(self, number: int, prompt: int) -> None:
        self.named, self.counted = (Sequence(Request(number, 0, prompt, 1000, 1000)) for _ in range(2))
        self.joined = False
        self.reserved = False
        for seq in (self.named, self.counted):
            seq.number = number

    @property
    def computed(self) -> int:
        return self.named.num_computed_tokens

    @computed.setter
    def computed(self, value: int) -> None:
        self.named.num_computed_tokens = self.counted.num_computed_tokens = value


class TwoPools(RuleBasedStateMachine):
    """The same happens to both, and both say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Pair] = []
        self.number = 0

    @initialize(
        usable=st.integers(1, 30), block_size=st.sampled_from([1, 2, 4, 16]), watermark=st.sampled_from([0, 0.2])
    )
    def build(self, usable: int, block_size: int, watermark: float) -> None:
        self.block_size = block_size
        self.named = PagedAllocator(usable + 1, block_size, watermark, enable_prefix_caching=False)
        self.counted = CountedAllocator(usable + 1, block_size, watermark)

    def loose(self) -> list[Pair]:
        return [pair for pair in self.held if not pair.joined and not pair.reserved]

    def new(self, prompt: int) -> Pair:
        pair = Pair(self.number, prompt)
        self.number += 1
        assert self.named.lookup(pair.named) == self.counted.lookup(pair.counted) == 0
        return pair

    @rule(prompt=st.integers(1, 40), share=st.floats(0, 1), gate=st.integers(0, 60), headroom=st.booleans())
    def admit(self, prompt: int, share: float, gate: int, headroom: bool) -> None:
        pair = self.new(prompt)
        tokens = max(1, int(prompt * share))
        admitted = self.named.try_admit(pair.named, tokens, gate, headroom)
        assert self.counted.try_admit(pair.counted, tokens, gate, headroom) is admitted
        if admitted:
            pair.computed = tokens
            self.held.append(pair)
        assert (pair.counted.kv is None) is not admitted

    @rule(tokens=st.integers(1, 60))
    def reserve(self, tokens: int) -> None:
        pair = self.new(tokens)
        assert self.named.fits_ever(tokens, 5) is self.counted.fits_ever(tokens, 5)
        reserved = self.named.try_reserve(pair.named, tokens)
        assert self.counted.try_reserve(pair.counted, tokens) is reserved
        if reserved:
            pair.reserved = True
            self.held.append(pair)

    @precondition(lambda self: self.loose())
    @rule(data=st.data(), more=st.integers(0, 20))
    def grow(self, data: st.DataObject, more: int) -> None:
        pair = data.draw(st.sampled_from(self.loose()))
        tokens = pair.computed + more
        grown = self.named.try_grow(pair.named, tokens)
        assert self.counted.try_grow(pair.counted, tokens) is grown
        if grown:
            pair.computed = tokens

    @precondition(lambda self: self.loose())
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.loose()))
        assert self.named.can_join(pair.named) is self.counted.can_join(pair.counted) is True
        self.named.join(pair.named)
        self.counted.join(pair.counted)
        pair.joined = True

    @precondition(lambda self: any(pair.joined for pair in self.held))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from([pair for pair in self.held if pair.joined]))
        self.named.leave(pair.named)
        self.counted.leave(pair.counted)
        pair.joined = False

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.held))
        self.held.remove(pair)
        self.named.free(pair.named)
        self.counted.free(pair.counted)
        assert pair.counted.kv is None

    @rule(num_steps=st.one_of(st.just(1), st.integers(1, 70)), known=st.integers(0, 1))
    def grow_all(self, num_steps: int, known: int) -> None:
        grown = self.named.grow_all(num_steps, known)
        assert self.counted.grow_all(num_steps, known) is grown
        if grown:
            for pair in self.held:
                pair.computed += num_steps * pair.joined

    @rule(limit=st.integers(0, 200))
    def look_ahead(self, limit: int) -> None:
        steps = self.named.steps_until_full(limit)
        assert self.counted.steps_until_full(limit) == steps <= limit
        ahead, too_far = copy.deepcopy(self.counted), copy.deepcopy(self.counted)
        assert ahead.grow_all(steps, 1)
        assert too_far.grow_all(steps + 1, 1) is (ahead.steps_until_full(1) == 1)
        assert steps == limit or ahead.steps_until_full(1) == 0

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "named"):
            return
        for name in ("capacity_tokens", "block_size", "num_free_blocks", "watermark_blocks", "allocated_tokens"):
            assert getattr(self.counted, name) == getattr(self.named, name), name
        assert self.counted.usage() == self.named.usage()
        assert self.named.shared_tokens == 0
        for pair in self.held:
            assert self.counted.allocated_of(pair.counted) == self.named.allocated_of(pair.named)
        for pool in (self.named, self.counted):
            pool.check_integrity()


TestTwoPools = TwoPools.TestCase
TestTwoPools.settings = SETTINGS


def test_names_are_what_counting_does_without() -> None:
    kv: KVPool = CountedAllocator(5, 4)
    assert isinstance(kv, CountsBlocks)
    assert not isinstance(PagedAllocator(5, 4), CountsBlocks)
    for capability in (CanFork, SharesBlocks, HasHoles):
        assert not isinstance(kv, capability)
    parent, child = (Sequence(Request(number, 0, 6, 9, 9)) for number in range(2))
    assert kv.try_admit(parent, 6, 0, headroom=False)
    assert kv.allocated_of(child) == 0
    with pytest.raises(AssertionError, match="already holds memory"):
        kv.try_admit(parent, 6, 0, headroom=False)
    with pytest.raises(AssertionError, match="did not join"):
        kv.leave(parent)


def lose_a_block(kv: CountedAllocator) -> None:
    kv.num_free_blocks -= 1


def count_somebody_twice(kv: CountedAllocator) -> None:
    kv._num_growing += 1


@pytest.mark.parametrize("damage", [lose_a_block, count_somebody_twice])
def test_damage_is_noticed(damage: object) -> None:
    kv, seq = CountedAllocator(5, 4), Sequence(Request(0, 0, 6, 9, 9))
    assert kv.try_admit(seq, 6, 0, headroom=False)
    seq.num_computed_tokens = 6
    kv.join(seq)
    kv.check_integrity()
    assert callable(damage)
    damage(kv)
    with pytest.raises(AssertionError):
        kv.check_integrity()


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 80), st.sampled_from([1, 3, 16]))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_a_run_is_its_steps(prompts: list[int], num_steps: int, block_size: int) -> None:
    """Allocated tokens after each step are what everybody holds, and after a run the same."""
    pools = [CountedAllocator(1000, block_size) for _ in range(2)]
    everyone = [[Sequence(Request(n, 0, prompt, 99, 99)) for n, prompt in enumerate(prompts)] for _ in pools]
    for kv, seqs in zip(pools, everyone, strict=True):
        for seq, prompt in zip(seqs, prompts, strict=True):
            assert kv.try_admit(seq, prompt, 0, headroom=False)
            seq.num_computed_tokens = prompt
            kv.join(seq)
    run, steps = pools
    for step in range(num_steps):
        assert steps.grow_all(1, 1)
        held = [-(-(prompt + step + 1) // block_size) * block_size for prompt in prompts]
        assert [steps.allocated_of(seq) for seq in everyone[1]] == held
        assert steps.allocated_tokens == sum(held)
    assert run.grow_all(num_steps, 1)
    assert run.usage() == steps.usage()
    assert [run.allocated_of(seq) for seq in everyone[0]] == [steps.allocated_of(seq) for seq in everyone[1]]
