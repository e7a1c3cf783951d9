"""Scenario files: what loads, what is refused and in which words."""

# ruff: noqa: E501 (expected messages are easier to read, and to search for, in one piece)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit import scenario as schema
from simkit.errors import InputError
from simkit.scenario import Scenario
from simkit.scenario.engine import Hardware

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "scenarios").glob("*.yaml"))
BASE = """\
name: base
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine:
  max_num_seqs: 64
  max_num_batched_tokens: 2048
workload:
  num_requests: 10
  arrivals: {process: poisson, rate_per_s: 6}
  prompt_tokens: {dist: fixed, value: 512}
  output_tokens: {dist: fixed, value: 256}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def _write(text: str | bytes) -> Path:
        path = tmp_path / "s.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def refusal(path: Path, *sets: str) -> str:
    """The message of the InputError, without the folder in front; always one line."""
    with pytest.raises(InputError) as caught:
        schema.load(path, sets)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


def normal(data: Any) -> Any:
    return schema.from_dict(data).to_dict()


# --- what loads -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_scenarios_load_and_survive_a_round_trip(path: Path) -> None:
    scenario = schema.load(path)
    assert scenario.name == path.stem
    assert normal(scenario.to_dict()) == scenario.to_dict()


def test_the_five_scenarios_are_there() -> None:
    assert {path.stem for path in SHIPPED} >= {
        "llama3-8b-a100", "eight-requests", "three-generations", "azure-conversation", "long-prompt-stall",
    }  # fmt: skip


def test_template_loads_and_names_every_key(write: Any) -> None:
    scenario = schema.load(write(schema.template()))
    assert scenario.workload.num_requests == 2000
    keys = [*schema.Engine.model_fields, *Hardware.model_fields]
    missing = [key for key in keys if f"  {key}:" not in schema.template()]
    assert missing == []


def test_to_dict_keeps_the_order_of_the_design_page_and_writes_defaults(write: Any) -> None:
    data = schema.load(write(BASE)).to_dict()
    assert list(data) == [
        "name", "model", "hardware", "replicas", "router", "engine", "workload", "latency", "slo", "seed",
        "replications", "warmup", "variants",
    ]  # fmt: skip
    assert list(data["engine"])[:5] == [
        "batching", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill",
    ]  # fmt: skip
    assert data["engine"]["gpu_memory_utilization"] == 0.92
    assert data["engine"]["block_size"] == 16
    assert data["latency"] == {"profile": "auto", "without": [], "host": None, "error": "drawn"}
    assert data["warmup"] == "auto"
    assert list(data["hardware"]) == ["gpu", "tensor_parallel_size", "interconnect", "price_per_gpu_hour"]


def test_an_integer_is_a_number_but_a_boolean_is_not(write: Any) -> None:
    assert schema.load(write(BASE)).to_dict()["workload"]["arrivals"]["rate_per_s"] == 6.0
    assert schema.load(write(BASE.replace("rate_per_s: 6", "rate_per_s: 1e1"))).to_dict()["workload"]["arrivals"] == {
        "process": "poisson",
        "rate_per_s": 10.0,
    }
    assert "expected a rate per second > 0" in refusal(write(BASE.replace("rate_per_s: 6", "rate_per_s: true")))


def test_two_thousand_requests_are_written_out_when_nothing_is_said(write: Any) -> None:
    path = write(BASE.replace("  num_requests: 10\n", ""))
    assert schema.load(path).workload.num_requests == 2000
    changed = schema.apply_sets(schema.load(path), {"workload.duration_s": 60})
    assert (changed.workload.num_requests, changed.workload.duration_s) == (None, 60.0)


def test_anchors_merges_and_a_byte_order_mark_are_fine(write: Any) -> None:
    text = BASE.replace("prompt_tokens: {", "prompt_tokens: &len {").replace(
        "output_tokens: {dist: fixed, value: 256}", "output_tokens:\n    <<: *len\n    value: 9"
    )
    workload = schema.load(write(b"\xef\xbb\xbf" + text.encode())).workload
    assert isinstance(workload.output_tokens, schema.FixedLength)
    assert workload.output_tokens.value == 9


def test_the_name_defaults_to_that_of_the_file(write: Any) -> None:
    assert schema.load(write(BASE.replace("name: base\n", ""))).name == "s"


def test_relative_paths_start_at_the_file(write: Any) -> None:
    path = write(BASE)
    scenario = schema.load(path)
    assert scenario.base_dir == path.parent
    assert schema.apply_sets(scenario, {"seed": 3}).base_dir == path.parent


@pytest.mark.parametrize(
    "value",
    [
        "auto", "none", "mser5", {"requests": 20}, {"seconds": 2.5},
    ],
    ids=str,
)  # fmt: skip
def test_warmup_forms(value: Any, write: Any) -> None:
    scenario = schema.apply_sets(schema.load(write(BASE)), {"warmup": value})
    assert scenario.to_dict()["warmup"] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workload.arrivals", {"process": "constant", "rate_per_s": 2}),
        ("workload.arrivals", {"process": "gamma", "rate_per_s": 2, "cv": 3}),
        ("workload.arrivals", {"process": "all_at_once"}),
        ("workload.arrivals", {"process": "closed_loop", "concurrency": 3}),
        ("workload.arrivals", {"process": "piecewise", "segments": [{"until_s": 5, "rate_per_s": 0}, {"until_s": 9, "rate_per_s": 1}]}),
        ("workload.output_tokens", {"dist": "list", "values": [1, 2, 3]}),
        ("workload.output_tokens", {"dist": "uniform", "low": 5, "high": 5}),
        ("workload.output_tokens", {"dist": "lognormal", "mean": 256, "cv": 1, "max": 2048}),
        ("workload.output_tokens", {"dist": "exponential", "mean": 256}),
        ("workload.output_tokens", {"dist": "empirical", "preset": "azure-2023-conv"}),
        ("workload.output_tokens", {"dist": "empirical", "quantiles": [[0, 1], [0.5, 20], [1, 40.5]]}),
        ("workload.output_tokens", {"dist": "empirical", "path": "a.csv", "column": "n"}),
        ("workload.priority", {"values": [0, -1], "weights": [0.9, 0.1]}),
        ("workload.tenants", {"count": 2}),
        ("workload.prefix", {"groups": 4, "tokens": 128}),
        ("slo", {"itl_ms": {"mean": 30, "p90": 40}}),
        ("hardware.link", {"latency_us": 10, "gb_per_s": 40}),
    ],
    ids=str,
)  # fmt: skip
def test_every_form_of_the_design_page_loads_and_round_trips(key: str, value: Any, write: Any) -> None:
    scenario = schema.apply_sets(schema.load(write(BASE)), {key: value})
    assert normal(scenario.to_dict()) == scenario.to_dict()


def test_a_trace_takes_the_place_of_arrivals_and_lengths(write: Any) -> None:
    head = BASE.partition("workload:")[0]
    scenario = schema.load(write(head + "workload: {trace: {path: log.csv, end_s: 600, speed: 2}}\n"))
    assert scenario.workload.trace is not None
    assert scenario.workload.num_requests is None
    message = refusal(write(head + "workload:\n  num_requests: 5\n  trace: {path: log.csv}\n"))
    expected = "expected either trace or num_requests; use trace.max_requests or trace.end_s, got both"
    assert message == f"s.yaml:8: workload.num_requests: {expected}"


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_num_seqs: 64", "max_num_seqz: 64", "s.yaml:5: engine.max_num_seqz: unknown key; did you mean 'max_num_seqs'?"),
        ("max_num_seqs: 64", "max_num_seqs: 0", "s.yaml:5: engine.max_num_seqs: expected an integer >= 1, got 0"),
        ("max_num_seqs: 64", "max_num_seqs: '64'", "s.yaml:5: engine.max_num_seqs: expected an integer >= 1, got '64'"),
        ("max_num_seqs: 64", "max_num_seqs: 64.0", "s.yaml:5: engine.max_num_seqs: expected an integer >= 1, got 64.0"),
        ("max_num_seqs: 64", "max_num_seqs: 1:30", "s.yaml:5: engine.max_num_seqs: expected an integer >= 1, got '1:30'"),
        ("max_num_seqs: 64", "max_num_seqs: [64]", "s.yaml:5: engine.max_num_seqs: expected an integer >= 1, got [64]"),
        ("max_num_seqs: 64", "max_num_seqs: 9999999999", "s.yaml:5: engine.max_num_seqs: expected an integer <= 2147483647, got 9999999999"),
        ("max_num_seqs: 64", "policy: fifo", "s.yaml:5: engine.policy: expected one of fcfs, priority, sjf, fair, got 'fifo'; did you mean 'fcfs'?"),
        ("max_num_seqs: 64", "version: 0.33", 's.yaml:5: engine.version: expected an engine version in quotes such as "0.33", got 0.33'),
        ("max_num_seqs: 64", "gpu_memory_utilization: 1.5", "s.yaml:5: engine.gpu_memory_utilization: expected a number > 0 and <= 1, got 1.5"),
        ("max_num_seqs: 64", "gpu_memory_utilization: .nan", "s.yaml:5: engine.gpu_memory_utilization: expected a number > 0 and <= 1, got nan"),
        ("max_num_seqs: 64", "watermark: 1", "s.yaml:5: engine.watermark: expected a number >= 0 and < 1, got 1"),
        ("max_num_seqs: 64", "block_size: 512", "s.yaml:5: engine.block_size: expected an integer from 1 to 256, got 512"),
        ("max_num_seqs: 64", "max_num_seqs: 4096", "s.yaml:6: engine.max_num_batched_tokens: expected >= max_num_seqs (4096), got 2048"),
        ("max_num_seqs: 64", "max_model_len: 100\n  long_prefill_token_threshold: 200",
         "s.yaml:6: engine.long_prefill_token_threshold: expected <= max_model_len (100), got 200"),
        ("max_num_seqs: 64", "max_model_len: 4096\n  enable_chunked_prefill: false",
         "s.yaml:7: engine.max_num_batched_tokens: expected >= max_model_len (4096) with enable_chunked_prefill: false, got 2048"),
        ("max_num_seqs: 64", "max_num_seqs: 64\n  max_num_active_seqs: 65",
         "s.yaml:6: engine.max_num_active_seqs: expected <= max_num_seqs (64), got 65"),
        ("rate_per_s: 6", "rate_per_s: -1", "s.yaml:9: workload.arrivals.rate_per_s: expected a rate per second > 0 (and <= 1e9), got -1"),
        ("process: poisson", "process: poison",
         "s.yaml:9: workload.arrivals.process: expected one of constant, poisson, gamma, all_at_once, closed_loop, piecewise, got 'poison'; did you mean 'poisson'?"),
        (", rate_per_s: 6", "", "s.yaml:9: workload.arrivals.rate_per_s: missing; this key is required"),
        ("{process: poisson, rate_per_s: 6}", "{rate_per_s: 6}",
         "s.yaml:9: workload.arrivals: expected a mapping with the key 'process', got {'rate_per_s': 6}"),
        ("{process: poisson, rate_per_s: 6}", "6", "s.yaml:9: workload.arrivals: expected a mapping, got 6"),
        ("  arrivals: {process: poisson, rate_per_s: 6}\n", "",
         "s.yaml:7: workload.arrivals: expected a value (or a trace instead of it), got nothing"),
        ("value: 256", "value: 0", "s.yaml:11: workload.output_tokens.value: expected an integer >= 1, got 0"),
        ("dist: fixed, value: 256", "dist: uniform, low: 9, high: 8", "s.yaml:11: workload.output_tokens.low: expected low <= high (8), got 9"),
        ("dist: fixed, value: 256", "dist: list, values: [1, 2, x]", "s.yaml:11: workload.output_tokens.values[2]: expected an integer >= 1, got 'x'"),
        ("dist: fixed, value: 256", "dist: lognormal, mean: 9, cv: 0", "s.yaml:11: workload.output_tokens.cv: expected a number > 0 (and <= 1e12), got 0"),
        ("num_requests: 10", "num_requests: 10\n  duration_s: 5",
         "s.yaml:9: workload.duration_s: expected either num_requests or duration_s, got both"),
        ("num_requests: 10", "num_requests: 10\n  max_tokens: 5",
         "s.yaml:9: workload.max_tokens: expected null with stop: length (it is for stop: eos), got 5"),
        ("num_requests: 10", "num_requests: 10\n  priority: {values: [1, 2], weights: [1]}",
         "s.yaml:9: workload.priority.weights: expected 2 weights, one for each of values, got 1"),
        ("name: base", "name: ../../etc", "s.yaml:1: name: expected a name of letters, digits, '.', '_', '-' or spaces that starts with a letter or digit, got '../../etc'"),
        ("name: base", "name: base\nseed: 1.5", "s.yaml:2: seed: expected an integer >= 0 and < 2**63, got 1.5"),
        ("name: base", "name: base\nwarmup: all", "s.yaml:2: warmup: expected auto, none, mser5, {requests: N} or {seconds: S}, got 'all'"),
        ("name: base", "name: base\nslo: {ttft_ms: {p98: 5}}", "s.yaml:2: slo.ttft_ms.p98: expected one of mean, p50, p90, p95, p99, got 'p98'; did you mean 'p99'?"),
        ("name: base", "name: base\nname: again", "s.yaml:2: name: duplicate key"),
        ("name: base", "name: base\n3: x", "s.yaml:2: expected a text as key, got 3"),
        ("model: llama-3-8b\n", "", "s.yaml:1: model: missing; this key is required"),
        ("name: base", "name: base\nsede: 1\nengin: {}", "s.yaml:2: sede: unknown key; did you mean 'seed'? (and 1 more)"),
        ("name: base", "name: base\nvariants:\n  big: {engine.max_num_seq: 5}",
         "s.yaml:3: variants.big.engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?"),
        ("name: base", "name: base\nvariants:\n  big:\n    engine.max_num_seqs: 0",
         "s.yaml:4: variants.big.engine.max_num_seqs: expected an integer >= 1, got 0"),
        ("name: base", "name: base\nvariants:\n  big:\n    engine.max_num_seqs: 5000",
         "s.yaml:4: variants.big.engine.max_num_seqs: engine.max_num_batched_tokens: expected >= max_num_seqs (5000), got 2048"),
        ("name: base", "name: base\nvariants: {big: {seed: 5}}",
         "s.yaml:2: variants.big.seed: expected a key under which arms may differ, not name, seed, replications or variants"),
        ("name: base", "name: !!python/name:os.system base", "s.yaml:1: YAML syntax: tag tag:yaml.org,2002:python/name:os.system is not supported"),
        ("name: base", "name: [base", "s.yaml:2: YAML syntax: expected ',' or ']', but got ':'"),
        ("name: base", "name: &a [*a]", "s.yaml:1: YAML syntax: nested too deeply"),
        ("name: base", "name: base\x07", "s.yaml:1: YAML syntax: character #x0007 is not allowed"),
        ("name: base", "---\nname: base\n---\nname: base", "s.yaml:3: YAML syntax: expected a single document in the stream, but found another document"),
    ],
    ids=lambda text: " ".join(text.split())[:40],
)  # fmt: skip
def test_refusals(old: str, new: str, message: str, write: Any) -> None:
    assert old in BASE
    assert refusal(write(BASE.replace(old, new))) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "s.yaml:1: expected a scenario, got an empty file"),
        (b"# only a comment\n", "s.yaml:1: expected a scenario, got an empty file"),
        (b"\n- a\n- b\n", "s.yaml:2: expected a mapping of keys to values, got ['a', 'b']"),
        (b"just text", "s.yaml:1: expected a mapping of keys to values, got 'just text'"),
        (b"name: x\nmodel: \xff\xfe\n", "s.yaml:2: expected UTF-8 text, got byte 0xff"),
    ],
    ids=str,
)
def test_files_that_are_no_scenario(content: bytes, message: str, write: Any) -> None:
    assert refusal(write(content)) == message


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == "none.yaml: no such file"
    assert "expected a scenario file, got a directory" in refusal(tmp_path)


def test_a_bomb_of_aliases_is_refused_in_a_short_line(write: Any) -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert len(refusal(write(BASE + "a0: &a0 [x]\n" + "\n".join(levels)))) < 300


# --- --set, variants, axes --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine.max_num_seq=64", "--set engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?"),
        ("max_num_seqs=64", "--set max_num_seqs: unknown key; did you mean 'engine.max_num_seqs'?"),
        ("engine.max_num_seqs=0", "--set engine.max_num_seqs: expected an integer >= 1, got 0"),
        ("engine.max_num_seqs='0'", "--set engine.max_num_seqs: expected an integer >= 1, got '0'"),
        ("engine.max_num_batched_tokens=8", "--set engine.max_num_batched_tokens: expected >= max_num_seqs (64), got 8"),
        ("engine.max_num_seqs=9999", "--set engine.max_num_seqs: engine.max_num_batched_tokens: expected >= max_num_seqs (9999), got 2048"),
        ("workload.arrivals.cv=2", "--set workload.arrivals.cv: unknown key with process: poisson; valid here: process, rate_per_s"),
        ("workload.arrivals={process: poisson}", "--set workload.arrivals: rate_per_s: missing; this key is required"),
        ("hardware.link={latency_us: 0, gb_per_s: 4}", "--set hardware.link: latency_us: expected microseconds > 0 (and <= 1e6), got 0"),
        ("hardware.link={latency_us: 1, gb_per_s: 0}", "--set hardware.link: gb_per_s: expected GB/s > 0 (from 0.001 to 1e6), got 0"),
        ("hardware.link={latency_us: 1, gb_per_s: -4}", "--set hardware.link: gb_per_s: expected GB/s > 0 (from 0.001 to 1e6), got -4"),
        ("hardware.link={latency_us: 1}", "--set hardware.link: gb_per_s: missing; this key is required"),
        ("hardware.link=fast", "--set hardware.link: expected a mapping, got 'fast'"),
        ("model.x=3", "--set model.x: unknown key; model has no parts"),
        ("engine", "--set engine: expected KEY=VALUE, e.g. --set engine.max_num_seqs=64"),
        ("engine=[", "--set engine: YAML syntax: expected the node content, but found '<stream end>', got '['"),
        ("engine={a: 1, a: 2}", "--set engine: a: duplicate key, got '{a: 1, a: 2}'"),
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_refused_settings(text: str, message: str, write: Any) -> None:
    assert refusal(write(BASE), text) == message


def test_settings_are_yaml_and_apply_in_order(write: Any) -> None:
    scenario = schema.load(
        write(BASE),
        [
            "engine.version=0.30", "name=7", "workload.arrivals={process: closed_loop, concurrency: 4}",
            "workload.arrivals.think_time_s=2", "slo.ttft_ms.p99=300", "workload.num_requests=null",
            "workload.duration_s=9", "warmup.requests=3",
        ],
    )  # fmt: skip
    assert scenario.engine.version == "0.30"
    assert scenario.name == "7"
    assert scenario.workload.arrivals == schema.ClosedLoop(process="closed_loop", concurrency=4, think_time_s=2)
    assert scenario.slo is not None
    assert scenario.slo.ttft_ms == {"p99": 300.0}
    assert (scenario.workload.num_requests, scenario.workload.duration_s) == (None, 9.0)
    assert scenario.warmup == schema.WarmupRequests(requests=3)


def test_a_mapping_replaces_the_old_one_whole(write: Any) -> None:
    scenario = schema.load(write(BASE))
    changed = schema.apply_sets(scenario, {"workload.output_tokens": {"dist": "uniform", "low": 1, "high": 3}})
    assert changed.to_dict()["workload"]["output_tokens"] == {"dist": "uniform", "low": 1, "high": 3}
    assert scenario.to_dict()["workload"]["output_tokens"] == {"dist": "fixed", "value": 256}


def test_axes(write: Any) -> None:
    scenario = schema.load(write(BASE))
    axes = schema.parse_axes(
        scenario, ["engine.max_num_seqs=8,16", "engine.version=0.30,0.33", "engine.policy=fcfs, sjf"]
    )
    assert axes == {
        "engine.max_num_seqs": [8, 16],
        "engine.version": ["0.30", "0.33"],
        "engine.policy": ["fcfs", "sjf"],
    }
    for text, message in (
        ("engine.max_num_seqs", "--axis engine.max_num_seqs: expected KEY=A,B, e.g. --axis engine.max_num_seqs=32,64"),
        ("engine.max_num_seqs=8,0", "--axis engine.max_num_seqs: expected an integer >= 1, got 0"),
        ("engine.max_num_seq=8", "--axis engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?"),
    ):
        with pytest.raises(InputError) as caught:
            schema.parse_axes(scenario, [text])
        assert str(caught.value) == message


def test_flags_make_a_scenario_and_are_named_in_errors() -> None:
    scenario = schema.from_flags("llama-3-8b", "a100-sxm4-80gb", 5, 100, 20, ["seed=4"])
    assert scenario.name == "llama-3-8b-a100-sxm4-80gb"
    assert scenario.seed == 4
    with pytest.raises(InputError, match=r"^--prompt: expected an integer >= 1, got 0$"):
        schema.from_flags("m", "g", 5, 0, 20)
    with pytest.raises(InputError, match=r"^--rate: expected a rate per second > 0"):
        schema.from_flags("m", "g", float("inf"), 1, 20)


def test_a_scenario_cannot_be_changed_in_place(write: Any) -> None:
    scenario = schema.load(write(BASE))
    with pytest.raises(ValueError, match="frozen"):
        scenario.engine.max_num_seqs = 3  # type: ignore[misc]


# --- no other exception, whatever the text ----------------------------------------------------------------------------
KEYS = ["name", "model", "hardware", "gpu", "engine", "workload", "arrivals", "process", "poisson", "rate_per_s",
        "prompt_tokens", "dist", "fixed", "value", "variants", "slo", "ttft_ms", "p99", "warmup", "seed", "trace",
        "<<", "&a", "*a", "!!set", "!!binary", "0x1", "1e400", "-", "[", "]", "{", "}", ":", "\n", "\n  ", ", ", "#",
        "null", "~", "'", '"', "|", "2001-01-01", "9" * 5000, "?", "%YAML 1.1\n---\n", "\t", "é"]  # fmt: skip


def loads_or_refuses(text: str) -> None:
    message = "f.yaml:"
    try:
        assert isinstance(schema.loads(text, file="f.yaml"), Scenario)
    except InputError as error:
        message = str(error)
    assert message.startswith("f.yaml:")
    assert "\n" not in message


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(KEYS), max_size=30).map(" ".join)))
def test_any_text_is_a_scenario_or_an_input_error(text: str) -> None:
    loads_or_refuses(text)


VALUES = st.sampled_from(["null", "-1", "0", "1", "1.5", "true", "x", "[]", "[1]", "{}", "{a: 1}", "{process: gamma}",
                          "{dist: list, values: []}", ".inf", "''", "&x 3", "*x", "{? [1] : 2}", "9" * 400])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, BASE.count("\n") - 1), VALUES), min_size=1, max_size=4))
def test_any_value_in_a_valid_file_is_a_scenario_or_an_input_error(changes: list[tuple[int, str]]) -> None:
    lines = BASE.splitlines()
    for index, value in changes:
        lines[index] = lines[index].partition(":")[0] + ": " + value
    loads_or_refuses("\n".join(lines))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_any_setting_is_applied_or_an_input_error(key: str, value: str) -> None:
    texts = [f"{key}={value}", f"engine.{key}={value}", f"engine.max_num_seqs={value}", f"variants.a.{key}={value}"]
    for text in texts:
        message = "--set"
        try:
            schema.from_flags("m", "g", 1, 1, 1, [text])
        except InputError as error:
            message = str(error)
        assert message.startswith("--set")
        assert "\n" not in message


@pytest.mark.parametrize(
    ("version", "size", "taken"),
    [
        ("0.5.3", 64, "8, 16, 32"),
        ("0.6.6", 64, None),
        ("0.9", 256, "1, 8, 16, 32, 64, 128"),
        ("0.10.1.1", 48, "1, 8, 16, 32, 64, 128"),
        ("0.10", 128, None),
        ("0.11", 256, None),
        ("0.16.0", 4, "1, 8, 16, 32, 64, 128, 256"),
        ("0.17", 4, None),
        ("0.33", 48, None),
    ],
)
def test_a_block_size_that_the_version_refuses_is_one_line(version: str, size: int, taken: str | None) -> None:
    sets = [f'engine.version="{version}"', f"engine.block_size={size}"]
    if taken is None:
        assert schema.loads(schema.template(), sets).engine.block_size == size
        return
    with pytest.raises(InputError) as error:
        schema.loads(schema.template(), sets)
    minor = ".".join(version.split(".")[:2])
    assert str(error.value) == (
        f"--set engine.block_size: expected one of {taken}, the sizes of a block that vLLM {minor} takes, got {size}"
    )
    schema.loads(schema.template(), [*sets, "engine.kv_allocator=contiguous", "engine.batching=static"])
