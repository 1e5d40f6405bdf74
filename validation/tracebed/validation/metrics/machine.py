"""Use of the machine over time: busy cores, waiting jobs, loss of capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracebed.ground.states import ChangeCause, JobState
from tracebed.ground.table import Table
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import Steps
from tracebed.orchestrator.runs.usage import held_cores
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.statistics import sum_of_products

if TYPE_CHECKING:
    import pandas as pd


def total_cores(run: Run) -> int:
    """Return the total number of cores of all nodes."""
    return sum(node.cores for node in run.info.nodes)


def busy_cores(run: Run) -> Steps:
    """Return the number of cores held by jobs, over s after the first submission."""
    return _held(run, run.table("allocations"))


def computing_cores(run: Run) -> Steps:
    """Return the number of cores on which jobs compute, over s after the first submission.

    These are the cores held by jobs, more or less by those that an operator gave to a job or took from it: such a job
    holds the same cores. A change of an operator lasts until the next change of the cores of the job on the node.
    """
    import pandas as pd

    return _held(run, pd.concat([run.allocations, _operated(run)]))


def _held(run: Run, rows: Table | pd.DataFrame) -> Steps:
    """Return the sum of the cores of `rows`, a table with the columns of allocations."""
    zero = origin(run)
    starts, ends, cores, counts = (np.asarray(rows[name]) for name in ("start", "end", "cores", "count"))
    starts, ends = starts - zero, ends - zero
    if not np.isfinite(ends).all():
        ends = np.where(np.isfinite(ends), ends, _last_instant(run))  # it lasted until the run was interrupted
    return held_cores(starts, ends, cores * counts)


def _operated(run: Run) -> pd.DataFrame:
    """Return the changes of cores by operators as rows of allocations; `cores` is the difference, above or below 0."""
    import pandas as pd

    changes = run.core_changes[(run.core_changes["state"] == "applied").to_numpy()].sort_values("applied")
    rank = ["job_id", "node"]
    operated = changes["cause"] == ChangeCause.OPERATOR
    difference = (changes["cores_to"] - changes["cores_from"]).where(operated, 0)
    decided = (~operated).groupby([changes[name] for name in rank]).cumsum()  # a decision of the policy ends the others
    rows = pd.DataFrame(
        {
            **{name: changes[name] for name in rank},
            "count": 1,
            "start": changes["applied"],
            "end": changes.groupby(rank)["applied"].shift(-1),
            "cores": difference.groupby([*(changes[name] for name in rank), decided]).cumsum(),
        }
    )[operated]
    held = run.allocations[run.allocations["job_id"].isin(rows["job_id"]).to_numpy()]
    for row in rows[rows["end"].isna()].itertuples():
        on = (held["job_id"] == row.job_id) & (held["node"] <= row.node) & (row.node < held["node"] + held["count"])
        rows.loc[row.Index, "end"] = held.loc[on, "end"].max(skipna=False)
    return rows


def waiting(run: Run, *, cores: bool = False) -> Steps:
    """Return the number of waiting jobs, or of the cores that they request, over s after the first submission.

    A job that never starts waits until it is canceled or the run ends. A rejected job never waits.
    """
    jobs, zero = run.table("jobs"), origin(run)
    submit, start, end = (jobs[name] - zero for name in ("submit", "start", "end"))
    until = np.where(np.isfinite(start), start, np.where(np.isfinite(end), end, _last_instant(run)))
    queued = np.isfinite(submit) & ~jobs.equal("state", JobState.REJECTED)
    nodes = jobs["nodes"].astype(np.float64)
    weights = nodes[queued] * total_cores(run) / max(run.total_nodes, 1) if cores else None
    return Steps.count(submit[queued], until[queued], weights)


def lost_capacity(busy: Steps, demand: Steps, capacity: int, start: float, end: float) -> float:
    """Return the share of the capacity that was idle while waiting jobs requested cores, or NaN for an empty window.

    Args:
        busy: cores held by jobs.
        capacity: cores of the machine.
        start, end: bounds of the window, s after the first submission.
    """
    if not end > start:
        return float("nan")
    inside = np.concatenate((busy.times, demand.times))
    edges = np.unique(np.concatenate(([start], inside[(inside > start) & (inside < end)], [end])))
    idle = np.maximum(capacity - busy.at(edges[:-1]), 0.0)
    return sum_of_products(np.minimum(idle, demand.at(edges[:-1])), np.diff(edges)) / (capacity * (end - start))


def _last_instant(run: Run) -> float:
    """Return the last instant recorded in the run, s after the first submission."""
    jobs, rows = run.table("jobs"), run.table("allocations")
    times = [jobs["submit"], jobs["start"], jobs["end"], rows["start"], rows["end"]]
    last = max((float(np.nanmax(t)) for t in times if not np.isnan(t).all()), default=0.0)
    return last - origin(run)
