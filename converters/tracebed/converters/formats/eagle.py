"""NREL's Eagle (and Kestrel, with the same columns): CSV or Parquet, one row per job or array task.

Tasks of an array have the same `job_id`. Nodes, cores, GPUs and memory are those requested.
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
    "user": want("label", "user"),
    "group": want("label", "account"),
    "partition": want("label", "partition"),
    "queue": want("label", "qos"),
    "limit": want("number", "wallclock_req", needed=True),
    "nodes": want("number", "nodes_req", needed=True),
    "cores": want("number", "processors_req"),
    "gpus": want("number", "gpus_req"),
    "memory": want("number", "mem_req"),
    "submit": want("time", "submit_time", needed=True),
    "start": want("time", "start_time", needed=True),
    "end": want("time", "end_time", needed=True),
    "run": want("number", "run_time"),
    "state": want("label", "state"),
}
SYSTEM = System(2618, 36, "NREL Eagle")
ZONE = "America/Denver"


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of this log."""
    return {"job_id", "wallclock_req", "nodes_req", "processors_req"} <= set(file.columns)


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str = ZONE
) -> Log:
    """Read one or several files.

    Args:
        files: the CSV or Parquet files.
        keep_extra: keep every other column (name, work_dir, submit_line) as `extra_...`.
        keep_names: keep the names of users and accounts.
        time_zone: the time zone of the times in the files.

    Raises:
        InputError: a column is missing or a value is invalid.
    """
    c = read_columns(files, WANTED, extras=keep_extra)
    nodes, cores, memory = c.numbers("nodes"), c.numbers("cores"), c.numbers("memory")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cores_per_node = np.where(nodes > 0, np.ceil(cores / nodes).clip(1.0, None), np.nan)
    return make_log(
        files,
        "eagle",
        {
            "job_id": c["job"],
            "submit_time": c.instants("submit", time_zone),
            **({"run_time": c["run"]} if "run" in c else {}),
            "time_limit": c.numbers("limit"),
            "nodes": nodes,
            "cores_per_node": cores_per_node,
            "memory_mib": np.where(memory > 0, memory, np.nan),
            "user": c.labels("user"),
            "group": c.labels("group"),
            "partition": c.labels("partition"),
            "queue": c.labels("queue"),
            "status": slurm_states(c.labels("state")),
            "logged_start": c.instants("start", time_zone),
            "logged_end": c.instants("end", time_zone),
            "extra_gpus": np.where(c.numbers("gpus") > 0, c.numbers("gpus"), np.nan),
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
    "eagle",
    "NREL Eagle",
    recognizes,
    read_log=read_log,
)
