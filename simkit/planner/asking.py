"""How the planner puts its questions: to whom, and what is told meanwhile. Owns the progress of a plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simkit.engine.run import Progress
from simkit.planner.jobs import Answer, CapacityJob, run_jobs
from simkit.studies.study import Failure, Options


@dataclass(slots=True)
class Asking:
    """How questions are put: to whom, and what is told meanwhile."""

    base_per_s: float
    options: Options
    progress: Progress | None
    done: float = 0.0

    def ask(self, jobs: Sequence[CapacityJob], share: float, label: str) -> list[Answer | Failure]:
        """The answers; they take `share` of all the time."""

        def told(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(self.done + share * done / max(1, total), f"{label}: {done} of {total}")

        jobs = [replace(job, cwd=os.getcwd()) for job in jobs]
        answers = run_jobs(jobs, self.options, told)
        self.done += share
        return answers
