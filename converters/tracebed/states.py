"""The states in which jobs end: one enumeration for logs, runs, metrics and reports."""

from __future__ import annotations

import enum


class JobState(enum.StrEnum):
    """How a job of a run ended."""

    COMPLETED = "completed"
    """All work was done."""
    FAILED = "failed"
    """A process of the job failed, or its node did."""
    KILLED = "killed"
    """The job reached its time limit."""
    CANCELLED = "cancelled"
    """The user or the policy cancelled the job."""
    REJECTED = "rejected"
    """The job can never fit on the machine."""
    INTERRUPTED = "interrupted"
    """The run ended before the job did."""
    UNKNOWN = "unknown"
    """No end of the job is on record."""
