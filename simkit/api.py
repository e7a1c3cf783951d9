"""The Python API: load a scenario, run it, look at the result, write a run directory.

    import simkit

    result = simkit.run(simkit.load("scenarios/eight-requests.yaml"))
    result.summary["num_steps"], result.requests.head(), result.steps.head()
    simkit.write(result, "runs/eight", overwrite=True)

Imports the engine, metrics and manifest; the report is imported only to write one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkit.engine.build import Setup, set_up
from simkit.engine.run import Progress, RunFacts, simulate
from simkit.errors import InputError
from simkit.manifest import CREATED_BY, build_manifest, canonical_json, is_run_dir, plain
from simkit.metrics.definitions import Outcome, summarise
from simkit.metrics.intervals import combine
from simkit.metrics.tables import request_table, slot_table, span_table
from simkit.metrics.terms import Terms
from simkit.scenario import Scenario, load

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from simkit.planner.compare import Comparison

__all__ = ["Result", "load", "run", "write", "write_comparison"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gives. `summary` and `manifest` are the content of the JSON files, `tables` of the parquet files.

    `replications` holds the summary of each replication; `summary` is their mean with ``*_ci95`` siblings.
    """

    summary: dict[str, Any]
    manifest: dict[str, Any]
    tables: dict[str, pa.Table]
    replications: list[dict[str, Any]]

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


def run(
    scenario: Scenario,
    *,
    base_dir: Path | None = None,
    progress: Progress | None = None,
    single_step: bool = False,
) -> Result:
    """Simulate a scenario, all its replications.

    `base_dir` is where relative paths start (default: the folder of the scenario file). `single_step` prices one step
    at a time; the result is the same, slower. Raises InputError for a scenario that cannot be run and CheckError for
    a livelock or a broken invariant.
    """
    if base_dir is not None:
        scenario = scenario.based_at(base_dir)
    setup = set_up(scenario)
    terms = _terms(setup)
    facts: list[RunFacts] = []
    outcomes: list[Outcome] = []
    count = setup.scenario.replications
    for replication in range(count):
        facts.append(simulate(setup, replication, _part(progress, replication, count), single_step=single_step))
        outcomes.append(summarise(facts[-1].record, terms))
    tables = {
        "requests": request_table([(o.requests, f.record.reasons) for o, f in zip(outcomes, facts, strict=True)]),
        "steps": span_table([f.record for f in facts]),
        "slots": slot_table(facts[0].record),
    }
    summaries = [outcome.summary for outcome in outcomes]
    return Result(combine(summaries), _manifest(setup, facts, outcomes), tables, summaries)


