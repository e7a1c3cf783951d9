"""Prompts as paths in a trie of block identities: which request was the first at each point of another's path.

A block is the same only if all blocks before it are. Imports `types` and its own siblings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simkit.types import Ints
from simkit.workload.traces.record import Blocks


@dataclass(frozen=True, slots=True)
class Shared:
    """Ragged: the prompt of request i equals that of request ``owner[k]`` up to token ``upto_tokens[k]``.

    k runs from ``offsets[i]`` to ``offsets[i + 1]``; owners come before i and `upto_tokens` rises. Each token belongs
    to the first request that has the same tokens up to its block, so equal beginnings have equal owners.
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


@dataclass(frozen=True, slots=True)
class Paths:
    """`num_known[i]`: how many leading blocks of request i an earlier one has, too.

    They belong to `num_runs[i]` owners one after the other: run k, of ``owner[k]``, ends before block ``end_block[k]``.
    """

    num_known: Ints
    num_runs: Ints
    owner: Ints
    end_block: Ints


def walk(blocks: Blocks, counts: Ints) -> Paths:
    """Walk all requests in order through one trie; of request i the first ``counts[i]`` blocks are looked at."""
    codes, names = np.unique(blocks.ids, return_inverse=True)
    num_codes = max(1, len(codes))
    all_names: list[int] = names.reshape(-1).tolist()
    children: dict[int, int] = {}
    owners = [-1]
    known, runs, run_owner, run_end = [], [], [], []
    for row, (start, count) in enumerate(zip(blocks.offsets[:-1].tolist(), counts.tolist(), strict=True)):
        path = all_names[start : start + count]
        node = depth = 0
        last, num_runs = -1, 0
        for name in path:
            child = children.get(node * num_codes + name)
            if child is None:
                break
            node = child
            if owners[node] != last:
                if last >= 0:
                    run_end.append(depth)
                last = owners[node]
                run_owner.append(last)
                num_runs += 1
            depth += 1
        if last >= 0:
            run_end.append(depth)
        known.append(depth)
        runs.append(num_runs)
        # Below a node that is new, all are.
        for name in path[depth:]:
            children[node * num_codes + name] = node = len(owners)
            owners.append(row)
    columns = (np.array(values, dtype=np.int64) for values in (known, runs, run_owner, run_end))
    return Paths(*columns)


def shared_prompts(blocks: Blocks, prompt_tokens: Ints, block_tokens: int) -> Shared:
    """What each prompt has in common with those before it, never beyond its own or the owner's end."""
    num_blocks = np.minimum(np.diff(blocks.offsets), -(-prompt_tokens // block_tokens))
    paths = walk(blocks, num_blocks)
    row = np.repeat(np.arange(len(prompt_tokens)), paths.num_runs)
    upto = np.minimum(paths.end_block * block_tokens, np.minimum(prompt_tokens[row], prompt_tokens[paths.owner]))
    # These rise: the owner of a run has a block that begins where the run before ended.
    offsets = np.concatenate([[0], np.cumsum(paths.num_runs)]).astype(np.int64)
    return Shared(paths.owner, upto, offsets)
