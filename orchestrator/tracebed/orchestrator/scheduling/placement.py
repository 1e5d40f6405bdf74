"""Placements: which of the idle nodes a job gets, under every policy.

A placement is a function that chooses nodes on a grid. It never changes when a job starts or how many nodes it gets:
if no admissible shape is idle, the job gets the nodes that come closest to one. Another package adds a placement by the
entry point `tracebed.placements`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from tracebed.errors import InputError
from tracebed.registry import Registry
from tracebed.topology import Grid

Chooser: TypeAlias = Callable[[Sequence[int], int, Sequence[int], int], Sequence[int]]

FIRST = "first"
ENTRIES = 4
"""Number of nodes, spread over the machine, from which `leak` begins its search."""


class Placement(Protocol):
    """A choice of nodes."""

    def __call__(self, grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
        """Return the nodes that `job` gets.

        Args:
            grid: the machine.
            idle: the idle nodes, ascending, at least `count`.
            count: the number of nodes to choose, at least 1.
            held: the nodes that the job holds already, because it expands.
            job: the number of the job, in the order of submission.
        """
        ...


def first(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the lowest-numbered idle nodes."""
    return idle[:count]


def hilbert(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose the first segment of the Hilbert curve that is idle; if all are too short, the least spread nodes on it.

    Source: seed 004, figure 6; Slurm orders the nodes of a grid so. An expansion takes the nodes nearest on the curve.
    """
    places = np.sort(grid.place[np.asarray(idle)])
    if held:
        near = grid.place[np.asarray(held)]
        apart = np.maximum(0, np.maximum(near.min() - places, places - near.max()))
        return list(grid.curve[places[np.argsort(apart, kind="stable")[:count]]])
    begin = int(np.argmin(places[count - 1 :] - places[: len(places) - count + 1]))
    return [int(node) for node in grid.curve[places[begin : begin + count]]]


def median(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose a compact part of the grid: grow from a node by the neighbour that adds the least Manhattan distance.

    The first idle node from which the part becomes large enough is the beginning; without one, the largest part is
    completed by the idle nodes that add the least. Source: seed 004, figure 8.
    """
    free = set(idle)
    if held:
        return _grown(grid, free, count, held)
    parts = grid.parts(idle)
    seed = (next((part for part in parts if len(part) >= count), None) or max(parts, key=len))[0]
    return [seed, *_grown(grid, free - {seed}, count - 1, [seed])]


def leak(grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int]:
    """Choose nodes as a liquid flows: from the first idle node of a snake over the rows, neighbours of neighbours.

    Each job begins its search at one of `ENTRIES` nodes in turn. If no neighbour is idle, the snake continues to the
    next idle node. Source: seed 004, figure 10, non-contiguous.
    """
    free = set(idle)
    chosen: list[int] = []
    edge = list(held)
    path = snake(grid, job)
    while len(chosen) < count:
        if not edge:
            edge = [next(node for node in path if node in free)]
            free.discard(edge[0])
            chosen.append(edge[0])
            continue
        for node in grid.neighbours[edge.pop(0)]:
            if node in free and len(chosen) < count:
                free.discard(node)
                chosen.append(node)
                edge.append(node)
    return chosen


def _grown(grid: Grid, free: set[int], count: int, begun: Sequence[int]) -> list[int]:
    """Return `count` of the nodes `free`: the neighbours of `begun` that add the least distance, one after another."""
    near = np.zeros(len(grid), dtype=np.int64)
    chosen: list[int] = []
    edge: set[int] = set()

    def add(node: int) -> None:
        nonlocal near
        near += grid.distances_to(node)
        edge.update(other for other in grid.neighbours[node] if other in free)
        edge.discard(node)

    for node in begun:
        add(node)
    while len(chosen) < count:
        node = min(edge or free, key=lambda other: (near[other], other))
        free.discard(node)
        chosen.append(node)
        add(node)
    return chosen


def snake(grid: Grid, job: int) -> Iterator[int]:
    """Yield all nodes row by row, every second row backwards, from the entry node of `job` to the one before it."""
    rows = np.arange(len(grid)).reshape(-1, grid.sides[-1])
    rows[1::2] = rows[1::2, ::-1].copy()
    order = rows.ravel()
    begin = len(order) * (job % ENTRIES) // ENTRIES
    yield from np.roll(order, -begin).tolist()


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
