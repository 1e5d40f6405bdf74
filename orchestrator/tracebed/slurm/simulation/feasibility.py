"""Whether nodes can ever run a job, and why no nodes of its partition suffice."""

from __future__ import annotations

from collections.abc import Sequence

from tracebed.ground.display import counted
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.resources import Request, Resources

NEVER_RUN = "no nodes of its partition can ever run it"


def fits(empty: Resources, request: Request) -> bool:
    """Return whether a job fits on its eligible nodes if all nodes are empty."""
    counts = [((request.eligible & mask).bit_count(), empty.capacity(request, node)) for node, mask in empty.alike]
    # on each further node of a job that shares its nodes, one core is left
    enough = request.whole or request.cores >= request.fewest
    cores = sum(count * size for count, size in counts)
    if not enough or sum(count for count, size in counts if size) < request.fewest or cores < request.cores:
        return False
    return not empty.switches or request.least_loaded or engine.fits(empty, request)


def lacking(cluster: SlurmCluster, empty: Resources, request: Request, nodes: Sequence[int], features: str) -> str:
    """Return what a job demands beyond the empty `nodes`: those of its partition that have the `features`."""
    if not nodes:
        return f"no node has the features {features}"
    plain = request._replace(gres=(0,) * len(request.gres), memory=0, by_core=False, eligible=mask_of(nodes))
    able = [node for node in nodes if empty.capacity(plain, node)]
    if not able:
        most = max(empty.capacity(plain._replace(per_node=0), node) for node in nodes)
        return f"{counted(request.per_node, 'core')} on a node are demanded, and a node has {most:,} at most"
    if request.memory > 0:
        used = max(1, request.per_node) if request.by_core else 1
        wanted, most = request.memory * used, max(empty.total_memory[node] for node in able)
        if wanted > most:
            return f"{wanted:,} MiB of memory on a node are demanded, and a node has {most:,} at most"
        able = [node for node in able if empty.total_memory[node] >= wanted]
    for kind, wanted in zip(cluster.gres, request.gres, strict=True):
        most = max((empty.gres[node][cluster.gres.index(kind)] for node in able), default=0)
        if wanted > most:
            return f"{wanted:,} of the generic resource {kind} on a node are demanded, and a node has {most:,} at most"
    sizes = [size for node in able if (size := empty.capacity(request, node))]
    if len(sizes) < request.fewest:
        return f"{counted(request.fewest, 'node')} with these resources are demanded, of {len(sizes):,}"
    if sum(sizes) >= request.cores:
        return "no switch of topology.conf reaches enough nodes with these resources"
    return f"{counted(request.cores, 'core')} with these resources are demanded, of {sum(sizes):,}"
