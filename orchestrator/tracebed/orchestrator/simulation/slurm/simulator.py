"""A simulation of Slurm on a cluster whose jobs share nodes, in Python. The compiled engine returns the same."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Generator, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.slurm import CHANGED, COMPUTED, FEW, Slurm
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Rules
from tracebed.orchestrator.scheduling.slurm.conditions import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Arrays,
    Conditions,
    Progress,
)
from tracebed.orchestrator.scheduling.slurm.depth import Depth, considered
from tracebed.orchestrator.scheduling.slurm.entries import Entries
from tracebed.orchestrator.scheduling.slurm.licenses import LicensePlan, Licenses, suffice
from tracebed.orchestrator.scheduling.slurm.limits import Counters
from tracebed.orchestrator.scheduling.slurm.multifactor import FairShare
from tracebed.orchestrator.scheduling.slurm.outlook import Bookings, Outlook
from tracebed.orchestrator.scheduling.slurm.plan import Tasks, Waiting, backfill
from tracebed.orchestrator.scheduling.slurm.preemption import Preemption
from tracebed.orchestrator.scheduling.slurm.resources import Parts, Running
from tracebed.orchestrator.scheduling.slurm.together import Together
from tracebed.orchestrator.scheduling.state import Decision, Note, Wake
from tracebed.orchestrator.scheduling.ticks import next_multiple
from tracebed.orchestrator.simulation.slurm.accounted import Accounted
from tracebed.orchestrator.simulation.slurm.inputs import (
    CHANGE,
    CHECK_S,
    COMPUTE,
    END,
    ENDED,
    KILLED,
    NEVER,
    NOTICE,
    SUBMIT,
    WAKE,
    Inputs,
    Outcome,
)
from tracebed.orchestrator.simulation.slurm.preempting import Preempting
from tracebed.orchestrator.simulation.slurm.queued import Queued

GIVE_UP_S = 86400.0
"""If nothing can change the decisions any more, and no job has started for this time, the waiting jobs never start."""


class _Shared(Slurm):
    """The instants of the passes as in `Slurm`; the passes are those of the cluster."""

    def _main(self, state: Any, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        passed: tuple[bool, bool] = yield from state.main(self, at)
        return passed

    def _backfill(self, state: Any, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        passed: tuple[bool, bool] = yield from state.backfill(self, at)
        return passed

    def _changed(self, state: Any) -> int:
        return int(state.changed)

    def _held(self, state: Any) -> float:
        return float(state.held)

    def _waits(self, state: Any) -> bool:
        return bool(state.waited)

    def full(self, state: Any, at: float) -> bool:
        """Return whether a pass of the main loop goes through the whole queue."""
        return bool(at - state.notes.get("full_last", self.sched_phase_s) >= self.sched_interval)


class Simulation(Accounted, Queued, Preempting):
    """The cluster in virtual time. The attributes without underscore are what `Slurm.decide` reads.

    Attributes:
        now: the instant, s.
        notes: notes of the policy.
        arrived: jobs that have been submitted since the last call of the policy, and wait.
        freed: whether another event has happened since then.
        changed: whether a condition of a start may be met since then, without an event (`CHANGED`), or whether the
            priorities have been computed (`COMPUTED`).
        waited: number of the waiting jobs that could have started before, but for the resources.
        queue: the waiting jobs, in the order of their submission.
    """

    def __init__(self, inputs: Inputs, policy: Slurm) -> None:
        """Start with the empty cluster."""
        self.now = 0.0
        self.notes: dict[str, float] = {}
        self.arrived: list[int] = []
        self.freed, self.changed = False, 0
        self.waited = 0
        self.queue: list[int] = []
        self._in, self._policy = inputs, _Shared(**{**vars(policy), "cluster": "", "reservations": "", "seed": 0})
        count = len(inputs.submit)
        self._free = inputs.free.copy()
        self._free.newer = policy.rules.newer
        self._everything = mask_of(range(len(inputs.free.total)))
        self._running: list[Running] = []
        self._priority = [0] * count
        self._events: list[tuple[float, int, int, int]] = []
        self._sequence = 0
        self._left = count
        self._upcoming = 0  # events that may change decisions
        self._last = 0.0  # the last of them, or of the starts
        self._wake = math.inf
        self._fairness = FairShare(inputs.associations, self._second(max(inputs.begin_s, inputs.submit[0])))
        if inputs.usage:
            self._fairness.resume(inputs.usage, inputs.factors, self._second(inputs.begin_s))
        self._counters = Counters(inputs.limits)
        self._amounts = {}
        self._to_start = 0 if inputs.watched else -1
        self._parts: list[Parts] = [{}] * count
        start, launched, end, active = ([NEVER] * count for _ in range(4))
        self._out = Outcome(start, launched, end, active, [ENDED] * count, [0] * count, [-1] * count, self._parts, [])
        self._nodes_of: list[int] = [0] * len(inputs.tier)
        for request, partition in zip(inputs.requests, inputs.partition, strict=True):
            self._nodes_of[partition] |= request.eligible
        self._conditions = inputs.conditions or Conditions.none(count)
        self._progress = Progress(self._conditions)
        self._entries = inputs.entries or Entries.of(range(count))
        self._withdrawn = [False] * count
        self._ready = [
            not dependencies and earliest == -math.inf
            for dependencies, earliest in zip(self._conditions.dependencies, self._conditions.earliest, strict=True)
        ]
        self._since = [  # from when on each job waits, for its age
            math.inf if dependencies else submit
            for dependencies, submit in zip(self._conditions.dependencies, inputs.submit, strict=True)
        ]
        self._arrays = inputs.arrays or Arrays.none(count)
        self._tasks = [0] * len(self._arrays.most)  # running tasks of each array
        parts = len(inputs.tier)  # all tasks of an array in a partition are one entry of Slurm's queue
        self._entry_of = [
            array if array < 0 else array * parts + partition
            for array, partition in zip(self._arrays.of, inputs.partition, strict=True)
        ]
        self._licenses = inputs.licenses or Licenses.none(count)
        self._left_licenses = [*self._licenses.total]
        self._bookings = inputs.bookings or Bookings.none(count)
        self._preemption = inputs.preemption or Preemption.none(count)
        self._earliest = [*self._conditions.earliest]
        self._shortest = inputs.shortest or [0] * count
        self._deadline = inputs.deadline or [math.inf] * count
        self._limit = [*inputs.limit]  # with which each job starts
        self._group = inputs.together or [-1] * count
        self._together = Together(self._group, self._entries.first) if inputs.together else None
        self._due = [NEVER] * count  # instant of the valid event at the end of each job
        self._asleep: dict[int, tuple[float, float]] = {}

    def run(self) -> Outcome:
        """Simulate until all jobs have ended, or all watched ones have started."""
        self.now = self._in.begin_s
        for job, submit in enumerate(self._in.submit):
            if self._in.held and self._in.held[job]:
                self._counters.count(job, None, 1)
                self._run(job, dict(self._in.held[job]), self._in.since[job])
            else:
                self._at(max(submit, self._in.begin_s), SUBMIT, job)
                self._to_start += job < self._in.watched
        for instant in self._bookings.notices:
            self._at(instant, NOTICE, 0)
        for instant in sorted({float(each.end) - self._policy.epoch_s for each in self._bookings.booked}):
            self._at(instant, CHANGE, 0)
        if self._in.age or self._in.fairshare:
            self._at(self._in.first_period_s, COMPUTE, 0)
        while self._left and self._to_start and self._events:
            if not self._upcoming and self._events[0][0] > self._last + GIVE_UP_S:
                break
            self.now = self._events[0][0]
            if self._handle():
                self._decide()
        return self._out

    def _handle(self) -> bool:
        """Handle the events of this instant, and return whether the policy must be called."""
        call = False
        while self._events and self._events[0][0] == self.now:
            _, _, kind, job = heappop(self._events)
            if kind == COMPUTE:
                self._compute()
                self._at(self.now + self._in.period_s, COMPUTE, 0)
                self.changed, call = COMPUTED, True
            elif kind == WAKE:
                call = call or self._wake == self.now
            else:
                self._upcoming -= 1
                if kind == END and self._due[job] != self.now:
                    continue  # the job has been preempted
                self._last = self.now
                if kind == CHANGE:
                    self.changed = self.changed or CHANGED
                elif kind == NOTICE:
                    self.freed = True
                else:
                    (self._submit if kind == SUBMIT else self._end)(job)
                call = True
        return call

    def _decide(self) -> None:
        """Call the policy, and note when it must be called again."""
        self._wake = math.inf
        while True:
            again = math.inf
            for decision in self._policy.decide(self):  # type: ignore[arg-type]
                if isinstance(decision, Note):
                    self.notes[decision.name] = decision.value
                elif isinstance(decision, Wake):
                    again = decision.at
            self.waited = sum(self._ready[job] and not self._full(job) for job in self.queue)
            self.arrived, self.freed, self.changed = [], False, 0
            if again > self.now:
                break
        if again < math.inf:
            self._wake = again
            self._at(again, WAKE, 0)

    def _at(self, instant: float, kind: int, job: int) -> None:
        heappush(self._events, (instant, self._sequence, kind, job))
        self._sequence += 1
        self._upcoming += kind not in (COMPUTE, WAKE)

    # -- events -------------------------------------------------------------------------------------------------------

    def _end(self, job: int) -> None:
        """Release the nodes of a job."""
        self._due[job] = NEVER  # a job that is suspended and resumes at once has two events at its end
        parts = self._parts[job]
        self._free.release(self._in.requests[job], parts)
        self._running = [other for other in self._running if other.job != job]
        user, billing, start = self._use(job)
        self._fairness.use(user, billing, start, self._second(self.now))
        self._counters.count(job, self._amounts[job], -1)
        failed = self._out.fate[job] != ENDED or self._conditions.fails[job]
        self._count(job, -1)
        first = self._entries.first[job]
        if self._requeued(job):
            self._progress.set(first, WAITING, self.now)
        else:
            self._progress.set(first, FAILED if failed else DONE, self.now)
            self._counters.count(first, None, -1)
            self._left -= sum(1 for _ in self._entries.siblings(job))
        self._resume()
        self.freed = True

    def _run(self, job: int, parts: dict[int, int], start: float) -> None:
        """Let a job run on the cores `parts` since `start`."""
        inputs, request, limit = self._in, self._in.requests[job], self._limit[job]
        self._free.take(request, parts)
        insort(self._running, Running(self._second(start) + limit, job, request, parts, mask_of(parts.keys())))
        self._out.start[job], self._parts[job] = start, parts
        self._amounts[job] = self._amounts_of(job, parts)
        self._counters.count(job, self._amounts[job], 1)
        self._out.launched[job] = launched = start + inputs.launch_s[job]
        most = self._bookings.most(job, self._second(start), limit)
        end, allowed = launched + inputs.run_time[job], most + (inputs.over_limit_s[job] if most == limit else 0.0)
        if inputs.run_time[job] > most:
            end = min(end, self._killed(job, start, most, allowed))
        self._out.fate[job] = KILLED if inputs.run_time[job] > allowed else ENDED
        end = max(end, self.now)
        self._out.end[job], self._out.active[job] = end, start
        self._due[job] = end + inputs.end_s[job]
        self._at(self._due[job], END, job)
        self._lapse(job)
        self._progress.set(self._entries.first[job], RUNNING, start)
        self._count(job, 1)
        self._last = self.now

    def _killed(self, job: int, start: float, most: int, allowed: float) -> float:
        """Return when slurmctld kills a job with the limit `most`, s, that may run for `allowed` seconds."""
        overrun = self._in.overrun_s[job]
        if not math.isnan(overrun):
            return start + most + overrun
        end = self._second(start) + allowed
        return next_multiple(CHECK_S, end - self._policy.epoch_s, origin=self._in.check_s)

    # -- passes -------------------------------------------------------------------------------------------------------

    def main(self, policy: _Shared, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Start jobs in order. A job that does not fit, and that no limit holds, blocks its partition and its nodes."""
        depth = policy.default_queue_depth
        if policy.full(self, at):
            yield Note("full_last", at)
            depth = len(self._in.submit)
        started = tested = 0
        left = False
        usable, blocked = self._everything, set[int]()
        last = -1
        of_part = [0] * len(self._in.tier)
        second, busy = self._second(at), set[int]()  # reservations whose jobs do not fit
        for job in self._ordered():
            partition, own, inside = self._in.partition[job], self._entry_of[job], self._bookings.inside[job]
            if self._group[job] >= 0:  # only backfill starts components of heterogeneous jobs
                blocked.add(partition)
                usable &= ~self._nodes_of[partition]
                continue
            if self._withdrawn[job] or (inside in busy if inside >= 0 else partition in blocked) or self._full(job):
                continue
            if self._expired(job, second) or self._counters.held(job) >= 0:
                continue
            entry = own < 0 or own != last
            last = own
            of_part[partition] += entry
            if 0 < self._in.job_depth < of_part[partition]:
                left = True
                continue
            if (entry and tested == depth) or 0 < policy.sched_max_job_start == started:
                left = True
                break
            tested += entry
            if not suffice(self._left_licenses, self._licenses.wanted[job]):
                if self._licenses.planned:
                    break  # backfill plans the licences
                continue
            request, limit = self._in.requests[job], self._until_deadline(job, second)
            self._limit[job], allowed = limit, self._bookings.allowed(job, second, limit)
            parts = self._free.choose(request, usable & allowed)
            if self._exceeds(job, parts):
                continue
            if (
                parts is None
                and (candidates := self.candidates(job))
                and self.preempt(job, usable & allowed, candidates)[0]
            ):
                started += 1
            elif parts is not None:
                self._start(job, parts)
                started += 1
            elif inside >= 0:
                busy.add(inside)
            elif request.eligible & ~(usable & allowed) and self._in.free.choose(request, usable & allowed) is None:
                continue  # it waits for nodes of other partitions, or for the end of a reservation
            elif not self._young(policy, job):
                blocked.add(partition)
                usable &= ~self._nodes_of[partition]
        return started > 0, left

    def backfill(self, policy: _Shared, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Make a backfill pass. Return whether any job started, and whether work is left without another event."""
        second = self._second(at)
        order = [job for job in self._ordered() if not self._expired(job, second) and not self._withdrawn[job]]
        few = len(order) <= FEW and not any(self._idle(job) for job in order)
        if self._together:
            self._together.begin()
        room = [most - tasks if most else None for most, tasks in zip(self._arrays.most, self._tasks, strict=True)]
        tasks = Tasks(
            room,
            self._in.array_reservations,
            one_reservation=self._entries.one_reservation,
            together=self._together,
        )
        plan = backfill(
            second,
            self._free,
            self._running,
            self._tested(policy, order),
            everything=self._everything,
            rules=policy.rules,
            window=policy.bf_window * 60,
            table=policy.bf_node_space_size or policy.bf_max_job_test,
            reservations=policy.bf_job_part_count_reserve,
            kill_wait=self._in.kill_wait_s,
            tasks=tasks,
            outlook=self._outlook(second, policy.rules),
        )
        started = 0
        for planned in plan:
            if planned.parts and self._exceeds(planned.job, planned.parts):
                continue
            if planned.parts:  # else it has started in place of suspended jobs
                self._limit[planned.job] = min(planned.limit, self._until_deadline(planned.job, second))
                self._start(planned.job, planned.parts)
            started += 1
            if started == policy.bf_max_job_start:
                yield Note("bf_quiet", 0.0)
                return True, True
        for jobs in self._together.ready(second) if self._together else ():
            started += self._start_components(jobs, second)
        yield Note("bf_quiet", float(few and not started and not tasks.noticed))
        return started > 0, policy.bf_min_age_reserve > 0 and bool(self.queue)

    def _start_components(self, jobs: Sequence[int], now: int) -> int:
        """Start the components of a heterogeneous job, each on nodes of its own, if all fit; return their number."""
        chosen, used, licenses = list[tuple[int, dict[int, int]]](), 0, self._left_licenses
        counted = list[tuple[int, Sequence[int]]]()
        for job in jobs:
            allowed = self._bookings.allowed(job, now, self._limit[job])
            parts = self._free.choose(self._in.requests[job], self._everything & allowed & ~used)
            wanted = self._licenses.wanted[job]
            if parts is None or not suffice(licenses, wanted):
                break
            if self._counters.held(job) >= 0 or self._exceeds(job, parts):
                break
            licenses = [free - own for free, own in zip(licenses, wanted, strict=True)]
            chosen.append((job, parts))
            used |= mask_of(parts.keys())
            counted.append((job, self._amounts_of(job, parts)))
            self._counters.count(*counted[-1], 1)
        for job, amounts in counted:
            self._counters.count(job, amounts, -1)
        if len(chosen) < len(jobs) or not all(job in self.queue for job in jobs):
            return 0
        for job, parts in chosen:
            self._limit[job] = min(self._limit[job], self._until_deadline(job, now))
            self._start(job, parts)
        return len(jobs)

    def _idle(self, job: int) -> bool:
        """Return whether a node that a job may use is idle."""
        return any(self._free.idle(node) for node in nodes_of(self._in.requests[job].eligible))

    def _outlook(self, now: int, rules: Rules) -> Outlook | None:
        """Return the reservations and licences for a backfill pass; None: there are none."""
        preempts = any(self._preemption.may)
        if not self._bookings.booked and not self._licenses.total and not preempts:
            return None
        licenses = LicensePlan(self._licenses, self._left_licenses)
        for each in self._running:
            licenses.hold(each.job, now, max(rules.end(each.end), now + 1))
        return Outlook(self._bookings, licenses, self if preempts else None)

    def _tested(self, policy: _Shared, order: Sequence[int]) -> Iterator[Waiting]:
        """Yield the jobs that a backfill pass plans.

        A job that a limit holds now is not planned. If the limit is one on running jobs, the job is not counted.
        """
        own = self._in
        depth = Depth(policy.bf_max_job_test, own.part_test, own.user_part_test, policy.bf_max_job_user)
        tested = (job for job in order if not self._withdrawn[job] and self._counters.held(job) < 0)
        for job in considered(tested, depth, self._entry_of, own.partition, own.user):
            if not self._exceeds(job, None):
                reserve = own.reserve[job] and not self._young(policy, job)
                array, entry, first = self._arrays.of[job], self._entry_of[job], self._entries.first[job]
                among = self._nodes_of[own.partition[job]]
                limit = own.limit[job]
                cut = 0 < self._shortest[job] < limit and self._deadline[job] == math.inf
                self._limit[job] = self._shortest[job] if cut else limit
                longest, component = limit if cut and policy.rules.extends else 0, self._group[job] >= 0
                which = (reserve, array, entry, first, among, longest, component)
                yield Waiting(job, own.requests[job], self._limit[job], *which)

    @property
    def held(self) -> float:
        """Until when no job starts, since other jobs are completing (`CompleteWait`), s."""
        end, due, wait = self._out.end, self._due, self._in.complete_wait_s
        completing = (each.job for each in self._running if wait and end[each.job] <= self.now < due[each.job])
        until = (min(self._second(end[job]) + wait + 1 - self._policy.epoch_s, due[job]) for job in completing)
        return max(until, default=-math.inf)

    def _young(self, policy: _Shared, job: int) -> bool:
        return self.now - self._since[job] < policy.bf_min_age_reserve
