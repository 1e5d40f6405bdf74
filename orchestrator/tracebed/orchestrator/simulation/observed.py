"""A simulator that takes times from a real run, to repeat a prediction without some causes of its error."""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappush
from typing import Any, NamedTuple

from tracebed.ground.states import JobState
from tracebed.orchestrator.scheduling.decision_log import DecisionLog
from tracebed.orchestrator.scheduling.dependencies import Arrivals
from tracebed.orchestrator.scheduling.record import cut_short
from tracebed.orchestrator.simulation.delays import Delays
from tracebed.orchestrator.simulation.simulator import END, POINT, Simulator

NEVER = (math.inf, 0)
"""A request that is not made."""
ROUNDING_S = 1e-6
"""Rounding error of the end of a job, s. An end that differs by less from the observed end is set to that end."""


class ErrorCause(enum.Flag):
    """Causes of the error of a prediction. A simulation removes a cause by using the times of the real run."""

    NONE = 0
    SUBMISSIONS = enum.auto()
    """Jobs are submitted at the observed times instead of the planned ones."""
    DELAYS = enum.auto()
    """Launches and resizes take the observed times instead of the overheads."""
    WORK = enum.auto()
    """Each job does its observed work at the nominal rates, instead of its run time, and ends in the observed state."""
    CALLS = enum.auto()
    """The policy is called at the observed times, and each job lasts as long as observed."""


ALL = ErrorCause.SUBMISSIONS | ErrorCause.DELAYS | ErrorCause.WORK | ErrorCause.CALLS


class ObservedResize(NamedTuple):
    """A resize in the real run. Times are trace seconds; NaN: the job ended before the resize took effect."""

    added: int
    """New number of nodes minus old number of nodes."""
    asked: float
    decided: float
    applied: float
    ended: float


@dataclass(frozen=True)
class ObservedTimes:
    """The times of a real run, trace seconds, indexed by job number. NaN: did not happen.

    Attributes:
        submit: submit time of each job; NaN: not submitted.
        start: time of the allocation of nodes.
        launched: time at which the work began.
        end: time at which all nodes were released, or at which the run was interrupted.
        state: final state.
        reason: reason for the state.
        cancelled: job -> time at which the policy canceled it.
        resizes: job -> its resizes in the order of the decisions.
        calls: times at which the policy was called, ascending.
        requests: evolving job -> (time, nodes) of its requests, ascending.
        until: end of an interrupted run; infinite for a completed run.
        interrupted: reason of the interruption; None: the run was not interrupted.
        work: work of each job until its end, in seconds of static run time at the nominal rates; NaN: not started.
            None: unknown. It is the result of a simulation with all causes, `ObservedSimulator.work_done`.
    """

    submit: Sequence[float]
    start: Sequence[float]
    launched: Sequence[float]
    end: Sequence[float]
    state: Sequence[JobState]
    reason: Sequence[str]
    cancelled: Mapping[int, float]
    resizes: Mapping[int, Sequence[ObservedResize]]
    calls: Sequence[float]
    requests: Mapping[int, Sequence[tuple[float, int]]] = field(default_factory=dict)
    until: float = math.inf
    interrupted: str | None = None
    work: Sequence[float] | None = None

    def started(self, job: int) -> bool:
        """Return whether the job started."""
        return not math.isnan(self.start[job])

    def ended(self, job: int) -> bool:
        """Return whether the job started, and ended before the end of the run."""
        return self.started(job) and self.state[job] != JobState.INTERRUPTED


