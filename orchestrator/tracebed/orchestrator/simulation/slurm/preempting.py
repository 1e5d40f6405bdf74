"""The part of the simulation of Slurm that preempts jobs: they end, return to the queue, or are suspended."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.slurm.entries import Entries
from tracebed.orchestrator.scheduling.slurm.preemption import REQUEUE, REQUEUED_S, SUSPEND, Preemption, choose
from tracebed.orchestrator.scheduling.slurm.resources import Parts, Resources, Running
from tracebed.orchestrator.simulation.slurm.inputs import CHANGE, END, NEVER, PREEMPTED, Inputs, Outcome, Stint


class Preempting:
    """Base of `simulator.Simulation`, which has the attributes."""

    now: float
    queue: list[int]
    _in: Inputs
    _out: Outcome
    _free: Resources
    _running: list[Running]
    _parts: list[Parts]
    _ready: list[bool]
    _earliest: list[float]
    _since: list[float]
    _due: list[float]
    _entries: Entries
    _withdrawn: list[bool]
    _policy: Slurm
    _preemption: Preemption
    _asleep: dict[int, tuple[float, float]]
    """Suspended job -> the instant, and the time that was left until its end."""

    def _at(self, instant: float, kind: int, job: int) -> None:
        raise NotImplementedError

    def _start(self, job: int, parts: dict[int, int]) -> None:
        raise NotImplementedError

    def _rank(self, job: int) -> None:
        raise NotImplementedError

    def _second(self, at: float) -> int:
        raise NotImplementedError

    def candidates(self, job: int) -> list[Running]:
        """Return the running jobs that `job` may preempt, in the order in which they are preempted."""
        return self._preemption.candidates(job, self._running, self._out.start, self.now, self._second)

    def preempt(self, job: int, usable: int, candidates: Sequence[Running]) -> tuple[bool, int]:
        """Preempt jobs for `job` on the `usable` nodes.

        Returns:
            Whether the job has started, in place of suspended ones; and the mask of its nodes and of those of the
            preempted jobs; 0: the job does not fit.
        """
        chosen = choose(self._in.requests[job], usable, self._free, candidates, self._preemption.again)
        if chosen is None:
            return False, 0
        nodes, suspended = mask_of(chosen.parts.keys()), True
        for each in chosen.victims:
            nodes |= each.nodes
            own = self._preemption.of[each.job]
            if self._preemption.mode[own] == SUSPEND:
                self._suspend(each.job)
            else:
                suspended = False
                self._kill(each.job, self._preemption.grace_s[own])
        if suspended:
            self._start(job, chosen.parts)
        return suspended, nodes

    def _lapse(self, job: int) -> None:
        """Note when the time lapses in which a started job is not preempted. No event tells slurmctld of it."""
        exempt = self._preemption.exempt_of(job)
        if exempt and self._preemption.yielding >> self._preemption.of[job] & 1:
            at = self._second(self._out.start[job]) + exempt - self._policy.epoch_s
            if self.now < at < self._due[job]:
                self._at(at, CHANGE, job)

    def _kill(self, job: int, grace_s: int) -> None:
        """Let a job end after a time of grace, if it does not end before."""
        end = self.now + grace_s
        if end < self._out.end[job]:
            self._out.end[job], self._out.fate[job] = end, PREEMPTED
            self._due[job] = end + self._in.end_s[job]
            self._at(self._due[job], END, job)
            self._expect(job, self._second(self.now) + grace_s)

    def _suspend(self, job: int) -> None:
        """Suspend a job, unless it is."""
        if job not in self._asleep:
            self._asleep[job] = self.now, self._out.end[job] - self.now
            self._due[job] = NEVER
            self._out.stints.append(Stint(job, self._out.active[job], self.now, self._parts[job]))

    def _resume(self) -> None:
        """Resume the suspended jobs whose nodes no job of a higher class uses."""
        for job in sorted(self._asleep):
            if any(self._free.cores[node] < 0 for node in self._parts[job]):
                continue
            since, left = self._asleep.pop(job)
            self._out.active[job], self._out.end[job] = self.now, self.now + left
            self._due[job] = self._out.end[job] + self._in.end_s[job]
            self._at(self._due[job], END, job)
            own = next(each for each in self._running if each.job == job)
            self._expect(job, own.end + self._second(self.now) - self._second(since))

    def _expect(self, job: int, end: int) -> None:
        """Note another expected end of a running job."""
        own = next(each for each in self._running if each.job == job)
        self._running.remove(own)
        insort(self._running, own._replace(end=end))

    def _requeued(self, job: int) -> bool:
        """Return whether a job that has ended returns to the queue; let it."""
        if self._out.fate[job] != PREEMPTED or self._preemption.mode[self._preemption.of[job]] != REQUEUE:
            return False
        self._out.stints.append(Stint(job, self._out.active[job], self.now, self._parts[job]))
        self._out.restarts[self._entries.first[job]] += 1
        self._parts[job] = {}
        self._out.start[job] = self._out.launched[job] = self._out.end[job] = NEVER
        for each in self._entries.siblings(job):
            self._earliest[each] = self._since[each] = self.now + REQUEUED_S
            self._ready[each] = self._withdrawn[each] = False
            self._at(self._earliest[each], CHANGE, each)
            self._rank(each)
            self.queue.append(each)
        return True
