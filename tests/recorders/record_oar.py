"""Record what a real OAR decides for a workload: its plans, from its database, and its server loop, from its log.

    python -m tests.recorders.record_oar FILE.csv -o FILE.json.gz [--nodes N] [--set KEY=VALUE]...

Columns of the workload: job_id, submit_time, run_time, nodes, time_limit. Needs OAR with PostgreSQL, sshd, and root.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

import tracebed.api as tb
from tests.servers.oard import Oar, reason_to_skip
from tracebed.converters.workload import Provenance, System, Workload

FOLDER = Path(__file__).parents[1] / "oar_recordings"
LOGGED = {"LOG_LEVEL": "3", "SCHEDULER_LOG_DECISIONS": "yes"}
QUERIES = {
    "resources": "select resource_id from resources order by network_address, resource_id",
    "jobs": "select j.job_id, submission_time, start_time, stop_time, m.moldable_id, moldable_walltime"
    " from jobs j join moldable_job_descriptions m on m.moldable_job_id = j.job_id order by j.job_id",
    "assigned": "select moldable_job_id, resource_id from assigned_resources",
    "planned": "select p.sched_date, p.moldable_job_id, start_time, resource_id from gantt_jobs_predictions_log p join"
    " gantt_jobs_resources_log r on r.sched_date = p.sched_date and r.moldable_job_id = p.moldable_job_id",
}
"""File -> query of the database of OAR."""
IDLE_S = 25.0
"""Time after which the server has handled the commands that add the nodes, and waits, s."""


def tables(folder: Path) -> dict[str, list[list[int]]]:
    """Return the rows of each query."""
    found = {}
    for name in QUERIES:
        with (folder / f"{name}.csv").open() as file:
            found[name] = [[int(value) for value in row] for row in csv.reader(file)]
    return found


def commands(log: Path) -> Iterator[tuple[float, float, str]]:
    """Yield (begin, end, command) of the commands that the server handles, of its passes (`pass`) and of ends of jobs.

    Times are Unix times, s. The end of job 7 is `end 7`.
    """
    began = 0.0
    for line in log.read_text(errors="replace").splitlines():
        if not (found := re.match(r"\[\w+\] \[([\d: .-]+)\] (.*)", line)):
            continue
        at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
        if command := re.match(r"\[Almighty\] Qtype = \[(Qsub|ChState|Term|BipBip)\]", found[2]):
            yield at, at, command[1]
        elif found[2].startswith("[Almighty] Current state [Scheduler]"):
            began = at
        elif re.match(r"\[Almighty\] \S*oar_meta_sched terminated", found[2]):
            yield began, at, "pass"
        elif job := re.match(r"\[bipbip (\d+)\] Job \d+ is ended", found[2]):
            yield at, at, f"end {job[1]}"


def recorded(folder: Path, settings: Mapping[str, str], submitted: Sequence[float]) -> dict[str, Any]:
    """Return the recording from the tables and the log in `folder`. Times are in seconds after the first submission.

    Args:
        folder: the folder with the log and the tables.
        settings: the keys of oar.conf.
        submitted: the times at which the jobs were submitted, s.
    """
    data = tables(folder)
    number = {resource: node for node, [resource] in enumerate(data["resources"])}
    zero = min(row[1] for row in data["jobs"])
    job_of = {row[4]: row[0] for row in data["jobs"]}
    held: dict[int, list[int]] = {job: [] for job in job_of.values()}
    for request, resource in data["assigned"]:
        held[job_of[request]].append(number[resource])
    passes: dict[int, dict[int, Any]] = {}
    for at, request, start, resource in data["planned"]:
        plan = passes.setdefault(at - zero, {})
        plan.setdefault(job_of[request], [job_of[request], start - zero, []])[2].append(number[resource])
    server = [
        (round(begin - zero, 3), round(end - zero, 3), command)
        for begin, end, command in commands(folder / "oar.log")
        if begin >= zero - IDLE_S
    ]
    first = next(at for at, _, command in server if command == "Qsub") - submitted[0]
    ends = {command: at for at, _, command in server if command.startswith("end ")}
    jobs = [
        [job, round(first + submit, 3), limit, start - zero, ends.get(f"end {job}", stop - zero), sorted(held[job])]
        for (job, _, start, stop, _, limit), submit in zip(data["jobs"], submitted, strict=True)
    ]
    plans = [
        [at, [[job, start, sorted(nodes)] for job, start, nodes in sorted(plan.values())]]
        for at, plan in sorted(passes.items())
    ]
    kept = {"settings": dict(settings), "nodes": len(number), "zero": zero}
    handled = [event for event in server if not event[2].startswith("end ")]
    return {"oar": "2.5.9", **kept, "jobs": jobs, "passes": plans, "server": handled}


def record(source: Path, nodes: int, settings: dict[str, str]) -> dict[str, Any]:
    """Run the workload of a CSV file on a new OAR, and return the recording."""
    cluster = Oar(nodes, {**LOGGED, **settings})
    jobs = Workload(pd.read_csv(source).assign(cores_per_node=1), Provenance(system=System(nodes, 1)))
    with tempfile.TemporaryDirectory() as name:
        try:
            cluster.up()
            time.sleep(IDLE_S)
            os.environ["PATH"] = f"{cluster.commands}:{os.environ['PATH']}"
            run = tb.replay_on(jobs, "oar", output=f"{name}/run")
            for table, query in QUERIES.items():
                cluster("sh", "-c", f'psql -h 127.0.0.1 -U postgres oar -c "\\copy ({query}) to {table}.csv csv"')
                shutil.copy(cluster.folder / f"{table}.csv", name)
            shutil.copy(cluster.folder / "log/oar.log", name)
        finally:
            cluster.down()
        return recorded(Path(name), cluster.settings, run.jobs["submit"].tolist())


def write(path: Path, recording: dict[str, Any]) -> None:
    """Write a recording, compressed, with the same bytes for the same recording."""
    path.write_bytes(gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), mtime=0))


def main() -> None:
    """Record a workload."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", type=Path, metavar="FILE.csv")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json.gz")
    parser.add_argument("--nodes", type=int, default=9, help="names in text order up to 9")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="key of oar.conf")
    given = parser.parse_args()
    if reason := reason_to_skip():
        raise SystemExit(reason)
    write(given.output, record(given.workload, given.nodes, dict(each.split("=", 1) for each in given.set)))


if __name__ == "__main__":
    main()
