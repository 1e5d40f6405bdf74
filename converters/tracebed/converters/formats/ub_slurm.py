"""Jobs of the Slurm simulator of the University at Buffalo: tables (read) and events (written).

A table has a line per job, with semicolons; times are in s since the start, limits in min. A run time of -1 is that of
a job which runs until its limit:

    dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;mem;gres

Events are a line per submission, with options of sbatch:

    -dt 16 -e submit_batch_job | -J jobid_4 -sim-walltime 21 --uid=ann -t 1:00 -n 24 --ntasks-per-node=12 pseudo.job

Format: the tutorials and sources of the simulator (ubccr-slurm-simulator). `-dt` is the time since the start of the
simulation, `-sim-walltime` is the run time. Written files have not been tested with the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, BinaryIO, Literal

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.amounts import first_positive
from tracebed.converters.formats.tools.columns import column_spec, read_columns
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.kept import simulated_jobs, unsupported_columns, warn_of_unsupported
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import Kind, Workload
from tracebed.errors import tolerate
from tracebed.registry import one_of

HELD = {
    *("job_id", "submit_time", "run_time", "time_limit", "nodes", "cores_per_node", "memory_mib"),
    *("user", "group", "partition", "queue"),
}
NAMES = {"user": "--uid=", "group": "-A ", "partition": "-p ", "queue": "-q "}
STRANGE = re.compile(r"[^\w.@+-]")
"""Characters that the simulator may read as the end of a word or line."""
DEFAULT_USER = "user1"
TO_LIMIT = -1.0
"""Run time of a job that runs until its limit."""
WANTED = {
    "job_id": column_spec("text", "job_id", needed=True),
    "submit_time": column_spec("number", "dt", needed=True),
    "run": column_spec("number", "wall_time", needed=True),
    "limit": column_spec("number", "wall_limit", needed=True),
    "tasks": column_spec("number", "n_tasks", needed=True),
    "per node": column_spec("number", "ntasks_per_node", needed=True),
    "memory": column_spec("number", "mem"),
    "user": column_spec("label", "user"),
    "group": column_spec("label", "account"),
    "partition": column_spec("label", "partition"),
    "queue": column_spec("label", "qos"),
}
MAX_ID = 2**31 - 1


def recognizes(file: Input) -> bool:
    """Return whether the columns are those of a table of jobs."""
    return {"dt", "wall_limit", "n_tasks", "ntasks_per_node"} <= {name.lower() for name in file.columns}


def read_log(
    files: Sequence[Input],
    *,
    keep_extra: bool = False,
    keep_names: bool = False,
    by: Literal["node", "core"] = "node",
) -> Log:
    """Read one or several tables of jobs.

    Args:
        files: the tables.
        keep_extra: keep features (`constraint`) and generic resources (`gres`), with which no job is scheduled here.
        keep_names: keep the names of users and accounts.
        by: `node`: jobs hold whole nodes. `core`: a node of the workload is one core, for nodes shared by jobs.

    Raises:
        InputError: a column is missing, or a value is invalid.
    """
    one_of("by", by, ("node", "core"))
    c = read_columns(files, WANTED, extras=keep_extra)
    run, limit = c.numbers("run"), 60.0 * c.numbers("limit")
    tasks, per_node = c.numbers("tasks"), first_positive(c.numbers("per node"), c.numbers("tasks"))
    memory = c.numbers("memory")
    to_limit = run == TO_LIMIT
    columns = {
        "job_id": c["job_id"].array,
        "submit_time": c.numbers("submit_time"),
        "run_time": np.where(to_limit, limit, run),
        "time_limit": limit,
        "nodes": tasks if by == "core" else np.ceil(tasks / per_node),
        "cores_per_node": np.ones(len(c)) if by == "core" else np.minimum(tasks, per_node),
        "memory_mib": np.where(memory > 0, memory, np.nan),
        **{name: c.labels(name) for name in ("user", "group", "partition", "queue")},
    }
    return make_log(
        files,
        "ub-slurm",
        columns | dict(c.extras),
        parameters={"keep_extra": keep_extra, "keep_names": keep_names, "by": by},
        defects={"jobs that run until their limit (run time -1), limit used as run time": to_limit},
        place=c.place,
        names=("user", "group"),
        unread=c.unread,
        since_1970=False,
    )


def write(workload: Workload, file: BinaryIO) -> None:
    """Write the events. Jobs without run time or nodes are left out; the first submission becomes time 0.

    Raises:
        InputError: no job can be run.
    """
    workload, counts = simulated_jobs(workload, "the Slurm simulator")
    names = {name: [STRANGE.sub("_", text) for text in workload.column(name)] for name in NAMES}
    changed = sum(bool(STRANGE.search(text)) for name in NAMES for text in workload.column(name))
    numbers, renumbered = _numbers(workload)
    submit, run, limit = (workload.floats(name) for name in ("submit_time", "run_time", "time_limit"))
    tolerate(
        {
            **counts,
            "jobs that are not rigid, written at their requested size": int(
                (workload.column("kind") != Kind.RIGID).sum()
            ),
            "job ids that are not numbers, written as 1, 2, ...": renumbered,
            "submissions and run times rounded to whole seconds": int(((submit % 1 != 0) | (run % 1 != 0)).sum()),
            "time limits rounded up to whole seconds": int((limit % 1 != 0)[~np.isnan(limit)].sum()),
            "names with unsupported characters, written with _": changed,
            f"jobs without a user, submitted by {DEFAULT_USER}": names["user"].count(""),
        }
    )
    warn_of_unsupported(list(unsupported_columns(workload, HELD)), "the events file", "left out")
    names["user"] = [name or DEFAULT_USER for name in names["user"]]
    columns: list[Any] = [numbers, np.rint(submit).astype(int).tolist(), np.rint(run).astype(int).tolist()]
    columns += [np.ceil(limit).tolist(), workload.ints("nodes").tolist(), workload.ints("cores_per_node").tolist()]
    columns += [workload.floats("memory_mib").tolist()]
    for number, instant, seconds, most, nodes, cores, memory, *of in zip(*columns, *names.values(), strict=True):
        words = [
            f"-dt {instant} -e submit_batch_job | -J jobid_{number} -sim-walltime {seconds}",
            *([] if most != most else [f"-t {_duration(int(most))}"]),
            f"-n {nodes * cores} --ntasks-per-node={cores}",
            *([] if memory != memory else [f"--mem={int(np.ceil(memory))}"]),
            *(option + name for option, name in zip(NAMES.values(), of, strict=True) if name),
            "pseudo.job\n",
        ]
        file.write(" ".join(words).encode())


def _numbers(workload: Workload) -> tuple[list[int], int]:
    """Return job ids as numbers, and the count of renumbered jobs: all if an id is not a valid Slurm job id."""
    ids = workload.column("job_id").tolist()
    if all(re.fullmatch("[1-9][0-9]{0,9}", job_id) and int(job_id) <= MAX_ID for job_id in ids):
        return [int(job_id) for job_id in ids], 0
    return list(range(1, len(ids) + 1)), len(ids)


def _duration(seconds: int) -> str:
    """Return a time limit in Slurm's format, days-hours:minutes:seconds."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02}:{minutes:02}:{seconds:02}"


FORMAT = Format(
    "ub-slurm",
    "jobs of UB's Slurm simulator",
    recognizes,
    suffixes=(".events",),
    read_log=read_log,
    write=write,
)
