"""What the kernels of one model take by a profile, tabulated over tokens, sequences and contexts.

Owns which op of a profile prices which kernel, and what is said of kernels that it does not cover: those are priced on
the roofline and tagged.
"""

from __future__ import annotations

import numpy as np

from simkit.latency import fused_fp8, weight_only
from simkit.latency.deployment import Deployment
from simkit.latency.effects import ALL_REDUCE, KERNEL_TABLE, ONE_GPU, STATED, Source
from simkit.latency.experts import PricedExperts, experts_of
from simkit.latency.kernels import ELEMENTWISE_FLOOR_NS, SAMPLER_FLOOR_NS, TABLE_ROWS, Kernels
from simkit.latency.latent_modules import Modules
from simkit.latency.lookup import ChunkLookup, DecodeLookup, RowTable
from simkit.latency.physics import ARRAYS, SIXTEEN_BIT, Heads, Limits, Varlen, launch_us, work_of
from simkit.latency.profile import NotMeasured, Profile
from simkit.latency.profile.residuals import HEADS, OpFit, Prediction
from simkit.latency.shapes import LATENT_KERNELS, Elementwise, Gemm, without_experts
from simkit.latency.unpacked import Unpacked
from simkit.specs.dtypes import BLOCK_SCALED
from simkit.specs.dtypes import quantization as quantization_of
from simkit.types import Floats
from simkit.units import NS_PER_S, NS_PER_US

MAX_SEQS = 2048
"""Decodes of a step up to which attention is tabulated; more cost in proportion."""

LARGEST_TOKENS = 1 << 20
LARGE_COPY_BYTES = 256.0 * (1 << 20)
KNOTS_PER_OCTAVE = 4
CHUNK_KNOTS_PER_OCTAVE = 6


