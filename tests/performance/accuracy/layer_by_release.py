"""A layer beside the Slurm of this machine, whatever its release: is a job or a node lost, and what is predicted?

Thirty jobs, a third of them malleable, share nodes in one partition and have whole nodes in another one of the same
eight nodes. They are replayed under each policy. Printed are the resizes of shared and of whole nodes, what became of
the expanders, how `sacct` agrees, nodes that two jobs had at once, and what is left in Slurm; beside it, the
simulation of the same slurm.conf with `release`, and with the costs of the replay under the other policy.

It needs root, and slurmctld, slurmd, the clients, munge, slurmdbd and mariadb-server. A replay takes two minutes. Other
releases than that of the machine run in a Debian of their own (docs/explanation/resize-layer-on-slurm.md).

    python layer_by_release.py FOLDER [--policies dmr avg] [--seed 5] [--gres]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.oracles.accounting import agreement, prefix_of
from tests.servers.slurmd import Slurm, exclusive, release, settings_of

NODES, CORES, JOBS, GAP_S = 8, 4, 30, 3.0
INTERVAL_S, MEMBERS = 2, 24
TWICE_S = 2.0
"""Time for which two jobs have the same cores by the whole seconds of Slurm, although one follows the other, s."""
CONF = """SchedulerParameters=bf_interval=2,bf_resolution=1,batch_sched_delay=1,permit_job_expansion
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityMaxAge=00:10:00
PriorityWeightPartition=1000
PriorityCalcPeriod=1
AccountingStorageEnforce=associations,limits,qos
KillWait=5
"""


class TwoPartitions(Slurm):
    """A Slurm in which the jobs of the partition `main` share nodes, and those of `whole` have whole nodes.

    With `GresTypes`, each node has a generic resource, which no job requests.
    """

    def _configure(self) -> None:
        super()._configure()
        text = self.conf.read_text() + f"PartitionName=whole Nodes=ALL MaxTime=INFINITE {exclusive()}\n"
        if "GresTypes" in self.settings:
            text = text.replace(" State=UNKNOWN", " Gres=acc:1 State=UNKNOWN")
        self.conf.write_text(text)


def drawn(seed: int) -> tb.Workload:
    """Return a workload in which every third job is malleable, from a node to twice its requested size."""
    draw = np.random.default_rng(seed)
    rows, submit = [], 0.0
    for number in range(JOBS):
        malleable, nodes = number % 3 == 0, int(draw.integers(1, 4))
        nodes += malleable
        row = {"job_id": f"j{number}", "submit_time": submit, "nodes": nodes, "time_limit": 180.0}
        row |= {"run_time": float(draw.uniform(5.0, 12.0)) * (2.5 if malleable else 1.0)}
        row |= {"partition": str(draw.choice(["main", "whole"])), "cores_per_node": int(draw.choice([2, 4]))}
        sizes = (1, nodes, min(NODES, 2 * nodes)) if malleable else (nodes, nodes, nodes)
        row |= dict(zip(("nodes_min", "nodes_pref", "nodes_max"), sizes, strict=True))
        kind = {"kind": "malleable", "speedup": "amdahl", "speedup_parameters": "0.95"}
        rows.append(row | (kind if malleable else {"kind": "rigid", "speedup": "", "speedup_parameters": ""}))
        submit += float(draw.exponential(GAP_S))
    return tb.Workload(pd.DataFrame(rows), Provenance(system=System(NODES, CORES)))


def twice(run: tb.Run) -> list[str]:
    """Return the nodes on which jobs had more cores than there are, and how long."""
    found = []
    for node in range(NODES):
        held = run.allocations
        held = held[(held["node"] <= node) & (node < held["node"] + held["count"])]
        for since, until in pairwise(sorted({*held["start"], *held["end"]})):
            own = held[(held["start"] <= since) & (until <= held["end"])]
            if own["cores"].sum() > CORES and until - since > TWICE_S:
                found.append(f"node {node + 1} from {since:.1f} to {until:.1f} s: {', '.join(own['job_id'])}")
    return found


def left(cluster: Slurm, run: tb.Run) -> list[str]:
    """Return the jobs of a replay that are still in Slurm, and the nodes that are not idle."""
    cluster.until(lambda: "COMPLETING" not in cluster("squeue", "-h", "-o", "%T"), "jobs complete")
    jobs = [line for line in cluster("squeue", "-h", "-o", "%j %T").splitlines() if line.startswith(prefix_of(run))]
    nodes = cluster("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T %C").splitlines()
    return [*jobs, *(line for line in nodes if line.split()[1] != "idle")]


def resizes(run: tb.Run, workload: tb.Workload) -> str:
    """Return the numbers of shrinks and expansions by partition."""
    of = dict(zip(workload.table["job_id"], workload.table["partition"], strict=True))
    table = run.reconfigurations
    done = table[table["state"] == "applied"] if table is not None and len(table) else pd.DataFrame(columns=["job_id"])
    counts = Counter(f"{of[job]} {kind}" for job, kind in zip(done["job_id"], done.get("kind", ()), strict=True))
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items())) or "none"


def waits(run: tb.Run, workload: tb.Workload) -> pd.Series[float]:
    """Return the mean wait by partition, s."""
    jobs = run.jobs.set_index("job_id")
    of = workload.table.set_index("job_id")["partition"].reindex(jobs.index)
    return (jobs["start"] - jobs["submit"]).groupby(of).mean()


def show(title: str, values: Sequence[object]) -> None:
    """Print some values, a line each after the first one."""
    sys.stdout.write(f"  {title}: {'; '.join(map(str, values)) or 'none'}\n")
    sys.stdout.flush()


def main() -> None:
    """Start a Slurm, replay, and predict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the cluster and of the runs; new or empty")
    parser.add_argument("--policies", nargs=2, default=["dmr", "avg"])
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--gres", action="store_true", help="let each node have a generic resource")
    given = parser.parse_args()
    workload, runs = drawn(given.seed), {}
    settings = settings_of(CONF) | ({"GresTypes": "acc"} if given.gres else {})
    cluster = TwoPartitions(given.folder / "slurm", NODES, cores=CORES, accounting=True, settings=settings)
    try:
        cluster.up()
        cluster("sacctmgr", "-i", "add", "account", "physics", "cluster=trial")
        cluster("sacctmgr", "-i", "add", "user", "root", "account=physics", "cluster=trial")
        for policy in given.policies:
            options = [f"resizes={policy}", f"resize-interval={INTERVAL_S}"]
            output = given.folder / policy
            run = runs[policy] = tb.replay_on(workload, output=output, configuration=cluster.conf, options=options)
            sys.stdout.write(f"Slurm {run.info.batch['version']}, {policy}\n")
            show("states", [f"{count} {state}" for state, count in run.jobs["state"].value_counts().items()])
            show("resizes", [resizes(run, workload)])
            show("expanders", [run.info.batch["layer"]])
            found = agreement(cluster, run)
            show("sacct", [found, *found.defects])
            show("allocated twice", twice(run))
            show("left in Slurm", left(cluster, run))
            show("warnings", run.info.warnings)
        cluster("sacctmgr", "dump", "trial", f"file={cluster.folder}/dump.cfg")
        (cluster.folder / "qos.txt").write_text(cluster("sacctmgr", "-P", "show", "qos"))
    finally:
        cluster.down()
    for policy, other in (given.policies, given.policies[::-1]):
        machine = tb.read_machine(cluster.conf, cluster.folder / "dump.cfg", cluster.folder / "qos.txt")
        costs = tb.calibrate_batch([runs[other]], name=other)
        of_slurm = {"release": f"{release():.2f}", "resizes": policy, "resize_interval": INTERVAL_S}
        members = [
            tb.simulate(
                workload,
                "slurm",
                machine,
                policy_parameters={**of_slurm, "seed": member},
                calibration=costs,
                over_limit="kill",
            )
            for member in range(1, MEMBERS + 1)
        ]
        sys.stdout.write(f"predicted, {policy}\n")
        show("resizes of the first member", [resizes(members[0], workload)])
        show("warnings", members[0].info.warnings)
        predicted, real = pd.DataFrame([waits(each, workload) for each in members]), waits(runs[policy], workload)
        for name, mean in predicted.mean().items():
            low, high = predicted[name].min(), predicted[name].max()
            show(f"mean wait, {name}", [f"{mean:.1f} s ({low:.1f} to {high:.1f})", f"real {real[name]:.1f} s"])


if __name__ == "__main__":
    main()
