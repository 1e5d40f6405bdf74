"""What malleability brings to a real Slurm with partitions, fair share and generic resources, and what is predicted.

A layer resizes running jobs beside Slurm's own loops. The same workload is replayed with and without it, in random
order, and predicted from the slurm.conf. The table has the mean wait by partition, the effect of the layer on it, and
the predicted effect.

It starts Slurms of 16 nodes on this machine, which needs root and Debian's slurmctld, slurmd, slurm-client, munge,
slurmdbd and mariadb-server, and adds users to the machine. A replay takes about 5 minutes. A command that was
interrupted continues with the replays that are missing.

    python slurm_layer.py [--repetitions 12] [--seed 41] [--clusters 2] [--policy dmr]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.oracles.accounting import agreement
from tests.servers.slurmd import Slurm, make_users, settings_of

NODES, CORES, JOBS, GAP_S = 16, 4, 100, 2.5
CALIBRATION_SEED = 43
INTERVAL_S = 2
MEMBERS = 24
USERS = {f"tracebed{number}": ("physics", "biology")[number % 2] for number in range(1, 7)}
"""User -> account."""
CONF = """SchedulerParameters=bf_interval=5,bf_resolution=1,batch_sched_delay=1,permit_job_expansion
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityMaxAge=00:10:00
PriorityWeightPartition=1000
PriorityWeightFairshare=5000
PriorityDecayHalfLife=00:10:00
PriorityCalcPeriod=1
AccountingStorageEnforce=associations,limits,qos
KillWait=5
GresTypes=acc
"""
PARTITIONS = """PartitionName=main Nodes=n[1-16] Default=YES MaxTime=INFINITE
PartitionName=short Nodes=n[1-6] MaxTime=10 PriorityJobFactor=5
PartitionName=acc Nodes=n[9-16] MaxTime=INFINITE
"""
SHARES = {"physics": 3, "biology": 1}


class LayeredSlurm(Slurm):
    """A Slurm with the partitions, accounts and generic resources of this module."""

    def _configure(self) -> None:
        super()._configure()
        lines = self.conf.read_text().splitlines(keepends=True)
        lines = [line for line in lines if not line.startswith("PartitionName=")]
        lines = [
            line.replace(" State=", " Gres=acc:2 State=") if line.startswith("NodeName=") else line for line in lines
        ]
        self.conf.write_text("".join(lines) + PARTITIONS)
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-{NODES}] Name=acc Count=2\n")

    def _serve_accounting(self) -> None:
        super()._serve_accounting()
        for account, share in SHARES.items():
            self("sacctmgr", "-i", "add", "account", account, "cluster=trial", f"fairshare={share}")
        for user, account in USERS.items():
            self("sacctmgr", "-i", "add", "user", user, f"account={account}", "cluster=trial")


def drawn(seed: int) -> tb.Workload:
    """Return a workload in which every third job is malleable, from a quarter of its requested size to this size."""
    draw = np.random.default_rng(seed)
    rows, submit = [], 0.0
    for number in range(JOBS):
        malleable = number % 3 == 0
        partition = str(draw.choice(["main", "short", "acc"], p=[0.6, 0.2, 0.2]))
        nodes = int(draw.integers(4, 9) if malleable else draw.integers(1, 6))
        nodes = min(nodes, {"main": 16, "short": 6, "acc": 8}[partition])
        user = str(draw.choice([*USERS]))
        run_time = float(draw.uniform(4.0, 12.0)) * (2.5 if malleable else 1.0)
        row = {"job_id": f"j{number}", "submit_time": submit, "run_time": run_time, "nodes": nodes}
        row |= {"cores_per_node": int(draw.choice([2, 4], p=[0.4, 0.6])), "time_limit": 60.0 * int(draw.integers(1, 4))}
        row |= {"partition": partition, "user": user, "group": USERS[user]}
        row |= {"gres": "acc:1" if partition == "acc" else ""}
        least, preferred = (max(1, nodes // 4), max(1, nodes // 2)) if malleable else (nodes, nodes)
        row |= {"nodes_min": least, "nodes_pref": preferred, "nodes_max": nodes}
        row |= (
            {"kind": "malleable", "speedup": "amdahl", "speedup_parameters": "0.95"} if malleable else {"kind": "rigid"}
        )
        rows.append(row)
        submit += float(draw.exponential(GAP_S))
    return tb.Workload(pd.DataFrame(rows), Provenance(system=System(NODES, CORES)))


def run(*command: str) -> None:
    """Run a command, and show it."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, check=True)


def replay(cluster: Slurm, workload: Path, policy: str, output: Path) -> None:
    """Replay a workload with a layer, or without (`none`), unless the run exists; print how it agrees with sacct."""
    if (output / "run.json").exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    layer = [] if policy == "none" else ["--resizes", policy, "-S", f"resize-interval={INTERVAL_S}"]
    command = ["replay", str(workload), "--scheduler", "slurm", "-S", "demands", *layer, "-S", f"conf={cluster.conf}"]
    run("tracebed", *command, "-o", str(output), "--resume")
    found = agreement(cluster, tb.Run.load(output))
    sys.stdout.write("".join(f"{line}\n" for line in (f"sacct beside {output}: {found}", *found.defects)))


