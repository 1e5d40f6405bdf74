"""Speedup models of jobs over nodes: the columns `speedup` and `speedup_parameters` of a workload."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError

Numbers = FloatArray | IntArray | float


def amdahl_speedup(nodes: FloatArray | float, fraction: FloatArray | float) -> FloatArray | float:
    """Return S(n) = 1 / ((1 - f) + f / n) for a parallel fraction f (Amdahl 1967)."""
    return 1.0 / ((1.0 - fraction) + fraction / nodes)


def downey_speedup(nodes: Numbers, average: Numbers, sigma: Numbers) -> FloatArray:
    """Return S(n; A, sigma) elementwise for n, A >= 1 and sigma >= 0, from 1 on one node to A on many.

    For sigma <= 1 the paper has two pieces, which meet where their denominators are equal. The piece with the greater
    denominator applies. The result is clipped to A.
    """
    n, a, s = nodes, average, sigma
    even = a * n / np.maximum(a + s / 2 * (n - 1), s * (a - 0.5) + n * (1 - s / 2))
    uneven = n * a * (s + 1) / (s * (n + a - 1) + a)
    speedup: FloatArray = np.minimum(a, np.where(np.less_equal(s, 1.0), even, uneven))
    return speedup


def downey_useful_nodes(average: Numbers, sigma: Numbers) -> FloatArray:
    """Return the number of nodes beyond which the speedup no longer grows, as whole numbers."""
    a, s = average, sigma
    most: FloatArray = np.ceil(np.where(np.less_equal(s, 1.0), 2 * a - 1, a + a * s - s))
    return most


SpeedupFunction: TypeAlias = Callable[[int], float]
"""The speedup S(nodes)."""


class Speedup(NamedTuple):
    """A speedup model: `linear`, `amdahl` with f, `downey` with A and sigma, `table` of measured (nodes, seconds)."""

    name: str
    numbers: tuple[float, ...] = ()
    points: tuple[tuple[int, float], ...] = ()
    """Measured (nodes, seconds) in ascending order of nodes."""

    @classmethod
    def parse(cls, name: str, parameters: str, where: str | None = None) -> Speedup:
        """Return the speedup model for the values of the two columns. Raises InputError if they are invalid.

        Parameters of linear: empty; amdahl: `f`; downey: `A sigma`; table: `nodes:seconds nodes:seconds ...`.
        """
        words = parameters.split()
        try:
            if name == "table":
                pairs = [word.split(":") for word in words]
                points = tuple(sorted({int(nodes): float(seconds) for nodes, seconds in pairs}.items()))
                if points and all(nodes > 0 and 0 < seconds < math.inf for nodes, seconds in points):
                    return cls(name, points=points)
            else:
                match name, tuple(map(float, words)):
                    case "linear", ():
                        return cls(name)
                    case "amdahl", (f,) if 0 <= f <= 1:
                        return cls(name, (f,))
                    case "downey", (a, sigma) if 1 <= a < math.inf and 0 <= sigma < math.inf:
                        return cls(name, (a, sigma))
        except ValueError:
            pass  # the message below also covers words that are not numbers
        raise InputError(
            f"speedup {name!r} with parameters {parameters!r} is invalid",
            where=where,
            hint="write linear; amdahl with f in [0, 1]; downey with A >= 1, sigma >= 0; or table with nodes:seconds",
        )

    def of(self, nodes: int) -> float:
        """Return S(nodes) by Amdahl 1967, by Downey 1997, or from measured times (see `seconds`)."""
        if self.name == "linear":
            return float(nodes)
        if self.name == "amdahl":
            return float(amdahl_speedup(nodes, *self.numbers))
        if self.name == "downey":
            return float(downey_speedup(nodes, *self.numbers))
        return self.points[0][1] / self.seconds(nodes)

    def parallel_share(self, nodes: int) -> float:
        """Return the share of the run time on `nodes` whole nodes in which all cores work.

        In the rest of the time, one core works. The parallel part of the work takes f/n of the time on one node: f is
        that of Amdahl's law, and 1 in the other models. Their S(n) < n means a part on one core that depends on n. Of a
        table, all cores work on the number of nodes with the least work n T(n): mostly the smallest one, but not where
        a larger one is more than proportionally faster, as in the tables of HPG-aligner.
        """
        fraction = self.numbers[0] if self.name == "amdahl" else 1.0
        if self.points:
            fraction = min(size * seconds for size, seconds in self.points) / self.points[0][1]
        return fraction * self.of(nodes) / nodes

    def seconds(self, nodes: int) -> float:
        """Return the run time (s) on `nodes` nodes, interpolated between measured times and constant beyond them."""
        if nodes <= self.points[0][0]:
            return self.points[0][1]
        for (small, slow), (large, fast) in pairwise(self.points):
            if nodes <= large:
                return slow + (nodes - small) / (large - small) * (fast - slow)
        return self.points[-1][1]


def speedup_function(name: str, parameters: str, *, where: str | None = None) -> SpeedupFunction:
    """Return S(n), which caches its values, for a workload's `speedup` and `speedup_parameters`."""
    parsed = Speedup.parse(name, parameters, where)
    return float if name == "linear" else cache(parsed.of)
