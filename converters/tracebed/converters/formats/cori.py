"""Accounting of NERSC's Cori and Perlmutter: CSV in two layouts, distinguished by their headers.

A record is the part of a job in one day: a job that runs over midnight has a record that ends at 23:59:59 and
another. The same job id with another submit time is another run of the job. Time limits, states and requests are
missing. On shared nodes, `Raw Hours` gives the share of the node, stored in `extra_node_share`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.columns import read_columns, want
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.machines import one_machine
from tracebed.converters.log import Log, make_log, place_of
from tracebed.converters.workload import System

WANTED = {
    "job": want("text", "job", needed=True),
    "host": want("label", "host name"),
    "user": want("label", "user"),
    "group": want("label", "project", "account name"),
    "partition": want("label", "partition", needed=True),
    "queue": want("label", "qos"),
    "submit": want("time", "submit", needed=True),
    "start": want("time", "start", needed=True),
    "end": want("time", "end", needed=True),
    "elapsed": want("number", "elapsed secs"),
    "nodes": want("number", "nodes allocated", needed=True),
    "hours": want("number", "raw hours"),
}
MACHINES = {
    "cori haswell": System(2388, 32, "NERSC Cori Haswell"),
    "cori knl": System(9688, 68, "NERSC Cori KNL"),
    "perlmutter cpu": System(3072, 128, "NERSC Perlmutter CPU"),
    "perlmutter gpu": System(1792, 64, "NERSC Perlmutter GPU"),
}
ZONE = "America/Los_Angeles"


def recognizes(file: Input) -> bool:
    """Return whether the file has the columns of this log."""
    return {"job", "host name", "partition", "elapsed secs", "nodes allocated"} <= set(file.columns)


def read_log(
    files: Sequence[Input],
    *,
    keep_extra: bool = False,
    keep_names: bool = False,
    time_zone: str = ZONE,
    machine: str | None = None,
) -> Log:
    """Read daily files.

    Args:
        files: the CSV files; the host names give the machine.
        keep_extra: keep every other column as `extra_...`.
        keep_names: keep the names of users and projects.
        time_zone: the time zone of the times in the files.
        machine: the host to read (such as Perlmutter CPU), if the files have several.

    Raises:
        InputError: a column is missing, a value is invalid, or the files have several machines and `machine` is None.
    """
    c = read_columns(files, WANTED, extras=keep_extra)
    start, end, nodes = c.instants("start", time_zone), c.instants("end", time_zone), c.numbers("nodes")
    name, only = one_machine(c.labels("host"), machine, place_of(files))
    system = MACHINES.get(name.lower(), System(name=name))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = c.numbers("hours") * 3600.0 / (c.numbers("elapsed") * nodes)
    share = np.where(share < SHARED, share, np.nan)
    return make_log(
        files,
        "cori",
        {
            "job_id": c["job"],
            "submit_time": c.instants("submit", time_zone),
            "nodes": nodes,
            "cores_per_node": np.full(len(c), system.cores_per_node or 1),
            "user": c.labels("user"),
            "group": c.labels("group"),
            "partition": c["partition"],
            "queue": c.labels("queue"),
            "logged_start": start,
            "logged_end": end,
            "extra_node_share": share,
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


SHARED = 0.99
"""A job with a node share below this shared its nodes. Shares of whole nodes exceed it despite rounded hours."""


FORMAT = Format(
    "cori",
    "NERSC Cori and Perlmutter",
    recognizes,
    read_log=read_log,
)
