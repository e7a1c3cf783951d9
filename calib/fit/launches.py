"""Constants of launches that hold unlike sequences: a chunk beside decodes, and decodes of unequal length.

Where they were measured they are fitted; where not, FlashAttention-2 GPUs get the constants of one that was measured,
in units of their own KV block, and others the sum of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from calib import CalibrationError
from calib.fit.score import errors_of
from calib.table import Floats, Rows
from simkit.latency.profile import (
    ARRAYS,
    ELEMENT_BYTES,
    HEADS,
    Heads,
    OpFit,
    Skew,
    Varlen,
    added,
    launch_us,
    skewed,
    work_of,
)  # fmt: skip
from simkit.specs.hardware import GpuSpec

NAMES = (
    "floor_us", "cta_us", "block_us", "lone_block_us", "empty_cta_us", "tail_share", "crowded_share", "reread_base",
    "reread_per_64_seqs", "l2_from_mb", "l2_to_mb",
)  # fmt: skip
START = (3.3, 2.3, 2.56, 2.8, 0.37, 0.6, 0.13, 1.18, 1.29, 60.0, 210.0)
MIN_LAUNCHES, MIN_UNEQUAL = 24, 20
"""Fewer launches decide no constants."""

START_WEIGHT = 0.02
"""Of the constants that measurements begin from, beside launches of weight 1."""

LEAST_GAP = 0.05
"""Share by which equal decodes of maximal length must take longer than those of mean length."""

SERVED_WEIGHT, UNEQUAL_WEIGHT = 2.0, 0.7
"""Launches such as serving makes count more than the corners of a grid; those of unequal decodes a little less."""

FLASH_ATTENTION_2 = ("8.", "12.")
"""Compute capabilities on which engines run FlashAttention-2."""

SUM_FLOOR_US = 5.0
"""The launch floor that two kernels in one launch pay once; assumed where mixed launches were not measured."""

L2_MB = {"a100-sxm4-40gb": 40, "a100-sxm4-80gb": 40, "a100-pcie-40gb": 40, "a100-pcie-80gb": 40, "rtx-pro-6000": 128,
         "l4-24gb": 48, "l40s-48gb": 96, "rtx-4090": 72, "rtx-3090": 6, "rtx-a6000": 6, "a10g-24gb": 6}  # fmt: skip
"""L2 cache by the vendors' data sheets."""

UNSPLIT_CTAS_PER_SM = 1.6
"""FlashAttention-2 gives up splitting contexts when sequences times KV heads fill this many times the SMs."""


FAR_TIMES = 1.5
"""Equal decodes of two tables whose median differs by more are not of the same launches."""


Json = dict[str, object]
"""A part of a profile, as its JSON has it."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Measured launches of one shape of heads; arrays of one length. No chunk: `q` 0.

    `decode_edge` is the part of a KV block that a decode begins beyond its whole blocks, known for lengths on a grid.
    `mean_us` and `longest_us` are launches of as many equal decodes, None where they were not measured.
    """

    heads: Heads
    q: Floats
    before: Floats
    seqs: Floats
    context: Floats
    longest: Floats
    us: Floats
    decode_edge: Floats
    unequal: bool = False
    mean_us: Floats | None = None
    longest_us: Floats | None = None

    def take(self, chosen: npt.NDArray[Any]) -> Launches:
        """The launches of a mask."""
        arrays = {n: v[chosen] for n, v in ((n, getattr(self, n)) for n in self.__slots__) if isinstance(v, np.ndarray)}
        return replace(self, **arrays)

    def head_sizes(self) -> dict[str, Floats]:
        """The heads as sizes of a call."""
        return {name: np.asarray(float(getattr(self.heads, name))) for name in HEADS}

    def __len__(self) -> int:
        return len(self.us)


def launches_of(rows: Rows) -> list[Launches]:
    """The launches of unlike sequences among rows of one op of a kernel table, by shape of heads: equal decodes of
    lengths on a grid beside one chunk (`attention_mixed`), or unequal decodes (`attention_skew`)."""
    make = {"attention_mixed": _mixed_launches, "attention_skew": _unequal_launches}.get(rows.op)
    return [] if make is None else [make(part, heads) for heads, part in _by_heads(rows)]


