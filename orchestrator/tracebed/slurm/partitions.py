"""The cluster of a slurm.conf, as descriptions of a log show it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracebed.converters.description import ALL_PARTITIONS, Capacity
from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.slurm.conf_lines import lines_of
from tracebed.slurm.machine import SlurmCluster, machine_of


def cluster_of(path: Path) -> SlurmCluster:
    """Return the cluster of a slurm.conf."""
    machine = machine_of(lines_of(path), path)
    if machine is None:
        what = "names no nodes with a known number of CPUs"
        raise InputError(what, where=str(path), hint="give the slurm.conf of the cluster, with its NodeName lines")
    return machine


def capacities(machine: SlurmCluster) -> dict[str, Capacity]:
    """Return what each partition has, and the whole cluster, in CPUs as in a log of Slurm."""

    def of(nodes: Iterable[int]) -> Capacity:
        kinds = [machine.nodes[node][1] for node in nodes]
        cpus, gpus = (kind.cores * kind.threads for kind in kinds), (kind.gres.get("gpu", 0) for kind in kinds)
        return Capacity(len(kinds), sum(cpus), sum(gpus))

    partitions = {part.name: of(machine.members(number)) for number, part in enumerate(machine.partitions)}
    return partitions | {ALL_PARTITIONS: of(range(len(machine.nodes)))}


def node_classes(machine: SlurmCluster) -> list[dict[str, Any]]:
    """Return the classes of nodes: names, number, CPUs, memory, generic resources, features and partitions."""
    members = {part.name: set(machine.members(number)) for number, part in enumerate(machine.partitions)}
    found, first = [], 0
    for kind in machine.kinds:
        count = len(host_names(kind.names))
        own = set(range(first, first + count))
        first += count
        found.append(
            {
                "names": kind.names,
                "nodes": count,
                "cpus": kind.cores * kind.threads,
                "memory_mib": kind.memory_mib,
                "gres": {name: count for name, count in kind.gres.items() if ":" not in name},
                "features": list(kind.features),
                "partitions": [name for name, nodes in members.items() if nodes & own],
            }
        )
    return found
