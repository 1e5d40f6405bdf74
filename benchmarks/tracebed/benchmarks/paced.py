"""Paced workers: threads that compute for a share of the planned time, then wait for the deadline."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tracebed.benchmarks.clock import Clock
from tracebed.benchmarks.kernels import Kernel
from tracebed.benchmarks.workers import Computed, Finished, Post, Threads


class Paced(Threads):
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
