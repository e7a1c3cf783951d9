"""What is played of a log: order, sessions, prompt blocks, window, pace, repetitions, on logs written here by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.describe import unlimited_hits
from simkit.logs.formats import FORMATS
from simkit.logs.play.load import PLAYED_KEYS, Log, arrange, load_log
from simkit.logs.play.play import PlayedLog, play
from simkit.logs.read.log import NAIVE, RowLog
from simkit.logs.read.record import Columns, Record
from simkit.streams import Streams
from simkit.units import NS_PER_S, ns_to_s
from simkit.workload import Workload, build_workload

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")


def spec(**keys: Any) -> scenario.Trace:
    return scenario.Trace.model_validate({"path": "t.log", **keys})


def request(time_s: float | None, prompt: int = 10, output: int = 5, **keys: Any) -> dict[str, Any]:
    ns = {f"{key[:-2]}_ns": round(value * NS_PER_S) for key, value in keys.items() if key.endswith("_s")}
    rest = {key: value for key, value in keys.items() if not key.endswith("_s")}
    when = None if time_s is None else round(time_s * NS_PER_S)
    return {"time_ns": when, "prompt_tokens": prompt, "output_tokens": output, **ns, **rest}


def log_of(*rows: dict[str, Any], naive: bool = False, format: str = "mooncake", **keys: Any) -> Log:
    records = [Record(line=line, **row) for line, row in enumerate(rows, start=1)]
    log = RowLog("trace t.log", bool(keys.get("allow_bad", False)), num_rows=len(records))
    if naive:
        log.add_remark(NAIVE)
    return arrange(Columns.of(records), spec(**keys), log, FORMATS[format], "by hand")


def played(*rows: dict[str, Any], max_model_len: int | None = None, **keys: Any) -> PlayedLog:
    return play(log_of(*rows, **keys), spec(**keys), max_model_len=max_model_len)


def seconds(times_ns: np.ndarray) -> list[float]:
    return (times_ns / NS_PER_S).tolist()


def told(notes: tuple[str, ...], *parts: str) -> bool:
    return any(all(part in note for part in parts) for note in notes)


# --- order ------------------------------------------------------------------------------------------------------------
def test_rows_are_sorted_by_time_and_ties_keep_the_order_of_the_file() -> None:
    log = log_of(*(request(t, prompt) for prompt, t in enumerate([11, 12, 12, 10.5, 12], start=1)))
    assert log.columns.prompt_tokens.tolist() == [4, 1, 2, 3, 5]
    assert seconds(log.columns.time_ns) == [0, 0.5, 1.5, 1.5, 1.5]
    assert told(log.notes, "1 row is earlier than the row before (by up to 1.5 s): sorted by time")
    assert not told(log.notes, "joined")


RUNS = [request(t, prompt) for prompt, t in enumerate([0, 40, 50, 100, 1, 30, 61], start=1)]


def test_joined_runs_are_sorted_together_and_announced() -> None:
    log = log_of(*RUNS)
    assert log.columns.prompt_tokens.tolist() == [1, 5, 6, 2, 3, 7, 4]
    assert told(log.notes, "2 runs are joined in this file (4 and 3 requests)", "from 100 s", "to 1 s", "append")
    assert told(log.notes, "1 row is earlier than the row before (by up to 99 s)")


def test_joined_runs_can_be_laid_one_behind_the_other_or_refused() -> None:
    log = log_of(*RUNS, on_restart="append")
    gap = 100 / 3
    assert log.columns.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert seconds(log.columns.time_ns) == pytest.approx([0, 40, 50, 100, 100 + gap, 129 + gap, 160 + gap])
    assert told(log.notes, "each is put behind the one before, after its mean gap of 33.3333 s")
    assert not told(log.notes, "sorted by time")
    with pytest.raises(InputError, match=r"^trace t\.log: 2 runs are joined .*on_restart: sort or append reads it"):
        log_of(*RUNS, on_restart="error")


def test_a_single_late_row_is_no_second_run() -> None:
    rows = [request(t) for t in (0, 40, 50, 100, 1)]
    assert not told(log_of(*rows).notes, "joined")
    log_of(*rows, on_restart="error")


CLOCK = [request(t, prompt) for prompt, t in enumerate([0, 3000, 7000, 3401, 4000, 8000], start=1)]


def test_the_hour_of_a_naive_clock_that_was_set_back_is_added_to_what_follows() -> None:
    for on_restart in ("sort", "append"):
        log = log_of(*CLOCK, naive=True, on_restart=on_restart)
        assert told(log.notes, "taken for a clock change (3599 s): the hour is added to what follows")
        assert seconds(log.columns.time_ns) == [0, 3000, 7000, 7001, 7600, 11600]
        assert log.columns.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="clock change"):
        log_of(*CLOCK, naive=True, on_restart="error")
    assert not told(log_of(*CLOCK).notes, "clock change")


def test_a_single_row_that_is_an_hour_late_is_no_clock_change() -> None:
    log = log_of(*(request(t) for t in (0, 3000, 7000, 3401, 7100, 8000)), naive=True)
    assert not told(log.notes, "clock change")
    assert seconds(log.columns.time_ns) == [0, 3000, 3401, 7000, 7100, 8000]


def test_absurd_rates_are_named() -> None:
    fast = [request(i / 1e4) for i in range(200)]
    assert told(log_of(*fast).notes, "200 requests over 0.0199 s are 10,000 requests/s", "time_unit")
    assert told(log_of(*[request(3)] * 101).notes, "all at once")
    assert not told(log_of(*[request(3)] * 100).notes, "all at once")
    assert not told(log_of(*(request(i / 900) for i in range(200))).notes, "time_unit")


def test_a_log_without_requests_is_refused() -> None:
    with pytest.raises(InputError, match=r"^trace t\.log: no requests$"):
        log_of()


# --- sessions ---------------------------------------------------------------------------------------------------------
def test_parents_that_are_missing_later_or_the_request_itself_make_roots() -> None:
    log = log_of(
        request(0, id="a"),
        request(1, id="b", parent="a"),
        request(2, id="c", parent="999999"),
        request(3, id="d", parent="e"),
        request(4, id="e", parent="e"),
        request(5, id="f", parent="b"),
    )
    assert log.after.tolist() == [-1, 0, -1, -1, -1, 1]
    assert log.session is not None
    assert log.session.tolist() == [0, 0, 1, 2, 3, 0]
    assert told(
        log.notes,
        "3 requests whose parent is no earlier request (1 not in the log, 1 later, 1 the request itself) start",
        "(lines 3, 4, 5)",
    )


def test_sessions_follow_the_turn_where_all_rows_have_one_else_the_time() -> None:
    log = log_of(
        request(0, session="x"),
        request(1, session="y", turn=1),
        request(2, session="x", turn=7),
        request(3),
        request(4, session="y", turn=2),
        request(5, session="y", turn=3),
        request(6, session="x", turn=1),
    )
    assert log.after.tolist() == [-1, -1, 0, -1, 1, 4, 2]
    assert log.session is not None
    assert log.session.tolist() == [0, 1, 0, -1, 1, 1, 0]


def test_a_turn_before_the_one_that_precedes_it_starts_a_session() -> None:
    log = log_of(request(0, session="x", turn=2), request(1, session="x", turn=1), request(2, session="x", turn=3))
    assert log.after.tolist() == [-1, -1, 0]
    assert told(log.notes, "1 request comes before the turn that precedes it")


def test_requests_without_a_time_come_their_delay_behind_their_predecessor() -> None:
    rows = [
        request(1000, 600, session="a"),
        request(1002, 64, session="b"),
        request(None, 1100, session="a", delay_s=5),
        request(None, 130, session="b"),
        request(None, 1200, session="a", delay_s=0.5),
    ]
    log = log_of(*rows)
    assert log.columns.prompt_tokens.tolist() == [600, 64, 130, 1100, 1200]
    assert seconds(log.columns.time_ns) == [0, 2, 2, 5, 5.5]
    assert log.after.tolist() == [-1, -1, 1, 0, 3]
    assert log.untimed.tolist() == [False, False, True, True, True]
    assert told(play(log, spec()).notes, "3 requests without a time", "without its service time")
    closed = play(log, spec(sessions="closed"))
    assert seconds(closed.think_ns) == [0, 0, 0, 5, 0.5]
    assert told(closed.notes, "3 of 5 requests start when the turn before them has ended", "3 x as the log has it")


def test_requests_without_time_and_predecessor_are_bad_rows_also_in_a_circle() -> None:
    rows = [
        *(request(t, id=str(t)) for t in range(3)),
        request(None, id="p", parent="q"),
        request(None, id="q", parent="p"),
        request(None, id="r", parent="2", delay_s=1),
        request(None),
    ]
    with pytest.raises(InputError, match=r"3 of 7 rows cannot be read.*line 4: time null, expected a time or a predec"):
        log_of(*rows)
    log = log_of(*rows, allow_bad=True)
    assert log.columns.line.tolist() == [1, 2, 3, 6]
    assert log.after.tolist() == [-1, -1, -1, 2]
    with pytest.raises(InputError, match="no requests"):
        log_of(request(None), allow_bad=True)


# --- prompt blocks ----------------------------------------------------------------------------------------------------
def blocks(prompt: int, size: int, first: int = 0) -> dict[str, Any]:
    return request(first, prompt, block_ids=list(range(first, first - (-prompt // size))))


def test_the_size_of_a_block_is_the_users_else_the_formats_else_the_only_one_that_fits() -> None:
    by_512 = [blocks(prompt, 512) for prompt in (100, 700, 5000)]
    by_64 = [blocks(prompt, 64) for prompt in (100, 700, 5000)]
    assert log_of(*by_512).hash_block_tokens == 512
    log = log_of(*by_64)
    assert log.hash_block_tokens == 64
    assert told(log.notes, "a prompt block is 64 tokens, not the format's 512: the only usual size that fits all rows")
    assert told(log_of(*by_64, hash_block_tokens=64).notes, "64 tokens in place of the format's 512, as told")
    assert log_of(*by_64, format="azure").hash_block_tokens == 64
    some = log_of(request(0, 5, block_ids=[7]), format="azure")
    assert some.hash_block_tokens is None
    assert some.columns.blocks is None
    assert told(some.notes, "prompt block identities are not used", "hash_block_tokens says")


def test_rows_that_do_not_fit_share_nothing_and_too_many_are_refused() -> None:
    rows = [blocks(700, 512) for _ in range(200)]
    rows[7] = request(0, 700, block_ids=[0, 1, 2])
    log = log_of(*rows)
    assert log.columns.blocks is not None
    assert [len(log.columns.blocks.of(row)) for row in (6, 7, 8)] == [2, 0, 2]
    assert told(log.notes, "1 of 200 rows", "line 8: 700 prompt tokens are 2 blocks, 3 identities", "share nothing")
    rows[8] = rows[9] = rows[7]
    # 3 of 200 are more than the 1 % for which the format's size is doubted, and no other fits.
    with pytest.raises(InputError, match=r"3 of 200 rows .*lines 8, 9, 10.*more than 1 %: hash_block_tokens says"):
        log_of(*rows)
    assert told(log_of(*rows, allow_bad=True).notes, "3 of 200 rows", "share nothing")
    assert told(log_of(*rows[:7], request(0, 700), hash_block_tokens=512).notes, "1 of 8 requests have no prompt block")


def test_prompts_share_with_the_first_that_has_the_same_path() -> None:
    trace = played(
        request(0, 1200, block_ids=[1, 2, 3]),
        request(1, 1536, block_ids=[1, 2, 9]),
        request(2, 1400, block_ids=[1, 2, 9]),
        request(3, 600, block_ids=[1, 2]),
        request(4, 600, block_ids=[2, 1]),
        request(5, 2048, block_ids=[1, 2, 9, 5]),
        request(6, 1100, block_ids=[1, 2, 3]),
    )
    assert trace.has_blocks
    assert [trace.shared.of(i) for i in range(7)] == [
        (),
        ((0, 1024),),
        ((0, 1024), (1, 1400)),
        ((0, 600),),
        (),
        ((0, 1024), (1, 1536)),
        ((0, 1100),),
    ]


def test_identities_of_64_bits_are_not_cut() -> None:
    low = 77
    trace = played(
        request(0, 100, block_ids=[low]),
        request(1, 100, block_ids=[low + 2**32]),
        request(2, 100, block_ids=[2**64 - 1]),
    )
    assert trace.shared.owner.size == 0


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=8)


@given(PATHS, st.data())
def test_equal_beginnings_are_equal_keys(paths: list[list[int]], data: st.DataObject) -> None:
    """A token's key is its place and the request that owns it."""
    size = 4
    rows = [
        request(row, size * (len(path) - 1) + data.draw(st.integers(1, size)), block_ids=path)
        for row, path in enumerate(paths)
    ]
    trace = played(*rows, hash_block_tokens=size)

    def owner(row: int, token: int) -> int:
        return next((request for request, upto in trace.shared.of(row) if token < upto), row)

    for a, b in itertools.combinations(range(len(paths)), 2):
        for token in range(min(rows[a]["prompt_tokens"], rows[b]["prompt_tokens"])):
            blocks = token // size + 1
            assert (paths[a][:blocks] == paths[b][:blocks]) == (owner(a, token) == owner(b, token))
    for row in range(len(paths)):
        upto = [tokens for _, tokens in trace.shared.of(row)]
        assert upto == sorted(set(upto))
        for first, tokens in trace.shared.of(row):
            assert first < row
            assert tokens <= min(rows[row]["prompt_tokens"], rows[first]["prompt_tokens"])


