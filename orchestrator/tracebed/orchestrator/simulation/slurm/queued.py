"""The part of the simulation of Slurm that keeps the queue: submissions, its order, and the jobs that leave it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.orchestrator.scheduling.policies.wall_times import ROUNDING_S
from tracebed.orchestrator.scheduling.slurm.conditions import (
    CANCELLED,
    IMPOSSIBLE,
    MET,
    STUCK,
    Arrays,
    Conditions,
    Progress,
)
from tracebed.orchestrator.scheduling.slurm.entries import Entries
from tracebed.orchestrator.scheduling.slurm.limits import Counters
from tracebed.orchestrator.scheduling.slurm.outlook import Bookings
from tracebed.orchestrator.scheduling.slurm.preemption import Preemption
from tracebed.orchestrator.simulation.slurm.inputs import CHANGE, Inputs, Outcome
from tracebed.orchestrator.slurm.machine import MINUTE_S


class Queued:
    """Base of `simulator.Simulation`, which has the attributes. What is called a job here is an entry of the queue."""

    now: float
    arrived: list[int]
    queue: list[int]
    _in: Inputs
    _out: Outcome
    _arrays: Arrays
    _tasks: list[int]
    _bookings: Bookings
    _conditions: Conditions
    _counters: Counters
    _earliest: list[float]
    _entries: Entries
    _left: int
    _preemption: Preemption
    _priority: list[int]
    _progress: Progress
    _ready: list[bool]
    _since: list[float]
    _to_start: int
    _shortest: Sequence[int]
    _deadline: Sequence[float]
    _withdrawn: list[bool]
    """Whether the job of an entry has started, or has missed its deadline."""

    def _admitted(self, job: int) -> bool:
        raise NotImplementedError

    def _at(self, instant: float, kind: int, job: int) -> None:
        raise NotImplementedError

    def _rank(self, job: int) -> None:
        raise NotImplementedError

    def _run(self, job: int, parts: dict[int, int], start: float) -> None:
        raise NotImplementedError

    def _second(self, at: float) -> int:
        raise NotImplementedError

    def _submit(self, job: int) -> None:
        """Add a job to the queue, unless a limit refuses it.

        As tried on Slurm 22.05.8, no batch job starts before the next pass.
        """
        first = self._entries.first[job]
        if not (self._admitted(job) if job == first else self._out.refused[first] < 0):
            self._progress.set(first, STUCK, self.now)
            self._left -= 1
            self._to_start -= job < self._in.watched
            return
        self._rank(job)
        self.queue.append(job)
        self.arrived.append(job)
        if (earliest := self._earliest[job]) > self.now:
            self._since[job] = max(self._since[job], earliest)
            self._at(earliest, CHANGE, job)
        if (deadline := self._deadline[job]) < math.inf:
            self._at(max(self.now, deadline - self._needed(job) + 1.0), CHANGE, job)

    def _start(self, job: int, parts: dict[int, int]) -> None:
        """Start a job on the cores `parts`. Its entries of other partitions leave the queue."""
        first = not self._out.restarts[self._entries.first[job]]
        for each in self._entries.siblings(job):
            self.queue.remove(each)
            self._withdrawn[each] = True
            self._to_start -= first and each < self._in.watched
        self._run(job, parts, self.now)

    def _ordered(self) -> list[int]:
        """Return the waiting jobs that may start, in their order.

        Jobs that may preempt others come first, then those in a reservation. The others are in the order of the tiers
        of their partitions, their priorities and their submissions.
        """
        self._refresh()
        tier, partition = self._in.tier, self._in.partition
        ready = (job for job in self.queue if self._ready[job] and not self._full(job))
        inside, of, level = self._bookings.inside, self._preemption.of, self._preemption.levels

        def key(job: int) -> tuple[int, bool, int, int, int]:
            return -level[of[job]], inside[job] < 0, -tier[partition[job]], -self._priority[job], job

        return sorted(ready, key=key)

    def _full(self, job: int) -> bool:
        """Return whether as many tasks of the array of a job run as may."""
        array = self._arrays.of[job]
        return array >= 0 and 0 < self._arrays.most[array] <= self._tasks[array]

    def _refresh(self) -> None:
        """Find the jobs whose conditions are met by now, and remove those whose conditions are impossible."""
        now = self._second(self.now)
        for job in [job for job in self.queue if self._bookings.over(job, now)]:
            self._forget(job, STUCK)
        again = True
        while again:
            again = False
            for job in [job for job in self.queue if not self._ready[job]]:
                result, later = self._progress.check(job, self.now, self._entries.first[job])
                if result == IMPOSSIBLE:
                    self._forget(job, CANCELLED if self._conditions.kill_invalid else STUCK)
                    again = True
                elif result == MET and self._earliest[job] <= self.now + ROUNDING_S:
                    self._ready[job] = True
                    self._since[job] = min(self._since[job], self.now)
                elif self.now < later < math.inf:
                    self._at(later, CHANGE, job)

    def _needed(self, job: int) -> int:
        """Return the shortest time limit with which a job may start, s."""
        return self._shortest[job] or self._in.limit[job]

    def _expired(self, job: int, now: int) -> bool:
        """Return whether a waiting job can no longer end at its deadline. If so, Slurm ends it."""
        deadline = self._deadline[job]
        if deadline == math.inf or self._withdrawn[job] or self._second(deadline) >= now + self._needed(job):
            return False
        for each in self._entries.siblings(job):
            self._withdrawn[each] = True
            self._forget(each, CANCELLED)
        return True

    def _until_deadline(self, job: int, now: int) -> int:
        """Return the time limit of a job that starts: at most the whole minutes until its deadline, s."""
        limit, deadline = self._in.limit[job], self._deadline[job]
        return limit if deadline == math.inf else min(limit, (self._second(deadline) - now) // MINUTE_S * MINUTE_S)

    def _forget(self, job: int, state: int) -> None:
        """Remove a job that never starts from the queue."""
        self._progress.set(self._entries.first[job], state, self.now)
        self.queue.remove(job)
        if job == self._entries.first[job]:
            self._counters.count(job, None, -1)
        self._left -= 1
        self._to_start -= job < self._in.watched
