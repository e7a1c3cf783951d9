"""The catalogue of metrics: every number of ``summary.json`` that is shown, named once for all who show it.

An entry says where a number stands in the summary, what it is called and measured in, whether less of it is better,
which definition it has, and where it is shown and at what place there. Tables, studies, plans and the checks of other
people's measurements take their lists from here. A new metric is an entry, and the function that computes it.

Values and text only: whoever reads a run directory may import this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from simkit.metrics.glossary import DEFINITIONS
from simkit.plain import Json

STATS = ("mean", "p50", "p90", "p95", "p99")
"""Statistics of a latency."""

LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E", "queue_ms": "Queue"}
"""Latencies by their key in the summary, and what they are called."""

MEASURED_LATENCIES = {key: name for key, name in LATENCIES.items() if key != "queue_ms"}
"""Those that a client can measure."""

WHOLE_RUN = {
    "makespan_s.value": "makespan [s]",
    "throughput.requests_per_s": "requests/s",
    "throughput.output_tokens_per_s": "output tokens/s",
    "concurrency.mean": "requests in the system, mean",
    "running.mean": "running, mean",
    "running.max": "running, peak",
    "waiting.mean": "waiting, mean",
    "waiting.max": "waiting, peak",
    "kv_pct.mean": "KV in use [%], mean",
    "kv_pct.max": "KV in use [%], peak",
}
"""What a log and samples over time measure of a run as a whole, as ``METRIC.STAT``. They are of the requests that a
simulation shares with the log, and so no numbers of the summary."""


class Place(Enum):
    """Where metrics are shown, each place in an order of its own.

    In the columns of COMPARE and SWEEP what shares its tens stays together when a table is parted.
    """

    HTML = "table of arms in report.html: as in METRICS, under the heading of each"
    RUN = "terminal, one run"
    COMPARE = "terminal, columns of compare"
    PAIRED = "paired differences to the baseline, in compare.json and all its tables"
    SWEEP = "terminal, columns of sweep"
    SWEEP_CSV = "columns of sweep.csv"
    PLAN = "numbers that a plan keeps of each simulation, in plan.json"
    DOCTOR = "shown with every re-run of the doctor"
    ROWS = "columns of measured numbers in a table of serving benchmarks"
    REQUIRED = "what every summary has that a report reads, null where there is no value"


class Kind(Enum):
    """How a value reads."""

    NUMBER = "with about three digits"
    COUNT = "without a fraction where it has none"
    SHARE = "as per cent"
    FLAG = "yes or no"
    TEXT = "as it is"


class Better(Enum):
    """Which of two values is the better one."""

    LOWER = -1
    HIGHER = 1


class Scope(Enum):
    """What a number of several replicas is of."""

    ALL = "all"
    EACH = "each"
    FULLEST = "fullest"


HTML, RUN, COMPARE, PAIRED, SWEEP, SWEEP_CSV, PLAN, DOCTOR, ROWS, REQUIRED = Place
NUMBER, COUNT, SHARE, FLAG, TEXT = Kind
LOWER, HIGHER = Better
ALL, EACH, FULLEST = Scope
THROUGHPUT, KV, WORK, REQUESTS = "Throughput", "KV memory", "Work and events", "Requests"

Shown = Mapping[Place, int]
Names = Mapping[Place, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of the summary.

    `key` is its dotted path there. `label` and `unit` are those of report.html; `names` has what it is called in other
    places, where that differs (a header of columns may have several lines). `heading` is its group in report.html.
    `shown` maps a place to the position there. `better` says whether less or more of it is better, None where neither
    is. `meaning` defines it, or `term` does, its entry in the glossary of report.html. `scope` is None of what is a
    share, of a request, or of the whole run. `rare`: shown only where it is there and not 0.
    """

    key: str
    label: str
    unit: str = ""
    kind: Kind = NUMBER
    better: Better | None = None
    term: str = ""
    heading: str = ""
    shown: Shown = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    scope: Scope | None = None
    rare: bool = False
    meaning: str = ""

    @property
    def definition(self) -> str:
        """What the number means."""
        return self.meaning or _GLOSSARY[self.term]

    def name(self, place: Place) -> str:
        """What it is called at a place."""
        return self.names.get(place, self.label)


_GLOSSARY = dict(DEFINITIONS)


_STATS_AT: Mapping[Place, tuple[str, ...]] = {
    PLAN: STATS,
    ROWS: STATS,
    **dict.fromkeys((DOCTOR, REQUIRED), ("p99",)),
    **dict.fromkeys((HTML, COMPARE, PAIRED, SWEEP, SWEEP_CSV), ("p50", "p95", "p99")),
}
"""Which statistics of a latency a place shows, if it shows the latency."""


