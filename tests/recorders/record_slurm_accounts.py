"""Records accounts, QOS and their limits on a real Slurm with slurmdbd: one cluster, a scenario for each rule.

    python -m tests.recorders.record_slurm_accounts tests/slurm_recordings/accounts [SCENARIO...]

needs root, Slurm with accounting, and the users of `record_slurm_shared.USERS`, which the script adds. All scenarios
take ten minutes. The folder gets the slurm.conf, the output of sacctmgr (accounts and QOS), and for each scenario what
was submitted, and what squeue, sprio and sshare said.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.recorders.record_slurm_shared import USERS
from tests.servers.slurmd import Slurm, make_users, settings_of

CONF = """SchedulerParameters=bf_interval=2,bf_resolution=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/multifactor
PriorityWeightAge=0
PriorityWeightJobSize=10000
PriorityWeightPartition=0
PriorityWeightFairshare=100000
PriorityWeightQOS=10000
PriorityWeightAssoc=500
PriorityWeightTRES=CPU=1000,Mem=2000,GRES/lic=3000,Node=400
PriorityDecayHalfLife=00:20:00
PriorityCalcPeriod=1
KillWait=5
GresTypes=lic
AccountingStorageTRES=gres/lic
AccountingStorageEnforce=associations,limits,qos
"""
NODES = """NodeName=n[1-4] CPUs=4 RealMemory=4000 Gres=lic:2
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE DefMemPerCPU=1000
PartitionName=short Nodes=n[1-4] MaxTime=2 DefMemPerCPU=1000
PartitionName=pq Nodes=n[1-4] MaxTime=INFINITE DefMemPerCPU=1000 QOS=partqos
PartitionName=bill Nodes=n[1-4] MaxTime=INFINITE DefMemPerCPU=1000 TRESBillingWeights="CPU=1.0,Mem=0.5G,GRES/lic=3.0"
"""
OWN = {"DebugFlags": "Backfill,Priority", "SlurmctldDebug": "debug2"}
DATABASE = """add qos partqos maxtrespu=cpu=3
add qos high priority=100
add qos low priority=10 usagefactor=0.5
add qos pu maxjobspu=1
add qos over maxtrespu=cpu=8 flags=overpartqos
add qos deny flags=denyonlimit maxwall=5 maxtresperjob=cpu=4
add qos pj maxwall=5 maxtresperjob=cpu=4
add qos sub maxsubmitjobspu=2 grpsubmit=3
add qos grp grptres=cpu=6 grpjobs=3
add qos grpmem grptres=mem=2G
add qos pa maxtrespa=cpu=4 maxjobspa=2
add qos wide maxjobspu=5
add qos min mintres=cpu=4
add account fac1 fairshare=3
add account fac2 fairshare=1 priority=40
add account y fairshare=1
add account lab1 parent=fac1 fairshare=2
add account lab2 parent=fac1 fairshare=parent
add user tracebed1 account=lab1 fairshare=4 priority=80
add user tracebed2 account=lab1 fairshare=1
add user tracebed2 account=lab2 fairshare=1
add user tracebed3 account=lab2 fairshare=parent
add user tracebed4 account=fac2 fairshare=1
add user tracebed3 account=fac2 fairshare=0
add user tracebed4 account=y fairshare=1 maxjobs=1
add user tracebed2 account=y fairshare=1
modify account fac1,fac2,y set qos+=high,low,pu,over,deny,pj,sub,grp,grpmem,pa,wide,min,partqos
modify account y set grptres=cpu=6 grpjobs=4 maxjobs=2 maxtresperjob=cpu=5
modify user tracebed2 where account=y set maxjobs=3
"""


class AccountsSlurm(Slurm):
    """A Slurm with the nodes and partitions of `NODES` and the accounts of `DATABASE`."""

    def _configure(self) -> None:
        super()._configure()
        self._replace_nodes(NODES.splitlines())
        (self.folder / "gres.conf").write_text("NodeName=n[1-4] Name=lic Count=2\n")

    def _serve_accounting(self) -> None:
        super()._serve_accounting()
        for line in DATABASE.splitlines():
            self("sacctmgr", "-i", "-Q", *line.split())

    def set(self, **settings: str) -> None:
        """Change settings of slurm.conf, and start slurmctld again with them."""
        text = self.conf.read_text()
        for key, value in settings.items():
            text = re.sub(rf"(?m)^{key}=.*\n", "", text)
            text = f"{key}={value}\n{text}"
        self.conf.write_text(text)
        controller = self.controller
        controller.terminate()
        controller.wait()
        self.servers.remove(controller)
        self.serve("slurmctld", "-D")
        self.until(lambda: "UP" in self("scontrol", "ping", check=False), "no slurmctld")
        self.until(lambda: self("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "4", "no idle nodes")

    def submit(self, job: dict[str, Any]) -> str:
        """Submit a job; return its reason for a refusal, or nothing."""
        options = [f"--uid={job['user']}", "-A", job["account"], "-n", str(job["cores"]), "-t", str(job["limit"])]
        for name, option in OPTIONS.items():
            options += [f"{option}={job[name]}"] if name in job else []
        options += [f"--gres=lic:{job['lic']}"] if "lic" in job else []
        command = ["sbatch", "--parsable", "-o", "/dev/null", "-D", "/", *options, "--wrap", f"exec sleep {job['run']}"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode == 0:
            job["id"] = int(done.stdout)
            return ""
        return done.stderr.splitlines()[0].removeprefix("sbatch: error: ")

    def clear(self) -> None:
        """End all jobs."""
        for user in (*USERS, "root"):
            self("scancel", f"--user={user}")
        self.until(lambda: not self("squeue", "-h").strip(), "jobs are left")


OPTIONS = {
    **{"qos": "--qos", "partition": "--partition", "nodes": "--nodes", "per_node": "--ntasks-per-node"},
    **{"memory": "--mem", "per_cpu": "--mem-per-cpu", "nice": "--nice"},
}


def job(who: str, cores: int, limit: int = 3, run: float = 300, **options: Any) -> dict[str, Any]:
    """Return a job of a user and an account, written `1/lab1`."""
    user, account = who.split("/")
    return {"user": f"tracebed{user}", "account": account, "cores": cores, "limit": limit, "run": run, **options}


LIMITED = {
    "jobs-of-a-user": [job("1/lab1", 1, qos="pu"), job("1/lab1", 1, qos="pu"), job("4/fac2", 1)],
    "one-job": [
        job("1/lab1", 5, qos="pj"),
        job("1/lab1", 1, 6, qos="pj"),
        job("4/fac2", 1),
        job("1/lab1", 4, qos="pj"),
    ],
    "deny-on-limit": [job("1/lab1", 5, qos="deny"), job("1/lab1", 1, 6, qos="deny"), job("1/lab1", 4, qos="deny")],
    "submissions": [job(f"{user}/lab1", 1, qos="sub") for user in (1, 1, 1, 2, 2)],
    "group": [job("1/lab1", 4, qos="grp"), job("2/lab1", 4, qos="grp"), job("1/lab1", 1, qos="grp"), job("4/fac2", 4)],
    "group-jobs": [*(job("1/lab1", 1, qos="grp") for _ in range(4)), job("4/fac2", 1)],
    "group-memory-and-gres": [
        *(job("1/lab1", 1, qos="grpmem", memory=memory) for memory in (1500, 1000, 500)),
        *(job("2/lab1", 1, qos="grpmem", memory=10, lic=lic) for lic in (2, 2, 1)),
    ],
    "account": [job("1/lab1", 3, qos="pa"), job("2/lab1", 2, qos="pa"), job("4/fac2", 4, qos="pa"), job("2/lab1", 1)],
    "account-jobs": [*(job("1/lab1", 1, qos="pa") for _ in range(3)), job("4/fac2", 1, qos="pa")],
    "least": [job("1/lab1", 3, qos="min"), job("1/lab1", 4, qos="min")],
    "qos-of-a-partition": [
        job("1/lab1", 4, partition="pq"),
        job("1/lab1", 3, partition="pq"),
        job("2/lab1", 5, partition="pq", qos="over"),
        job("2/lab1", 4, partition="pq", qos="over"),
        job("4/fac2", 3, partition="pq", qos="pa"),
        job("4/fac2", 1, partition="pq", qos="pa"),
    ],
    "time-of-a-partition": [job("1/lab1", 1, partition="short"), job("1/lab1", 1, 2, partition="short")],
    "qos-before-account": [*(job("4/y", 1) for _ in range(2)), *(job("4/y", 1, qos="wide") for _ in range(2))],
    "jobs-of-an-account": [*(job("4/y", 1, qos="wide") for _ in range(3)), *(job("2/y", 1) for _ in range(2))],
    "inherited": [job("2/y", 1) for _ in range(4)],
    "one-job-of-an-account": [job("2/y", 6), job("2/y", 1)],
    "cores-of-an-account": [job("2/y", 4), job("4/y", 3), job("4/y", 2)],
    "invalid": [job("1/fac2", 1), job("4/fac2", 1, qos="absent"), job("1/lab1", 1)],
}
"""Scenario -> jobs that are submitted at once; which of them start, and for which reasons others wait."""
BESIDE = {
    "limited-job-blocks-no-other": (
        [job("4/fac2", 8, 2, nodes=2, per_node=4), job("1/lab1", 3, 1, qos="grp"), job("4/fac2", 3)],
        [job("1/lab1", 4, qos="grp", nodes=1, per_node=4), job("2/lab1", 1, 4), job("2/lab1", 1, 5)],
    ),
    "limited-job-on-idle-nodes": (
        [job("4/fac2", 8, 2), job("1/lab1", 4, qos="grp")],
        [job("1/lab1", 4, qos="grp"), job("2/lab1", 4, 1)],
    ),
}
"""The same. The last jobs are submitted when those before run, and have a lower priority."""


def states(slurm: AccountsSlurm, jobs: list[dict[str, Any]]) -> list[str]:
    """Return the state of each job: R, or the reason for which the job waits."""
    rows = dict(line.split(" ", 1) for line in slurm("squeue", "-h", "-o", "%i %t %r").splitlines())
    return [rows[str(each["id"])].replace("PD ", "").replace("R None", "R") for each in jobs]


def limited(slurm: AccountsSlurm, jobs: list[dict[str, Any]], first: int) -> dict[str, Any]:
    """Submit jobs, the first ones some seconds before the others, and record their states."""
    jobs = [{**each} for each in jobs]
    refused = [slurm.submit(each) for each in jobs[:first]]
    if first:
        time.sleep(4)
    refused += [slurm.submit(each) for each in jobs[first:]]
    time.sleep(6)
    known = iter(states(slurm, [each for each in jobs if "id" in each]))
    found = [f"refused: {reason}" if reason else next(known) for reason in refused]
    slurm.clear()
    for each in jobs:
        each.pop("id", None)
    return {"jobs": jobs, "states": found}


ORDERED = [
    *(job("1/lab1", 3, 10), job("4/fac2", 8, 20, nodes=2, qos="high", memory=500, lic=2)),
    *(job("2/lab1", 1, 100, qos="low", per_cpu=700, partition="bill"), job("3/lab2", 16, 1)),
]
FLAGS = {
    "factors": {},
    "relative-to-time": {"PriorityFlags": "SMALL_RELATIVE_TO_TIME"},
    "favor-small": {"PriorityFlags": "SMALL_RELATIVE_TO_TIME", "PriorityFavorSmall": "YES"},
    "not-normal": {"PriorityFlags": "NO_NORMAL_ALL", "PriorityFavorSmall": "NO"},
}


def submitted(slurm: AccountsSlurm, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Submit jobs, and return them with their numbers."""
    found = [{**each} for each in jobs]
    refused = [slurm.submit(each) for each in found]
    assert not any(refused), refused
    return found


