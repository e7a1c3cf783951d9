"""Adds up GPU time, FLOPs and bytes of the steps that were made, many steps at a time.

The latency model is elementwise, so evaluating steps together gives the same numbers as one by one. Sums are ints, so
their order does not matter. Imports `types` and numpy only.
"""

from __future__ import annotations

import numpy as np

from simkit.types import LatencyModel, StepShapes

FLUSH_STEPS = 4096


class WorkMeter:
    """Collects shapes; `flush` evaluates what was collected. `gpu_ns`, `flops` and `moved_bytes` are running sums."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._pending: list[StepShapes] = []
        self._num_pending = 0
        self.gpu_ns = 0
        self.flops = 0
        self.moved_bytes = 0

    def add(self, shapes: StepShapes, first: int, upto: int) -> None:
        """Steps `first` (counted from 0) up to `upto` (not included) of `shapes` were made."""
        self._pending.append(shapes if upto - first == len(shapes) else shapes.part(first, upto))
        self._num_pending += upto - first
        if self._num_pending >= FLUSH_STEPS:
            self.flush()

    def flush(self) -> None:
        """Evaluate what was collected."""
        if not self._pending:
            return
        shapes = StepShapes.concatenate(self._pending)
        self._pending, self._num_pending = [], 0
        flops, moved_bytes = self._latency.work(shapes)
        self.gpu_ns += int(self._latency.gpu_ns(shapes).sum())
        # Rounded to ints: float sums would depend on how steps were grouped.
        self.flops += int(np.rint(flops).astype(np.int64).sum())
        self.moved_bytes += int(np.rint(moved_bytes).astype(np.int64).sum())
