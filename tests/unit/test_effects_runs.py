"""Effects in whole runs: the path of a request, what is found again after a preemption, and how users switch them."""

from __future__ import annotations

from typing import Any

import pytest
from served import as_asked

from simkit import api
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.latency.effects import EFFECTS, OFF
from simkit.report.read.run import load_run
from simkit.report.sections.runs import provenance
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets, from_dict, loads, parse_axes, template
from simkit.studies.compare import compare
from simkit.types import StepShapes
from simkit.validation.runs.result import arms

PATH_US, PATH_NS = 12_345.678, 12_345_678
TIMES = ("first_scheduled_ns", "first_token_ns", "last_token_ns", "generated_first_ns", "generated_last_ns")


def scenario(sets: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    base: dict[str, Any] = {
        "name": "small",
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"max_num_seqs": 8, "max_model_len": 4096},
        "workload": {
            "num_requests": 60,
            "arrivals": {"process": "poisson", "rate_per_s": 8},
            "prompt_tokens": {"dist": "uniform", "low": 20, "high": 900},
            "output_tokens": {"dist": "uniform", "low": 1, "high": 90},
        }
        | workload,
    }
    return apply_sets(from_dict(base), sets or {})


def with_path(sets: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    return scenario({"latency.host.first_token_us": PATH_US} | (sets or {}), **workload)


def run(asked: Scenario) -> Result:
    """A run whose steps were priced many at once, the same as one by one; its invariants were checked on the way."""
    result = as_asked(asked)
    single = as_asked(asked, single_step=True)
    assert all(result.tables[name].equals(single.tables[name]) for name in result.tables)
    assert result.summary == single.summary
    return result


# The path of a request to the engine and back.


@pytest.mark.parametrize(
    "sets", [{}, {"engine.enable_prefix_caching": False}, {"engine.batching": "static"}, {"replicas": 2}], ids=str
)
def test_the_path_shifts_everybody_under_open_loop(sets: dict[str, Any]) -> None:
    before, after = run(scenario(sets)), run(with_path(sets))
    assert (before.requests["arrival_ns"] == after.requests["arrival_ns"]).all()
    for name in TIMES:
        assert (after.requests[name] - before.requests[name] == PATH_NS).all(), name
    shifted = after.steps.copy()
    for name in (column for column in shifted.columns if column.startswith("t_")):
        shifted[name] -= PATH_NS
    assert shifted.equals(before.steps)
    for metric in ("ttft_ms", "e2e_ms"):
        for stat in ("mean", "p50", "p99"):
            change = after.summary[metric][stat] - before.summary[metric][stat]
            assert change == pytest.approx(PATH_NS / 1e6, abs=1e-6)
    for same in ("tpot_ms", "itl_ms", "num_steps", "num_preemptions"):
        assert after.summary[same] == before.summary[same]


@pytest.mark.parametrize("think_s", [0, 0.05])
def test_clients_of_a_closed_loop_come_back_later(think_s: float) -> None:
    """One client: a cycle is thinking, the path and the service, to the nanosecond."""
    closed = {"process": "closed_loop", "concurrency": 1, "think_time_s": think_s}
    fixed = {"prompt_tokens": {"dist": "fixed", "value": 100}, "output_tokens": {"dist": "fixed", "value": 10}}
    off = {"engine.enable_prefix_caching": False}
    cycles = []
    for asked in (scenario(off, arrivals=closed, **fixed), with_path(off, arrivals=closed, **fixed)):
        requests = run(asked).requests
        assert requests["arrival_ns"].iloc[0] == 0
        gaps = requests["arrival_ns"].diff().dropna().unique()
        assert len(gaps) == 1
        cycles.append(int(gaps[0]))
    assert cycles[1] - cycles[0] == PATH_NS


def test_throughput_of_a_closed_loop_falls_and_littles_law_holds() -> None:
    closed = {"process": "closed_loop", "concurrency": 8, "think_time_s": 0}
    before, after = (run(make(arrivals=closed, num_requests=200, finite=True)) for make in (scenario, with_path))
    rates = [result.summary["throughput"]["requests_per_s"] for result in (before, after)]
    assert rates[1] < rates[0]
    for result in (before, after):
        # All clients are somewhere between sending and receiving: N = rate x time, but for the last to leave.
        span_s, e2e_s = result.summary["makespan_s"], result.requests["last_token_ns"] - result.requests["arrival_ns"]
        assert e2e_s.sum() / 1e9 / span_s == pytest.approx(8, rel=0.05)
        held_s = (result.requests["last_token_ns"] - result.requests["first_scheduled_ns"]).sum() / 1e9
        assert result.summary["concurrency_mean"] == pytest.approx(held_s / span_s, rel=0.02)


def test_patience_counts_from_the_client() -> None:
    """A client with a path waits as long for the engine as a less patient one without."""
    crowd = {"arrivals": {"process": "all_at_once"}}
    far = run(with_path(timeout_s=0.9, **crowd))
    near = run(scenario(timeout_s=0.9 - PATH_NS / 1e9, **crowd))
    assert 5 < far.summary["num_requests"]["aborted"] < 55
    assert (far.requests["status"] == near.requests["status"]).all()
    for name in TIMES:
        shifts = (far.requests[name] - near.requests[name]).dropna()
        assert len(shifts)
        assert (shifts == PATH_NS).all()
    # Who gives up while the request is still on its way is gone when it comes.
    late = run(scenario({"latency.host.first_token_us": 1e6}, timeout_s=0.5))
    assert late.summary["num_requests"]["aborted"] == 60
    assert late.summary["num_requests"]["finished"] == 0


@pytest.mark.parametrize("warmup", [{"seconds": 3}, {"requests": 20}, "mser5"], ids=str)
@pytest.mark.parametrize("process", ["poisson", "closed_loop"])
def test_warm_up_counts_from_the_client(warmup: Any, process: str) -> None:
    arrivals = {"process": process, "rate_per_s": 8} if process == "poisson" else {
        "process": process, "concurrency": 4, "think_time_s": 0.1
    }  # fmt: skip
    result = run(with_path({"warmup": warmup}, arrivals=arrivals))
    requests = result.requests
    if isinstance(warmup, dict) and "seconds" in warmup:
        assert (requests["measured"].astype(bool) == (requests["arrival_ns"] >= 3 * 10**9)).all()
    if process == "poisson":
        before = run(scenario({"warmup": warmup}, arrivals=arrivals)).requests
        assert (before["measured"] == requests["measured"]).all()
    assert 0 < requests["measured"].sum() <= 60


@pytest.mark.parametrize(
    "more",
    [
        {"sets": {"replicas": 2, "failures": [{"replica": 0, "at_s": 2, "for_s": 3}]}},
        {"sets": {"replicas": 3, "router": "least_outstanding", "engine.policy": "sjf"}, "queue_limit": 2},
        {"prefix": {"groups": 3, "tokens": 64}, "samples": 2},
        {"num_requests": None, "duration_s": 5, "timeout_s": 2},
    ],
    ids=str,
)
def test_a_path_holds_with_failures_queues_samples_and_durations(more: dict[str, Any]) -> None:
    result = run(with_path(**more))
    served = result.requests.dropna(subset=["first_scheduled_ns"])
    assert len(served) > 20
    assert (served["first_scheduled_ns"] - served["arrival_ns"] >= PATH_NS).all()
    if "duration_s" in more:  # clients send until then
        assert served["arrival_ns"].max() < 5 * 10**9


def test_a_path_that_is_switched_off_takes_no_time() -> None:
    plain, off = as_asked(scenario()), as_asked(with_path({"latency.without": ["first_token"]}))
    assert all(plain.tables[name].equals(off.tables[name]) for name in plain.tables)
    assert off.manifest["latency_effects"]["first_token"] == "off"
    assert as_asked(with_path()).manifest["latency_effects"]["first_token"] == "scenario"


# What is found again after a preemption.


@pytest.mark.parametrize("profile", ["auto", "unit"])
@pytest.mark.parametrize("groups", [None, {"groups": 2, "tokens": 64}])
def test_who_was_preempted_computes_everything_again(profile: str, groups: Any) -> None:
    short = {"latency.profile": profile, "engine.num_gpu_blocks": 120, "engine.max_model_len": 600}
    crowd: dict[str, Any] = {
        "num_requests": 40,
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"dist": "uniform", "low": 80, "high": 500},
        "prefix": groups,
    }
    again, never = (run(scenario(short | {"latency.without": off}, **crowd)) for off in ([], ["prefix_rehits"]))
    assert min(result.summary["num_preemptions"] for result in (again, never)) > 0
    computed = [int(result.steps["prefill_tokens"].sum()) for result in (again, never)]
    assert computed[1] > computed[0]
    sources = [result.manifest["latency_effects"]["prefix_rehits"] for result in (again, never)]
    assert sources == ["scheduler rules", "off"]


