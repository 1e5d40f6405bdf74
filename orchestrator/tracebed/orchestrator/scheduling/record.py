"""Record of the times and states of the jobs, written by the simulator and the replayer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field
from typing import Any

from tracebed.ground.states import JobState
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.core_changes import NEVER, CoreChanges, instants, integers
from tracebed.orchestrator.scheduling.jobs import Jobs


@dataclass
class Resizes:
    """All reconfigurations, one array per column, in the order of the policy's decisions.

    `runs.schema.TABLES` describes the columns. Times are trace seconds. The last three are NaN if the job ended before
    the resize took effect.
    """

    job: array[int] = field(default_factory=integers)
    nodes_from: array[int] = field(default_factory=integers)
    nodes_to: array[int] = field(default_factory=integers)
    asked: array[float] = field(default_factory=instants)
    decided: array[float] = field(default_factory=instants)
    applied: array[float] = field(default_factory=instants)
    ended: array[float] = field(default_factory=instants)

    def __len__(self) -> int:
        """Return the number of reconfigurations."""
        return len(self.job)


MEASURED = ("seen", "decision_s", "spawn_s", "redistribution_s", "termination_s", "moved_mib")
"""Columns of a resize that only some executors measure: the time at which a rank noticed it, and its stages."""


@dataclass
class Outage:
    """The time in which a node was lost, trace seconds."""

    node: int
    start: float
    reason: str
    end: float | None = None
    """None: the node did not return."""


class ScheduleRecord:
    """Times and states of all jobs (indexed by job number), all reconfigurations and outages, in trace seconds.

    `start` and `launched` refer to the last run of a job.
    """

    def __init__(self, jobs: Jobs) -> None:
        """Start without submitted jobs."""
        count = len(jobs)
        self.jobs = jobs
        self.submit: MutableSequence[float] = [NEVER] * count
        self.start: MutableSequence[float] = [NEVER] * count
        self.launched: MutableSequence[float] = [NEVER] * count
        self.end: MutableSequence[float] = [NEVER] * count
        self.state = [JobState.UNKNOWN] * count
        self.reason = [""] * count
        self.restarts: MutableSequence[int] = array("q", bytes(8 * count))
        self.checksum = [""] * count
        self.resizes = Resizes()
        self.measured: dict[int, Mapping[str, float]] = {}
        """Row of `resizes` -> further columns of the table `reconfigurations`: `seen` and the stages; and `planned_s`,
        the time from the first iteration of the job to the resize by the plan of its leader, wall s."""
        self.nodes_asked: dict[int, int] = {}
        """Row of `resizes` -> number of nodes that the evolving job requested."""
        self.denied: set[int] = set()
        """Rows of `resizes` that did not happen: the policy denied the request."""
        self.cores = CoreChanges()
        self.outages: list[Outage] = []
        self.pauses: list[dict[str, Any]] = []
        self._open: dict[int, int] = {}  # job -> the row of its pending resize
        self._requested: dict[int, int] = {}  # evolving job -> number of nodes that it requests, until the answer

    def finish(self, job: int, now: float, state: JobState = JobState.COMPLETED, reason: str = "") -> None:
        """Record the end of `job`, which may not have started."""
        self.end[job] = now
        self.state[job] = state
        self.reason[job] = reason
        self._forget(job)

    def refuse(self, job: int, state: JobState, reason: str) -> None:
        """Record that `job` will never start."""
        self.state[job] = state
        self.reason[job] = reason

    def requeue(self, job: int) -> None:
        """Record that the running `job` lost a node and returned to the queue."""
        self.start[job] = self.launched[job] = NEVER
        self.restarts[job] += 1
        self._forget(job)

    def node_down(self, node: int, now: float, reason: str) -> None:
        """Record that `node` is lost from `now` on."""
        self.outages.append(Outage(node, now, reason))

    def node_up(self, node: int, now: float) -> None:
        """Record that the lost `node` is back."""
        next(outage for outage in reversed(self.outages) if outage.node == node).end = now

    def paused(self, data: Mapping[str, Any]) -> None:
        """Record a pause of the executor, with the fields of its journal entry."""
        self.pauses.append({name: data[name] for name in ("at", "wall_s", "adopted", "lost")})

    def close(self, state: JobState, reason: str) -> None:
        """Record `state` and `reason` for every job whose state is still unknown."""
        unknown = JobState.UNKNOWN
        for job in [job for job, known in enumerate(self.state) if known is unknown]:
            self.refuse(job, state, reason)

    def resize_requested(self, job: int, before: int, after: int, now: float) -> None:
        """Record that the policy decided a resize of `job` from `before` to `after` nodes."""
        resizes = self.resizes
        self._open[job] = len(resizes)
        if job in self._requested:
            self.nodes_asked[len(resizes)] = self._requested.pop(job)
        resizes.job.append(job)
        resizes.nodes_from.append(before)
        resizes.nodes_to.append(after)
        resizes.asked.append(now)
        resizes.decided.append(NEVER)
        resizes.applied.append(NEVER)
        resizes.ended.append(NEVER)

    def request(self, job: int, requested: int, *, answered: bool) -> None:
        """Record that the evolving `job` requests `requested` nodes, and whether a policy will answer."""
        self._requested.pop(job, None)
        if answered:
            self._requested[job] = requested

    def deny(self, job: int, nodes: int, requested: int, now: float) -> None:
        """Record that the evolving `job` does not get `requested` nodes, and continues with `nodes`."""
        self.denied.add(len(self.resizes))
        self.resize_requested(job, nodes, requested, now)
        del self._open[job]

    def pending_row(self, job: int) -> int:
        """Return the row of the pending resize of `job`."""
        return self._open[job]

    def within_resize(self, job: int, decided: float, applied: float, now: float) -> tuple[float, float]:
        """Return the times of the pending resize of `job`, between its request and `now`.

        The clock of a node may have stepped, so that its times are wrong until the step is measured.
        """
        decided = min(max(decided, self.resizes.asked[self._open[job]]), now)
        return decided, min(max(applied, decided), now)

    def resize_applied(
        self, job: int, decided: float, applied: float, ended: float, measured: Mapping[str, float] | None = None
    ) -> None:
        """Record that the pending resize of `job` took effect. `measured` has the known columns of `MEASURED`."""
        row, resizes = self._open.pop(job), self.resizes
        resizes.decided[row], resizes.applied[row], resizes.ended[row] = decided, applied, ended
        if measured:
            self.measured[row] = measured

    def _forget(self, job: int) -> None:
        self._open.pop(job, None)
        self._requested.pop(job, None)
        self.cores.forget(job)


def cut_short(
    record: ScheduleRecord, cluster: Cluster, running: Iterable[int], now: float, interrupted: str | None
) -> None:
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
