"""Which measured modules price a whole attention layer of a model with latents.

Owns the choice: those of the profile in the format of the projections, else in one that stands for it, else the counts
at the rates that modules reach elsewhere.
"""

from __future__ import annotations

import numpy as np

from simkit.latency.deployment import Deployment
from simkit.latency.latent_work import OF_DEEPSEEK_V3
from simkit.latency.physics import Limits, Physics
from simkit.latency.profile import Profile
from simkit.latency.profile.residuals import AXES, OpFit, ResidualGrid
from simkit.specs.model_spec import Latent
from simkit.types import Floats

OP_OF = {"attention_decode": "mla_decode_module", "attention_prefill": "mla_prefill_module"}
EIGHT_BIT = ("fp8", "fp8_block", "int8")

ELSEWHERE = {
    "mla_decode_module": Physics(0.59, 0.79, 8e-4, 2e-3, 45.0, 2.0),
    "mla_prefill_module": Physics(0.65, 0.8, 1e-3, 2e-3, 43.0, 1.2),
}
"""Rates of modules in 16 bits: between the fits of H100, H200, L40S and RTX PRO 6000, for a GPU without a table."""


class Modules:
    """The modules of one model on a profile."""

    def __init__(self, latent: Latent, hidden_size: int, profile: Profile, deployment: Deployment) -> None:
        dims = {
            "hidden": hidden_size,
            "q_lora": latent.q_lora_rank,
            "kv_lora": latent.kv_lora_rank,
            "rope": latent.qk_rope_head_dim,
            "nope": latent.qk_nope_head_dim,
            "v_dim": latent.v_head_dim,
        }
        self._dims = {name: np.asarray(float(size)) for name, size in dims.items()}
        wanted = ("fp8_block", "bfloat16") if deployment.quantization in EIGHT_BIT else ("bfloat16",)
        found = {op: [profile.op(op, dtype) for dtype in wanted] for op in OP_OF.values()}
        by, gpu = deployment.errors.attention, deployment.gpu
        peaks, eight = gpu.peak_flops_per_s, wanted[0] == "fp8_block" and "fp8" in gpu.peak_flops_per_s
        limits = Limits(peaks["fp8" if eight else deployment.dtype], gpu.hbm_bytes_per_s)
        formula = wanted[0] if eight else "bfloat16"
        self._fits = {
            op: next((fit for fit in fits if fit is not None), None) or _formula(op, formula, limits, by)
            for op, fits in found.items()
        }
        measured = all(any(fits) for fits in found.values())
        own = measured and all(fit.dtype == wanted[0] for fit in self._fits.values())
        own = own and deployment.quantization not in ("fp8", "int8")
        self.tag = "latent attention: formula, no table of this GPU"
        if measured:
            self.tag = "" if own else "latent attention: priced in another format"
            self.tag = self.tag or ("" if dims == OF_DEEPSEEK_V3 else "latent attention: sizes of another model")

    def of(self, op: str) -> OpFit:
        """The fit that stands in the place of an attention op."""
        return self._fits[OP_OF[op]]

    def sizes(self, num_heads: int) -> dict[str, Floats]:
        """Heads on a rank and the widths of the model."""
        return {"num_heads": np.asarray(float(num_heads)), **self._dims}


def _formula(op: str, dtype: str, limits: Limits, by: float) -> OpFit:
    """The counts at the rates of other GPUs, `by` times as long."""
    nothing = ResidualGrid([[1.0]] * len(AXES[op]), np.zeros([1] * len(AXES[op])))
    return OpFit(op, dtype, ELSEWHERE[op].slower(by), limits, {(1,): nothing})
