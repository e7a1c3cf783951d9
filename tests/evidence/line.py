"""One line of the evidence page: what was predicted, against what, and how far off."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

HIT, MISSED, SHOWN, NO_BAR = "hit", "missed", "shown", "no bar"
"""What became of a line. `SHOWN`: not judged."""


@dataclass(frozen=True, slots=True)
class Line:
    """One piece of evidence.

    `error_pct` is that of `metric` over `n` things that were compared, None where no percent fits and `text` says what
    was found. `bar_pct` is the largest error allowed. A line that is not `judged` is shown beside those that are.
    `peer` is the best other tool's error on the same data with its source, `fitted` which numbers were fitted on which
    rows ("none" where none were), `source` whose data it is.
    """

    section: str
    evidence: str
    source: str
    n: int
    metric: str
    error_pct: float | None
    bar_pct: float | None = None
    judged: bool = True
    peer: str = ""
    fitted: str = ""
    text: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        """`HIT` or `MISSED` where it is judged and has a bar; an error of a missing number misses."""
        if not self.judged:
            return SHOWN
        if self.bar_pct is None:
            return NO_BAR
        return HIT if self.error_pct is not None and abs(self.error_pct) <= self.bar_pct else MISSED

    def plain(self) -> dict[str, Any]:
        """As JSON has it, errors to 0.001 %, with its verdict."""
        error = None if self.error_pct is None else round(self.error_pct, 3)
        return asdict(self) | {"error_pct": error, "verdict": self.verdict}
