"""The claims of papers in a smaller setting: which way they point. The evidence page has their sizes."""

from __future__ import annotations

import pytest
from evidence import papers, sarathi

from simkit.planner.capacity import ratio
from simkit.planner.search import Effort
from simkit.scenario import apply_sets

FEW = 120
"""Requests of the batching benchmark; the longest of the draws is then shorter than with 1,000."""
ROUGH = Effort(replications=2, gap=8)


def test_an_answer_above_the_cap_was_drawn_again() -> None:
    """Not cut to it: the cap itself is as likely as its neighbours, and small caps make answers nearly uniform."""
    short, long = papers.outputs(32, FEW), papers.outputs(1536, FEW)
    assert max(short) <= 32
    assert 0.3 * 32 < sum(short) / FEW < 0.6 * 32
    assert short.count(32) < 0.1 * FEW
    assert max(long) > 2 * papers.MEAN_OUTPUT
    assert short == papers.outputs.__wrapped__(32, FEW)


@pytest.mark.parametrize("slower", [papers.STATIC, papers.PUBLISHED, papers.TO_THE_END])
def test_continuous_batching_gains_more_the_longer_one_answer_may_be(slower: str) -> None:
    small, large = (papers.ratio(cap, slower, num_requests=FEW) for cap in (32, 1536))
    assert 1.0 < small < 2.0
    assert large > 2 * small


def test_scheduling_and_memory_both_gain_and_waiting_for_company_does_not() -> None:
    """Everybody is there from the start: dynamic batching is then static."""
    static, dynamic, contiguous, paged = (papers.makespans_s(1536, FEW)[name] for name in papers.ENGINES)
    assert dynamic == static > 1.5 * contiguous > 1.5 * paged
    assert contiguous > 1.5 * paged


def test_a_batch_that_goes_on_to_the_longest_of_all_is_slower_still() -> None:
    found = papers.makespans_s(1536, FEW)
    assert found[papers.TO_THE_END] > 1.5 * found[papers.PUBLISHED]


def test_chunks_carry_more_within_a_bound_on_the_gaps_between_tokens() -> None:
    fewer = {"workload.num_requests": 200}
    arms = [
        apply_sets(sarathi.scenario_of(sarathi.STRICT_CHATS, arm), fewer) for arm in (sarathi.CHUNKED, sarathi.WHOLE)
    ]
    chunked, whole = (found.capacity for found in sarathi.search([(arm, ROUGH) for arm in arms], {"jobs": 1}))
    assert ratio(chunked, whole, ROUGH.resolution).estimate > 1.5
    assert whole.term == "itl_ms.p99", "whole prompts are limited by the gaps they make, not by throughput"
    assert chunked.term == "ttft_ms.p50"


def test_the_figures_of_paged_attention_are_on_the_page() -> None:
    lines = list(papers.paged_attention())
    assert len(lines) == 12
    assert sum(line.judged for line in lines) == 7
    assert {line.outcome for line in lines} == {"hit", "shown"}
