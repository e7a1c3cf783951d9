"""What becomes of what a row of a benchmark table says or leaves open: refused, or assumed by a rule.

Owns who is not simulated (for what a row says, for what no such GPU can do, or as the simulator refuses it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from simkit.memory.weights import split_stages, weight_parts
from simkit.scenario import Scenario
from simkit.scenario.explain import NO_FILE
from simkit.specs.hardware import load_gpu
from simkit.specs.model_spec import ModelSpec
from simkit.studies.study import Failure
from simkit.validation.rows.read import Row

TOO_FAST = (
    "measured faster than the GPU can read the weights once a token "
    "(answers that ended early, drafted tokens, another unit, GPU or number format)"
)
_TPOTS = ("mean_tpot_ms", "median_tpot_ms")

_SEVERAL = r"(?:_size)?\s*[=:]?\s*(?:[2-9]|\d\d)"
_ON = r"(?!(?:_size)?\s*[=:]?\s*(?:false|off|no\b|none|0|1\b))"
_EXPERTS = re.compile(rf"(?<![a-z0-9])(?:(?:moe_)?ep{_SEVERAL}|expert_parallel(?:{_SEVERAL}|{_ON}))")
_EXPERT_RANKS = re.compile(r"(?<![a-z0-9])(?:moe_ep|ep|expert_parallel)(?:_size)?\s*[=:]?\s*(\d+)")
_EXPERT_SLICES = re.compile(rf"(?<![a-z0-9])moe_tp{_SEVERAL}")
_APART = {
    "attention data parallelism": re.compile(rf"(?:attention_dp|dp_attention)(?:{_SEVERAL}|{_ON})"),
    "data parallelism": re.compile(rf"(?<![a-z0-9])(?:dp|data_parallel){_SEVERAL}"),
    "expert parallelism": _EXPERTS,
    "pipeline parallelism": re.compile(rf"(?<![a-z0-9])(?:pp|pipeline_parallel){_SEVERAL}"),
}
"""Looked for in small letters, with `_` for `-`."""

_TENSOR = re.compile(rf"(?<![a-z0-9])(?:tp|tensor_parallel){_SEVERAL}")

_DISAGGREGATED = re.compile(r"(?<!not )(?<!no )(?<!non-)disagg|prefill[- ]decode separat|\bp/?d separat", re.IGNORECASE)
_EACH = re.compile(r"^\s*(\d+)\s*x\s*[a-z]", re.IGNORECASE)


class Unsuitable(Exception):
    """A row that cannot become a simulation; the text says why, alike for all rows with the same trouble."""


class Assumptions:
    """Texts, alike for all rows alike, each with the settings (dotted keys of a scenario) that its rule chose."""

    def __init__(self) -> None:
        self._found: list[tuple[str, tuple[str, ...]]] = []

    def add(self, text: str, *keys: str) -> None:
        """What was assumed; it holds unless one of `keys` is set by somebody."""
        self._found.append((text, keys))

    def holding(self, given: Iterable[str]) -> tuple[str, ...]:
        """Those that hold where the keys `given`, or keys within them or around them, were set."""
        set_keys = tuple(given)
        return tuple(text for text, keys in self._found if not any(_touches(a, b) for a in keys for b in set_keys))


def _touches(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def refuse(row: Row) -> None:
    """Raise Unsuitable for what is not simulated, and for what nothing can be said of."""
    if row.odd:
        raise Unsuitable(f"unreadable: {row.odd[0]}")
    if (row.count("pp") or 1) > 1:
        raise Unsuitable("pipeline parallelism is not simulated")
    if any(_DISAGGREGATED.search(row.text(column)) for column in ("engine", "other_config", "notes")):
        raise Unsuitable("prefill apart from decoding (disaggregated) is not simulated")
    flags = row.text("other_config").lower().replace("-", "_")
    for what, pattern in _APART.items():
        if pattern.search(flags) and not (pattern is _EXPERTS and shares_experts(row)):
            raise Unsuitable(f"{what} is not simulated")
    if row.count("tp") is None and _TENSOR.search(flags):
        raise Unsuitable("tensor parallelism is in other_config, not in tp")
    if num_gpus(row) > (row.count("tp") or 1):
        raise Unsuitable("more GPUs than tensor parallelism uses; how they share the work is not stated")
    if "input_len" not in row.numbers or "output_len" not in row.numbers:
        raise Unsuitable("lengths are not stated")
    if not row.measured:
        raise Unsuitable("nothing was measured that simkit predicts")


def shares_experts(row: Row) -> bool:
    """Whether the ranks of tensor parallelism share whole experts, as vLLM's `--enable-expert-parallel` has it: all of
    them, and none is split besides."""
    flags, ranks = row.text("other_config").lower().replace("-", "_"), row.count("tp") or 1
    if ranks == 1 or not _EXPERTS.search(flags) or _EXPERT_SLICES.search(flags):
        return False
    return all(int(found) == ranks for found in _EXPERT_RANKS.findall(flags))


def num_gpus(row: Row) -> int:
    """GPUs that a row names in all, in `n_gpu` or before the GPU (``8x H100``); 1 where it does not say."""
    found = _EACH.search(row.text("gpu"))
    return max(row.count("n_gpu") or 1, int(found[1]) if found is not None else 1)


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
    parts = weight_parts(model, stage, scenario.hardware.tensor_parallel_size, engine.dtype, engine.weight_format)
    share = (model.active_mlp_params_per_layer / model.mlp_params_per_layer) if model.is_moe else 0.0
    return parts["attention"] + parts["mlp"] + parts["experts"] * share + parts["lm_head"]


def refusals(failed: Mapping[str, Failure]) -> dict[str, str]:
    """Reason of each row; rows whose messages differ in numbers and names only have the first one as an example."""
    alike: dict[str, list[str]] = {}
    for name, failure in failed.items():
        pattern = " ".join("N" if any(c.isdigit() for c in word) else word for word in _said(failure).split())
        alike.setdefault(pattern, []).append(name)
    found = dict[str, str]()
    for names in alike.values():
        text = _said(failed[names[0]])
        found |= dict.fromkeys(names, f"refused: {text}" if len(names) == 1 else f"refused, for example: {text}")
    return found


def _said(failure: Failure) -> str:
    """Without the place that is to blame, where that is in no file of the user's."""
    return failure.text if failure.where == NO_FILE else failure.message
