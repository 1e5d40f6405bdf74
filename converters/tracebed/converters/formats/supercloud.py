"""MIT Supercloud: `slurm-log.csv` (`scheduler-log.csv`), the job table of Slurm's database.

States are numbers, limits are in minutes, times are in s since 1970, or 0 if missing. Allocated and requested
resources are texts such as `1=20,2=170000,4=1,1002=2`, pairs of resource number and amount.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import Columns, column_spec, relabel
from tracebed.converters.formats.tools.site import Derived, Site
from tracebed.converters.formats.tools.states import slurm_states
from tracebed.converters.workload import FloatArray, System

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


def _derive(c: Columns, system: System, zone: str) -> Derived:
    allocated, requested, limit = c.labels("allocated"), c.labels("requested"), c.numbers("limit")
    nodes = first_positive(c.numbers("nodes"), _resource(requested, NODES), _resource(allocated, NODES))
    cores = first_positive(c.numbers("cores"), _resource(requested, CORES), _resource(allocated, CORES))
    got = _resource(allocated, CORES)
    default = limit == YEAR
    started, ended = c.numbers("logged_start") > 0, c.numbers("logged_end") > 0
    return Derived(
        {
            "submit_time": np.where(c.numbers("submit_time") > 0, c.instants("submit_time", zone), np.nan),
            "time_limit": 60.0 * np.where(default | (limit >= ENDLESS) | (limit <= 0), np.nan, limit),
            "nodes": nodes,
            "cores_per_node": np.ceil(cores / nodes),
            "memory_mib": first_positive(_resource(requested, MEMORY), _resource(allocated, MEMORY)) / nodes,
            "status": slurm_states(_numbered_states(c.labels("state"))),
            "logged_start": np.where(started, c.instants("logged_start", zone), np.nan),
            "logged_end": np.where(started & ended, c.instants("logged_end", zone), np.nan),
            "extra_gpus": first_positive(np.nansum([_resource(allocated, kind) for kind in GPUS], axis=0)),
            "extra_allocated": np.where(got != cores, got, np.nan),
        },
        defects={"limits of one year, the default, read as no limit": default},
    )


def _resource(labels: pd.Categorical, number: int) -> FloatArray:
    """Return the amount of a resource in each text, shape (records,), NaN if missing: 1 for number 4 in `1=20,4=1`."""
    pattern = re.compile(rf"(?:^|,)\s*{number}=(\d{{1,15}})\s*(?=,|$)")
    amounts = [
        float(match[1]) if (match := pattern.search(str(text).strip("\"' "))) else np.nan for text in labels.categories
    ]
    amount: FloatArray = np.array([*amounts, np.nan])[labels.codes]
    return amount


def _numbered_states(labels: pd.Categorical) -> pd.Categorical:
    """Return Slurm's state numbers as state names; other labels stay unchanged."""

    def word(text: str) -> str:
        number = int(text) & 0xFF if re.fullmatch(r"[0-9]{1,15}", text) else len(STATES)
        return STATES[number] if number < len(STATES) else text

    return relabel(labels.codes, [word(str(text)) for text in labels.categories])


SITE = Site(
    "supercloud",
    "MIT Supercloud",
    (frozenset({"id_job", "time_submit", "tres_alloc", "nodes_alloc", "timelimit"}),),
    "America/New_York",
    {
        "job_id": column_spec("text", "id_job", needed=True),
        "user": column_spec("label", "id_user"),
        "group": column_spec("label", "account"),
        "partition": column_spec("label", "partition"),
        "queue": column_spec("label", "id_qos"),
        "limit": column_spec("number", "timelimit", needed=True),
        "nodes": column_spec("number", "nodes_alloc", needed=True),
        "cores": column_spec("number", "cpus_req", needed=True),
        "submit_time": column_spec("time", "time_submit", needed=True),
        "logged_start": column_spec("time", "time_start", needed=True),
        "logged_end": column_spec("time", "time_end", needed=True),
        "state": column_spec("label", "state"),
        "allocated": column_spec("label", "tres_alloc", needed=True),
        "requested": column_spec("label", "tres_req"),
    },
    System(name="MIT Supercloud"),
    _derive,
)
FORMAT = SITE.format
