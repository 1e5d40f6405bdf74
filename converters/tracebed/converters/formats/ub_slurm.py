"""Jobs of the Slurm simulator of the University at Buffalo: tables (read) and events (read and written).

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np

from tracebed.converters.formats.format import Format
from tracebed.converters.formats.tools.amounts import amount, first_positive
from tracebed.converters.formats.tools.columns import column_spec, read_columns
from tracebed.converters.formats.tools.fields import first_line, read_fields
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.formats.tools.unsupported_columns import NOT_RIGID, simulated_jobs, warn_of_losses
from tracebed.converters.log import Log, make_log
from tracebed.converters.workload import BoolArray, FloatArray, Kind, Workload
from tracebed.ground.registry import one_of

HELD = {
    *("job_id", "submit_time", "run_time", "time_limit", "nodes", "cores_per_node", "memory_mib"),
    *("user", "group", "partition", "queue", "features", "gres"),
}
NAMES = {"user": "--uid=", "group": "-A ", "partition": "-p ", "queue": "-q "}
DEMANDS = {"features": "--constraint=", "gres": "--gres="}
"""Columns of what a job demands of its nodes -> option."""
STRANGE = {**dict.fromkeys(NAMES, re.compile(r"[^\w.@+-]")), **dict.fromkeys(DEMANDS, re.compile(r"[^\w.@+:,&*-]"))}
"""Column -> characters that the simulator may read as the end of a word or line."""
DEFAULT_USER = "user1"
EVENT = re.compile(r"-dt\s+(\S+)\s+-e\s+submit_batch_job\s*\|\s*(.*)")
COMMENTS = "#"
EVENT_FIELDS = (
    *("submit_time", "job_id", "run", "limit", "tasks", "nodes", "per node", "memory"),
    *("user", "group", "partition", "queue", "features", "gres", "others"),
)
OPTIONS = {
    **dict.fromkeys(("-J", "--job-name", "-jid"), "job_id"),
    "-sim-walltime": "run",
    **dict.fromkeys(("-t", "--time"), "limit"),
    **dict.fromkeys(("-n", "--ntasks"), "tasks"),
    **dict.fromkeys(("-N", "--nodes"), "nodes"),
    "--ntasks-per-node": "per node",
    "--mem": "memory",
    "--uid": "user",
    **dict.fromkeys(("-A", "--account"), "group"),
    **dict.fromkeys(("-p", "--partition"), "partition"),
    **dict.fromkeys(("-q", "--qos"), "queue"),
    **dict.fromkeys(("-C", "--constraint"), "features"),
    "--gres": "gres",
}
"""Option of an event -> field."""
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
    "features": column_spec("label", "constraint"),
    "gres": column_spec("label", "gres"),
}
MAX_ID = 2**31 - 1


def recognizes(file: Input) -> bool:
    """Return whether a file has the columns of a table of jobs, or begins with an event."""
    if {"dt", "wall_limit", "n_tasks", "ntasks_per_node"} <= {name.lower() for name in file.columns}:
        return True
    return EVENT.match(first_line(file, COMMENTS.encode())) is not None


def read_log(
    files: Sequence[Input],
    *,
    keep_extra: bool = False,
    keep_names: bool = False,
    by: Literal["node", "core"] = "node",
) -> Log:
    """Read one or several tables of jobs, or files of events. `by` core: a node of the workload is one core."""
    one_of("by", by, ("node", "core"))
    jobs = _events(files) if EVENT.match(first_line(files[0], COMMENTS.encode())) else _table(files, keep_extra)
    to_limit = np.isnan(jobs.run)
    columns = {
        "job_id": jobs.ids,
        "submit_time": jobs.submit,
        "run_time": np.where(to_limit, jobs.limit, jobs.run),
        "time_limit": jobs.limit,
        "nodes": jobs.tasks if by == "core" else np.ceil(jobs.tasks / jobs.per_node),
        "cores_per_node": np.ones(len(to_limit)) if by == "core" else np.minimum(jobs.tasks, jobs.per_node),
        "fewest_nodes": np.zeros(len(to_limit), dtype=np.int64) if by == "core" else jobs.fewest.astype(np.int64),
        "memory_mib": np.where(jobs.memory > 0, jobs.memory, np.nan),
    }
    return make_log(
        files,
        "ub-slurm",
        columns | jobs.others,
        parameters={"keep_extra": keep_extra, "keep_names": keep_names, "by": by},
        defects={
            "jobs that run until their limit (run time -1), limit used as run time": to_limit,
            **jobs.defects,
        },
        place=jobs.place,
        names=("user", "group"),
        unread=jobs.unread,
        since_1970=False,
    )


@dataclass(frozen=True)
class _Jobs:
    """The jobs of a file, in either form. Arrays have shape (jobs,); NaN is unknown."""

    ids: Any
    submit: FloatArray
    """S since the start."""
    run: FloatArray
    """Run time, s; NaN: until the limit."""
    limit: FloatArray
    """Time limit, s."""
    tasks: FloatArray
    """Number of tasks: cores."""
    per_node: FloatArray
    """Tasks on a node."""
    memory: FloatArray
    """Memory of a node, MiB."""
    fewest: FloatArray
    """Smallest number of nodes that was asked for."""
    others: dict[str, Any]
    """Further columns: names, and the columns that are kept."""
    place: Callable[[int], str]
    unread: Sequence[str] = ()
    defects: Mapping[str, BoolArray] = field(default_factory=dict)


def _table(files: Sequence[Input], keep_extra: bool) -> _Jobs:
    """Return the jobs of tables."""
    c = read_columns(files, WANTED, extras=keep_extra)
    run, tasks = c.numbers("run"), c.numbers("tasks")
    with np.errstate(over="ignore"):  # an infinite limit is too long, as others are
        limit = 60.0 * c.numbers("limit")
    return _Jobs(
        ids=c["job_id"].array,
        submit=c.numbers("submit_time"),
        run=np.where(run >= 0, run, np.nan),
        limit=limit,
        tasks=tasks,
        per_node=first_positive(c.numbers("per node"), tasks),
        memory=c.numbers("memory"),
        fewest=np.ones(len(c)),
        others={name: c.labels(name) for name in (*NAMES, *DEMANDS)} | dict(c.extras),
        place=c.place,
        unread=c.unread,
    )


def _events(files: Sequence[Input]) -> _Jobs:
    """Return the jobs of files of events."""
    f = read_fields(files, EVENT_FIELDS, _fields_of, COMMENTS, len(EVENT_FIELDS))
    nodes, tasks = f.known("nodes"), f.known("tasks")
    tasks = np.where(np.isnan(tasks), np.where(np.isnan(nodes), 1.0, nodes), tasks)
    return _Jobs(
        ids=f.texts("job_id").str.removeprefix("jobid_"),
        submit=f.numbers("submit_time"),
        run=f.known("run"),
        limit=f.known("limit"),
        tasks=tasks,
        per_node=first_positive(f.known("per node"), np.ceil(tasks / nodes), tasks),
        memory=f.known("memory"),
        fewest=np.where(nodes > 0, nodes, 1.0),
        others={name: f.labels(name) for name in (*NAMES, *DEMANDS)},
        place=f.place,
        defects={"events with other options of sbatch, which are left out": (f.texts("others") != "").to_numpy()},
    )


def _fields_of(line: str) -> list[str]:
    """Return the fields of an event, `EVENT_FIELDS`; one field if the line is not a submission."""
    event = EVENT.match(line)
    if event is None:
        return [line]
    values = {"submit_time": event[1]}
    words = iter(event[2].split())
    for word in words:
        if not word.startswith("-"):
            continue  # the script
        option, equals, value = word.partition("=")
        name = OPTIONS.get(option, "others")
        if not equals and (name != "others" or not option.startswith("--")):
            value = next(words, "")
        values[name] = {"limit": _seconds, "memory": _mib}[name](value) if name in ("limit", "memory") else value or "-"
    return [values.get(name, "") for name in EVENT_FIELDS]


def _seconds(text: str) -> str:
    """Return a time limit of sbatch in s: minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`; else the text."""
    if text.upper() in ("INFINITE", "UNLIMITED"):
        return ""
    days, dash, rest = text.rpartition("-")
    parts = [*(days or "0" if dash else "0",), *rest.split(":")]
    if not all(part.isdecimal() and part.isascii() for part in parts) or len(parts) > 4:
        return text or "?"
    count = len(parts) - 1
    numbers = [float(part) for part in parts]
    scales = {1: (3600,), 2: (3600, 60), 3: (3600, 60, 1)} if dash else {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}
    return repr(numbers[0] * 86400 + sum(a * b for a, b in zip(numbers[1:], scales[count], strict=True)))


def _mib(text: str) -> str:
    """Return an amount of memory of sbatch in MiB; a number without a unit is in MiB. Else return the text."""
    size = amount(text if text[-1:].isalpha() else f"{text}M")
    return repr(size / 2**20) if size is not None else text or "?"


def write(workload: Workload, file: BinaryIO) -> None:
    """Write the events of the jobs with run time and nodes; the first submission becomes time 0."""
    workload, counts = simulated_jobs(workload, "the Slurm simulator")
    options = NAMES | DEMANDS
    names = {name: [STRANGE[name].sub("_", text) for text in workload.column(name)] for name in options}
    changed = sum(bool(STRANGE[name].search(text)) for name in options for text in workload.column(name))
    numbers, renumbered = _numbers(workload)
    submit, run, limit = (workload.floats(name) for name in ("submit_time", "run_time", "time_limit"))
    losses = {
        **counts,
        NOT_RIGID: workload.column("kind") != Kind.RIGID,
        "job ids that are not numbers, written as 1, 2, ...": renumbered,
        "submissions and run times rounded to whole seconds": (submit % 1 != 0) | (run % 1 != 0),
        "time limits rounded up to whole seconds": (limit % 1 != 0) & ~np.isnan(limit),
        "names with unsupported characters, written with _": changed,
        f"jobs without a user, submitted by {DEFAULT_USER}": names["user"].count(""),
    }
    warn_of_losses(workload, losses, "the events file", HELD, "left out")
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
            *(option + name for option, name in zip(options.values(), of, strict=True) if name),
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
