"""Profiles fitted to tables of which the right answer is known, and what is said of tables that are wrong."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import decode_us, gemm_us, prefill_us, rows, text

from calib import CalibrationError
from calib.fit.fit import FitResult, fit_table
from calib.table import read_table
from simkit.latency.profile import SCALARS, Heads, Profile, Varlen, launch_us, parse_profile
from simkit.specs.hardware import load_gpu

A100 = load_gpu("a100-sxm4-80gb")
HEADS = {"num_heads": np.array(32.0), "num_kv_heads": np.array(8.0), "head_dim": np.array(128.0)}


def fit(tmp_path: Path, table: str) -> FitResult:
    path = tmp_path / "table.csv"
    path.write_text(table, encoding="utf-8")
    return fit_table(read_table(path), A100, "made-up", {"measured_by": "a test"})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return fit(tmp_path_factory.mktemp("fit"), text())


def us(profile: Profile, op: str, **sizes: float) -> float:
    found = profile.ops[op, "bfloat16"].predict(
        {name: np.array([float(v)]) for name, v in sizes.items()} | (HEADS if "attention" in op else {})
    )
    return float(found.us[0])


def report(result: FitResult, op: str) -> Any:
    return next(report for report in result.reports if report.op == op)


def test_measured_sizes_come_back(fitted: FitResult) -> None:
    """To the per mille in which residuals are stored."""
    profile = fitted.profile
    assert us(profile, "gemm", m=64, n=4096, k=2048) == pytest.approx(gemm_us(64, 4096, 2048), rel=1e-3)
    assert us(profile, "attention_decode", batch=16, kv_len=1024) == pytest.approx(decode_us(16, 1024, 32, 8), rel=1e-3)
    assert us(profile, "attention_prefill", batch=2, q_len=1024, kv_len=0) == pytest.approx(
        prefill_us(2, 1024, 0, 32), rel=1e-3
    )


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4096, 4096), (300, 6144, 4096), (1500, 3000, 3000), (90, 10000, 600)])
def test_sizes_between_are_interpolated(fitted: FitResult, m: int, n: int, k: int) -> None:
    """The wave in the sizes has an amplitude of 15 %: the physics alone would miss by that."""
    assert us(fitted.profile, "gemm", m=m, n=n, k=k) == pytest.approx(gemm_us(m, n, k), rel=0.06)


def test_attention_between_sizes_is_interpolated(fitted: FitResult) -> None:
    assert us(fitted.profile, "attention_decode", batch=24, kv_len=700) == pytest.approx(
        decode_us(24, 700, 32, 8), rel=0.03
    )
    assert us(fitted.profile, "attention_prefill", batch=1, q_len=700, kv_len=0) == pytest.approx(
        prefill_us(1, 700, 0, 32), rel=0.05
    )


def test_a_chunk_over_cached_tokens_is_priced_by_its_pairs(fitted: FitResult) -> None:
    """No row has cached tokens: the physics carries the edge of the table on, and says so."""
    fit_ = fitted.profile.ops["attention_prefill", "bfloat16"]
    sizes = {"batch": np.array([1.0]), "q_len": np.array([512.0]), "kv_len": np.array([8192.0])}
    found = fit_.predict(sizes | HEADS)
    assert found.extrapolated[0]
    assert found.us[0] == pytest.approx(prefill_us(1, 512, 8192, 32), rel=0.25)


def test_heads_between_measured_ones_are_blended_and_tagged(fitted: FitResult) -> None:
    fit_ = fitted.profile.ops["attention_decode", "bfloat16"]
    sizes = {"batch": np.array([64.0]), "kv_len": np.array([1024.0]), "head_dim": np.array(128.0)}
    found = fit_.predict(sizes | {"num_heads": np.array(24.0), "num_kv_heads": np.array(8.0)})
    assert found.us[0] == pytest.approx(decode_us(64, 1024, 24, 8), rel=0.01)
    assert found.extrapolated[0]


def test_kv_heads_beyond_the_table_are_a_larger_batch_of_its_heads(fitted: FitResult) -> None:
    """32 heads with a KV head each are four times the batch of 8 with 8, and tagged."""
    fit_ = fitted.profile.ops["attention_decode", "bfloat16"]
    many = fit_.predict(
        {"batch": np.array([16.0]), "kv_len": np.array([1024.0]), "num_heads": np.array(32.0),
         "num_kv_heads": np.array(32.0), "head_dim": np.array(128.0)}
    )  # fmt: skip
    few = fit_.predict(
        {"batch": np.array([64.0]), "kv_len": np.array([1024.0]), "num_heads": np.array(8.0),
         "num_kv_heads": np.array(8.0), "head_dim": np.array(128.0)}
    )  # fmt: skip
    assert many.us[0] == pytest.approx(few.us[0], rel=1e-9)
    assert many.extrapolated[0]
    assert not few.extrapolated[0]


def test_a_gemm_wider_than_the_table_scales_the_widest(fitted: FitResult) -> None:
    fit_ = fitted.profile.ops["gemm", "bfloat16"]
    wide, widest = (
        fit_.predict({"m": np.array([256.0]), "n": np.array([n]), "k": np.array([4096.0])}) for n in (65536.0, 16384.0)
    )
    assert wide.extrapolated[0]
    assert not widest.extrapolated[0]
    assert wide.us[0] / widest.us[0] == pytest.approx(4.0, rel=0.1)


def test_nothing_is_faster_than_the_hardware(fitted: FitResult) -> None:
    rng = np.random.default_rng(1)
    m, n, k = (np.exp(rng.uniform(0, 14, 4000)) for _ in range(3))
    found = fitted.profile.ops["gemm", "bfloat16"].predict({"m": m, "n": n, "k": k})
    limit = np.maximum(2 * m * n * k / 312e12, 2 * (m * k + n * k + m * n) / 2.039e12) * 1e6
    assert (found.us >= limit * (1 - 1e-12)).all()


def test_held_out_errors_are_small_where_the_truth_is_smooth(fitted: FitResult) -> None:
    for op, bound in (("gemm", 6.0), ("attention_decode", 2.0), ("attention_prefill", 4.0)):
        score = report(fitted, op).score
        assert score.inside.num > 5
        assert score.inside.mape_pct < bound
    gemm = report(fitted, "gemm").score
    assert gemm.physics_only.mape_pct > 2 * gemm.inside.mape_pct
    assert set(gemm.beyond) == {"m", "n", "k"}


def test_a_profile_is_what_its_text_says(fitted: FitResult) -> None:
    again = parse_profile(fitted.text, "again")
    assert us(again, "gemm", m=77, n=5000, k=3000) == us(fitted.profile, "gemm", m=77, n=5000, k=3000)
    assert json.loads(fitted.text)["provenance"]["table_rows"] == len(list(rows()))


def test_the_same_table_gives_the_same_bytes(tmp_path: Path, fitted: FitResult) -> None:
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(text().encode(), mtime=0))
    again = fit_table(read_table(packed), A100, "made-up", {"measured_by": "a test"})
    plain, hashed = json.loads(fitted.text), json.loads(again.text)
    plain["provenance"].pop("table_sha256"), hashed["provenance"].pop("table_sha256")
    assert plain == hashed


def test_rows_that_beat_the_hardware_are_refused_and_listed(tmp_path: Path) -> None:
    table = list(rows())
    for row in table[:3]:
        row["latency_us"] = 1e-3
    result = fit(tmp_path, text(table))
    assert len(report(result, "gemm").refused) == 3
    assert "m=1 n=256 k=256: 0.001 us" in report(result, "gemm").refused[0]
    assert us(result.profile, "gemm", m=1, n=256, k=256) > 1.0


def test_equal_sizes_become_their_median_and_far_ones_are_a_warning(tmp_path: Path) -> None:
    table = list(rows())
    same = dict(table[40])
    table += [same | {"latency_us": same["latency_us"] * factor} for factor in (1.1, 1.5)]
    table.append(dict(table[50], latency_us=table[50]["latency_us"] * 1.2))
    gemm = report(fit(tmp_path, text(table)), "gemm")
    assert (gemm.num_merged, len(gemm.far_apart)) == (2, 1)
    assert "3 measurements, slowest 1.50 x fastest" in gemm.far_apart[0]
    assert f"{same['latency_us'] * 1.1:g} us" in gemm.far_apart[0]


def test_a_lone_spike_is_listed_and_kept(tmp_path: Path) -> None:
    table = list(rows())
    spike = next(row for row in table if (row.get("m"), row.get("n"), row.get("k")) == (64, 2048, 1024))
    spike["latency_us"] *= 3
    result = fit(tmp_path, text(table))
    assert len(report(result, "gemm").outliers) == 1
    assert "m=64 n=2048 k=1024" in report(result, "gemm").outliers[0]
    assert us(result.profile, "gemm", m=64, n=2048, k=1024) == pytest.approx(spike["latency_us"], rel=1e-3)


def test_holes_between_measured_cells_are_filled_and_counted(tmp_path: Path) -> None:
    hole = {"op": "gemm", "m": 128, "n": 4096, "k": 2048}
    table = [row for row in rows() if not hole.items() <= row.items()]
    result = fit(tmp_path, text(table))
    assert report(result, "gemm").num_filled == 1
    found = result.profile.ops["gemm", "bfloat16"].predict(
        {"m": np.array([128.0]), "n": np.array([4096.0]), "k": np.array([2048.0])}
    )
    assert not found.extrapolated[0]
    assert found.us[0] == pytest.approx(gemm_us(128, 4096, 2048), rel=0.08)


@pytest.mark.parametrize(("factor", "unit"), [(1e3, "nanoseconds"), (1e-3, "milliseconds")])
@pytest.mark.parametrize("op", ["", "attention_decode"])
def test_wrong_units_stop_with_a_hint(tmp_path: Path, factor: float, unit: str, op: str) -> None:
    """Of the whole table, or of one op."""
    table = [row | {"latency_us": row["latency_us"] * (factor if op in ("", row["op"]) else 1)} for row in rows()]
    with pytest.raises(CalibrationError, match=unit):
        fit(tmp_path, text(table))


def test_missing_columns_and_values(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="missing column latency_us"):
        fit(tmp_path, text().replace("latency_us", "latency"))
    with pytest.raises(CalibrationError, match="no usable row"):
        fit(tmp_path, text([]))
    with pytest.raises(CalibrationError, match=r"table.csv:1: missing column k, which rows of gemm need"):
        fit(tmp_path, text().replace(",k,", ",depth,", 1))
    table = list(rows())
    table[0]["latency_us"], table[1]["k"], table[2]["latency_us"] = "NaN", "", -1
    table.append({"op": "flash", "latency_us": 1.0})
    result = fit(tmp_path, text(table))
    assert len(result.unusable) == 4
    assert "table.csv:2: gemm bfloat16: latency_us is missing or out of range" in result.unusable
    assert "table.csv:3: gemm bfloat16: k is missing or out of range" in result.unusable
    assert any("flash bfloat16: not known, ignored" in line for line in result.unusable)
    assert report(result, "gemm").num_rows == len([row for row in rows() if row["op"] == "gemm"]) - 3


@pytest.mark.parametrize(
    "wrong",
    [{"m": 1.5}, {"m": 0}, {"m": 1e300}, {"latency_us": 1e300}, {"latency_us": "fast"}, {"op": ""}, {"dtype": ""}],
)
def test_a_row_that_makes_no_sense_is_listed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    table = list(rows())
    table[7] |= wrong
    result = fit(tmp_path, text(table))
    (line,) = result.unusable
    assert line.startswith("table.csv:9: ")
    assert report(result, "gemm").num_rows == len([row for row in rows() if row["op"] == "gemm"]) - 1


def test_more_kv_heads_than_heads_make_no_sense(tmp_path: Path) -> None:
    table = list(rows())
    index = next(i for i, row in enumerate(table) if row["op"] == "attention_decode")
    table[index]["num_kv_heads"] = 64
    assert "num_kv_heads is missing or out of range" in fit(tmp_path, text(table)).unusable[0]


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    packed = bytearray(gzip.compress(text().encode(), mtime=0))
    packed[200:260] = bytes(60)
    path.write_bytes(bytes(packed))
    with pytest.raises(CalibrationError, match=r"table.csv.gz: not a CSV file: ") as error:
        read_table(path)
    assert "\n" not in str(error.value)


def test_sizes_that_hardly_repeat_are_refused_before_memory_runs_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {name: rng.choice(np.arange(64, 6000), 300, replace=False) for name in ("m", "n", "k")}
    odd = [
        {"op": "gemm", "latency_us": 5e3, **{name: int(values[i]) for name, values in sizes.items()}}
        for i in range(300)
    ]
    with pytest.raises(CalibrationError, match=r"shapes make a grid of .* cells .*: measure combinations of few sizes"):
        fit(tmp_path, text([*odd, *(row for row in rows() if row["op"] != "gemm")]))


TRUE_RULE = Varlen(
    floor_us=3.5, cta_us=2.3, block_us=2.55, lone_block_us=2.8, empty_cta_us=0.37, tail_share=0.6, crowded_share=0.14,
    reread_base=1.18, reread_per_64_seqs=1.29, l2_from_mb=60.0, l2_to_mb=209.0, slots=108.0, bytes_per_us=2.039e6,
)  # fmt: skip


def mixed_rows(num_heads: int, num_kv_heads: int) -> list[dict[str, Any]]:
    """Launches of a chunk beside decodes that take exactly what a rule of known constants says."""
    heads, found = Heads(num_heads, num_kv_heads, 128, 2.0), []
    for q, before, seqs, each in itertools.product(
        (64, 128, 256, 1024), (0, 1024), (4, 16, 64, 128), (128, 512, 2048, 8192)
    ):
        edge = math.ceil((each + 1) / 128) - each / 128
        us = launch_us(
            TRUE_RULE, heads, 1, q, before, seqs, seqs * each, each, SCALARS, decode_edge=edge, chunk_edge=0.25
        )
        sizes = {"q_len": q, "kv_len": before, "decode_batch": seqs, "decode_kv_len": each}
        shape = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": 128}
        found.append({"op": "attention_mixed", **sizes, **shape, "latency_us": us})
    return found


@pytest.mark.parametrize("shapes", [[(32, 8)], [(32, 8), (16, 2)], [(16, 2), (32, 8)]])
def test_launches_of_several_shapes_of_heads_are_fitted_each_as_what_it_is(
    tmp_path: Path, shapes: list[tuple[int, int]]
) -> None:
    table = [*rows(), *(row for shape in shapes for row in mixed_rows(*shape))]
    mixed = json.loads(fit(tmp_path, text(table)).text)["mixed"]
    assert mixed["measured"] is True
    assert mixed["heads"] == sorted([heads, kv_heads, 128] for heads, kv_heads in shapes)
    assert mixed["largest"] == {"q_len": 1024.0, "kv_len": 1024.0, "seqs": 128.0, "longest": 8192.0}
    for name in ("cta_us", "block_us", "lone_block_us", "empty_cta_us"):
        assert mixed["constants"][name] == pytest.approx(getattr(TRUE_RULE, name), rel=0.05)


def test_what_unequal_decodes_cost_is_found(tmp_path: Path) -> None:
    """By a table that has them: each longer than the mean by what the longest exceeds it, at a known rate."""
    found = []
    for seqs, long, count in itertools.product((32, 64, 96, 128), (1024, 4096, 16384), (1, 4, 8)):
        short = long // 16
        mean = ((seqs - count) * short + count * long) / seqs
        us = decode_us(seqs, mean, 32, 8) + 0.02 * (long - mean)
        sizes = {"batch": seqs, "kv_len": short, "decode_batch": count, "decode_kv_len": long}
        found.append(
            {"op": "attention_skew", **sizes, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "latency_us": us}
        )
    skew = json.loads(fit(tmp_path, text([*rows(), *found])).text)["skew"]
    assert (skew["measured"], skew["heads"]) == (True, [[32, 8, 128]])
    assert skew["us_per_token"] == pytest.approx(0.02, rel=0.1)


def test_a_table_without_a_main_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no usable row of attention_decode"):
        fit(tmp_path, text([row for row in rows() if row["op"] != "attention_decode"]))


def test_a_format_that_the_gpu_lacks_is_refused(tmp_path: Path) -> None:
    table = [*rows(), {"op": "gemm", "dtype": "fp8", "m": 1, "n": 64, "k": 64, "latency_us": 3.0}]
    with pytest.raises(CalibrationError, match="a100-sxm4-80gb has no fp8"):
        fit(tmp_path, text(table))


def test_host_times_become_a_line(tmp_path: Path) -> None:
    table = [*rows(), *({"op": "host_overhead", "m": m, "latency_us": 300 + 2.5 * m} for m in (1, 16, 64, 256))]
    host = fit(tmp_path, text(table)).profile.host
    assert host is not None
    assert (host.fixed_us, host.per_seq_us) == (pytest.approx(300), pytest.approx(2.5))
