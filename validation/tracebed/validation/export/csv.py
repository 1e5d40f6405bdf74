"""A table of the jobs as CSV: what was requested, what happened, and the figures of each job."""

from __future__ import annotations

from typing import BinaryIO

import pandas as pd

from tracebed.orchestrator.run import Run
from tracebed.validation.export.exporter import Exporter, export_allocations, intervals, unknown_nodes
from tracebed.validation.metrics import origin, per_job

COLUMNS = {
    "job_id": "the job's name, unique in the run",
    "kind": "rigid, moldable, malleable or evolving",
    "state": "how the job ended: completed, failed, killed, cancelled, rejected, interrupted or unknown",
    "reason": "why, where a reason is recorded",
    "user": "user (pseudonym)",
    "nodes": "requested nodes",
    "time_limit_s": "requested time limit, s",
    "run_time_s": "dedicated run time on the requested nodes, s",
    "submit_s": "submission, s after the first submission",
    "start_s": "start, s after the first submission",
    "end_s": "end, s after the first submission",
    "wait_s": "start - submission, s",
    "run_s": "end - start, s",
    "response_s": "end - submission, s",
    "slowdown": "response / run",
    "bounded_slowdown": "max(1, response / max(run, 10 s))",
    "expands": "executed expansions",
    "shrinks": "executed shrinks",
    "held_nodes": "all nodes that the job ever held, as an interval set of node numbers from 0 (`0-3 7`)",
    "node_seconds": "nodes that the job held, integrated over time, s",
}
"""Column -> meaning with its unit. A value that does not exist is empty."""


def write(run: Run, file: BinaryIO) -> list[str]:
    """Write the table, and return what it lacks."""
    jobs, figures, zero = run.jobs, per_job(run), origin(run)
    rows = export_allocations(run)
    rows = rows.assign(node_seconds=rows["count"] * (rows["end"] - rows["start"]))
    nodes = {job: intervals(blocks["node"], blocks["count"]) for job, blocks in rows.groupby("job_id", sort=False)}
    table = pd.DataFrame(
        {
            **{name: jobs[name] for name in ("job_id", "kind", "state", "reason", "user", "nodes")},
            **{f"{name}_s": jobs[name] for name in ("time_limit", "run_time")},
            **{f"{name}_s": jobs[name] - zero for name in ("submit", "start", "end")},
            **{f"{name}_s": figures[name] for name in ("wait", "run", "response")},
            **{name: figures[name] for name in ("slowdown", "bounded_slowdown", "expands", "shrinks")},
            "held_nodes": jobs["job_id"].map(nodes),
            "node_seconds": jobs["job_id"].map(rows.groupby("job_id")["node_seconds"].sum()),
        },
        columns=list(COLUMNS),
    )
    table.to_csv(file, index=False)
    changed = rows.groupby("job_id")[["start", "end"]].nunique().max(axis=1) > 1
    if not changed.any():
        return unknown_nodes(run)
    return [f"{int(changed.sum()):,} jobs changed their nodes: held_nodes does not say when (--to evalys does)"]


CSV = Exporter("table of the jobs: requests, times, slowdowns, nodes", write, rb"\Ajob_id,kind,state,reason,")
