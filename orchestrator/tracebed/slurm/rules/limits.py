"""The limits of associations and QOS: counters of jobs and resources, and which of them hold a job.

A limit is a counter with a largest value, such as the cores of the running jobs of one user in one QOS. Jobs with the
same user, account, QOS and partition are a group with the same limits. Source: "Resource Limits" of Slurm's
documentation, sacctmgr(1), and experiments on Slurm 22.05.8 (`record_slurm_accounts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracebed.slurm.rules.resources import Parts, Request, Resources

SUBMITTED, JOBS = -2, -1
"""Kinds of a counter: jobs that run or wait, and jobs that run. The other kinds are resources of running jobs."""
CORES, MEMORY, NODES, BILLING, GRES = range(5)
"""Kinds of a counter of resources: memory in MiB. The generic resources begin at `GRES`."""


class Limit(NamedTuple):
    """A limit of a group of jobs."""

    counter: int
    kind: int
    most: int
    reason: str
    """The reason that squeue prints."""


@dataclass(frozen=True)
class Limits:
    """The limits of all jobs.

    Attributes:
        group: group of each job.
        limits: limits of each group, in the order in which Slurm checks them; those of jobs before those of resources.
        counted: (counter, kind) of each counter in which the jobs of a group count.
        counters: number of counters.
    """

    group: Sequence[int] = ()
    limits: Sequence[Sequence[Limit]] = ()
    counted: Sequence[Sequence[tuple[int, int]]] = ()
    counters: int = 0


def amounts_of(
    request: Request, parts: Parts | None, nodes: Resources, weights: Sequence[float], most: bool
) -> list[int]:
    """Return the amounts of a job by kind: of its cores `parts`, or, if None, the requested ones.

    Args:
        request: what the job requests.
        parts: the cores of each node that the job gets.
        weights: see `billed`.
        most: see `billed`.
    """
    if parts is None:
        cores, count = request.cores, request.fewest
        memory = max(0, request.memory) * (cores if request.by_core else count)
    else:
        cores, count = sum(parts.values()), len(parts)
        memory = sum(nodes.memory_of(request, node, own) for node, own in parts.items())
    amounts = [cores, memory, count, 0, *(each * count for each in request.gres)]
    amounts[BILLING] = int(billed(amounts, weights, most))
    return amounts


def billed(amounts: Sequence[int], weights: Sequence[float], most: bool) -> float:
    """Return the billing of a job: the sum of weighted amounts, or, if `most`, the largest one."""
    total = 0.0
    for amount, weight in zip(amounts, weights, strict=True):
        value = amount * weight
        total = max(total, value) if most else total + value
    return total


class Counters:
    """What running and waiting jobs use of each limit."""

    def __init__(self, limits: Limits) -> None:
        """Start without jobs."""
        self._limits = limits
        self._used = [0] * limits.counters

    def count(self, job: int, amounts: Sequence[int] | None, sign: int) -> None:
        """Count a job that begins (1) or ends (-1) to run with `amounts`; None: to be in the system."""
        limits = self._limits
        if not limits.counters:
            return
        for counter, kind in limits.counted[limits.group[job]]:
            if kind == SUBMITTED:
                self._used[counter] += sign if amounts is None else 0
            elif amounts is not None:
                self._used[counter] += sign if kind == JOBS else sign * amounts[kind]

    def refused(self, job: int) -> int:
        """Return which limit of its group refuses a job at its submission; -1: none."""
        return self._reached(job, SUBMITTED)

    def held(self, job: int) -> int:
        """Return which limit of running jobs holds a waiting job; -1: none."""
        return self._reached(job, JOBS)

    def exceeded(self, job: int, amounts: Sequence[int]) -> int:
        """Return which limit of resources a job would exceed; -1: none."""
        limits = self._limits
        if limits.counters:
            for number, limit in enumerate(limits.limits[limits.group[job]]):
                if limit.kind >= 0 and self._used[limit.counter] + amounts[limit.kind] > limit.most:
                    return number
        return -1

    def _reached(self, job: int, kind: int) -> int:
        limits = self._limits
        if limits.counters:
            for number, limit in enumerate(limits.limits[limits.group[job]]):
                if limit.kind == kind and self._used[limit.counter] >= limit.most:
                    return number
        return -1
