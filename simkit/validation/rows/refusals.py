"""Rows of a benchmark table that are not simulated: for what they say, or as the simulator refuses them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from simkit.validation.rows.names import Unsuitable
from simkit.validation.rows.read import Row

_SEVERAL = r"(?:_size)?\s*[=:]?\s*(?:[2-9]|\d\d)"
_ON = r"(?!(?:_size)?\s*[=:]?\s*(?:false|off|no\b|none|0|1\b))"
_APART = {
    "attention data parallelism": re.compile(rf"(?:attention_dp|dp_attention)(?:{_SEVERAL}|{_ON})"),
    "data parallelism": re.compile(rf"(?<![a-z0-9])(?:dp|data_parallel){_SEVERAL}"),
    "expert parallelism": re.compile(rf"(?<![a-z0-9])(?:ep{_SEVERAL}|expert_parallel(?:{_SEVERAL}|{_ON}))"),
    "pipeline parallelism": re.compile(rf"(?<![a-z0-9])(?:pp|pipeline_parallel){_SEVERAL}"),
}
"""Looked for in small letters, with `_` for `-`."""

_TENSOR = re.compile(rf"(?<![a-z0-9])(?:tp|tensor_parallel){_SEVERAL}")

_DISAGGREGATED = re.compile(r"(?<!not )(?<!no )(?<!non-)disagg|prefill[- ]decode separat|\bp/?d separat", re.IGNORECASE)
_EACH = re.compile(r"^\s*(\d+)\s*x\s*[a-z]", re.IGNORECASE)


def refuse(row: Row) -> None:
    """Raise Unsuitable for what is not simulated, and for what nothing can be said of."""
    if row.odd:
        raise Unsuitable(f"unreadable: {row.odd[0].partition(': ')[2]}")
    if (row.count("pp") or 1) > 1:
        raise Unsuitable("pipeline parallelism is not simulated")
    if any(_DISAGGREGATED.search(row.text(column)) for column in ("engine", "other_config", "notes")):
        raise Unsuitable("prefill apart from decoding (disaggregated) is not simulated")
    flags = row.text("other_config").lower().replace("-", "_")
    for what, pattern in _APART.items():
        if pattern.search(flags):
            raise Unsuitable(f"{what} is not simulated")
    if row.count("tp") is None and _TENSOR.search(flags):
        raise Unsuitable("tensor parallelism is in other_config, not in tp")
    if num_gpus(row) > (row.count("tp") or 1):
        raise Unsuitable("more GPUs than tensor parallelism uses; how they share the work is not stated")
    if "input_len" not in row.numbers or "output_len" not in row.numbers:
        raise Unsuitable("lengths are not stated")
    if not row.measured:
        raise Unsuitable("nothing was measured that simkit predicts")


def num_gpus(row: Row) -> int:
    """GPUs that a row names in all, in `n_gpu` or before the GPU (``8x H100``); 1 where it does not say."""
    found = _EACH.search(row.text("gpu"))
    return max(row.count("n_gpu") or 1, int(found[1]) if found is not None else 1)


def refusals(messages: Mapping[str, str]) -> dict[str, str]:
    """Reason of each row; rows whose messages differ in numbers and names only have the first one as an example."""
    alike: dict[str, list[str]] = {}
    for name, message in messages.items():
        alike.setdefault(_pattern(message), []).append(name)
    found = dict[str, str]()
    for names in alike.values():
        text = _plain(messages[names[0]])
        found |= dict.fromkeys(names, f"refused: {text}" if len(names) == 1 else f"refused, for example: {text}")
    return found


def _plain(message: str) -> str:
    """Without the place that is to blame, which is in no file of the user's."""
    return message.partition(": ")[2] if message.startswith("scenario") else message


def _pattern(message: str) -> str:
    return " ".join("N" if any(c.isdigit() for c in word) else word for word in _plain(message).split())