# --- coarse clocks ----------------------------------------------------------------------------------------------------
TICKS = [request(3 * tick + jitter / 1000) for tick, jitter in enumerate([0, 1, -1, 0, 1, 0]) for _ in range(4)]


def test_a_coarse_clock_is_named_with_its_tick() -> None:
    log = log_of(*TICKS)
    assert log.clock is not None
    assert log.clock.tick_ns == pytest.approx(3e9, abs=1.1e6)
    assert told(log.notes, "coarse clock: 78 % of neighbours have equal times, it ticks every 3")
    odd = log_of(*(request(t) for t in (0, 0, 0, 1, 1, 7.31, 7.31, 9.917, 20.2)))
    assert odd.clock is not None
    assert odd.clock.tick_ns is None
    assert told(odd.notes, "at no regular tick")
    assert told(play(odd, spec(spread_ties="even")).notes, "spread_ties has no effect")
    assert log_of(*(request(t) for t in range(20))).clock is None


@pytest.mark.parametrize(
    ("times_s", "tick_s"),
    [
        ((0, 0, 1, 6, 6, 6, 6), 1),  # few ticks are seen, and the most frequent gap is not one
        ((0, 0, 0, 40, 113, 113, 862_914), 1),  # months of whole seconds
        ((0, 0, 0.2, 0.5, 0.5), 0.1),  # no gap is one tick long
        ((0, 0, 60, 60, 180), 60),
        (tuple(3 * (i // 3) + (i % 3 - 1) // 2 * 0.001 for i in range(60)), 3),  # stamps of a tick are 1 ms apart
        ((0, 1000, 2000, 2000, 2000.001), 0.001),  # twice is no tick
        ((0, 0, 0, 3.052), None),  # a single gap is a multiple of anything
    ],
)
def test_a_tick_is_never_longer_than_the_shortest_gap(times_s: tuple[float, ...], tick_s: float | None) -> None:
    log = log_of(*(request(t) for t in times_s))
    assert log.clock is not None
    assert log.clock.tick_ns == (None if tick_s is None else pytest.approx(tick_s * 1e9, rel=1e-3))
    if tick_s is not None:
        assert told(log.notes, f"ticks every {ns_to_s(log.clock.tick_ns):g} s")
        trace = play(log, spec(spread_ties="even"))
        assert told(trace.notes, f"spread over its {ns_to_s(log.clock.tick_ns):g} s")
        # Nobody comes before the time of the log (but for jitter), nor when the next tick has come.
        late = trace.arrival_ns - log.columns.time_ns
        assert np.all((late >= -2e6) & (late < tick_s * 1e9))


@given(
    gaps=st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 60, 10**6]), min_size=2, max_size=30), unit_ms=st.integers(1, 5000)
)
@settings(max_examples=60, deadline=None)
def test_spread_ties_never_pass_the_next_time_of_the_log(gaps: list[int], unit_ms: int) -> None:
    log = log_of(*(request(int(t) * unit_ms / 1000) for t in np.cumsum([0, *gaps])))
    time_ns = log.columns.time_ns
    moved = play(log, spec(spread_ties="even")).arrival_ns
    for now, then in zip(moved.tolist(), time_ns.tolist(), strict=True):
        later = time_ns[time_ns > then]
        assert then <= now
        assert not later.size or now < later[0]


