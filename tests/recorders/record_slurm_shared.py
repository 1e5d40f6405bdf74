"""Records a real Slurm on nodes that jobs share: three partitions, three kinds of nodes, fairshare of four users.

    python -m tests.recorders.record_slurm_shared tests/slurm_recordings/shared/shared-1.json --seed 1 [--runs 3]

needs root, Slurm with accounting, and the users of `USERS`, which the script adds. Each run takes five minutes.
`--change OLD NEW` replaces a text in the configuration, such as bf_max_job_test=1000 by bf_max_job_test=3. The
file has the configuration, the jobs, when each started and ended in each run, and of the first run every decision of
every backfill pass.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.servers.slurmd import Slurm, make_users, settings_of

USERS = {"tracebed1": "first", "tracebed2": "first", "tracebed3": "second", "tracebed4": "second"}
"""User -> account."""
CONF = """SchedulerParameters=bf_interval=5,bf_resolution=10,bf_max_job_test=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityMaxAge=00:10:00
PriorityWeightJobSize=2000
PriorityWeightPartition=1000
PriorityWeightFairshare=5000
PriorityDecayHalfLife=00:10:00
PriorityCalcPeriod=1
KillWait=5
GresTypes=lic
"""
NODES = """NodeName=n[1-4] CPUs=4 RealMemory=4000 Feature=a
NodeName=n[5-7] CPUs=8 RealMemory=16000 Feature=b,big Weight=5
NodeName=n8 CPUs=4 RealMemory=4000 Gres=lic:2 Weight=9
PartitionName=main Nodes=n[1-7] Default=YES MaxTime=INFINITE DefMemPerCPU=1000
PartitionName=short Nodes=n[1-2] MaxTime=2 DefMemPerCPU=1000 PriorityTier=2
PartitionName=lic Nodes=n8 MaxTime=INFINITE DefMemPerCPU=1000 PriorityJobFactor=5
"""
OWN = {"DebugFlags": "Backfill", "SlurmctldDebug": "debug", "AccountingStorageEnforce": "associations"}
COUNT = 100


class SharedSlurm(Slurm):
    """A Slurm with the nodes and partitions of `NODES`."""

    def _configure(self) -> None:
        super()._configure()
        self._replace_nodes(NODES.splitlines())
        (self.folder / "gres.conf").write_text("NodeName=n8 Name=lic Count=2\n")

    def add_users(self, users: dict[str, str]) -> None:
        """Add users (name -> account) and their accounts, with equal shares."""
        for account in dict.fromkeys(users.values()):
            self("sacctmgr", "-i", "add", "account", account, "cluster=trial", "fairshare=1")
        for user, account in users.items():
            self("sacctmgr", "-i", "add", "user", user, f"account={account}", "cluster=trial", "fairshare=1")


def drawn(seed: int) -> list[dict[str, Any]]:
    """Draw the jobs: submission (s), run time (s), limit (minutes) and what each requests."""
    draw, jobs, now = random.Random(seed), [], 0.0
    for _ in range(COUNT):
        now += draw.expovariate(1 / 2.2)
        user = draw.choices((1, 2, 3, 4), (4, 2, 2, 1))[0]
        part = draw.choices(("main", "short", "lic"), (8, 1, 1))[0]
        cores = (
            draw.choices((1, 2, 3, 4, 8, 12, 16), (4, 3, 1, 4, 4, 2, 1))[0]
            if part == "main"
            else draw.choice((1, 2, 4))
        )
        run = round(min(120, draw.lognormvariate(2.8, 0.8)), 1)
        limit = 1 if run < 50 and draw.random() < 0.6 else draw.choice((2, 3, 4))
        if part == "short":
            limit, run = min(2, limit), min(run, 100)
        kind = draw.random()
        jobs.append(
            {
                "submit": round(now, 2),
                "user": f"tracebed{user}",
                "partition": part,
                "cores": cores,
                "per_node": 4 if cores in (4, 8, 12, 16) and kind < 0.5 else 0,
                "run": run,
                "limit": limit,
                "feature": "b" if part == "main" and kind > 0.85 else "",
                "lic": draw.choice((0, 1, 2)) if part == "lic" else 0,
                "memory": draw.choice((3000, 3900)) if part == "main" and 0.6 < kind < 0.7 and cores <= 4 else 0,
            }
        )
    return jobs


def sizes(job: dict[str, Any], account: str) -> list[str]:
    """Return the options of sbatch for the user, the partition, the size and the limit of `job`."""
    found = [f"--uid={job['user']}", "-A", account, "-p", job["partition"], "-n", str(job["cores"])]
    found += ["-t", str(job["limit"])]
    for name, option in (("per_node", "--ntasks-per-node="), ("feature", "--constraint="), ("memory", "--mem=")):
        found += [f"{option}{job[name]}"] if job[name] else []
    return found


def command(job: dict[str, Any], account: str) -> list[str]:
    """Return the command that submits `job`."""
    licences = [f"--gres=lic:{job['lic']}"] if job["lic"] else []
    own = [*sizes(job, account), *licences, "--wrap", f"exec sleep {job['run']}"]
    return ["sbatch", "--parsable", "-o", "/dev/null", "-D", "/", *own]


def run(folder: Path, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the jobs once. Return the times by job, and the events and passes of the log."""
    slurm = SharedSlurm(folder, nodes=8, cores=4, accounting=True, settings=settings_of(CONF) | OWN)
    asked = []
    try:
        slurm.up()
        slurm.add_users(USERS)
        zero = time.time()
        for job in jobs:
            while time.time() < zero + job["submit"]:
                time.sleep(0.01)
            asked.append(time.time())
            slurm(*command(job, USERS[job["user"]]))
        while slurm("squeue", "-h", "-o", "%i").strip():
            time.sleep(1)
        rows: list[list[str]] = []
        while len(rows) < len(jobs) or any("Unknown" in row for row in rows):  # slurmdbd lags behind a busy slurmctld
            time.sleep(2)
            text = slurm("sacct", "-anXP", "-o", "JobID,Start,End", SLURM_TIME_FORMAT="%s")
            rows = [line.split("|") for line in text.splitlines()]
    finally:
        slurm.down()
    times = {int(row[0]): (int(row[1]), int(row[2])) for row in rows}
    start, end = ([times[job + 1][at] for job in range(len(jobs))] for at in (0, 1))
    return {"asked": asked, "start": start, "end": end, **decided((folder / "slurmctld.log").read_text())}


