"""Record of the times and states of the jobs, written by the simulator and the replayer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.states import JobState

NEVER = float("nan")


def _integers() -> array[int]:
    return array("i")


def _instants() -> array[float]:
    return array("d")


@dataclass
class Resizes:
    """All reconfigurations, one array per column, in the order of the policy's decisions.

    `run_schema.TABLES` describes the columns. Times are trace seconds. The last three are NaN if the job ended before
    the resize took effect.
    """

    job: array[int] = field(default_factory=_integers)
    nodes_from: array[int] = field(default_factory=_integers)
    nodes_to: array[int] = field(default_factory=_integers)
    asked: array[float] = field(default_factory=_instants)
    decided: array[float] = field(default_factory=_instants)
    applied: array[float] = field(default_factory=_instants)
    ended: array[float] = field(default_factory=_instants)

    def __len__(self) -> int:
        """Return the number of reconfigurations."""
        return len(self.job)


class Record:
    """Times and states of all jobs (indexed by job number), and all reconfigurations. Times are trace seconds."""

    def __init__(self, jobs: Jobs) -> None:
        """Start without submitted jobs."""
        count = len(jobs)
        self.jobs = jobs
        self.submit = [NEVER] * count
        self.start = [NEVER] * count
        self.launched = [NEVER] * count
        self.end = [NEVER] * count
        self.state = [JobState.UNKNOWN] * count
        self.reason = [""] * count
        self.resizes = Resizes()
        self._open: dict[int, int] = {}  # job -> the row of its pending resize

    def finish(self, job: int, now: float, state: JobState, reason: str = "") -> None:
        """Record the end of `job`, which may not have started."""
        self.end[job] = now
        self.state[job] = state
        self.reason[job] = reason
        self._open.pop(job, None)

    def refuse(self, job: int, state: JobState, reason: str) -> None:
        """Record that `job` will never start."""
        self.state[job] = state
        self.reason[job] = reason

    def close(self, state: JobState, reason: str) -> None:
        """Record `state` and `reason` for every job whose state is still unknown."""
        for job in [job for job, known in enumerate(self.state) if known is JobState.UNKNOWN]:
            self.refuse(job, state, reason)

    def resize_asked(self, job: int, before: int, after: int, now: float) -> None:
        """Record that the policy decided a resize of `job` from `before` to `after` nodes."""
        resizes = self.resizes
        self._open[job] = len(resizes)
        resizes.job.append(job)
        resizes.nodes_from.append(before)
        resizes.nodes_to.append(after)
        resizes.asked.append(now)
        resizes.decided.append(NEVER)
        resizes.applied.append(NEVER)
        resizes.ended.append(NEVER)

    def resize_applied(self, job: int, decided: float, applied: float, ended: float) -> None:
        """Record that the pending resize of `job` took effect."""
        row, resizes = self._open.pop(job), self.resizes
        resizes.decided[row], resizes.applied[row], resizes.ended[row] = decided, applied, ended


def cut_short(record: Record, cluster: Cluster, running: Iterable[int], now: float, interrupted: str | None) -> None:
    """Record the final states of the jobs that have not ended when the run ends at `now`.

    Args:
        record: the times and states of the jobs.
        cluster: the nodes.
        running: the jobs that were running.
        now: end of the run, trace seconds.
        interrupted: reason of the interruption; None: the policy started no more jobs.
    """
    for job in running:
        record.finish(job, now, JobState.INTERRUPTED, interrupted or "the run ended")
        cluster.release(job, now)
    cut = (JobState.INTERRUPTED, "not started when the run ended")
    record.close(*cut if interrupted else (JobState.UNKNOWN, "the policy never started it"))
