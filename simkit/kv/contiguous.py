"""Contiguous KV memory: one address space in which every sequence holds a single region, reserved at admission.

Owns the address space, its holes and three placements. Addresses and sizes are in tokens. Ties go to the lowest
address.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from simkit.errors import InputError, nearest
from simkit.kv.protocol import KVUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from simkit.sequence import Sequence

Hole = tuple[int, int]  # (start, size) of a free piece of the address space


class _FitSpace:
    """Holes of any size in address order, none touching another; a piece is cut from the low end of its hole."""

    def __init__(self, capacity: int, best: bool) -> None:
        self.largest_piece = capacity  # the largest request that an empty space can hold
        self._best = best
        self._holes: list[Hole] = [(0, capacity)]

    def round_up(self, size: int) -> int:
        """Tokens a request for `size` takes."""
        return size

    def take(self, size: int) -> int | None:
        """Start of a piece of `size` (rounded) tokens, now taken; None when no hole is large enough."""
        fitting = [hole for hole in self._holes if hole[1] >= size]
        if not fitting:
            return None
        start, _ = min(fitting, key=lambda hole: hole[1]) if self._best else fitting[0]
        self._cut(bisect_left(self._holes, (start, 0)), size)
        return start

    def extend(self, start: int, size: int, new_size: int) -> bool:
        """Lengthen the taken piece at `start` in place; False when the tokens behind it are not free."""
        index = bisect_left(self._holes, (start + size, 0))
        adjacent = index < len(self._holes) and self._holes[index][0] == start + size
        if not adjacent or self._holes[index][1] < new_size - size:
            return False
        self._cut(index, new_size - size)
        return True

    def give(self, start: int, size: int) -> None:
        """Take a piece back and merge it with the holes it touches."""
        index = bisect_left(self._holes, (start, 0))
        self._holes.insert(index, (start, size))
        for left in (index, index - 1):  # the neighbour behind first, so that `index - 1` still names the one before
            if 0 <= left < len(self._holes) - 1 and sum(self._holes[left]) == self._holes[left + 1][0]:
                (low, room), (_, more) = self._holes[left : left + 2]
                self._holes[left : left + 2] = [(low, room + more)]

    def holes(self) -> list[Hole]:
        """Free pieces in address order."""
        return list(self._holes)

    def check(self) -> None:
        """Raise AssertionError when a rule of the placement is broken."""
        for (start, size), (next_start, _) in zip(self._holes, self._holes[1:], strict=False):
            assert start + size < next_start, f"holes at {start} and {next_start} overlap or were not merged"

    def _cut(self, index: int, size: int) -> None:
        """Remove the first `size` tokens of a hole."""
        start, room = self._holes[index]
        self._holes[index : index + 1] = [(start + size, room - size)] if room > size else []


class _BuddySpace:
    """Blocks of a power of two tokens at multiples of their size, split in halves and joined again with their buddy.

    The methods are those of `_FitSpace`.
    A capacity that is no power of two becomes one arena a binary digit, the largest first. An arena of s tokens then
    starts at a multiple of 2 s and everything behind it lies in smaller arenas, so the buddy `start ^ size` of a whole
    arena is never a free block of that size and joining cannot cross arenas.
    Source: Knuth, The Art of Computer Programming, volume 1, section 2.5.
    """

    def __init__(self, capacity: int) -> None:
        sizes = [1 << bit for bit in range(capacity.bit_length())]
        self.largest_piece = sizes[-1]
        # Size (ascending) -> sorted starts of free blocks. Clearing a digit of the capacity and all below leaves what
        # the larger arenas take, which is where the arena of that digit starts.
        self._free = {size: [capacity & -2 * size] if capacity & size else [] for size in sizes}

    def round_up(self, size: int) -> int:
        return 1 << (size - 1).bit_length()

    def take(self, size: int) -> int | None:
        room = next((room for room in self._free if room >= size and self._free[room]), None)
        if room is None:
            return None
        start = self._free[room].pop(0)
        while room > size:
            room //= 2
            self._free[room].append(start + room)  # empty until now: smaller blocks would have been taken first
        return start

    def extend(self, start: int, size: int, new_size: int) -> bool:
        return False  # a block is as long as its place in the tree

    def give(self, start: int, size: int) -> None:
        while start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        insort(self._free[size], start)

    def holes(self) -> list[Hole]:
        return sorted((start, size) for size, starts in self._free.items() for start in starts)

    def check(self) -> None:
        for start, size in self.holes():
            assert start % size == 0, f"free block at {start} of {size} tokens is not aligned"
            assert start ^ size not in self._free[size], f"free buddies at {start} and {start ^ size} were not joined"


_SPACES: dict[str, Callable[[int], _FitSpace | _BuddySpace]] = {
    "first_fit": lambda capacity: _FitSpace(capacity, best=False),
    "best_fit": lambda capacity: _FitSpace(capacity, best=True),
    "buddy": _BuddySpace,
}


@dataclass(slots=True)
class Region:
    """What a sequence holds: [start, start + size), of which the caller said it fills `used` tokens."""

    start: int
    size: int
    used: int


class ContiguousAllocator:
    """A `simkit.kv.protocol.KVPool` over one address space of `capacity_tokens` tokens.

    `first_fit` takes the lowest hole that is large enough, `best_fit` the smallest, `buddy` rounds every size up to a
    power of two (the rounding counts as allocated) and takes the smallest free block. A region stands in `seq.kv`,
    never moves, and lengthens only into a hole right behind it (never with `buddy`).
    `usage().used_tokens` is the sum over regions of the tokens last named in `try_admit`, `try_reserve` or `try_grow`,
    and those of `grow_all`: a claim of the caller, not a measurement.
    Raises InputError for an unknown placement or a capacity below 1.
    """

    block_size = None

    def __init__(self, capacity_tokens: int, placement: str) -> None:
        if placement not in _SPACES:
            hint = nearest(placement, _SPACES)
            raise InputError(f"expected one of {', '.join(_SPACES)}, got {placement!r}{hint}", key="placement")
        if capacity_tokens < 1:
            raise InputError(f"contiguous KV memory needs at least 1 token, got {capacity_tokens}")
        self._capacity = capacity_tokens
        self._space = _SPACES[placement](capacity_tokens)
        self._regions: dict[int, Region] = {}  # by start
        self._allocated = 0
        self._used = 0
        self._num_grown = self._num_joined = 0
        # Who joined: steps grown before, and steps after which the region is full.
        self._growing: dict[Sequence, tuple[int, int]] = {}
        self._full: list[tuple[int, int, Sequence]] = []

    @property
    def capacity_tokens(self) -> int:
        """All tokens of the address space."""
        return self._capacity

    def fits_ever(self, num_tokens: int, reserve_tokens: int) -> bool:
        """Whether an empty pool can place the larger of the two."""
        return self._space.round_up(max(num_tokens, reserve_tokens, 1)) <= self._space.largest_piece

    def lookup(self, seq: Sequence) -> int:
        """0: regions are never shared."""
        return 0

    def try_admit(self, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        """Place a region of max(`num_tokens`, `gate_tokens`, `seq.reserve_tokens`) tokens.

        `headroom` is ignored: a reservation is complete, so no free memory has to be kept for its growth.
        """
        return self._place(seq, max(num_tokens, gate_tokens, seq.reserve_tokens), num_tokens)

    def try_reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Place a region of `num_tokens` tokens, whatever `seq.reserve_tokens` says (a padded static batch)."""
        return self._place(seq, num_tokens, num_tokens)

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room so that `seq` holds `num_tokens` in all: inside its region, else in the hole right behind it."""
        region = self._region(seq)
        if num_tokens > region.size:
            if not self._space.extend(region.start, region.size, num_tokens):
                return False
            self._allocated += num_tokens - region.size
            region.size = num_tokens
        self._note_used(region, num_tokens)
        return True

    def try_fork(self, parent: Sequence, child: Sequence) -> bool:
        """Contiguous memory shares nothing: a region of its own for `child`."""
        return self.try_admit(child, parent.num_computed_tokens, 0, False)

    def free(self, seq: Sequence) -> None:
        """Return the region of `seq`; nothing happens when it holds none."""
        if seq.kv is None:
            return
        if seq in self._growing:
            self.leave(seq)
        region = self._region(seq)
        del self._regions[region.start]
        self._space.give(region.start, region.size)
        self._allocated -= region.size
        self._used -= region.used
        seq.kv = None

    def can_join(self, seq: Sequence) -> bool:
        """Nothing is shared: yes."""
        return True

    def join(self, seq: Sequence) -> None:
        """`seq` grows with the others for as long as its region is large enough."""
        region = self._region(seq)
        full = self._num_grown + region.size - seq.num_computed_tokens
        self._growing[seq] = (self._num_grown, full)
        heappush(self._full, (full, self._num_joined, seq))
        self._num_joined += 1

    def leave(self, seq: Sequence) -> None:
        """`seq` grows alone again."""
        joined, _ = self._growing.pop(seq)
        self._region(seq).used += self._num_grown - joined

    def grow_all(self, num_steps: int, known: int) -> bool:
        """Note `num_steps` further tokens of everybody who joined; False when a region would have to be lengthened."""
        if self.steps_until_full(num_steps) < num_steps:
            return False
        self._num_grown += num_steps
        self._used += num_steps * len(self._growing)
        return True

    def steps_until_full(self, limit: int) -> int:
        """How many further one-token steps keep all who joined inside their regions as they are, at most `limit`.

        Lengthening into a hole is left to `try_grow`.
        """
        heap = self._full
        while heap:
            full, _, seq = heap[0]
            if seq in self._growing and self._growing[seq][1] == full:
                return max(0, min(limit, full - self._num_grown))
            heappop(heap)
        return limit

    def allocated_of(self, seq: Sequence) -> int:
        """Tokens `seq` holds, rounding included; 0 without memory."""
        return 0 if seq.kv is None else self._region(seq).size

    def usage(self) -> KVUsage:
        """Totals now; O(holes) for the largest hole (buddy: the largest free block)."""
        return KVUsage(
            capacity_tokens=self._capacity,
            allocated_tokens=self._allocated,
            used_tokens=self._used,
            free_tokens=self._capacity - self._allocated,
            largest_free_tokens=max((size for _, size in self._space.holes()), default=0),
        )

    @property
    def allocated_tokens(self) -> int:
        """Tokens of all regions."""
        return self._allocated

    def external_tokens(self, need_tokens: int) -> int:
        """External fragmentation for a request of `need_tokens`: free - sum over holes of floor(hole/need) x need.

        With `buddy` the need is rounded up to its block and the holes are the free blocks. 0 for a need below 1.
        """
        if need_tokens <= 0:
            return 0
        need = self._space.round_up(need_tokens)
        return sum(size % need for _, size in self._space.holes())  # free is the sum of the holes

    def check_integrity(self) -> None:
        """Raise AssertionError unless regions and merged holes tile the space exactly and the totals agree."""
        regions = list(self._regions.values())
        for region in regions:
            assert region.size == self._space.round_up(region.size), f"{region} has an impossible size"
            assert 0 <= region.used <= region.size, f"{region} uses more than it has"
        position = 0
        for start, size in sorted(self._space.holes() + [(region.start, region.size) for region in regions]):
            assert size > 0, f"empty piece at {start}"
            assert start == position, f"gap or overlap: expected a piece at {position}, found one at {start}"
            position += size
        assert position == self._capacity, f"pieces end at {position}, the space at {self._capacity}"
        assert self._allocated == sum(region.size for region in regions), "allocated tokens do not add up"
        grown = sum(self._num_grown - joined for joined, _ in self._growing.values())
        assert self._used == sum(region.used for region in regions) + grown, "used tokens do not add up"
        self._space.check()

    def _place(self, seq: Sequence, need_tokens: int, num_tokens: int) -> bool:
        assert seq.kv is None, f"{seq!r} holds memory already"
        assert need_tokens > 0, f"an empty region for {seq!r}"
        size = self._space.round_up(need_tokens)
        start = self._space.take(size)
        if start is None:
            return False
        seq.kv = self._regions[start] = Region(start, size, num_tokens)
        self._allocated += size
        self._used += num_tokens
        return True

    def _region(self, seq: Sequence) -> Region:
        """The region of `seq`, which must be one of this pool."""
        region = seq.kv
        assert isinstance(region, Region), f"{seq!r} holds no memory"
        assert self._regions.get(region.start) is region, f"the memory of {seq!r} belongs to another pool"
        return region

    def _note_used(self, region: Region, num_tokens: int) -> None:
        """Note how many tokens of a region are in use."""
        self._used += num_tokens - region.used
        region.used = num_tokens
