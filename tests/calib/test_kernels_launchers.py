"""What launchers choose, and what they refuse before any kernel runs."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("torch and triton not installed: pip install 'simkit-llm[calibrate]'", allow_module_level=True)

import torch

from calib.kernels.gemm import CONFIGS, FULL_CONFIGS, candidates, gemm
from calib.kernels.launch import SHARED_LIMIT_BYTES, Launch, shared_limit_bytes
from calib.kernels.mixed import mixed
from calib.kernels.paged_decode import MAX_SPLITS, choose_splits, paged_decode
from calib.kernels.paged_prefill import paged_prefill
from calib.kernels.rms_norm import rms_norm
from calib.kernels.rotary_kv_write import rotary_kv_write
from calib.kernels.silu_and_mul import silu_and_mul
from calib.verify.cases import NOWHERE, Compared, Paged, paged_inputs
from calib.verify.verify import error, verify

HALF = torch.float16


def attention_inputs() -> dict[str, torch.Tensor]:
    return {
        "query": torch.zeros(3, 8, 64, dtype=HALF),
        "key_cache": torch.zeros(9, 16, 2, 64, dtype=HALF),
        "value_cache": torch.zeros(9, 16, 2, 64, dtype=HALF),
        "block_table": torch.zeros(3, 2, dtype=torch.int32),
        "seq_lens": torch.ones(3, dtype=torch.int32),
    }


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("capability", [*SHARED_LIMIT_BYTES, (0, 0)])
def test_gemm_candidates_are_few_and_fit(capability: tuple[int, int], element_bytes: int) -> None:
    known = CONFIGS if element_bytes == 2 else FULL_CONFIGS
    for m in (1, 16, 17, 32, 33, 64, 65, 128, 256, 257, 8192):
        for n, k in ((128, 128), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 8192)):
            found = candidates(m, n, k, capability, element_bytes)
            assert 1 <= len(found) <= 4
            assert len(set(found)) == len(found)
            assert set(found) <= set(known)
            assert all(config.shared_bytes(element_bytes) <= shared_limit_bytes(capability) for config in found)


def test_gemm_splits_the_sum_where_tiles_are_few() -> None:
    assert candidates(1, 4096, 4096, (9, 0))[0].split_k > 1
    assert candidates(1, 128256, 4096, (9, 0))[0].split_k == 1
    assert candidates(4096, 4096, 4096, (9, 0))[0].split_k == 1
    assert candidates(8, 4096, 512, (9, 0))[0].split_k == 1


def test_decode_splits_long_sequences_of_small_batches() -> None:
    assert choose_splits(batch=256, kv_heads=8, max_len=4096, num_sms=132) == 1
    assert choose_splits(batch=1, kv_heads=8, max_len=200, num_sms=132) == 1
    assert choose_splits(batch=0, kv_heads=8, max_len=4096, num_sms=132) == 1
    assert choose_splits(batch=4, kv_heads=8, max_len=0, num_sms=132) == 1
    one = choose_splits(batch=1, kv_heads=8, max_len=131_072, num_sms=132)
    assert 1 * 8 * one <= 2 * 132 < 1 * 8 * one * 1.2, "about one round of two programs a multiprocessor"
    assert choose_splits(batch=1, kv_heads=1, max_len=10**7, num_sms=132) <= MAX_SPLITS
    few, more = (choose_splits(batch=batch, kv_heads=8, max_len=32_768, num_sms=132) for batch in (8, 2))
    assert 1 < few < more


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("query", torch.zeros(3, 8, 64, dtype=torch.float64), "float16 or bfloat16 or float32"),
        ("query", torch.zeros(3, 8, 96, dtype=HALF), "key_cache: expected a contiguous"),
        ("query", torch.zeros(3, 7, 64, dtype=HALF), "multiple of 2 KV heads"),
        ("query", torch.zeros(3, 64, 8, dtype=HALF).transpose(1, 2), "not contiguous"),
        ("query", torch.zeros(2, 8, 64, dtype=HALF), r"\[3, \*, \*\]"),
        ("key_cache", torch.zeros(9, 16, 2, 64), "key_cache: expected"),
        ("value_cache", torch.zeros(9, 16, 1, 64, dtype=HALF), "value_cache: expected"),
        ("block_table", torch.zeros(3, 2, dtype=torch.int64), "int32"),
        ("seq_lens", torch.ones(2, dtype=torch.int32), r"seq_lens: expected a contiguous \[3\]"),
        ("out", torch.zeros(3, 8, 64), "out: expected"),
        ("num_splits", 0, "1 or more"),
    ],
)
def test_decode_refuses_what_does_not_fit(name: str, wrong: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        paged_decode(**{**attention_inputs(), name: wrong})  # type: ignore[arg-type]


def test_attention_refuses_sizes_that_no_kernel_has() -> None:
    inputs = attention_inputs()
    for name in ("key_cache", "value_cache"):
        inputs[name] = torch.zeros(9, 24, 2, 64, dtype=HALF)
    with pytest.raises(ValueError, match="a block size of"):
        paged_decode(**inputs)
    inputs = {**attention_inputs(), "query": torch.zeros(3, 8, 80, dtype=HALF)}
    for name in ("key_cache", "value_cache"):
        inputs[name] = torch.zeros(9, 16, 2, 80, dtype=HALF)
    with pytest.raises(ValueError, match="a head size of"):
        paged_decode(**inputs)


def test_chunks_need_a_start_and_an_end_each() -> None:
    starts = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"query_start_loc: expected a contiguous \[4\]"):
        mixed(**attention_inputs(), query_start_loc=starts, max_query_len=1)
    with pytest.raises(ValueError, match=r"query_start_loc: expected a contiguous \[4\]"):
        paged_prefill(**attention_inputs(), query_start_loc=starts, max_query_len=1)


def test_elementwise_launchers_refuse_what_does_not_fit() -> None:
    x, weight = torch.zeros(2, 6, dtype=HALF), torch.zeros(6, dtype=HALF)
    with pytest.raises(ValueError, match=r"weight: expected a contiguous \[6\]"):
        rms_norm(x, weight[:5])
    with pytest.raises(ValueError, match=r"residual: expected a contiguous \[2, 6\]"):
        rms_norm(x, weight, residual=x[:1])
    with pytest.raises(ValueError, match="an even number of columns"):
        silu_and_mul(x[:, :5].contiguous())
    with pytest.raises(ValueError, match=r"weight: expected a contiguous \[\*, 6\]"):
        gemm(x, torch.zeros(3, 7, dtype=HALF))
    with pytest.raises(ValueError, match=r"out: expected a contiguous \[2, 3\]"):
        gemm(x, torch.zeros(3, 6, dtype=HALF), out=x)
    query, key = torch.zeros(2, 4, 64, dtype=HALF), torch.zeros(2, 1, 64, dtype=HALF)
    cache, whole = torch.zeros(3, 16, 1, 64, dtype=HALF), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"cos_sin_cache: expected a contiguous \[\*, 64\]"):
        rotary_kv_write(query, key, key, torch.zeros(9, 32), whole, cache, cache, whole)
    with pytest.raises(ValueError, match=r"slot_mapping: expected a contiguous \[2\]"):
        rotary_kv_write(query, key, key, torch.zeros(9, 64), whole, cache, cache, whole[:1])


def test_an_empty_grid_is_not_launched() -> None:
    Launch(None, (0, 3), (), {}, 4, 1).run()
    assert gemm(torch.zeros(0, 8), torch.zeros(3, 8)).shape == (0, 3)
    assert rms_norm(torch.zeros(0, 8), torch.zeros(8)).shape == (0, 8)


def test_inputs_are_poisoned_wherever_no_token_is() -> None:
    inputs = paged_inputs(Paged(lengths=(20, 0), chunks=(1, 1)), HALF)
    assert inputs.block_table.shape == (2, 4)
    mine = inputs.block_table[0, :2].long()
    held = inputs.key_cache[mine].reshape(32, 1, 64)
    assert not held[:20].isnan().any()
    assert held[20:].isnan().all()
    others = [block for block in range(len(inputs.key_cache)) if block not in mine.tolist()]
    assert inputs.value_cache[others].isnan().all()
    assert others
    assert set(NOWHERE) <= set(inputs.block_table[1].tolist())
    assert not torch.equal(mine, mine.sort().values) or not torch.equal(mine, torch.arange(2))


def test_an_error_is_a_share_of_what_should_be_and_nan_is_never_close() -> None:
    want = torch.tensor([3.0, -3.0, 3.0]).double()
    assert error(Compared(want.float(), want)) == 0.0
    assert error(Compared(torch.tensor([3.0, -3.0, 3.6]), want)) == pytest.approx(0.1)
    assert error(Compared(torch.tensor([3.0, -3.0, float("nan")]), want)) == float("inf")
    assert error(Compared(torch.ones(3), torch.tensor([1.0, 1.0, float("nan")]).double())) == float("inf")
    assert error(Compared(torch.full((2,), float("nan")), torch.full((2,), float("nan")).double())) == 0.0
    assert error(Compared(torch.tensor([0.5]), torch.zeros(1).double())) == 0.5


def test_verify_knows_its_kernels_and_reports_what_does_not_launch() -> None:
    with pytest.raises(ValueError, match="kernels: expected some of"):
        verify("cpu", kernels=["gem"])
    checks = verify("cpu", dtypes=[torch.float32], kernels=["silu_and_mul"])
    if all(check.passed for check in checks):
        pytest.skip("kernels are interpreted in this process: TRITON_INTERPRET is set")
    assert not any(check.passed for check in checks), "compiled kernels cannot run on the CPU"
    assert all(check.note for check in checks)
