"""Where requests come from: arrival processes, length distributions, prefixes and traces, on named random streams.

`build_workload` turns the workload section of a scenario into a lazy iterator of `simkit.types.Request`.
"""

from __future__ import annotations

from simkit.workload.build import Workload, build_workload

__all__ = ["Workload", "build_workload"]
