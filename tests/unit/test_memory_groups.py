"""KV groups: every integer of the engine's own planner, and which engines group."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import simkit
from simkit.memory.groups import Group, Kind, LayerCache, block_bytes, group_layers, reserved_blocks, settled_blocks
from simkit.memory.layers import in_flight_tokens, kv_groups
from simkit.memory.one_table import one_table, windows
from simkit.memory.sizing import MemorySettings, size
from simkit.scenario import from_dict
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model

POOL = 40 * 2**30
GEMMA_27B = "SSSSSF" * 10 + "SS"


def attention(pattern: str, token_bytes: float, window: int) -> list[LayerCache]:
    """A layer a letter: full, sliding or chunked."""
    kinds = {"F": Kind.FULL, "S": Kind.SLIDING, "C": Kind.CHUNKED}
    return [LayerCache(kinds[c], token_bytes, 0 if c == "F" else window) for c in pattern]


def with_linear(states: int) -> list[LayerCache]:
    """Qwen3-Next-80B-A3B: three layers with a state to one of 2 x 256."""
    linear = LayerCache(Kind.LINEAR, state_bytes=1_097_728, states=states)
    return [linear, linear, linear, LayerCache(Kind.FULL, 2048)] * 12


class Case(NamedTuple):
    """A row of the planner's table: layers, context, budget, then (layers, blocks) of each group, and the pool."""

    name: str
    caches: list[LayerCache]
    length: int
    budget: int
    groups: list[tuple[int, int]]
    bytes_per_block: int
    blocks: int
    tokens: int
    at_once: float
    block_size: int = 16
    hybrid: bool = True


GPT_20B = attention("SF" * 12, 2048, 128)
GPT_120B = attention("SF" * 18, 2048, 128)
GEMMA = attention(GEMMA_27B, 8192, 1024)
SCOUT = attention("CCCF" * 12, 4096, 8192)
MISTRAL = attention("S" * 32, 4096, 4096)
CASES = [
    Case("gpt-oss-20b", GPT_20B, 131072, 8192, [(12, 1033), (12, 8192)], 393216, 109226, 1551920, 11.84),
    Case("gpt-oss-20b, 2,048", GPT_20B, 131072, 2048, [(12, 265), (12, 8192)], 393216, 109226, 1692854, 12.92),
    Case("gpt-oss-120b", GPT_120B, 131072, 8192, [(18, 1033), (18, 8192)], 589824, 72817, 1034609, 7.89),
    Case("gpt-oss-120b, 2,048", GPT_120B, 131072, 2048, [(18, 265), (18, 8192)], 589824, 72817, 1128564, 8.61),
    Case("gpt-oss-20b and a draft layer", attention("SF" * 12 + "F", 2048, 128), 131072, 8192,
         [(12, 1033), (13, 8192)], 425984, 100824, 1432542, 10.93),
    Case("the same, 2,048", attention("SF" * 12 + "F", 2048, 128), 131072, 2048, [(12, 265), (13, 8192)],
         425984, 100824, 1562634, 11.92),
    Case("gemma-3-27b", GEMMA, 131072, 8192, [(9, 1089)] * 4 + [(8, 1089)] * 2 + [(10, 8192)], 1310720, 32768,
         291658, 2.23),
    Case("gemma-3-27b, 2,048", GEMMA, 131072, 2048, [(9, 321)] * 4 + [(8, 321)] * 2 + [(10, 8192)], 1310720, 32768,
         424487, 3.24),
    Case("gemma-3-27b, short", GEMMA, 8192, 8192, [(9, 513)] * 4 + [(8, 513)] * 2 + [(10, 512)], 1310720, 32768,
         74773, 9.13),
    Case("gemma-3-27b, short, 2,048", GEMMA, 8192, 2048, [(9, 321)] * 4 + [(8, 321)] * 2 + [(10, 512)], 1310720,
         32768, 110104, 13.44),
    Case("gemma-2-9b", attention("SF" * 21, 8192, 4096), 8192, 8192, [(21, 513), (21, 512)], 2752512, 15603, 124702,
         15.22),
    Case("gemma-2-9b, 2,048", attention("SF" * 21, 8192, 4096), 8192, 2048, [(21, 513), (21, 512)], 2752512, 15603,
         124702, 15.22),
    Case("mistral-7b-v0.1", MISTRAL, 32768, 8192, [(32, 1281)], 2097152, 20480, 523878, 15.99),
    Case("mistral-7b-v0.1, 2,048", MISTRAL, 32768, 2048, [(32, 513)], 2097152, 20480, 1308164, 39.92),
    Case("Llama-4-Scout", SCOUT, 131072, 8192, [(12, 1536)] * 3 + [(12, 8192)], 786432, 54613, 559237, 4.27),
    Case("Llama-4-Scout, 2,048", SCOUT, 131072, 2048, [(12, 768)] * 3 + [(12, 8192)], 786432, 54613, 681996, 5.20),
    Case("Llama-4-Scout, not hybrid", SCOUT, 131072, 8192, [(48, 8192)], 3145728, 13653, 218448, 1.67, hybrid=False),
    Case("Qwen3-Next-80B-A3B", with_linear(2), 262144, 8192, [(12, 2)] * 3 + [(12, 482)], 13369344, 3212,
         1725423, 6.58),
    Case("the same without caching", with_linear(1), 262144, 8192, [(12, 1)] * 3 + [(12, 482)], 13369344, 3212,
         1736095, 6.62),
    Case("DeepSeek-V3", attention("F" * 61, 1152, 0), 163840, 8192, [(61, 2560)], 4497408, 9549, 611136, 3.73, 64),
    Case("DeepSeek-V3 and an MTP layer", attention("F" * 62, 1152, 0), 163840, 8192, [(62, 2560)], 4571136, 9395,
         601280, 3.67, 64),
    Case("Llama-3.1-8B", attention("F" * 32, 4096, 0), 131072, 8192, [(32, 8192)], 2097152, 20480, 327680, 2.50),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planner_of_the_engine(case: Case) -> None:
    """40 GiB on one rank, asynchronous: the table of the notes on hybrid caches, A3."""
    ahead = in_flight_tokens(case.budget, True, (0, 33, 0))
    groups = group_layers(case.caches, case.block_size, hybrid=case.hybrid)
    assert [(len(group.layers), group.reserved(case.length, ahead)) for group in groups] == case.groups
    assert block_bytes(groups, range(len(case.caches))) == case.bytes_per_block
    blocks = POOL // case.bytes_per_block
    need = reserved_blocks(groups, case.length, ahead)
    assert (blocks, int(blocks / need * case.length)) == (case.blocks, case.tokens)
    assert blocks / need == pytest.approx(case.at_once, abs=0.005)


@pytest.mark.parametrize(
    ("pattern", "sizes", "first"),
    [
        ("SSSSSF" * 8, [8] * 6, Kind.SLIDING),  # gemma-3-12b
        ("SSSSSF" * 5 + "SSSS", [5] * 5 + [4, 5], Kind.SLIDING),  # gemma-3-4b
        ("FSSS" * 9, [9] * 4, Kind.FULL),  # ministral-8b
    ],
)
def test_groups_of_other_models(pattern: str, sizes: list[int], first: Kind) -> None:
    groups = group_layers(attention(pattern, 4096, 1024), 16)
    assert [len(group.layers) for group in groups] == sizes
    assert groups[0].cache.kind is first
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(pattern)))


