"""Figures of the PagedAttention paper (SOSP 2023) that follow from decisions and lengths alone.

`figures()` measures, `table(figures())` prints them beside the paper's. Averages are over time while somebody waits,
the first 5 % left out. No constant is tuned; what differs for a known reason is reported and has no bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from simkit.api import Result, run
from simkit.scenario import apply_sets, load

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
WARMUP_SHARE = 0.05
BAR = 0.20
SAMPLES = (2, 4, 6)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the paper and ours; `bar` is the largest relative difference allowed, None when only reported."""

    name: str
    paper: float
    simkit: float
    bar: float | None
    note: str = ""

    @property
    def difference(self) -> float:
        """Relative to the paper."""
        return self.simkit / self.paper - 1


@cache
def arm(scenario: str, variant: str) -> Result:
    """The result of one variant of a scenario file."""
    loaded = load(SCENARIOS / f"{scenario}.yaml")
    return run(apply_sets(loaded, loaded.variants[variant]))


def averages(result: Result, *, waiting_only: bool = True, drop: float = WARMUP_SHARE) -> tuple[float, float]:
    """(requests that run, share of KV memory that holds real tokens), averaged over time.

    A row of `steps` is a span of equal steps that begins with the values it states; every further step adds one token a
    decoding sequence, so the mean of the span lies (num_steps - 1) / 2 of these above its start.
    """
    steps = result.steps
    if waiting_only:
        steps = steps[steps.waiting > 0]
    start, end = steps.t_start_ns.min(), steps.t_end_ns.max()
    steps = steps[steps.t_start_ns >= start + drop * (end - start)]
    weights = (steps.t_end_ns - steps.t_start_ns).to_numpy(dtype=np.float64)
    used = steps.kv_used_tokens + steps.num_decode * (steps.num_steps - 1) / 2
    capacity = result.summary["kv"]["capacity_tokens"]
    return float(np.average(steps.running, weights=weights)), float(np.average(used, weights=weights) / capacity)


def allocated_token_steps(result: Result) -> float:
    """KV tokens allocated, summed over steps (each lasts 1 ms)."""
    kv = result.summary["kv"]
    share = sum(kv[part]["share_of_pool"] for part in ("used", "reserved", "internal"))
    return float(share * kv["capacity_tokens"] * result.summary["makespan_s"] * 1000)


def sharing_saves(samples: int) -> float:
    """Share of the blocks that sharing the prompt saves: n samples of a prompt against n requests of their own."""
    one, many = (arm("paged-attention-paper-alpaca", f"samples-{n}") for n in (1, samples))
    assert one.summary["num_preemptions"] == many.summary["num_preemptions"] == 0
    return 1 - allocated_token_steps(many) / (samples * allocated_token_steps(one))


@cache
def figures() -> tuple[Figure, ...]:
    """Every figure, the ones with a bar first."""
    measured = {name: averages(arm("paged-attention-paper", name)) for name in PAPER}
    rows = []
    for name, (paper_batched, paper_share) in PAPER.items():
        batched, share = measured[name]
        is_pow2 = name == "orca-pow2"
        rows.append(
            Figure(f"{name}: batched requests", paper_batched, batched, None if is_pow2 else BAR, POW2 * is_pow2)
        )
        rows.append(Figure(f"{name}: KV that holds tokens, %", paper_share, 100 * share, BAR))
    batched, _ = averages(arm("paged-attention-paper", "vllm-2-per-s"), waiting_only=False)
    rows.append(Figure("vllm at 2 req/s: batched requests", PAPER["vllm"][0], batched, None, "faster steps, not full"))
    for samples, saved in zip(SAMPLES, (6.09, 8.53, 9.79), strict=True):
        ours = 100 * sharing_saves(samples)
        rows.append(Figure(f"sharing, {samples} samples: blocks saved, %", saved, ours, None, HISTOGRAM))
    return tuple(rows)


PAPER = {
    "orca-max": (7.00, 20.4),
    "orca-pow2": (9.81, 26.8),
    "orca-oracle": (13.62, 38.2),
    "vllm": (30.42, 96.3),
}
"""Arm to (average batched requests, % of KV memory that holds real tokens): figures 13a and 2 of the paper."""

POW2 = "lengths are not the paper's; buddy rounds prompt + power of two up once more"
HISTOGRAM = "one factor for all: the share of prompts that fill a block"


