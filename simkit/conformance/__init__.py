"""Proof that decisions equal those of the real scheduler: recorded traces replayed through batcher and allocator."""
