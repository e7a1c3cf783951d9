"""Decisions equal those recorded from the real scheduler, the books balance while they do, and a change is noticed.

A golden that cannot fail proves nothing, so integers of the records are changed one by one and rules are broken one by
one: each must show up as a mismatch in a shipped case.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.group import DecodeGroup, PrefillLimits
from simkit.batching.outputs import Outputs
from simkit.batching.plan import StepPlan
from simkit.batching.policies import FcfsQueue, Priority
from simkit.cli import app
from simkit.conformance.check import check_file
from simkit.conformance.recorded import read_recording
from simkit.conformance.replayed import Replay, _Limits
from simkit.kv.paged import PagedAllocator
from simkit.kv.prefix import PrefixCache
from simkit.sequence import Sequence

GOLDEN = Path(__file__).resolve().parent
SHIPPED = sorted(GOLDEN.glob("*.jsonl.gz"))
RECORDED = GOLDEN.parents[2] / "shared" / "data" / "vllm_scheduler_traces"


def conform(*args: object) -> Any:
    """`simkit conform`, in this process; anything but an exit code is an error."""
    result = CliRunner().invoke(app.app, ["conform", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def case(number: int) -> Path:
    """The shipped trace with this number."""
    (found,) = GOLDEN.glob(f"dev_{number:02}_*.jsonl.gz")
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


# --- every integer agrees ---------------------------------------------------------------------------------------------


def test_the_shipped_cases_are_the_promised_ones_and_small() -> None:
    numbers = {int(path.name[4:6]) for path in SHIPPED}
    assert {1, 2, 3, 4, 5, 33, 38} < numbers
    assert sum(path.stat().st_size for path in GOLDEN.iterdir() if path.is_file()) < 1_000_000


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name.split(".")[0])
def test_shipped_case_is_exact(path: Path) -> None:
    result = conform(path)
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert len(lines) == 2
    header, summary = lines_of(path)[0], lines_of(path)[-1]
    assert lines[0] == (
        f"exact     {header['case']}: {header['n_requests']} requests, {summary['schedule_calls']} passes, "
        f"{summary['preemptions']} preemptions (vllm 0.33.0)"
    )
    assert lines[1] == "1 of 1 exact"


def test_a_directory_as_json(tmp_path: Path) -> None:
    paths = [tmp_path / case(number).name for number in (2, 33, 38)]
    for path in paths:
        path.write_bytes((GOLDEN / path.name).read_bytes())
    result = conform(tmp_path, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["exact"], told["cases"]) == (3, 3)
    assert [verdict["path"] for verdict in told["verdicts"]] == list(map(str, paths))
    assert all(verdict["difference"] is None for verdict in told["verdicts"])


def test_in_a_process_of_its_own_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simkit", "conform", str(case(5)), str(case(33))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["exact", "exact", "2"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"the full set of recorded traces ({RECORDED}) is not here")
def test_all_recorded_cases_are_exact() -> None:
    result = conform(RECORDED)
    assert result.exit_code == 0, result.stdout
    assert result.stdout.splitlines()[-1] == "38 of 38 exact"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name.split(".")[0])
def test_looking_at_every_sequence_in_every_pass_is_as_exact(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The path that single steps take; the cases above use the one that lets the group decode together."""
    slow = partial(ContinuousBatcher, one_by_one=True)
    monkeypatch.setattr("simkit.conformance.replayed.ContinuousBatcher", slow)
    replay = Replay(read_recording(path))
    make_pass = replay.batcher.plan

    def plan() -> StepPlan | None:
        made = make_pass()
        assert made is None or len(made.explicit) == made.num_scheduled
        return made

    replay.batcher.plan = plan  # type: ignore[method-assign]
    monkeypatch.setattr("simkit.conformance.check.Replay", lambda recording: replay)
    assert check_file(path).exact


# --- the books balance meanwhile --------------------------------------------------------------------------------------


