"""Time slicing in rounds: the scheduler Gavel, with two of its policies.

Source: Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, "Heterogeneity-Aware Cluster Scheduling Policies for
Deep Learning Workloads", OSDI 2020: sections 4.1 and 4.2 (max-min fairness, makespan), and section 5 with algorithm 1
(rounds). Here for nodes of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Start, State, Suspend, Wake, next_multiple


@dataclass(frozen=True)
class _Rounds(ParameterTable):
    """Rounds in which the jobs run that are farthest behind their shares of the time.

    Args:
        round_s: length of a round, trace s.
    """

    malleable: ClassVar[bool] = False

    round_s: float = 360.0

    def __post_init__(self) -> None:
        """Raise InputError if the rounds have no length."""
        if not 0 < self.round_s < math.inf:
            raise InputError(f"round_s is {self.round_s:g}", hint="give seconds above 0")

    def time_shares(self, state: State, jobs: Sequence[int], nodes: int) -> list[float]:
        """Return the share of the time in which each of `jobs` should run on the `nodes` nodes, above 0, at most 1."""
        raise NotImplementedError

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the suspensions and the starts of a round at its start, and the start of the next round."""
        # Jobs that lost a node are ending. Jobs on a drained node run on: it would not be idle after a suspension.
        running = [job for job in state.size if job not in state.failing and job not in state.draining]
        jobs = sorted([*running, *state.queue.jobs()])
        if not jobs:
            return
        start = next_multiple(self.round_s, state.now)
        if start > state.now and not state.woken:  # a real clock wakes a little later than it should
            yield Wake(start)
            return
        free = state.idle + sum(state.size[job] for job in running)
        chosen = set()
        for job in self._by_priority(state, jobs, free):
            if state.jobs.nodes[job] <= free:
                chosen.add(job)
                free -= state.jobs.nodes[job]
        for job in [job for job in running if job not in chosen]:
            yield Suspend(job)
        for job in [job for job in state.queue.jobs() if job in chosen]:
            yield Start(job, state.jobs.nodes[job])
        if chosen:  # otherwise all jobs wait for lost nodes, whose return is an event
            following = next_multiple(self.round_s, state.now, first=round(state.now / self.round_s) + 1)
            yield Wake(start if start > state.now else following)

    def _by_priority(self, state: State, jobs: Sequence[int], nodes: int) -> list[int]:
        """Return the jobs by the ratio of their share to the part of the time since their submission in which they ran.

        Algorithm 1. Jobs that never ran are first, those with the largest shares before the others.
        """
        keys = {}
        for job, share in zip(jobs, self.time_shares(state, jobs, nodes), strict=True):
            served, age = state.service(job), state.now - state.jobs.submit[job]
            keys[job] = (-share * age / served if served > 0 else -math.inf, -share, job)
        return sorted(jobs, key=keys.__getitem__)


@dataclass(frozen=True)
class MaxMinFairness(_Rounds):
    """Each job gets the same number of nodes over time, unless it requested fewer.

    The policy of section 4.1, "least attained service", for throughputs that are equal on all nodes: it maximizes the
    least z x over the jobs, where z is the number of nodes and x the share of the time of a job, with the sum of z x at
    most the number of nodes, and x at most 1. Of the many solutions this is the one by water filling.

    Args:
        round_s: length of a round, trace s.
    """

    def time_shares(self, state: State, jobs: Sequence[int], nodes: int) -> list[float]:
        """Return min(1, level / z): `level` nodes for each job use up all nodes."""
        sizes = [state.jobs.nodes[job] for job in jobs]
        level, left = math.inf, float(nodes)
        for place, size in enumerate(sorted(sizes)):
            others = len(sizes) - place
            if size * others > left:
                level = left / others
                break
            left -= size
        return [min(1.0, level / size) for size in sizes]


@dataclass(frozen=True)
class MinTotalDuration(_Rounds):
    """All jobs end at the same time, as early as possible: the policy of section 4.2 for the makespan.

    With r the remaining run time of a job, T is the least time with r / T at most 1 and the sum of z r / T at most the
    number of nodes; the share of a job is r / T. The remaining run time follows from the time limit, and is at least a
    round.

    Args:
        round_s: length of a round, trace s.
    """

    def time_shares(self, state: State, jobs: Sequence[int], nodes: int) -> list[float]:
        """Return r / T."""
        left = [max(state.jobs.limit[job] - state.service(job), self.round_s) for job in jobs]
        work = sum(state.jobs.nodes[job] * rest for job, rest in zip(jobs, left, strict=True))
        total = max([*left, work / max(nodes, 1)])
        return [rest / total for rest in left]
