"""Who does a rank's work: threads that compute, or a clock that says how long they would have."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

Finished = Callable[[int, int], None]
"""Called in the main thread with units that were done and the number of cores that are idle for it."""
Post = Callable[[Callable[[], None]], None]
"""Has the main thread call something soon; may be called from any thread."""


class Threads:
    """Worker threads, each pinned to one CPU of the mask, parked while there is nothing for them to do."""

    deadline: float | None = None
    """When `tick` has something to do: never."""
    late_s = 0.0

    def __init__(self, cpus: Sequence[int], kernel: Callable[[int], int], post: Post, finished: Finished) -> None:
        """Start one thread a CPU. Raises OSError where a CPU is not ours."""
        self._kernel, self._post, self._finished = kernel, post, finished
        self._threads: list[threading.Thread] = []
        self._tasks: list[SimpleQueue[int]] = []
        self._busy: set[int] = set()
        self._begun = 0.0
        self.set_mask(cpus)

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Work on `cpus` from now on: park threads, start or wake some, pin each anew. None may be busy."""
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
        """Whether any thread works."""
        return bool(self._busy)

    def begin(self, behind: float) -> None:
        """Begin a part of the job; that the job is `behind` its plan is no concern of real work."""
        self._begun = time.monotonic()

    def elapsed(self) -> float:
        """Return how long the part took, s."""
        return time.monotonic() - self._begun

    def start(self, shares: Sequence[int]) -> None:
        """Give one idle thread each of `shares` units."""
        idle = [index for index in range(len(self.cpus)) if index not in self._busy]
        for index, units in zip(idle[: len(shares)], shares, strict=True):
            self._busy.add(index)
            self._tasks[index].put(units)

    def tick(self) -> None:
        """Nothing is due at any time."""

    def _work(self, index: int) -> None:
        while True:
            units = self._tasks[index].get()
            try:
                self._kernel(units)
            except Exception as error:  # noqa: BLE001  the main thread shall raise whatever it is
                self._post(partial(self._raise, error))
            else:
                self._post(partial(self._done, index, units))

    def _raise(self, error: Exception) -> None:
        raise error

    def _done(self, index: int, units: int) -> None:
        self._busy.discard(index)
        self._finished(units, 1)


class Sleeper:
    """Virtual cores: work is a deadline of the monotonic clock.

    Each counts from the one before, not from when somebody woke up: lateness is made good, not added up.
    """

    def __init__(self, cpus: Sequence[int], rate: float, finished: Finished) -> None:
        """Be `len(cpus)` cores that do `rate` units a second each."""
        self._rate, self._finished = rate, finished
        self._begun = self._clock = 0.0
        self._units = 0
        self.deadline: float | None = None
        self.late_s = 0.0
        """The latest that a deadline was noticed, s: the mark of fidelity."""
        self.set_mask(cpus)

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Be these virtual cores from now on."""
        self.cpus = tuple(cpus)

    @property
    def busy(self) -> bool:
        """Whether a deadline is set."""
        return self.deadline is not None

    def begin(self, behind: float) -> None:
        """Begin a part of a job that is `behind` its plan (s)."""
        self._begun = self._clock = time.monotonic() - behind

    def elapsed(self) -> float:
        """Return how long the part was planned to take, s."""
        return self._clock - self._begun

    def start(self, shares: Sequence[int]) -> None:
        """Have one core each do `shares` units: the largest decides."""
        self._clock += max(shares, default=0) / self._rate
        self._units = sum(shares)
        self.deadline = self._clock

    def tick(self) -> None:
        """Report the work done where the deadline has passed."""
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            self.late_s = max(self.late_s, now - self.deadline)
            self.deadline = None
            self._finished(self._units, len(self.cpus))
