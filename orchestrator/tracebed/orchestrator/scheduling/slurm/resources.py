"""The resources of nodes that jobs share, and Slurm's choice of nodes (select/cons_tres, select/cons_res).

Source: slurm.conf(5), sbatch(1), and experiments on Slurm 22.05.8: `sbatch -n 12 --ntasks-per-node=12` waits for a node
with 12 idle cores, `sbatch -n 12` starts on 6 and 6 idle cores of two nodes. Both ask for at least one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from tracebed.orchestrator.scheduling.node_masks import blocks, nodes_of

Parts = Mapping[int, int]
"""Node -> number of cores."""


ALL = -1
"""Memory of a job that asks for none where Slurm has no default (`DefMemPerCPU`)."""


class Request(NamedTuple):
    """The resources that a job requests."""

    cores: int
    """Cores on all nodes."""
    per_node: int = 0
    """Cores on each node (`--ntasks-per-node`); 0: any number."""
    fewest: int = 1
    """Smallest number of nodes."""
    whole: bool = False
    """Whether the job gets all cores and memory of its nodes."""
    memory: int = 0
    """Memory on each node, or for each core, MiB; `ALL`: all memory of each node."""
    by_core: bool = False
    """Whether `memory` is for each core."""
    gres: tuple[int, ...] = ()
    """Generic resources on each node, by kind."""
    eligible: int = -1
    """Mask of the nodes of the partition that have the features, cores and memory, whatever their generic resources."""


class Running(NamedTuple):
    """A running job, in the order in which a pass expects the ends."""

    end: int
    """Expected end: start plus time limit."""
    job: int
    request: Request
    parts: Parts
    nodes: int
    """Mask of the nodes."""


@dataclass
class Resources:
    """The free resources of the nodes.

    Attributes:
        cores: free cores of each node.
        memory: free memory of each node, MiB.
        gres: free generic resources of each node, by kind.
        total: cores of each node.
        total_memory: memory of each node, MiB.
        groups: switch of each node; None: without a topology, blocks of consecutive nodes take the place of switches.
        weights: weight of each node.
        newer: whether the rules are those of a newer Slurm, see `Rules`.
    """

    cores: list[int]
    memory: list[int]
    gres: list[tuple[int, ...]]
    total: Sequence[int]
    total_memory: Sequence[int]
    groups: Sequence[int] | None
    weights: Sequence[int]
    newer: bool = False

    def copy(self) -> Resources:
        """Return a copy whose free resources change independently."""
        free = [*self.cores], [*self.memory], [*self.gres]
        return Resources(*free, self.total, self.total_memory, self.groups, self.weights, self.newer)

    def take(self, request: Request, parts: Parts, sign: int = -1) -> None:
        """Allocate the cores `parts` and the resources that belong to them."""
        for node, cores in parts.items():
            self.cores[node] += sign * cores
            self.memory[node] += sign * self.memory_of(request, node, cores)
            self.gres[node] = tuple(a + sign * b for a, b in zip(self.gres[node], request.gres, strict=True))

    def idle(self, node: int) -> bool:
        """Return whether no job uses cores of a node."""
        return self.cores[node] == self.total[node]

    def release(self, request: Request, parts: Parts) -> None:
        """Release the cores `parts` and the resources that belong to them."""
        self.take(request, parts, 1)

    def memory_of(self, request: Request, node: int, cores: int) -> int:
        """Return the memory that a job gets with `cores` cores of `node`, MiB."""
        if request.whole or request.memory == ALL:
            return self.total_memory[node]
        return request.memory * cores if request.by_core else request.memory

    def capacity(self, request: Request, node: int) -> int:
        """Return the number of cores of `node` that a job can use now."""
        free = self.cores[node]
        if any(wanted > has for wanted, has in zip(request.gres, self.gres[node], strict=True)):
            return 0
        if request.whole:
            return free if free == self.total[node] else 0
        least = max(1, request.per_node)
        if request.memory == ALL:
            free = free if self.memory[node] == self.total_memory[node] else 0
        elif request.by_core and request.memory:
            free = min(free, self.memory[node] // request.memory)
        elif request.memory > self.memory[node]:
            return 0
        return 0 if free < least else request.per_node or free

    def choose(self, request: Request, usable: int) -> dict[int, int] | None:
        """Return the cores of the `usable` nodes that a job gets; None: too few are free.

        Nodes of a smaller weight are used first: nodes of the next weight are considered if those before are too few.
        """
        capacity = {node: self.capacity(request, node) for node in nodes_of(usable & request.eligible)}
        capacity = {node: cores for node, cores in capacity.items() if cores}
        for weight in sorted({self.weights[node] for node in capacity}):
            allowed = {node: cores for node, cores in capacity.items() if self.weights[node] <= weight}
            if sum(allowed.values()) >= request.cores and len(allowed) >= request.fewest:
                parts = self._spread(request, allowed)
                if parts is not None:
                    return parts
        return None

    def _spread(self, request: Request, capacity: Parts) -> dict[int, int] | None:
        """Distribute the cores of a job over nodes: over few switches, with little waste.

        If nodes of one switch suffice, the switch with the fewest usable nodes is chosen. Else the switch with the most
        usable cores comes first, until the rest fits into one switch: then the one with the fewest usable cores is
        chosen. The nodes of a switch are used in their order.

        Without a topology, blocks of consecutive nodes of one weight take the place of switches, and those of the
        smallest weight come first. They compare by free cores, whatever the job can use of them. If one node of a block
        suffices, it is that with the fewest free cores. A job with generic resources compares the cores that it can
        use: one of each node if it wants one. In a newer Slurm, each job compares the cores of a single node so.
        """
        if request.cores == 1 and any(request.gres) and not request.whole:
            capacity = dict.fromkeys(capacity, 1)
        groups = self._groups(capacity)
        sizes = [sum(capacity[node] for node in group) for group in groups]
        cores, fewest = request.cores, request.fewest
        if self.groups is not None:
            enough = [k for k, group in enumerate(groups) if sizes[k] >= cores and len(group) >= fewest]
            if enough:
                best = min(enough, key=lambda k: len(groups[k]))
                groups, sizes = [groups[best]], [sizes[best]]
        parts: dict[int, int] = {}
        left = list(range(len(groups)))
        while (cores > 0 or fewest > 0) and left:
            best = min(left, key=lambda k: self._rank(groups[k], sizes[k], cores, fewest, request))
            left.remove(best)
            for node in self._in_order(groups[best], capacity, cores, fewest, request):
                if cores <= 0 and fewest <= 0:
                    break
                taken = capacity[node] if request.whole else min(capacity[node], cores - max(0, fewest - 1))
                if taken < 1:
                    continue
                parts[node] = taken
                cores -= taken
                fewest -= 1
        return parts if cores <= 0 and fewest <= 0 else None

    def _in_order(self, group: list[int], capacity: Parts, cores: int, fewest: int, request: Request) -> list[int]:
        """Return the nodes of a group that are used for the rest of a job, in their order."""
        if self.groups is None and fewest <= 1:
            alone = [node for node in group if capacity[node] >= cores]
            if alone:
                usable = self.newer or any(request.gres)
                return [min(alone, key=capacity.__getitem__ if usable else self.cores.__getitem__)]
        return group

    def _rank(
        self, group: Sequence[int], size: int, cores: int, fewest: int, request: Request
    ) -> tuple[int, bool, int]:
        """Return the key by which the next group of nodes is chosen for the rest of a job: the smallest one."""
        suffices = size >= cores and len(group) >= fewest
        weight = self.weights[group[0]] if self.groups is None else 0
        usable = self.groups is not None or any(request.gres)
        free = size if usable else sum(self.cores[node] for node in group)
        return weight, not suffices, free if suffices else -free

    def _groups(self, capacity: Parts) -> list[list[int]]:
        """Return the usable nodes by switch, in the order of the switches; without a topology by block and weight."""
        if self.groups is not None:
            by_switch = sorted(capacity, key=lambda node: (self.groups[node], node))  # type: ignore[index]
            return [list(nodes) for _, nodes in groupby(by_switch, key=self.groups.__getitem__)]
        mask = sum(1 << node for node in capacity)
        return [
            list(nodes)
            for first, count in blocks(mask)
            for _, nodes in groupby(range(first, first + count), key=self.weights.__getitem__)
        ]
