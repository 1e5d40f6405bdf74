"""Jobs that run longer than their time limit. Public logs have them: 7,092 of RICC's 447,794."""

from __future__ import annotations

import enum


class OverLimit(enum.StrEnum):
    """What happens to a job that outlives its time limit, and when the scheduler expects it to end."""

    EXTEND = "extend"
    """The limit is raised to the run time, so that every limit holds, as in Alea and pyss."""
    KILL = "kill"
    """The job is killed at its limit, as by default in Slurm and Batsim."""
    AGAIN = "again"
    """The job runs on. When its limit has passed, the next call of the policy expects it to take another whole limit
    from then on, and so forth, as in Slurm with OverTimeLimit=UNLIMITED."""
    NOW = "now"
    """The job runs on and is expected to end at any moment, which voids the reservation of the head of the queue for
    as long as the job runs."""

    @property
    def consequence(self) -> str:
        """Text for the warning that counts these jobs."""
        return {
            OverLimit.EXTEND: "limit extended to the run time",
            OverLimit.KILL: "killed at their limit",
            OverLimit.AGAIN: "expected to take another limit each time it has passed",
            OverLimit.NOW: "expected to end at any moment once it has passed",
        }[self]
