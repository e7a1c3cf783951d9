"""Dynamic batching: like static, but a free engine launches as soon as the oldest has waited long enough."""

from __future__ import annotations

from simkit.batching.static import StaticBatcher


class DynamicBatcher(StaticBatcher):
    """Launches, engine free, when `max_num_seqs` wait or the oldest has waited `max_wait_ns` (0 = at once).

    Requests join while the batch is forming, nobody after launch; a pending arrival or its absence changes nothing.
    """

    launches_when_closed = False
