"""Whom to preempt when a running sequence finds no memory. Pure rules over the running list.

Each rule names the sequence that loses its slot; it may be the one in need. Ties are decided by position, never by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Reversible
from collections.abc import Sequence as Seq

from simkit.sequence import Sequence

FAIR_FLOOR_TOKENS = 32
"""Under `fair`, tokens a sequence may generate after each admission before it becomes a victim, while others can be."""


def last_admitted(running: Reversible[Sequence]) -> Sequence:
    """fcfs: the last of the list (scheduler specification, section 4)."""
    return next(reversed(running))


def least_urgent(running: Seq[Sequence]) -> Sequence:
    """priority: the largest (priority, arrival); on a tie the one earliest in the list (section 4)."""
    return max(running, key=lambda seq: (seq.priority, seq.arrival_ns))


def most_served(
    running: Seq[Sequence], served: Mapping[int, int], tokens_at_admission: Mapping[Sequence, int]
) -> Sequence:
    """fair: the last admitted sequence of the most served tenant; below the floor only when nobody else is left."""
    above = [seq for seq in running if seq.num_output_tokens - tokens_at_admission[seq] >= FAIR_FLOOR_TOKENS]
    candidates = above or running
    most = max(served[seq.tenant] for seq in candidates)
    return next(seq for seq in reversed(candidates) if served[seq.tenant] == most)
