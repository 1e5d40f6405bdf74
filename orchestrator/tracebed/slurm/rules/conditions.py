"""Conditions of the start of Slurm's jobs: `--begin` and `--dependency`.

Source: sbatch(1) of Slurm 22.05, and the recordings `begin*`, `dependency*` and `singleton` of Slurm 22.05.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracebed.ground.errors import InputError

AFTER, AFTER_OK, AFTER_NOT_OK, AFTER_ANY, SINGLETON = range(5)
"""Kinds of conditions."""
KINDS = {
    "after": AFTER,
    "afterok": AFTER_OK,
    "afternotok": AFTER_NOT_OK,
    "afterany": AFTER_ANY,
    "aftercorr": AFTER_OK,
    "afterburstbuffer": AFTER_ANY,
}
HINT = "write it as sbatch --dependency does: afterok:12:13,afterany:14, or singleton"
WAITING, RUNNING, DONE, FAILED, CANCELLED, STUCK = range(6)
"""States of a job. `CANCELLED`: Slurm has removed the job from the queue. `STUCK`: the job waits forever."""
OPEN, MET, IMPOSSIBLE = range(3)


class Condition(NamedTuple):
    """A condition of a job: the other job, or the group of jobs of a name and a user, and the delay after its start."""

    kind: int
    of: int
    delay_s: float = 0.0


@dataclass(frozen=True)
class Conditions:
    """The conditions of all jobs.

    Attributes:
        earliest: earliest start of each job, s; -inf: none.
        dependencies: conditions of each job.
        any_of: whether one of the conditions suffices, for each job.
        group: jobs of one name and one user, if a job waits for its group; -1: other jobs.
        fails: whether the job fails, for each job.
        kill_invalid: whether a job whose condition is impossible is cancelled (`kill_invalid_depend`).
    """

    earliest: Sequence[float]
    dependencies: Sequence[tuple[Condition, ...]]
    any_of: Sequence[bool]
    group: Sequence[int]
    fails: Sequence[bool]
    kill_invalid: bool = False

    @classmethod
    def none(cls, count: int) -> Conditions:
        """Return the conditions of `count` jobs without any."""
        return cls([-math.inf] * count, [()] * count, [False] * count, [-1] * count, [False] * count)


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


@dataclass(frozen=True)
class Arrays:
    """The arrays of jobs.

    Attributes:
        of: array of each job; -1: none.
        most: largest number of running tasks of each array; 0: any number.
    """

    of: Sequence[int]
    most: Sequence[int] = ()

    @classmethod
    def none(cls, count: int) -> Arrays:
        """Return the arrays of `count` jobs that belong to none."""
        return cls([-1] * count)


def arrays_of(texts: Sequence[str], ids: Sequence[str]) -> Arrays:
    """Return the arrays of the jobs, from texts such as `12%5`: at most five tasks of array 12 run at once.

    Raises:
        InputError: a text is not an array.
    """
    numbers: dict[str, int] = {}
    of, most = [], list[int]()
    for job, text in enumerate(texts):
        name, _, limit = text.partition("%")
        if not re.fullmatch(r"\d*", limit):
            raise InputError(f"array {text[:40]!r} of job {ids[job]} is invalid", hint="write it as 12 or 12%5")
        array = numbers.setdefault(name, len(numbers)) if text else -1
        if array == len(most):
            most.append(0)
        if limit:
            most[array] = int(limit)
        of.append(array)
    return Arrays(of, most)


def groups_of(users: Sequence[str], names: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Return the group of each job: those of its user and its name, if one of them depends on `singleton`; -1: none."""
    every = [*zip(users, names, strict=True)]
    waiting = {name for name, text in zip(every, texts, strict=True) if "singleton" in text.lower()}
    group = {name: number for number, name in enumerate(dict.fromkeys(name for name in every if name in waiting))}
    return [group.get(name, -1) for name in every]


def dependencies_of(
    texts: Sequence[str], ids: Sequence[str], arrays: Sequence[str], groups: Sequence[int]
) -> tuple[list[tuple[Condition, ...]], list[bool]]:
    """Return the conditions of each job, and whether one of them suffices.

    A condition on a job that is unknown, or that is submitted later, is met: Slurm has forgotten the job.

    Args:
        texts: the dependency of each job, as of `--dependency`.
        ids: id of each job; that of a task of an array ends with `_` and the number of the task.
        arrays: array of each job; empty: none.
        groups: group of the name and the user of each job.

    Raises:
        InputError: a dependency is invalid.
    """
    number = {name: job for job, name in enumerate(ids)}
    tasks: dict[str, list[int]] = {}
    for job, array in enumerate(arrays):
        if array:
            tasks.setdefault(array, []).append(job)
    parsed = [_parsed(job, text, ids, number, tasks, groups) if text else () for job, text in enumerate(texts)]
    return parsed, ["?" in text and bool(found) for text, found in zip(texts, parsed, strict=True)]


def _parsed(
    job: int,
    text: str,
    ids: Sequence[str],
    number: Mapping[str, int],
    tasks: Mapping[str, Sequence[int]],
    groups: Sequence[int],
) -> tuple[Condition, ...]:
    found = []
    for part in re.split("[,?]", text):
        kind, *others = part.strip().split(":")
        kind = re.sub(r"\(.*\)$", "", kind).lower()  # squeue adds (unfulfilled)
        if kind == "singleton" and not others:
            found.append(Condition(SINGLETON, groups[job]))
            continue
        if kind.isdecimal() and not others:
            kind, others = "afterany", [kind]
        if kind not in KINDS or not others:
            raise InputError(f"dependency {text[:60]!r} of job {ids[job]} is invalid", hint=HINT)
        for other in others:
            own = re.fullmatch(r"([\w.-]+(?:_\*)?)(?:\+(\d+))?(?:\(\w+\))?", other.strip())
            if own is None:
                raise InputError(f"dependency {text[:60]!r} of job {ids[job]} is invalid", hint=HINT)
            name = own[1].removesuffix("_*")
            if kind == "aftercorr" and "_" in ids[job]:
                name += f"_{ids[job].rpartition('_')[2]}"
            jobs = [number[name]] if name in number else tasks.get(name, ())
            known = [one for one in jobs if one < job]
            if not known and "?" in text:
                return ()
            found += [Condition(KINDS[kind], one, 60.0 * int(own[2] or 0)) for one in known]
    return tuple(found)
