"""Slurm's choice of nodes with `topology/tree`.

Source: topology.conf(5), and experiments on Slurm 22.05.8 (`tests/slurm/test_slurm_topology.py`). Sets of
nodes are masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.slurm.simulation.resources import APART, CONS_TRES, LINEAR, Switches


def choose(
    tree: Switches, capacity: Mapping[int, int], weights: Sequence[int], cores: int, fewest: int, *, whole: bool
) -> dict[int, int] | None:
    """Return the cores of each node that a job gets; None: no tree of switches suffices.

    If the nodes do not suffice, `select/cons_tres` tries again without those with one usable core, with two, and so
    on, as long as more than the smallest number of nodes, `fewest`, is left. `capacity`: node -> number of cores that
    the job can use, at least 1. `whole`: the job gets all these cores of its nodes.
    """
    if tree.rules != CONS_TRES:
        return _lowest(tree, capacity, cores, fewest, whole)
    left = dict(capacity)
    for size in (0, *sorted({*capacity.values()})[:-1]):
        for node in sorted(left):
            if left[node] <= size and len(left) > fewest:
                del left[node]
        parts = _tree(tree, left, weights, cores, fewest, whole)
        if parts is not None or len(left) <= fewest:
            return parts
    return None


def _top(tree: Switches, able: int, weights: Sequence[int], fewest: int) -> int | None:
    """Return the highest switch with enough nodes, the last one of those with nodes of the smallest weight."""
    top, lightest = None, 0
    for switch, nodes in enumerate(tree.nodes):
        usable = nodes_of(nodes & able)
        if len(usable) < max(1, fewest):
            continue
        weight = min(weights[node] for node in usable)
        if top is None or (tree.level[switch] >= tree.level[top] and weight <= lightest):
            top, lightest = switch, weight
    return top


def _tree(
    tree: Switches, capacity: Mapping[int, int], weights: Sequence[int], cores: int, fewest: int, whole: bool
) -> dict[int, int] | None:
    """Distribute the cores of a job over the nodes below one switch.

    Nodes of the smallest weights that suffice are considered, and those of all but the last of these weights are
    used. Then come the other nodes of their switches, then further switches.
    """
    top = _top(tree, mask_of(capacity.keys()), weights, fewest)
    if top is None:
        return None
    below = [node for node in sorted(capacity) if tree.nodes[top] >> node & 1]
    weight = next(
        (
            weight
            for weight in sorted({weights[node] for node in below})
            if sum(capacity[node] for node in below if weights[node] <= weight) >= cores
            and sum(weights[node] <= weight for node in below) >= fewest
        ),
        None,
    )
    if weight is None:
        return None
    job = _Job(capacity, cores, fewest, whole)
    lighter = [node for node in below if weights[node] < weight]
    among = mask_of([node for node in below if weights[node] <= weight])
    job.take(lighter)
    inside = [nodes & among for nodes in tree.nodes]
    used = [bool(nodes & mask_of(lighter)) for nodes in inside]
    leaves = [switch for switch, level in enumerate(tree.level) if not level]
    for leaf in (leaf for leaf in leaves if used[leaf]):
        job.take(nodes_of(inside[leaf]))
    near = [0] * len(inside)

    def reach(switch: int) -> None:
        for other, links in enumerate(tree.distance[switch]):
            near[other] = APART if APART in (links, near[other]) else near[other] + links

    for switch in (switch for switch in range(len(inside)) if used[switch]):
        reach(switch)
    count = [nodes.bit_count() for nodes in inside]
    before = None
    while not job.done and before != job.fewest:
        before, best = job.fewest, -1
        for leaf in (leaf for leaf in leaves if not used[leaf] and count[leaf] and near[leaf] != APART):
            if best >= 0:
                order = _compare(tree, leaf, best, count, job.fewest)
                if not ((near[leaf] < near[best] and order >= 0) or (near[leaf] == near[best] and order > 0)):
                    continue
            best = leaf
        if best < 0:
            break
        reach(best)
        job.take(nodes_of(inside[best]))
        count[best] = 0
    return job.parts if job.done else None


def _compare(tree: Switches, one: int, other: int, count: Sequence[int], fewest: int) -> int:
    """Return whether a switch is better than another one (1), worse (-1) or equal (0) for `fewest` more nodes.

    The smaller one of two that suffice is better. Of two that do not, those above decide.
    """
    while True:
        enough = count[one] >= fewest, count[other] >= fewest
        if enough[0] != enough[1]:
            return 1 if enough[0] else -1
        if all(enough):
            if count[one] != count[other]:
                return 1 if count[one] < count[other] else -1
            break
        above = tree.parent[one], tree.parent[other]
        if above[0] == above[1] or above == (one, other):
            break
        one, other = above
    return _sign(count[one] - count[other]) or _sign(tree.level[other] - tree.level[one])


def _lowest(tree: Switches, capacity: Mapping[int, int], cores: int, fewest: int, whole: bool) -> dict[int, int] | None:
    """Choose the lowest switch that suffices, of these the one with the fewest usable nodes.

    Of the switches below it, that with the fewest usable cores comes first with `select/linear`, and their nodes
    come in their order. With `select/cons_res`, switches and nodes come as `_fitting` says.
    """
    able = mask_of(capacity.keys())
    inside = [nodes & able for nodes in tree.nodes]
    sizes = [sum(capacity[node] for node in nodes_of(nodes)) for nodes in inside]
    enough = [
        switch for switch, nodes in enumerate(inside) if sizes[switch] >= cores and nodes.bit_count() >= max(1, fewest)
    ]
    if not enough:
        return None
    best = min(enough, key=lambda switch: (tree.level[switch], inside[switch].bit_count()))
    job = _Job(capacity, cores, fewest, whole)
    leaves = [k for k, nodes in enumerate(inside) if not tree.level[k] and nodes and not nodes & ~inside[best]]
    if tree.rules == LINEAR:
        for leaf in sorted(leaves, key=sizes.__getitem__):
            job.take(nodes_of(inside[leaf]))
    while leaves and not job.done:
        leaf = _fitting(leaves, sizes, [inside[k].bit_count() >= job.fewest for k in leaves], job.cores)
        leaves.remove(leaf)
        nodes = [*nodes_of(inside[leaf])]
        while nodes and not job.done:
            node = _fitting(nodes, capacity, [True] * len(nodes), job.cores)
            nodes.remove(node)
            job.take([node])
    return job.parts if job.done else None


def _fitting(choices: Sequence[int], sizes: Sequence[int] | Mapping[int, int], many: Sequence[bool], cores: int) -> int:
    """Return the smallest of the choices that suffice, or the largest one if none does.

    A choice with more cores than such a one comes before it if it has too few nodes. `many`: whether it has enough.
    """
    best, sufficient = choices[0], many[0] and sizes[choices[0]] >= cores
    for choice, nodes in zip(choices[1:], many[1:], strict=True):
        enough, larger = nodes and sizes[choice] >= cores, sizes[choice] - sizes[best]
        if (enough and (not sufficient or larger < 0)) or (not enough and larger > 0):
            best, sufficient = choice, enough
    return best


@dataclass
class _Job:
    """A job that takes nodes one after another, until it has enough nodes and cores."""

    capacity: Mapping[int, int]
    cores: int
    fewest: int
    whole: bool

    def __post_init__(self) -> None:
        self.parts: dict[int, int] = {}

    @property
    def done(self) -> bool:
        return self.cores <= 0 and self.fewest <= 0

    def take(self, nodes: Sequence[int]) -> None:
        """Take those of `nodes` that are still needed, in this order; on each further node, one core is left."""
        for node in nodes:
            if self.done:
                return
            cores = self.capacity[node]
            if not self.whole:
                cores = min(cores, self.cores - max(0, self.fewest - 1))
            if node in self.parts or cores < 1:
                continue
            self.parts[node] = cores
            self.cores -= cores
            self.fewest -= 1


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
