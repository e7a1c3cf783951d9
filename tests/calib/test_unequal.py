"""Decodes of unequal length: what a launch of them waits for, by a model of it, by a table, and in a real run.

The table has launches of two lengths only; none of drawn spreads is at hand. What stands for one is the model, which
the table confirms, and the end of a real run, when nobody is admitted any more and every step is a launch of decodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from one_launch import decodes_us, mixed_us, two_lengths, until_empty_us

from calib.table import Floats
from calib.tables import read_tables
from simkit import scenario
from simkit.engine.build import set_up
from simkit.latency.physics import SCALARS, Heads, launch_us
from simkit.latency.profile import load_profile
from simkit.latency.protocol import LatencyModel
from simkit.types import StepShapes

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
TABLES = [SHARED / "kernels" / f"rtx-pro-6000{part}.csv.gz" for part in ("", "-skew")]
RUN = SHARED / "runs" / "vllm-0.19_rtx-pro-6000_llama-3.1-8b" / "requests.jsonl"
ENGINE = ROOT / "scenarios" / "validate-rtx-pro-6000.yaml"
KV_HEADS, SLOTS = 8, 188
"""Of Llama-3.1-8B, and the SMs of RTX PRO 6000."""

PROFILE = load_profile("rtx-pro-6000")
DECODE = PROFILE.ops["attention_decode", "bfloat16"]
TOKENS_PER_US = DECODE.physics.bandwidth_fraction * DECODE.limits.bytes_per_s * 1e-6 / (2 * 128 * 2)
assert PROFILE.skew is not None
assert PROFILE.mixed.varlen is not None
SKEW, VARLEN, HEADS = PROFILE.skew, PROFILE.mixed.varlen, Heads(32, KV_HEADS, 128, 2.0)

needs_tables = pytest.mark.skipif(
    not all(path.exists() for path in TABLES), reason="the imported kernel tables are not here"
)
Rule = Callable[[Floats], float]


def by_longest(lengths: Floats) -> float:
    """What the profile adds to equal decodes."""
    return SKEW.us_per_token * float(lengths.max() - lengths.mean())


def by_upper_tail(kth: int, rate: float) -> Rule:
    """The same by the k-th longest, at the rate that the table of two lengths gives it."""
    return lambda lengths: rate * max(0.0, float(np.sort(lengths)[-kth] - lengths.mean()))


def decodes(lengths: Floats) -> float:
    """A launch of these decodes by the model."""
    return decodes_us(lengths.tolist(), KV_HEADS, SLOTS, TOKENS_PER_US)


def off(rule: Rule, launches: list[Floats]) -> tuple[float, float]:
    """(mean absolute error, bias) of what a rule adds, as shares of the time of a launch by the model."""
    errors = []
    for lengths in launches:
        # Tables of equal decodes have no waves: between their sizes is interpolated.
        whole, even = decodes(lengths), KV_HEADS * lengths.sum() / TOKENS_PER_US
        errors.append((even + rule(lengths)) / whole - 1.0)
    return float(np.mean(np.abs(errors))), float(np.mean(errors))


def drawn(kind: str) -> list[Floats]:
    """Batches in random order, each of 40 to 256 decodes of 300 to 3,000 tokens on average."""
    random = np.random.default_rng(7)
    draw = {
        "uniform": lambda n: random.uniform(0.05, 1.95, n),
        "geometric": lambda n: random.exponential(1.0, n),
        "lognormal": lambda n: random.lognormal(-0.245, 0.7, n),
        "wide lognormal": lambda n: random.lognormal(-0.5, 1.0, n),
        "prompt and answer": lambda n: random.lognormal(-0.5, 1.0, n) / 2 + random.exponential(0.5, n),
    }[kind]
    sizes = [(n, mean) for n in (40, 56, 64, 90, 128, 180, 256) for mean in (300, 1000, 3000) for _ in range(6)]
    return [np.maximum(np.round(mean * draw(n)), 1.0) for n, mean in sizes]


def test_a_launch_ends_with_its_last_thread_block() -> None:
    """Checked by hand: two SMs, 40 tokens/us together and at most 30 alone."""
    for lengths, us in (
        ([800, 800], 40.0),  # 20 tokens/us each
        ([800, 200], 10.0 + 600 / 30.0),  # then what one alone can
        ([200, 200, 600], 10.0 + 600 / 30.0),  # the third waits for an SM
        ([100, 500, 100], 5.0 + 5.0 + 300 / 30.0),
        ([], 0.0),
    ):
        assert until_empty_us([(0.0, length) for length in lengths], 2, 40.0, 30.0) == pytest.approx(us)
    assert until_empty_us([(1.0, 30.0), (2.0, 0.0), (3.0, 60.0)], 2, 40.0, 30.0) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("kind", "most", "bias"),
    [("uniform", 0.01, 0.01), ("geometric", 0.02, 0.02), ("lognormal", 0.02, 0.015), ("wide lognormal", 0.03, 0.01),
     ("prompt and answer", 0.02, 0.015)],
)  # fmt: skip
def test_the_rule_of_the_longest_holds_for_drawn_spreads(kind: str, most: float, bias: float) -> None:
    """By the model. Mean lengths alone are 3 to 22 % too fast, and of the upper tail no further rank does as well."""
    launches = drawn(kind)
    error, found = off(by_longest, launches)
    assert error < most
    assert abs(found) < bias
    assert off(lambda lengths: 0.0, launches)[1] < -0.03
    assert off(by_upper_tail(8, 0.0096), launches)[0] > 2 * error


def test_mixed_launches_of_drawn_spreads_wait_for_the_longest_too() -> None:
    """By the model. With the mean in its place the rule is 5 to 20 % too fast."""
    by_longest, by_mean = [], []
    for kind in ("uniform", "geometric", "lognormal"):
        for lengths in drawn(kind)[::9]:
            model = mixed_us(VARLEN, HEADS, 300.0, 0.0, lengths)
            n, context = float(len(lengths)), float(lengths.sum())
            by_longest.append(mixed_rule(300.0, 0.0, n, context, float(lengths.max())) / model - 1.0)
            by_mean.append(mixed_rule(300.0, 0.0, n, context, context / n) / model - 1.0)
    assert np.mean(np.abs(by_longest)) < 0.04
    assert -0.04 < np.mean(by_longest) < 0.01
    assert np.mean(by_mean) < 2 * np.mean(by_longest)


def mixed_rule(q: float, before: float, n: float, context: float, longest: float, edge: float = 0.5) -> float:
    us: float = launch_us(
        VARLEN, HEADS, 1.0, q, before, n, context, longest, SCALARS, decode_edge=edge, chunk_edge=edge
    )
    return us


@needs_tables
def test_the_model_predicts_launches_of_two_lengths_better_than_the_rule() -> None:
    """A long decode of 64 costs as much as eight of them, so that no lower rank than the longest can be it."""
    _, alone = read_tables(TABLES).launches
    assert alone.mean_us is not None
    assert alone.longest_us is not None
    unsplit = (alone.seqs * KV_HEADS >= SKEW.min_sequence_heads) & (alone.longest_us > 1.05 * alone.mean_us)
    rows = alone.take(unsplit)
    assert rows.mean_us is not None
    mean, longest = rows.context / rows.seqs, rows.longest
    lengths = two_lengths(rows.seqs, rows.context, longest, 4.0)
    more = np.array([decodes(each) - decodes(np.full(len(each), each.mean())) for each in lengths])
    by_model = np.abs((rows.mean_us + more) / rows.us - 1.0).mean()
    by_rule = np.abs((rows.mean_us + SKEW.us_per_token * (longest - mean)) / rows.us - 1.0).mean()
    assert by_model < 0.011 < by_rule < 0.018
    assert np.abs(rows.mean_us / rows.us - 1.0).mean() > 0.05
    many = np.array([(each == each.max()).sum() for each in lengths])
    one, eight = ((rows.seqs == 64) & (many == count) & (longest >= 1024) for count in (1, 8))
    extra = rows.us - rows.mean_us
    assert (extra[one] > extra[eight]).all()


@needs_tables
def test_the_model_predicts_mixed_launches_of_two_lengths_as_well_as_the_rule() -> None:
    """With the constants of the rule, none of them fitted to the model."""
    chunks, _ = read_tables(TABLES).launches
    some = chunks.take((chunks.seqs >= 16) & (np.arange(len(chunks)) % 97 == 0))
    sizes = list(zip(some.q, some.before, some.seqs, some.context, some.longest, strict=True))
    lengths = two_lengths(some.seqs, some.context, some.longest, 4.0)
    model = [
        mixed_us(VARLEN, HEADS, q, before, each, 1.0) for (q, before, *_), each in zip(sizes, lengths, strict=True)
    ]
    rule = [mixed_rule(*each, 1.0) for each in sizes]
    by_model, by_rule = (np.abs(np.array(us) / some.us - 1.0).mean() for us in (model, rule))
    assert len(some) > 80
    assert by_model < 0.055
    assert by_rule < 0.055


def latency(*sets: str) -> LatencyModel:
    return set_up(scenario.load(ENGINE, list(sets))).latency


@pytest.mark.skipif(not RUN.exists(), reason="the real run is not here")
def test_the_end_of_a_real_run_waits_for_its_longest() -> None:
    """From the last first token until the longest answer ends: 128 to 38 decodes of ShareGPT lengths, no prompts."""
    rows = [json.loads(line) for line in RUN.read_text(encoding="utf-8").splitlines()]
    prompt, output, first, last = (
        np.array([row[name] for row in rows], np.float64)
        for name in ("input_toks", "output_toks", "first_token_ts", "last_token_ts")
    )
    at, number = steps_of(first, last, output)
    begin = first.max()
    here = last > begin
    ends = np.round(np.interp(last[here], at, number))
    context = (prompt + output - 1.0)[here]
    longest = int(np.argmax(context))
    numbers = np.arange(np.ceil(np.interp(begin, at, number)) + 1, ends[longest] + 1)
    batches = [(context - (ends - step))[ends >= step] for step in numbers]
    shapes = StepShapes.of(
        len(batches),
        decode_seqs=np.array([len(batch) for batch in batches]),
        decode_context_sum=np.array([batch.sum() for batch in batches]).astype(np.int64),
        decode_context_max=np.array([batch.max() for batch in batches]).astype(np.int64),
        sampled_seqs=np.array([len(batch) for batch in batches]),
    )
    assert shapes.decode_seqs.max() == 128
    assert 38 <= shapes.decode_seqs.min() < 42
    measured_s = last[here][longest] - np.interp(numbers[0] - 1, number, at)
    by_rule, at_mean = (
        latency(*sets).step_ns(shapes).sum() * 1e-9 / measured_s - 1
        for sets in ((), ("latency.without=[unequal_decodes]",))
    )
    assert -0.04 < by_rule < 0.02
    assert at_mean < by_rule - 0.05


def steps_of(first: Floats, last: Floats, output: Floats) -> tuple[Floats, Floats]:
    """(times, numbers of the step at each): whoever decodes gets a token with every step, so that each request of the
    last quarter counts the steps between two times; in between the rate changes slowly."""
    late = first > first.min() + 0.8 * (first.max() - first.min())
    knots = np.arange(first[late].min() - 1.0, last.max() + 1.0, 0.5)
    units = np.eye(len(knots))
    ended, began = (np.array([[np.interp(t, knots, unit) for unit in units] for t in at[late]]) for at in (last, first))
    bend = 0.6 * np.diff(units, 2, axis=0)
    equations = np.vstack([ended - began, bend, units[:1]])
    counts = np.concatenate([output[late] - 1.0, np.zeros(len(bend) + 1)])
    return knots, np.linalg.lstsq(equations, counts, rcond=None)[0]
