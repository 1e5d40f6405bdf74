"""The work that a changed cluster refuses, and what people would do with it.

A job whose time limit exceeds that of its partition never starts. If such jobs of the log were left out of the changed
cluster only, the others would wait less for that reason alone. So both clusters are compared without them; and if they
are more than `MOST` of the work, the change is no subject for a comparison of waits. `Remedy` has what people would do.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Step, Workload
from tracebed.ground.display import cell, counted, listed
from tracebed.operators.whatif.shares import percent
from tracebed.slurm.simulation.demands import STARTED

MOST = 0.01
"""Share of the core hours that a change may refuse or cut off if it is to be a statement about waits."""
MOST_REASONS = 3
LIMITS = ("PartitionTimeLimit", "MaxWallDuration")
"""Parts of the reasons of jobs whose time limit is too long."""
PIECE = "whatif-piece-{}"
"""Name of a piece of a job, but for the last one, which has the name of the job: it is what other jobs depend on."""


class Remedy(enum.StrEnum):
    """What is done with a job whose time limit exceeds what the changed cluster permits."""

    LEAVE_OUT = "leave-out"
    """Nothing: the changed cluster refuses the job."""
    CUT = "cut"
    """Its time limit becomes the longest that is permitted, and Slurm ends the job then."""
    SPLIT = "split"
    """It becomes a chain of equal jobs within this limit, each after the previous."""


@dataclass(frozen=True)
class Refused:
    """The work of the log that the changed cluster does not do.

    Attributes:
        remedy: what is done with jobs beyond the new limits.
        jobs: number of jobs that ran in the log, and never start in the changed cluster.
        core_hours: their core hours.
        cut_jobs: number of jobs that end earlier than in the cluster as it was: at a shorter limit, or preempted.
        cut_core_hours: the core hours that they lack.
        adapted: number of jobs whose limit is cut, or that are split, by the remedy.
        all_core_hours: core hours of all jobs that ran in the log.
        reasons: reason -> number of refused jobs.
    """

    remedy: Remedy
    jobs: int
    core_hours: float
    cut_jobs: int
    cut_core_hours: float
    adapted: int
    all_core_hours: float
    reasons: Mapping[str, int]

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the core hours of the log that are refused, and that are cut off."""
        return self.core_hours / self.all_core_hours, self.cut_core_hours / self.all_core_hours

    @property
    def much(self) -> bool:
        """Whether so much work is refused or cut off that waits are not compared."""
        return sum(self.shares) > MOST

    @property
    def sentence(self) -> str:
        """What is refused, in words; empty: nothing."""
        refused, cut = map(percent, self.shares)
        parts = []
        if self.jobs:
            most = sorted(self.reasons.items(), key=lambda each: -each[1])
            why = listed([f"{reason} ({jobs:,})" for reason, jobs in most], MOST_REASONS)
            work = f"{cell(self.core_hours)} core hours ({refused} % of the log's)"
            parts.append(f"the change refuses {counted(self.jobs, 'job')} of the log with {work}: {why}")
        if self.cut_jobs:
            work = f"{cell(self.cut_core_hours)} core hours ({cut} % of the log's)"
            parts.append(f"the change cuts off {work}, of jobs that end earlier ({self.cut_jobs:,})")
        if self.adapted:
            what = "is cut to it" if self.remedy is Remedy.CUT else "splits a job into jobs within it"
            parts.append(f"a limit beyond the longest permitted one {what} ({counted(self.adapted, 'job')})")
        if not self.much:
            return "; ".join(parts)
        limits = self.cut_jobs or any(limit in reason for reason in self.reasons for limit in LIMITS)
        advice = "; `whatif --over-limit split` divides jobs beyond a limit into shorter ones"
        if not limits or self.remedy is Remedy.SPLIT:
            advice = ""
        return f"{'; '.join(parts)}. This is more than {percent(MOST)} %: no statement about waits{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the work as JSON values."""
        share, cut_share = self.shares
        return {
            "remedy": self.remedy.value,
            "jobs": self.jobs,
            "core_hours": self.core_hours,
            "share": share,
            "cut_jobs": self.cut_jobs,
            "cut_core_hours": self.cut_core_hours,
            "cut_share": cut_share,
            "adapted_jobs": self.adapted,
            "most_share": MOST,
            "reasons": dict(self.reasons),
            "sentence": self.sentence,
        }


def beyond(workload: Workload, longest: FloatArray) -> BoolArray:
    """Return which jobs may not start because of their time limit, or would end at a limit that they do not have.

    `longest`: the longest time limit of each job, s, shape (jobs,); infinity: any.
    """
    limit = workload.floats("time_limit")
    limit = np.where(np.isnan(limit), workload.floats("run_time"), limit)
    return np.asarray((limit > longest) & ~workload.column(STARTED).astype(bool), dtype=bool)


def adapted(workload: Workload, longest: FloatArray, remedy: Remedy) -> tuple[Workload, IntArray]:
    """Return the workload after the remedy, and the job of each of its rows, shape (rows,); pieces are in order."""
    own = np.arange(len(workload))
    rows = beyond(workload, longest)
    if remedy is Remedy.LEAVE_OUT or not rows.any():
        return workload, own
    limit, run_time = workload.floats("time_limit"), workload.floats("run_time")
    cut = np.where(rows, longest, limit)
    if remedy is Remedy.CUT:
        return workload.with_step(Step("cut"), workload.columns.assign(time_limit=cut)), own
    run_time = np.where(rows & (limit < run_time), limit, run_time)  # the last piece alone would be killed
    pieces = np.where(rows, np.ceil(run_time / longest), 1).clip(1).astype(np.int64)
    job = np.repeat(own, pieces)
    first, last = np.append(True, job[1:] != job[:-1]), np.append(job[1:] != job[:-1], True)
    names = np.where(last, workload.column("job_id")[job], [PIECE.format(at) for at in range(len(job))])
    after = [f"afterany:{name}" for name in np.roll(names, 1)]
    dependency = np.where(first, workload.column("dependency")[job], after)
    table = workload.table.iloc[job].assign(
        job_id=names, time_limit=cut[job], run_time=(run_time / pieces)[job], dependency=dependency
    )
    return workload.with_step(Step("split"), Workload(table).columns), job
