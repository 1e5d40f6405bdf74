"""NREL's Eagle (and Kestrel, with the same columns): CSV or Parquet, one row per job or array task.

Tasks of an array have the same `job_id`. Nodes, cores, GPUs and memory are those requested.
"""

from __future__ import annotations

from tracebed.converters.formats.tools.columns import column_spec
from tracebed.converters.formats.tools.site import Site
from tracebed.converters.workload import System

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
        "extra_gpus": column_spec("number", "gpus_req"),
        "submit_time": column_spec("time", "submit_time", needed=True),
        "logged_start": column_spec("time", "start_time", needed=True),
        "logged_end": column_spec("time", "end_time", needed=True),
        "run_time": column_spec("number", "run_time"),
        "cores_per_node": column_spec("cores", "processors_req"),
        "memory_mib": column_spec("positive", "mem_req"),
        "status": column_spec("state", "state"),
    },
    System(2618, 36, "NREL Eagle"),
)
FORMAT = SITE.format