def test_ties_are_spread_over_the_tick_in_the_order_of_the_file() -> None:
    seconds_clock = [request(t, prompt) for prompt, t in enumerate([0, 0, 0, 0, 1, 2, 2, 4, 4], start=1)]
    assert seconds(played(*seconds_clock, spread_ties="even").arrival_ns) == [0, 0.25, 0.5, 0.75, 1, 2, 2.5, 4, 4.5]
    drawn = played(*seconds_clock, spread_ties="uniform")
    assert drawn.prompt_tokens.tolist() == list(range(1, 10))
    assert np.floor(seconds(drawn.arrival_ns)).tolist() == [0, 0, 0, 0, 1, 2, 2, 4, 4]
    assert np.all(np.diff(drawn.arrival_ns) > 0)
    assert told(drawn.notes, "spread over its 1 s (uniform)")
    again = play(log_of(*seconds_clock), spec(spread_ties="uniform"), streams=Streams(1, 0))
    assert again.arrival_ns.tolist() != drawn.arrival_ns.tolist()


def test_what_has_no_time_moves_with_what_it_follows() -> None:
    rows = [request(t, session=f"s{i}") for i, t in enumerate([0, 0, 1, 1, 2, 2])]
    trace = played(*rows, request(None, 99, session="s1", delay_s=0.1), spread_ties="even")
    assert seconds(trace.arrival_ns) == [0, 0.5, 0.6, 1, 1.5, 2, 2.5]
    assert trace.prompt_tokens[2] == 99


