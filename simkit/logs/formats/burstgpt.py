"""BurstGPT: CSV with Timestamp, Request tokens, Response tokens, and from version 2 on Session ID and Elapsed time.

Source of the format: HPMLL/BurstGPT. Times are seconds from midnight of the first day, by a clock that ticks once a
second; Elapsed time is that of the whole answer, in s. A request that failed has 0 response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.logs.read.cells import TEXT, TOKENS, number, optional
from simkit.logs.read.format import Format, Head, Source, having
from simkit.logs.read.layout import Field, Layout, read_layout
from simkit.logs.read.record import Columns

NEEDS = ("Timestamp", "Request tokens", "Response tokens")


def title_of(head: Head) -> str:
    """Version 2 has sessions."""
    return "BurstGPT v2 CSV" if "Session ID" in head.columns else "BurstGPT v1 CSV"


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    layout = Layout(
        (
            Field("time_ns", "Timestamp", number(source.unit("s"))),
            Field("prompt_tokens", "Request tokens", TOKENS),
            Field("output_tokens", "Response tokens", TOKENS),
            Field("session", "Session ID", TEXT, required=False),
            Field("e2e_ns", "Elapsed time", optional(number("s")), required=False),
            Field("model", "Model", TEXT, required=False),
        ),
    )
    return read_layout(source, layout)


FORMAT = Format("burstgpt", "BurstGPT CSV", having("csv", *NEEDS), read, NEEDS, title_of=title_of)
