"""How wrong step times may be: the sizes of what a latency model misses, and draws of it.

Owns the classes that err together, how large the error of each is taken to be, and one draw. The error of a class is a
factor on all its times, as a kernel library of another version or another host would be: what a class misses for one
shape and not for the next averages out over the kernels of a step, and is not held here. Factors are exp(+size) or
exp(-size) by the toss of a coin, so that few draws show the spread, and come in pairs of opposite signs, so that they
leave the mean where it is. Settings that are compared err alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from simkit.latency.physics import SIXTEEN_BIT, Physics, Varlen
from simkit.latency.profile import OpFit, Profile
from simkit.latency.profile.values import is_scaled
from simkit.specs.hardware import GpuSpec

LAB = 0.04
"""Between labs: decode-sized products of the shipped tables against those of another lab on the same GPU, 3 to 4 %."""

OTHER_KERNELS = 0.1
"""Kernels of an engine that no table was measured with, which are those of TensorRT-LLM, SGLang and vLLM before 0.8:
products in fp8 that TensorRT-LLM runs make steps 10 to 20 % shorter than those of vLLM do (`latency.fused_fp8`); half
of that is taken for what is not known."""

ELSEWHERE = 0.13
"""A profile scaled to another GPU: root mean square of the logarithm against that GPU's own profile, steps of 1 to 256
decodes over 256 to 8,192 tokens, Llama-3.1-8B and 70B and Qwen2.5-7B, all twelve pairs of the four that ship (0.04
between H100 and H200, 0.21 from A100 to RTX PRO 6000)."""

DATA_SHEET = 0.12
"""The roofline against the four profiles on the same steps: 0.08 to 0.14."""

FORMULA = 0.12
"""Products of 4-bit weights: what the formula is off where it was fitted (`latency.weight_only`)."""

UNTIMED = 0.4
"""Small kernels that no table holds: on A100 and H100 the roofline is up to 50 % too fast for few tokens."""

NORMAL = math.sqrt(math.pi / 2.0)
"""Standard deviation over mean absolute value of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Errors:
    """A number for each class that errs: as sizes, standard deviations of logarithms; as a draw, factors of times."""

    products: float
    attention: float
    small_kernels: float
    all_reduce: float
    host: float
    gap: float


CLASSES = tuple(field.name for field in fields(Errors))
EXACT = Errors(*(1.0 for _ in CLASSES))
"""Factors of a model that is right."""


def draw(sizes: Errors, coins: Iterable[bool]) -> Errors:
    """The factors that tossed `coins`, one a class, give."""
    signs = [1.0 if coin else -1.0 for coin in coins]
    return Errors(*(math.exp(sign * getattr(sizes, name)) for sign, name in zip(signs, CLASSES, strict=True)))


# --- sizes
def of_profile(
    profile: Profile,
    gpu: GpuSpec,
    dtype: str,
    quantization: str | None,
    *,
    link: float,
    host: float,
    own_kernels: bool = True,
) -> Errors:
    """Sizes where kernels are those of a profile: what its fit misses of kernels that it did not see, and how far labs
    are apart; of another GPU, how far profiles that are scaled are from those measured. `link` is how far links without
    a table are apart, `host` the error of `HostCosts`, `own_kernels` whether the engine runs those of the tables."""
    dtypes = (dtype, *SIXTEEN_BIT, "float32")
    beside = math.hypot(ELSEWHERE if is_scaled(profile, gpu) else LAB, 0.0 if own_kernels else OTHER_KERNELS)
    formula = FORMULA if quantization is not None and profile.op("gemm", quantization) is None else 0.0
    products = _held_out(profile, "gemm", (dtype if quantization is None else quantization, *dtypes))
    attention = _held_out(profile, "attention_decode", dtypes)
    small = _held_out(profile, "rms_norm", dtypes)
    reduced = _held_out(profile, "all_reduce", dtypes)
    return Errors(
        products=math.hypot(products or 0.0, beside, formula),
        attention=math.hypot(attention or 0.0, beside),
        small_kernels=UNTIMED if small is None else math.hypot(small, beside),
        all_reduce=link if reduced is None else math.hypot(reduced, beside),
        host=host,
        gap=host,
    )


def of_data_sheet(*, link: float, host: float) -> Errors:
    """Sizes on the roofline; `link` and `host` as in `of_profile`."""
    return Errors(DATA_SHEET, DATA_SHEET, DATA_SHEET, link, host, host)


def _held_out(profile: Profile, op: str, dtypes: Iterable[str]) -> float | None:
    """Standard deviation of what a fit misses of kernels between those it saw; None for an op that it lacks, 0 for one
    with too few rows to hold any out."""
    for dtype in dtypes:
        if profile.op(op, dtype) is not None:
            errors = profile.report[op, dtype].get("errors")
            inside = errors.get("held_out_inside") if isinstance(errors, Mapping) else None
            off_pct = inside.get("mape_pct") if isinstance(inside, Mapping) else None
            return NORMAL * off_pct / 100.0 if isinstance(off_pct, int | float) else 0.0
    return None


# --- a profile that errs
_CLASS_OF = {
    "gemm": "products", "gemm_triton": "products", "attention_decode": "attention", "attention_prefill": "attention",
    "all_reduce": "all_reduce", "memcpy_h2d": None, "memcpy_d2h": None, "memcpy_d2d": None,
}  # fmt: skip
"""Ops that are no small kernels to the class they err with; copies do not err."""


def erring(profile: Profile, factors: Errors) -> Profile:
    """`profile` with the times of each class times its factor, though never below what the hardware allows."""
    if factors == EXACT:
        return profile
    ops = {key: _slower(fit, factors) for key, fit in profile.ops.items()}
    mixed, skew, by = profile.mixed, profile.skew, factors.attention
    if mixed.varlen is not None:
        mixed = replace(mixed, varlen=_slower_launch(mixed.varlen, by))
    if skew is not None:
        skew = replace(skew, us_per_token=skew.us_per_token * by)
    return replace(profile, ops=ops, mixed=replace(mixed, floor_us=mixed.floor_us * by), skew=skew)


def _slower(fit: OpFit, factors: Errors) -> OpFit:
    name = _CLASS_OF.get(fit.op, "small_kernels")
    if name is None:
        return fit
    by, physics = getattr(factors, name), fit.physics
    return replace(
        fit,
        physics=Physics(
            compute_fraction=physics.compute_fraction / by,
            bandwidth_fraction=physics.bandwidth_fraction / by,
            chain_us=physics.chain_us * by,
            piece_us=physics.piece_us * by,
            floor_us=physics.floor_us * by,
            sharpness=physics.sharpness,
        ),
    )


_VARLEN_US = ("floor_us", "cta_us", "block_us", "lone_block_us", "empty_cta_us")


def _slower_launch(varlen: Varlen, by: float) -> Varlen:
    times = {name: getattr(varlen, name) * by for name in _VARLEN_US}
    return replace(varlen, **times, bytes_per_us=varlen.bytes_per_us / by)
