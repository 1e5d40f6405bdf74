"""The clock of a job: the monotonic clock, or a steady clock that all processes of a replay share.

Deadlines of ranks are times of this clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

from tracebed.ground import system
from tracebed.ground.errors import TestbedError

POLL_S = 0.001  # polling interval of a steady clock that stands still, s
# Time that the creator of a steady clock waits for its lock, s. A rank that was stopped may keep the lock.
LOCK_S = 10.0


class Pauses:
    """The time for which the ranks of a node have been stopped, in memory that forked processes share."""

    def __init__(self) -> None:
        self._total = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")

    @property
    def total(self) -> float:
        """The sum of all pauses, s."""
        return self._total[0]

    def add(self, seconds: float) -> None:
        """Add a pause. The ranks must be stopped."""
        self._total[0] += seconds

    def set(self, total: float) -> None:
        """Set the sum of all pauses, s. The ranks must be stopped."""
        self._total[0] = total


class Clock:
    """The monotonic clock of the machine without the pauses of the node."""

    path: str | None = None  # the file of the clock, for other processes; None: the clock needs no file
    _pauses: Pauses | None = None

    def __init__(self, pauses: Pauses | None = None) -> None:
        """Leave out `pauses`; None: no pauses."""
        self._pauses = pauses

    def now(self) -> float:
        """Return the time of the clock, s."""
        return self.running()

    def running(self) -> float:
        """Return the monotonic time without pauses, s."""
        if self._pauses is None:
            return system.monotonic()
        while True:
            total = self._pauses.total
            now = system.monotonic()
            if total == self._pauses.total:  # otherwise, this process was stopped between the two readings
                return now - total

    def stamp(self, now: float) -> float:
        """Return the current time of the clock as it is reported to the controller: monotonic, with pauses."""
        return now + (self._pauses.total if self._pauses else 0.0)

    def at(self, running: float) -> float:
        """Return the time of the clock at the `running` time of a recent event."""
        return running

    def past(self, running: float) -> float:
        """Return the time of the clock at a past `running` time at which no rank ran any more."""
        return running

    def monotonic(self, until: float) -> float:
        """Return the monotonic time at which to check whether the clock has reached `until`."""
        return until + (self._pauses.total if self._pauses else 0.0)

    def hold_at(self, deadline: float | None) -> None:
        """Hold a steady clock at `deadline` until the next call of this process. None: do not hold the clock."""

    def close(self) -> None:
        """Release the resources of the clock."""


class SteadyClock(Clock):
    """A clock in shared memory that does not pass the deadline of a part of a job before the part has ended.

    Each rank holds the clock at the deadline of its current part. The clock runs like the monotonic clock up to the
    earliest of these deadlines, and stands still there. It never runs backwards. This is the conservative rule of
    parallel simulation (Chandy and Misra 1979), with real time between two events.

    The file has pairs of floats: (steady time, monotonic time) of the last change, then (process ID, deadline) of each
    rank. A file lock protects the pairs. The kernel releases the lock of a process that dies, and the parent of that
    process calls `forget`.
    """

    _lock_timeout_s: float | None = None  # time to wait for the lock, s; None: no limit

    def __init__(self, path: Path | str, pauses: Pauses | None = None) -> None:
        """Use the clock in the file at `path`. Pauses need not be left out: a rank that is stopped holds the clock."""
        super().__init__(pauses)
        self.path = str(path)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._file, 0)
        self._state = memoryview(self._map).cast("d")
        self._own = 0  # index of the pair of this process; 0: no pair yet

    @classmethod
    def create(cls, path: Path, processes: int) -> SteadyClock:
        """Create a clock for at most `processes` ranks at a time. It starts at the monotonic time."""
        now = system.monotonic()
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            array("d", [now, now] + [0.0, math.inf] * processes).tofile(file)
        clock = cls(path)
        clock._lock_timeout_s = LOCK_S
        return clock

    @classmethod
    def reopen(cls, path: Path) -> SteadyClock:
        """Use the clock at `path`, whose creator has died. Deadlines of ranks that have died no longer hold it."""
        clock = cls(path)
        clock._lock_timeout_s = LOCK_S
        for process in {int(process) for process in clock._state[2::2]} - {0}:
            if not Path(f"/proc/{process}").exists():
                clock.forget(process)
        return clock

    def now(self) -> float:
        """Return the steady time, s."""
        with self._locked():
            return self._at(system.monotonic())

    def stamp(self, now: float) -> float:
        """Return the steady time, s."""
        return now

    def at(self, running: float) -> float:
        """Return the current steady time, since past times are not recorded."""
        return self.now()

    def past(self, running: float) -> float:
        """Return the steady time at a past `running` time at which no rank ran any more."""
        with self._locked():
            return self._at(max(running, self._state[1]))

    def monotonic(self, until: float) -> float:
        """Return the earliest monotonic time at which the clock can reach `until`."""
        with self._locked():
            now = system.monotonic()
            steady, held = self._at(now), self._earliest()
        left = until - steady
        return now + (max(left, POLL_S) if left > 0 and steady >= held else left)

    def hold_at(self, deadline: float | None) -> None:
        """Hold the clock at `deadline` until the next call. None: do not hold the clock."""
        with self._locked():
            self._note()
            if not self._own:
                self._own = self._free_pair()
                self._state[self._own] = os.getpid()
            self._state[self._own + 1] = math.inf if deadline is None else deadline

    def forget(self, process: int) -> None:
        """Release the clock from the deadline of a process that has died."""
        with self._locked():
            self._note()
            for pair in range(2, len(self._state), 2):
                if self._state[pair] == process:
                    self._state[pair], self._state[pair + 1] = 0.0, math.inf

    def holder(self) -> int:
        """Return the ID of the process with the earliest deadline; 0: there is no deadline."""
        with self._locked():
            deadline, process = min(zip(self._state[3::2], self._state[2::2], strict=True))
            return int(process) if deadline < math.inf else 0

    def close(self) -> None:
        """Close the file. The clock cannot be used afterwards."""
        self._state.release()
        self._map.close()
        os.close(self._file)

    def _at(self, monotonic: float) -> float:
        steady, then = self._state[0], self._state[1]
        return max(steady, min(steady + monotonic - then, self._earliest()))

    def _earliest(self) -> float:
        return min(self._state[3::2])

    def _note(self) -> None:
        """Record the time before a deadline changes."""
        now = system.monotonic()
        self._state[0], self._state[1] = self._at(now), now

    def _free_pair(self) -> int:
        for pair in range(2, len(self._state), 2):
            if not self._state[pair]:
                return pair
        raise TestbedError("the steady clock has no room for another rank", where=self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock()
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _lock(self) -> None:
        """Lock the file. Raises TestbedError if another process keeps the lock for too long."""
        if self._lock_timeout_s is None:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            return
        until = system.monotonic() + self._lock_timeout_s
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except (BlockingIOError, PermissionError) as error:  # the two errors of POSIX for a lock that is taken
                if system.monotonic() >= until:
                    what = f"a process has kept the lock of the steady clock for {self._lock_timeout_s:g} s"
                    raise TestbedError(what, where=self.path, hint="a rank may have been stopped") from error
            system.sleep(POLL_S / 10)
