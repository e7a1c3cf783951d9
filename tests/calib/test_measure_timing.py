"""The timers, on a clock and a CUDA that the tests wind: how often, in what way, and what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from calib.measure.timing import MAX_SAMPLES, MIN_SAMPLES, CpuTimer, CudaTimer, summarize


class Clock:
    """Seconds that pass only when a call spends them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0

    def __call__(self) -> float:
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds
        self.calls += 1


def test_median_and_tails_are_linear_between_samples() -> None:
    timing = summarize([5.0, 1.0, 2.0, 4.0, 3.0], 1, "perf_counter")
    assert (timing.median_us, timing.p10_us, timing.p90_us) == pytest.approx((3.0, 1.4, 4.6))
    assert timing.spread == pytest.approx(3.2 / 3)
    assert summarize([7.0], 1, "perf_counter").p90_us == 7.0


def test_a_cpu_call_is_timed_until_the_budget_is_spent() -> None:
    clock = Clock()
    timing = CpuTimer(clock).time((lambda: clock.spend(0.001),), 0.05)
    assert timing.median_us == pytest.approx(1000)
    assert timing.samples == pytest.approx(50, abs=1)
    assert (timing.method, timing.calls_per_sample) == ("perf_counter", 1)
    assert clock.calls == timing.samples + 1  # one warm-up


def test_a_slow_call_is_timed_at_least_three_times_and_a_fast_one_not_for_ever() -> None:
    slow, fast = Clock(), Clock()
    assert CpuTimer(slow).time((lambda: slow.spend(10.0),), 0.01).samples == MIN_SAMPLES
    assert CpuTimer(fast).time((lambda: fast.spend(1e-9),), 1.0).samples == MAX_SAMPLES


def test_samples_go_round_the_copies() -> None:
    clock, seen = Clock(), []

    def call(name: str) -> None:
        seen.append(name)
        clock.spend(0.01)

    CpuTimer(clock).time((lambda: call("a"), lambda: call("b")), 1e-9)
    assert seen == ["a", "a", "b", "a"]  # the warm-up has used its tenth of the budget after the first


def test_the_first_call_of_a_cpu_is_not_a_sample() -> None:
    clock, costs = Clock(), iter([1.0] + [0.001] * 100)
    timing = CpuTimer(clock).time((lambda: clock.spend(next(costs)),), 0.01)
    assert timing.p90_us == pytest.approx(1000)


class Cuda:
    """Enough of torch.cuda: kernels take `kernel_us` each, launched one by one or as a replayed graph."""

    def __init__(self, kernel_us: float, gap_us: float = 5.0, capture_error: str = "") -> None:
        self.kernel_us, self.gap_us, self.capture_error = kernel_us, gap_us, capture_error
        self.now_us = 0.0
        self.captured: int | None = None
        self.capture_mode = ""
        self.replays = 0
        self.synchronized = 0

    def launch(self) -> None:
        if self.captured is not None:
            self.captured += 1
            if self.capture_error:
                raise RuntimeError(self.capture_error)
        else:
            self.now_us += self.kernel_us + self.gap_us

    def synchronize(self) -> None:
        self.synchronized += 1

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(kernels=0)

        def begin(capture_error_mode: str) -> None:
            self.captured, self.capture_mode = 0, capture_error_mode

        def end() -> None:
            graph.kernels, self.captured = self.captured, None

        def replay() -> None:
            self.replays += 1
            self.now_us += graph.kernels * self.kernel_us

        graph.capture_begin, graph.capture_end, graph.replay = begin, end, replay
        return graph

    def Event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at_us=0.0)
        event.record = lambda: setattr(event, "at_us", self.now_us)
        event.synchronize = lambda: None
        event.elapsed_time = lambda other: (other.at_us - event.at_us) / 1e3
        return event


def timer(cuda: Cuda) -> CudaTimer:
    return CudaTimer(SimpleNamespace(cuda=cuda), clock_s=lambda: cuda.now_us / 1e6)


def test_a_short_kernel_is_replayed_as_a_graph_without_the_gaps_between_launches() -> None:
    cuda = Cuda(kernel_us=3.0)
    timing = timer(cuda).time((cuda.launch, cuda.launch, cuda.launch), 0.01)
    assert timing.method == "cuda_graph"
    assert timing.median_us == pytest.approx(3.0)
    assert timing.calls_per_sample % 3 == 0
    assert timing.calls_per_sample * 8.0 >= 1000
    assert timing.note == ""


def test_a_long_kernel_is_timed_by_events() -> None:
    cuda = Cuda(kernel_us=995.0)
    timing = timer(cuda).time((cuda.launch,), 0.05)
    assert (timing.method, timing.samples, cuda.replays) == ("cuda_events", 50, 0)
    assert timing.median_us == pytest.approx(1000)


def test_a_kernel_that_cannot_be_captured_is_timed_by_events_and_says_so() -> None:
    cuda = Cuda(kernel_us=3.0, capture_error="operation not permitted\nmore")
    timing = timer(cuda).time((cuda.launch,), 0.001)
    assert timing.method == "cuda_events"
    assert timing.note == "no graph: operation not permitted"
    assert timing.median_us == pytest.approx(8.0)
    assert cuda.captured is None


def test_a_launch_is_timed_until_it_returns_and_the_device_drained_between() -> None:
    cuda = Cuda(kernel_us=10.0)
    timing = timer(cuda).time_launch(cuda.launch, 1e-6)
    assert (timing.method, timing.samples) == ("graph_launch", MIN_SAMPLES)
    assert cuda.replays == MIN_SAMPLES + 1
    # After the warm-up, within the capture, after the first replay, and after each sample.
    assert cuda.synchronized == MIN_SAMPLES + 3


def test_a_launch_that_cannot_be_captured_is_timed_call_by_call() -> None:
    cuda = Cuda(kernel_us=10.0, capture_error="operation not permitted\nmore")
    timing = timer(cuda).time_launch(cuda.launch, 1e-6)
    assert (timing.method, timing.note) == ("launch", "no graph: operation not permitted")
    assert cuda.replays == 0
