"""The report of a plan, from hand-made contents: what a reader of the page, the Markdown and the terminal sees."""

from __future__ import annotations

import copy
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from rich.console import Console

from simkit.metrics.glossary import LIMITS
from simkit.planner import advise, capacity
from simkit.planner.result import MORE_HELPS, TAIL_QUEUED
from simkit.planner.trial import FULL_BUDGET, WAITS
from simkit.report.document import Badge
from simkit.report.figures.curves import front
from simkit.report.render import html, markdown, terminal
from simkit.report.sections import plan as plan_sections
from simkit.report.sections import plan_choice, plan_words
from simkit.runs import run_length
from simkit.studies import offered_load
from tests.unit.test_report import assert_well_formed

COMMAND = "vllm serve meta/one --max-num-seqs 64 --max-num-batched-tokens 2048 --block-size 16 --enable-prefix-caching"
SLOTS = "engine.max_num_seqs"


def found(estimate: float, **changes: Any) -> dict[str, Any]:
    return {
        "estimate_per_s": estimate,
        "low_per_s": 0.9 * estimate,
        "high_per_s": 1.1 * estimate,
        "term": "ttft_ms.p99",
        "replications": 5,
        "soft": False,
        "likely_per_s": 0.95 * estimate,
        "unlikely_per_s": 1.05 * estimate,
        "crossings_per_s": [estimate * share for share in (0.94, 0.98, 1.0, 1.03, 1.06)],
    } | changes


def money(rate: float, gpus: int) -> dict[str, Any]:
    cost = 2.0 * gpus / 3600 / rate
    return {
        "rate_per_s": rate,
        "gpus": gpus,
        "per_million_output_tokens": cost / 256 * 1e6,
        "per_million_total_tokens": cost / 768 * 1e6,
    }


def length(**changes: Any) -> dict[str, Any]:
    return {
        "num_requests": 2000,
        "duration_s": None,
        "trace": None,
        "times_played": None,
        "finite": False,
        "factor": 1.0,
        "span_s": 250.0,
        "e2e_p99_s": 20.0,
        "warmup": {"requests": 400},
        "measured_requests": 1600,
        "too_few": False,
    } | changes


def served(rate: float, held: int, runs: int = 4, *, together: bool = True) -> dict[str, Any]:
    return {
        "rate_per_s": rate,
        "runs": runs,
        "held": held,
        "together": together,
        "measured_requests": 16_000 * runs,
        "span_s": 2500.0,
        "gave_up": 0,
    }


def confirmation(estimate: float, *then: dict[str, Any]) -> dict[str, Any]:
    first = served(0.9 * estimate, 1 if then else 4, together=False)
    return {"times": 10.0, "moved": bool(then), "before": found(estimate), "served": [first, *then]}


def point(slots: int, estimate: float | None, limit: str = "slots", **settings: Any) -> dict[str, Any]:
    name = ",".join(
        [f"max_num_seqs={slots}", *(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())]
    )
    evidence = {"waiting": 0.3, "slots": 0.25, "tail_queued": 0.93, "gpu_busy": 1.0, "preemptions": 0.0}
    text = f"{limit} (ttft_ms.p99 is missed first): {LIMITS[limit]}"
    return {
        "name": name,
        "settings": {SLOTS: slots, **settings},
        "max_num_seqs": slots,
        "replicas": 1,
        "gpus": 1,
        "physical": {
            "kv_tokens": 96_000,
            "num_gpu_blocks": 6_001,
            "held_tokens": 640.0,
            "memory_seqs": 150,
            "longest_seqs": 11,
            "budget_seqs": 2048,
            "bound": 150,
        },
        "capacity": None if estimate is None else found(estimate),
        "no_capacity": "no rate passes" if estimate is None else None,
        "per_gpu_per_s": estimate,
        "limit": None
        if estimate is None
        else {"name": limit, "term": "ttft_ms.p99", "evidence": evidence, "text": text},
        "sustained": None if estimate is None else True,
        "rising": None,
        "run_length": length(),
        "confirmation": None if estimate is None else confirmation(estimate),
        "cost": None if estimate is None else money(estimate, 1),
        "trials": 20,
    }


