"""Readers of JSON logs: what the rows of each format become, how dirt is named, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from json_logs import EPOCH_S, LITELLM, MOONCAKE, MS, VLLM_SPAN, Read, S, genai_span, langfuse, otlp_span, written

from simkit.errors import InputError
from simkit.logs.formats import FORMATS
from simkit.logs.read.blocks import fitting_block_tokens
from simkit.logs.read.record import NO_TIME, UNKNOWN

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")


def read(tmp_path: Path, *rows: Any, **trace: Any) -> Read:
    return Read(written(tmp_path, *rows), **trace)


def refusal(tmp_path: Path, content: str | bytes | list[Any], **trace: Any) -> str:
    path = written(tmp_path, *content) if isinstance(content, list) else tmp_path / "t.jsonl"
    if not isinstance(content, list):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        Read(path, **trace)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- formats ---------------------------------------------------------------------------------------------------------


def test_mooncake(tmp_path: Path) -> None:
    found = read(tmp_path, {**MOONCAKE, "trace": 1}, {**MOONCAKE, "timestamp": 27_482.25, "hash_ids": [2**64 - 1]})
    assert (found.format, found.time_ns) == ("mooncake", [27_482 * MS, 27_482 * MS + 250_000])
    assert (found.prompt_tokens, found.output_tokens) == ([6955, 6955], [52, 52])
    assert (found.block_ids(0), found.block_ids(1)) == ([46, 47], [2**64 - 1])
    assert found.notes == ["fields not used: trace"]


def test_mooncake_identities_keep_64_bits(tmp_path: Path) -> None:
    ids = [2**32 + 1, 2**33 + 1, 2**53 + 1, 2**53]
    found = read(tmp_path, *({**MOONCAKE, "hash_ids": [number]} for number in ids))
    assert [found.block_ids(row)[0] for row in range(4)] == ids


def test_mooncake_sessions(tmp_path: Path) -> None:
    first = {"session_id": "a", "timestamp": 1000.0, "input_length": 600, "output_length": 20, "hash_ids": [101, 102]}
    found = read(
        tmp_path,
        first,
        {"session_id": "a", "delay": 5.5, "input_length": 700, "output_length": 30},
        {"session_id": "a", "delay_ms": 2, "tool_wait_ms": 3, "input_tokens": 9, "output_token_ids": [1, 2, 3]},
        {"session_id": "a", "created_time": 9000, "request_id": "r", "input_length": 10, "output_length": 1},
    )
    assert found.time_ns == [1000 * MS, NO_TIME, NO_TIME, 9000 * MS]
    assert found.delay_ns == [UNKNOWN, 5_500_000, 5 * MS, UNKNOWN]
    assert (found.prompt_tokens, found.output_tokens) == ([600, 700, 9, 10], [20, 30, 3, 1])
    assert (found.session, found.id) == (("a",) * 4, (None, None, None, "r"))


def test_mooncake_agentic_rows_wait_for_one_request(tmp_path: Path) -> None:
    step = {"request_id": "b", "wait_for": ["a"], "tool_wait_ms": 40, "input_length": 5, "output_length": 6}
    header = {"schema": "agentic", "version": 1}
    found = read(tmp_path, header, {**MOONCAKE, "request_id": "a"}, step, {**step, "wait_for": "a"})
    assert (found.parent, found.delay_ns) == ((None, "a", "a"), [UNKNOWN, 40 * MS, 40 * MS])
    assert "skipped 1 of 4 rows (25 %): 1 header only (line 1)" in found.notes
    for change in ({"wait_for": ["a", "b"]}, {"branches": ["x"]}, {"prefix_reset": True}):
        (name,) = change
        assert f"line 2: {name} " in refusal(tmp_path, [MOONCAKE, {**step, **change}])


def test_mooncake_rows_with_texts_need_a_tokenizer(tmp_path: Path) -> None:
    text = {"timestamp": 1, "text_input": "hello", "output_length": 5}
    assert "text_input), and counting their tokens needs the model's tokenizer" in refusal(tmp_path, [text])
    assert "line 2: input_length None, expected a number of tokens; text_input is text" in refusal(
        tmp_path, [MOONCAKE, text]
    )


def test_mooncake_deltas_add_up_in_their_session(tmp_path: Path) -> None:
    turns = [
        {**MOONCAKE, "session_id": "a", "input_length": 100, "output_length": 10},
        {"session_id": "a", "delay": 1, "input_length": 7, "output_length": 3},
        {**MOONCAKE, "input_length": 50, "output_length": 5},
        {"session_id": "a", "delay": 1, "input_length": 1, "output_length": 1},
    ]
    assert read(tmp_path, *turns).prompt_tokens == [100, 7, 50, 1]
    found = read(tmp_path, *turns, format="mooncake-delta")
    assert found.prompt_tokens == [100, 117, 50, 121]
    assert found.columns.blocks is None
    assert "prefix hit rate is unknown" in found.notes[0]


def in_seconds(num_rows: int = 20) -> list[dict[str, Any]]:
    """Mooncake's fields in s and blocks of 16."""
    sizes = [16 * blocks + blocks % 5 for blocks in range(1, num_rows + 1)]
    return [
        {"timestamp": 0.125 * at, "input_length": size, "output_length": 9, "hash_ids": list(range(-(-size // 16)))}
        for at, size in enumerate(sizes)
    ]


def test_mooncake_stamps_that_cannot_be_ms_are_asked_about(tmp_path: Path) -> None:
    message = refusal(tmp_path, in_seconds())
    for advice in ("8000 a second", "--time-unit s", "--hash-block-tokens 16", "--format guidellm"):
        assert advice in message
    found = read(tmp_path, *in_seconds(), time_unit="s")
    assert found.time_ns == [at * S // 8 for at in range(20)]
    assert found.notes == ["the first hash_ids fit blocks of 16 tokens, not of 512 (--hash-block-tokens)"]
    assert read(tmp_path, *in_seconds(), time_unit="s", hash_block_tokens=16).notes == []
    assert read(tmp_path, *in_seconds(), format="guidellm").time_ns == found.time_ns
    assert read(tmp_path, *({**row, "timestamp": row["timestamp"] * 1000} for row in in_seconds())).format == "mooncake"


def test_guidellm_is_recognised_by_its_conversations(tmp_path: Path) -> None:
    found = read(tmp_path, {**MOONCAKE, "timestamp": 1.5, "conversation_id": 3})
    assert (found.format, found.time_ns, found.session) == ("guidellm", [1_500_000_000], ("3",))


def test_bailian(tmp_path: Path) -> None:
    chat = {"chat_id": 55, "parent_chat_id": -1, "timestamp": 12.03, "input_length": 20, "output_length": 64, "turn": 1}
    found = read(
        tmp_path, {**chat, "type": "text", "hash_ids": [1, 2]}, {**chat, "chat_id": 56, "parent_chat_id": 55, "turn": 2}
    )
    assert (found.format, FORMATS["bailian"].hash_block_tokens) == ("bailian", 16)
    assert (found.id, found.parent, found.turn) == (("55", "56"), (None, "55"), [1, 2])
    assert (found.time_ns, found.block_ids(0), found.block_ids(1)) == ([12_030 * MS] * 2, [1, 2], [])
    assert found.notes == ["fields not used: type"]


def test_ragpulse(tmp_path: Path) -> None:
    row = {"timestamp": "604453", "input_length": 3112, "output_length": 192, "session_id": "s",
           "hash_ids": {"sys_prompt": [8302], "web_search": []}}  # fmt: skip
    found = read(tmp_path, row)
    assert (found.format, found.time_ns, found.session) == ("ragpulse", [604_453 * S], ("s",))
    assert found.columns.blocks is None
    assert found.notes == [
        "hash_ids are of components of unknown length, not of blocks: the prefix hit rate is unknown"
    ]


def test_llmservingsim_sessions_among_single_requests(tmp_path: Path) -> None:
    def turn(prompt: int, tool_ns: int) -> dict[str, int]:
        return {"input_toks": prompt, "output_toks": 5, "tool_duration_ns": tool_ns}

    found = read(
        tmp_path,
        {"input_toks": 1472, "output_toks": 133, "arrival_time_ns": 2**53 + 1, "input_tok_ids": [1]},
        {"session_id": "s", "arrival_time_ns": 9_059_740, "sub_requests": [turn(10, 127_348_767), turn(20, 0)]},
        {"session_id": "t", "arrival_time_ns": 9_100_000, "sub_requests": []},
    )
    assert found.format == "llmservingsim"
    assert found.time_ns == [2**53 + 1, 9_059_740, NO_TIME]
    assert (found.session, found.turn) == ((None, "s", "s"), [UNKNOWN, 0, 1])
    assert found.delay_ns == [UNKNOWN, UNKNOWN, 127_348_767]
    assert (found.prompt_tokens, found.line) == ([1472, 10, 20], [1, 2, 2])
    assert found.notes == [
        "fields not used: input_tok_ids",
        "skipped 1 of 4 rows (25 %): 1 without requests in sub_requests (line 3)",
    ]


def test_vllm_records_never_mix_their_two_clocks(tmp_path: Path) -> None:
    def row(at: float, queued: float) -> dict[str, Any]:
        return {"request_id": f"r{at}", "input_toks": 7, "output_toks": 8, "arrival_time": EPOCH_S + at,
                "queued_ts": queued, "scheduled_ts": queued, "first_token_ts": queued + 0.25,
                "last_token_ts": queued + 2}  # fmt: skip

    found = read(tmp_path, row(0.5, 100.5), row(3.5, 103.75))
    assert found.format == "vllm-records"
    assert found.time_ns == [EPOCH_S * S + S // 2, EPOCH_S * S + 7 * S // 2]
    assert (found.ttft_ns, found.e2e_ns) == ([S // 4] * 2, [2 * S] * 2)
    (note,) = found.notes
    assert "they span 3.000 and 3.250 s, and their difference varies by up to 0.250 s" in note


@pytest.mark.parametrize("layout", ["document", "line"])
def test_otlp(tmp_path: Path, layout: str) -> None:
    spans = [
        otlp_span(1, VLLM_SPAN),
        otlp_span(2, {"gen_ai.request.id": "c-2"}, status={"code": 2}),
        otlp_span(3, {"http.route": "/v1"}, name="POST /v1"),
        otlp_span(
            4, {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 6}
        ),
    ]
    export = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(export, indent=1 if layout == "document" else None))
    found = Read(path)
    assert (found.format, found.id) == ("otlp", ("c-1", f"{4:016x}"))
    assert found.time_ns == [EPOCH_S * S + 1, EPOCH_S * S + 4]
    assert (found.prompt_tokens, found.output_tokens) == ([1021, 5], [87, 6])
    assert (found.ttft_ns, found.e2e_ns) == ([201 * MS, UNKNOWN], [1900 * MS, 3 * S])
    assert found.notes == [
        "skipped 2 of 4 rows (50 %): 1 no model call (line 1); 1 with an error (line 1)",
    ]


def test_otlp_of_another_shape_is_bad(tmp_path: Path) -> None:
    good = {"resourceSpans": [{"scopeSpans": [{"spans": [otlp_span(1, VLLM_SPAN)]}]}]}
    message = refusal(tmp_path, [good, {"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}])
    assert "line 2: spans has 7, expected objects" in message


def test_opentelemetry_model_calls_under_their_old_and_new_names(tmp_path: Path) -> None:
    call = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c", "gen_ai.request.model": "m"}
    found = read(
        tmp_path,
        genai_span({**call, "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 8,
                    "gen_ai.usage.cache_read.input_tokens": 4}),
        genai_span({**call, "gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.completion_tokens": 6}),
        genai_span({"openinference.span.kind": "LLM", "llm.token_count.prompt": 5, "llm.token_count.completion": 4}),
        genai_span({"gen_ai.operation.name": "execute_tool"}),
        genai_span({"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 300}),
        genai_span({"openinference.span.kind": "TOOL"}),
        genai_span({**call, "error.type": "timeout"}),
        genai_span(call, status={"code": "STATUS_CODE_ERROR"}),
    )  # fmt: skip
    assert (found.format, found.prompt_tokens, found.output_tokens) == ("otel", [9, 7, 5], [8, 6, 4])
    assert found.time_ns == [EPOCH_S * S + 120 * MS] * 3
    assert (found.e2e_ns, found.cached_tokens) == ([1880 * MS] * 3, [4, UNKNOWN, UNKNOWN])
    assert (found.session, found.model) == (("c", "c", None), ("m", "m", None))
    assert found.notes == [
        "skipped 5 of 8 rows (62.5 %): 1 of operation execute_tool (line 4); 1 of operation embeddings (line 5); "
        "1 of another span kind than LLM (line 6); 2 with an error (lines 7, 8)"
    ]


def test_a_model_call_without_token_counts_is_bad(tmp_path: Path) -> None:
    message = refusal(tmp_path, [genai_span({"gen_ai.operation.name": "chat"})])
    assert "line 1: gen_ai.usage.input_tokens None, expected a number of tokens >= 0" in message


def test_litellm_payloads_and_spend_rows(tmp_path: Path) -> None:
    payload = {**LITELLM, "id": "p", "trace_id": "t", "status": "success", "startTime": EPOCH_S + 0.12,
               "endTime": EPOCH_S + 2.02, "completionStartTime": EPOCH_S + 0.42, "stream": True, "cache_hit": None,
               "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 512}}}}  # fmt: skip
    spend = {**LITELLM, "request_id": "r", "session_id": "s", "startTime": "2025-11-29 16:00:01.5",
             "endTime": "2025-11-29T16:00:03Z", "completionStartTime": "2025-11-29T16:00:03Z",
             "cache_hit": "False", "metadata": "{}"}  # fmt: skip
    found = read(
        tmp_path,
        payload,
        spend,
        {**payload, "status": "failure", "completion_tokens": 0},
        {**payload, "cache_hit": "True"},
        {**payload, "call_type": "aembedding"},
    )
    assert (found.format, found.id, found.session) == ("litellm", ("p", "r"), ("t", "s"))
    assert found.time_ns == [EPOCH_S * S + 120 * MS, EPOCH_S * S + 1500 * MS]
    assert (found.ttft_ns, found.e2e_ns) == ([300 * MS, UNKNOWN], [1900 * MS, 1500 * MS])
    assert (found.cached_tokens, found.model) == ([512, UNKNOWN], ("m", "m"))
    assert found.notes == [
        "times name no zone and are read as UTC",
        "skipped 3 of 5 rows (60 %): 1 cache hit (line 4); 1 call type aembedding (line 5); 1 status failure (line 3)",
    ]


@pytest.mark.parametrize(
    ("usage", "prompt", "output"),
    [
        ({"input": 509, "input_cached_tokens": 512, "output": 40, "total": 1061}, 1021, 40),
        ({"input": 1021, "input_cached_tokens": 512, "output": 40, "total": 1061}, 1021, 40),
        ({"input": 10, "output": 40, "output_reasoning": 30, "total": 50}, 10, 40),
        ({"input": 10, "input_audio": 5, "output": 40}, 15, 40),
        ({"input": 10, "output": 40, "unit": "TOKENS", "inputCost": 0.1}, 10, 40),
    ],
)
def test_langfuse_adds_the_parts_of_a_prompt_as_the_total_tells(
    tmp_path: Path, usage: dict[str, Any], prompt: int, output: int
) -> None:
    found = read(tmp_path, langfuse(usage))
    assert (found.format, found.prompt_tokens, found.output_tokens) == ("langfuse", [prompt], [output])
    assert (found.ttft_ns, found.e2e_ns, found.session) == ([300 * MS], [S], ("s",))
    assert found.notes == ["times name no zone and are read as UTC"]


def test_langfuse_keeps_generations_that_were_served(tmp_path: Path) -> None:
    api = {"id": "a", "traceId": "t", "type": "GENERATION", "startTime": "2025-11-29T16:00:00.120Z", "endTime": None,
           "usageDetails": {"input": 3, "output": 2, "total": 99}, "timeToFirstToken": 0.3, "model": "m"}  # fmt: skip
    found = read(tmp_path, api, langfuse({}, type="SPAN"), langfuse({}, level="ERROR"), langfuse({}, type="x\ny"))
    assert (found.id, found.session, found.model, found.ttft_ns) == (("a",), ("t",), ("m",), [300 * MS])
    assert sorted(found.notes) == [
        "skipped 3 of 4 rows (75 %): 1 of type SPAN, not GENERATION (line 2); "
        "1 of another type than GENERATION (line 4); 1 at level ERROR (line 3)",
        "some rows have a total that is not the sum of their input and output tokens",
        "times name no zone and are read as UTC",
    ]
    assert "line 1: unit of usage_details 'CHARACTERS', expected TOKENS" in refusal(
        tmp_path, [langfuse({"input": 1, "output": 1, "unit": "CHARACTERS"})]
    )


def test_aiperf(tmp_path: Path) -> None:
    meta = {"x_request_id": "r", "conversation_id": "c", "turn_index": 2, "was_cancelled": False,
            "request_start_ns": EPOCH_S * S + 1, "request_end_ns": EPOCH_S * S + 3 * S + 1}  # fmt: skip

    def value(number: float, unit: str) -> dict[str, Any]:
        return {"value": number, "unit": unit}

    metrics = {"input_sequence_length": value(550, "tokens"), "output_sequence_length": value(9, "tokens"),
               "time_to_first_token": value(255.5, "ms")}  # fmt: skip
    found = read(
        tmp_path,
        {"metadata": meta, "metrics": metrics, "error": None},
        {"metadata": meta, "metrics": {**metrics, "request_latency": value(2, "s")}, "error": None},
        {"metadata": {**meta, "was_cancelled": True}, "metrics": {"error_isl": value(550, "tokens")}, "error": {}},
        {"metadata": meta, "metrics": None, "error": {"code": 500}},
    )
    assert (found.format, found.id, found.session, found.turn) == ("aiperf", ("r",) * 2, ("c",) * 2, [2, 2])
    assert (found.prompt_tokens, found.output_tokens) == ([550, 550], [9, 9])
    assert (found.time_ns, found.ttft_ns) == ([EPOCH_S * S + 1] * 2, [255_500_000] * 2)
    assert found.e2e_ns == [3 * S, 2 * S]
    assert found.notes == ["skipped 2 of 4 rows (50 %): 1 cancelled (line 3); 1 with an error (line 4)"]


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "title", "advice"),
    [
        ([{"id": "x", "conversations": []}], "ShareGPT conversations", "tokenizer"),
        ([{"prompt": "hi"}, {"prompt": "ho", "output_tokens": 40}], "prompts without arrivals", "tokenizer"),
        ([{"custom_id": "1", "method": "POST", "body": {}}], "prompts without arrivals", "tokenizer"),
        ([{"num_turns": 1, "input_prompt_length": 5, "tool_call_latency": [1]}], "Applied Compute", "no arrival times"),
        ([{"timing_events": [], "prefix_tokens": 1}], "TraceLab", "newly_append_tokens"),
        ([{"0": {"input_tokens": "{45: 0.1}"}}], "ServeGen client data", "workload source"),
        ([{"experiments": []}], "genai-perf profile export", "AIPerf"),
        ([{"input_length": 5, "output_length": 6}], "lengths without arrivals", "arrivals of your own"),
        (
            [{"prompt": "hi", "prompt_tokens": 5, "completion_tokens": 6}],
            "lengths without arrivals",
            "--map time=FIELD",
        ),
        ('INFO:  127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n', "vLLM console or access log", "OTLP spans"),
        ("INFO 11-29 [logger.py:42] Received request cmpl-1: prompt: 'x'\n", "vLLM console or access log", "OTLP"),
        ("[2025-11-29 16:00:00] Received request cmpl-1: prompt: 'x'\n", "vLLM console or access log", "OTLP"),
    ],
)
def test_files_without_tokens_or_arrivals_are_refused_with_advice(
    tmp_path: Path, content: str | list[Any], title: str, advice: str
) -> None:
    message = refusal(tmp_path, content)
    assert message.startswith(f"trace t.jsonl: {title}")
    assert advice in message


def test_a_format_that_is_named_says_what_it_misses(tmp_path: Path) -> None:
    assert refusal(tmp_path, [{"a": 1}], format="bailian") == (
        "trace t.jsonl: format bailian needs field 'chat_id', the first objects have a"
    )
    message = refusal(tmp_path, "a,b\n1,2\n", format="otlp")
    assert message == "trace t.jsonl: format otlp reads JSON objects, and this file has none"


def test_a_unit_that_is_not_used_is_said(tmp_path: Path) -> None:
    row = {"input_toks": 1, "output_toks": 2, "arrival_time_ns": 3}
    assert read(tmp_path, row, time_unit="ms").notes == ["time_unit ms is not used: arrival_time_ns is in ns"]
    assert read(tmp_path, row, time_unit="ns").notes == []


def test_bad_cells_are_named_by_line_and_field(tmp_path: Path) -> None:
    message = refusal(
        tmp_path,
        [
            MOONCAKE,
            {**MOONCAKE, "input_length": -1},
            {**MOONCAKE, "timestamp": "soon"},
            {**MOONCAKE, "hash_ids": [-1]},
            {**MOONCAKE, "hash_ids": [2**64]},
            {**MOONCAKE, "request_id": "\ud800"},
        ],
    )
    for problem in (
        "5 of 6 rows cannot be read",
        "line 2: input_length -1, expected a number of tokens >= 0",
        "line 3: timestamp 'soon', expected a time in ms",
        "line 4: hash_ids [-1], expected a list of integers from 0 to 2**64 - 1",
        "line 6: request_id '\\ud800', expected a text",
    ):
        assert problem in message


def test_block_sizes_that_fit() -> None:
    def fitting(*pairs: tuple[int, int], wanted: int | None = None) -> int | None:
        rows = [{"p": tokens, "h": [0] * blocks} for tokens, blocks in pairs]
        return fitting_block_tokens(rows, "p", "h", wanted)

    assert fitting((33, 3), (100, 7)) == 16
    assert fitting((33, 3), (100, 7), wanted=15) == 15
    assert fitting((20, 2)) == 16
    assert fitting((27, 3), (31, 4)) == 9
    assert fitting((512, 1), (3, 1)) is None
    assert fitting((33, 3), (33, 2)) is None
    assert fitting((0, 0)) is None


# --- real and example files ------------------------------------------------------------------------------------------


@needs_traces
@pytest.mark.parametrize(
    ("name", "trace", "format", "rows", "span_s", "mean_prompt"),
    [
        ("mooncake_conversation_0-20min.jsonl", {}, "mooncake", 3658, 1199.999, 13403),
        ("mooncake_synthetic_0-8min.jsonl", {}, "mooncake", 1795, 479.731, 12074),
        ("mooncake_arxiv_first20.jsonl", {}, "mooncake", 20, 3.052, 12813),
        ("mooncake_arxiv_mixed_toolagent_12s.jsonl", {}, "mooncake", 93, 12.215, 7695),
        ("ragpulse_days1-2.jsonl", {}, "ragpulse", 2624, 172_795, 2921),
        ("llmservingsim_mixed.jsonl", {}, "llmservingsim", 608, 60.898, 9218),
        ("sharegpt300_blk16_seconds.jsonl", {"time_unit": "s"}, "mooncake", 300, 29.137, 858),
        ("vllm_requests_rtxpro6000_llama31_8b.jsonl", {}, "vllm-records", 300, 29.121, 858),
    ],
)
def test_the_real_files(
    name: str, trace: dict[str, Any], format: str, rows: int, span_s: float, mean_prompt: int
) -> None:
    found = Read(TRACES / name, **trace)
    assert (found.format, len(found.columns)) == (format, rows)
    time_ns = found.columns.time_ns
    assert (int(time_ns.max()) - int(time_ns.min())) / S == pytest.approx(span_s, abs=0.001)
    assert float(found.columns.prompt_tokens.mean()) == pytest.approx(mean_prompt, abs=1)


@needs_traces
@pytest.mark.parametrize(
    ("name", "format", "prompts", "skipped"),
    [
        ("bailian_blk16.jsonl", "bailian", [120, 33, 210, 48], 0),
        ("langfuse_observations_v2.jsonl", "langfuse", [1021, 1021], 2),
        ("langfuse_api_observations.jsonl", "langfuse", [1021], 0),
        ("litellm_standard_logging.jsonl", "litellm", [1021], 0),
        ("llmservingsim_agentic.jsonl", "llmservingsim", [1472, 1472, 1734], 1),
        ("mooncake_sessions.jsonl", "mooncake", [600, 64, 1100, 130], 0),
        ("mooncake_u64_hashes.jsonl", "mooncake", [512, 512, 512], 0),
        ("otel_genai_spans.jsonl", "otel", [1021, 1300], 3),
        ("otlp_vllm.json", "otlp", [1021, 77, 4096], 2),
    ],
)
def test_the_example_files(name: str, format: str, prompts: list[int], skipped: int) -> None:
    found = Read(TRACES / "format_examples" / name)
    assert (found.format, found.prompt_tokens) == (format, prompts)
    assert sum(int(note.split()[1]) for note in found.notes if note.startswith("skipped")) == skipped


@needs_traces
@pytest.mark.parametrize("name", ["vllm_console.log", "vllm_custom.jsonl", "sharegpt_tiny.json"])
def test_the_example_files_that_are_no_logs(name: str) -> None:
    with pytest.raises(InputError, match="token"):
        Read(TRACES / "format_examples" / name)
