"""Figures of papers, each simulated in its setting: settings and claims are public, and stand with their sources.

PagedAttention has its memory, Sarathi-Serve its chunks (`sarathi`), and Anyscale static against continuous batching.
Source of its claim: "How continuous batching enables 23x throughput in LLM inference while reducing p50 latency"
(anyscale.com, 2023): throughput of vLLM over that of static batching, up to 23x, rising with the cap of the outputs.
Source of the setting: the code it was made with (github.com/anyscale/llm-continuous-batching-benchmarks: caps, batches
of the static arm, how lengths are drawn, when its batches end).

All its arms have the kernels and the memory of one engine, so a ratio here holds scheduling and memory alone. The
static arm of the benchmark also had slower kernels (Hugging Face pipelines); nothing stands for them, and nothing is
tuned.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evidence import NO_FIT, Chart, Line, Section, off_pct, sarathi
from evidence.inputs import module_of
from simkit.api import run
from simkit.scenario import Scenario, apply_sets, load

PAGED_SOURCE = "PagedAttention, SOSP 2023"
ANYSCALE_SOURCE = "Anyscale, 2023 (blog and its benchmark code)"
_line = functools.partial(Line, source=ANYSCALE_SOURCE, fitted="none", rests_on=NO_FIT)
SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "anyscale-static-continuous.yaml"

PROMPT, MEAN_OUTPUT, REQUESTS = 512, 128, 1000
CAPS = (32, 128, 256, 512, 1024, 1536)
BATCHES = {32: 16, 128: 12, 512: 8, 1536: 4}
"""Cap to the batch of the benchmark's static arms, from its configurations; other caps were not in it."""
CLAIMED = 23.0
"""The largest ratio that was published, at the largest cap."""

STATIC, DYNAMIC, CONTIGUOUS, PAGED = "static", "dynamic", "continuous", "continuous, paged memory"
PUBLISHED, TO_THE_END = "static, published batch", "static, published batch, to the longest answer of all"
ENGINES = {
    STATIC: {"engine.batching": "static", "engine.kv_allocator": "contiguous"},
    DYNAMIC: {"engine.batching": "dynamic", "engine.kv_allocator": "contiguous"},
    CONTIGUOUS: {"engine.kv_allocator": "contiguous"},
    PAGED: {"engine.kv_allocator": "paged"},
}


@functools.cache
def _state_after_prompts(num_requests: int) -> tuple[Any, ...]:
    """The benchmark's random numbers where it begins with answers: its prompts are random tokens."""
    numbers = random.Random(0xCADE)
    for _ in range(num_requests):
        numbers.randint(PROMPT, PROMPT)
    for _ in range(num_requests * PROMPT):
        numbers.randint(10, 50000)
    return numbers.getstate()


@functools.cache
def outputs(cap: int, num_requests: int = REQUESTS) -> tuple[int, ...]:
    """Output tokens of the benchmark's requests at a cap, as its code draws them: what lies above is drawn again."""
    numbers = random.Random()
    numbers.setstate(_state_after_prompts(num_requests))
    draws = np.random.RandomState(numbers.randint(0, 10**6))
    found: list[int] = []
    while len(found) < num_requests:
        tokens = round(draws.exponential(scale=MEAN_OUTPUT))
        if tokens <= cap:
            found.append(max(1, tokens))
    return tuple(found)


def scenarios(cap: int, num_requests: int = REQUESTS) -> dict[str, Scenario]:
    """Every arm at a cap. Memory is set aside for prompt and cap, and decides how many fit if no batch is published."""
    lengths = outputs(cap, num_requests)
    base = {
        "variants": {},
        "engine.max_model_len": PROMPT + cap,
        "workload.num_requests": num_requests,
        "workload.output_tokens": {"dist": "list", "values": list(lengths)},
    }
    loaded = apply_sets(load(SCENARIO), base)
    found = {name: apply_sets(loaded, sets) for name, sets in ENGINES.items()}
    if cap in BATCHES:
        found[PUBLISHED] = apply_sets(found[STATIC], {"engine.max_num_seqs": BATCHES[cap]})
        longest = {"dist": "fixed", "value": max(lengths)}
        found[TO_THE_END] = apply_sets(found[PUBLISHED], {"workload.output_tokens": longest})
    return found


@functools.cache
def makespans_s(cap: int, num_requests: int = REQUESTS) -> Mapping[str, float]:
    """Seconds that each arm takes for all requests."""
    return {name: run(asked).summary["makespan_s"] for name, asked in scenarios(cap, num_requests).items()}


