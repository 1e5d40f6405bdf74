"""MIT Supercloud: `slurm-log.csv` (`scheduler-log.csv`), the job table of Slurm's database.

States are numbers, limits are in minutes, times are in s since 1970, or 0 if missing. Allocated and requested
resources are texts such as `1=20,2=170000,4=1,1002=2`, pairs of resource number and amount.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import read_columns, relabel, want
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.states import slurm_states
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import FloatArray, System

WANTED = {
    "job": want("text", "id_job", needed=True),
    "user": want("label", "id_user"),
    "group": want("label", "account"),
    "partition": want("label", "partition"),
    "queue": want("label", "id_qos"),
    "limit": want("number", "timelimit", needed=True),
    "nodes": want("number", "nodes_alloc", needed=True),
    "cores": want("number", "cpus_req", needed=True),
    "submit": want("time", "time_submit", needed=True),
    "start": want("time", "time_start", needed=True),
    "end": want("time", "time_end", needed=True),
    "state": want("label", "state"),
    "allocated": want("label", "tres_alloc", needed=True),
    "requested": want("label", "tres_req"),
}
SYSTEM = System(name="MIT Supercloud")
ZONE = "America/New_York"
STATES = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
)
"""State names by number, the lowest byte of Slurm's state."""
CORES, MEMORY, NODES = 1, 2, 4
GPUS = (1001, 1002)
"""Resource numbers. Memory is in MiB; the GPU types are tesla and volta."""
YEAR = 525_600
"""Time limit of jobs that did not request one, in minutes."""
ENDLESS = 2.0**32 - 3


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of this table."""
    return {"id_job", "time_submit", "tres_alloc", "nodes_alloc", "timelimit"} <= set(file.columns)


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str = ZONE
) -> Log:
    """Read the job table.

    Args:
        files: the CSV files.
        keep_extra: keep every other column (node lists, array numbers, priority) as `extra_...`.
        keep_names: keep the numeric ids of users.
        time_zone: the time zone of the machine.

    Raises:
        InputError: a column is missing or a value is invalid.
    """
    c = read_columns(files, WANTED, extras=keep_extra)
    allocated, requested, limit = c.labels("allocated"), c.labels("requested"), c.numbers("limit")
    nodes = first_positive(c.numbers("nodes"), resource(requested, NODES), resource(allocated, NODES))
    cores = first_positive(c.numbers("cores"), resource(requested, CORES), resource(allocated, CORES))
    default = limit == YEAR
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        memory = first_positive(resource(requested, MEMORY), resource(allocated, MEMORY)) / nodes
        other_cores = np.where(resource(allocated, CORES) != cores, resource(allocated, CORES), np.nan)
        cores_per_node = np.ceil(cores / nodes)
    started, ended = c.numbers("start"), c.numbers("end")
    return make_log(
        files,
        "supercloud",
        {
            "job_id": c["job"],
            "submit_time": np.where(c.numbers("submit") > 0, c.instants("submit", time_zone), np.nan),
            "time_limit": 60.0 * np.where(default | (limit >= ENDLESS) | (limit <= 0), np.nan, limit),
            "nodes": nodes,
            "cores_per_node": cores_per_node,
            "memory_mib": memory,
            "user": c.labels("user"),
            "group": c.labels("group"),
            "partition": c.labels("partition"),
            "queue": c.labels("queue"),
            "status": slurm_states(numbered_states(c.labels("state"))),
            "logged_start": np.where(started > 0, c.instants("start", time_zone), np.nan),
            "logged_end": np.where((started > 0) & (ended > 0), c.instants("end", time_zone), np.nan),
            "extra_gpus": first_positive(np.nansum([resource(allocated, kind) for kind in GPUS], axis=0)),
            "extra_allocated": other_cores,
        },
        system=SYSTEM,
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects={"limits of one year, the default, read as no limit": default},
        place=c.place,
        names=("user", "group"),
        keep_names=keep_names,
        extras=c.extras,
        unread=c.unread,
    )


def resource(labels: pd.Categorical, number: int) -> FloatArray:
    """Return the amount of a resource in each text, shape (records,), NaN if missing: 1 for number 4 in `1=20,4=1`."""
    pattern = re.compile(rf"(?:^|,)\s*{number}=(\d{{1,15}})\s*(?=,|$)")
    amounts = [
        float(found[1]) if (found := pattern.search(str(text).strip("\"' "))) else np.nan for text in labels.categories
    ]
    amount: FloatArray = np.array([*amounts, np.nan])[labels.codes]
    return amount


def numbered_states(labels: pd.Categorical) -> pd.Categorical:
    """Return Slurm's state numbers as state names; other labels stay unchanged."""

    def word(text: str) -> str:
        number = int(text) & 0xFF if text.isascii() and text.isdigit() else len(STATES)
        return STATES[number] if number < len(STATES) else text

    return relabel(labels.codes, [word(str(text)) for text in labels.categories])


FORMAT = Format(
    "supercloud",
    "MIT Supercloud",
    recognizes,
    read_log=read_log,
)
