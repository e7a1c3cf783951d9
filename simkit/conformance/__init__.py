"""Proof that decisions equal those of the real scheduler: recorded traces replayed through the batcher and allocator."""
