"""The time of a replay: its clock, the speed of the clock, and trace time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracebed.benchmarks.clock import POLL_S, Clock, SteadyClock
from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.nodes import Inventory

NOTE_S = 1.0  # time between two records of the speed of a steady clock, wall s
STALL_S = 60.0  # longest time that a steady clock may stand still, wall s; ten iterations if they are longer
# Places for ranks in a steady clock. Two jobs may share a node, and a rank keeps its place until it is reaped.
RANKS_PER_NODE = 4


def make_clock(kind: str, inventory: Inventory, folder: Path) -> Clock:
    """Return the clock of a replay, one of `options.CLOCKS`. The file of a steady clock is in `folder`."""
    if kind == "wall":
        return Clock()
    if inventory.kind != "local":
        what = f"a steady clock needs the testbed local, but the testbed is {inventory.kind}"
        raise InputError(what, where=inventory.where, hint="use --clock wall")
    path = folder / "clock"
    if path.exists():  # the replay is resumed
        try:
            return SteadyClock.reopen(path)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"the steady clock of the killed replay cannot be read: {error}", where=str(path)
            ) from error
    return SteadyClock.create(path, RANKS_PER_NODE * len(inventory.nodes))


class Pace:
    """The speed of a steady clock in a replay: steady seconds per wall second. A monotonic clock is not recorded."""

    def __init__(self, clock: Clock, grain_s: float) -> None:
        self._clock = clock
        self._stall_timeout_s = max(STALL_S, 10 * grain_s)
        self._first = self._last = self._moved = (system.monotonic(), clock.now())
        self._slowest = 1.0

    def note(self) -> dict[str, float] | None:
        """Return the times of both clocks, and wall over steady time since the last record, if a record is due."""
        if not isinstance(self._clock, SteadyClock) or (now := system.monotonic()) < self._last[0] + NOTE_S:
            return None
        steady = self._clock.now()
        if steady > self._moved[1]:
            self._moved = (now, steady)
        elif now - self._moved[0] > self._stall_timeout_s:
            raise TestbedError(
                f"the steady clock has stood still for {self._stall_timeout_s:g} s: "
                f"process {self._clock.holder()} is a rank that does not end its part",
                hint="the run so far is kept",
            )
        passed, counted = now - self._last[0], steady - self._last[1]
        self._slowest = min(self._slowest, counted / passed)
        self._last = (now, steady)
        return {"monotonic": now, "steady": steady, "dilation": passed / max(counted, POLL_S)}

    def factor(self) -> dict[str, Any]:
        """Return the parameter `clock_factor` of a run: the mean speed of the clock, and the slowest second."""
        wall, steady = self._last[0] - self._first[0], self._last[1] - self._first[1]
        return {"clock_factor": {"min": self._slowest, "mean": steady / wall}} if wall else {}


class Timeline:
    """Trace time, which advances `speed` times as fast as the clock of the replay, and stands still during a pause."""

    def __init__(self, clock: Clock, speed: float) -> None:
        """Prepare the timeline; `zero` must be set before it is used."""
        self.clock, self.speed = clock, speed
        self.zero = 0.0  # time of trace time 0, by the clock, s; each pause moves it
        self._before: list[tuple[float, float]] = []  # of each pause: `zero` before it, and its trace time

    def start_at(self, trace: float, lead_s: float = 0.0) -> None:
        """Set the start: trace time `trace` is `lead_s` wall seconds from now."""
        self.zero = self.clock.now() + lead_s - trace / self.speed

    def pause(self, trace: float, zero: float | None = None) -> None:
        """Add a pause at a trace time. Then trace time 0 is at `zero` of the clock; None: trace time continues now."""
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
