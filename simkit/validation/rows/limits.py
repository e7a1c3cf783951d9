"""Measured rows that no such GPU can have given. Owns the check."""

from __future__ import annotations

from simkit.memory.weights import split_stages, weight_parts
from simkit.scenario import Scenario
from simkit.specs.hardware import load_gpu
from simkit.specs.model_spec import ModelSpec
from simkit.validation.rows.read import Row

TOO_FAST = (
    "measured faster than the GPU can read the weights once a token "
    "(answers that ended early, drafted tokens, another unit, GPU or number format)"
)
_TPOTS = ("mean_tpot_ms", "median_tpot_ms")


def is_impossible(row: Row, model: ModelSpec, scenario: Scenario, *, whole_answers: bool) -> bool:
    """Whether a time per output token, or with `whole_answers` (as long as the row says) a duration, is too short to
    read from HBM, once for each token that is decoded, the weights that one token uses.
    """
    least_ms = 1e3 * _used_bytes(model, scenario) / load_gpu(scenario.hardware.gpu).hbm_bytes_per_s
    if any(row.measured.get(name, least_ms) < least_ms for name in _TPOTS):
        return True
    least_s = 1e-3 * least_ms * (row.numbers["output_len"] - 1)
    return whole_answers and row.measured.get("duration_s", least_s) < least_s


def _used_bytes(model: ModelSpec, scenario: Scenario) -> float:
    """On one GPU, in a step of one token: attention, MLP or the experts it is routed to, LM head."""
    engine = scenario.engine
    stage = split_stages(model, 1)[0]
    parts = weight_parts(model, stage, scenario.hardware.tensor_parallel_size, engine.dtype, engine.quantization)
    share = (model.active_mlp_params_per_layer / model.mlp_params_per_layer) if model.is_moe else 0.0
    return parts["attention"] + parts["mlp"] + parts["experts"] * share + parts["lm_head"]
