"""A replay in which a policy of tracebed decides, and the batch system executes.

Jobs wait in the queue of the batch system, held. The policy sees the state of the batch system. Its starts name the
nodes and release the job; its resizes change the nodes of the running job. A malleable job adapts to its nodes
(`job.sh`): it works on added nodes once it has them, and leaves nodes before the batch system takes them. Each command
runs in the background. A command that failed is settled by the next observation, because its answer may be lost.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tracebed.ground import system
from tracebed.ground.display import listed
from tracebed.ground.errors import TestbedError
from tracebed.ground.system import Background
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.batch import loop
from tracebed.orchestrator.replay.batch.base import (
    LIVE,
    JobObservation,
    JobRequest,
    NodeState,
    Phase,
    Refused,
    ResizingSystem,
)
from tracebed.orchestrator.replay.batch.loop import BatchReplayer, Polled, attempt, begin_outage, end_outages
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import AppliedSize, JobRecords
from tracebed.orchestrator.replay.batch.resizes import (
    RETRY_S,
    SECOND,
    BatchResize,
    Command,
    ResizeCommand,
    StartCommand,
    second_name,
)
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.scheduler import Executor, Scheduler
from tracebed.orchestrator.scheduling.state import Policy, visible_jobs
from tracebed.orchestrator.setup import Setup

POLL_S = 0.25  # time between the starts of two observations, wall s
GRAIN_S = 0.25  # time between two malleability points of a job, wall s
CHECK_S = 0.05  # time between two looks for the record of a job that is resizing, wall s
# Time that the batch system grants to jobs beyond their limit, for the launches of a malleable job, wall s.
MARGIN_S = 60.0
OF_OTHERS = "held by jobs that are not of this replay"  # why the policy cannot use a node
MOST_SHOWN = 5  # number of lost nodes that a warning names
MOST_REFUSALS = 3  # refused resizes of a job after which the policy no longer resizes it
LOST_POLLS = 2  # successive observations of an unusable node after which a policy no longer uses it


class DecidingReplayer(BatchReplayer, Executor):
    """A replay on a batch system in which a policy decides. It is the executor of its scheduler."""

    system: ResizingSystem
    program: str | None = None  # the command that malleable jobs run (see `JobRecords.request`)

    def __init__(
        self,
        decided: tuple[Jobs, Policy, Setup],
        nodes: Sequence[NodeFacts],
        plan: SubmissionPlan,
        batch_system: ResizingSystem,
        records: JobRecords,
        journal: Journal,
        **arguments: Any,
    ) -> None:
        """Prepare a replay. `decided` has the jobs as the scheduler reads them, the policy, and the setup."""
        super().__init__(plan, batch_system, records, journal, **arguments)
        jobs, policy, setup = decided
        self.of_policy = visible_jobs(policy, jobs)  # the jobs as the policy sees them
        self._names = [node.name for node in nodes]
        self._number_of = {name: number for number, name in enumerate(self._names)}
        scheduling = setup.scheduling
        self._cluster = Cluster([node.cores for node in nodes], [node.sockets for node in nodes], scheduling.placed)
        self.scheduler = Scheduler(
            jobs, self._cluster, policy, self, interval_s=scheduling.interval_s, priority=scheduling.priority
        )
        self._due = math.inf  # time of the next call of the policy, trace s
        self._arrived: list[int] = []
        self._eligible: list[int] = []  # jobs that wait no more for other jobs
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
        self._refusals: Counter[int] = Counter()
        self._adopting = False
        self._unusable_polls: dict[str, tuple[int, str]] = {}  # node -> successive observations, and the last reason
        self._lost: set[str] = set()  # nodes that the policy cannot use
        self._commands: list[Background] = []  # the calls of commands that have not ended, as last seen

    def resume(self, submitted: Collection[int], submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after a killed replayer. Its jobs are adopted at the first observation."""
        super().resume(submitted, submitting, in_flight_s)
        self._returned = True
        self._arrived += [job for job, watched in enumerate(self.jobs) if watched.pending]
        for watched in self.jobs:  # rejected or cancelled, perhaps without an answer of the batch system
            if watched.ended and watched.id is not None and (watched.seen is None or watched.seen.phase in LIVE):
                self._unwanted[watched.id] = self.clock.now()

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until all jobs have ended. Raises TestbedError as `BatchReplayer.run`."""
        for watched in self.jobs:
            watched.patience = round(loop.POLL_S / POLL_S)
        super().run(on_progress)

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Let a held job start."""
        if self._adopting:
            return
        self.scheduler.state.resizing.add(job)  # the policy resizes no job that the batch system has not started
        names = tuple(self._names[node] for node in nodes)
        self._note("start", job, nodes=names)
        self._starts[job] = StartCommand(names)
        self._call_start(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Begin a resize. It takes effect later."""
        held, names = self._cluster.nodes_of(job)[:before], tuple(self._names[node] for node in nodes)
        names_before = tuple(self._names[node] for node in held)
        self._requests[job] += 1
        rates = (self.of_policy.rate(job, len(held)), self.of_policy.rate(job, len(nodes)))
        now = self.clock.now()
        resize = BatchResize(self._requests[job], names_before, names, rates, now, now - self._deciding_since)
        self.jobs[job].resizes.append(resize)
        self._pending[job] = ResizeCommand(resize)
        self._note("resize", job, request=resize.request, before=names_before, after=names)
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

        def run() -> None:
            self._mailbox.post(partial(finish, attempt(call, "a command")[1]))

        self._commands = [*self._running_commands(), system.current().start(run, f"command for job {job}")]

    def _running_commands(self) -> list[Background]:
        self._commands = [each for each in self._commands if each.is_alive()]
        return self._commands

    def _call_start(self, job: int) -> None:
        start, id, jobs = self._starts[job], str(self.jobs[job].id), self.of_policy

        def call() -> None:
            if jobs.malleable[job]:
                self._write_size(job, self._requests[job], start.nodes)
            self.system.start(id, start.nodes)

        self._requests[job] += 1
        if jobs.malleable[job]:
            self.jobs[job].rate = jobs.rate(job, len(start.nodes))
        self._run_command(job, start, call, self._look_soon)

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

    def _corrected(self, job: int, observed: JobObservation | None, polled: Polled) -> JobObservation | None:
        """Return the observation with the nodes of the job after its last resize: an observation may be older."""
        watched = self.jobs[job]
        start, nodes = watched.execution
        if observed is None or not (nodes and observed.nodes) or observed.start != start:
            return observed
        # Or it has nodes that the job held before.
        before = polled.began <= self._settled.get(job, -math.inf) or observed.nodes in watched.earlier_nodes
        return replace(observed, nodes=nodes) if before or job in self._pending else observed

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
        for number, watched in enumerate(self.jobs):
            if not watched.pending or watched.seen is None:
                continue
            if watched.seen.phase is Phase.RUNNING:
                self._adopt_running(number, watched.seen)
            elif watched.seen.phase is Phase.WAITING and number in self.scheduler.state.size:
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
        if start.final or job in self.scheduler.state.failing:
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
        if any(not pending.calling for pending in self._pending.values()):
            return self.clock.now() + CHECK_S
        return self.origin + (self._due - self.plan.submit[0]) / self.speed

    def _cancel_stuck(self) -> None:
        """Cancel the jobs that the policy will never start. Lost nodes may return."""
        active = self._starts or self.scheduler.state.size or self._running_commands()
        if self.interrupted is not None or self._due < math.inf or self._lost or active:
            self._stuck_polls = 0
            return
        super()._cancel_stuck()

    def poll_s(self) -> float:
        """Return the time between the starts of two observations, wall s."""
        return POLL_S

    def _is_done(self) -> bool:
        return super()._is_done() and not self._running_commands()