class TableBuilder:
    """Tabulates one model on one profile. Raises NotMeasured for an op that the model needs."""

    def __init__(self, deployment: Deployment, kernels: Kernels, profile: Profile) -> None:
        self._model = model = deployment.model
        self._kernels, self._profile = kernels, profile
        self._dtype, self._quantization = deployment.dtype, deployment.quantization
        self._widens = weight_only.widens(deployment.quantization, deployment.gpu)
        self._errors = deployment.errors
        self._reduces, self._links_alike = deployment.has(ALL_REDUCE), _links_alike(deployment, profile)
        self._rows = np.arange(TABLE_ROWS + 1, dtype=np.float64)
        self._some = np.minimum(self._rows, 1.0)
        self._experts = experts_of(deployment, profile, np.maximum(self._rows, 1.0))
        self.num_clamped = 0
        self._fused = fused_fp8.fused(deployment, kernels.link if self._reduces else None)
        shape = kernels.attention
        self.heads = Heads(
            -(-model.num_attention_heads // kernels.ranks),
            model.kv_heads_on(kernels.ranks),
            model.head_dim,
            kernels.formats.kv_bytes,
        )
        self.layers, self.sliding_layers, self.window = shape.full_layers, shape.sliding_layers, shape.window
        self._modules = None if model.latent is None else Modules(model.latent, model.hidden_size, profile, deployment)

    def token_table(self) -> RowTable:
        """Everything but attention in the layers, and what a pass does once for its tokens."""
        kernels, total, tagged = self._kernels, np.zeros(TABLE_ROWS + 1), _Tags()
        inside = LATENT_KERNELS if self._modules is not None else ()
        gemms, elementwise = kernels.gemms, kernels.elementwise
        if self._experts is not None:
            total = total + self._experts_ns(self._experts, tagged)
            gemms, elementwise = without_experts(gemms, elementwise, self._model)
        for gemm in (gemm for gemm in gemms if gemm.name not in inside):
            total = total + gemm.layers * self._gemm_ns(gemm, gemm.layers, tagged)
        for kernel in (kernel for kernel in elementwise if kernel.name not in inside):
            total = total + kernel.layers * self._elementwise_ns(kernel, tagged)
        total = total + self._once_ns(tagged)
        if kernels.link and self._reduces:
            total = total + self._layer_reduces_ns(2 * kernels.layers, tagged)
        return RowTable(_rounded(total), tagged.rounded())

    def sample_table(self) -> RowTable:
        """LM head, gathering of the logits and sampler."""
        kernels, tagged = self._kernels, _Tags()
        total = self._gemm_ns(kernels.head, 1, tagged)
        sampler = self._op("sampler")
        if sampler is None:
            ns = kernels.elementwise_ns(kernels.sampler, self._rows, self._some, SAMPLER_FLOOR_NS)
            tagged.add("sampler: roofline", ns)
        else:
            ns = self._predicted(sampler, "sampler", 1, tagged, m=self._rows, n=float(self._model.vocab_size))
        total = total + ns
        if kernels.link and self._reduces:
            total = total + self._all_reduce_ns(kernels.gather_bytes, 1, tagged)
        return RowTable(_rounded(total), tagged.rounded())

    def decode(self) -> DecodeLookup:
        """us of decode attention in a layer by (sequences, context tokens)."""
        fit = self._attention("attention_decode")
        batches = _knots([1.0, *_measured(fit, 0)], MAX_SEQS, KNOTS_PER_OCTAVE)
        tokens = _knots([1.0, *_measured(fit, 1)], LARGEST_TOKENS, KNOTS_PER_OCTAVE)
        found = self._predict(fit, batch=batches[:, None], kv_len=self._kv_tokens(tokens[None, :], fit))
        rows = np.arange(MAX_SEQS + 1)
        low = np.clip(np.searchsorted(batches, rows, side="right") - 1, 0, len(batches) - 2)
        share = ((rows - batches[low]) / (batches[low + 1] - batches[low]))[:, None]
        times = found.us[low] + (found.us[low + 1] - found.us[low]) * share
        times[0] = 0.0
        outside = found.extrapolated[low] | (found.extrapolated[low + 1] & (share > 0))
        return DecodeLookup(tokens.tolist(), np.round(times, 5), outside)

    def chunks(self) -> tuple[ChunkLookup, ChunkLookup]:
        """us of prefill attention in a layer by (chunks, tokens, cached tokens), and 1 where it is extrapolated."""
        fit = self._attention("attention_prefill")
        axes = (
            _knots([1.0, *_measured(fit, 0)], 256, KNOTS_PER_OCTAVE),
            _knots([1.0, *_measured(fit, 1)], LARGEST_TOKENS, CHUNK_KNOTS_PER_OCTAVE),
            np.concatenate([[0.0], _knots([16.0, *_measured(fit, 2)], LARGEST_TOKENS, 2)]),
        )
        batch, q_len, kv_len = axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]
        found = self._predict(fit, batch=batch, q_len=q_len, kv_len=kv_len)
        us, lists = found.us, [axis.tolist() for axis in axes]
        if self._modules is None and self._profile.mixed.varlen is not None and not self.context_measured:
            us = self._over_context(fit, self._profile.mixed.varlen, us[:, :, :1], batch, q_len, kv_len)
        return ChunkLookup(lists, np.round(us, 5)), ChunkLookup(lists, found.extrapolated.astype(np.float64))

    def windows(self) -> tuple[DecodeLookup, ChunkLookup] | None:
        """us of attention with the model's window in a layer, of sequences longer than it: of decodes by their number,
        of chunks as `chunks`. None without a window, or without such launches in the profile."""
        decode, prefill = self._op("attention_decode_window"), self._op("attention_prefill_window")
        if not self.window or decode is None or prefill is None:
            return None
        window = self._kv_tokens(np.asarray(float(self.window)), decode)
        batches = _knots([1.0, *_measured(decode, 0)], MAX_SEQS, KNOTS_PER_OCTAVE)
        found = self._predict(decode, batch=batches, window=window)
        times: Floats = np.asarray(np.interp(np.arange(MAX_SEQS + 1), batches, found.us), np.float64)
        times[0] = 0.0
        both: Floats = np.repeat(np.round(times, 5)[:, None], 2, axis=1)
        decodes = DecodeLookup([1.0, 2.0], both, np.zeros(both.shape, dtype=bool))
        axes = (
            _knots([1.0, *_measured(prefill, 0)], 256, KNOTS_PER_OCTAVE),
            _knots([1.0, *_measured(prefill, 1)], LARGEST_TOKENS, CHUNK_KNOTS_PER_OCTAVE),
            np.array([0.0, self.window / 2.0, float(self.window), float(LARGEST_TOKENS)]),
        )
        batch, q_len, kv_len = axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]
        chunks = self._predict(prefill, batch=batch, q_len=q_len, kv_len=kv_len, window=np.asarray(float(self.window)))
        return decodes, ChunkLookup([axis.tolist() for axis in axes], np.round(chunks.us, 5))

    def _over_context(
        self, fit: OpFit, varlen: Varlen, alone: Floats, batch: Floats, q_len: Floats, kv_len: Floats
    ) -> Floats:
        """us of chunks over cached tokens: those over none, `alone`, and what the rule of launches adds for them.

        The kernel splits no contexts of chunks, so that a short one over a long context waits for one thread block. On
        RTX PRO 6000, where 214 such launches were measured, a fit of the 19 over no context is 29 % off in the mean,
        and this rule on the same fit 6 %. On A100, chunks of at most 12 heads over no context take 3.0 to 4.3 us for
        each further 128 tokens of the longest thread block (128 to 1024 tokens, 20 pairs, median 3.5); the fit over all
        shapes gives 2.1 to 2.9 us, this rule 2.8.
        """
        nothing = 0.0 * (batch + q_len + kv_len)
        over, none = (
            launch_us(varlen, self.heads, batch, q_len, before, nothing, nothing, nothing, ARRAYS)
            for before in (kv_len, nothing)
        )
        sizes = {"batch": batch, "q_len": q_len, "kv_len": kv_len, **self._head_sizes()}
        fastest = fit.limits.fastest_us(work_of(fit.op, fit.dtype, sizes))
        us: Floats = np.maximum(alone + (over - none), fastest)
        return us

    def swap_ns_per_byte(self, spec_bytes_per_s: float) -> tuple[float, float]:
        """ns a byte of a large copy to the GPU and to the host: measured, else at the rate of the data sheet."""
        rates = []
        for op in ("memcpy_h2d", "memcpy_d2h"):
            fit = self._op(op)
            if fit is None:
                rates.append(NS_PER_S / spec_bytes_per_s)
            else:
                us = fit.predict({"bytes": np.array([LARGE_COPY_BYTES])}).us
                rates.append(round(float(us[0]) * NS_PER_US / LARGE_COPY_BYTES, 6))
        return rates[0], rates[1]

    @property
    def context_measured(self) -> bool:
        """Whether prefill over cached tokens was measured."""
        return max(_measured(self._attention("attention_prefill"), 2), default=0.0) > 0

    @property
    def all_reduce_source(self) -> Source:
        """Where the times of all-reduces come from."""
        link = self._kernels.link
        if not link:
            return ONE_GPU
        return KERNEL_TABLE if self._links_alike and self._op("all_reduce") else link.source

    def _op(self, op: str) -> OpFit | None:
        """The fit of an op in the model's format; 16-bit formats stand for each other, and 32 bits for them at need."""
        wanted = (self._dtype, *SIXTEEN_BIT, "float32") if self._dtype in SIXTEEN_BIT else (self._dtype,)
        return next((fit for fit in (self._profile.op(op, name) for name in wanted) if fit is not None), None)

    @property
    def attention_limits(self) -> Limits:
        """What the GPU can do at most in the format of attention."""
        return self._attention("attention_decode").limits

    @property
    def measured_dtype(self) -> str:
        """The format of the GEMMs that price the model's unquantised products."""
        fit = self._op("gemm")
        return self._dtype if fit is None else fit.dtype

    def _needed(self, op: str, fit: OpFit | None, dtype: str) -> OpFit:
        if fit is not None:
            return fit
        have = ", ".join(sorted(kind for name, kind in self._profile.ops if name == op)) or "none"
        lacks = f"profile {self._profile.name} has no {op} in {dtype}"
        raise NotMeasured(
            f"{lacks}, which {self._model.name} needs (measured: {have}); calibrate it, or use "
            "latency.profile: roofline",
            lacks=lacks,
        )

    def _attention(self, op: str) -> OpFit:
        if self._modules is not None:
            return self._modules.of(op)
        return self._needed(op, self._op(op), self._dtype)

    def _kv_tokens(self, tokens: Floats, fit: OpFit) -> Floats:
        """Tokens of as many bytes in the format that was measured: decode attention is bound by reading the cache."""
        sixteen_bit = fit.dtype in SIXTEEN_BIT or self._modules is not None
        return tokens * (self.heads.kv_element_bytes / 2.0) if sixteen_bit else tokens

    @property
    def kv_is_measured(self) -> bool:
        """Whether the cache holds the format that attention was measured on."""
        return self.heads.kv_element_bytes == 2.0

    @property
    def modules(self) -> Modules | None:
        """What prices whole attention layers, of a model with latents."""
        return self._modules

    def _head_sizes(self) -> dict[str, Floats]:
        if self._modules is not None:
            return self._modules.sizes(self.heads.num_heads)
        return {name: np.asarray(float(getattr(self.heads, name))) for name in HEADS}

    def _predict(self, fit: OpFit, **sizes: Floats) -> Prediction:
        found = fit.predict({**sizes, **self._head_sizes()})
        self.num_clamped += int(found.clamped.sum())
        return found

    def _predicted(self, fit: OpFit, name: str, calls: int, tagged: _Tags, **sizes: Floats | float) -> Floats:
        """ns of one call for 0, 1, ... rows; what is extrapolated is tagged with all `calls`."""
        found = fit.predict({key: np.maximum(value, 1.0) for key, value in sizes.items()})
        self.num_clamped += int(found.clamped[1:].sum())
        ns = found.us * NS_PER_US * self._some
        if found.extrapolated.any():
            tagged.add(f"{name}: beyond the measured sizes", calls * ns * found.extrapolated)
        return ns

    def _gemm_ns(self, gemm: Gemm, calls: int, tagged: _Tags) -> Floats:
        if gemm.routed:
            ns = self._kernels.gemm_ns(gemm, self._rows, self._some) * self._errors.products
            tagged.add("experts: roofline", calls * ns)
            return ns
        if gemm.quantized:
            assert self._quantization is not None
            if self._widens:
                return self._widened_ns(gemm, calls, tagged)
            if self._kernels.unpacked is not None:
                return self._unpacked_ns(self._kernels.unpacked, gemm, calls, tagged)
            fit = self._profile.op("gemm", self._quantization)
            if fit is None and self._quantization in BLOCK_SCALED:
                return self._by_tensor_ns(gemm, calls, tagged)
            fit = self._needed("gemm", fit, self._quantization)
            if self._fused.products:
                return self._fused_ns(fit, gemm, calls, tagged)
        else:
            fit = self._needed("gemm", self._op("gemm"), self._dtype)
        return self._predicted(fit, gemm.name, calls, tagged, m=self._rows, n=float(gemm.n), k=float(gemm.k))

    def _experts_ns(self, experts: PricedExperts, tagged: _Tags) -> Floats:
        """ns of the routed experts of all layers."""
        ns: Floats = self._model.num_moe_layers * experts.ns * self._some
        for name, rows in experts.reasons:
            tagged.add(name, ns * rows)
        return ns

    def _by_tensor_ns(self, gemm: Gemm, calls: int, tagged: _Tags) -> Floats:
        """Of scales by block on a profile without such products: by those of one scale."""
        assert self._quantization is not None
        fit = self._needed("gemm", self._profile.op("gemm", BLOCK_SCALED[self._quantization]), self._quantization)
        own = _Tags()
        ns = self._predicted(fit, gemm.name, calls, own, m=self._rows, n=float(gemm.n), k=float(gemm.k))
        tagged.add("scales by block: priced as one scale", calls * ns)
        return ns

    def _widened_ns(self, gemm: Gemm, calls: int, tagged: _Tags) -> Floats:
        """By a formula on the fit of the 16-bit GEMM."""
        assert self._quantization is not None
        fit = self._needed("gemm", self._op("gemm"), self._dtype)
        us, clamped = weight_only.predict(
            fit, self._quantization, np.maximum(self._rows, 1.0), float(gemm.n), float(gemm.k)
        )
        self.num_clamped += int(clamped[1:].sum())
        ns: Floats = us * NS_PER_US * self._some
        bits = quantization_of(self._quantization).bits
        tagged.add(f"{bits:g}-bit weights: formula", calls * ns)
        return ns

    def _unpacked_ns(self, unpacked: Unpacked, gemm: Gemm, calls: int, tagged: _Tags) -> Floats:
        """By the 16-bit GEMM behind a kernel that widens the weights."""
        ns = unpacked.around(gemm, self._rows, self._gemm_ns(unpacked.sixteen_bit(gemm), 0, tagged))
        tagged.add("weights widened before each product: formula", calls * ns)
        return ns

    def _fused_ns(self, fit: OpFit, gemm: Gemm, calls: int, tagged: _Tags) -> Floats:
        """Of an engine whose kernels quantise for the product behind them."""
        sixteen_bit, floor_us = self._needed("gemm", self._op("gemm"), self._dtype), ELEMENTWISE_FLOOR_NS / NS_PER_US
        rows, quantised = np.maximum(self._rows, 1.0), self._fused.quantises(gemm)
        found = fused_fp8.predict(fit, sixteen_bit, floor_us, rows, float(gemm.n), float(gemm.k), quantised=quantised)
        self.num_clamped += int(found.clamped[1:].sum())
        ns: Floats = found.us * NS_PER_US * self._some
        tagged.add("fp8 products of another engine: formula", calls * ns)
        return ns

    def _elementwise_ns(self, kernel: Elementwise, tagged: _Tags) -> Floats:
        """By the measured kernel of the same work; else on the roofline."""
        if self._fused.holds(kernel):
            return np.zeros(TABLE_ROWS + 1)
        heads: dict[str, Floats | float] = {"n": float(self.heads.head_dim), "num_heads": float(self.heads.num_heads),
                 "num_kv_heads": float(self.heads.num_kv_heads)}  # fmt: skip
        writes, gated = self._op("rotary_kv_write"), self._model.gated_mlp
        if kernel.name == "rotary" and writes is not None:
            return self._predicted(writes, "rotary and KV write", kernel.layers, tagged, m=self._rows, **heads)
        if kernel.name == "kv_write" and writes is not None:
            return np.zeros(TABLE_ROWS + 1)
        rotary, norm, silu = self._op("rotary_embedding"), self._op("rms_norm"), self._op("silu_and_mul")
        if kernel.name == "rotary" and rotary is not None:
            return self._predicted(rotary, "rotary", kernel.layers, tagged, m=self._rows, **heads)
        if kernel.name == "norms" and norm is not None:
            return self._predicted(norm, "norms", kernel.layers, tagged, m=self._rows, n=float(kernel.width))
        if kernel.name in ("activation", "expert_activation") and silu is not None and gated:
            return self._predicted(silu, "activation", kernel.layers, tagged, m=self._rows, n=float(kernel.width))
        ns = self._kernels.elementwise_ns(kernel, self._rows, self._some, ELEMENTWISE_FLOOR_NS)
        ns = ns * self._errors.small_kernels
        tagged.add("elementwise kernels: roofline", kernel.layers * ns)
        return ns

    def _once_ns(self, tagged: _Tags) -> Floats:
        """Embedding and last norm, where they were measured."""
        total, width = np.zeros(TABLE_ROWS + 1), float(self._model.hidden_size)
        for op in ("embedding", "rms_norm_final"):
            fit = self._op(op)
            if fit is not None:
                total = total + self._predicted(fit, op, 1, tagged, m=self._rows, n=width)
        return total

    def _layer_reduces_ns(self, calls: int, tagged: _Tags) -> Floats:
        """ns of all `calls` together; where an engine lets each GPU read the others' messages, no less than that."""
        bytes_per_row, link = self._kernels.reduce_bytes, self._kernels.link
        ns = self._all_reduce_ns(bytes_per_row, calls, tagged)
        if not self._fused.reduces:
            return ns
        assert link is not None
        one_shot = calls * link.one_shot_ns(bytes_per_row * self._rows, self._some)
        slower = (one_shot > ns) & (self._rows <= fused_fp8.ONE_SHOT_TOKENS)
        tagged.add("all-reduce of another engine: formula", (one_shot - ns) * slower)
        found: Floats = np.where(slower, one_shot, ns)
        return found

    def _all_reduce_ns(self, bytes_per_row: float, calls: int, tagged: _Tags) -> Floats:
        """ns of all `calls` together."""
        link, fit = self._kernels.link, self._op("all_reduce")
        assert link is not None
        if fit is None or not self._links_alike:
            ns = link.all_reduce_ns(bytes_per_row * self._rows, self._some)
            tagged.add("all-reduce: stated" if link.source == STATED else "all-reduce: roofline", calls * ns)
            return calls * ns
        sizes: dict[str, Floats | float] = {
            "world_size": float(self._kernels.ranks),
            "bytes": bytes_per_row * self._rows,
        }
        return calls * self._predicted(fit, "all-reduce", calls, tagged, **sizes)


