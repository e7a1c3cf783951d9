"""From a log to a synthetic workload that holds none of its requests: rates, quantiles and what is alike, no row of it.

Every number written stands for a group of requests, see `fit.lengths`; only the span is that of the log. The heading of
the file names no file and no place: it is made to be given away.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.fit.arrivals import fit_arrivals
from simkit.logs.fit.lengths import DIGITS, FEW, LEAST, LEAST_IN_TAIL, fit_drift, fit_outputs, fit_prompts
from simkit.logs.fit.reuse import fit_reuse
from simkit.logs.play.load import Log
from simkit.logs.play.window import cut
from simkit.plain import Json
from simkit.streams import Streams
from simkit.units import NS_PER_S, ns_to_s

MIN_REQUESTS = LEAST_IN_TAIL
"""Fewer are no group."""

MIN_SPAN_S = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """A workload section as plain data, what it was fitted on, and what it leaves out, in words."""

    workload: Json
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


def _check(workload: Json, path: str) -> None:
    """Refuse a workload that a scenario would refuse: of a log with times or lengths beyond what simkit plays."""
    try:
        scenario.Workload.model_validate(workload)
    except ValidationError as error:
        found = error.errors()[0]
        key = ".".join(str(part) for part in found["loc"])
        what = f"workload.{key} would be {found['input']!r} ({found['msg']})"
        raise InputError(f"trace {path}: expected a log that a workload can stand for; {what}") from error


TITLE = "# Synthetic workload, made by"
WIDTH = 118
IN_LINE = ("quantiles", "prompt_ranks", "output_ranks")

NOT_KEPT = (
    "Not kept: single requests and their order, sessions and think times, models, ids, and which lengths come together "
    "within a period beyond output by prompt."
)


def workload_yaml(fit: Fit, title: str, version: str) -> str:
    """The text of a workload file; `title` names the format that was read, `version` is simkit's."""
    import yaml

    privacy = (
        f"No value below is that of one request: a length, share, rank or distance is the mean of {LEAST} "
        f"neighbouring requests (of {LEAST_IN_TAIL} from the 95th percentile on and among fewer than {FEW} requests), "
        f"follows from such means, or is a length that {LEAST} requests or more have exactly; the ends give the "
        f"outermost requests their mean. Lengths are rounded to {DIGITS} digits, and may then be as long as some "
        "request by chance. The span and the number of requests are those of the log; a rate is that of "
        f"{LEAST} requests or more, of none, or of all, so the end of a silence tells when a request came, as exactly "
        "as the steps are."
    )
    heading = [
        f"{TITLE} simkit {version} (`simkit trace fit`): use it with `simkit run SCENARIO --workload THIS_FILE`, or",
        "# copy the section into a scenario. It holds groups of requests of a log, and no request of it.",
        f"# Fitted on {fit.num_requests} requests over {fit.span_s:.6g} s, read as {title}.",
    ]
    for text in (*(f"{remark[0].upper()}{remark[1:]}." for remark in fit.remarks), privacy, NOT_KEPT):
        heading += textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
    body = yaml.dump(
        {"workload": _in_lines(fit.workload)}, Dumper=_dumper(), sort_keys=False, width=WIDTH, default_flow_style=None
    )
    return "\n".join(heading) + "\n" + body


class _Line(list[Any]):
    """A list that is written along the line, however deep."""


def _in_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _Line(item) if key in IN_LINE else _in_lines(item) for key, item in value.items()}
    return [_in_lines(item) for item in value] if isinstance(value, list) else value


def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Knows `_Line`."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(
        _Line, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
    )
    return Dumper
