"""The wall clock of a replay on a batch system, whose records are wall times.

The replay is paced by the monotonic clock. A batch system and its jobs record times of wall clocks, which an operator
or NTP may set. Steps of the wall clock of this machine are detected and removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracebed import world

STEP_S = 0.1
"""Smallest change between two checks that counts as a step, s. NTP slews by at most 0.5 ms per s."""


class WallClock:
    """Wall time that advances with the monotonic clock.

    Args:
        steps: the steps that another process has detected, if this clock continues the clock of that process.

    Attributes:
        steps: (wall time after the step, size) of each step of the wall clock, s.
        drift_s: last difference of the wall clock from this clock without the steps, s.
    """

    def __init__(self, steps: Sequence[tuple[float, float]] = ()) -> None:
        """Start at the wall time of this machine, without the `steps`."""
        self._wall, self._monotonic = world.time() - sum(size for _, size in steps), world.monotonic()
        self.steps = list(steps)
        self.drift_s = 0.0

    def now(self) -> float:
        """Return the time in s since 1970. It does not jump."""
        return self._wall + world.monotonic() - self._monotonic

    def check(self) -> float:
        """Compare the wall clock with the monotonic clock. Return the size of a new step, s; 0: no new step."""
        wall = world.time()
        drift = wall - self.now() - sum(size for _, size in self.steps)
        step = drift - self.drift_s
        if abs(step) < STEP_S:
            self.drift_s = drift
            return 0.0
        self.steps.append((wall, step))
        return step

    def without_steps(self, wall: float) -> float:
        """Return the time of this clock at a recorded wall time. It is ambiguous just after a step back."""
        return without_steps(self.steps, wall)


def without_steps(steps: Sequence[tuple[float, float]], wall: float) -> float:
    """Return a recorded wall time without the `steps` (see `WallClock.steps`) before it."""
    return wall - sum(size for at, size in steps if wall >= at)
