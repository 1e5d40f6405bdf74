"""Placements: which of the idle nodes a job gets, under every policy.

A placement is a function that chooses nodes on a grid. It never changes when a job starts or how many nodes it gets:
if no admissible shape is idle, the job gets the nodes that come closest to one. Another package adds a placement by the
entry point `tracebed.placements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.ground.registry import Registry
from tracebed.ground.topology import Grid
from tracebed.orchestrator.scheduling import shapes
from tracebed.orchestrator.scheduling.names import FIRST

Chooser: TypeAlias = Callable[[Sequence[int], int, Sequence[int], int], Sequence[int]]
Shaper: TypeAlias = Callable[[Sequence[int], int, Sequence[int], int], Sequence[int] | None]


class Placement(Protocol):
    """A choice of nodes."""

    def __call__(self, grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
        """Return the nodes that `job` gets.

        Args:
            grid: the machine.
            idle: the idle nodes, ascending, at least `count`.
            count: the number of nodes to choose, at least 1.
            held: the nodes that an expanding job holds already.
            job: the number of the job, in the order of submission.
        """
        ...


def first(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the lowest-numbered idle nodes."""
    return idle[:count]


def hilbert(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the first segment of the Hilbert curve that is idle; if all are too short, the least spread nodes on it.

    Source: Linnert et al. 2024, figure 6; Slurm orders the nodes of a grid so. An expansion takes the nodes nearest on
    the curve.
    """
    if not held:
        return shapes.least_spread(grid, idle, count)
    places, near = np.sort(grid.place[np.asarray(idle)]), grid.place[np.asarray(held)]
    apart = np.maximum(0, np.maximum(near.min() - places, places - near.max()))
    return list(grid.curve[places[np.argsort(apart, kind="stable")[:count]]])


def median(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose a compact part of the grid: grow from a node by the neighbor that adds the least Manhattan distance.

    Without an admissible part, the largest one is completed by the idle nodes that add the least. Source: Linnert et
    al. 2024, figure 8.
    """
    if (nodes := shapes.median(grid, idle, count, held, job)) is not None:
        return nodes
    free = set(idle)
    seed = [] if held else [max(grid.parts(idle), key=len)[0]]
    return [*seed, *(shapes.grown(grid, free - {*seed}, count - len(seed), held or seed) or ())]


def median_strict(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the first part that grows without a busy neighbour nearer than the free ones. Without one, as `median`."""
    nodes = shapes.median_strict(grid, idle, count, held, job)
    return median(grid, idle, count, held, job) if nodes is None else nodes


def leak(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose nodes as a liquid flows: neighbours of neighbours of the first node of a snake that has enough of them.

    Without an admissible part, the choice is made by `leak_noncontiguous`.

    Source: Linnert et al. 2024, figure 10, contiguous.
    """
    nodes = shapes.leak(grid, idle, count, held, job)
    return leak_noncontiguous(grid, idle, count, held, job) if nodes is None else nodes


def leak_noncontiguous(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose nodes as a liquid flows: from the first idle node of a snake over the rows, neighbours of neighbours.

    Each job begins its search at one of `shapes.ENTRIES` nodes in turn. If no neighbour is idle, the snake continues to
    the next idle node. Source: Linnert et al. 2024, figure 10, non-contiguous.
    """
    return shapes.flow(grid, idle, count, held, job, contiguous=False)


PLACEMENTS: Registry[Placement] = Registry("tracebed.placements", "placement")


def grid_of(placement: str, nodes: int) -> Grid | None:
    """Return the grid in `placement`, which is written as `chooser` reads it; None: no grid is given.

    Raises:
        InputError: the grid is invalid, or has not `nodes` nodes.
    """
    _, at, text = placement.partition("@")
    return Grid.parse(text, nodes) if at else None


def chooser(placement: str, nodes: int) -> Chooser | None:
    """Return the function that chooses the nodes of jobs: of (idle nodes, count, nodes held, job). None: the lowest.

    Args:
        placement: the name of a placement and the grid of the machine: `hilbert@8x16`. `first` needs no grid.
        nodes: the number of nodes of the machine.

    Raises:
        InputError: the placement is unknown, needs a grid, or the grid has not `nodes` nodes.
    """
    name = placement.partition("@")[0]
    choose, grid = PLACEMENTS.load(name), grid_of(placement, nodes)
    if name == FIRST:
        return None
    if grid is None:
        raise InputError(f"placement {name} needs the grid of the machine", hint="give --grid, such as --grid 8x16")
    return partial(choose, grid)


def shape(placement: str, nodes: int) -> Shaper:
    """Return the function that chooses nodes in an admissible shape: of (free nodes, count, nodes held, job).

    Its result is None if no admissible set of nodes is free. Under a placement of another package, any set of nodes
    that the placement chooses is admissible. Arguments and errors are as for `chooser`.
    """
    choose, found = chooser(placement, nodes), shapes.SHAPES.get(placement.partition("@")[0])
    if found is not None:
        return partial(found, grid_of(placement, nodes) or Grid((nodes,)))

    def any_set(free: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int] | None:
        return choose(free, count, held, job) if choose and len(free) >= count else None

    return any_set