def row(rate: float, verdict: str | None, **more: Any) -> dict[str, Any]:
    slow = 1.0 + (rate / 8) ** 4
    values = {
        **{f"ttft_ms.{stat}": times * 50.0 * slow for stat, times in (("p50", 1), ("p95", 2), ("p99", 3))},
        **{f"tpot_ms.{stat}": times * 12.0 * slow for stat, times in (("p50", 1), ("p95", 1.2), ("p99", 1.3))},
        **{f"e2e_ms.{stat}": times * 3000.0 * slow for stat, times in (("p50", 1), ("p95", 1.2), ("p99", 1.3))},
        "throughput.requests_per_s": min(rate, 9.0),
        "throughput.output_tokens_per_s": 256 * min(rate, 9.0),
        "concurrency_mean": 3 * rate,
        "num_preemptions": max(0.0, 40 * (rate - 8)),
        "num_requests.finished": 2000.0,
        "kv.utilization": min(0.9, rate / 12),
        "gpu.extrapolated.share": 0.02 * rate,
    }
    return {
        "rate_per_s": rate,
        "replications": 4,
        "verdict": verdict,
        "meets": verdict == "accepted",
        "margins": {},
        "numbers": {key: {"mean": value, "ci95": 0.04 * value} for key, value in values.items()},
        "waits": {"peak_kv": min(1.0, rate / 10)},
    } | more


def variation(key: str, value: Any, base: Any, low: float, high: float) -> dict[str, Any]:
    ratio = {"estimate": (low + high) / 2, "low": low, "high": high}
    return {
        "key": key,
        "value": value,
        "instead_of": base,
        "capacity": found(8.0 * ratio["estimate"]),
        "ratio": ratio,
        "num_gpu_blocks": 6_001,
    }


def content(**changes: Any) -> dict[str, Any]:
    """A plan of one GPU that carries 8 requests/s at 64 slots, with a target of 20 requests/s."""
    points = [point(16, 3.0), point(32, 6.0), point(64, 8.0, "TPOT"), point(128, 8.1, "KV blocks")]
    verdicts = [(2.0, "accepted"), (4.0, "accepted"), (7.0, "accepted"), (8.0, "undecided"), (9.0, "refused")]
    curve = [row(rate, verdict) for rate, verdict in verdicts] + [row(13.5, "refused")]
    checks = [{"replicas": 2, **row(20.0, None, meets=False)}, {"replicas": 3, **row(20.0, None, meets=True)}]
    checks.append({"replicas": 4, "lost": 1, **row(20.0, None, meets=True)})
    fleet = {"target_per_s": 20.0, "replicas": 3, "spare": 1, "gpus_per_replica": 1, "carries_per_s": 21.6}
    choice = "2 replicas missed the SLO when simulated: the 3rd replica buys 95 % confidence."
    return copy.deepcopy(
        {
            "name": "one-gpu",
            "answer": "Set max_num_seqs to 64: one a100 then carries 8 requests/s.",
            "reachable": True,
            "created_by": "simkit 9.8.7",
            "version": "9.8.7",
            "seed": 7,
            "scenario": {"name": "one-gpu", "hardware": {"gpu": "a100", "price_per_gpu_hour": 2.0}},
            "model": "one",
            "gpu": "a100",
            "latency_source": "profile a100 (calibrated)",
            "profile": {"name": "a100", "hash": "cafe" * 16},
            "not_simulated": [],
            "run_length": length(),
            "slo": [
                {"metric": "ttft_ms", "stat": "p99", "target_ms": 500.0},
                {"metric": "tpot_ms", "stat": "p99", "target_ms": 50.0},
            ],
            "base_rate_per_s": 6.0,
            "target_rate_per_s": 20.0,
            "lengths": {"prompt_tokens": 512.0, "output_tokens": 256.0, "p95_tokens": 768.0, "held_tokens": 640.0},
            "axes": {SLOTS: [16, 32, 64, 128]},
            "points": points,
            "failed": {},
            "recommended": points[2] | {"reason": "The most is 8.1/s at max_num_seqs=128; this is as good."},
            "notes": [],
            "knee": {"name": "max_num_seqs=32", "max_num_seqs": 32},
            "chance": [
                {"rate_per_s": 8 * share, "chance": chance}
                for share, chance in ((0.94, 0.8), (0.98, 0.6), (1.0, 0.4), (1.03, 0.2), (1.06, 0.0))
            ],
            "curve": curve,
            "loads": [{"share": 0.5, **curve[1]}, {"share": 1.0, **curve[2]}, {"share": 2.0, **curve[5]}],
            "sensitivity": [
                variation("engine.block_size", 32, 16, 0.96, 1.03),
                variation("engine.gpu_memory_utilization", 0.99, 0.9, 1.05, 1.2),
                variation("engine.max_num_batched_tokens", 1024, 2048, 0.8, 0.9),
            ],
            "fleet": fleet | {"gpus": 4, "cost": money(20.0, 4), "checks": checks, "choice": choice},
            "cost": money(8.0, 1),
            "command": COMMAND,
            "command_notes": ["policy sjf has no flag"],
        }
        | changes
    )


