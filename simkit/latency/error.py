"""How wrong step times may be: the sizes of what a latency model misses, and draws of it.

Owns the classes that err together, how large the error of each is taken to be, and one draw. The error of a class is a
factor on all its times, as a library of another version or another host would be, and kernels share one more, as
another engine or GPU would give; what is missed for one shape and not for the next averages out over the kernels of a
step, and is not held here. Factors are exp(+size) or exp(-size) by the toss of a coin, so that few draws show the
spread, and come in pairs of opposite signs, so that they leave the mean where it is. Settings that are compared err
alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from simkit.latency.physics import SIXTEEN_BIT, Varlen
from simkit.latency.profile import OpFit, Profile
from simkit.latency.profile.experts import ExpertFit, priced_as
from simkit.latency.profile.values import is_scaled
from simkit.specs.hardware import GpuSpec

LAB = 0.04
"""Between labs: decode-sized products of the shipped tables against those of another lab on the same GPU, 3 to 4 %."""

OTHER_KERNELS = 0.16
"""Kernels of an engine that no table was measured with, which are those of TensorRT-LLM, SGLang and vLLM before 0.8:
the median absolute logarithm of predicted over measured, over 0.6745, of 199 public rows of TensorRT-LLM and SGLang
over NVLink that no term was fitted on. They are those whose place among such rows is no multiple of 4: the others,
which the evidence page holds against their intervals, have no part in it."""

ELSEWHERE = 0.13
"""A profile scaled to another GPU: root mean square of the logarithm against that GPU's own profile, steps of 1 to 256
decodes over 256 to 8,192 tokens, Llama-3.1-8B and 70B and Qwen2.5-7B, all twelve pairs of the four that ship (0.04
between H100 and H200, 0.21 from A100 to RTX PRO 6000)."""

DATA_SHEET = 0.12
"""The roofline against the four profiles on the same steps: 0.08 to 0.14."""

FORMULA = 0.12
"""Products of 4-bit weights: what the formula is off where it was fitted (`latency.weight_only`)."""

UNTIMED = 0.15
"""Small kernels that no table holds, most of them at their floor of 2.5 us: those of RTX PRO 6000 take 1.9 to 3.1 us
up to 64 rows."""

NORMAL = math.sqrt(math.pi / 2.0)
"""Standard deviation over mean absolute value of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Standard deviations of the logarithms of times, by class. `kernels`: of all kernels together, beside each."""

    kernels: float
    products: float
    attention: float
    small_kernels: float
    all_reduce: float
    host: float
    gap: float


@dataclass(frozen=True, slots=True)
class Factors:
    """By what the times of each class are multiplied."""

    products: float
    attention: float
    small_kernels: float
    all_reduce: float
    host: float
    gap: float


CLASSES = tuple(field.name for field in fields(Sizes))
EXACT = Factors(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
"""A model that is right."""


def draw(sizes: Sizes, coins: Iterable[bool]) -> Factors:
    """The factors that tossed `coins`, one a class, give."""
    logs = {name: getattr(sizes, name) * (1.0 if coin else -1.0) for name, coin in zip(CLASSES, coins, strict=True)}
    together = logs["kernels"]
    return Factors(
        products=math.exp(together + logs["products"]),
        attention=math.exp(together + logs["attention"]),
        small_kernels=math.exp(together + logs["small_kernels"]),
        all_reduce=math.exp(together + logs["all_reduce"]),
        host=math.exp(logs["host"]),
        gap=math.exp(logs["gap"]),
    )


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
    routed: bool = False,
) -> Sizes:
    """Sizes where kernels are those of a profile: what its fit misses of kernels that it did not see, and how far labs
    are apart; of another GPU, how far profiles that are scaled are from those measured. `link` is how far links without
    a table are apart, `host` the error of `HostCosts`, `own_kernels` whether the engine runs those of the tables,
    `routed` whether products are of experts, whose table may err more than that of the others."""
    dtypes = (dtype, *SIXTEEN_BIT, "float32")
    formula = FORMULA if quantization is not None and profile.op("gemm", quantization) is None else 0.0
    products = _held_out(profile, "gemm", (dtype if quantization is None else quantization, *dtypes))
    if routed:
        products = max(products or 0.0, _held_out_experts(profile, dtype, quantization))
    small, reduced = _held_out(profile, "rms_norm", dtypes), _held_out(profile, "all_reduce", dtypes)
    return Sizes(
        kernels=math.hypot(ELSEWHERE if is_scaled(profile, gpu) else LAB, 0.0 if own_kernels else OTHER_KERNELS),
        products=math.hypot(products or 0.0, formula),
        attention=_held_out(profile, "attention_decode", dtypes) or 0.0,
        small_kernels=UNTIMED if small is None else small,
        all_reduce=link if reduced is None else reduced,
        host=host,
        gap=host,
    )


def of_data_sheet(*, link: float, host: float) -> Sizes:
    """Sizes on the roofline; `link` and `host` as in `of_profile`."""
    return Sizes(DATA_SHEET, 0.0, 0.0, 0.0, link, host, host)


def _held_out_experts(profile: Profile, dtype: str, quantization: str | None) -> float:
    name = priced_as(profile.experts, dtype, quantization)
    return 0.0 if name is None else _inside(profile.report["moe", name])


def _held_out(profile: Profile, op: str, dtypes: Iterable[str]) -> float | None:
    """Standard deviation of what a fit misses of kernels between those it saw; None for an op that it lacks, 0 for one
    with too few rows to hold any out."""
    for dtype in dtypes:
        if profile.op(op, dtype) is not None:
            return _inside(profile.report[op, dtype])
    return None


def _inside(report: Mapping[str, object]) -> float:
    errors = report.get("errors")
    inside = errors.get("held_out_inside") if isinstance(errors, Mapping) else None
    off_pct = inside.get("mape_pct") if isinstance(inside, Mapping) else None
    return NORMAL * off_pct / 100.0 if isinstance(off_pct, int | float) else 0.0


# --- a profile that errs
_CLASS_OF = {
    "gemm": "products", "gemm_triton": "products", "attention_decode": "attention", "attention_prefill": "attention",
    "attention_decode_window": "attention", "attention_prefill_window": "attention",
    "mla_decode_module": "attention", "mla_prefill_module": "attention",
    "all_reduce": "all_reduce", "memcpy_h2d": None, "memcpy_d2h": None, "memcpy_d2d": None,
}  # fmt: skip
"""Ops that are no small kernels to the class they err with; copies do not err."""


def erring(profile: Profile, factors: Factors) -> Profile:
    """`profile` with the times of each class times its factor, though never below what the hardware allows."""
    if factors == EXACT:
        return profile
    ops = {key: _slower(fit, factors) for key, fit in profile.ops.items()}
    experts = {dtype: _slower_experts(fit, factors.products) for dtype, fit in profile.experts.items()}
    mixed, skew, by = profile.mixed, profile.skew, factors.attention
    if mixed.varlen is not None:
        mixed = replace(mixed, varlen=_slower_launch(mixed.varlen, by))
    if skew is not None:
        skew = replace(skew, us_per_token=skew.us_per_token * by)
    return replace(profile, ops=ops, experts=experts, mixed=replace(mixed, floor_us=mixed.floor_us * by), skew=skew)


def _slower(fit: OpFit, factors: Factors) -> OpFit:
    name = _CLASS_OF.get(fit.op, "small_kernels")
    if name is None:
        return fit
    return replace(fit, physics=fit.physics.slower(getattr(factors, name)))


def _slower_experts(fit: ExpertFit, by: float) -> ExpertFit:
    return replace(fit, physics=fit.physics.slower(by))


_VARLEN_US = ("floor_us", "cta_us", "block_us", "lone_block_us", "empty_cta_us")


def _slower_launch(varlen: Varlen, by: float) -> Varlen:
    times = {name: getattr(varlen, name) * by for name in _VARLEN_US}
    return replace(varlen, **times, bytes_per_us=varlen.bytes_per_us / by)
