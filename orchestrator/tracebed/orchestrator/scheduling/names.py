"""Priorities by name, and the usual priority and placement. A module without arrays, so that `--help` is fast."""

from __future__ import annotations

FCFS = "fcfs"
"""The usual priority: the order of submission."""
PRIORITIES = (FCFS, "largest-slowdown-first", "shortest-first", "aging")
MAX_AGE_S = 7 * 86_400.0
"""Age at which the age factor of `aging` is 1, s: the default of Slurm's PriorityMaxAge."""
FIRST = "first"
"""The usual placement: the lowest-numbered idle nodes."""
NODE_FAILURES = ("requeue", "fail")
"""Treatment of the jobs of a lost node: return them to the queue, or fail them."""