def _latency(key: str, first: Shown, compared: tuple[str, ...] = STATS, meaning: str = "") -> Iterator[Metric]:
    """The statistics of a latency. `first` has the position of the first one at each place, and `compared` are those
    that may stand in a comparison. `meaning` where the glossary has none of the latency."""
    name = LATENCIES[key]
    for stat in STATS:
        shown = {
            place: start + (0 if place is HTML else _STATS_AT[place].index(stat))
            for place, start in first.items()
            if stat in _STATS_AT[place] and (stat in compared or place not in (COMPARE, PAIRED))
        }
        word, column = {"p50": "median"}.get(stat, stat), {"e2e_ms": "e2e_s"}.get(key, key)
        names = {
            COMPARE: f"{name}\n{stat}",
            SWEEP: f"{name}\n{stat}",
            SWEEP_CSV: f"{key}_{stat}",
            ROWS: f"{word}_{column}",
        }
        term = "" if meaning else name
        yield Metric(
            f"{key}.{stat}", f"{name} {stat}", "ms", NUMBER, LOWER, term, "Latency", shown, names, meaning=meaning
        )


def _rate(key: str, label: str, unit: str, shown: Shown, names: Names) -> Metric:
    """A rate of the measured window."""
    return Metric(f"throughput.{key}", label, unit, NUMBER, HIGHER, "Throughput", THROUGHPUT, shown, names, ALL)


def _makespan_rate(key: str, label: str, unit: str, run: int, name: str, row: int, column: str) -> Metric:
    """A rate of the makespan: its position and name in the table of one run, and in a table of benchmarks."""
    label, term = f"{label} of the makespan", "Throughput of the makespan"
    shown, names = {HTML: 1, RUN: run, ROWS: row}, {RUN: f"{name} of makespan", ROWS: column}
    return Metric(f"makespan_throughput.{key}", label, unit, NUMBER, HIGHER, term, THROUGHPUT, shown, names)


def _kv_share(kind: str, better: Better | None, shown: Shown) -> Metric:
    """A share of the allocated KV memory."""
    key, label = f"kv.{kind}.share_of_allocated", f"KV {kind}"
    names = {COMPARE: f"KV {kind[:2]}-\n{kind[2:]}", DOCTOR: f"KV {kind} waste"}
    return Metric(key, label, "of allocated", SHARE, better, label, KV, {HTML: 1, **shown}, names)


def _requests(kind: str, better: Better | None, shown: Shown) -> Metric:
    """How many requests arrived, or ended in one way."""
    names = {DOCTOR: f"requests {kind}"}
    meaning = "How many requests arrived, and how they ended: none is dropped from the count."
    key, label = f"num_requests.{kind}", kind.capitalize()
    return Metric(key, label, "", COUNT, better, "", REQUESTS, shown, names, meaning=meaning)


