"""LLNL's Lassen (the LAST data set): `final_csm_allocation_history_hashed.csv`, one row per allocation.

LSF allocated whole nodes, so a job has all 44 cores of each node. The columns of processors and GPUs are all 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.columns import read_columns, relabel, want
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import System
from tracebed.states import JobState

WANTED = {
    "job": want("text", "primary_job_id", needed=True),
    "user": want("label", "hashed_user_id", "user_id", "user_name"),
    "group": want("label", "hashed_account", "account"),
    "queue": want("label", "queue"),
    "limit": want("number", "time_limit", needed=True),
    "nodes": want("number", "num_nodes", needed=True),
    "gpus": want("number", "num_gpus"),
    "submit": want("time", "job_submit_time", needed=True),
    "start": want("time", "begin_time", needed=True),
    "end": want("time", "end_time", needed=True),
    "exit": want("number", "exit_status"),
}
SYSTEM = System(795, 44, "LLNL Lassen")
ZONE = "America/Los_Angeles"


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of this table."""
    return {"allocation_id", "primary_job_id", "job_submit_time", "begin_time"} <= set(file.columns)


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str = ZONE
) -> Log:
    """Read the allocation history.

    Args:
        files: the CSV files.
        keep_extra: keep every other column as `extra_...`.
        keep_names: keep the hashes of users and accounts.
        time_zone: the time zone of the times in the files.

    Raises:
        InputError: a column is missing or a value is invalid.
    """
    c = read_columns(files, WANTED, extras=keep_extra)
    exit_status, gpus = c.numbers("exit"), c.numbers("gpus")
    ended = np.where(np.isnan(exit_status), -1, np.where(exit_status == 0, 0, 1))
    return make_log(
        files,
        "lassen",
        {
            "job_id": c["job"],
            "submit_time": c.instants("submit", time_zone),
            "time_limit": np.where(c.numbers("limit") > 0, c.numbers("limit"), np.nan),
            "nodes": c.numbers("nodes"),
            "cores_per_node": np.full(len(c), SYSTEM.cores_per_node),
            "user": c.labels("user"),
            "group": c.labels("group"),
            "queue": c.labels("queue"),
            "status": relabel(ended, [JobState.COMPLETED, JobState.FAILED]),
            "logged_start": c.instants("start", time_zone),
            "logged_end": c.instants("end", time_zone),
            "extra_gpus": np.where(gpus > 0, gpus, np.nan),
        },
        system=SYSTEM,
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        place=c.place,
        names=("user", "group"),
        keep_names=keep_names,
        extras=c.extras,
        unread=c.unread,
    )


FORMAT = Format(
    "lassen",
    "LLNL Lassen",
    recognizes,
    read_log=read_log,
)
