"""Conversion of a log to a Run, so that predictions can be compared with the real system."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.pooling import check_machine
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, System, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run, RunInfo, workload_facts


def run_of_log(workload: Workload, *, name: str = "workload", where: str | None = None) -> Run:
    """Return the run with the times `logged_start` and `logged_end` of a log, on the nodes of its system.

    Logs rarely list the nodes of a job. Nodes are assigned when jobs start and released when they end, so that no node
    has two jobs. If the number of nodes is unknown, the run has as many as were busy at once. Jobs without a start have
    no allocations; their state is the one in the log, or unknown. The log may be cleaned, but not scaled.
    """
    start, end = workload.floats("logged_start"), workload.floats("logged_end")
    nodes = workload.ints("nodes")
    ran = np.isfinite(start) & np.isfinite(end) & (end >= start) & (nodes > 0)
    if not ran.any():
        what = "no job has a logged start and end: the workload is not a log, or was scaled"
        raise InputError(what, where=where, hint="use the output of `tracebed convert` or `tracebed clean`")
    jobs = np.flatnonzero(ran)
    owner, node, count, busiest = assign_nodes(start[jobs], end[jobs], nodes[jobs])
    system = workload.provenance.system
    check_machine(workload, where, most=busiest)
    total = max(system.nodes or 0, busiest)
    warnings = []
    if system.nodes is None:
        warnings.append(
            f"the number of nodes is unknown: the run has the {busiest:,} nodes that are busy at once in the log "
            "(convert --system NODESxCORES sets the machine)"
        )
    cores = system.cores_per_node or int(workload.ints("cores_per_node").max())
    ids = workload.column("job_id").astype(object)
    states = _states(workload, ran)
    table = pd.DataFrame(
        {
            "job_id": ids,
            "kind": workload.column("kind"),
            "submit_planned": workload.floats("submit_time"),
            "submit": workload.floats("submit_time"),
            "start": np.where(ran, start, np.nan),
            "launched": np.nan,
            "end": np.where(ran, end, np.nan),
            "state": states,
            "reason": np.where(ran, "", "no start, end or size in the log").astype(object),
            "nodes": nodes,
            "run_time": workload.floats("run_time"),
            "time_limit": workload.floats("time_limit"),
            **{name: workload.column(name) for name in ("user", "group", "partition")},
            "deadline": workload.floats("deadline"),
            "behaviour": workload.column("behaviour"),
        }
    )
    allocations = pd.DataFrame(
        {
            "job_id": ids[jobs][owner],
            "node": node,
            "count": count,
            "start": start[jobs][owner],
            "end": end[jobs][owner],
            "cores": cores,  # whole nodes, as the scheduler allocates them
            "cpus": "",
        }
    )
    info = RunInfo(
        source="log",
        execution="logged",
        nodes=nodes_of(System(total, cores, system.name)),
        workload=workload_facts(workload, name),
        counts={"jobs": len(workload), **Counter(states.tolist())},
        warnings=warnings,
    )
    return Run(info, table, allocations)


def assign_nodes(start: FloatArray, end: FloatArray, nodes: IntArray) -> tuple[IntArray, IntArray, IntArray, int]:
    """Assign nodes to jobs, shape (jobs,), as they start: of the idle nodes, the one released last is taken first."""
    # Returned are job, first node and count of each range of consecutive nodes, grouped by job, and the largest number
    # of nodes busy at once.
    offset = np.concatenate([[0], np.cumsum(nodes)])
    held = np.empty(int(offset[-1]), dtype=np.int64)
    ends = np.lexsort((np.arange(len(end)), start, end))  # jobs that start and end at one instant come last
    assigned = np.zeros(len(end), dtype=bool)
    stack = np.empty(int(nodes.max(initial=0)), dtype=np.int64)
    free = busiest = given = 0

    def give_back(job: int) -> None:
        nonlocal free, stack
        count = int(nodes[job])
        if free + count > len(stack):
            stack = np.concatenate([stack, np.empty(max(len(stack), count), dtype=np.int64)])
        stack[free : free + count] = held[offset[job] : offset[job + 1]]
        free += count

    for job in np.argsort(start, kind="stable").tolist():
        while given < len(ends) and end[ends[given]] <= start[job] and assigned[ends[given]]:
            give_back(int(ends[given]))
            given += 1
        count, place = int(nodes[job]), int(offset[job])
        taken = min(free, count)
        held[place : place + taken] = stack[free - taken : free]
        free -= taken
        fresh = count - taken
        held[place + taken : place + count] = np.arange(busiest, busiest + fresh)
        busiest += fresh
        assigned[job] = True
    owner = np.repeat(np.arange(len(nodes)), nodes)
    first = np.flatnonzero((np.diff(owner, prepend=-1) != 0) | (np.diff(held, prepend=-1) != 1))
    return owner[first], held[first], np.diff(first, append=len(held)), busiest


def _states(workload: Workload, ran: BoolArray) -> npt.NDArray[np.object_]:
    """Return the JobState of each job, shape (jobs,)."""
    status = pd.Series(workload.column("status"), dtype="str")
    known = status.where(status.isin([*JobState]), JobState.UNKNOWN).to_numpy(dtype=object)
    return np.where(ran & (status == "").to_numpy(), JobState.COMPLETED, known)
