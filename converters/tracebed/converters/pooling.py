"""Pooling: losses when a log with partitions, GPUs and shared nodes becomes a workload of whole, equal nodes.

A workload has one machine of equal nodes, and each job holds whole nodes. The functions count the jobs of a log that
differ, and refuse a machine that is smaller than the number of nodes held at once.
"""

from __future__ import annotations

from tracebed.converters.description import gpu_jobs, occupied_nodes, part_jobs, partitions_of
from tracebed.converters.formats.format import BY_CORE
from tracebed.converters.workload import Workload
from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.table import equal

MOST_NAMED = 6
AS_IS = "simulate --machine FILE"
"""The way to simulate the jobs as they are."""


def peak_nodes(workload: Workload) -> int:
    """Return the largest number of nodes that the jobs of a log held at once; 0 if unknown."""
    return int(occupied_nodes(workload)[1].max(initial=0))


def pooled(workload: Workload) -> dict[str, int]:
    """Return what differs from jobs of whole nodes of one partition without GPUs -> number of jobs."""
    losses: dict[str, int] = {}
    partitions, gpus = partitions_of(workload), gpu_jobs(workload)
    if len(partitions) > 1:
        what = f"jobs in {len(partitions)} partitions ({_named(partitions)}), which count as jobs of one machine of "
        losses[f"{what}equal nodes (clean --only partition=NAME, or {AS_IS})"] = sum(partitions.values())
    remedies = f"clean: drop_gpu, --only partition=NAME, or {AS_IS}"
    losses[f"jobs with GPUs, which count as jobs of nodes without GPUs ({remedies})"] = gpus
    featured = int((~equal(workload.arrow("features"), "")).sum())
    losses[f"jobs that demand features, which count as jobs of any node ({AS_IS})"] = featured
    return losses | with_shared_nodes(workload)


def with_shared_nodes(workload: Workload) -> dict[str, int]:
    """Return what differs from jobs of whole nodes of the machine -> number of jobs, as far as the machine is known."""
    losses: dict[str, int] = {}
    system = workload.provenance.system
    shares = "extra_node_share" in workload.columns
    remedy = " (clean: drop_shared)" if shares else " (convert --by core)" if _has_cores(workload) else ""
    if system.cores_per_node is not None:
        wide = int((workload.ints("cores_per_node") > system.cores_per_node).sum())
        losses[f"jobs with more than the {system.cores_per_node:,} cores per node of the machine"] = wide
    losses[f"jobs on a part of a node, which count as jobs of the whole node{remedy}"] = part_jobs(workload)
    if system.nodes is not None and (most := peak_nodes(workload)) > system.nodes:
        losses[f"up to {most:,} nodes held at once, more than the {system.nodes:,} nodes of the machine"] = 1
    return losses


def _has_cores(workload: Workload) -> bool:
    """Return whether the log can be read with a node for each core."""
    steps = workload.provenance.steps
    return bool(steps) and steps[0].parameters.get("format") in BY_CORE


def check_machine(workload: Workload, where: str | None = None, *, most: int | None = None) -> None:
    """Raise InputError, with remedies, if the jobs of a log held more nodes at once (`most`) than its machine has."""
    system = workload.provenance.system
    most = peak_nodes(workload) if most is None else most
    if system.nodes is None or most <= system.nodes:
        return
    partitions, gpus, parts = partitions_of(workload), gpu_jobs(workload), part_jobs(workload)
    causes, remedies = [], []
    if len(partitions) > 1:
        causes.append(f"jobs of {len(partitions)} partitions ({_named(partitions)})")
        if any(peak_nodes(_of_partition(workload, name)) <= system.nodes for name in partitions):
            remedies.append("keep a partition (clean --recipe sacct --only partition=NAME)")
    if gpus:
        causes.append(f"{counted(gpus, 'job')} with GPUs")
    if parts:
        jobs, count = ("job", "counts as a job") if parts == 1 else ("jobs", "count as jobs")
        causes.append(f"{parts:,} {jobs} on a part of a node, which {count} of the whole node")
    machine = system.nodes * (system.cores_per_node or 1)
    if _has_cores(workload) and system.cores_per_node not in (None, 1) and peak_nodes(_by_core(workload)) <= machine:
        remedies.append(
            f"read cores in place of nodes (convert --by core --system {system.nodes * system.cores_per_node}x1)"
        )
    cores = "" if system.cores_per_node is None else f"x{system.cores_per_node}"
    remedies.append(f"state a machine for all jobs (convert --system {most}{cores})")
    raise InputError(
        f"the jobs held up to {most:,} nodes at once, but the machine has {system.nodes:,}"
        + (f": the log has {', '.join(causes)}" if causes else ""),
        where=where,
        hint=", or ".join(remedies),
    )


def _of_partition(workload: Workload, name: str) -> Workload:
    """Return the jobs of a partition."""
    return Workload(workload.table[workload.partitions().to_numpy() == name], workload.provenance)


def _by_core(workload: Workload) -> Workload:
    """Return the jobs of a log with a node for each core."""
    cores = workload.ints("nodes") * workload.ints("cores_per_node")
    return Workload(workload.table.assign(nodes=cores, cores_per_node=1), workload.provenance)


def _named(partitions: dict[str, int]) -> str:
    names = [f"{name[:40]} {jobs:,}" for name, jobs in partitions.items()]
    return ", ".join(names[:MOST_NAMED]) + (f", {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
