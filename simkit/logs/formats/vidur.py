"""vidur: CSV with arrived_at (s from 0), num_prefill_tokens, num_decode_tokens; older files have other names for them.

Source of the format: microsoft/vidur, data/processed_traces and its trace request generators.
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.logs.read.cells import TOKENS
from simkit.logs.read.format import Format, Head, Source, having
from simkit.logs.read.layout import Field, Layout, read_layout
from simkit.logs.read.record import Columns

NEEDS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
OLD_NEEDS = ("Time", "PromptTokenCount", "GeneratedTokenCount")
LENGTHS = NEEDS[1:]


def matches_lengths(head: Head) -> str | None:
    """By lengths without arrivals."""
    if head.kind != "csv" or not set(LENGTHS) <= set(head.columns) or "arrived_at" in head.columns:
        return None
    return f"columns {', '.join(LENGTHS)} and no arrived_at"


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order, of any version."""
    time, prompt, output = source.format.needs
    layout = Layout(
        (
            Field("time_ns", time, None, unit=source.unit("s")),
            Field("prompt_tokens", prompt, TOKENS),
            Field("output_tokens", output, TOKENS),
        )
    )
    return read_layout(source, layout)


FORMAT = Format("vidur", "vidur CSV", having("csv", *NEEDS), read, NEEDS)
OLD = Format("vidur-old", "vidur CSV of older versions", having("csv", *OLD_NEEDS), read, OLD_NEEDS)
LENGTHS_ONLY = Format(
    "vidur-lengths",
    "vidur lengths CSV",
    matches_lengths,
    None,
    advice=(
        "no arrival times, so there is nothing to replay: use its lengths with arrivals of your choice, as "
        "workload.prompt_tokens: {dist: empirical, path: FILE, column: num_prefill_tokens} and workload.output_tokens: "
        "{dist: empirical, path: FILE, column: num_decode_tokens}"
    ),
)
