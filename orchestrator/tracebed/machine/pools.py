"""The pools of a machine: the nodes that can serve the same jobs, and what else a machine allows a job.

Each policy decides on one pool after the other, as if each were a machine of its own. Jobs of one pool can have any
of its nodes. Pools may overlap: the nodes with much memory serve all jobs of their partition, and some jobs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray, Workload
from tracebed.machine.machine import Machine, Partition, expanded


@dataclass(frozen=True)
class Pool:
    """Nodes that can serve the same jobs.

    Attributes:
        nodes: their numbers, ascending.
        tier: of two pools with the same node, the one of the higher tier is served first.
    """

    nodes: tuple[int, ...]
    tier: int = 1


@dataclass(frozen=True, eq=False)
class Pools:
    """The pools of a machine for the jobs of a workload.

    Attributes:
        pools: the pools, by their first nodes.
        of: number of the pool of each job, shape (jobs,); -1: no nodes can serve it.
        reasons: job that no nodes can serve -> the reason.
        most_nodes: the most nodes that each job may have, shape (jobs,); infinity: any number.
        least_cores: the fewest cores of a node that can serve the job, shape (jobs,).
        shared: number of jobs that ask for a part of a node, and share nodes on such a machine.
        weights: the weight of each node, shape (nodes,): nodes of smaller weight are allocated first.
    """

    pools: tuple[Pool, ...]
    of: IntArray
    reasons: dict[int, str]
    most_nodes: FloatArray
    least_cores: IntArray
    shared: int
    weights: IntArray

    @classmethod
    def on(cls, machine: Machine, workload: Workload, least: IntArray) -> Pools:
        """Return the pools of a machine.

        Args:
            machine: the machine.
            workload: jobs with a run time and a size (`Workload.runnable`).
            least: the fewest nodes on which each job starts, shape (jobs,).
        """
        from tracebed.machine.demand import Service, names_by_class  # most machines have no demands

        names = names_by_class(machine)
        service = Service(workload, machine, names, least)
        class_of = np.repeat(np.arange(len(names)), [len(own) for own in names])
        number = {node.name: at for at, node in enumerate(machine.nodes)}
        reasons = service.reasons()
        is_served = np.ones(len(workload), dtype=bool)
        is_served[[*reasons]] = False
        known: dict[Pool, int] = {}
        of = np.full(len(workload), -1, dtype=np.int64)
        for rows, partitions in service.of:
            there, tier = _members(partitions, number), max((part.tier for part in partitions), default=1)
            left = rows[is_served[rows]]
            packed = np.packbits(service.can[left], axis=1)
            while len(left):  # most jobs of the same partitions can be served by the same classes
                pool = Pool(tuple(np.flatnonzero(there & service.can[left[0]][class_of]).tolist()), tier)
                alike = (packed == packed[0]).all(axis=1)
                of[left[alike]] = known.setdefault(pool, len(known))
                left, packed = left[~alike], packed[~alike]
        order = sorted(known, key=lambda pool: (pool.nodes, -pool.tier))
        place = np.array([*map(order.index, known), -1], dtype=np.int64)
        cores = np.array([node.cores for node in machine.nodes])
        least_cores = np.array([*(cores[list(pool.nodes)].min() for pool in order), cores.min()], dtype=np.int64)
        of = place[of]
        shared = int((service.shared & (workload.ints("cores_per_node") < least_cores[of])).sum())
        weights = np.array([kind.weight for kind in machine.classes])[class_of]
        return cls(tuple(order), of, reasons, service.most_nodes, least_cores[of], shared, weights)

    @cached_property
    def overlapping(self) -> tuple[tuple[int, ...], ...]:
        """The other pools with a node of each pool."""
        sets = [set(pool.nodes) for pool in self.pools]
        return tuple(
            tuple(other for other, nodes in enumerate(sets) if other != number and not nodes.isdisjoint(own))
            for number, own in enumerate(sets)
        )

    @cached_property
    def connected(self) -> tuple[tuple[int, ...], ...]:
        """The other pools that share nodes with each pool, or with a pool connected with it."""
        groups: list[set[int]] = []
        for number, others in enumerate(self.overlapping):
            group = {number, *others}
            joined = [known for known in groups if known & group]
            groups = [known for known in groups if known not in joined] + [group.union(*joined)]
        return tuple(
            tuple(sorted(group - {number})) for number in range(len(self.pools)) for group in groups if number in group
        )

    @property
    def disjoint(self) -> bool:
        """Whether no node is in two pools."""
        return not any(self.overlapping)


def _members(partitions: Sequence[Partition], number: dict[str, int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each node is in one of some partitions, shape (nodes,); without partitions: all are."""
    if not partitions or not all(part.nodes for part in partitions):
        return np.ones(len(number), dtype=bool)
    members = np.zeros(len(number), dtype=bool)
    members[[number[name] for part in partitions for name in expanded(part.nodes)]] = True
    return members
