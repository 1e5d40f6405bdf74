"""The grid of the network that connects the nodes: coordinates, distances, neighbours and a Hilbert curve.

Sources: D. Hilbert, "Ueber die stetige Abbildung einer Linie auf ein Flaechenstueck", Mathematische Annalen 38 (1891);
the generalization to rectangles splits a rectangle into two along its long side, or into three as Hilbert does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.ground.errors import InputError

IntArray: TypeAlias = NDArray[np.int64]

GRID = re.compile(r"(torus:)?([1-9][0-9]{0,6}(?:x[1-9][0-9]{0,6}){0,2})")
HINT = "sides such as 8x16 or 4x4x8, a torus as torus:8x16"
Vector = tuple[int, int]


@dataclass(frozen=True)
class Grid:
    """A grid of nodes of one to three dimensions. Nodes are numbered with the last coordinate running fastest.

    In a torus, the first and the last node of each row are neighbours.
    """

    sides: tuple[int, ...]
    torus: bool = False

    @classmethod
    def parse(cls, text: str, nodes: int | None = None) -> Grid:
        """Return the grid written as `8x16`, `4x4x8` or `torus:8x16`. Raises InputError unless it has `nodes` nodes."""
        match = GRID.fullmatch(text)
        if match is None:
            raise InputError(f"invalid grid {text!r}", hint=HINT)
        grid = cls(tuple(map(int, match[2].split("x"))), torus=bool(match[1]))
        if nodes is not None and len(grid) != nodes:
            raise InputError(f"grid {text} has {len(grid):,} nodes, the machine has {nodes:,}", hint=HINT)
        return grid

    def __str__(self) -> str:
        """Return the grid as `parse` reads it."""
        return "torus:" * self.torus + "x".join(map(str, self.sides))

    def __len__(self) -> int:
        return math.prod(self.sides)

    @cached_property
    def coordinates(self) -> IntArray:
        """The coordinates of each node, shape (nodes, dimensions)."""
        return np.stack(np.unravel_index(np.arange(len(self)), self.sides), axis=1)

    @cached_property
    def neighbours(self) -> list[tuple[int, ...]]:
        """The neighbours of each node, in the order of the dimensions, the lower one first."""
        beside: list[list[int]] = [[] for _ in range(len(self))]
        numbers = np.arange(len(self)).reshape(self.sides)
        for axis, side in enumerate(self.sides):
            for step in (1, -1):
                there = np.roll(numbers, step, axis)  # the node beside each node: the lower one, then the higher one
                inside = np.arange(side) != (0 if step > 0 else side - 1)
                if self.torus and side > 2:
                    inside[:] = True
                for node, other in zip(
                    np.compress(inside, numbers, axis).ravel().tolist(),
                    np.compress(inside, there, axis).ravel().tolist(),
                    strict=True,
                ):
                    beside[node].append(other)
        return [tuple(others) for others in beside]

    def distance(self, node: int, other: int) -> int:
        """Return the Manhattan distance of two nodes, in links."""
        apart = np.abs(self.coordinates[node] - self.coordinates[other])
        return int((np.minimum(apart, np.array(self.sides) - apart) if self.torus else apart).sum())

    def distances_to(self, node: int) -> IntArray:
        """Return the Manhattan distance of each node to `node`, in links, shape (nodes,)."""
        apart = np.abs(self.coordinates - self.coordinates[node])
        return np.asarray((np.minimum(apart, np.array(self.sides) - apart) if self.torus else apart).sum(axis=1))

    def total_distance(self, nodes: Sequence[int] | IntArray) -> int:
        """Return the sum of the Manhattan distances of all pairs of `nodes`, in links."""
        total = 0
        for side, values in zip(self.sides, self.coordinates[np.asarray(nodes, dtype=np.int64)].T, strict=True):
            there = np.bincount(values, minlength=side)
            apart = np.abs(np.arange(side)[:, None] - np.arange(side))
            total += int(there @ (np.minimum(apart, side - apart) if self.torus else apart) @ there) // 2
        return total

    def parts(self, nodes: Iterable[int]) -> list[list[int]]:
        """Return the connected parts of `nodes`, each ascending, in the order of their first nodes."""
        left = dict.fromkeys(sorted(nodes))
        parts = []
        while left:
            part = [next(iter(left))]
            del left[part[0]]
            for node in part:  # grows
                for other in self.neighbours[node]:
                    if other in left:
                        del left[other]
                        part.append(other)
            parts.append(sorted(part))
        return parts

    @cached_property
    def curve(self) -> IntArray:
        """The nodes in the order of a Hilbert curve: consecutive nodes are neighbours. Shape (nodes,).

        In three dimensions, the curve of the first two is a line, which spans a rectangle with the third. A torus has
        the curve of its grid.
        """
        line = np.arange(self.sides[0])
        for side in self.sides[1:]:
            path = np.array(_rectangle(len(line), side))
            line = line[path[:, 0]] * side + path[:, 1]
        return line

    @cached_property
    def place(self) -> IntArray:
        """The position of each node on `curve`, shape (nodes,)."""
        places = np.empty(len(self), dtype=np.int64)
        places[self.curve] = np.arange(len(self))
        return places


def _rectangle(width: int, height: int) -> list[Vector]:
    """Return the cells of a rectangle in the order of a Hilbert curve, from (0, 0) to another corner.

    A curve to the corner at the end of a side needs an even side there, or two odd ones: a chessboard has both colours.
    """
    along_width = width >= height if width % 2 == height % 2 else width % 2 == 0
    cells: list[Vector] = []
    if along_width:
        _walk(cells, (0, 0), (1, 0), width, (0, 1), height)
    else:
        _walk(cells, (0, 0), (0, 1), height, (1, 0), width)
    return cells


def _walk(cells: list[Vector], at: Vector, along: Vector, length: int, across: Vector, breadth: int) -> None:
    """Append the cells of the rectangle from `at`, `length` along and `breadth` across, to its end along."""

    def moved(a: int, b: int) -> Vector:
        return at[0] + a * along[0] + b * across[0], at[1] + a * along[1] + b * across[1]

    if breadth == 1 or length == 1:
        cells += [moved(step, 0) if breadth == 1 else moved(0, step) for step in range(length * breadth)]
        return
    half = _even_half(length)
    if 2 * length > 3 * breadth:
        _walk(cells, at, along, half, across, breadth)
        _walk(cells, moved(half, 0), along, length - half, across, breadth)
        return
    back = (-across[0], -across[1])
    first, side = length // 2, _even_half(breadth)
    _walk(cells, at, across, side, along, first)
    _walk(cells, moved(0, side), along, length, across, breadth - side)
    _walk(cells, moved(length - 1, side - 1), back, side, (-along[0], -along[1]), length - first)


def _even_half(length: int) -> int:
    """Return about half of `length`, even if possible, so that the halves meet at neighbouring cells."""
    half = length // 2
    return half + 1 if half % 2 and length > 2 else half
