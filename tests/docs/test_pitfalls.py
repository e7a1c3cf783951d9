"""Each pitfall scenario shows what its comment says: the arms are run as they ship and compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from served import as_asked

from simkit.api import Result
from simkit.scenario import apply_sets, load
from simkit.studies import doctor

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@cache
def arm(scenario: str, variant: str) -> Result:
    """The result of one variant of a scenario file."""
    loaded = load(SCENARIOS / f"{scenario}.yaml")
    return as_asked(apply_sets(loaded, loaded.variants[variant]))


def arms(scenario: str) -> Callable[[str], Result]:
    return lambda variant: arm(scenario, variant)


def tokens_per_s(result: Result) -> float:
    return float(result.summary["throughput"]["output_tokens_per_s"])


def p99(result: Result, metric: str) -> float:
    return float(result.summary[f"{metric}_ms"]["p99"])


def preempted_share(result: Result) -> float:
    return float((result.requests.num_preemptions > 0).mean())


def held_share(result: Result) -> float:
    """Of the KV memory that is allocated, the share that holds tokens."""
    return float(result.summary["kv"]["used"]["share_of_allocated"])


# --- KV too small -----------------------------------------------------------------------------------------------------
def test_a_pool_that_is_too_small_makes_a_preemption_storm() -> None:
    storm = arms("kv-too-small")("storm")
    assert preempted_share(storm) > 0.8
    assert storm.summary["num_preemptions"] > 3 * len(storm.requests)
    assert storm.requests.num_preemptions.max() >= 10


def test_fewer_slots_cure_the_storm_and_cost_next_to_nothing() -> None:
    of = arms("kv-too-small")
    storm, cured = of("storm"), of("slots-32")
    assert cured.summary["num_preemptions"] < storm.summary["num_preemptions"] / 4
    assert p99(cured, "tpot") < p99(storm, "tpot") / 2
    assert tokens_per_s(cured) > 0.95 * tokens_per_s(storm)


def test_still_fewer_slots_end_preemption_at_a_price() -> None:
    of = arms("kv-too-small")
    calm = of("slots-28")
    assert preempted_share(calm) < 0.03
    assert 0.85 * tokens_per_s(of("storm")) < tokens_per_s(calm) < 0.97 * tokens_per_s(of("storm"))


def test_a_storm_hides_behind_a_good_ttft() -> None:
    of = arms("kv-too-small")
    storm, cured = (of(name).summary["ttft_ms"]["p50"] for name in ("storm", "slots-32"))
    assert storm < cured / 2


def test_twice_the_room_is_worth_more_than_any_setting() -> None:
    of = arms("kv-too-small")
    storm, roomy = of("storm"), of("fp8-kv")
    assert roomy.summary["kv"]["capacity_tokens"] == pytest.approx(2 * storm.summary["kv"]["capacity_tokens"], rel=0.01)
    assert tokens_per_s(roomy) > 1.5 * tokens_per_s(storm)


# --- recompute or swap ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("length", "better", "worse"), [
    ("short", "recompute", "swap"),
    ("long", "swap", "recompute"),
])  # fmt: skip
def test_recompute_wins_for_short_sequences_and_swap_for_long_ones(length: str, better: str, worse: str) -> None:
    of = arms("recompute-or-swap")
    first, second = of(f"{length}-{better}"), of(f"{length}-{worse}")
    assert tokens_per_s(first) > 1.01 * tokens_per_s(second)
    events = [result.summary["num_preemptions"] for result in (first, second)]
    assert events[0] == pytest.approx(events[1], rel=0.02), "the arms differ in what a preemption costs"
    assert min(events) > len(first.requests)


@pytest.mark.parametrize(("length", "better"), [("short", "recompute"), ("long", "swap")])
def test_auto_does_as_the_better_one(length: str, better: str) -> None:
    of = arms("recompute-or-swap")
    assert tokens_per_s(of(f"{length}-auto")) == pytest.approx(tokens_per_s(of(f"{length}-{better}")), rel=0.002)


def test_swapping_long_sequences_halves_the_worst_gaps() -> None:
    of = arms("recompute-or-swap")
    assert p99(of("long-swap"), "itl") < 0.6 * p99(of("long-recompute"), "itl")


# --- shared system prompt ---------------------------------------------------------------------------------------------
def test_caching_a_shared_prompt_turns_a_saturated_gpu_into_an_idle_one() -> None:
    of = arms("shared-system-prompt")
    off, on = of("caching-off"), of("caching-on")
    assert off.summary["saturated"]
    assert not on.summary["saturated"]
    assert p99(on, "ttft") < p99(off, "ttft") / 20
    assert on.summary["kv"]["utilization"] < off.summary["kv"]["utilization"] / 5
    assert off.summary["prefix_cache_hit_rate"] is None
    assert on.summary["prefix_cache_hit_rate"] == pytest.approx(1600 / 2000, abs=0.01)


def test_many_system_prompts_evict_each_other() -> None:
    of = arms("shared-system-prompt")
    many = of("200-prompts").summary
    assert many["kv"]["capacity_tokens"] < 200 * 1600 / 1.5
    assert many["prefix_cache_hit_rate"] < 0.5 * of("caching-on").summary["prefix_cache_hit_rate"]


def test_one_token_less_loses_a_whole_block() -> None:
    of = arms("shared-system-prompt")
    whole, cut = (of(name).requests for name in ("caching-on", "1599-tokens"))
    assert whole.cached_tokens.max() == 1600
    assert cut.cached_tokens.max() == 1584


# --- priority mix -----------------------------------------------------------------------------------------------------
def ttft_ms(result: Result, priority: int, percent: float) -> float:
    """A percentile of the time to first token of one class."""
    requests = result.requests[result.requests.priority == priority]
    return float(((requests.first_token_ns - requests.arrival_ns) / 1e6).quantile(percent / 100))


def test_the_urgent_few_overtake_and_the_rest_hardly_notice() -> None:
    of = arms("priority-mix")
    fcfs, priority = of("fcfs"), of("priority")
    assert ttft_ms(fcfs, 0, 99) == pytest.approx(ttft_ms(fcfs, 1, 99), rel=0.2), "fcfs does not look at priorities"
    assert ttft_ms(priority, 0, 99) < ttft_ms(fcfs, 0, 99) / 10
    assert ttft_ms(priority, 0, 99) < 1000
    assert ttft_ms(priority, 1, 50) < 1.2 * ttft_ms(fcfs, 1, 50)
    assert tokens_per_s(priority) == pytest.approx(tokens_per_s(fcfs), rel=0.02)


def test_when_everybody_is_urgent_nobody_is() -> None:
    of = arms("priority-mix")
    urgent = [ttft_ms(of(name), 0, 95) for name in ("priority", "half-urgent", "mostly-urgent")]
    rest = [ttft_ms(of(name), 1, 95) for name in ("priority", "half-urgent", "mostly-urgent")]
    assert urgent == sorted(urgent)
    assert urgent[-1] > 4 * urgent[0]
    assert rest == sorted(rest)
    assert rest[-1] > 2 * rest[0]


# --- block size -------------------------------------------------------------------------------------------------------
def test_larger_blocks_waste_more() -> None:
    of = arms("block-size")
    held = [held_share(of(f"block-{size}")) for size in (1, 16, 128)]
    assert held[0] == pytest.approx(1.0, abs=1e-9)
    assert 0.90 < held[1] < 0.97
    assert held[2] < 0.80


def test_only_whole_blocks_are_shared() -> None:
    of = arms("block-size")
    cached = [of(f"block-{size}").requests.cached_tokens.max() for size in (1, 16, 128)]
    assert cached == [120, 112, 0]


def test_waste_and_missed_sharing_cost_throughput() -> None:
    of = arms("block-size")
    assert tokens_per_s(of("block-128")) < 0.8 * tokens_per_s(of("block-16"))
    assert of("block-128").summary["concurrency_mean"] < 0.8 * of("block-16").summary["concurrency_mean"]


# --- max_num_seqs to the limit ----------------------------------------------------------------------------------------
def test_more_slots_bring_throughput_until_memory_is_full() -> None:
    of = arms("max-num-seqs-limit")
    few, some, many, limit = (tokens_per_s(of(f"users-{n}")) for n in (8, 32, 96, 256))
    assert some > 3 * few
    assert many > 1.7 * some
    assert limit < 1.02 * many, "beyond the bend slots bring nothing"


def test_the_tail_pays_for_every_slot() -> None:
    of = arms("max-num-seqs-limit")
    for metric in ("ttft", "tpot"):
        tail = [p99(of(f"users-{n}"), metric) for n in (8, 32, 96, 256)]
        assert tail == sorted(tail)
    assert p99(of("users-256"), "ttft") > 5 * p99(of("users-96"), "ttft")
    assert p99(of("users-256"), "tpot") > 1.15 * p99(of("users-96"), "tpot")
    assert preempted_share(of("users-8")) == 0
    assert preempted_share(of("users-256")) > 0.2


# --- mean hides the tail ----------------------------------------------------------------------------------------------
def ttft(result: Result, stat: str) -> float:
    return float(result.summary["ttft_ms"][stat])


def objective(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = result.summary["slo"]["ttft_ms"]["p99"]
    return found


def test_bursts_hide_behind_means_that_look_fine() -> None:
    burst = arms("mean-hides-the-tail")("slots-32")
    assert ttft(burst, "mean") < 0.3 * objective(burst)["target_ms"]
    assert ttft(burst, "p99") > 1.5 * objective(burst)["target_ms"]
    assert objective(burst)["met"] is False
    assert 1 - objective(burst)["share_within"] == pytest.approx(1 / 15, abs=0.01)
    assert burst.summary["concurrency_mean"] < 0.4 * 32, "on average two thirds of the slots are free"


def test_slots_for_the_burst_cost_next_to_nothing() -> None:
    of = arms("mean-hides-the-tail")
    burst, roomy = of("slots-32"), of("slots-128")
    assert objective(roomy)["met"]
    assert ttft(roomy, "p99") < ttft(burst, "p99") / 4
    assert ttft(roomy, "mean") > ttft(burst, "mean") / 2
    assert 0 < p99(roomy, "tpot") - p99(burst, "tpot") < 5


def test_without_bursts_few_slots_are_plenty() -> None:
    smooth = arms("mean-hides-the-tail")("smooth")
    assert objective(smooth)["met"]
    assert ttft(smooth, "p99") < 4 * ttft(smooth, "mean")


# --- throughput is not concurrency ------------------------------------------------------------------------------------
def test_users_beyond_a_few_bring_latency_and_no_throughput() -> None:
    of = arms("throughput-is-not-concurrency")
    few, some, many, crowd = (of(f"users-{n}") for n in (4, 16, 64, 256))
    assert tokens_per_s(some) > 1.3 * tokens_per_s(few)
    assert tokens_per_s(crowd) < 1.04 * tokens_per_s(some), "sixteen times the users"
    latency = [result.summary["e2e_ms"]["mean"] for result in (few, some, many, crowd)]
    assert latency[3] > 12 * latency[1]
    assert latency == sorted(latency)


def test_concurrency_stops_long_before_the_users_do() -> None:
    of = arms("throughput-is-not-concurrency")
    many, crowd = (of(f"users-{n}").summary["concurrency_mean"] for n in (64, 256))
    assert 25 < many < 30
    assert crowd == pytest.approx(many, rel=0.01)
    assert of("users-256").summary["kv"]["utilization"] < 0.25, "it is not memory"


def test_users_are_throughput_times_latency() -> None:
    """Little's law, for clients without a pause; the start and the end of the run are not in balance."""
    result = arms("throughput-is-not-concurrency")("users-16")
    summary = result.summary
    users = summary["throughput"]["requests_per_s"] * summary["e2e_ms"]["mean"] / 1000
    assert users == pytest.approx(16, rel=0.03)


