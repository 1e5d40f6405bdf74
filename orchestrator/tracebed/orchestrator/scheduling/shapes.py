"""Admissible shapes, the sets of nodes that a placement accepts for a job, and the placements on a grid.

A shape has the arguments of a placement, and returns None if no admissible set of nodes is free. The placement
`place_SHAPE` returns an admissible set, or the nodes that come closest to one; the policy `deadline` accepts admissible
sets only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Protocol

import numpy as np

from tracebed.ground.topology import Grid, IntArray

ENTRIES = 4
"""Number of nodes, spread over the machine, from which `leak` begins its search."""


class Shape(Protocol):
    """A choice of nodes that may fail."""

    def __call__(self, grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
        """Return the nodes that `job` gets, or None if no admissible set is free.

        Args:
            grid: the machine.
            free: the free nodes, ascending.
            count: the number of nodes to choose, at least 1.
            held: the nodes that an expanding job holds already.
            job: the number of the job, in the order of submission.
        """
        ...


def first(grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
    """Choose the lowest-numbered nodes: only their number counts."""
    return list(free[:count]) if len(free) >= count else None


def hilbert(grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
    """Choose the first contiguous segment of the Hilbert curve, whatever the job holds (Linnert et al. 2024)."""
    if len(free) < count:
        return None
    nodes = least_spread(grid, free, count)
    ends = grid.place[[nodes[0], nodes[-1]]]
    return nodes if ends[1] - ends[0] == count - 1 else None


def median(grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
    """Choose a connected part, grown from the first free node that allows it (Linnert et al. 2024, figure 8).

    The part grows by the free neighbour that adds the least Manhattan distance. From a first node, the part reaches
    the size exactly if the free nodes connected with the first node are enough. Other first nodes are not tried.
    """
    if len(free) < count:
        return None
    left = set(free)
    if held:
        return grown(grid, left, count, held, contiguous=True)
    seed = next((part[0] for part in grid.parts(free) if len(part) >= count), None)
    return None if seed is None else [seed, *(grown(grid, left - {seed}, count - 1, [seed]) or ())]


def median_strict(grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
    """Choose a part that grows by the nearest neighbours, free or not, and stops if all of these are busy.

    This is figure 8 of the deadline study by the letter: lines 11 to 18 choose neighbours before they look whether one
    is free, and line 10 ends the growth at a busy one. The text of the paper leaves busy neighbours out, as `median`
    does. Each first node is tried, because the result depends on the first node.
    """
    if held:
        return grown(grid, set(free), count, held, strict=True)
    large = {node for part in grid.parts(free) if len(part) >= count for node in part}
    for first in sorted(large):
        if (nodes := grown(grid, large - {first}, count - 1, [first], strict=True)) is not None:
            return [first, *nodes]
    return None


def leak(grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
    """Choose the nodes to which a liquid flows that is poured on the machine (Linnert et al. 2024, figure 10).

    The first node is the first one of the snake from which the flow reaches enough nodes.
    """
    nodes = flow(grid, free, count, held, job, least=count)
    return nodes if len(nodes) == count else None


def leak_noncontiguous(grid: Grid, free: Sequence[int], count: int, held: Sequence[int], job: int) -> list[int] | None:
    """Choose the nodes to which a liquid flows; where it stops, it goes on at the next free node of the snake."""
    nodes = flow(grid, free, count, held, job, contiguous=False)
    return nodes if len(nodes) == count else None


SHAPES: Mapping[str, Shape] = {
    "first": first,
    "hilbert": hilbert,
    "median": median,
    "median-strict": median_strict,
    "leak": leak,
    "leak-noncontiguous": leak_noncontiguous,
}
"""The shapes by the names of their placements. Any set of nodes is admissible under another placement."""


def place_hilbert(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the first segment of the Hilbert curve that is idle; if all are too short, the least spread nodes on it.

    Source: Linnert et al. 2024, figure 6; Slurm orders the nodes of a grid so. An expansion takes the nodes nearest on
    the curve.
    """
    if not held:
        return least_spread(grid, idle, count)
    places, near = np.sort(grid.place[np.asarray(idle)]), grid.place[np.asarray(held)]
    apart = np.maximum(0, np.maximum(near.min() - places, places - near.max()))
    return list(grid.curve[places[np.argsort(apart, kind="stable")[:count]]])


