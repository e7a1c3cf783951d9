"""Which batch a captured CUDA graph runs for a number of tokens. Owns the capture sizes; imports numpy only."""

from __future__ import annotations

import numpy as np

from simkit.types import Ints

LARGEST_GRAPH = 512
"""Tokens of the largest graph that vLLM captures by itself."""


def largest_graph(max_num_seqs: int) -> int:
    """The largest batch that vLLM captures for an engine with so many slots (compilation config of vLLM 0.13)."""
    return min(2 * max_num_seqs, LARGEST_GRAPH)


def graph_rows(largest_rows: int, largest: int) -> Ints:
    """Rows that run for 0, 1, ... `largest_rows` rows: those of the next captured size, at most `largest`.

    vLLM captures 1, 2, 4, then every 8 up to 256 and every 16 beyond (compilation config of vLLM 0.13); a step beyond
    the largest one runs as it is. The same for steps that hold a prefill chunk, whose graphs leave attention out.
    """
    rows = np.arange(largest_rows + 1, dtype=np.int64)
    padded = np.where(rows <= 4, np.where(rows == 3, 4, rows), -(-rows // 8) * 8)
    padded = np.where(rows > 256, -(-rows // 16) * 16, padded)
    return np.where(rows <= largest, np.minimum(padded, np.maximum(largest, rows)), rows)
