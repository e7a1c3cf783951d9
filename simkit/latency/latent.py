"""Attention layers with one latent a token, by measured modules: decodes alone, chunks alone, and both in one step.

Owns how a step is put together from modules, which hold the projections. In a step of both, the projections are one
product each for all rows: what decodes add to the chunks' module is what their own module takes beyond its projections,
and what the projections of their rows add to those of the chunks'.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from simkit.latency.effects import (
    CHUNK_CONTEXT,
    MIXED_LAUNCHES,
    UNEQUAL_DECODES,
    UNMEASURED_RULE,
    Origin,
    Source,
    nothing,
)
from simkit.latency.latent_modules import Modules
from simkit.latency.physics import ARRAYS, SCALARS, equal_chunks
from simkit.latency.protocol import OneStep
from simkit.latency.step_tables import TableBuilder
from simkit.types import Floats, Ints, StepShapes
from simkit.units import NS_PER_US

BEYOND = "latent attention: beyond the measured sizes"
BOTH = "latent attention: chunks beside decodes, put together from modules"


class LatentAttention:
    """Attention of all layers of a step with all its projections, ns."""

    def __init__(self, tables: TableBuilder, modules: Modules, without: Collection[str] = ()) -> None:
        self._kv_measured, self._tag = tables.kv_is_measured, modules.tag
        self._decode = tables.decode()
        self._chunks, self._chunks_outside = tables.chunks()
        self._context_share = 0.0 if CHUNK_CONTEXT in without else 1.0
        self._apart = 1.0 if MIXED_LAUNCHES in without else 0.0
        self._scale = tables.layers * float(NS_PER_US)
        self.sources = {
            UNEQUAL_DECODES: nothing("modules of equal decodes"),
            MIXED_LAUNCHES: UNMEASURED_RULE,
            CHUNK_CONTEXT: Source(Origin.NOT_MEASURED, "formula of the module: not measured"),
        }

    def ns(self, shapes: StepShapes, raised: Floats | None = None) -> Floats:
        """Attention of all layers of each step, float64[k]; nothing of it is `raised`."""
        seqs = shapes.decode_seqs
        mean = shapes.decode_context_sum / np.maximum(seqs, 1)
        us = self._decode.at(seqs, mean)
        some = np.flatnonzero(shapes.prefill_tokens)
        if len(some):
            tokens = shapes.prefill_tokens[some]
            alone = self._chunks.at(*self._chunks_of(shapes, some))
            beside, rows = seqs[some], seqs[some] + tokens
            projections = self._decode.at(beside, _one_token(beside))
            more = self._decode.at(rows, _one_token(rows)) - self._decode.at(tokens, _one_token(tokens))
            us[some] = self._both(alone, us[some], projections, more, ARRAYS)
        return us * self._scale

    def one(self, step: OneStep) -> float:
        """`ns` of one step without arrays."""
        seqs, tokens = step.num_decode, step.prefill_tokens
        us = self._decode.one(seqs, step.decode_context_sum / max(seqs, 1))
        if tokens:
            chunks, q, before = equal_chunks(tokens, step.prefill_context_tokens, step.prefill_pairs, SCALARS)
            alone = self._chunks.one(chunks, q, before * self._context_share)
            more = self._decode.one(seqs + tokens, 1.0) - self._decode.one(tokens, 1.0)
            us = self._both(alone, us, self._decode.one(seqs, 1.0), more, SCALARS)
        return us * self._scale

    def decode_one(self, seqs: int, context: int, longest: int) -> float:
        """ns of a step of decodes alone."""
        return self._decode.one(seqs, context / max(seqs, 1)) * self._scale

    def decode_run(self, seqs: int, context: int, longest: int, num_steps: int) -> list[float]:
        """`decode_one` of steps that follow each other, each a token further on in every sequence."""
        one, scale = self._decode.one, self._scale
        return [one(seqs, (context + seqs * i) / seqs) * scale for i in range(num_steps)]

    def _both(self, alone: Any, decodes: Any, projections: Any, more: Any, lib: Any) -> Any:
        """Chunks and decodes in one step; 0 decodes take nothing and have no projections."""
        joined = alone + lib.maximum(decodes - projections, 0.0) + lib.maximum(more, 0.0)
        return joined + (alone + decodes - joined) * self._apart

    def _chunks_of(self, shapes: StepShapes, steps: Ints) -> tuple[Floats, Floats, Floats]:
        """The equal chunks of some steps."""
        tokens, before = shapes.prefill_tokens[steps], shapes.prefill_context_tokens[steps]
        chunks, q, each = equal_chunks(tokens, before, shapes.prefill_pairs[steps], ARRAYS)
        return chunks, q, each * self._context_share

    def extrapolated(self, shapes: StepShapes, ns: Floats, raised: Floats) -> dict[str, Floats]:
        """What of `ns`, the attention of each step, does not rest on measurements; no part of it counts twice."""
        if self._tag or not self._kv_measured:
            return {self._tag or "attention: KV format not measured": ns}
        seqs, prefill = shapes.decode_seqs, shapes.prefill_tokens > 0
        both = prefill & (seqs > 0)
        beyond = self._decode.is_extrapolated(seqs, shapes.decode_context_sum / np.maximum(seqs, 1)) & ~prefill
        alone = np.flatnonzero(prefill & ~both)
        if len(alone):
            beyond[alone] = self._chunks_outside.at(*self._chunks_of(shapes, alone)) > 0
        return {BEYOND: ns * beyond, BOTH: ns * both}


def _one_token(rows: Ints) -> Floats:
    return np.ones(len(rows))
