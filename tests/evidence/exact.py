"""What must hold exactly, whatever was measured: recorded decisions, formulas of queueing theory, limits of hardware.

Decisions are recorded passes of the real scheduler, replayed. Queues are those of `tests/theory/queues.py`, where the
delay has a formula. And no step may be predicted faster than HBM or peak FLOP/s allow: it must at least compute its
matrix products and attention at the peak of their format, and read its weights and its KV once, which `work` of a
latency model counts. The grid holds what a scheduler can put into a step. Host work and the padding of CUDA graphs,
which only add time, are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from evidence import NO_FIT, Line, Section, off_pct
from evidence.inputs import TESTS, module_of
from simkit.conformance.check import Verdict, check_file
from simkit.conformance.recorded import find_recordings, read_recording
from simkit.errors import InputError
from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment
from simkit.latency.effects import HOST
from simkit.latency.profile import Profile, list_profiles
from simkit.latency.roofline import Roofline
from simkit.specs.hardware import GpuSpec, load_gpu
from simkit.specs.models import load_model
from simkit.types import StepShapes
from simkit.units import NS_PER_S

# --- decisions --------------------------------------------------------------------------------------------------------
GOLDEN = TESTS / "golden"
RECORDED = "data/vllm_scheduler_traces"


def _decisions(shared: Path) -> Iterator[Line]:
    """One line for the traces that ship; one for all that were recorded, where `shared` has them.

    Not one trace may differ (`simkit conform` exits 1 when one does).
    """
    all_are_here = (shared / RECORDED).is_dir()
    yield _traces("recorded traces that ship (tests/golden)", GOLDEN, judged=not all_are_here)
    if all_are_here:
        yield _traces("all recorded traces", shared / RECORDED, judged=True)


@functools.cache
def _traces(evidence: str, folder: Path, *, judged: bool) -> Line:
    paths = find_recordings(folder)
    verdicts: list[Verdict] = [check_file(path) for path in paths]
    traces = [read_recording(path) for path in paths]
    integers = sum(_integers(trace.records) + _integers(trace.summary) for trace in traces)
    differ = [verdict for verdict in verdicts if not verdict.exact]
    passes = sum(verdict.num_passes for verdict in verdicts)
    preemptions = sum(verdict.num_preemptions for verdict in verdicts)
    first = "" if not differ else f"; first: {differ[0].case}"
    return Line(
        evidence=evidence,
        source=f"passes recorded from {', '.join(sorted({trace.source for trace in traces}))}",
        n=len(verdicts),
        metric="traces in which any decision differs",
        error_pct=100.0 * len(differ) / len(verdicts),
        bar_pct=0.0,
        judged=judged,
        fitted="none",
        rests_on=NO_FIT,
        text=f"{len(verdicts) - len(differ)} of {len(verdicts)} identical{first}",
        note=f"{passes:,} passes, {preemptions:,} preemptions, {integers:,} integers compared",
    )


def _integers(value: Any) -> int:
    """How many whole numbers a record holds, at any depth."""
    if isinstance(value, dict):
        return sum(map(_integers, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_integers, value))
    return int(isinstance(value, int) and not isinstance(value, bool))


DECISIONS = Section("Scheduler decisions", _decisions, needs=(RECORDED,), partial=True)


# --- queues -----------------------------------------------------------------------------------------------------------
ROUNDING_PCT = 1e-6
"""Of two numbers that differ in the last digits of a float."""


def _queues(shared: Path) -> Iterator[Line]:
    """A line a queue (mean delay), and a line a way to batch (throughput of slots that are always full)."""
    queues = module_of("theory/queues.py")
    for make in queues.QUEUES:
        yield _delay(make(), f"{queues.CONFIDENCE:.1%}")
    for batching in ("continuous", "static"):
        yield _saturation(queues.saturated(batching))


def _delay(found: Any, confidence: str) -> Line:
    """The bar is half of the interval: a line is a hit exactly where the interval holds the formula's value."""
    low, high = found.measured.interval_ms
    mean = float(found.measured.delays_ms.mean())
    others = ", ".join(f"{name} {value:.2f}" for name, value in found.others_ms.items())
    return Line(
        evidence=found.name,
        source=found.formula,
        n=len(found.measured.service_ms),
        metric="mean delay",
        error_pct=off_pct(mean, found.theory_ms),
        bar_pct=100.0 * (high - low) / 2 / found.theory_ms,
        fitted="none",
        rests_on=NO_FIT,
        text=(
            f"theory {found.theory_ms:.2f} ms, simulated {mean:.2f} ms, {confidence} interval {low:.2f} to {high:.2f}"
        ),
        note=f"outside the interval: {others} ms" if others else "",
    )


def _saturation(found: Any) -> Line:
    return Line(
        evidence=f"slots that are always full, {found.batching} batching",
        source="batch / step time",
        n=int(found.summary["num_requests"]["finished"]),
        metric="output tokens per second",
        error_pct=off_pct(found.measured_per_s, found.theory_per_s),
        bar_pct=ROUNDING_PCT,
        fitted="none",
        rests_on=NO_FIT,
        text=f"theory {found.theory_per_s:,.0f}/s, simulated {found.measured_per_s:,.0f}/s",
    )


THEORY = Section("Queueing theory", _queues)


