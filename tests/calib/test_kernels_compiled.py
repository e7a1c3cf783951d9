"""Kernels compile for an A100 and an H100 without either: they fit shared memory and spill no registers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

# One of each kind, with the tiles that take most registers and shared memory; the rest are other sizes of these.
REPRESENTATIVE = [
    "gemm 128x256x64/1",
    "gemm 128x128x64/1",
    "gemm 64x128x64/1",
    "gemm 64x64x64/1",
    "gemm 32x64x128/4",
    "gemm 16x64x128/4",
    "gemm 16x32x256/1",
    "gemm 128x128x64/1 uneven",
    "sum_splits 4",
    "decode d128 block16",
    "decode d128 block64 split",
    "decode d64 block16 split",
    "join_splits d128",
    "prefill d64 block16",
    "prefill d128 block16",
    "prefill d256 block16",
    "mixed d128 block32",
    "mixed d256 block16",
    "add_rms_norm 16384",
    "silu_and_mul",
    "rotary_kv_write d128",
]

COMPILE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
import torch
from calib.verify.compiled import compile_all, variants

major, cache, *names = sys.argv[1:]
listed = {each.name: each for each in variants((int(major), 0), torch.bfloat16)}
reports = compile_all([listed[name] for name in names], (int(major), 0), workers=2, cache_dir=Path(cache))
print(json.dumps([len(listed), [asdict(report) for report in reports]]))
"""

# A launch, as Triton is about to compile it, beside the variant that was made of it.
AS_LAUNCHED = """
import json
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from calib.verify.compiled import named_launches, source_of, variant_of

class NoGpu:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device):
        return 0

seen = []
def about_to_compile(*, compile, **rest):
    seen.append(compile)
    return True

driver.set_active(NoGpu())
knobs.runtime.jit_cache_hook = about_to_compile
different = []
launches = list(named_launches((9, 0), torch.bfloat16))
for name, launch in launches:
    launch.run()
    variant, compiled = variant_of(name, launch), seen[-1]
    source = source_of(variant)
    mine = (source.signature, source.constants, source.attrs, variant.num_warps, variant.num_stages)
    attributes = {key: value for key, value in compiled["configs"][0].items() if value}
    theirs = (compiled["signature"], compiled["constants"], attributes, compiled["num_warps"], compiled["num_stages"])
    if mine != theirs:
        different.append((name, repr(mine), repr(theirs)))
print(json.dumps([len(launches), len(seen), different]))
"""

FAULTY = """
import json
from dataclasses import asdict, replace
import torch
from calib.verify import compiled
from calib.verify.compiled import compile_variant, variants

wanted = {each.name: each for each in variants((8, 0), torch.bfloat16)}
gemm = wanted["gemm 128x256x64/1"]
reports = [
    compile_variant(replace(wanted["prefill d128 block16"], num_warps=4), (8, 0)),
    compile_variant(replace(gemm, num_stages=6), (8, 0)),
    compile_variant(replace(gemm, constants=gemm.constants[1:]), (8, 0)),
]
compiled.tool = lambda name: None
reports.append(compile_variant(wanted["silu_and_mul"], (8, 0)))
print(json.dumps([asdict(report) for report in reports]))
"""


def printed(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("major", "limit"), [(8, 166_912), (9, 232_448)])
def test_kernels_fit_and_do_not_spill(major: int, limit: int, run_python: Any, tmp_path: Path) -> None:
    total, reports = printed(run_python(COMPILE, str(major), str(tmp_path / "cache"), *REPRESENTATIVE, interpret=False))
    assert [report for report in reports if not report["ok"]] == []
    assert [report["name"] for report in reports] == REPRESENTATIVE
    assert total <= 60
    assert {report["target"] for report in reports} == {f"cuda:{major}0"}
    for report in reports:
        assert 0 <= report["shared_bytes"] <= limit
        assert report["stack_bytes"] == report["spill_stores"] == report["spill_loads"] == 0
        assert 16 <= report["registers"] <= 255


def test_a_variant_is_what_a_launch_compiles(run_python: Any) -> None:
    total, compiled, different = printed(run_python(AS_LAUNCHED, interpret=False))
    assert different == []
    assert compiled == total > 50


def test_a_report_says_what_is_wrong(run_python: Any) -> None:
    spilling, too_large, broken, unread = printed(run_python(FAULTY, interpret=False))
    assert not spilling["ok"]
    assert "spills registers" in spilling["reason"]
    assert min(spilling["stack_bytes"], spilling["spill_stores"], spilling["spill_loads"]) > 0
    assert not too_large["ok"]
    assert too_large["shared_bytes"] > 166_912
    assert "the GPU has 166912" in too_large["reason"]
    assert not broken["ok"]
    assert broken["reason"].startswith("does not compile")
    assert broken["shared_bytes"] is None
    assert not unread["ok"]
    assert "no cuobjdump" in unread["reason"]
    assert unread["spill_stores"] is None
    assert unread["shared_bytes"] is not None
