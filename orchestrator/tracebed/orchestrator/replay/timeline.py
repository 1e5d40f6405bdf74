"""The time of a replay: trace seconds, computed from the clock of its jobs."""

from __future__ import annotations

from tracebed.benchmarks.clock import Clock


class Timeline:
    """Trace time, which advances `speed` times as fast as the clock of the replay, and stands still during a pause.

    Args:
        speed: trace seconds per wall second.

    Attributes:
        zero: time of trace time 0, by the clock, s. Each pause moves it.
    """

    def __init__(self, clock: Clock, speed: float) -> None:
        """Prepare the timeline; `zero` must be set before it is used."""
        self.clock, self.speed = clock, speed
        self.zero = 0.0
        self._before: list[tuple[float, float]] = []  # of each pause: `zero` before it, and its trace time

    def start_at(self, trace: float, lead_s: float = 0.0) -> None:
        """Set the start: trace time `trace` is `lead_s` wall seconds from now."""
        self.zero = self.clock.now() + lead_s - trace / self.speed

    def pause(self, trace: float, zero: float | None = None) -> None:
        """Add a pause at trace time `trace`. Earlier times of the clock keep their trace times.

        Args:
            zero: time of trace time 0, by the clock, after the pause, s; None: trace time continues now.
        """
        self._before.append((self.zero, trace))
        if zero is None:
            self.start_at(trace)
        else:
            self.zero = zero

    def shift(self, seconds: float) -> None:
        """Continue by another clock, which shows `seconds` less than the clock so far."""
        self.zero -= seconds
        self._before = [(zero - seconds, trace) for zero, trace in self._before]

    def now(self) -> float:
        """Return the current trace time."""
        return self.trace(self.clock.now())

    def trace(self, time: float) -> float:
        """Return the trace time at `time` of the clock."""
        if not self._before:
            return (time - self.zero) * self.speed
        times = [min((time - zero) * self.speed, trace) for zero, trace in self._before]
        return max([*times, (time - self.zero) * self.speed])

    def clock_at(self, trace: float) -> float:
        """Return the time of the clock at which trace time reaches `trace`, if there is no further pause."""
        return self.zero + trace / self.speed

    def at(self, monotonic: float) -> float:
        """Return the trace time at the `monotonic` time of a recent event."""
        return self.trace(self.clock.at(monotonic))

    def monotonic(self, trace: float) -> float:
        """Return the monotonic time at which to check whether trace time `trace` has been reached."""
        return self.clock.monotonic(self.clock_at(trace))
