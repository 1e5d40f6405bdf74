"""A simulation of Slurm on a cluster whose jobs share nodes, in Python. slurm.c returns the same, to the bit."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial, reduce
from heapq import heappop, heappush
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.slurm_simulation.accounting import Counters, FairShare
from tests.oracles.slurm_simulation.backfill import (
    Depth,
    LicensePlan,
    Outlook,
    Planned,
    PlannedSlots,
    Reservations,
    Tasks,
    Together,
    Waiting,
    backfill,
    considered,
    suffice,
)
from tests.oracles.slurm_simulation.layer import LAYER, Layer
from tests.oracles.slurm_simulation.nodes import Nodes, Running
from tests.oracles.slurm_simulation.power import BEGIN, BOOTED, LOOK, Power
from tracebed.orchestrator.scheduling.dependencies import AFTER, AFTER_ANY, AFTER_OK, SINGLETON, Condition
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.slurm import CHANGED, COMPUTED, FEW, Slurm
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Rules
from tracebed.orchestrator.scheduling.policies.wall_times import ROUNDING_S
from tracebed.orchestrator.scheduling.state import Decision, Note, Wake, next_multiple
from tracebed.slurm.machine import MINUTE_S
from tracebed.slurm.simulation.inputs import (
    BACK,
    CHECK_S,
    DOWN,
    ENDED,
    KILLED,
    LOST,
    PREEMPTED,
    REQUEUE,
    SUSPEND,
    Arrays,
    Availability,
    Bookings,
    Conditions,
    Entries,
    Inputs,
    Licenses,
    Outcome,
    Preemption,
    Stint,
    amounts_of,
    billed,
)
from tracebed.slurm.simulation.resources import Parts, Request

# -- dependencies ------------------------------------------------------------------------------------------------------

WAITING, RUNNING, DONE, FAILED, CANCELLED, STUCK = range(6)
"""States of a job. `CANCELLED`: Slurm has removed the job from the queue. `STUCK`: the job waits forever."""
OPEN, MET, IMPOSSIBLE = range(3)


class Progress:
    """What has become of the jobs, as far as conditions depend on it."""

    def __init__(self, conditions: Conditions) -> None:
        """Start before the first submission."""
        self._of = conditions
        count = len(conditions.earliest)
        self.state = [WAITING] * count
        self._start = [math.nan] * count
        groups = max(conditions.group, default=-1) + 1
        self._members: list[list[int]] = [[] for _ in range(groups)]
        self._first = [0] * groups  # place of the first member that has not ended
        self._running = [0] * groups
        for job, group in enumerate(conditions.group):
            if group >= 0:
                self._members[group].append(job)

    def set(self, job: int, state: int, now: float) -> None:
        """Record that the state of a job is `state` from `now` on."""
        if (group := self._of.group[job]) >= 0:
            self._running[group] += (state == RUNNING) - (self.state[job] == RUNNING)
        self.state[job] = state
        if state in (RUNNING, CANCELLED):
            self._start[job] = now

    def check(self, job: int, now: float, first: int = -1) -> tuple[int, float]:
        """Return whether the conditions are met, and when a condition that waits for an instant may be met (inf).

        `first`: the first entry of the job, if it is in several partitions (`entries`). Its state is that of the job.
        """
        if first >= 0 and self.state[first] in (CANCELLED, STUCK):
            return IMPOSSIBLE, math.inf  # another entry of the job has found out
        later, any_of, undecided = math.inf, self._of.any_of[job], False
        for condition in self._of.dependencies[job]:
            result, at = self._check(job if first < 0 else first, condition, now)
            if result == (MET if any_of else IMPOSSIBLE):
                return result, math.inf
            undecided = undecided or result == OPEN
            later = min(later, at)
        return (OPEN if undecided else IMPOSSIBLE if any_of else MET), later

    def _check(self, job: int, condition: Condition, now: float) -> tuple[int, float]:
        if condition.kind == SINGLETON:
            return self._alone(job, condition.of), math.inf
        state = self.state[condition.of]
        if state == STUCK:
            return IMPOSSIBLE, math.inf
        if state == WAITING:
            return OPEN, math.inf
        if condition.kind == AFTER:
            at = self._start[condition.of] + condition.delay_s
            return (MET, math.inf) if at <= now else (OPEN, at)
        if state == RUNNING:
            return OPEN, math.inf
        if condition.kind == AFTER_ANY:
            return MET, math.inf
        return MET if (state == DONE) == (condition.kind == AFTER_OK) else IMPOSSIBLE, math.inf

    def _alone(self, job: int, group: int) -> int:
        """Return whether no job of the group runs, and none waits that was submitted before `job`."""
        members = self._members[group]
        while self.state[members[self._first[group]]] in (DONE, FAILED, CANCELLED):
            self._first[group] += 1  # at the latest, this job itself has not ended
        first = members[self._first[group]]
        if first < job and self.state[first] == STUCK:
            return IMPOSSIBLE
        return OPEN if self._running[group] or first < job else MET


# -- preemption --------------------------------------------------------------------------------------------------------

REQUEUED_S = 121.0
"""A requeued job waits at least this long, s: as tried on Slurm 22.05.8, its begin time is that much later."""


@dataclass(frozen=True)
class Preempting(Preemption):
    """Classes of jobs, and which running jobs each waiting job may preempt."""

    @property
    def levels(self) -> list[int]:
        """Number of classes whose jobs a job of each class may preempt."""
        return [may.bit_count() for may in self.may]

    def candidates(
        self, job: int, running: Sequence[Running], start: Sequence[float], now: float, clock: Callable[[float], int]
    ) -> list[Running]:
        """Return the running jobs that `job` may preempt, in the order in which they are preempted.

        `clock` returns the whole second of Slurm's clock at an instant.
        """
        may = self.may[self.of[job]]
        if not may:
            return []
        found = [
            self._yielding(each)
            for each in running
            if may >> self.of[each.job] & 1 and self._exposed(each.job, clock(now) - clock(start[each.job]))
        ]

        def key(each: Running) -> tuple[float, int, int]:
            if self.youngest:
                return -start[each.job], 0, each.job
            return self.rank[self.of[each.job]], len(each.parts), each.job

        return sorted(found, key=key)

    def _yielding(self, each: Running) -> Running:
        """Return what a preempted job releases: a suspended one keeps its memory and generic resources."""
        if self.mode[self.of[each.job]] != SUSPEND:
            return each
        nothing = (0,) * len(each.request.gres)
        return each._replace(request=each.request._replace(whole=False, memory=0, by_core=False, gres=nothing))

    def _exposed(self, job: int, seconds: int) -> bool:
        """Return whether a job that has run for so many seconds may be preempted."""
        return seconds >= self.exempt_of(job)

    def exempt_of(self, job: int) -> float:
        """Return the time after its start in which a job is not preempted, s."""
        of = self.of[job]
        return 0.0 if self.mode[of] == SUSPEND else self.exempt_s[of]

    @cached_property
    def yielding(self) -> int:
        """Mask of the classes whose jobs may be preempted."""
        return reduce(or_, self.may)


class Choice(NamedTuple):
    """The jobs that are preempted, and the cores by node that the other job gets."""

    victims: list[Running]
    parts: dict[int, int]


def choose(request: Request, usable: int, free: Nodes, candidates: Sequence[Running], again: int) -> Choice | None:
    """Choose the jobs to preempt among `candidates`; None: the job does not fit in place of all of them.

    The candidates are taken one after another until the job fits. Then they are sorted again, the last one first and
    the others by the number of nodes that the job would use, and taken again. Only jobs on the nodes of the job are
    preempted.
    """
    order = [each for each in candidates if each.nodes & usable]
    while True:
        taken, parts, expected = list[Running](), None, free.copy()
        for each in order:
            expected.release(each.request, each.parts)
            taken.append(each)
            parts = expected.choose(request, usable)
            if parts is not None:
                break
        if parts is None:
            return None
        nodes = mask_of(parts.keys())
        if again == 0 or len(taken) == 1:
            return Choice([each for each in taken if each.nodes & nodes], parts)
        again -= 1
        last = taken[-1]
        order = sorted(taken, key=lambda each: (each is not last, -(each.nodes & nodes).bit_count()))


# -- the simulation ----------------------------------------------------------------------------------------------------

NEVER = math.nan
SUBMIT, END, COMPUTE, WAKE, CHANGE, NOTICE, OUTAGE = range(7)
"""Kinds of events. `CHANGE`: a condition of a start may be met, which slurmctld does not notice at once. `NOTICE`:
slurmctld notices that an advance reservation has begun or ended. `OUTAGE`: a change of a node, by its number."""
GIVE_UP_S = 86400.0
"""If nothing can change the decisions any more, and no job has started for this time, the waiting jobs never start."""


def siblings(entries: Entries, entry: int) -> Iterator[int]:
    """Yield the entries of the job of an entry."""
    each = entries.first[entry]
    while each >= 0:
        yield each
        each = entries.following[each]


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


def _listed(part: Any) -> Any:
    """Return inputs, or a part of them, with columns that are lists: NumPy's scalars are slow, and print otherwise."""
    every = {each.name: getattr(part, each.name) for each in fields(part)}
    changed = {name: values.tolist() for name, values in every.items() if isinstance(values, np.ndarray)}
    return replace(part, **changed, **{name: _listed(own) for name, own in every.items() if is_dataclass(own)})


