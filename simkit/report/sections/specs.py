"""The terminal's tables of models, GPUs and calibrated profiles (`simkit models`, `gpus`, `profiles`, `calibrate`), and
of host terms fitted to a run. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS
from simkit.plain import Json
from simkit.report.document import across, column, single
from simkit.report.render.terminal import fit
from simkit.report.words import MISSING, error, formed, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def model_tables(models: Sequence[ModelSpec], not_modelled: Sequence[str], width: int = 100) -> list[RenderableType]:
    """A row a model, then what a run refuses or simplifies."""
    names = tuple(spec.name + (" !" if spec.not_modelled else "") for spec in models)
    groups = single(
        column("params\n10^9", (f"{spec.num_params / 1e9:.2f}" for spec in models)),
        column("layers", (str(spec.num_layers) for spec in models)),
        column("hidden", (str(spec.hidden_size) for spec in models)),
        column("heads\nq/kv", (f"{spec.num_attention_heads}/{spec.num_kv_heads}" for spec in models)),
        column(
            "experts",
            (f"{spec.num_experts}, {spec.experts_per_token} on" if spec.num_experts else MISSING for spec in models),
        ),
        column("max\nlength", (str(spec.max_position) for spec in models)),
        column("KV bytes\na token", (f"{spec.kv_bytes_per_token(2):,}" for spec in models)),
    )
    parts: list[RenderableType] = list(fit("model", names, groups, width))
    parts.append(
        Text("KV bytes at 16 bits. Tuned and quantised variants go by their own names, others by id or config.json.")
    )
    parts.append(Text("! listed for memory questions only; a run refuses it. Not modelled:"))
    parts += [Text(f"  - {line}") for line in not_modelled]
    return parts


def gpu_tables(gpus: Sequence[GpuSpec], width: int = 100) -> list[RenderableType]:
    """A row a GPU."""
    names = tuple(spec.name for spec in gpus)
    groups = single(
        column("memory\nGiB", (f"{spec.memory_gib:.1f}" for spec in gpus)),
        column("HBM\nGB/s", (f"{spec.hbm_bytes_per_s / 1e9:,.0f}" for spec in gpus)),
        *(
            column(f"{title}\nTFLOP/s", (_tera(spec.peak_flops_per_s.get(dtype)) for spec in gpus))
            for title, dtype in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp8", "fp8"))
        ),
        column("PCIe\nGB/s", (f"{spec.pcie_bytes_per_s / 1e9:,.0f}" for spec in gpus)),
        column("NVLink\nGB/s", (_giga(spec.nvlink_bytes_per_s) for spec in gpus)),
        column("SMs", (str(spec.num_sms) for spec in gpus)),
    )
    parts: list[RenderableType] = list(fit("gpu", names, groups, width))
    parts.append(Text("Dense peaks; link rates per GPU and direction; memory as the driver reports it."))
    return parts


def _tera(value: float | None) -> str:
    return MISSING if value is None else f"{value / 1e12:,.0f}"


def _giga(value: float) -> str:
    return f"{value / 1e9:,.0f}" if value else MISSING


# --- profiles ---------------------------------------------------------------------------------------------------------
Described = Json
"""A profile as `simkit.latency.profile.describe` gives it."""

MAIN_OPS = ("gemm", "attention_decode", "attention_prefill")

LISTED = (
    ("refused", "faster than the hardware allows, not used"),
    ("outliers", "far from their neighbours, kept as measured"),
    ("far_apart", "equal sizes measured far apart, median used"),
)


def profiles_tables(profiles: Sequence[Described], width: int = 100) -> list[RenderableType]:
    """For each profile where it comes from, how wrong it is, and where it is valid."""
    parts: list[RenderableType] = []
    for profile in profiles:
        parts += [*profile_tables(profile, width), *(Text(line) for line in _valid(profile)), Text("")]
    parts.append(
        Text(
            "Errors in percent on 20 % of the shapes, not seen by the fit. Inside: measured neighbours on both sides"
            " along every axis. Extrapolated: trained up to half of the largest size of an axis, tested above."
        )
    )
    return parts


def profile_tables(profile: Described, width: int = 100) -> list[RenderableType]:
    """A row an op: rows used, held-out errors, errors beyond."""
    ops = profile["ops"]
    names = tuple(f"{row['op']} {row['dtype']}" for row in ops)
    reports = [row["report"] for row in ops]
    errors = [report.get("errors") or {} for report in reports]
    inside = [found.get("held_out_inside") or {} for found in errors]
    outside = [found.get("held_out_outside") or {} for found in errors]
    groups = single(
        column("rows", (plain(report.get("rows")) for report in reports)),
        column("refused", (plain((report.get("refused") or {}).get("count")) for report in reports)),
        column("merged", (plain(report.get("merged")) for report in reports)),
        column("spikes", (plain((report.get("outliers") or {}).get("count")) for report in reports)),
        column("inside\nMAPE", (formed(found.get("mape_pct"), ".1f") for found in inside)),
        column("\nmedian", (formed(found.get("median_pct"), ".1f") for found in inside)),
        column("\np95", (formed(found.get("p95_pct"), ".1f") for found in inside)),
        column("outside\nMAPE", (formed(found.get("mape_pct"), ".1f") for found in outside)),
        column("\np95", (formed(found.get("p95_pct"), ".1f") for found in outside)),
    )
    title = Text(f"{profile['name']}  ", style="bold")
    title.append(_origin(profile), style="not bold")
    lines = [*_extrapolated(ops), *_launches(profile)]
    return [title, *fit("op", names, groups, width), *(Text(line) for line in lines)]


def listing(profile: Described) -> list[str]:
    """Lines about rows that were not simply used."""
    lines = []
    for row in profile["ops"]:
        for key, why in LISTED:
            found = row["report"].get(key) or {"count": 0, "first": []}
            if found["count"]:
                lines.append(f"{found['count']} {row['op']} {row['dtype']} rows {why}:")
                lines += [f"  {text}" for text in found["first"]]
                left = found["count"] - len(found["first"])
                lines += [f"  and {left} more"] if left else []
    return lines


def _origin(profile: Described) -> str:
    origin = profile["provenance"]
    parts = [str(origin[key]) for key in ("measured_by", "software", "licence") if origin.get(key)]
    parts.append(f"{origin.get('table_rows', 0):,} rows")
    if origin.get("all_reduce"):
        parts.append(f"and all-reduces: {origin['all_reduce']}")
    return f"measured on {profile['gpu']}: " + ", ".join(parts)


def _launches(profile: Described) -> list[str]:
    mixed, skew = profile["launches"].get("mixed") or {}, profile["launches"].get("skew")
    if mixed.get("measured"):
        found = (mixed.get("held_out") or {}).items()
        errors = "; ".join(f"{name} {e['mape_pct']:.1f} % MAPE, bias {e['bias_pct']:+.1f} %" for name, e in found)
        how = "priced as the sum of its parts" if mixed["rule"] == "sum" else "fitted"
        lines = [f"a chunk beside decodes: {mixed['rows']:,} launches, {how}, held out: {errors}"]
    else:
        how = "as the sum of its parts" if mixed.get("rule") == "sum" else "by constants of another GPU"
        few = f"only {mixed['rows']} launches measured" if mixed.get("rows") else "not measured"
        lines = [f"a chunk beside decodes: {few}, priced {how}"]
    if skew and skew.get("measured"):
        off, at_mean = skew["held_out"]["mape_pct"], skew["held_out_at_the_mean"]["mape_pct"]
        lines.append(
            f"decodes of unequal length: {skew['rows']:,} launches fitted, held out {off:.1f} % MAPE (at the mean "
            f"length: {at_mean:.1f} %)"
        )
    host = profile.get("host")
    if host:
        lines.append(f"host: {host['fixed_us']:,.0f} us a step, {host['per_seq_us']:.2f} us a running sequence")
    else:
        lines.append("host: not measured, the assumed 500 us a step")
    return [*lines, *hosts_lines(profile["engine_hosts"])]


def _valid(profile: Described) -> list[str]:
    lines = ["valid for"]
    for row in profile["ops"]:
        ranges = ", ".join(f"{axis} {low:,g} to {high:,g}" for axis, (low, high) in row["valid"].items())
        lines.append(f"  {row['op']} {row['dtype']}: {ranges}")
    return lines


def _extrapolated(ops: Sequence[Json]) -> list[str]:
    """The split of each axis, and their mean over the main ops."""
    parts, main = [], []
    for row in ops:
        found = (row["report"].get("errors") or {}).get("beyond_half_of") or {}
        errors = {axis: one["mape_pct"] for axis, one in found.items() if one["mape_pct"] is not None}
        if errors:
            parts.append(f"{row['op']} {row['dtype']} " + ", ".join(f"{axis} {e:.1f}" for axis, e in errors.items()))
        if row["op"] in MAIN_OPS and row["dtype"] != "fp8":
            main += list(errors.values())
    if not main:
        return []
    return [f"extrapolated, MAPE: {'; '.join(parts)}; mean of the main ops' splits {sum(main) / len(main):.1f}"]


# --- host terms fitted to a real run ----------------------------------------------------------------------------------
TERMS = {
    "fixed_us": "a step, us",
    "per_seq_us": "a step and sequence, us",
    "per_request_us": "a step and new request, us",
    "gap_us": "idle between steps, us",
    "tp_us": "a step and doubling of the GPUs, us",
    "first_token_us": "a request, us",
}


LATER_TERMS = {"per_request_us": "a new request in a step", "gap_us": "idle between steps"}
"""Terms that a profile tells where they are not 0."""


def fit_tables(facts: Json, width: int = 100) -> list[RenderableType]:
    """Terms before and after, then the errors on the run they were fitted to."""
    counts = ", ".join(f"{MEASURED_LATENCIES[metric]} of {count:,}" for metric, count in facts["num_requests"].items())
    met = [row["requests_met"] for row in facts["numbers"]]
    rms, where = facts["rms_pct"], facts["scenario"]
    lines = [
        f"fitted to {len(facts['numbers'])} numbers of {facts['log']} ({counts} requests), "
        f"{where['model']} on {where['gpu']}, {facts['num_simulations']} simulations",
        f"{plain(min(met))} to {plain(max(met))} requests at once, by group: the wider, the better a step's fixed "
        "work is told from that for each of its sequences",
        f"error of these numbers, root mean square: {rms['before']:.2f} % before, {rms['after']:.2f} % after",
    ]
    return [
        *_terms(facts, width),
        *(Text(f"{TERMS[name].split(',')[0]}: {term['why']}") for name, term in facts["terms"].items() if term["why"]),
        *(Text(line) for line in (*facts["limits"], *lines)),
        *_errors(facts["errors"], width),
        Text("a positive error: the prediction is too slow; measured on the run that was fitted, not on another"),
    ]


def hosts_lines(hosts: Json) -> list[str]:
    """A line an engine version that a profile has host terms of."""
    lines = []
    for version, host in hosts.items():
        line = (
            f"host of vLLM {version}: {host['fixed_us']:,.0f} us a step, {host['per_seq_us']:.2f} us a running "
            f"sequence, {host['first_token_us']:,.0f} us a request"
        )
        line += "".join(f", {host[name]:,.0f} us {words}" for name, words in LATER_TERMS.items() if host[name])
        origin = host["provenance"]
        log, rms = origin.get("log"), origin.get("rms_pct")
        ends = [rms.get(key) for key in ("before", "after")] if isinstance(rms, Mapping) else [None]
        if isinstance(log, str):
            line += f"; fitted to {log}"
        if all(type(end) in (int, float) for end in ends):
            line += f", error there {ends[0]:.1f} % before, {ends[1]:.1f} % after"
        lines.append(line)
    return lines


def _terms(facts: Json, width: int) -> list[Table]:
    terms = facts["terms"]
    names = tuple(TERMS[name] for name in terms)
    rows = list(terms.values())
    groups = single(
        column("before", (f"{row['before']:,.1f}" for row in rows)),
        column("after", (f"{row['after']:,.1f}" for row in rows)),
        column("+/-", (formed(row["standard_error"], ",.1f") for row in rows)),
        column("", ("fitted" if row["state"] == "fitted" else "left" for row in rows)),
        column("before from", (row["source"] for row in rows)),
    )
    return fit(f"host of vLLM {facts['version']}", names, groups, width, f"{facts['name']}")


def _errors(errors: Json, width: int) -> list[Table]:
    rows: list[tuple[str, list[str]]] = []
    for metric, stats in errors.items():
        name = MEASURED_LATENCIES[metric]
        rows += [
            (f"{name} measured [ms]", [plain(stats[stat]["measured"]) for stat in STATS]),
            (f"{name} error before", [error(stats[stat]["before_pct"]) for stat in STATS]),
            (f"{name} error after", [error(stats[stat]["after_pct"]) for stat in STATS]),
        ]
    groups = single(*across(STATS, [cells for _, cells in rows]))
    return fit("", tuple(name for name, _ in rows), groups, width)


if TYPE_CHECKING:
    from rich.console import RenderableType

    from simkit.specs.hardware import GpuSpec
    from simkit.specs.models import ModelSpec