# --- the doctor finds each of them, and what it advises helps ---------------------------------------------------------
@cache
def finding_of(scenario: str, variant: str, rule: str) -> dict[str, Any]:
    """What a rule finds in one arm, every advice proven by running it."""
    result = arm(scenario, variant)
    found = doctor.examine(doctor.rebuild(result.manifest, "manifest"), result, only=(rule,))
    assert not found["remade"], "a run of this very version is compared as it is"
    (finding,) = found["findings"]
    return dict(finding)


def entries(finding: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**finding["advice"], "proof": finding["proof"]}, *finding["also_tried"]]


PITFALLS = [
    ("block-size", "block-128", "block-waste", {"engine.block_size": 16}),
    ("block-size", "block-128", "prefix-cache", {"engine.block_size": 16}),
    ("kv-too-small", "storm", "preemptions", {"engine.max_num_seqs": 33}),
    ("recompute-or-swap", "short-swap", "preemption-kind", {"engine.preemption": "recompute"}),
    ("recompute-or-swap", "long-recompute", "preemption-kind", {"engine.preemption": "swap"}),
    ("max-num-seqs-limit", "users-256", "slots-beyond-memory", {"engine.max_num_seqs": 98}),
    (
        "long-prompt-stall", "not-chunked", "prefill-stall",
        {"engine.enable_chunked_prefill": True, "engine.max_num_batched_tokens": 2048},
    ),
    ("shared-system-prompt", "caching-off", "prefix-cache", {"engine.enable_prefix_caching": True}),
    ("mean-hides-the-tail", "slots-32", "mean-hides-tail", {"engine.max_num_seqs": 64}),
    (
        "throughput-is-not-concurrency", "users-64", "concurrency-misread",
        {"workload.arrivals.concurrency": 20},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "variant", "rule", "settings"), PITFALLS)
