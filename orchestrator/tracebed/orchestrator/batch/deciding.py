"""A replay in which a policy of tracebed decides, and the batch system executes.

Jobs wait in the queue of the batch system, held. The policy sees the state of the batch system. Its starts name the
nodes and release the job; its resizes change the nodes of the running job. A malleable job adapts to its nodes
(`job.sh`): it works on added nodes once it has them, and leaves nodes before the batch system takes them. Each command
runs in the background. A command that failed is settled by the next observation, because its answer may be lost.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tracebed import world
from tracebed.errors import TestbedError
from tracebed.orchestrator.batch.background import Command, Commands
from tracebed.orchestrator.batch.base import LIVE, JobObservation, JobRequest, Phase, ResizingSystem
from tracebed.orchestrator.batch.loop import BatchReplayer, Polled
from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.records import AppliedSize, JobRecords
from tracebed.orchestrator.batch.resizes import SECOND, BatchResize, ResizeCommand, StartCommand, second_name
from tracebed.orchestrator.batch.usable_nodes import UsableNodes
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.runs.nodes import NodeFacts
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.executor import Executor
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.setup import Setup

POLL_S = 0.25
"""Time between the starts of two observations, wall s."""
GRAIN_S = 0.25
"""Time between two malleability points of a job, wall s."""
CHECK_S = 0.05
"""Time between two looks for the record of a job that is resizing, wall s."""
MARGIN_S = 60.0
"""Time that the batch system grants to jobs beyond their limit, for the launches of a malleable job, wall s."""
MOST_REFUSALS = 3
"""Refused resizes of a job after which the policy no longer resizes it."""


class DecidingReplayer(BatchReplayer, Executor):
    """A replay on a batch system in which a policy decides. It is the executor of its scheduler.

    Attributes:
        scheduler: the scheduler.
    """

    system: ResizingSystem

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
        super().__init__(plan, system, records, journal, **arguments)
        jobs, policy, setup = decided
        scheduling = setup.scheduling
        self._names = [node.name for node in nodes]
        self._number_of = {name: number for number, name in enumerate(self._names)}
        self._cluster = Cluster([node.cores for node in nodes], [node.sockets for node in nodes], scheduling.placed)
        self.scheduler = Scheduler(
            jobs, self._cluster, policy, self, interval_s=scheduling.interval_s, priority=scheduling.priority
        )
        self._due = math.inf  # time of the next call of the policy, trace s
        self._arrived: list[int] = []
        self._left: list[int] = []  # jobs that have ended
        self._withdrawn: list[int] = []  # started jobs that are held again
        self._concluded: list[int] = []  # jobs with a resize that was applied or refused
        self._starts: dict[int, StartCommand] = {}  # job that the batch system has not started yet -> its start
        self._pending: dict[int, ResizeCommand] = {}  # job -> its resize
        self._settled: dict[int, float] = {}  # job -> time of the last change of its nodes
        self._requests: Counter[int] = Counter()  # job -> number of the last request
        self._refusals: Counter[int] = Counter()
        self._nodes = UsableNodes(self._names)
        self._adopting = False
        self._returned = False  # whether jobs of a killed replayer have not been observed yet
        self._commands = Commands(self._mailbox, self.clock.now, self._failed)

    def resume(self, submitted: int, submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after a killed replayer. Its jobs are adopted at the first observation."""
        super().resume(submitted, submitting, in_flight_s)
        self._returned = True
        self._arrived += [job for job, watched in enumerate(self.jobs) if watched.pending]

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Let a held job start."""
        if self._adopting:
            return
        names = tuple(self._names[node] for node in nodes)
        self._note("start", job, nodes=names)
        self._starts[job] = StartCommand(names)
        self._call_start(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Begin a resize. It takes effect later."""
        held = [self._names[node] for node in self._cluster.nodes_of(job)]
        self._requests[job] += 1
        after = tuple(self._names[node] for node in nodes)
        rates = (self.scheduler.jobs.rate(job, before), self.scheduler.jobs.rate(job, len(nodes)))
        resize = BatchResize(self._requests[job], tuple(held[:before]), after, rates, self.clock.now())
        self.jobs[job].resizes.append(resize)
        self._pending[job] = ResizeCommand(resize)
        self._note("resize", job, request=resize.request, before=resize.before, after=after)
        self._advance(job)
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

    # -- commands --------------------------------------------------------------------------------------------------

    def _failed(self, job: int, command: Command, reason: str) -> None:
        """Record that a command failed."""
        if isinstance(command, ResizeCommand):
            command.resize.reason = reason
        self._note("not_done", job, reason=reason)

    def _call_start(self, job: int) -> None:
        start, id, jobs = self._starts[job], str(self.jobs[job].id), self.scheduler.jobs

        def call() -> None:
            if jobs.malleable[job]:
                self._write_size(job, self._requests[job], start.nodes)
            self.system.start(id, start.nodes)

        self._requests[job] += 1
        if jobs.malleable[job]:
            self.jobs[job].rate = jobs.rate(job, len(start.nodes))
        self._commands.run(job, start, call, self._look_soon)

    def _write_size(self, job: int, request: int, nodes: Sequence[str]) -> None:
        self.records.write_size(self.name(job), request, self.scheduler.jobs.rate(job, len(nodes)), nodes)

    def _look_soon(self) -> None:
        """Observe the jobs at once, because the batch system has changed one."""
        self._next_poll = min(self._next_poll, self.clock.now() + CHECK_S)

    def _advance(self, job: int) -> None:
        """Take the next step of the resize of a job, unless it waits for a command or for the job."""
        pending, watched = self._pending[job], self.jobs[job]
        resize, merged = pending.resize, partial(self._merged, job, pending)
        if pending.calling or pending.failed_at is not None or watched.ended or job in self._starts:
            return
        applied = self.records.applied(self.name(job), str(watched.id))
        if applied is None:
            return  # the job has not begun to work
        if resize.expands and resize.merged is None:
            self._commands.run(job, pending, partial(self._expand, job, pending), merged)
        elif not pending.told:
            self._write_size(job, resize.request, resize.after)
            pending.told = True
        elif applied.request == resize.request:
            self._note_applied(resize, applied)
            if resize.merged is not None:
                self._conclude(job, "applied")
            else:
                self._commands.run(job, pending, partial(self._shrink, job, pending), merged)

    def _note_applied(self, resize: BatchResize, applied: AppliedSize) -> None:
        now = self.clock.now()
        resize.seen, resize.applied = self.clock.at(applied.seen, now), self.clock.at(applied.applied, now)

    def _expand(self, job: int, pending: ResizeCommand) -> None:
        """Take the additional nodes by a second job, and give them to the job. Called in the background."""
        resize, id = pending.resize, str(self.jobs[job].id)
        if pending.second is None:
            resize.called = self.clock.now()
            pending.second = self.system.request(id, second_name(self.name(job), resize.request), resize.added)
            resize.granted = self.clock.now()
        self.system.merge(pending.second)
        resize.merged = self.clock.now()

    def _shrink(self, job: int, pending: ResizeCommand) -> None:
        """Release the nodes that the job has left. Called in the background."""
        resize = pending.resize
        resize.called = resize.called or self.clock.now()
        self.system.shrink(str(self.jobs[job].id), resize.after)
        resize.merged = self.clock.now()

    def _merged(self, job: int, pending: ResizeCommand) -> None:
        """Record that the batch system has changed the nodes of a job."""
        resize, watched = pending.resize, self.jobs[job]
        if self._pending.get(job) is not pending or watched.ended:
            return
        assert resize.merged is not None
        self._settled[job] = self.clock.now()
        watched.resized(tuple(sorted(resize.after, key=self._number_of.__getitem__)), resize.merged)
        self._note("observed", job, **watched.facts())
        self._advance(job)

    def _conclude(self, job: int, state: str) -> None:
        """Record that a resize was applied or refused."""
        self._pending.pop(job).resize.state = state
        self._concluded.append(job)
        self._note("observed", job, **self.jobs[job].facts())

    # -- what the loop observes ------------------------------------------------------------------------------------

    def _request(self, job: int) -> JobRequest:
        jobs, run_s = self.scheduler.jobs, self.plan.run_time[job] / self.speed
        malleable = jobs.malleable[job]
        rates = [jobs.rate(job, nodes) for nodes in range(jobs.low[job], jobs.high[job] + 1)] if malleable else [1.0]
        limit_s = jobs.limit[job] / min(rates) / self.speed + MARGIN_S
        grain_s = GRAIN_S if malleable else None
        return self.records.request(self.name(job), self.plan.nodes[job], run_s, limit_s, held=True, grain_s=grain_s)

    def _unusable(self) -> frozenset[str]:
        return self.system.unusable()

    def _submitted(self, job: int) -> None:
        self._arrived.append(job)

    def _changed(self, job: int) -> None:
        watched = self.jobs[job]
        if not watched.ended:
            return
        self._left.append(job)
        if (pending := self._pending.pop(job, None)) is None:
            return
        resize, applied = pending.resize, self.records.applied(self.name(job), str(watched.id))
        if applied is not None and applied.request == resize.request:  # the job has ended before it was read
            self._note_applied(resize, applied)
            resize.state = "applied" if resize.merged is not None else ""
            self._note("ended", job, **watched.facts())

    def _corrected(self, job: int, found: JobObservation | None, polled: Polled) -> JobObservation | None:
        """Return the observation with the nodes of the job after its last resize: an observation may be older."""
        seen, old = self.jobs[job].seen, polled.began <= self._settled.get(job, -math.inf)
        if found is None or seen is None or not (seen.nodes and found.nodes) or not (old or job in self._pending):
            return found
        return replace(found, nodes=seen.nodes)

    def _observed(self, polled: Polled) -> None:
        if self._returned:
            self._hold_released()
        for job in list(self._starts):
            self._settle_start(job, polled)
        for job in list(self._pending):
            self._settle_resize(job, polled)
        for number, watched in enumerate(self.jobs):
            if watched.pending and watched.seen is not None and watched.seen.phase is Phase.RUNNING:
                self._adopt_running(number, watched.seen)
        self._cancel_orphans(polled)
        self._nodes.observe(polled.unusable)

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
        elif start.calling or phase is not Phase.WAITING:
            return
        elif (start.final and start.failed_at is not None) or job in self.scheduler.state.failing:
            self._commands.run(job, start, partial(self.system.hold, str(watched.id)), partial(self._withdraw, job))
        elif start.failed_at is not None and polled.began > start.failed_at:
            self._call_start(job)

    def _withdraw(self, job: int) -> None:
        """Return a job that the batch system could not start to the queue of the policy."""
        del self._starts[job]
        self._withdrawn.append(job)
        self._note("withdrawn", job)

    def _settle_resize(self, job: int, polled: Polled) -> None:
        """Find out what a resize has become whose command failed, and continue, repeat or refuse it."""
        pending, found = self._pending[job], polled.found.get(str(self.jobs[job].id))
        if pending.failed_at is None or polled.began <= pending.failed_at:
            return
        if found is None or found.phase is not Phase.RUNNING:
            return
        name = second_name(self.name(job), pending.resize.request)
        seconds = [each for each in polled.found.values() if each.name == name and each.phase in LIVE]
        outcome = pending.settle(found.nodes, seconds, polled.began)
        if outcome == "merged":
            self._merged(job, pending)
        elif outcome == "withdraw":
            self._unwanted |= {each.id: polled.began for each in seconds}
        elif outcome == "refused":
            self._conclude(job, "refused")

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

    def _cancel_orphans(self, polled: Polled) -> None:
        """Cancel the second jobs of no pending resize."""
        for each in polled.found.values():
            if each.phase is Phase.ENDED or (match := SECOND.fullmatch(each.name)) is None:
                continue
            pending = self._pending.get(self._numbers.get(match["name"], -1))
            wanted = pending is not None and pending.resize.request == int(match["request"])
            if not wanted or self.interrupted is not None:
                self._unwanted.setdefault(each.id, polled.began)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the trace time, which does not run backwards."""
        return max(self.trace(self.clock.now()), self.scheduler.state.now)

    def _decide(self) -> None:
        if self.interrupted is not None or (self._returned):
            return
        for job in list(self._pending):
            self._advance(job)
        now = self._now()
        if self._apply_events(now):
            self.scheduler.serve()
            self._due = min(self._due, self.scheduler.due(now))
        while self._due <= now:
            self._due = self.scheduler.decide(now)

    def _apply_events(self, now: float) -> bool:
        """Pass what has happened to the scheduler. Return whether anything has."""
        scheduler, state = self.scheduler, self.scheduler.state
        events = [self._left, self._concluded, self._withdrawn, self._arrived]
        left, concluded, withdrawn, arrived = (list(each) for each in events)
        for each in events:
            each.clear()
        changed = self._apply_nodes(now)
        for job in left:
            self._starts.pop(job, None)
            if job in state.size:
                scheduler.end(job, now)
            else:
                scheduler.withdraw(job, now)
        for job in concluded:
            if job not in state.size:
                continue
            resize = self.jobs[job].resizes[-1]
            if resize.state == "applied":
                scheduler.resized(job, now)
                continue
            scheduler.refused(job, len(resize.before), now)
            self._refusals[job] += 1
            if self._refusals[job] >= MOST_REFUSALS:
                state.resizable.pop(job, None)
        for job in withdrawn:
            if job in state.size:
                scheduler.requeue(job, now)
        for job in sorted(arrived):
            if not self.jobs[job].ended:
                scheduler.submit(job, now)
        return changed or any((left, concluded, arrived))

    def _apply_nodes(self, now: float) -> bool:
        """Pass lost and returned nodes to the scheduler. Return whether there are any."""
        lost, back = self._nodes.changes()
        for name in lost:
            self._note("node_lost", None, node=name)
            self.scheduler.node_lost(self._number_of[name], now)
        for name in back:
            self._note("node_back", None, node=name)
            self.scheduler.node_back(self._number_of[name], now)
        return bool(lost or back)

    def _next_decision(self) -> float:
        if any(not pending.calling for pending in self._pending.values()):
            return self.clock.now() + CHECK_S
        return self.origin + (self._due - self.plan.submit[0]) / self.speed

    def _poll_s(self) -> float:
        return POLL_S

    def _running_commands(self) -> list[world.Background]:
        return self._commands.running()

    def _cancel_stuck(self) -> None:
        """Cancel the jobs that the policy will never start. Lost nodes may return."""
        if (
            self._due < math.inf
            or self._nodes.lost
            or self._starts
            or self.scheduler.state.size
            or self._commands.running()
        ):
            self._stuck_polls = 0
            return
        super()._cancel_stuck()

    def _is_done(self) -> bool:
        return super()._is_done() and not self._commands.running()
