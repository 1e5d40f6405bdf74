"""The backfill pass of Slurm for jobs that share nodes: which jobs start now, and which nodes wait for which job.

The plan reserves whole nodes, also for jobs that use a part of a node. Source: "Scheduling Configuration Guide",
"Advanced Resource Reservation Guide" and "Heterogeneous Job Support" of Slurm's documentation, slurm.conf(5), the
passes recorded for `scheduling/policies/slurm_backfill.py`, whose slots are used here, and recordings of Slurm 22.05.8.
Instants are whole seconds of Slurm's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

from tests.oracles.slurm_simulation.nodes import Nodes, Running
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Rules, Slots
from tracebed.slurm.simulation.inputs import Bookings, Licenses
from tracebed.slurm.simulation.resources import Request

Counts = Sequence[int]
"""Licences by kind."""
MINUTE_S = 60
WINDOW_S = 30
"""Running jobs that end within this time are expected to end together, s; see `first_start`."""
YEAR_S = 365 * 86400
"""A component that a pass cannot plan is expected to start so much later, s."""


class Depth(NamedTuple):
    """Largest numbers of jobs in a backfill pass: in all, of a partition, of a user in it, of a user. 0: any number."""

    test: int
    part: int
    user_part: int
    user: int


def considered(
    order: Iterable[int], depth: Depth, entry: Sequence[int], partition: Sequence[int], user: Sequence[int]
) -> Iterator[int]:
    """Yield the jobs of a backfill pass among those in `order`.

    All tasks of an array in a partition are one entry of the queue: jobs with the same `entry`, unless it is -1.
    """
    parts, users_in_parts, users = Counter[int](), Counter[tuple[int, int]](), Counter[int]()
    entries, last = 0, -1
    for job in order:
        part, own = partition[job], user[job]
        if entry[job] < 0 or entry[job] != last:
            parts[part] += 1
            if 0 < depth.part < parts[part]:
                continue
            users_in_parts[own, part] += 1
            if 0 < depth.user_part < users_in_parts[own, part]:
                continue
            users[own] += 1
            if 0 < depth.user < users[own]:
                continue
            if entries == depth.test:
                return
            entries += 1
        last = entry[job]
        yield job


class Held(NamedTuple):
    """Licences that a job holds or will hold, from `begin` to `end`, s."""

    begin: int
    end: int
    job: int


@dataclass
class LicensePlan:
    """The licences in a backfill pass.

    `free` are the free licences by kind, which the caller keeps up to date; `held`, in a plan with licences, those that
    jobs hold or will hold.
    """

    of: Licenses
    free: Counts
    held: list[Held] = field(default_factory=list)

    def considered(self, job: int) -> bool:
        """Return whether a pass considers a job: its licences are free, or the pass reserves licences."""
        return self.of.planned or suffice(self.free, self.of.wanted[job])

    def usable(self, job: int, start: int, end: int, now: int) -> bool:
        """Return whether the licences of a job are free from `start` to `end`, which counts, as in a plan of nodes."""
        wanted = self.of.wanted[job]
        if not any(wanted):
            return True
        if start <= now and not suffice(self.free, wanted):
            return False
        if not self.of.planned:
            return True
        instants = [start, *(each.begin for each in self.held if start < each.begin <= end)]
        return all(self._suffice(wanted, instant) for instant in instants)

    def _suffice(self, wanted: Counts, instant: int) -> bool:
        left = [*self.of.total]
        for each in self.held:
            if each.begin <= instant < each.end:
                left = [have - some for have, some in zip(left, self.of.wanted[each.job], strict=True)]
        return suffice(left, wanted)

    def next_release(self, job: int, after: int) -> int:
        """Return the next end of another job with licences; 0: no such job, or the job requests no licenses."""
        if not self.of.planned or not any(self.of.wanted[job]):
            return 0
        return min((each.end for each in self.held if each.end > after), default=0)

    def hold(self, job: int, begin: int, end: int) -> None:
        """Record that a job holds its licences from `begin` to `end`."""
        if self.of.planned and any(self.of.wanted[job]):
            self.held.append(Held(begin, end, job))


def suffice(free: Counts, wanted: Counts) -> bool:
    """Return whether the free licences suffice for those that a job wants."""
    return all(have >= some for have, some in zip(free, wanted, strict=True))


@dataclass(frozen=True)
class Reservations(Bookings):
    """Advance reservations, and which nodes they leave to a job."""

    def allowed(self, job: int, start: int, limit: int) -> int:
        """Return the mask of the nodes that a job may use from `start` to `start + limit`; -1: all nodes."""
        inside = self.inside[job]
        allowed = self.booked[inside].nodes if inside >= 0 and not self.booked[inside].flexible else -1
        for number, each in enumerate(self.booked):
            if number != inside and each.begin < start + limit and start < each.end:
                allowed &= ~each.nodes
        return allowed

    def next_begin(self, job: int, now: int, nodes: int) -> int:
        """Return when the next other reservation of some of `nodes` (mask) begins after `now`; 0: none."""
        others = (each for number, each in enumerate(self.booked) if number != self.inside[job])
        return min((each.begin for each in others if each.begin > now and each.nodes & nodes), default=0)

    def over(self, job: int, now: int) -> bool:
        """Return whether the reservation of a job has ended, so that the job never starts."""
        return self.inside[job] >= 0 and self.booked[self.inside[job]].end <= now

    def most(self, job: int, start: int, limit: int) -> int:
        """Return for how long a job may run from `start` on: its limit, or until the end of its reservation, s."""
        if self.inside[job] < 0 or self.booked[self.inside[job]].flexible:
            return limit
        return min(limit, max(0, self.booked[self.inside[job]].kill - start))


class Preemptor(Protocol):
    """What preempts running jobs for a waiting one."""

    def candidates(self, job: int) -> list[Running]:
        """Return the running jobs that `job` may preempt."""

    def preempt(self, job: int, usable: int, candidates: Sequence[Running]) -> tuple[bool, int]:
        """Preempt jobs for `job`; return whether it has started, and the nodes that it gets."""


@dataclass
class Outlook:
    """Reservations and licences in a backfill pass, and what preempts jobs for those that a pass starts."""

    bookings: Reservations
    licenses: LicensePlan
    preemptor: Preemptor | None = None

    def later(self, job: int, after: int, found: int) -> int:
        """Return the next start worth a trial: `found` (0: none), or the next end of a reservation or of licences."""
        ends = (each.end for each in self.bookings.booked if each.end > after)
        return min((each for each in (found, self.licenses.next_release(job, after), *ends) if each), default=0)

    def usable(self, job: int, start: int, limit: int, now: int) -> int:
        """Return the mask of the nodes that a job may use from `start` on; 0: licences are missing."""
        if not self.licenses.usable(job, start, start + limit, now):
            return 0
        return self.bookings.allowed(job, start, limit)


class Together:
    """The planned starts of the components of heterogeneous jobs, which start together, in a backfill pass.

    The main loop starts no component, and nothing behind one in its partition. A backfill pass plans each component
    after the planned starts of those before it, and reserves its nodes, also from now on. The job starts at the end of
    a pass that plans all of its components now, each on nodes of its own.
    """

    def __init__(self, group: Sequence[int], first: Sequence[int]) -> None:
        """Begin before the first pass. `group`: heterogeneous job of each entry (-1: none); `first`: first entry."""
        self._group, self._first = group, first
        self._size = Counter(own for entry, own in enumerate(group) if own >= 0 and first[entry] == entry)
        self._planned: dict[int, dict[int, tuple[int, int]]] = {}

    def begin(self) -> None:
        """Begin a pass: no component is planned yet."""
        self._planned = {}

    def since(self, entry: int, now: int) -> int:
        """Return before which instant a pass does not plan a component, s. It is known to the pass from then on."""
        component = self._first[entry]
        planned = self._planned.setdefault(self._group[entry], {})
        planned.setdefault(component, (now + YEAR_S, entry))
        return max((start for other, (start, _) in planned.items() if other != component), default=now)

    def plan(self, entry: int, start: int) -> None:
        """Note the planned start of a component. The earliest one of its partitions counts."""
        planned, component = self._planned[self._group[entry]], self._first[entry]
        if start < planned[component][0]:
            planned[component] = start, entry

    def ready(self, now: int) -> Iterator[list[int]]:
        """Yield, at the end of a pass, the components of each heterogeneous job that are all planned now."""
        for own, planned in self._planned.items():
            if len(planned) == self._size[own] and all(start <= now for start, _ in planned.values()):
                yield [entry for _, entry in planned.values()]


class PlannedSlots(Slots):
    """The nodes without a reservation over time."""

    def reserved_after(self, now: int, nodes: int, until: int) -> int:
        """Return the begin of the first slot after `now` in which not all `nodes` are free, at most `until`."""
        slots = zip(self.begins, self.nodes, strict=True)
        return min((begin for begin, free in slots if begin > now and nodes & ~free), default=until) if nodes else until


class Waiting(NamedTuple):
    """A waiting job in a pass."""

    job: int
    request: Request
    limit: int
    """Time limit, s."""
    reserve: bool = True
    """Whether nodes are reserved for the job if it cannot start now."""
    array: int = -1
    """Array of the job; -1: none."""
    entry: int = -1
    """Array and partition of the job; -1: no array."""
    first: int = -1
    """What the entries of a job in several partitions have in common."""
    among: int = -1
    """Mask of the nodes of the partition."""
    longest: int = 0
    """Time limit up to which that of the job grows when it starts, s (`Rules.extends`)."""
    component: bool = False
    """Whether the job is a component of a heterogeneous job."""


class Planned(NamedTuple):
    """A job that a pass starts now, or, without parts, has started in place of suspended jobs."""

    job: int
    parts: dict[int, int]
    limit: int = 0
    """Its time limit, s."""


class Found(NamedTuple):
    """The earliest start of a job, its cores by node, and, if it starts now by preemption, its usable nodes (mask)."""

    start: int
    parts: dict[int, int]
    usable: int = 0


@dataclass
class Tasks:
    """The tasks of arrays, the entries of jobs in several partitions, and the components of jobs, in a pass.

    `room` is how many tasks of each array may still start (None: any number), `most` is `bf_max_job_array_resv`, and
    `one_reservation` is `bf_one_resv_per_job`. Slurm takes the reservations of the jobs `noticed` for a change, see
    `scheduling.policies.slurm_backfill.backfill`.
    """

    room: list[int | None]
    most: int
    reserved: dict[int, int] = field(default_factory=dict)
    one_reservation: bool = False
    noticed: list[int] = field(default_factory=list)
    together: Together | None = None


def backfill(
    now: int,
    free: Nodes,
    running: list[Running],
    waiting: Iterable[Waiting],
    *,
    everything: int,
    rules: Rules,
    window: int,
    table: int,
    reservations: int = 0,
    kill_wait: int = 30,
    tasks: Tasks | None = None,
    outlook: Outlook | None = None,
    expanders: Callable[[PlannedSlots], Iterator[Planned]] | None = None,
) -> Iterator[Planned]:
    """Plan the waiting jobs in order, and yield those that start now. The caller updates `free` and `running`.

    `running` is in the order of the expected ends. `window` is `bf_window`, `table` is `bf_node_space_size`, and
    `reservations` is `bf_job_part_count_reserve` (0: any number). A job that has passed its expected end is expected to
    end `kill_wait` s later. The `expanders` come last, as long as the table is not full.
    """
    reserved, booked = 0, set[int]()
    slots = PlannedSlots(now, now + window, everything, newer=rules.newer)
    tasks, skipped = tasks or Tasks([], 0), -1
    together = tasks.together
    for job in waiting:
        if 0 <= job.entry == skipped:
            continue
        if job.array >= 0 and tasks.room[job.array] == 0:
            skipped = job.entry
            continue
        if outlook and not outlook.licenses.considered(job.job):
            continue
        earliest = together.since(job.job, now) if together and job.component else now
        planned = None
        if earliest <= now + window:
            planned = _plan(job, now, earliest, free, running, slots, rules, window, kill_wait, outlook, tasks.noticed)
        if planned is None:
            skipped = job.entry
            continue
        start, parts, _ = planned
        nodes = mask_of(parts.keys())
        preempts = start <= now and planned.usable
        began = False
        if together and job.component:
            together.plan(job.job, start)  # it starts at the end of the pass, with the others
        elif preempts and outlook and outlook.preemptor:
            began, nodes = outlook.preemptor.preempt(job.job, planned.usable, outlook.preemptor.candidates(job.job))
        if began or (start <= now and not preempts and not job.component):
            if outlook:
                outlook.licenses.hold(job.job, now, now + job.limit)
            if job.array >= 0 and (left := tasks.room[job.array]) is not None:
                tasks.room[job.array] = left - 1
            limit = _extended(job, now, nodes, slots, outlook) if job.longest else job.limit
            yield Planned(job.job, {} if began else parts, limit)
        elif not job.reserve or job.first in booked or (reservations and reserved == reservations):
            skipped = job.entry
        elif len(slots.begins) >= table:
            return
        else:
            reserved += 1
            begin, end = rules.span(start, job.limit)
            slots.reserve(begin, end, nodes)
            if tasks.one_reservation:
                booked.add(job.first)
            if outlook:
                outlook.licenses.hold(job.job, begin, end)
            if job.array >= 0:
                tasks.reserved[job.array] = tasks.reserved.get(job.array, 0) + 1
                if tasks.reserved[job.array] >= tasks.most:
                    skipped = job.entry
    if expanders:
        yield from expanders(slots)


def _extended(job: Waiting, now: int, nodes: int, slots: PlannedSlots, outlook: Outlook | None) -> int:
    """Return the time limit of a job that starts: until its nodes are reserved, in whole minutes."""
    until = slots.reserved_after(now, nodes, now + job.longest)
    if outlook:
        until = min(until, outlook.bookings.next_begin(job.job, now, nodes) or until)
    return max(job.limit, (until - now) // MINUTE_S * MINUTE_S)


def _plan(
    job: Waiting,
    now: int,
    earliest: int,
    free: Nodes,
    running: Sequence[Running],
    slots: PlannedSlots,
    rules: Rules,
    window: int,
    kill_wait: int,
    outlook: Outlook | None = None,
    noticed: list[int] | None = None,
) -> Found | None:
    """Return when and on which nodes `job` can start from `earliest` on; None: the search ends without a start."""
    later = earliest
    candidates = outlook.preemptor.candidates(job.job) if outlook and outlook.preemptor else []
    while True:
        since = later
        usable, later = slots.usable(since, job.limit, job.among)
        usable &= job.request.eligible
        if outlook:
            usable &= outlook.usable(job.job, since, job.limit, now)
            later = outlook.later(job.job, since, later)
        if usable.bit_count() >= job.request.fewest:
            search = (since, later) if rules.newer else (now, 0)
            found = first_start(job.request, usable, now, free, running, kill_wait, candidates, *search)
            if found is not None:
                start, parts = max(found[0], since), found[1]
                if start > found[0] and noticed is not None:
                    noticed.append(job.job)
                if not later or start <= later:
                    if start > now + window:
                        return None
                    begin, end = rules.span(start, job.limit)
                    nodes = mask_of(parts.keys())
                    beyond = start > since and outlook and nodes & ~outlook.usable(job.job, start, job.limit, now)
                    if not beyond and (start <= now or not slots.overlap(begin, end, nodes)):
                        preempts = candidates and start <= now and free.choose(job.request, usable) is None
                        return Found(start, parts, usable if preempts else 0)
                    later = start  # other nodes may be usable then
        if later <= since:
            return None


def first_start(
    request: Request,
    usable: int,
    now: int,
    free: Nodes,
    running: Sequence[Running],
    kill_wait: int,
    candidates: Sequence[Running] = (),
    since: int = 0,
    latest: int = 0,
) -> tuple[int, dict[int, int]] | None:
    """Return the first instant at which the running jobs leave enough of the `usable` nodes, and the nodes then.

    The running jobs on these nodes end one after another, in groups; the job starts when the last job of a group ends.
    A group ends with the first job after which the next running job, on any node, ends later than a barrier by more
    than a window. From group to group the window doubles, until the next running job ends within it. The barrier is the
    first multiple of `WINDOW_S` after the first end. The jobs that may be preempted, `candidates`, end at once.

    A newer Slurm (see `Rules`) searches from `since` on: the jobs that end before it have ended. No group has jobs that
    end after `latest` (0: any).
    """
    if since > now:
        free = free.copy()
        ended = bisect_left(running, since, key=attrgetter("end"))
        for each in running[:ended]:
            free.release(each.request, each.parts)
        running = running[ended:]
        candidates = [each for each in candidates if each.end >= since]
    parts = free.choose(request, usable)
    if parts is not None:
        return now, parts
    expected = free.copy()
    if candidates:
        for each in candidates:
            expected.release(each.request, each.parts)
        parts = expected.choose(request, usable)
        if parts is not None:
            return now, parts
        ending = {each.job for each in candidates}
        running = [each for each in running if each.job not in ending]
    window, count, barrier, last = WINDOW_S, len(running), -1, -1
    for at, job in enumerate(running, 1):
        more = at < count and not (latest and running[at].end > latest)
        if not job.nodes & usable:
            if more or last < 0:
                continue
        else:
            expected.release(job.request, job.parts)
            last = job.end
            if barrier < 0:
                barrier = (last // WINDOW_S + 1) * WINDOW_S
            if more and running[at].end <= barrier + window:
                continue
        window *= 2
        while at < count and running[at].end > barrier + window:
            window *= 2
        parts = expected.choose(request, usable)
        if parts is not None:
            return last if last > now else max(last + kill_wait, now + 1), parts
        last = -1
    return None
