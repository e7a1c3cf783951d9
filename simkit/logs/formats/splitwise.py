"""splitwise-sim: CSV with arrival_timestamp (s), prompt_size, token_size and labels.

Source of the format: Mutinifni/splitwise-sim, traces/ and trace.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.logs.read.cells import TEXT, TOKENS, number
from simkit.logs.read.format import Format, Source, having
from simkit.logs.read.layout import Field, Layout, read_layout
from simkit.logs.read.record import Columns

NEEDS = ("arrival_timestamp", "prompt_size", "token_size")


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    layout = Layout(
        (
            Field("time_ns", "arrival_timestamp", number(source.unit("s"))),
            Field("prompt_tokens", "prompt_size", TOKENS),
            Field("output_tokens", "token_size", TOKENS),
            Field("id", "request_id", TEXT, required=False),
        )
    )
    return read_layout(source, layout)


FORMAT = Format("splitwise", "splitwise-sim CSV", having("csv", *NEEDS), read, NEEDS)
