"""Proof that decisions equal those of the real scheduler: recorded traces replayed through the batcher and allocator.

Imports batching, kv, sequence and types; no clock of its own but the integer formula of a trace.
"""
