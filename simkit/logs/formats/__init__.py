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
    guidellm,
    guidellm_results,
    langfuse,
    litellm,
    litellm_csv,
    llmservingsim,
    mooncake,
    mooncake_delta,
    otel,
    otlp,
    ragpulse,
    refusals,
    servegen,
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
        litellm_csv.FORMAT,
        servegen.FORMAT,
        aiperf.FORMAT,
        vllm_bench.FORMAT,
        guidellm_results.FORMAT,
        otlp.FORMAT,
        otel.FORMAT,
        langfuse.FORMAT,
        litellm.FORMAT,
        vllm_records.FORMAT,
        llmservingsim.FORMAT,
        ragpulse.FORMAT,
        bailian.FORMAT,
        guidellm.FORMAT,
        mooncake.FORMAT,
        mooncake_delta.FORMAT,
        generic.FORMAT,
        *refusals.FORMATS,
    )
}
