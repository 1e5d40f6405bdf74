"""Conversions of data sets whose form is their own, to tables that `tracebed import` reads."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from functools import partial

from tracebed.errors import InputError

LINE = re.compile(r"(?P<time>\d+);(?P<job>[^;]+); (?P<event>started; \[(?P<hosts>[^\]]*)\]|terminated)")
NANOSECONDS = 1e9


def amte(files: Mapping[str, bytes]) -> bytes:
    """Return the table of the jobs of the AMTE scheduler's log: a line per start and end, in ns after the submission.

    The jobs were submitted together, so that all have the submit time 0. Hosts are numbered in the order of their
    names.

    Raises:
        InputError: a job starts or ends twice, or ends before it starts.
    """
    name, content = next(iter(files.items()))
    starts: dict[str, tuple[float, list[str]]] = {}
    ends: dict[str, float] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        found = LINE.fullmatch(line.strip())
        if found is None:  # the last line says that all jobs have ended
            continue
        job, time = found["job"].rpartition("/")[2], int(found["time"]) / NANOSECONDS
        began = found["hosts"] is not None
        if (job in starts) == began or job in ends:
            raise InputError(f"job {job} starts or ends twice, or ends before its start", where=name)
        if began:
            starts[job] = time, [host.strip() for host in found["hosts"].split(",")]
        else:
            ends[job] = time
    numbers = {host: number for number, host in enumerate(sorted({host for _, own in starts.values() for host in own}))}
    rows = ["job_id,submit,start,end,nodes,held_nodes"]
    for job, (start, hosts) in starts.items():
        held = " ".join(str(numbers[host]) for host in sorted(hosts))
        rows.append(f"{job},0,{start:.9f},{ends[job]:.9f},{len(hosts)},{held}" if job in ends else f"{job},0,,,,")
    return _table(rows)


def slurm_model_plan(files: Mapping[str, bytes]) -> bytes:
    """Return the workload of slurm_model: the jobs as they were submitted, a core as a node of the machine.

    A job without a planned run time (-1) runs until its limit. Features, memory, GPUs, accounts and the boundaries of
    the nodes are left out.
    """
    rows = ["job_id,submit_time,run_time,time_limit,nodes,user"]
    for row in _rows(files["jobs500.csv"], ";"):
        limit = 60 * int(row["wall_limit"])
        run = limit if int(row["wall_time"]) < 0 else int(row["wall_time"])
        rows.append(f"{row['job_id']},{row['dt']},{run},{limit},{row['n_tasks']},{row['user']}")
    return _table(rows)


def slurm_model_run(files: Mapping[str, bytes], run: str) -> bytes:
    """Return one of the real runs of slurm_model. A job ends with its epilog, which releases its cores."""
    rows = [
        f"{row['job_id']},{row['submit_job']},{row['launch_job']},{row['job_epilog_complete']}"
        for row in _rows(files["two-runs.csv"], ",")
        if row["run_id"] == run
    ]
    return _table(["job_id,submit,start,end", *rows])


def _rows(content: bytes, delimiter: str) -> csv.DictReader[str]:
    return csv.DictReader(io.StringIO(content.decode()), delimiter=delimiter)


def _table(rows: list[str]) -> bytes:
    return ("\n".join(rows) + "\n").encode()


CONVERSIONS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "amte": amte,
    "slurm-model-plan": slurm_model_plan,
    "slurm-model-run-1": partial(slurm_model_run, run="1"),
    "slurm-model-run-2": partial(slurm_model_run, run="2"),
}
"""Name -> function from the contents of the files of a data set to the table."""