def _mixed_launches(rows: Rows, heads: Heads) -> Launches:
    sizes = rows.sizes
    length = sizes["decode_kv_len"]
    return Launches(
        heads=heads,
        q=sizes["q_len"],
        before=sizes["kv_len"],
        seqs=sizes["decode_batch"],
        context=sizes["decode_batch"] * length,
        longest=length,
        us=rows.us,
        decode_edge=np.ceil((length + 1.0) / 128.0) - length / 128.0,
    )


def _unequal_launches(rows: Rows, heads: Heads) -> Launches:
    sizes = rows.sizes
    seqs, many = sizes["batch"], sizes["decode_batch"]
    nothing = np.zeros(len(rows))
    return Launches(
        heads=heads,
        q=nothing,
        before=nothing,
        seqs=seqs,
        context=(seqs - many) * sizes["kv_len"] + many * sizes["decode_kv_len"],
        longest=sizes["decode_kv_len"],
        us=rows.us,
        decode_edge=nothing + 0.5,
        unequal=True,
    )


def _by_heads(rows: Rows) -> list[tuple[Heads, Rows]]:
    keys = np.stack([rows.sizes[name] for name in HEADS], axis=1)
    found = []
    for heads, kv_heads, head_dim in np.unique(keys, axis=0).astype(int).tolist():
        chosen = (keys == (heads, kv_heads, head_dim)).all(axis=1)
        found.append((Heads(heads, kv_heads, head_dim, ELEMENT_BYTES[rows.dtype]), rows.take(chosen)))
    return found


def fit_mixed(mixed: Seq[Launches], prefill: OpFit, decode: OpFit, gpu: GpuSpec) -> tuple[Varlen | None, Json]:
    """The rule that predicts held-out launches better, where enough were measured: its constants (None: the parts add
    up), and the `mixed` part of a profile."""
    mixed = [launches for launches in mixed if len(launches)]
    count = sum(len(launches) for launches in mixed)
    if count < MIN_LAUNCHES:
        carried = gpu.compute_capability.startswith(FLASH_ATTENTION_2)
        return _rule(_carried_over(prefill, gpu) if carried else None, {"measured": False, "rows": count}, {})
    errors, varlen_is_better = _held_out_errors(mixed, prefill, decode, gpu)
    own, other = ("varlen", "sum") if varlen_is_better else ("sum", "varlen")
    details = {
        "heads": _heads_json(mixed),
        "largest": {
            "q_len": max(float(part.q.max()) for part in mixed),
            "kv_len": max(float(part.before.max()) for part in mixed),
            "seqs": max(float(part.seqs.max()) for part in mixed),
            "longest": max(float(part.longest.max()) for part in mixed),
        },
        "held_out": errors[own],
        "held_out_of_the_other_rule": errors[other],
    }
    return _rule(fit_varlen(mixed, gpu) if varlen_is_better else None, {"measured": True, "rows": count}, details)


def _rule(varlen: Varlen | None, counts: Json, details: Json) -> tuple[Varlen | None, Json]:
    rule, constants = ("sum", {"floor_us": SUM_FLOOR_US}) if varlen is None else ("varlen", asdict(varlen))
    return varlen, {"rule": rule, **counts, "constants": constants, **details}


def _held_out_errors(mixed: Seq[Launches], prefill: OpFit, decode: OpFit, gpu: GpuSpec) -> tuple[Json, bool]:
    """Errors of both rules, by their names, on launches that were not fitted, and whether `varlen` has the smaller."""
    held = [launches.take(_held_out(launches)) for launches in mixed]
    trained = fit_varlen([launches.take(~_held_out(launches)) for launches in mixed], gpu)
    alone = [(_alone(part, prefill), _decodes(part, decode)) for part in held]
    predicted = {
        "varlen": [np.maximum(chunk, _core(trained, part)) for part, (chunk, _) in zip(held, alone, strict=True)],
        "sum": [added(chunk, decodes, SUM_FLOOR_US, ARRAYS) for chunk, decodes in alone],
    }
    measured = np.concatenate([part.us for part in held])
    totals = {rule: errors_of(np.concatenate(us), measured).mape_pct or 0.0 for rule, us in predicted.items()}
    return {rule: _by_kind(us, held) for rule, us in predicted.items()}, totals["varlen"] <= totals["sum"]


