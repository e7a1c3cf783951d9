"""The slot Gantt: who sits in which slot during a small window of one arm. Slots are given by lowest free number."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MultipleLocator

from simkit.report.document import Figure
from simkit.report.figures import style, timeline
from simkit.report.read.run import Column, Run, Table, num_rows, select
from simkit.types import Floats, Ints

MAX_SLOTS = 32
MAX_NAMED = 16  # slots up to which requests carry their number
AXES_WIDTH = 400  # points, about
SHOW_ALL_BELOW = 64  # residencies

PREFILL = style.Fill("prefill", style.ORANGE, "|||||")
DECODE = style.Fill("decode", style.SKY, None)
PREEMPTED = style.Fill("decode, thrown away by preemption", style.PURPLE, "xxxx")
DEAD = style.Fill("dead: finished, slot still held", style.GREY, "///")
FILLS = (PREFILL, DECODE, PREEMPTED, DEAD)


@dataclass(frozen=True, slots=True)
class Window:
    """What is shown: from and to (ns), the first `num_slots` of `slots_used` slots."""

    start_ns: float
    end_ns: float
    num_slots: int
    slots_used: int
    whole_run: bool


@dataclass(frozen=True, slots=True)
class Residencies:
    """Stays in slots of one replica, in order of admission; times float64 ns, NaN where an event never came."""

    slot: Ints
    id: Ints
    admitted: Floats
    prefill_end: Floats
    useful_end: Floats
    released: Floats
    preempted: Column


def lowest_free_slots(admitted: Floats, released: Floats) -> Ints:
    """Slot numbers of stays in order of admission: each takes the lowest number free, leavers go first on ties."""
    leaving: list[tuple[float, int]] = []
    free: list[int] = []
    slots = np.zeros(len(admitted), dtype=np.int64)
    for i, (start, end) in enumerate(zip(admitted, released, strict=True)):
        while leaving and leaving[0][0] <= start:
            heapq.heappush(free, heapq.heappop(leaving)[1])
        slots[i] = heapq.heappop(free) if free else len(leaving)
        heapq.heappush(leaving, (end, int(slots[i])))
    return slots


def residencies(slots: Table, end_ns: float) -> Residencies | None:
    """The stays on the first replica; those that never ended last until `end_ns`."""
    if not num_rows(slots):
        return None
    mine = select(slots, slots["replica"] == slots["replica"].min())
    mine = select(mine, np.lexsort((mine["id"], mine["admitted_ns"])))
    released = mine["released_ns"].astype(float)
    released = np.where(np.isfinite(released), released, max(end_ns, float(mine["admitted_ns"].max())))
    admitted = mine["admitted_ns"].astype(float)
    preempted = mine["end"] == "preempted"
    useful = mine["generated_last_ns"].astype(float)
    useful = np.where(np.isfinite(useful) & ~preempted & (mine["end"] != "failed"), useful, released)
    return Residencies(
        slot=lowest_free_slots(admitted, released),
        id=mine["id"].astype(np.int64),
        admitted=admitted,
        prefill_end=mine["prefill_end_ns"].astype(float),
        useful_end=useful,
        released=released,
        preempted=preempted,
    )


def choose_window(stays: Residencies) -> Window:
    """The whole run when it is small, else about three stays from the middle of the run on."""
    lengths = stays.released - stays.admitted
    slots_used = int(stays.slot.max()) + 1
    first, last = float(stays.admitted.min()), float(stays.released.max())
    span = 3 * float(np.median(lengths))
    if len(lengths) <= SHOW_ALL_BELOW or last - first <= 1.3 * span:
        shown = min(slots_used, MAX_SLOTS)
        return Window(first, last, shown, slots_used, whole_run=shown == slots_used)
    start = float(stays.admitted[len(lengths) // 2])
    if start + span > last:
        earlier = stays.admitted[stays.admitted <= last - span]
        start = float(earlier[-1]) if len(earlier) else first
    end = min(start + span, last)
    seen = (stays.released > start) & (stays.admitted < end)
    return Window(start, end, min(int(stays.slot[seen].max()) + 1, MAX_SLOTS), slots_used, whole_run=False)


def draw(run: Run, key: str) -> Figure | None:
    """The slots of one arm, and what the window is; None when nobody ever held one."""
    stays = residencies(run.slots, timeline.end_ns(run))
    if stays is None:
        return None
    window = choose_window(stays)
    if window.end_ns <= window.start_ns:
        return None
    unit = style.time_unit(window.end_ns)
    row_height = 0.115 if window.num_slots > MAX_NAMED else 0.19
    with style.drawing(6.3, 1.35 + row_height * max(window.num_slots, 4)) as drawn:
        ax = drawn.fig.subplots()
        _bars(ax, stays, window, unit.ns)
        ax.set_xlim(window.start_ns / unit.ns, window.end_ns / unit.ns)
        ax.set_ylim(window.num_slots - 0.4, -0.6)
        ax.yaxis.set_major_locator(MultipleLocator(1 if window.num_slots <= 10 else 5))
        ax.set(title=run.name, xlabel=f"time [{unit.name}]", ylabel="slot")
        drawn.legend([fill.patch() for fill in FILLS], 2)
        return drawn.figure(key, f"Slots of {run.name} over time", _describe(run, window))


def _bars(ax: Axes, stays: Residencies, window: Window, unit_ns: int) -> None:
    """Draw the four kinds of time and, where there is room, who it is."""
    seen = (stays.slot < window.num_slots) & (stays.released > window.start_ns) & (stays.admitted < window.end_ns)
    prefill_end = np.where(np.isfinite(stays.prefill_end), stays.prefill_end, stays.useful_end)
    kept, lost = seen & ~stays.preempted, seen & stays.preempted
    for fill, mask, start, end in (
        (PREFILL, seen, stays.admitted, prefill_end),
        (DECODE, kept, prefill_end, stays.useful_end),
        (PREEMPTED, lost, prefill_end, stays.released),
        (DEAD, kept, stays.useful_end, stays.released),
    ):
        rows = np.flatnonzero(mask & (end > start))
        rows = rows[(end[rows] > window.start_ns) & (start[rows] < window.end_ns)]
        left = np.maximum(start[rows], window.start_ns) / unit_ns
        right = np.minimum(end[rows], window.end_ns) / unit_ns
        _rectangles(ax, fill, left, right, stays.slot[rows])
    if window.num_slots <= MAX_NAMED:
        _names(ax, stays, prefill_end, np.flatnonzero(seen), window, unit_ns)


def _rectangles(ax: Axes, fill: style.Fill, left: Floats, right: Floats, slot: Ints) -> None:
    """All rectangles of one kind as a single path, which keeps the file small."""
    if not len(left):
        return
    top, bottom = slot - 0.42, slot + 0.42
    corners = np.stack(
        [np.stack(pair, axis=1) for pair in ((left, top), (right, top), (right, bottom), (left, bottom), (left, top))],
        axis=1,
    )
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(left))
    path = Path(corners.reshape(-1, 2), codes)
    ax.add_patch(PathPatch(path, label=fill.label, **fill.look(0.25)))


def _names(ax: Axes, stays: Residencies, start: Floats, rows: Ints, window: Window, unit_ns: int) -> None:
    """Request numbers where decoding begins, on stays that are wide enough for them."""
    for i in rows:
        name = f"#{stays.id[i]}"
        room = (window.end_ns - window.start_ns) * (6 + 4.9 * len(name)) / AXES_WIDTH
        left = max(start[i], window.start_ns)
        if min(stays.useful_end[i], window.end_ns) - left < room:
            continue
        ax.text(
            left / unit_ns + 3 * (window.end_ns - window.start_ns) / unit_ns / AXES_WIDTH,
            float(stays.slot[i]),
            name,
            color="#000000",
            fontsize=8,
            va="center_baseline",
            bbox={"facecolor": PREEMPTED.color, "edgecolor": "none", "pad": 0.0} if stays.preempted[i] else None,
        )


def _describe(run: Run, window: Window) -> str:
    slots = f"slots 0 to {window.num_slots - 1} of the {window.slots_used} that were ever held"
    if window.num_slots == window.slots_used:
        slots = "the only slot" if window.slots_used == 1 else f"all {window.slots_used} slots that were ever held"
    when = "the whole run" if window.whole_run else "a window in the middle of the run"
    limit = run.engine.get("max_num_seqs")
    return f"{run.name}: {slots}{f' (max_num_seqs {limit})' if limit else ''}, {when}"
