"""The scheduler, used by the simulator and the replayer.

An executor, the simulator or the replayer, reports events to the scheduler: `submit`, `end`, `resized`, `request` (of
an evolving job), and in a replay `node_lost`, `requeue` and `node_back`. It then calls `serve` for the promises and,
when the policy is `due`, `decide`. The scheduler maintains the state, calls the policy, checks its decisions, and
passes them to the executor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.ground.display import cell
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.executor import Executor
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S, Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import FCFS
from tracebed.orchestrator.scheduling.policy_errors import DEFECT, Call, PolicyError, name_of
from tracebed.orchestrator.scheduling.priorities import queue_by
from tracebed.orchestrator.scheduling.promises import Promises
from tracebed.orchestrator.scheduling.reservations import Hold
from tracebed.orchestrator.scheduling.sharing import Progress, Sharing
from tracebed.orchestrator.scheduling.state import (
    Cancel,
    Note,
    Policy,
    Reject,
    Reserve,
    Resize,
    Share,
    Start,
    State,
    Wake,
    in_words,
    shares,
    visible_jobs,
)
from tracebed.orchestrator.scheduling.ticks import next_multiple

MOST_CALLS = 100_000
"""Largest number of calls at one instant that a policy may request."""


class Scheduler:
    """A scheduler: a policy, the state that it reads, and the executor of its decisions.

    Args:
        jobs: the workload.
        cluster: the nodes.
        interval_s: > 0: the policy is called only at multiples of it; 0: on every event.
        priority: the order in which waiting jobs are considered, a name of `priorities`.
    """

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        policy: Policy,
        executor: Executor,
        *,
        interval_s: float = 0.0,
        priority: str = FCFS,
    ) -> None:
        """Start with an idle cluster and an empty queue."""
        self.jobs = jobs = visible_jobs(policy, jobs)
        self.cluster = cluster
        self.policy, self.executor, self.interval_s = policy, executor, interval_s
        self.state = State(jobs, cluster, queue_by(priority, jobs, len(cluster)))
        self._promises = Promises()
        self._progress: dict[int, Progress] = {}
        # Progress at which the limit of each job ends, s. `OverLimit.AGAIN` moves it.
        self._limit = list(jobs.limit)
        self._extends_limits = jobs.over_limit is OverLimit.AGAIN
        self._sharing = Sharing(jobs, cluster, self.state, self._progress, self._limit)
        self._shares = shares(policy)
        self._resized_in_call = False
        self._wake = math.inf
        self._calls_at_instant = (-math.inf, 0)  # an instant, and the number of calls that the policy requested at it

    # -- events ---------------------------------------------------------------------------------------------------

    def submit(self, job: int, now: float) -> None:
        """Handle the submission of `job`. A job larger than the cluster is rejected."""
        state, low = self.state, self.jobs.low[job]
        state.now = now
        if low > state.total:
            self.executor.reject(job, f"needs {low} nodes, the machine has {state.total}")
            return
        state.wait(job)

    def end(self, job: int, now: float) -> None:
        """Handle the end of the running `job`, whatever its final state."""
        state = self.state
        state.now = now
        gaining = self.cluster.release(job, now)
        state.releases.remove(job, state.expected_end.pop(job))
        del state.size[job]
        state.cancelling.discard(job)
        state.requested.pop(job, None)
        state.reservations.remove(job)
        if job in state.failing:
            state.failing.remove(job)
            state.resizing.discard(job)
            state.reserved.clear()  # reservations counted on the lost nodes of the job
        if self._shares:
            state.can_host[job] = 0
        if gaining:
            for other in self._sharing.changed(gaining):
                self.executor.change_cores(other)
        if job in self._progress:
            del self._progress[job]
            self._promises.released(job)
            state.resizable.pop(job, None)
            state.resizing.discard(job)
        self._nodes_freed()
        self._withdraw_promises()

    def requeue(self, job: int, now: float) -> None:
        """Return `job`, which ended because a node was lost, to the queue with its original submit time."""
        self.end(job, now)
        self._limit[job] = self.jobs.limit[job]
        self.state.wait(job)

    def node_lost(self, node: int, now: float) -> list[int]:
        """Handle the loss of `node`, and return the running jobs that hold it.

        The executor must end these jobs and call `end` or `requeue` when their processes on the other nodes have ended.
        Promises that the remaining nodes cannot keep are withdrawn, the last one first; their jobs return to the queue.
        """
        state = self.state
        state.now = now
        self.cluster.lose(node)
        failing = self.cluster.jobs_on(node)
        for job in failing:
            state.failing.add(job)
            state.resizing.add(job)
            state.resizable.pop(job, None)
            state.can_host[job] = 0
        self._nodes_changed()
        return failing

    def node_back(self, node: int, now: float) -> None:
        """Handle the return of the lost `node`."""
        self.state.now = now
        self.cluster.restore(node)
        self._nodes_changed()

    def resized(self, job: int, now: float) -> None:
        """Handle that the pending resize of `job` took effect: release dropped nodes and update the expected end."""
        state = self.state
        state.now = now
        if job not in state.failing:
            state.resizing.discard(job)
        if released := self._promises.released(job):
            self.cluster.shrink(job, released, now)
        done, since, rate = self._progress[job]
        done += (now - since) * rate
        rate = self.jobs.rate(job, state.size[job])
        self._progress[job] = (done, now, rate)
        self._expect(job, now + (self._limit[job] - done) / rate)
        self._nodes_freed()
        self._withdraw_promises()  # a node that the job releases may be lost

    def refused(self, job: int, nodes: int, now: float) -> None:
        """Handle that the pending expansion of `job` is impossible: it keeps `nodes` nodes, and the others are idle."""
        self._promises.shrinking(job, self.state.size[job] - nodes)
        self.state.size[job] = nodes
        self.resized(job, now)

    def withdraw(self, job: int, now: float) -> None:
        """Handle that the waiting or promised `job` has left the queue without a decision of the policy."""
        state = self.state
        state.now = now
        if job in state.queue:
            self._leave_queue(job)
        elif self._promises.drop(job):
            state.releases.remove(job, state.expected_end.pop(job))
        state.reservations.remove(job)
        self._nodes_freed()

    def adopt(self, job: int, nodes: Sequence[int], now: float) -> None:
        """Handle that `job` runs on the idle `nodes`, its first node first. The executor is called as for a start."""
        self.submit(job, now)
        self._start(Start(job, len(nodes), on=tuple(nodes)))
        self.cluster.order(job, nodes)

    def request(self, job: int, nodes: int, now: float) -> bool:
        """Handle the request of the running evolving `job` for `nodes` nodes. It replaces an unanswered one.

        Return whether the policy must answer: not if the job has, or will have, this number of nodes.
        """
        state = self.state
        state.now, state.settled = now, False
        state.requested.pop(job, None)
        if nodes != state.size[job]:
            state.requested[job] = nodes
        return job in state.requested

    def limit_end(self, job: int, now: float) -> float:
        """Return the time at which the limit of the running `job` ends, s. Overdue guests may delay it."""
        end = self.state.expected_end[job]
        if end <= now and self.cluster.guests(job):
            self.state.now = now
            return self._sharing.end(job)
        return end

    # -- decisions ------------------------------------------------------------------------------------------------

    def due(self, now: float) -> float:
        """Return the time of the call of the policy for an event at `now`, s."""
        return next_multiple(self.interval_s, now) if self.interval_s else now

    def decide(self, now: float) -> float:
        """Call the policy, execute each decision, and return the time of the next call without an event, s.

        This time is infinite unless the policy decided `Wake`. For a `Wake` at or before `now`, it is `now`.

        Raises:
            PolicyError: a decision is impossible, or the policy has failed.
        """
        state = self.state
        state.now = now
        state.woken = now >= self._wake
        self._wake = math.inf
        state.queue.arrange(now)
        if self._extends_limits:
            self._extend_limits()
        open_requests = [job for job in state.requested if job not in state.resizing] if state.requested else ()
        decided = 0
        with Call(self.policy, state, len(self.jobs)) as call:
            for decided, decision in enumerate(call.decisions, 1):  # noqa: B007 - the number of the last one
                if type(decision) is Start:
                    self._start(decision)
                elif type(decision) is Resize:
                    self._resize(decision)
                elif type(decision) is Share:
                    self._share(decision)
                elif type(decision) is Reject:
                    self._check(decision.job in state.queue, decision, "is not waiting")
                    self._leave_queue(decision.job)
                    state.reservations.remove(decision.job)
                    self.executor.reject(decision.job, decision.reason)
                elif type(decision) is Cancel:
                    self._check(decision.job in state.size, decision, "is not running")
                    state.cancelling.add(decision.job)
                    self.executor.cancel(decision.job, decision.reason)
                elif type(decision) is Reserve:
                    self._reserve(decision)
                elif type(decision) is Wake and decision.at == decision.at:
                    self._wake = self._called_again(now) if decision.at <= now else self.due(decision.at)
                elif type(decision) is Note:
                    state.notes[decision.name] = decision.value
                else:
                    raise call.unknown(decision)
        for job in open_requests:
            if job in state.requested:  # no resize has answered it
                self.executor.deny(job, state.requested.pop(job))
        state.arrived.clear()
        if self._resized_in_call:
            # Nodes being released count as available, even if the job they were requested for started on idle nodes.
            self._update_idle()
        state.freed = self._resized_in_call
        state.settled = not decided
        self._resized_in_call = False
        return self._wake

    def _called_again(self, now: float) -> float:
        """Return `now`, the time of the next call. Raises PolicyError after `MOST_CALLS` calls at one instant."""
        instant, times = self._calls_at_instant
        self._calls_at_instant = (now, times + 1 if instant == now else 1)
        if self._calls_at_instant[1] > MOST_CALLS:
            what = f"policy {name_of(self.policy)} requested a call at {now:g} s {MOST_CALLS:,} times"
            raise PolicyError(what, hint=f"{DEFECT}: it decides at the same instant for ever")
        return now

    def _start(self, decision: Start) -> None:
        state, jobs = self.state, self.jobs
        job, nodes, taken = decision.job, decision.nodes, decision.taken
        if not (jobs.low[job] <= nodes <= jobs.high[job] or nodes == jobs.nodes[job]) or job not in state.queue:
            self._check(job in state.queue, decision, "is not waiting")
            self._check(False, decision, f"runs on {jobs.low[job]} to {jobs.high[job]} nodes")
        if decision.on:
            self._check_chosen(decision, nodes)
            self._check(nodes <= state.idle and not taken, decision, "would start on promised nodes")
        self._leave_queue(job)
        end = state.now + jobs.limit[job] / jobs.rate(job, nodes)
        state.expected_end[job] = end
        state.releases.add(job, end, nodes)
        coming = {source: count for source, count in taken if self._promises.is_shrinking(source)} if taken else None
        if nodes <= state.idle and not coming:
            state.idle -= nodes
            self._launch(job, nodes, decision.on)
        else:
            self._promises.make(job, nodes, coming, exchange=decision.exchange)
            self._update_idle()
            self._check(state.idle >= 0, decision, f"lacks nodes: {nodes + state.idle} are idle or being released")
            self.serve()

    def _reserve(self, decision: Reserve) -> None:
        state, (job, at, on, until) = self.state, decision
        self._check(job in state.queue or (job in state.size and bool(on)), decision, "is not waiting")
        state.reservations.remove(job)
        if on:
            free = at < until < math.inf and state.reservations.free(at, until)[list(on)].all()
            self._check(bool(free), decision, "would hold nodes that another job holds, or for ever")
            state.reservations.add(job, Hold(at, until, on))
        if job in state.queue and at < math.inf:
            state.reserved[job] = at
        else:
            state.reserved.pop(job, None)

    def _share(self, decision: Share) -> None:
        violation = self._sharing.violation(decision) if self._shares else "would share nodes, but `shares` is not set"
        self._check(violation is None, decision, violation or "")
        self._leave_queue(decision.job)
        self._sharing.begin(decision)
        if self.jobs.low[decision.job] < self.jobs.high[decision.job]:
            self.state.resizable[decision.job] = None
        self._update_idle()
        self.executor.start(decision.job, self.cluster.nodes_of(decision.job))
        for owner in self.cluster.hosts(decision.job):
            self.executor.change_cores(owner)

    def _leave_queue(self, job: int) -> None:
        self.state.queue.remove(job)
        self.state.reserved.pop(job, None)

    def _launch(self, job: int, nodes: int, on: Sequence[int] = ()) -> None:
        now = self.state.now
        self.state.size[job] = nodes
        if self.jobs.low[job] < self.jobs.high[job]:
            self.state.resizable[job] = None
        if self.jobs.malleable[job] or self._shares:
            self._progress[job] = (0.0, now, self.jobs.rate(job, nodes))
        taken = self.cluster.take(job, nodes, now, on)
        if self._shares:
            self._sharing.started(job)
        self.executor.start(job, taken)

    def _resize(self, decision: Resize) -> None:
        state, jobs = self.state, self.jobs
        job, nodes, on = decision
        self._check(job in state.size and jobs.malleable[job], decision, "is not a running malleable job")
        self._check(job not in state.resizing, decision, "has a pending resize")
        self._check(not self.cluster.shares(job), decision, "shares nodes")
        self._check(jobs.low[job] <= nodes <= jobs.high[job], decision, "would have a size outside its bounds")
        self._resized_in_call = True
        state.requested.pop(job, None)
        before = state.size[job]
        added = nodes - before
        self._check(added != 0, decision, "already has that size")
        self._check(added <= state.idle, decision, f"lacks nodes: {state.idle} are idle")
        if on:
            self._check_chosen(decision, added)
        held = self.cluster.nodes_of(job)
        if added > 0:
            state.idle -= added
            held += self.cluster.take(job, added, state.now, on)
        else:
            self._promises.shrinking(job, -added)
        state.size[job] = nodes
        state.resizing.add(job)
        self._expect(job, state.expected_end[job])
        if self.executor.resize(job, before, held[:nodes]):
            self.resized(job, state.now)

    def _expect(self, job: int, end: float) -> None:
        """Set the expected end of a running job, s, and update its number of nodes in the releases."""
        state = self.state
        state.releases.remove(job, state.expected_end[job])
        state.releases.add(job, end, state.size[job])
        state.expected_end[job] = end

    def _extend_limits(self) -> None:
        """Expect every running job whose limit has passed to run for another full limit from now on.

        All reservations are deleted, because they assume that these jobs have ended.
        """
        state, passed = self.state, False
        for job in state.releases.due(state.now):
            if job not in state.size or state.expected_end[job] > state.now:
                continue  # promised and not started, or the host of a guest whose expected end moved
            passed = True
            done, since, rate = self._progress.get(job, (0.0, state.now, 1.0))
            limit = max(self.jobs.limit[job], SHORTEST_S)
            self._limit[job] = done + (state.now - since) * rate + limit
            if self._shares:
                self._sharing.expect([job])
            else:
                self._expect(job, state.now + limit / rate)
        if passed:
            state.reserved.clear()
            self._nodes_freed()  # with later expected ends, other jobs may be backfilled

    def serve(self) -> None:
        """Start every promised job for which enough nodes are idle, in the order of the promises.

        The executor must call this method after all events of an instant.
        """
        served = self._promises.serve(len(self.cluster.idle))
        for job, nodes in served:
            # The expected end counts from the start.
            end = self.state.now + self.jobs.limit[job] / self.jobs.rate(job, nodes)
            self.state.size[job] = nodes
            self._expect(job, end)
            self._launch(job, nodes)
        if served:
            self._update_idle()

    def _nodes_changed(self) -> None:
        """Re-plan after nodes were lost or returned. All reservations are deleted, because they assumed other nodes."""
        self.state.reserved.clear()
        self._nodes_freed()
        self._withdraw_promises()

    def _withdraw_promises(self) -> None:
        """Withdraw the promises that cannot be kept because nodes were lost, the last one first."""
        state = self.state
        while state.idle < 0 and (job := self._promises.last) is not None:
            self._promises.drop(job)
            state.releases.remove(job, state.expected_end.pop(job))
            self.state.wait(job)
            self._update_idle()

    def _nodes_freed(self) -> None:
        self.state.freed = True
        self.state.settled = False
        self._update_idle()

    def _update_idle(self) -> None:
        """Recompute the idle nodes that are not reserved by promises."""
        self.state.idle, self.state.returning = self._promises.left_over(len(self.cluster.idle))

    def _check_chosen(self, decision: Start | Resize, count: int) -> None:
        chosen = set(decision.on)
        self._check(len(chosen) == len(decision.on) == count, decision, f"would get {len(chosen)} nodes")
        self._check(chosen.issubset(self.cluster.idle), decision, "would get nodes that are not idle")

    def _check(self, good: bool, decision: Start | Resize | Share | Reject | Cancel | Reserve, what: str) -> None:
        if not good:
            where = f"policy {name_of(self.policy)} at t = {cell(self.state.now)} s"
            what = f"cannot {in_words(decision, self.jobs.ids)}: the job {what}"
            raise PolicyError(what, where=where, hint=DEFECT)
