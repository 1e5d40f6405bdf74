"""What malleability brings to a real Slurm with partitions, fair share and generic resources, and what is predicted.

A layer resizes running jobs beside Slurm's own loops. The same workload is replayed with and without it, in random
order, and predicted from the slurm.conf. The table has the mean wait by partition, the effect of the layer on it, and
the predicted effect.

It starts Slurms of 16 nodes on this machine, which needs root and Debian's slurmctld, slurmd, slurm-client, munge,
slurmdbd and mariadb-server, and adds users to the machine. A replay takes about 5 minutes. A command that was
interrupted continues with the replays that are missing.

With `--drawn SEED`, the slurm.conf, the shares, the QOS and the workload are drawn, for a trial of the rules on what
they were not made for.

    python slurm_layer.py [--repetitions 12] [--drawn SEED] [--clusters 2] [--policy dmr] [--folder slurm-layer]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.oracles.accounting import agreement
from tests.performance.accuracy.clusters import run, side_by_side
from tests.servers.slurmd import Slurm, make_users, settings_of

NODES, CORES, JOBS, GAP_S = 16, 4, 100, 4.0
INTERVAL_S = 2
MEMBERS = 24
USERS = {f"tracebed{number}": ("physics", "biology")[number % 2] for number in range(1, 7)}
"""User -> account."""
CONF = """SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/multifactor
PriorityCalcPeriod=1
AccountingStorageEnforce=associations,limits,qos
KillWait=5
GresTypes=acc
"""


@dataclass(frozen=True)
class Scene:
    """A cluster, and what its jobs are like."""

    seed: int
    """Of the draw of the workload. The calibration has the next one but one."""
    settings: str
    """Lines of the slurm.conf, beside `CONF`."""
    partitions: dict[str, tuple[int, int, str]]
    """Name -> first and last node, and the other keys of the slurm.conf."""
    default_shares: dict[str, float]
    """Partition -> share of the jobs."""
    accelerated: str
    """Partition whose jobs have an accelerator on each node."""
    accelerators: int
    """Number on each node."""
    fair_shares: dict[str, int]
    """Account -> share."""
    urgent: int = 0
    """Priority of the QOS `urgent`; 0: there is none."""
    urgent_share: float = 0.0
    """Share of the jobs with this QOS."""
    malleable_nodes: tuple[int, int] = (4, 8)
    """Smallest and largest size of malleable jobs."""
    rigid_nodes: tuple[int, int] = (1, 5)
    """Smallest and largest size of the other jobs."""
    serial: float = 0.05
    """Serial part of malleable jobs."""

    @property
    def lines(self) -> str:
        """The partitions, as in a slurm.conf."""
        return "".join(
            f"PartitionName={name} Nodes=n[{first}-{last}] {keys}\n"
            for name, (first, last, keys) in self.partitions.items()
        )

    def workload(self, seed: int) -> tb.Workload:
        """Return a workload in which every third job is malleable, from a quarter of its requested size to this."""
        draw = np.random.default_rng(seed)
        rows, submit = [], 0.0
        names, shares = [*self.default_shares], [*self.default_shares.values()]
        for number in range(JOBS):
            malleable = number % 3 == 0
            partition = str(draw.choice(names, p=shares))
            first, last, _ = self.partitions[partition]
            least, most = self.malleable_nodes if malleable else self.rigid_nodes
            nodes = min(int(draw.integers(least, most + 1)), last - first + 1)
            user = str(draw.choice([*USERS]))
            run_time = float(draw.uniform(4.0, 12.0)) * (2.5 if malleable else 1.0)
            row = {"job_id": f"j{number}", "submit_time": submit, "run_time": run_time, "nodes": nodes}
            row |= {"cores_per_node": int(draw.choice([2, 4], p=[0.4, 0.6]))}
            row |= {"time_limit": 60.0 * int(draw.integers(1, 4))}
            row |= {"partition": partition, "user": user, "group": USERS[user]}
            row |= {"gres": "acc:1" if partition == self.accelerated else ""}
            if self.urgent:
                row |= {"queue": "urgent" if draw.random() < self.urgent_share else "normal"}
            row |= {"nodes_min": nodes, "nodes_pref": nodes, "nodes_max": nodes, "kind": "rigid"}
            if malleable:
                row |= {"nodes_min": max(1, nodes // 4), "nodes_pref": max(1, nodes // 2), "kind": "malleable"}
                row |= {"speedup": "amdahl", "speedup_parameters": f"{1 - self.serial:g}"}
            rows.append(row)
            submit += float(draw.exponential(GAP_S))
        return tb.Workload(pd.DataFrame(rows), Provenance(system=System(NODES, CORES)))


def given(seed: int) -> Scene:
    """Return the scene for which the rules of the layer were found."""
    return Scene(
        seed=seed,
        settings="""SchedulerParameters=bf_interval=5,bf_resolution=1,batch_sched_delay=1,permit_job_expansion
