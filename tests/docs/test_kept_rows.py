"""The kept rows of public benchmarks are whole, and the same as those of the shared table."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "data" / "serving_rows.csv"
SHARED = ROOT.parent / "shared" / "data" / "evidence" / "serving_bench.csv.gz"
MEASURED = ("duration_s", "output_tok_s", "total_tok_s", "mean_ttft_ms", "mean_tpot_ms")
NUMBERS = ("tp", "input_len", "output_len", "max_concurrency", "batch_size", "kv_cache_tokens")


def rows(path: Path) -> dict[str, dict[str, str]]:
    text = path.read_bytes()
    lines = (gzip.decompress(text) if path.suffix == ".gz" else text).decode().splitlines()
    return {row["row_id"]: row for row in csv.DictReader(lines)}


def test_every_row_names_its_source_and_measures_something() -> None:
    kept = rows(KEPT)
    assert len(kept) == sum(1 for _ in KEPT.open()) - 1  # no number twice
    for name, row in kept.items():
        assert row["source"], name
        assert any(row[column] for column in MEASURED), name


@pytest.mark.skipif(not SHARED.is_file(), reason="needs ../shared")
def test_kept_rows_are_those_of_the_shared_table() -> None:
    shared = rows(SHARED)
    for name, row in rows(KEPT).items():
        there = shared[name]
        for column in ("set", "model", "gpu", "input_len"):
            assert row[column].strip() == there[column].strip(), (name, column)
        for column in (*MEASURED, *NUMBERS):
            if row[column]:  # the shared table adds rates that it computed
                assert float(row[column]) == pytest.approx(float(there[column]), rel=1e-4), (name, column)
