"""Accounting of NERSC's Cori and Perlmutter: CSV in two layouts, distinguished by their headers.

A record is the part of a job in one day: a job that runs over midnight has a record that ends at 23:59:59 and
another. The same job id with another submit time is another run of the job. Time limits, states and requests are
missing. On shared nodes, `Raw Hours` gives the share of the node, stored in `extra_node_share`. The GPUs of a job of
Perlmutter are those of its nodes; on a part of a node, by hours or else by CPUs, they are in proportion, rounded down.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import Columns, column_spec
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.workload import System

GPUS = {"NERSC Perlmutter GPU": 4}
"""Machine -> GPUs of each node."""
SLACK = 0.02
"""Largest share of a GPU by which rounded hours fall short of it."""
SHARED = 0.99
"""A job with a node share below this shared its nodes. Shares of whole nodes exceed it despite rounded hours."""


def _derive(c: Columns, system: System, zone: str) -> Derived:
    share = c.numbers("hours") * 3600.0 / (c.numbers("elapsed") * c.numbers("nodes"))
    columns = {"extra_node_share": np.where(share < SHARED, share, np.nan)}
    if on_node := GPUS.get(system.name):
        threads = 2.0 * (system.cores_per_node or 1)
        of_node = np.nan_to_num(first_positive(share, c.numbers("cpus") / (threads * c.numbers("nodes"))), nan=1.0)
        gpus = np.floor(on_node * np.minimum(of_node, 1.0) + SLACK)
        columns["extra_gpus"] = first_positive(gpus * c.numbers("nodes"))
    return Derived(columns)


SITE = Site(
    "cori",
    "NERSC Cori and Perlmutter",
    (frozenset({"job", "host name", "partition", "elapsed secs", "nodes allocated"}),),
    "America/Los_Angeles",
    {
        "job_id": column_spec("text", "job", needed=True),
        "machine": column_spec("label", "host name"),
        "user": column_spec("label", "user"),
        "group": column_spec("label", "project", "account name"),
        "partition": column_spec("label", "partition", needed=True),
        "queue": column_spec("label", "qos"),
        "submit_time": column_spec("time", "submit", needed=True),
        "logged_start": column_spec("time", "start", needed=True),
        "logged_end": column_spec("time", "end", needed=True),
        "elapsed": column_spec("number", "elapsed secs"),
        "nodes": column_spec("number", "nodes allocated", needed=True),
        "hours": column_spec("number", "raw hours"),
        "cpus": column_spec("number", "cpus"),
        "cores_per_node": column_spec("whole nodes"),
    },
    System(),
    _derive,
    machines={
        "cori haswell": System(2388, 32, "NERSC Cori Haswell"),
        "cori knl": System(9688, 68, "NERSC Cori KNL"),
        "perlmutter cpu": System(3072, 128, "NERSC Perlmutter CPU"),
        "perlmutter gpu": System(1792, 64, "NERSC Perlmutter GPU"),
    },
)
FORMAT = SITE.format
