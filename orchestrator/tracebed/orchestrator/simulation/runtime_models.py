"""Run-time models for jobs that hold fewer cores than requested.

Work is measured in seconds of static run time on the requested allocation. On another allocation, a job proceeds at the
rate r = `Jobs.rate(n, s)`, where s is the share of the requested cores. Fewer cores slow down the parallel part only:
with Amdahl's parallel fraction f, the run time on n nodes is proportional to (1 - f) + f / (n s). The end of a job is
recomputed whenever r changes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class RuntimeModel(enum.StrEnum):
    """Run-time model for jobs with different numbers of cores on their nodes (SD-Policy paper, section 3.4)."""

    IDEAL = "ideal"
    """Dynamic load balancing: share = used cores / requested cores (equation 5)."""
    WORST_CASE = "worst-case"
    """Static load balancing: the node with the fewest cores determines the share (equation 6)."""

    def share(self, used: Sequence[float], requested: int) -> float:
        """Return the share of the requested cores that determines the rate of the parallel part.

        Args:
            used: cores used on each node of the job.
            requested: requested cores per node.
        """
        if self is RuntimeModel.IDEAL:
            return sum(min(cores, requested) for cores in used) / (requested * len(used))
        return min(min(used), requested) / requested
