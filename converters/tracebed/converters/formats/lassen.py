"""LLNL's Lassen (the LAST data set): `final_csm_allocation_history_hashed.csv`, one row per allocation.

LSF allocated whole nodes, so a job has all 44 cores of each node. The columns of processors and GPUs are all 0.
"""

from __future__ import annotations

from tracebed.converters.formats.tools.columns import column_spec
from tracebed.converters.formats.tools.site import Site
from tracebed.converters.workload import System

SITE = Site(
    "lassen",
    "LLNL Lassen",
    (frozenset({"allocation_id", "primary_job_id", "job_submit_time", "begin_time"}),),
    "America/Los_Angeles",
    {
        "job_id": column_spec("text", "primary_job_id", needed=True),
        "user": column_spec("label", "hashed_user_id", "user_id", "user_name"),
        "group": column_spec("label", "hashed_account", "account"),
        "queue": column_spec("label", "queue"),
        "nodes": column_spec("number", "num_nodes", needed=True),
        "extra_gpus": column_spec("number", "num_gpus"),
        "submit_time": column_spec("time", "job_submit_time", needed=True),
        "logged_start": column_spec("time", "begin_time", needed=True),
        "logged_end": column_spec("time", "end_time", needed=True),
        "time_limit": column_spec("positive", "time_limit", needed=True),
        "cores_per_node": column_spec("whole nodes"),
        "status": column_spec("exit", "exit_status"),
    },
    System(795, 44, "LLNL Lassen"),
)
FORMAT = SITE.format
