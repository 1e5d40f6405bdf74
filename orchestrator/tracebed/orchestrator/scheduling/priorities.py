"""Priorities: the order in which a policy considers the waiting jobs.

A priority is a function that computes a key for each waiting job. Jobs are considered in ascending order of the keys,
and jobs with equal keys in submit order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.ground.registry import one_of
from tracebed.orchestrator.scheduling import names
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S, Jobs
from tracebed.orchestrator.scheduling.queue import PriorityQueue, Queue

Floats: TypeAlias = NDArray[np.float64]

MAX_AGE_S = 7 * 86_400.0
"""Age at which the age factor is 1, s: the default of Slurm's PriorityMaxAge."""


def largest_slowdown_first(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order by descending (wait + limit) / limit, the slowdown of a job that starts now and uses its full limit."""
    return -wait / np.maximum(limit, SHORTEST_S)


def shortest_first(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order by ascending time limit. Long jobs may starve."""
    return limit


def aging(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order as Slurm's multifactor plugin with the age factor and the job size factor, both with weight 1."""
    return -(np.minimum(wait / MAX_AGE_S, 1.0) + nodes / total)


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
    if priority == names.FCFS:
        return Queue(jobs)
    one_of("priority", priority, names.PRIORITIES)
    keys_of = PRIORITIES[priority]
    submit, limit = np.array(jobs.submit), np.array(jobs.limit)
    nodes = np.array(jobs.nodes, dtype=np.float64)
    return PriorityQueue(
        jobs, lambda waiting, now: keys_of(now - submit[waiting], limit[waiting], nodes[waiting], total)
    )