class ObservedSimulator(Simulator):
    """A simulator that takes the times of some causes from a real run.

    The time of a launch or an end is applied relative to the start of the job, and the times of a resize relative to
    its decision. As long as the simulated schedule equals the real schedule, these times equal the observed times.

    Args:
        causes: the causes to remove. `WORK` without `CALLS` requires `observed.work`.
        names: the names of the nodes, for `log`.
        dispatched: whether the overheads are latencies of a batch system (`count_dispatched`). A real run does not
            contain them, so no cause replaces them.
        arguments: the arguments of `Simulator`.

    Attributes:
        log: the decisions.
        work_done: work of each job until its end, s, shape (jobs,); NaN: not started.
    """

    def __init__(
        self,
        observed: ObservedTimes,
        causes: ErrorCause,
        names: Sequence[str],
        *,
        dispatched: bool = False,
        **arguments: Any,
    ) -> None:
        """Start at time 0 with an idle cluster."""
        super().__init__(**arguments)
        self.observed, self.causes, self.dispatched = observed, causes, dispatched
        self.log = DecisionLog(self.jobs, self.cluster, names)
        self.work_done = [math.nan] * len(self.jobs)
        self.until = observed.until
        self._due, self._decide = self._due_call, self._call
        self._matches_observation = True  # whether all starts and resizes so far were at the observed times
        self._resized: Counter[int] = Counter()
        self._effects: dict[int, tuple[float, float]] = {}  # job in an observed resize -> times decided, applied
        if ErrorCause.SUBMISSIONS in causes:
            self.arrivals = Arrivals(observed.submit, self.jobs.waits, self.jobs.ids, moves=False)
        if ErrorCause.WORK in causes:
            if not dispatched:
                self.delays = Delays(
                    replace(self.overheads, end_s=0.0, end_rank_s=0.0)
                )  # the observed work includes them
            self._work = [*map(self._observed_work, range(len(self.jobs)))]

    def _observed_work(self, job: int) -> float:
        """Return the work of `job`, s. The work of a job that was cut short is at least the observed work."""
        planned, work = self.jobs.work[job], self.observed.work
        if work is None or math.isnan(work[job]):
            return planned
        cut = self.observed.state[job] in (JobState.INTERRUPTED, JobState.CANCELLED)
        return max(work[job], planned) if cut else work[job]

    # -- the hooks of the simulator --------------------------------------------------------------------------------

    def _call_time(self, due: float) -> float:
        """Return the observed time of the call that is due at `due`."""
        calls = self.observed.calls
        if ErrorCause.CALLS not in self.causes or not self._matches_observation:
            return due
        number = bisect_left(calls, due)
        return calls[number] if number < len(calls) else due

    def _due_call(self, now: float) -> float:
        return self._call_time(self.scheduler.due(now))

    def _call(self, now: float) -> float:
        self.log.call(now)
        return self._call_time(self.scheduler.decide(now))

    def _process_event(self, now: float, what: int, job: int) -> bool:
        if what == END and self._ends.get(job) == now:
            self._note_work(job, now)
        return super()._process_event(now, what, job)

    def _ended(self, job: int, now: float) -> None:
        """Handle an end. A job that ended in the real run ends in the same state, for other jobs too."""
        seen, record = self.observed, self.record
        # Whether a job is canceled follows from the decisions, not from the real run.
        decided = JobState.CANCELLED in (seen.state[job], record.state[job])
        if ErrorCause.WORK in self.causes and seen.ended(job) and not decided:
            record.state[job], record.reason[job] = seen.state[job], seen.reason[job]
        super()._ended(job, now)

    def _close(self) -> None:
        """Record the final states of the jobs that have not ended: interrupted, if the real run was interrupted."""
        if self.until == math.inf:
            super()._close()
            return
        running = self.scheduler.running
        for job in running:
            self._note_work(job, self.until)
        cut_short(self.record, self.cluster, running, self.until, self.observed.interrupted)

    def _end_at(self, job: int, end: float) -> None:
        """Schedule the end of `job` at `end`, or at the observed end if the cause `CALLS` or rounding requires it."""
        seen = self.observed
        if ErrorCause.WORK in self.causes and seen.started(job) and job not in self._cancelled:
            later = self.record.start[job] - seen.start[job]
            if not seen.ended(job):
                end = max(end, self._after_the_run(later))
            elif ErrorCause.CALLS in self.causes or abs(seen.end[job] + later - end) <= ROUNDING_S:
                end = seen.end[job] + later
        super()._end_at(job, end)

    def _after_the_run(self, later: float) -> float:
        """Return the first instant after the end of the interrupted run for a job that is `later` s later here, s."""
        return math.nextafter(self.until, math.inf) + max(0.0, later)

    def _next_request(self, job: int) -> tuple[float, int]:
        """Return the instant of the next request of `job`, s, and its number; the observed one with the cause `CALLS`.

        In the real run, a later request may have replaced one or more requests.
        """
        if ErrorCause.CALLS not in self.causes or not self._matches_observation:
            return super()._next_request(job)
        first = self._requested.get(job, 0)
        at, requested = next(
            ((at, nodes) for at, nodes in self.observed.requests.get(job, ()) if at > self._now), NEVER
        )
        nodes = [request.nodes for request in self.jobs.requests[job]]
        return at, nodes.index(requested, first) if requested in nodes[first:] else first

    def _note_work(self, job: int, now: float) -> None:
        done, since, rate = self._progress[job]
        self.work_done[job] = done + max(0.0, now - since) * rate

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job`. With the cause `DELAYS`, the work begins after the observed delay."""
        now, seen = self._now, self.observed
        self.log.start(now, job, nodes)
        self._matches_observation &= now == seen.start[job]
        super().start(job, nodes)
        begin = self.record.launched[job]  # NaN: the job waits for its cores
        if ErrorCause.DELAYS in self.causes and seen.started(job):
            if not math.isnan(seen.launched[job]):
                latency = self.delays.launch(job, len(nodes)) if self.dispatched else 0.0
                begin = self.record.launched[job] = seen.launched[job] + (now - seen.start[job]) + latency
            elif ErrorCause.WORK in self.causes:  # the job ended before its work began
                begin, self.record.launched[job] = seen.end[job] + (now - seen.start[job]), math.nan
        if math.isnan(begin):
            return
        self._in_use.clear_wait(job)
        self._progress[job] = (0.0, begin, self._rate(job, nodes))
        self._end_at(job, self._work_end(job) + self.delays.end(job, len(nodes)))

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Resize `job`. With the cause `DELAYS`, the resize takes the times of the real resize of the same number.

        If the real run has no resize of this number, or a resize of the other kind, the resize takes the overheads.
        """
        now = self._now
        self.log.resize(now, job, nodes)
        seen = self._observed_resize(job, len(nodes) - before)
        self._matches_observation &= seen is not None and seen.asked == now
        if seen is None or ErrorCause.DELAYS not in self.causes:
            return super().resize(job, before, nodes)
        self._request_resize(job, before, len(nodes))
        self._pending[job] = nodes
        later = now - seen.asked
        decided, applied, ended = (time + later for time in (seen.decided, seen.applied, seen.ended))
        if math.isnan(ended):  # the real job ended first; if it lasts longer here, the resize takes effect then
            first = self.observed.end[job] + later if self.observed.ended(job) else self._after_the_run(later)
            heappush(self._heap, (first, POINT, job))
        elif ErrorCause.CALLS in self.causes or decided < self._work_end(job):  # else the work ends before the resize
            self._effects[job] = (decided, applied)
            done, since, rate = self._progress[job]
            done += max(0.0, decided - since) * rate
            self._progress[job] = (done, max(applied, since), self._rate(job, nodes))
            self._end_at(job, self._work_end(job) + self.delays.end(job, len(nodes)))
            heappush(self._heap, (ended, POINT, job))
        return False

    def deny(self, job: int, requested: int) -> None:
        """Record that the job does not get `requested` nodes."""
        self.log.deny(self._now, job, requested)
        super().deny(job, requested)

    def change_cores(self, job: int) -> None:
        """Continue the job with its new cores."""
        self.log.change_cores(self._now, job)
        super().change_cores(job)

    def reject(self, job: int, reason: str) -> None:
        """Record that `job` is rejected."""
        self.log.refuse(self._now, "reject", job, reason)
        super().reject(job, reason)

    def cancel(self, job: int, reason: str) -> None:
        """End the job now or, with the cause `WORK`, after the observed time."""
        now, seen = self._now, self.observed
        self.log.refuse(now, "cancel", job, reason)
        if job in self._cancelled:
            return
        if ErrorCause.WORK not in self.causes or job not in seen.cancelled:
            super().cancel(job, reason)
        elif seen.state[job] == JobState.CANCELLED:  # else the job ended before its processes were killed
            self._cancelled[job] = reason
            self._end_at(job, seen.end[job] + (now - seen.cancelled[job]))

    def _work_end(self, job: int) -> float:
        """Return the time at which the work of `job` ends at its current rate, s."""
        done, since, rate = self._progress[job]
        return since + max(0.0, self._work[job] - done) / rate

    def _observed_resize(self, job: int, added: int) -> ObservedResize | None:
        """Return the observed resize of the same number, or None if it is missing or of the other kind."""
        number = self._resized[job]
        self._resized[job] += 1
        resizes = self.observed.resizes.get(job, ())
        resize = resizes[number] if number < len(resizes) else None
        return resize if resize is not None and (resize.added > 0) == (added > 0) else None

    def _take_effect(self, job: int, nodes: list[int]) -> bool:
        """Continue `job` on `nodes`; return whether the resize is complete. An observed resize is complete at once."""
        if job not in self._effects:
            return super()._take_effect(job, nodes)
        self.record.resize_applied(job, *self._effects.pop(job), self._now)
        return True
