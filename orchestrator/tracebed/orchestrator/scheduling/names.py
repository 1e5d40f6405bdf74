"""Names of priorities, and the usual priority and placement. A module without arrays, so that `--help` is fast."""

from __future__ import annotations

FCFS = "fcfs"
"""The usual priority: the order of submission."""
PRIORITIES = (FCFS, "largest-slowdown-first", "shortest-first", "aging")
FIRST = "first"
"""The usual placement: the lowest-numbered idle nodes."""