def test_layers_with_unlike_pages_have_unlike_blocks() -> None:
    """Full layers of 4 x 512 beside sliding ones of 16 x 256: a page of either is as large."""
    caches = [LayerCache(Kind.SLIDING, 16384, 1024)] * 5 + [LayerCache(Kind.FULL, 8192)]
    groups = group_layers(caches * 10, 16)
    assert {(group.cache.kind, group.block_size, group.page_bytes) for group in groups} == {
        (Kind.SLIDING, 16, 262144),
        (Kind.FULL, 32, 262144),
    }


def test_a_decoding_sequence_holds_a_window_and_no_more_than_its_length() -> None:
    sliding, full = group_layers(GPT_20B, 16)
    assert [(sliding.settled(tokens), full.settled(tokens)) for tokens in (1, 16, 17, 100, 1000)] == [
        (1, 1), (1, 1), (2, 2), (7, 7), (9, 63),
    ]  # fmt: skip
    assert settled_blocks((sliding, full), 1000) == 72


def groups_of(model: str, version: tuple[int, int, int], ranks: int = 1) -> tuple[Group, ...]:
    return kv_groups(load_model(model), ranks, 16, 2.0, version)


def test_which_engines_group() -> None:
    """Before 0.8 everything was kept, then windows where there are no full layers, since 0.9.1 everywhere."""
    kinds = {
        (model, version): [group.cache.kind.value for group in groups_of(model, version)]
        for model in ("gpt-oss-20b", "mistral-7b")
        for version in ((0, 7, 3), (0, 8, 5), (0, 10, 0))
    }
    assert kinds == {
        ("gpt-oss-20b", (0, 7, 3)): ["full"],
        ("gpt-oss-20b", (0, 8, 5)): ["full"],
        ("gpt-oss-20b", (0, 10, 0)): ["sliding", "full"],
        ("mistral-7b", (0, 7, 3)): ["full"],
        ("mistral-7b", (0, 8, 5)): ["sliding"],
        ("mistral-7b", (0, 10, 0)): ["sliding"],
    }
    assert [len(group.layers) for group in groups_of("gemma-3-27b", (0, 33, 0))] == [9, 9, 9, 9, 8, 8, 10]


