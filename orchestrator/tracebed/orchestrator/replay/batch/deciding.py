"""A replay in which a policy of tracebed decides, and the batch system executes.

Jobs wait in the queue of the batch system, held. The policy sees the state of the batch system. Its starts name the
nodes and release the job; its resizes change the nodes of the running job.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from tracebed.ground.display import listed
from tracebed.ground.errors import TestbedError
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.pools import Pools
from tracebed.orchestrator.replay.batch.base import (
    LIVE,
    Demands,
    JobObservation,
    JobRequest,
    NodeState,
    Phase,
    ResizingSystem,
)
from tracebed.orchestrator.replay.batch.loop import Polled, begin_outage, end_outages
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.resizes import RETRY_S, ResizeCommand, StartCommand, second_name
from tracebed.orchestrator.replay.batch.resizing import ResizingReplayer
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.pools import scheduler_on
from tracebed.orchestrator.scheduling.scheduler import Executor
from tracebed.orchestrator.scheduling.state import Policy, visible_jobs
from tracebed.orchestrator.setup import Setup

# Time that the batch system grants to jobs beyond their limit, for the launches of a malleable job, wall s.
MARGIN_S = 60.0
OF_OTHERS = "held by jobs that are not of this replay"  # why the policy cannot use a node
MOST_SHOWN = 5  # number of lost nodes that a warning names
MOST_REFUSALS = 3  # refused resizes of a job after which the policy no longer resizes it
LOST_POLLS = 2  # successive observations of an unusable node after which a policy no longer uses it


class Decided(NamedTuple):
    """What a policy decides about."""

    jobs: Jobs
    """The jobs as the scheduler reads them."""
    policy: Policy
    setup: Setup
    pools: Pools | None = None
    """The pools of the nodes; None: all nodes serve all jobs."""
    demands: Demands | None = None
    """What the jobs demand of the batch system; None: whole nodes of one partition."""


class DecidingReplayer(ResizingReplayer, Executor):
    """A replay on a batch system in which a policy decides. It is the executor of its scheduler."""

    system: ResizingSystem

    def __init__(
        self,
        decided: Decided,
        nodes: Sequence[NodeFacts],
        plan: SubmissionPlan,
        batch_system: ResizingSystem,
        records: JobRecords,
        journal: Journal,
        **arguments: Any,
    ) -> None:
        """Prepare a replay on `nodes`, which the pools number in this order."""
        jobs, policy, setup, pools, demands = decided
        super().__init__(visible_jobs(policy, jobs), plan, batch_system, records, journal, **arguments)
        self._names = [node.name for node in nodes]
        self._number_of = {name: number for number, name in enumerate(self._names)}
        scheduling = setup.scheduling
        self._cluster = Cluster([node.cores for node in nodes], [node.sockets for node in nodes], scheduling.placed)
        self._longest_s = demands.longest_s if demands is not None else None
        self._shrink_only = demands.shrink_only if demands is not None else frozenset()
        if self._shrink_only:  # their bounds change when they start
            speedups, jobs = jobs.speedups, jobs.with_columns(high=[*jobs.high], pref=[*jobs.pref])
            jobs.speedups = speedups
        settings = {"interval_s": scheduling.interval_s, "priority": scheduling.priority}
        self.scheduler = scheduler_on(pools, jobs, self._cluster, policy, self, **settings)
        self._latest = 0.0  # trace time of the last events
        self._due = math.inf  # time of the next call of the policy, trace s
        self._arrived: list[int] = []
        self._eligible: list[int] = []  # jobs that wait no more for other jobs
        self._left: list[int] = []  # jobs that have ended
        self._started: list[int] = []  # jobs that the batch system has started
        self._withdrawn: list[int] = []  # started jobs that are held again
        self._concluded: list[int] = []  # jobs with a resize that was applied or refused
        self._starts: dict[int, StartCommand] = {}  # job that the batch system has not started yet -> its start
        self._deciding_since = 0.0  # beginning of the last call of the policy
        self._refusals: Counter[int] = Counter()
        self._adopting = False
        self._unusable_polls: dict[str, tuple[int, str]] = {}  # node -> successive observations, and the last reason
        self._lost: set[str] = set()  # nodes that the policy cannot use

    def resume(self, submitted: Collection[int], submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after a killed replayer. Its jobs are adopted at the first observation."""
        super().resume(submitted, submitting, in_flight_s)
        self._arrived += [job for job, watched in enumerate(self.jobs) if watched.pending]

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Let a held job start."""
        if self._adopting:
            return
        # The policy resizes no job that the batch system has not started.
        self.scheduler.state_of(job).resizing.add(job)
        names = tuple(self._names[node] for node in nodes)
        self._note("start", job, nodes=names)
        self._starts[job] = StartCommand(names)
        self._call_start(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Begin a resize. It takes effect later."""
        held, after = self._cluster.nodes_of(job)[:before], tuple(self._names[node] for node in nodes)
        now = self.clock.now()
        self._begin_resize(job, tuple(self._names[node] for node in held), after, now, now - self._deciding_since)
        self._advance(job)
        return False

    def reject(self, job: int, reason: str) -> None:
        """Cancel a job that waits in the batch system, and record that it is rejected."""
        watched = self.jobs[job]
        watched.refuse(reason)
        self._note("ended", job, **watched.facts())
        self._unwanted[str(watched.id)] = self.clock.now()
        self._follow(job)

    def cancel(self, job: int, reason: str) -> None:
        """Cancel a running job."""
        self.jobs[job].reason = reason
        self._unwanted[str(self.jobs[job].id)] = self.clock.now()

    # -- commands --------------------------------------------------------------------------------------------------

    def _call_start(self, job: int) -> None:
        start, id, jobs = self._starts[job], str(self.jobs[job].id), self.resized

        def call() -> None:
            if jobs.malleable[job]:
                self._write_size(job, self._requests[job], start.nodes)
            self.system.start(id, start.nodes)

        self._requests[job] += 1
        if jobs.malleable[job]:
            self.jobs[job].rate = jobs.rate(job, len(start.nodes))
        self._run_command(job, start, call, self._look_soon)

    def _take_nodes(self, job: int, pending: ResizeCommand) -> None:
        """Let a second job take the nodes that the policy chose. Called in the background."""
        resize, id = pending.resize, str(self.jobs[job].id)
        resize.called = self.clock.now()
        pending.second = self.system.request(id, second_name(self.name(job), resize.request), resize.added)
        resize.granted = self.clock.now()

    def _sorted(self, nodes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(nodes, key=self._number_of.__getitem__))

    def _concluded_resize(self, job: int) -> None:
        self._concluded.append(job)

    # -- what the loop observes ------------------------------------------------------------------------------------

    def _request(self, job: int) -> JobRequest:
        return replace(super()._request(job), held=True, dependency="")

    def _limit_s(self, job: int) -> float:
        """Return the time limit of a job at its smallest size: the user cannot extend the limit of a running job.

        It is at most the longest one that the batch system allows the job.
        """
        jobs = self.resized
        sizes = range(jobs.low[job], jobs.high[job] + 1) if jobs.malleable[job] else ()
        own = jobs.limit[job] / min((jobs.rate(job, nodes) for nodes in sizes), default=1.0) / self.speed + MARGIN_S
        return own if self._longest_s is None else min(own, self._longest_s[job])

    def _is_held_by_policy(self, job: int) -> bool:
        return True

    def _released(self, job: int, never: str) -> None:
        if not never:
            self._eligible.append(job)
            return
        self._give_up(job, never)
        if (id := self.jobs[job].id) is not None:
            self._unwanted[id] = self.clock.now()
            self._left.append(job)

    def _submitted(self, job: int) -> None:
        if self.jobs[job].ended:  # while the submission was in progress
            self._unwanted[str(self.jobs[job].id)] = self.clock.now()
        else:
            self._arrived.append(job)

    def _changed(self, job: int) -> None:
        if self.jobs[job].ended:
            self._left.append(job)
        super()._changed(job)

    def _corrected(self, job: int, observed: JobObservation | None, polled: Polled) -> JobObservation | None:
        """Return the observation without cores: a job of a policy holds whole nodes."""
        observed = super()._corrected(job, observed, polled)
        return replace(observed, cores={}) if observed is not None and observed.cores else observed

    def _node_states(self) -> dict[str, NodeState]:
        return self.system.node_states()

    def _observed(self, polled: Polled) -> None:
        if self._returned:
            self._hold_released()
        for job in list(self._starts):
            self._settle_start(job, polled)
        for job in list(self._pending):
            self._settle_resize(job, polled)
        self._cancel_orphans(polled)
        unusable = {name: reason for name, reason in self._unusable(polled).items() if name in self._number_of}
        polls = self._unusable_polls
        self._unusable_polls = {name: (polls.get(name, (0, ""))[0] + 1, reason) for name, reason in unusable.items()}
        started = {*self.scheduler.running}
        for number, watched in enumerate(self.jobs):
            if not watched.pending or watched.seen is None:
                continue
            if watched.seen.phase is Phase.RUNNING and number not in started:
                self._adopt_running(number, watched.seen)
            elif watched.seen.phase is Phase.WAITING and number in started:
                # A controller of the batch system that was killed may have forgotten the start.
                self._starts.setdefault(number, StartCommand((), failed_at=-math.inf, final=True))

    def _hold_released(self) -> None:
        """Hold the jobs that a killed replayer has released and that have not started: the policy decides again."""
        self._returned = False
        for job in list(self._arrived):
            watched = self.jobs[job]
            self._requests[job] = self.records.requested(self.name(job))
            if watched.seen is not None and watched.seen.phase is Phase.WAITING and not watched.seen.hopeless:
                with contextlib.suppress(TestbedError):  # or it starts, and is adopted
                    self.system.hold(str(watched.id))

    def _settle_start(self, job: int, polled: Polled) -> None:
        """Repeat or withdraw a start that failed, or whose node is lost."""
        start, watched = self._starts[job], self.jobs[job]
        phase = watched.seen.phase if watched.seen is not None else Phase.WAITING
        if watched.ended or phase in LIVE - {Phase.WAITING}:
            del self._starts[job]
            self._started.append(job)
            return
        pause_s = RETRY_S if start.final else 0.0
        if start.calling or phase is not Phase.WAITING or polled.began <= (start.failed_at or -math.inf) + pause_s:
            return
        if start.final or job in self.scheduler.state_of(job).failing:
            self._run_command(job, start, partial(self.system.hold, str(watched.id)), partial(self._withdraw, job))
        elif start.failed_at is not None:
            self._call_start(job)

    def _withdraw(self, job: int) -> None:
        """Return a job that the batch system could not start to the queue of the policy."""
        del self._starts[job]
        self._pending.pop(job, None)
        self._withdrawn.append(job)
        self.jobs[job].withdraw()
        self._note("withdrawn", job)

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
        first = (self.jobs[job].first_nodes or seen.nodes)[0]
        names = (first, *(name for name in seen.nodes if name != first))
        nodes = [self._number_of[name] for name in names if name in self._number_of]
        if len(nodes) < len(names) or not self.scheduler.is_free(job, nodes):
            return
        if job in self._arrived:
            self._arrived.remove(job)
        now = self._now()
        self.scheduler.withdraw(job, now)
        self._adopting = True
        self.scheduler.adopt(job, nodes, now)
        self._adopting = False
        self._bound(job)
        if self.scheduler.jobs.malleable[job]:
            self._requests[job] += 1
            self._write_size(job, self._requests[job], names)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the trace time, which does not run backwards."""
        self._latest = max(self.trace(self.clock.now()), self._latest)
        return self._latest

    def _bound(self, job: int) -> None:
        """Let the policy never expand a running job that the batch system cannot expand: its size is the largest."""
        if job not in self._shrink_only:
            return
        state = self.scheduler.state_of(job)
        jobs, size = state.jobs, state.size[job]
        jobs.high[job], jobs.pref[job] = size, min(size, jobs.pref[job])
        if size <= jobs.low[job]:
            state.resizable.pop(job, None)

    def _unbind(self, job: int) -> None:
        """Let a job that returns to the queue have its own sizes again."""
        if job in self._shrink_only:
            jobs = self.scheduler.state_of(job).jobs
            jobs.high[job], jobs.pref[job] = self.resized.high[job], self.resized.pref[job]

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
        scheduler = self.scheduler
        events = [self._left, self._started, self._concluded, self._withdrawn, self._arrived]
        left, started, concluded, withdrawn, arrived = (list(each) for each in events)
        for each in events:
            each.clear()
        changed = self._apply_nodes(now)
        running = {*scheduler.running} if left else ()
        for job in left:
            self._starts.pop(job, None)
            if job in running:
                scheduler.end(job, now)
            else:
                scheduler.withdraw(job, now)
        for job in started:
            state = scheduler.state_of(job)
            if job not in state.failing:
                state.resizing.discard(job)
            if job in state.size:
                self._bound(job)
        for job in concluded:
            state = scheduler.state_of(job)
            if job not in state.size:
                continue
            resize = self.jobs[job].resizes[-1]
            if resize.state == "applied":
                scheduler.resized(job, now)
                self._bound(job)
                changed = True
                continue
            scheduler.refused(job, len(resize.before), now)
            self._refusals[job] += 1
            if self._refusals[job] >= MOST_REFUSALS:
                state.resizable.pop(job, None)
        for job in withdrawn:
            if job in scheduler.state_of(job).size:
                self._unbind(job)
                scheduler.requeue(job, now)
        if concluded or withdrawn:  # not at once: the same decision would be refused again
            self._due = min(self._due, scheduler.due(now + RETRY_S * self.speed))
        for job in sorted(arrived):
            if not self.jobs[job].ended:
                (scheduler.hold if self.arrivals.holds(job) else scheduler.submit)(job, now)
        eligible, self._eligible = [job for job in self._eligible if scheduler.is_held(job)], []
        for job in sorted(eligible):
            if not self.jobs[job].ended:
                scheduler.submit(job, now)
        return changed or any((left, started, arrived, eligible))

    def _apply_nodes(self, now: float) -> bool:
        """Pass lost and returned nodes to the scheduler. Return whether there are any."""
        unusable = {
            name: reason for name, (polls, reason) in sorted(self._unusable_polls.items()) if polls >= LOST_POLLS
        }
        lost = {name: reason for name, reason in unusable.items() if name not in self._lost}
        back = sorted(name for name in self._lost if name not in self._unusable_polls)
        self._lost = (self._lost | unusable.keys()) - {*back}
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
        return min(super()._next_decision(), self.origin + (self._due - self.plan.submit[0]) / self.speed)

    def _cancel_stuck(self) -> None:
        """Cancel the jobs that the policy will never start. Lost nodes may return."""
        active = self._starts or self.scheduler.running or self._running_commands()
        if self.interrupted is not None or self._due < math.inf or self._lost or active:
            self._stuck_polls = 0
            return
        super()._cancel_stuck()
