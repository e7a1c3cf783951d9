"""fp8 of an engine whose kernels quantise for the product behind them, which is what TensorRT-LLM does since 1.1.

Owns what its products and all-reduces take on a profile of kernels that do not. The fp8 GEMM of the profiles that ship
is vLLM's layer: a kernel that quantises the rows by a static scale, then a CUTLASS product (aiconfigurator,
collector/vllm/collect_gemm.py, times `RowParallelLinear.forward`). TensorRT-LLM multiplies by cuBLAS, the library that
the 16-bit GEMM of the same profiles ran, and attention and activation write fp8 (tensorrt_llm/_torch/modules:
linear.py, attention.py, gated_mlp.py). A product is the faster one of

- the measured layer, without its quantising where the kernel before does that: one that reads 16 bits, writes 8, and
  takes a launch at least;
- a formula: weights at the share of bandwidth, the floor and the chain of the 16-bit GEMM, FLOPs at the share of the
  fp8 peak that the table reaches. With the quantising where no kernel before does that.

At few rows that is the formula, at many the table. The kernel that rotates queries and keys writes the cache, too
(cpp/tensorrt_llm/kernels: invokeApplyBiasRopeUpdateKVCache).

Dense models of the Llama family with more than 4,096 hidden elements add up, normalise and quantise in one kernel where
GPUs share them (pull request 6205; other families have no such layers, as models/modeling_qwen3.py). Up to 128 tokens
each GPU then reads the messages of all others (cpp/tensorrt_llm/thop/allreduceOp.cpp: what quantises is always
MIN_LATENCY, which is one-shot up to there), so that eight of them move more than a ring would.

No number here is fitted; what rests on it is told in outputs. Products in 16 bits and earlier versions are priced by
the tables as they are, with which their host terms were fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simkit.latency.deployment import Deployment
from simkit.latency.host import TRTLLM
from simkit.latency.link import Link
from simkit.latency.physics import work_of
from simkit.latency.profile.residuals import OpFit, Prediction
from simkit.latency.shapes import Elementwise, Gemm
from simkit.types import Floats
from simkit.units import US_PER_S

FIRST = (1, 1)
ONE_SHOT_TOKENS = 128

_FAMILY, _HIDDEN_BEYOND = "llama", 4096
_BEHIND_A_NORM = ("qkv", "up")
_QUANTIZED_BYTES = 3.0
"""Read in 16 bits, written in 8."""


@dataclass(frozen=True, slots=True)
class Fused:
    """Which kernels of a deployment quantise: attention and activation (`products`), and the all-reduce with its norm
    (`reduces`)."""

    products: bool
    reduces: bool

    def holds(self, kernel: Elementwise) -> bool:
        """Whether another kernel does its work: the all-reduce that of the norms, rotary that of the write."""
        return (kernel.name == "norms" and self.reduces) or (kernel.name == "kv_write" and self.products)

    def quantises(self, gemm: Gemm) -> bool:
        """Whether the kernel before a product does it."""
        return self.reduces or not gemm.name.endswith(_BEHIND_A_NORM)


def fused(deployment: Deployment, link: Link | None) -> Fused:
    """What is fused; `link` is the one that all-reduces go over, if any do."""
    (engine, version), model = deployment.engine, deployment.model
    products = engine == TRTLLM and deployment.quantization == "fp8" and (version is None or version >= FIRST)
    reduces = products and link is not None and link.reads_others and not model.is_moe
    return Fused(products, reduces and model.family == _FAMILY and model.hidden_size > _HIDDEN_BEYOND)


def predict(
    layer: OpFit, sixteen_bit: OpFit, quantise_floor_us: float, m: Floats, n: float, k: float, *, quantised: bool
) -> Prediction:
    """us of m x k times k x n; `layer` is the fp8 GEMM that quantises first, and `quantised` says that m x k is fp8
    already."""
    sizes = {"m": m, "n": np.asarray(n), "k": np.asarray(k)}
    found, limits = layer.predict(sizes), layer.limits
    quantise = np.maximum(m * k * (_QUANTIZED_BYTES * US_PER_S / limits.bytes_per_s), quantise_floor_us)
    work = work_of("gemm", layer.dtype, sizes)
    formula = replace(sixteen_bit.physics, compute_fraction=layer.physics.compute_fraction).us(work, limits)
    us = np.minimum(found.us - quantise, formula) if quantised else np.minimum(found.us, formula + quantise)
    fastest = limits.fastest_us(work)
    return Prediction(np.maximum(us, fastest), found.extrapolated, us < fastest)
