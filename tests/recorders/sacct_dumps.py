"""A drawn export of sacct: three partitions, two kinds of nodes, GPUs, shared nodes, arrays, requeues, dependencies.

The jobs run one after the other on the first cores that become idle, so that no core is held twice. As a script, it
writes the export and the slurm.conf of the cluster into a folder:

    python -m tests.recorders.sacct_dumps FOLDER [--jobs 2000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

ZONE = "Europe/Berlin"
BEGIN = datetime(2024, 3, 29, 8, 0, tzinfo=ZoneInfo(ZONE)).timestamp()
"""Two days before the clocks change, s since 1970."""
CONF = """ClusterName=harbor
SlurmctldHost=head
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=60,bf_window=2880,bf_max_job_test=1000,bf_continue
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageTRES=gres/gpu,license/matlab
GresTypes=gpu
Licenses=matlab:8
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=2000
PriorityWeightPartition=500
DefMemPerCPU=2000
NodeName=DEFAULT Sockets=2 ThreadsPerCore=1 State=UNKNOWN
NodeName=cpu[01-16] CoresPerSocket=24 RealMemory=192000 Feature=cpu,ib
NodeName=gpu[01-06] CoresPerSocket=32 RealMemory=512000 Gres=gpu:a100:4 Feature=gpu Weight=10
PartitionName=cpu Nodes=cpu[01-16] Default=YES MaxTime=2-00:00:00 DefaultTime=04:00:00
PartitionName=gpu Nodes=gpu[01-06] MaxTime=1-00:00:00 PriorityJobFactor=2
PartitionName=debug Nodes=cpu[01-02],gpu01 MaxTime=00:30:00 PriorityTier=100
"""
FIELDS = (
    *("JobID", "Cluster", "User", "Account", "Partition", "QOS", "Submit", "Eligible", "Start", "End", "Elapsed"),
    *("Timelimit", "Constraints", "State", "NNodes", "NCPUS", "ReqNodes", "ReqMem", "AllocTRES", "ReqTRES"),
    *("NodeList", "Reservation", "SubmitLine"),
)
"""The fields that the documentation recommends."""
NODES = {
    "cpu": [f"cpu{number:02}" for number in range(1, 17)],
    "gpu": [f"gpu{number:02}" for number in range(1, 7)],
    "debug": ["cpu01", "cpu02", "gpu01"],
}
CORES = {"cpu": 48, "gpu": 64}
GPUS = 4
USERS = {"ann": "chem", "bob": "phys", "dan": "chem", "eve": "bio", "kim": "phys", "zoe": "bio"}


class Wanted(NamedTuple):
    """What a drawn job asks for."""

    partition: str
    nodes: int
    cores: int
    """Cores on each node."""
    gpus: int
    """GPUs on each node."""
    memory: int
    """Memory on each node, MiB."""
    spread: bool
    """Whether it asks for cores only (-n), on any nodes."""


class Cluster:
    """Nodes, and when each of their cores and GPUs becomes idle, s since 1970."""

    def __init__(self) -> None:
        """Begin with idle nodes."""
        names = dict.fromkeys(name for nodes in NODES.values() for name in nodes)
        self.cores = {name: [BEGIN] * CORES[name[:3]] for name in names}
        self.gpus = {name: [BEGIN] * (GPUS if name.startswith("gpu") else 0) for name in names}

    def place(self, wanted: Wanted, earliest: float) -> tuple[float, list[str]]:
        """Return the start of a job, and its nodes."""
        ready = []
        for name in NODES[wanted.partition]:
            cores, gpus = sorted(self.cores[name]), sorted(self.gpus[name])
            if len(cores) >= wanted.cores and len(gpus) >= wanted.gpus:
                at = max(cores[wanted.cores - 1], gpus[wanted.gpus - 1] if wanted.gpus else BEGIN)
                ready.append((max(at, earliest), name))
        chosen = sorted(ready)[: wanted.nodes]
        return float(int(chosen[-1][0])) + 1, [name for _, name in chosen]

    def hold(self, wanted: Wanted, nodes: Iterable[str], end: float) -> None:
        """Allocate cores and GPUs until `end`."""
        for name in nodes:
            for held, count in ((self.cores[name], wanted.cores), (self.gpus[name], wanted.gpus)):
                held.sort()
                held[:count] = [end] * count


def _wanted(draw: random.Random) -> Wanted:
    partition = draw.choices(("cpu", "gpu", "debug"), (12, 5, 2))[0]
    if partition == "gpu":
        gpus = draw.choice((1, 1, 2, 4))
        return Wanted("gpu", draw.choice((1, 1, 1, 2)) if gpus == 4 else 1, 8 * gpus, gpus, 60_000 * gpus, False)
    if partition == "debug":
        cores = draw.choice((1, 4, 48))
        return Wanted("debug", 1, cores, 0, 2000 * cores, False)
    if draw.random() < 0.5:  # a part of a node
        cores = draw.choice((1, 2, 4, 8, 12, 24))
        return Wanted("cpu", 1, cores, 0, 2000 * cores, False)
    if draw.random() < 0.1:
        return Wanted("cpu", 2, 12, 0, 24_000, True)
    return Wanted("cpu", draw.choice((1, 1, 2, 2, 4, 8)), 48, 0, 96_000, False)


def _tres(wanted: Wanted, nodes: int, licences: int) -> str:
    cores = nodes * wanted.cores
    gpus = nodes * wanted.gpus
    parts = [f"billing={cores}", f"cpu={cores}"]
    parts += [f"gres/gpu:a100={gpus}", f"gres/gpu={gpus}"] if gpus else []
    parts += [f"license/matlab={licences}"] if licences else []
    return ",".join([*parts, f"mem={nodes * wanted.memory}M", f"node={nodes}"])


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, ZoneInfo(ZONE)):%Y-%m-%dT%H:%M:%S}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}"


def rows(jobs: int = 2000, seed: int = 1) -> list[dict[str, str]]:
    """Draw the rows of an export, steps included, in the order of the submissions."""
    draw, cluster, number, found = random.Random(seed), Cluster(), 1000, list[dict[str, str]]()
    submit, before = BEGIN, ""
    while len({row["JobID"] for row in found if "." not in row["JobID"]}) < jobs:
        number += 1
        submit += draw.expovariate(1 / 240.0)
        wanted, user = _wanted(draw), draw.choice([*USERS])
        kind = draw.random()
        tasks = [f"{number}_{task}" for task in range(draw.randrange(2, 9))] if kind < 0.04 else [str(number)]
        if 0.04 <= kind < 0.05:
            tasks = [f"{number}+0", f"{number}+1"]
        dependency = f"afterany:{before}" if 0.05 <= kind < 0.1 and before else ""
        begin = submit + 3600 if 0.1 <= kind < 0.12 else submit
        licences = draw.choice((1, 2)) if kind > 0.97 else 0
        limit = draw.choice((1, 2, 4, 12, 24)) * 3600 if wanted.partition != "debug" else 1800
        line = ["sbatch", f"--time={limit // 60}", "-p", wanted.partition]
        line += ["-n", str(wanted.nodes * wanted.cores)] if wanted.spread else [f"-N{wanted.nodes}"]
        line += ["--array=0-9%2"] if "_" in tasks[0] else []
        line += ["-d", dependency] if dependency else []
        line += ["--begin=now+1hour"] if begin > submit else []
        line += [f"--gres=gpu:{wanted.gpus}"] if wanted.gpus else []
        line += ["job.sh", "--array=of-the-script"]
        asked = 1 if wanted.spread else wanted.nodes
        for task in tasks:
            row = {
                **{"JobID": task, "Cluster": "harbor", "User": user, "Account": USERS[user]},
                **{"Partition": wanted.partition, "QOS": draw.choice(("normal", "normal", "high"))},
                **{"Submit": _clock(submit), "Eligible": _clock(begin), "Timelimit": _span(limit)},
                **{"Constraints": "cpu&ib" if kind > 0.9 and wanted.partition == "cpu" else ""},
                **{"NNodes": str(wanted.nodes), "NCPUS": str(wanted.nodes * wanted.cores), "ReqNodes": str(asked)},
                **{"ReqMem": f"{wanted.memory * asked}M", "ReqTRES": _tres(wanted, asked, licences)},
                **{"Reservation": "course" if 0.12 <= kind < 0.13 else "", "SubmitLine": " ".join(line)},
            }
            if 0.13 <= kind < 0.16:
                row["Timelimit"] = draw.choice(("Partition_Limit", "UNLIMITED"))
            if 0.16 <= kind < 0.2:  # cancelled while it waits
                gone = _clock(submit + draw.uniform(10, 5000))
                times = {"Start": draw.choice(("Unknown", "None")), "End": gone, "Elapsed": "00:00:00"}
                never = {"NNodes": str(asked), "AllocTRES": "", "NodeList": "None assigned"}
                found.append({**row, **times, **never, "State": "CANCELLED by 1001"})
                continue
            runs = 2 if 0.2 <= kind < 0.22 else 1
            instant, eligible = submit, begin
            for run in range(runs):
                start, nodes = cluster.place(wanted, eligible)
                seconds = float(max(1, round(min(limit + 12, draw.lognormvariate(7.5, 1.5)))))
                state = "TIMEOUT" if seconds > limit else draw.choices(("COMPLETED", "FAILED"), (9, 1))[0]
                if run + 1 < runs:
                    state, seconds = draw.choice(("NODE_FAIL", "REQUEUED", "PREEMPTED")), max(1.0, seconds // 2)
                end = start + seconds
                cluster.hold(wanted, nodes, end)
                times = {"Start": _clock(start), "End": _clock(end), "Elapsed": _span(seconds)}
                own = {"AllocTRES": _tres(wanted, wanted.nodes, licences), "NodeList": ",".join(nodes)}
                found.append({**row, **times, **own, "State": state})
                step = {"JobID": f"{task}.batch", "Timelimit": "", "QOS": "", "User": "", "SubmitLine": ""}
                found.append({**found[-1], **step, "NNodes": "1", "ReqTRES": "", "ReqMem": ""})
                instant = end
                eligible = instant + 121  # Slurm lets a requeued job wait for two minutes
                row |= {"Submit": _clock(instant), "Eligible": _clock(eligible)}
        before = str(number) if len(tasks) == 1 else ""
    return found


def text(found: Iterable[dict[str, str]], fields: Sequence[str] = FIELDS, delimiter: str = "|") -> str:
    """Return the output of `sacct -P -o FIELDS`."""
    lines = [delimiter.join(fields), *(delimiter.join(row[name] for name in fields) for row in found)]
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Write an export and its slurm.conf."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "sacct.txt").write_text(text(rows(given.jobs, given.seed)))
    (given.folder / "slurm.conf").write_text(CONF)


if __name__ == "__main__":
    main()
