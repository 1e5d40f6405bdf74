"""The jobs of a replay on a batch system, in the order of submission."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from tracebed.converters.workload import Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.base import Demands
from tracebed.orchestrator.scheduling.dependencies import Waits
from tracebed.orchestrator.scheduling.jobs import program_of, waits_in
from tracebed.orchestrator.scheduling.names import DependencyRule


@dataclass(frozen=True)
class SubmissionPlan:
    """The columns of the jobs, each of length `len(plan)`. Times are trace seconds, NaN if unknown."""

    ids: list[str]
    kind: list[str]
    submit: list[float]
    run_time: list[float]
    limit: list[float]  # time limit; NaN: the default of the batch system
    nodes: list[int]
    user: list[str]
    deadline: list[float]
    # Name of the application of each job, or of its command. Empty in journals of earlier versions.
    application: list[str] = field(default_factory=list)
    state_mib: list[float] = field(default_factory=list)  # state of each job, MiB
    group: list[str] = field(default_factory=list)  # empty, as the next one, in journals of earlier versions
    # In the workload; without `options`, a replay submits to the partition of its settings.
    partition: list[str] = field(default_factory=list)
    options: list[Sequence[str]] = field(default_factory=list)  # demands of each job, as in `Demands`; empty: none
    waits: Waits | None = None  # what the jobs wait for; None: no job waits
    # Assumption or omission -> number of jobs, for the warnings of the run.
    counts: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan in JSON values of `as_dict`."""
        return cls(**{**values, "waits": Waits.of_json(values.get("waits"))})

    @classmethod
    def of(
        cls,
        workload: Workload,
        *,
        speed: float,
        limit_step_s: float,
        resizes: bool = False,
        dependencies: DependencyRule = DependencyRule.HONOR,
        demands: Demands | None = None,
    ) -> Self:
        """Return the plan for a workload, in which some job must have a run time and a size.

        Time limits become multiples of `limit_step_s` in wall time, the resolution of the batch system, rounded up.
        With `resizes`, malleable jobs are resized. Without `demands`, jobs have whole nodes.
        """
        jobs, counts = workload.runnable()
        if not len(jobs):
            raise InputError(
                f"none of the {len(workload):,} jobs has a run time and a size",
                hint="`tracebed describe` shows the columns of the workload",
            )
        run_time, asked = jobs.floats("run_time"), jobs.floats("time_limit")
        step = limit_step_s * speed
        limit = np.maximum(1.0, np.ceil(asked / step - 1e-9)) * step
        kind = jobs.column("kind").astype(object)
        fixed = (kind != Kind.RIGID) & ((kind != Kind.MALLEABLE) | (not resizes))
        waits, counts_of_waits = waits_in(jobs, dependencies)
        counts |= {
            "jobs without a time limit: the default of the batch system": int(np.isnan(asked).sum()),
            f"time limits rounded up to multiples of {limit_step_s:g} wall s": int((limit > asked + 1e-6).sum()),
            "jobs exceed their limit: the batch system kills them": int((run_time > limit).sum()),
            "jobs that are not rigid: run at the requested size": int(fixed.sum()),
            **counts_of_waits,
        }
        if demands is not None:
            counts |= demands.counts
        else:
            counts["jobs with a memory request: ignored"] = int(np.isfinite(jobs.floats("memory_mib")).sum())
            named = int((jobs.column("user") != "").sum())
            counts["jobs of named users: submitted as the user of the replay"] = named
        return cls(
            ids=[str(value) for value in jobs.column("job_id")],
            kind=[str(value) for value in kind],
            submit=jobs.floats("submit_time").tolist(),
            run_time=run_time.tolist(),
            limit=limit.tolist(),
            nodes=jobs.ints("nodes").tolist(),
            user=[str(value) for value in jobs.column("user")],
            deadline=jobs.floats("deadline").tolist(),
            application=[*map(program_of, jobs.texts("application"), jobs.texts("application_parameters"))],
            state_mib=jobs.floats("state_mib").tolist(),
            group=jobs.texts("group").tolist(),
            partition=jobs.texts("partition").tolist(),
            options=[] if demands is None else [*demands.options],
            waits=waits,
            counts={what: count for what, count in counts.items() if count},
        )

    def limit_s(self, job: int, speed: float) -> float | None:
        """Return the time limit of a job, wall s; None if the job has no limit."""
        return None if math.isnan(self.limit[job]) else self.limit[job] / speed

    def shortest_s(self, nodes: int, speed: float) -> float:
        """Return a lower bound of the wall time of a replay on a number of nodes, s."""
        fitting = [job for job in range(len(self)) if self.nodes[job] <= nodes]
        thinks = self.waits is not None and self.waits.thinks
        last = max((self.submit[job] - self.submit[0] + self._held(job) for job in fitting), default=0.0)
        last = 0.0 if thinks else last  # a submission that follows from the end of another job may be earlier
        work = sum(self._held(job) * self.nodes[job] for job in fitting)
        return max(last, work / nodes) / speed

    def _held(self, job: int) -> float:
        """Return the planned time of a job on its nodes, trace s."""
        return float(np.fmin(self.run_time[job], self.limit[job]))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)