def table(rows: Sequence[Figure]) -> str:
    """The figures as text, one a line."""
    lines = [f"{'':45} {'paper':>7} {'simkit':>7} {'diff':>7}  bar"]
    for row in rows:
        bar = "reported" if row.bar is None else f"{100 * row.bar:.0f} %"
        note = f" ({row.note})" if row.note else ""
        lines.append(f"{row.name:45} {row.paper:7.2f} {row.simkit:7.2f} {100 * row.difference:+6.1f}%  {bar}{note}")
    return "\n".join(lines)


def test_every_figure_with_a_bar_is_inside() -> None:
    held = [figure for figure in figures() if figure.bar is not None]
    assert len(held) == 7
    missed = [figure for figure in held if abs(figure.difference) > (figure.bar or 0)]
    assert missed == [], table(figures())


def test_the_table_shows_every_figure() -> None:
    text = table(figures())
    print(text)
    assert len(text.splitlines()) == 1 + len(figures()) == 13
    assert text.count("reported") == 5


def test_the_four_ways_to_set_memory_aside_come_in_the_papers_order() -> None:
    batched, shares = zip(*(averages(arm("paged-attention-paper", name)) for name in PAPER), strict=True)
    assert list(batched) == sorted(batched)
    assert list(shares) == sorted(shares)


def test_reserving_the_maximum_leaves_exactly_seven_places() -> None:
    batched, _ = averages(arm("paged-attention-paper", "orca-max"))
    assert batched == 7.0


@pytest.mark.parametrize("name", PAPER)
def test_somebody_waits_until_the_last_are_admitted(name: str) -> None:
    steps = arm("paged-attention-paper", name).steps
    assert steps.t_start_ns[steps.waiting == 0].min() > 0.9 * steps.t_end_ns.max()


def test_totals_are_clipped_at_the_longest_sequence() -> None:
    requests = arm("paged-attention-paper", "vllm").requests
    assert (requests.prompt_tokens + requests.output_tokens).max() == 2048
    assert requests.prompt_tokens.mean() == pytest.approx(161, rel=0.07)
    assert requests.output_tokens.mean() == pytest.approx(338, rel=0.07)


@pytest.mark.parametrize("name", [*PAPER, "vllm-2-per-s"])
def test_averages_over_spans_are_those_of_single_steps(name: str) -> None:
    """Nothing dropped, the average over spans is the one the engine summed up step by step."""
    result = arm("paged-attention-paper", name)
    _, share = averages(result, waiting_only=False, drop=0.0)
    busy_s = float((result.steps.t_end_ns - result.steps.t_start_ns).sum()) / 1e9
    expected = result.summary["kv"]["utilization"] * result.summary["makespan_s"] / busy_s
    assert share == pytest.approx(expected, rel=1e-3 if name == "vllm-2-per-s" else 1e-9)


def test_todays_steps_do_not_fill_the_memory_at_two_requests_a_second() -> None:
    """By Little's law 30.42 requests at 2/s are 15.2 s each, 45 ms a token; steps are shorter now, so fewer run."""
    result = arm("paged-attention-paper", "vllm-2-per-s")
    batched, _ = averages(result, waiting_only=False)
    assert not result.summary["saturated"]
    assert result.summary["tpot_ms"]["p50"] < 0.8 * 1000 * 30.42 / 2 / 338
    assert batched < 0.8 * PAPER["vllm"][0]


@pytest.mark.parametrize("samples", SAMPLES)
def test_what_sharing_saves_follows_from_the_lengths(samples: int) -> None:
    """A prompt is there once instead of n times: all its blocks in the first step, its full blocks from then on."""
    requests = arm("paged-attention-paper-alpaca", "samples-1").requests
    prompt, output = requests.prompt_tokens.to_numpy(), requests.output_tokens.to_numpy()
    saved_blocks = (samples - 1) * (-(-prompt // 16) + (output - 1) * (prompt // 16)).sum()
    blocks = sum(int((-(-np.arange(p, p + n) // 16)).sum()) for p, n in zip(prompt, output, strict=True))
    assert sharing_saves(samples) == pytest.approx(saved_blocks / (samples * blocks), rel=1e-9)


def test_savings_grow_with_the_samples_as_in_the_paper() -> None:
    """(n - 1)/n times one factor, in the paper and here; the factor is a matter of the histogram of prompt lengths."""
    for savings in ((6.09, 8.53, 9.79), tuple(100 * sharing_saves(n) for n in SAMPLES)):
        factors = [saved * n / (n - 1) for n, saved in zip(SAMPLES, savings, strict=True)]
        assert max(factors) < 1.08 * min(factors)


if __name__ == "__main__":
    print(table(figures()))
