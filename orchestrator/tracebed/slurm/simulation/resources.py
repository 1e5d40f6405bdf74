"""The resources of nodes that jobs share, the switches that connect the nodes, and what a job requests of them.

Sets of nodes are masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of

Parts = Mapping[int, int]
"""Node -> number of cores."""


OF_TASKS, OF_CPUS = 1, 2
"""The cores of a job are those of its tasks, which Slurm deals out to the free sockets; or those that the job got, and
so whole sockets, except where their number says otherwise."""
ALL = -1
"""Memory of a job that asks for none where Slurm has no default (`DefMemPerCPU`)."""


APART = -1
"""Distance of two switches without a connection."""
LINEAR, CONS_RES, CONS_TRES = range(3)
"""The plugins of `SelectType`, each of which has rules of its own."""


class Request(NamedTuple):
    """The resources that a job requests. Cores are those of `Resources`: CPUs, where the threads of cores differ."""

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
    sockets: int = 0
    """Whether the job gets whole sockets (`CR_Socket`): `OF_TASKS`, `OF_CPUS`, or 0."""
    least_loaded: bool = False
    """Whether the nodes with the most idle cores come first (`CR_LLN`)."""
    one_thread: bool = False
    """Whether the job uses one CPU of each core, so that its cores are cores where those of nodes are CPUs."""


@dataclass(frozen=True)
class Switches:
    """The switches of a cluster, in the order of topology.conf.

    Attributes:
        nodes: of each switch, mask of the nodes that it reaches.
        level: of each switch, 0 if its nodes are attached to it; else one more than the highest level below.
        parent: of each switch, the one above; its own number at the top.
        rules: whose rules count.
    """

    nodes: tuple[int, ...]
    level: tuple[int, ...]
    parent: tuple[int, ...]
    rules: int = CONS_TRES

    @classmethod
    def of(cls, nodes: Sequence[int], below: Sequence[Sequence[int]], rules: int = CONS_TRES) -> Switches:
        """Return the switches with the nodes attached to each, and the numbers of the switches below each."""
        reached, level, parent = [*nodes], [0] * len(nodes), [*range(len(nodes))]

        def climb(switch: int) -> None:
            for each in below[switch]:
                climb(each)
                reached[switch] |= reached[each]
                level[switch] = max(level[switch], level[each] + 1)
                parent[each] = switch

        for switch in range(len(nodes)):
            climb(switch)
        return cls(tuple(reached), tuple(level), tuple(parent), rules)

    @cached_property
    def distance(self) -> tuple[tuple[int, ...], ...]:
        """Number of links between two switches; `APART`: there is no connection."""
        paths = [self._path(switch) for switch in range(len(self.nodes))]
        return tuple(
            tuple(
                next((up + other.index(switch) for up, switch in enumerate(path) if switch in other), APART)
                for other in paths
            )
            for path in paths
        )

    def _path(self, switch: int) -> list[int]:
        """Return a switch and those above it."""
        path = [switch]
        while self.parent[path[-1]] != path[-1]:
            path.append(self.parent[path[-1]])
        return path


@dataclass
class Resources:
    """The free resources of the nodes.

    Attributes:
        memory: free memory of each node, MiB.
        gres: free generic resources of each node, by kind.
        total_memory: memory of each node, MiB.
        switches: the switches of `topology/tree`; None: there is no topology.
        threads: CPUs of a core of each node, where cores are CPUs since the nodes differ; empty: 1.
        sockets: cores of a socket of each node; empty: no job gets whole sockets.
        kept: whether jobs leave each generic resource of a node to others (`no_consume`); empty: none.
    """

    cores: list[int]
    memory: list[int]
    gres: list[tuple[int, ...]]
    total: Sequence[int]
    total_memory: Sequence[int]
    switches: Switches | None
    weights: Sequence[int]
    threads: Sequence[int] = ()
    sockets: Sequence[int] = ()
    kept: Sequence[tuple[bool, ...]] = ()

    @cached_property
    def alike(self) -> list[tuple[int, int]]:
        """The first node, and the mask, of each class of nodes with the same resources. Read it of idle nodes only."""
        nodes: dict[tuple[Any, ...], list[int]] = {}
        columns = [self.cores, self.memory, self.gres, self.total, self.total_memory, self.threads, self.sockets]
        for node, values in enumerate(zip(*filter(None, columns), strict=True)):
            nodes.setdefault(values, []).append(node)
        return [(own[0], mask_of(own)) for own in nodes.values()]

    def memory_of(self, request: Request, node: int, cores: int) -> int:
        """Return the memory that a job gets with `cores` cores of `node`, MiB."""
        if request.whole or request.memory == ALL:
            return self.total_memory[node]
        return request.memory * cores if request.by_core else request.memory

    def grain(self, request: Request, node: int) -> int:
        """Return the number of cores of a node that a job gets together: those of a socket, or the CPUs of a core."""
        if request.sockets:
            return self.sockets[node]
        return self.threads[node] if self.threads else 1

    def capacity(self, request: Request, node: int) -> int:
        """Return the number of cores of `node` that a job can use now."""
        if any(wanted > has for wanted, has in zip(request.gres, self.gres[node], strict=True)):
            return 0
        used = self.threads[node] if request.one_thread and self.threads else 1
        if request.whole:
            return self.total[node] // used if self.cores[node] == self.total[node] else 0
        least, grain = max(1, request.per_node), self.grain(request, node)
        free = self.cores[node]
        if request.memory == ALL:
            free = free if self.memory[node] == self.total_memory[node] else 0
        elif request.by_core and request.memory:
            most = self.memory[node] // request.memory
            if most < free and request.sockets == OF_TASKS:  # each task, up to the number of sockets, gets a socket
                free = most // grain * (self.threads[node] if self.threads else 1)
            elif most < free:
                free = most - most % grain
        elif request.memory > self.memory[node]:
            return 0
        free //= used
        return 0 if free < least else request.per_node or free

    def has_room(self, request: Request, usable: int) -> bool:
        """Return whether the free resources of usable nodes (a mask) together suffice for a job."""
        cores = [self.capacity(request, node) for node in nodes_of(usable & request.eligible)]
        return sum(cores) >= request.cores and sum(own > 0 for own in cores) >= request.fewest
