"""Nodes and allocations of an imported run: recorded, assigned to jobs of constant size, or unknown."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracebed.converters.description import part_jobs
from tracebed.converters.provenance import System
from tracebed.converters.workload import BoolArray, IntArray, Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.table import Table, repeated, take
from tracebed.orchestrator.runs.checks import ROUNDING_S
from tracebed.orchestrator.runs.nodes import NodeFacts, nodes_of
from tracebed.validation.simulators.history import assign_nodes
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.pairing import Pairing, sizes_of
from tracebed.validation.simulators.simulator import ReadOptions
from tracebed.validation.simulators.times import Times

SHARED_S = 1.0
"""Two jobs share a node if both hold it for longer than this, s: rounded times overlap by a second."""
NUMBERED = "check the number of nodes of the machine (import --nodes) and the files of the simulation"
NO_SIZES = "the number of nodes of each job is not in the file"
NO_COURSES = "the file does not record from when to when a job held each of its nodes"
NO_NODES = "the number of nodes is unknown (import --nodes)"
NO_RESIZES = "the file does not record when malleable jobs were resized"
RESIZABLE = (Kind.MALLEABLE, Kind.EVOLVING)


def allocations_of(
    observed: Observed, workload: Workload, pairing: Pairing, times: Times, options: ReadOptions
) -> tuple[list[NodeFacts], pd.DataFrame | Table | None, dict[str, str], list[str]]:
    """Return the nodes of the run, the table of allocations, the unknown data, and warnings."""
    resizable = np.isin(workload.column("kind"), RESIZABLE) & np.isfinite(times.start)
    unknown = {}
    if resizable.any() and observed.reconfigurations is None:
        unknown["reconfigurations"] = NO_RESIZES
    nodes = _nodes(observed, workload, options)
    if not nodes:
        return [], None, unknown | dict.fromkeys(("nodes", "allocations"), NO_NODES), []
    if observed.allocations is not None and "reconfigurations" not in unknown:
        recorded = _recorded(observed, workload, pairing, times, nodes)
        return nodes, recorded, unknown, _shared(recorded, nodes)
    size = _sizes(observed, workload, pairing)
    ran = np.isfinite(times.start)
    if resizable.any():
        what = NO_SIZES if observed.allocations is None else NO_COURSES
        return nodes, None, unknown | {"allocations": f"{what}: {int(resizable.sum()):,} jobs are malleable"}, []
    if not (size[ran] > 0).all():
        lacking = int((size[ran] <= 0).sum())
        return nodes, None, unknown | {"allocations": f"{NO_SIZES}: unknown for {lacking:,} of {int(ran.sum()):,}"}, []
    allocations, assigned, warnings = _assigned(observed, workload, times, size, ran, nodes, options)
    if len(assigned) > len(nodes) and (parts := part_jobs(workload)):
        what = (
            f"{warnings[0]}: {parts:,} jobs on a part of a node count as jobs of the whole node, and allocations are "
        )
        return nodes, None, unknown | {"allocations": "jobs share nodes"}, [f"{what}unknown"]
    return assigned, allocations, unknown, [f"{warning}: nodes were added" for warning in warnings]


def _nodes(observed: Observed, workload: Workload, options: ReadOptions) -> list[NodeFacts]:
    """Return the nodes of the machine: of the options, the file or the workload; empty if unknown."""
    own = workload.provenance.system
    cores = options.cores_per_node or own.cores_per_node or int(workload.ints("cores_per_node").max(initial=1))
    if options.nodes is None and observed.nodes:
        return list(observed.nodes)
    total = options.nodes or own.nodes
    return nodes_of(System(total, cores)) if total else []


def _sizes(observed: Observed, workload: Workload, pairing: Pairing) -> IntArray:
    """Return the nodes that each job held, shape (jobs,): of the file or, for rigid jobs, of the workload; else 0."""
    stated = np.where(pairing.rows < 0, np.nan, sizes_of(observed, workload)[pairing.rows])
    rigid = workload.column("kind") == Kind.RIGID
    sizes = np.where(np.isfinite(stated), stated, np.where(rigid, workload.ints("nodes"), 0))
    return np.asarray(sizes, dtype=np.int64)


def _assigned(
    observed: Observed,
    workload: Workload,
    times: Times,
    size: IntArray,
    ran: BoolArray,
    nodes: list[NodeFacts],
    options: ReadOptions,
) -> tuple[Table, list[NodeFacts], list[str]]:
    """Assign nodes to jobs of constant size, so that as many are busy as in the file.

    Rounded times of two jobs may overlap by the resolution, so that nodes are released that much earlier.

    Raises:
        InputError: a simulator uses more nodes than there are, or a real system more than `options.nodes`.
    """
    jobs = np.flatnonzero(ran)
    start = times.start[jobs]
    last = np.nanmax(np.concatenate([times.start[jobs], times.end[jobs]]))
    end = np.where(np.isfinite(times.end[jobs]), times.end[jobs], last)
    released = np.maximum(start, end - max(observed.resolution, ROUNDING_S))
    owner, node, count, busiest = assign_nodes(start, released, size[jobs])
    warnings = []
    if busiest > len(nodes):
        what = f"up to {busiest:,} nodes are busy at once, but the machine has {len(nodes):,}"
        if (options.side == "predicted" or options.nodes is not None) and not part_jobs(workload):
            hint = (
                "check the number of nodes (import --nodes), the sizes of jobs (nodes or cores? shared?) and the times"
            )
            raise InputError(what, where=observed.where, hint=hint)
        warnings.append(what)
        nodes = nodes_of(System(busiest, nodes[0].cores))
    table = Table(
        {
            "job_id": take(workload.arrow("job_id"), jobs[owner]),
            "node": node,
            "count": count,
            "start": start[owner],
            "end": times.end[jobs][owner],
            "cores": np.full(len(owner), nodes[0].cores),
            "cpus": repeated("", len(owner)),
        }
    )
    return table, nodes, warnings


def _recorded(
    observed: Observed, workload: Workload, pairing: Pairing, times: Times, nodes: list[NodeFacts]
) -> pd.DataFrame:
    """Return the allocations of the file, within the times of their jobs.

    Raises:
        InputError: a node does not exist, or a period is outside of the times of the job by more than the resolution.
    """
    rows = observed.allocations
    assert rows is not None
    job_of = np.full(len(observed.jobs), -1, dtype=np.int64)
    job_of[pairing.rows[pairing.found]] = pairing.found
    job = job_of[rows["row"].to_numpy()]
    rows, job = rows[job >= 0], job[job >= 0]
    begin, until = times.start[job], times.end[job]
    start = rows["start"].to_numpy(dtype=np.float64) - pairing.offset_s if "start" in rows else begin
    end = rows["end"].to_numpy(dtype=np.float64) - pairing.offset_s if "end" in rows else until
    tolerance = max(observed.resolution, ROUNDING_S)
    outside = (start < begin - tolerance) | (end > until + tolerance)
    first = rows["node"].to_numpy()
    high = first + rows["count"].to_numpy()
    if len(rows) and (highest := int(high.max()) - 1) >= len(nodes):
        lowest = int(first.min())
        if highest - lowest >= len(nodes):
            at = int((high - lowest > len(nodes)).argmax())
            what = f"holds node number {high[at] - 1:,}, but there are {len(nodes):,} nodes, numbered from {lowest:,}"
            raise observed.error(int(rows["row"].iloc[at]), what, NUMBERED)
        first = first - lowest  # the numbers of OAR begin at 1
    hint = "check the number of nodes (import --nodes) and the files of the simulation"
    if outside.any():
        at = int(outside.argmax())
        what = f"holds nodes from {start[at]:,.6g} to {end[at]:,.6g} s, outside of its own times"
        raise observed.error(int(rows["row"].iloc[at]), what, hint)
    cores = np.array([node.cores for node in nodes], dtype=np.int64)
    table = pd.DataFrame(
        {
            "job_id": workload.column("job_id").astype(object)[job],
            "node": first,
            "count": rows["count"].to_numpy(),
            "start": np.clip(start, begin, None),
            "end": np.fmin(end, until),
            "cores": rows["cores"].to_numpy() if "cores" in rows else cores[first],
            "cpus": "",
        }
    )
    began: pd.DataFrame = table[np.isfinite(table["start"].to_numpy())]
    return began.sort_values("start", kind="stable", ignore_index=True)


def _shared(allocations: pd.DataFrame, nodes: list[NodeFacts]) -> list[str]:
    """Return a warning if jobs held nodes at the same time: the scheduler of a prediction gives nodes as a whole."""
    lasting = allocations[allocations["end"] - allocations["start"] > ROUNDING_S]
    count = lasting["count"].to_numpy()
    node = np.repeat(lasting["node"].to_numpy() - np.cumsum(count) + count, count) + np.arange(count.sum())
    start, end = (np.repeat(lasting[name].to_numpy(dtype=np.float64), count) for name in ("start", "end"))
    order = np.lexsort((start, node))
    node, start, end = node[order], start[order], end[order]
    together = (node[1:] == node[:-1]) & (start[1:] < end[:-1] - SHARED_S)
    number = len(np.unique(node[1:][together]))
    if not number:
        return []
    return [f"{number:,} of {len(nodes):,} nodes are held by several jobs at once, and count whole for each job"]


def reconfigurations_of(observed: Observed, workload: Workload, pairing: Pairing) -> pd.DataFrame | None:
    """Return the resizes of the file with the ids of the workload, on the clock of the workload."""
    rows, ids = observed.reconfigurations, workload.column("job_id").tolist()
    if rows is None:
        return None
    job_of = dict(zip(pairing.rows[pairing.found].tolist(), pairing.found.tolist(), strict=True))
    kept = rows[rows["row"].isin(list(job_of))]
    moved = {name: kept[name] - pairing.offset_s for name in ("asked", "decided", "applied", "ended")}
    return kept.drop(columns="row").assign(job_id=[ids[job_of[row]] for row in kept["row"].tolist()], **moved)
