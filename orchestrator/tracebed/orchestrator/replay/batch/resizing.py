"""A replay on a batch system whose malleable jobs are resized while they run, whoever decides.

A malleable job adapts to its nodes (`job.sh`): it works on added nodes once it has them, and leaves nodes before the
batch system takes them. Each command runs in the background. A command that failed is settled by the next observation,
because its answer may be lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tracebed.ground import system
from tracebed.ground.errors import TestbedError
from tracebed.ground.system import Background
from tracebed.orchestrator.replay.batch import loop
from tracebed.orchestrator.replay.batch.base import (
    LIVE,
    JobObservation,
    LayeredSystem,
    Phase,
    Refused,
    ResizingSystem,
)
from tracebed.orchestrator.replay.batch.loop import BatchReplayer, Polled, attempt
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import AppliedSize, JobRecords
from tracebed.orchestrator.replay.batch.resizes import SECOND, BatchResize, Command, ResizeCommand, second_name
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.scheduling.jobs import Jobs

POLL_S = 0.25  # time between the starts of two observations, wall s
GRAIN_S = 0.25  # time between two malleability points of a job, wall s
CHECK_S = 0.05  # time between two looks for the record of a job that is resizing, wall s


class ResizingReplayer(BatchReplayer):
    """A replay on a batch system whose malleable jobs are resized."""

    system: ResizingSystem | LayeredSystem
    program: str | None = None  # the command that malleable jobs run (see `JobRecords.request`)

    def __init__(
        self,
        resized: Jobs,
        plan: SubmissionPlan,
        batch_system: ResizingSystem | LayeredSystem,
        records: JobRecords,
        journal: Journal,
        **arguments: Any,
    ) -> None:
        """Prepare a replay. `resized` has the sizes and rates of the jobs."""
        super().__init__(plan, batch_system, records, journal, **arguments)
        self.resized = resized
        self._pending: dict[int, ResizeCommand] = {}  # job -> its resize
        self._settled: dict[int, float] = {}  # job -> time of the last change of its nodes
        self._requests: Counter[int] = Counter()  # job -> number of the last request
        self._returned = False  # whether jobs of a killed replayer have not been observed yet
        self._commands: list[Background] = []  # the calls of commands that have not ended, as last seen

    def resume(self, submitted: Collection[int], submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after a killed replayer. Its jobs are adopted at the first observation."""
        super().resume(submitted, submitting, in_flight_s)
        self._returned = True
        for watched in self.jobs:  # rejected or cancelled, perhaps without an answer of the batch system
            if watched.ended and watched.id is not None and (watched.seen is None or watched.seen.phase in LIVE):
                self._unwanted[watched.id] = self.clock.now()

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until all jobs have ended. Raises TestbedError as `BatchReplayer.run`."""
        for watched in self.jobs:
            watched.patience = round(loop.POLL_S / POLL_S)
        super().run(on_progress)

    # -- commands --------------------------------------------------------------------------------------------------

    def _run_command(self, job: int, command: Command, call: Callable[[], object], done: Callable[[], None]) -> None:
        """Make a call in the background, then call `done` in the loop if the call succeeded."""
        command.calling, command.failed_at, command.final = True, None, False

        def finish(error: TestbedError | None) -> None:
            command.calling = False
            if error is None:
                done()
                return
            command.failed_at, command.final = self.clock.now(), isinstance(error, Refused)
            if isinstance(command, ResizeCommand):
                command.resize.reason = str(error)
            self._note("not_done", job, reason=str(error))

        self._in_background(call, finish, f"command for job {job}")

    def _in_background(
        self, call: Callable[[], object], finish: Callable[[TestbedError | None], None], what: str
    ) -> None:
        """Make a call in the background, then call `finish` in the loop, with the error of the call."""

        def run() -> None:
            self._mailbox.post(partial(finish, attempt(call, "a command")[1]))

        self._commands = [*self._running_commands(), system.current().start(run, what)]

    def _running_commands(self) -> list[Background]:
        self._commands = [each for each in self._commands if each.is_alive()]
        return self._commands

    def _write_size(self, job: int, request: int, nodes: Sequence[str]) -> None:
        self.records.write_size(self.name(job), request, self.resized.rate(job, len(nodes)), nodes)

    def _look_soon(self) -> None:
        """Observe the jobs at once, because the batch system has changed one."""
        self._next_poll = min(self._next_poll, self.clock.now() + CHECK_S)

    # -- resizes ---------------------------------------------------------------------------------------------------

    def _begin_resize(
        self,
        job: int,
        before: tuple[str, ...],
        after: tuple[str, ...],
        asked: float,
        decision_s: float,
        request: int | None = None,
    ) -> ResizeCommand:
        """Begin a resize of a job, which the commands of `_advance` carry out. Without a `request`, it is a new one."""
        if request is None:
            self._requests[job] += 1
            request = self._requests[job]
        rates = (self.resized.rate(job, len(before)), self.resized.rate(job, len(after)))
        resize = BatchResize(request, before, after, rates, asked, decision_s)
        self.jobs[job].resizes.append(resize)
        self.jobs[job].resizing_to = ()
        self._pending[job] = ResizeCommand(resize)
        self._note("resize", job, request=resize.request, before=before, after=after)
        return self._pending[job]

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
            self._run_command(job, pending, partial(self._expand, job, pending), merged)
        elif not pending.told:
            self._write_size(job, resize.request, resize.after)
            pending.told = True
        elif applied.request == resize.request:
            self._note_applied(resize, applied)
            if resize.merged is not None:
                self._conclude(job, "applied")
            else:
                self._run_command(job, pending, partial(self._shrink, job, pending), merged)

    def _note_applied(self, resize: BatchResize, applied: AppliedSize) -> None:
        now = self.clock.now()
        resize.seen, resize.applied = self.clock.at(applied.seen, now), self.clock.at(applied.applied, now)

    def _expand(self, job: int, pending: ResizeCommand) -> None:
        """Give additional nodes to a job, by a second job. Called in the background."""
        id = str(self.jobs[job].id)
        with self.records.kept_running(self.name(job), id):
            if pending.second is None:
                self._take_nodes(job, pending)
            assert pending.second is not None
            self.system.merge(id, pending.second)
            pending.resize.merged = self.clock.now()

    def _take_nodes(self, job: int, pending: ResizeCommand) -> None:
        """Let a second job take the additional nodes of a resize. Called in the background."""
        raise TestbedError("the second job with the nodes is missing", transient=True)

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
        watched.resized(self._sorted(resize.after), resize.merged)
        self._note("observed", job, **watched.facts())
        self._advance(job)

    def _sorted(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return nodes in the order in which the batch system lists them."""
        raise NotImplementedError

    def _conclude(self, job: int, state: str) -> None:
        """Record that a resize was applied or refused."""
        self._pending.pop(job).resize.state = state
        self._concluded_resize(job)
        self._note("observed", job, **self.jobs[job].facts())

    def _concluded_resize(self, job: int) -> None:
        """Handle that a resize was applied or refused."""

    # -- what the loop observes ------------------------------------------------------------------------------------

    def _work(self, job: int) -> dict[str, Any]:
        if not self.resized.malleable[job]:
            return {}
        state = (self.plan.application[job], f"{self.plan.state_mib[job]:g}")
        return {"grain_s": GRAIN_S, "program": () if self.program is None else (self.program, *state)}

    def _changed(self, job: int) -> None:
        watched = self.jobs[job]
        if not watched.ended or (pending := self._pending.pop(job, None)) is None:
            return
        resize, applied = pending.resize, self.records.applied(self.name(job), str(watched.id))
        if applied is not None and applied.request == resize.request:  # the job has ended before it was read
            self._note_applied(resize, applied)
            resize.state = "applied" if resize.merged is not None else ""
            self._note("ended", job, **watched.facts())

    def _corrected(self, job: int, observed: JobObservation | None, polled: Polled) -> JobObservation | None:
        """Return the observation with the nodes of the job after its last resize: an observation may be older."""
        watched = self.jobs[job]
        start, nodes = watched.execution
        if observed is None or not (nodes and observed.nodes) or observed.start != start:
            return observed
        if {*observed.nodes} == {*watched.resizing_to}:  # the job may have held them before, too
            return observed
        # Or it has nodes that the job held before.
        before = polled.began <= self._settled.get(job, -math.inf) or observed.nodes in watched.earlier_nodes
        return replace(observed, nodes=nodes) if before or job in self._pending else observed

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
            wanted = self._is_wanted(self._numbers.get(match["name"], -1), int(match["request"]))
            if not wanted or self.interrupted is not None:
                self._unwanted.setdefault(each.id, polled.began)

    def _is_wanted(self, job: int, request: int) -> bool:
        """Return whether the second job of a request of a job is needed."""
        pending = self._pending.get(job)
        return pending is not None and pending.resize.request == request

    def _next_decision(self) -> float:
        if any(not pending.calling for pending in self._pending.values()):
            return self.clock.now() + CHECK_S
        return math.inf

    def poll_s(self) -> float:
        """Return the time between the starts of two observations, wall s."""
        return POLL_S

    def _is_done(self) -> bool:
        return super()._is_done() and not self._running_commands()
