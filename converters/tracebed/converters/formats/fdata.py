"""F-DATA: jobs of RIKEN's Fugaku, one Parquet file per month, with the columns of Fujitsu's job manager.

`adt`, `sdt` and `edt` are the submit, start and end times; `elpl` is the time limit in s; `nnumr` and `cnumr` are
the requested nodes and cores. User names are already pseudonyms, the same in all files. `embedding` has 384 numbers
per job, and is not kept.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.formats.tools.columns import Columns, column_spec
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.formats.tools.states import statuses
from tracebed.converters.workload import System
from tracebed.ground.states import JobState

STATES = {"COMPLETED": JobState.COMPLETED, "FAILED": JobState.FAILED}


def _derive(c: Columns, system: System, zone: str) -> Derived:
    requested, allocated = c.numbers("requested nodes"), c.numbers("allocated nodes")
    nodes = np.where(requested > 0, requested, allocated)
    cores = np.fmax(np.ceil(c.numbers("cores") / nodes), 1.0)
    return Derived(
        {
            "nodes": nodes,
            "cores_per_node": cores,
            "status": statuses(c.labels("state"), STATES),
            "extra_allocated": np.where(allocated != nodes, allocated * cores, np.nan),
        }
    )


SITE = Site(
    "fdata",
    "RIKEN Fugaku: F-DATA",
    (frozenset({"jid", "adt", "sdt", "edt", "nnumr", "elpl"}),),
    "Asia/Tokyo",
    {
        "job_id": column_spec("text", "jid", needed=True),
        "user": column_spec("label", "usr"),
        "submit_time": column_spec("time", "adt", needed=True),
        "logged_start": column_spec("time", "sdt", needed=True),
        "logged_end": column_spec("time", "edt", needed=True),
        "time_limit": column_spec("number", "elpl", needed=True),
        "requested nodes": column_spec("number", "nnumr", needed=True),
        "cores": column_spec("number", "cnumr"),
        "allocated nodes": column_spec("number", "nnuma"),
        "state": column_spec("label", "exit state"),
    },
    System(158_976, 48, "RIKEN Fugaku"),
    _derive,
    skip=("embedding",),
)
FORMAT = SITE.format
