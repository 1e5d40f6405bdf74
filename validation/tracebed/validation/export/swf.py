"""The Standard Workload Format: what happened to each job of a run, in the 18 fields of the archives.

The wait and run times are those of the run. What SWF has no field for stands in header comments: the run, its policy
and parameters as notes, and the columns of the jobs that have no field as comments that tracebed reads again.
"""

from __future__ import annotations

import json
from typing import BinaryIO

import numpy as np
import pandas as pd

from tracebed.converters.formats import swf
from tracebed.converters.workload import Provenance, Step, System, Workload
from tracebed.ground.states import JobState
from tracebed.orchestrator.run import Run
from tracebed.validation.export.exporter import Exporter
from tracebed.validation.metrics import origin

STATUS = {
    JobState.KILLED: JobState.FAILED,
    JobState.REJECTED: JobState.CANCELLED,
    JobState.INTERRUPTED: JobState.UNKNOWN,
}
"""States that SWF has no code for, and what stands for them."""

MARK = rb"^; Note: wait and run times are those of a run"


def write(run: Run, file: BinaryIO) -> list[str]:
    """Write the jobs of the run, and return what the file lacks."""
    swf.write(workload_of(run), file)
    changed = run.allocations.groupby("job_id")[["start", "end"]].nunique().max(axis=1) > 1
    notes = ["nodes have no field: which nodes a job held is not in the file"]
    if changed.any():
        notes.append(f"{int(changed.sum()):,} jobs changed their nodes: their processors are those requested")
    return notes


def workload_of(run: Run) -> Workload:
    """Return what happened in a run as a workload: its `logged_start` and `logged_end` are the times of the run."""
    # Times are s after the first submission. Jobs that were never submitted are left out.
    jobs = run.jobs[np.isfinite(run.jobs["submit"])].reset_index(drop=True)
    zero = origin(run)
    cores = max((node.cores for node in run.info.nodes), default=1)
    held = run.allocations.groupby("job_id")["cores"].max().reindex(jobs["job_id"]).fillna(cores)
    state = jobs["state"].replace({str(ours): str(theirs) for ours, theirs in STATUS.items()})
    table = pd.DataFrame(
        {
            "job_id": jobs["job_id"],
            "submit_time": jobs["submit"] - zero,
            "run_time": jobs["end"] - jobs["start"],
            "time_limit": jobs["time_limit"],
            "nodes": jobs["nodes"],
            "cores_per_node": held.to_numpy(dtype=np.int64),
            "kind": jobs["kind"],
            "user": jobs["user"],
            "status": state,
            "logged_start": jobs["start"] - zero,
            "logged_end": jobs["end"] - zero,
            "extra_state": jobs["state"],
            "extra_dedicated_run_time_s": jobs["run_time"],
        }
    )
    info = run.info
    facts = {
        "source": info.source,
        "execution": info.execution,
        "policy": info.policy,
        "policy parameters": info.policy_parameters,
        "other parameters": info.settings,
    }
    notes = [f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in facts.items()]
    provenance = Provenance(
        system=System(run.total_nodes or None, cores),
        steps=(Step("export a run", {"workload": str(info.workload.get("name", ""))}),),
        header={"Note": [" ".join(note.split()) for note in ("wait and run times are those of a run", *notes)]},
    )
    return Workload(table, provenance)


SWF = Exporter("Standard Workload Format: wait and run times of the run, the rest in comments", write, MARK)
