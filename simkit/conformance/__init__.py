"""Proof that decisions equal those of the real scheduler: recordings of it replayed through batcher and allocator."""
