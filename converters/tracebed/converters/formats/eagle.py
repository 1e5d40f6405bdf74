"""NREL's Eagle (and Kestrel, with the same columns): CSV or Parquet, one row per job or array task.

Tasks of an array have the same `job_id`. Nodes, cores, GPUs and memory are those requested.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import Columns, column_spec
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.formats.tools.states import slurm_states
from tracebed.converters.workload import System


def _derive(c: Columns, system: System, zone: str) -> Derived:
    nodes = c.numbers("nodes")
    cores = np.ceil(c.numbers("cores") / nodes).clip(1.0, None)
    return Derived(
        {
            "cores_per_node": np.where(nodes > 0, cores, np.nan),
            "memory_mib": first_positive(c.numbers("memory")),
            "status": slurm_states(c.labels("state")),
        }
    )


SITE = Site(
    "eagle",
    "NREL Eagle",
    (frozenset({"job_id", "wallclock_req", "nodes_req", "processors_req"}),),
    "America/Denver",
    {
        "job_id": column_spec("text", "job_id", needed=True),
        "user": column_spec("label", "user"),
        "group": column_spec("label", "account"),
        "partition": column_spec("label", "partition"),
        "queue": column_spec("label", "qos"),
        "time_limit": column_spec("number", "wallclock_req", needed=True),
        "nodes": column_spec("number", "nodes_req", needed=True),
        "cores": column_spec("number", "processors_req"),
        "extra_gpus": column_spec("number", "gpus_req"),
        "memory": column_spec("number", "mem_req"),
        "submit_time": column_spec("time", "submit_time", needed=True),
        "logged_start": column_spec("time", "start_time", needed=True),
        "logged_end": column_spec("time", "end_time", needed=True),
        "run_time": column_spec("number", "run_time"),
        "state": column_spec("label", "state"),
    },
    _derive,
    System(2618, 36, "NREL Eagle"),
)
FORMAT = SITE.format