def factors(slurm: AccountsSlurm) -> list[dict[str, Any]]:
    """Return the factors of four waiting jobs."""
    filling = job("4/fac2", 16)
    assert not slurm.submit(filling)
    slurm.until(lambda: states(slurm, [filling]) == ["R"], "no job runs")
    jobs = submitted(slurm, ORDERED)
    time.sleep(1)
    rows = dict(line.split(" ", 1) for line in slurm("sprio", "-h", "-o", "%i %Y %B %F %J %P %Q %T").splitlines())
    found = [{**each, "sprio": rows[str(each.pop("id"))].split()} for each in jobs]
    slurm.clear()
    return found


USED = [
    *(job("4/fac2", 2, 5, 30, partition="bill", per_cpu=1000, lic=1), job("1/lab1", 3, 5, 30, qos="low")),
    *(job("2/lab1", 1, 5, 30), job("3/lab2", 1, 5, 30), job("4/y", 2, 5, 30), job("2/y", 2, 5, 30)),
]


def shares(slurm: AccountsSlurm) -> dict[str, Any]:
    """Run jobs, and return the usage and the factors of all associations after the next computation."""
    jobs = submitted(slurm, USED)
    slurm.until(lambda: not slurm("squeue", "-h").strip(), "jobs run", 120)
    log = slurm.folder / "slurmctld.log"
    begun = log.read_text().count("Decay factor over")
    slurm.until(lambda: log.read_text().count("Decay factor over") > begun, "no computation", 120)
    time.sleep(2)
    text = log.read_text()
    used = re.findall(r"_apply_new_usage: PRIO: Adding (\S+) new usage to assoc (\d+) \((\S+)\) raw usage", text)
    ran = re.findall(r"_apply_new_usage: job (\d+) ran for (\d+) seconds", text)
    decays = re.findall(r"Decay factor over (\d+) seconds goes from (\S+) -> (\S+)", text)
    rows = [line.split("|") for line in slurm("sshare", "-a", "-l", "-P").splitlines()]
    names = ("Account", "User", "RawUsage", "NormUsage", "EffectvUsage", "FairShare", "LevelFS")
    found = [[row[rows[0].index(name)].strip() for name in names if name in rows[0]] for row in rows[1:]]
    return {"jobs": jobs, "ran": ran, "used": used, "decays": decays, "shares": found}


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenarios", nargs="*", help="names of scenarios; all by default")
    given = parser.parse_args()
    make_users(USERS)
    given.folder.mkdir(exist_ok=True)

    def write(name: str, content: Any) -> None:
        (given.folder / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")

    def wanted(name: str) -> bool:
        return not given.scenarios or name in given.scenarios

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # jobs of users read their scripts
        slurm = AccountsSlurm(Path(folder), nodes=4, cores=4, accounting=True, settings=settings_of(CONF) | OWN)
        try:
            slurm.up()
            slurm("sacctmgr", "-i", "-Q", "modify", "qos", "grpmem", "set", "grptres=gres/lic=3")  # slurmctld names it
            slurm("sacctmgr", "-i", "-Q", "dump", "trial", f"file={folder}/dump.cfg")
            given.folder.joinpath("slurm.conf").write_text(CONF + NODES)
            given.folder.joinpath("dump.cfg").write_text((Path(folder) / "dump.cfg").read_text())
            given.folder.joinpath("qos.txt").write_text(slurm("sacctmgr", "-P", "show", "qos"))
            for name, jobs in LIMITED.items():
                if wanted(name):
                    write(name, limited(slurm, jobs, 0))
            for name, (before, after) in BESIDE.items():
                if wanted(name):
                    last = [{**each, "nice": 50000 + at} if at else each for at, each in enumerate(after)]
                    write(name, limited(slurm, before + last, len(before)))
            if wanted("fair-tree"):
                write("fair-tree", shares(slurm))
            for name, flags in FLAGS.items():
                if wanted(name):
                    slurm.set(**flags)
                    write(name, {"settings": flags, "jobs": factors(slurm)})
            if wanted("classic"):
                slurm.set(PriorityFlags="NO_FAIR_TREE", FairShareDampeningFactor="3")
                write("classic", shares(slurm))
        finally:
            slurm.down()


if __name__ == "__main__":
    main()
