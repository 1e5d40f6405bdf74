"""Idle nodes over future time, if running jobs use their full limits and planned jobs start as planned."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter


class Profile:
    """Number of idle nodes over future time: a step function, constant from each instant to the next.

    Args:
        now: the first instant, s.
        idle: number of nodes idle at `now`.
        changes: (instant, released nodes); a negative number of nodes is allocated. A past instant counts as now.
    """

    def __init__(self, now: float, idle: int, changes: Iterable[tuple[float, int]]) -> None:
        """Build the step function from the changes."""
        self.times = [now]
        self.idle = [idle]
        for instant, nodes in sorted(changes):
            if instant > self.times[-1]:
                self.times.append(instant)
                self.idle.append(self.idle[-1])
            self.idle[-1] += nodes

    def earliest(self, nodes: int, duration: float, *, since: float = -math.inf, until: float = math.inf) -> float:
        """Return the first instant from which `nodes` nodes are idle for `duration` > 0 seconds.

        Args:
            nodes: number of nodes.
            duration: length of the period, s.
            until: the latest instant to return. It is the present reservation of the job, which the profile counts as
                allocated.
        """
        times, idle = self.times, self.idle
        step, steps = bisect_left(times, since), len(times)
        while step < steps and times[step] < until:
            if idle[step] < nodes:
                step += 1
                continue
            start, end = times[step], min(times[step] + duration, until)
            while step < steps and times[step] < end and idle[step] >= nodes:
                step += 1
            if step == steps or times[step] >= end:
                return start
        return until

    def occupy(self, start: float, duration: float, nodes: int) -> None:
        """Allocate `nodes` nodes from `start` for `duration` seconds. A negative number releases nodes."""
        first, last = step_at(self.times, self.idle, start), step_at(self.times, self.idle, start + duration)
        for step in range(first, last):
            self.idle[step] -= nodes

    def least(self, start: float, duration: float) -> int:
        """Return the least number of idle nodes from `start` for `duration` > 0 seconds."""
        first, last = step_at(self.times, self.idle, start), step_at(self.times, self.idle, start + duration)
        return min(self.idle[first:last])


class NodeProfile:
    """Named idle nodes over future time: a step function whose values are sets of nodes, as bit masks.

    Args:
        now: the first instant, s.
        idle: mask of the nodes idle at `now`.
        changes: (instant, mask of released nodes, mask of allocated nodes). A past instant counts as now. A node that
            is released and allocated at one instant is allocated after it.
    """

    def __init__(self, now: float, idle: int, changes: Iterable[tuple[float, int, int]]) -> None:
        """Build the step function from the changes."""
        self.times = [now]
        self.idle = [idle]
        allocated = 0  # at the last instant
        for instant, released, taken in sorted(changes, key=itemgetter(0)):
            if instant > self.times[-1]:
                self.times.append(instant)
                self.idle.append(self.idle[-1])
                allocated = 0
            allocated |= taken
            self.idle[-1] = (self.idle[-1] | released) & ~allocated

    def earliest(self, nodes: int, duration: float) -> tuple[float, int]:
        """Return the first instant from which `nodes` nodes are idle for `duration` > 0 seconds.

        Return also the mask of all nodes that are idle for this time. The instant is infinite if there is none.
        """
        times, idle, before = self.times, self.idle, 0
        for step, start in enumerate(times):
            if not idle[step] & ~before:
                before = idle[step]
                continue  # a job that fits from here fits from the previous step
            before = free = idle[step]
            end, later = start + duration, step + 1
            while free.bit_count() >= nodes:
                if later == len(times) or times[later] >= end:
                    return start, free
                free &= idle[later]
                later += 1
        return math.inf, 0

    def occupy(self, start: float, end: float, nodes: int) -> None:
        """Allocate the mask `nodes` from `start` until `end`."""
        first, last = step_at(self.times, self.idle, start), step_at(self.times, self.idle, end)
        for step in range(first, last):
            self.idle[step] &= ~nodes

    def release(self, start: float, end: float, nodes: int) -> None:
        """Release the mask `nodes`, which is allocated from `start` until `end`."""
        first, last = step_at(self.times, self.idle, start), step_at(self.times, self.idle, end)
        for step in range(first, last):
            self.idle[step] |= nodes


def step_at(times: list[float], values: list[int], instant: float) -> int:
    """Return the index of the step of a step function that begins at `instant`; insert the step if it is missing.

    Args:
        times: the instants of the steps, ascending, the first one not after `instant`.
        values: the value from each instant on.
        instant: the instant, s.
    """
    step = bisect_left(times, instant)
    if step == len(times) or times[step] != instant:
        times.insert(step, instant)
        values.insert(step, values[step - 1])
    return step
