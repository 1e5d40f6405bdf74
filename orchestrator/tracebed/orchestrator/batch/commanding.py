"""The commands by which a batch system carries out the decisions of a policy: starts, shrinks and expansions.

A malleable job adapts to its nodes (`job.sh`): it works on added nodes once it has them, and leaves nodes before the
batch system takes them. Each command runs in the background. A command that failed is settled by the next observation,
because its answer may be lost.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tracebed.ground import system as world
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.batch import loop
from tracebed.orchestrator.batch.background import Command, Commands
from tracebed.orchestrator.batch.base import LIVE, JobObservation, JobRequest, Phase, ResizingSystem
from tracebed.orchestrator.batch.loop import BatchReplayer, Polled
from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.records import AppliedSize, JobRecords
from tracebed.orchestrator.batch.resizes import RETRY_S, SECOND, BatchResize, ResizeCommand, StartCommand, second_name
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.scheduling.jobs import Jobs

POLL_S = 0.25
"""Time between the starts of two observations, wall s."""
GRAIN_S = 0.25
"""Time between two malleability points of a job, wall s."""
CHECK_S = 0.05
"""Time between two looks for the record of a job that is resizing, wall s."""
MARGIN_S = 60.0
"""Time that the batch system grants to jobs beyond their limit, for the launches of a malleable job, wall s."""


class CommandingReplayer(BatchReplayer):
    """A replay on a batch system that starts and resizes jobs on command.

    Attributes:
        of_policy: the jobs as the policy sees them.
        program: the command that malleable jobs run (see `JobRecords.request`).
    """

    system: ResizingSystem
    program: str | None = None

    def __init__(
        self,
        jobs: Jobs,
        names: Sequence[str],
        plan: SubmissionPlan,
        system: ResizingSystem,
        records: JobRecords,
        journal: Journal,
        **arguments: Any,
    ) -> None:
        """Prepare a replay.

        Args:
            jobs: the jobs of the plan as the policy sees them.
            names: the names of the nodes.
            plan: see `BatchReplayer`, like the other arguments.
            system: see `BatchReplayer`.
            records: see `BatchReplayer`.
            journal: see `BatchReplayer`.
            arguments: see `BatchReplayer`.
        """
        super().__init__(plan, system, records, journal, **arguments)
        self.of_policy = jobs
        self._number_of = {name: number for number, name in enumerate(names)}
        self._arrived: list[int] = []
        self._left: list[int] = []  # jobs that have ended
        self._started: list[int] = []  # jobs that the batch system has started
        self._withdrawn: list[int] = []  # started jobs that are held again
        self._concluded: list[int] = []  # jobs with a resize that was applied or refused
        self._starts: dict[int, StartCommand] = {}  # job that the batch system has not started yet -> its start
        self._pending: dict[int, ResizeCommand] = {}  # job -> its resize
        self._settled: dict[int, float] = {}  # job -> time of the last change of its nodes
        self._requests: Counter[int] = Counter()  # job -> number of the last request
        self._deciding_since = 0.0  # beginning of the last call of the policy
        self._returned = False  # whether jobs of a killed replayer have not been observed yet
        self._commands = Commands(self._mailbox, self.clock.now, self._failed)

    def resume(self, submitted: int, submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after a killed replayer. Its jobs are adopted at the first observation."""
        super().resume(submitted, submitting, in_flight_s)
        self._returned = True
        self._arrived += [job for job, watched in enumerate(self.jobs) if watched.pending]

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until all jobs have ended. Raises TestbedError as `BatchReplayer.run`."""
        for watched in self.jobs:
            watched.patience = round(loop.POLL_S / POLL_S)
        super().run(on_progress)

    def _has_lost_node(self, job: int) -> bool:
        """Return whether a node of a started job is lost."""
        return False

    # -- commands --------------------------------------------------------------------------------------------------

    def _begin_start(self, job: int, nodes: tuple[str, ...]) -> None:
        """Let a held job start."""
        self._note("start", job, nodes=nodes)
        self._starts[job] = StartCommand(nodes)
        self._call_start(job)

    def _begin_resize(self, job: int, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """Begin a resize of a running job."""
        self._requests[job] += 1
        rates = (self.of_policy.rate(job, len(before)), self.of_policy.rate(job, len(after)))
        now = self.clock.now()
        resize = BatchResize(self._requests[job], before, after, rates, now, now - self._deciding_since)
        self.jobs[job].resizes.append(resize)
        self._pending[job] = ResizeCommand(resize)
        self._note("resize", job, request=resize.request, before=before, after=after)
        self._advance(job)

    def _failed(self, job: int, command: Command, reason: str) -> None:
        """Record that a command failed."""
        if isinstance(command, ResizeCommand):
            command.resize.reason = reason
        self._note("not_done", job, reason=reason)

    def _call_start(self, job: int) -> None:
        start, id, jobs = self._starts[job], str(self.jobs[job].id), self.of_policy

        def call() -> None:
            if jobs.malleable[job]:
                self._write_size(job, self._requests[job], start.nodes)
            self.system.start(id, start.nodes)

        self._requests[job] += 1
        if jobs.malleable[job]:
            self.jobs[job].rate = jobs.rate(job, len(start.nodes))
        self._commands.run(job, start, call, self._look_soon)

    def _write_size(self, job: int, request: int, nodes: Sequence[str]) -> None:
        self.records.write_size(self.name(job), request, self.of_policy.rate(job, len(nodes)), nodes)

    def _look_soon(self) -> None:
        """Observe the jobs at once, because the batch system has changed one."""
        self._next_poll = min(self._next_poll, self.clock.now() + CHECK_S)

    def _advance(self, job: int) -> None:
        """Take the next step of the resize of a job, unless it waits for a command or for the job."""
        pending, watched = self._pending[job], self.jobs[job]
        resize, merged = pending.resize, partial(self._merged, job, pending)
        if pending.calling or pending.failed_at is not None or watched.ended:
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
        with self.records.kept_running(self.name(job), id):
            if pending.second is None:
                resize.called = self.clock.now()
                pending.second = self.system.request(id, second_name(self.name(job), resize.request), resize.added)
                resize.granted = self.clock.now()
            self.system.merge(pending.second)
            resize.merged = self.clock.now()

    def _shrink(self, job: int, pending: ResizeCommand) -> None:
        """Release the nodes that the job has left. Called in the background."""
        resize, id = pending.resize, str(self.jobs[job].id)
        with self.records.kept_running(self.name(job), id):
            resize.called = resize.called or self.clock.now()
            self.system.shrink(id, resize.after)
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
        jobs, run_s = self.of_policy, self.plan.run_time[job] / self.speed
        malleable = jobs.malleable[job]
        rates = [jobs.rate(job, nodes) for nodes in range(jobs.low[job], jobs.high[job] + 1)] if malleable else [1.0]
        limit_s = jobs.limit[job] / min(rates) / self.speed + MARGIN_S
        grain_s = GRAIN_S if malleable else None
        state = (self.plan.application[job], f"{self.plan.state_mib[job]:g}")
        program = () if self.program is None else (self.program, *state)
        return self.records.request(
            self.name(job), self.plan.nodes[job], run_s, limit_s, held=True, grain_s=grain_s, program=program
        )

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
        """Return the observation with the nodes of the job after its last resize: an observation may be older.

        An answer of the batch system with nodes that the job held before that is older, too.
        """
        watched = self.jobs[job]
        start, nodes = watched.execution
        if found is None or not (nodes and found.nodes) or found.start != start:
            return found
        before = polled.began <= self._settled.get(job, -math.inf) or found.nodes in watched.earlier_nodes
        return replace(found, nodes=nodes) if before or job in self._pending else found

    def _observed(self, polled: Polled) -> None:
        if self._returned:
            self._hold_released()
        for job in list(self._starts):
            self._settle_start(job, polled)
        for job in list(self._pending):
            self._settle_resize(job, polled)
        self._cancel_orphans(polled)

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
        if start.final or self._has_lost_node(job):
            self._commands.run(job, start, partial(self.system.hold, str(watched.id)), partial(self._withdraw, job))
        elif start.failed_at is not None:
            self._call_start(job)

    def _withdraw(self, job: int) -> None:
        """Return a job that the batch system could not start to the queue of the policy."""
        del self._starts[job]
        self._pending.pop(job, None)
        self._withdrawn.append(job)
        self.jobs[job].withdraw()
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

    def _cancel_orphans(self, polled: Polled) -> None:
        """Cancel the second jobs of no pending resize."""
        for each in polled.found.values():
            if each.phase is Phase.ENDED or (match := SECOND.fullmatch(each.name)) is None:
                continue
            pending = self._pending.get(self._numbers.get(match["name"], -1))
            wanted = pending is not None and pending.resize.request == int(match["request"])
            if not wanted or self.interrupted is not None:
                self._unwanted.setdefault(each.id, polled.began)

    def poll_s(self) -> float:
        """Return the time between the starts of two observations, wall s."""
        return POLL_S

    def _running_commands(self) -> list[world.Background]:
        return self._commands.running()

    def _is_done(self) -> bool:
        return super()._is_done() and not self._commands.running()