def write(result: Result, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a run directory: manifest, summary, tables and (unless `report` is false) report.html.

    Written to a sibling and renamed when complete, so that a directory of that name is always whole. `overwrite`
    replaces an earlier run of simkit; anything else in the way raises InputError. OSError passes through.
    """
    with _replacing(Path(out_dir), overwrite) as directory:
        _write_run(result, directory)
        if report:
            from simkit.report.html import write_report

            name = result.manifest["name"]
            write_report(directory / "report.html", {name: directory}, title=name)
    return Path(out_dir)


def write_comparison(comparison: Comparison, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a comparison: ``arms/<name>`` run directories, compare.json, manifest.json and report.html."""
    with _replacing(Path(out_dir), overwrite) as directory:
        folders = {}
        for name, result in comparison.arms.items():
            folders[name] = directory / "arms" / file_safe(name)
            folders[name].mkdir(parents=True)
            _write_run(result, folders[name])
        content = comparison.to_json()
        (directory / "compare.json").write_bytes(canonical_json(content))
        manifest = {
            "name": comparison.name,
            "baseline": comparison.baseline,
            "arms": {name: f"arms/{folder.name}" for name, folder in folders.items()},
            "run_ids": {name: result.manifest["run_id"] for name, result in comparison.arms.items()},
            "created_by": CREATED_BY,
        }
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
        if report:
            from simkit.report.html import write_report

            facts = {"baseline": comparison.baseline, "paired": json.loads(canonical_json(content["paired"]))}
            write_report(directory / "report.html", folders, title=comparison.name, comparison=facts)
    return Path(out_dir)


def file_safe(name: str) -> str:
    """An arm's name as a folder name; different names stay different."""
    return "".join(c if c.isalnum() or c in "+-._@=" else f"%{ord(c):02x}" for c in name)


def _write_run(result: Result, directory: Path) -> None:
    import pyarrow.parquet as pq

    (directory / "manifest.json").write_bytes(canonical_json(result.manifest))
    (directory / "summary.json").write_bytes(canonical_json(result.summary))
    for name, table in result.tables.items():
        pq.write_table(table, directory / f"{name}.parquet")


@contextmanager
def _replacing(out_dir: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary sibling that takes the place of `out_dir` when the block ends well, and vanishes when it does not."""
    if out_dir.exists():
        occupied = any(out_dir.iterdir()) if out_dir.is_dir() else True
        if occupied and not (overwrite and is_run_dir(out_dir)):
            raise InputError(f"{out_dir}: already there; expected a new directory or overwrite=True for an earlier run")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.partial-", dir=out_dir.parent))
    try:
        partial.chmod(0o755)
        yield partial
        _put_in_place(partial, out_dir)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, out_dir: Path) -> None:
    """Rename `partial` to `out_dir`; whatever another run put there meanwhile makes way."""
    for last in (False, False, False, True):
        if out_dir.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.old-", dir=out_dir.parent))
            with suppress(FileNotFoundError):
                out_dir.replace(old / "old")
            shutil.rmtree(old)
        try:
            partial.replace(out_dir)
            return
        except OSError:
            if last:
                raise


def _part(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Progress of one replication among several."""
    if progress is None:
        return None
    return lambda done, label: progress(
        (index + done) / count, label or (f"replication {index + 1} of {count}" if count > 1 else "simulating")
    )


def _terms(setup: Setup) -> Terms:
    scenario = setup.scenario
    hardware, warmup = scenario.hardware, scenario.warmup
    if not isinstance(warmup, str):
        kind, value = next(iter(warmup.model_dump().items()))
        warmup = (kind, float(value))  # type: ignore[assignment]
    price = hardware.price_per_gpu_hour
    arrivals = scenario.workload.arrivals
    return Terms(
        max_num_seqs=setup.max_num_seqs,
        num_replicas=scenario.replicas,
        capacity_tokens=setup.capacity_tokens,
        num_gpu_blocks=setup.num_gpu_blocks,
        stream=setup.stream,
        open_loop=arrivals is None or arrivals.process not in ("closed_loop", "all_at_once"),
        # A log that does not say which prompts are alike has an unknown hit rate, not 0.
        prefix_caching=setup.prefix_caching and scenario.workload.trace is None,
        warmup=warmup,  # type: ignore[arg-type]
        slo={} if scenario.slo is None else scenario.slo.model_dump(exclude_none=True),
        price_per_hour=None if price is None else price * hardware.tensor_parallel_size * scenario.replicas,
        peak_flops_per_s=setup.latency.peak_flops_per_s,
        peak_bytes_per_s=setup.latency.peak_bytes_per_s,
        latency_source=setup.latency.source,
        not_simulated=setup.not_simulated,
    )


COUNTER_TEXTS = {
    "outputs_cut_by_max_tokens": "drawn output lengths were cut to max_tokens",
    "prompt_tokens_clipped": "drawn prompt lengths were moved to min or max",
    "output_tokens_clipped": "drawn output lengths were moved to min or max",
    "prefixes_cut_to_prompt": "shared prefixes were cut to the prompt",
    "requests_not_sent": "requests were not sent because the last segment ended",
}


def _manifest(setup: Setup, facts: list[RunFacts], outcomes: list[Outcome]) -> dict[str, Any]:
    notes = list(facts[0].notes)
    for counter, text in COUNTER_TEXTS.items():
        total = sum(f.counters.get(counter, 0) for f in facts)
        if total:
            notes.append(f"workload: {total} {text}")
    truncated = sum(outcome.summary["num_truncated"] for outcome in outcomes)
    if truncated:
        notes.append(f"workload: {truncated} answers ended early at max_model_len or max_tokens")
    for reason, count in _reject_counts(facts, outcomes).items():
        notes.append(f"{count} requests turned away: {reason}")
    return build_manifest(
        scenario=setup.scenario.to_dict(),
        model=setup.model,
        gpu=setup.gpu,
        memory=plain(setup.memory) | {"num_gpu_blocks_used": setup.num_gpu_blocks},
        latency_source=setup.latency.source,
        profile=setup.scenario.latency.profile,
        profile_hash=setup.latency.source,
        not_simulated=setup.not_simulated,
        without_effect=setup.without_effect,
        notes=notes,
        warmup={**outcomes[0].warmup, "of_replication": 0},
    )


def _reject_counts(facts: list[RunFacts], outcomes: list[Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for fact, outcome in zip(facts, outcomes, strict=True):
        for number, reason in enumerate(fact.record.reasons):
            found = int((outcome.requests["reject_reason"] == number).sum()) if number else 0
            if found:
                counts[reason] = counts.get(reason, 0) + found
    return counts
