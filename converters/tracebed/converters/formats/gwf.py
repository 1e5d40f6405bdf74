"""Grid Workloads Format (Grid Workloads Archive): 29 fields per job, `#` comments, -1 for unknown values.

The format extends SWF with sites, user names, and times since 1970. It has no nodes, so each processor becomes a
node with one core. A wait time below -1 s belongs to a reservation that started before it was submitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.fields import first_line, read_fields
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.states import SWF_TEXTS, statuses
from tracebed.converters.formats.tools.swf_columns import KIB_PER_MIB
from tracebed.converters.log import Log, make_log

FIELDS = (
    *("JobID", "SubmitTime", "WaitTime", "RunTime", "NProc", "UsedCPUTime", "UsedMemory", "ReqNProcs"),
    *("ReqTime", "ReqMemory", "Status", "UserID", "GroupID", "ExecutableID", "QueueID", "PartitionID"),
    *("OrigSiteID", "LastRunSiteID", "JobStructure", "JobStructureParams", "UsedNetwork"),
    *("UsedLocalDiskSpace", "UsedResources", "ReqPlatform", "ReqNetwork", "ReqLocalDiskSpace"),
    *("ReqResources", "VOID", "ProjectID"),
)
OTHERS = ("ExecutableID", "OrigSiteID", "JobStructureParams", "ReqPlatform", "UsedResources", "ReqResources")
"""Fields kept as text by `keep_extra`."""


def recognizes(file: Input) -> bool:
    """Return whether the first line has 29 fields, numbers in fields 2 to 5, and no braces (another format's)."""
    fields = first_line(file, b"#").split()
    return len(fields) == len(FIELDS) and not any("{" in text for text in fields) and all(map(_number, fields[1:5]))


def read_log(
    files: Sequence[Input], *, keep_extra: bool = False, keep_names: bool = False, time_zone: str | None = None
) -> Log:
    """Read one or several files; `keep_extra` keeps executables, sites, projects, organizations and resources."""
    f = read_fields(files, FIELDS, str.split, "#", len(FIELDS))
    submit, wait, run = f.known("SubmitTime"), f.numbers("WaitTime"), f.known("RunTime")
    requested, allocated = f.known("ReqNProcs"), f.known("NProc")
    nodes = np.where(requested > 0, requested, allocated)
    limit, memory = f.known("ReqTime"), f.known("ReqMemory")
    structure = f.labels("JobStructure")
    single = [code for code, label in enumerate(structure.categories) if label.upper() in ("", "UNITARY")]
    extras = {name: f.texts(name) for name in OTHERS} if keep_extra else {}
    columns = {
        "job_id": f.texts("JobID"),
        "submit_time": submit,
        "run_time": run,
        "time_limit": np.where(limit > 0, limit, np.nan),
        "nodes": nodes,
        "memory_mib": np.where(memory > 0, memory / KIB_PER_MIB, np.nan),
        "user": f.labels("UserID"),
        "group": f.labels("GroupID"),
        "queue": f.labels("QueueID"),
        "partition": f.labels("PartitionID"),
        "status": statuses(f.labels("Status"), SWF_TEXTS),
        "logged_start": submit + wait,
        "logged_end": submit + wait + run,
        "extra_site": f.labels("LastRunSiteID"),
        "extra_cpu_time_s": f.known("UsedCPUTime"),
        "extra_used_memory_kib": f.known("UsedMemory"),
        "extra_allocated": np.where((requested > 0) & (allocated > 0) & (allocated != nodes), allocated, np.nan),
    }
    if keep_extra:
        columns |= {"extra_project": f.labels("ProjectID"), "extra_organisation": f.labels("VOID")}
    return make_log(
        files,
        "gwf",
        columns | {f"extra_{name}": values for name, values in extras.items()},
        time_zone=time_zone,
        parameters={"time_zone": time_zone, "keep_extra": keep_extra, "keep_names": keep_names},
        defects={
            "jobs that started before they were submitted (reservations)": wait < 0,
            "tasks of bags or workflows, read as separate jobs": ~np.isin(structure.codes, single),
        },
        place=f.place,
        names=("user", "group", "extra_project", "extra_organisation"),
    )


def _number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


FORMAT = Format(
    "gwf",
    "Grid Workloads Format",
    recognizes,
    marks=Marks.LINES,
    suffixes=(".gwf",),
    read_log=read_log,
)
