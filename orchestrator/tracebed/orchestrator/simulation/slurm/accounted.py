"""The part of the simulation of Slurm that accounts for jobs: usage, priorities, and the limits that hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.policies.wall_times import ROUNDING_S
from tracebed.orchestrator.scheduling.slurm.conditions import Arrays
from tracebed.orchestrator.scheduling.slurm.licenses import Licenses
from tracebed.orchestrator.scheduling.slurm.limits import Counters, amounts_of, billed
from tracebed.orchestrator.scheduling.slurm.multifactor import FairShare
from tracebed.orchestrator.scheduling.slurm.resources import Parts, Resources, Running
from tracebed.orchestrator.simulation.slurm.inputs import Inputs, Outcome


class Accounted:
    """Base of `simulator.Simulation`, which has the attributes."""

    now: float
    queue: list[int]
    _in: Inputs
    _out: Outcome
    _free: Resources
    _running: list[Running]
    _priority: list[int]
    _since: list[float]
    _fairness: FairShare
    _counters: Counters
    _arrays: Arrays
    _tasks: list[int]
    _licenses: Licenses
    _left_licenses: list[int]
    _policy: Slurm
    _amounts: dict[int, Sequence[int]]
    """What each running job holds, by kind."""

    def _second(self, at: float) -> int:
        """Return the whole second of an instant, as Slurm's clock shows it."""
        return math.floor(at + self._policy.epoch_s + ROUNDING_S)

    def _admitted(self, job: int) -> bool:
        """Count a submitted job. Return whether no limit refuses it."""
        self._out.refused[job] = self._counters.refused(job)
        if self._out.refused[job] < 0:
            self._counters.count(job, None, 1)
        return self._out.refused[job] < 0

    def _compute(self) -> None:
        """Compute the usage and all priorities."""
        self._fairness.update((self._use(each.job) for each in self._running), self._second(self.now))
        for job in self.queue:
            self._rank(job)

    def _use(self, job: int) -> tuple[int, float, int]:
        """Return the association, the billing and the second of the start of a running job."""
        inputs = self._in
        billing = billed(self._amounts[job], inputs.billing[inputs.partition[job]], inputs.billing_most)
        return inputs.association[job], billing * inputs.usage_factor[job], self._second(self._out.start[job])

    def _amounts_of(self, job: int, parts: Parts | None) -> Sequence[int]:
        """Return the amounts of a job by kind: those that it gets with `parts`, or those that it requests."""
        inputs = self._in
        weights = inputs.billing[inputs.partition[job]]
        return amounts_of(inputs.requests[job], parts, self._free, weights, inputs.billing_most)

    def _exceeds(self, job: int, parts: Parts | None) -> bool:
        """Return whether a limit of resources holds a job that would get `parts`, or that requests its amounts."""
        limited = self._in.limits.counters > 0
        return limited and self._counters.exceeded(job, self._amounts_of(job, parts)) >= 0

    def _rank(self, job: int) -> None:
        """Compute the priority of a waiting job. Priorities are whole numbers."""
        since = self._since[job]
        waited = self._second(self.now) - self._second(since) if since < math.inf else 0
        age = max(0.0, min(1.0, waited / self._in.max_age_s))
        user = self._in.association[job]
        share = self._fairness.factors[user] if user >= 0 else 0.0
        self._priority[job] = math.floor(self._in.fixed[job] + self._in.age * age + self._in.fairshare * share)

    def _count(self, job: int, sign: int) -> None:
        """Count a job into the running tasks of its array and into the used licences (1), or out of them (-1)."""
        if (array := self._arrays.of[job]) >= 0:
            self._tasks[array] += sign
        for kind, wanted in enumerate(self._licenses.wanted[job]):
            self._left_licenses[kind] -= sign * wanted