# --- the window -------------------------------------------------------------------------------------------------------
TEN_APART = [request(10 * i, 100 + i) for i in range(10)]


def test_the_window_begins_with_the_warm_up() -> None:
    trace = played(*TEN_APART, start_s=30, end_s=70, warmup_s=15)
    assert seconds(trace.arrival_ns) == [5, 15, 25, 35, 45]
    assert trace.line.tolist() == [3, 4, 5, 6, 7]
    assert trace.num_warm == 1
    assert told(trace.notes, "requests 3 to 7 of 10 are replayed")
    assert told(trace.notes, "the caches are warmed by the first 1 request, from 15 s to 30 s, not measured")
    assert played(*TEN_APART, start_s=30, warmup_s=15, max_requests=2).line.tolist() == [3, 4, 5]
    with pytest.raises(InputError, match="no requests from 91 s to the end; the trace lasts 90 s"):
        played(*TEN_APART, start_s=91, warmup_s=50)


def test_prompts_have_in_common_what_is_played() -> None:
    rows = [request(i, 512, block_ids=[7]) for i in range(4)]
    assert [played(*rows, start_s=1).shared.of(i) for i in range(3)] == [(), ((0, 512),), ((0, 512),)]


def test_thinning_keeps_sessions_whole_whatever_the_window() -> None:
    rows = [request(i, session=f"s{i % 50}") for i in range(500)] + [request(500 + i) for i in range(400)]
    whole = played(*rows, keep_share=0.4)
    kept = {row % 50 for row in whole.row.tolist() if row < 500}
    assert whole.row.tolist() == [row for row in range(500) if row % 50 in kept] + [
        r for r in whole.row.tolist() if r >= 500
    ]
    assert 8 <= len(kept) <= 32
    assert 120 <= np.count_nonzero(whole.row >= 500) <= 200
    part = played(*rows, keep_share=0.4, start_s=100, end_s=300)
    assert part.row.tolist() == [row for row in whole.row.tolist() if 100 <= row < 300]
    assert set(whole.row.tolist()) <= set(played(*rows, keep_share=0.7).row.tolist())
    assert told(whole.notes, f"keep_share 0.4 keeps {len(whole)} of 900 requests, sessions kept whole")
    few = played(*rows, keep_share=0.4, max_requests=7)
    assert few.row.tolist() == whole.row.tolist()[:7]


