"""Schema of `workload.prompt_tokens` and `output_tokens`: how long requests are.

The classes carry no behaviour; `simkit.workload.lengths` turns them into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simkit.scenario.types import (
    Items,
    PositiveFloat,
    PositiveInt,
    PositiveSeconds,
    Probability,
    Quantiles,
    Strict,
    Text,
    conflict,
)


def check_quantiles(points: tuple[tuple[float, float], ...], unit: str, key: str = "quantiles") -> None:
    """Refuse quantiles that do not go from probability 0 to 1, or fall."""
    pairs = list(pairwise(points))
    if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairs) or points[0][0] != 0 or points[-1][0] != 1:
        raise conflict(
            (key,),
            f"[probability, {unit}] pairs from probability 0 to 1, both rising",
            f"{len(points)} pairs that are not",
        )


def check_rising(ends: Sequence[float], key: str, end: str) -> None:
    """Refuse parts of `key` whose ends do not rise."""
    if any(later <= earlier for earlier, later in pairwise(ends)):
        raise conflict((key,), f"{key} whose {end} increases", str(list(ends)))


class FixedLength(Strict):
    """Every request alike."""

    dist: Literal["fixed"]
    value: PositiveInt


class ListLength(Strict):
    """Request i gets ``values[i mod n]``."""

    dist: Literal["list"]
    values: Items[PositiveInt]


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
    quantiles: Quantiles[PositiveFloat] | None = None
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
            check_quantiles(self.quantiles, "tokens")
        return self


def _check_min_max(low: int, high: int | None) -> None:
    if high is not None and low > high:
        raise conflict(("min", "max"), f"min <= max ({high})", str(low))


def check_bins(ends: Sequence[int | None], key: str) -> None:
    """Refuse bins of `key` unless their upper ends rise and the last, and only it, has none."""
    known = [end for end in ends[:-1] if end is not None]
    if ends[-1] is not None or len(known) < len(ends) - 1:
        raise conflict((key,), "upto_tokens in each bin but the last, which takes the rest", str(list(ends)))
    check_rising(known, key, "upto_tokens")


Ranks = Quantiles[Probability]
"""[probability, rank] pairs; a rank of 0 is the shortest, of 1 the longest."""


class Period(Strict):
    """A time, up to `until_s`, in which other lengths come than on the whole; the last period has no end.

    `prompt_ranks` says how prompts of the period rank among all, `output_ranks` how outputs rank among those of
    prompts of about the same length, as [probability, rank] pairs: [[0, 0], [1, 1]] is no difference.
    """

    until_s: PositiveSeconds
    prompt_ranks: Ranks
    output_ranks: Ranks

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("prompt_ranks", "output_ranks"):
            check_quantiles(getattr(self, key), "rank", key)
        return self


class Bin(Strict):
    """Quantiles, in `unit`, of requests with up to `upto_tokens` tokens and more than those of the bin before."""

    unit: ClassVar[str]
    upto_tokens: PositiveInt | None = None
    quantiles: tuple[tuple[float, float], ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_quantiles(self.quantiles, self.unit)
        return self


class QuantileBin(Bin):
    """Lengths of answers, by the tokens of the prompt."""

    unit = "tokens"
    quantiles: Quantiles[PositiveFloat]


class ConditionalLength(Strict):
    """Drawn from the quantiles of the bin in which the request's prompt lies; the last bin has no `upto_tokens`."""

    dist: Literal["conditional"]
    on: Literal["prompt_tokens"]
    bins: Items[QuantileBin]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_bins([part.upto_tokens for part in self.bins], "bins")
        return self


_AnyLength = FixedLength | ListLength | UniformLength | LognormalLength | ExponentialLength | EmpiricalLength

Length = Annotated[_AnyLength, Field(discriminator="dist")]

OutputLength = Annotated[_AnyLength | ConditionalLength, Field(discriminator="dist")]
