"""Jobs of CINECA's Marconi100 in Parquet: PM100 (exclusive jobs with power data) and the job table of M100 ExaData.

The size of a job is the requested size. Cores may be counted as hardware threads, four per core, and are then
divided by four. Power data are lists with a value every 20 s, kept as text by `keep_extra`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.columns import read_columns, want
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.states import slurm_states
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import System

WANTED = {
    "job": want("text", "job_id", needed=True),
    "user": want("label", "user_id"),
    "group": want("label", "group_id"),
    "partition": want("label", "partition"),
    "queue": want("label", "qos"),
    "limit": want("number", "time_limit", needed=True),
    "nodes": want("number", "num_nodes_req", "num_nodes", "num_nodes_alloc", needed=True),
    "nodes_alloc": want("number", "num_nodes_alloc"),
    "cores": want("number", "num_cores_req", "num_cpus_req", "num_cpus"),
    "cores_alloc": want("number", "num_cores_alloc", "num_cpus_alloc"),
    "gpus": want("number", "num_gpus_req", "num_gpus_alloc"),
    "submit": want("time", "submit_time", needed=True),
    "start": want("time", "start_time", needed=True),
    "end": want("time", "end_time", needed=True),
    "state": want("label", "job_state"),
}
CORES = 32
SYSTEM = System(980, CORES, "CINECA Marconi100")
ZONE = "Europe/Rome"
THREADS = 4
"""Hardware threads of a POWER9 core."""
ENDLESS = 2.0**32 - 3
"""Time limits from this value on (minutes) are Slurm's codes for no limit."""


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of one of these tables."""
    columns = set(file.columns)
    sizes = {"num_nodes_req", "num_nodes_alloc"} <= columns or {"num_nodes", "num_cpus", "cpus_alloc_layout"} <= columns
    return sizes and {"job_id", "submit_time", "start_time", "end_time", "time_limit"} <= columns


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str = ZONE
) -> Log:
    """Read one or several tables.

    Args:
        files: Parquet files, or CSV files with the same columns.
        keep_extra: keep every other column (power, memory, priority, nodes) as `extra_...`.
        keep_names: keep the numeric ids of users and groups.
        time_zone: the time zone of times without one; times in the files usually have a time zone.

    Raises:
        InputError: a column is missing or a value is invalid.
    """
    c = read_columns(files, WANTED, extras=keep_extra)
    nodes, gpus = c.numbers("nodes"), c.numbers("gpus")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cores, allocated = np.ceil(c.numbers("cores") / nodes), c.numbers("cores_alloc")
        of_a_node = allocated / c.numbers("nodes_alloc")
        threads = THREADS if np.any(np.concatenate([cores, of_a_node]) > CORES) else 1
        cores, allocated = np.ceil(cores / threads), np.ceil(allocated / threads)
        other = allocated != nodes * cores
        limit = 60.0 * np.where(c.numbers("limit") < ENDLESS, c.numbers("limit"), np.nan)
    return make_log(
        files,
        "pm100",
        {
            "job_id": c["job"],
            "submit_time": c.instants("submit", time_zone),
            "time_limit": limit,
            "nodes": nodes,
            "cores_per_node": cores,
            "user": c.labels("user"),
            "group": c.labels("group"),
            "partition": c.labels("partition"),
            "queue": c.labels("queue"),
            "status": slurm_states(c.labels("state")),
            "logged_start": c.instants("start", time_zone),
            "logged_end": c.instants("end", time_zone),
            "extra_gpus": np.where(gpus > 0, gpus, np.nan),
            "extra_allocated": np.where(other, allocated, np.nan),
        },
        system=SYSTEM,
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        counts={f"cores counted as hardware threads, divided by {THREADS}": len(c) if threads > 1 else 0},
        place=c.place,
        names=("user", "group"),
        keep_names=keep_names,
        extras=c.extras,
        unread=c.unread,
    )


FORMAT = Format(
    "pm100",
    "CINECA Marconi100: PM100, M100 ExaData",
    recognizes,
    read_log=read_log,
)
