"""Whether the dependencies of a waiting job are met.

Source: sbatch(1) of Slurm 22.05, and the recordings `dependency*` and `singleton` of Slurm 22.05.8.
"""

from __future__ import annotations

import math

from tracebed.slurm.simulation.inputs import AFTER, AFTER_ANY, AFTER_OK, SINGLETON, Condition, Conditions

WAITING, RUNNING, DONE, FAILED, CANCELLED, STUCK = range(6)
"""States of a job. `CANCELLED`: Slurm has removed the job from the queue. `STUCK`: the job waits forever."""
OPEN, MET, IMPOSSIBLE = range(3)


class Progress:
    """What has become of the jobs, as far as conditions depend on it.

    Attributes:
        state: state of each job.
    """

    def __init__(self, conditions: Conditions) -> None:
        """Start before the first submission."""
        self._of = conditions
        count = len(conditions.earliest)
        self.state = [WAITING] * count
        self._start = [math.nan] * count
        groups = max(conditions.group, default=-1) + 1
        self._members: list[list[int]] = [[] for _ in range(groups)]
        self._first = [0] * groups  # place of the first member that has not ended
        self._running = [0] * groups
        for job, group in enumerate(conditions.group):
            if group >= 0:
                self._members[group].append(job)

    def set(self, job: int, state: int, now: float) -> None:
        """Record that the state of a job is `state` from `now` on."""
        if (group := self._of.group[job]) >= 0:
            self._running[group] += (state == RUNNING) - (self.state[job] == RUNNING)
        self.state[job] = state
        if state in (RUNNING, CANCELLED):
            self._start[job] = now

    def check(self, job: int, now: float, first: int = -1) -> tuple[int, float]:
        """Return whether the conditions are met, and when a condition that waits for an instant may be met (inf).

        `first`: the first entry of the job, if it is in several partitions (`entries`). Its state is that of the job.
        """
        if first >= 0 and self.state[first] in (CANCELLED, STUCK):
            return IMPOSSIBLE, math.inf  # another entry of the job has found out
        later, any_of, undecided = math.inf, self._of.any_of[job], False
        for condition in self._of.dependencies[job]:
            result, at = self._check(job if first < 0 else first, condition, now)
            if result == (MET if any_of else IMPOSSIBLE):
                return result, math.inf
            undecided = undecided or result == OPEN
            later = min(later, at)
        return (OPEN if undecided else IMPOSSIBLE if any_of else MET), later

    def _check(self, job: int, condition: Condition, now: float) -> tuple[int, float]:
        if condition.kind == SINGLETON:
            return self._alone(job, condition.of), math.inf
        state = self.state[condition.of]
        if state == STUCK:
            return IMPOSSIBLE, math.inf
        if state == WAITING:
            return OPEN, math.inf
        if condition.kind == AFTER:
            at = self._start[condition.of] + condition.delay_s
            return (MET, math.inf) if at <= now else (OPEN, at)
        if state == RUNNING:
            return OPEN, math.inf
        if condition.kind == AFTER_ANY:
            return MET, math.inf
        return MET if (state == DONE) == (condition.kind == AFTER_OK) else IMPOSSIBLE, math.inf

    def _alone(self, job: int, group: int) -> int:
        """Return whether no job of the group runs, and none waits that was submitted before `job`."""
        members = self._members[group]
        while self.state[members[self._first[group]]] in (DONE, FAILED, CANCELLED):
            self._first[group] += 1  # at the latest, this job itself has not ended
        first = members[self._first[group]]
        if first < job and self.state[first] == STUCK:
            return IMPOSSIBLE
        return OPEN if self._running[group] or first < job else MET
