"""Checkpoints of jobs, from which a job continues that has lost a node.

A job writes a checkpoint at each multiple of an interval of its work. Work is in seconds of the run time of the job on
its requested nodes, so that a job on more nodes reaches its checkpoints sooner. No checkpoint is written at the end of
the work. While a job writes one, it does no work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ROUNDING = 1e-9
"""A share of an interval by which work may lack a multiple of it, since sums of times are rounded."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a job.

    Attributes:
        interval_s: work between two checkpoints, s.
        cost_s: time to write one, s.
    """

    interval_s: float
    cost_s: float = 0.0

    def seconds(self, done: float, work: float, rate: float) -> float:
        """Return the time in which the work of a job grows from `done` to `work`, with the checkpoints in between, s.

        A checkpoint at `done` has been written, and one at `work` has not.
        """
        written = max(0, self._before(work) - self._number(done))
        return (work - done) / rate + written * self.cost_s

    def after(self, done: float, seconds: float, rate: float) -> tuple[float, float]:
        """Return the work `seconds` after it was `done`, and the time left of the checkpoint that the job writes, s.

        The time left is 0 if the job works.
        """
        first = self._number(done) + 1
        since_first = seconds - (first * self.interval_s - done) / rate
        if since_first < -ROUNDING * self._cycle(rate):
            return done + seconds * rate, 0.0
        cycles, rest = divmod(max(0.0, since_first), self._cycle(rate))
        point = (first + cycles) * self.interval_s
        return (point, self.cost_s - rest) if rest < self.cost_s else (point + (rest - self.cost_s) * rate, 0.0)

    def last(self, done: float, seconds: float, rate: float, work: float) -> tuple[float, float] | None:
        """Return the work at the last checkpoint in `seconds`, and when it was complete, s; None: there is none.

        `work`: all work of the job, s.
        """
        first = self._number(done) + 1
        until_first = (first * self.interval_s - done) / rate + self.cost_s
        cycles = math.floor((seconds - until_first) / self._cycle(rate) + ROUNDING) if seconds > -math.inf else -1
        cycles = min(cycles, self._before(work) - first)
        if cycles < 0:
            return None
        return (first + cycles) * self.interval_s, until_first + cycles * self._cycle(rate)

    def _before(self, work: float) -> int:
        """Return the number of checkpoints before `work` is done."""
        return math.ceil(work / self.interval_s - ROUNDING) - 1

    def _number(self, done: float) -> int:
        """Return the number of checkpoints when the work `done` is."""
        return math.floor(done / self.interval_s + ROUNDING)

    def _cycle(self, rate: float) -> float:
        return self.interval_s / rate + self.cost_s