def decided(log: str) -> dict[str, Any]:
    """Return the starts and ends in a log of slurmctld, and what each backfill pass decided, in their order.

    An event is (instant, job, nodes; empty: the end). A pass is (instant, number of events before it, decisions), a
    decision (job, start, nodes), where the start 0 is a start in the pass, and the start -1 is none.
    """
    events: list[Any] = []
    passes: list[Any] = []
    for line in log.splitlines():
        if (found := re.match(r"\[(\S+?)(?:\.\d+)?\] (.*)", line)) is None:
            continue
        now, text = instant(found[1]), found[2]
        if "_attempt_backfill: beginning" in text:
            passes.append([now, len(events), []])
        elif own := re.search(r"BACKFILL: test for JobId=(\d+) ", text):
            passes[-1][2].append([int(own[1]), -1, ""])
        elif own := re.search(r"JobId=\d+ to start at (\S+), end at \S+ on nodes (\S+) in", text):
            passes[-1][2][-1][1:] = [instant(own[1]), own[2]]
        elif own := re.search(r"_start_job: Started JobId=(\d+) in \S+ on (\S+)", text):
            passes[-1][2][-1][1:] = [0, own[2]]
            events.append([now, int(own[1]), own[2]])
        elif own := re.search(r"sched: Allocate JobId=(\d+) NodeList=(\S+) ", text):
            events.append([now, int(own[1]), own[2]])
        elif own := re.search(r"(?:_job_complete: JobId=(\d+) done)", text):
            events.append([now, int(own[1]), ""])
    return {"events": events, "passes": [one for one in passes if one[2]]}


def instant(text: str) -> int:
    """Return a time of the log, s since 1970."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--change", nargs=2, action="append", default=[], metavar=("OLD", "NEW"))
    given = parser.parse_args()
    global CONF, NODES
    for old, new in given.change:
        assert old in CONF + NODES, old
        CONF, NODES = CONF.replace(old, new), NODES.replace(old, new)
    make_users(USERS)
    jobs, runs = drawn(given.seed), []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # the users of the jobs read their scripts there
            found = run(Path(folder), jobs)
        runs.append(found if not runs else {name: found[name] for name in ("asked", "start", "end")})
        version = subprocess.check_output(["slurmctld", "-V"], text=True).split()[-1]
        content = {"slurm": version, "conf": CONF + NODES, "jobs": jobs, "runs": runs}
        given.file.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
