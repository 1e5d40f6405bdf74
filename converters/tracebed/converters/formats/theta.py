"""ALCF's public job logs, DIM_JOB_COMPOSITE (`ANL-ALCF-DJC-THETA_20230101_20231231.csv`), of Theta and other machines.

The columns changed over the years and are found by name, ignoring case. Times without a time zone are read as UTC,
which ALCF's accounting tools use. Only the size of Theta is built in; for other machines, only the name is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import read_columns, relabel, want
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.machines import one_machine
from tracebed.converters.log import Log, make_log, place_of
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, System
from tracebed.states import JobState

WANTED = {
    "job": want("text", "job_name", "cobalt_jobid", needed=True),
    "machine": want("label", "machine_name"),
    "submit": want("time", "queued_timestamp", needed=True),
    "start": want("time", "start_timestamp", needed=True),
    "end": want("time", "end_timestamp", needed=True),
    "user": want("label", "username_genid"),
    "project": want("label", "project_name_genid"),
    "queue": want("label", "queue_name"),
    "limit": want("number", "walltime_seconds", needed=True),
    "run": want("number", "runtime_seconds"),
    "nodes": want("number", "nodes_used"),
    "requested nodes": want("number", "nodes_requested", needed=True),
    "cores": want("number", "cores_used"),
    "requested cores": want("number", "cores_requested"),
    "gpus": want("number", "gpus_requested"),
    "exit": want("number", "exit_status", "exit_code"),
}
MACHINES = {"theta": System(4392, 64, "ALCF Theta")}

STATUSES = (JobState.COMPLETED, JobState.KILLED, JobState.FAILED)


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of this log."""
    return {"queued_timestamp", "walltime_seconds", "nodes_requested"} <= set(file.columns)


def read_log(
    files: Sequence[Input],
    *,
    keep_extra: bool = False,
    keep_names: bool = False,
    time_zone: str = "UTC",
    machine: str | None = None,
) -> Log:
    """Read yearly or monthly files.

    Args:
        files: the CSV files; a column gives the machine.
        keep_extra: keep every other column as `extra_...`.
        keep_names: keep the log's own pseudonyms of users and projects.
        time_zone: the time zone of the times in the files.
        machine: the machine to read (such as theta), if the files have several.

    Raises:
        InputError: a column is missing, a value is invalid, or the files have several machines and `machine` is None.
    """
    c = read_columns(files, WANTED, extras=keep_extra)
    name, only = one_machine(c.labels("machine"), machine, place_of(files))
    system = MACHINES.get(name.lower(), System(name=f"ALCF {name}" if name else ""))
    nodes = first_positive(c.numbers("nodes"), c.numbers("requested nodes"))
    cores = np.ceil(first_positive(c.numbers("cores"), c.numbers("requested cores")) / nodes)
    if system.cores_per_node:
        cores = np.full(len(c), float(system.cores_per_node))  # Theta allocated whole nodes
    start, limit, run = c.instants("start", time_zone), c.numbers("limit"), c.numbers("run")
    end = c.instants("end", time_zone)
    run = np.where(np.isnan(run), end - start, run)
    return make_log(
        files,
        "theta",
        {
            "job_id": c["job"].str.split(".").str[0].array,
            "submit_time": c.instants("submit", time_zone),
            "run_time": run,
            "time_limit": np.where(limit > 0, limit, np.nan),
            "nodes": nodes,
            "cores_per_node": cores,
            "user": c.labels("user"),
            "group": c.labels("project"),
            "queue": c.labels("queue"),
            "status": relabel(
                _statuses(c.numbers("exit"), run >= limit), [JobState.COMPLETED, JobState.KILLED, JobState.FAILED]
            ),
            "logged_start": start,
            "logged_end": end,
            "extra_gpus": np.where(c.numbers("gpus") > 0, c.numbers("gpus"), np.nan),
        },
        system=system,
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names, "machine": machine},
        only=only,
        place=c.place,
        names=("user", "group"),
        keep_names=keep_names,
        extras=c.extras,
        unread=c.unread,
    )


def _statuses(exits: FloatArray, over: BoolArray) -> IntArray:
    """Return 0 completed, 1 killed (failed at or after the limit), 2 failed, -1 unknown, shape (records,)."""
    return np.where(np.isnan(exits), -1, np.where(exits == 0, 0, np.where(over, 1, 2)))


FORMAT = Format(
    "theta",
    "ALCF Theta and other ALCF machines",
    recognizes,
    read_log=read_log,
)
