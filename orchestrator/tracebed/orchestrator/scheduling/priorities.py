"""The order in which waiting jobs are considered: a choice beside the policy.

A priority is a key of each waiting job at an instant. The smallest key is considered first, equal keys in the order of
submission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.orchestrator.scheduling.jobs import SHORTEST_S, Jobs
from tracebed.orchestrator.scheduling.queue import PriorityQueue, Queue
from tracebed.registry import one_of

Floats: TypeAlias = NDArray[np.float64]

MAX_AGE_S = 7 * 86_400.0
"""Largest age that counts: the default of Slurm's PriorityMaxAge."""


def largest_slowdown_first(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order by (wait + limit) / limit, the slowdown of a job that starts now and uses its limit."""
    return -wait / np.maximum(limit, SHORTEST_S)


def shortest_first(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order by time limit. Long jobs may starve."""
    return limit


def aging(wait: Floats, limit: Floats, nodes: Floats, total: int) -> Floats:
    """Order as Slurm's multifactor plugin: age up to a week plus size relative to the machine, both of weight 1."""
    return -(np.minimum(wait / MAX_AGE_S, 1.0) + nodes / total)


FCFS = "fcfs"
PRIORITIES: dict[str, Callable[[Floats, Floats, Floats, int], Floats]] = {
    "largest-slowdown-first": largest_slowdown_first,
    "shortest-first": shortest_first,
    "aging": aging,
}
"""All but first come, first served, by name: (wait so far, time limit, requested nodes, machine's nodes) -> keys."""
NAMES = (FCFS, *PRIORITIES)


def queue_by(priority: str, jobs: Jobs, total: int) -> Queue:
    """Return an empty queue of `jobs` by `priority`, on a machine of `total` nodes.

    Raises:
        InputError: there is no such priority.
    """
    if priority == FCFS:
        return Queue(jobs)
    one_of("priority", priority, NAMES)
    keys_of = PRIORITIES[priority]
    submit, limit = np.array(jobs.submit), np.array(jobs.limit)
    nodes = np.array(jobs.nodes, dtype=np.float64)
    return PriorityQueue(
        jobs, lambda waiting, now: keys_of(now - submit[waiting], limit[waiting], nodes[waiting], total)
    )