# --- pace -------------------------------------------------------------------------------------------------------------
def test_speed_and_rate_scale_gaps_and_leave_lengths() -> None:
    fast = played(*TEN_APART, speed=4)
    assert seconds(fast.arrival_ns) == [2.5 * i for i in range(10)]
    assert fast.prompt_tokens.tolist() == list(range(100, 110))
    assert told(fast.notes, "gaps divided by 4")
    assert told(played(*TEN_APART, speed=0.5).notes, "gaps multiplied by 2, slower")
    target = played(*TEN_APART, rate_per_s=0.2, start_s=30, warmup_s=20)
    assert seconds(target.arrival_ns) == [5.0 * i for i in range(9)]
    assert told(target.notes, "gaps divided by 2, faster than recorded: 0.2 requests/s in place of 0.1")
    with pytest.raises(InputError, match="rate_per_s: expected requests at different times"):
        played(request(0), rate_per_s=1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scaling", [{"speed": x} for x in (1e-12, 1e-300, 5e-324)] + [{"rate_per_s": 5e-324}])
def test_nothing_arrives_after_146_years(scaling: dict[str, float]) -> None:
    key, value = next(iter(scaling.items()))
    with pytest.raises(InputError) as caught:
        played(*TEN_APART, *(request(90, 200 + i) for i in range(900)), **scaling)
    late = f"{key}: expected a faster one than {value:g}, requests would arrive after 146 years"
    assert str(caught.value) == f"trace t.log: {late}"
    assert seconds(played(request(0), speed=1e-300).arrival_ns) == [0]


def test_a_large_log_out_of_order_is_sorted_and_nothing_is_read_into_it() -> None:
    times = np.random.default_rng(1).integers(0, 10**13, 100_000)
    none = np.full(len(times), 1)
    columns = Columns(line=none, time_ns=times, prompt_tokens=none, output_tokens=none)
    log = arrange(columns, spec(), RowLog("trace t.log", num_rows=len(times)), FORMATS["azure"], "by hand")
    assert np.array_equal(log.columns.time_ns, np.sort(times) - times.min())
    assert not told(log.notes, "joined")
    with pytest.raises(InputError, match="more than 146 years apart"):
        log_of(*({"time_ns": t, "prompt_tokens": 1, "output_tokens": 1} for t in (2**62, -(2**62))))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20), st.sampled_from([2, 3, 0.5, 7.25]))
def test_gaps_are_scaled_exactly(times: list[int], speed: float) -> None:
    rows = [{"time_ns": t, "prompt_tokens": 1, "output_tokens": 1} for t in times]
    since = np.array(sorted(times)) - min(times)
    assert played(*rows, speed=speed).arrival_ns.tolist() == [round(int(t) / speed) for t in since]


def test_idle_gaps_are_capped_before_they_are_scaled() -> None:
    trace = played(*(request(t) for t in (0, 5, 105, 107, 1107)), idle_gap_cap_s=10, speed=2)
    assert seconds(trace.arrival_ns) == [0, 2.5, 7.5, 8.5, 13.5]
    assert told(trace.notes, "2 gaps are shortened to 10 s, 1080 s in all")


