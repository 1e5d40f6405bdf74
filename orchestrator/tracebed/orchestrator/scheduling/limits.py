"""Jobs that run longer than their time limit. They occur in public logs: 7,092 of RICC's 447,794 jobs."""

from __future__ import annotations

import enum


class OverLimit(enum.StrEnum):
    """Treatment of jobs that exceed their time limit: their end, and the end expected by the scheduler."""

    EXTEND = "extend"
    """The limit is raised to the run time, so that no job exceeds its limit, as in Alea and pyss."""
    KILL = "kill"
    """The job is killed at its limit, as by default in Slurm and Batsim."""
    AGAIN = "again"
    """The job continues. Each time its expected end has passed, the next call of the policy moves the expected end to
    one full limit later, as in Slurm with OverTimeLimit=UNLIMITED."""
    NOW = "now"
    """The job continues and is expected to end at any moment. The reservation of the head of the queue has no effect
    while the job runs."""

    @property
    def consequence(self) -> str:
        """Text for the warning that counts these jobs."""
        return {
            OverLimit.EXTEND: "limit extended to the run time",
            OverLimit.KILL: "killed at their limit",
            OverLimit.AGAIN: "expected to run for another limit each time it has passed",
            OverLimit.NOW: "expected to end at any moment after it",
        }[self]