def check_books(replay: Replay, config: dict[str, Any], *, whole_pool: bool) -> None:
    """Free and held blocks, who holds memory, limits and (`whole_pool`) reference counts and the free queue."""
    kv, batcher = replay.kv, replay.batcher
    if whole_pool:
        kv.check_integrity()
    held = {block for seq in batcher.members() for block in kv.blocks_of(seq)}
    assert kv.num_free_blocks + len(held) == config["num_gpu_blocks"] - 1
    usage = kv.usage()
    assert usage.allocated_tokens + usage.free_tokens == usage.capacity_tokens
    assert usage.allocated_tokens == len(held) * config["block_size"]
    assert all(not kv.blocks_of(seq) for seq in batcher.waiting)
    assert len(batcher.running) <= (config["max_num_active_seqs"] or config["max_num_seqs"])
    for seq in batcher.members():
        room = len(kv.blocks_of(seq)) * config["block_size"]
        assert room - config["block_size"] < seq.num_computed_tokens <= room
        assert seq.num_computed_tokens <= seq.num_known_tokens + seq.num_outstanding_tokens


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name.split(".")[0])
def test_books_balance_after_every_pass_and_every_output(path: Path) -> None:
    trace = read_recording(path)
    replay = Replay(trace)
    make_pass, num_passes = replay.batcher.plan, 0
    # Looking at a whole pool costs its size: after every pass where it is small, else after every few.
    stride = 1 + trace.config["num_gpu_blocks"] // 300

    def plan() -> StepPlan | None:
        nonlocal num_passes
        made = make_pass()
        check_books(replay, trace.config, whole_pool=num_passes % stride == 0)
        assert made is not None
        assert made.num_scheduled_tokens <= trace.config["max_num_batched_tokens"]
        num_passes += 1
        return made

    replay.batcher.plan = plan  # type: ignore[method-assign]
    for _ in replay.records():
        check_books(replay, trace.config, whole_pool=num_passes % stride == 0)
    assert num_passes == trace.summary["schedule_calls"]
    assert replay.kv.num_free_blocks == trace.config["num_gpu_blocks"] - 1, "memory of nobody"
    delivered = sum(row[-1] for row in replay.summary()["req"])
    longest = trace.config["max_model_len"]
    assert delivered == sum(min(r.output_tokens, longest - r.prompt_tokens) for r in trace.requests)


# --- a changed integer is noticed -------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]


def bump(key: str) -> Change:
    """Raise the integer under `key`, or the first one inside its list or mapping, by one."""

    def change(record: dict[str, Any]) -> None:
        holder: Any = record
        place: Any = key
        while not isinstance(holder[place], int):
            holder = holder[place]
            place = next(iter(holder)) if isinstance(holder, dict) else 0
        holder[place] += 1

    return change


def has(key: str, *, chunk: bool | None = None) -> Callable[[dict[str, Any]], bool]:
    """Records in which `key` has something to change (`chunk`: an element of `s` of this form comes first)."""

    def suits(record: dict[str, Any]) -> bool:
        if key not in record or record[key] in ([], {}):
            return False
        return chunk is None or isinstance(record[key][0], list) is chunk

    return suits


CHANGES: list[tuple[str, int, str, Callable[[dict[str, Any]], bool], Change]] = [
    *((f"{key} of a pass", 5, key, has(key), bump(key)) for key in ("i", "t", "n", "c", "r", "w", "fs", "d", "fu")),
    *((f"{key} of a pass", 5, key, has(key), bump(key)) for key in ("a", "b", "f")),
    *((f"{key} while others wait", 2, key, lambda r: r.get("w", 0) > 0, bump(key)) for key in ("n", "w", "fs", "fu")),
    ("id of a decode", 5, "s", has("s", chunk=False), bump("s")),
    ("id of a chunk", 5, "s", has("s", chunk=True), bump("s")),
    ("kind of a chunk", 5, "s", has("s", chunk=True), lambda r: r["s"][0].__setitem__(1, "X")),
    ("computed of a chunk", 5, "s", has("s", chunk=True), lambda r: r["s"][0].__setitem__(2, r["s"][0][2] + 1)),
    ("tokens of a chunk", 5, "s", has("s", chunk=True), lambda r: r["s"][0].__setitem__(3, r["s"][0][3] - 1)),
    ("order of the schedule", 5, "s", lambda r: len(r.get("s", [])) > 1, lambda r: r["s"].reverse()),
    ("victim", 5, "p", has("p"), bump("p")),
    ("tokens a victim loses", 5, "p", has("p"), lambda r: r["p"][0].__setitem__(1, r["p"][0][1] + 1)),
    ("a preemption more", 5, "p", lambda r: r.get("p") == [], lambda r: r["p"].append([0, 1])),
    ("last block of a table", 4, "b", has("b"), lambda r: r["b"][max(r["b"])].append(1)),
    ("start on the device", 33, "g", has("g"), bump("g")),
    *(
        (f"{key} of a pass ahead", 33, key, lambda r: "g" in r and r["s"] != [], bump(key))
        for key in ("i", "t", "s", "n", "c", "r", "w", "fs", "d")
    ),
    *((f"{key} of an output", 33, key, lambda r: r.get("ev") == "u", bump(key)) for key in ("i", "t", "fu")),
    ("end in an output", 33, "f", lambda r: r.get("ev") == "u" and r["f"] != [], bump("f")),
]


