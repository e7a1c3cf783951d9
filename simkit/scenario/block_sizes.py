"""Sizes of KV blocks that versions of vLLM take on their command line, as far as they are known.

Sources: the documentation of 0.5.3 and 0.6.3 lists 8, 16 and 32 (engine_args). Pull request 11259 of December 2024
adds 64 and 128, in the course of 0.6, and refuses what is above 32 on CUDA, which 11723 takes back for 0.7. The
documentation of 0.9.0 to 0.10.2 lists 1 to 128, that of 0.11.1 and 0.16.0 256 as well (`BlockSize` of
vllm.config.cache); that of 0.26.0 and 0.29.0 asks for any number above 0. Where versions between them are not known,
what either takes is allowed.

Not refused: sizes that an attention back end replaces by its own (FlashMLA: 64), and 1 and 8 with FlashAttention, which
wants multiples of 16 but gives way to other back ends in some versions. The default stays 16.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taken:
    """The sizes that versions up to the minor one of `until` take."""

    until: tuple[int, int]
    sizes: tuple[int, ...]


TAKEN = (
    Taken((0, 5), (8, 16, 32)),
    Taken((0, 10), (1, 8, 16, 32, 64, 128)),
    Taken((0, 16), (1, 8, 16, 32, 64, 128, 256)),
)
"""Later versions take any."""


def refusal(size: int, version: str) -> str | None:
    """What was expected instead of a size that the version refuses; None where it is not known to refuse it."""
    major, minor = version.split(".")[:2]
    taken = next((row for row in TAKEN if (int(major), int(minor)) <= row.until), None)
    if taken is None or size in taken.sizes:
        return None
    return f"one of {', '.join(map(str, taken.sizes))}, the sizes of a block that vLLM {major}.{minor} takes"
