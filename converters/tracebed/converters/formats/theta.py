"""ALCF's public job logs, DIM_JOB_COMPOSITE (`ANL-ALCF-DJC-THETA_20230101_20231231.csv`), of Theta and other machines.

The columns changed over the years and are found by name, ignoring case. Times without a time zone are read as UTC,
which ALCF's accounting tools use. Only the size of Theta is built in; for other machines, only the name is known.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import Columns, column_spec, relabel
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.workload import System
from tracebed.ground.states import JobState

STATES = (JobState.COMPLETED, JobState.KILLED, JobState.FAILED)


def _derive(c: Columns, system: System, zone: str) -> Derived:
    nodes = first_positive(c.numbers("nodes"), c.numbers("requested nodes"))
    cores = np.ceil(first_positive(c.numbers("cores"), c.numbers("requested cores")) / nodes)
    if system.cores_per_node:
        cores = np.full(len(c), float(system.cores_per_node))  # Theta allocated whole nodes
    limit, run, exits = c.numbers("limit"), c.numbers("run"), c.numbers("exit")
    run = np.where(np.isnan(run), c.instants("logged_end", zone) - c.instants("logged_start", zone), run)
    failed = np.where(run >= limit, STATES.index(JobState.KILLED), STATES.index(JobState.FAILED))
    return Derived(
        {
            "job_id": c["job_id"].str.split(".").str[0].array,
            "run_time": run,
            "time_limit": first_positive(limit),
            "nodes": nodes,
            "cores_per_node": cores,
            "status": relabel(np.where(np.isnan(exits), -1, np.where(exits == 0, 0, failed)), STATES),
        }
    )


SITE = Site(
    "theta",
    "ALCF Theta and other ALCF machines",
    (frozenset({"queued_timestamp", "walltime_seconds", "nodes_requested"}),),
    "UTC",
    {
        "job_id": column_spec("text", "job_name", "cobalt_jobid", needed=True),
        "machine": column_spec("label", "machine_name"),
        "submit_time": column_spec("time", "queued_timestamp", needed=True),
        "logged_start": column_spec("time", "start_timestamp", needed=True),
        "logged_end": column_spec("time", "end_timestamp", needed=True),
        "user": column_spec("label", "username_genid"),
        "group": column_spec("label", "project_name_genid"),
        "queue": column_spec("label", "queue_name"),
        "limit": column_spec("number", "walltime_seconds", needed=True),
        "run": column_spec("number", "runtime_seconds"),
        "nodes": column_spec("number", "nodes_used"),
        "requested nodes": column_spec("number", "nodes_requested", needed=True),
        "cores": column_spec("number", "cores_used"),
        "requested cores": column_spec("number", "cores_requested"),
        "extra_gpus": column_spec("number", "gpus_requested"),
        "exit": column_spec("number", "exit_status", "exit_code"),
    },
    System(name="ALCF"),
    _derive,
    machines={"theta": System(4392, 64, "ALCF Theta")},
)
FORMAT = SITE.format
