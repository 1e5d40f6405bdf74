"""Resizes of programs: how long the jobs of a measured application pause, by the number of nodes and their state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.scheduling.jobs import Jobs, program_of

KINDS = ("expand", "shrink")


@dataclass(frozen=True)
class Pauses:
    """The resizes of the jobs of a simulation, trace seconds; NaN: the application of the job was not measured.

    Attributes:
        fixed: pause of each job in an expansion and in a shrink by one node, shape (jobs, 2).
        rank: additional pause for each further node, shape (jobs, 2).
        released: time from the end of the pause in a shrink until the nodes are idle, shape (jobs,).
    """

    fixed: FloatArray
    rank: FloatArray
    released: FloatArray

    @classmethod
    def of(cls, calibration: Mapping[str, Any], jobs: Jobs, speed: float) -> Self | None:
        """Return the resizes of `jobs`; None if no application of theirs was measured.

        Args:
            calibration: the facts of a calibration (`Calibration.facts`).
            jobs: the jobs.
            speed: trace seconds per wall second.
        """
        measured: Mapping[str, Mapping[str, float]] = calibration.get("applications", {})
        if not measured or not jobs.application:
            return None
        costs = [measured.get(program_of(*job), {}) for job in zip(jobs.application, jobs.parameters, strict=True)]
        if not any(costs):
            return None

        def column(name: str, missing: float) -> FloatArray:
            return np.array([cost.get(name, missing) for cost in costs]) * speed

        fixed, rank, mib = (
            np.column_stack([column(f"{kind}_{what}", missing) for kind in KINDS])
            for what, missing in (("pause_s", math.nan), ("pause_rank_s", 0.0), ("pause_mib_s", 0.0))
        )
        state = np.asarray(jobs.column("state_mib"), dtype=np.float64)
        return cls(fixed + mib * state[:, None], rank, column("shrink_release_s", 0.0))

    def pause(self, job: int, added: int) -> float:
        """Return the pause of `job` in a resize by `added` nodes (negative: a shrink), s."""
        shrinks = int(added < 0)
        return float(self.fixed[job, shrinks] + self.rank[job, shrinks] * (abs(added) - 1))

    def release(self, job: int, added: int) -> float:
        """Return the time from the malleability point of a shrink by -`added` nodes until they are idle, s."""
        return self.pause(job, added) + float(self.released[job])