PriorityWeightAge=1000
PriorityMaxAge=00:10:00
PriorityWeightPartition=1000
PriorityWeightFairshare=5000
PriorityDecayHalfLife=00:10:00
""",
        partitions={
            "main": (1, 16, "Default=YES MaxTime=INFINITE"),
            "short": (1, 6, "MaxTime=10 PriorityJobFactor=5"),
            "acc": (9, 16, "MaxTime=INFINITE"),
        },
        default_shares={"main": 0.6, "short": 0.2, "acc": 0.2},
        accelerated="acc",
        accelerators=2,
        fair_shares={"physics": 3, "biology": 1},
    )


def drawn(seed: int) -> Scene:
    """Return a scene that is drawn: for a seed that nobody has tried, the rules could not be fitted to it."""
    draw = np.random.default_rng(seed)

    def number(least: int, most: int) -> int:
        return int(draw.integers(least, most + 1))

    passes = f"bf_interval={number(3, 10)},bf_resolution={number(1, 10)},batch_sched_delay={number(1, 3)}"
    weights = {"Age": number(0, 3000), "Partition": number(0, 3000), "Fairshare": number(0, 8000)}
    weights |= {"JobSize": number(0, 1000), "QOS": number(1000, 4000)}
    settings = [f"SchedulerParameters={passes},permit_job_expansion", f"PriorityMaxAge=00:{number(5, 20):02}:00"]
    settings += [f"PriorityDecayHalfLife=00:{number(5, 20):02}:00"]
    settings += [f"PriorityWeight{name}={weight}" for name, weight in weights.items()]
    left, right = number(5, 9), number(8, 12)
    partitions = {
        "wide": (1, 16, "Default=YES MaxTime=INFINITE"),
        "left": (1, left, f"MaxTime={number(10, 60)} PriorityJobFactor={number(1, 10)}"),
        "right": (right, 16, f"MaxTime=INFINITE PriorityTier={number(1, 2)}"),
    }
    parts = draw.dirichlet([6, 3, 3])
    least = number(3, 5)
    return Scene(
        seed=seed,
        settings="".join(f"{line}\n" for line in settings),
        partitions=partitions,
        default_shares=dict(zip(partitions, parts.tolist(), strict=True)),
        accelerated=str(draw.choice(["left", "right"])),
        accelerators=number(1, 3),
        fair_shares={"physics": number(1, 5), "biology": number(1, 5)},
        urgent=number(10, 100),
        urgent_share=float(draw.uniform(0.05, 0.2)),
        malleable_nodes=(least, least + number(3, 6)),
        rigid_nodes=(1, number(3, 6)),
        serial=round(float(draw.uniform(0.02, 0.15)), 3),
    )


class LayeredSlurm(Slurm):
    """A Slurm with the partitions, accounts, QOS and generic resources of a scene."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        """Make the folder. `up` starts the servers."""
        self.scene = scene
        super().__init__(folder, NODES, cores=CORES, accounting=True, settings=settings_of(CONF + scene.settings))

    def _configure(self) -> None:
        super()._configure()
        gres = f"acc:{self.scene.accelerators}"
        kept = [line for line in self.conf.read_text().splitlines() if not line.startswith("PartitionName=")]
        kept = [
            line.replace(" State=", f" Gres={gres} State=") if line.startswith("NodeName=") else line for line in kept
        ]
        self.conf.write_text("".join(f"{line}\n" for line in kept) + self.scene.lines)
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-{NODES}] Name=acc Count={self.scene.accelerators}\n")

    def _serve_accounting(self) -> None:
        super()._serve_accounting()
        qos = ["qos=normal"]
        if self.scene.urgent:
            self("sacctmgr", "-i", "add", "qos", "urgent", f"priority={self.scene.urgent}")
            qos = ["qos=normal,urgent", "defaultqos=normal"]
        for account, share in self.scene.fair_shares.items():
            self("sacctmgr", "-i", "add", "account", account, "cluster=trial", f"fairshare={share}", *qos)
        for user, account in USERS.items():
            self("sacctmgr", "-i", "add", "user", user, f"account={account}", "cluster=trial")


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


def describe(cluster: Slurm, base: Path) -> list[str]:
    """Write the configuration, the accounts and the QOS of a cluster. Return the options that read them."""
    files = {"slurm.conf": cluster.conf.read_text(), "gres.conf": (cluster.folder / "gres.conf").read_text()}
    cluster("sacctmgr", "dump", "trial", f"file={cluster.folder}/dump.cfg")
    files |= {
        "dump.cfg": (cluster.folder / "dump.cfg").read_text(),
        "qos.txt": cluster("sacctmgr", "-P", "show", "qos"),
    }
    for name, text in files.items():
        (base / name).write_text(text)
    return [text for name in ("slurm.conf", "dump.cfg", "qos.txt") for text in ("-P", f"@{base}/{name}")]


def predict(base: Path, seed: int, options: Sequence[str], policy: str, cost: Path) -> list[Path]:
    """Predict a workload with a layer, or without (`none`), in `MEMBERS` members. Return their folders."""
    members = [base / f"{seed}-{policy}-predicted" / f"member-{member:02}" for member in range(1, MEMBERS + 1)]
    for member, output in enumerate(members, 1):
        given = [*options, "-P", f"resizes={policy}", "-P", f"resize_interval={INTERVAL_S}", "-P", f"seed={member}"]
        setup = ["--over-limit", "kill", "--calibration", str(cost), "-o", str(output), "--replace"]
        command = ["tracebed", "simulate", str(base / f"{seed}.csv"), "--policy", "slurm", *given, *setup]
        subprocess.run(command, check=True, capture_output=True)
    return members


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
    """Start Slurms, calibrate, replay, predict, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--drawn", type=int, help="seed of the draw of the cluster and the workload")
    parser.add_argument("--clusters", type=int, default=2, help="number of Slurms side by side")
    parser.add_argument("--policy", default="dmr")
    parser.add_argument("--folder", type=Path, default=Path("slurm-layer"))
    chosen = parser.parse_args()
    base = chosen.folder
    base.mkdir(exist_ok=True)
    scene = given(41) if chosen.drawn is None else drawn(chosen.drawn)
    calibration_seed = scene.seed + 2
    for seed in (scene.seed, calibration_seed):
        if not (path := base / f"{seed}.csv").exists():
            tb.write(scene.workload(seed), path)
    cells = [(policy, number) for policy in ("none", chosen.policy) for number in range(1, chosen.repetitions + 1)]
    random.Random(1).shuffle(cells)
    make_users(USERS)
    cost = base / f"{chosen.policy}.calibration.yaml"
    with side_by_side(lambda folder: LayeredSlurm(folder, scene), chosen.clusters) as clusters:
        options = describe(clusters.all[0], base)
        # Side by side, as the replays that are predicted.
        probes = [base / f"{calibration_seed}-{chosen.policy}" / f"rep-{k + 1:02}" for k in range(chosen.clusters)]
        other = base / f"{calibration_seed}.csv"
        clusters.each(lambda cluster, probe: replay(cluster, other, chosen.policy, probe), probes)
        if not cost.exists():
            run("tracebed", "nodes", "calibrate", *map(str, probes), "-o", str(cost))

        def one(cluster: LayeredSlurm, cell: tuple[str, int]) -> None:
            output = base / f"{scene.seed}-{cell[0]}" / f"rep-{cell[1]:02}"
            replay(cluster, base / f"{scene.seed}.csv", cell[0], output)

        clusters.each(one, cells)
    compare(base, scene.seed, chosen.policy, cost, options)


