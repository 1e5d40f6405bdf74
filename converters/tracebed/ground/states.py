"""Final states of jobs and causes of their changes, for logs, runs, metrics and reports."""

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


class ChangeCause(enum.StrEnum):
    """Cause of a change of the nodes or cores of a running job."""

    RESIZE = "resize"
    """The policy resized the job in nodes."""
    LEND = "lend"
    """The job lends cores of a node to a guest."""
    RETURN = "return"
    """Lent cores of a node return to the job."""
    INHERIT = "inherit"
    """The job inherits the cores of the owner of a node, which has ended."""
    OPERATOR = "operator"
    """An operator changed the cores of the job on a node: no policy decided the change."""
