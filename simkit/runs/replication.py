"""One replication simulated, and the replications of a run put together.

Owns everything between a resolved scenario and its result. A `ReplicationResult` is what a replication leaves behind.
It is small enough to travel between processes, and the same ones give the same result wherever and in whatever order
they were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simkit.engine.build import Setup, erring
from simkit.engine.run import Progress, RunFacts, log_sha256, simulate
from simkit.metrics.inputs import SummaryInputs
from simkit.metrics.intervals import combine
from simkit.metrics.measured import ComparedLatencies, compare_measured
from simkit.metrics.summary import RunMetrics, Summary, summarise
from simkit.metrics.tables import request_table, slot_table, span_table
from simkit.metrics.window import Warmup
from simkit.plain import Json, plain
from simkit.runs.manifest import Manifest, ProfileId, run_id

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ReplicationResult:
    """What one replication leaves behind. `slots` is kept for replication 0 alone.

    `turned_away` counts requests by the reason for which they were rejected or refused; `counters` hold what the
    workload cut or clipped, by name. `measured` sets what a log measured beside this run (`metrics.measured`). `erring`
    is the summary of the same customers with step times that err by a draw, where there are other replications.
    """

    replication: int
    summary: Summary
    warmup: Warmup
    requests: pa.Table
    steps: pa.Table
    slots: pa.Table | None
    notes: tuple[str, ...]
    counters: dict[str, int]
    turned_away: dict[str, int]
    measured: ComparedLatencies | None = None
    erring: Summary | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gives. `summary` and `manifest` are the content of the JSON files, `tables` of the parquet files.

    `replications` holds the summary of each replication; `summary` is their mean with ``*_ci95`` siblings. `measured`
    sets what a log measured beside the first replication, None where there is no such log. `erring` are the summaries
    of replications with step times that err, empty where none were made.
    """

    summary: Json
    manifest: Json
    tables: dict[str, pa.Table]
    replications: list[Json]
    measured: Json | None = None
    erring: list[Json] = field(default_factory=list)

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request (columns of ``requests.parquet``), undefined values missing."""
        return _frame(self.tables["requests"])

    @property
    def steps(self) -> pd.DataFrame:
        """One row a span of equal steps (columns of ``steps.parquet``)."""
        return _frame(self.tables["steps"])

    @property
    def slots(self) -> pd.DataFrame:
        """One row a stay in a slot, first replication (columns of ``slots.parquet``)."""
        return _frame(self.tables["slots"])


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    # Nullable integers: a float cannot hold every nanosecond.
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame


def replicate(
    setup: Setup, replication: int, progress: Progress | None = None, *, single_step: bool = False
) -> ReplicationResult:
    """Simulate one replication. Raises InputError, and CheckError for a livelock or a broken invariant."""
    half = _half(progress) if errs(setup) else progress
    facts = simulate(setup, replication, half, single_step=single_step)
    return with_error(setup, replication_result(setup, replication, facts), progress, single_step=single_step)


def errs(setup: Setup) -> bool:
    """Whether each replication is made once more with step times that err: where there are several, for intervals."""
    return setup.errs and setup.scenario.replications > 1


def with_error(
    setup: Setup, part: ReplicationResult, progress: Progress | None = None, *, single_step: bool = False
) -> ReplicationResult:
    """The part with the summary of its customers under step times that err, where such are made."""
    if not errs(setup):
        return part
    wrong = erring(setup, part.replication)
    facts = simulate(wrong, part.replication, _half(progress, 0.5), single_step=single_step)
    return replace(part, erring=metrics_of(wrong, facts).summary)


def _half(progress: Progress | None, begins: float = 0.0) -> Progress | None:
    """Progress of one of two simulations."""
    return None if progress is None else lambda done, label: progress(begins + done / 2, label)


def replication_result(
    setup: Setup, replication: int, facts: RunFacts, metrics: RunMetrics | None = None
) -> ReplicationResult:
    """What a replication whose facts are known leaves behind; `metrics` is its summary where that is made already."""
    metrics = metrics or metrics_of(setup, facts)
    return ReplicationResult(
        replication=replication,
        summary=metrics.summary,
        warmup=metrics.warmup,
        requests=request_table(metrics.requests, facts.record.reasons, replication),
        steps=span_table(facts.record, replication),
        slots=slot_table(facts.record) if replication == 0 else None,
        notes=facts.notes,
        counters=plain(facts.counters) | _requeued(setup, facts, metrics),
        turned_away=_turned_away(facts, metrics),
        measured=_measured(setup, facts, metrics),
    )


def _measured(setup: Setup, facts: RunFacts, metrics: RunMetrics) -> ComparedLatencies | None:
    """The comparison with what the log measured, None where it did not."""
    log = facts.measured
    if log is None:
        return None
    return compare_measured(metrics.requests, log.ttft_ns, log.e2e_ns, stream=setup.stream) or None


def assemble(setup: Setup, parts: Sequence[ReplicationResult]) -> Result:
    """The result of a run from the parts of all its replications, in any order."""
    parts = sorted(parts, key=lambda part: part.replication)
    assert [part.replication for part in parts] == list(range(setup.scenario.replications)), "one part a replication"
    tables = {
        "requests": _joined([part.requests for part in parts]),
        "steps": _joined([part.steps for part in parts]),
        "slots": parts[0].slots,
    }
    summaries = [plain(part.summary) for part in parts]
    wrong = [plain(part.erring) for part in parts if part.erring is not None]
    summary = combine(summaries, wrong if len(wrong) == len(parts) else ())
    return Result(summary, _manifest(setup, parts), tables, summaries, plain(parts[0].measured), wrong)


def _joined(tables: list[pa.Table]) -> pa.Table:
    """The rows of all tables, copying none."""
    import pyarrow as pa

    return pa.concat_tables(tables) if len(tables) > 1 else tables[0]


def metrics_of(setup: Setup, facts: RunFacts) -> RunMetrics:
    """The numbers of a replication."""
    return summarise(facts.record, inputs_of(setup, facts))


def inputs_of(setup: Setup, facts: RunFacts) -> SummaryInputs:
    """What the summary must know of a set-up, and of its workload."""
    scenario = setup.scenario
    hardware, price = scenario.hardware, scenario.hardware.price_per_gpu_hour
    arrivals = scenario.workload.arrivals
    return SummaryInputs(
        max_num_seqs=setup.max_num_seqs,
        num_replicas=scenario.replicas,
        capacity_tokens=setup.capacity_tokens,
        num_gpu_blocks=setup.num_gpu_blocks,
        stream=setup.stream,
        open_loop=arrivals is None or arrivals.process not in ("closed_loop", "all_at_once"),
        prefix_caching=setup.prefix_caching,
        prefix_known=facts.prefix_known,
        finite=scenario.workload.is_finite,
        warmup=facts.warmup.rule,
        slo={} if scenario.slo is None else scenario.slo.model_dump(exclude_none=True),
        price_per_hour=None if price is None else price * hardware.tensor_parallel_size * scenario.replicas,
        peak_flops_per_s=setup.latency.peak_flops_per_s,
        peak_bytes_per_s=setup.latency.peak_bytes_per_s,
        latency_source=setup.latency.source,
        not_simulated=setup.not_simulated,
        path_ns=setup.first_token_ns,
        auto=facts.warmup.auto,
    )


COUNTER_TEXTS = {
    "outputs_cut_by_max_tokens": "drawn output lengths were cut to max_tokens",
    "prompt_tokens_clipped": "drawn prompt lengths were moved to min or max",
    "output_tokens_clipped": "drawn output lengths were moved to min or max",
    "prefixes_cut_to_prompt": "shared prefixes were cut to the prompt",
    "reuse_cut_to_prompt": "reused beginnings were cut to the longest earlier prompt near by",
    "requests_not_sent": "requests were not sent because the last segment ended",
    "turns_not_sent": "turns were not sent because the one before them never ended",
}


def _manifest(setup: Setup, parts: Sequence[ReplicationResult]) -> Json:
    notes = [*setup.names, *parts[0].notes]
    for counter, text in COUNTER_TEXTS.items():
        total = sum(part.counters.get(counter, 0) for part in parts)
        if total:
            notes.append(f"workload: {total} {text}")
    truncated = sum(part.summary.num_truncated for part in parts)
    if truncated:
        notes.append(f"workload: {truncated} answers ended early at max_model_len or max_tokens")
    notes += _failure_notes(setup, parts)
    clamped = getattr(setup.latency, "num_clamped", 0)
    if clamped:
        notes.append(f"latency: {clamped} prices of kernels were raised to what the hardware allows")
    if setup.windows is not None:
        notes.append(setup.windows)
    if setup.hosts_of_others is not None:
        host = setup.scenario.latency.host
        engine = f"vLLM {setup.scenario.engine.version}" if host is None or host.engine is None else host.engine
        notes.append(f"latency: host terms are {setup.hosts_of_others}, not of {engine}")
    for reason, count in _sums(part.turned_away for part in parts).items():
        notes.append(f"{count} requests turned away: {reason}")
    scenario, seed = setup.scenario.to_dict(), setup.scenario.seed
    manifest: Json = plain(
        Manifest(
            run_id=run_id(scenario, setup.profile_hash, seed),
            name=setup.scenario.name,
            scenario=scenario,
            seed=seed,
            replications=setup.scenario.replications,
            model=setup.model,
            gpu=setup.gpu,
            memory=plain(setup.memory) | {"num_gpu_blocks_used": setup.num_gpu_blocks},
            latency_source=setup.latency.source,
            latency_effects={name: source.text for name, source in setup.effects.items()},
            profile=ProfileId(setup.profile, setup.profile_hash),
            not_simulated=setup.not_simulated,
            without_effect=setup.without_effect,
            notes=notes,
            warmup={**plain(parts[0].warmup), "of_replication": 0},
            log_sha256=log_sha256(setup),
        )
    )
    return manifest


def _requeued(setup: Setup, facts: RunFacts, metrics: RunMetrics) -> dict[str, int]:
    """Requests that each failure sent back, by counter; failures after everybody had left have none."""
    left_ns = metrics.requests["left_ns"]
    last_ns = int(left_ns.max()) if len(left_ns) else -1
    return {
        _counter(index): facts.num_requeued[index]
        for index, failure in enumerate(setup.scenario.failures)
        if failure.start_ns <= last_ns
    }


def _counter(failure: int) -> str:
    return f"requeued_by_failure_{failure}"


def _failure_notes(setup: Setup, parts: Sequence[ReplicationResult]) -> list[str]:
    notes = []
    within = f" in {len(parts)} replications" if len(parts) > 1 else ""
    for index, failure in enumerate(setup.scenario.failures):
        how_long = "for good" if failure.for_s is None else f"for {failure.for_s:g} s"
        told = [part.counters[_counter(index)] for part in parts if _counter(index) in part.counters]
        what = f"{sum(told)} requests returned to the queue{within}" if told else "all requests had left by then"
        notes.append(f"replica {failure.replica} failed at {failure.at_s:g} s {how_long}: {what}")
    unfinished = sum(part.summary.num_requests.unfinished for part in parts)
    if unfinished:
        notes.append(f"{unfinished} requests unfinished{within}: no replica was up any more")
    return notes


def _turned_away(facts: RunFacts, metrics: RunMetrics) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, reason in enumerate(facts.record.reasons):
        found = int((metrics.requests["reject_reason"] == number).sum()) if number else 0
        if found:
            counts[reason] = found
    return counts


def _sums(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for tally in tallies:
        for key, count in tally.items():
            total[key] = total.get(key, 0) + count
    return total
