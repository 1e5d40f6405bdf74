"""The samples of nodes that a replay records."""

from __future__ import annotations

import math

SAMPLES = 10_000_000
"""Largest number of samples of nodes that are recorded in the planned duration of a replay. Each takes about 150 bytes
of the journal and 80 bytes of memory. Heartbeats may be more frequent."""


class SampleFilter:
    """The samples of nodes that a replay records: all of them, unless these would be more than `SAMPLES`.

    Args:
        nodes: number of nodes.
        heartbeat_s: time between two samples of a node, wall s.
        planned_s: planned duration of the replay, wall s.

    Attributes:
        period_s: shortest time between two recorded samples of a node, wall s; 0: all samples are recorded.
    """

    def __init__(self, nodes: int, heartbeat_s: float, planned_s: float) -> None:
        """Start without samples."""
        period_s = nodes * planned_s / SAMPLES
        self.period_s = period_s if period_s > heartbeat_s else 0.0
        self._due = [-math.inf] * nodes
        self._late_s = [0.0] * nodes

    def late_s(self, node: int, at: float, late_s: float) -> float | None:
        """Return the largest lateness of a heartbeat of `node` since its last recorded sample; None: none is due.

        Args:
            at: arrival of the sample, monotonic s.
            late_s: lateness of its heartbeat, s.
        """
        if not self.period_s:
            return late_s
        late_s = self._late_s[node] = max(self._late_s[node], late_s)
        if at < self._due[node]:
            return None
        self._due[node], self._late_s[node] = at + self.period_s, 0.0
        return late_s
