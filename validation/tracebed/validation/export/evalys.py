"""The jobs.csv of evalys and Batsim: a row per job, with the nodes that the job held as an interval set.

A resource is a node. The format has one allocation per row, so that a job whose nodes changed has a row for each of its
allocations: the second is `17#2`, submitted when it starts, so that waits and the queue count the job once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import BinaryIO

import numpy as np
import pandas as pd

from tracebed.ground.states import JobState
from tracebed.orchestrator.run import Run
from tracebed.validation.export.exporter import Exporter, export_allocations, intervals, unknown_nodes
from tracebed.validation.metrics import origin

COLUMNS = (
    *("job_id", "workload_name", "submission_time", "requested_number_of_resources", "requested_time", "success"),
    *("starting_time", "execution_time", "finish_time", "waiting_time", "turnaround_time", "stretch"),
    "allocated_resources",
)

MARK = rb"\Ajob_id,workload_name,submission_time,"


def write(run: Run, file: BinaryIO) -> list[str]:
    """Write the table, and return what it lacks."""
    jobs = run.jobs.drop_duplicates("job_id").set_index("job_id")
    rows = _rows(export_allocations(run)) if "allocations" not in run.info.unknown else _without_nodes(run)
    of = jobs.loc[rows["job_id"]].reset_index(drop=True)
    part = rows.groupby("job_id").cumcount()
    submit = np.where(part == 0, of["submit"] - origin(run), rows["start"])
    ran = rows["end"] - rows["start"]
    table = pd.DataFrame(
        {
            "job_id": rows["job_id"].where(part == 0, rows["job_id"] + "#" + (part + 1).astype(str)),
            "workload_name": str(run.info.workload.get("name") or "workload"),
            "submission_time": submit,
            "requested_number_of_resources": of["nodes"].where(part == 0, rows["size"]),
            "requested_time": of["time_limit"].fillna(-1.0),
            "success": (of["state"] == JobState.COMPLETED).astype(int),
            "starting_time": rows["start"],
            "execution_time": ran,
            "finish_time": rows["end"],
            "waiting_time": rows["start"] - submit,
            "turnaround_time": rows["end"] - submit,
            "stretch": (rows["end"] - submit) / ran,
            "allocated_resources": rows["nodes"],
        },
        columns=list(COLUMNS),
    )
    table.to_csv(file, index=False)
    return _notes(run, jobs, rows, part)


def _rows(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return a row per time in which a job holds the same nodes, in order: job_id, start, end, nodes, size (nodes)."""
    rows = []
    for job, blocks in allocations.groupby("job_id", sort=False):
        instants = sorted({*blocks["start"], *blocks["end"]})
        for start, end in pairwise(instants):
            there = blocks[(blocks["start"] <= start) & (blocks["end"] >= end)] if len(instants) > 2 else blocks
            if len(there):
                nodes = intervals(there["node"], there["count"])
                rows.append((job, start, end, nodes, int(there["count"].sum())))
    table = pd.DataFrame(rows, columns=["job_id", "start", "end", "nodes", "size"])
    return table.astype({"job_id": "str"})  # without rows, it has no type


def _without_nodes(run: Run) -> pd.DataFrame:
    """Return a row per job that ran, as `_rows` does, of a run whose allocations are unknown: nodes are empty."""
    jobs, zero = run.jobs[np.isfinite(run.jobs["start"]) & np.isfinite(run.jobs["end"])], origin(run)
    times = {name: jobs[name].to_numpy() - zero for name in ("start", "end")}
    return pd.DataFrame({"job_id": jobs["job_id"].to_numpy(), **times, "nodes": "", "size": jobs["nodes"].to_numpy()})


def _notes(run: Run, jobs: pd.DataFrame, rows: pd.DataFrame, part: pd.Series[int]) -> list[str]:
    never, more = len(jobs) - rows["job_id"].nunique(), int((part > 0).sum())
    notes = unknown_nodes(run)
    if never:
        notes.append(f"{never:,} jobs that never ran have no allocation and no row")
    if more:
        notes.append(f"{more:,} rows more than jobs: a job whose nodes changed has a row for each of its allocations")
    if run.jobs_on_shared_nodes:
        notes.append(f"{run.jobs_on_shared_nodes:,} jobs had a part of their nodes only: they overlap on the chart")
    return notes


EVALYS = Exporter("jobs.csv of evalys and Batsim: times of each job, and its nodes as an interval set", write, MARK)