def test_what_may_be_under_way_doubles_with_asynchronous_scheduling_since_0_26() -> None:
    """The same model and budget in 0.25.1 and 0.26 (vllm-project/vllm#49878)."""
    at = {(version, ahead): in_flight_tokens(8192, ahead, version) for version in ((0, 25, 1), (0, 26, 0))
          for ahead in (False, True)}  # fmt: skip
    assert at == {
        ((0, 25, 1), False): 8192,
        ((0, 25, 1), True): 8192,
        ((0, 26, 0), False): 8192,
        ((0, 26, 0), True): 16384,
    }


def asked(model: str, version: str, **changes: object) -> MemorySettings:
    settings = MemorySettings(
        model=load_model(model), gpu=load_gpu("h100-sxm5-80gb"), max_num_seqs=256, max_num_batched_tokens=8192,
        max_model_len=131072, quantization="mxfp4", num_gpu_blocks=20001, engine_version=version,
    )  # fmt: skip
    return MemorySettings(**{name: getattr(settings, name) for name in settings.__slots__} | changes)


def test_the_engines_own_line_by_version() -> None:
    """Blocks / groups x block size up to 0.20, then tokens of sequences of max_model_len."""
    old, new = size(asked("gpt-oss-120b", "0.19")), size(asked("gpt-oss-120b", "0.33"))
    assert old.logged_tokens == 20001 // 2 * 16
    assert old.blocks_of(131072) == 8192 + 521
    assert new.blocks_of(131072) == 8192 + 1033
    assert new.logged_tokens == int(20001 / 9225 * 131072)
    assert new.kv_tokens == int(20000 / 9225 * 131072)


def test_the_longest_sequence_that_fits() -> None:
    sizing = size(asked("gpt-oss-120b", "0.33", num_gpu_blocks=9226))
    assert sizing.blocks_of(sizing.longest) == 9225
    assert sizing.blocks_of(sizing.longest + 1) == 9226


def test_a_pipeline_keeps_its_layers_of_each_group() -> None:
    """Groups are formed over the whole model; a rank holds its share of each."""
    groups = groups_of("gemma-3-27b", (0, 33, 0))
    assert block_bytes(groups, range(31)) == block_bytes(groups, range(31, 62)) == 5 * 131072


# --- the one table of a run ------------------------------------------------------------------------------------------
def test_a_run_holds_as_many_sequences_as_the_engine() -> None:
    """Blocks of one table for sequences of one length: as many sequences as the groups hold of them."""
    settings = asked("gpt-oss-120b", "0.33", num_gpu_blocks=None, num_dummy_blocks=1)
    sizing = size(settings)
    for tokens in (100, 1000, 20_000, 100_000):
        table = one_table(settings, 20001, [tokens] * 50)
        of_engine = 20000 / sizing.settled_blocks_of(tokens)
        assert (table - 1) / -(-tokens // 16) == pytest.approx(of_engine, rel=0.001)
    assert one_table(settings, 20001, [100]) - 1 == 10000, "two tables of the same length"
    assert one_table(settings, 9300, [100]) - 1 == 131072 // 16, "the longest sequence fits alone"


def test_a_model_without_windows_keeps_its_blocks() -> None:
    settings = asked("llama-3.1-8b", "0.33", quantization=None)
    assert one_table(settings, 20001, [100, 1000]) == 20001
    assert windows(settings) is None
    assert windows(asked("gpt-oss-120b", "0.33")) == (
        "memory: 18 of 36 layers keep a window of 128 tokens; blocks are counted in one table, to hold as many "
        "sequences of this workload's lengths"
    )
    assert windows(asked("gpt-oss-120b", "0.8.5")) is None, "an engine that kept every layer in full"


@pytest.mark.parametrize("version", ["0.33", "0.8.5"])
def test_a_run_says_how_windows_are_counted(version: str) -> None:
    """gemma-3-27b with 1,200 tokens a sequence: 75 blocks of the full layers, 65 of each of six groups that slide."""
    scenario = from_dict(
        {
            "name": "windows",
            "model": "gemma-3-27b",
            "hardware": {"gpu": "h100-sxm5-80gb"},
            "engine": {"version": version, "max_model_len": 4096, "num_gpu_blocks": 4001},
            "workload": {
                "num_requests": 4,
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"dist": "fixed", "value": 1196},
                "output_tokens": {"dist": "fixed", "value": 8},
            },
        }
    )
    result = simkit.run(scenario)
    used = result.manifest["memory"]["num_gpu_blocks_used"] - 1
    notes = [note for note in result.manifest["notes"] if note.startswith("memory:")]
    if version == "0.33":
        assert used == 4000 * 75 // (75 + 6 * 65)
        assert len(notes) == 1
    else:
        assert (used, notes) == (4000, [])
