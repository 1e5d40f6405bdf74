"""Final states of jobs, for logs, runs, metrics and reports."""

from __future__ import annotations

import enum


class JobState(enum.StrEnum):
    """Final state of a job."""

    COMPLETED = "completed"
    """The job completed its work."""
    FAILED = "failed"
    """A process or a node of the job failed."""
    KILLED = "killed"
    """The job reached its time limit."""
    CANCELLED = "cancelled"
    """The user or the policy cancelled the job."""
    REJECTED = "rejected"
    """The job never fits on the machine."""
    INTERRUPTED = "interrupted"
    """The run ended before the job."""
    UNKNOWN = "unknown"
    """The end of the job is not recorded."""
