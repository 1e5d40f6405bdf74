"""The queue of waiting jobs, with a fast search for the next job that fits, and the dates of jobs."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import ClassVar, TypeAlias

import numpy as np
from numpy import isfinite, less_equal
from numpy.typing import NDArray

from tracebed.ground.registry import one_of
from tracebed.orchestrator.scheduling import names
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S, Jobs

BLOCK = 512
"""Number of jobs in a block. A block is searched only if one of its jobs may fit according to its summary."""
FEW = 64
"""Largest number of jobs that are tried one by one: NumPy is not faster."""
CLASSES = 128
"""Largest number of size classes: a search looks at one summary of each block, however many classes there are, but a
submission updates those of all larger sizes."""
SLACK_S = 1e-6
"""Part of a second by which a search takes limits as shorter, since sums of times are rounded. Callers check again."""
NO_JOB = np.inf
"""Size of a job that does not wait: it fits on no number of idle nodes."""


class Queue:
    """Waiting jobs in submit order, which is the order of the job numbers.

    The arrays cover all jobs and are divided into blocks. The summary of a block has, for each size class, the shortest
    limit among the waiting jobs of this and the smaller classes. A removal does not update the summary; the next
    unsuccessful search of the block does. The cost of a search therefore depends on its result, not on the length of
    the queue. Each size is a class of its own, unless the workload has more than `CLASSES` sizes.
    """

    by_submission: ClassVar[bool] = True
    """Whether the queue is in submit order."""

    def __init__(self, jobs: Jobs) -> None:
        """Create an empty queue for `jobs`."""
        blocks = -(-len(jobs) // BLOCK) or 1
        self._low = jobs.low
        self._limit = [jobs.shortest_limit(job) for job in range(len(jobs))]
        low = np.array(jobs.low, dtype=np.int64)
        # `_of`: the same values, for single reads and writes, which take NumPy several times as long.
        self._sizes_of = array("d", [NO_JOB]) * (blocks * BLOCK)  # fewest nodes; NO_JOB: not waiting
        self._size = np.frombuffer(self._sizes_of)
        self._time = np.full(blocks * BLOCK, np.inf)
        self._time[: len(jobs)] = self._limit
        sizes = np.unique(low)
        smallest = sizes[:: -(-len(sizes) // CLASSES) or 1]
        self._smallest: list[int] = smallest.tolist()  # of each class
        self._class = smallest.searchsorted(low, side="right") - 1
        self._class_of: list[int] = self._class.tolist()
        self._shortest_of = array("d", [np.inf]) * (len(self._smallest) * blocks)
        self._shortest = np.frombuffer(self._shortest_of).reshape(len(self._smallest), blocks)  # [class, block]
        self._blocks = blocks
        self._bounds = (np.zeros(()), np.zeros(()), np.zeros(()))
        self._waiting = bytearray(len(jobs) + 1)
        self._flags = np.frombuffer(self._waiting, dtype=np.uint8)  # a NumPy view of the same bytes
        self._head = self._end = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return self._count

    def __contains__(self, job: int) -> bool:
        """Return whether `job` waits."""
        return bool(self._waiting[job])

    def arrange(self, now: float) -> None:
        """Sort the waiting jobs for the instant `now`. The submit order does not change."""

    @property
    def head(self) -> int | None:
        """The first job; None: the queue is empty."""
        return self._earliest() if self._count else None

    def _earliest(self) -> int:
        """Return the lowest job number in the queue."""
        if not self._waiting[self._head]:
            self._head = self._waiting.index(1, self._head)
        return self._head

    @property
    def last(self) -> int:
        """The highest job number that has been in the queue; -1: none."""
        return self._end - 1

    def jobs(self) -> list[int]:
        """Return all waiting jobs in order."""
        if not self._count:
            return []
        earliest = self._earliest()
        if self._end - earliest <= FEW:
            return [*compress(range(earliest, self._end), self._waiting[earliest : self._end])]
        return (earliest + self._flags[earliest : self._end].nonzero()[0]).tolist()

    def in_order(self, jobs: Iterable[int]) -> list[int]:
        """Return the waiting jobs among `jobs`, in order."""
        return sorted(job for job in jobs if job in self)

    def append(self, job: int) -> None:
        """Add `job`."""
        self._waiting[job] = 1
        self._count += 1
        if job >= self._end:
            self._end = job + 1
        if job < self._head:
            self._head = job
        self._sizes_of[job] = self._low[job]
        limit, first, block = self._limit[job], self._class_of[job], job // BLOCK
        # The shortest limit does not increase along the classes.
        if limit < self._shortest_of[first * self._blocks + block]:
            summary = self._shortest[first:, block]
            np.minimum(summary, limit, out=summary)

    def remove(self, job: int) -> bool:
        """Remove `job`, and return whether it waited."""
        if not self._waiting[job]:
            return False
        self._waiting[job] = 0
        self._count -= 1
        self._sizes_of[job] = NO_JOB
        return True

    def first_fit(self, after: int, idle: int, time: float, extra: int) -> int | None:
        """Return the first waiting job after `after` (-1: of all jobs) that backfilling may start.

        Such a job needs at most `idle` nodes, and has a limit of at most `time` seconds or needs at most `extra` nodes.
        The caller must check the limit again: `time` is extended by `SLACK_S` because of rounding, and the search uses
        the minimum limit of a malleable job over all sizes.
        """
        time += SLACK_S
        start = max(after + 1, self._head)
        if extra > idle:
            extra = idle
        if self._end - start <= FEW:
            low, limit = self._low, self._limit
            for job in range(start, self._end):
                if self._waiting[job] and low[job] <= idle and (limit[job] <= time or low[job] <= extra):
                    return job
            return None
        first, last = start // BLOCK, -(-self._end // BLOCK)
        idle_class = bisect_right(self._smallest, idle) - 1
        extra_class = bisect_right(self._smallest, extra) - 1
        if idle_class < 0:
            return None
        # NumPy compares with zero-dimensional arrays twice as fast as with Python numbers.
        at_most_time, at_most_idle, at_most_extra = self._bounds
        at_most_time[...], at_most_idle[...], at_most_extra[...] = time, idle, extra
        promising = less_equal(self._shortest[idle_class, first:last], at_most_time)
        if extra_class >= 0:
            promising |= isfinite(self._shortest[extra_class, first:last])
        promising_blocks: list[int] = (first + promising.nonzero()[0]).tolist()
        for block in promising_blocks:
            begin = max(start, block * BLOCK)
            size = self._size[begin : (block + 1) * BLOCK]
            fits = less_equal(self._time[begin : (block + 1) * BLOCK], at_most_time)
            fits &= less_equal(size, at_most_idle)
            if extra_class >= 0:
                fits |= less_equal(size, at_most_extra)
            place = int(fits.argmax())
            if fits[place]:
                return begin + place
            self._summarize(block)
        return None

    def _summarize(self, block: int) -> None:
        here = slice(block * BLOCK, (block + 1) * BLOCK)
        waiting = (self._size[here] != NO_JOB).nonzero()[0] + block * BLOCK
        shortest = np.full(len(self._shortest), np.inf)
        np.minimum.at(shortest, self._class[waiting], self._time[waiting])
        self._shortest[:, block] = np.minimum.accumulate(shortest)


class PriorityQueue(Queue):
    """Waiting jobs in ascending order of a key that may change with time; jobs with equal keys in submit order.

    `arrange` computes the order, and must be called after each submission. A search covers the whole queue.

    Args:
        jobs: as for `Queue`.
        keys: (job numbers, instant) -> keys, shape (job numbers,).
        submit: submit times, s, shape (jobs,), if their order is not that of the job numbers.
    """

    by_submission: ClassVar[bool] = False

    def __init__(
        self,
        jobs: Jobs,
        keys: Callable[[NDArray[np.int64], float], NDArray[np.float64]],
        submit: NDArray[np.float64] | None = None,
    ) -> None:
        """Create an empty queue for `jobs`."""
        super().__init__(jobs)
        self._keys, self._submit = keys, submit
        self._order: list[int] = []
        self._rank: dict[int, int] = {}
        self._sizes = self._times = np.empty(0)  # `_size` and `_time` in queue order

    def arrange(self, now: float) -> None:
        """Sort the waiting jobs for the instant `now`."""
        waiting = np.array(super().jobs(), dtype=np.int64)
        if self._submit is not None:
            waiting = waiting[np.argsort(self._submit[waiting], kind="stable")]
        order = waiting[np.argsort(self._keys(waiting, now), kind="stable")]
        self._order = order.tolist()
        self._rank = {job: rank for rank, job in enumerate(self._order)}
        self._sizes, self._times = self._size[order], self._time[order]

    @property
    def head(self) -> int | None:
        """The first job; None: the queue is empty."""
        return next((job for job in self._order if job in self), None)

    def jobs(self) -> list[int]:
        """Return all waiting jobs in order."""
        return [job for job in self._order if job in self]

    def in_order(self, jobs: Iterable[int]) -> list[int]:
        """Return the waiting jobs among `jobs`, in order."""
        return sorted((job for job in jobs if job in self), key=self._rank.__getitem__)

    def remove(self, job: int) -> bool:
        """Remove `job`, and return whether it waited."""
        if job in self._rank:
            self._sizes[self._rank[job]] = NO_JOB
        return super().remove(job)

    def first_fit(self, after: int, idle: int, time: float, extra: int) -> int | None:
        """Return the first job that fits, in the order of the keys; see `Queue.first_fit`."""
        first = self._rank[after] + 1 if after >= 0 else 0
        sizes, times = self._sizes[first:], self._times[first:]
        fits = ((sizes <= idle) & ((times <= time + SLACK_S) | (sizes <= extra))).nonzero()[0]
        return self._order[first + int(fits[0])] if len(fits) else None


Floats: TypeAlias = NDArray[np.float64]


def largest_slowdown_first(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order by descending (wait + limit) / limit, the slowdown of a job that starts now and uses its full limit."""
    return -wait / np.maximum(limit, SHORTEST_S)


