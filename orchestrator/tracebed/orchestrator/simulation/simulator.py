"""The simulator: the scheduler in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.record import Record
from tracebed.orchestrator.scheduling.scheduler import Scheduler, next_multiple
from tracebed.orchestrator.scheduling.state import Policy, shares
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.states import JobState

END, POINT = 0, 1  # of events at one instant, ends come before malleability points
REPORT_EVERY = 4096  # instants


@dataclass(frozen=True)
class Overheads:
    """Overheads of a real system in trace seconds (wall seconds times the speed).

    Args:
        launch_s: time from the allocation of a job to the beginning of its work.
        end_s: time from the end of the work of a job to the release of its nodes.
        reconfiguration_s: pause of a job when a resize takes effect.
    """

    launch_s: float = 0.0
    end_s: float = 0.0
    reconfiguration_s: float = 0.0


class Simulator:
    """Simulator of a workload under a policy. It is the executor of its scheduler.

    Args:
        jobs: the workload.
        cores: cores of each node.
        policy: the policy.
        runtime_model: run-time model for jobs that hold fewer cores than requested.
        overheads: overheads of launches, ends and reconfigurations.
        interval_s: > 0: the policy is called only at multiples of it.
        malleability_interval_s: > 0: a resize takes effect only at multiples of it since the start of the job.
        priority: the order in which waiting jobs are considered, a name of `priorities`.
        sockets: sockets of each node; None: one each.
    """

    def __init__(
        self,
        jobs: Jobs,
        cores: list[int],
        policy: Policy,
        *,
        runtime_model: RuntimeModel = RuntimeModel.IDEAL,
        overheads: Overheads | None = None,
        interval_s: float = 0.0,
        malleability_interval_s: float = 0.0,
        priority: str = FCFS,
        sockets: list[int] | None = None,
    ) -> None:
        """Start at time 0 with an idle cluster."""
        self.jobs = jobs
        self.cluster = Cluster(cores, sockets)
        self.record = Record(jobs)
        self.scheduler = Scheduler(jobs, self.cluster, policy, self, interval_s=interval_s, priority=priority)
        self.runtime_model = runtime_model
        self.overheads = overheads or Overheads()
        self.malleability_interval_s = malleability_interval_s
        self._work = jobs.work
        self._cancelled: dict[int, str] = {}
        self._shares = shares(policy)
        self._uneven = min(cores, default=0) < max(jobs.cores, default=0)
        self._now = 0.0
        self._heap: list[tuple[float, int, int]] = []  # (time, END or POINT, job)
        self._ends: dict[int, float] = {}  # job -> its valid end; other ends in the heap are outdated
        # job whose rate may change -> work done at an instant, the instant, and the rate since then
        self._progress: dict[int, tuple[float, float, float]] = {}
        self._pending: dict[int, list[int]] = {}  # job -> nodes after its next malleability point

    def run(self, on_progress: Callable[[int], None] | None = None) -> Record:
        """Run until every job has ended and return the record.

        Args:
            on_progress: called periodically with the number of jobs submitted so far.
        """
        heap, scheduler, submit = self._heap, self.scheduler, self.jobs.submit
        count, next_job, call, instants = len(self.jobs), 0, math.inf, 0
        while next_job < count or heap or call < math.inf:
            now = min(submit[next_job] if next_job < count else math.inf, heap[0][0] if heap else math.inf, call)
            self._now = now
            happened = False
            while heap and heap[0][0] == now:
                happened |= self._happen(*heappop(heap))
            while next_job < count and submit[next_job] == now:
                self.record.submit[next_job] = now
                scheduler.submit(next_job, now)
                next_job += 1
                happened = True
            if happened:
                scheduler.serve()
                call = min(call, scheduler.due(now))
            if call <= now:
                call = scheduler.decide(now)
            instants += 1
            if on_progress and instants % REPORT_EVERY == 0:
                on_progress(next_job)
        self.record.close(JobState.UNKNOWN, "the policy never started it")
        return self.record

    def _happen(self, now: float, what: int, job: int) -> bool:
        """Handle an event of the heap; return whether the event was still valid."""
        if what == END:
            if self._ends.get(job) != now:
                return False
            del self._ends[job]
            self._progress.pop(job, None)
            self._pending.pop(job, None)
            if job in self._cancelled:
                self.record.finish(job, now, JobState.CANCELLED, self._cancelled.pop(job))
            elif self._work[job] < self.jobs.run_time[job]:
                self.record.finish(job, now, JobState.KILLED, "time limit")
            else:
                self.record.finish(job, now, JobState.COMPLETED)
            self.scheduler.end(job, now)
            return True
        if job not in self._pending:
            return False
        self._take_effect(job, self._pending.pop(job))
        self.scheduler.resized(job, now)
        return True

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job` and compute its end, which a resize changes."""
        now = self._now
        begin = now + self.overheads.launch_s
        self.record.start[job] = now
        self.record.launched[job] = begin
        rate = self._rate(job, nodes)
        if self.jobs.malleable[job] or self._shares:
            self._progress[job] = (0.0, begin, rate)
        self._end_at(job, begin + self._work[job] / rate + self.overheads.end_s)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Apply the resize at once, or at the next malleability point of the job."""
        self.record.resize_asked(job, before, len(nodes), self._now)
        interval = self.malleability_interval_s
        if not interval:
            self._take_effect(job, nodes)
            return True
        self._pending[job] = nodes
        point = next_multiple(interval, self._now, origin=self.record.start[job], first=1)
        heappush(self._heap, (point, POINT, job))
        return False

    def change_cores(self, job: int) -> None:
        """Continue the job with its new cores immediately: a change of cores needs no malleability point."""
        self._proceed(job, self.cluster.nodes_of(job), 0.0)

    def reject(self, job: int, reason: str) -> None:
        """Record that `job` is rejected."""
        self.record.refuse(job, JobState.REJECTED, reason)

    def cancel(self, job: int, reason: str) -> None:
        """End the job now."""
        self._cancelled[job] = reason
        self._end_at(job, self._now)

    # --------------------------------------------------------------------------------------------------------------

    def _take_effect(self, job: int, nodes: list[int]) -> None:
        """Continue `job` on `nodes` and record the resize."""
        begin = self._proceed(job, nodes, self.overheads.reconfiguration_s)
        self.record.resize_applied(job, self._now, begin, begin)

    def _proceed(self, job: int, nodes: list[int], pause: float) -> float:
        """Continue `job` at its new rate after `pause` seconds. Return the time at which it continues, s."""
        now = self._now
        done, since, rate = self._progress[job]
        done += max(0.0, now - since) * rate
        begin = max(now, since) + pause
        rate = self._rate(job, nodes)
        self._progress[job] = (done, begin, rate)
        self._end_at(job, begin + max(0.0, self._work[job] - done) / rate + self.overheads.end_s)
        return begin

    def _rate(self, job: int, nodes: list[int]) -> float:
        rate = self.jobs.rate(job, len(nodes))
        if self._uneven or self.cluster.loans:
            cores = self.cluster.cores
            has = self.cluster.cores_of(job) if self.cluster.shares(job) else [cores[node] for node in nodes]
            rate *= self.runtime_model.share(has, self.jobs.cores[job])
        return rate

    def _end_at(self, job: int, end: float) -> None:
        self._ends[job] = end
        heappush(self._heap, (end, END, job))