def _links_alike(deployment: Deployment, profile: Profile) -> bool:
    """Whether the GPUs talk over what the all-reduces of a profile were measured on: NVLink, or a PCIe bus as fast."""
    if deployment.link is not None or deployment.interconnect != profile.interconnect:
        return False
    return profile.interconnect == "nvlink" or profile.gpu.get("pcie_bytes_per_s") == deployment.gpu.pcie_bytes_per_s


class _Tags:
    """Extrapolated ns by name, added up."""

    def __init__(self) -> None:
        self._found: dict[str, Floats] = {}

    def add(self, name: str, ns: Floats) -> None:
        self._found[name] = self._found.get(name, 0.0) + ns

    def rounded(self) -> dict[str, Floats]:
        return {name: _rounded(ns) for name, ns in self._found.items()}


def _rounded(ns: Floats) -> Floats:
    """To a hundredth of a nanosecond, so that the last bit of a logarithm on another machine does not matter."""
    rounded: Floats = np.round(ns, 2)
    return rounded


def _measured(fit: OpFit, axis: int) -> list[float]:
    return sorted({float(size) for grid in fit.grids.values() for size in grid.axes[axis] if size >= 1})


def _knots(measured: list[float], largest: float, per_octave: int) -> Floats:
    """The measured sizes, whole numbers between them so many an octave, and on to `largest`."""
    top = max(float(largest), measured[-1])
    between = 2.0 ** (np.arange(0, int(np.log2(top) * per_octave) + 2) / per_octave)
    knots = np.unique(np.concatenate([np.rint(between), measured, [top]]))
    return knots[(knots >= measured[0]) & (knots <= top)]
