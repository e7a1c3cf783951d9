"""From a log to a synthetic workload that holds none of its requests: rates, quantiles and what is alike, no row of it.

Every number written stands for a group of requests, see `fit_lengths`; only the span is that of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.fit.arrivals import fit_arrivals
from simkit.logs.fit.drift import fit_drift
from simkit.logs.fit.lengths import FEW, LEAST_IN_TAIL, fit_outputs, fit_prompts
from simkit.logs.fit.reuse import fit_reuse
from simkit.logs.play.load import Log
from simkit.logs.play.window import cut
from simkit.streams import Streams
from simkit.units import NS_PER_S, ns_to_s

MIN_REQUESTS = LEAST_IN_TAIL
"""Fewer are no group."""

MIN_SPAN_S = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """A workload section as plain data, what it was fitted on, and what it leaves out, in words."""

    workload: dict[str, Any]
    num_requests: int
    span_s: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    remarks: tuple[str, ...]


def fit(log: Log, spec: scenario.Trace) -> Fit:
    """The workload of the requests from `start_s` to `end_s`. InputError when they are too few, or at one time."""
    columns = log.columns
    rows = cut(log, columns.time_ns, spec, Streams(0, 0), None, []).rows
    if len(rows) < MIN_REQUESTS:
        what = f"expected at least {MIN_REQUESTS} requests to fit a workload on, got {len(rows)}"
        raise InputError(f"trace {spec.path}: {what}: a fit on fewer would publish single requests")
    columns = columns.take(rows)
    time_ns = columns.time_ns - columns.time_ns[0]
    times_s = time_ns / NS_PER_S
    if times_s[-1] < MIN_SPAN_S:
        raise InputError(f"trace {spec.path}: expected requests at different times to fit arrivals on")
    prompts, outputs = columns.prompt_tokens, np.maximum(columns.output_tokens, 1)
    arrivals, remarks = fit_arrivals(time_ns)
    if len(rows) < FEW:
        few = f"only {len(rows)} requests: values stand for as few as {LEAST_IN_TAIL} of them, so they are coarse and"
        remarks.insert(0, f"{few} each request weighs much; read the file before you give it away")
    without = int(np.sum(columns.output_tokens == 0))
    if without:
        remarks.append(f"{without} requests without output, kept for their prompt, have an output of 1 token here")
    workload: dict[str, Any] = {
        "duration_s": arrivals["segments"][-1]["until_s"],
        "arrivals": arrivals,
        "prompt_tokens": fit_prompts(prompts),
        "output_tokens": fit_outputs(prompts, outputs),
    }
    drift = fit_drift(times_s, prompts, outputs)
    if drift:
        workload["drift"] = drift
        remarks.append(f"lengths change over time, in {len(drift)} periods of about as many requests each")
    block_tokens = spec.hash_block_tokens or log.hash_block_tokens
    if columns.blocks is None or block_tokens is None:
        remarks.append("the log does not say which prompts are alike, so the workload says nothing of it either")
    else:
        reuse, hit_rate = fit_reuse(columns.blocks, prompts, block_tokens)
        shown = (
            f"{hit_rate:.4f} of the prompt tokens began an earlier prompt (an unlimited prefix cache would hold them)"
        )
        remarks.append(shown if reuse is not None else f"{shown}: too few to fit")
        if reuse is not None:
            workload["reuse"] = reuse
    _check(workload, spec.path)
    return Fit(
        workload=workload,
        num_requests=len(rows),
        span_s=ns_to_s(int(columns.time_ns[-1] - columns.time_ns[0])),
        mean_prompt_tokens=float(prompts.mean()),
        mean_output_tokens=float(outputs.mean()),
        remarks=tuple(remarks),
    )


def _check(workload: dict[str, Any], path: str) -> None:
    """Refuse a workload that a scenario would refuse: of a log with times or lengths beyond what simkit plays."""
    try:
        scenario.Workload.model_validate(workload)
    except ValidationError as error:
        found = error.errors()[0]
        key = ".".join(str(part) for part in found["loc"])
        what = f"workload.{key} would be {found['input']!r} ({found['msg']})"
        raise InputError(f"trace {path}: expected a log that a workload can stand for; {what}") from error
