"""The host pool that swapped sequences wait in: finite, counted in tokens of memory.

Beyond the real engine, which recomputes. Time on the link is the latency model's business.
"""

from __future__ import annotations

from simkit.sequence import Sequence


class HostPool:
    """Memory of preempted sequences on the host; `bytes_per_token` is of all GPUs of a replica together."""

    __slots__ = ("_bytes_per_token", "_held", "capacity_tokens", "num_held_tokens")

    def __init__(self, capacity_tokens: int, bytes_per_token: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._bytes_per_token = bytes_per_token
        self.num_held_tokens = 0
        self._held: dict[Sequence, int] = {}

    @property
    def bytes_per_token(self) -> int:
        """Bytes that cross the host link per token of KV."""
        return self._bytes_per_token

    def holds(self, seq: Sequence) -> bool:
        """Whether `seq` waits here."""
        return seq in self._held

    def try_store(self, seq: Sequence, num_tokens: int) -> bool:
        """Set `num_tokens` aside for `seq`; False when the pool is too full."""
        assert seq not in self._held, f"{seq!r} is swapped out already"
        if self.num_held_tokens + num_tokens > self.capacity_tokens:
            return False
        self._held[seq] = num_tokens
        self.num_held_tokens += num_tokens
        return True

    def release(self, seq: Sequence) -> int:
        """Give back what `seq` holds, because it returns to the GPU or ends; the number of tokens."""
        num_tokens = self._held.pop(seq)
        self.num_held_tokens -= num_tokens
        return num_tokens

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance."""
        assert self.num_held_tokens == sum(self._held.values()) <= self.capacity_tokens, "host pool books are off"