# --- closed sessions --------------------------------------------------------------------------------------------------
def test_think_times_are_the_delay_else_the_gap_less_what_was_measured_else_the_gap() -> None:
    rows = [
        request(0, session="a", e2e_s=4),
        request(10, session="a", e2e_s=90),
        request(30, session="a"),
        request(50, session="a"),
        request(60, session="a", delay_s=2),
    ]
    trace = played(*rows, sessions="closed", speed=2)
    assert trace.closed
    assert trace.after.tolist() == [-1, 0, 1, 2, 3]
    assert seconds(trace.think_ns) == [0, 3, 0, 10, 1]
    assert told(
        trace.notes,
        "4 of 5 requests",
        "1 x as the log has it; 2 x the recorded gap less the measured E2E; 1 x the recorded gap, which has the",
    )
    assert seconds(played(*rows, sessions="closed", idle_gap_cap_s=3).think_ns) == [0, 0, 0, 3, 2]
    opened = played(*rows)
    assert not opened.closed
    assert not opened.think_ns.any()
    alone = played(*TEN_APART, sessions="closed")
    assert not alone.closed
    assert told(alone.notes, "no request follows another")


def test_a_session_that_is_cut_goes_on_from_the_nearest_turn_that_is_played() -> None:
    rows = [request(i, 10**6 if i == 2 else 10, session="a", delay_s=0.25) for i in range(5)]
    trace = played(*rows, sessions="closed", start_s=1, too_long="drop", max_model_len=1000)
    assert trace.row.tolist() == [1, 3, 4]
    assert trace.after.tolist() == [-1, 0, 1]
    assert seconds(trace.think_ns) == [0, 2, 0.25]


# --- lengths ----------------------------------------------------------------------------------------------------------
def test_prompts_that_are_too_long_are_left_dropped_or_cut() -> None:
    rows = [request(0, 100, 10), request(1, 95, 10), request(2, 10, 500)]
    assert played(*rows, max_model_len=100).prompt_tokens.tolist() == [100, 95, 10]
    dropped = played(*rows, max_model_len=100, too_long="drop")
    assert dropped.prompt_tokens.tolist() == [95, 10]
    assert told(dropped.notes, "1 request is dropped whose prompt is not shorter than max_model_len (100)")
    cut = played(*rows, max_model_len=100, too_long="truncate")
    assert cut.prompt_tokens.tolist() == [90, 90, 1]
    assert told(cut.notes, "3 prompts are cut at the end, by 24 tokens in all")


def test_what_is_kept_for_its_prompt_alone_gets_one_token() -> None:
    trace = played(request(0, 10, 0), request(1))
    assert trace.output_tokens.tolist() == [1, 5]
    assert told(trace.notes, "1 request with 0 output tokens played for the prompt alone, with 1 token")


# --- repetitions ------------------------------------------------------------------------------------------------------
def test_repetitions_have_the_same_gaps_and_new_customers() -> None:
    rows = [request(t, 512, session="a", block_ids=[7]) for t in (0, 1, 4)]
    trace = played(*rows, repeat=3)
    assert seconds(trace.arrival_ns) == [0, 1, 4, 6, 7, 10, 12, 13, 16]
    assert trace.session.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert trace.after.tolist() == [-1, 0, 1, -1, 3, 4, -1, 6, 7]
    assert [trace.shared.of(i) for i in range(9)] == [
        *((), ((0, 512),), ((0, 512),)),
        *((), ((3, 512),), ((3, 512),)),
        *((), ((6, 512),), ((6, 512),)),
    ]
    assert told(trace.notes, "3 requests are played 3 times", "mean gap of 2 s")


def test_the_warm_up_is_not_repeated() -> None:
    rows = [request(t, 512, session="a", block_ids=[7]) for t in (0, 1, 4)]
    trace = played(*rows, repeat=2, start_s=1, warmup_s=1, sessions="closed")
    assert trace.num_warm == 1
    assert seconds(trace.arrival_ns) == [0, 1, 4, 7, 10]
    assert trace.after.tolist() == [-1, 0, 1, -1, 3]
    assert seconds(trace.think_ns) == [0, 1, 3, 0, 3]
    assert [trace.shared.of(i) for i in range(5)] == [(), ((0, 512),), ((0, 512),), (), ((3, 512),)]
    with pytest.raises(InputError, match="repeat: expected requests at different times"):
        played(request(0), repeat=2)
    with pytest.raises(InputError, match="repeat: expected at most 10,000,000 requests in all"):
        played(*rows, repeat=10**9)


