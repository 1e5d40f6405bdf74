"""Mallob: each job gets nodes in proportion to its priority, at most what it can use, and at least its minimum.

Source: Sanders, Schreiber, "Decentralized Online Scheduling of Malleable NP-hard Jobs", Euro-Par 2022, the calculation
of fair volumes. What the article leaves open (rounding, ties) follows the behavior of Mallob in February 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import ClassVar, Literal

import numpy as np

from tracebed.orchestrator.scheduling.policies.deadline import late
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Resize, Start, State, Wake

STEPS = 30
"""Halvings of the interval of the multiplier; the rest of the nodes is given one by one."""


@dataclass(frozen=True)
class Mallob(ParameterTable):
    """All jobs run at once, on fair shares of the nodes by priority, which change with each arrival and each end.

    Args:
        weights: nodes in proportion to the `priority` of the jobs, or `equal` ones (equipartition).
    """

    malleable: ClassVar[bool] = True

    weights: Literal["priority", "equal"] = "priority"

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the cancellations of late jobs, then shrinks, starts and expansions, and the next deadline."""
        yield from late(state)
        jobs = state.jobs
        running = state.free_to_resize(state.cancelling)
        available = state.idle + state.returning + sum(state.size[job] for job in running)
        admitted = _admitted(state, available - sum(jobs.low[job] for job in running))
        chosen = [*running, *admitted]
        share = dict(
            zip(
                chosen,
                volumes(
                    [jobs.priority_of(job) if self.weights == "priority" else 1.0 for job in chosen],
                    [jobs.low[job] for job in chosen],
                    [jobs.high[job] for job in chosen],
                    available,
                ),
                strict=True,
            )
        )
        for job in running:
            if share[job] < state.size[job]:
                yield Resize(job, share[job])
        for job in admitted:
            yield Start(job, share[job])
        for job in running:
            # An expansion takes idle nodes only. Nodes of shrinks that take time follow at the next call.
            nodes = min(share[job], state.size[job] + state.idle)
            if job not in state.resizing and nodes > state.size[job]:
                yield Resize(job, nodes)
        if (at := state.deadlines.following(state.now)) < math.inf:
            yield Wake(at)


def _admitted(state: State, room: int) -> list[int]:
    """Return the waiting jobs, in the order of the queue, whose minimum sizes fit beside those of the running jobs."""
    admitted = []
    for job in state.queue.jobs():
        room -= state.jobs.low[job]
        if room < 0:
            break
        admitted.append(job)
    return admitted


def volumes(priority: Sequence[float], low: Sequence[int], high: Sequence[int], available: int) -> list[int]:
    """Return the nodes of each job: max(low, min(high, floor(alpha * priority))), with the largest alpha that fits.

    Jobs that the next larger alpha would give a node at once get the remaining nodes: higher priority first, then
    larger maximum, then the order of the arguments.

    Args:
        priority: above 0, shape (jobs,).
        low: minimum number of nodes, shape (jobs,); together at most `available`.
        high: maximum number of nodes, shape (jobs,).
        available: nodes to divide.
    """
    if sum(high) <= available:
        return [*high]
    weight, least, most = np.asarray(priority), np.asarray(low), np.asarray(high)
    below, above = 0.0, float(available / weight.min()) + 1.0
    for _ in range(STEPS):
        alpha = (below + above) / 2
        if np.maximum(least, np.minimum(most, np.floor(alpha * weight))).sum() <= available:
            below = alpha
        else:
            above = alpha
    whole = np.maximum(least, np.minimum(most, np.floor(below * weight))).astype(np.int64)
    # The quotient `nodes / priority` decides, not the product, which may be rounded up to the next node.
    size: list[int] = (whole - ((whole > least) & (whole / weight > below))).tolist()
    heap = [
        ((size[job] + 1) / priority[job], -priority[job], -high[job], job)
        for job in range(len(size))
        if size[job] < high[job]
    ]
    heapify(heap)
    for _ in range(available - sum(size)):
        job = heap[0][-1]
        size[job] += 1
        if size[job] < high[job]:
            heapreplace(heap, ((size[job] + 1) / priority[job], *heap[0][1:]))
        else:
            heappop(heap)
    return size
