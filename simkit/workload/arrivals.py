"""Arrival processes: lazy chunks of arrival times in int ns.

Random processes turn one uniform draw a request into one gap of mean 1, which the rate then stretches: arms with other
rates, and other processes, are built on the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from simkit import scenario
from simkit.streams import CHUNK, Stream
from simkit.types import Floats, Ints
from simkit.units import NS_PER_S

NEVER_NS = 2**62
"""146 years: later arrivals are all given this time, and refused by whoever asks for one."""

Gaps = Callable[[Floats], Floats]
"""Uniform draws to gaps of mean 1."""


def arrival_chunks(spec: scenario.Arrivals, stream: Stream, chunk: int = CHUNK) -> Iterator[Ints]:
    """Arrival times in ns, int64, non-decreasing, `chunk` at a time (the last chunk of `piecewise` is shorter).

    `constant`: request i at i / rate, the first at 0. `poisson`, `gamma`: the first gap starts at 0. `all_at_once`: 0.
    `closed_loop`: 0 as well, and meaningless, since the engine issues the requests. All but `piecewise` never end.
    """
    match spec:
        case scenario.ConstantArrivals():
            return _constant(spec.rate_per_s, chunk)
        case scenario.PoissonArrivals():
            return _renewal(exponential_gaps, spec.rate_per_s, stream, chunk)
        case scenario.GammaArrivals():
            return _renewal(gamma_gaps(spec.cv), spec.rate_per_s, stream, chunk)
        case scenario.PiecewiseArrivals():
            return _piecewise(spec, stream, chunk)
        case scenario.AllAtOnce() | scenario.ClosedLoop():
            return _zeros(chunk)


def exponential_gaps(u: Floats) -> Floats:
    """Exponential gaps of mean 1 by inverse transform."""
    return -np.log1p(-u)


def gamma_gaps(cv: float) -> Gaps:
    """Gamma gaps of mean 1 and coefficient of variation `cv` by inverse transform: shape 1/cv^2, scale cv^2.

    cv = 1 is the Poisson process; under 1 is more regular, over 1 is bursty.
    """
    from scipy.special import gammaincinv

    shape = 1.0 / (cv * cv)
    return lambda u: np.asarray(gammaincinv(shape, u), dtype=np.float64) / shape


def _constant(rate_per_s: float, chunk: int) -> Iterator[Ints]:
    first = 0
    while True:
        yield _at_rate(np.arange(first, first + chunk, dtype=np.float64), rate_per_s)
        first += chunk


def _zeros(chunk: int) -> Iterator[Ints]:
    while True:
        yield np.zeros(chunk, dtype=np.int64)


def _unit_times(gaps: Gaps, stream: Stream, chunk: int) -> Iterator[Floats]:
    """Running sums of the gaps. The carry enters each sum first, so that the result is the same for every chunk."""
    carry = 0.0
    while True:
        steps = np.empty(chunk + 1)
        steps[0] = carry
        steps[1:] = gaps(stream.uniforms(chunk))
        times = np.cumsum(steps)[1:]
        carry = float(times[-1])
        yield times


def _renewal(gaps: Gaps, rate_per_s: float, stream: Stream, chunk: int) -> Iterator[Ints]:
    for times in _unit_times(gaps, stream, chunk):
        yield _at_rate(times, rate_per_s)


def _piecewise(spec: scenario.PiecewiseArrivals, stream: Stream, chunk: int) -> Iterator[Ints]:
    """Arrivals of changing rate: times of a renewal process of rate 1 through the inverse of the cumulative rate.

    The rate is constant up to each segment's `until_s`; after the last one arrivals stop. A rate of 0 is a pause.
    With `tick_s` each request comes at the last multiple of it.
    Source: time rescaling, Cinlar, Introduction to Stochastic Processes (1975), section 4.7.
    """
    until_s = np.array([segment.until_s for segment in spec.segments])
    rates = np.array([segment.rate_per_s for segment in spec.segments])
    gaps = exponential_gaps if spec.cv == 1 else gamma_gaps(spec.cv)
    start_s = np.concatenate([[0.0], until_s[:-1]])
    cumulative_end = np.cumsum((until_s - start_s) * rates)
    cumulative_start = np.concatenate([[0.0], cumulative_end[:-1]])
    for times in _unit_times(gaps, stream, chunk):
        times = times[times <= cumulative_end[-1]]
        # The first segment whose end is not before the draw: never one of rate 0, whose end equals its start.
        at = np.searchsorted(cumulative_end, times, side="left")
        times_s = start_s[at] + (times - cumulative_start[at]) / rates[at]
        yield _to_ns(times_s if spec.tick_s is None else np.floor(times_s / spec.tick_s) * spec.tick_s)
        if len(times) < chunk:
            return


def _at_rate(times: Floats, rate_per_s: float) -> Ints:
    """Times of rate 1 at another rate. At a tiny rate they end beyond all numbers, and so at `NEVER_NS`."""
    with np.errstate(over="ignore"):
        return _to_ns(times / rate_per_s)


def _to_ns(seconds: Floats) -> Ints:
    """Nearest ns, at most `NEVER_NS`."""
    return np.rint(np.minimum(seconds * NS_PER_S, NEVER_NS)).astype(np.int64)