def test_of_a_large_log_what_lies_beyond_end_s_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simkit.logs.read.fields.ROWS_A_PART", 10)
    monkeypatch.setattr("simkit.logs.play.load.KEEP_ALL_ROWS", 20)
    row = '{{"timestamp": {}, "input_length": {}, "output_length": 1}}'
    (tmp_path / "t.log").write_text("\n".join(row.format(1000 * (99 - i), i + 1) for i in range(100)))
    trace = play(load_log(spec(end_s=95), tmp_path), spec(end_s=95))
    assert len(trace) == 95
    (tmp_path / "t.log").write_text("\n".join(row.format(1000 * i, i + 1) for i in range(100)))
    log = load_log(spec(end_s=25), tmp_path)
    assert len(log) == 25
    assert told(log.notes, "75 requests beyond end_s were not kept")
    assert play(log, spec(end_s=25)).prompt_tokens.tolist() == list(range(1, 26))


# --- requests ---------------------------------------------------------------------------------------------------------
SESSIONS = """\
{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [1, 2]}
{"timestamp": 1000, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2, 3]}
{"timestamp": 2000, "input_length": 600, "output_length": 3, "hash_ids": [1, 4]}
"""


def workload_of(tmp_path: Path, log: Log | None = None, **keys: Any) -> Workload:
    (tmp_path / "t.log").write_text(SESSIONS)
    trace = {"path": "t.log", **keys.pop("trace", {})}
    found = scenario.Workload.model_validate({"trace": trace, **keys})
    return build_workload(found, seed=0, replication=0, max_model_len=8192, base_dir=tmp_path)


def test_requests_say_what_they_share_and_how_many_only_warm(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, trace={"start_s": 1, "warmup_s": 1})
    assert (workload.num_warm, workload.num_requests, workload.prefix_known) == (1, 3, True)
    requests = list(workload.requests)
    assert [r.id for r in requests] == [0, 1, 2]
    assert [r.shared for r in requests] == [(), ((0, 600),), ((0, 512),)]
    assert [r.prefix_group for r in requests] == [-1, -1, -1]
    assert workload.successors is None
    assert workload.measured is None
    drawn = workload_of(tmp_path, prefix={"groups": 1, "tokens": 100})
    assert "workload.prefix stands in place of what its prompts share" in drawn.notes[-1]
    assert [(r.shared, r.prefix_tokens) for r in drawn.requests] == [((), 100)] * 3


