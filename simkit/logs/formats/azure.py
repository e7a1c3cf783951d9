"""Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens, and NumImages in 2025.

Source of the format: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023, 2024 and AzureLMMInferenceDataset2025.
Their times have 7 fractional digits and no zone, a zone and any number of digits, or `T` and `Z`; all are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from simkit.logs.read.cells import TOKENS, WALL
from simkit.logs.read.format import Format, Head, Source, having
from simkit.logs.read.layout import Field, Layout, read_layout
from simkit.logs.read.record import Columns

NEEDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

LAYOUT = Layout(
    (
        Field("time_ns", "TIMESTAMP", WALL),
        Field("prompt_tokens", "ContextTokens", TOKENS),
        Field("output_tokens", "GeneratedTokens", TOKENS),
    )
)

_WITH_OFFSET = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d")


def title_of(head: Head) -> str:
    """2025 counts images, 2024 has times with an offset, 2023 has neither."""
    if "NumImages" in head.columns:
        return "Azure multimodal 2025 CSV"
    return "Azure 2024 CSV" if _WITH_OFFSET.search(head.text) else "Azure 2023 CSV"


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    return read_layout(source, LAYOUT)


FORMAT = Format("azure", "Azure CSV", having("csv", *NEEDS), read, NEEDS, title_of=title_of)
