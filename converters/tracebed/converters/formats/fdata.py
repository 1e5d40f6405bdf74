"""F-DATA: jobs of RIKEN's Fugaku, one Parquet file per month, with the columns of Fujitsu's job manager.

`adt`, `sdt` and `edt` are the submit, start and end times; `elpl` is the time limit in s; `nnumr` and `cnumr` are
the requested nodes and cores. User names are already pseudonyms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.columns import read_columns, want
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.states import statuses
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import System
from tracebed.states import JobState

WANTED = {
    "job": want("text", "jid", needed=True),
    "user": want("label", "usr"),
    "submit": want("time", "adt", needed=True),
    "start": want("time", "sdt", needed=True),
    "end": want("time", "edt", needed=True),
    "limit": want("number", "elpl", needed=True),
    "nodes": want("number", "nnumr", needed=True),
    "cores": want("number", "cnumr"),
    "nodes_alloc": want("number", "nnuma"),
    "state": want("label", "exit state"),
}
SYSTEM = System(158_976, 48, "RIKEN Fugaku")
ZONE = "Asia/Tokyo"
STATES = {"COMPLETED": JobState.COMPLETED, "FAILED": JobState.FAILED}


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of this table."""
    return {"jid", "adt", "sdt", "edt", "nnumr", "elpl"} <= set(file.columns)


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str = ZONE
) -> Log:
    """Read the files of one or several months.

    Args:
        files: Parquet files, or CSV files with the same columns.
        keep_extra: keep every other column as `extra_...`, except `embedding`, which has 384 numbers per job.
        keep_names: keep the user pseudonyms of the data set, which are the same in all its files.
        time_zone: the time zone of times without one; times in the files usually have a time zone.

    Raises:
        InputError: a column is missing or a value is invalid.
    """
    c = read_columns(files, WANTED, extras=keep_extra, skip=("embedding",))
    requested, allocated = c.numbers("nodes"), c.numbers("nodes_alloc")
    nodes = np.where(requested > 0, requested, allocated)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cores = np.fmax(np.ceil(c.numbers("cores") / nodes), 1.0)
        others = np.where(allocated != nodes, allocated * cores, np.nan)
    return make_log(
        files,
        "fdata",
        {
            "job_id": c["job"],
            "submit_time": c.instants("submit", time_zone),
            "time_limit": c.numbers("limit"),
            "nodes": nodes,
            "cores_per_node": cores,
            "user": c.labels("user"),
            "status": statuses(c.labels("state"), STATES),
            "logged_start": c.instants("start", time_zone),
            "logged_end": c.instants("end", time_zone),
            "extra_allocated": others,
        },
        system=SYSTEM,
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        place=c.place,
        names=("user",),
        keep_names=keep_names,
        extras=c.extras,
        unread=c.unread,
    )


FORMAT = Format(
    "fdata",
    "RIKEN Fugaku: F-DATA",
    recognizes,
    read_log=read_log,
)
