"""How numbers read in a report. Strings only; a missing number is ``-``, never 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import yaml

from simkit.plain import Json

MISSING = "-"

Show = Callable[[Any], str]
"""How a value reads."""


def plain(value: Any) -> str:
    """A number with about three significant digits, thousands apart; text as it is; None and NaN as ``-``."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if value == 0 or size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def plain_down(value: float | None) -> str:
    """A number that is promised, of three digits: not rounded up."""
    if value is None or not math.isfinite(value) or value <= 0:
        return plain(value)
    step = 1.0 if value >= 100 else 10.0 ** (math.floor(math.log10(value)) - 2)
    return plain(math.floor(value / step + 1e-9) * step)


def count(value: Any) -> str:
    """A number of things; means over replications may have a fraction."""
    return plain(int(value) if isinstance(value, float) and value.is_integer() else value)


def percent(value: Any) -> str:
    """A share as per cent."""
    return MISSING if plain(value) == MISSING else f"{100 * float(value):.1f} %"


def signed(value: Any, share: bool = False) -> str:
    """A difference with its sign; shares in percentage points."""
    text = plain(100 * float(value) if share else value) if plain(value) != MISSING else MISSING
    if text == MISSING:
        return text
    unit = " pp" if share else ""
    return f"{'+' if float(value) > 0 else ''}{text}{unit}"


def known(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def error(value: Any) -> str:
    """An error in per cent with its sign."""
    found = known(value)
    return MISSING if found is None else f"{found:+.1f} %"


def times(value: float | None, of: float | None) -> str:
    """How many times `of` a value is."""
    return f"{value / of:.3g}x" if value is not None and of else MISSING


def difference(found: Json, share: bool) -> tuple[str, str]:
    """A paired difference that is known, and its 95 % interval, which may be empty."""
    text, interval = signed(found["difference"], share), found.get("ci95")
    if isinstance(interval, list | tuple):
        return text, f"[{signed(interval[0], share)}, {signed(interval[1], share)}]"
    return text, "" if interval is None else f"± {signed(interval, share).lstrip('+')}"


def scenario_yaml(scenario: Json) -> str:
    """A scenario as its file would say it, every default written out."""
    return yaml.safe_dump(dict(scenario), sort_keys=False, allow_unicode=True, width=100).rstrip("\n")
