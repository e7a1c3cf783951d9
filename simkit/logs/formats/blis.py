"""BLIS TraceV2: CSV of 27 columns with times in us, behind an optional header of YAML or `#` lines.

Source of the format: inference-sim, TraceV2 loader. A server's own count of prompt tokens goes before the client's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simkit.logs.read.cells import COUNT, TEXT, TOKENS, number, optional
from simkit.logs.read.format import Format, Source, having
from simkit.logs.read.layout import Field, Layout, Values, read_layout
from simkit.logs.read.log import RowLog
from simkit.logs.read.record import UNKNOWN, Columns

NEEDS = ("arrival_time_us", "input_tokens", "output_tokens", "status")


def derive(values: Values, log: RowLog) -> None:
    """Prompts as the server counted them, what failed, and the latencies from arrival to first and last chunk."""
    if "server" in values:
        values["prompt_tokens"] = np.where(values["server"] > 0, values["server"], values["prompt_tokens"])
    values["failed"] = [None if status in (None, "ok") else f"status {status}" for status in values["status"]]
    for measured, chunk in (("ttft_ns", "first_chunk"), ("e2e_ns", "last_chunk")):
        if chunk in values:
            took = values[chunk] - values["time_ns"]
            # 0 is what stands there when no chunk came.
            values[measured] = np.where(values[chunk] > 0, took, UNKNOWN)
    if "prefix_length" in values and (values["prefix_length"] > 0).any():
        log.remark("prefix_group and prefix_length are not used: which tokens are shared is not in the log")


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    unit = source.unit("us")
    layout = Layout(
        (
            Field("time_ns", "arrival_time_us", number(unit)),
            Field("prompt_tokens", "input_tokens", TOKENS),
            Field("output_tokens", "output_tokens", TOKENS),
            Field("status", "status", TEXT),
            Field("server", "server_input_tokens", optional(TOKENS), required=False),
            Field("first_chunk", "first_chunk_time_us", optional(number(unit)), required=False),
            Field("last_chunk", "last_chunk_time_us", optional(number(unit)), required=False),
            Field("prefix_length", "prefix_length", optional(COUNT), required=False),
            Field("id", "request_id", TEXT, required=False),
            Field("session", "session_id", TEXT, required=False),
            Field("turn", "round_index", optional(COUNT), required=False),
            Field("model", "model", TEXT, required=False),
        ),
        derive,
    )
    return read_layout(source, layout)


FORMAT = Format("blis", "BLIS TraceV2 CSV", having("csv", *NEEDS), read, NEEDS)
