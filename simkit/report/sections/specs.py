"""The terminal's tables of models and GPUs (`simkit models`, `simkit gpus`). Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simkit.report.document import column, single
from simkit.report.render.terminal import fit
from simkit.report.words import MISSING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simkit.specs.hardware import GpuSpec
    from simkit.specs.models import ModelSpec


def model_tables(models: Sequence[ModelSpec], not_modelled: Sequence[str], width: int = 100) -> list[RenderableType]:
    """A row a model, then what a run refuses or simplifies."""
    names = tuple(spec.name + (" !" if spec.not_modelled else "") for spec in models)
    groups = single(
        column("params\n10^9", (f"{spec.num_params / 1e9:.2f}" for spec in models)),
        column("layers", (str(spec.num_layers) for spec in models)),
        column("hidden", (str(spec.hidden_size) for spec in models)),
        column("heads\nq/kv", (f"{spec.num_attention_heads}/{spec.num_kv_heads}" for spec in models)),
        column(
            "experts",
            (f"{spec.num_experts}, {spec.experts_per_token} on" if spec.num_experts else MISSING for spec in models),
        ),
        column("max\nlength", (str(spec.max_position) for spec in models)),
        column("KV bytes\na token", (f"{spec.kv_bytes_per_token(2):,}" for spec in models)),
    )
    parts: list[RenderableType] = list(fit("model", names, groups, width))
    parts.append(Text("KV bytes at 16 bits. Any Hugging Face config.json can be given by path instead of a name."))
    parts.append(Text("! listed for memory questions only; a run refuses it. Not modelled:"))
    parts += [Text(f"  - {line}") for line in not_modelled]
    return parts


def gpu_tables(gpus: Sequence[GpuSpec], width: int = 100) -> list[RenderableType]:
    """A row a GPU."""
    names = tuple(spec.name for spec in gpus)
    groups = single(
        column("memory\nGiB", (f"{spec.memory_gib:.1f}" for spec in gpus)),
        column("HBM\nGB/s", (f"{spec.hbm_bytes_per_s / 1e9:,.0f}" for spec in gpus)),
        *(
            column(f"{title}\nTFLOP/s", (_tera(spec.peak_flops_per_s.get(dtype)) for spec in gpus))
            for title, dtype in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp8", "fp8"))
        ),
        column("PCIe\nGB/s", (f"{spec.pcie_bytes_per_s / 1e9:,.0f}" for spec in gpus)),
        column("NVLink\nGB/s", (_giga(spec.nvlink_bytes_per_s) for spec in gpus)),
        column("SMs", (str(spec.num_sms) for spec in gpus)),
    )
    parts: list[RenderableType] = list(fit("gpu", names, groups, width))
    parts.append(Text("Dense peaks; link rates per GPU and direction; memory as the driver reports it."))
    return parts


def _tera(value: float | None) -> str:
    return MISSING if value is None else f"{value / 1e12:,.0f}"


def _giga(value: float) -> str:
    return f"{value / 1e9:,.0f}" if value else MISSING
