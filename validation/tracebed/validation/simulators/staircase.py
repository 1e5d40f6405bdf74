"""Nodes of each job over time, as tables of allocations and resizes: for files with the jobs of each node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray, IntArray


class NodePeriods(NamedTuple):
    """Periods in which a job holds a node, an entry each; grouped by job. Shapes (periods,)."""

    job: IntArray
    node: IntArray
    start: FloatArray
    end: FloatArray  # NaN: until the end of the file


def allocations(held: NodePeriods) -> pd.DataFrame:
    """Return a row per job, period and range of consecutive nodes: `row`, `node`, `count`, `start`, `end`."""
    order = np.lexsort((held.node, held.end, held.start, held.job))
    job, node, start, end = (values[order] for values in held)
    joins = (job[1:] == job[:-1]) & (start[1:] == start[:-1]) & (end[1:] == end[:-1]) & (node[1:] == node[:-1] + 1)
    first = np.flatnonzero(np.append(True, ~joins)[: len(job)])
    count = np.diff(first, append=len(job))
    table = pd.DataFrame(
        {"row": job[first], "node": node[first], "count": count, "start": start[first], "end": end[first]}
    )
    return table.sort_values(["start", "row", "node"], ignore_index=True)


def reconfigurations(
    changes: pd.DataFrame,
    *,
    asked: FloatArray | float = np.nan,
    decided: FloatArray | float = np.nan,
    applied: FloatArray | float = np.nan,
    ended: FloatArray | float = np.nan,
) -> pd.DataFrame:
    """Return the reconfigurations (`row` in place of `job_id`) of `resizes`; an instant unknown to the file is NaN."""
    sizes = changes[["row", "nodes_from", "nodes_to"]].reset_index(drop=True)
    kind = np.where(sizes["nodes_to"] > sizes["nodes_from"], "expand", "shrink")
    return sizes.assign(kind=kind, asked=asked, decided=decided, applied=applied, ended=ended, state="applied")


def resizes(held: NodePeriods, start: FloatArray, end: FloatArray) -> pd.DataFrame:
    """Return a row per resize between start and end, s, of a job: `row`, `time`, `nodes_from`, `nodes_to`, by job."""
    table = pd.DataFrame(
        {
            "row": np.concatenate([held.job, held.job]),
            "time": np.concatenate([held.start, held.end]),
            "change": np.repeat([1, -1], len(held.job)),
        }
    )
    table = table.groupby(["row", "time"])[["change"]].sum().reset_index()  # sorted by job and time
    table["nodes_to"] = table.groupby("row")["change"].cumsum()
    table["nodes_from"] = table["nodes_to"] - table["change"]
    row, time = table["row"].to_numpy(), table["time"].to_numpy()
    inside = (time > start[row]) & (time < end[row]) & (table["change"].to_numpy() != 0)
    found: pd.DataFrame = table.loc[inside, ["row", "time", "nodes_from", "nodes_to"]].reset_index(drop=True)
    return found
