"""Measured times and fitted curves over the main size of an op: which shapes are drawn, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calib.plots.style import CYCLE, DASHED, DOTTED, MARKERS, legend_below, plain
from calib.table import Floats, Rows, size_names
from simkit.latency.profile import KEYS, MEMORY_BOUND_OPS, OpFit, work_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Shape = dict[str, float]

CURVE_POINTS = 600
"""Sizes at which a curve is computed; whole numbers, so that steps between neighbours show."""

FEW_POINTS = 30
"""More points than this on a line are drawn smaller."""

ENOUGH = 4
"""A shape is drawn when it has at least this part of the points of the best measured one."""

HEADROOM = 3.0
"""How far below the fastest point an axis goes: the limit of tiny calls lies decades lower and says nothing."""

NARROW = 50.0
"""An axis over less than this ratio may hold one power of ten or none: it gets labels at 2 and 5 as well."""

_HEADS: Shape = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}


@dataclass(frozen=True, slots=True)
class Kind:
    """How an op is drawn: the size along x, the shapes wanted (of Llama-3-8B), and the legend entry of one."""

    axis: str
    wanted: tuple[Shape, ...]
    label: str


_GEMM = Kind(
    "m",
    tuple({"n": n, "k": k} for n, k in ((128256, 4096), (28672, 4096), (6144, 4096), (1024, 4096))),
    "n {n:,.0f}, k {k:,.0f}",
)
_ROTARY = Kind("m", ({"n": 128, "num_heads": 32, "num_kv_heads": 8},), "{op}, {num_heads:,.0f} heads")


def _wide(width: float) -> Kind:
    return Kind("m", ({"n": width},), "{op}, n {n:,.0f}")


_WINDOWS = (128, 1024, 8192)
_COPY = Kind("bytes", ({},), "{op}")

KINDS: dict[str, Kind] = {
    "gemm": _GEMM,
    "gemm_triton": _GEMM,
    "attention_decode": Kind("kv_len", tuple({"batch": b} for b in (1, 8, 64, 256)), "batch {batch:,.0f}"),
    "attention_prefill": Kind(
        "q_len",
        tuple({"batch": b, "kv_len": c} for b, c in ((1, 0), (8, 0), (64, 0), (1, 4096), (1, 16384))),
        "batch {batch:,.0f}, {kv_len:,.0f} cached",
    ),
    "attention_decode_window": Kind("batch", tuple({"window": w} for w in _WINDOWS), "window {window:,.0f}"),
    "attention_prefill_window": Kind(
        "q_len", tuple({"batch": b, "window": w} for w in _WINDOWS for b in (1, 8)), "batch {batch:,.0f}, {window:,.0f}"
    ),
    "mla_decode_module": Kind("kv_len", tuple({"batch": b} for b in (1, 8, 64, 256)), "batch {batch:,.0f}"),
    "mla_prefill_module": Kind("q_len", tuple({"batch": b} for b in (1, 8, 64)), "batch {batch:,.0f}"),
    "rms_norm": _wide(4096),
    "rms_norm_final": _wide(4096),
    "qk_norm": _wide(128),
    "silu_and_mul": _wide(14336),
    "embedding": _wide(4096),
    "sampler": _wide(128256),
    "rotary_embedding": _ROTARY,
    "rotary_kv_write": _ROTARY,
    "all_reduce": Kind("bytes", tuple({"world_size": n} for n in (2, 4, 8)), "{op}, {world_size:.0f} GPUs"),
    "memcpy_h2d": _COPY,
    "memcpy_d2h": _COPY,
    "memcpy_d2d": _COPY,
}

X_LABELS = {
    "m": "tokens in the pass, m",
    "kv_len": "context of each sequence (tokens)",
    "q_len": "new tokens of each sequence",
    "batch": "sequences",
    "bytes": "message (bytes)",
}
TITLES = {
    "gemm": "GEMM",
    "gemm_triton": "GEMM (Triton)",
    "attention_decode": "Decode attention",
    "attention_prefill": "Prefill attention",
    "attention_decode_window": "Window decodes",
    "attention_prefill_window": "Window prefills",
    "mla_decode_module": "MLA layer, decodes",
    "mla_prefill_module": "MLA layer, prefills",
}
"""Ops with a panel of their own; the others share one by the size along x."""

SHARED = {"m": "Small kernels", "bytes": "Copies and all-reduce"}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: the fit, every size but the one along x, and what was measured there."""

    label: str
    fit: OpFit
    fixed: Mapping[str, float]
    x: Floats
    us: Floats


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one size."""

    title: str
    axis: str
    series: tuple[Series, ...]


def panels(measured: Seq[tuple[OpFit, Rows]]) -> list[Panel]:
    """GEMM by format, attention, then small kernels and transfers together; without those that nobody measured."""
    drawn = [(fit, rows, tuple(_series(fit, rows))) for fit, rows in measured]
    found = []
    for op in TITLES:
        for fit, rows, series in drawn:
            if fit.op == op and series:
                found.append(Panel(f"{TITLES[op]}, {_heads(series[0])}{rows.dtype}", KINDS[op].axis, series))
    for axis, title in SHARED.items():
        rest = tuple(s for fit, _, lines in drawn if fit.op not in TITLES and KINDS[fit.op].axis == axis for s in lines)
        if rest:
            found.append(Panel(title, axis, rest))
    return found


def _series(fit: OpFit, rows: Rows) -> Iterator[Series]:
    """A line for each measured shape that is nearest to a wanted one, in the order wanted, none twice."""
    kind, keys = KINDS[fit.op], KEYS.get(fit.op, ())
    rows = rows.take(rows.sizes[kind.axis] > 0)
    if keys and len(rows):
        rows = rows.take(_is(rows, _nearest(rows, {name: _HEADS[name] for name in keys})))
    seen = []
    for wanted in kind.wanted if len(rows) else ():
        fixed = _nearest(rows, wanted)
        if fixed in seen:
            continue
        seen.append(fixed)
        here = rows.take(_is(rows, fixed))
        order = np.argsort(here.sizes[kind.axis])
        sizes = {name: float(here.sizes[name][0]) for name in size_names(fit.op) if name != kind.axis}
        yield Series(kind.label.format(op=fit.op, **sizes), fit, sizes, here.sizes[kind.axis][order], here.us[order])


def _nearest(rows: Rows, wanted: Shape) -> Shape:
    """The measured values of `wanted`'s sizes that are nearest by ratio, of those with enough points for a line."""
    if not wanted:
        return {}
    values = np.stack([rows.sizes[name] for name in wanted], axis=1)
    distinct, counts = np.unique(values, axis=0, return_counts=True)
    distinct = distinct[ENOUGH * counts >= counts.max()]
    distance = np.abs(np.log((distinct + 1.0) / (np.array([*wanted.values()]) + 1.0))).sum(axis=1)
    return dict(zip(wanted, distinct[int(np.argmin(distance))].tolist(), strict=True))


