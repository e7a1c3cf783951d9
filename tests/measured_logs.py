"""Logs of runs whose truth is known: a simulation, written as the log that a real engine would have left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.logs.formats.canonical import CanonicalWriter, Meta
from simkit.logs.read.record import Columns, Record
from simkit.runs.replication import metrics_of
from simkit.scenario import Scenario
from simkit.types import Floats, Ints

Noise = Callable[[int], Floats]
"""Number of requests to a factor of each of their times."""


def served(scenario: Scenario) -> dict[str, Ints]:
    """The requests of a simulation of the scenario, those of its first replication."""
    setup = set_up(scenario)
    facts = simulate(setup)
    return metrics_of(setup, facts).requests


def write_log(
    path: Path, table: dict[str, Ints], noise: Noise | None = None, *, ttft: bool = True, e2e: bool = True
) -> Path:
    """A canonical log of requests that were served, their arrivals counted from the first; times may be left out."""
    order = np.argsort(table["arrival_ns"], kind="stable")
    arrival = table["arrival_ns"][order] - table["arrival_ns"].min()
    first = (table["first_token_ns"] - table["arrival_ns"])[order]
    decode = (table["last_token_ns"] - table["first_token_ns"])[order]
    if noise is not None:
        first, decode = (np.rint(ns * noise(len(order))).astype(np.int64) for ns in (first, decode))
    rows = zip(
        arrival.tolist(), table["prompt_tokens"][order].tolist(), table["output_tokens"][order].tolist(),
        first.tolist(), (first + decode).tolist(), strict=True,
    )  # fmt: skip
    writer = CanonicalWriter(path)
    writer.add(
        Columns.of(
            [
                Record(line, at, prompt, output, ttft_ns=one if ttft else None, e2e_ns=both if e2e else None)
                for line, (at, prompt, output, one, both) in enumerate(rows, 1)
            ]
        )
    )
    writer.close(Meta("test", "a simulation"))
    return path
