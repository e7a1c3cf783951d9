"""Schema of the `workload:` section: who arrives when and how long the requests are. Imports `scenario_types` only.

The classes carry no behaviour; `simkit.workload` turns them into requests.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simkit.scenario_types import (
    Flag,
    Ints,
    Lengths,
    PositiveFloat,
    PositiveInt,
    PositiveSeconds,
    Probability,
    Rate,
    RateOrZero,
    Seconds,
    Share,
    Strict,
    Text,
    Weights,
    conflict,
)

DEFAULT_NUM_REQUESTS = 2000


# --- arrivals ---------------------------------------------------------------------------------------------------------
class ConstantArrivals(Strict):
    """One request every 1/rate seconds."""

    process: Literal["constant"]
    rate_per_s: Rate


class PoissonArrivals(Strict):
    """Exponential gaps with mean 1/rate."""

    process: Literal["poisson"]
    rate_per_s: Rate


class GammaArrivals(Strict):
    """Gamma gaps with mean 1/rate and coefficient of variation `cv` (1 = Poisson, above = bursty)."""

    process: Literal["gamma"]
    rate_per_s: Rate
    cv: PositiveFloat


class AllAtOnce(Strict):
    """Every request at time 0."""

    process: Literal["all_at_once"]


class ClosedLoop(Strict):
    """`concurrency` clients; each sends its next request `think_time_s` after its last one was answered."""

    process: Literal["closed_loop"]
    concurrency: PositiveInt
    think_time_s: Seconds = 0.0


class Segment(Strict):
    """A stretch of constant Poisson rate that ends `until_s` after the start."""

    until_s: PositiveSeconds
    rate_per_s: RateOrZero


class PiecewiseArrivals(Strict):
    """Poisson arrivals whose rate changes at given times."""

    process: Literal["piecewise"]
    segments: Annotated[tuple[Segment, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        ends = [segment.until_s for segment in self.segments]
        if any(later <= earlier for earlier, later in pairwise(ends)):
            raise conflict(("segments",), "segments whose until_s increases", str(ends))
        if all(segment.rate_per_s == 0 for segment in self.segments):
            raise conflict(("segments",), "a segment with rate_per_s > 0", "none")
        return self


Arrivals = Annotated[
    ConstantArrivals | PoissonArrivals | GammaArrivals | AllAtOnce | ClosedLoop | PiecewiseArrivals,
    Field(discriminator="process"),
]


# --- lengths in tokens ------------------------------------------------------------------------------------------------
class FixedLength(Strict):
    """Every request alike."""

    dist: Literal["fixed"]
    value: PositiveInt


class ListLength(Strict):
    """Request i gets ``values[i mod n]``."""

    dist: Literal["list"]
    values: Lengths


class UniformLength(Strict):
    """Every integer from `low` to `high`, both included, equally likely."""

    dist: Literal["uniform"]
    low: PositiveInt
    high: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise conflict(("low", "high"), f"low <= high ({self.high})", str(self.low))
        return self


class LognormalLength(Strict):
    """Lognormal with `mean` and coefficient of variation `cv` before rounding and clipping to min..max."""

    dist: Literal["lognormal"]
    mean: PositiveFloat
    cv: PositiveFloat
    min: PositiveInt = 1
    max: PositiveInt | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_min_max(self.min, self.max)
        return self


class ExponentialLength(Strict):
    """Exponential with `mean` before rounding and clipping to min..max."""

    dist: Literal["exponential"]
    mean: PositiveFloat
    min: PositiveInt = 1
    max: PositiveInt | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_min_max(self.min, self.max)
        return self


class EmpiricalLength(Strict):
    """Drawn from data, by exactly one of three sources.

    `preset` names a shipped quantile table, `quantiles` is a list of [probability, tokens] pairs, `path` is a CSV file
    whose `column` holds token counts.
    """

    dist: Literal["empirical"]
    preset: Text | None = None
    quantiles: (
        Annotated[
            tuple[Annotated[tuple[Probability, PositiveFloat], Field(strict=False)], ...],
            Field(min_length=2, strict=False),
        ]
        | None
    ) = None
    path: Text | None = None
    column: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [key for key in ("preset", "quantiles", "path") if getattr(self, key) is not None]
        if len(given) != 1:
            keys = tuple(given) or ("preset",)
            raise conflict(keys, "exactly one of preset, quantiles, path", " and ".join(given) or "none")
        if (self.path is None) != (self.column is None):
            raise conflict(("column", "path"), "path and column together", "only one of them")
        if self.quantiles is not None:
            points = self.quantiles
            pairs = list(pairwise(points))
            if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairs) or points[0][0] != 0 or points[-1][0] != 1:
                raise conflict(
                    ("quantiles",),
                    "[probability, tokens] pairs from probability 0 to 1, both rising",
                    f"{len(points)} pairs that are not",
                )
        return self


def _check_min_max(low: int, high: int | None) -> None:
    if high is not None and low > high:
        raise conflict(("min", "max"), f"min <= max ({high})", str(low))


Length = Annotated[
    FixedLength | ListLength | UniformLength | LognormalLength | ExponentialLength | EmpiricalLength,
    Field(discriminator="dist"),
]


# --- the rest ---------------------------------------------------------------------------------------------------------
def _check_weights(weights: tuple[float, ...], count: int, what: str) -> None:
    if len(weights) != count:
        raise conflict(("weights", what), f"{count} weights, one for each of {what}", str(len(weights)))
    if sum(weights) <= 0:
        raise conflict(("weights",), "a weight > 0", "only zeros")


class Priority(Strict):
    """Request priorities (lower is served first), drawn with the given weights."""

    values: Ints
    weights: Weights

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_weights(self.weights, len(self.values), "values")
        return self


class Tenants(Strict):
    """Tenants 0..count-1, drawn with the given weights (null = equal)."""

    count: PositiveInt
    weights: Weights | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weights is not None:
            _check_weights(self.weights, self.count, "count")
        return self


class Prefix(Strict):
    """Requests fall in `groups`; those of a group share their first `tokens` prompt tokens."""

    groups: PositiveInt
    tokens: PositiveInt


class Trace(Strict):
    """Replay of a log instead of arrivals and lengths.

    Read: `format`, `map` (canonical name to column of a home-grown file), `time_unit`, `hash_block_tokens` (what an
    entry of hash_ids stands for; null: what the format says), `failed` (requests that were not served: left out, kept
    for their prompt alone, or an error), `on_restart` (a file of several runs), `allow_bad` (more than 1 % of the rows
    may be unreadable). Cut, in trace time: `start_s`, `end_s`, `warmup_s` (what comes so long before `start_s` is
    served to warm the caches and not measured), `max_requests`, `keep_share` (that share of the sessions, drawn),
    `idle_gap_cap_s` (longer gaps are shortened to it), `spread_ties` (equal times over the clock's tick). Played:
    `speed` 2 is twice as fast (gaps halved, lengths kept) or `rate_per_s`, `repeat` times, `sessions` open (recorded
    times) or closed (a turn starts when the one before has ended and the think time is over); prompts that leave no
    room under max_model_len are handled by `too_long`.
    """

    path: Text
    format: Text = "auto"
    map: dict[Text, Text] = Field(default_factory=dict)
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto"
    hash_block_tokens: PositiveInt | None = None
    failed: Literal["skip", "prefill", "error"] = "skip"
    on_restart: Literal["sort", "append", "error"] = "sort"
    allow_bad: Flag = False
    start_s: Seconds = 0.0
    end_s: PositiveSeconds | None = None
    warmup_s: Seconds = 0.0
    max_requests: PositiveInt | None = None
    keep_share: Share = 1.0
    idle_gap_cap_s: PositiveSeconds | None = None
    spread_ties: Literal["none", "uniform", "even"] = "none"
    speed: PositiveFloat = 1.0
    rate_per_s: Rate | None = None
    repeat: PositiveInt = 1
    sessions: Literal["open", "closed"] = "open"
    too_long: Literal["reject", "truncate", "drop"] = "reject"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise conflict(("end_s", "start_s"), f"end_s > start_s ({self.start_s:g})", f"{self.end_s:g}")
        if self.rate_per_s is not None and self.speed != 1:
            raise conflict(("rate_per_s", "speed"), "either speed or rate_per_s", "both")
        if self.warmup_s > self.start_s:
            raise conflict(("warmup_s", "start_s"), f"warmup_s <= start_s ({self.start_s:g})", f"{self.warmup_s:g}")
        return self


class Workload(Strict):
    """Either `trace`, or `arrivals`, `prompt_tokens`, `output_tokens` and one of `num_requests` and `duration_s`."""

    num_requests: PositiveInt | None = None
    duration_s: PositiveSeconds | None = None
    arrivals: Arrivals | None = None
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    stop: Literal["length", "eos"] = "length"
    max_tokens: PositiveInt | None = None
    priority: Priority | None = None
    tenants: Tenants | None = None
    prefix: Prefix | None = None
    samples: PositiveInt = 1
    timeout_s: PositiveSeconds | None = None
    queue_limit: PositiveInt | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_tokens is not None and self.stop == "length":
            raise conflict(("max_tokens", "stop"), "null with stop: length (it is for stop: eos)", str(self.max_tokens))
        if self.trace is not None:
            self._check_trace()
        else:
            self._check_synthetic()
        return self

    def _check_trace(self) -> None:
        for key in ("num_requests", "duration_s", "arrivals", "prompt_tokens", "output_tokens"):
            if getattr(self, key) is not None:
                instead = "; use trace.max_requests or trace.end_s" if key in ("num_requests", "duration_s") else ""
                raise conflict((key, "trace"), f"either trace or {key}{instead}", "both")

    def _check_synthetic(self) -> None:
        for key in ("arrivals", "prompt_tokens", "output_tokens"):
            if getattr(self, key) is None:
                raise conflict((key, "trace"), "a value (or a trace instead of it)", "nothing")
        if self.num_requests is not None and self.duration_s is not None:
            raise conflict(("duration_s", "num_requests"), "either num_requests or duration_s", "both")
        if self.duration_s is not None and isinstance(self.arrivals, AllAtOnce):
            raise conflict(("duration_s", "arrivals"), "num_requests with arrivals all_at_once", "duration_s")
        if self.num_requests is None and self.duration_s is None:
            # Written past the frozen front door so that `model_fields_set` still says "not given": a variant may
            # then choose duration_s without first having to clear a value nobody wrote.
            object.__setattr__(self, "num_requests", DEFAULT_NUM_REQUESTS)