# --- limits of the hardware -------------------------------------------------------------------------------------------
PEER = "twice the peak was predicted by a peer (named with this bar, not run again here)"
MODELS = ("llama-3.1-8b", "qwen2-7b", "mistral-7b", "qwen3-32b", "opt-13b", "llama-3.1-70b", "qwen3-30b-a3b")
"""Those of the runs on this page, a large one, and one of experts."""
RANKS = (1, 2, 4, 8)
QUANTIZATIONS = (None, "fp8")
ROUNDING = 1e-6
"""A step time is a whole number of ns, and prices are sums in floating point."""

SEQS = (0, 1, 2, 3, 4, 8, 15, 16, 32, 64, 100, 128, 256, 384, 512, 1024)
CONTEXTS = (1, 16, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
CHUNKS = (0, 1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BEFORE = (0, 512, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the grid found of one latency model: steps, how many beat a limit, the fastest as a share of its limit's
    time (1 is at the limit), and how many prices of kernels were raised to what the hardware allows."""

    steps: int
    too_fast: int
    nearest: float
    clamped: int


def _limits(shared: Path) -> list[Line]:
    """A line a shipped profile, one for data sheets (no profile), and one for all of them."""
    found = [_steps(f"steps on {name}", [checks]) for name, checks in _by_profile().items()]
    return [_steps("every step of the grid", list(_by_profile().values()), judged=True), *found]


@functools.cache
def _by_profile() -> dict[str, list[Checked]]:
    found = {profile.name: [check(model) for model in _calibrated(profile)] for profile in list_profiles()}
    return found | {"data sheets alone (roofline)": [check(model) for model in _rooflines()]}


def grid() -> StepShapes:
    """Decodes of equal contexts beside one chunk: every combination that computes something."""
    rows = [
        (seqs, seqs * context, context if seqs else 0, chunk, before, chunk * before + chunk * (chunk + 1) // 2)
        for seqs, context, chunk, before in product(SEQS, CONTEXTS, CHUNKS, BEFORE)
        if (seqs or chunk) and (seqs or context == CONTEXTS[0]) and (chunk or before == BEFORE[0])
    ]
    seqs, context, longest, chunk, before, pairs = np.array(rows, dtype=np.int64).T
    return StepShapes.of(
        len(rows),
        decode_seqs=seqs,
        decode_context_sum=context,
        decode_context_max=longest,
        prefill_tokens=chunk,
        prefill_context_tokens=np.where(chunk > 0, before, 0),
        prefill_pairs=pairs,
        sampled_seqs=seqs + (chunk > 0),
    )


def check(model: Calibrated | Roofline) -> Checked:
    """Every step of the grid against the time that its FLOPs and bytes take at the peaks of the data sheet."""
    shapes = grid()
    flops, moved = model.work(shapes)
    assert model.peak_flops_per_s is not None
    assert model.peak_bytes_per_s is not None
    fastest_ns = NS_PER_S * np.maximum(flops / model.peak_flops_per_s, moved / model.peak_bytes_per_s)
    share = model.gpu_ns(shapes) / fastest_ns
    return Checked(
        steps=len(share),
        too_fast=int((share < 1.0 - ROUNDING).sum()),
        nearest=float(share.min()),
        clamped=getattr(model, "num_clamped", 0),
    )


def _calibrated(profile: Profile) -> Iterator[Calibrated]:
    """The models that the profile covers, at every parallel size and format that fit it."""
    gpu = load_gpu(str(profile.gpu["name"]))
    for name, ranks, quantization in product(MODELS, RANKS, QUANTIZATIONS):
        try:
            yield Calibrated(_deployment(gpu, name, ranks, quantization), profile)
        except InputError:
            continue  # heads that do not split, or an op that was not measured: such a run is refused, too


def _rooflines() -> Iterator[Roofline]:
    for profile, name, ranks, quantization in product(list_profiles(), MODELS, RANKS, QUANTIZATIONS):
        gpu = load_gpu(str(profile.gpu["name"]))
        try:
            yield Roofline(_deployment(gpu, name, ranks, quantization))
        except InputError:
            continue


def _deployment(gpu: GpuSpec, name: str, ranks: int, quantization: str | None) -> Deployment:
    return Deployment(
        load_model(name),
        gpu,
        tensor_parallel_size=ranks,
        interconnect="nvlink" if gpu.nvlink_bytes_per_s else "pcie",
        dtype="bfloat16",
        quantization=quantization,
        kv_cache_dtype="auto",
        async_scheduling=True,
        without=(HOST,),
    )


def _steps(evidence: str, groups: Sequence[list[Checked]], *, judged: bool = False) -> Line:
    checks = [check for group in groups for check in group]
    steps, too_fast = sum(c.steps for c in checks), sum(c.too_fast for c in checks)
    nearest, clamped = min(c.nearest for c in checks), sum(c.clamped for c in checks)
    return Line(
        evidence=evidence,
        source=f"{len(checks)} models x parallel sizes x formats; peaks of the GPUs' data sheets",
        n=steps,
        metric="steps predicted faster than HBM or peak FLOP/s allow",
        error_pct=100.0 * too_fast / steps,
        bar_pct=0.0,
        judged=judged,
        peer=PEER if judged else "",
        fitted="none",
        rests_on=NO_FIT,
        text=f"{too_fast:,} of {steps:,}; the fastest step takes {nearest:.2f} times what the hardware needs",
        note=f"{clamped:,} prices of kernels were raised to what the hardware allows",
    )


LIMITS = Section("Hardware limits", _limits)
