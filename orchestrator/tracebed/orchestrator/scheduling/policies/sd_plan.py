"""The map of reservations of a call of the policy `sd`, with the limits of the plan of Slurm's backfill."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.orchestrator.scheduling.profile import Profile
from tracebed.orchestrator.scheduling.state import State

MINUTE_S = 60.0


class ReservationMap:
    """The reservations made in one call of the policy, computed lazily.

    The limits correspond to the plan of Slurm's backfill, by number of nodes, not by node. 0: no limit.

    Args:
        state: the state, whose running jobs hold their nodes until their expected ends.
        window: `bf_window`, how far the plan looks ahead, minutes.
        resolution: `bf_resolution`; reservations begin and end at multiples of it, s.
        slots: `bf_node_space_size`, the largest number of slots: the first, and one for each other instant at which a
            reservation begins or ends.
    """

    def __init__(self, state: State, window: int = 0, resolution: int = 0, slots: int = 0) -> None:
        """Start with the expected ends of the running jobs."""
        ends, nodes, _ = state.releases.rows
        self._profile: Profile | None = None
        self._now, self._idle, self._ends, self._freed = state.now, state.idle + state.returning, ends, nodes
        self._to_come: list[tuple[float | None, float, int]] = []
        self._last = state.now + window * MINUTE_S if window else math.inf
        self._resolution, self._slots = resolution, slots
        self._bounds: set[float] = set()
        self._failed: list[tuple[int, float]] = []  # nodes, duration of jobs that do not start within the window
        self._found: dict[int, tuple[float, float]] = {}  # nodes -> duration and start of the last job planned

    def add(self, start: float | None, duration: float, nodes: int) -> None:
        """Reserve `nodes` nodes for `duration` seconds from `start` (None: the earliest possible time)."""
        self._to_come.append((start, duration, nodes))

    def reserve(self, nodes: int, duration: float) -> bool:
        """Reserve the nodes from the earliest time, if within the window. Return False if the plan has no slot left."""
        if not self._slots:
            self.add(None, duration, nodes)
            return True
        return self._reserve(self._update(), nodes, duration)

    def start_of(self, nodes: int, duration: float) -> float:
        """Return the earliest instant from which `nodes` nodes are idle for `duration` s; inf: beyond the window."""
        return self._earliest(self._update(), nodes, duration)

    def has_room(self, taken: Sequence[tuple[float, float, int]]) -> bool:
        """Return whether nodes can be taken (start, duration, nodes) and no reservation lacks one."""
        profile, least = self._update(), 0
        for start, duration, nodes in taken:
            profile.occupy(start, duration, nodes)
        for start, duration, _ in taken:
            least = min(least, profile.least(start, duration))
        for start, duration, nodes in taken:
            profile.occupy(start, duration, -nodes)
        return least >= 0

    def _update(self) -> Profile:
        """Return the idle nodes over time, after all reservations added so far."""
        if self._profile is None:
            self._profile = Profile(self._now, self._idle, zip(self._ends.tolist(), self._freed.tolist(), strict=True))
        for start, duration, nodes in self._to_come:
            if start is None:
                self._reserve(self._profile, nodes, duration)
            else:
                self._profile.occupy(start, duration, nodes)
        self._to_come.clear()
        return self._profile

    def _reserve(self, profile: Profile, nodes: int, duration: float) -> bool:
        start = self._earliest(profile, nodes, duration)
        if start == math.inf:
            return True
        if self._slots and len(self._bounds) + 1 >= self._slots:
            return False
        end = start + duration
        if self._resolution and end < math.inf:
            start, end = (max(at // self._resolution * self._resolution, self._now) for at in (start, end))
        profile.occupy(start, end - start, nodes)
        if self._slots:
            self._bounds.update(at for at in (start, end) if self._now < at < self._last)
        return True

    def is_beyond(self, nodes: int, duration: float) -> bool:
        """Return whether an earlier search shows that the nodes do not fit within the window."""
        return any(nodes >= fewer and duration >= shorter for fewer, shorter in self._failed)

    def _earliest(self, profile: Profile, nodes: int, duration: float) -> float:
        if self.is_beyond(nodes, duration):
            return math.inf
        shorter, since = self._found.get(nodes, (math.inf, -math.inf))
        # the idle nodes only decrease, so that a longer job starts no earlier than a shorter one
        start = profile.earliest(nodes, duration, since=since if duration >= shorter else -math.inf)
        self._found[nodes] = duration, start
        if start <= self._last:
            return start
        longer = [(more, long) for more, long in self._failed if more < nodes or long < duration]
        self._failed = [*longer, (nodes, duration)]
        return math.inf
