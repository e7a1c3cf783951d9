"""How fast and how large: SimPy's bare timeouts as the yardstick, simulations in this process, and whole processes.

As a script, ``measure.py CASE REQUESTS ROUNDS`` measures one case and prints JSON. A process of its own for each case:
then its peak memory is its own. Times in this process are CPU times, so that neighbours disturb less.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cases import CASES, Data

REFERENCE_TIMEOUTS_PER_S = 1.1e6
"""Of the machine for which bars in seconds are stated."""

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """One case. `seconds` is simulation with its metrics: no set-up, no import, no writing."""

    case: str
    num_requests: int
    num_steps: int
    num_preemptions: int
    seconds: float
    yardstick_per_s: float
    peak_mb: float

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.seconds

    @property
    def steps_per_s(self) -> float:
        return self.num_steps / self.seconds

    @property
    def ratio(self) -> float:
        """Requests simulated in the time of one bare timeout."""
        return self.requests_per_s / self.yardstick_per_s

    def to_json(self) -> dict[str, Any]:
        """All of it, derived figures included."""
        derived = {"requests_per_s": self.requests_per_s, "steps_per_s": self.steps_per_s, "ratio": self.ratio}
        return asdict(self) | derived


def best_cpu_s(task: Callable[[], object], rounds: int) -> float:
    """The shortest CPU time of some rounds: what the work costs when least disturbed."""
    times = []
    for _ in range(rounds):
        gc.collect()
        start = time.process_time()
        task()
        times.append(time.process_time() - start)
    return min(times)


def timeouts_per_s(count: int = 200_000, rounds: int = 3) -> float:
    """Events a second of SimPy with nothing to do: one process that yields timeouts of 1."""
    import simpy

    def ticking(env: simpy.Environment) -> Iterator[simpy.Event]:
        for _ in range(count):
            yield env.timeout(1)

    def run() -> None:
        env = simpy.Environment()
        env.process(ticking(env))
        env.run()

    return count / best_cpu_s(run, rounds)


def speed(case: str, num_requests: int, rounds: int, yardstick_per_s: float, *, single_step: bool = False) -> Speed:
    """Measure a case in this process."""
    from simkit.engine.build import set_up
    from simkit.engine.run import simulate
    from simkit.runs.replication import metrics_of
    from simkit.scenario import from_dict

    setup = set_up(from_dict(CASES[case](num_requests)))
    found = []

    def run() -> None:
        found[:] = [metrics_of(setup, simulate(setup, single_step=single_step)).summary]

    seconds = best_cpu_s(run, rounds)
    (summary,) = found
    assert summary.num_requests.finished == num_requests, "every request is served"
    counts = summary.num_steps, summary.num_preemptions
    return Speed(case, num_requests, *counts, seconds, yardstick_per_s, peak_mb())


def peak_mb() -> float:
    """The largest resident set that this program ever had."""
    status = Path("/proc/self/status")
    if status.exists():  # rusage counts what the process was before it became this program, too
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / MEGABYTE
    import resource

    return _bytes(resource.getrusage(resource.RUSAGE_SELF)) / MEGABYTE


def _bytes(usage: Any) -> float:
    return float(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def in_own_process(case: str, num_requests: int, rounds: int) -> Speed:
    """Measure a case and the yardstick in a process of their own."""
    command = [sys.executable, __file__, case, str(num_requests), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Speed(**json.loads(done.stdout))


def command_line(arguments: Sequence[str], rounds: int) -> tuple[float, float]:
    """(seconds, peak MB) of ``simkit ARGUMENTS`` as a whole process, the best of some rounds.

    A process inherits the peak of the one that starts it, so this one must have stayed small.
    """
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "simkit", *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"simkit {' '.join(arguments)}: exit code {process.returncode}")
        found.append((seconds, _bytes(usage) / MEGABYTE))
    return min(seconds for seconds, _ in found), min(peak for _, peak in found)


def write_scenario(data: Data, path: Path) -> Path:
    """A scenario file; JSON is YAML."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


if __name__ == "__main__":
    name, count, repeats = sys.argv[1:]
    print(json.dumps(asdict(speed(name, int(count), int(repeats), timeouts_per_s()))))
