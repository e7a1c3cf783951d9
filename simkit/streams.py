"""Named random streams: value i of a stream depends on (seed, replication, name, i) and on nothing else.

One draw a request and stream, whatever the distribution, so arms that differ in rate, policy or one distribution still
serve the same customers (common random numbers). Only raw 64-bit words of a numpy bit generator are used, which numpy
keeps stable across versions and platforms; distributions are inverse transforms of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from simkit.types import Floats

CHUNK = 4096
"""Requests generated at a time. Memory and speed depend on it, values do not."""


class Stream:
    """A sequence of independent uniform numbers, read in order.

    The generator is PCG64 seeded by ``SeedSequence(seed, spawn_key=(replication, crc32(name)))``: no hash order, no
    global state, and streams of different names or replications do not overlap.
    """

    __slots__ = ("_bits", "name")

    def __init__(self, name: str, seed: int, replication: int) -> None:
        self.name = name
        spawn_key = (replication, zlib.crc32(name.encode("utf-8")))
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key))

    def uniforms(self, n: int) -> Floats:
        """The next `n` values, float64[n], strictly between 0 and 1 and symmetric about 1/2.

        52 random bits plus half a unit: both ends stay away from 0 and 1, so every inverse transform is finite.
        """
        words = np.asarray(self._bits.random_raw(n), dtype=np.uint64)
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one replication of one seed: ``streams("prompt_tokens")`` starts that stream from value 0."""

    seed: int
    replication: int

    def __call__(self, name: str) -> Stream:
        return Stream(name, self.seed, self.replication)
