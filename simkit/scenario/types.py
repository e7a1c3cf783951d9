"""Leaf types of the scenario schema: strict values, their range, and what was expected in words.

An integer where a number is expected is fine; nothing else is converted. Every refusal carries the whole expectation
("an integer >= 1"), whatever was wrong, so that one line tells the reader all there is to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

MAX_INT = 2**31 - 1  # token and request counts stay exact in every int64 sum the engine forms
_BOUNDED_BY_MAX_INT = ("an integer >= 0", "an integer >= 1", "an integer")
MAX_SECONDS = 1e9  # 31 years; its nanoseconds fit an int64


class Strict(BaseModel):
    """Base of every schema class: strict types, no unknown keys, frozen, no NaN or infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def expecting(expected: str) -> WrapValidator:
    """Replace whatever a leaf's validators say by `expected`, e.g. ``"an integer >= 1"``."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            too_large = type(value) is int and value > MAX_INT and expected in _BOUNDED_BY_MAX_INT
            text = f"an integer <= {MAX_INT}" if too_large else expected
            raise PydanticCustomError("expected", "{expected}", {"expected": text}) from None

    return WrapValidator(check)


def conflict(keys: tuple[str, ...], expected: str, got: str) -> PydanticCustomError:
    """A refusal that involves several keys of one mapping; the first of `keys` (dotted, relative) is the one blamed."""
    return PydanticCustomError("conflict", "{expected}", {"keys": keys, "expected": expected, "got": got})


NAME_PATTERN = r"^\w[\w .+@-]*$"

Flag = Annotated[bool, expecting("true or false")]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$"), expecting("a text")]
FilePath = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$"),
    expecting("a path of 1 to 4096 characters that is Unicode without newlines and control characters; rename it"),
]
Name = Annotated[
    str,
    Field(min_length=1, max_length=100, pattern=NAME_PATTERN),
    expecting("a name of letters, digits, '.', '_', '-' or spaces that starts with a letter or digit"),
]
EngineVersion = Annotated[
    str, Field(pattern=r"^\d{1,4}(\.\d{1,4}){1,3}$"), expecting('an engine version in quotes such as "0.33"')
]

Count = Annotated[int, Field(ge=0, le=MAX_INT), expecting("an integer >= 0")]
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INT), expecting("an integer >= 1")]
BackInt = Annotated[int, Field(ge=1, le=1_000_000), expecting("an integer from 1 to 1000000")]
AnyInt = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT), expecting("an integer")]
Seed = Annotated[int, Field(ge=0, lt=2**63), expecting("an integer >= 0 and < 2**63")]
Replications = Annotated[int, Field(ge=1, le=10_000), expecting("an integer from 1 to 10000")]
Blocks = Annotated[int, Field(ge=2, le=MAX_INT), expecting("an integer >= 2 (one block is kept as a dummy)")]
BlockSize = Annotated[int, Field(ge=1, le=256), expecting("an integer from 1 to 256")]

PositiveFloat = Annotated[float, Field(gt=0.0, le=1e12), expecting("a number > 0 (and <= 1e12)")]
NonNegativeFloat = Annotated[float, Field(ge=0.0, le=1e12), expecting("a number >= 0 (and <= 1e12)")]
Rate = Annotated[float, Field(gt=0.0, le=1e9), expecting("a rate per second > 0 (and <= 1e9)")]
RateOrZero = Annotated[float, Field(ge=0.0, le=1e9), expecting("a rate per second >= 0 (and <= 1e9)")]
Microseconds = Annotated[float, Field(gt=0.0, le=1e6), expecting("microseconds > 0 (and <= 1e6)")]
LinkRate = Annotated[float, Field(ge=1e-3, le=1e6), expecting("GB/s > 0 (from 0.001 to 1e6)")]
Seconds = Annotated[float, Field(ge=0.0, le=MAX_SECONDS), expecting("seconds >= 0 (and <= 1e9)")]
PositiveSeconds = Annotated[float, Field(gt=0.0, le=MAX_SECONDS), expecting("seconds > 0 (and <= 1e9)")]
Share = Annotated[float, Field(gt=0.0, le=1.0), expecting("a number > 0 and <= 1")]
Watermark = Annotated[float, Field(ge=0.0, lt=1.0), expecting("a number >= 0 and < 1")]
Probability = Annotated[float, Field(ge=0.0, le=1.0), expecting("a probability from 0 to 1")]

# YAML has lists where the schema has tuples: the container is lenient, its items stay strict.
Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(min_length=1, strict=False)]
Quantiles = Annotated[
    tuple[Annotated[tuple[Probability, Item], Field(strict=False)], ...], Field(min_length=2, strict=False)
]
"""[probability, value] pairs; between them values are interpolated."""
