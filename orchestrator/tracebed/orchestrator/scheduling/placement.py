"""Placements: which of the idle nodes a job gets, under every policy.

A placement is a function that chooses nodes on a grid. It never changes when a job starts or how many nodes it gets:
if no admissible shape is idle, the job gets the nodes that come closest to one. Another package adds a placement by the
entry point `tracebed.placements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked, of_extension, returned
from tracebed.ground.registry import Registry
from tracebed.ground.topology import Grid
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


PLACEMENTS: Registry[Placement] = Registry("tracebed.placements", "placement", Callable)


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
    return partial(choose, grid) if PLACEMENTS.is_own(name) else partial(_chosen, name, choose, grid)


def _chosen(
    name: str, choose: Placement, grid: Grid, idle: Sequence[int], count: int, held: Sequence[int], job: int
) -> Sequence[int]:
    """Return the nodes that a placement of another package chooses. Raises ExtensionError if it fails or errs."""
    with of_extension():
        nodes = choose(grid, idle, count, held, job)
    what = f"placement {name}"
    checked(nodes, Sequence, what, choose)
    if len(nodes) != count or len(set(idle).intersection(nodes)) != count:
        raise returned(f"{nodes!r}", what, choose, f"return {count:,} of the idle nodes, which are {idle!r}")
    return nodes


def shape(placement: str, nodes: int) -> Shaper:
    """Return the function that chooses nodes in an admissible shape: of (free nodes, count, nodes held, job).

    Its result is None if no admissible set of nodes is free. Under a placement of another package, any set of nodes
    that the placement chooses is admissible. Arguments and errors are as for `chooser`.
    """
    from tracebed.orchestrator.scheduling.shapes import SHAPES  # for policies that reserve nodes only

    choose, admissible = chooser(placement, nodes), SHAPES.get(placement.partition("@")[0])
    if admissible is not None:
        return partial(admissible, grid_of(placement, nodes) or Grid((nodes,)))

    def any_set(free: Sequence[int], count: int, held: Sequence[int], job: int) -> Sequence[int] | None:
        return choose(free, count, held, job) if choose and len(free) >= count else None

    return any_set
