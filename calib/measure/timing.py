"""How long one call takes. Owns the clocks: CUDA events, CUDA graph replay, and perf_counter for a CPU.

A timer is given the same call over several copies of its operands and goes round them, so that operands are not found
in the cache where the copies together exceed it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], object]
Agree = Callable[[float], float]
"""A number to the one that all processes go by, where several time a call that they make together: the largest."""

MIN_SAMPLES = 3
MAX_SAMPLES = 1000
GRAPH_BELOW_US = 200.0
"""Kernels shorter than this are replayed as a CUDA graph: launched one by one, the gaps between them would count."""
_GRAPH_LASTS_US = 1000.0
_MAX_GRAPH_CALLS = 256
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one call. A sample is `calls_per_sample` calls together, divided by their number.

    `method` is cuda_graph, cuda_events, perf_counter, graph_launch or launch; `note` says
    when another one was tried first.
    """

    median_us: float
    p10_us: float
    p90_us: float
    samples: int
    calls_per_sample: int
    method: str
    note: str = ""

    @property
    def spread(self) -> float:
        """(p90 - p10) / median."""
        return (self.p90_us - self.p10_us) / self.median_us


class Timer(Protocol):
    """Measures calls on one device."""

    def time(self, calls: Sequence[Call], budget_s: float) -> Timing:
        """The time of one call, going round `calls`; warm-up comes on top of the budget."""
        ...

    def time_launch(self, call: Call, budget_s: float) -> Timing:
        """The time until `call` returns, on an idle device, without waiting for what it launched."""
        ...


