"""Columns of a table of jobs: which field each column is, and in which unit its times are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of, unknown
from tracebed.validation.simulators.observed import DURATIONS, FIELDS, INSTANTS

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
"""Unit of times -> s."""
SPELT = {
    **{name: name for name in UNITS},
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("nsec", "nanos", "nanoseconds"), "ns"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hour", "hours"), "h"),
}
"""Last word of a column name -> unit."""
NAMES: dict[str, tuple[str, ...]] = {
    "job_id": ("jobid", "id", "job", "jobnumber", "jobidraw", "jobname", "name"),
    "submit": (
        "submit",
        "submittime",
        "submission",
        "submissiontime",
        "submitted",
        "arrival",
        "arrivaltime",
        "subtime",
        "submitjob",
    ),
    "start": ("start", "starttime", "startingtime", "started", "begin", "begintime", "starts", "launchjob"),
    "end": (
        *("end", "endtime", "finish", "finishtime", "finished", "completion", "completiontime", "ended", "stoptime"),
        "jobepilogcomplete",  # slurm_model, with submitjob and launchjob
    ),
    "wait": ("wait", "waittime", "waitingtime", "waiting"),
    "run": ("run", "runtime", "executiontime", "elapsed", "duration", "actualruntime"),
    "response": ("response", "responsetime", "turnaround", "turnaroundtime"),
    "nodes": (
        *("nodes", "numnodes", "nnodes", "nodecount", "allocnodes", "requestednodes", "reqnodes", "size"),
        *("requestednumberofresources", "requestednumberofprocessors"),  # Batsim, whose machines are nodes
        *("numhosts", "nhosts", "hostcount", "numberofnodes", "numberofhosts", "numnodesalloc", "nodect"),
    ),
    "cores": (
        *("cores", "procs", "processors", "cpus", "ncpus", "alloccpus", "numcores", "requestedprocessors"),
        *("ncores", "nprocs", "numprocs", "numprocessors", "numcpus", "numberofcores", "cpucount", "slots", "numslots"),
    ),
    "state": ("state", "status", "finalstate", "jobstate", "success"),
    "run_time": ("dedicatedruntime",),
    "time_limit": ("timelimit", "walltime", "requestedtime", "reqtime", "requestedwalltime", "limit"),
    "user": ("user", "username", "userid", "owner"),
    "kind": ("kind", "type", "jobtype"),
    "held": ("heldnodes", "allocatedresources", "allocatednodes", "allocatedprocessors", "assignedresources"),
}
"""Field -> names of its column in lower case, without punctuation and unit; preferred names first."""


class ColumnMatch(NamedTuple):
    """A column of a table: its name in the file, and the unit of its times if the name states it."""

    name: str
    unit: str


def split(name: str) -> tuple[str, str]:
    """Return the letters of a column name in lower case without its unit, and the unit; empty if it states none.

    `Start Time (ms)`, `start_time_ms` and `startTimeMs` are `starttime` in `ms`.
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    words = [word.lower() for word in words]
    unit = SPELT.get(words[-1], "") if len(words) > 1 else ""
    return "".join(words[:-1] if unit else words), unit


def columns_of(spelt: Sequence[str], chosen: Mapping[str, str], where: str) -> dict[str, ColumnMatch]:
    """Return the column of each field that a table has.

    Args:
        spelt: the column names of the file.
        chosen: field -> column name, of the user. Other columns are found by `NAMES`.
        where: the file, for messages.

    Raises:
        InputError: a field or a column is unknown, or a column occurs twice.
    """
    for field in chosen:
        one_of("field", field, FIELDS)
    found: dict[str, ColumnMatch] = {}
    parts = {name: split(name) for name in reversed(spelt)}
    for field, name in chosen.items():
        if name not in parts:
            raise unknown(f"column of {where}:", name, list(spelt))
        found[field] = ColumnMatch(name, parts[name][1])
    taken = set(chosen.values())
    free = [name for name in spelt if name not in taken]
    for field, names in NAMES.items():
        if field in found:
            continue
        order = {known: place for place, known in enumerate(names)}
        fitting = sorted(
            (order[parts[name][0]], place, name) for place, name in enumerate(free) if parts[name][0] in order
        )
        if fitting:
            name = fitting[0][2]
            found[field] = ColumnMatch(name, parts[name][1])
    if "run" in found and "run_time" not in found:  # with both, `run_time` is the planned run time, as in workloads
        runs = [name for name in free if parts[name][0] == "runtime" and name != found["run"].name]
        if parts[found["run"].name][0] == "run" and runs:
            found["run_time"] = ColumnMatch(runs[0], parts[runs[0]][1])
    for field, column in found.items():
        if list(spelt).count(column.name) > 1:
            hint = "remove or rename one of them"
            raise InputError(f"column {column.name!r} ({field}) occurs twice", where=where, hint=hint)
    return found


def check_enough(found: Mapping[str, ColumnMatch], spelt: Sequence[str], where: str) -> None:
    """Raise InputError unless starts and ends are known, directly or by waits, run times and response times."""
    starts = {"start", "wait"} & found.keys() or {"end", "run"} <= found.keys()
    ends = {"end", "run", "response"} & found.keys()
    if starts and ends:
        return
    lacks = " and ".join([*(() if starts else ("start (or wait)",)), *(() if ends else ("end (or run, response)",))])
    shown = ", ".join(spelt[:12])
    names = "--columns start=NAME,end=NAME, or `columns: {start: NAME, end: NAME}` in a file"
    hint = f"name them by {names}; the columns are {shown}"
    raise InputError(f"no column is recognized as {lacks}", where=where, hint=hint)


def scale_of(field: str, column: ColumnMatch, unit: str) -> float:
    """Return the factor from the numbers of a column to s; 1 for fields that are not times."""
    if field not in (*INSTANTS, *DURATIONS, "time_limit", "run_time"):
        return 1.0
    return UNITS[column.unit or unit or "s"]