def _by_kind(predicted: Seq[Floats], held: Seq[Launches]) -> Json:
    """Errors on launches of equal decodes, and on those of unequal ones."""
    found: Json = {}
    for kind, unequal in (("equal decodes", False), ("unequal decodes", True)):
        pairs = [(us, part.us) for us, part in zip(predicted, held, strict=True) if part.unequal == unequal]
        if pairs:
            us, measured = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
            found[kind] = errors_of(us, measured).as_json()
    return found


def _alone(part: Launches, prefill: OpFit) -> Floats:
    sizes = {"batch": np.ones(len(part)), "q_len": part.q, "kv_len": part.before}
    return prefill.predict(sizes | part.head_sizes()).us


def _decodes(part: Launches, decode: OpFit) -> Floats:
    """Times of as many equal decodes of mean length."""
    return decode.predict({"batch": part.seqs, "kv_len": part.context / part.seqs, **part.head_sizes()}).us


def fit_varlen(mixed: Seq[Launches], gpu: GpuSpec) -> Varlen:
    """Least squares on log time over all launches, robust, those such as serving makes counted twice."""
    from scipy.optimize import least_squares

    fixed = {"slots": float(gpu.num_sms), "bytes_per_us": gpu.hbm_bytes_per_s * 1e-6}
    weights = [
        np.where(_served(part), SERVED_WEIGHT, 1.0) * (UNEQUAL_WEIGHT if part.unequal else 1.0) for part in mixed
    ]
    logs = [np.log(part.us) for part in mixed]

    def errors(values: Floats) -> Floats:
        varlen = Varlen(**dict(zip(NAMES, values, strict=True)), **fixed)
        parts = [
            (np.log(_core(varlen, part)) - log) * weight for part, log, weight in zip(mixed, logs, weights, strict=True)
        ]
        # Few launches do not decide every constant: those keep near the start.
        found: Floats = np.concatenate([*parts, START_WEIGHT * (values - start) / start])
        return found

    start = np.array(START)
    lowest = np.full(len(start), 1e-6)
    found = least_squares(
        errors, start, x_scale=start, bounds=(lowest, np.inf), loss="soft_l1", f_scale=0.05, max_nfev=60
    ).x
    return Varlen(**{name: float(f"{value:.4g}") for name, value in zip(NAMES, found, strict=True)}, **fixed)


def _core(varlen: Varlen, part: Launches) -> Floats:
    chunk_edge = np.where(part.before % 128 == 0, 0.25, 0.5)
    us: Floats = launch_us(
        varlen, part.heads, 1.0, part.q, part.before, part.seqs, part.context, part.longest, ARRAYS,
        decode_edge=part.decode_edge, chunk_edge=chunk_edge,
    )  # fmt: skip
    return us


def _heads_json(parts: Seq[Launches]) -> list[list[int]]:
    """The shapes of heads that were measured."""
    found = {(part.heads.num_heads, part.heads.num_kv_heads, part.heads.head_dim) for part in parts}
    return [list(heads) for heads in sorted(found)]


def _served(part: Launches) -> npt.NDArray[np.bool_]:
    """Launches such as serving chat makes: 8 to 128 decodes of a hundred to two thousand tokens, short prefixes."""
    mean = part.context / np.maximum(part.seqs, 1.0)
    served: npt.NDArray[np.bool_] = (
        (part.seqs >= 8) & (part.seqs <= 128) & (mean >= 100) & (mean <= 2048) & (part.before <= 1024)
    )
    return served


def _held_out(part: Launches) -> npt.NDArray[np.bool_]:
    held: npt.NDArray[np.bool_] = np.random.default_rng(0).random(len(part)) < 0.2
    return held


