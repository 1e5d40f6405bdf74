"""Nodes of each job over time, rebuilt from node_utilization.csv: ElastiSim's job statistics have no node counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import MAX_EXACT, FloatArray, IntArray
from tracebed.ground.errors import InputError

IDLE = "none"
"""Text for a node without jobs."""


class NodePeriods(NamedTuple):
    """Periods in which a job holds a node, an entry each; grouped by job. Shapes (periods,)."""

    job: IntArray
    node: IntArray
    start: FloatArray
    end: FloatArray
    """NaN: until the end of the file."""


def held_nodes(table: pd.DataFrame, where: str) -> tuple[list[str], NodePeriods]:
    """Return the names of the nodes, in the order of the file, and the periods in which jobs hold them.

    Args:
        table: the rows of node_utilization.csv (`outputs.utilization`).
        where: the file, for messages.

    Raises:
        InputError: the ids of running jobs are not numbers.
    """
    code, names = pd.factorize(table["node"])
    order = np.argsort(code, kind="stable")
    node, time = code[order], table["time"].to_numpy()[order]
    last = np.append(node[1:] != node[:-1], True)
    until = np.where(last, np.nan, np.append(time[1:], np.nan))
    exploded = table["jobs"].iloc[order].reset_index(drop=True).str.split(";").explode()
    exploded = exploded[exploded != IDLE]
    ids = pd.to_numeric(exploded, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~((ids >= 0) & (ids <= MAX_EXACT) & (ids == np.floor(ids)))
    if bad.any():
        text = exploded.iloc[int(bad.argmax())]
        raise InputError(f"running jobs are {text[:40]!r}", where=where, hint="job numbers, separated by semicolons")
    job, row = ids.astype(np.int64), exploded.index.to_numpy()
    by_job = np.lexsort((row, job))
    job, row = job[by_job], row[by_job]
    # A job keeps a node if the next row of the same node lists the job again.
    goes_on = (job[1:] == job[:-1]) & (row[1:] == row[:-1] + 1) & (node[row[1:]] == node[row[:-1]])
    begins, ends = np.append(True, ~goes_on)[: len(job)], np.append(~goes_on, True)[: len(job)]
    held = NodePeriods(job[begins], node[row[begins]], time[row[begins]], until[row[ends]])
    return list(map(str, names)), held


def within(
    held: NodePeriods, printed: tuple[FloatArray, FloatArray], exact: tuple[FloatArray, FloatArray], offset: float
) -> NodePeriods:
    """Return the periods with the exact starts and ends of their jobs, on the clock of the exact times.

    Args:
        held: the periods, with printed times.
        printed: printed start and end of each job, shape (jobs,) each.
        exact: exact start and end of each job, shape (jobs,) each.
        offset: exact time of the printed time 0, s.
    """
    begin, until = (values[held.job] for values in exact)
    first, last = (values[held.job] for values in printed)
    start = np.where(held.start == first, begin, np.clip(held.start + offset, begin, until))
    end = np.where(held.end == last, until, np.clip(held.end + offset, begin, until))
    return held._replace(start=start, end=np.where(np.isnan(held.end), until, np.maximum(start, end)))


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


def sizes(held: NodePeriods, start: FloatArray) -> IntArray:
    """Return the number of nodes with which each job starts, shape (jobs,); 0: it holds none."""
    return np.bincount(held.job[held.start == start[held.job]], minlength=len(start))


def reconfigurations(
    changes: pd.DataFrame,
    *,
    asked: FloatArray | float = np.nan,
    decided: FloatArray | float = np.nan,
    applied: FloatArray | float = np.nan,
    ended: FloatArray | float = np.nan,
) -> pd.DataFrame:
    """Return the table of reconfigurations (`row` in place of `job_id`) of changes of sizes.

    Args:
        changes: a row per change, with `row`, `nodes_from` and `nodes_to` (`resizes`).
        asked: the instant of each change at which it was asked for, s; NaN: the file does not have it. So the others.
    """
    sizes = changes[["row", "nodes_from", "nodes_to"]].reset_index(drop=True)
    kind = np.where(sizes["nodes_to"] > sizes["nodes_from"], "expand", "shrink")
    return sizes.assign(kind=kind, asked=asked, decided=decided, applied=applied, ended=ended, state="applied")


def resizes(held: NodePeriods, start: FloatArray, end: FloatArray) -> pd.DataFrame:
    """Return a row per change of the size of a job between its start and its end.

    Args:
        start: start of each job, s, shape (jobs,).
        end: end of each job, s, shape (jobs,).

    Returns:
        Columns `row`, `time`, `nodes_from`, `nodes_to`, by job and time.
    """
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
