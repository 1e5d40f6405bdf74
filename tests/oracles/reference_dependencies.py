"""A slow and simple implementation of dependencies and think times: docs/reference/dependencies.md.

It shares no code with `tracebed.orchestrator.scheduling.dependencies`: nothing is counted down, and at each instant the
conditions of all jobs are read again, from what has become of the other jobs by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tests.oracles.reference_scheduler import RefJob, RefResult, _Reference

OPEN, NEVER = math.inf, math.nan
"""Instants of a condition that may still be met, and of one that cannot."""


@dataclass(frozen=True)
class Wait:
    """What a job waits for: `texts` as `afterok:3`, `after:3+1` or `singleton`, of which one suffices if `any_of`."""

    texts: tuple[str, ...] = ()
    any_of: bool = False
    previous: int | None = None
    think_s: float | None = None
    group: str = ""
    fails: bool = False

    @property
    def dependency(self) -> str:
        """The column `dependency` of the workload."""
        return ("?" if self.any_of else ",").join(self.texts)


def with_waits(table: pd.DataFrame, waits: list[Wait]) -> pd.DataFrame:
    """Return the table of a workload with the columns of what its jobs wait for."""
    return table.assign(
        dependency=[wait.dependency for wait in waits],
        after=["" if wait.previous is None else str(wait.previous) for wait in waits],
        think_time=[math.nan if wait.think_s is None else wait.think_s for wait in waits],
        user=[wait.group for wait in waits],
        status=["failed" if wait.fails else "completed" for wait in waits],
    )


class DependentReference(_Reference):
    """The oracle of the scheduler, with jobs that wait for others. The id of a job is its place in the workload."""

    def __init__(self, jobs: list[RefJob], nodes: int, policy: str, waits: list[Wait], **options: Any) -> None:
        over_limit, priority = options.pop("over_limit", "extend"), options.pop("priority", "fcfs")
        super().__init__(jobs, nodes, policy, 0.0, over_limit, priority, **options)
        self.waits = waits
        self.submitted: dict[int, float] = {}
        self.held: list[RefJob] = []
        self.gone: dict[int, float] = {}  # job that never starts -> when that was clear
        self.alone: dict[int, float] = {}  # job -> since when it need not wait for its group
        self.jobs = {job.id: job for job in self.to_come}

    def queue_key(self, job: RefJob) -> tuple[float, ...]:
        """Order by submission, which need not be the order of the workload."""
        first, number = super().queue_key(job)
        return first, self.submitted[job.id], number

    def arrivals(self) -> list[float]:
        """Return the instants at which jobs are submitted, or eligible, as far as they are known."""
        due = [self.due(job) for job in self.to_come] + [self.eligible(job) for job in self.held]
        return [max(self.now, at) for at in due if at < OPEN]

    def due(self, job: RefJob) -> float:
        """Return when a job is submitted."""
        wait = self.waits[job.id]
        if wait.previous is None or wait.think_s is None:
            return job.submit
        return self.left(wait.previous) + wait.think_s

    def left(self, job: int) -> float:
        """Return when a job ended, or that it would never start was clear."""
        if job in self.gone:
            return self.gone[job]
        result = self.results.get(job)
        return OPEN if result is None or result.end is None else result.end

    def began(self, job: int) -> float:
        """Return when a job started."""
        result = self.results.get(job)
        return OPEN if result is None or result.start is None else result.start

    def met(self, job: int, text: str) -> float:
        """Return from when a condition of a job is met."""
        if text == "singleton":
            return self.alone.get(job, OPEN)
        kind, _, other = text.partition(":")
        other, _, minutes = other.partition("+")
        number, left = int(other), self.left(int(other))
        if number >= job:
            return -math.inf  # Slurm does not know a job that is submitted later
        if kind == "after":
            return min(self.began(number), self.gone.get(number, OPEN)) + 60.0 * float(minutes or 0)
        if kind == "afterany" or left == OPEN:
            return left
        good = number not in self.gone and self.results[number].state == "completed" and not self.waits[number].fails
        return left if good == (kind == "afterok") else NEVER

    def eligible(self, job: RefJob) -> float:
        """Return from when a submitted job is eligible; NaN: never."""
        wait = self.waits[job.id]
        instants = [self.met(job.id, text) for text in wait.texts]
        if wait.any_of:
            possible = [at for at in instants if not math.isnan(at)]
            instants = [min(possible) if possible else NEVER]
        if wait.previous is not None and wait.think_s is None:
            instants.append(self.left(wait.previous))
        return NEVER if any(map(math.isnan, instants)) else max(instants, default=-math.inf)

    def submit_due(self) -> bool:
        """Submit jobs and let jobs become eligible until nothing more happens at this instant."""
        events = 0
        while True:
            before = events
            for job in [job for job in self.to_come if self.due(job) <= self.now]:
                self.to_come.remove(job)
                self.submitted[job.id] = job.submit = self.now
                events += 1
                if self.smallest(job) > self.nodes:
                    self.drop(job, "rejected")
                else:
                    self.held.append(job)
                    self.look_at_groups()
                    if self.eligible(job) <= self.now:
                        self.held.remove(job)
                        self.queue.append(job)
            self.look_at_groups()
            for job in [*self.held]:
                at = self.eligible(job)
                if math.isnan(at) or at <= self.now:
                    self.held.remove(job)
                    events += 1
                    if math.isnan(at):
                        self.drop(job, "cancelled")
                    else:
                        self.queue.append(job)
                        self.ended_since_call = True  # Reading: a late job lets the policy plan anew, as an end does.
            if events == before:
                return bool(events)

    def drop(self, job: RefJob, state: str) -> None:
        self.results[job.id] = RefResult(None, None, state)
        self.gone[job.id] = self.now

    def look_at_groups(self) -> None:
        """Find the jobs of which no job of the group runs, and none waits that was submitted before."""
        for job in self.held:
            group = self.waits[job.id].group
            others = [other for other in self.submitted if self.waits[other].group == group and other != job.id]
            order = [*self.submitted]
            blocked = [
                other
                for other in others
                if other not in self.gone
                and self.left(other) == OPEN
                and (self.began(other) < OPEN or order.index(other) < order.index(job.id))
            ]
            if not blocked:
                self.alone.setdefault(job.id, self.now)