def compare(base: Path, seed: int, policy: str, cost: Path, options: Sequence[str]) -> None:
    """Print the waits of the real and the predicted runs, the effect of the layer in both, and the verdicts."""
    workload = tb.read(base / f"{seed}.csv")
    found, verdicts = {}, []
    for own in ("none", policy):
        real = sorted((base / f"{seed}-{own}").glob("rep-*"))
        members = predict(base, seed, options, own, cost)
        found[own] = waits(real, workload), waits(members, workload)
        files = [text for run in real for text in ("--real", str(run))]
        files += [text for member in members for text in ("--predicted", str(member))]
        verdict = subprocess.run(["tracebed", "compare", *files], check=False, capture_output=True, text=True)
        verdicts.append(f"\n{own}, exit status {verdict.returncode}:\n{verdict.stdout}{verdict.stderr}")
    write = sys.stdout.write
    write("| mean wait, s | real without | predicted | real with | predicted | real effect | predicted | within |\n")
    write("|---|---|---|---|---|---|---|---|\n")
    effects = effect(found["none"][0], found[policy][0])
    predicted = found[policy][1].mean() - found["none"][1].mean()
    for name, row in effects.iterrows():
        means = [found[own][k][name].mean() for own in ("none", policy) for k in (0, 1)]
        within = "yes" if row["low"] <= predicted[name] <= row["high"] else "no"
        interval = f"{row['mean']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        cells = [*(f"{mean:.2f}" for mean in means), interval, f"{predicted[name]:.2f}", within]
        write(f"| {name} | {' | '.join(cells)} |\n")
    write("".join(verdicts))


if __name__ == "__main__":
    main()
