"""The time of a replay: trace seconds, computed from the clock of its jobs."""

from __future__ import annotations

import math

from tracebed.benchmarks.clock import Clock


class Timeline:
    """Trace time, which advances `speed` times as fast as the clock of the replay.

    Args:
        clock: the clock of the replay and of its jobs.
        speed: trace seconds per wall second.

    Attributes:
        zero: time of trace time 0, by the clock, s.
    """

    def __init__(self, clock: Clock, speed: float) -> None:
        """Prepare the timeline; `zero` must be set before it is used."""
        self.clock, self.speed = clock, speed
        self.zero = 0.0
        self._resumed = -math.inf  # trace time of the last pause

    def start_at(self, trace: float, lead_s: float = 0.0) -> None:
        """Let trace time `trace` be `lead_s` wall seconds from now."""
        self.zero = self.clock.now() + lead_s - trace / self.speed

    def resume(self, trace: float, zero: float | None = None) -> None:
        """Continue at the trace time `trace` after a pause. All events before and during the pause are at `trace`.

        Args:
            trace: trace time of the pause.
            zero: time of trace time 0, by the clock, s; None: the replay continues now.
        """
        if zero is None:
            self.start_at(trace)
        else:
            self.zero = zero
        self._resumed = trace

    def now(self) -> float:
        """Return the current trace time."""
        return self.trace(self.clock.now())

    def trace(self, time: float) -> float:
        """Return the trace time at `time` of the clock."""
        return max(self._resumed, (time - self.zero) * self.speed)

    def at(self, monotonic: float) -> float:
        """Return the trace time at the `monotonic` time of a recent event."""
        return self.trace(self.clock.at(monotonic))

    def monotonic(self, trace: float) -> float:
        """Return the monotonic time at which to check whether trace time `trace` has been reached."""
        return self.clock.monotonic(self.zero + trace / self.speed)
