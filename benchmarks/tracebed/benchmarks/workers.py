"""The workers of a rank: threads that compute, or a clock that emulates their computing time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

Finished = Callable[[int, int], None]
"""A function of the units done and the number of cores that became idle. It is called in the main thread."""
Post = Callable[[Callable[[], None]], None]
"""A function that schedules a call in the main thread. It may be called from any thread."""


class Threads:
    """Worker threads, each pinned to one CPU of the mask. Idle threads are blocked."""

    deadline: float | None = None
    """When `tick` is due: never."""
    late_s = 0.0

    def __init__(self, cpus: Sequence[int], kernel: Callable[[int], int], post: Post, finished: Finished) -> None:
        """Start one thread per CPU. Raises OSError if this process may not use one of the CPUs."""
        self._kernel, self._post, self._finished = kernel, post, finished
        self._threads: list[threading.Thread] = []
        self._tasks: list[SimpleQueue[int]] = []
        self._busy: set[int] = set()
        self._begun = 0.0
        self.set_mask(cpus)

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Replace the mask by `cpus`: start missing threads, and pin each thread. All threads must be idle."""
        self.cpus = tuple(cpus)
        os.sched_setaffinity(0, cpus)
        while len(self._threads) < len(cpus):
            index = len(self._threads)
            self._tasks.append(SimpleQueue())
            self._threads.append(threading.Thread(target=self._work, args=(index,), daemon=True))
            self._threads[index].start()
        for index, thread in enumerate(self._threads):
            assert thread.native_id is not None
            os.sched_setaffinity(thread.native_id, cpus[index : index + 1] or cpus)

    @property
    def busy(self) -> bool:
        """Whether a thread is working."""
        return bool(self._busy)

    def begin(self, behind: float) -> None:
        """Begin a part of the job. `behind`, the delay of the job in s, has no effect on computing threads."""
        self._begun = time.monotonic()

    def elapsed(self) -> float:
        """Return the time since the part began, s."""
        return time.monotonic() - self._begun

    def start(self, shares: Sequence[int]) -> None:
        """Assign each of `shares`, in units, to an idle thread."""
        idle = [index for index in range(len(self.cpus)) if index not in self._busy]
        for index, units in zip(idle[: len(shares)], shares, strict=True):
            self._busy.add(index)
            self._tasks[index].put(units)

    def tick(self) -> None:
        """Do nothing: threads have no deadlines."""

    def _work(self, index: int) -> None:
        while True:
            units = self._tasks[index].get()
            try:
                self._kernel(units)
            except Exception as error:  # noqa: BLE001  the main thread raises it
                self._post(partial(self._raise, error))
            else:
                self._post(partial(self._done, index, units))

    def _raise(self, error: Exception) -> None:
        raise error

    def _done(self, index: int, units: int) -> None:
        self._busy.discard(index)
        self._finished(units, 1)


class Sleeper:
    """Virtual cores: work is emulated by a deadline on the monotonic clock.

    Each deadline is computed from the previous deadline, not from the wake-up time, so delays do not add up.
    """

    def __init__(self, cpus: Sequence[int], rate: float, finished: Finished) -> None:
        """Emulate `len(cpus)` cores that do `rate` units per second each."""
        self._rate, self._finished = rate, finished
        self._begun = self._clock = 0.0
        self._units = 0
        self.deadline: float | None = None
        self.late_s = 0.0
        """Longest delay between a deadline and its detection, s. It measures the fidelity of the emulation."""
        self.set_mask(cpus)

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Replace the virtual cores by `cpus`."""
        self.cpus = tuple(cpus)

    @property
    def busy(self) -> bool:
        """Whether a deadline is set."""
        return self.deadline is not None

    def begin(self, behind: float) -> None:
        """Begin a part of a job that is `behind` its plan, in s."""
        self._begun = self._clock = time.monotonic() - behind

    def elapsed(self) -> float:
        """Return the planned time of the part, s."""
        return self._clock - self._begun

    def start(self, shares: Sequence[int]) -> None:
        """Assign each of `shares`, in units, to a core. The largest share determines the deadline."""
        self._clock += max(shares, default=0) / self._rate
        self._units = sum(shares)
        self.deadline = self._clock

    def tick(self) -> None:
        """Report the work done if the deadline has passed."""
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            self.late_s = max(self.late_s, now - self.deadline)
            self.deadline = None
            self._finished(self._units, len(self.cpus))
