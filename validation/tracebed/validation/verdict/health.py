"""Health of the real run: whether the run is fit to be compared, and the causes if not.

One cause is nodes that were never used although a waiting job lacked exactly these nodes. Such nodes were not part of
the machine that the scheduler saw. This is a cause and not an outcome: the figures of the schedule do not enter. Nodes
that stay idle because no job needs them, because the first job of the queue does not fit, or because of a reservation
are no evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = "healthy", "degraded", "unhealthy", "unknown"
FACTS = ("interrupted", "clock_skew_jobs", "nodes_unused")  # signals without a limit that a run could widen
LOGGED = "it is a log without a record of its machine: the health was judged by nodes, states and times only"


NOT_JUDGED: tuple[str, list[dict[str, Any]], list[str], bool, dict[str, float | None]] = ("", [], [LOGGED], False, {})
"""The health of a log: state, causes, notes, lenient, and signals."""

WAIT_S = 120.0
"""Longest accepted wait of the first job of the queue beside unused nodes on which it fits, trace s: twice the longest
usual period between two passes of a scheduler."""
WAIT_WALL_S = 1.0  # the same in a replay, wall s: starts take some tenths of a second
PERIODS = 2  # the same, in scheduling intervals of the run
RESOLUTIONS = 10  # the same, in resolutions of the times of the run
MOST_NAMED = 3  # most nodes that a message names


@dataclass(frozen=True)
class Health:
    """State of the real run, and the causes with their figures."""

    state: str
    """`healthy`, `degraded`, `unhealthy`, or `unknown` for a log or a replay that recorded no health."""
    causes: tuple[dict[str, Any], ...]
    """Causes: signal, value, limit, state (degraded or unhealthy) and text."""
    notes: tuple[str, ...] = ()
    """How the health differs from the record of the run, and what could not be recomputed; a sentence each."""
    lenient: bool = False
    """Whether the run is unhealthy by the default limits only, and not by its own ones."""
    signals: Mapping[str, float | None] = field(default_factory=dict)
    """The judged figures: signal -> value; None: unknown. Empty for a log, and for a replay without a record."""

    @classmethod
    def of(cls, run: Run, skewed_jobs: int) -> Health:
        """Return the health of the real run `run`; that of a replay is judged again (`rejudging`)."""
        judged = NOT_JUDGED
        if run.info.source == "replay":
            from tracebed.validation.verdict.rejudging import reassessed_health  # slow: the limits of replays

            judged = reassessed_health(run)
        state, causes, notes, lenient, signals = judged
        causes = [*causes]
        known = {cause.get("signal") for cause in causes}
        if run.info.state == "interrupted" and state != UNHEALTHY and "interrupted" not in known:
            why = "; ".join(filter(None, run.info.interruptions)) or "cause unknown"
            causes.append(_cause("interrupted", 1, 0, f"the run was interrupted: {why}"))
        if skewed_jobs:
            text = f"{skewed_jobs:,} jobs start before their submission or end before their start"
            causes.append(_cause("clock_skew_jobs", skewed_jobs, 0, text))
        if (unused := unused_nodes(run)) is not None:
            causes.append(_cause("nodes_unused", len(unused.nodes), 0, unused.text))
        of_limits = [cause for cause in causes if cause["state"] == UNHEALTHY]
        return cls(
            UNHEALTHY if of_limits else state or UNKNOWN,
            tuple(causes),
            tuple(notes),
            lenient and all(cause.get("signal") not in FACTS for cause in of_limits),
            signals,
        )

    @property
    def decisive(self) -> list[dict[str, Any]]:
        """Causes of the state, without the causes of a milder state."""
        return [cause for cause in self.causes if cause["state"] == self.state]

    @property
    def why(self) -> str:
        """Texts of the decisive causes."""
        return "; ".join(cause["text"] for cause in self.decisive) or "cause unknown"


def counted_notes(notes: Sequence[tuple[str, str]], total: int) -> list[str]:
    """Return notes about `total` runs, (name of the run, note), as text, each different note once."""
    by_text: dict[str, list[str]] = {}
    for name, note in notes:
        by_text.setdefault(note, []).append(name)
    return [
        f"{names[0]}: {note}" if len(names) == 1 else f"{len(names)} of {total} runs ({names[0]}, and others): {note}"
        for note, names in by_text.items()
    ]


def _cause(signal: str, value: float, limit: float, text: str) -> dict[str, Any]:
    return {"signal": signal, "value": value, "limit": limit, "state": UNHEALTHY, "text": text}


class UnusedNodes(NamedTuple):
    """Nodes that were never used, and the job that waited longest for lack of them."""

    nodes: tuple[str, ...]
    total: int  # number of nodes of the run
    job: str
    # Time in which the job was the first of the queue and fitted with these nodes, but not without them, trace s.
    waited_s: float
    limit_s: float  # longest accepted wait, trace s

    @property
    def text(self) -> str:
        """The nodes and the wait as a sentence."""
        names = ", ".join(self.nodes[:MOST_NAMED]) + (", ..." if len(self.nodes) > MOST_NAMED else "")
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
    if its policy needs connected nodes, whose number is no evidence, or if its machine has partitions or resources, so
    that not every node serves every job.
    """
    info = run.info
    if (
        info.policy_parameters.get("contiguous")
        or (info.machine is not None and not info.machine.plain)
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
    """Return the first job of the queue with the longest wait for lack of the spare nodes, and this wait, s."""
    # Nodes that were lost at some time are not counted as idle. Waits below `limit` are not measured.
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
    """Return id, requested nodes, and the first and the last instant (s) at the head of the queue, of each job."""
    jobs, rows = (run.table(name).frame() for name in ("jobs", "allocations"))
    jobs = jobs[jobs["submit"].notna()].sort_values("submit", kind="stable")
    submit = jobs["submit"].to_numpy(dtype=np.float64)
    first = rows.groupby("job_id")["start"].min().reindex(jobs["job_id"]).to_numpy(dtype=np.float64)
    left = np.fmin(first, jobs["start"].to_numpy(dtype=np.float64))
    # A job leaves the queue at its first start. A job that never started counts as gone: why it waited is unknown. A
    # job with a deadline also counts as gone, since it may have an earliest start.
    left = np.where(np.isnan(left) | jobs["deadline"].notna(), submit, np.maximum(left, submit))
    before = np.maximum.accumulate(np.concatenate(([-np.inf], left)))[:-1]
    return jobs["job_id"].to_numpy(), jobs["nodes"].to_numpy(dtype=np.float64), np.maximum(submit, before), left


def _longest(edges: FloatArray, holds: BoolArray) -> float:
    """Return the length of the longest sequence of intervals between `edges` in which `holds` is true."""
    switches = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    return float((edges[switches[1::2]] - edges[switches[::2]]).max(initial=0.0))
