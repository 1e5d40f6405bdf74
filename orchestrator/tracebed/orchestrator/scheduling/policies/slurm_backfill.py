"""The backfill pass of Slurm (sched/backfill with select/linear): which jobs are planned when, and on which nodes.

All instants are whole seconds, as in Slurm. Sets of nodes are bit masks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tracebed.orchestrator.scheduling.node_masks import best_fit


class Rules(NamedTuple):
    """Rules of a pass that depend on the configuration and the release of Slurm."""

    step: int
    """Reservations begin and end at multiples of it, `bf_resolution`, s."""
    newer: bool = False
    """Whether the release is 24.11 or newer. There, reservations end at the next multiple, before that at the last one,
    and the search for a start goes on after a slot that ends it (see `Slots.usable`; for jobs that share nodes, also
    `first_start` of slurm.c and `Resources`)."""

    extends: bool = False
    """Whether the release is 25.11 or newer. There, backfill starts a job with `--time-min` for the time until its
    nodes are reserved, at most its time limit; before that, with its shortest time limit."""

    def span(self, start: int, limit: int) -> tuple[int, int]:
        """Return the begin and the end of a reservation for a job."""
        return start // self.step * self.step, self.end(start + limit)

    def end(self, at: int) -> int:
        """Return the end of a reservation for a job that ends at `at`."""
        return (at + (self.step - 1) * self.newer) // self.step * self.step


class Pending(NamedTuple):
    """A waiting job in a pass."""

    job: int
    nodes: int
    limit: int
    """Time limit, s."""
    reserve: bool = True
    """Whether nodes are reserved for the job if it cannot start now."""


class Planned(NamedTuple):
    """A job planned by a pass. It starts now if `start` is not after the instant of the pass."""

    job: int
    start: int
    end: int
    """End of the reservation."""
    nodes: int
    """Mask of the nodes."""


class Running(NamedTuple):
    """A running job, in the order in which a pass expects the ends."""

    end: int
    """Expected end: start plus time limit."""
    job: int
    nodes: int
    """Mask of the nodes."""


class Slots:
    """The nodes without a reservation over time: consecutive slots of time, each with its nodes."""

    def __init__(self, now: int, end: int, nodes: int, *, newer: bool = False) -> None:
        """Create one slot with all `nodes`. newer: see `Rules`."""
        self.newer = newer
        self.everything = nodes
        self.begins, self.ends, self.nodes = [now], [end], [nodes]

    def usable(self, start: int, limit: int, among: int = -1) -> tuple[int, int]:
        """Return the nodes free in every slot from `start` to `start + limit`, and the next start worth a trial.

        A slot that begins exactly at `start + limit` counts. The next start is the end of the first slot after `start`
        that is followed by a slot with additional nodes `among` (mask), as far as the slots were searched; 0: none. The
        search ends with the first slot that begins after the end of the job. In a newer Slurm, the next start is then
        the end of the slot that follows it, unless that is the last one.
        """
        usable, later, last = self.everything, 0, len(self.begins) - 1
        for slot, (begin, end, nodes) in enumerate(zip(self.begins, self.ends, self.nodes, strict=True)):
            if end <= start:
                continue
            if not later and slot < last and self.nodes[slot + 1] & ~nodes & among:
                later = end
            if begin > start + limit:
                if self.newer and not later and slot + 1 < last:
                    later = self.ends[slot + 1]
                break
            usable &= nodes
        return usable, later

    def overlap(self, start: int, end: int, nodes: int) -> bool:
        """Return whether some of `nodes` are reserved between `start` and `end`."""
        slots = zip(self.begins, self.ends, self.nodes, strict=True)
        return any(begin < end and start < until and nodes & ~free for begin, until, free in slots)

    def reserve(self, start: int, end: int, nodes: int) -> None:
        """Reserve `nodes` from `start` to `end`. Adjacent slots with equal nodes become one slot."""
        self._cut(start)
        self._cut(end)
        begins: list[int] = []
        ends: list[int] = []
        free: list[int] = []
        for begin, until, rest in zip(self.begins, self.ends, self.nodes, strict=True):
            if begin < end and start < until:
                rest &= ~nodes
            if free and free[-1] == rest:
                ends[-1] = until
                continue
            begins.append(begin)
            ends.append(until)
            free.append(rest)
        self.begins, self.ends, self.nodes = begins, ends, free

    def _cut(self, at: int) -> None:
        for slot, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            if begin < at < end:
                self.begins.insert(slot + 1, at)
                self.ends.insert(slot, at)
                self.nodes.insert(slot, self.nodes[slot])
                return


def backfill(
    now: int,
    idle: int,
    running: Iterable[Running],
    pending: Iterable[Pending],
    *,
    rules: Rules,
    window: int,
    table: int,
    reservations: int = 0,
    noticed: list[int] | None = None,
) -> Iterator[Planned]:
    """Plan the waiting jobs in order, and yield those that start now or get a reservation.

    Args:
        now: the instant of the pass.
        idle: mask of the idle nodes.
        running: the running jobs.
        pending: the waiting jobs.
        rules: those of this Slurm.
        window: `bf_window`, s.
        table: largest number of slots, `bf_node_space_size`.
        reservations: most jobs with a reservation, `bf_job_part_count_reserve`; 0: any number.
        noticed: receives the jobs whose reservations Slurm takes for a change, so that the next pass follows without an
            event: those that wait for another reservation, not for a running job.
    """
    reserved, noticed = 0, [] if noticed is None else noticed
    expected = sorted(running)
    everything = idle
    for busy in expected:
        everything |= busy.nodes
    slots = Slots(now, now + window, everything, newer=rules.newer)
    for job in pending:
        planned = _plan(job, now, idle, expected, slots, rules, window, noticed)
        if planned is None:
            continue
        if planned.start <= now:
            idle &= ~planned.nodes
            insort(expected, Running(now + job.limit, job.job, planned.nodes))
        elif not job.reserve or (reservations and reserved == reservations):
            continue
        elif len(slots.begins) >= table:
            return
        else:
            reserved += 1
            slots.reserve(*rules.span(planned.start, job.limit), planned.nodes)
        yield planned


def _plan(
    job: Pending,
    now: int,
    idle: int,
    running: list[Running],
    slots: Slots,
    rules: Rules,
    window: int,
    noticed: list[int],
) -> Planned | None:
    """Return when and where `job` can start at the earliest; None: the search ends without a start."""
    later = now
    while True:
        since = later
        usable, later = slots.usable(since, job.limit)
        if usable.bit_count() >= job.nodes:
            start, free = _first(job.nodes, usable, now, idle, running)
            if start < since:
                start = since
                noticed.append(job.job)
            if not later or start <= later:
                if start > now + window:
                    return None
                nodes = best_fit(free, job.nodes)
                begin, end = rules.span(start, job.limit)
                if start <= now or not slots.overlap(begin, end, nodes):
                    return Planned(job.job, start, end, nodes)
                later = start  # other nodes may be usable then
        if later <= since:
            return None


def _first(count: int, usable: int, now: int, idle: int, running: list[Running]) -> tuple[int, int]:
    """Return the first instant at which `count` of the `usable` nodes are idle, and the idle nodes then.

    The running jobs end one after another, even with equal expected ends. A job that has passed its expected end
    is expected to end in one second.
    """
    free = usable & idle
    if free.bit_count() >= count:
        return now, free
    for end, _, nodes in running:
        free |= usable & nodes
        if free.bit_count() >= count:
            return max(end, now + 1), free
    raise ValueError("usable nodes are neither idle nor held by a running job")
