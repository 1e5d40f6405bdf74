"""The wall clock of a replay on a batch system, whose records are wall times.

The replay is paced by the monotonic clock. A batch system and its jobs record times of wall clocks, which an operator
or NTP may set. Steps of the wall clock of this machine are detected and removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracebed.ground import system

STEP_S = 0.1  # Smallest change between two checks that counts as a step, s. NTP slews by at most 0.5 ms per s.
ROUNDED_S = 1.0  # batch systems round times down to multiples of this time, s


class Step(NamedTuple):
    """A step of the wall clock. `since` and `until` are times of the replay's clock, s."""

    since: float  # last check before the step
    until: float  # check that detected the step
    size: float


class WallClock:
    """Wall time that advances with the monotonic clock."""

    def __init__(
        self, steps: Sequence[Step] = (), base: Mapping[str, Any] | None = None, checked: float | None = None
    ) -> None:
        """Continue the clock with `base`, or start at the wall time without the `steps` after a restart of the machine.

        The other process has detected `steps`, and checked its clock at `checked` at last. Later steps are only
        detected if its clock is continued.
        """
        self.steps = list(steps)
        self.drift_s = 0.0  # last difference of the wall clock from this clock without the steps, s
        boot = system.current().boot_id()
        if base is None or boot is None or base["boot"] != boot:
            wall = system.time() - sum(step.size for step in steps)
            base = {"wall": wall, "monotonic": system.monotonic(), "boot": boot}
        self.base = base  # a wall time, the monotonic time at that instant, and the boot of the machine, as JSON
        self._checked = self.now() if checked is None else checked

    def now(self) -> float:
        """Return the time in s since 1970. It does not jump."""
        return float(self.base["wall"] + (system.monotonic() - self.base["monotonic"]))

    def check(self) -> Step | None:
        """Compare the wall clock with the monotonic clock. Return a new step."""
        now = self.now()
        since, self._checked = self._checked, now
        drift = system.time() - now - sum(step.size for step in self.steps)
        size = drift - self.drift_s
        if abs(size) < STEP_S:
            self.drift_s = drift
            return None
        self.steps.append(Step(since, now, size))
        return self.steps[-1]

    def at(self, wall: float, near: float, latest: float | None = None) -> float:
        """Return the time of this clock at a recorded wall time.

        After a step back, a wall time occurs twice: the result is the time that is nearest to `near`, and not after
        `latest` (default: `near`).
        """
        latest = near if latest is None else latest
        found, begin, stepped = [], -math.inf, 0.0
        for step in (*self.steps, Step(math.inf, math.inf, 0.0)):
            if begin - ROUNDED_S <= wall - stepped <= min(step.until, latest + ROUNDED_S):
                found.append(wall - stepped)
            begin, stepped = step.since, stepped + step.size
        return min(found or [wall - stepped], key=lambda time: abs(time - near))