def summarize(samples_us: Sequence[float], calls_per_sample: int, method: str, note: str = "") -> Timing:
    """Median, p10 and p90 (linear between samples)."""
    ordered = sorted(samples_us)
    return Timing(
        median_us=_quantile(ordered, 0.5),
        p10_us=_quantile(ordered, 0.1),
        p90_us=_quantile(ordered, 0.9),
        samples=len(ordered),
        calls_per_sample=calls_per_sample,
        method=method,
        note=note,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class CpuTimer:
    """Times each call by itself: a CPU call returns when it is done."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s

    def time(self, calls: Sequence[Call], budget_s: float) -> Timing:
        """Warm-up goes once over the copies, or as far as a tenth of the budget reaches."""
        self._warm_up(calls, budget_s)
        return summarize(self._samples(calls, budget_s), 1, "perf_counter")

    def time_launch(self, call: Call, budget_s: float) -> Timing:
        """The same as `time`: nothing runs on after a CPU call."""
        return self.time((call,), budget_s)

    def _warm_up(self, calls: Sequence[Call], budget_s: float) -> None:
        start = self._clock_s()
        for call in calls:
            call()
            if self._clock_s() - start > _WARM_UP_SHARE * budget_s:
                return

    def _samples(self, calls: Sequence[Call], budget_s: float) -> list[float]:
        samples: list[float] = []
        start = before = self._clock_s()
        while len(samples) < MIN_SAMPLES or (before - start < budget_s and len(samples) < MAX_SAMPLES):
            call = calls[len(samples) % len(calls)]
            before = self._clock_s()
            call()
            after = self._clock_s()
            samples.append((after - before) * 1e6)
            before = after
        return samples


class GroupTimer:
    """Times a call that several processes make together on a CPU: as many in all of them."""

    def __init__(self, agree: Agree, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._agree, self._clock_s = agree, clock_s

    def time(self, call: Call, budget_s: float) -> Timing:
        """The first call warms up, the second says how many there are."""
        self._once_us(call)
        count = _count(self._agree(max(self._once_us(call), 1.0)), budget_s)
        return summarize([self._once_us(call) for _ in range(count)], 1, "perf_counter")

    def _once_us(self, call: Call) -> float:
        before = self._clock_s()
        call()
        return (self._clock_s() - before) * 1e6


class CudaTimer:
    """Times with events on the current stream; short kernels as a replayed graph, by events where capture fails.

    `agree` is for calls that several processes make together; `capture_mode` says what other threads may do meanwhile.
    """

    def __init__(
        self,
        torch: Any,
        clock_s: Callable[[], float] = time.perf_counter,
        agree: Agree = lambda value: value,
        capture_mode: str = "global",
    ) -> None:
        self._torch = torch
        self._clock_s = clock_s
        self._agree, self._capture_mode = agree, capture_mode
        self._stream: Any = None

    def time(self, calls: Sequence[Call], budget_s: float) -> Timing:
        """The first round compiles and is not timed; the second says how long a call takes."""
        cuda = self._torch.cuda
        for call in calls:
            call()
        cuda.synchronize()
        rough_us = self._agree(max(self._between(lambda: self._run(calls, len(calls))) / len(calls), 0.5))
        if rough_us >= GRAPH_BELOW_US:
            return self._by_events(calls, rough_us, budget_s, "")
        graph, note = None, "no graph: another process could not"
        num_calls = self._graph_calls(len(calls), rough_us)
        try:
            graph = self._capture(calls, num_calls)
        except RuntimeError as error:
            cuda.synchronize()
            note = f"no graph: {_first_line(error)}"
        if self._agree(float(graph is None)):
            return self._by_events(calls, rough_us, budget_s, note)
        return self._by_replay(graph, num_calls, budget_s)

    def time_launch(self, call: Call, budget_s: float) -> Timing:
        """Host time; the device is drained before each sample and not waited for within it.

        Replayed as one graph, as engines launch a decode step; call by call where it cannot be captured.
        """
        samples: list[float] = []
        call()
        self._torch.cuda.synchronize()
        method, note = "graph_launch", ""
        try:
            call = self._capture((call,), 1).replay
            call()
        except RuntimeError as error:
            method, note = "launch", f"no graph: {_first_line(error)}"
        self._torch.cuda.synchronize()
        start = self._clock_s()
        while len(samples) < MIN_SAMPLES or (self._clock_s() - start < budget_s and len(samples) < MAX_SAMPLES):
            before = self._clock_s()
            call()
            samples.append((self._clock_s() - before) * 1e6)
            self._torch.cuda.synchronize()
        return summarize(samples, 1, method, note)

    @staticmethod
    def _run(calls: Sequence[Call], count: int) -> None:
        for i in range(count):
            calls[i % len(calls)]()

    @staticmethod
    def _graph_calls(copies: int, rough_us: float) -> int:
        """A multiple of the copies, long enough that the graph's own start does not count."""
        rounds = max(1, math.ceil(_GRAPH_LASTS_US / rough_us / copies))
        return min(rounds, max(1, _MAX_GRAPH_CALLS // copies)) * copies

    def _capture(self, calls: Sequence[Call], num_calls: int) -> Any:
        """Capture by hand: `torch.cuda.graph` empties the allocator's cache each time, which costs more than timing.

        One call on the capturing stream comes first, so that the workspace of its BLAS handle outlives the graph.
        """
        cuda = self._torch.cuda
        if self._stream is None:
            self._stream = cuda.Stream()
        graph = cuda.CUDAGraph()
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            calls[0]()
            cuda.synchronize()
            graph.capture_begin(capture_error_mode=self._capture_mode)
            try:
                self._run(calls, num_calls)
            finally:
                graph.capture_end()
        cuda.current_stream().wait_stream(self._stream)
        return graph

    def _by_replay(self, graph: Any, num_calls: int, budget_s: float) -> Timing:
        graph.replay()
        self._torch.cuda.synchronize()
        once_us = self._agree(self._between(graph.replay))
        samples = [self._between(graph.replay) / num_calls for _ in range(_count(once_us, budget_s))]
        return summarize(samples, num_calls, "cuda_graph")

    def _by_events(self, calls: Sequence[Call], rough_us: float, budget_s: float, note: str) -> Timing:
        """One pair of events a call, all queued before any is waited for, so that the host stays ahead."""
        pairs = []
        for i in range(_count(rough_us, budget_s)):
            before, after = self._event(), self._event()
            before.record()
            calls[i % len(calls)]()
            after.record()
            pairs.append((before, after))
        self._torch.cuda.synchronize()
        return summarize([before.elapsed_time(after) * 1e3 for before, after in pairs], 1, "cuda_events", note)

    def _between(self, call: Call) -> float:
        """Microseconds from event to event around `call`."""
        before, after = self._event(), self._event()
        before.record()
        call()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) * 1e3

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _count(sample_us: float, budget_s: float) -> int:
    return max(MIN_SAMPLES, min(MAX_SAMPLES, int(budget_s * 1e6 / sample_us)))
