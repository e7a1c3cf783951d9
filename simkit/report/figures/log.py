"""The picture of `simkit trace info`: rate over time, gaps beside those of a Poisson process, prompts and outputs.

Reads the content of info.json and the curves that come with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.ticker import LogLocator

from simkit.report.figures import style
from simkit.report.figures.style import Canvas, Look
from simkit.types import Floats, Ints

Content = Mapping[str, Any]
"""info.json, or the curves that come with it."""

NICE_BINS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600,
    7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip
MIN_BINS, ENOUGH_BINS = 5, 60
REQUESTS_A_BIN = 5
CELLS_PER_DECADE = 12
EXPECTED: Look = {"color": style.VERMILLION, "linestyle": style.DASHES[1]}
TIME_UNITS = (("days", 86_400.0), ("h", 3600.0), ("min", 60.0))


def write_overview(info: Content, curves: Content, directory: Path) -> None:
    """Write trace.svg and trace.png: three panels. OSError passes through."""
    with style.drawing(10.0, 6.4) as drawn:
        panels = drawn.fig.subplot_mosaic([["rate", "rate"], ["gaps", "lengths"]], height_ratios=(1.0, 1.25))
        _rate(panels["rate"], info, curves)
        _gaps(panels["gaps"], info, curves)
        _lengths(drawn, panels["lengths"], curves)
        drawn.save(directory, "trace")


def rate_bins(arrivals_per_bin: Ints, bin_s: float, span_s: float) -> tuple[Floats, Floats, float]:
    """(requests/s in each bin, the ends of the bins in s, their width in s): a round width of whole given bins.

    At least `ENOUGH_BINS` of them where each then has some requests, fewer where not. The last ends with the log;
    if that is less than half a bin, it is one with the bin before.
    """
    num_bins = min(ENOUGH_BINS, max(MIN_BINS, int(arrivals_per_bin.sum()) // REQUESTS_A_BIN))
    fitting = [width for width in NICE_BINS_S if width >= bin_s * 0.999 and width * num_bins <= span_s]
    factor = max(1, round(fitting[-1] / bin_s)) if fitting else 1
    padded = np.concatenate([arrivals_per_bin, np.zeros(-len(arrivals_per_bin) % factor, dtype=np.int64)])
    counts = padded.reshape(-1, factor).sum(axis=1)
    width_s = factor * bin_s
    edges = np.append(np.arange(len(counts)) * width_s, max(span_s, (len(counts) - 1) * width_s))
    if len(counts) > 1 and edges[-1] - edges[-2] < width_s / 2:
        counts = np.append(counts[:-2], counts[-2:].sum())
        edges = np.delete(edges, -2)
    return counts / np.diff(edges), edges, width_s


def _rate(ax: Axes, info: Content, curves: Content) -> None:
    span_s = info["span_s"]
    ax.set_title("Arrivals over time")
    if not span_s:
        style.empty(ax, "all arrive at one time")
        return
    rates, edges, width_s = rate_bins(curves["arrivals_per_bin"], curves["bin_s"], span_s)
    name, unit_s = next(((name, s) for name, s in TIME_UNITS if span_s >= 3 * s), ("s", 1.0))
    edges = edges / unit_s
    ax.stairs(rates, edges, fill=True, color=style.SKY, alpha=0.55, linewidth=0)
    ax.stairs(rates, edges, color=style.BLUE, linewidth=0.8, label=f"in bins of {_duration(width_s)}")
    mean = info["rate_per_s"]
    ax.axhline(mean, linewidth=1.4, label=f"mean {mean:.3g}/s", **EXPECTED)
    ax.set_xlim(0, float(edges[-1]))
    ax.set_ylim(0, 1.05 * max(float(rates.max()), mean))
    ax.set_xlabel(f"time since the first request [{name}]")
    ax.set_ylabel("requests/s")
    _legend_above(ax)


def _gaps(ax: Axes, info: Content, curves: Content) -> None:
    """The distribution of the gaps; equal times are its height at the left end."""
    ax.set_title("Gaps")
    gap_s, share = curves["gap_s"], curves["gap_share"]
    if not len(gap_s):
        style.empty(ax, "no gaps: all arrive at one time")
        return
    mean_s = 1 / info["rate_per_s"]
    tied = info["num_same_time"]
    low = min(float(gap_s[0]), mean_s / 1000) if not tied else min(float(gap_s[0]) / 30, mean_s / 1000)
    low, high = max(low, float(gap_s[-1]) * 1e-9), max(1.5 * float(gap_s[-1]), 12 * mean_s)
    x = np.geomspace(low, high, 400)
    ax.plot(
        np.concatenate([[low], gap_s, [high]]),
        np.concatenate([[share[0] if low >= gap_s[0] else info["clock"]["tied_share"]], share, [1.0]]),
        drawstyle="steps-post", color=style.BLUE, linewidth=1.8, label=f"log, CV {_three(info['interarrival_cv'])}",
    )  # fmt: skip
    ax.plot(x, -np.expm1(-x / mean_s), linewidth=1.5, label="Poisson of the same rate", **EXPECTED)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(0, 1.02)
    style.ticks(ax.xaxis, LogLocator(numticks=7))
    ax.set_xlabel("gap to the request before [s]")
    ax.set_ylabel("share of gaps not longer")
    _legend_above(ax)


def _lengths(drawn: Canvas, ax: Axes, curves: Content) -> None:
    """One dot a request, coloured by how many lie in its cell of a logarithmic grid; the densest on top."""
    prompts, outputs = (np.maximum(curves[key], 1) for key in ("prompt_tokens", "output_tokens"))
    cells = np.stack([np.floor(np.log10(column) * CELLS_PER_DECADE) for column in (prompts, outputs)], axis=1)
    _, at, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    stride = curves["sample_stride"]
    near = counts[at.ravel()] * stride
    order = np.argsort(near, kind="stable")
    top = max(10 * stride, int(near.max()))
    size = 5 if len(near) > 300 else 18
    dots = ax.scatter(
        prompts[order], outputs[order], c=near[order], s=size, cmap=_colors(), norm=LogNorm(stride, top), linewidths=0,
        rasterized=True,
    )  # fmt: skip
    thinned = "" if stride == 1 else f", 1 request in {stride}"
    ax.set_title(f"Lengths{thinned}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(_decades(prompts))
    ax.set_ylim(_decades(outputs))
    for axis in (ax.xaxis, ax.yaxis):
        style.ticks(axis, LogLocator(numticks=7))
    ax.set_xlabel("prompt [tokens]")
    ax.set_ylabel("output [tokens]")
    bar = drawn.fig.colorbar(dots, ax=ax, pad=0.02)
    bar.set_label(f"requests in 1/{CELLS_PER_DECADE} decade square")
    style.ticks(bar.ax.yaxis, LogLocator(subs=(1.0,) if top > 100 * stride else (1.0, 2.0, 5.0)))
    style.grid(ax)


def _colors() -> ListedColormap:
    """From sand to dark blue: cividis without its palest part, which is lost on white."""
    return ListedColormap(colormaps["cividis_r"](np.linspace(0.2, 1, 256)))


def _decades(values: Ints) -> tuple[float, float]:
    """Ends of a logarithmic axis: a little around the values, and never less than a decade."""
    low, high = float(values.min()), float(values.max())
    if high / low >= 10:
        return low / 1.3, high * 1.3
    first = np.floor(np.log10(low))
    return 10**first / 1.1, 10 ** max(first + 1, np.ceil(np.log10(high))) * 1.1


def _legend_above(ax: Axes) -> None:
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=2, borderaxespad=0.2)
    style.grid(ax)


def _duration(seconds: float) -> str:
    for name, unit_s in TIME_UNITS:
        if seconds >= unit_s and (seconds / unit_s).is_integer():
            count = round(seconds / unit_s)
            return f"1 {name.rstrip('s') if name == 'days' else name}" if count == 1 else f"{count} {name}"
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:g} ms"


def _three(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
