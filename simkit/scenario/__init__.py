"""The scenario file: its schema, and how to load, build, change and print one."""

from __future__ import annotations

from simkit.scenario.engine import Engine, Failure, WarmupRequests, WarmupSeconds
from simkit.scenario.lengths import (
    ConditionalLength,
    EmpiricalLength,
    ExponentialLength,
    FixedLength,
    Length,
    ListLength,
    LognormalLength,
    OutputLength,
    Period,
    UniformLength,
)
from simkit.scenario.load import (
    Scenario,
    apply_sets,
    for_replay,
    from_dict,
    from_flags,
    from_labelled,
    load,
    loads,
    parse_axes,
    template,
)
from simkit.scenario.workload import (
    AllAtOnce,
    Arrivals,
    BackBin,
    ClosedLoop,
    ConstantArrivals,
    GammaArrivals,
    PiecewiseArrivals,
    PoissonArrivals,
    Reuse,
    ServeGen,
    ShareBin,
    Trace,
    Workload,
)

__all__ = [
    "AllAtOnce", "Arrivals", "BackBin", "ClosedLoop", "ConditionalLength", "ConstantArrivals", "EmpiricalLength",
    "Engine", "ExponentialLength", "Failure", "FixedLength", "GammaArrivals", "Length", "ListLength",
    "LognormalLength", "OutputLength", "Period", "PiecewiseArrivals", "PoissonArrivals", "Reuse", "Scenario",
    "ServeGen", "ShareBin", "Trace", "UniformLength", "WarmupRequests", "WarmupSeconds", "Workload", "apply_sets",
    "for_replay", "from_dict", "from_flags", "from_labelled", "load", "loads", "parse_axes", "template",
]  # fmt: skip
