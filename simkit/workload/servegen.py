"""ServeGen clients as a source of requests: windows of renewal arrivals, and lengths from histograms.

Reads a folder of `chunk-N-trace.csv` (no header; window start in s, requests/s, cv of gaps, Gamma or Weibull, its two
parameters) and `chunk-N-dataset.json` (histograms of lengths a period, as text). Source of the format:
alibaba/ServeGen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.read.log import counted
from simkit.streams import CHUNK, Stream, Streams
from simkit.types import Floats, Ints
from simkit.units import NS_PER_S
from simkit.workload.arrivals import Gaps, gamma_gaps
from simkit.workload.servegen_files import Client, Histogram, Window, read_clients

MAX_REQUESTS = 10_000_000
"""More requests than this are refused, and a window of more, since it is drawn whole."""

Columns = tuple[Ints, Ints, Ints]
"""Arrival in ns, prompt tokens, output tokens."""


class ServeGenClients:
    """The clients of a folder, read now. InputError, one line, for what cannot be read."""

    def __init__(self, spec: scenario.ServeGen, base_dir: Path | None) -> None:
        self._path = spec.path
        self._clients = [_clipped(client, spec) for client in read_clients(spec, base_dir)]
        last_s = max(client.windows[-1].end_s for client in self._clients)
        self.span_s = last_s - spec.start_s
        self.notes = [note for client in self._clients for note in client.notes]
        self.notes.insert(0, self._describe(spec))

    @property
    def rate_per_s(self) -> float:
        """Requests per second to expect, silent windows included."""
        return sum(window.expected for client in self._clients for window in client.windows) / self.span_s

    def check_count(self, num_requests: int | None, duration_s: float | None) -> None:
        """InputError where more requests are to be expected than fit in memory."""
        windows = [window.expected for client in self._clients for window in client.windows]
        total = sum(windows) if duration_s is None else self.rate_per_s * min(duration_s, self.span_s)
        total = total if num_requests is None else min(total, num_requests)
        most = max(total, *windows)
        if most > MAX_REQUESTS:
            raise InputError(
                f"servegen {self._path}: expected at most {MAX_REQUESTS:,} requests, got {most:,.0f}: lower rate_scale "
                "or end_s of workload.servegen, or workload.num_requests"
            )

    def _describe(self, spec: scenario.ServeGen) -> str:
        what = f"{counted(len(self._clients), 'ServeGen client')}, {self.span_s:g} s, {self.rate_per_s:.4g} requests/s"
        return f"servegen {spec.path}: {what} expected"

    def chunks(self, streams: Streams, chunk: int = CHUNK) -> Iterator[Columns]:
        """Requests of all clients in order of arrival, `chunk` at a time; at one instant in order of clients."""
        merged = heapq.merge(*(_requests(index, client, streams) for index, client in enumerate(self._clients)))
        while rows := list(islice(merged, chunk)):
            table = np.array(rows, dtype=np.int64)
            yield table[:, 0], table[:, 2], table[:, 3]


def _clipped(client: Client, spec: scenario.ServeGen) -> Client:
    """The windows of a client inside start_s .. end_s, counted from start_s, their rates scaled."""
    end_s = math.inf if spec.end_s is None else spec.end_s
    windows = tuple(
        window.clipped(spec.start_s, end_s, spec.rate_scale)
        for window in client.windows
        if window.end_s > spec.start_s and window.start_s < end_s
    )
    return Client(client.name, windows, client.notes)


def _requests(index: int, client: Client, streams: Streams) -> Iterator[tuple[int, int, int, int]]:
    """(arrival ns, client, prompt tokens, output tokens) of one client, a window at a time."""
    draws = _Draws(streams(f"servegen_{client.name}_arrivals"))
    prompts, outputs = (
        streams(f"servegen_{client.name}_prompt_tokens"),
        streams(f"servegen_{client.name}_output_tokens"),
    )
    ahead: float | None = None
    for window in client.windows:
        if not window.rate_per_s:
            continue
        times, ahead = _arrivals(window, draws, ahead)
        arrival_ns = np.rint((window.start_s + times / window.rate_per_s) * NS_PER_S).astype(np.int64)
        n = len(arrival_ns)
        assert window.prompt_tokens is not None
        assert window.output_tokens is not None
        prompt = _drawn(window.prompt_tokens, prompts.uniforms(n))
        output = _drawn(window.output_tokens, outputs.uniforms(n))
        yield from zip(arrival_ns.tolist(), [index] * n, prompt.tolist(), output.tolist(), strict=True)


def _arrivals(window: Window, draws: _Draws, ahead: float | None) -> tuple[Floats, float]:
    """(arrivals inside the window, how far ahead the next is), measured in expected requests.

    `ahead` is what the window before left over: the process goes on across borders, only faster or slower (time
    rescaling, Cinlar, Introduction to Stochastic Processes, section 4.7), so that every window has its own rate.
    """
    gaps = window_gaps(window)
    if ahead is None:
        ahead = float(gaps(draws.take(1))[0])
    found: list[Floats] = []
    while ahead <= window.expected:
        u = draws.take(int(1.1 * (window.expected - ahead)) + 8)
        steps = np.empty(len(u) + 1)
        steps[0] = ahead
        steps[1:] = gaps(u)
        times = np.cumsum(steps)
        inside = min(int(np.searchsorted(times, window.expected, side="right")), len(u))
        found.append(times[:inside])
        draws.give_back(u[inside:])
        ahead = float(times[inside])
    return np.concatenate([np.zeros(0), *found]), ahead - window.expected


def window_gaps(window: Window) -> Gaps:
    """Uniform draws to gaps of mean 1: Gamma of the window's cv, or Weibull of its shape."""
    if window.pattern == "Gamma":
        return gamma_gaps(window.cv)
    shape = window.shape
    mean = math.gamma(1 + 1 / shape)
    return lambda u: (-np.log1p(-u)) ** (1 / shape) / mean


def _drawn(histogram: Histogram, u: Floats) -> Ints:
    """The value whose cumulative share is the first to exceed the draw."""
    at = np.searchsorted(histogram.cumulative, u * histogram.cumulative[-1], side="right")
    return np.asarray(histogram.tokens[np.minimum(at, len(histogram.tokens) - 1)], dtype=np.int64)


@dataclass(slots=True)
class _Draws:
    """A stream to which draws that were not used can be given back."""

    stream: Stream
    rest: Floats | None = None

    def take(self, n: int) -> Floats:
        """The next `n` draws."""
        held = np.zeros(0) if self.rest is None else self.rest
        if len(held) < n:
            held = np.concatenate([held, self.stream.uniforms(n - len(held))])
        self.rest = held[n:]
        return held[:n]

    def give_back(self, u: Floats) -> None:
        """These come next again."""
        self.rest = u if self.rest is None else np.concatenate([u, self.rest])
