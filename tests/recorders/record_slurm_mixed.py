"""Records a real Slurm as operators run it: partitions, QOS, fair share, generic resources, arrays and dependencies.

    python -m tests.recorders.record_slurm_mixed FILE.json.xz --seed 1 [--runs 3] [--logs FOLDER]

needs root, Slurm with accounting, and the users of `USERS`, which the script adds. Each run takes five minutes. The
cluster has three partitions, two QOS, ten users in three accounts, and two classes of nodes with a generic resource. A
workload has 100 jobs, among them tasks of arrays, and jobs that depend on others.

The loops of slurmctld have random phases, as those of a cluster that has run for long: slurmctld is stopped for a
moment, which moves one loop more than the other, and the first submission comes up to a minute later.

The file has the configuration, the accounts and QOS, the jobs, when each started and ended in each run (its own clock),
and of the first run every decision of every backfill pass.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
import shutil
import signal
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.recorders.record_slurm_shared import sizes
from tests.servers.slurmd import Slurm, make_users, settings_of

USERS = {f"tracebed{number}": ("physics", "biology", "chemistry")[(number - 1) % 3] for number in range(1, 11)}
"""User -> account."""
CONF = """SchedulerParameters=bf_interval=1,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityMaxAge=00:10:00
PriorityWeightJobSize=2000
PriorityWeightPartition=1000
PriorityWeightQOS=3000
PriorityWeightFairshare=5000
PriorityDecayHalfLife=00:10:00
PriorityCalcPeriod=1
AccountingStorageEnforce=associations,limits,qos
KillWait=5
GresTypes=acc
"""
NODES = """NodeName=n[1-5] CPUs=4 RealMemory=4000 Feature=small Gres=acc:1
NodeName=n[6-8] CPUs=8 RealMemory=16000 Feature=big Gres=acc:4 Weight=5
PartitionName=main Nodes=n[1-8] Default=YES MaxTime=INFINITE DefMemPerCPU=1000
PartitionName=short Nodes=n[1-3] MaxTime=2 DefMemPerCPU=1000 PriorityTier=2
PartitionName=acc Nodes=n[5-8] MaxTime=INFINITE DefMemPerCPU=1000 PriorityJobFactor=5
"""
GRES = "NodeName=n[1-5] Name=acc Count=1\nNodeName=n[6-8] Name=acc Count=4\n"
OWN = {"DebugFlags": "Backfill,Priority", "SlurmctldDebug": "debug2"}
SHARES = {"physics": 3, "biology": 2, "chemistry": 1}
HIGH = "add qos high priority=100 maxtrespu=cpu=8 maxjobspu=3"
COUNT = 100


class MixedSlurm(Slurm):
    """A Slurm with the nodes, partitions, accounts and QOS of this module."""

    def _configure(self) -> None:
        super()._configure()
        self._replace_nodes(NODES.splitlines())
        (self.folder / "gres.conf").write_text(GRES)

    def _serve_accounting(self) -> None:
        super()._serve_accounting()
        self("sacctmgr", "-i", *HIGH.split())
        for account, share in SHARES.items():
            self("sacctmgr", "-i", "add", "account", account, "cluster=trial", f"fairshare={share}")
        for number, (user, account) in enumerate(USERS.items()):
            own = f"fairshare={1 + number % 2}"
            self("sacctmgr", "-i", "add", "user", user, f"account={account}", "cluster=trial", own, "qos=normal,high")

    def shift_phases(self) -> None:
        """Move the loops of slurmctld against each other, and wait for a random part of a minute.

        The main loop counts ten sleeps, and loses the time of a stop. The backfill thread sleeps until an instant, and
        loses only what is left of the stop then.
        """
        controller = self.controller
        time.sleep(random.uniform(0.0, 1.0))
        controller.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        controller.send_signal(signal.SIGCONT)
        time.sleep(random.uniform(0.0, 60.0))


def drawn(seed: int) -> list[dict[str, Any]]:
    """Draw the jobs: submission (s), run time (s), limit (minutes) and what each requests.

    A job with `tasks` is an array of so many jobs. `after` is the number of an earlier job, from 0.
    """
    draw, jobs, now, count = random.Random(seed), list[dict[str, Any]](), 0.0, 0
    while count < COUNT:
        now += draw.expovariate(1 / 2.2)
        part = draw.choices(("main", "short", "acc"), (7, 2, 2))[0]
        sizes = (1, 2, 3, 4, 8, 12, 16) if part == "main" else (1, 2, 4, 8)
        cores = draw.choices(sizes, (4, 3, 1, 4, 4, 2, 1)[: len(sizes)])[0]
        run = round(min(110.0, max(2.0, draw.lognormvariate(2.7, 0.8))), 1)
        kind = draw.random()
        tasks = draw.choice((3, 4, 5)) if draw.random() < 0.06 and cores <= 4 else 0
        tasks = min(tasks, COUNT - count)
        jobs.append(
            {
                "submit": round(now, 2),
                "user": f"tracebed{draw.choices(range(1, 11), (6, 4, 4, 3, 3, 2, 2, 1, 1, 1))[0]}",
                "qos": "high" if draw.random() < 0.2 and cores <= 8 else "normal",
                "partition": part,
                "cores": cores,
                "per_node": 4 if cores in (4, 8, 12, 16) and kind < 0.5 else 0,
                "run": run,
                "limit": 2 if part == "short" else 1 if run < 50 and draw.random() < 0.6 else draw.choice((2, 3, 4)),
                "feature": "big" if part == "main" and kind > 0.88 else "",
                "acc": draw.choice((1, 2)) if part == "acc" else int(part == "main" and 0.8 < kind < 0.88),
                "memory": draw.choice((3000, 3900)) if part == "main" and 0.6 < kind < 0.7 and cores <= 4 else 0,
                "tasks": tasks,
                "at_once": draw.choice((0, 2)) if tasks else 0,
                "after": len(jobs) - draw.randint(1, 8) if draw.random() < 0.08 else -1,
                "how": draw.choice(("afterok", "afterany")),
            }
        )
        jobs[-1]["after"] = max(-1, jobs[-1]["after"])
        count += tasks or 1
    return jobs


def options(job: dict[str, Any], ids: list[str]) -> list[str]:
    """Return the options of sbatch for `job`, after jobs with these ids."""
    found = [*sizes(job, USERS[job["user"]]), "-q", job["qos"]]
    found += [f"--gres=acc:{job['acc']}"] if job["acc"] else []
    found += [f"--dependency={job['how']}:{ids[job['after']]}"] if job["after"] >= 0 else []
    if not job["tasks"]:
        return found
    return [*found, f"--array=0-{job['tasks'] - 1}" + (f"%{job['at_once']}" if job["at_once"] else "")]


def run(folder: Path, jobs: list[dict[str, Any]], log: Path | None) -> dict[str, Any]:
    """Run the jobs once. Return the times by job, and the events and passes of the log."""
    slurm = MixedSlurm(folder, nodes=8, cores=4, accounting=True, settings=settings_of(CONF) | OWN)
    noted = folder / "noted"
    noted.mkdir()
    noted.chmod(0o777)
    asked, ids = list[float](), list[str]()
    try:
        slurm.up()
        slurm.shift_phases()
        zero = time.time()
        for job in jobs:
            time.sleep(max(0.0, zero + job["submit"] - time.time()))
            asked.append(time.time())
            name = "%A_%a" if job["tasks"] else "%x_0"
            script = f"date +%s.%N; sleep {job['run']}; date +%s.%N"
            given = ["-o", f"{noted}/{name}", "-J", f"job{len(ids)}", "-D", "/", *options(job, ids), "--wrap", script]
            ids.append(slurm("sbatch", "--parsable", *given).strip())
        while slurm("squeue", "-h", "-o", "%i").strip():
            time.sleep(1)
        slurm("sacctmgr", "dump", "trial", f"file={folder}/dump.cfg")
        database = {"dump": (folder / "dump.cfg").read_text(), "qos": slurm("sacctmgr", "-P", "show", "qos")}
    finally:
        slurm.down()
        if log:
            shutil.copy(folder / "slurmctld.log", log)
    times = []
    for number, (job, own) in enumerate(zip(jobs, ids, strict=True)):
        name = own if job["tasks"] else f"job{number}"
        times += [
            [float(line) for line in (noted / f"{name}_{task}").read_text().split()]
            for task in range(job["tasks"] or 1)
        ]
    start, end = ([round(each[at], 3) for each in times] for at in (0, 1))
    text = (folder / "slurmctld.log").read_text()
    own_log = {"phases": phases_of(text, asked[0]), "events": events_of(text)}
    return {"asked": asked, "ids": ids, "start": start, "end": end, **own_log, **database}


JOB = r"JobId=(\d+(?:_(?:\d+|\*))?)"
"""A job of a log: `7`, a task `7_2`, or the tasks `7_*` that have no job of their own yet."""


def events_of(log: str) -> list[list[Any]]:
    """Return what a log of slurmctld says, in its order: lists of an instant, s since 1970, a kind and more.

    `start` (of the main loop) has the job and its nodes, `end` and `submit` the job, `submit` also its priority. `pass`
    has a list (job, priority, start, nodes) for each test of a backfill pass; start 0: at once, -1: none. `compute` is
    a computation of priorities: usage that is added when no job ends.
    """
    found, ends, added = list[list[Any]](), list[float](), list[float]()
    for line in log.splitlines():
        if (stamped := re.match(r"\[(\S+)\] (.*)", line)) is None:
            continue
        now, text = _instant(stamped[1]), stamped[2]
        if "_attempt_backfill: beginning" in text:
            found.append([now, "pass", []])
        elif own := re.search(rf"BACKFILL: test for {JOB}\S* Prio=(\d+) ", text):
            found[-1][2].append([own[1], int(own[2]), -1, ""])
        elif own := re.search(rf"_dump_job_sched: {JOB}\S* to start at (\S+), end at \S+ on nodes (\S+) in", text):
            found[-1][2][-1][2:] = [_instant(own[2]), own[3]]
        elif own := re.search(rf"_start_job: Started {JOB}\S* in \S+ on (\S+)", text):
            found[-1][2][-1] = [own[1], found[-1][2][-1][1], 0, own[2]]
        elif own := re.search(rf"sched: Allocate {JOB}\S* NodeList=(\S+) ", text):
            found.append([now, "start", own[1], own[2]])
        elif own := re.search(rf"_job_complete: {JOB}\S* done", text):
            found.append([now, "end", own[1]])
            ends.append(now)
        elif own := re.search(r"_slurm_rpc_submit_batch_job: JobId=(\d+) InitPrio=(\d+)", text):
            found.append([now, "submit", own[1], int(own[2])])
        elif "Running job scheduler" in text:
            found.append([now, "main"])
        elif "_apply_new_usage" in text and "usage to assoc 1 " in text:
            added.append(now)
    computed = [now for now in added if all(abs(now - end) > 0.02 for end in ends)]
    found += [[now, "compute"] for now, before in zip(computed, [0.0, *computed], strict=False) if now - before > 5]
    return sorted((each for each in found if each[1] != "pass" or each[2]), key=lambda each: each[0])


def phases_of(log: str, zero: float) -> list[float]:
    """Return the first pass of each loop and the first computation of priorities after `zero`, s after it."""
    first = []
    for text in ("_attempt_backfill: beginning", "Running job scheduler"):
        instants = [_instant(line[1:24]) for line in log.splitlines() if text in line]
        first.append(round(next(now - zero for now in instants if now >= zero), 3))
    started = next(_instant(line[1:24]) for line in log.splitlines() if "slurmctld version" in line)
    return [*first, round((started + PRIORITIES_S - zero) % 60, 3)]


PRIORITIES_S = 0.2
"""slurmctld computes priorities this long after its start, and then every minute."""


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="folder for the logs of slurmctld")
    given = parser.parse_args()
    make_users(USERS)
    jobs, runs, database = drawn(given.seed), list[dict[str, Any]](), dict[str, str]()
    times = [job["run"] for job in jobs for _ in range(job["tasks"] or 1)]
    for number in range(1, given.runs + 1):
        log = given.logs / f"{given.file.name.partition('.')[0]}.run-{number}.log" if given.logs else None
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # the users of the jobs read their scripts there
            found = run(Path(folder), jobs, log)
        database = {name: found.pop(name) for name in ("dump", "qos")}
        if runs:
            del found["events"]
        runs.append(found)
        content = {"slurm": "22.05.8", "random_phases": True, "conf": CONF + NODES, **database}
        content |= {"jobs": jobs, "run_s": times, "runs": runs}
        text = json.dumps(content, separators=(",", ":"))
        given.file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
