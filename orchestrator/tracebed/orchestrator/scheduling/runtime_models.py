"""How fast a job goes on what it has.

Work is counted in seconds of static run time on the requested allocation; on another one it goes on at a rate
r = S(n) / S(requested nodes) x share of the requested cores, and the rest is rescheduled whenever r changes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from tracebed.converters.malleability import amdahl_speedup
from tracebed.converters.models.downey import speedup as downey_speedup
from tracebed.errors import InputError

Speedup = Callable[[int], float]


def amdahl(parallel_fraction: float) -> Speedup:
    """Return S(n) = 1 / ((1 - f) + f / n) (Amdahl 1967)."""
    return cache(lambda n: float(amdahl_speedup(n, parallel_fraction)))


def downey(average: float, sigma: float) -> Speedup:
    """Return S(n; A, sigma) of Downey 1997: A the average parallelism, sigma its variance."""
    return cache(lambda n: float(downey_speedup(n, average, sigma)))


def table(times: dict[int, float]) -> Speedup:
    """Return the speedup of a measured curve, nodes -> seconds: in between linear in time, beyond it constant."""
    sizes = sorted(times)
    first = times[sizes[0]]

    @cache
    def speedup(n: int) -> float:
        if n <= sizes[0]:
            return 1.0
        for small, large in pairwise(sizes):
            if n <= large:
                part = (n - small) / (large - small)
                return first / (times[small] + part * (times[large] - times[small]))
        return first / times[sizes[-1]]

    return speedup


def speedup_function(name: str, parameters: str, *, where: str | None = None) -> Speedup:
    """Return S(n) for a workload's `speedup` and `speedup_parameters`.

    linear: none; amdahl: `f`; downey: `A sigma`; table: `nodes:seconds nodes:seconds ...`.

    Raises:
        InputError: the model is not known or its parameters are not what it takes.
    """
    words = parameters.split()
    try:
        if name == "linear" and not words:
            return float
        if name == "amdahl":
            (f,) = map(float, words)
            if 0 <= f <= 1:
                return amdahl(f)
        if name == "downey":
            average, sigma = map(float, words)
            if average >= 1 and sigma >= 0:
                return downey(average, sigma)
        if name == "table":
            times = {int(nodes): float(seconds) for nodes, seconds in (word.split(":") for word in words)}
            if times and all(nodes > 0 and seconds > 0 for nodes, seconds in times.items()):
                return table(times)
    except ValueError:
        pass  # the one message below serves every wrong number
    raise InputError(
        f"speedup {name!r} with parameters {parameters!r} is not a model",
        where=where,
        mend="write linear; amdahl with f in [0, 1]; downey with A >= 1, sigma >= 0; or table with nodes:seconds",
    )


class RuntimeModel(enum.StrEnum):
    """What uneven shares of cores on a job's nodes do to it (SD-Policy paper, section 3.4)."""

    IDEAL = "ideal"
    """The job balances itself: used cores / requested cores (equation 5)."""
    WORST_CASE = "worst-case"
    """Statically balanced: the poorest node decides (equation 6)."""

    def share(self, used: Sequence[int], requested: int) -> float:
        """Return the factor on the rate for `used` cores on each node, of `requested` on each."""
        if self is RuntimeModel.IDEAL:
            return sum(min(cores, requested) for cores in used) / (requested * len(used))
        return min(min(used), requested) / requested
