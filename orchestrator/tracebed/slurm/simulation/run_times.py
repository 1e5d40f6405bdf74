"""Run times of users' jobs as shares of their time limits, learnt from a log."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray, Workload
from tracebed.ground.states import JobState

MINUTE_S = 60.0
PRIOR = 4.0
"""A group of n jobs has the weight n / (n + PRIOR), and the next larger group the rest."""
KILLED = 2.0
"""Share of a job that its limit ended."""


class RunTimes:
    """The shares of run times in time limits, by groups of jobs, in the order of the log.

    The groups of a job are, the smallest first: jobs of the user with the limit and the number of cores, with the
    limit, with a limit of the class; jobs of all users with the limit, with a limit of the class; all jobs. The class
    of a limit is its octave: limits that differ by less than a factor of two.

    Attributes:
        groups: group -> shares; `KILLED`: the limit ended the job.
    """

    def __init__(self, log: Workload) -> None:
        """Learn from the jobs of a log with a run time and a limit. Without names, users count as other users."""
        limit, run_time = log.floats("time_limit"), log.floats("run_time")
        known = np.isfinite(limit) & (limit > 0) & np.isfinite(run_time) & (run_time > 0)
        killed = (log.texts("status") == JobState.KILLED).to_numpy(dtype=bool)
        shares = np.where(killed | (run_time >= limit), KILLED, run_time / np.where(known, limit, 1.0))
        users, cores = log.texts("user").tolist(), log.ints("nodes") * log.ints("cores_per_node")
        jobs: dict[tuple[str, float, int], list[int]] = defaultdict(list)
        for job, alike in enumerate(zip(users, limit.tolist(), cores.tolist(), strict=True)):
            if known[job]:
                jobs[alike].append(job)
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for alike, own in jobs.items():
            for group in _groups(*alike):
                groups[group] += own
        self.groups: dict[Hashable, FloatArray] = {group: shares[sorted(own)] for group, own in groups.items()}
        self.users = frozenset(users)
        self.jobs = int(known.sum())


class Draws:
    """Draws of run times for the members of an ensemble.

    A member goes through the shares of a group in the order of the log, from a random job on: successive jobs of a user
    are often alike.
    """

    def __init__(self, learnt: RunTimes, members: int, rng: np.random.Generator) -> None:
        self._learnt, self._members, self._rng = learnt, members, rng
        self._origins: dict[Hashable, IntArray] = {}
        self._drawn = Counter[Hashable]()
        self._positive: dict[Hashable, IntArray] = {}

    def of(self, user: str, limit: float, cores: int, elapsed: float = 0.0) -> FloatArray:
        """Return the run times of a job, s, shape (members,); more than the limit: the limit ends the job.

        They are longer than `elapsed`, the time that the job has run, s. `limit` is in s.
        """
        least = min(elapsed / limit, 1.0)
        every = self._learnt.groups
        groups = [group for group in _groups(user, limit, cores) if group in every]
        survivors = [self._survivors(group, least) for group in groups]
        shares = np.full(self._members, KILLED)
        left = np.ones(self._members, dtype=bool)
        for group, own, chance in zip(groups, survivors, self._chances(groups, survivors), strict=True):
            taken = left & (self._rng.random(self._members) < chance)
            shares[taken] = self._next(group, own)[taken] if taken.any() else 0.0
            left &= ~taken
        return shares * limit

    def _survivors(self, group: Hashable, least: float) -> IntArray:
        """Return which shares of a group exceed `least`."""
        if least:
            return np.flatnonzero(self._learnt.groups[group] > least)
        if group not in self._positive:
            self._positive[group] = np.flatnonzero(self._learnt.groups[group] > 0)
        return self._positive[group]

    def _chances(self, groups: list[Hashable], survivors: list[IntArray]) -> list[float]:
        """Return the probability of each group if none before was taken, by Bayes: given that the job runs so long."""
        found: list[float] = []
        survival = 0.0  # of a job that is drawn from the groups so far
        for group, own in zip(reversed(groups), reversed(survivors), strict=True):
            prior = PRIOR if found else 0.0
            found.append(len(own) / (len(own) + prior * survival) if len(own) else 0.0)
            survival = (len(own) + prior * survival) / (len(self._learnt.groups[group]) + prior)
        return found[::-1]

    def _next(self, group: Hashable, survivors: IntArray) -> FloatArray:
        """Return the share of the next surviving job of a group in each member."""
        values = self._learnt.groups[group]
        if group not in self._origins:
            self._origins[group] = self._rng.integers(len(values), size=self._members)
        at = (self._origins[group] + self._drawn[group]) % len(values)
        self._drawn[group] += 1
        found: FloatArray = values[survivors[np.searchsorted(survivors, at) % len(survivors)]]
        return found


def _groups(user: str, limit: float, cores: int) -> Iterator[Hashable]:
    """Yield the groups of a job, the smallest first."""
    minutes = math.ceil(limit / MINUTE_S - 1e-6)
    octave = math.floor(math.log2(max(1, minutes)))
    if user:
        yield "user, limit and cores", user, minutes, cores
        yield "user and limit", user, minutes
        yield "user and class", user, octave
    yield "limit", minutes
    yield "class", octave
    yield "all"
