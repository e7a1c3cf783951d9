"""Prompts as paths in a trie of block identities: which request was the first at each point of another's path.

A block is the same only if all blocks before it are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simkit.logs.read.record import Blocks
from simkit.types import Ints


@dataclass(frozen=True, slots=True)
class Shared:
    """Ragged: the prompt of request i equals that of request ``owner[k]`` up to token ``upto_tokens[k]``.

    k runs from ``offsets[i]`` to ``offsets[i + 1]``; owners come before i and `upto_tokens` rises. Each token belongs
    to the first request that has the same beginning and reaches it, so equal beginnings have equal owners.
    """

    owner: Ints
    upto_tokens: Ints
    offsets: Ints

    def of(self, request: int) -> tuple[tuple[int, int], ...]:
        """The segments of one request."""
        part = slice(self.offsets[request], self.offsets[request + 1])
        return tuple(zip(self.owner[part].tolist(), self.upto_tokens[part].tolist(), strict=True))

    @classmethod
    def nothing(cls, num_requests: int) -> Shared:
        """No request shares anything."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, np.zeros(num_requests + 1, dtype=np.int64))


def walk(blocks: Blocks, prompt_tokens: Ints, block_tokens: int) -> tuple[Ints, Shared]:
    """All prompts in order through one trie: (how many leading blocks an earlier one has, too; what is shared).

    A token belongs to the first request that has its block behind the same blocks and reaches it: one that ends inside
    the block owns no more than it has, and the first that goes further owns the rest.
    """
    counts = np.minimum(np.diff(blocks.offsets), -(-prompt_tokens // block_tokens))
    codes, names = np.unique(blocks.ids, return_inverse=True)
    num_codes = max(1, len(codes))
    all_names: list[int] = names.reshape(-1).tolist()
    children: dict[int, int] = {}
    owners, reach = [-1], [0]  # by node, the root first: who came first, and up to which token anybody has it
    further: dict[int, list[tuple[int, int]]] = {}  # by node, owners beyond the first, each with its end
    known: list[int] = []
    num_segments: list[int] = []
    owner: list[int] = []
    upto: list[int] = []
    rows = zip(blocks.offsets[:-1].tolist(), counts.tolist(), prompt_tokens.tolist(), strict=True)
    for row, (start, count, prompt) in enumerate(rows):
        path = all_names[start : start + count]
        node = depth = end = 0
        first_segment, last = len(owner), -1
        for name in path:
            child = children.get(node * num_codes + name)
            if child is None:
                break
            node, depth = child, depth + 1
            end = min(depth * block_tokens, prompt)
            several = further.get(node)
            for found, ends in ((owners[node], end),) if several is None else several:
                if found != last:
                    owner.append(found)
                    upto.append(0)
                    last = found
                upto[-1] = min(ends, end)
                if ends >= end:
                    break
        if reach[node] < end:
            # This request goes on where all before it end; whatever is deeper is new.
            if node not in further:
                upto[-1] = reach[node]
                further[node] = [(owners[node], reach[node])]
            further[node].append((row, end))
            reach[node] = end
        known.append(depth)
        num_segments.append(len(owner) - first_segment)
        for name in path[depth:]:
            depth += 1
            children[node * num_codes + name] = node = len(owners)
            owners.append(row)
            reach.append(min(depth * block_tokens, prompt))
    offsets = np.concatenate([[0], np.cumsum(np.array(num_segments, dtype=np.int64))]).astype(np.int64)
    shared = Shared(np.array(owner, dtype=np.int64), np.array(upto, dtype=np.int64), offsets)
    return np.array(known, dtype=np.int64), shared
