"""The workers of a rank: threads that compute, or a timer that emulates their computing time.

The plan of a part is the time that each core needs for its units at the rate of the program. `Threads` ignore the plan
(duty 1). A `Sleeper` only waits for the end of the plan (duty 0). `PacedThreads` compute, then wait.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from tracebed.benchmarks.clock import Clock
from tracebed.benchmarks.kernels import MODULUS, Kernel

Finished = Callable[[int, int], None]
"""A function of the number of units done and the number of cores that became idle. It is called in the main thread."""
Post = Callable[[Callable[[], None]], None]
"""A function that schedules a call in the main thread. It may be called from any thread."""
Sample = tuple[float, int, float, float, float]
"""Monotonic time, units computed, their CPU time and wall time (sums over the threads, s), largest delay behind a
deadline, s."""


class Computed(NamedTuple):
    """The work of a thread for one share."""

    units: int
    checksum: int
    cpu_s: float
    wall_s: float
    ended: float  # time at the end (`Clock.running`)


class Workers:
    """The cores of a rank, their plan, and the figures of the work that they really did.

    `rate` is the planned units per second of a core. `finished` is called with the planned units of each share that has
    ended.
    """

    def __init__(self, cpus: Sequence[int], rate: float, finished: Finished, clock: Clock) -> None:
        self._rate, self._finished, self._clock = rate, finished, clock
        self._begun = 0.0
        self._planned: list[float] = []  # core -> planned end of its shares of the part
        # Time at which the latest share of the part was computed. Workers without deadlines leave it at 0.
        self._ready = 0.0
        self.deadline: float | None = None  # time of the clock at which `tick` is due; None: never
        self.overruns = 0  # number of parts that were not computed by their deadline
        self.late_s = 0.0  # largest delay between a deadline and the end of its share, s
        self._units, self._cpu_s, self._wall_s, self._late_s = 0, 0.0, 0.0, 0.0  # since the last sample
        self._checksum: int | None = None  # since it was last taken
        self.set_mask(cpus)

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Replace the mask by `cpus`. All cores must be idle."""
        self.cpus = tuple(cpus)

    def suspend(self) -> None:
        """Use no CPU until the next mask. All cores must be idle, so workers that compute units do nothing."""

    @property
    def busy(self) -> bool:
        """Whether a core has not ended its share."""
        raise NotImplementedError

    def begin(self, behind: float) -> None:
        """Begin a part of a job that is behind its plan by `behind` s. The deadlines are that much earlier."""
        self._begun = self._clock.now() - behind
        self._planned = [self._begun] * len(self.cpus)
        self._ready = 0.0

    def end(self) -> float:
        """Return the planned time of the slowest core for the part that has ended, s."""
        planned = max(self._planned)
        self.overruns += self._begun < planned < self._ready
        return planned - self._begun

    def start(self, shares: Sequence[range]) -> None:
        """Assign each of `shares`, ranges of unit numbers, to an idle core."""
        raise NotImplementedError

    def take_checksum(self) -> int | None:
        """Return the checksum of the units since the last call; None: the cores compute nothing."""
        taken = self._checksum
        self._checksum = None if taken is None else 0
        return taken

    def tick(self) -> None:
        """End the shares whose deadline has passed."""

    def sample(self) -> Sample:
        """Return the figures since the last sample, in whole nanoseconds: more digits would only fill the journal."""
        cpu_s, wall_s, late_s = (round(seconds, 9) for seconds in (self._cpu_s, self._wall_s, self._late_s))
        sample = (round(time.monotonic(), 9), self._units, cpu_s, wall_s, late_s)
        self._units, self._cpu_s, self._wall_s, self._late_s = 0, 0.0, 0.0, 0.0
        return sample

    def _ended_late(self, seconds: float) -> None:
        self._late_s = max(self._late_s, seconds)
        self.late_s = max(self.late_s, seconds)


