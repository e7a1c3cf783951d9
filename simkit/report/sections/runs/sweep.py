"""The terminal's table of a sweep: one row a point. Reads summaries and manifests; knows no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from simkit.report.sections.runs.run import Show, summary_tables
from simkit.report.words import percent, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

# The columns of sweep.csv, in groups that stay together: (header, key in the summary, how it reads).
SWEPT: tuple[tuple[tuple[str, str, Show], ...], ...] = (
    (
        ("req/s", "throughput.requests_per_s", plain),
        ("out\ntok/s", "throughput.output_tokens_per_s", plain),
        ("good-\nput/s", "goodput_per_s", plain),
    ),
    *(
        tuple((f"{name}\n{stat}", f"{key}.{stat}", plain) for stat in ("p50", "p95", "p99"))
        for key, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))
    ),
    (
        ("pre-\nempted", "num_preemptions", plain),
        ("KV\nutil.", "kv.utilization", percent),
        ("cost", "cost_per_million_output_tokens", plain),
    ),
)


def sweep_tables(
    points: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]], failed: Sequence[str], width: int = 100
) -> list[RenderableType]:
    """One row a point, (summary, manifest) each, split to fit `width` columns, and which points `failed`."""
    note = "latencies in ms; KV utilisation is the used share of the pool; cost is per million output tokens"
    parts = summary_tables("point", points, SWEPT, note, width)
    return [*parts, *([Text(f"failed, no numbers: {'; '.join(failed)}")] if failed else [])]