def test_without_preemptions_nothing_is_to_be_found_again() -> None:
    plain, never = run(scenario()), run(scenario({"latency.without": ["prefix_rehits"]}))
    assert plain.summary["num_preemptions"] == 0
    assert all(plain.tables[name].equals(never.tables[name]) for name in plain.tables)


@pytest.mark.parametrize(
    "sets", [{"engine.enable_prefix_caching": False}, {"engine.kv_allocator": "contiguous"}], ids=str
)
def test_without_a_prefix_cache_there_is_no_such_effect(sets: dict[str, Any]) -> None:
    assert set_up(scenario(sets)).effects["prefix_rehits"].text == "none: no prefix cache"


# How users switch effects.


def test_every_effect_has_a_source_in_the_manifest_and_in_the_report(tmp_path: Any) -> None:
    result = as_asked(scenario({"latency.without": ["host"], "latency.host.per_seq_us": 3}))
    sources = result.manifest["latency_effects"]
    assert set(sources) == set(EFFECTS)
    assert sources["host"] == "off"
    assert sources["graph_padding"] == sources["overlap"] == "scheduler rules"
    api.write(result, tmp_path / "run")
    facts = {fact.title: dict(fact.pairs) for fact in provenance([load_run("run", tmp_path / "run")]).facts}
    assert facts["Effects in the latency, and their sources"] == sources


