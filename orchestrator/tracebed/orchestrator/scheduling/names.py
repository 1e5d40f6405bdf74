"""Names of priorities, treatments and the usual placement. A module without arrays, so that `--help` is fast."""

from __future__ import annotations

import enum
from typing import Literal, get_args

FCFS = "fcfs"
"""The usual priority: the order of submission."""
PRIORITIES = (FCFS, "largest-slowdown-first", "shortest-first", "aging")
MAX_AGE_S = 7 * 86_400.0
"""Age at which the age factor of `aging` is 1, s: the default of Slurm's PriorityMaxAge."""
FIRST = "first"
"""The usual placement: the lowest-numbered idle nodes."""
NODE_FAILURES = ("requeue", "fail")
"""Treatment of the jobs of a lost node: return them to the queue, or fail them."""
SHRINK = "shrink"
"""Treatment in a simulation: malleable jobs continue without the node, and others return to the queue."""


class DependencyRule(enum.StrEnum):
    """Treatment of jobs that depend on other jobs."""

    HONOR = "honor"
    """Such a job starts, or is submitted, after the jobs on which it depends."""
    IGNORE = "ignore"
    """Each job is submitted at its own time, and depends on no other job."""


OF_LAYER = ("resizes", "resize_interval")
"""Parameters of the policy `slurm` that describe a layer beside Slurm, and not Slurm."""
ResizePolicy = Literal["dmr", "pref", "min", "avg", "keep-pref"]
"""Policy of such a layer."""
RESIZE_POLICIES: tuple[ResizePolicy, ...] = get_args(ResizePolicy)
EXPANDER_S = 600.0
"""A waiting expander is withdrawn after this time, wall s: its limit is the rest of the limit of its job when it was
submitted, and the job may by now end before a reservation begins."""
ODD_SIZE = "not resized: they request a size that is not between their least and their largest one"
"""Why a layer does not resize some malleable jobs."""
