"""The loop of a replay on a batch system: submission of each job at its time, and observation until all have ended.

Submissions are paced against absolute instants of the monotonic clock. Each call runs in the background, so that a slow
call does not delay the next submission; a call waits briefly for the previous call, so that the batch system receives
jobs in the order of the workload. All jobs are observed by one request about once a second.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tracebed.benchmarks.lines import Mailbox
from tracebed.ground import system
from tracebed.ground.errors import TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.batch.base import (
    LIVE,
    BatchSystem,
    DependingSystem,
    JobObservation,
    JobRequest,
    NodeState,
    Phase,
    Refused,
    SleepingSystem,
)
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.wall import WallClock
from tracebed.orchestrator.replay.batch.watched import MISSING_POLLS, WatchedJob, never_starts
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.scheduling.dependencies import AFTER, AFTER_ANY, NAMES, SINGLETON, Arrivals, Condition
from tracebed.orchestrator.scheduling.record import WAITS

T = TypeVar("T")

CALLERS = 8  # maximum number of concurrent submissions
ORDER_S = 0.5  # longest time that a submission waits for the previous one, wall s
POLL_S = 1.0  # time between the starts of two observations, wall s
POLL_SHARE = 0.2  # largest share of the time spent on observations
LOST_S = 300.0  # time without an answer of the batch system after which the replay fails, wall s
STUCK_POLLS = 10  # number of observations after which jobs that can never start are cancelled
LIMITED_S = 60.0  # time after which jobs that a limit holds, although no job runs, are cancelled, wall s
CANCEL_S = 120.0  # longest wait for the end of cancelled jobs, wall s


@dataclass(frozen=True)
class Submitted:
    """Outcome of a submission: an id, or an error."""

    job: int
    called: float
    latency_s: float
    id: str | None = None
    error: TestbedError | None = None


@dataclass(frozen=True)
class Polled:
    """Outcome of an observation."""

    began: float
    took_s: float
    found: dict[str, JobObservation]
    error: TestbedError | None = None
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    """The states of the nodes by name, if a policy of tracebed decides."""
    power: Mapping[str, PowerState] = field(default_factory=dict)
    """The states of the power of the nodes by name, if the batch system switches nodes off."""


def attempt(call: Callable[[], T], what: str) -> tuple[T | None, TestbedError | None]:
    """Make a call in the background. Return its result or its error: an exception would end the call silently, and the
    loop would wait for it forever.
    """
    try:
        return call(), None
    except TestbedError as error:
        return None, error
    except Exception as error:  # noqa: BLE001
        return None, TestbedError(f"{what} failed: {error!r}")


def begin_outage(outages: list[dict[str, Any]], node: str, at: float, reason: str) -> None:
    """Add the beginning of a time in which a node cannot be used to `RunInfo.outages`."""
    outages.append({"node": node, "from": at, "until": None, "reason": reason})


def end_outages(outages: list[dict[str, Any]], at: float, node: str | None = None) -> None:
    """End the time in which a node cannot be used; None: of all nodes."""
    for outage in outages:
        if outage["until"] is None and node in (None, outage["node"]):
            outage["until"] = at


class BatchReplayer:
    """A replay on a batch system, which decides."""

    def __init__(
        self,
        plan: SubmissionPlan,
        batch_system: BatchSystem,
        records: JobRecords,
        journal: Journal,
        *,
        prefix: str,
        speed: float,
        origin: float,
        clock: WallClock,
    ) -> None:
        """Prepare a replay. `prefix` begins the names of jobs; `origin` is the wall time of the first submission."""
        self.plan, self.system, self.records, self.journal = plan, batch_system, records, journal
        self.prefix, self.speed, self.origin, self.clock = prefix, speed, origin, clock
        self.jobs = [WatchedJob() for _ in plan.ids]  # the submission, observations and end of each job of the plan
        self.interrupted: str | None = None  # reason of the interruption
        self.latencies: list[float] = []  # duration of each successful submission, wall s
        self._warned = False  # of the first refusal
        self.polls = {"polls": 0, "failed": 0}  # number of observations, and of failed observations
        self.outages: list[dict[str, Any]] = []  # nodes that a policy could not use, as in `RunInfo.outages`
        self.power: list[tuple[float, str, PowerState]] = []  # trace time, node, and its state of power from then on
        self._numbers = {self.name(job): job for job in range(len(plan))}
        self._selector = system.current().selector()
        self._mailbox = Mailbox(self._selector)
        self._resumed = False
        self.arrivals = Arrivals(plan.submit, plan.waits, plan.ids)
        self._waiting: list[int] = []  # due jobs that wait for others, until the batch system can do so
        self._queue: deque[tuple[int, float]] = deque()  # job to be submitted, time until which it waits for the others
        self._last: int | None = None  # job whose submission was the last to begin
        self._calls: dict[int, system.Background] = {}  # job -> its submission
        self._poll: system.Background | None = None
        self._next_poll = clock.now()
        self._on_progress: Callable[[int], None] | None = None
        self._unconfirmed: dict[int, float] = {}  # job whose submission failed -> time of the failure
        self._last_answer = clock.now()
        self._stuck_polls = 0
        self._cancelled: set[str] = set()
        self._cancelled_at: float | None = None
        self._seconds: set[str] = set()  # IDs of second jobs of submissions
        self._early: dict[str, JobObservation] = {}  # jobs of submissions that are not answered, as last seen
        self._unseen: Counter[str] = Counter()  # ID of such a job -> observations without it in a row
        self._unwanted: dict[str, float] = {}  # ID of a job to be cancelled that does not count -> time of the request

    def name(self, job: int) -> str:
        """Return the name of a job in the batch system."""
        return f"{self.prefix}{job}"

    def trace(self, wall: float) -> float:
        """Return the trace time at a time of the clock."""
        return self.plan.submit[0] + (wall - self.origin) * self.speed

    def wall(self, trace: float) -> float:
        """Return the time of the clock at a trace time."""
        return self.origin + (trace - self.plan.submit[0]) / self.speed

    def interrupt(self, reason: str) -> None:
        """Submit no more jobs and cancel all jobs. May be called in a signal handler."""
        self.interrupted = self.interrupted or reason
        self._mailbox.post(lambda: None)  # wakes the loop

    def resume(self, submitted: Collection[int], submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after the submissions of a killed replayer, those of the jobs `submitted`.

        The submissions of the jobs `submitting` had no outcome, and may still be in progress for `in_flight_s` of wall
        time.
        """
        self._resumed = True
        ended = {job for job, watched in enumerate(self.jobs) if watched.ended}
        self._take_arrivals(self.trace(self.clock.now()), {*submitted, *ended})  # in the order of then
        followed = [job for job in submitted if not self.arrivals.is_submitted(job)]  # after a think time
        for job in sorted(followed):
            self.arrivals.submitted(job, self.plan.submit[job])
        for job in range(len(self.plan)):
            self._follow(job)
        self.arrivals.take(followed)
        self._unconfirmed = dict.fromkeys(submitting, self.clock.now() + in_flight_s)

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until all jobs have ended. If the batch system stops answering (TestbedError), its jobs continue."""
        self._on_progress = on_progress
        try:
            while not self._is_done():
                wake = self._start_calls()
                left_s = max(0.0, wake - self.clock.now())
                ready = system.current().wait(self._selector, system.monotonic() + left_s)
                if step := self.clock.check():
                    self._note("step", None, seconds=step.size, since=step.since, until=step.until)
                    self._next_poll = step.until  # what was recorded before the step should be seen before long
                for key, mask in ready:
                    key.data(mask)
                self._decide()
            for number, job in enumerate(self.jobs):
                if job.pending and job.end_unconfirmed():  # nothing will confirm it
                    self._note("ended", number, **job.facts())
        finally:
            for call in (
                *self._calls.values(),
                *([self._poll] if self._poll is not None else []),
                *self._running_commands(),
            ):
                call.join()  # the lock of the working folder tells that submissions may be in progress
            self._selector.close()

    def left(self) -> list[str]:
        """Return the IDs of jobs that may still run after the replay, because they could not be cancelled."""
        return [str(job.id) for job in self.jobs if job.pending] + list(self._unwanted)

    def _start_calls(self) -> float:
        """Start the calls that are due, and return the time at which the next call is due at the latest."""
        now = self.clock.now()
        if self.interrupted is not None:
            self._queue.clear()
            self._cancel_all()
        else:
            while self.wall(at := self.arrivals.next) <= now:
                self._arrive(at)
            for job in [job for job in self._waiting if self._is_expressible(job)]:
                self._waiting.remove(job)
                self._submit(job)
        while self._queue and len(self._calls) < CALLERS:
            job, latest = self._queue[0]
            if self._last in self._calls and now < latest:
                break
            self._queue.popleft()
            if never := self.arrivals.never(job):
                self._give_up(job, never)
                continue
            due = self.jobs[job].due
            self._note("submitting", job, **({} if due is None else {"due": due}))
            self._last = job
            self._calls[job] = system.current().start(partial(self._call, job), f"submission of {self.name(job)}")
        if self._poll is None and now >= self._next_poll:
            known = [job.id for job in self.jobs if job.pending and job.id is not None]
            self._poll = system.current().start(partial(self._observe, known), "observation")
        wakes = [now + POLL_S if self._poll is not None else self._next_poll, self._next_decision()]
        if self._queue and len(self._calls) < CALLERS:
            wakes.append(self._queue[0][1])
        if self.interrupted is None:
            wakes.append(self.wall(self.arrivals.next))
        return min(wakes)

    def _submit(self, job: int) -> None:
        """Let a job be submitted when it is its turn."""
        self._queue.append((job, self.clock.now() + ORDER_S))

    def _call(self, job: int) -> None:
        """Submit a job, in the background."""
        called = self.clock.now()
        id, error = attempt(lambda: self.system.submit(self._request(job)), "the submission")
        done = Submitted(job, called, self.clock.now() - called, id, error)
        self._mailbox.post(partial(self._take_submission, done))

    def _request(self, job: int) -> JobRequest:
        """Return the request of a job."""
        plan, run_s = self.plan, self.plan.run_time[job] / self.speed
        request = self.records.request(self.name(job), plan.nodes[job], run_s, self._limit_s(job), **self._work(job))
        demands = tuple(plan.options[job]) if plan.options else ()
        return replace(request, dependency=self._dependency(job) or "", demands=demands)

    def _work(self, job: int) -> dict[str, Any]:
        """Return arguments of `JobRecords.request` beside the run time of a job."""
        return {}

    def _limit_s(self, job: int) -> float | None:
        """Return the time limit of a job in the batch system, wall s; None: its default."""
        return self.plan.limit_s(job, self.speed)

    def _observe(self, known: list[str]) -> None:
        """Observe all jobs, in the background."""
        began = self.clock.now()
        observed, error = attempt(
            lambda: (self._node_states(), self.system.poll(self.prefix, known), self._power_states()), "the observation"
        )
        nodes, jobs, power = observed or ({}, {}, {})
        polled = Polled(began, self.clock.now() - began, jobs, error, nodes, power)
        self._mailbox.post(partial(self._take_poll, polled))

    def _power_states(self) -> dict[str, PowerState]:
        """Return the states of the power of the nodes. Called in the background."""
        return self.system.power_states() if isinstance(self.system, SleepingSystem) else {}

    def _note_power(self, polled: Polled) -> None:
        """Record the nodes whose state of power has changed since the last observation. Nodes begin on."""
        before = {node: state for _, node, state in self.power}
        for node, state in polled.power.items():
            if state is not before.get(node, PowerState.ON):
                self.power.append((self.trace(polled.began), node, state))
                self._note("power", None, at=self.power[-1][0], node=node, state=str(state))

    def _is_done(self) -> bool:
        if self._calls or self._queue or self._unconfirmed:
            return False
        if self._resumed and self.polls["polls"] == self.polls["failed"]:
            return False  # a submission of the killed replayer may have arrived since
        if any(self.clock.now() < since + CANCEL_S for since in self._unwanted.values()):
            return False
        if self.interrupted is None:
            if self.arrivals.next < math.inf or any(job.pending for job in self.jobs):
                return False
            for number in [number for number, job in enumerate(self.jobs) if not job.ended]:
                self._give_up(number, WAITS)  # no event will bring it
            return True
        late = self._cancelled_at is not None and self.clock.now() > self._cancelled_at + CANCEL_S
        return late or not any(job.pending for job in self.jobs)

    # -- jobs that wait for other jobs ---------------------------------------------------------------------------------

    def _arrive(self, at: float) -> None:
        """Let the jobs be submitted whose submission is due at the trace time `at`."""
        self._take_arrivals(at, ())
        for job, never in self.arrivals.released(at):
            if job in self._waiting:
                self._waiting.remove(job)
                if never:
                    self._give_up(job, never)
                else:
                    self.jobs[job].due = at
                    self._submit(job)
            elif not self.jobs[job].ended:
                self._released(job, never)

    def _take_arrivals(self, at: float, known: Collection[int]) -> None:
        """Let the jobs be submitted that are due, except the `known` ones, which have been or will never be."""
        waits = self.plan.waits
        for job in self.arrivals.submissions(at):
            moved = waits is not None and not math.isnan(waits.think_s[job])
            eligible = self.arrivals.submitted(job, at)
            if job in known:
                continue
            self.jobs[job].due = at if moved else None
            if eligible or self._is_held_by_policy(job):
                self._submit(job)
            else:
                self._waiting.append(job)

    def _give_up(self, job: int, never: str) -> None:
        """Record that a job, which is not submitted, can never start."""
        if not self.jobs[job].ended:
            self.jobs[job].cancel(never)
            self._note("ended", job, **self.jobs[job].facts())
            self._follow(job)

    def _is_expressible(self, job: int) -> bool:
        """Return whether the batch system can let a waiting job wait: it knows the other jobs, and the conditions."""
        return isinstance(self.system, DependingSystem) and bool(self._dependency(job))

    def _dependency(self, job: int) -> str | None:
        """Return the conditions of a job on jobs that have not ended, for the batch system; None: not expressible."""
        waits = self.plan.waits
        if waits is None or not self.arrivals.holds(job) or not isinstance(self.system, DependingSystem):
            return None
        own = list(waits.conditions[job])
        if waits.previous[job] >= 0 and math.isnan(waits.think_s[job]):
            if waits.any_of[job]:
                return None
            own.append(Condition(AFTER_ANY, waits.previous[job]))
        own = [each for each in own if each.kind == SINGLETON or not self.jobs[each.of].ended]
        # The name of each job is another one here, and a job that failed in the log completes.
        if any(each.kind == SINGLETON or self.jobs[each.of].id is None or waits.fails[each.of] for each in own):
            return None
        conditions = [
            (NAMES[each.kind], str(self.jobs[each.of].id), each.delay_s / self.speed if each.kind == AFTER else 0.0)
            for each in own
        ]
        return self.system.dependency(conditions, any_of=waits.any_of[job])

    def _follow(self, job: int) -> None:
        """Tell the arrivals whether a job has started or ended."""
        watched, now = self.jobs[job], self.trace(self.clock.now())
        start, own = watched.execution[0], watched.own
        if start is not None:
            self.arrivals.started(job, min(self.trace(start), now))
        if watched.ended:
            end = now if own is None or own.end is None else min(self.trace(own.end), now)
            self.arrivals.ended(job, watched.state, end)

    # -- for a policy of tracebed (`DecidingReplayer`) ---------------------------------------------------------------

    def _is_held_by_policy(self, job: int) -> bool:
        """Return whether a job that waits for others is submitted, and the policy does not start it."""
        return False

    def _released(self, job: int, never: str) -> None:
        """Handle that a job, which was submitted while it waited for others, waits no more. Here: nothing."""

    def _submitted(self, job: int) -> None:
        """Handle that a job is in the queue of the batch system."""

    def _changed(self, job: int) -> None:
        """Handle that the state of a job has changed."""

    def _observed(self, polled: Polled) -> None:
        """Handle an observation of all jobs."""

    def _corrected(self, job: int, observed: JobObservation | None, polled: Polled) -> JobObservation | None:
        """Return the observation of a job as it counts."""
        return observed

    def _node_states(self) -> dict[str, NodeState]:
        """Return the states of the nodes. Called in the background."""
        return {}

    def _decide(self) -> None:
        """Decide, and carry out the decisions."""

    def _next_decision(self) -> float:
        """Return the time of the clock at which `_decide` must be called at the latest."""
        return math.inf

    def poll_s(self) -> float:
        """Return the time between the starts of two observations, wall s."""
        return POLL_S

    def _running_commands(self) -> list[system.Background]:
        """Return the commands that carry out decisions and have not ended."""
        return []

    # -- what has happened -------------------------------------------------------------------------------------------

    def _take_submission(self, done: Submitted) -> None:
        job = self.jobs[done.job]
        del self._calls[done.job]
        job.called = job.called or done.called  # a submission without an answer may have arrived
        if done.id is not None:
            self._last_answer = self.clock.now()
            job.called = done.called  # the submissions before had no effect
            self.latencies.append(done.latency_s)
            job.id, job.latency_s = done.id, done.latency_s
            self._note("submitted", done.job, id=done.id, called=job.called, latency_s=done.latency_s)
            self._submitted(done.job)
        elif isinstance(done.error, Refused):
            job.refuse(done.error.what)
            if not self.latencies and not self._warned:  # now, since a wrong option concerns all jobs
                self._warned = True
                warnings.warn(f"job {self.plan.ids[done.job]} is rejected: {job.reason}", stacklevel=2)
            self._note("refused", done.job, called=job.called, reason=job.reason)
            self._follow(done.job)
        elif done.error is not None and not done.error.transient:
            raise done.error
        else:
            self._unconfirmed[done.job] = self.clock.now()
            self._note("failed", done.job, called=job.called, reason=str(done.error))

    def _take_poll(self, polled: Polled) -> None:
        steps = self.clock.steps
        again = polled.error is not None or bool(steps and steps[-1].until > polled.began)
        took_s = 0.0 if again else polled.took_s  # a timeout is no sign of load
        self._poll = None
        self._next_poll = max(polled.began + max(self.poll_s(), took_s / POLL_SHARE), self.clock.now())
        self.polls["polls"] += 1
        self._note("polled", None, took_s=polled.took_s, error=str(polled.error) if polled.error is not None else None)
        if polled.error is not None:
            self.polls["failed"] += 1
            if not polled.error.transient or self.clock.now() > self._last_answer + LOST_S:
                raise polled.error
            return
        self._last_answer = self.clock.now()
        self._note_power(polled)
        self._adopt_or_repeat(polled)
        found_by_id = {each.id: each for each in polled.found.values()}
        for number, job in enumerate(self.jobs):
            if job.pending and job.called is not None and job.called + job.latency_s <= polled.began:
                found = found_by_id.get(str(job.id))
                # A live job has not written its end, and the search for the files of thousands of jobs takes long.
                alive = found is not None and found.phase in LIVE and not found.is_left
                own = None if alive else self.records.read(self.name(number), str(job.id))
                found, own = job.without_steps(self.clock, found, own, self.clock.now())
                found = self._corrected(number, found, polled)
                if job.observe(found, own, polled.began):
                    self._note("ended" if job.ended else "observed", number, **job.facts())
                    self._changed(number)
                    self._follow(number)
                    if job.state is JobState.UNKNOWN and job.ended:
                        self._unwanted[str(job.id)] = polled.began  # it may still run
        self._observed(polled)
        self._cancel_unwanted(polled)
        self._cancel_stuck()
        if self._on_progress is not None:
            self._on_progress(sum(job.ended for job in self.jobs))

    def _adopt_or_repeat(self, polled: Polled) -> None:
        """Take over the jobs whose submission was not confirmed, and submit those that did not arrive again."""
        confirmable = [number for number, failed_at in self._unconfirmed.items() if polled.began > failed_at]
        if not confirmable and self.interrupted is None:
            return
        ids = {each.name: each.id for each in reversed(polled.found.values())}
        for number in confirmable:
            del self._unconfirmed[number]
            found = ids.get(self.name(number)) or self.records.find(self.name(number))
            if found is not None:  # the answer to the submission was lost
                self._adopt(number, found)
            elif self.interrupted is None:
                self._submit(number)
        if self.interrupted is not None:
            self._adopt_late(ids)

    def _adopt_late(self, ids: Mapping[str, str]) -> None:
        """Take over the jobs in `ids` (name -> ID) whose submission the interruption gave up, and that arrived late."""
        for number in (self._numbers[name] for name in ids if name in self._numbers):
            job, in_progress = self.jobs[number], number in self._calls or number in self._unconfirmed
            if job.id is None and not job.ended and not in_progress:
                self._adopt(number, ids[self.name(number)])

    def _cancel_unwanted(self, polled: Polled) -> None:
        """Cancel jobs that count as ended although they may run, and the second jobs of submissions with two jobs."""
        seen = self._early | {each.id: each for each in polled.found.values()}
        self._early = {}
        for each in seen.values():
            number = self._numbers.get(each.name)
            job = self.jobs[number] if number is not None else None
            if job is None or each.id in (job.id, *self._seconds):
                continue
            if job.id is None and not job.ended:  # which one is the second tells the answer to the submission
                self._early[each.id] = each
                continue
            self._note("twice", number, id=each.id)
            self._seconds.add(each.id)
            if each.phase is not Phase.ENDED:  # one of an unknown phase may run
                self._unwanted[each.id] = polled.began
        phases = {each.id: each.phase for each in polled.found.values()}
        for id in [id for id in self._unwanted if id in self._cancelled]:
            self._unseen[id] = 0 if id in phases else self._unseen[id] + 1  # an answer may be old or incomplete
            if phases.get(id) is Phase.ENDED or self._unseen[id] >= MISSING_POLLS:
                del self._unwanted[id]
        ids = [id for id in self._unwanted if id not in self._cancelled]
        if ids and self._cancel(ids):
            self._cancelled.update(ids)

    def _adopt(self, number: int, id: str) -> None:
        """Take over a job of the batch system whose submission was not confirmed."""
        job = self.jobs[number]
        job.id, job.called = id, job.called or self.clock.now()
        self._note("submitted", number, id=id, called=job.called, latency_s=job.latency_s)
        self._submitted(number)

    def _cancel_stuck(self) -> None:
        """Cancel jobs that can never start, once all other jobs have ended."""
        waits = self.arrivals.next == math.inf and not (self._queue or self._calls or self._unconfirmed)
        self._stuck_polls = self._stuck_polls + 1 if waits and never_starts(self.jobs, limited=True) else 0
        if self._stuck_polls < (STUCK_POLLS if never_starts(self.jobs) else LIMITED_S / self.poll_s()):
            return
        stuck = [number for number, job in enumerate(self.jobs) if job.pending]
        if not self._cancel([str(self.jobs[number].id) for number in stuck]):
            return
        for number in stuck:
            seen = self.jobs[number].seen
            self.jobs[number].refuse(f"never starts: {seen.reason if seen else ''}")
            self._note("ended", number, **self.jobs[number].facts())
            self._follow(number)

    def _cancel_all(self) -> None:
        """Cancel all jobs, including those that are found later. Failed calls are repeated at the next observation."""
        if self._cancelled_at is None:
            self._cancelled_at = self.clock.now()
            self._note("interrupt", None, reason=self.interrupted)
        ids = [job.id for job in self.jobs if job.pending and job.id is not None and job.id not in self._cancelled]
        if ids and self._cancel(ids):
            self._cancelled.update(ids)

    def _cancel(self, ids: Sequence[str]) -> bool:
        """Cancel jobs, and return whether that succeeded. A failure is written to the journal."""
        try:
            self.system.cancel(ids)
        except TestbedError as error:
            self._note("failed", None, reason=str(error))
            return False
        return True

    def _note(self, kind: str, job: int | None, **data: Any) -> None:
        name = None if job is None else self.plan.ids[job]
        self.journal.write([Entry(0, self.trace(self.clock.now()), kind, name, None, data)])
