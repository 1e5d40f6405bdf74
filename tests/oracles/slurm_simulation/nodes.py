"""The free resources of the nodes, and Slurm's choice of nodes (select/cons_tres, select/cons_res).

Source: slurm.conf(5), sbatch(1), and experiments on Slurm 22.05.8: `sbatch -n 12 --ntasks-per-node=12` waits for a node
with 12 idle cores, `sbatch -n 12` starts on 6 and 6 idle cores of two nodes. Both ask for at least one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import NamedTuple

from tests.oracles.slurm_simulation import switches
from tracebed.orchestrator.scheduling.node_masks import blocks, nodes_of
from tracebed.slurm.simulation.resources import CONS_TRES, OF_TASKS, Parts, Request, Resources


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
class Nodes(Resources):
    """Resources that jobs take and release.

    `newer`: whether the rules are those of a newer Slurm, see `Rules`. `order`: the weights by which the nodes of one
    choice compare; empty: `weights`, which say in any case which nodes are considered first.
    """

    newer: bool = False
    order: Sequence[int] = ()

    @classmethod
    def of(cls, resources: Resources) -> Nodes:
        """Return a copy of resources."""
        return cls(**{each.name: getattr(resources, each.name) for each in fields(resources)}).copy()

    def copy(self) -> Nodes:
        """Return a copy whose free resources change independently."""
        return replace(self, cores=[*self.cores], memory=[*self.memory], gres=[*self.gres])

    def take(self, request: Request, parts: Parts, sign: int = -1) -> None:
        """Allocate the cores `parts` and the resources that belong to them."""
        for node, cores in parts.items():
            self.cores[node] += sign * cores
            self.memory[node] += sign * self.memory_of(request, node, cores)
            kept = self.kept[node] if self.kept else (False,) * len(request.gres)
            used = zip(self.gres[node], request.gres, kept, strict=True)
            self.gres[node] = tuple(free if stays else free + sign * wanted for free, wanted, stays in used)

    def idle(self, node: int) -> bool:
        """Return whether no job uses cores of a node."""
        return self.cores[node] == self.total[node]

    def release(self, request: Request, parts: Parts) -> None:
        """Release the cores `parts` and the resources that belong to them."""
        self.take(request, parts, 1)

    def held(self, request: Request, node: int, used: int) -> int:
        """Return the cores that a job holds on a node of which it uses `used` cores: whole cores or sockets."""
        if request.whole:
            return self.total[node]
        grain, threads = self.grain(request, node), self.threads[node] if self.threads else 1
        cores, used = (used * threads, used) if request.one_thread else (used, -(-used // threads))
        count = -(-cores // grain)
        if request.sockets and (request.sockets == OF_TASKS or cores % grain):
            free = -(-self.cores[node] // grain)
            if request.by_core and request.memory > 0:
                free = min(free, self.memory[node] // (request.memory * grain))
            count = max(count, min(used, free))
        return min(count * grain, self.cores[node])

    def choose(self, request: Request, usable: int) -> dict[int, int] | None:
        """Return the cores of the `usable` nodes that a job gets; None: too few are free.

        Nodes of a smaller weight are used first: nodes of the next weight are considered if those before are too few.
        """
        capacity = {node: self.capacity(request, node) for node in nodes_of(usable & request.eligible)}
        capacity = {node: cores for node, cores in capacity.items() if cores}
        if self.switches and self.switches.rules == CONS_TRES and not request.least_loaded:
            return self._below_switches(request, capacity)
        for weight in sorted({self.weights[node] for node in capacity}):
            allowed = {node: cores for node, cores in capacity.items() if self.weights[node] <= weight}
            if sum(allowed.values()) >= request.cores and len(allowed) >= request.fewest:
                parts = self._spread(request, allowed)
                if parts is not None:
                    return parts
        return None

    def _spread(self, request: Request, capacity: Parts) -> dict[int, int] | None:
        """Distribute the cores of a job over blocks of consecutive nodes of one weight, with little waste.

        Blocks of the smallest weight come first. Of these, the block with the most free cores comes first, until the
        rest fits into one block: then the one with the fewest free cores is chosen, whatever the job can use of them.
        If one node of a block suffices, it is that with the fewest free cores. A job with generic resources compares
        the cores that it can use: one of each node if it wants one. In a newer Slurm, each job compares the cores of a
        single node so. With a topology, `Switches` chooses.
        """
        if self.switches and not request.least_loaded:
            return self._below_switches(request, capacity)
        if request.cores == 1 and any(request.gres) and not request.whole:
            capacity = dict.fromkeys(capacity, 1)
        if request.least_loaded:
            return self._least_loaded(request, capacity)
        groups = self._groups(capacity)
        sizes = [sum(capacity[node] for node in group) for group in groups]
        cores, fewest = request.cores, request.fewest
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
                parts[node] = self.held(request, node, taken)
                cores -= taken
                fewest -= 1
        return parts if cores <= 0 and fewest <= 0 else None

    def _below_switches(self, request: Request, capacity: Parts) -> dict[int, int] | None:
        """Distribute the cores of a job over nodes below one switch."""
        assert self.switches
        used = switches.choose(
            self.switches, capacity, self.weights, request.cores, request.fewest, whole=request.whole
        )
        return None if used is None else {node: self.held(request, node, cores) for node, cores in used.items()}

    def _least_loaded(self, request: Request, capacity: Parts) -> dict[int, int] | None:
        """Distribute the cores of a job over the nodes with the most free cores, whatever their switches."""
        parts: dict[int, int] = {}
        cores, fewest = request.cores, request.fewest
        for node in sorted(capacity, key=lambda node: (self.weights[node], -self.cores[node], node)):
            taken = capacity[node] if request.whole else min(capacity[node], cores - max(0, fewest - 1))
            if taken < 1:
                continue
            parts[node] = self.held(request, node, taken)
            cores, fewest = cores - taken, fewest - 1
            if cores <= 0 and fewest <= 0:
                return parts
        return None

    def _in_order(self, group: list[int], capacity: Parts, cores: int, fewest: int, request: Request) -> list[int]:
        """Return the nodes of a group that are used for the rest of a job, in their order."""
        if fewest <= 1:
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
        free = size if any(request.gres) else sum(self.cores[node] for node in group)
        return (self.order or self.weights)[group[0]], not suffices, free if suffices else -free

    def _groups(self, capacity: Parts) -> list[list[int]]:
        """Return the usable nodes by block and weight."""
        mask = sum(1 << node for node in capacity)
        return [
            list(nodes)
            for first, count in blocks(mask)
            for _, nodes in groupby(range(first, first + count), key=(self.order or self.weights).__getitem__)
        ]
