"""Memory that is promised to those who run, to the end of their answers, where an engine never preempts.

Owns how much that is. TensorRT-LLM calls the rule GUARANTEED_NO_EVICT and has it by default; vLLM has nothing like it.
"""

from __future__ import annotations

from collections.abc import Iterable

from simkit.kv.protocol import KVPool, SharesBlocks
from simkit.sequence import Sequence


class Promises:
    """Whether one more sequence fits beside all who run when each of them grows to its longest.

    Blocks that several hold are counted once; those that the newcomer finds in the prefix cache are counted again.
    """

    def __init__(self, kv: KVPool) -> None:
        assert kv.block_size is not None, "memory in one piece is reserved to the end anyway"
        self._block_size = kv.block_size
        self._blocks = kv.capacity_tokens // kv.block_size
        self._shares = kv if isinstance(kv, SharesBlocks) else None
        self._version = -1
        self._promised = 0

    def leaves_room(self, seq: Sequence, running: Iterable[Sequence], version: int) -> bool:
        """Whether `seq` may run beside `running`, which are the same as long as their `version` is."""
        if version != self._version:
            self._version, self._promised = version, sum(map(self._longest, running))
        shared = 0 if self._shares is None else self._shares.shared_tokens // self._block_size
        return self._promised + self._longest(seq) <= self._blocks + shared

    def _longest(self, seq: Sequence) -> int:
        """Blocks of prompt and `max_tokens`."""
        return -(-seq.reserve_tokens // self._block_size)