def shortest_first(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order by ascending time limit. Long jobs may starve."""
    return limit


def aging(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order as Slurm's multifactor plugin with the age factor and the job size factor, both with weight 1."""
    return -(np.minimum(wait / names.MAX_AGE_S, 1.0) + nodes / total)


PRIORITIES: dict[str, Callable[[Floats, Floats, Floats, int], Floats]] = {
    "largest-slowdown-first": largest_slowdown_first,
    "shortest-first": shortest_first,
    "aging": aging,
}
"""Priorities except `fcfs` by name: (wait time, time limit, requested nodes, nodes of the cluster) -> keys."""


def queue_by(priority: str, jobs: Jobs, total: int) -> Queue:
    """Return an empty queue of `jobs` in the order of `priority`, for a cluster of `total` nodes.

    Raises:
        InputError: the priority is unknown.
    """
    submit = jobs.arrays.submit  # the scheduler changes the submissions that follow from the ends of other jobs
    moved = jobs.waits is not None and jobs.waits.thinks
    if priority == names.FCFS:
        return PriorityQueue(jobs, lambda waiting, now: submit[waiting]) if moved else Queue(jobs)
    one_of("priority", priority, names.PRIORITIES)
    keys_of = PRIORITIES[priority]
    limit = np.array(jobs.limit)
    nodes = np.array(jobs.nodes, dtype=np.float64)
    return PriorityQueue(
        jobs,
        lambda waiting, now: keys_of(now - submit[waiting], limit[waiting], nodes[waiting], total),
        submit if moved else None,
    )


def first_of_users(waiting: Sequence[int], user: Sequence[Hashable], most: int) -> Sequence[int]:
    """Return the first `most` jobs of each user among the jobs `waiting` (0: any number), in the same order."""
    if not most:
        return waiting
    jobs_of: Counter[Hashable] = Counter()
    chosen = []
    for job in waiting:
        jobs_of[user[job]] += 1
        if jobs_of[user[job]] <= most:
            chosen.append(job)
    return chosen


class Dates:
    """A date of each job that is present. A read costs in proportion to the dates that have passed, not to all jobs.

    Nothing is kept until the first read, because most policies read no dates.
    """

    def __init__(self, jobs: int, date: Callable[[int], float], present: Callable[[int], bool]) -> None:
        """Start without jobs.

        Args:
            jobs: number of jobs of the workload.
            date: job -> its date, s; infinite: none.
            present: job -> whether it is present.
        """
        self._jobs = jobs
        self._date = date
        self._present = present
        self.is_read = False
        """Whether the dates have been read, so that jobs must be added."""
        self._coming: list[tuple[float, int]] = []  # a heap; jobs that are no longer present remain for a time
        self._passed: set[int] = set()

    def add(self, job: int) -> None:
        """Add `job`, which is present from now on, to dates that have been read."""
        if (date := self._date(job)) < math.inf:
            heappush(self._coming, (date, job))

    def passed(self, now: float) -> set[int]:
        """Return the present jobs whose date is at or before `now`, s. Instants do not decrease from read to read."""
        if not self.is_read:
            self.is_read = True
            self._coming = [(self._date(job), job) for job in range(self._jobs) if self._present(job)]
            heapify(self._coming)
        while self._coming and self._coming[0][0] <= now:
            self._passed.add(heappop(self._coming)[1])
        self._passed = {job for job in self._passed if self._present(job)}
        return self._passed

    def following(self, now: float) -> float:
        """Return the first date after `now`, s, of a present job; infinite: none."""
        self.passed(now)
        coming = self._coming
        while coming and not self._present(coming[0][1]):
            heappop(coming)
        return coming[0][0] if coming else math.inf
