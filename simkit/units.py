"""Unit conversions, the only place where they live.

Engine time is an int of nanoseconds; scenario files speak seconds, profiles microseconds, reports milliseconds.
"""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
US_PER_S = 1_000_000
BYTES_PER_GIB = 1 << 30


def s_to_ns(seconds: float) -> int:
    """Seconds to nanoseconds, rounded to the nearest int."""
    return round(seconds * NS_PER_S)


def ns_to_s(ns: float) -> float:
    """Nanoseconds to seconds."""
    return ns / NS_PER_S


def ns_to_ms(ns: float) -> float:
    """Nanoseconds to milliseconds."""
    return ns / NS_PER_MS


def gib_to_bytes(gib: float) -> int:
    """GiB (2**30 bytes) to bytes, rounded to the nearest int."""
    return round(gib * BYTES_PER_GIB)


def bytes_to_gib(num_bytes: float) -> float:
    """Bytes to GiB (2**30 bytes)."""
    return num_bytes / BYTES_PER_GIB