def place_median(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose a compact part of the grid: grow from a node by the neighbor that adds the least Manhattan distance.

    Without an admissible part, the largest one is completed by the idle nodes that add the least. Source: Linnert et
    al. 2024, figure 8.
    """
    if (nodes := median(grid, idle, count, held, job)) is not None:
        return nodes
    free = set(idle)
    seed = [] if held else [max(grid.parts(idle), key=len)[0]]
    return [*seed, *(grown(grid, free - {*seed}, count - len(seed), held or seed) or ())]


def place_median_strict(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the first part that grows without a busy neighbour nearer than the free ones. Without one, as `median`."""
    nodes = median_strict(grid, idle, count, held, job)
    return place_median(grid, idle, count, held, job) if nodes is None else nodes


def place_leak(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose nodes as a liquid flows: neighbours of neighbours of the first node of a snake that has enough of them.

    Without an admissible part, the choice is made by `leak_noncontiguous`.

    Source: Linnert et al. 2024, figure 10, contiguous.
    """
    nodes = leak(grid, idle, count, held, job)
    return place_leak_noncontiguous(grid, idle, count, held, job) if nodes is None else nodes


def place_leak_noncontiguous(
    grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int
) -> Sequence[int]:
    """Choose nodes as a liquid flows: from the first idle node of a snake over the rows, neighbours of neighbours.

    Each job begins its search at one of `ENTRIES` nodes in turn. If no neighbour is idle, the snake continues to the
    next idle node. Source: Linnert et al. 2024, figure 10, non-contiguous.
    """
    return flow(grid, idle, count, held, job, contiguous=False)


def least_spread(grid: Grid, free: Sequence[int], count: int) -> list[int]:
    """Return the first `count` of the nodes `free`, at least as many, that are least spread on the Hilbert curve."""
    places = np.sort(grid.place[np.asarray(free)])
    begin = int(np.argmin(places[count - 1 :] - places[: len(places) - count + 1]))
    return [int(node) for node in grid.curve[places[begin : begin + count]]]


def grown(
    grid: Grid,
    free: set[int],
    count: int,
    begun: Sequence[int],
    *,
    contiguous: bool = False,
    strict: bool = False,
) -> list[int] | None:
    """Return `count` of the nodes `free`, of which there are enough, and remove them from `free`.

    These are, one after another, the neighbours of `begun` and of the chosen nodes that add the least Manhattan
    distance. Where there is no neighbour, any node that adds the least; with `contiguous`, the result is None. With
    `strict`, it is None also where a neighbour that is not free adds less than all free ones.
    """
    near = np.zeros(len(grid), dtype=np.int64)
    chosen: list[int] = []
    edge: set[int] = set()
    busy: set[int] = set()
    usable: Container[int] = {*free, *begun} if strict else range(len(grid))

    def add(node: int) -> None:
        nonlocal near
        near += _distances(grid, node)
        edge.update(other for other in grid.neighbours[node] if other in free)
        edge.discard(node)
        busy.update(other for other in grid.neighbours[node] if other not in usable)

    for node in begun:
        add(node)
    while len(chosen) < count:
        if (contiguous or strict) and not edge:
            return None
        node = min(edge or free, key=lambda other: (near[other], other))
        if any(near[other] < near[node] for other in busy):
            return None
        free.discard(node)
        chosen.append(node)
        add(node)
    return chosen


@lru_cache(maxsize=512)
def _distances(grid: Grid, node: int) -> IntArray:
    """Return the Manhattan distance of each node to `node`. A search begins at many nodes, again and again."""
    return grid.distances_to(node)


def flow(
    grid: Grid,
    free: Sequence[int],
    count: int,
    held: Sequence[int],
    job: int,
    *,
    least: int = 1,
    contiguous: bool = True,
) -> list[int]:
    """Return up to `count` of the nodes `free`, in the order in which a liquid reaches them; empty: fewer than `least`.

    The liquid flows from the nodes `held`, or from the first node of the snake from which it reaches `least` nodes, to
    free neighbours and their free neighbours. Without `contiguous`, it then goes on at the next free node of the snake.
    """
    if len(free) < least:
        return []
    left, chosen, edge = set(free), list[int](), deque(held)
    path = iter(()) if held and contiguous else filter(left.__contains__, snake(grid, job))
    while len(chosen) < count:
        if edge:
            reached = [node for node in grid.neighbours[edge.popleft()] if node in left][: count - len(chosen)]
        elif chosen and contiguous and len(chosen) >= least:
            break
        else:
            if contiguous:
                chosen = []  # the nodes that this flow reached cannot be part of a larger one
            if not (reached := [*islice(path, 1)]):
                break
        left.difference_update(reached)
        chosen += reached
        edge += reached
    return chosen if len(chosen) >= least else []


def snake(grid: Grid, job: int) -> list[int]:
    """Return all nodes row by row, every second row backwards, from the entry node of `job` to the one before it."""
    return _snakes(grid)[job % ENTRIES]


@lru_cache(maxsize=4)
def _snakes(grid: Grid) -> list[list[int]]:
    """Return the nodes in the order of the snake from each entry node."""
    rows = np.arange(len(grid)).reshape(-1, grid.sides[-1])
    rows[1::2] = rows[1::2, ::-1].copy()
    order: list[int] = rows.ravel().tolist()
    begins = [len(order) * entry // ENTRIES for entry in range(ENTRIES)]
    return [order[begin:] + order[:begin] for begin in begins]
