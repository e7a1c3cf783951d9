"""The GPU registry and a user's GPU file."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from simkit.errors import InputError
from simkit.specs.hardware import is_alias, list_gpus, load_gpu

NAMES = """a100-sxm4-40gb a100-sxm4-80gb a100-pcie-40gb a100-pcie-80gb h100-sxm5-80gb h100-pcie-80gb h200-sxm-141gb
gh200-96gb b200-sxm-180gb l4-24gb l40s-48gb a10g-24gb t4-16gb v100-sxm2-32gb rtx-3090 rtx-4090 rtx-5090
rtx-a6000 rtx-pro-6000
mi300x"""

MINE: dict[str, Any] = {
    "memory_gib": 40,
    "hbm_bytes_per_s": 1.0e12,
    "peak_flops_per_s": {"bfloat16": 100.0e12},
    "pcie_bytes_per_s": 32.0e9,
    "nvlink_bytes_per_s": 0,
    "num_sms": 64,
    "compute_capability": "9.9",
}


def write(folder: Path, row: dict[str, Any]) -> str:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(row), encoding="utf-8")
    return str(file)


def refusal(name_or_path: str) -> str:
    with pytest.raises(InputError) as caught:
        load_gpu(name_or_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_twenty_gpus() -> None:
    assert [gpu.name for gpu in list_gpus()] == sorted(NAMES.split())


def test_figures_of_the_a100s() -> None:
    large, small = load_gpu("a100-sxm4-80gb"), load_gpu("A100-SXM4-40GB")
    assert large.hbm_bytes_per_s == 2.039e12
    assert small.hbm_bytes_per_s == 1.555e12
    assert large.peak_flops_per_s["bfloat16"] == 312e12
    assert "fp8" not in large.peak_flops_per_s
    assert (large.memory_bytes, large.memory_gib) == (80_000_000_000, 79.25)
    assert large.nvlink_bytes_per_s == 300e9


def test_peaks_are_dense() -> None:
    """A sparse figure taken for a dense one is off by two: 8-bit is twice 16-bit on every chip but the 3090 (4x int8,
    its 16-bit rate halved by fp32 accumulation), the 4090 and the 5090 (int8 alike)."""
    for gpu in list_gpus():
        half, fp8, int8 = (gpu.peak_flops_per_s.get(dtype) for dtype in ("float16", "fp8", "int8"))
        assert half is not None
        if fp8 is not None:
            assert fp8 == pytest.approx(2 * half, rel=0.02), gpu.name
        if int8 is not None:
            assert int8 == pytest.approx(
                (4 if gpu.name in ("rtx-3090", "rtx-4090", "rtx-5090") else 2) * half, rel=0.02
            ), gpu.name


def test_aliases_are_the_parts_of_a_baseboard() -> None:
    parts = {"h100": "h100-sxm5-80gb", "H200": "h200-sxm-141gb", "a100": "a100-sxm4-80gb", "b200": "b200-sxm-180gb"}
    assert {alias: load_gpu(alias).name for alias in parts} == parts
    assert [is_alias(name) for name in ("h100", "h100-sxm5-80gb", "H100-SXM5-80GB", "./mine.yaml")] == [
        True,
        False,
        True,
        False,
    ]
    assert refusal("h1000").startswith("hardware.gpu: 'h1000' is not known; did you mean 'h100'?")


def test_the_rtx_5090() -> None:
    gpu = load_gpu("rtx-5090")
    assert (gpu.memory_gib, gpu.hbm_bytes_per_s) == (31.4, 1.792e12)
    assert gpu.peak_flops_per_s["nvfp4"] == 4 * gpu.peak_flops_per_s["fp8"]


def test_every_gpu_has_sources_and_sane_figures() -> None:
    for gpu in list_gpus():
        assert (
            "data sheet" in gpu.sources["all"] or "white paper" in gpu.sources["all"] or "brief" in gpu.sources["all"]
        )
        assert gpu.sources["memory_gib"]
        assert 0.88 < gpu.memory_gib * 2**30 / gpu.memory_bytes < 1.08, gpu.name
        # FLOPs a byte at which compute and memory balance lie between 50 and 500 for every 16-bit chip.
        assert 50 < gpu.peak_flops_per_s["float16"] / gpu.hbm_bytes_per_s < 500, gpu.name


def test_specs_survive_pickling_and_asdict() -> None:
    gpu = load_gpu("rtx-4090")
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert asdict(gpu)["peak_flops_per_s"]["fp8"] == 330.3e12


def test_unknown_name_gives_the_nearest() -> None:
    message = refusal("a100-sxm-80gb")
    assert message == "hardware.gpu: 'a100-sxm-80gb' is not known; did you mean 'a100-sxm4-80gb'? (list: simkit gpus)"


def test_own_file(tmp_path: Path) -> None:
    gpu = load_gpu(write(tmp_path, MINE))
    assert (gpu.name, gpu.memory_gib, gpu.num_sms) == ("mine", 40.0, 64)
    assert dict(gpu.peak_flops_per_s) == {"bfloat16": 100e12}
    assert gpu.sources == {"all": str(tmp_path / "mine.yaml")}


def test_exponents_without_a_sign_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(MINE) + "\nmemory_bytes: 4.0e10\n", encoding="utf-8")
    assert load_gpu(str(file)).memory_bytes == 40_000_000_000


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hbm_bytes_per_sec": 1}, "hbm_bytes_per_sec: unknown key; did you mean 'hbm_bytes_per_s'?"),
        ({"num_sms": None}, "num_sms: expected a number >= 0, got None"),
        ({"num_sms": 1.5}, "num_sms: expected an integer >= 1, got 1.5"),
        ({"memory_gib": "lots"}, "memory_gib: expected a number >= 0, got 'lots'"),
        ({"memory_gib": 0}, "memory_gib: expected a number > 0, got 0"),
        ({"nvlink_bytes_per_s": -1}, "nvlink_bytes_per_s: expected a number >= 0, got -1"),
        ({"peak_flops_per_s": {"fp16": 1}}, "peak_flops_per_s.fp16: unknown dtype; expected one of float16, bfloat16"),
        ({"peak_flops_per_s": {"fp8": 0}}, "peak_flops_per_s.fp8: expected a number > 0, got 0; leave the dtype out"),
        ({"peak_flops_per_s": 3}, "peak_flops_per_s: expected a mapping"),
        ({"sources": "mine"}, "sources: expected a mapping"),
        ({"vendor": ["x"]}, "vendor: expected text, got ['x']"),
    ],
)
def test_bad_values_name_file_and_key(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    file = write(tmp_path, MINE | change)
    message = refusal(file)
    assert message.startswith(f"hardware.gpu: {file}: ")
    assert expected in message


def test_missing_key_file_and_syntax(tmp_path: Path) -> None:
    short = {key: value for key, value in MINE.items() if key != "num_sms"}
    assert refusal(write(tmp_path, short)).endswith("num_sms: missing")
    assert refusal("nowhere.yaml") == "hardware.gpu: nowhere.yaml: no such file or directory"
    file = tmp_path / "bad.yaml"
    file.write_text("num_sms: 1\n  x: [", encoding="utf-8")
    assert refusal(str(file)).startswith(f"hardware.gpu: {file}:2: not YAML: ")
    file.write_text("- 1\n", encoding="utf-8")
    assert "expected a mapping with the keys memory_gib" in refusal(str(file))
