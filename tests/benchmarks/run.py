"""Measure the speed of simkit on this machine and print a table: ``python tests/benchmarks/run.py --help``.

This process only starts others and stays small: what a process starts with counts for its peak memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bars
from cases import CASES
from measure import Speed, in_own_process

SPEED_HEADER = ("case", "requests/s", "steps/s", "requests/timeout", "peak MB", "preemptions", "timeouts/s")
BAR_HEADER = ("bar", "here", "limit", "")


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = _parser().parse_args(arguments)
    content = _measure_bars(options) if options.bars else _measure_cases(options)
    if options.json is not None:
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--requests", type=_at_least_one, default=20_000, metavar="N", help="of a case (default %(default)s)"
    )
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=f"of: {'; '.join(CASES)}")
    parser.add_argument(
        "--rounds", type=_at_least_one, default=3, metavar="N", help="the best counts (default %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--bars", action="store_true", help="measure the bars, not the cases")
    parser.add_argument(
        "--run-requests", type=_at_least_one, default=100_000, metavar="N",
        help="of the whole run of --bars; ten times as many for the large one (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--sweep-requests", type=_at_least_one, default=100_000, metavar="N",
        help="of each point of the sweep of --bars (default %(default)s)",
    )  # fmt: skip
    return parser


def _measure_cases(options: argparse.Namespace) -> list[dict[str, Any]]:
    speeds = []
    widths = (max(map(len, CASES)), *map(len, SPEED_HEADER[1:]))
    _print_row(SPEED_HEADER, widths)
    for name in options.case or CASES:
        speeds.append(in_own_process(name, options.requests, options.rounds))
        _print_row(_speed_row(speeds[-1]), widths)
    return [speed.to_json() for speed in speeds]


def _speed_row(speed: Speed) -> tuple[str, ...]:
    return (
        speed.case,
        f"{speed.requests_per_s:,.0f}",
        f"{speed.steps_per_s:,.0f}",
        f"{speed.ratio:.4f}",
        f"{speed.peak_mb:.0f}",
        f"{speed.num_preemptions:,}",
        f"{speed.yardstick_per_s:,.0f}",
    )


def _measure_bars(options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    widths = (55, 10, 10, 6)
    _print_row(BAR_HEADER, widths)
    for measured in (
        bars.process_bars(options.run_requests, options.rounds),
        bars.speed_bars(options.requests, options.rounds),
        bars.pricing_bars(options.rounds),
        bars.sweep_bar(options.sweep_requests, 1),
    ):
        for bar in measured:
            _print_row(bar.row(), widths)
            found.append(asdict(bar) | {"passed": bar.passed})
    return found


def _print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """The first cell to the left, the others to the right."""
    first, *others = (cell.ljust(width) if i == 0 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(cells, widths, strict=True)))  # fmt: skip
    print("  ".join([first, *others]).rstrip(), flush=True)


if __name__ == "__main__":
    main()
