"""`KVState.over(k)` against adding up sequence by sequence and step by step."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from simkit.engine.kv_split import KVState

SETTINGS = settings(max_examples=200, derandomize=True, deadline=None)


def brute_force(
    members: list[tuple[int, int, int]], num_steps: int, block_size: int | None, grows: list[bool], shared: int
) -> list[tuple[int, int, int, int]]:
    """(allocated, used, reserved, internal) at each step from the definition; members are (computed, final, table)."""
    rows = []
    for step in range(num_steps):
        allocated = used = reserved = internal = 0
        for (computed, final, table), growing in zip(members, grows, strict=True):
            now = computed + step * growing
            held = table if block_size is None else max(table, -(-now // block_size) * block_size)
            allocated += held
            used += min(now, final)
            reserved += min(held, final) - min(now, final)
            internal += held - min(held, final)
        rows.append((allocated - shared, used - shared, reserved, internal))
    return rows


def check(
    members: list[tuple[int, int, int]], num_steps: int, block_size: int | None, grows: list[bool], shared: int
) -> None:
    computed, final, table = (np.array(column, dtype=np.int64) for column in zip(*members, strict=True))
    split = KVState(computed, final, table, sum(grows), block_size, shared).over(num_steps)
    found = np.stack([split.allocated_tokens, split.used_tokens, split.reserved_tokens, split.internal_tokens], axis=1)
    assert found.tolist() == [list(row) for row in brute_force(members, num_steps, block_size, grows, shared)]


@given(st.data())
@SETTINGS
def test_paged_growth(data: st.DataObject) -> None:
    """Every member decodes; a table covers exactly the tokens computed, rounded up to blocks."""
    block_size = data.draw(st.sampled_from([1, 2, 3, 8, 16]))
    num_steps = data.draw(st.integers(1, 40))
    members = []
    for _ in range(data.draw(st.integers(1, 6))):
        computed = data.draw(st.integers(1, 50))
        final = computed + num_steps - 1 + data.draw(st.integers(0, 20))  # nobody ends before the last step
        members.append((computed, final, -(-computed // block_size) * block_size))
    shared = data.draw(st.integers(0, 1)) * block_size
    check(members, num_steps, block_size, [True] * len(members), shared)


@given(st.data())
@SETTINGS
def test_regions_reserved_at_admission(data: st.DataObject) -> None:
    """Contiguous memory, and static batches: tables stay, some members are dead and compute no more."""
    num_steps = data.draw(st.integers(1, 40))
    members, grows = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        growing = data.draw(st.booleans())
        computed = data.draw(st.integers(1, 50))
        final = computed + (num_steps - 1 + data.draw(st.integers(0, 20)) if growing else 0)
        members.append((computed, final, final + data.draw(st.integers(0, 100))))
        grows.append(growing)
    check(members, num_steps, None, grows, 0)


def test_by_hand() -> None:
    """One sequence, blocks of 4: 3 of 6 tokens computed. A second block begins with token 5, and 2 of it stay empty."""
    one = np.array([3], dtype=np.int64), np.array([6], dtype=np.int64), np.array([4], dtype=np.int64)
    split = KVState(*one, num_growing=1, block_size=4, shared_tokens=0).over(4)
    assert split.used_tokens.tolist() == [3, 4, 5, 6]
    assert split.allocated_tokens.tolist() == [4, 4, 8, 8]
    assert split.internal_tokens.tolist() == [0, 0, 2, 2]
    assert split.reserved_tokens.tolist() == [1, 0, 1, 0]


def test_a_surplus_token_is_not_used() -> None:
    """Asynchronously a sequence may compute one token beyond its end: used stops there, the rest is internal."""
    one = np.array([7], dtype=np.int64), np.array([6], dtype=np.int64), np.array([8], dtype=np.int64)
    split = KVState(*one, num_growing=1, block_size=4, shared_tokens=0).over(1)
    assert (split.used_tokens[0], split.reserved_tokens[0], split.internal_tokens[0]) == (6, 0, 2)
