"""KV groups: which layers share a block table, what a block of theirs takes, and how many blocks a sequence may hold.

The engine's planner in figures (notes on hybrid caches of vLLM 0.33, A2, A3 and D5): layers of one kind that look alike
fall into groups of equal size, and all groups draw blocks of one size from one pool. Knows no GPU and no model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

UNLIKE = 1.5
"""Buckets of layers whose numbers differ by less become one group each, the smaller ones padded."""
SMALLEST_BLOCK = 16
"""Tokens that the block of a layer beside linear ones is a multiple of."""


class Kind(Enum):
    """What a layer keeps of a sequence: everything, a window, its last chunk, or a state of fixed size."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    LINEAR = "linear"


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer caches on one rank: `token_bytes` a token, or `state_bytes` a sequence where it is linear.

    `window` is that of a sliding layer, or the chunk of a chunked one, in tokens. `states` are those that a linear
    layer keeps of a sequence: 1, or 2 where prefixes are cached.
    """

    kind: Kind
    token_bytes: float = 0.0
    window: int = 0
    state_bytes: int = 0
    states: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Layers, by number, that share one block table a sequence. A block holds `block_size` tokens in a page a layer."""

    cache: LayerCache
    layers: tuple[int, ...]
    block_size: int
    page_bytes: int

    def reserved(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Most blocks of a sequence of so many tokens while the engine may have `in_flight_tokens` under way.

        The start-up check and the logged concurrency count with it, and the admission gate caps a prompt at it. A
        window rarely starts on the edge of a block, hence one more.
        """
        kind, window = self.cache.kind, self.cache.window
        if kind is Kind.LINEAR:
            return self.cache.states
        if kind is Kind.SLIDING:
            return self._blocks(min(window - 1 + in_flight_tokens, num_tokens)) + 1
        if kind is Kind.CHUNKED:
            return self._blocks(min(window + in_flight_tokens, num_tokens))
        return self._blocks(num_tokens)

    def settled(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds while it decodes."""
        return min(self._blocks(num_tokens), self.reserved(num_tokens, 1))

    def on(self, layers: Collection[int]) -> int:
        """Bytes of a block of it where only these layers are held."""
        return self.page_bytes * sum(layer in layers for layer in self.layers)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def group_layers(caches: Sequence[LayerCache], block_size: int, *, hybrid: bool = True) -> tuple[Group, ...]:
    """The groups of a model's layers, in the order of their first layers.

    Unless `hybrid`, a model with full layers keeps windows and chunks as if they were full too. Linear layers make a
    block of the others at least as large as their state.
    """
    caches = tuple(caches)
    if not hybrid and any(cache.kind is Kind.FULL for cache in caches):
        caches = tuple(_in_full(cache) for cache in caches)
    block_size = _holding_states(caches, block_size)
    pages = [_page_bytes(cache, block_size) for cache in caches]
    if len({_without_size(cache) for cache in caches}) == 1:
        return (Group(caches[0], tuple(range(len(caches))), block_size, _even(pages)),)
    largest = max(pages)
    buckets: dict[tuple[LayerCache, int], list[int]] = {}
    for layer, (cache, page) in enumerate(zip(caches, pages, strict=True)):
        grows = cache.kind is not Kind.LINEAR and largest % page == 0
        buckets.setdefault((cache, block_size * (largest // page) if grows else block_size), []).append(layer)
    return tuple(
        Group(cache, tuple(layers[first::count]), size, largest)
        for (cache, size), layers in buckets.items()
        for count in [-(-len(layers) // _group_size(buckets.values()))]
        for first in range(count)
    )


def block_bytes(groups: Sequence[Group], layers: Collection[int]) -> int:
    """Bytes of a block of the pool on a GPU that holds these layers: those of its largest group."""
    return max(group.on(layers) for group in groups)


def reserved_blocks(groups: Sequence[Group], num_tokens: int, in_flight_tokens: int) -> int:
    """Blocks that the engine sets against a sequence of so many tokens, all groups together."""
    return sum(group.reserved(num_tokens, in_flight_tokens) for group in groups)


def settled_blocks(groups: Sequence[Group], num_tokens: int) -> int:
    """Blocks that a decoding sequence of so many tokens holds, all groups together."""
    return sum(group.settled(num_tokens) for group in groups)


def _group_size(buckets: Collection[Sequence[int]]) -> int:
    fewest, most = min(map(len, buckets)), max(map(len, buckets))
    return most if most < UNLIKE * fewest else fewest


def _in_full(cache: LayerCache) -> LayerCache:
    return replace(cache, kind=Kind.FULL, window=0) if cache.kind in (Kind.SLIDING, Kind.CHUNKED) else cache


def _holding_states(caches: Sequence[LayerCache], block_size: int) -> int:
    """The block size raised so that an attention page holds a linear layer's state."""
    state = max((cache.state_bytes for cache in caches), default=0)
    token = max((cache.token_bytes for cache in caches if cache.kind is not Kind.LINEAR), default=0.0)
    if not state or not token:
        return block_size
    return max(block_size, SMALLEST_BLOCK * -int(-state // (SMALLEST_BLOCK * token)))


def _page_bytes(cache: LayerCache, block_size: int) -> int:
    return cache.state_bytes if cache.kind is Kind.LINEAR else round(block_size * cache.token_bytes)


def _without_size(cache: LayerCache) -> LayerCache:
    """Full layers of unlike sizes share a group all the same."""
    return replace(cache, token_bytes=0.0) if cache.kind is Kind.FULL else cache


def _even(pages: Sequence[int]) -> int:
    """Bytes a layer of a block that all layers share; together they are exact where the layers are alike."""
    return pages[0] if len(set(pages)) == 1 else -(-sum(pages) // len(pages))
