"""Executor that connects tracebed's scheduler to ElastiSim: messages are events, replies are decisions.

The simulator and the replayer execute the same `Scheduler`. ElastiSim differs from them in two ways:

* It sends a message for each event, also for several events at one instant, and the policy decides before the next
  message. `ElastisimExecutor` therefore waits for the events that are known to follow at the same instant.
* A resize takes effect at a scheduling point. The executor keeps the resize until the scheduling point of the job, so
  that the allocation in the cluster of the scheduler is at all times that of ElastiSim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.drivers.elastisim.protocol import Invocation, MessageReason, Reply
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.simulation.overheads import Overheads

INSTANT_S = 1e-6
"""Events that are closer than this count as one instant, s: ElastiSim sums up the durations of activities."""


class ElastisimExecutor:
    """The executor of the decisions of a scheduler whose events come from ElastiSim.

    Args:
        jobs: the workload.
        overheads: overheads in trace seconds, with which ElastiSim simulates.
        interval_s: > 0: the policy is called only at multiples of it.
        priority: the order in which waiting jobs are considered, a name of `priorities`.
        placement: the choice of the nodes of jobs, as `placement.chooser` reads it.

    Attributes:
        record: times and states of the jobs.
        cluster: the nodes.
        sent: number of a job in ElastiSim -> job. Jobs larger than the machine are rejected and not sent.
        origin: trace time of ElastiSim's time 0, s.
        submitted: number of jobs that ElastiSim has submitted.
    """

    def __init__(
        self,
        jobs: Jobs,
        nodes: Sequence[NodeFacts],
        policy: Policy,
        *,
        overheads: Overheads,
        interval_s: float,
        priority: str,
        placement: str,
    ) -> None:
        """Start before the first submission. Reject the jobs that are larger than the machine."""
        self.jobs, self.overheads, self.interval_s = jobs, overheads, interval_s
        self.cluster = Cluster([node.cores for node in nodes], [node.sockets for node in nodes], placement)
        self.record = ScheduleRecord(jobs)
        self.scheduler = Scheduler(jobs, self.cluster, policy, self, interval_s=interval_s, priority=priority)
        low = self.scheduler.jobs.low
        self.sent = [job for job in range(len(jobs)) if low[job] <= len(nodes)]
        self._number = {job: number for number, job in enumerate(self.sent)}
        for job in range(len(jobs)):
            if job not in self._number:
                self.record.submit[job] = jobs.submit[job]
                self.scheduler.submit(job, jobs.submit[job])
        first = jobs.submit[self.sent[0]] if self.sent else 0.0
        self.origin = math.floor(first / interval_s) * interval_s if interval_s else first
        self.submitted = 0
        self._now, self._call = 0.0, math.inf
        self._happened = False  # events since the last `serve`
        self._orders = Reply()
        self._cancelled: dict[int, str] = {}
        self._resizes: dict[int, tuple[list[int], float]] = {}  # job -> nodes, and the earliest time of the resize
        # running job -> work done at an instant, the instant, the rate since then, and the expected end
        self._progress: dict[int, tuple[float, float, float, float]] = {}

    def handle_message(self, message: Invocation) -> Reply:
        """Handle a message of ElastiSim, and return the reply.

        Raises:
            PolicyError: a decision of the policy is impossible.
            InputError: the policy needs a call at an instant without an event.
        """
        self._orders = Reply()
        self._now = now = max(self._now, self._instant(message))
        self._happened |= self._handle(message.occasion, message.job, now)
        if not self._has_event_at(now):
            self._decide(now)
        return self._orders

    def _instant(self, message: Invocation) -> float:
        """Return the trace time of a message, s: the exact time of a known event that is closer than `INSTANT_S`.

        A policy may compare the time with that of a reservation, which is later by a rounding error otherwise.
        """
        now = message.time + self.origin
        if message.occasion is MessageReason.PERIODIC:
            known = round(now / self.interval_s) * self.interval_s
        elif message.occasion is MessageReason.SUBMITTED:
            known = self.jobs.submit[self.sent[message.job]]
        else:
            _, _, _, known = self._progress[self.sent[message.job]]
        return known if abs(known - now) < INSTANT_S else now

    def _handle(self, occasion: MessageReason, number: int, now: float) -> bool:
        """Report the event to the scheduler; return whether there was one."""
        if occasion is MessageReason.PERIODIC:
            return False
        job = self.sent[number]
        if occasion is MessageReason.SUBMITTED:
            self.submitted += 1
            self.record.submit[job] = self.jobs.submit[job]
            self.scheduler.submit(job, now)
        elif occasion is MessageReason.SCHEDULING_POINT:
            nodes, ready = self._resizes.get(job, ([], math.inf))
            if now < ready - INSTANT_S:
                return False
            del self._resizes[job]
            self._orders.nodes[number] = nodes
            begin = self._continue(job, now, self.overheads.reconfiguration_s, len(nodes))
            self.record.resize_applied(job, now, begin, begin)
            self.scheduler.resized(job, now)
        elif occasion in (MessageReason.COMPLETED, MessageReason.KILLED):
            if self.jobs.work[job] < self.jobs.run_time[job]:
                self._end(job, now, JobState.KILLED, "time limit")
            else:
                self._end(job, now, JobState.COMPLETED)
        return True

    def _end(self, job: int, now: float, state: JobState, reason: str = "") -> None:
        self._progress.pop(job, None)
        self._resizes.pop(job, None)
        self.record.finish(job, now, state, reason)
        self.scheduler.end(job, now)

    def _has_event_at(self, now: float) -> bool:
        """Return whether ElastiSim will report another event at this instant."""
        if self.submitted < len(self.sent) and self.jobs.submit[self.sent[self.submitted]] <= now + INSTANT_S:
            return True
        return any(end <= now + INSTANT_S for _, _, _, end in self._progress.values())

    def _decide(self, now: float) -> None:
        """Call the policy until all events are processed, including events caused by its decisions."""
        while True:
            if self._happened:
                self.scheduler.serve()
                self._call = min(self._call, self.scheduler.due(now))
                self._happened = False
            if self._call > now:
                break
            self._call = self.scheduler.decide(now)
            for job, reason in self._cancelled.items():  # ElastiSim kills them with the reply
                self._orders.kills.append(self._number[job])
                self._end(job, now, JobState.CANCELLED, reason)
                self._happened = True
            self._cancelled.clear()
        if self._call < math.inf and not self.interval_s:
            what = "ElastiSim cannot call the policy at an instant without an event, which the policy requested"
            raise InputError(what, hint="give a scheduling interval (--interval S)")
        if self.submitted == len(self.sent) and not self.scheduler.state.size and self._call == math.inf:
            waiting = [job for job in self.sent if self.record.state[job] is JobState.UNKNOWN]
            self._orders.kills += [self._number[job] for job in waiting]  # no event will follow: ElastiSim would hang

    # -- the executor of the scheduler ---------------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job` with the reply."""
        self.record.start[job] = self._now
        self._progress[job] = (0.0, self._now, 0.0, math.inf)
        self.record.launched[job] = self._continue(job, self._now, self.overheads.launch(len(nodes)), len(nodes))
        self._orders.nodes[self._number[job]] = nodes

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Keep the resize until the first scheduling point of the job at which all new ranks have joined."""
        self.record.resize_requested(job, before, len(nodes), self._now)
        self._resizes[job] = (nodes, self._now + self.overheads.expand(len(nodes) - before))
        return False

    def deny(self, job: int, wanted: int) -> None:
        """Record that the job does not get `wanted` nodes."""
        self.record.deny(job, self.scheduler.state.size[job], wanted, self._now)

    def change_cores(self, job: int) -> None:
        """Raise InputError: in ElastiSim, jobs hold whole nodes."""
        raise InputError("the policy lets jobs share nodes, which ElastiSim cannot do", hint="use another policy")

    def reject(self, job: int, reason: str) -> None:
        """Record that `job` is rejected, and kill it in ElastiSim if it has been sent."""
        self.record.refuse(job, JobState.REJECTED, reason)
        if job in self._number:
            self._orders.kills.append(self._number[job])

    def cancel(self, job: int, reason: str) -> None:
        """Kill the running job with the reply."""
        self._cancelled[job] = reason

    def _continue(self, job: int, now: float, pause: float, nodes: int) -> float:
        """Continue `job` on `nodes` nodes after `pause` seconds. Return the time at which it continues, s."""
        done, since, rate, _ = self._progress[job]
        done += max(0.0, now - since) * rate
        begin, rate = max(now, since) + pause, self.jobs.rate(job, nodes)
        end = begin + max(0.0, self.jobs.work[job] - done) / rate + self.overheads.end(nodes)
        self._progress[job] = (done, begin, rate, end)
        return begin
