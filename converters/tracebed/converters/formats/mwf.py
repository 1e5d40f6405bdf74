"""Modular Workload Format (Corbalan and D'Amico, JSSPP 2021): 41 or 42 fields separated by `;`, one component a line.

A job on a modular machine has components, each on a separate module, with its own size, wait time and run time.
Since a job of a workload has one size, each component becomes a job: `7` for a job with one component, `7+0` and
`7+1` for a job with two. `extra_job` is the id of the whole job. The common start of the components is lost and
counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.fields import Fields, first_line, read_fields
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.states import SWF_TEXTS, statuses
from tracebed.converters.formats.tools.swf_columns import EPOCH
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import FloatArray

FIELDS = (
    *("job", "components", "name", "submit", "wait", "limit", "components_at_submit", "component"),
    *("component_name", "component_wait", "run", "status", "executable", "partitions", "nodes", "processes"),
    *("threads", "memory", "frequency", "reference_power", "nam", "local_storage", "network", "constraint"),
    *("hint", "licenses", "module", "partition", "nodes_alloc", "processes_alloc", "threads_alloc"),
    *("memory_alloc", "frequency_alloc", "average_power", "nam_alloc", "storage_alloc", "network_alloc"),
    *("licenses_alloc", "after", "dependency", "think", "api_call_time"),
)
"""The fields up to `licenses` describe the request, the fields from `module` on the allocation."""
FEWEST = len(FIELDS) - 1
OTHERS = (
    *("name", "component_name", "executable", "memory", "frequency", "reference_power", "nam", "local_storage"),
    *("network", "constraint", "hint", "licenses", "module", "average_power", "dependency", "api_call_time"),
)
"""Fields kept as text by `keep_extra`."""


def recognizes(file: Input) -> bool:
    """Return whether the first line has 41 or 42 fields, the first two of which are integers."""
    fields = _split(first_line(file, b";#"))
    return FEWEST <= len(fields) <= len(FIELDS) and all(re.fullmatch(r"\d+", text) for text in fields[:2])


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str | None = None
) -> Log:
    """Read one or several files. `keep_names` has no effect: the format has no user names."""
    f = read_fields(files, FIELDS, _split, ";#", FEWEST)
    submit, run, wait = f.known("submit"), f.known("run"), f.known("component_wait")
    wait = np.where(np.isnan(wait), f.known("wait"), wait)
    start = submit + wait
    nodes, cores = _size(f, "")
    nodes_alloc, cores_alloc = _size(f, "_alloc")
    unknown = ~(nodes > 0)
    nodes, cores = np.where(unknown, nodes_alloc, nodes), np.where(unknown, cores_alloc, cores)
    allocated = nodes_alloc * np.fmax(cores_alloc, 1.0)
    limit = f.known("limit")
    ids, several = _component_ids(f)
    after, left_out = _after(f, ids, start + run)
    extras = {f"extra_{name}": f.texts(name) for name in OTHERS} if keep_extra else {}
    return make_log(
        files,
        "mwf",
        {
            "job_id": ids,
            "submit_time": submit,
            "run_time": run,
            "time_limit": np.where(limit > 0, limit, np.nan),
            "nodes": nodes,
            "cores_per_node": cores,
            "partition": f.texts("partitions").where(f.texts("partitions") != "", f.texts("partition")),
            "status": statuses(f.labels("status"), SWF_TEXTS),
            "after": after,
            "think_time": np.where(after != "", f.known("think"), np.nan),
            "logged_start": start,
            "logged_end": start + run,
            "extra_job": f.texts("job").where(several, ""),
            "extra_component": f.texts("component").where(several, ""),
            "extra_allocated": np.where(allocated != nodes * np.fmax(cores, 1.0), allocated, np.nan),
            **extras,
        },
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects={"components of multi-component jobs, read as independent jobs": several.to_numpy(), **left_out},
        place=f.place,
        since_1970=bool(np.nanmin(submit, initial=np.inf) >= EPOCH),
    )


def _split(line: str) -> list[str]:
    return [text.strip() for text in line.split(";")]


def _size(f: Fields, suffix: str) -> tuple[FloatArray, FloatArray]:
    """Return nodes and cores per node, shape (components,). Cores are processes times threads, each 1 if unknown."""
    processes, threads = f.known(f"processes{suffix}"), f.known(f"threads{suffix}")
    known = (processes > 0) | (threads > 0)
    cores = np.where(processes > 0, processes, 1.0) * np.where(threads > 0, threads, 1.0)
    return f.known(f"nodes{suffix}"), np.where(known, cores, np.nan)


def _component_ids(f: Fields) -> tuple[pd.Series[str], pd.Series[bool]]:
    """Return the job id of each component, and whether its job has several components."""
    job = f.texts("job")
    several = job.duplicated(keep=False) & (job != "")
    component = f.texts("component").where(lambda text: text != "", job.groupby(job).cumcount().astype("str"))
    return job.where(~several, job + "+" + component), several


def _after(f: Fields, ids: pd.Series[str], end: FloatArray) -> tuple[pd.Series[str], dict[str, int]]:
    """Return the dependency of each component: the component that ends last in the first job of its list."""
    last: dict[str, int] = {}
    for row, job in enumerate(f.texts("job")):
        if job not in last or not end[row] < end[last[job]]:
            last[job] = row
    more = unknown = 0
    after = []
    for job, text in zip(f.texts("job"), f.texts("after"), strict=True):
        wanted = [name for name in re.split(r"[,\s:]+", text) if name and name != "-1"]
        first = wanted[0] if wanted and wanted[0] in last and wanted[0] != job else ""
        unknown += bool(wanted) and not first
        more += max(0, len(wanted) - 1)
        after.append(ids[last[first]] if first else "")
    counts = {
        "dependencies after the first of a job, left out": more,
        "jobs that depend on a job that is not in the file, dependency left out": unknown,
    }
    return pd.Series(after, dtype="str"), counts


FORMAT = Format(
    "mwf",
    "Modular Workload Format",
    recognizes,
    marks=Marks.LINES,
    suffixes=(".mwf",),
    read_log=read_log,
)
