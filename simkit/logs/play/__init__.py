"""Columns become arrivals: order, sessions, clocks, window, pace and repeats of what is replayed."""