def _carried_over(prefill: OpFit, gpu: GpuSpec) -> Varlen:
    """Constants of RTX PRO 6000 in units of a KV block, which costs its FLOPs at this GPU's rate of long prefills."""
    long = {"batch": 1, "q_len": 16384, "kv_len": 0, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    sizes = {name: np.asarray(value, np.float64) for name, value in long.items()}
    flops_per_us = float(work_of(prefill.op, prefill.dtype, sizes).flops / prefill.predict(sizes).us)
    block_us = 64.0 * 128.0 * 4.0 * 128.0 * gpu.num_sms / flops_per_us
    l2 = L2_MB.get(gpu.name, 50) / L2_MB["rtx-pro-6000"]
    values = (3.5, 0.9 * block_us, block_us, 1.1 * block_us, 0.14 * block_us, 0.6, 0.0, 1.18, 1.29, 60 * l2, 210 * l2)
    return Varlen(
        **{name: float(f"{value:.4g}") for name, value in zip(NAMES, values, strict=True)},
        slots=float(gpu.num_sms),
        bytes_per_us=gpu.hbm_bytes_per_s * 1e-6,
    )


def fit_skew(unequal: Seq[Launches], decode: OpFit, varlen: Varlen | None, gpu: GpuSpec) -> Json | None:
    """The `skew` part of a profile; None where decodes of unequal length cost as much as equal ones of mean length."""
    limit = UNSPLIT_CTAS_PER_SM * gpu.num_sms
    known = [part for part in (_with_equal_times(part, decode) for part in unequal) if len(part)]
    if sum(len(part) for part in known) >= MIN_UNEQUAL:
        return _fit_skew(known, limit)
    if varlen is None:
        return None
    # The tail of a mixed launch is that of the longest decode as well.
    rate = varlen.tail_share * varlen.lone_block_us / 128.0
    return {"us_per_token": float(f"{rate:.4g}"), "min_sequence_heads": limit, "measured": False}


def _with_equal_times(part: Launches, decode: OpFit) -> Launches:
    """Times of equal decodes of mean and of maximal length: measured where they were, else predicted. Only launches in
    which the two are far enough apart to tell what lies between them."""
    mean_us, longest_us = part.mean_us, part.longest_us
    if mean_us is None or longest_us is None:
        sizes = {"batch": part.seqs, "kv_len": part.longest, **part.head_sizes()}
        mean_us, longest_us = _decodes(part, decode), decode.predict(sizes).us
    part = replace(part, mean_us=mean_us, longest_us=longest_us)
    return part.take((longest_us - mean_us) > LEAST_GAP * mean_us)


def check_equal_times(parts: Seq[Launches], decode: OpFit) -> None:
    """Raise CalibrationError where equal decodes that came with unequal ones are far from those of the kernel table."""
    ratios = [part.mean_us / _decodes(part, decode) for part in parts if part.mean_us is not None and len(part)]
    ratio = float(np.median(np.concatenate(ratios))) if ratios else 1.0
    if not 1 / FAR_TIMES < ratio < FAR_TIMES:
        raise CalibrationError(
            f"t_mean_us: the median launch of equal decodes takes {ratio:.3g} x what attention_decode of the kernel "
            "table says: expected microseconds, and the same layers, heads and GPU"
        )


def _fit_skew(parts: Seq[Launches], limit: float) -> Json:
    from scipy.optimize import least_squares

    def predicted(rate: float, rows: Seq[Launches]) -> Floats:
        us = [
            skewed(
                Skew(rate, limit), part.heads.num_kv_heads, part.seqs, part.mean_us, part.longest_us,
                part.context / part.seqs, part.longest, ARRAYS,
            )
            for part in rows
        ]  # fmt: skip
        found: Floats = np.concatenate(us)
        return found

    def fitted(rows: Seq[Launches]) -> float:
        measured = np.log(np.concatenate([part.us for part in rows]))

        def errors(values: Floats) -> Floats:
            return np.asarray(np.log(predicted(float(values[0]), rows)) - measured)

        return float(least_squares(errors, [0.013], bounds=([0.0], [10.0]), loss="soft_l1", f_scale=0.05).x[0])

    test = [part.take(_held_out(part)) for part in parts]
    rate = fitted([part.take(~_held_out(part)) for part in parts])
    us, mean_us = (np.concatenate([getattr(part, name) for part in test]) for name in ("us", "mean_us"))
    by_rule, at_mean = errors_of(predicted(rate, test), us), errors_of(mean_us, us)
    helps = (by_rule.mape_pct or 0.0) < (at_mean.mape_pct or 0.0)
    return {
        # 0 where equal decodes of mean length tell more: then the longest costs nothing.
        "us_per_token": float(f"{fitted(parts):.4g}") if helps else 0.0,
        "min_sequence_heads": limit,
        "measured": True,
        "heads": _heads_json(parts),
        "rows": sum(len(part) for part in parts),
        "held_out": (by_rule if helps else at_mean).as_json(),
        "held_out_at_the_mean": at_mean.as_json(),
    }