def describe(cluster: Slurm) -> list[str]:
    """Write the configuration, the accounts and the QOS of a cluster. Return the options that read them."""
    files = {"slurm.conf": cluster.conf.read_text(), "gres.conf": (cluster.folder / "gres.conf").read_text()}
    cluster("sacctmgr", "dump", "trial", f"file={cluster.folder}/dump.cfg")
    files |= {
        "dump.cfg": (cluster.folder / "dump.cfg").read_text(),
        "qos.txt": cluster("sacctmgr", "-P", "show", "qos"),
    }
    for name, text in files.items():
        (Path("slurm-layer") / name).write_text(text)
    return [text for name in ("slurm.conf", "dump.cfg", "qos.txt") for text in ("-P", f"@slurm-layer/{name}")]


def waits(folders: Sequence[Path], workload: tb.Workload) -> pd.DataFrame:
    """Return the mean wait by partition, and in all, of each run, s."""
    partition = pd.Series(workload.table["partition"].to_numpy(), index=workload.table["job_id"].to_numpy())
    rows = []
    for folder in folders:
        jobs = tb.Run.load(folder).jobs.set_index("job_id")
        wait = jobs["start"] - jobs["submit"]
        rows.append({**wait.groupby(partition.reindex(wait.index)).mean(), "all": wait.mean()})
    return pd.DataFrame(rows)


def effect(without: pd.DataFrame, layer: pd.DataFrame) -> pd.DataFrame:
    """Return the effect on the mean wait by column, s: mean, and 95 % interval over the runs (Welch)."""
    mean = layer.mean() - without.mean()
    parts = [each.var(ddof=1) / len(each) for each in (without, layer)]
    spread = sum(parts) ** 0.5
    degrees = spread**4 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (without, layer), strict=True))
    from scipy.stats import t

    half = spread * t.ppf(0.975, degrees)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def main() -> None:
    """Draw, start Slurms, calibrate, replay, predict, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--clusters", type=int, default=2, help="number of Slurms side by side")
    parser.add_argument("--policy", default="dmr")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    base = Path("slurm-layer")
    base.mkdir(exist_ok=True)
    for seed in (given.seed, CALIBRATION_SEED):
        if not (path := base / f"{seed}.csv").exists():
            tb.write(drawn(seed), path)
    cells = [(policy, number) for policy in ("none", given.policy) for number in range(1, given.repetitions + 1)]
    random.Random(1).shuffle(cells)
    make_users(USERS)
    cost = base / f"{given.policy}.calibration.yaml"
    with tempfile.TemporaryDirectory(prefix="tracebed-slurm-") as folder:
        Path(folder).chmod(0o755)
        clusters = [
            LayeredSlurm(Path(folder) / f"slurm{k}", NODES, cores=CORES, accounting=True, settings=settings_of(CONF))
            for k in range(given.clusters)
        ]
        free = SimpleQueue[Slurm]()
        try:
            for cluster in clusters:
                cluster.up()
                free.put(cluster)
            options = describe(clusters[0])
            probe = base / f"{CALIBRATION_SEED}-{given.policy}" / "rep-01"
            replay(clusters[0], base / f"{CALIBRATION_SEED}.csv", given.policy, probe)
            if not cost.exists():
                run("tracebed", "nodes", "calibrate", str(probe), "-o", str(cost))

            def one(cell: tuple[str, int]) -> None:
                cluster = free.get()
                try:
                    output = base / f"{given.seed}-{cell[0]}" / f"rep-{cell[1]:02}"
                    replay(cluster, base / f"{given.seed}.csv", cell[0], output)
                finally:
                    free.put(cluster)

            with ThreadPoolExecutor(len(clusters)) as pool:
                for done in [pool.submit(one, cell) for cell in cells]:
                    done.result()
        finally:
            for cluster in clusters:
                cluster.down()
    compare(given.seed, given.policy, cost, options)


def compare(seed: int, policy: str, cost: Path, options: Sequence[str]) -> None:
    """Print the waits of the real and the predicted runs, and the real and the predicted effect of the layer."""
    base, workload = Path("slurm-layer"), tb.read(Path("slurm-layer") / f"{seed}.csv")
    found = {}
    for own in ("none", policy):
        real = sorted((base / f"{seed}-{own}").glob("rep-*"))
        members = [base / f"{seed}-{own}-predicted" / f"member-{member:02}" for member in range(1, MEMBERS + 1)]
        for member, output in enumerate(members, 1):
            given = [*options, "-P", f"resizes={own}", "-P", f"resize_interval={INTERVAL_S}", "-P", f"seed={member}"]
            setup = ["--over-limit", "kill", "--calibration", str(cost), "-o", str(output), "--replace"]
            command = ["tracebed", "simulate", str(base / f"{seed}.csv"), "--policy", "slurm", *given, *setup]
            subprocess.run(command, check=True, capture_output=True)
        found[own] = waits(real, workload), waits(members, workload)
    write = sys.stdout.write
    write("| mean wait, s | real without | predicted | real with | predicted | real effect | predicted | within |\n")
    write("|---|---|---|---|---|---|---|---|\n")
    real = effect(found["none"][0], found[policy][0])
    predicted = found[policy][1].mean() - found["none"][1].mean()
    for name, row in real.iterrows():
        means = [found[own][k][name].mean() for own in ("none", policy) for k in (0, 1)]
        within = "yes" if row["low"] <= predicted[name] <= row["high"] else "no"
        interval = f"{row['mean']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        cells = [*(f"{mean:.2f}" for mean in means), interval, f"{predicted[name]:.2f}", within]
        write(f"| {name} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