def _is(rows: Rows, fixed: Shape) -> Any:
    here = np.ones(len(rows), dtype=bool)
    for name, value in fixed.items():
        here &= rows.sizes[name] == value
    return here


def _heads(series: Series) -> str:
    keys = KEYS.get(series.fit.op)
    if not keys:
        return ""
    if "num_kv_heads" not in keys:
        return "{num_heads:.0f} heads, ".format(**series.fixed)
    return "{num_heads:.0f}/{num_kv_heads:.0f} KV heads, ".format(**series.fixed)


def draw_panel(ax: Axes, panel: Panel) -> None:
    """Points as measured, the fit between them, dotted where it extrapolates, dashed what the hardware allows."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    x = _curve_sizes(panel)
    for index, series in enumerate(panel.series):
        color, marker = CYCLE[index % len(CYCLE)], MARKERS[index % len(MARKERS)]
        sizes = {name: np.asarray(value) for name, value in series.fixed.items()} | {panel.axis: x}
        found = series.fit.predict(sizes)
        ax.plot(x, found.us, color=color, linewidth=1.1, linestyle=DOTTED)
        ax.plot(x, np.where(found.extrapolated, np.nan, found.us), color=color, linewidth=1.3)
        size = 4.5 if len(series.x) <= FEW_POINTS else 3.0
        ax.plot(series.x, series.us, color=color, marker=marker, markersize=size, linestyle="none", label=series.label)
        if series.fit.op in MEMORY_BOUND_OPS:
            fastest = series.fit.limits.fastest_us(work_of(series.fit.op, series.fit.dtype, sizes))
            ax.plot(x, fastest, color=color, linewidth=0.9, linestyle=DASHED, alpha=0.7)
    ax.set(xscale="log", yscale="log", title=panel.title, xlabel=X_LABELS[panel.axis], ylabel="time of one call (us)")
    ax.set_ylim(bottom=min(float(series.us.min()) for series in panel.series) / HEADROOM)
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        if high / low < NARROW:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axis.set_minor_formatter(NullFormatter())
    legend_below(ax, 2)


def _curve_sizes(panel: Panel) -> Floats:
    """Whole sizes over what the panel's lines were measured at; around it when that is a single size."""
    low = min(float(series.x.min()) for series in panel.series)
    high = max(float(series.x.max()) for series in panel.series)
    if low == high:
        low, high = max(1.0, low / 2), high * 2
    measured = [series.x for series in panel.series]
    return np.unique(np.concatenate([np.geomspace(low, high, CURVE_POINTS).round(), *measured]))