def test_settings_of_the_command_line_sweeps_and_variants_are_understood() -> None:
    text = template()
    asked = loads(text, ["latency.without=[host, overlap]", "latency.host.fixed_us=0"])
    assert asked.latency.without == ["host", "overlap"]
    assert asked.latency.host is not None
    assert asked.latency.host.model_dump(exclude_none=True) == {"fixed_us": 0}
    axes = parse_axes(scenario(), ["latency.without=[],[host],[host,overlap]", "latency.host.per_seq_us=0,50"])
    assert axes == {"latency.without": [[], ["host"], ["host", "overlap"]], "latency.host.per_seq_us": [0, 50]}
    slow = {"engine.async_scheduling": False, "engine.batching": "continuous"}
    varied = from_dict(
        scenario(slow).to_dict()
        | {"variants": {"no-host": {"latency.without": ["host"]}, "slow": {"latency.host": {"fixed_us": 9000}}}}
    )
    means = {name: arm.summary["tpot_ms"]["mean"] for name, arm in compare(varied).arms.items()}
    assert means["no-host"] < means["slow"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("latency.without=[hots]", "--set latency.without: [0]: expected one of .* 'hots'; did you mean 'host'?"),
        ("latency.without=host", "--set latency.without: expected a list, got 'host'"),
        ("latency.host.fixd_us=1", "--set latency.host.fixd_us: unknown key; did you mean 'latency.host.fixed_us'?"),
        ("latency.host.fixed_us=-1", "--set latency.host.fixed_us: expected a number >= 0"),
        ("latency.host=3", "--set latency.host: expected a mapping"),
    ],
)  # fmt: skip
def test_what_is_no_effect_and_no_term_is_one_line_with_the_nearest_name(settings: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        loads(template(), [settings])
    first, _, last = message.partition(" .* ")
    assert str(error.value).startswith(first)
    assert str(error.value).endswith(last)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"latency.profile": "unit", "latency.without": ["host"]},
         "host is no effect of latency.profile: unit; expected one of prefix_rehits"),
        ({"latency.profile": "unit", "latency.host.fixed_us": 3}, "has no effect with latency.profile: unit"),
        ({"latency.profile": "roofline", "latency.without": ["chunk_context"]},
         "chunk_context is no effect of roofline (uncalibrated); expected one of host"),
        ({"latency.host.first_token_us": 1e9}, "expected at most 1,000,000 microseconds, got 1,000,000,000"),
    ],
)  # fmt: skip
def test_what_the_latency_model_lacks_is_refused(sets: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        set_up(scenario(sets))
    assert f": {message}" in str(error.value)
    assert str(error.value).startswith("--set latency.")


# A link that is stated.


def test_a_stated_link_takes_the_place_of_table_and_data_sheet() -> None:
    """32 layers x 2 x 2 hops of 250 us, and once more for the logits: 32.5 ms in any step of two GPUs."""
    link = {"hardware.tensor_parallel_size": 2, "hardware.link": {"latency_us": 250, "gb_per_s": 1e6}}
    for profile in ("auto", "roofline"):
        stated = set_up(scenario(link | {"latency.profile": profile}))
        free = set_up(scenario(link | {"latency.profile": profile, "latency.without": ["all_reduce"]}))
        assert stated.effects["all_reduce"].text == "stated"
        step = StepShapes.of(1, decode_seqs=1, decode_context_sum=9, decode_context_max=9, sampled_seqs=1)
        added = int(stated.latency.gpu_ns(step)[0]) - int(free.latency.gpu_ns(step)[0])
        assert added == pytest.approx(65 * 2 * 250_000, rel=1e-4)


@pytest.mark.parametrize("profile", ["auto", "roofline"])
def test_more_gpus_than_a_node_has_need_a_link(profile: str) -> None:
    wide = {"hardware.tensor_parallel_size": 16, "latency.profile": profile}
    with pytest.raises(InputError, match=r"hardware\.link: missing; a node has 8 GPUs, not 16: state the link"):
        set_up(scenario(wide))
    linked = set_up(scenario(wide | {"hardware.link": {"latency_us": 10, "gb_per_s": 40}}))
    assert linked.effects["all_reduce"].text == "stated"


def test_a_link_of_one_gpu_is_told_to_do_nothing() -> None:
    alone = set_up(scenario({"hardware.link": {"latency_us": 10, "gb_per_s": 40}}))
    assert alone.without_effect == ("hardware.link (needs tensor_parallel_size above 1)",)
    assert alone.effects["all_reduce"].text == "none: one GPU"


# The arms of an ablation.


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ({}, [name for name in EFFECTS if name != "all_reduce"]),
        ({"hardware.gpu": "h100-sxm5-80gb", "engine.enable_prefix_caching": False, "engine.async_scheduling": False},
         ["host", "graph_padding", "launches", "sampled_rows", "mixed_launches", "chunk_context", "first_token"]),
        ({"hardware.tensor_parallel_size": 2, "latency.profile": "roofline"},
         ["host", "overlap", "gap", "launches", "sampled_rows", "all_reduce", "first_token", "prefix_rehits"]),
        ({"latency.profile": "unit"}, ["prefix_rehits"]),
        ({"latency.profile": "unit", "engine.batching": "static"}, []),
    ],
    ids=str,
)  # fmt: skip
def test_an_ablation_has_an_arm_for_each_effect_of_the_set_up(sets: dict[str, Any], expected: list[str]) -> None:
    asked = scenario(sets)
    found, sources = arms(asked), set_up(asked).effects
    assert list(found) == expected
    for effect, arm in found.items():
        assert arm.latency.without == [effect]
        assert set_up(arm).effects == dict(sources) | {effect: OFF}
        assert apply_sets(arm, {"latency.without": []}).to_dict() == asked.to_dict()
    assert all(sources[effect].is_on for effect in found)


def test_what_a_scenario_switches_off_stays_off_in_every_arm() -> None:
    found = arms(scenario({"latency.without": ["host", "graph_padding"]}))
    assert not {"host", "graph_padding"} & set(found)
    assert found["overlap"].latency.without == ["host", "graph_padding", "overlap"]
