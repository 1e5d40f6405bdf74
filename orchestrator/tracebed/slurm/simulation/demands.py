"""The jobs of a workload as the cluster of a slurm.conf is asked for them: limits of partitions, cores for CPUs."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tracebed.converters.description import cores_used
from tracebed.converters.workload import BoolArray, FloatArray, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.table import codes_of, strings, take
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.simulation.accounts import Accounting

YEAR_S = 365 * 86400.0
"""Limit that Slurm plans with for a job without any, s."""
IN_CPUS = ("sacct",)
"""Formats whose cores are CPUs of Slurm: hardware threads, where the cluster counts them."""
IN_CORES = "whatif"
"""Step that makes cores of the CPUs of a log. Its parameter `cpus_per_core` says how many, if the log has CPUs."""
STARTED = "extra_whatif_started"
"""Column of that step: whether a job had started before the others are submitted, and Slurm does not check its limits
against those of the partition any more (22.05.8 lets it run on if they become smaller)."""
MOST_NAMED = 6
NO_LIMIT = "jobs without a time limit: DefaultTime or MaxTime of their partition"
SEVERAL_KINDS = "jobs of several nodes whose features have brackets or counts: each node has any of these features"


def as_asked(workload: Workload, cluster: SlurmCluster) -> tuple[Workload, dict[str, int]]:
    """Return the jobs with the limit of their partition where they have none, and with the cores that they use.

    CPUs of a log of Slurm become cores, and jobs with a share of their nodes get that share of the cores. The second
    value is assumption -> number of jobs. A workload in which a node is one core is refused: its jobs have no nodes.
    """
    reading = [step.parameters for step in workload.provenance.steps if step.name == "read"]
    if any(parameters.get("by") == "core" for parameters in reading):
        what = "each node of the workload is one core, but jobs share the nodes of a slurm.conf by themselves"
        raise InputError(what, hint="read the log again: convert --by node")
    codes, names = codes_of(workload.arrow("partition"))
    limit, runs = workload.floats("time_limit").copy(), np.isfinite(workload.floats("run_time"))
    missing = np.isnan(limit)
    limit[missing] = default_limits(workload, cluster, missing)
    columns: dict[str, Any] = {"time_limit": limit}
    cpus = [step.parameters.get("cpus_per_core", 1) for step in workload.provenance.steps if step.name == IN_CORES]
    columns["cores_per_node"] = workload.ints("cores_per_node") * cpus[0] if cpus else cores_used(workload)
    if in_cpus(workload):
        columns["cores_per_node"] = -(-columns["cores_per_node"] // cluster.cpus_per_core)
    counts = {NO_LIMIT: int((missing & runs).sum()), SEVERAL_KINDS: int((several_kinds(workload) & runs).sum())}
    lacking = np.array([cluster.partition(name.partition(",")[0]) is None for name in names], dtype=bool)
    if lacking.any():
        strange = [name for name, lacks in zip(names, lacking.tolist(), strict=True) if lacks]
        what = ", ".join(strange[:MOST_NAMED]) + (", ..." if len(strange) > MOST_NAMED else "")
        unknown = f"jobs of partitions that the cluster lacks ({what}), rejected"
        counts[unknown] = int((lacking[codes] & runs).sum())
    return Workload(workload.columns.assign(**columns), workload.provenance), counts


def default_limits(workload: Workload, cluster: SlurmCluster, jobs: BoolArray) -> list[float]:
    """Return the limits that the partitions of some jobs give to jobs without a limit, s."""
    codes, names = codes_of(take(workload.arrow("partition"), np.flatnonzero(jobs)))
    number = [cluster.partition(name.partition(",")[0]) for name in names]
    return [
        YEAR_S if (partition := number[code]) is None else cluster.limit_s(partition, run_s) or YEAR_S
        for code, run_s in zip(codes.tolist(), workload.floats("run_time")[jobs], strict=True)
    ]


def longest_limits(workload: Workload, cluster: SlurmCluster) -> FloatArray:
    """Return the longest time limit with which each job may start on a cluster, s, shape (jobs,); infinity: any."""
    owners = [strings(workload.arrow(name)) for name in ("partition", "group", "user", "queue")]
    accounting = Accounting(cluster, (), owners[1], owners[2])
    choose = min if cluster.all_partitions else max

    @cache
    def longest(listed: str, group: str, user: str, queue: str) -> float:
        limits = []
        for name in listed.split(","):
            number = cluster.partition(name)
            owner = "" if number is None else accounting.owner(group, user, queue, number)
            if number is not None and not isinstance(owner, str):
                own = 0.0 if accounting.beyond_partition(owner) else cluster.partitions[number].limit_s
                limits.append(min(own or math.inf, accounting.wall_s(owner)))
        return choose(limits, default=math.inf)

    return np.array([longest(*each) for each in zip(*owners, strict=True)])


def several_kinds(workload: Workload) -> BoolArray:
    """Return whether each job demands nodes of several kinds, or that some of its nodes have a feature."""
    codes, features = codes_of(workload.arrow("features"))
    return np.array(["[" in text or "*" in text for text in features], dtype=bool)[codes] & (workload.ints("nodes") > 1)


def in_cpus(workload: Workload) -> bool:
    """Return whether the cores of a workload are the CPUs that Slurm gave: threads, where a core has several."""
    steps = workload.provenance.steps
    known = ["cpus_per_core" in step.parameters for step in steps if step.name == IN_CORES]
    return any(known or [step.parameters.get("format") in IN_CPUS for step in steps if step.name == "read"])