@pytest.mark.parametrize(("number", "key", "suits", "change"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_changed_integer_is_named_with_its_line(
    tmp_path: Path, number: int, key: str, suits: Callable[[dict[str, Any]], bool], change: Change
) -> None:
    path = case(number)
    lines = lines_of(path)
    index = [i for i, line in enumerate(lines[1:-1], start=1) if suits(line)][-1]
    right = json.dumps(lines[index], separators=(",", ":"))
    change(lines[index])
    wrong = json.dumps(lines[index], separators=(",", ":"))
    assert right != wrong
    changed = write(tmp_path / "changed.jsonl", lines)

    result = conform(changed)
    assert result.exit_code == 1
    assert result.stderr == "1 of 1 cases differ from the recorded scheduler\n"
    told = result.stdout.splitlines()
    assert told[0] == f"MISMATCH  {lines[0]['case']}: {changed}:{index + 1} differs in {key}"
    assert told[1] == f"  recorded  {wrong}"
    assert json.loads(told[2].removeprefix("  simkit    ")) == json.loads(right)
    assert told[-1] == "0 of 1 exact"

    (verdict,) = json.loads(conform(changed, "--json").stdout)["verdicts"]
    found = verdict["difference"]
    assert (found["line"], found["keys"]) == (index + 1, [key])
    assert (found["recorded"], found["simkit"]) == (json.loads(wrong), json.loads(right))
    assert (told[3], told[4]) == (f"  running   {found['running']}", f"  waiting   {found['waiting']}")


def test_the_queues_shown_are_those_after_the_record(tmp_path: Path) -> None:
    lines = lines_of(case(2))
    index = next(i for i, line in enumerate(lines) if line.get("w", 0) > 0 and line.get("p"))
    record = lines[index]
    record["d"] += 1
    (verdict,) = json.loads(conform(write(tmp_path / "x.jsonl", lines), "--json").stdout)["verdicts"]
    found = verdict["difference"]
    assert len(found["running"]) == record["r"] - len(record["f"])
    assert len(found["waiting"]) == record["w"] >= 1
    assert found["waiting"][0] == record["p"][-1][0], "under fcfs the last victim heads the queue"


@pytest.mark.parametrize("place", ["schedule_calls", "t_end", "preemptions", *range(6)])
def test_a_changed_total_is_named(tmp_path: Path, place: str | int) -> None:
    lines = lines_of(case(5))
    if isinstance(place, str):
        lines[-1][place] += 1
    else:
        lines[-1]["req"][-1][place] += 1
    changed = write(tmp_path / "changed.jsonl", lines)
    result = conform(changed)
    assert result.exit_code == 1
    key = place if isinstance(place, str) else "req"
    case_name = lines[0]["case"]
    assert result.stdout.splitlines()[0] == f"MISMATCH  {case_name}: {changed}:{len(lines)} differs in {key}"


@pytest.mark.parametrize("number", [2, 33])
def test_a_record_too_few_or_too_many(tmp_path: Path, number: int) -> None:
    lines = lines_of(case(number))
    result = conform(write(tmp_path / "few.jsonl", lines[:-2] + lines[-1:]))
    assert result.exit_code == 1
    assert f"few.jsonl:{len(lines) - 1} differs" in result.stdout
    assert "  recorded  nothing" in result.stdout
    more = conform(write(tmp_path / "more.jsonl", [*lines[:-1], lines[-2], lines[-1]]))
    assert more.exit_code == 1
    assert f"more.jsonl:{len(lines)} differs" in more.stdout
    assert "  simkit    nothing" in more.stdout


def test_every_case_is_told_when_one_differs(tmp_path: Path) -> None:
    lines = lines_of(case(2))
    lines[5]["n"] += 1
    write(tmp_path / "b_changed.jsonl", lines)
    write(tmp_path / "a_right.jsonl", lines_of(case(2)))
    write(tmp_path / "c_right.jsonl", lines_of(case(3)))
    result = conform(tmp_path)
    assert result.exit_code == 1
    heads = [line.split()[0] for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert heads == ["exact", "MISMATCH", "exact", "2"]
    assert result.stderr == "1 of 3 cases differ from the recorded scheduler\n"


# --- a broken rule is noticed -----------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def free_everything_to_the_back(patch: Patch) -> None:
    def release(self: PrefixCache, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._cached[block] = None

    right = PrefixCache._forget
    forget = lambda self, block: right(self, block) if self._keys[block] is not None else None  # noqa: E731
    patch.setattr(PrefixCache, "_forget", forget)
    patch.setattr(PrefixCache, "release", release)


def free_the_head_before_the_tail(patch: Patch) -> None:
    right = PrefixCache.release
    patch.setattr(PrefixCache, "release", lambda self, blocks: right(self, blocks[::-1]))


def enter_keys_after_the_step(patch: Patch) -> None:
    enter, grow_all, commit = PagedAllocator.enter, PagedAllocator.grow_all, ContinuousBatcher.commit

    def later(self: ContinuousBatcher, plan: StepPlan) -> None:
        for seq in self.running:
            enter(self.kv, seq, seq.num_computed_tokens)  # type: ignore[arg-type]
        commit(self, plan)

    patch.setattr(PagedAllocator, "enter", lambda self, seq, num_tokens: None)
    patch.setattr(PagedAllocator, "grow_all", lambda self, num_steps, known: grow_all(self, num_steps, 0))
    patch.setattr(ContinuousBatcher, "commit", later)


def never_enter_keys_late(patch: Patch) -> None:
    patch.setattr(Outputs, "_enter", lambda self, seq: None)


def holders_of(cache: PrefixCache, key: Any) -> list[int]:
    """The blocks that hold `key`, the first one entered first."""
    holder: Any = cache._holders.get(key, {})
    return [holder] if isinstance(holder, int) else list(holder)


def forget_keys_of_blocks_never_computed(patch: Patch) -> None:
    right = ContinuousBatcher._evict

    def forget(cache: PrefixCache, block: int) -> None:
        key = cache._keys[block]
        others = [other for other in holders_of(cache, key) if other != block]
        cache._keys[block] = None
        del cache._holders[key]
        if others:
            cache._holders[key] = others[0] if len(others) == 1 else dict.fromkeys(others)

    def evict(self: ContinuousBatcher, victim: Sequence, state: Any) -> None:
        kv: Any = self.kv
        if kv.cache is not None:
            for block in kv.blocks_of(victim)[victim.num_computed_tokens // kv.block_size :]:
                if kv.cache._keys[block] is not None and kv.cache._users[block] == 1:
                    forget(kv.cache, block)
        right(self, victim, state)

    patch.setattr(ContinuousBatcher, "_evict", evict)


def find_the_last_of_several_holders(patch: Patch) -> None:
    def hits(self: PrefixCache, tokens: Any, max_blocks: int) -> list[int]:
        found: list[int] = []
        while len(found) < max_blocks:
            blocks = holders_of(self, tokens.block_key(len(found)))
            if not blocks:
                break
            found.append(blocks[-1])
        return found

    patch.setattr(PrefixCache, "hits", hits)


def hit_the_last_known_token_too(patch: Patch) -> None:
    def lookup(self: PagedAllocator, seq: Sequence) -> int:
        if self.cache is None:
            return 0
        hits = self.cache.hits(seq.tokens, seq.num_known_tokens // self.block_size)
        self._hits = (seq, hits)
        return min(len(hits) * self.block_size, seq.num_known_tokens - 1)

    patch.setattr(PagedAllocator, "lookup", lookup)


def let_idle_hits_pass_the_gate(patch: Patch) -> None:
    right = PagedAllocator.try_admit

    def try_admit(self: PagedAllocator, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        idle = self.cache.count_idle(self._hits[1]) if self.cache is not None else 0
        return right(self, seq, num_tokens, gate_tokens - idle * self.block_size, headroom)

    patch.setattr(PagedAllocator, "try_admit", try_admit)


def share_nothing(patch: Patch) -> None:
    patch.setattr(PrefixCache, "hits", lambda self, tokens, max_blocks: [])


def admission(patch: Patch, change: Callable[[dict[str, Any]], None]) -> None:
    right = PagedAllocator.try_admit

    def try_admit(self: PagedAllocator, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        asked = {"num_tokens": num_tokens, "gate_tokens": gate_tokens, "headroom": headroom}
        change(asked)
        return right(self, seq, **asked)

    patch.setattr(PagedAllocator, "try_admit", try_admit)


def keep_the_watermark_when_nothing_runs(patch: Patch) -> None:
    admission(patch, lambda asked: asked.update(headroom=True))


def ignore_the_watermark(patch: Patch) -> None:
    admission(patch, lambda asked: asked.update(headroom=False))


def ignore_the_gate(patch: Patch) -> None:
    admission(patch, lambda asked: asked.update(gate_tokens=0))


def always_gate(patch: Patch) -> None:
    admission(patch, lambda asked: asked.update(gate_tokens=max(asked.values())))
    settings(patch, scheduler_reserve_full_isl=True)


def settings(patch: Patch, **changed: Any) -> None:
    right = ContinuousBatcher.__init__

    def init(self: ContinuousBatcher, given: Any, *rest: Any, **named: Any) -> None:
        right(self, replace(given, **changed), *rest, **named)

    patch.setattr(ContinuousBatcher, "__init__", init)


def let_an_unchunked_prompt_be_cut(patch: Patch) -> None:
    settings(patch, enable_chunked_prefill=True)


def ignore_the_interval(patch: Patch) -> None:
    settings(patch, prefill_schedule_interval=1)


def ignore_the_active_cap(patch: Patch) -> None:
    settings(patch, max_num_active_seqs=None)


def ignore_the_adaptive_threshold(patch: Patch) -> None:
    settings(patch, long_prefill_token_threshold_adaptive=False)


def cap_a_lone_request(patch: Patch) -> None:
    right = PrefillLimits.begin_pass

    def begin_pass(self: PrefillLimits, *asked: Any) -> Any:
        state = right(self, *asked)
        state.cap = state.cap or self._settings.long_prefill_token_threshold
        return state

    patch.setattr(PrefillLimits, "begin_pass", begin_pass)


def forget_the_backlog(patch: Patch) -> None:
    right = PrefillLimits.begin_pass

    def begin_pass(self: PrefillLimits, *asked: Any) -> Any:
        self.backlog = False
        return right(self, *asked)

    patch.setattr(PrefillLimits, "begin_pass", begin_pass)


def give_no_budget_back(patch: Patch) -> None:
    right = ContinuousBatcher._preempt_one

    def preempt_one(self: ContinuousBatcher, state: Any, due: list[Sequence], index: int) -> Any:
        budget = state.budget
        chosen = right(self, state, due, index)
        state.budget = budget
        return chosen

    patch.setattr(ContinuousBatcher, "_preempt_one", preempt_one)


def pass_somebody_over_after_an_eviction(patch: Patch) -> None:
    right = ContinuousBatcher._preempt_one

    def preempt_one(self: ContinuousBatcher, state: Any, due: list[Sequence], index: int) -> Any:
        victim, moved = right(self, state, due, index)
        return victim, max(moved, min(index, len(due)))

    patch.setattr(ContinuousBatcher, "_preempt_one", preempt_one)


def evict_the_latest_of_a_tie(patch: Patch) -> None:
    right = Priority.victim
    patch.setattr(Priority, "victim", lambda self, running: right(self, dict.fromkeys(reversed(running))))


def send_victims_to_the_end(patch: Patch) -> None:
    patch.setattr(FcfsQueue, "push_preempted", FcfsQueue.push)


def admit_after_a_preemption(patch: Patch) -> None:
    right = ContinuousBatcher._admit

    def admit(self: ContinuousBatcher, state: Any) -> None:
        made, state.preemptions = state.preemptions, []
        right(self, state)
        state.preemptions = made

    patch.setattr(ContinuousBatcher, "_admit", admit)


def spend_a_step_on_a_token_under_way(patch: Patch) -> None:
    join = DecodeGroup.join
    patch.setattr(ContinuousBatcher, "_last_token_is_under_way", staticmethod(lambda seq: False))
    patch.setattr(DecodeGroup, "join", lambda self, seq, num_steps: join(self, seq, num_steps + 1))


def end_one_token_after_the_model_length(patch: Patch) -> None:
    right, join = Outputs._process, DecodeGroup.join

    def process(self: Outputs, seq: Sequence, num_tokens: int, samples: bool) -> None:
        given = self._settings
        self._settings = replace(given, max_model_len=given.max_model_len + 1)
        right(self, seq, num_tokens, samples)
        self._settings = given

    def joined(self: Any, seq: Sequence, commit: int) -> None:
        most = min(seq.max_tokens, self._max_model_len + 1 - seq.num_prompt_tokens)
        self._calendar.follow(seq, commit + most - seq.num_output_tokens)

    patch.setattr(Outputs, "_process", process)
    patch.setattr(DecodeGroup, "join", lambda self, seq, num_steps: join(self, seq, num_steps + 1))
    patch.setattr(_Limits, "joined", joined)


def let_the_group_have_more_than_the_budget(patch: Patch) -> None:
    right = ContinuousBatcher._schedule_running

    def schedule(self: ContinuousBatcher, state: Any) -> None:
        state.budget += 10**6
        right(self, state)
        state.budget = max(state.budget - 10**6, 0)

    patch.setattr(ContinuousBatcher, "_schedule_running", schedule)
    patch.setattr(ContinuousBatcher, "_is_quiet", lambda self: False)


RULES: list[tuple[Callable[[Patch], None], int]] = [
    (free_everything_to_the_back, 3),
    (free_the_head_before_the_tail, 5),
    (enter_keys_after_the_step, 4),
    (never_enter_keys_late, 35),
    (forget_keys_of_blocks_never_computed, 38),
    (find_the_last_of_several_holders, 32),
    (hit_the_last_known_token_too, 15),
    (let_idle_hits_pass_the_gate, 32),
    (share_nothing, 4),
    (keep_the_watermark_when_nothing_runs, 37),
    (ignore_the_watermark, 27),
    (ignore_the_gate, 2),
    (always_gate, 26),
    (let_an_unchunked_prompt_be_cut, 24),
    (ignore_the_interval, 28),
    (forget_the_backlog, 28),
    (ignore_the_active_cap, 29),
    (ignore_the_adaptive_threshold, 23),
    (cap_a_lone_request, 32),
    (give_no_budget_back, 36),
    (pass_somebody_over_after_an_eviction, 36),
    (evict_the_latest_of_a_tie, 20),
    (send_victims_to_the_end, 35),
    (admit_after_a_preemption, 5),
    (spend_a_step_on_a_token_under_way, 33),
    (end_one_token_after_the_model_length, 30),
    (let_the_group_have_more_than_the_budget, 26),
]


@pytest.mark.parametrize(("break_rule", "number"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_a_broken_rule_is_caught(monkeypatch: Patch, break_rule: Callable[[Patch], None], number: int) -> None:
    break_rule(monkeypatch)
    verdict = check_file(case(number))
    assert not verdict.exact
    assert verdict.difference is not None
    assert verdict.difference.recorded != verdict.difference.simkit
