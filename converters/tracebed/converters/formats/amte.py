"""Logs of the FIFO-Malleable-Job-Scheduler of Finnerty et al. (AMTE 2023), and the job scripts beside them.

Format: what the scheduler prints. A line is `TIME;SCRIPT FOLDER; EVENT`, with the time in ns since the first pass that
found jobs. The events of a job are `started; [HOSTS]`, `expand; [HOSTS]` when the scheduler takes more hosts,
`released; [HOSTS]` when a shrink has returned hosts, and `terminated`. The last line is `TIME; all jobs completed`.

The jobs of a batch are in folders `job_...`, in the order of their names. A folder has the script `fixed.sh` of the
rigid batch, and `malleable.sh` if the job is malleable in the other one. The first five lines of a script state class
and bounds: `#JOB_CLASS malleable`, `#MIN_NODES 2`, `#MAX_NODES 8`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import Kind, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.input_files import read_text

LINE = re.compile(
    r"(?P<time>\d{1,18});(?P<job>[^;]+); (?P<event>started|expand|released|terminated)(; \[(?P<hosts>[^\];]*)\])?"
)
LAST = re.compile(r"\d{1,18}; all jobs completed")
NANOSECONDS = 1e9
HEADER = 5
"""Number of lines at the beginning of a script in which the scheduler reads class and bounds."""
SCRIPTS = ("malleable.sh", "fixed.sh")
HINT = "give the log of the scheduler, complete and as the scheduler wrote it"


class Change(NamedTuple):
    """A change of the hosts of a running job."""

    time: float
    """Instant at which the scheduler took the hosts, or at which they were idle, s."""
    hosts: tuple[str, ...]
    expands: bool


@dataclass
class LoggedJob:
    """A job of a log. Its number is its place in the order of the starts, which is that of the submissions."""

    name: str
    line: int
    start: float
    """Start, s."""
    hosts: tuple[str, ...]
    """The hosts on which the job starts."""
    changes: list[Change] = field(default_factory=list)
    end: float = float("nan")
    """End, s; NaN: the log ends before the job."""


class Script(NamedTuple):
    """Class and bounds of a job in its script."""

    malleable: bool
    least: int
    most: int


def recognizes(file: Input) -> bool:
    """Return whether the first line is the start of a job."""
    match = LINE.fullmatch(file.head.decode("utf-8", "replace").split("\n", 1)[0].strip())
    return match is not None and match["event"] == "started"


def logged_jobs(file: Input) -> list[LoggedJob]:
    """Return the jobs of a log in the order of their starts. Other lines are left out with a warning."""
    jobs: dict[str, LoggedJob] = {}
    strange = 0
    for number, text in enumerate(file.data.decode("utf-8", "replace").splitlines(), 1):
        match = LINE.fullmatch(text.strip())
        if match is None:
            strange += bool(text.strip()) and LAST.fullmatch(text.strip()) is None
            continue
        name, event, time = match["job"].strip(), match["event"], int(match["time"]) / NANOSECONDS
        hosts = tuple(host.strip() for host in (match["hosts"] or "").split(",") if host.strip())
        job, where = jobs.get(name), f"{file.where}:{number}"
        if (job is None) != (event == "started") or (job is not None and job.end == job.end):
            raise InputError(f"job {name} starts or ends twice, or changes before its start", where=where, hint=HINT)
        if job is None:
            if not hosts:
                raise InputError(f"job {name} starts without hosts", where=where, hint=HINT)
            jobs[name] = LoggedJob(name, number, time, hosts)
        elif event == "terminated":
            job.end = time
        elif hosts:
            job.changes.append(Change(time, hosts, event == "expand"))
    tolerate({"lines that are no events of the scheduler, left out": strange}, where=file.where)
    return list(jobs.values())


def hosts_of(jobs: Sequence[LoggedJob]) -> set[str]:
    """Return the hosts on which jobs started or to which they expanded."""
    parts = [part for job in jobs for part in (job.hosts, *(change.hosts for change in job.changes if change.expands))]
    return {host for part in parts for host in part}


def scripts_beside(log: Path, jobs: int) -> list[Script] | None:
    """Return the scripts of the jobs of a log in the order of the jobs; None: there are none for `jobs` jobs.

    The malleable script of a job is preferred. A script may be a link, or a file with the path of another one, as a
    file system without links keeps it.
    """
    folders = sorted(path for path in log.parent.glob("job_*") if path.is_dir())
    scripts = [next((path / name for name in SCRIPTS if (path / name).is_file()), None) for path in folders]
    files = [path for path in scripts if path is not None]
    if len(files) != jobs:
        tolerate({"folders with job scripts, left out: the log has another number of jobs": len(files)}, where=str(log))
        return None
    return [_script(path) for path in files]


def _script(path: Path) -> Script:
    text = read_text(path, "job script")
    target = path.parent / text.strip()
    if "\n" not in text.strip() and target.suffix == ".sh" and target.is_file():
        text = read_text(target, "job script")
    header = dict(re.findall(r"^#(\w+) +(\S+)", "\n".join(text.splitlines()[:HEADER]), re.MULTILINE))
    try:
        least, most = int(header["MIN_NODES"]), int(header["MAX_NODES"])
        return Script(header["JOB_CLASS"] == Kind.MALLEABLE.value and least < most, least, most)
    except (KeyError, ValueError):
        hint = f"its first {HEADER} lines state JOB_CLASS, MIN_NODES and MAX_NODES"
        raise InputError("is not a job script of the scheduler", where=str(path), hint=hint) from None


def read(file: Input) -> Workload:
    """Read the log of a run of the batch, and the scripts of its jobs in the folders beside the log.

    All jobs are submitted at time 0. The size of a job is that at its start, and its run time that of the log. A job
    with a malleable script is malleable within the bounds of the script.
    """
    jobs = logged_jobs(file)
    sizes = [len(job.hosts) for job in jobs]
    beside = scripts_beside(file.path, len(jobs)) if file.raw is None else None  # a pipe has no folder
    scripts = beside or [Script(False, size, size) for size in sizes]
    for number, (size, script) in enumerate(zip(sizes, scripts, strict=True)):
        if not script.least <= size <= script.most:
            what = f"job {number} has {size} nodes, and its script {script.least} to {script.most}"
            raise InputError(what, where=f"{file.where}:{jobs[number].line}", hint="the scripts are of another batch")
    bounds = [
        (script.least, script.most) if script.malleable else (size, size)
        for size, script in zip(sizes, scripts, strict=True)
    ]
    table = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(len(jobs))],
            "submit_time": 0.0,
            "run_time": [float("nan") if job.changes else job.end - job.start for job in jobs],
            "nodes": sizes,
            "kind": [str(Kind.MALLEABLE if least < most else Kind.RIGID) for least, most in bounds],
            "nodes_min": [least for least, _ in bounds],
            "nodes_max": [most for _, most in bounds],
            "nodes_pref": sizes,
            "logged_start": [job.start for job in jobs],
            "logged_end": [job.end for job in jobs],
        }
    )
    provenance = Provenance(
        System(len(hosts_of(jobs))), sources=(file.source,), steps=(Step("read", {"format": "amte"}),)
    )
    tolerate({"jobs that were resized, run time unknown": sum(bool(job.changes) for job in jobs)}, where=file.where)
    return Workload(table, provenance, where=file.where)


FORMAT = Format("amte", "log of the FIFO-Malleable-Job-Scheduler", recognizes, Marks.LINES, read=read)
"""Format of the logs of the scheduler of Finnerty et al."""
