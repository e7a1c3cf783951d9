"""Batchers decide what each step holds. Pure: no clock, no randomness, no true output length."""
