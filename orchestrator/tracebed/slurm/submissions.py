"""The jobs of a workload as options of `sbatch`: what the simulation of the same slurm.conf takes them to demand."""

from __future__ import annotations

import math
import os
import pwd
from collections import Counter
from functools import cache

from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.batch.base import Demands
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.simulation.demands import as_asked

OPTIONS = {
    "partition": "partition",
    "group": "account",
    "queue": "qos",
    "features": "constraint",
    "gres": "gres",
    "licenses": "licenses",
    "reservation": "reservation",
}
"""Column of a workload -> option of `sbatch`."""
LACKING = "jobs of users that this machine lacks: submitted as the user of the replay"
NOT_ROOT = "jobs of other users: submitted as the user of the replay, which is not root"
CLOSED = (
    "jobs of other users: submitted as the user of the replay, since other users cannot enter the folder of the run"
)


def demands_of(
    workload: Workload, cluster: SlurmCluster, *, root: bool, enterable: bool, speed: float = 1.0
) -> Demands:
    """Return the options of `sbatch` for the demands of the jobs of a workload on a cluster.

    Args:
        workload: the workload.
        cluster: the cluster.
        root: whether the user of the replay may submit jobs as other users.
        enterable: whether other users can enter the folder of the run.
        speed: trace seconds per wall second.
    """
    asked, counts = as_asked(workload, cluster)
    jobs, _ = asked.runnable()
    columns = {name: jobs.texts(name).tolist() for name in (*OPTIONS, "user")}
    nodes, cores, fewest = (jobs.ints(name).tolist() for name in ("nodes", "cores_per_node", "fewest_nodes"))
    spread, memory = jobs.ints("spread").tolist(), jobs.floats("memory_mib").tolist()
    wait = ((jobs.floats("earliest_start") - jobs.floats("submit_time")) / speed).tolist()
    users, omitted = set[str](), Counter[str]()

    @cache
    def identity(user: str) -> tuple[str, ...] | str:
        """Return the options of the user of a job, or why the job runs as the user of the replay."""
        try:
            known = pwd.getpwnam(user)
        except KeyError:
            return LACKING if root else NOT_ROOT
        if known.pw_uid == os.geteuid():
            return ()
        if not root:
            return NOT_ROOT
        return (f"--uid={known.pw_uid}", f"--gid={known.pw_gid}") if enterable else CLOSED

    options = []
    for job, user in enumerate(columns["user"]):
        cpus = cores[job] * cluster.cpus_per_core
        if spread[job]:
            own = [f"--ntasks={nodes[job] * cpus}"]
            own += [f"--nodes={fewest[job]}-{nodes[job] * cpus}"] if fewest[job] > 1 else []
        else:
            own = [f"--nodes={nodes[job]}", f"--ntasks-per-node={cpus}"]
        if cluster.memory and not math.isnan(memory[job]):
            own.append(f"--mem={math.ceil(memory[job])}")
        own += [f"--{option}={columns[name][job]}" for name, option in OPTIONS.items() if columns[name][job]]
        if wait[job] > 0.0:
            own.append(f"--begin=now+{math.ceil(wait[job])}")
        who = identity(user) if user else ()
        if isinstance(who, str):
            omitted[who] += 1
        elif who:
            users.add(user)
            own += who
        options.append(tuple(own))
    return Demands(options, {**counts, **omitted}, tuple(sorted(users)))
