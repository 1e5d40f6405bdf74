"""LLNL's Lassen (the LAST data set): `final_csm_allocation_history_hashed.csv`, one row per allocation.

LSF allocated whole nodes, so a job has all 44 cores of each node. The columns of processors and GPUs are all 0.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import Columns, column_spec, relabel
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.workload import System
from tracebed.ground.states import JobState


def _derive(c: Columns, system: System, zone: str) -> Derived:
    exits = c.numbers("exit")
    ended = np.where(np.isnan(exits), -1, np.where(exits == 0, 0, 1))
    return Derived(
        {
            "time_limit": first_positive(c.numbers("limit")),
            "cores_per_node": np.full(len(c), system.cores_per_node),
            "status": relabel(ended, [JobState.COMPLETED, JobState.FAILED]),
        }
    )


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
        "limit": column_spec("number", "time_limit", needed=True),
        "nodes": column_spec("number", "num_nodes", needed=True),
        "extra_gpus": column_spec("number", "num_gpus"),
        "submit_time": column_spec("time", "job_submit_time", needed=True),
        "logged_start": column_spec("time", "begin_time", needed=True),
        "logged_end": column_spec("time", "end_time", needed=True),
        "exit": column_spec("number", "exit_status"),
    },
    _derive,
    System(795, 44, "LLNL Lassen"),
)
FORMAT = SITE.format
