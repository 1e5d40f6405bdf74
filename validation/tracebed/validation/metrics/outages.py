"""What the outages of nodes cost: lost node hours, availability, jobs hit, and the work lost with them."""

from __future__ import annotations

import numpy as np

from tracebed.converters.workload import BoolArray
from tracebed.ground.states import JobState
from tracebed.orchestrator.scheduling.record import LOST
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Metric

HOUR_S = 3600.0
NO_OUTAGE = "no node was out"


def _check(run: MeasuredRun) -> None:
    if not run.run.info.outages:
        raise Undefined(NO_OUTAGE)


def lost_node_s(run: MeasuredRun) -> float:
    """Return the node seconds of outages from the first submission to the last end, without those that jobs held."""
    _check(run)
    first = origin(run.run)
    last = first + run.last_end_s
    numbers = {node.name: number for number, node in enumerate(run.run.info.nodes)}
    rows = run.run.table("allocations")
    low, high = rows["node"], rows["node"] + rows["count"]
    lost = 0.0
    for outage in run.run.info.outages:
        start, end = max(outage["from"], first), min(last if outage["until"] is None else outage["until"], last)
        if not start < end:
            continue
        node = numbers.get(outage["node"], -1)
        held = (low <= node) & (node < high) & (rows["start"] < end) & ~(rows["end"] <= start)
        starts, ends = np.maximum(rows["start"][held], start), np.fmin(rows["end"][held], end)
        order = np.argsort(starts, kind="stable")
        covered = start  # jobs may share the node
        for since, until in zip(starts[order], ends[order], strict=True):
            lost += max(0.0, since - covered)
            covered = max(covered, until)
        lost += end - covered
    return float(lost)


def _availability(run: MeasuredRun) -> float:
    lost = lost_node_s(run)
    return 1 - lost / (run.run.total_nodes * run.last_end_s) if run.last_end_s > 0 else float("nan")


def hit(run: MeasuredRun) -> BoolArray:
    """Return whether each job of the run lost a node while it ran, shape (jobs,)."""
    jobs = run.run.table("jobs")
    failed = np.array(jobs.equal("state", JobState.FAILED))
    for row in np.flatnonzero(failed):
        failed[row] = f" {LOST}" in jobs.text("reason", int(row))
    return np.asarray((jobs["restarts"] > 0) | failed)


def _jobs_hit(run: MeasuredRun) -> float:
    _check(run)
    return int(hit(run).sum())


def _lost_work(run: MeasuredRun) -> float:
    """Return the node seconds that jobs held in runs that a lost node ended, since their last checkpoint."""
    _check(run)
    jobs, rows = run.run.table("jobs"), run.run.table("allocations")
    if not len(rows):
        return 0.0
    job = rows.rows_in("job_id", jobs)
    failed = hit(run) & jobs.equal("state", JobState.FAILED)
    # A requeued job that has not started again has no start. Its last run may end at the instant of the next start.
    lost = failed[job] | ((jobs["restarts"][job] > 0) & ~(rows["end"] > jobs["start"][job]))
    since = np.array(rows["start"])
    for outage in run.run.info.outages:
        for name, (start, instant) in outage.get("checkpoints", {}).items():
            own = rows.equal("job_id", name) & (rows["start"] >= start) & (rows["end"] <= outage["from"])
            since[own] = np.clip(instant, rows["start"][own], rows["end"][own])
    return float(((rows["end"] - since) * rows["count"])[lost].sum())


METRICS = (
    Metric(
        name="lost_node_h",
        label="lost node hours",
        unit="node h",
        definition=lambda run: lost_node_s(run) / HOUR_S,
        undefined=NO_OUTAGE,
        optional=True,
        docs="node hours in outages, from the first submission to the last end, in which no job held the node",
    ),
    Metric(
        name="availability",
        label="availability of the nodes",
        definition=_availability,
        undefined=NO_OUTAGE,
        optional=True,
        docs="1 - lost node hours / (nodes x the time from the first submission to the last end)",
    ),
    Metric(
        name="jobs_hit",
        label="jobs that lost a node",
        definition=_jobs_hit,
        undefined=NO_OUTAGE,
        optional=True,
        docs="number of jobs that lost a node at least once and began again, or failed",
    ),
    Metric(
        name="lost_work_node_h",
        label="work lost with nodes",
        unit="node h",
        definition=lambda run: _lost_work(run) / HOUR_S,
        undefined=NO_OUTAGE,
        optional=True,
        docs="node hours that jobs held in runs that the loss of a node ended, after the last checkpoint of the run",
    ),
)
"""The metrics of outages."""