def test_the_doctor_finds_the_pitfall_and_its_advice_helps(
    scenario: str, variant: str, rule: str, settings: dict[str, Any]
) -> None:
    finding = finding_of(scenario, variant, rule)
    assert finding["severity"] != "note"
    assert finding["proof"]["helps"], "the best advice comes first"
    tried = {str(sorted(entry["settings"].items())): entry["proof"] for entry in entries(finding) if entry["settings"]}
    # How much memory there is decides how many slots fit, so those are compared with a margin.
    close = [proof for text, proof in tried.items() if _alike(text, settings)]
    assert close, f"{settings} is not among {list(tried)}"
    assert close[0]["helps"], close[0]["verdict"]
    leading = finding["judged_by"][0]
    assert close[0]["before"][leading] != close[0]["after"][leading]


def _alike(text: str, settings: dict[str, Any]) -> bool:
    for key, value in settings.items():
        if key not in text:
            return False
        found = text.split(f"('{key}', ")[1].split(")")[0].strip("'")
        exact = not isinstance(value, int) or isinstance(value, bool)
        if exact and found != str(value):
            return False
        if not exact and abs(int(found) - value) > 0.1 * value:
            return False
    return True


def test_the_price_of_an_advice_is_told() -> None:
    """Fewer slots end the storm, and the queue is outside then: whoever comes last waits longer for his first token."""
    finding = finding_of("kv-too-small", "storm", "slots-beyond-memory")
    for entry in entries(finding):
        assert entry["proof"]["helps"]
        assert "makes" in entry["proof"]["verdict"]
        assert "TTFT p99" in entry["proof"]["verdict"]


