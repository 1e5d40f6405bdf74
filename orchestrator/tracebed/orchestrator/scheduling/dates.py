"""Dates of jobs, such as deadlines: the jobs whose date has passed, and the next date."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush


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
        self._coming: list[tuple[float, int]] | None = None  # a heap; jobs that are no longer present remain for a time
        self._passed: set[int] = set()

    def add(self, job: int) -> None:
        """Add `job`, which is present from now on."""
        if self._coming is not None and (date := self._date(job)) < math.inf:
            heappush(self._coming, (date, job))

    def passed(self, now: float) -> set[int]:
        """Return the present jobs whose date is at or before `now`, s. Instants do not decrease from read to read."""
        if self._coming is None:
            self._coming = [(self._date(job), job) for job in range(self._jobs) if self._present(job)]
            heapify(self._coming)
        while self._coming and self._coming[0][0] <= now:
            self._passed.add(heappop(self._coming)[1])
        self._passed = {job for job in self._passed if self._present(job)}
        return self._passed

    def following(self, now: float) -> float:
        """Return the first date after `now`, s, of a present job; infinite: none."""
        self.passed(now)
        coming = self._coming or []
        while coming and not self._present(coming[0][1]):
            heappop(coming)
        return coming[0][0] if coming else math.inf
