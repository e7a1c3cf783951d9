"""Queueing theory: the engine where its delay has a formula, by the queues of `tests/theory/queues.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evidence.from_tests import module_of
from evidence.line import Line

SECTION = "Queueing theory"
NEEDS: tuple[str, ...] = ()
ROUNDING_PCT = 1e-6
"""Of two numbers that differ in the last digits of a float."""


def lines(shared: Path | None) -> list[Line]:
    """A line a queue (mean delay), and a line a way to batch (throughput of slots that are always full)."""
    queues = module_of("theory/queues.py")
    return [_delay(queues, make()) for make in queues.QUEUES] + [
        _saturation(queues.saturated(batching)) for batching in ("continuous", "static")
    ]


def _delay(queues: Any, found: Any) -> Line:
    """The bar is half of the interval: a line is a hit exactly where the interval holds the formula's value."""
    low, high = found.measured.interval_ms
    mean = float(found.measured.delays_ms.mean())
    others = ", ".join(f"{name} {value:.2f}" for name, value in found.others_ms.items())
    return Line(
        section=SECTION,
        evidence=found.name,
        source=found.formula,
        n=len(found.measured.service_ms),
        metric="mean delay",
        error_pct=100.0 * (mean / found.theory_ms - 1),
        bar_pct=100.0 * (high - low) / 2 / found.theory_ms,
        fitted="none",
        text=(
            f"theory {found.theory_ms:.2f} ms, simulated {mean:.2f} ms, "
            f"{queues.CONFIDENCE:.1%} interval {low:.2f} to {high:.2f}"
        ),
        note=f"outside the interval: {others} ms" if others else "",
    )


def _saturation(found: Any) -> Line:
    return Line(
        section=SECTION,
        evidence=f"slots that are always full, {found.batching} batching",
        source="batch / step time",
        n=int(found.summary["num_requests"]["finished"]),
        metric="output tokens per second",
        error_pct=100.0 * (found.measured_per_s / found.theory_per_s - 1),
        bar_pct=ROUNDING_PCT,
        fitted="none",
        text=f"theory {found.theory_per_s:,.0f}/s, simulated {found.measured_per_s:,.0f}/s",
    )
