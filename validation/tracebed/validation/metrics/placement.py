"""Where the nodes of jobs are on the grid of the machine: distances, parts, external fragmentation."""

from __future__ import annotations

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.ground.table import expanded
from tracebed.ground.topology import Grid
from tracebed.validation.metrics.jobs import origin
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Margin, Metric

NO_GRID = "the grid of the machine is unknown"
ALONE = "no job ran on several nodes"


def nodes_at_start(run: MeasuredRun) -> dict[str, IntArray]:
    """Return the nodes with which each finished job of several nodes began, ascending."""
    import pandas as pd

    run.require("allocations")
    rows = run.run.allocations
    rows = rows[rows["job_id"].isin(run.finished["job_id"]).to_numpy()]
    rows = rows[(rows["start"] == rows.groupby("job_id", observed=True)["start"].transform("min")).to_numpy()]
    row, nodes = expanded(*(rows[name].to_numpy(dtype=np.int64) for name in ("node", "count")))
    owner = pd.Series(rows["job_id"].to_numpy()[row])
    return {str(job): np.sort(nodes[at]) for job, at in owner.groupby(owner).indices.items() if len(at) > 1}


def largest_part(grid: Grid, idle: BoolArray) -> int:
    """Return the number of nodes of the largest connected part of the nodes `idle`, shape (nodes,)."""
    from scipy import ndimage  # slow to import, and most runs have no grid
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    labels, count = ndimage.label(idle.reshape(grid.sides))
    if not count:
        return 0
    sizes = np.bincount(labels.ravel())[1:]
    if not grid.torus:
        return int(sizes.max())
    ends = [(labels.take(0, axis).ravel(), labels.take(-1, axis).ravel()) for axis in range(labels.ndim)]
    first, last = (np.concatenate(side) for side in zip(*ends, strict=True))
    met = (first > 0) & (last > 0)
    links = coo_array((np.ones(met.sum()), (first[met] - 1, last[met] - 1)), shape=(count, count))
    _, whole = connected_components(links, directed=False)
    return int(np.bincount(whole, sizes).max())


def fragmentation(run: MeasuredRun) -> float:
    """Return the mean, over the idle node-seconds of the window, of the share that is not in the largest idle part."""
    grid = _grid(run)
    run.require("allocations")
    rows, zero = run.run.table("allocations"), origin(run.run)
    start, end = (rows[name] - zero for name in ("start", "end"))
    end = np.where(np.isfinite(end), end, np.inf)
    first, count = rows["node"], rows["count"]
    instants = np.concatenate([start, end, [np.inf]])
    holders = np.zeros(len(grid), dtype=np.int64)
    idle_s = beside_s = 0.0
    before = run.window.start_s
    for at in np.argsort(instants, kind="stable").tolist():
        now = min(instants[at], run.window.end_s)
        if now > before:
            idle = holders == 0
            idle_s += (now - before) * idle.sum()
            beside_s += (now - before) * (idle.sum() - largest_part(grid, idle))
            before = now
        if np.isfinite(instants[at]):
            row = at % len(rows)
            holders[first[row] : first[row] + count[row]] += 1 if at < len(rows) else -1
    return beside_s / idle_s if idle_s else float("nan")


def _grid(run: MeasuredRun) -> Grid:
    if run.grid is None:
        raise Undefined(NO_GRID)
    return run.grid


def _mean_distance(run: MeasuredRun) -> float:
    grid = _grid(run)
    means = [2 * grid.total_distance(nodes) / (len(nodes) * (len(nodes) - 1)) for nodes in nodes_at_start(run).values()]
    return _mean(np.array(means))


def _mean_parts(run: MeasuredRun) -> float:
    grid = _grid(run)
    return _mean(np.array([len(grid.parts(nodes.tolist())) for nodes in nodes_at_start(run).values()], dtype=float))


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


METRICS = (
    Metric(
        name="mean_distance",
        label="distance of the nodes of a job, mean",
        unit="links",
        definition=_mean_distance,
        undefined=ALONE,
        margin=Margin(relative=0.1),
        optional=True,
        docs="Manhattan distance on the grid between two nodes of a job, averaged over the pairs of the nodes with "
        "which it began, then over the finished jobs of several nodes",
    ),
    Metric(
        name="mean_parts",
        label="connected parts of a job, mean",
        definition=_mean_parts,
        undefined=ALONE,
        margin=Margin(relative=0.1),
        optional=True,
        docs="number of connected parts of the nodes with which a job began, averaged over the finished jobs of "
        "several nodes",
    ),
    Metric(
        name="fragmentation",
        label="external fragmentation",
        definition=fragmentation,
        undefined="no node was idle in the window",
        margin=Margin(absolute=0.02),
        optional=True,
        docs="idle node-seconds outside the largest connected part of the idle nodes / idle node-seconds, in the "
        "window",
    ),
)
"""The metrics of placements."""
