"""Jobs of CINECA's Marconi100 in Parquet: PM100 (exclusive jobs with power data) and the job table of M100 ExaData.

The size of a job is the requested size. Cores may be counted as hardware threads, four per core, and are then
divided by four. Power data are lists with a value every 20 s, kept as text by `keep_extra`.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.formats.tools.columns import Columns, column_spec
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.formats.tools.states import slurm_states
from tracebed.converters.workload import System

CORES = 32
THREADS = 4
"""Hardware threads of a POWER9 core."""
ENDLESS = 2.0**32 - 3
"""Time limits from this value on (minutes) are Slurm's codes for no limit."""
TIMES = frozenset({"job_id", "submit_time", "start_time", "end_time", "time_limit"})


def _derive(c: Columns, system: System, zone: str) -> Derived:
    nodes, allocated, limit = c.numbers("nodes"), c.numbers("allocated cores"), c.numbers("limit")
    cores = np.ceil(c.numbers("cores") / nodes)
    of_a_node = allocated / c.numbers("allocated nodes")
    threads = THREADS if np.any(np.concatenate([cores, of_a_node]) > CORES) else 1
    cores, allocated = np.ceil(cores / threads), np.ceil(allocated / threads)
    return Derived(
        {
            "time_limit": 60.0 * np.where(limit < ENDLESS, limit, np.nan),
            "cores_per_node": cores,
            "status": slurm_states(c.labels("state")),
            "extra_allocated": np.where(allocated != nodes * cores, allocated, np.nan),
        },
        defects={f"cores counted as hardware threads, divided by {THREADS}": len(c) if threads > 1 else 0},
    )


SITE = Site(
    "pm100",
    "CINECA Marconi100: PM100, M100 ExaData",
    (TIMES | {"num_nodes_req", "num_nodes_alloc"}, TIMES | {"num_nodes", "num_cpus", "cpus_alloc_layout"}),
    "Europe/Rome",
    {
        "job_id": column_spec("text", "job_id", needed=True),
        "user": column_spec("label", "user_id"),
        "group": column_spec("label", "group_id"),
        "partition": column_spec("label", "partition"),
        "queue": column_spec("label", "qos"),
        "limit": column_spec("number", "time_limit", needed=True),
        "nodes": column_spec("number", "num_nodes_req", "num_nodes", "num_nodes_alloc", needed=True),
        "allocated nodes": column_spec("number", "num_nodes_alloc"),
        "cores": column_spec("number", "num_cores_req", "num_cpus_req", "num_cpus"),
        "allocated cores": column_spec("number", "num_cores_alloc", "num_cpus_alloc"),
        "extra_gpus": column_spec("number", "num_gpus_req", "num_gpus_alloc"),
        "submit_time": column_spec("time", "submit_time", needed=True),
        "logged_start": column_spec("time", "start_time", needed=True),
        "logged_end": column_spec("time", "end_time", needed=True),
        "state": column_spec("label", "job_state"),
    },
    System(980, CORES, "CINECA Marconi100"),
    _derive,
)
FORMAT = SITE.format