# fmt: off
METRICS: tuple[Metric, ...] = (
    _rate("requests_per_s", "Throughput", "req/s",
          {HTML: 1, RUN: 1, COMPARE: 11, PAIRED: 11, SWEEP: 11, SWEEP_CSV: 11, PLAN: 21, REQUIRED: 3},
          {RUN: "requests per second", COMPARE: "req/s", SWEEP: "req/s", SWEEP_CSV: "requests_per_s",
           DOCTOR: "requests/s"}),
    _rate("output_tokens_per_s", "Output tokens", "tok/s",
          {HTML: 1, RUN: 2, COMPARE: 12, PAIRED: 12, SWEEP: 12, SWEEP_CSV: 12, PLAN: 22, DOCTOR: 1, REQUIRED: 4},
          {RUN: "output tokens per second", COMPARE: "out\ntok/s", SWEEP: "out\ntok/s",
           SWEEP_CSV: "output_tokens_per_s", DOCTOR: "output tokens/s"}),
    _rate("total_tokens_per_s", "All tokens", "tok/s", {HTML: 1, RUN: 3, PLAN: 23}, {RUN: "total tokens per second"}),
    Metric("concurrency_mean", "Concurrency, mean", "requests", NUMBER, None, "Concurrency", THROUGHPUT,
           {HTML: 1, RUN: 5, COMPARE: 13, PAIRED: 13, PLAN: 24, REQUIRED: 5},
           {RUN: "concurrency, mean", COMPARE: "concur-\nrency"}, ALL),
    Metric("goodput_per_s", "Goodput", "req/s", NUMBER, HIGHER, "Goodput", THROUGHPUT,
           {HTML: 1, RUN: 8, PAIRED: 33, SWEEP: 13, SWEEP_CSV: 13},
           {RUN: "goodput per second", SWEEP: "good-\nput/s", SWEEP_CSV: "goodput_per_s"}, ALL),
    Metric("cost_per_million_output_tokens", "Cost", "per million output tokens", NUMBER, LOWER, "Cost", THROUGHPUT,
           {HTML: 1, RUN: 9, SWEEP: 54, SWEEP_CSV: 54},
           {RUN: "cost per million output tokens", SWEEP: "cost", SWEEP_CSV: "cost_per_million_output_tokens"}),
    Metric("window_s", "Measured window", "s", NUMBER, None, "Measured window", THROUGHPUT,
           {HTML: 1, RUN: 4}, {RUN: "measured window"}),
    Metric("makespan_s", "Makespan", "s", NUMBER, LOWER, "Throughput of the makespan", THROUGHPUT,
           {HTML: 1, RUN: 10, ROWS: 24}, {RUN: "makespan", ROWS: "duration_s"}),
    _makespan_rate("requests_per_s", "Throughput", "req/s", 11, "requests per s", 23, "req_per_s"),
    _makespan_rate("output_tokens_per_s", "Output tokens", "tok/s", 12, "output tokens per s", 21, "output_tok_s"),
    _makespan_rate("total_tokens_per_s", "All tokens", "tok/s", 13, "total tokens per s", 22, "total_tok_s"),
    *_latency("ttft_ms",
              {HTML: 1, COMPARE: 41, PAIRED: 41, SWEEP: 21, SWEEP_CSV: 21, PLAN: 1, DOCTOR: 2, ROWS: 1, REQUIRED: 8}),
    *_latency("tpot_ms",
              {HTML: 1, COMPARE: 51, PAIRED: 51, SWEEP: 31, SWEEP_CSV: 31, PLAN: 6, DOCTOR: 3, ROWS: 6, REQUIRED: 9}),
    *_latency("itl_ms",
              {HTML: 1, COMPARE: 71, PAIRED: 71, PLAN: 11, DOCTOR: 4, ROWS: 11, REQUIRED: 10}, compared=("p99",)),
    *_latency("e2e_ms",
              {HTML: 1, COMPARE: 61, PAIRED: 61, SWEEP: 41, SWEEP_CSV: 41, PLAN: 16, DOCTOR: 5, ROWS: 16,
               REQUIRED: 11}),
    *_latency("queue_ms", {HTML: 1}, meaning="From arrival to being scheduled first."),
    Metric("slot_utilization", "Slot utilisation", "", SHARE, HIGHER, "Slot utilisation", "Slots",
           {HTML: 1, RUN: 6, COMPARE: 14, PAIRED: 14, PLAN: 25, REQUIRED: 6},
           {RUN: "slot utilisation", COMPARE: "slot\nutil."}),
    Metric("slot_occupancy", "Slot occupancy", "", SHARE, None, "Slot occupancy", "Slots",
           {HTML: 1, RUN: 7, COMPARE: 15, PAIRED: 15, REQUIRED: 7}, {RUN: "slot occupancy", COMPARE: "slot\noccup."}),
    _kv_share("used", None, {REQUIRED: 15}),
    _kv_share("reserved", LOWER, {COMPARE: 21, PAIRED: 21}),
    _kv_share("internal", LOWER, {COMPARE: 22, PAIRED: 22}),
    _kv_share("external", LOWER, {COMPARE: 23, PAIRED: 23}),
    Metric("kv.utilization", "KV utilisation", "of the pool", SHARE, None, "KV utilisation", KV,
           {HTML: 1, RUN: 23, SWEEP: 52, SWEEP_CSV: 52, PLAN: 27, REQUIRED: 14},
           {SWEEP: "KV\nutil.", SWEEP_CSV: "kv_utilization"}),
    Metric("kv.peak_tokens", "KV peak", "tokens", COUNT, None, "", KV, {HTML: 1, RUN: 22}, scope=FULLEST,
           meaning="The largest number of tokens for which memory was allocated at one time."),
    Metric("kv.capacity_tokens", "KV capacity", "tokens", COUNT, None, "", KV, {RUN: 20, REQUIRED: 13}, scope=EACH,
           meaning="Tokens whose keys and values fit into the memory that is left for them."),
    Metric("kv.num_gpu_blocks", "KV blocks", "", COUNT, None, "", KV, {RUN: 21}, scope=EACH,
           meaning="Blocks of KV memory of a replica, the dummy block included."),
    Metric("num_preemptions", "Preemptions", "", COUNT, LOWER, "Preemption", WORK,
           {HTML: 1, RUN: 18, COMPARE: 31, PAIRED: 31, SWEEP: 51, SWEEP_CSV: 51, PLAN: 26, DOCTOR: 6, REQUIRED: 12},
           {RUN: "preemptions", COMPARE: "pre-\nempted", SWEEP: "pre-\nempted", SWEEP_CSV: "num_preemptions",
            DOCTOR: "preemptions"}, ALL),
    Metric("num_requeued", "Requeued", "requests", COUNT, None, "Requeued", WORK,
           {HTML: 1, RUN: 31}, {RUN: "requests requeued"}, rare=True),
    Metric("prefix_cache_hit_rate", "Prefix cache hits", "of prompt tokens", SHARE, HIGHER, "", WORK,
           {HTML: 1, RUN: 19, COMPARE: 32, PLAN: 32}, {RUN: "prefix cache hits", COMPARE: "cache\nhits"},
           meaning="Prompt tokens that were found in the cache, as a share of all prompt tokens of the measured "
                   "requests."),
    Metric("num_steps", "Steps", "", COUNT, None, "", WORK, {HTML: 1, RUN: 17}, {RUN: "steps"}, ALL,
           meaning="Passes of the engine that scheduled at least one token."),
    Metric("gpu.busy", "GPU busy", "", SHARE, None, "", WORK, {HTML: 1, RUN: 14, PLAN: 28, REQUIRED: 16},
           meaning="Time in which GPUs computed, as a share of the time from the first arrival to the end of the last "
                   "step."),
    Metric("gpu.mfu", "MFU", "", SHARE, HIGHER, "MFU, MBU", WORK, {HTML: 1, RUN: 15, PLAN: 29}),
    Metric("gpu.mbu", "MBU", "", SHARE, HIGHER, "MFU, MBU", WORK, {HTML: 1, RUN: 16, PLAN: 30}),
    Metric("gpu.extrapolated.share", "Extrapolated", "of GPU time", SHARE, LOWER, "", WORK,
           {SWEEP_CSV: 56, PLAN: 31}, {SWEEP_CSV: "extrapolated_share"},
           meaning="GPU time that does not rest on measurements, as a share of all GPU time."),
    _requests("arrived", None, {HTML: 1, PLAN: 33, REQUIRED: 1}),
    _requests("finished", HIGHER, {HTML: 1, PLAN: 34, DOCTOR: 7, REQUIRED: 2}),
    _requests("rejected", LOWER, {HTML: 1, PLAN: 35}),
    _requests("refused", LOWER, {HTML: 1}),
    _requests("aborted", LOWER, {HTML: 1}),
    _requests("unfinished", LOWER, {HTML: 1}),
    Metric("num_truncated", "Truncated", "requests", COUNT, LOWER, "", REQUESTS,
           {RUN: 30}, {RUN: "outputs cut short"}, rare=True,
           meaning="Answers that ended before the length that was drawn for them, at max_model_len or max_tokens."),
    Metric("saturated", "Saturated", "", FLAG, LOWER, "Saturated", REQUESTS,
           {HTML: 1, SWEEP_CSV: 53, PLAN: 36, REQUIRED: 17}, {SWEEP_CSV: "saturated"}),
    Metric("latency_source", "Latency source", "", TEXT, None, "", WORK,
           {SWEEP_CSV: 55}, {SWEEP_CSV: "latency_source"}, meaning="Where step times come from."),
)
# fmt: on
"""All metrics, in the order of report.html."""


def shown(place: Place) -> tuple[Metric, ...]:
    """The metrics of a place, in the order in which it shows them."""
    return tuple(sorted((m for m in METRICS if place in m.shown), key=lambda m: m.shown[place]))


def find(key: str) -> Metric | None:
    """The metric at a dotted path of the summary, if it is in the catalogue."""
    return next((metric for metric in METRICS if metric.key == key), None)


def value(data: Json, key: str) -> Any:
    """What stands at a dotted path of a summary, or of any JSON object; None where any part of it is missing."""
    here: Any = data
    for part in key.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def number(summary: Json, key: str) -> float | None:
    """The number at a dotted path of a summary (a flag is 0 or 1), None where there is none."""
    found = value(summary, key)
    return None if found is None else float(found)
