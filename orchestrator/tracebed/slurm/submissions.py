"""The jobs of a workload as options of `sbatch`: what the simulation of the same slurm.conf takes them to demand."""

from __future__ import annotations

import math
import os
import pwd
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.base import Demands
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.resize_layer import SHRINKS
from tracebed.slurm.simulation.demands import as_asked, longest_limits

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

SHRINK_ONLY = "malleable jobs with generic resources shrink, but never expand: Slurm refuses to merge them"
SHORT = "malleable jobs in partitions with a time limit: Slurm ends them there, also if a small size makes them slow"
LICENSED = "jobs with licenses: Slurm starts them once it has the licenses, which the policy does not count"


def demands_of(
    workload: Workload,
    cluster: SlurmCluster,
    *,
    root: bool,
    enterable: bool,
    speed: float = 1.0,
    whole: Sequence[int] | None = None,
) -> Demands:
    """Return the options of `sbatch` for the demands of the jobs of a workload on a cluster.

    Args:
        workload: the workload.
        cluster: the cluster.
        root: whether the user of the replay may submit jobs as other users.
        enterable: whether other users can enter the folder of the run.
        speed: trace seconds per wall second.
        whole: cores that each job has on each of its nodes, if a policy starts the jobs, and so their size and their
            earliest start are not for Slurm; None: Slurm starts them.
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
        cpus = (cores if whole is None else whole)[job] * cluster.cpus_per_core
        if whole is not None:  # `scontrol` can add nodes and CPUs to a waiting job, but not remove tasks
            own = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}"]
        elif spread[job]:
            own = [f"--ntasks={nodes[job] * cpus}"]
            own += [f"--nodes={fewest[job]}-{nodes[job] * cpus}"] if fewest[job] > 1 else []
        else:
            own = [f"--nodes={nodes[job]}", f"--ntasks-per-node={cpus}"]
        if cluster.memory and not math.isnan(memory[job]):
            own.append(f"--mem={math.ceil(memory[job])}")
        own += [f"--{option}={columns[name][job]}" for name, option in OPTIONS.items() if columns[name][job]]
        if wait[job] > 0.0 and whole is None:
            own.append(f"--begin=now+{math.ceil(wait[job])}")
        who = identity(user) if user else ()
        if isinstance(who, str):
            omitted[who] += 1
        elif who:
            users.add(user)
            own += who
        options.append(tuple(own))
    return Demands(options, {**counts, **omitted}, tuple(sorted(users)))


def held_demands_of(
    workload: Workload,
    cluster: SlurmCluster,
    cores: Sequence[int],
    malleable: Sequence[bool],
    *,
    release: float,
    root: bool,
    enterable: bool,
    speed: float = 1.0,
) -> Demands:
    """Return the same of jobs that hold whole nodes, which a policy chooses.

    Args:
        workload: jobs with a run time and a size (`Workload.runnable`).
        cluster: the cluster.
        cores: cores that each job has on each of its nodes, shape (jobs,).
        malleable: whether the policy may resize each job, shape (jobs,).
        release: release of Slurm, such as 22.05.
        root, enterable, speed: see `demands_of`.

    Raises:
        InputError: jobs are in reservations, or in partitions whose nodes Slurm does not allocate again after a shrink.
    """
    if reserved := int((workload.texts("reservation") != "").sum()):
        what = f"{counted(reserved, 'job')} in advance reservations: a policy of tracebed decides in partitions only"
        raise InputError(what, hint="empty the column reservation, or leave the policy out")
    resized = np.asarray(malleable, dtype=bool)
    numbers = [cluster.partition(name) for name in workload.texts("partition").tolist()]
    exclusive = [number is not None and cluster.partitions[number].exclusive for number in numbers]
    if release < SHRINKS and (lost := np.flatnonzero(resized & exclusive)).size:
        name = cluster.partitions[numbers[lost[0]] or 0].name
        what = f"{counted(len(lost), 'malleable job')} in partitions with exclusive jobs, such as {name}"
        what += f": Slurm before {SHRINKS:.2f} never allocates again what such a job releases"
        hint = "let other partitions have OverSubscribe=NO, or choose a policy that resizes no job"
        raise InputError(what, hint=hint)
    demands = demands_of(workload, cluster, root=root, enterable=enterable, speed=speed, whole=cores)
    longest_s = longest_limits(workload, cluster)
    given = np.asarray(exclusive) & cluster.gives_gres
    fixed = np.flatnonzero(resized & ((workload.texts("gres") != "").to_numpy() | given))
    counts = {
        SHRINK_ONLY: len(fixed),
        SHORT: int((resized & (longest_s < np.inf)).sum()),
        LICENSED: int((workload.texts("licenses") != "").sum()),
    }
    return demands._replace(
        counts=demands.counts | counts,
        longest_s=tuple(longest_s.tolist()),
        shrink_only=frozenset(fixed.tolist()),
    )