def ratio(cap: int, slower: str, faster: str = PAGED, num_requests: int = REQUESTS) -> float:
    """Throughput of `faster` over that of `slower`: the same requests, so it is that of their makespans inverted."""
    found = makespans_s(cap, num_requests)
    return found[slower] / found[faster]


def curve(slower: str, num_requests: int = REQUESTS) -> dict[int, float]:
    """The ratio by cap, where that arm exists."""
    return {cap: ratio(cap, slower, num_requests=num_requests) for cap in CAPS if cap in BATCHES or slower in ENGINES}


def anyscale_lines() -> list[Line]:
    """Whether each curve rises, how its end compares with the claim, and what the parts bring."""
    return [*(_rises(slower) for slower in (TO_THE_END, PUBLISHED, STATIC)), _end(), _parts()]


def anyscale_charts() -> dict[str, Chart]:
    """The ratio against the cap, over each static arm."""
    by_name = {f"over {slower}": curve(slower) for slower in (TO_THE_END, PUBLISHED, STATIC)}
    by_name["published: up to 23x"] = {max(BATCHES): CLAIMED}
    return {
        "anyscale": Chart(
            title="Continuous batching with paged memory over static batching",
            x=list(CAPS),
            y_by_name={name: [found.get(cap) for cap in CAPS] for name, found in by_name.items()},
            x_label="output cap [tokens]",
            y_label="ratio of throughputs",
            log=True,
        )
    }


def _rises(slower: str) -> Line:
    found = curve(slower)
    falls = sum(later <= earlier for earlier, later in pairwise(found.values()))
    return _line(
        evidence=f"Anyscale: continuous over {slower}",
        n=len(found),
        metric="caps at which the ratio does not rise",
        error_pct=100.0 * falls / (len(found) - 1),
        bar_pct=0.0,
        text=", ".join(f"{value:.1f}x at {cap}" for cap, value in found.items()),
        note="scheduling and memory alone: all arms have the same kernels",
    )


def _end() -> Line:
    cap = max(BATCHES)
    found = ratio(cap, TO_THE_END)
    return _line(
        evidence=f"Anyscale: the largest ratio, at a cap of {cap}",
        n=1,
        metric="continuous over static as the benchmark ran it, against up to 23x",
        error_pct=off_pct(found, CLAIMED),
        judged=False,
        text=f"{found:.1f}x; {ratio(cap, PUBLISHED):.1f}x if a batch ended with its own longest answer",
        note=(
            "the benchmark's static server decodes every batch to the longest answer of all requests "
            f"({max(outputs(cap))} tokens, its own draws); "
            "neither its slower kernels are in here nor the slower host of vLLM in 2023"
        ),
    )


def _parts() -> Line:
    cap = max(CAPS)
    steps = [(before, after, ratio(cap, before, after)) for before, after in pairwise(ENGINES)]
    engine = load(SCENARIO).engine
    assert engine.num_gpu_blocks is not None
    places = (engine.num_gpu_blocks - 1) * engine.block_size // (PROMPT + cap)
    return _line(
        evidence=f"Anyscale: what the parts bring at a cap of {cap}",
        n=len(ENGINES),
        metric="throughput over that of the arm before",
        judged=False,
        text=f"{STATIC} 1.0x" + "".join(f" -> {after} {value:.2f}x" for _, after, value in steps),
        note=f"contiguous memory reserves prompt and cap, so {places} fit; everybody is there, so dynamic is static",
    )


def paged_attention() -> Iterator[Line]:
    """Requests that run together and KV memory that holds tokens, by the way in which memory is set aside."""
    for figure in module_of("theory/test_paper_figures.py").figures():
        yield Line(
            evidence=f"PagedAttention: {figure.name}",
            source=PAGED_SOURCE,
            n=1,
            metric="average over time while somebody waits",
            error_pct=100.0 * figure.difference,
            bar_pct=None if figure.bar is None else 100.0 * figure.bar,
            judged=figure.bar is not None,
            fitted="none",
            rests_on=NO_FIT,
            text=f"paper {figure.paper:.2f}, simulated {figure.simkit:.2f}",
            note=figure.note,
        )


def _lines(shared: Path) -> list[Line]:
    """PagedAttention's memory, Anyscale's batching, Sarathi-Serve's chunks."""
    return [*paged_attention(), *anyscale_lines(), *sarathi.lines()]


def _charts() -> dict[str, Chart]:
    return anyscale_charts() | sarathi.charts()


PAPERS = Section("Papers", _lines, charts=_charts)
