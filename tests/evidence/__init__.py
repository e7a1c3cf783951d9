"""Predicted against measured: the program that builds the evidence page and the kept plans of `reports/`.

This file has what the page is made of: lines, each one thing that was predicted, and sections, which make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

HIT, MISSED, SHOWN, NO_BAR = "hit", "missed", "shown", "no bar"
"""What became of a line. `SHOWN`: not judged."""

FITS, NO_FIT, AT_ZERO = "fits", "no fit", "host terms at 0"
"""What a prediction rests on: numbers that were fitted, none that were, or none because host terms are at 0."""

LEFT_OPEN = "what rows leave open"
"""The last of the lines that sum up all public rows."""

Curves = dict[str, Any]
"""What the charts of a section are drawn from, as validation.json has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One piece of evidence.

    `error_pct` is that of `metric` over `n` things that were compared, None where no percent fits and `text` says what
    was found. `bar_pct` is the largest error allowed. A line that is not `judged` is shown beside those that are.
    `peer` is the best other tool's error on the same data with its source, `fitted` says which numbers were fitted on
    which rows ("none" where none were), `rests_on` whether any were, `source` whose data it is. `section` and `verdict`
    are those of a line that is kept.
    """

    section: str = ""
    evidence: str
    source: str
    n: int
    metric: str
    error_pct: float | None = None
    bar_pct: float | None = None
    judged: bool = True
    peer: str = ""
    fitted: str = ""
    rests_on: str = FITS
    text: str = ""
    note: str = ""
    verdict: str = ""

    @property
    def outcome(self) -> str:
        """`HIT` or `MISSED` where it is judged and has a bar; an error of a missing number misses."""
        if not self.judged:
            return SHOWN
        if self.bar_pct is None:
            return NO_BAR
        return HIT if self.error_pct is not None and abs(self.error_pct) <= self.bar_pct else MISSED

    def kept(self, section: str) -> Line:
        """As validation.json has it: of a section, with its verdict, the error to 0.001 %."""
        error = None if self.error_pct is None else round(self.error_pct, 3)
        return replace(self, section=section, error_pct=error, verdict=self.outcome)


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a common axis: `y_by_name` has None where a line has no point; both axes may be logarithmic."""

    title: str
    x: Sequence[float]
    y_by_name: Mapping[str, Sequence[float | None]]
    x_label: str
    y_label: str
    log: bool


def nothing(shared: Path) -> dict[str, Any]:
    """No curves."""
    return {}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a title, and what makes it from the folder of logs and tables beside this clone.

    `curves` is what its pictures are drawn from, `charts` are further pictures, by their keys, and `gaps` says what it
    does not show. Without the files it `needs` it is left out; one that is `partial` shows what it can, and says the
    rest in its gaps. `intro` stands under the title.
    """

    title: str
    lines: Callable[[Path], Iterable[Line]]
    curves: Callable[[Path], Curves] = nothing
    gaps: Callable[[Path], Sequence[str]] = lambda shared: ()
    charts: Callable[[], Mapping[str, Chart]] = dict
    needs: tuple[str, ...] = ()
    partial: bool = False
    intro: str = ""

    def made(self, shared: Path) -> list[Line]:
        """Its lines as they are kept."""
        return [line.kept(self.title) for line in self.lines(shared)]

    def missing(self, shared: Path) -> list[str]:
        """What it needs and is not there."""
        return [path for path in self.needs if not (shared / path).exists()]


def off_pct(predicted: float, measured: float) -> float:
    """Predicted over measured, as percent off."""
    return 100.0 * (predicted / measured - 1.0)


def mape(errors: Iterable[float]) -> float:
    """The mean size of errors."""
    return fmean(map(abs, errors))
