"""The table of log formats, in the order in which they are tried: the most specific first."""

from __future__ import annotations

from simkit.workload.traces.format import Format
from simkit.workload.traces.formats import (
    azure,
    blis,
    burstgpt,
    generic,
    litellm_csv,
    mooncake,
    servegen,
    splitwise,
    vidur,
)

FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        azure.FORMAT,
        burstgpt.FORMAT,
        vidur.FORMAT,
        vidur.OLD,
        vidur.LENGTHS_ONLY,
        splitwise.FORMAT,
        blis.FORMAT,
        litellm_csv.FORMAT,
        servegen.FORMAT,
        mooncake.FORMAT,
        generic.FORMAT,
    )
}
