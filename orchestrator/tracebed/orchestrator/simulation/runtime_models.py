"""The speed of a job that holds fewer cores than requested.

Work is counted in seconds of static run time on the requested allocation. On another allocation a job proceeds at a
rate r = S(n) / S(requested nodes) x share of the requested cores, and its end is recomputed whenever r changes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class RuntimeModel(enum.StrEnum):
    """The effect of uneven numbers of cores on the nodes of a job (SD-Policy paper, section 3.4)."""

    IDEAL = "ideal"
    """The job balances its load: used cores / requested cores (equation 5)."""
    WORST_CASE = "worst-case"
    """The load is balanced statically: the node with the fewest cores decides (equation 6)."""

    def share(self, used: Sequence[int], requested: int) -> float:
        """Return the factor on the rate for `used` cores on each node, of `requested` on each."""
        if self is RuntimeModel.IDEAL:
            return sum(min(cores, requested) for cores in used) / (requested * len(used))
        return min(min(used), requested) / requested
