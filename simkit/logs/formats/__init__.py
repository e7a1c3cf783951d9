"""The table of log formats, in the order in which they are tried: the most specific first."""

from __future__ import annotations

from simkit.logs.formats import (
    aiperf,
    azure,
    bailian,
    blis,
    burstgpt,
    canonical,
    generic,
    guidellm_results,
    langfuse,
    litellm,
    llmservingsim,
    mooncake,
    otel,
    ragpulse,
    refusals,
    splitwise,
    vidur,
    vllm_bench,
    vllm_records,
)
from simkit.logs.read.format import Format

FORMATS: dict[str, Format] = {
    found.name: found
    for found in (
        azure.FORMAT,
        canonical.FORMAT,
        burstgpt.FORMAT,
        vidur.FORMAT,
        vidur.OLD,
        vidur.LENGTHS_ONLY,
        splitwise.FORMAT,
        blis.FORMAT,
        litellm.CSV,
        refusals.SERVEGEN,
        aiperf.FORMAT,
        vllm_bench.FORMAT,
        guidellm_results.FORMAT,
        otel.OTLP,
        otel.FORMAT,
        langfuse.FORMAT,
        litellm.FORMAT,
        vllm_records.FORMAT,
        llmservingsim.FORMAT,
        ragpulse.FORMAT,
        bailian.FORMAT,
        mooncake.GUIDELLM,
        mooncake.FORMAT,
        mooncake.DELTA,
        generic.FORMAT,
        *refusals.FORMATS,
    )
}
