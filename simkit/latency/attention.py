"""Attention of all layers of a step by a profile: decodes alone, chunks alone, and both in one launch.

Owns which of the three a step is, how it is priced, and what of it lies beyond the measurements.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from simkit.latency.effects import (
    CHUNK_CONTEXT,
    KERNEL_TABLE,
    MIXED_LAUNCHES,
    UNEQUAL_DECODES,
    UNMEASURED_RULE,
    Origin,
    Source,
    nothing,
)
from simkit.latency.physics import ARRAYS, SCALARS, added, equal_chunks, launch_us, skewed, windowed
from simkit.latency.profile import Profile
from simkit.latency.profile.residuals import Bools
from simkit.latency.protocol import OneStep
from simkit.latency.step_tables import TableBuilder
from simkit.types import Floats, Ints, StepShapes
from simkit.units import NS_PER_US, US_PER_S

MIXED_TAG = {
    True: "mixed launches: beyond the measured sizes or heads",
    False: "mixed launches: rule not measured on this GPU",
}
RAISED_TAG = "mixed launches: raised to what the hardware allows"
UNMEASURED_FORMULA = Source(Origin.NOT_MEASURED, "formula of the kernel: not measured")
SKEW_TAG = "decodes of unequal length: rule not measured on this GPU"


class Attention:
    """Attention of all layers of a step, ns. A launch in which every query is one token is one of decodes."""

    def __init__(self, tables: TableBuilder, profile: Profile, without: Collection[str] = ()) -> None:
        self._heads, self._kv_measured = tables.heads, tables.kv_is_measured
        self._decode = tables.decode()
        self._chunks, self._chunks_outside = tables.chunks()
        self._windows = tables.windows()
        self._mixed, self._skew = profile.mixed, None if UNEQUAL_DECODES in without else profile.skew
        self._one_by_one = MIXED_LAUNCHES in without
        self._context_share = 0.0 if CHUNK_CONTEXT in without else 1.0
        self.sources = {
            UNEQUAL_DECODES: _skew_source(profile),
            MIXED_LAUNCHES: KERNEL_TABLE if profile.mixed.measured else UNMEASURED_RULE,
            CHUNK_CONTEXT: KERNEL_TABLE if tables.context_measured else UNMEASURED_FORMULA,
        }
        limits, heads = tables.attention_limits, self._heads
        self._us_per_token = 2.0 * heads.head_dim * heads.num_kv_heads * heads.kv_element_bytes * US_PER_S
        self._us_per_token /= limits.bytes_per_s
        self._us_per_pair = 4.0 * heads.head_dim * heads.num_heads * US_PER_S / limits.flops_per_s
        kinds = ((tables.layers, 0), (tables.sliding_layers, tables.window))
        self._kinds = [(layers * float(NS_PER_US), window) for layers, window in kinds if layers]

    def ns(self, shapes: StepShapes, raised: Floats | None = None) -> Floats:
        """Attention of all layers of each step, float64[k]; what launches of unlike sequences were raised by, so as not
        to beat the hardware, is added to `raised`."""
        total = np.zeros(len(shapes))
        for scale, window in self._kinds:
            total = total + self._layer_us(shapes, window, scale, raised) * scale
        return total

    def one(self, step: OneStep) -> float:
        """`ns` of one step without arrays."""
        if not step.prefill_tokens:
            return self.decode_one(step.num_decode, step.decode_context_sum, step.decode_context_max)
        total = 0.0
        for scale, window in self._kinds:
            total = total + self._layer_one(step, window) * scale
        return total

    def decode_one(self, seqs: int, context: int, longest: int) -> float:
        """ns of a step of decodes alone."""
        total = 0.0
        for scale, window in self._kinds:
            if window:
                total = total + self._windowed_one(seqs, context, longest, window) * scale
            else:
                total = total + self._decodes_one(seqs, context, longest) * scale
        return total

    def decode_run(self, seqs: int, context: int, longest: int, num_steps: int) -> list[float]:
        """`decode_one` of steps that follow each other, each a token further on in every sequence."""
        if len(self._kinds) != 1 or self._kinds[0][1]:
            return [self.decode_one(seqs, context + seqs * i, longest + i) for i in range(num_steps)]
        scale, one = self._kinds[0][0], self._decode.one
        skew, kv_heads = self._skew, self._heads.num_kv_heads
        if skew is None or seqs * kv_heads < skew.min_sequence_heads:
            return [one(seqs, (context + seqs * i) / seqs) * scale for i in range(num_steps)]
        found, us_per_token = [], skew.us_per_token
        for i in range(num_steps):
            mean, most = (context + seqs * i) / seqs, longest + i
            us, longest_us = one(seqs, mean), one(seqs, float(most))
            # `skewed`, written out: a run asks for the price of every step.
            most_us, sum_us = max(longest_us, us), us + us_per_token * (most - mean)
            found.append((most_us if most_us < sum_us else sum_us) * scale)
        return found

    def _layer_us(self, shapes: StepShapes, window: int, scale: float, raised: Floats | None) -> Floats:
        """One layer: decodes alone everywhere, then the steps that hold chunks, which are few, over it."""
        context, longest = _within(shapes, window)
        us = self._decodes(shapes.decode_seqs, context, longest)
        if window and self._windows is not None:
            beyond = shapes.decode_context_sum > shapes.decode_seqs * window
            us = np.where(beyond, self._windows[0].at(shapes.decode_seqs, np.ones(len(shapes))), us)
        some = np.flatnonzero(shapes.prefill_tokens)
        if len(some):
            chunks, q, before = self._chunks_of(shapes, some, window)
            seqs, context = shapes.decode_seqs[some], context[some]
            alone = self._chunks.at(chunks, q, before)
            if window and self._windows is not None:
                all_chunks, all_q, all_before = self._chunks_of(shapes, some, 0)
                alone = np.where(all_q + all_before > window, self._windows[1].at(all_chunks, all_q, all_before), alone)
            ruled = self._both(alone, us[some], chunks, q, before, seqs, context, longest[some], ARRAYS)
            both = np.maximum(ruled, np.maximum(*self._roofs_us(chunks, q, before, context)))
            if raised is not None:
                raised[some] += (both - ruled) * scale * ((q > 1.0) & (seqs > 0))
            # The chunks' context counts as a decode's does, with the token that is computed.
            rows = seqs + shapes.prefill_tokens[some]
            tokens = (context + chunks * (before + 1.0)) / rows
            decodes = np.maximum(us[some], self._decode.at(rows, tokens))
            us[some] = np.where(q <= 1.0, decodes, np.where(seqs > 0, both, alone))
        return us

    def _layer_one(self, step: OneStep, window: int) -> float:
        context, longest, seqs = step.decode_context_sum, step.decode_context_max, step.num_decode
        chunks, q, before = equal_chunks(step.prefill_tokens, step.prefill_context_tokens, step.prefill_pairs, SCALARS)
        before = before * self._context_share
        beyond = 0.0 < window < q + before and self._windows is not None
        alone = self._windows[1].one(chunks, q, before) if beyond and self._windows is not None else 0.0
        if window:
            decodes = self._windowed_one(seqs, context, longest, window)
            context, longest = min(context, seqs * window), min(longest, window)
            chunks, q, before = windowed(chunks, q, before, window, SCALARS)
        else:
            decodes = self._decodes_one(seqs, context, longest)
        if q <= 1.0:
            rows = seqs + step.prefill_tokens
            us = self._decode.one(rows, (context + chunks * (before + 1.0)) / rows)
            return max(decodes, us)
        if not beyond:
            alone = self._chunks.one(chunks, q, before)
        if not seqs:
            return alone
        ruled = self._both(alone, decodes, chunks, q, before, seqs, context, longest, SCALARS)
        return float(max(ruled, *self._roofs_us(chunks, q, before, context)))

    def _decodes(self, seqs: Ints, context: Ints, longest: Ints) -> Floats:
        mean = context / np.maximum(seqs, 1)
        us = self._decode.at(seqs, mean)
        if self._skew is None:
            return us
        longest_us = self._decode.at(seqs, longest.astype(np.float64))
        found: Floats = skewed(self._skew, self._heads.num_kv_heads, seqs, us, longest_us, mean, longest, ARRAYS)
        return found

    def _decodes_one(self, seqs: int, context: int, longest: int) -> float:
        mean = context / max(seqs, 1)
        us = self._decode.one(seqs, mean)
        # Fewer cost no more than equal ones: what the longest would take need not be looked up.
        if self._skew is None or seqs * self._heads.num_kv_heads < self._skew.min_sequence_heads:
            return us
        longest_us = self._decode.one(seqs, float(longest))
        return float(skewed(self._skew, self._heads.num_kv_heads, seqs, us, longest_us, mean, longest, SCALARS))

    def _windowed_one(self, seqs: int, context: int, longest: int, window: int) -> float:
        """Decodes of a layer with a window."""
        if self._windows is not None and context > seqs * window:
            return self._windows[0].one(seqs, 1.0)
        return self._decodes_one(seqs, min(context, seqs * window), min(longest, window))

    def _both(
        self,
        alone: Any,
        decodes: Any,
        chunks: Any,
        q: Any,
        before: Any,
        seqs: Any,
        context: Any,
        longest: Any,
        lib: Any,
    ) -> Any:
        """Chunks and decodes in one launch; never faster than either of them alone."""
        if self._one_by_one:
            return alone + decodes
        if self._mixed.varlen is None:
            return added(alone, decodes, self._mixed.floor_us, lib)
        us = launch_us(self._mixed.varlen, self._heads, chunks, q, before, seqs, context, longest, lib)
        return lib.maximum(lib.maximum(alone, decodes), us)

    def _roofs_us(self, chunks: Any, q: Any, before: Any, context: Any) -> tuple[Any, Any]:
        """What the hardware allows a launch: K and V read once, and Q.K and A.V at peak. Of chunks alone and of decodes
        alone the tables never go below; what is put together from them, and the rule of mixed launches, may."""
        read = (context + chunks * (before + q)) * self._us_per_token
        return read, (context + chunks * q * (before + (q + 1.0) / 2.0)) * self._us_per_pair

    def extrapolated(self, shapes: StepShapes, ns: Floats, raised: Floats) -> dict[str, Floats]:
        """What of `ns`, the attention of each step, lies beyond what was measured, or was `raised` to what the hardware
        allows; no part of it counts twice."""
        if not self._kv_measured:
            return {"attention: KV format not measured": ns}
        seqs, prefill = shapes.decode_seqs, shapes.prefill_tokens > 0
        some, (context, longest) = seqs > 0, _within(shapes, 0)
        mean = context / np.maximum(seqs, 1)
        mixed_beyond = some & prefill & self._mixed_beyond(shapes)
        outside = some & ~prefill & self._decode.is_extrapolated(seqs, mean)
        found = {
            "decode attention: beyond the measured sizes or heads": ns * outside,
            "prefill attention: beyond the measured sizes or heads": ns * (self._beyond(shapes, prefill & ~some) > 0),
            MIXED_TAG[self._mixed.measured]: ns * mixed_beyond,
            RAISED_TAG: raised * ~mixed_beyond,
        }
        if not self._skew_covers():
            found[SKEW_TAG] = np.minimum(self._skew_ns(seqs, context, longest), ns) * (~outside & ~prefill)
        return found

    def _skew_covers(self) -> bool:
        """Whether decodes of unequal length were measured at these heads, or cost nothing more."""
        skew, heads = self._skew, self._heads
        return skew is None or (heads.num_heads, heads.num_kv_heads, heads.head_dim) in skew.heads

    def _skew_ns(self, seqs: Ints, context: Ints, longest: Ints) -> Floats:
        """What unequal lengths add, all layers."""
        scale = sum(scale for scale, _ in self._kinds)
        extra: Floats = self._decodes(seqs, context, longest) - self._decode.at(seqs, context / np.maximum(seqs, 1))
        return extra * scale

    def _mixed_beyond(self, shapes: StepShapes) -> Bools:
        """Whether a mixed launch of these sizes and this model's heads lies beyond those that were measured."""
        mixed, heads = self._mixed, self._heads
        if not mixed.measured or (heads.num_heads, heads.num_kv_heads, heads.head_dim) not in mixed.heads:
            return np.ones(len(shapes), dtype=bool)
        most_tokens, most_before, most_seqs, longest = mixed.largest
        beyond: Bools = (
            (shapes.prefill_tokens > most_tokens)
            | (shapes.prefill_context_tokens > most_before)
            | (shapes.decode_seqs > most_seqs)
            | (shapes.decode_context_max > longest)
        )
        return beyond

    def _chunks_of(self, shapes: StepShapes, steps: Ints, window: int) -> tuple[Floats, Floats, Floats]:
        """The equal chunks of some steps."""
        tokens, before = shapes.prefill_tokens[steps], shapes.prefill_context_tokens[steps]
        chunks, q, each = equal_chunks(tokens, before, shapes.prefill_pairs[steps], ARRAYS)
        each = each * self._context_share
        return windowed(chunks, q, each, window, ARRAYS) if window else (chunks, q, each)

    def _beyond(self, shapes: StepShapes, alone: Bools) -> Floats:
        """More than 0 where the chunks of a step that holds nothing else are priced beyond what was measured."""
        beyond, steps = np.zeros(len(shapes)), np.flatnonzero(alone)
        if len(steps):
            beyond[steps] = self._chunks_outside.at(*self._chunks_of(shapes, steps, 0))
        return beyond


def _within(shapes: StepShapes, window: int) -> tuple[Ints, Ints]:
    """Sum and maximum of the decodes' context tokens, of each no more than a window."""
    context, longest = shapes.decode_context_sum, shapes.decode_context_max
    if window:
        return np.minimum(context, shapes.decode_seqs * window), np.minimum(longest, window)
    return context, longest


def _skew_source(profile: Profile) -> Source:
    if profile.skew is None:
        return nothing("this kernel splits long sequences")
    return KERNEL_TABLE if profile.skew.heads else UNMEASURED_RULE
