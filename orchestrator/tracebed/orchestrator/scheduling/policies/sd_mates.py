"""The mates of the policy `sd`: the columns of the candidates, the set that was found, and DynAVGSD."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.orchestrator.scheduling.state import Share, State

QUANTILES = {"median": 0.5, "p70": 0.7}
"""Value of `max_slowdown` -> quantile of the predicted slowdowns of the running jobs."""


class Mates(NamedTuple):
    """Running jobs that may be mates of one waiting job, in order of penalty: one array per column."""

    job: IntArray
    nodes: IntArray
    wait: FloatArray
    """Wait time plus the delay caused by earlier guests, s."""
    limit: FloatArray
    left: FloatArray
    """Expected remaining run time, s."""
    spare: IntArray
    """Unused cores per node."""
    can_lose: IntArray
    """Used cores per node that the mate can lose."""
    cores: IntArray
    """Cores per node for the guest."""
    guest_rate: FloatArray
    """Rate of the guest on the nodes of the mate."""
    rate: FloatArray
    """Rate of the mate while it shares its nodes."""

    def at(self, rows: BoolArray | IntArray | list[int]) -> Mates:
        """Return the given rows."""
        return Mates._make(column[rows] for column in self)


class Found(NamedTuple):
    """The best mates of one waiting job."""

    duration: float
    """Run time of the job beside them, s."""
    share: Share
    taken: list[tuple[float, float, int]]
    """What the job takes of the plan (start, duration, nodes): idle nodes, and each mate's for as long as the delay."""


def slowdown_of_running(state: State, quantile: float | None = None) -> float:
    """Return DynAVGSD: the mean of (wait + expected run time) / limit of the running jobs; inf without such jobs.

    With a quantile q, return the least slowdown that at least a share q of these jobs does not exceed.
    """
    ends, _, running = state.releases.rows
    arrays = state.jobs.arrays
    limit = arrays.limit[running]
    response = np.maximum(ends, state.now) - arrays.submit[running]
    slowdown = response[limit > 0] / limit[limit > 0]
    if not len(slowdown):
        return math.inf
    if quantile is None:
        return in_order(slowdown) / len(slowdown)
    return float(np.sort(slowdown)[math.ceil(quantile * len(slowdown)) - 1])


def in_order(values: FloatArray) -> float:
    """Return the sum of `values` (not empty) from the first to the last, as other languages compute it to the bit."""
    return float(values.cumsum()[-1])
