"""Reservations of nodes: which job holds which nodes from when until when, and when running jobs release theirs."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate
from operator import or_
from typing import NamedTuple

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.profile import step_at


class Hold(NamedTuple):
    """The reservation of a job: `nodes` from `start`, s, until `end`, s (excluded)."""

    start: float
    end: float
    nodes: tuple[int, ...]


class Reservations:
    """The nodes held over time: a step function whose values are bit masks of nodes.

    A search reads each step once. Memory and time do not grow with past reservations, because the reservation of a job
    is removed when the job ends.

    Attributes:
        holds: job -> its reservation, in the order of the reservations.
    """

    def __init__(self, nodes: int, members: int | None = None) -> None:
        """Start without reservations on a machine with `nodes` nodes, of which `members` can be had (a bit mask)."""
        self.holds: dict[int, Hold] = {}
        self._nodes = nodes
        self._members = (1 << nodes) - 1 if members is None else members
        self._times = [-math.inf]  # ascending; the held nodes are constant from each instant to the next
        self._held = [0]

    def add(self, job: int, hold: Hold) -> None:
        """Reserve nodes for `job`. An earlier reservation of the job is replaced.

        Raises:
            ValueError: another job holds one of the nodes at that time, or the interval is empty.
        """
        self.remove(job)
        bits = mask_of(hold.nodes)
        if not hold.start < hold.end < math.inf:
            raise ValueError(f"from {hold.start:g} s until {hold.end:g} s is not an interval")
        if self._between(hold.start, hold.end) & bits:
            raise ValueError("another job holds one of the nodes")
        self.holds[job] = hold
        first, last = step_at(self._times, self._held, hold.start), step_at(self._times, self._held, hold.end)
        for step in range(first, last):
            self._held[step] |= bits

    def remove(self, job: int) -> None:
        """Remove the reservation of `job`, if there is one."""
        hold = self.holds.pop(job, None)
        if hold is None:
            return
        bits = ~mask_of(hold.nodes)
        first, last = step_at(self._times, self._held, hold.start), step_at(self._times, self._held, hold.end)
        for step in range(first, last):
            self._held[step] &= bits
        for step in (last, first):
            if self._held[step] == self._held[step - 1]:
                del self._held[step], self._times[step]

    def free(self, start: float, end: float) -> BoolArray:
        """Return whether each node is free from `start` until `end`, s, shape (nodes,)."""
        return np.isin(np.arange(self._nodes), nodes_of(self._members & ~self._between(start, end)))

    def taken(self, nodes: Collection[int], since: float) -> float:
        """Return the first instant from `since` on at which one of `nodes` is held, s; infinite: none is."""
        bits = mask_of(nodes)
        first = bisect_right(self._times, since) - 1
        step = next((step for step in range(first, len(self._held)) if self._held[step] & bits), None)
        return math.inf if step is None else max(since, self._times[step])

    def openings(self, duration: float, since: float, until: float) -> Iterator[tuple[float, int]]:
        """Yield each instant at which a job may start, and the nodes that are free for `duration` > 0 s from it.

        The instants are `since` and the later ones, up to `until`, at which nodes are released: at any other instant,
        no node is free that was not free at the instant before. The nodes are a bit mask.
        """
        times, held = self._times, self._held
        step, at = bisect_right(times, since) - 1, since
        # The union over a sliding window of steps: of those before `middle`, kept for each first one, and of the rest.
        middle = stop = step
        before, rest = list[int](), 0
        while at <= until:
            end = max(step + 1, bisect_left(times, at + duration, stop))
            if step >= middle:
                before, rest, middle = list(accumulate(reversed(held[step:end]), or_)), 0, end
            else:
                for later in range(stop, end):
                    rest |= held[later]
            stop = end
            yield at, self._members & ~(before[middle - 1 - step] | rest)
            step += 1
            while step < len(held) and not held[step - 1] & ~held[step]:
                step += 1
            if step == len(held):
                return
            at = times[step]

    def _between(self, start: float, end: float) -> int:
        """Return the nodes held at some instant from `start` until `end`, as bits."""
        bits = 0
        for held in self._held[bisect_right(self._times, start) - 1 : bisect_left(self._times, end)]:
            bits |= held
        return bits


LOOK = 64
"""Number of running jobs whose ends are looked at first, since they usually suffice for a reservation."""


class Releases:
    """The running jobs sorted by expected end, then by number, in arrays, for the computation of reservations."""

    def __init__(self) -> None:
        """Start without jobs."""
        self._ends, self._nodes, self._jobs = array("d"), array("q"), array("q")
        self.changes = 0

    def add(self, job: int, end: float, nodes: int) -> None:
        """Add `job`, expected to release `nodes` nodes at `end`."""
        ends, jobs = self._ends, self._jobs
        at = bisect_right(ends, end)
        if at and ends[at - 1] == end and jobs[at - 1] > job:
            at = bisect_left(jobs, job, bisect_left(ends, end, 0, at), at)
        ends.insert(at, end)
        self._nodes.insert(at, nodes)
        jobs.insert(at, job)
        self.changes += 1

    def remove(self, job: int, end: float) -> None:
        """Remove `job`, which was added with `end`."""
        at = self._jobs.index(job, bisect_left(self._ends, end))  # several jobs may have the same expected end
        del self._ends[at], self._nodes[at], self._jobs[at]
        self.changes += 1

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Yield the expected ends in ascending order, s, with their jobs."""
        return zip(self._ends, self._jobs, strict=True)

    @property
    def steps(self) -> Iterator[tuple[float, int]]:
        """The expected ends in ascending order, s, with the numbers of nodes released."""
        return zip(self._ends, self._nodes, strict=True)

    def due(self, now: float) -> list[int]:
        """Return the jobs with an expected end at or before `now`, in the order of the expected ends."""
        return self._jobs[: bisect_right(self._ends, now)].tolist()

    @property
    def rows(self) -> tuple[FloatArray, IntArray, IntArray]:
        """Expected ends in ascending order, s, the nodes released at each, and the jobs; each of shape (jobs,)."""
        return np.array(self._ends), np.array(self._nodes), np.array(self._jobs)

    def reservation(self, need: int, idle: int, now: float) -> tuple[float, int]:
        """Return the shadow time at which `need` nodes will be idle, s, and the number of extra nodes idle then.

        The shadow time is infinite if lost nodes are needed: the time of their return is unknown.
        """
        ends, shadow = self._ends, now
        if idle < need:
            freed = [*accumulate(self._nodes[:LOOK])]
            at = bisect_left(freed, need - idle)
            if at + 1 < len(freed) and now < ends[at] < ends[at + 1]:
                return ends[at], idle + freed[at] - need
            at = int(np.array(self._nodes).cumsum().searchsorted(need - idle))
            if at == len(ends):
                return math.inf, 0
            shadow = max(now, ends[at])
        ended = np.array(self._nodes[: bisect_right(ends, shadow)])
        return shadow, idle + int(ended.sum()) - need
