"""Contiguous KV memory: placements by hand, against a bitmap of single tokens, and under random operations."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit.errors import InputError
from simkit.kv.contiguous import ContiguousAllocator
from simkit.kv.protocol import CanFork, HasHoles, KVPool, SharesBlocks
from simkit.sequence import Sequence
from simkit.types import Request

PLACEMENTS = ("first_fit", "best_fit", "buddy")


def make_seq(seq_id: int = 0, reserve_tokens: int = 0) -> Sequence:
    return Sequence(Request(seq_id, 0, prompt_tokens=1, output_tokens=1, max_tokens=1), reserve_tokens)


def place(allocator: ContiguousAllocator, *sizes: int) -> list[Sequence]:
    """One sequence a size, admitted in order; each must fit."""
    seqs = [make_seq(i) for i in range(len(sizes))]
    for seq, size in zip(seqs, sizes, strict=True):
        assert allocator.try_admit(seq, size, 0, headroom=False)
    return seqs


def starts(*seqs: Sequence) -> list[int]:
    return [seq.kv.start for seq in seqs]


# --- by hand


@pytest.mark.parametrize("placement", ["first_fit", "best_fit"])
def test_external_fragmentation_refuses_what_the_free_tokens_would_hold(placement: str) -> None:
    allocator = ContiguousAllocator(100, placement)
    seqs = place(allocator, 20, 20, 20, 20, 20)
    allocator.free(seqs[1])
    allocator.free(seqs[3])
    usage = allocator.usage()
    assert (usage.free_tokens, usage.largest_free_tokens) == (40, 20)
    assert not allocator.try_admit(make_seq(9), 30, 0, headroom=False)
    assert allocator.external_tokens(30) == 40  # nothing of 30 can be placed
    assert allocator.external_tokens(15) == 10  # one of 15 in each hole
    assert allocator.external_tokens(20) == 0
    allocator.free(seqs[2])  # joins both holes with its own 20 tokens
    assert allocator.usage().largest_free_tokens == 60
    assert allocator.try_admit(make_seq(9), 60, 0, headroom=False)
    allocator.check_integrity()


@pytest.mark.parametrize(("placement", "start", "holes_left"), [("first_fit", 0, 20), ("best_fit", 40, 30)])
def test_first_fit_takes_the_lowest_hole_and_best_fit_the_smallest(placement: str, start: int, holes_left: int) -> None:
    allocator = ContiguousAllocator(60, placement)
    seqs = place(allocator, 30, 10, 12, 8)  # free 30 at 0 and 12 at 40
    allocator.free(seqs[0])
    allocator.free(seqs[2])
    seq = make_seq(9)
    assert allocator.try_admit(seq, 10, 0, headroom=False)
    assert starts(seq) == [start]
    assert allocator.usage().largest_free_tokens == holes_left
    # Best fit has kept the large hole whole, first fit has not.
    assert allocator.try_admit(make_seq(10), 30, 0, headroom=False) is (placement == "best_fit")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_equal_holes_go_to_the_lowest_address(placement: str) -> None:
    allocator = ContiguousAllocator(64, placement)
    seqs = place(allocator, 16, 16, 16, 16)
    allocator.free(seqs[2])
    allocator.free(seqs[0])
    seq = make_seq(9)
    assert allocator.try_admit(seq, 16, 0, headroom=False)
    assert starts(seq) == [0]


def test_buddy_splits_and_joins_in_a_capacity_of_no_power_of_two() -> None:
    allocator = ContiguousAllocator(22, "buddy")  # arenas 16 at 0, 4 at 16, 2 at 20
    assert allocator.usage().largest_free_tokens == 16
    three, five, two, one = seqs = place(allocator, 3, 5, 2, 1)
    # 3 takes the arena of 4 whole; 5 needs 8 of the 16; 2 takes the arena of 2; 1 splits the upper 8 into 4, 2, 1.
    assert starts(*seqs) == [16, 0, 20, 8]
    assert [allocator.allocated_of(seq) for seq in seqs] == [4, 8, 2, 1]
    usage = allocator.usage()
    assert (usage.allocated_tokens, usage.used_tokens, usage.largest_free_tokens) == (15, 11, 4)
    assert allocator.external_tokens(3) == 3  # free blocks 1, 2, 4 and a need of 4
    allocator.check_integrity()
    for seq, largest in ((one, 8), (three, 8), (five, 16), (two, 16)):  # 4 at 16 and 2 at 20 never join
        allocator.free(seq)
        allocator.check_integrity()
        assert allocator.usage().largest_free_tokens == largest
    assert allocator.usage().free_tokens == 22
    assert allocator.external_tokens(16) == 6


def test_neighbours_that_are_not_buddies_stay_apart() -> None:
    allocator = ContiguousAllocator(16, "buddy")
    seqs = place(allocator, 4, 4, 4, 4)
    allocator.free(seqs[1])
    allocator.free(seqs[2])  # [4, 12) is free, but its halves belong to different blocks of 8
    assert allocator.usage().largest_free_tokens == 4
    assert not allocator.try_admit(make_seq(9), 8, 0, headroom=False)
    allocator.free(seqs[0])
    assert allocator.usage().largest_free_tokens == 8


def test_admission_reserves_the_largest_of_need_gate_and_reservation() -> None:
    allocator = ContiguousAllocator(100, "first_fit")
    for sizes, reserve, held in (((7, 0), 0, 7), ((7, 9), 0, 9), ((7, 9), 20, 20)):
        seq = make_seq(reserve_tokens=reserve)
        assert allocator.try_admit(seq, *sizes, headroom=True)
        assert allocator.allocated_of(seq) == held
        assert seq.kv.used == 7
    seq = make_seq(reserve_tokens=65)
    assert not allocator.try_admit(seq, 1, 0, headroom=False)
    assert allocator.try_reserve(seq, 64)  # all that is left, the reservation set aside
    assert allocator.usage().used_tokens == 7 * 3 + 64
    assert allocator.usage().free_tokens == 0
    assert allocator.usage().largest_free_tokens == 0


@pytest.mark.parametrize("placement", ["first_fit", "best_fit"])
def test_growth_extends_into_the_hole_right_behind_only(placement: str) -> None:
    allocator = ContiguousAllocator(40, placement)
    first, second, third = place(allocator, 10, 10, 10)
    assert not allocator.try_grow(first, 11)  # the second region is in the way, though 10 tokens are free
    allocator.free(second)
    assert not allocator.try_grow(first, 21)
    assert allocator.try_grow(first, 15)
    assert (allocator.allocated_of(first), allocator.usage().largest_free_tokens) == (15, 10)
    assert allocator.try_grow(first, 20)
    assert allocator.try_grow(third, 40 - 20)
    assert allocator.usage().free_tokens == 0
    assert starts(first, third) == [0, 20]
    allocator.check_integrity()


def test_buddy_grows_inside_its_rounded_block_only() -> None:
    allocator = ContiguousAllocator(32, "buddy")
    (seq,) = place(allocator, 5)
    assert allocator.try_grow(seq, 8)
    assert not allocator.try_grow(seq, 9)
    assert allocator.usage().used_tokens == 8


@pytest.mark.parametrize(
    ("placement", "capacity", "num_tokens", "reserve_tokens", "fits"),
    [
        ("first_fit", 100, 100, 0, True),
        ("first_fit", 100, 10, 101, False),
        ("best_fit", 100, 101, 10, False),
        ("buddy", 100, 64, 0, True),
        ("buddy", 100, 65, 0, False),  # a block of 128
        ("buddy", 100, 33, 64, True),
        ("buddy", 1, 1, 0, True),
    ],
)
def test_fits_ever(placement: str, capacity: int, num_tokens: int, reserve_tokens: int, fits: bool) -> None:
    allocator = ContiguousAllocator(capacity, placement)
    assert allocator.fits_ever(num_tokens, reserve_tokens) is fits
    assert allocator.try_admit(make_seq(reserve_tokens=reserve_tokens), num_tokens, 0, headroom=False) is fits


def test_runs_of_steps_stay_inside_the_regions() -> None:
    allocator = ContiguousAllocator(100, "first_fit")
    assert allocator.steps_until_full(7) == 7
    seqs = [make_seq(number, reserve_tokens=size) for number, size in enumerate((20, 30))]
    for seq, computed in zip(seqs, (12, 25), strict=True):
        assert allocator.try_admit(seq, computed, 0, headroom=False)
        seq.num_computed_tokens = computed
        assert allocator.can_join(seq)
        allocator.join(seq)
    assert allocator.steps_until_full(100) == 5
    assert allocator.steps_until_full(3) == 3
    before = allocator.usage()
    assert not allocator.grow_all(6, 1)
    assert allocator.usage() == before
    assert allocator.grow_all(5, 1)
    after = allocator.usage()
    assert after.allocated_tokens == before.allocated_tokens == allocator.allocated_tokens
    assert after.used_tokens == (12 + 5) + (25 + 5)
    allocator.check_integrity()
    assert allocator.steps_until_full(100) == 0
    assert not allocator.grow_all(1, 1)
    allocator.leave(seqs[1])  # the region behind it is free: alone it may lengthen its own
    assert seqs[1].kv.used == 30
    assert allocator.steps_until_full(100) == 3
    seqs[1].num_computed_tokens = 30
    assert allocator.try_grow(seqs[1], 32)
    seqs[1].num_computed_tokens = 32
    allocator.join(seqs[1])
    assert allocator.steps_until_full(100) == 0
    allocator.free(seqs[1])
    assert allocator.steps_until_full(100) == 3
    assert allocator.grow_all(3, 1)
    allocator.check_integrity()
    assert allocator.usage().used_tokens == 20
    allocator.free(seqs[0])
    assert allocator.usage() == ContiguousAllocator(100, "first_fit").usage()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_a_contiguous_pool_says_of_itself(placement: str) -> None:
    allocator = ContiguousAllocator(48, placement)
    seam: KVPool = allocator
    assert isinstance(seam, CanFork)
    assert isinstance(seam, HasHoles)
    assert not isinstance(seam, SharesBlocks)
    assert (seam.capacity_tokens, seam.block_size, seam.lookup(make_seq())) == (48, None, 0)
    assert allocator.allocated_of(make_seq()) == 0
    assert allocator.usage() == ContiguousAllocator(48, placement).usage()
    assert allocator.external_tokens(0) == allocator.external_tokens(-3) == 0


def test_wrong_input_and_wrong_use() -> None:
    with pytest.raises(InputError, match="did you mean 'best_fit'"):
        ContiguousAllocator(10, "best_fitt")
    with pytest.raises(InputError, match="at least 1 token"):
        ContiguousAllocator(0, "buddy")
    allocator, other = ContiguousAllocator(10, "first_fit"), ContiguousAllocator(10, "first_fit")
    (seq,) = place(allocator, 4)
    with pytest.raises(AssertionError, match="holds memory already"):
        allocator.try_admit(seq, 1, 0, headroom=False)
    with pytest.raises(AssertionError, match="another pool"):
        other.free(seq)
    allocator.free(seq)
    allocator.free(seq)  # holds nothing now: nothing to return
    with pytest.raises(AssertionError, match="holds no memory"):
        allocator.try_grow(seq, 1)
    allocator.check_integrity()


def test_integrity_check_sees_a_region_that_was_enlarged_by_hand() -> None:
    allocator = ContiguousAllocator(32, "first_fit")
    seqs = place(allocator, 8, 8)
    seqs[0].kv.size = 9
    with pytest.raises(AssertionError, match="gap or overlap"):
        allocator.check_integrity()


# --- against a bitmap, one cell a token


class Bitmap:
    """The same placements by looking at every token; `cells[i]` is the owner of token i, -1 when free."""

    def __init__(self, capacity: int, placement: str) -> None:
        self.cells = [-1] * capacity
        self.placement = placement

    def holes(self) -> list[tuple[int, int]]:
        if self.placement == "buddy":
            arenas, start = [], 0
            for size in (1 << bit for bit in range(len(self.cells).bit_length(), -1, -1)):
                if start + size <= len(self.cells):
                    arenas.append((start, size))
                    start += size
            return [block for arena in arenas for block in self._free_blocks(*arena)]
        free = [i for i, owner in enumerate(self.cells) if owner == -1]
        firsts = [i for i in free if i - 1 not in free]
        lasts = [i for i in free if i + 1 not in free]
        return [(a, b - a + 1) for a, b in zip(firsts, lasts, strict=True)]

    def _free_blocks(self, start: int, size: int) -> list[tuple[int, int]]:
        """Largest free aligned blocks: a whole block, else those of its halves."""
        if all(owner == -1 for owner in self.cells[start : start + size]):
            return [(start, size)]
        half = size // 2
        return self._free_blocks(start, half) + self._free_blocks(start + half, half) if half else []

    def round_up(self, size: int) -> int:
        if self.placement != "buddy":
            return size
        return next(1 << bit for bit in range(size + 1) if 1 << bit >= size)

    def admit(self, owner: int, need: int) -> int | None:
        size = self.round_up(need)
        fitting = [(start, room) for start, room in self.holes() if room >= size]
        if not fitting:
            return None
        start, _ = fitting[0] if self.placement == "first_fit" else min(fitting, key=lambda hole: (hole[1], hole[0]))
        self.cells[start : start + size] = [owner] * size
        return start

    def grow(self, owner: int, need: int) -> bool:
        held = self.cells.count(owner)
        end = self.cells.index(owner) + held
        more = max(0, need - held)
        if more and (self.placement == "buddy" or self.cells[end : end + more] != [-1] * more):
            return False
        self.cells[end : end + more] = [owner] * more
        return True

    def free(self, owner: int) -> None:
        self.cells = [-1 if cell == owner else cell for cell in self.cells]

    def external(self, need: int) -> int:
        need = self.round_up(need)
        placeable = sum(room // need for _, room in self.holes())
        return self.cells.count(-1) - placeable * need


operations = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "reserve", "grow", "free"]),
        st.integers(1, 24),
        st.integers(0, 24),
        st.integers(0, 1000),
    ),
    min_size=15,
    max_size=60,
)


@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(max_examples=75, deadline=None)
@given(capacity=st.integers(1, 96), ops=operations)
def test_random_operations_agree_with_a_bitmap(
    placement: str, capacity: int, ops: list[tuple[str, int, int, int]]
) -> None:
    allocator, bitmap = ContiguousAllocator(capacity, placement), Bitmap(capacity, placement)
    live: list[Sequence] = []
    for seq_id, (verb, tokens, extra, pick) in enumerate(ops):
        before, held_before = allocator.usage(), [(s.kv.start, s.kv.size, s.kv.used) for s in live]
        done = True
        if verb in ("admit", "reserve"):
            seq = make_seq(seq_id, reserve_tokens=extra)
            if verb == "admit":
                gate = pick % 12
                done = allocator.try_admit(seq, tokens, gate, headroom=bool(pick % 2))
                start = bitmap.admit(seq_id, max(tokens, gate, extra))
            else:
                done = allocator.try_reserve(seq, tokens)
                start = bitmap.admit(seq_id, tokens)
            assert (seq.kv.start if done else None) == start
            if done:
                live.append(seq)
            else:
                assert seq.kv is None
        elif live:
            seq = live[pick % len(live)]
            if verb == "grow":
                done = allocator.try_grow(seq, seq.kv.used + extra)
                # A growth that was refused must be refused by the bitmap too, and the other way round.
                assert done is bitmap.grow(seq.id, held_before[live.index(seq)][2] + extra)
            else:
                allocator.free(seq)
                bitmap.free(seq.id)
                live.remove(seq)
        allocator.check_integrity()
        usage = allocator.usage()
        if not done:
            assert usage == before
            assert [(s.kv.start, s.kv.size, s.kv.used) for s in live] == held_before
        assert usage.allocated_tokens + usage.free_tokens == capacity
        assert usage.free_tokens == bitmap.cells.count(-1)
        assert usage.largest_free_tokens == max((room for _, room in bitmap.holes()), default=0)
        assert usage.used_tokens == sum(s.kv.used for s in live)
        for seq in live:
            assert allocator.allocated_of(seq) == bitmap.cells.count(seq.id)
        assert allocator.external_tokens(tokens) == bitmap.external(tokens)
    for seq in live:
        allocator.free(seq)
        allocator.check_integrity()
    fresh = ContiguousAllocator(capacity, placement)
    assert allocator.usage() == fresh.usage()


@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(max_examples=50, deadline=None)
@given(
    capacity=st.integers(1, 200),
    sizes=st.lists(st.integers(1, 30), max_size=20),
    freed=st.sets(st.integers(0, 19)),
    need=st.integers(1, 40),
)
def test_external_tokens_are_what_is_left_after_packing_the_pool(
    placement: str, capacity: int, sizes: list[int], freed: set[int], need: int
) -> None:
    allocator = ContiguousAllocator(capacity, placement)
    seqs = [make_seq(i) for i in range(len(sizes))]
    held = [seq for seq, size in zip(seqs, sizes, strict=True) if allocator.try_admit(seq, size, 0, headroom=False)]
    for seq in held:
        if seq.id in freed:
            allocator.free(seq)
    external = allocator.external_tokens(need)
    while allocator.try_admit(make_seq(99), need, 0, headroom=False):
        pass
    assert allocator.usage().free_tokens == external
    assert allocator.external_tokens(need) == external
    assert allocator.usage().largest_free_tokens < need


@pytest.mark.parametrize("placement", ["first_fit", "best_fit"])
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_regions_admitted_to_an_empty_pool_lie_one_behind_the_other(placement: str, sizes: list[int]) -> None:
    allocator = ContiguousAllocator(sum(sizes), placement)
    seqs = place(allocator, *sizes)
    assert all(b.kv.start == a.kv.start + a.kv.size for a, b in pairwise(seqs))
    assert allocator.usage().free_tokens == 0
