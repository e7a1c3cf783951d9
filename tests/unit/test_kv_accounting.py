"""Used, reserved and internal tokens against looking at every slot of every block."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from simkit.engine.kv_accounting import Holding, KVSplit, Tail, add_up, counted_twice, unshare

SETTINGS = settings(max_examples=200, derandomize=True, deadline=None)

Member = tuple[int, int, list[int]]
"""Tokens computed, tokens at the end, and the block table."""


def by_slots(members: list[Member], block_size: int) -> KVSplit:
    """From the definition: a slot is used if somebody has filled it, internal if nobody ever will."""
    held, used, wanted = set(), set(), set()
    for computed, final, table in members:
        slots = [(block, offset) for block in table for offset in range(block_size)]
        held.update(slots)
        used.update(slots[: min(computed, final)])
        wanted.update(slots[:final])
    return KVSplit(len(held), len(used), len(held - wanted))


def by_sums(members: list[Member], block_size: int, tails: list[Tail]) -> KVSplit:
    """What a replica does: sums over sequences, less what is counted twice."""
    split = add_up([Holding(computed, final, len(table) * block_size) for computed, final, table in members])
    entries = [block for _, _, table in members for block in table]
    return unshare(split, (len(entries) - len(set(entries))) * block_size, tails, block_size)


@given(st.data())
@SETTINGS
def test_samples_share_their_prompt_and_prompts_their_prefix(data: st.DataObject) -> None:
    """Full blocks are shared for good, the one in which a prompt ends until each sample has a copy."""
    draw = data.draw
    block_size = draw(st.sampled_from([1, 2, 3, 8, 16]))
    fresh = iter(range(1, 10**6))
    prefix = [next(fresh) for _ in range(draw(st.integers(0, 2)))]
    members: list[Member] = []
    tails: list[Tail] = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = len(prefix) * block_size + draw(st.integers(1, 3 * block_size))
        num_full, rest = divmod(prompt, block_size)
        full = prefix + [next(fresh) for _ in range(num_full - len(prefix))]
        tail = next(fresh)
        sharing: list[Tail] = []
        for _ in range(draw(st.integers(1, 4))):
            final = prompt + draw(st.integers(0, 2 * block_size))
            shares = rest > 0 and draw(st.booleans())
            # Whoever shares the last block may be the first sample, which wrote on in it before the others came.
            ahead = draw(st.integers(0, block_size - rest if shares else 3 * block_size))
            computed = min(prompt + ahead, final + 1)  # asynchronously a token beyond the end
            table = list(full)
            while len(table) < -(-computed // block_size):
                table.append(tail if shares and len(table) == num_full else next(fresh))
            if shares:
                start = num_full * block_size
                filled = [min(tokens - start, block_size) for tokens in (computed, final)]
                sharing.append(Tail(tail, min(filled), filled[1]))
            members.append((computed, final, table))
        tails += sharing if len(sharing) > 1 else []
    assert by_sums(members, block_size, tails) == by_slots(members, block_size)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 100)), min_size=1, max_size=6))
@SETTINGS
def test_regions_reserved_at_admission(members: list[tuple[int, int, int]]) -> None:
    """Contiguous memory and static batches: nothing is shared, and a region may be longer than anybody's end."""
    holdings = [Holding(computed, final, max(computed, final) + more) for computed, final, more in members]
    split = add_up(holdings)
    reserved = sum(min(h.allocated, h.final) - min(h.computed, h.final) for h in holdings)
    assert split.allocated == sum(h.allocated for h in holdings)
    assert split.used + reserved + split.internal == split.allocated
    assert split.used == sum(min(h.computed, h.final) for h in holdings)
    assert unshare(split, 0, [], 16) == split


def test_by_hand() -> None:
    """One sequence, blocks of 4: 3 of 6 tokens computed. A second block begins with token 5, and 2 of it stay empty."""
    course = [add_up([Holding(computed, 6, allocated)]) for computed, allocated in ((3, 4), (4, 4), (5, 8), (6, 8))]
    assert [split.used for split in course] == [3, 4, 5, 6]
    assert [split.internal for split in course] == [0, 0, 2, 2]
    assert [split.allocated - split.used - split.internal for split in course] == [1, 0, 1, 0]


def test_a_surplus_token_is_not_used() -> None:
    """Asynchronously a sequence may compute one token beyond its end: used stops there, the rest is internal."""
    assert add_up([Holding(7, 6, 8)]) == KVSplit(8, 6, 2)


def test_two_samples_in_the_block_of_one_prompt() -> None:
    """Prompt of 6 in blocks of 4, both samples want 7: the shared second block holds 2 of 4, and 1 stays empty."""
    tails = [Tail(9, 2, 3), Tail(9, 2, 3)]
    assert counted_twice(tails, 4) == (2, 1)
    assert by_sums([(6, 7, [8, 9]), (6, 7, [8, 9])], 4, tails) == KVSplit(8, 6, 1)
    assert counted_twice([Tail(1, 2, 3), Tail(2, 2, 3)], 4) == (0, 0)
