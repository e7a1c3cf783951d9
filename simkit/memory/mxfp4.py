"""Bytes of MXFP4 experts as the engine's kernels hold them: padded, and with what they keep beside their weights.

Sources (vllm-project/vllm): `create_weights` of model_executor/layers/quantization/mxfp4.py up to 0.16, then
`mxfp4_round_up_hidden_size_and_intermediate_size` and `convert_to_mxfp4_moe_kernel_format` of
model_executor/layers/fused_moe/oracle/mxfp4.py (that of 0.33 read), the layouts of third_party/triton_kernels, pull
request 46549. Logs: gpt-oss-120b 65.97 GiB (Marlin, 0.10.1, H100; issue 23278) and 64.38 (Triton, 0.14.1, H100; issue
33155), gpt-oss-20b 13.72 (Marlin, A100); computed are 65.89, 64.30 and 13.67.
"""

from __future__ import annotations

from dataclasses import dataclass

from simkit.memory.rules import Version, capability
from simkit.specs.models import ModelSpec

BLOCK = 32
"""Weights that share a scale."""
SCALE_ROWS = 256
"""The rows that Triton's scales for Hopper come in: 32 a warp, 8 warps."""
FIRST_TRITON: Version = (0, 12, 0)
"""Engines before it came without the Triton kernels, and took Marlin on Hopper (0.11.0: issue 27508)."""
FIRST_FREED: Version = (0, 24, 0)
"""Engines before it kept the scales as loaded beside those that the Triton kernels read (pull request 46549)."""

_BYTES = 0.5 + 1 / BLOCK


@dataclass(frozen=True, slots=True)
class Layout:
    """What a back end rounds the hidden size and the width of an expert up to.

    `swizzles`: it keeps the scales in rows of `SCALE_ROWS`, and biases in float32; `keeps_loaded`: those as loaded too.
    """

    name: str
    hidden_multiple: int
    width_multiple: int
    swizzles: bool = False
    keeps_loaded: bool = False


MARLIN = Layout("Marlin", 256, 128)
TRITON = Layout("Triton", 1, 64, swizzles=True)
TRITON_LOADED = Layout("Triton", 1, 64, swizzles=True, keeps_loaded=True)
TRTLLM = Layout("FlashInfer TRT-LLM", 256, 128)
TRTLLM_256 = Layout("FlashInfer TRT-LLM", 256, 256)
AMD = Layout("Triton on AMD", 128, 128)
AMD_256 = Layout("Triton on AMD", 256, 256)


def layout_of(compute_capability: str, version: Version) -> Layout:
    """The back end that the engine takes by default for a GPU."""
    found = capability(compute_capability)
    if found is None:
        return AMD_256 if compute_capability == "gfx950" else AMD
    if found[0] == 10:
        return TRTLLM if version >= FIRST_FREED else TRTLLM_256
    if found[0] != 9 or version < FIRST_TRITON:
        return MARLIN
    return TRITON if version >= FIRST_FREED else TRITON_LOADED


def expert_bytes(model: ModelSpec, ranks: int, layout: Layout) -> float:
    """Weights and scales of one expert on one TP rank. Ranks share its width in whole blocks of scales."""
    share = BLOCK * -(-model.moe_intermediate_size // (BLOCK * ranks))
    hidden, width = _up(model.hidden_size, layout.hidden_multiple), _up(share, layout.width_multiple)
    rows = (2 if model.gated_mlp else 1) * width  # of the first product; the second has `hidden`
    weights = (rows + width) * hidden
    if not layout.swizzles:
        return weights * _BYTES
    swizzled = _up(rows, SCALE_ROWS) * (hidden // BLOCK) + _up(hidden, SCALE_ROWS) * (width // BLOCK)
    loaded = weights // BLOCK if layout.keeps_loaded else 0
    return weights / 2 + swizzled + loaded + 2 * (rows + hidden)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