def test_preemptions_cost_work_that_is_done_again_and_time_in_which_nothing_is() -> None:
    storm = arm("kv-too-small", "storm")
    (finding,) = doctor.examine(None, storm, only=("preemptions",))["findings"]
    shown = {item["name"]: item["value"] for item in finding["evidence"]}
    again = shown["tokens computed again, over prompt tokens"]
    assert again == pytest.approx(11, abs=1)
    assert int(storm.steps.prefill_tokens.sum()) == pytest.approx((1 + again) * storm.requests.prompt_tokens.sum())
    running = doctor.facts_of(storm).running_mean
    assert running == pytest.approx(31, abs=1)
    assert storm.summary["concurrency_mean"] == pytest.approx(55, abs=1)


def test_advice_that_does_not_help_is_shown_as_such() -> None:
    finding = finding_of("recompute-or-swap", "long-recompute", "preemptions")
    verdicts = [entry["proof"]["verdict"] for entry in entries(finding) if entry["proof"]]
    assert verdicts[0].startswith("helps")
    assert any(verdict.startswith("does not help") for verdict in verdicts)


@pytest.mark.parametrize(
    ("scenario", "variant"),
    [
        ("block-size", "block-16"),
        ("shared-system-prompt", "caching-on"),
        ("shared-system-prompt", "1599-tokens"),
        ("max-num-seqs-limit", "users-8"),
        ("mean-hides-the-tail", "slots-128"),
    ],
)
def test_the_cured_arm_is_healthy(scenario: str, variant: str) -> None:
    found = doctor.examine(None, arm(scenario, variant))["findings"]
    assert [finding["rule"] for finding in found if finding["severity"] != "note"] == []


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_first_scenario_only_has_room_left(seed: int) -> None:
    result = as_asked(load(SCENARIOS / "llama3-8b-a100.yaml", [f"seed={seed}"]))
    assert [finding["rule"] for finding in doctor.examine(None, result)["findings"]] == ["room-left"]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("scenario", "variant", "rule", "settings"), PITFALLS)
def test_the_pitfall_does_not_hang_on_one_seed(
    scenario: str, variant: str, rule: str, settings: dict[str, Any], seed: int
) -> None:
    loaded = load(SCENARIOS / f"{scenario}.yaml", [f"seed={seed}"])
    found = doctor.examine(None, as_asked(apply_sets(loaded, loaded.variants[variant])))["findings"]
    assert rule in [finding["rule"] for finding in found]


# --- mild pressure ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [0, 3])
def test_mild_pressure_is_as_mild_as_in_a_real_run(seed: int) -> None:
    """A real run of 19,801 requests: 7.4 % preempted, at most 4 times, 98.5 % of preempting steps took one victim."""
    result = as_asked(load(SCENARIOS / "mild-pressure.yaml", [f"seed={seed}"]))
    assert 0.05 <= preempted_share(result) <= 0.10
    assert result.requests.num_preemptions.max() <= 4
    victims = result.steps.num_preemptions[result.steps.num_preemptions > 0]
    assert (victims == 1).mean() > 0.95


def test_mild_pressure_uses_the_defaults_of_the_engine() -> None:
    assert load(SCENARIOS / "mild-pressure.yaml").engine.model_fields_set == set()
