"""Number of idle nodes in the future, if every running job uses its whole limit and every plan is kept."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable


class Profile:
    """Idle nodes over future time: a step function, constant from each instant to the next.

    Args:
        now: its first instant, s.
        idle: nodes idle from then on.
        changes: (instant, nodes that come free); negative: nodes that are taken. A past instant counts as now.
    """

    def __init__(self, now: float, idle: int, changes: Iterable[tuple[float, int]]) -> None:
        """Sum up the changes."""
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
            since: the earliest instant to return.
            until: the latest instant to return: the nodes are known to be idle from then on for `duration`, even if
                the profile contradicts, because the job itself is entered there.
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
        """Take `nodes` nodes from `start`, for `duration` seconds; a negative number gives them back."""
        first, last = self._step_at(start), self._step_at(start + duration)
        for step in range(first, last):
            self.idle[step] -= nodes

    def _step_at(self, instant: float) -> int:
        """Return the step that begins at `instant`, inserted if missing. `instant` is not before the first step."""
        step = bisect_left(self.times, instant)
        if step == len(self.times) or self.times[step] != instant:
            self.times.insert(step, instant)
            self.idle.insert(step, self.idle[step - 1])
        return step
