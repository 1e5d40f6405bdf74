"""How fast a job goes on what it has.

Work is counted in seconds of static run time on the requested allocation; on another one it goes on at a rate
r = S(n) / S(requested nodes) x share of the requested cores, and the rest is rescheduled whenever r changes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import cache

from tracebed.converters import speedup

Speedup = Callable[[int], float]


def speedup_function(name: str, parameters: str, *, where: str | None = None) -> Speedup:
    """Return S(n) for a workload's `speedup` and `speedup_parameters`; InputError, naming `where`, if it is none."""
    parsed = speedup.Speedup.parse(name, parameters, where)
    return float if name == "linear" else cache(parsed.of)


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
