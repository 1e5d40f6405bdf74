"""A replay in which a policy of tracebed decides, and the batch system executes.

Jobs wait in the queue of the batch system, held. The policy sees the state of the batch system. Its starts name the
nodes and release the job; its resizes change the nodes of the running job (`commanding.py`).
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tracebed.ground.display import listed
from tracebed.orchestrator.batch.base import LIVE, JobObservation, NodeState, Phase, ResizingSystem
from tracebed.orchestrator.batch.commanding import CHECK_S, CommandingReplayer
from tracebed.orchestrator.batch.loop import Polled
from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.records import JobRecords
from tracebed.orchestrator.batch.resizes import RETRY_S, StartCommand
from tracebed.orchestrator.batch.usable_nodes import UsableNodes, begin_outage, end_outages
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.scheduler import Executor, Scheduler
from tracebed.orchestrator.scheduling.state import Policy, visible_jobs
from tracebed.orchestrator.setup import Setup

OF_OTHERS = "held by jobs that are not of this replay"
"""Why the policy cannot use a node."""
MOST_SHOWN = 5
"""Number of lost nodes that a warning names."""
MOST_REFUSALS = 3
"""Refused resizes of a job after which the policy no longer resizes it."""


class DecidingReplayer(CommandingReplayer, Executor):
    """A replay on a batch system in which a policy decides. It is the executor of its scheduler.

    Attributes:
        scheduler: the scheduler.
    """

    def __init__(
        self,
        decided: tuple[Jobs, Policy, Setup],
        nodes: Sequence[NodeFacts],
        plan: SubmissionPlan,
        system: ResizingSystem,
        records: JobRecords,
        journal: Journal,
        **arguments: Any,
    ) -> None:
        """Prepare a replay.

        Args:
            decided: the jobs of the plan as the scheduler reads them, the policy, and the setup.
            nodes: the nodes of the batch system.
            plan: see `BatchReplayer`, like the other arguments.
            system: see `BatchReplayer`.
            records: see `BatchReplayer`.
            journal: see `BatchReplayer`.
            arguments: see `BatchReplayer`.
        """
        jobs, policy, setup = decided
        self._names = [node.name for node in nodes]
        super().__init__(visible_jobs(policy, jobs), self._names, plan, system, records, journal, **arguments)
        scheduling = setup.scheduling
        self._cluster = Cluster([node.cores for node in nodes], [node.sockets for node in nodes], scheduling.placed)
        self.scheduler = Scheduler(
            jobs, self._cluster, policy, self, interval_s=scheduling.interval_s, priority=scheduling.priority
        )
        self._due = math.inf  # time of the next call of the policy, trace s
        self._refusals: Counter[int] = Counter()
        self._nodes = UsableNodes(self._names)
        self._adopting = False

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Let a held job start."""
        if self._adopting:
            return
        self.scheduler.state.resizing.add(job)  # the policy resizes no job that the batch system has not started
        self._begin_start(job, tuple(self._names[node] for node in nodes))

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Begin a resize. It takes effect later."""
        held = self._cluster.nodes_of(job)[:before]
        self._begin_resize(job, *(tuple(self._names[node] for node in each) for each in (held, nodes)))
        return False

    def reject(self, job: int, reason: str) -> None:
        """Cancel a job that waits in the batch system, and record that it is rejected."""
        watched = self.jobs[job]
        watched.refuse(reason)
        self._note("ended", job, **watched.facts())
        self._unwanted[str(watched.id)] = self.clock.now()

    def cancel(self, job: int, reason: str) -> None:
        """Cancel a running job."""
        self.jobs[job].reason = reason
        self._unwanted[str(self.jobs[job].id)] = self.clock.now()

    # -- what the loop observes ------------------------------------------------------------------------------------

    def _node_states(self) -> dict[str, NodeState]:
        return self.system.node_states()

    def _has_lost_node(self, job: int) -> bool:
        return job in self.scheduler.state.failing

    def _observed(self, polled: Polled) -> None:
        super()._observed(polled)
        self._nodes.observe(self._unusable(polled))
        for number, watched in enumerate(self.jobs):
            if not watched.pending or watched.seen is None:
                continue
            if watched.seen.phase is Phase.RUNNING:
                self._adopt_running(number, watched.seen)
            elif watched.seen.phase is Phase.WAITING and number in self.scheduler.state.size:
                # A controller of the batch system that was killed may have forgotten the start.
                self._starts.setdefault(number, StartCommand((), failed_at=-math.inf, final=True))

    def _unusable(self, polled: Polled) -> dict[str, str]:
        """Return the nodes that the policy cannot use, with reasons. Other jobs than those of the replay hold some."""
        ours = {node for job in self.jobs if job.pending and job.seen is not None for node in job.seen.nodes}
        ours.update(node for each in polled.found.values() if each.phase in LIVE for node in each.nodes)
        ours.update(node for pending in self._pending.values() for node in pending.resize.added)
        lost = {name: state.word for name, state in polled.nodes.items() if not state.usable}
        return lost | {
            name: OF_OTHERS for name, state in polled.nodes.items() if state.usable and state.held and name not in ours
        }

    def _adopt_running(self, job: int, seen: JobObservation) -> None:
        """Adopt a running job that the scheduler has not started: of a killed replay, or started by an operator."""
        state = self.scheduler.state
        if job in state.size:
            return
        first = (self.jobs[job].first_nodes or seen.nodes)[0]
        names = (first, *(name for name in seen.nodes if name != first))
        if any(self._number_of.get(name) not in self._cluster.idle for name in names):
            return
        if job in self._arrived:
            self._arrived.remove(job)
        now = self._now()
        self.scheduler.withdraw(job, now)
        self._adopting = True
        self.scheduler.adopt(job, [self._number_of[name] for name in names], now)
        self._adopting = False
        if self.scheduler.jobs.malleable[job]:
            self._requests[job] += 1
            self._write_size(job, self._requests[job], names)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the trace time, which does not run backwards."""
        return max(self.trace(self.clock.now()), self.scheduler.state.now)

    def _decide(self) -> None:
        if self.interrupted is not None or self._returned:
            return
        for job in list(self._pending):
            self._advance(job)
        now = self._now()
        if self._apply_events(now):
            self.scheduler.serve()
            self._due = min(self._due, self.scheduler.due(now))
        while self._due <= now:
            self._deciding_since = self.clock.now()
            self._due = self.scheduler.decide(now)

    def _apply_events(self, now: float) -> bool:
        """Pass what has happened to the scheduler. Return whether anything has."""
        scheduler, state = self.scheduler, self.scheduler.state
        events = [self._left, self._started, self._concluded, self._withdrawn, self._arrived]
        left, started, concluded, withdrawn, arrived = (list(each) for each in events)
        for each in events:
            each.clear()
        changed = self._apply_nodes(now)
        for job in left:
            self._starts.pop(job, None)
            if job in state.size:
                scheduler.end(job, now)
            else:
                scheduler.withdraw(job, now)
        for job in started:
            if job not in state.failing:
                state.resizing.discard(job)
        for job in concluded:
            if job not in state.size:
                continue
            resize = self.jobs[job].resizes[-1]
            if resize.state == "applied":
                scheduler.resized(job, now)
                changed = True
                continue
            scheduler.refused(job, len(resize.before), now)
            self._refusals[job] += 1
            if self._refusals[job] >= MOST_REFUSALS:
                state.resizable.pop(job, None)
        for job in withdrawn:
            if job in state.size:
                scheduler.requeue(job, now)
        if concluded or withdrawn:  # not at once: the same decision would be refused again
            self._due = min(self._due, scheduler.due(now + RETRY_S * self.speed))
        for job in sorted(arrived):
            if not self.jobs[job].ended:
                scheduler.submit(job, now)
        return changed or any((left, started, arrived))

    def _apply_nodes(self, now: float) -> bool:
        """Pass lost and returned nodes to the scheduler. Return whether there are any."""
        lost, back = self._nodes.changes()
        for name, reason in lost.items():
            self._note("node_lost", None, node=name, reason=reason)
            begin_outage(self.outages, name, now, reason)
            self.scheduler.node_lost(self._number_of[name], now)
        for name in back:
            self._note("node_back", None, node=name)
            end_outages(self.outages, now, name)
            self.scheduler.node_back(self._number_of[name], now)
        for reason in sorted({*lost.values()}):
            names = [name for name in lost if lost[name] == reason]
            warnings.warn(f"jobs cannot use {listed(names, MOST_SHOWN)}: {reason}", stacklevel=2)
        return bool(lost or back)

    def _next_decision(self) -> float:
        if any(not pending.calling for pending in self._pending.values()):
            return self.clock.now() + CHECK_S
        return self.origin + (self._due - self.plan.submit[0]) / self.speed

    def _cancel_stuck(self) -> None:
        """Cancel the jobs that the policy will never start. Lost nodes may return."""
        active = self._starts or self.scheduler.state.size or self._commands.running()
        if self.interrupted is not None or self._due < math.inf or self._nodes.lost or active:
            self._stuck_polls = 0
            return
        super()._cancel_stuck()