class Threads(Workers):
    """Worker threads, each pinned to one CPU of the mask. Idle threads are blocked."""

    def __init__(
        self, cpus: Sequence[int], rate: float, finished: Finished, clock: Clock, kernel: Kernel, post: Post
    ) -> None:
        """Start one thread per CPU. Raises OSError if this process may not use one of the CPUs."""
        self._kernel, self._post = kernel, post
        self._threads: list[threading.Thread] = []
        self._tasks: list[SimpleQueue[tuple[int, range]]] = []
        self._busy: set[int] = set()
        super().__init__(cpus, rate, finished, clock)
        self._checksum = 0

    def set_mask(self, cpus: Sequence[int]) -> None:
        """Replace the mask by `cpus`: start missing threads, and pin each thread. All threads must be idle."""
        super().set_mask(cpus)
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
        """Whether a thread has not ended its share."""
        return bool(self._busy)

    def start(self, shares: Sequence[range]) -> None:
        """Assign each of `shares` to an idle thread, in the order of the planned ends of the threads."""
        idle = [index for index in range(len(self.cpus)) if index not in self._busy]
        idle.sort(key=self._planned.__getitem__)
        for index, share in zip(idle[: len(shares)], shares, strict=True):
            self._busy.add(index)
            self._planned[index] += len(share) / self._rate
            self._tasks[index].put((len(share), self._to_compute(share)))

    def _to_compute(self, share: range) -> range:
        """Return the numbers of the units that are computed for a share."""
        return share

    def _work(self, index: int) -> None:
        while True:
            units, to_compute = self._tasks[index].get()
            try:
                begun, cpu_begun = self._clock.running(), time.thread_time()
                checksum = self._kernel(to_compute.start, len(to_compute))
                cpu_s, ended = time.thread_time() - cpu_begun, self._clock.running()
            except BaseException as error:  # noqa: BLE001  the main thread raises it, and would wait for it otherwise
                self._post(partial(self._raise, error))
                return
            computed = Computed(len(to_compute), checksum, cpu_s, ended - begun, ended)
            self._post(partial(self._computed, index, units, computed))

    def _raise(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"a worker thread was ended by {type(error).__name__}: {error}") from error

    def _computed(self, index: int, units: int, computed: Computed) -> None:
        """Record what a thread computed for a share of `units`, and end the share."""
        self._record(computed)
        self._end_share(index, units)

    def _record(self, computed: Computed) -> None:
        self._units += computed.units
        assert self._checksum is not None
        self._checksum = (self._checksum + computed.checksum) % MODULUS
        self._cpu_s += computed.cpu_s
        self._wall_s += computed.wall_s

    def _end_share(self, index: int, units: int) -> None:
        self._busy.discard(index)
        self._finished(units, 1)


class Sleeper(Workers):
    """Virtual cores: work is emulated by a deadline.

    Each deadline is computed from the previous deadline, not from the wake-up time, so delays do not add up. All cores
    end at the deadline of the slowest one.
    """

    _shares = 0  # units

    @property
    def busy(self) -> bool:
        """Whether a deadline is set."""
        return self.deadline is not None

    def start(self, shares: Sequence[range]) -> None:
        """Assign each of `shares` to a core. The largest share determines the deadline."""
        self._ready = self._clock.now()
        lengths = [len(share) for share in shares]
        self.deadline = max(self._planned) + max(lengths, default=0) / self._rate
        self._planned = [self.deadline]
        self._shares = sum(lengths)
        self._clock.hold_at(self.deadline)

    def tick(self) -> None:
        """Report the work done if the deadline has passed."""
        now = self._clock.now()
        if self.deadline is not None and now >= self.deadline:
            self._ended_late(now - self.deadline)
            self.deadline = None
            self._clock.hold_at(None)
            self._finished(self._shares, len(self.cpus))


class PacedThreads(Threads):
    """Worker threads that compute `duty` times the units of their shares. A share ends at its absolute deadline.

    The deadline of a share is the deadline of the previous share of the core, plus the units of the share over the
    rate. A core that is behind its plan therefore waits less until it has caught up (as in rt-app with timers in mode
    absolute). Units are counted as planned, so the units of a job are the same at every duty.
    """

    def __init__(
        self,
        cpus: Sequence[int],
        rate: float,
        finished: Finished,
        clock: Clock,
        kernel: Kernel,
        post: Post,
        duty: float,
    ) -> None:
        """Start one thread per CPU. `duty` is the share of the planned units that is computed, above 0 to 1."""
        self._duty = duty
        self._waiting: list[tuple[float, int, int]] = []  # heap of (deadline, core, units): shares that are computed
        super().__init__(cpus, rate, finished, clock, kernel, post)

    def start(self, shares: Sequence[range]) -> None:
        """Assign each of `shares` to an idle thread. A steady clock is held at the earliest deadline."""
        super().start(shares)
        self._hold()

    def _end_share(self, index: int, units: int) -> None:
        self._busy.discard(index)
        self._hold()
        self._finished(units, 1)

    def _hold(self) -> None:
        if self._clock.path:
            self._clock.hold_at(min((self._planned[index] for index in self._busy), default=None))

    def _to_compute(self, share: range) -> range:
        """Return `duty` times the numbers of a share, rounded: the units of a job do not depend on its division."""
        return range(int(self._duty * share.start), int(self._duty * share.stop))

    def _computed(self, index: int, units: int, computed: Computed) -> None:
        """Record the work of a thread, whose share now waits for its deadline. The event loop then calls `tick`."""
        self._record(computed)
        self._ready = max(self._ready, self._clock.at(computed.ended))
        heapq.heappush(self._waiting, (self._planned[index], index, units))
        self.deadline = self._waiting[0][0]

    def tick(self) -> None:
        """End the shares whose deadline has passed. The end of a share may start the next one."""
        now = self._clock.now()
        while self._waiting and self._waiting[0][0] <= now:
            deadline, index, units = heapq.heappop(self._waiting)
            self._ended_late(now - deadline)
            self._end_share(index, units)
        self.deadline = self._waiting[0][0] if self._waiting else None
