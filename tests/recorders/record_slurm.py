"""Record what a real Slurm decides for a small workload: submissions, passes, starts and ends, from slurmctld's log.

    python -m tests.recorders.record_slurm NAME... [-o FOLDER]  # workloads of `WORKLOADS`; writes FOLDER/NAME.json,
                                                                # by default in tests/slurm_recordings
    python -m tests.recorders.record_slurm --workload FILE.csv -o FILE.csv [--set NAME=VALUE]...

The second form records any workload (columns job_id, submit_time, run_time, nodes, time_limit) with the observed starts
and ends. Needs slurmctld, slurmd, slurm-client and munge, and root.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.patience import GUARD_S
from tests.servers.slurmd import SETTINGS, Slurm, reason_to_skip

FOLDER = Path(__file__).parents[1] / "slurm_recordings"
LOGGED = {"SlurmctldDebug": "debug3", "DebugFlags": "Backfill,BackfillMap", "LogTimeFormat": "iso8601_ms"}
EACH_SECOND = SETTINGS["SchedulerParameters"]
TRUE_S = 0.001
"""Resolution of the log, s."""


class Asked(NamedTuple):
    """A job of a workload."""

    submit: float
    run: float
    nodes: int
    minutes: int
    """Time limit."""


class Designed(NamedTuple):
    """A workload that shows a rule."""

    parameters: str
    """`SchedulerParameters`."""
    jobs: tuple[Asked, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """Other keys of slurm.conf."""


def _jobs(*rows: tuple[float, float, int, int]) -> tuple[Asked, ...]:
    return tuple(Asked(*row) for row in rows)


WORKLOADS = {
    # Idle after 8 s: node 1, node 4, nodes 6 to 8. Then 1 node, 2 nodes, and 2 nodes that are not neighbors.
    "nodes": Designed(
        EACH_SECOND,
        _jobs(
            *((0.0, 4, 1, 1), (0.1, 25, 2, 2), (0.2, 4, 1, 1), (0.3, 25, 1, 2)),
            *((8.0, 12, 1, 1), (10.0, 12, 2, 1), (12.0, 12, 2, 1)),
        ),
    ),
    # Only the main loop: jobs 3 and 4 would fit beside job 1, but wait behind job 2.
    "main-loop": Designed(
        f"{EACH_SECOND},bf_interval=-1".replace("bf_interval=1,", ""),
        _jobs((0.0, 8, 6, 1), (1.5, 6, 4, 1), (2.0, 5, 1, 1), (3.6, 5, 2, 1)),
    ),
    # Job 2 waits for all nodes until the limit of job 1, 3 minutes. Limits of 1 and 2 minutes end before, 3 not.
    "backfill": Designed(
        EACH_SECOND,
        _jobs((0.0, 22, 5, 3), (2.0, 4, 8, 1), (4.0, 6, 1, 3), (5.0, 6, 1, 2), (6.0, 9, 2, 1), (7.0, 5, 1, 1)),
    ),
    # Submitted together: job 3 would end exactly when the reservation of job 2 begins.
    "touching": Designed(EACH_SECOND, _jobs((0.0, 6, 2, 1), (0.0, 3, 8, 1), (0.0, 3, 1, 1))),
    # Jobs 4 and 5 are longer than the reservation of job 3, which needs 4 of 8 nodes: one has room beside it, one not.
    "beside": Designed(
        EACH_SECOND,
        _jobs((0.0, 20, 4, 2), (0.1, 24, 2, 5), (3.0, 5, 4, 1), (5.0, 18, 1, 20), (6.0, 18, 1, 20), (7.0, 3, 1, 20)),
    ),
    # For a time, the search for a start of job 8 ends without a result, and job 8 has no reservation.
    "search": Designed(
        EACH_SECOND,
        _jobs(
            *((0.0, 30, 4, 3), (0.3, 18, 1, 1), (2.3, 18, 3, 2), (2.6, 14, 1, 5)),
            *((4.6, 18, 2, 1), (4.9, 10, 3, 1), (6.9, 18, 1, 3), (12.9, 10, 8, 1)),
        ),
    ),
    # A job beyond its limit is expected to end in the next second, again and again.
    "overdue": Designed(
        EACH_SECOND,
        _jobs((0.0, 78, 6, 1), (2.0, 4, 8, 1), (62.0, 4, 1, 1), (64.0, 4, 2, 2)),
        (("OverTimeLimit", "5"),),
    ),
    # Reservations begin and end at whole minutes.
    "resolution": Designed(
        EACH_SECOND.replace("bf_resolution=1", "bf_resolution=60"),
        _jobs((0.0, 25, 4, 3), (1.0, 30, 2, 2), (3.0, 5, 5, 1), (5.0, 5, 1, 1), (6.0, 5, 2, 2), (7.0, 5, 8, 1)),
    ),
    # From Slurm 24.11 on, the search of some jobs goes on after a slot that ended it before.
    "beyond": Designed(
        EACH_SECOND.replace("bf_resolution=1", "bf_resolution=10"),
        _jobs(
            *((0.0, 35, 3, 1), (0.3, 12, 8, 8), (1.5, 20, 1, 2), (4.0, 12, 5, 5), (9.0, 6, 2, 5), (14.0, 20, 1, 3)),
            *((15.2, 6, 4, 3), (16.4, 35, 1, 1), (17.6, 6, 1, 5), (18.2, 20, 8, 1), (23.2, 50, 1, 8), (24.4, 12, 5, 2)),
            *((25.6, 50, 1, 1), (30.6, 50, 2, 1), (35.6, 20, 3, 8), (36.2, 35, 8, 1)),
        ),
    ),
    # The defaults: a pass of the main loop at most every 3 s, and of backfill every 30 s.
    "defaults": Designed(
        "default_queue_depth=100",
        _jobs(
            *((0.0, 20, 5, 2), (1.2, 12, 2, 1), (4.4, 4, 1, 1), (9.0, 25, 4, 1), (15.0, 9, 1, 1), (31.0, 5, 1, 1)),
            *((33.0, 31, 4, 2), (52.0, 5, 8, 1), (56.0, 5, 1, 1)),
        ),
    ),
    "bf_max_job_test": Designed(
        f"{EACH_SECOND},bf_max_job_test=2".replace("bf_max_job_test=1000,", ""),
        _jobs((0.0, 12, 6, 2), (1.5, 3, 8, 1), (3.0, 3, 8, 1), (4.5, 3, 1, 1)),
    ),
    "bf_max_job_start": Designed(
        f"{EACH_SECOND},bf_max_job_start=1",
        _jobs((0.0, 12, 4, 3), (1.5, 3, 8, 1), (3.0, 5, 1, 1), (3.0, 5, 1, 1), (3.0, 5, 1, 1)),
    ),
    "bf_job_part_count_reserve": Designed(
        f"{EACH_SECOND},bf_job_part_count_reserve=1",
        _jobs((0.0, 15, 5, 2), (1.5, 3, 6, 1), (3.0, 3, 8, 1), (4.5, 20, 1, 30)),
    ),
    "bf_min_age_reserve": Designed(
        f"{EACH_SECOND},bf_min_age_reserve=10",
        _jobs((0.0, 20, 6, 2), (2.0, 3, 8, 1), (4.0, 5, 1, 10), (14.0, 4, 1, 10)),
    ),
}


def entries(log: Path) -> Iterator[tuple[float, str, Any]]:
    """Yield (Unix time, kind, data) of the entries of slurmctld's log that tell a decision.

    Slurm 26.05 does not log which job a backfill pass starts, but it counts the start after it has prepared the launch.
    """
    launched: dict[str, str] = {}
    patterns = {
        "submit": r"_slurm_rpc_submit_batch_job: JobId=(\d+)",
        "backfilled": r"_start_job: Started JobId=(\d+) in \S+ on (\S+)",
        "start": r"sched: Allocate JobId=(\d+) NodeList=(\S+)",
        "end": r"_job_complete: JobId=(\d+) done",
        "main": r"sched: Running job scheduler for (\w+)",
        "pass": r"_attempt_backfill: beginning",
        "passed": r"completed testing|no jobs to backfill",
        "job": r"slurm_cred_create: creating credential for JobId=(\d+)",
        "nodes": r"laying out the \d+ tasks on \d+ hosts (\S+) ",
        "counted": r"_start_job: BACKFILL: Jobs backfilled since boot",
        "plan": r"JobId=(\d+) to start at (\S+), end at (\S+) on nodes (\S+) in",
    }
    for line in log.read_text(errors="replace").splitlines():
        if not (stamp := re.match(r"\[(\S+)\] ", line)):
            continue
        for kind, pattern in patterns.items():
            if found := re.search(pattern, line):
                if kind in ("job", "nodes"):
                    launched[kind] = found[1]
                elif kind != "counted":
                    yield _unix(stamp[1]), kind, found.groups()
                elif launched:
                    yield _unix(stamp[1]), "backfilled", (launched["job"], launched["nodes"])


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def node_numbers(text: str) -> list[int]:
    """Return the nodes of a Slurm node list such as n[1-2,5], from 0."""
    ranges = (part.split("-") for part in text.removeprefix("n").strip("[]").split(","))
    return [node - 1 for each in ranges for node in range(int(each[0]), int(each[-1]) + 1)]


def recorded(log: Path, zero: float) -> list[list[Any]]:
    """Return the events of a log, in seconds after `zero`. A pass that repeats the last one has no plan."""
    events: list[list[Any]] = []
    plan: list[list[Any]] = []
    last: list[list[Any]] | None = None
    for unix, kind, data in entries(log):
        at = round(unix - zero, 3)
        if at < 0:
            continue
        if kind == "pass":
            plan = []
            events.append([at, "backfill", plan])
        elif kind == "plan":
            plan.append([int(data[0]), *(round(_unix(each)) for each in data[1:3]), node_numbers(data[3])])
        elif kind == "backfilled":
            plan.append([int(data[0]), None, None, node_numbers(data[1])])
            last = None
        elif kind == "passed":
            if plan == last:
                del events[-1][2:]
            last = plan
        elif kind == "main":
            events.append([at, "main", data[0]])
        else:
            events.append([at, kind, int(data[0]), *([node_numbers(data[1])] if kind == "start" else [])])
            last = None
    return events


def run(cluster: Slurm, jobs: Sequence[Asked]) -> tuple[float, list[tuple[float, float, float]]]:
    """Submit the jobs at their times; return the Unix time 0 and (submit, start, end) of each job."""
    notes = cluster.folder / "notes"
    notes.mkdir()
    begin = time.time() + 1.0
    submitted = []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, begin + job.submit - time.time()))
        submitted.append(time.time())
        script = f"#!/bin/sh\ndate +%s.%N > {notes}/{number}\nsleep {job.run}\ndate +%s.%N >> {notes}/{number}\n"
        command = ("sbatch", "-N", str(job.nodes), "-t", str(job.minutes), "-o", "/dev/null", "-D", "/tmp")
        subprocess.run(
            command,
            input=script,
            env=cluster.environment,
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=GUARD_S,
        )
    files = [notes / str(number) for number in range(len(jobs))]

    def ended() -> bool:
        return all(file.exists() and len(file.read_text().split()) == 2 for file in files)

    cluster.until(ended, "jobs run", 7200.0)
    time.sleep(2.0)
    times = [tuple(float(each) for each in file.read_text().split()) for file in files]
    return submitted[0], [(at, *noted) for at, noted in zip(submitted, times, strict=True)]  # type: ignore[misc]


def record(name: str, folder: Path) -> dict[str, Any]:
    """Run a designed workload on a new Slurm in `folder`, and return the recording."""
    designed = WORKLOADS[name]
    cluster = Slurm(
        folder, 8, settings={**LOGGED, **dict(designed.settings), "SchedulerParameters": designed.parameters}
    )
    try:
        cluster.up()
        zero, _ = run(cluster, designed.jobs)
        version = cluster("sinfo", "--version").strip()
        started = started_of(cluster, len(designed.jobs))
    finally:
        cluster.down()
    events = recorded(folder / "slurmctld.log", zero)
    parameters = {"parameters": designed.parameters, "settings": dict(designed.settings)}
    facts = {"slurm": version, **parameters, "zero": round(zero, 3), "jobs": designed.jobs}
    return {**facts, "started": started, "events": events}


def started_of(cluster: Slurm, count: int) -> list[int]:
    """Return the Unix time at which each job started, as Slurm notes it.

    The log tells a start of the main loop a little later, in newer releases often in the next second.
    """
    printed = cluster("scontrol", "--oneliner", "show", "job", SLURM_TIME_FORMAT="%s")
    found = {int(job): int(at) for job, at in re.findall(r"^JobId=(\d+) .*? StartTime=(\d+) ", printed, re.MULTILINE)}
    return [found[job] for job in range(1, count + 1)]


def write(path: Path, recording: dict[str, Any]) -> None:
    """Write a recording, one event a line."""
    lines = {key: json.dumps(value) for key, value in recording.items()}
    lines["events"] = "[\n" + ",\n".join(json.dumps(event) for event in recording["events"]) + "\n]"
    path.write_text("{" + ",\n".join(f'"{key}": {value}' for key, value in lines.items()) + "}\n")


def record_file(source: Path, output: Path, settings: dict[str, str]) -> None:
    """Run the workload of a CSV file, and write the file with the observed starts and ends."""
    with source.open() as file:
        rows = list(csv.DictReader(file))
    asked = [
        Asked(
            float(row["submit_time"]), float(row["run_time"]), int(row["nodes"]), round(float(row["time_limit"]) / 60)
        )
        for row in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        cluster = Slurm(Path(folder) / "slurm", 8, settings={**LOGGED, **settings})
        try:
            cluster.up()
            zero, times = run(cluster, asked)
        finally:
            cluster.down()
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ("job_id", "submit_time", "run_time", "nodes", "time_limit", "logged_start", "logged_end")
        writer.writerow(columns)
        for row, (submit, start, end) in zip(rows, times, strict=True):
            observed = (f"{each - zero:.3f}" for each in (start, end))
            writer.writerow((row["job_id"], f"{submit - zero:.3f}", *(row[key] for key in columns[2:5]), *observed))


def main() -> None:
    """Record workloads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *WORKLOADS], metavar="NAME")
    parser.add_argument("--workload", type=Path, metavar="FILE.csv")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, metavar="FOLDER or FILE.csv")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="key of slurm.conf")
    given = parser.parse_args()
    if reason := reason_to_skip():
        raise SystemExit(reason)
    if given.workload:
        record_file(given.workload, given.output, dict(each.split("=", 1) for each in given.set))
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            write(given.output / f"{name}.json", record(name, Path(folder) / "slurm"))
            sys.stdout.write(f"{name}: recorded\n")


if __name__ == "__main__":
    main()