AROUND = ("knee", "chance", "curve", "loads", "sensitivity", "fleet", "cost", "command", "command_notes")


def unreachable() -> dict[str, Any]:
    why = "The SLO cannot be met at any setting: ttft_ms.p99 <= 20 ms is missed by a request alone. What binds: TTFT."
    points = [point(16, None), point(32, None)]
    plain = content(answer=why, unreachable=why, reachable=False, points=points, recommended=None)
    return {key: value for key, value in plain.items() if key not in AROUND}


def grid(blocks: Sequence[int]) -> dict[str, Any]:
    points = [
        point(slots, slots / 10 + block / 100, **{"engine.block_size": block})
        for block in blocks
        for slots in (16, 32, 64)
    ]
    chosen = points[2] | {"reason": "It carries the most."}
    axes = {SLOTS: [16, 32, 64], "engine.block_size": list(blocks)}
    return content(points=points, recommended=chosen, axes=axes, knee=None)


def render_plan(plan: Mapping[str, Any]) -> str:
    return html.render(plan_sections.report(plan))


def words_of_page(plan: Mapping[str, Any]) -> str:
    """The page without its figures, which take long to draw."""
    report = plan_sections.report(plan)
    return html.render(replace(report, sections=tuple(replace(section, figures=()) for section in report.sections)))


def plan_markdown(plan: Mapping[str, Any]) -> str:
    return markdown.render(plan_sections.report(plan), f"simkit plan: {plan['name']}")


