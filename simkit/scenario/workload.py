"""Schema of the `workload:` section: who arrives when and how long the requests are.

The classes carry no behaviour; `simkit.workload` turns them into requests.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simkit.scenario.lengths import Bin, Length, OutputLength, Period, check_bins, check_rising
from simkit.scenario.types import (
    AnyInt,
    BackInt,
    FilePath,
    Flag,
    Items,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveSeconds,
    Probability,
    Quantiles,
    Rate,
    RateOrZero,
    Seconds,
    Share,
    Strict,
    Text,
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
    """A stretch of constant rate that ends `until_s` after the start."""

    until_s: PositiveSeconds
    rate_per_s: RateOrZero


class PiecewiseArrivals(Strict):
    """Arrivals whose rate changes at given times.

    Measured in expected requests instead of seconds, gaps are gamma with coefficient of variation `cv` (1 = Poisson,
    above = bursty). With `tick_s` requests come together, as from a clock that only ticks so often: each at the last
    multiple of it.
    """

    process: Literal["piecewise"]
    segments: Items[Segment]
    cv: PositiveFloat = 1.0
    tick_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_rising([segment.until_s for segment in self.segments], "segments", "until_s")
        if all(segment.rate_per_s == 0 for segment in self.segments):
            raise conflict(("segments",), "a segment with rate_per_s > 0", "none")
        return self


Arrivals = Annotated[
    ConstantArrivals | PoissonArrivals | GammaArrivals | AllAtOnce | ClosedLoop | PiecewiseArrivals,
    Field(discriminator="process"),
]


# --- the rest ---------------------------------------------------------------------------------------------------------
def _check_weights(weights: tuple[float, ...], count: int, what: str) -> None:
    if len(weights) != count:
        raise conflict(("weights", what), f"{count} weights, one for each of {what}", str(len(weights)))
    if sum(weights) <= 0:
        raise conflict(("weights",), "a weight > 0", "only zeros")


class Priority(Strict):
    """Request priorities (lower is served first), drawn with the given weights."""

    values: Items[AnyInt]
    weights: Items[NonNegativeFloat]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_weights(self.weights, len(self.values), "values")
        return self


class Tenants(Strict):
    """Tenants 0..count-1, drawn with the given weights (null = equal)."""

    count: PositiveInt
    weights: Items[NonNegativeFloat] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weights is not None:
            _check_weights(self.weights, self.count, "count")
        return self


class Prefix(Strict):
    """Requests fall in `groups`; those of a group share their first `tokens` prompt tokens, or that `share` of them.

    `warm`: the prefix caches hold these beginnings from the start, as far as they fit.
    """

    groups: PositiveInt
    tokens: PositiveInt | None = None
    share: Share | None = None
    warm: Flag = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tokens is None) == (self.share is None):
            raise conflict(("tokens", "share"), "either tokens or share", "neither" if self.share is None else "both")
        return self


class ShareBin(Bin):
    """Quantiles of the share of a prompt that is not new, for prompts of up to `upto_tokens` tokens."""

    unit = "share"
    quantiles: Quantiles[Probability]


class BackBin(Bin):
    """Quantiles of how many requests back it was, where up to `upto_tokens` tokens are not new."""

    unit = "requests back"
    quantiles: Quantiles[BackInt]


class Reuse(Strict):
    """Prompts that begin as that of an earlier request: turns of a conversation, instructions that many share.

    `prompt_shares` says how much of a prompt is not new (0: nothing), by the length of the prompt; `requests_back`
    which request it was, counted back from this one, by the tokens that are not new. The last bin of either has no
    `upto_tokens`. The earlier prompt is the nearest one from there on that is long enough.
    """

    prompt_shares: Items[ShareBin]
    requests_back: Items[BackBin]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("prompt_shares", "requests_back"):
            check_bins([part.upto_tokens for part in getattr(self, key)], key)
        return self


def _check_window(start_s: float, end_s: float | None) -> None:
    if end_s is not None and end_s <= start_s:
        raise conflict(("end_s", "start_s"), f"end_s > start_s ({start_s:g})", f"{end_s:g}")


class ServeGen(Strict):
    """Clients of ServeGen: a folder of `chunk-N-trace.csv` (rates) and `chunk-N-dataset.json` (lengths).

    The time from `start_s` to `end_s` (null: to the last window) is played, with all rates times `rate_scale`.
    """

    path: Text
    start_s: Seconds = 0.0
    end_s: PositiveSeconds | None = None
    rate_scale: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_window(self.start_s, self.end_s)
        return self


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

    path: FilePath
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
        _check_window(self.start_s, self.end_s)
        if self.rate_per_s is not None and self.speed != 1:
            raise conflict(("rate_per_s", "speed"), "either speed or rate_per_s", "both")
        if self.warmup_s > self.start_s:
            raise conflict(("warmup_s", "start_s"), f"warmup_s <= start_s ({self.start_s:g})", f"{self.warmup_s:g}")
        return self


_SYNTHETIC = ("arrivals", "prompt_tokens", "output_tokens")


class Workload(Strict):
    """Either `trace`, or `servegen`, or `arrivals`, `prompt_tokens` and `output_tokens`.

    The last come with one of `num_requests` and `duration_s`; `servegen` may have one. They are the least that a run
    has: it goes on until the system has filled, unless the load is `finite`, a batch that starts and ends empty.
    """

    finite: Flag = False
    num_requests: PositiveInt | None = None
    duration_s: PositiveSeconds | None = None
    arrivals: Arrivals | None = None
    prompt_tokens: Length | None = None
    output_tokens: OutputLength | None = None
    drift: Annotated[tuple[Period, ...], Field(strict=False)] = ()
    stop: Literal["length", "eos"] = "length"
    max_tokens: PositiveInt | None = None
    priority: Priority | None = None
    tenants: Tenants | None = None
    prefix: Prefix | None = None
    reuse: Reuse | None = None
    samples: PositiveInt = 1
    timeout_s: PositiveSeconds | None = None
    queue_limit: PositiveInt | None = None
    trace: Trace | None = None
    servegen: ServeGen | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the load is a batch that starts and ends empty: asked for, or all of it comes at once."""
        return self.finite or isinstance(self.arrivals, AllAtOnce)

    @property
    def files(self) -> list[str]:
        """Paths of the files that it is read from; those of a folder of clients aside."""
        parts = (self.trace, self.prompt_tokens, self.output_tokens)
        return [path for part in parts if (path := getattr(part, "path", None)) is not None]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_tokens is not None and self.stop == "length":
            raise conflict(("max_tokens", "stop"), "null with stop: length (it is for stop: eos)", str(self.max_tokens))
        if self.reuse is not None and self.prefix is not None:
            raise conflict(("reuse", "prefix"), "either prefix or reuse", "both")
        if self.num_requests is not None and self.duration_s is not None:
            raise conflict(("duration_s", "num_requests"), "either num_requests or duration_s", "both")
        if self.trace is not None:
            self._refuse("trace", ("num_requests", "duration_s", "reuse", "drift", "servegen", *_SYNTHETIC))
        elif self.servegen is not None:
            self._refuse("servegen", ("drift", *_SYNTHETIC))
        else:
            self._check_synthetic()
        return self

    def _refuse(self, source: str, keys: tuple[str, ...]) -> None:
        for key in keys:
            if getattr(self, key) not in (None, ()):
                instead = "; use trace.max_requests or trace.end_s" if key in ("num_requests", "duration_s") else ""
                raise conflict((key, source), f"either {source} or {key}{instead}", "both")

    def _check_synthetic(self) -> None:
        for key in _SYNTHETIC:
            if getattr(self, key) is None:
                raise conflict((key, "trace"), "a value (or a trace instead of it)", "nothing")
        check_rising([part.until_s for part in self.drift], "drift", "until_s")
        if self.drift and isinstance(self.arrivals, AllAtOnce | ClosedLoop):
            raise conflict(("drift", "arrivals"), "arrivals at times of their own with drift", self.arrivals.process)
        if self.duration_s is not None and isinstance(self.arrivals, AllAtOnce):
            raise conflict(("duration_s", "arrivals"), "num_requests with arrivals all_at_once", "duration_s")
        if self.num_requests is None and self.duration_s is None:
            # Written past the frozen front door so that `model_fields_set` still says "not given": a variant may
            # then choose duration_s without first having to clear a value nobody wrote.
            object.__setattr__(self, "num_requests", DEFAULT_NUM_REQUESTS)
