"""Run times of users' jobs as shares of their time limits, learnt from a log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np

from tracebed.converters.workload import FloatArray, Workload
from tracebed.states import JobState

MINUTE_S = 60.0
PRIOR = 4.0
"""A group of n jobs is used for the share n / (n + PRIOR) of the draws, and the next larger group for the rest."""
KILLED = 2.0
"""Share of a job that its limit ended."""


class RunTimes:
    """The distribution of run time over time limit: of a user's jobs with a limit, of the user, of the limit, of all.

    The class of a limit is its octave: limits that differ by less than a factor of two.
    """

    def __init__(self, log: Workload) -> None:
        """Learn from the jobs of a log that have a run time and a time limit, and have started.

        Args:
            log: the log. Users must have their own names, or all jobs count as those of other users.
        """
        limit, run_time = log.floats("time_limit"), log.floats("run_time")
        known = np.isfinite(limit) & (limit > 0) & np.isfinite(run_time) & (run_time > 0)
        killed = (log.texts("status") == JobState.KILLED).to_numpy(dtype=bool)
        shares = np.where(killed | (run_time >= limit), KILLED, run_time / np.where(known, limit, 1.0))
        users = log.texts("user").tolist()
        groups: dict[Hashable, list[float]] = defaultdict(list)
        for job in np.flatnonzero(known).tolist():
            for group in _groups(users[job], float(limit[job])):
                groups[group].append(float(shares[job]))
        self._groups: dict[Hashable, FloatArray] = {group: np.sort(values) for group, values in groups.items()}
        self.users = frozenset(users)
        self.jobs = int(known.sum())

    def draw(self, user: str, limit: float, elapsed: float, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw the run times of a job, given that it has run for `elapsed` seconds.

        Args:
            user: user of the job.
            limit: time limit, s.
            elapsed: time that the job has run, s.
            count: number of draws.
            rng: generator of the draws.

        Returns:
            Run times in s, shape (count,); more than the limit: the limit ends the job.
        """
        least = min(elapsed / limit, 1.0)
        shares = np.full(count, KILLED)
        left = np.ones(count, dtype=bool)
        for group in _groups(user, limit):
            values = self._groups.get(group)
            if values is None:
                continue
            survivors = values[np.searchsorted(values, least, side="right") :]
            if not len(survivors):
                continue
            last = group == _ALL
            taken = left & (rng.random(count) < (1.0 if last else len(survivors) / (len(survivors) + PRIOR)))
            shares[taken] = survivors[rng.integers(len(survivors), size=int(taken.sum()))]
            left &= ~taken
        return shares * limit


_ALL = ("all",)


def _groups(user: str, limit: float) -> Iterator[Hashable]:
    """Yield the groups of a job, the smallest first."""
    minutes = math.ceil(limit / MINUTE_S - 1e-6)
    octave = math.floor(math.log2(max(1, minutes)))
    if user:
        yield "user and limit", user, minutes
        yield "user and class", user, octave
    yield "limit", minutes
    yield "class", octave
    yield _ALL