def printed(plan: Mapping[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    for part in terminal.render(plan_sections.report(plan), width, titled=False):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def everywhere(plan: Mapping[str, Any]) -> list[str]:
    """The words that a reader sees on the page, in the Markdown and in the terminal, without markup and figures."""
    page = re.sub(r"<[^>]*>", " ", re.sub(r"<style.*?</style>", " ", words_of_page(plan), flags=re.S))
    page = page.replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'")
    texts = [page, plan_markdown(plan).replace("\\", ""), printed(plan, 200)]
    return [" ".join(text.split()) for text in texts]


VARIANTS: dict[str, dict[str, Any]] = {
    "whole": content(),
    "unreachable": unreachable(),
    "no price, no target": content(cost=None, fleet=None, target_rate_per_s=None),
    "two lines": grid([8, 16]),
    "panels": grid([1, 2, 4, 8, 16, 32, 64]),
    "soft": content(),
    "little known": content(
        knee=None, command=None, loads=[], sensitivity=[], curve=[], latency_source="roofline of a100 (uncalibrated)"
    ),
    "nothing streamed": content(),
    "one replication": content(),
}
VARIANTS["soft"]["recommended"]["capacity"] |= {"soft": True, "likely_per_s": 6.0, "unlikely_per_s": 9.0}
for _row in VARIANTS["nothing streamed"]["curve"]:
    for _stat in ("p50", "p95", "p99"):
        _row["numbers"][f"tpot_ms.{_stat}"] = {"mean": None, "ci95": None}
for _point in (VARIANTS["one replication"]["recommended"], *VARIANTS["one replication"]["points"]):
    _point["capacity"] |= {"low_per_s": 0.0, "high_per_s": None, "replications": 1}
for _row in VARIANTS["one replication"]["curve"]:
    _row["replications"] = 1
    _row["numbers"] = {key: {"mean": number["mean"], "ci95": None} for key, number in _row["numbers"].items()}


@cache
def page_of(name: str) -> str:
    """The page of a variant, drawn once."""
    return render_plan(VARIANTS[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_well_formed_page_and_fits_the_terminal(name: str) -> None:
    plan = VARIANTS[name]
    page = page_of(name)
    assert_well_formed(page)
    assert page.count("<section") == page.count("</section>")
    assert set(re.findall(r'<a href="#([^"]+)"', page)) == set(re.findall(r'<section id="([^"]+)"', page))
    assert not re.search(r"\bNone\b|\bnan\b", plan_markdown(plan))
    for width in (80, 100):
        text = printed(plan, width)
        assert not re.search(r"\bNone\b|\bnan\b|…", text)
        assert max(map(len, text.splitlines())) <= width


def test_the_answer_comes_first_everywhere_and_all_sections_follow_in_order() -> None:
    plan = content()
    titles = (
        "Capacity against max_num_seqs",
        "Chance to pass",
        "Throughput and concurrency against the rate",
        "Latency against the rate",
        "Throughput against latency",
        "Memory and preemptions against the rate",
        "What binds",
        "Half the load, and double",
        "GPUs for the target rate",
        "Cost",
        "Sensitivity",
        "Engine command",
        "What the words mean",
        "Provenance",
    )
    assert tuple(re.findall(r"<h2>([^<]*)</h2>", page_of("whole"))) == titles
    for text in everywhere(plan):
        assert text.index(plan["answer"]) < text.index("calibrated") < text.index("Capacity against max_num_seqs")
    headings = re.findall(r"^## (.*)$", plan_markdown(plan), flags=re.M)
    assert headings == [title for title in titles if title in headings]


def test_numbers_of_points_loads_fleet_cost_and_sensitivity_are_told() -> None:
    for text in everywhere(content()):
        assert "Recommended: 64. The most is 8.1/s at max_num_seqs=128" in text
        assert "Knee: max_num_seqs 32" in text
        assert "Physical bound: 150 sequences" in text
        assert "8.00 requests/s (95 % interval 7.20 to 8.80)" in text
        assert re.search(r"64 \|? ?7\.20 \|? ?8\.00 \|? ?8\.80 \|? ?TPOT \|? ?no \|? ?0\.271 \|? ?recommended", text)
        assert "TPOT: a step with this many sequences takes longer than a token may." in text
        assert "target rate, 20.0 requests/s, spread over 3 replicas" in text
        assert "2 replicas missed the SLO when simulated: the 3rd replica buys 95 % confidence." in text
        assert re.search(r"verdict \|? ?accepted \|? ?accepted \|? ?refused", text)
        assert re.search(r"GPUs \|? ?4\b", text)
        assert re.search(r"meets the SLO \|? ?no \|? ?yes \|? ?yes", text)
        assert re.search(r"fleet at the target, with spares \|? ?20\.0 \|? ?4 \|? ?0\.434 \|? ?0\.145", text)
        assert re.search(r"block_size 32 \(not 16\) \|? ?0\.96 \|? ?0\.995 \|? ?1\.03 \|? ?no clear effect", text)
        assert "carries more" in text
        assert "carries less" in text
        assert "policy sjf has no flag" in text


def test_simulated_fleets_name_the_replicas_that_they_lose() -> None:
    page, markdown, _ = everywhere(content())
    for text in (page, markdown):
        assert re.search(r"2 replicas \|? ?3 replicas \|? ?4 replicas, 1 lost halfway", text)
    for text in everywhere(content()):
        assert "fails when half of the requests have come" in text
    counted = content()
    counted["fleet"]["checks"] = []
    for text in everywhere(counted):
        assert "The fleet is not simulated" in text
        assert "lost" not in text


def test_provenance_names_scenario_profile_seed_length_and_version() -> None:
    for text in everywhere(content())[:2]:
        for fact in ("one-gpu", "cafe" * 16, "seed", "400 requests", "1,600", "simkit 9.8.7", "16, 32, 64, 128"):
            assert fact in text
        assert "price_per_gpu_hour: 2.0" in text


def test_an_slo_out_of_reach_says_what_binds_and_shows_no_recommendation() -> None:
    plan = unreachable()
    for text in everywhere(plan):
        assert "The SLO cannot be met at any setting" in text
        assert "What binds: TTFT" in text
        assert "No capacity, no rate passes: 16, 32." in text
        assert "SLO not met" in text
        assert "Recommended:" not in text
        assert "Engine command" not in text
    assert "<svg" not in page_of("unreachable")


def test_what_was_not_asked_or_not_given_is_left_out_and_said() -> None:
    for text in everywhere(VARIANTS["no price, no target"]):
        assert "Cost is left out: the scenario gives no hardware.price_per_gpu_hour." in text
        assert "a million output tokens" not in text
        assert "GPUs for the target rate" not in text
        assert "the scenario's own rate, 6.00 requests/s" in text
    unpriced = VARIANTS["no price, no target"] | {"points": [point(16, 3.0) | {"cost": None}]}
    assert not any("Cost: per million" in text for text in everywhere(unpriced))


def test_few_combinations_share_axes_and_many_get_a_panel_each() -> None:
    two, many = page_of("two lines"), page_of("panels")
    for page, blocks in ((two, (8, 16)), (many, (1, 2, 4, 8, 16, 32, 64))):
        drawn = re.search(r'<svg[^>]*aria-label="Capacity against max_num_seqs".*?</svg>', page, flags=re.S)
        assert drawn is not None
        for block in blocks:
            assert re.search(rf">block_size {block}<", drawn[0])
    assert "One line for each combination" in two
    assert "One panel for each combination" in many
    for text in everywhere(VARIANTS["two lines"]):
        assert "max_num_seqs=64,block_size=8" in text.replace(", ", ",")
        assert "Knee: not within the grid" in text


def test_points_of_different_sizes_are_compared_by_gpu() -> None:
    points = [point(16, 3.0), point(16, 6.2, replicas=2) | {"gpus": 2, "replicas": 2, "per_gpu_per_s": 3.1}]
    plan = content(points=points, axes={SLOTS: [16], "replicas": [1, 2]})
    for text in everywhere(plan):
        assert "a GPU [1/s]" in text or "a GPU" in text
        assert "3.10" in text
    assert "capacity a GPU [requests/s]" in render_plan(plan)


def test_failed_points_stand_apart_with_their_reason() -> None:
    message = "engine.block_size: expected > 0, got <b>-1</b> | or more"
    plan = content(failed={"block_size=-1": {"settings": {"engine.block_size": -1}, "message": message}})
    for text in everywhere(plan):
        assert "Failed points" in text
        assert message in text
    assert "<b>-1" not in words_of_page(plan)
    assert "\\<b>-1\\</b> \\| or more" in plan_markdown(plan)


def test_a_p99_from_too_few_requests_is_marked_wherever_it_stands() -> None:
    plan = content()
    plan["run_length"] |= {"too_few": True, "measured_requests": 320}
    for text in everywhere(plan):
        assert "A replication measured 320 requests; a p99 needs 1,000." in text
        assert "TTFT [ms] p99 (too few)" in text
        assert not re.search(r"T[TP][FO]T \[ms\] p99(?! \(too few\))", text)
    assert re.search(r"<text[^>]*>p99 \(too few\)</text>", render_plan(plan))
    assert "p99 (too few)" not in page_of("whole")


def test_a_soft_limit_is_said_and_its_curve_printed() -> None:
    for text in everywhere(VARIANTS["soft"]):
        assert "soft limit" in text
        assert "falls from 0.9 at 6.00 to 0.1 at 9.00 requests/s, over 50.0 % in rate" in text
        assert "this is a soft limit" in text
    hard = content()
    assert "not a soft limit" in printed(hard)
    assert "Above 7.52/s: 0.8, 7.84/s: 0.6, 8/s: 0.4, 8.24/s: 0.2, 8.48/s: 0." in printed(hard, 200)


def test_a_low_rate_that_fails_below_the_capacity_is_no_secret() -> None:
    plan = content()
    plan["curve"][0]["meets"] = False
    for text in everywhere(plan):
        assert "Runs at 2.00 requests/s miss the SLO, though a higher rate meets it." in text
    assert "low rates miss it" not in printed(content())


HELD = (
    "Served again at {} requests/s, 4 runs of fresh customers 10 times as long as those of the search (64,000 measured "
    "requests): every objective held."
)


def labels(plan: Mapping[str, Any]) -> dict[str, Badge]:
    return {badge.label: badge for badge in plan_words.badges(plan)}


def test_an_answer_that_was_served_again_says_so() -> None:
    for text in everywhere(content()):
        assert text.count(HELD.format("7.20")) == 2  # beside the answer, and with the chance to pass
        assert "requests arrive for 250 s, 12.5 times the p99 of E2E." in text
    assert labels(content())["sustained"].kind == "good"
    assert not {"moved", "not levelled off", "finite load"} & set(labels(content()))


def test_an_answer_that_moved_says_from_where_and_ends_with_the_rate_that_it_rests_on() -> None:
    """Seven rates: the fall ends at 4 requests/s, and of those between it and 6 the highest that held is 5."""
    plan = content()
    rates = [(6.9, 0), (6.6, 0), (6.0, 3), (4.0, 4), (5.0, 4), (5.5, 2)]
    plan["recommended"]["confirmation"] = confirmation(8.0, *(served(rate, held) for rate, held in rates))
    for text in everywhere(plan):
        assert (
            "The search alone said 8.00 requests/s (95 % interval 7.20 to 8.80); at 7.20 requests/s 1 of 4 long runs "
            "held, so the answer moved." in text
        )
        assert "3 of 4 held, all together would." in text
        assert HELD.format("4.00") in text
    assert labels(plan)["moved"].kind == "warn"
    assert labels(plan)["sustained"].text == HELD.format("5.00")
    assert plan_choice.confirm_texts(plan["recommended"])[-1] == HELD.format("5.00")
    assert len(plan_choice.confirm_texts(plan["recommended"])) == 7


def test_a_load_with_an_end_is_never_called_sustained() -> None:
    batch = content(run_length=length(finite=True, num_requests=500))
    batch["recommended"] |= {"sustained": False, "run_length": batch["run_length"]}
    batch["recommended"]["confirmation"] |= {"times": 1.0, "served": [served(7.2, 1, 1)]}
    for text in everywhere(batch):
        assert "The load is a batch of 500 requests, from an empty engine to an empty one" in text
        assert "1 run of the same customers again as long as those of the search" in text
    assert {"sustained", "not levelled off"}.isdisjoint(labels(batch))
    course = content()
    course["recommended"]["sustained"] = False
    assert "The course of arrivals has an end of its own" in labels(course)["finite load"].text


def test_a_system_that_still_fills_is_never_called_sustained() -> None:
    for name, words in plan_choice.FILLS.items():
        plan = content()
        plan["recommended"] |= {"sustained": False, "rising": name}
        for text in everywhere(plan):
            assert f"{words} still rose at the end of the longest runs" in text
        assert {"sustained", "finite load"}.isdisjoint(labels(plan))
    assert set(plan_choice.FILLS) == set(run_length.SERIES)


def test_an_interval_from_parts_of_a_run_is_not_one_of_replications() -> None:
    plan = content()
    plan["recommended"]["capacity"] |= {"interval": "parts", "replications": 1}
    assert all("8.00 requests/s (95 % interval 7.20 to 8.80, from parts of the run)" in t for t in everywhere(plan))
    plan["recommended"]["capacity"] |= {"interval": "none"}
    for text in everywhere(plan):
        assert "8.00 requests/s (no interval: every replication is the same run)" in text


def test_calibration_and_extrapolation_are_labelled() -> None:
    assert labels(content())["calibrated"].kind == "good"
    assert "14.0 % of GPU time at 7.00 requests/s" in labels(content())["extrapolated"].text
    covered = content()
    for each in covered["curve"]:
        each["numbers"]["gpu.extrapolated.share"] = {"mean": 0.01, "ci95": 0.0}
    assert "extrapolated" not in {badge.label for badge in plan_words.badges(covered)}
    rough = plan_words.badges(content(latency_source="roofline of a100 (uncalibrated)", not_simulated=["engine.x"]))
    assert [badge.label for badge in rough] == ["uncalibrated", "sustained", "not simulated"]


def test_every_figure_has_units_and_a_legend() -> None:
    page = page_of("whole")
    drawings = dict(re.findall(r'<svg[^>]*aria-label="([^"]*)"(.*?)</svg>', page, flags=re.S))
    assert len(drawings) == sum(bool(section.figures) for section in plan_sections.report(VARIANTS["whole"]).sections)
    words = {
        "Capacity against max_num_seqs": ("max_num_seqs [sequences]", "capacity [requests/s]", "recommended", "knee",
                                          "physical bound", "limit: slots", "limit: KV blocks", "95 % interval"),
        "Chance to pass against the request rate": ("request rate [requests/s]", "share of replications that pass",
                                                    "its 95 % interval", "chance to pass"),
        "Throughput and concurrency against the request rate": ("finished [requests/s]", "slots (max_num_seqs)",
                                                                "running at once, mean [requests]", "undecided"),
        "TTFT and TPOT against the request rate": ("TTFT [ms]", "TPOT [ms]", "TTFT, SLO p99 ≤ 500 ms",
                                                   "TPOT, SLO p99 ≤ 50 ms",
                                                   "accepted", "undecided", "refused", "p50", "p95", "p99"),
        "Throughput against latency": ("output tokens/s a GPU", "TPOT p95 [ms]", "on the front", "not on it"),
        "KV memory in use and preemptions against the request rate": ("share of the pool", "mean", "peak",
                                                                      "per 1,000 finished requests"),
        "Sensitivity of the capacity to neighbouring settings": ("block_size 32 (not 16)", "interval without 1",
                                                                 "as the recommended point"),
    }  # fmt: skip
    for label, expected in words.items():
        for word in expected:
            assert f">{word}</text>" in drawings[label], (label, word)
    assert not re.search(r"#010203", page, flags=re.I)


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    slow, good, best, worse, tie = (100, 10, 1), (200, 12, 2), (300, 30, 3), (290, 40, 4), (200, 13, 5)
    assert front([worse, best, tie, slow, good]) == [slow, good, best]
    assert front([best]) == [best]


def test_the_command_can_be_pasted() -> None:
    assert f"\n{COMMAND}\n" in plan_markdown(content())
    assert f'<pre class="paste">{COMMAND}</pre>' in page_of("whole")
    quoted = "vllm serve 'a b/--c d' --max-num-seqs 64 --dtype bfloat16"
    for command in (COMMAND, quoted):
        lines = terminal.continued(command, 50)
        assert max(map(len, lines)) <= 50
        echoed = [
            subprocess.run(["sh", "-c", f"printf '<%s>' {text}"], capture_output=True, check=True, text=True).stdout
            for text in (command, "\n".join(lines))
        ]
        assert echoed[0] == echoed[1]


def finding() -> dict[str, Any]:
    before = {"ttft_ms.p99": 900.0, "num_preemptions": 12.0, "itl_ms.p99": None}
    proof = {"before": before, "after": before | {"ttft_ms.p99": 450.0}, "difference_ci95": None, "helps": True}
    share = {"name": "waiting share", "value": 0.31, "unit": "share", "threshold": {"relation": ">=", "value": 0.1}}
    return {
        "rule": "memory-limit",
        "severity": "warning",
        "diagnosis": "Requests wait while slots are free.",
        "evidence": [share, {"name": "steps", "value": 12.0, "unit": "steps", "threshold": None}],
        "judged_by": ["ttft_ms.p99"],
        "advice": {"text": "Raise the budget.", "settings": {"engine.max_num_batched_tokens": 4096}},
        "proof": proof | {"verdict": "helps"},
        "also_tried": [{"text": "Buy more.", "settings": {"replicas": 2}, "proof": None}],
    }


def test_the_doctors_findings_are_shown_with_evidence_advice_and_proof() -> None:
    examined = {"rate_per_s": 16.0, "findings": [finding()]}
    for text in everywhere(content(doctor=examined)):
        assert "One run of the recommended point at 16.0 requests/s" in text
        assert "memory-limit (warning): Requests wait while slots are free." in text
        assert "Raise the budget. Tried: engine.max_num_batched_tokens=4096 helps." in text
        assert "Buy more. Tried: replicas=2 not proven: no re-run was made." in text
    for text in everywhere(content(doctor=examined))[:2]:
        assert re.search(r"waiting share \|? ?31\.0 % \|? ?>= 10\.0 %", text)
        assert re.search(r"TTFT p99, ms \* \|? ?900 \|? ?450", text)
        assert "ITL p99" not in text
    for text in everywhere(content(doctor={"findings": []})):
        assert "nothing found" in text
    assert "What the doctor says" not in page_of("whole")


def test_definitions_quote_the_planners_thresholds() -> None:
    said = dict(plan_words.definitions())
    assert f"over more than {100 * (capacity.SOFT_SPREAD - 1):.0f} %" in said["Soft limit"]
    assert f"from {capacity.LIKELY} to {capacity.UNLIKELY}" in said["Soft limit"]
    assert f"less than {100 * (advise.KNEE_GAIN - 1):.0f} %" in said["Knee"]
    assert f"{offered_load.MIN_FOR_P99:,}" in said["Too few"]
    assert f"at least {100 * (MORE_HELPS - 1):.0f} %" in said["Limit: slots"]
    assert f"less than {100 * (MORE_HELPS - 1):.0f} %" in said["Limit: compute"]
    assert f"less than {100 * TAIL_QUEUED:.0f} %" in said["Limit: TTFT, E2E"]
    assert f"at least {100 * FULL_BUDGET:.0f} %" in said["Limit: token budget"]
    defined = " ".join(name for name in said if name.startswith("Limit"))
    assert all(name in defined for name in LIMITS)


def test_every_key_of_the_planners_evidence_has_words() -> None:
    from simkit.report.sections.plan import EVIDENCE

    assert set(WAITS) <= set(EVIDENCE)


def test_same_content_same_bytes_in_another_process() -> None:
    code = (
        "import json, sys; from simkit.report.render import html, markdown; from simkit.report.sections import plan\n"
        "found = json.load(sys.stdin); report = plan.report(found); title = f'simkit plan: {found[\"name\"]}'\n"
        "sys.stdout.buffer.write((html.render(report) + markdown.render(report, title)).encode())"
    )
    plan = json.loads(json.dumps(content()))
    made = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(plan).encode(),
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo"},
    )
    assert made.stdout == (page_of("whole") + plan_markdown(plan)).encode()
    assert plan_choice.differs(plan["sensitivity"][0]) == "no clear effect"
