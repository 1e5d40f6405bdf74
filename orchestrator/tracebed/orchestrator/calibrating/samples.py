"""Samples of overheads from the replays of probes, in wall seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs

FloatArray = npt.NDArray[np.float64]
ITERATIONS = 10
"""Resizes of jobs with fewer iterations are left out: such jobs end before a slow resize, which would bias the mean."""


@dataclass(frozen=True)
class OverheadSamples:
    """Samples from the replays of one repetition. A row is a job or a resize."""

    launch: FloatArray
    """Shape (jobs, 2): number of ranks, and time from the allocation of the nodes to the first work."""
    end: FloatArray
    """Shape (jobs, 2): number of ranks, and time from the planned end of the work until the nodes are idle."""
    expand: FloatArray
    """Shape (resizes, 5): new ranks; asked to decided; decided to applied; applied to ended; iteration."""
    shrink: FloatArray
    """Shape (resizes, 5): like `expand`, with the number of released ranks."""

    @classmethod
    def joined(cls, parts: list[OverheadSamples]) -> OverheadSamples:
        """Return the rows of all `parts`."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    @property
    def ready(self) -> FloatArray:
        """Shape (expansions, 3): new ranks; time from the decision until the end of an iteration; duration of this one.

        An expansion is applied at the end of the first iteration after all new ranks have joined, after the pause of a
        reconfiguration. So they joined within this iteration.
        """
        pause = self.shrink[:, 2].mean() if len(self.shrink) else 0.0
        ended = self.expand[:, 1] + self.expand[:, 2] - pause
        return np.column_stack([self.expand[:, 0], ended, self.expand[:, 4]])


def samples_of(run: Run, workload: Workload, entries: list[Entry], grain_s: float) -> OverheadSamples:
    """Return the samples of a replay.

    Args:
        entries: its journal.
        grain_s: target duration of an iteration, wall seconds.
    """
    speed, jobs = run.info.speed, run.jobs.set_index("job_id")
    jobs = jobs[jobs["state"] == "completed"]
    planned, late = _leaders(entries)
    starts = run.allocations.merge(jobs[["start"]].reset_index(), on="job_id", suffixes=("", "_job"))
    first = starts[starts["start"] == starts["start_job"]].groupby("job_id")["count"].sum()
    asked = run.resizes.groupby("job_id")["nodes_from"].first()  # a job may expand at its start
    first = asked.reindex(first.index).fillna(first)
    changes = run.resizes[run.resizes["state"] == "applied"]
    last = changes.groupby("job_id")["nodes_to"].last().reindex(first.index).fillna(first)
    launch = (jobs["launched"] - jobs["start"]) / speed
    work = pd.Series(planned) + pd.Series(late) * (max(run.info.duties) == 1.0)
    end = (jobs["end"] - jobs["launched"]) / speed - work.reindex(jobs.index)
    resizes = _resizes(changes, jobs, workload, speed, grain_s)
    return OverheadSamples(
        _rows(first, launch),
        _rows(last, end),
        resizes[resizes[:, 0] > 0],
        np.abs(resizes[resizes[:, 0] < 0]),
    )


def _rows(ranks: pd.Series[float], seconds: pd.Series[float]) -> FloatArray:
    table = pd.DataFrame({"ranks": ranks, "seconds": seconds}).dropna()
    return table.to_numpy(dtype=np.float64)


def _leaders(entries: list[Entry]) -> tuple[dict[str, float], dict[str, float]]:
    """Return job -> planned duration of its work, and job -> delay behind the plan at its end, wall s.

    At duty 1 a job on a slow core takes longer than planned. This delay is not an overhead of the end of the job.
    """
    planned, late = {}, {}
    for entry in entries:
        if entry.kind == "ended" and entry.data["leader"] and entry.data.get("planned_s") is not None:
            assert entry.job is not None
            planned[entry.job] = float(entry.data["planned_s"])
            late[entry.job] = float(entry.data.get("residual_s") or 0.0)
    return planned, late


def _resizes(changes: pd.DataFrame, done: pd.DataFrame, workload: Workload, speed: float, grain_s: float) -> FloatArray:
    """Return the resizes of completed jobs with enough iterations, decided while the jobs worked.

    Shape (resizes, 5): added nodes (negative for a shrink), the three stages, and the duration of an iteration, wall s.
    """
    jobs = Jobs.of(workload)
    number = {name: job for job, name in enumerate(jobs.ids)}
    launched = dict(zip(done.index.tolist(), done["launched"].tolist(), strict=True))
    instants = changes[["asked", "decided", "applied", "ended"]].to_numpy(dtype=np.float64) / speed
    sizes = changes[["nodes_from", "nodes_to"]].to_numpy(dtype=np.int64).tolist()
    rows = []
    for name, (before, after), times in zip(changes["job_id"].tolist(), sizes, instants, strict=True):
        job = number[name]
        seconds = jobs.run_time[job] / speed
        iterations = max(1, round(seconds / grain_s))
        if iterations < ITERATIONS or times[0] * speed < launched.get(name, np.inf):
            continue
        rows.append([after - before, *np.diff(times), seconds / iterations / jobs.rate(job, before)])
    return np.array(rows, dtype=np.float64).reshape(-1, 5)
