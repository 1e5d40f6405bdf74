"""Traces of elastic deep-learning jobs, as the schedulers Gavel and Shockwave read them.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020; Zheng et
al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023.

Format: a line per job in the order of arrival, of twelve fields between tabs: model with its batch size, command,
folder, the option for the number of steps, whether the job reads data, steps, GPUs, how the batch size adapts
(`static`, `accordion` or `gns`), weight, deadline (-1: none), run time in s, arrival in s. In the published traces, the
run time is the number of steps divided by the measured throughput of the model on these GPUs, at its first batch size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import MAX_SIZE, Kind, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError, tolerate

FIELDS = 12
MODES = ("static", "accordion", "gns")
STATIC = MODES[0]
HINT = "give a trace with a line of twelve fields between tabs for each job"


class TraceJob(NamedTuple):
    """A job of a trace."""

    model: str
    steps: int
    gpus: int
    mode: str
    run_time: float
    arrival: float


def recognizes(file: Input) -> bool:
    """Return whether the first line has twelve fields, of which the eighth is a way to adapt the batch size."""
    fields = file.header.split("\t")
    return len(fields) == FIELDS and fields[7] in MODES


def jobs_of(file: Input) -> list[TraceJob]:
    """Return the jobs of a trace. Raises InputError with the line of an invalid one."""
    jobs: list[TraceJob] = []
    for number, line in enumerate(file.text.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        where, fields = f"{file.where}:{number}", line.split("\t")
        if len(fields) != FIELDS or fields[7] not in MODES:
            raise InputError(f"has {len(fields)} fields, or no mode in the eighth", where=where, hint=HINT)
        try:
            job = TraceJob(fields[0], int(fields[5]), int(fields[6]), fields[7], float(fields[10]), float(fields[11]))
        except ValueError:
            raise InputError("steps, GPUs, run time or arrival is not a number", where=where, hint=HINT) from None
        if not (1 <= job.gpus <= MAX_SIZE and 0 <= job.run_time < math.inf and 0 <= job.arrival < math.inf):
            what = f"has {job.gpus} GPUs, a run time of {job.run_time:g} s and an arrival at {job.arrival:g} s"
            raise InputError(what, where=where, hint=HINT)
        if jobs and job.arrival < jobs[-1].arrival:
            raise InputError("arrives before the line above it", where=where, hint="sort the lines by the last field")
        jobs.append(job)
    return jobs


def read(file: Input) -> Workload:
    """Read a trace. A GPU is a node of one core; jobs are numbered from 0 in the order of arrival, and rigid."""
    jobs = jobs_of(file)
    if not jobs:
        raise InputError("contains no jobs", where=file.where, hint=HINT)
    table = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(len(jobs))],
            "submit_time": [job.arrival for job in jobs],
            "run_time": [job.run_time for job in jobs],
            "nodes": [job.gpus for job in jobs],
            "cores_per_node": 1,
            "kind": Kind.RIGID.value,
            "extra_model": [job.model for job in jobs],
            "extra_steps": [job.steps for job in jobs],
            "extra_mode": [job.mode for job in jobs],
        }
    )
    adapting = sum(job.mode != STATIC for job in jobs)
    tolerate({"jobs that adapt their batch size, run time that at the first one": adapting}, where=file.where)
    step = Step("read", {"format": "shockwave"})
    return Workload(table, Provenance(System(), sources=(file.source,), steps=(step,)), where=file.where)


FORMAT = Format(
    "shockwave", "trace of deep-learning jobs of Gavel and Shockwave", recognizes, Marks.LINES, (".trace",), read=read
)
"""Format of the traces of Gavel and Shockwave."""
