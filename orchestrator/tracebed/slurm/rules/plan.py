"""The backfill pass of Slurm for jobs that share nodes: which jobs start now, and which nodes wait for which job.

The plan reserves whole nodes, also for jobs that use a part of a node. Source: "Scheduling Configuration Guide" of
Slurm's documentation, and the passes recorded for `scheduling/policies/slurm_backfill.py`, whose slots are used here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Rules, Slots
from tracebed.slurm.rules.outlook import Outlook
from tracebed.slurm.rules.resources import Request, Resources, Running
from tracebed.slurm.rules.together import Together

MINUTE_S = 60
WINDOW_S = 30
"""Running jobs that end within this time are expected to end together, s; see `first_start`."""


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

    Attributes:
        room: how many tasks of each array may still start; None: any number.
        most: most tasks of an array with a reservation, `bf_max_job_array_resv`.
        reserved: array -> number of its tasks with a reservation.
        one_reservation: whether a job in several partitions has one reservation at most, `bf_one_resv_per_job`.
        noticed: jobs whose reservations Slurm takes for a change, see `scheduling.policies.slurm_backfill.backfill`.
        together: the heterogeneous jobs; None: there are none.
    """

    room: list[int | None]
    most: int
    reserved: dict[int, int] = field(default_factory=dict)
    one_reservation: bool = False
    noticed: list[int] = field(default_factory=list)
    together: Together | None = None


def backfill(
    now: int,
    free: Resources,
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
) -> Iterator[Planned]:
    """Plan the waiting jobs in order, and yield those that start now. The caller updates `free` and `running`.

    Args:
        now: the instant of the pass, s.
        running: the running jobs, in the order of their expected ends.
        everything: mask of all nodes.
        rules: those of this Slurm.
        window: `bf_window`, s.
        table: largest number of slots, `bf_node_space_size`.
        reservations: most jobs with a reservation, `bf_job_part_count_reserve`; 0: any number.
        kill_wait: a job that has passed its expected end is expected to end this much later, s.
        tasks: the arrays, jobs in several partitions, and heterogeneous jobs; None: there are none.
        outlook: advance reservations and licences; None: there are none.
    """
    reserved, booked = 0, set[int]()
    slots = Slots(now, now + window, everything, newer=rules.newer)
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


def _extended(job: Waiting, now: int, nodes: int, slots: Slots, outlook: Outlook | None) -> int:
    """Return the time limit of a job that starts: until its nodes are reserved, in whole minutes."""
    until = slots.reserved_after(now, nodes, now + job.longest)
    if outlook:
        until = min(until, outlook.bookings.next_begin(job.job, now, nodes) or until)
    return max(job.limit, (until - now) // MINUTE_S * MINUTE_S)


def _plan(
    job: Waiting,
    now: int,
    earliest: int,
    free: Resources,
    running: Sequence[Running],
    slots: Slots,
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
    free: Resources,
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