def test_closed_sessions_give_each_request_those_that_it_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(
        request(0, 10, session="a", e2e_s=1, ttft_s=0.5),
        request(2, 20, session="b"),
        request(5, 30, session="a"),
        request(6, 40, session="b"),
        request(7, 50),
    )
    monkeypatch.setattr("simkit.logs.play.play.load_log", lambda *_: log)
    workload = workload_of(tmp_path, trace={"sessions": "closed"})
    assert workload.successors is not None
    caused = {after: [(r.id, think) for r, think in found] for after, found in workload.successors.items()}
    assert caused == {0: [(2, 4 * NS_PER_S)], 1: [(3, 4 * NS_PER_S)]}
    assert workload.measured is not None
    assert workload.measured.ttft_ns.tolist() == [NS_PER_S // 2, -1, -1, -1, -1]
    assert workload.measured.e2e_ns.tolist() == [NS_PER_S, -1, -1, -1, -1]
    assert (workload.num_requests, workload.prefix_known) == (5, False)
    roots = list(workload.requests)
    assert [(r.id, r.prompt_tokens, r.prefix_group) for r in roots] == [(0, 10, 0), (1, 20, 1), (4, 50, -1)]
    everyone = workload_of(tmp_path, trace={"sessions": "closed"}).everyone()
    assert [r.prompt_tokens for r in everyone] == [10, 20, 30, 40, 50]


def test_a_plan_scales_what_the_trace_says(tmp_path: Path) -> None:
    from simkit.studies.offered_load import at_rate, base_rate, for_trials

    def offered(**trace: Any) -> scenario.Scenario:
        (tmp_path / "t.log").write_text(SESSIONS)
        data = {
            "name": "t",
            "model": "llama-3-8b",
            "hardware": {"gpu": "a100-sxm4-80gb"},
            "workload": {"trace": {"path": "t.log", **trace}},
        }
        return scenario.from_dict(data).based_at(tmp_path)

    turns = SESSIONS.replace('"timestamp": 0', '"session_id": "a", "timestamp": 0')
    turns = turns.replace('"timestamp": 1000', '"session_id": "a", "delay": 1000')
    closed = offered(sessions="closed")
    (tmp_path / "t.log").write_text(turns)
    with pytest.raises(InputError, match=r"trace\.sessions: expected open: requests that wait for an answer"):
        base_rate(closed)
    for keys, base, key in (({"speed": 2.0}, 2.0, "speed"), ({"rate_per_s": 5.0}, 5.0, "rate_per_s")):
        before = offered(**keys)
        assert base_rate(before) == pytest.approx(base)
        faster = at_rate(before, 10.0, base).based_at(tmp_path)
        assert base_rate(faster) == pytest.approx(10)
        assert faster.workload.trace is not None
        assert getattr(faster.workload.trace, key) == pytest.approx(keys[key] * 10 / base)
    assert for_trials(offered(start_s=1, warmup_s=1), 1).warmup == "auto"
    twice = for_trials(offered(), 1).to_dict()
    assert twice["workload"]["trace"]["repeat"] == 2
    assert twice["warmup"] == {"requests": 3}  # the first time fills the system, then all of the log counts


# --- the last log -----------------------------------------------------------------------------------------------------
def test_the_last_log_is_kept_while_its_file_and_how_it_is_read_stay(tmp_path: Path) -> None:
    path = tmp_path / "t.log"
    line = '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'
    path.write_text(line * 3)
    log = load_log(spec(), tmp_path)
    playing = {"start_s": 1, "warmup_s": 1, "max_requests": 2, "keep_share": 0.5, "idle_gap_cap_s": 1, "repeat": 2,
               "spread_ties": "even", "rate_per_s": 2, "sessions": "closed", "too_long": "drop"}  # fmt: skip
    assert set(playing) | {"speed"} == PLAYED_KEYS
    for key, value in playing.items():
        keys = {"start_s": 1, key: value} if key == "warmup_s" else {key: value}
        assert load_log(spec(**keys), tmp_path) is log
    assert load_log(spec(speed=2), tmp_path) is log
    assert load_log(spec(failed="prefill"), tmp_path) is not log
    assert load_log(spec(), tmp_path) is not log  # only the last is kept
    assert play(load_log(spec(), tmp_path), spec(repeat=1)).notes == play(log, spec()).notes


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.log"
    line = '{{"timestamp": 0, "input_length": {}, "output_length": 5, "hash_ids": [1]}}\n'
    for prompt in (11, 12, 13, 12):  # of the same size, and faster than file systems tell times
        path.write_text(line.format(prompt))
        for _ in range(2):
            assert load_log(spec(), tmp_path).columns.prompt_tokens.tolist() == [prompt]
    path.write_text(line.format('"no"'))
    for _ in range(2):
        with pytest.raises(InputError, match="line 1: input_length 'no'"):
            load_log(spec(), tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        load_log(spec(), tmp_path)


def test_a_log_that_several_play_cannot_be_written_to(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1], "session_id": "a"}
    (tmp_path / "t.log").write_text(json.dumps(row))
    log = load_log(spec(), tmp_path)
    assert log.columns.blocks is not None
    assert log.session is not None
    for array in (log.columns.time_ns, log.columns.blocks.values, log.session, log.after, log.untimed):
        with pytest.raises(ValueError, match="read-only"):
            array[:1] = 0


# --- the real traces --------------------------------------------------------------------------------------------------
README_HITS = {
    "mooncake_conversation_0-20min.jsonl": (0.3179, 0.3236),
    "mooncake_synthetic_0-8min.jsonl": (0.2975, 0.3051),
    "mooncake_arxiv_first20.jsonl": (0.1265, 0.1299),
    "mooncake_arxiv_mixed_toolagent_12s.jsonl": (0.3533, 0.3663),
}


@needs_traces
@pytest.mark.parametrize("name", README_HITS)
def test_an_unlimited_cache_hits_what_is_documented(name: str) -> None:
    log = load_log(scenario.Trace(path=name), TRACES)
    assert log.hash_block_tokens == 512
    found = unlimited_hits(log.columns, 512)
    assert found is not None
    assert found == pytest.approx(README_HITS[name], abs=0.0001)
    # What requests share adds up to the same tokens: here no block that ends a prompt is shared.
    trace = play(log, spec())
    held = [trace.shared.of(i)[-1][1] if trace.shared.of(i) else 0 for i in range(len(trace))]
    assert sum(held) / trace.prompt_tokens.sum() == pytest.approx(found[1], abs=1e-9)


@needs_traces
def test_mooncakes_tick_is_found_and_spreads() -> None:
    log = load_log(scenario.Trace(path="mooncake_conversation_0-20min.jsonl"), TRACES)
    assert log.clock is not None
    assert log.clock.tick_ns == pytest.approx(3e9, abs=1e6)
    gaps = np.diff(play(log, spec(spread_ties="uniform")).arrival_ns)
    assert 0.95 < gaps.std() / gaps.mean() < 1.15  # 2.854 with the ticks


@pytest.mark.parametrize("num_rows", [100, 1000])
def test_rows_in_no_order_are_no_joined_runs(num_rows: int) -> None:
    times = np.random.default_rng(3).permutation(num_rows)
    log = log_of(*(request(int(t)) for t in times))
    assert not told(log.notes, "runs are joined")
    assert told(log.notes, "sorted by time")
