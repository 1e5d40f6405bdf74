"""Capacity of the real run: nodes that were never used although a waiting job lacked exactly these nodes.

Such nodes were not part of the machine that the scheduler saw. This is a cause and not an outcome: the figures of the
schedule do not enter. Nodes that stay idle because no job needs them, because the first job of the queue does not fit,
or because of a reservation are no evidence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps

WAIT_S = 120.0
"""Longest accepted wait of the first job of the queue beside unused nodes on which it fits, trace s: twice the longest
usual period between two passes of a scheduler."""
WAIT_WALL_S = 1.0
"""The same in a replay, wall s: starts take some tenths of a second."""
PERIODS = 2
"""The same, in scheduling intervals of the run."""
RESOLUTIONS = 10
"""The same, in resolutions of the times of the run."""
NAMED = 3
"""Most nodes that a message names."""


class UnusedNodes(NamedTuple):
    """Nodes that were never used, and the job that waited longest for lack of them."""

    nodes: tuple[str, ...]
    total: int
    """Number of nodes of the run."""
    job: str
    waited_s: float
    """Time in which the job was the first of the queue and fitted with these nodes, but not without them, trace s."""
    limit_s: float
    """Longest accepted wait, trace s."""

    @property
    def text(self) -> str:
        """The nodes and the wait as a sentence."""
        names = ", ".join(self.nodes[:NAMED]) + (", ..." if len(self.nodes) > NAMED else "")
        return (
            f"{len(self.nodes):,} of {self.total:,} nodes ({names}) were never used while job {self.job}, the first of "
            f"the queue, waited {self.waited_s:,.0f} s for lack of them (limit {self.limit_s:,.0f} s)"
        )


def unused_nodes(run: Run) -> UnusedNodes | None:
    """Return the nodes that no job used during the run although the first job of the queue lacked them, or None.

    A node counts if it was never lost (such nodes have a signal of their own) and has at least the cores of the
    smallest used node. The first of the queue is the waiting job with the earliest submission. It lacks the nodes
    while it fits on the idle nodes with them, and does not fit without them. Any policy that starts a job if it
    fits starts this job then. None also if the run does not record its nodes or its allocations,
    or if its policy needs connected nodes, whose number is no evidence.
    """
    info = run.info
    if (
        info.policy_parameters.get("contiguous")
        or not info.nodes
        or not len(run.table("allocations"))
        or {"nodes", "allocations"} & info.unknown.keys()
    ):
        return None
    spare, lost = _spare(run)
    if not spare.any():
        return None
    limit = max(
        WAIT_S,
        RESOLUTIONS * info.resolution_s,
        PERIODS * info.setup.scheduling.interval_s,
        WAIT_WALL_S * info.speed if info.source == "replay" else 0.0,
    )
    job, waited = _longest_wait(run, int(spare.sum()), lost, limit)
    if not waited > limit:
        return None
    names = tuple(info.nodes[node].name for node in np.flatnonzero(spare))
    return UnusedNodes(names, len(info.nodes), job, waited, limit)


def _spare(run: Run) -> tuple[BoolArray, int]:
    """Return which nodes were never used and could have been, shape (nodes,), and the number of nodes ever lost."""
    rows = run.table("allocations")
    first, held = rows["node"], ~(rows["end"] <= rows["start"])
    changes = np.zeros(run.total_nodes + 1, dtype=np.int64)
    np.add.at(changes, first[held], 1)
    np.add.at(changes, (first + rows["count"])[held], -1)
    used = np.cumsum(changes[:-1]) > 0
    cores = np.array([node.cores for node in run.info.nodes])
    names = {outage.get("node") for outage in run.info.outages}
    lost = np.array([node.name in names for node in run.info.nodes], dtype=bool)
    return ~used & ~lost & (cores >= cores[used].min(initial=cores.max())), int(lost.sum())


def _longest_wait(run: Run, spare: int, lost: int, limit: float) -> tuple[str, float]:
    """Return the first job of the queue with the longest wait for lack of the spare nodes, and this wait, s.

    Args:
        spare: number of nodes never used.
        lost: number of nodes that were lost at some time; they are not counted as idle.
        limit: longest accepted wait, s; shorter waits are not measured.
    """
    rows = run.table("allocations")
    start, end = rows["start"], rows["end"]
    end = np.where(np.isnan(end), np.nanmax([*end, *run.table("jobs")["end"], start.max()]), end)
    count = rows["count"].astype(np.float64)
    size = np.array([node.cores for node in run.info.nodes])[rows["node"]]
    holders = Steps.count(start, end, count)  # a node that jobs share counts several times
    whole = Steps.count(start, end, count * rows["cores"] / size)
    names, need, begin, until = _heads(run)
    worst = ("", 0.0)
    for row in np.flatnonzero((until - begin > limit) & (need > 0)):
        inside = holders.times[slice(*np.searchsorted(holders.times, [begin[row], until[row]], side="right"))]
        edges = np.concatenate(([begin[row]], inside[inside < until[row]], [until[row]]))
        fits = need[row] <= run.total_nodes - lost - holders.at(edges[:-1])
        lacks = need[row] > run.total_nodes - spare - whole.at(edges[:-1])
        if (waited := _longest(edges, fits & lacks)) > worst[1]:
            worst = (str(names[row]), waited)
    return worst


def _heads(run: Run) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return id, requested nodes, and the first and the last instant (s) at the head of the queue, of each job.

    A job leaves the queue at its first start. A job that never started counts as gone: why it waited is unknown. A job
    with a deadline also counts as gone, since it may have an earliest start.
    """
    jobs, rows = (run.table(name).frame() for name in ("jobs", "allocations"))
    jobs = jobs[jobs["submit"].notna()].sort_values("submit", kind="stable")
    submit = jobs["submit"].to_numpy(dtype=np.float64)
    first = rows.groupby("job_id")["start"].min().reindex(jobs["job_id"]).to_numpy(dtype=np.float64)
    left = np.fmin(first, jobs["start"].to_numpy(dtype=np.float64))
    left = np.where(np.isnan(left) | jobs["deadline"].notna(), submit, np.maximum(left, submit))
    before = np.maximum.accumulate(np.concatenate(([-np.inf], left)))[:-1]
    return jobs["job_id"].to_numpy(), jobs["nodes"].to_numpy(dtype=np.float64), np.maximum(submit, before), left


def _longest(edges: FloatArray, holds: BoolArray) -> float:
    """Return the length of the longest sequence of intervals between `edges` in which `holds` is true."""
    switches = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    return float((edges[switches[1::2]] - edges[switches[::2]]).max(initial=0.0))