class Simulation:
    """The cluster in virtual time. The attributes without underscore are what `Slurm.decide` reads.

    `arrived` are the jobs that have been submitted since the last call of the policy, and wait; `freed`: another event
    has happened since then; `changed`: a condition of a start may be met since then, without an event (`CHANGED`), or
    the priorities have been computed (`COMPUTED`). `waited` jobs could have started before, but for the resources. The
    queue is in the order of the submissions.
    """

    def __init__(self, inputs: Inputs, policy: Slurm) -> None:
        """Start with the empty cluster."""
        self.now = 0.0
        self.notes: dict[str, float] = {}
        self.arrived: list[int] = []
        self.freed, self.changed = False, 0
        self.waited = 0
        self.queue: list[int] = []
        inputs = _listed(inputs)
        self._in, self._policy = inputs, _Shared(**{**vars(policy), "seed": 0})
        count = len(inputs.submit)
        self._empty, self._free = Nodes.of(inputs.free), Nodes.of(inputs.free)
        self._free.newer = policy.rules.newer
        self._up = mask_of(range(len(inputs.free.total)))  # nodes without an outage
        self._availability = inputs.availability or Availability()
        self._running: list[Running] = []
        self._priority = [0] * count
        self._events: list[tuple[float, int, int, int]] = []
        self._sequence = 0
        self._left = count - (inputs.resizing.expanders if inputs.resizing else 0)
        self._upcoming = 0  # events that may change decisions
        self._last = 0.0  # the last of them, or of the starts
        self._wake = math.inf
        self._fairness = FairShare(inputs.associations, self._second(max(inputs.begin_s, inputs.submit[0])))
        if inputs.usage:
            self._fairness.resume(inputs.usage, inputs.factors, self._second(inputs.begin_s))
        self._counters = Counters(inputs.limits)
        self._amounts: dict[int, Sequence[int]] = {}  # what each running job holds, by kind
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
        self._withdrawn = [False] * count  # whether the job of an entry has started, or has missed its deadline
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
        self._bookings = Reservations(**vars(inputs.bookings or Bookings.none(count)))
        self._preemption = Preempting(**vars(inputs.preemption or Preemption.none(count)))
        self._earliest = [*self._conditions.earliest]
        self._shortest = inputs.shortest or [0] * count
        self._deadline = inputs.deadline or [math.inf] * count
        self._limit = [*inputs.limit]  # with which each job starts
        self._group = inputs.het_job or [-1] * count
        self._together = Together(self._group, self._entries.first) if inputs.het_job else None
        self._due = [NEVER] * count  # instant of the valid event at the end of each job
        self._asleep: dict[int, tuple[float, float]] = {}  # suspended job -> the instant, and the time until its end
        self._layer = Layer(self, inputs.resizing) if inputs.resizing else None
        self._power = Power(self, inputs.saving) if inputs.saving else None

    def run(self) -> Outcome:
        """Simulate until all jobs have ended, or all watched ones have started."""
        self.now = self._in.begin_s
        for job, submit in enumerate(self._in.submit[: self._left]):
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
        for number, change in enumerate(self._availability.changes):
            self._at(change.at, OUTAGE, number)
        if self._in.age or self._in.fairshare:
            self._at(self._in.first_period_s, COMPUTE, 0)
        if self._power:
            self._power.plan()
        while self._left and self._to_start and self._events:
            if not self._upcoming and self._events[0][0] > self._last + GIVE_UP_S:
                break
            self.now = self._events[0][0]
            if self._handle():
                self._decide()
            if self._layer:
                self._layer.plan()
        if self._power:
            self._out.switched = self._power.switched
        return self._layer.outcome(self._out) if self._layer else self._out

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
            elif kind == LOOK:
                if self._power and self._power.due == self.now and self._power.look():
                    self.changed = self.changed or CHANGED  # nodes may be allocated again; no scheduler is told
                    call = True
            else:
                self._upcoming -= 1
                if kind == END and self._due[job] != self.now:
                    continue  # the job has been preempted
                self._last = self.now
                if self._power and kind == BOOTED:
                    self._power.booted(job)
                    continue
                if self._power and kind == BEGIN:
                    if self._power.is_ready(job):
                        self._begin(job, self.now)
                    continue
                if self._layer and kind >= LAYER:
                    call = self._layer.handle(kind, job) or call
                    continue
                if self._layer:
                    self._layer.touched = True
                if kind == CHANGE:
                    self.changed = self.changed or CHANGED
                elif kind == NOTICE:
                    self.freed = True
                elif kind == OUTAGE:
                    self._change_node(job)
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
            self.waited += len(self._layer.asking) if self._layer else 0
            self.arrived, self.freed, self.changed = [], False, 0
            if again > self.now:
                break
        if again < math.inf:
            self._wake = again
            self._at(again, WAKE, 0)

    def _at(self, instant: float, kind: int, job: int) -> None:
        heappush(self._events, (instant, self._sequence, kind, job))
        self._sequence += 1
        self._upcoming += kind not in (COMPUTE, WAKE, LOOK)

    # -- events -------------------------------------------------------------------------------------------------------

    def _end(self, job: int) -> None:
        """Release the nodes of a job."""
        if self._layer:
            self._layer.ended(job)
        self._due[job] = NEVER  # a job that is suspended and resumes at once has two events at its end
        parts = self._parts[job]
        self._free.release(self._in.requests[job], parts)
        self._running = [other for other in self._running if other.job != job]
        user, billing, start = self._use(job)
        self._fairness.use(user, billing, start, self._second(self.now))
        self._counters.count(job, self._amounts[job], -1)
        if self._power:
            self._power.ended(job, [*parts])
        failed = self._out.fate[job] != ENDED or self._conditions.fails[job]
        self._count(job, -1)
        first = self._entries.first[job]
        if self._requeued(job):
            self._progress.set(first, WAITING, self.now)
        else:
            self._progress.set(first, FAILED if failed else DONE, self.now)
            self._counters.count(first, None, -1)
            self._left -= sum(1 for _ in siblings(self._entries, job))
        self._resume()
        self.freed = True

    def _change_node(self, number: int) -> None:
        """Begin or end an outage of a node. Jobs on a node that is down end now, also suspended ones."""
        _, node, kind = self._availability.changes[number]
        self.freed = True
        if kind == BACK:
            self._up |= 1 << node
            return
        self._up &= ~(1 << node)
        for each in [each for each in self._running if kind == DOWN and node in each.parts]:
            if self._layer and self._layer.is_expander(each.job):
                self._layer.withdraw(each.job)
                continue
            if self._asleep.pop(each.job, None):
                self._out.active[each.job], self._out.end[each.job] = self.now, math.inf
            self._kill(each.job, 0, LOST)

    def _run(self, job: int, parts: dict[int, int], start: float) -> None:
        """Let a job run on the cores `parts` since `start`."""
        request, limit = self._in.requests[job], self._limit[job]
        self._free.take(request, parts)
        self._insert(Running(self._second(start) + limit, job, request, parts, mask_of(parts.keys())))
        self._out.start[job], self._parts[job] = start, parts
        self._amounts[job] = self._amounts_of(job, parts)
        self._counters.count(job, self._amounts[job], 1)
        self._out.active[job] = start
        if self._power and self._power.started(job, [*parts]):
            self._out.end[job] = math.inf
        else:
            self._begin(job, start)
        self._progress.set(self._entries.first[job], RUNNING, start)
        self._count(job, 1)
        self._last = self.now
        if self._layer:
            self._layer.started(job)

    def _begin(self, job: int, start: float) -> None:
        """Let a job begin on nodes that run. Slurm counts its start, and its limit, from now on."""
        inputs = self._in
        if self._out.start[job] != start:
            self._out.start[job] = self._out.active[job] = start
            self._progress.set(self._entries.first[job], RUNNING, start)
            if self._out.end[job] < math.inf:
                return  # it is preempted
            self._expect(job, self._second(start) + self._limit[job])
        self._out.launched[job] = launched = start + inputs.launch_s[job]
        most = self._bookings.most(job, self._second(start), self._limit[job])
        self._ends(job, launched + inputs.run_time[job], inputs.run_time[job], most)
        self._lapse(job)

    def _insert(self, running: Running) -> None:
        """Add a running job."""
        insort(self._running, running)

    def _ends(self, job: int, end: float, ran: float, most: int) -> None:
        """Let a job end when its work is done at `end`, after it `ran`, unless Slurm kills it at the limit `most`."""
        allowed = most + (self._in.over_limit_s[job] if most == self._limit[job] else 0.0)
        if ran > most:
            end = min(end, self._killed(job, self._out.start[job], most, allowed))
        self._out.fate[job] = KILLED if ran > allowed else ENDED
        self._out.end[job] = max(end, self.now)
        self._due[job] = self._out.end[job] + self._in.end_s[job]
        self._at(self._due[job], END, job)

    def _hold_until_now(self, job: int) -> None:
        """Record the cores that a running job has held until now, when it gets others."""
        if self._out.active[job] < self.now:
            self._out.stints.append(Stint(job, self._out.active[job], self.now, self._parts[job]))
        self._out.active[job] = self.now

    def _killed(self, job: int, start: float, most: int, allowed: float) -> float:
        """Return when slurmctld kills a job with the limit `most`, s, that may run for `allowed` seconds."""
        overrun = self._in.overrun_s[job]
        if not math.isnan(overrun):
            return start + most + overrun
        end = self._second(start) + allowed
        return next_multiple(CHECK_S, end - self._policy.epoch_s, origin=self._in.check_s)

    # -- the queue ----------------------------------------------------------------------------------------------------

    def _submit(self, job: int) -> None:
        """Add a job to the queue, unless a limit refuses it.

        As tried on Slurm 22.05.8, no batch job starts before the next pass.
        """
        first = self._entries.first[job]
        if not (self._admitted(job) if job == first else self._out.refused[first] < 0):
            self._progress.set(first, STUCK, self.now)
            self._left -= 1
            self._to_start -= job < self._in.watched
            return
        self._rank(job)
        self.queue.append(job)
        self.arrived.append(job)
        if (earliest := self._earliest[job]) > self.now:
            self._since[job] = max(self._since[job], earliest)
            self._at(earliest, CHANGE, job)
        if (deadline := self._deadline[job]) < math.inf:
            self._at(max(self.now, deadline - self._needed(job) + 1.0), CHANGE, job)

    def _start(self, job: int, parts: dict[int, int]) -> None:
        """Start a job on the cores `parts`. Its entries of other partitions leave the queue."""
        first = not self._out.restarts[self._entries.first[job]]
        for each in siblings(self._entries, job):
            self.queue.remove(each)
            self._withdrawn[each] = True
            self._to_start -= first and each < self._in.watched
        self._run(job, parts, self.now)

    def _ordered(self) -> list[int]:
        """Return the waiting jobs that may start, in their order.

        Jobs that may preempt others come first, then those in a reservation. The others are in the order of the tiers
        of their partitions, their priorities and their submissions.
        """
        self._refresh()
        return self._in_order()

    def _in_order(self) -> list[int]:
        """Return the waiting jobs that are known to be able to start, in their order."""
        tier, partition = self._in.tier, self._in.partition
        ready = (job for job in self.queue if self._ready[job] and not self._full(job))
        inside, of, level = self._bookings.inside, self._preemption.of, self._preemption.levels

        def key(job: int) -> tuple[int, bool, int, int, int]:
            return -level[of[job]], inside[job] < 0, -tier[partition[job]], -self._priority[job], job

        return sorted(ready, key=key)

    def _full(self, job: int) -> bool:
        """Return whether as many tasks of the array of a job run as may."""
        array = self._arrays.of[job]
        return array >= 0 and 0 < self._arrays.most[array] <= self._tasks[array]

    def _refresh(self) -> None:
        """Find the jobs whose conditions are met by now, and remove those whose conditions are impossible."""
        now = self._second(self.now)
        for job in [job for job in self.queue if self._bookings.over(job, now)]:
            self._forget(job, STUCK)
        again = True
        while again:
            again = False
            for job in [job for job in self.queue if not self._ready[job]]:
                result, later = self._progress.check(job, self.now, self._entries.first[job])
                if result == IMPOSSIBLE:
                    self._forget(job, CANCELLED if self._conditions.kill_invalid else STUCK)
                    again = True
                elif result == MET and self._earliest[job] <= self.now + ROUNDING_S:
                    self._ready[job] = True
                    self._since[job] = min(self._since[job], self.now)
                elif self.now < later < math.inf:
                    self._at(later, CHANGE, job)

    def _needed(self, job: int) -> int:
        """Return the shortest time limit with which a job may start, s."""
        return self._shortest[job] or self._in.limit[job]

    def _expired(self, job: int, now: int) -> bool:
        """Return whether a waiting job can no longer end at its deadline. If so, Slurm ends it."""
        deadline = self._deadline[job]
        if deadline == math.inf or self._withdrawn[job] or self._second(deadline) >= now + self._needed(job):
            return False
        for each in siblings(self._entries, job):
            self._withdrawn[each] = True
            self._forget(each, CANCELLED)
        return True

    def _until_deadline(self, job: int, now: int) -> int:
        """Return the time limit of a job that starts: at most the whole minutes until its deadline, s."""
        limit, deadline = self._in.limit[job], self._deadline[job]
        return limit if deadline == math.inf else min(limit, (self._second(deadline) - now) // MINUTE_S * MINUTE_S)

    def _forget(self, job: int, state: int) -> None:
        """Remove a job that never starts from the queue."""
        self._progress.set(self._entries.first[job], state, self.now)
        self.queue.remove(job)
        if job == self._entries.first[job]:
            self._counters.count(job, None, -1)
        self._left -= 1
        self._to_start -= job < self._in.watched

    # -- usage, priorities and limits ---------------------------------------------------------------------------------

    def _second(self, at: float) -> int:
        """Return the whole second of an instant, as Slurm's clock shows it."""
        return math.floor(at + self._policy.epoch_s + ROUNDING_S)

    def _admitted(self, job: int) -> bool:
        """Count a submitted job. Return whether no limit refuses it."""
        self._out.refused[job] = self._counters.refused(job)
        if self._out.refused[job] < 0:
            self._counters.count(job, None, 1)
        return self._out.refused[job] < 0

    def _compute(self) -> None:
        """Compute the usage and all priorities."""
        self._fairness.update((self._use(each.job) for each in self._running), self._second(self.now))
        for job in self.queue:
            self._rank(job)

    def _use(self, job: int) -> tuple[int, float, int]:
        """Return the association, the billing and the second of the start of a running job."""
        inputs = self._in
        billing = billed(self._amounts[job], inputs.billing[inputs.partition[job]], inputs.billing_most)
        return inputs.association[job], billing * inputs.usage_factor[job], self._second(self._out.start[job])

    def _amounts_of(self, job: int, parts: Parts | None) -> Sequence[int]:
        """Return the amounts of a job by kind: those that it gets with `parts`, or those that it requests."""
        inputs = self._in
        weights = inputs.billing[inputs.partition[job]]
        return amounts_of(inputs.requests[job], parts, self._free, weights, inputs.billing_most)

    def _exceeds(self, job: int, parts: Parts | None) -> bool:
        """Return whether a limit of resources holds a job that would get `parts`, or that requests its amounts."""
        limited = self._in.limits.counters > 0
        return limited and self._counters.exceeded(job, self._amounts_of(job, parts)) >= 0

    def _rank(self, job: int) -> None:
        """Compute the priority of a waiting job. Priorities are whole numbers."""
        since = self._since[job]
        waited = self._second(self.now) - self._second(since) if since < math.inf else 0
        age = max(0.0, min(1.0, waited / self._in.max_age_s))
        user = self._in.association[job]
        share = self._fairness.factors[user] if user >= 0 else 0.0
        self._priority[job] = math.floor(self._in.fixed[job] + self._in.age * age + self._in.fairshare * share)

    def _count(self, job: int, sign: int) -> None:
        """Count a job into the running tasks of its array and into the used licences (1), or out of them (-1)."""
        if (array := self._arrays.of[job]) >= 0:
            self._tasks[array] += sign
        for kind, wanted in enumerate(self._licenses.wanted[job]):
            self._left_licenses[kind] -= sign * wanted

    # -- passes -------------------------------------------------------------------------------------------------------

    def main(self, policy: _Shared, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Start jobs in order. A job that does not fit, and that no limit holds, blocks its partition and its nodes."""
        depth = policy.default_queue_depth
        if policy.full(self, at):
            yield Note("full_last", at)
            depth = len(self._in.submit)
        started = tested = 0
        left = False
        usable, blocked = self._up, set[int]()
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
            elif request.eligible & ~(usable & allowed) and self._empty.choose(request, usable & allowed) is None:
                continue  # it waits for nodes of other partitions, or for the end of a reservation
            elif not self._young(policy, job):
                blocked.add(partition)
                usable &= ~self._nodes_of[partition]
        else:
            for job in [*self._layer.asking] if self._layer else ():
                if 0 < policy.sched_max_job_start == started:
                    break
                if self._in.partition[job] not in blocked and self._counters.held(job) < 0:
                    allowed = self._bookings.allowed(job, second, self._limit[job])
                    started += self._expand(job, usable & allowed)
        return started > 0, left

    def _expand(self, job: int, usable: int) -> bool:
        """Start an expander on some of the usable nodes. Return whether it has started."""
        assert self._layer
        parts = self._layer.choose(job, usable)
        if parts is None or self._exceeds(job, parts):
            return False
        self._layer.grant(job, parts)
        return True

    def _last_of_pass(self, slots: PlannedSlots, second: int) -> Iterator[Planned]:
        """Start the expanders that a backfill pass can start; they are the last jobs of the queue."""
        for job in [*self._layer.asking] if self._layer else ():
            if self._counters.held(job) >= 0:
                continue
            request, limit = self._in.requests[job], self._limit[job]
            usable, _ = slots.usable(second, limit, self._nodes_of[self._in.partition[job]])
            usable &= request.eligible & self._bookings.allowed(job, second, limit)
            if self._expand(job, usable):
                yield Planned(job, {})

    def backfill(self, policy: _Shared, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Make a backfill pass. Return whether any job started, and whether work is left without another event."""
        second = self._second(at)
        order = [job for job in self._ordered() if not self._expired(job, second) and not self._withdrawn[job]]
        asking = self._layer is not None and len(self._layer.asking) > 0
        few = len(order) <= FEW and not any(self._idle(job) for job in order) and not asking
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
            everything=self._up,
            rules=policy.rules,
            window=policy.bf_window * 60,
            table=policy.bf_node_space_size or policy.bf_max_job_test,
            reservations=policy.bf_job_part_count_reserve,
            kill_wait=self._in.kill_wait_s,
            tasks=tasks,
            outlook=self._outlook(second, policy.rules),
            expanders=partial(self._last_of_pass, second=second)
            if asking and len(order) < policy.bf_max_job_test
            else None,
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
            parts = self._free.choose(self._in.requests[job], self._up & allowed & ~used)
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
        return any(self._free.idle(node) for node in nodes_of(self._in.requests[job].eligible & self._up))

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

    # -- preemption ---------------------------------------------------------------------------------------------------

    def candidates(self, job: int) -> list[Running]:
        """Return the running jobs that `job` may preempt, in the order in which they are preempted."""
        return self._preemption.candidates(job, self._running, self._out.start, self.now, self._second)

    def preempt(self, job: int, usable: int, candidates: Sequence[Running]) -> tuple[bool, int]:
        """Preempt jobs for `job` on the `usable` nodes.

        Return whether the job has started, in place of suspended ones; and the mask of its nodes and of those of the
        preempted jobs (0: the job does not fit).
        """
        chosen = choose(self._in.requests[job], usable, self._free, candidates, self._preemption.again)
        if chosen is None:
            return False, 0
        nodes, suspended = mask_of(chosen.parts.keys()), True
        for each in chosen.victims:
            nodes |= each.nodes
            own = self._preemption.of[each.job]
            if self._preemption.mode[own] == SUSPEND:
                self._suspend(each.job)
            else:
                suspended = False
                self._kill(each.job, self._preemption.grace_s[own], PREEMPTED)
        if suspended:
            self._start(job, chosen.parts)
        return suspended, nodes

    def _lapse(self, job: int) -> None:
        """Note when the time lapses in which a started job is not preempted. No event tells slurmctld of it."""
        exempt = self._preemption.exempt_of(job)
        if exempt and self._preemption.yielding >> self._preemption.of[job] & 1:
            at = self._second(self._out.start[job]) + exempt - self._policy.epoch_s
            if self.now < at < self._due[job]:
                self._at(at, CHANGE, job)

    def _kill(self, job: int, grace_s: int, fate: int) -> None:
        """Let a job end after a time of grace, if it does not end before."""
        end = self.now + grace_s
        if end < self._out.end[job]:
            self._out.end[job], self._out.fate[job] = end, fate
            self._due[job] = end + self._in.end_s[job]
            self._at(self._due[job], END, job)
            self._expect(job, self._second(self.now) + grace_s)

    def _suspend(self, job: int) -> None:
        """Suspend a job, unless it is."""
        if job not in self._asleep:
            self._asleep[job] = self.now, self._out.end[job] - self.now
            self._due[job] = NEVER
            self._out.stints.append(Stint(job, self._out.active[job], self.now, self._parts[job]))

    def _resume(self) -> None:
        """Resume the suspended jobs whose nodes no job of a higher class uses."""
        for job in sorted(self._asleep):
            if any(self._free.cores[node] < 0 for node in self._parts[job]):
                continue
            since, left = self._asleep.pop(job)
            self._out.active[job], self._out.end[job] = self.now, self.now + left
            self._due[job] = self._out.end[job] + self._in.end_s[job]
            self._at(self._due[job], END, job)
            own = next(each for each in self._running if each.job == job)
            self._expect(job, own.end + self._second(self.now) - self._second(since))

    def _expect(self, job: int, end: int) -> None:
        """Note another expected end of a running job."""
        own = next(each for each in self._running if each.job == job)
        self._running.remove(own)
        insort(self._running, own._replace(end=end))

    def _requeued(self, job: int) -> bool:
        """Return whether a job that has ended returns to the queue; let it."""
        by_preemption = self._out.fate[job] == PREEMPTED
        lost = self._out.fate[job] == LOST and self._availability.requeues
        if not lost and not (by_preemption and self._preemption.mode[self._preemption.of[job]] == REQUEUE):
            return False
        self._out.stints.append(Stint(job, self._out.active[job], self._out.end[job], self._parts[job]))
        self._out.restarts[self._entries.first[job]] += 1
        self._parts[job] = {}
        self._out.start[job] = self._out.launched[job] = self._out.end[job] = NEVER
        for each in siblings(self._entries, job):
            self._earliest[each] = self._since[each] = self.now + REQUEUED_S
            self._ready[each] = self._withdrawn[each] = False
            self._at(self._earliest[each], CHANGE, each)
            self._rank(each)
            self.queue.append(each)
        return True
