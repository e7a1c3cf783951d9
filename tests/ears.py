"""An engine's ear for tests that drive a batcher themselves: it hears of every token, told or only counted.

It knows nothing but the protocol, and looks at every grouped sequence at every commit instead of keeping a calendar, so
that a batcher which tells too much, too little or too late is noticed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from simkit.sequence import Sequence


class Ear:
    """An `OutputListener`. Everybody ends at a limit that all see, or after `length_of` tokens if that is earlier."""

    def __init__(self, max_model_len: int, length_of: Callable[[Sequence], int] | None = None) -> None:
        self.heard: Counter[int] = Counter()
        """Tokens by request."""
        self.gone: list[int] = []
        """Who was released, in order."""
        self._max_model_len = max_model_len
        self._length_of = length_of or (lambda seq: seq.max_tokens)
        self._heard_of: Counter[Sequence] = Counter()
        self._grouped: dict[Sequence, int] = {}
        self._stopped: dict[Sequence, int] = {}

    def _hear(self, seq: Sequence) -> None:
        self.heard[seq.id] += 1
        self._heard_of[seq] += 1
        assert self._heard_of[seq] == seq.num_output_tokens, f"{seq!r}: {self._heard_of[seq]} tokens were heard"

    def _at_a_limit(self, seq: Sequence) -> bool:
        tokens = seq.num_output_tokens
        return tokens >= seq.max_tokens or seq.num_prompt_tokens + tokens >= self._max_model_len

    def token(self, seq: Sequence, ends: bool) -> bool:
        """A token told by itself; of a grouped sequence only one that was sampled before it joined."""
        self._hear(seq)
        assert ends is self._at_a_limit(seq)
        return ends or seq.num_output_tokens >= self._length_of(seq)

    def joined(self, seq: Sequence, commit: int) -> None:
        """From now on its tokens are counted at every commit."""
        assert seq not in self._grouped
        assert seq.is_grouped
        self._grouped[seq] = commit

    def stopped(self, seq: Sequence) -> None:
        """One more token comes: the one that reaches a limit."""
        assert seq in self._grouped
        assert seq not in self._stopped
        self._stopped[seq] = seq.num_output_tokens + 1
        assert self._stopped[seq] == min(seq.max_tokens, self._max_model_len - seq.num_prompt_tokens)

    def left(self, seq: Sequence) -> None:
        """It is told of one by one again."""
        self._grouped.pop(seq, None)
        self._stopped.pop(seq, None)

    def tokens(self, commit: int) -> list[Sequence]:
        """Everybody in the group got a token; the latest to join comes first, since the order must not matter."""
        ending = []
        for seq, joined_at in reversed(list(self._grouped.items())):
            assert commit > joined_at
            if seq.last_step < commit:  # else it was sampled before the sequence joined, and will be told
                self._hear(seq)
            assert seq.num_output_tokens <= self._stopped.get(seq, commit + seq.max_tokens)
            if self._at_a_limit(seq) or seq.num_output_tokens >= self._length_of(seq):
                ending.append(seq)
                self.left(seq)
        return ending

    def released(self, seq: Sequence) -> None:
        """It gave back what it held."""
        assert seq not in self._grouped
        self.gone.append(seq.id)
