"""Who holds which KV memory: pure bookkeeping, no clock, no randomness."""
