"""The table of log formats, in the order in which they are tried: the most specific first."""

from __future__ import annotations

from simkit.workload.traces.format import Format
from simkit.workload.traces.formats import azure, canonical, mooncake

FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        canonical.FORMAT,
        azure.FORMAT,
        mooncake.FORMAT,
    )
}
