"""Dependencies between jobs and think times: what a workload says, and which jobs arrive when during a run.

Kinds of conditions: sbatch(1) of Slurm 22.05. Think times: fields 17 and 18 of the Standard Workload Format. The
simulators and the replays use the same `Arrivals`, so that a prediction and a replay submit the same jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.workload import FloatArray, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.ground.table import equal, strings

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
NAMES = {AFTER: "after", AFTER_OK: "afterok", AFTER_NOT_OK: "afternotok", AFTER_ANY: "afterany"}
HINT = "write it as sbatch --dependency does: afterok:12:13,afterany:14, or singleton"
SUCCESSFUL = ("", "completed", "unknown")
"""Final states in a log with which a job has not failed."""
MOST_NAMED = 6
"""Number of jobs of a cycle that a message names."""


class Condition(NamedTuple):
    """A condition of a job: the other job, or the group of jobs of a name and a user, and the delay after its start."""

    kind: int
    of: int
    delay_s: float = 0.0


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

    A condition on a job that is unknown, or that is submitted later, is met: Slurm has forgotten the job. `texts` are
    those of `--dependency`. The id of a task of an array ends with `_` and its number.
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


class Waits(NamedTuple):
    """What the jobs of a workload wait for. All lists have one entry for each job."""

    conditions: list[tuple[Condition, ...]]
    any_of: list[bool]
    """Whether one of the conditions suffices."""
    group: list[int]
    """Jobs of one name and one user, if a job waits for its group; -1: other jobs."""
    fails: list[bool]
    """Whether the job failed in the log. It has failed for other jobs, whatever its run says."""
    previous: list[int]
    """The job of the column `after`; -1: none."""
    think_s: list[float]
    """Time from the end of `previous` to the submission, s; NaN: the submission does not depend on `previous`."""

    @classmethod
    def of_json(cls, values: Sequence[Any] | None) -> Waits | None:
        """Return what jobs wait for, from JSON values."""
        if values is None:
            return None
        conditions, *rest = values
        return cls([tuple(Condition(*each) for each in own) for own in conditions], *rest)

    @property
    def thinks(self) -> bool:
        """Whether the submission of some job follows from the end of another job."""
        return any(not math.isnan(time) for time in self.think_s)


def waits_of(workload: Workload) -> tuple[Waits | None, int]:
    """Return what the jobs of a workload wait for (None: no job waits), and how many name an unknown job in `after`.

    Raises:
        InputError: a dependency is invalid, a think time is negative, or jobs wait for each other.
    """
    texts, after = workload.arrow("dependency"), workload.arrow("after")
    depends, follows = ~equal(texts, ""), ~equal(after, "")
    if not (depends.any() or follows.any()):
        return None, 0
    ids, all_texts = strings(workload.arrow("job_id")), strings(texts)
    number = {name: job for job, name in enumerate(ids)} if follows.any() else {}
    previous = [number.get(name, -1) if name else -1 for name in strings(after)]
    unknown = int((np.array(previous)[follows] < 0).sum())
    think_s = np.where(np.array(previous) >= 0, workload.floats("think_time"), np.nan)
    if (negative := np.flatnonzero(think_s < 0)).size:
        job = int(negative[0])
        raise InputError(f"think_time of job {ids[job]} is {think_s[job]:g} s", hint="use 0 or more")
    groups = groups_of(strings(workload.arrow("user")), strings(workload.arrow("application")), all_texts)
    arrays = [text.partition("%")[0] for text in strings(workload.arrow("array"))]
    conditions, any_of = dependencies_of(all_texts, ids, arrays, groups)
    fails = [state not in SUCCESSFUL for state in strings(workload.arrow("status"))]
    waits = Waits(conditions, any_of, groups, fails, previous, think_s.tolist())
    _check_cycles(waits, ids)
    return (waits if any(conditions) or max(previous) >= 0 else None), unknown


def _check_cycles(waits: Waits, ids: Sequence[str]) -> None:
    """Raise InputError if jobs wait for each other. Conditions name earlier jobs, so only `previous` closes a cycle."""
    seen: set[int] = set()
    for first in (job for job, other in enumerate(waits.previous) if other >= job):
        if first in seen:
            continue
        path: dict[int, None] = {first: None}
        left = [iter(_others(waits, first))]  # depth first, without recursion
        while left:
            other = next(left[-1], None)
            if other is None:
                seen.add(path.popitem()[0])
                left.pop()
            elif other in path:
                cycle = [*path][[*path].index(other) :]
                named = [ids[job] for job in cycle[:MOST_NAMED]] + (["..."] if len(cycle) > MOST_NAMED else [])
                what = f"jobs wait for each other: {' waits for '.join([*named, ids[other]])}"
                raise InputError(what, hint="correct the columns after and dependency, or ignore dependencies")
            elif other not in seen:
                path[other] = None
                left.append(iter(_others(waits, other)))


def _others(waits: Waits, job: int) -> list[int]:
    """Return the jobs for which a job waits, except those of its group."""
    own = [each.of for each in waits.conditions[job] if each.kind != SINGLETON]
    return own if waits.previous[job] < 0 else [*own, waits.previous[job]]


class Released(NamedTuple):
    """A submitted job that waits no more for other jobs."""

    job: int
    never: str
    """Why the job can never start; empty: the job is eligible."""


class Arrivals:
    """The submissions of a run in the order of time, and the jobs that wait for other jobs.

    The executor takes the submissions that are due (`submissions`) and passes each to `submitted`, tells which jobs
    start and end, and takes the jobs that wait no more (`released`). The work is in proportion to what has changed.

    Args:
        submit: submit time of each job, s, shape (jobs,); NaN: not submitted. The one of a job with a think time is
            used only if `moves` is not set.
        waits: what the jobs wait for; None: no job waits.
        ids: ids of the jobs, for messages.
        moves: whether a job with a think time is submitted when its previous job has ended.

    Attributes:
        next: the next instant at which there is something to take, s; infinite: none, before a job starts or ends.
    """

    def __init__(self, submit: Sequence[float], waits: Waits | None, ids: Sequence[str], *, moves: bool = True) -> None:
        """Start before the first submission."""
        self.waits, self._ids = waits, ids
        moved = [moves and not math.isnan(time) for time in waits.think_s] if waits else [False] * len(submit)
        own = np.flatnonzero(np.isfinite(submit) & ~np.array(moved, dtype=bool))  # submitted at their own time
        self._submit = submit
        self._planned: list[int] = own[np.argsort(np.asarray(submit)[own], kind="stable")].tolist()
        self._at = 0  # place of the next planned submission
        self._taken: set[int] = set()
        self._submitted = bytearray(len(moved))
        self._thinking: list[tuple[float, int]] = []  # heap of the jobs whose previous job has ended
        self._releases: list[tuple[float, int, str]] = []  # heap of submitted jobs that wait no more, from an instant
        self.next = math.inf
        self._look_ahead()
        if waits is None:
            return
        self._moved, total = moved, len(moved)
        self._started, self._released = bytearray(total), bytearray(total)
        self._ended: set[int] = set()
        self._dependents: dict[int, list[tuple[int, Condition]]] = {}  # job -> the jobs with a condition on it
        self._followers: dict[int, list[int]] = {}  # job -> the jobs with it as their previous one
        self._open = [0] * total  # conditions that must be met
        self._undecided = [0] * total  # conditions one of which must be met
        self._from = [-math.inf] * total  # from when the conditions are met, s
        self._first_of = [math.inf] * total  # from when one of the conditions is met, s
        self._never: dict[int, str] = {}
        self._pending: dict[int, dict[int, None]] = {}  # group -> its submitted jobs that have not started, in order
        self._running: dict[int, set[int]] = {}  # group -> its running jobs
        self._alone: set[int] = set()  # jobs that wait for their group
        for job, conditions in enumerate(waits.conditions):
            count = self._open if not waits.any_of[job] else self._undecided
            for each in conditions:
                if each.kind != SINGLETON:
                    self._dependents.setdefault(each.of, []).append((job, each))
                elif job in self._alone:
                    continue  # it is written twice
                else:
                    self._alone.add(job)
                count[job] += 1
        for job, other in enumerate(waits.previous):
            if other >= 0 and (moved[job] or math.isnan(waits.think_s[job])):
                self._followers.setdefault(other, []).append(job)
                self._open[job] += not moved[job]

    def submissions(self, now: float) -> list[int]:
        """Take the jobs that are submitted at or before `now`, in the order of their submission."""
        planned, submit, at, taken = self._planned, self._submit, self._at, self._taken
        while at < len(planned) and submit[planned[at]] <= now:
            at += 1
        due, self._at = planned[self._at : at], at
        if self._thinking and self._thinking[0][0] <= now:
            instants = [(submit[job], job) for job in due]
            while self._thinking and self._thinking[0][0] <= now:
                instants.append(heappop(self._thinking))
            due = [job for _, job in sorted(instants)]
        self._look_ahead()
        return [job for job in due if job not in taken] if taken else due

    def take(self, jobs: Sequence[int]) -> None:
        """Take the submissions of `jobs`, which were taken before (by a replayer that was killed)."""
        self._taken.update(jobs)
        while self._at < len(self._planned) and self._planned[self._at] in self._taken:
            self._at += 1
        while self._thinking and self._thinking[0][1] in self._taken:
            heappop(self._thinking)
        self._look_ahead()

    def submitted(self, job: int, now: float) -> bool:
        """Note the submission of `job`. Return whether the job is eligible; else it waits until it is `released`."""
        self._submitted[job] = 1
        if self.waits is None:
            return True
        if (group := self.waits.group[job]) >= 0:
            self._pending.setdefault(group, {})[job] = None
            self._check_group(group, now)
        if self._instant(job) <= now and job not in self._never:
            self._released[job] = 1
            return True
        self._release(job, now)
        return False

    def is_submitted(self, job: int) -> bool:
        """Return whether `job` was passed to `submitted`."""
        return bool(self._submitted[job])

    def holds(self, job: int) -> bool:
        """Return whether the submitted `job` waits for other jobs."""
        return self.waits is not None and not self._released[job]

    def never(self, job: int) -> str:
        """Return why `job` can never start; empty: it may."""
        return "" if self.waits is None else self._never.get(job, "")

    def started(self, job: int, now: float) -> None:
        """Note the start of `job`. Only its first start counts: a job may be requeued."""
        if self.waits is None or self._started[job]:
            return
        self._started[job] = 1
        for other, condition in self._dependents.get(job, ()):
            if condition.kind == AFTER:
                self._meet(other, now, now + condition.delay_s)
        if (group := self.waits.group[job]) >= 0:
            self._pending.get(group, {}).pop(job, None)
            self._running.setdefault(group, set()).add(job)
        self._look_ahead()

    def ended(self, job: int, state: JobState, now: float) -> None:
        """Note the end of `job`, which may not have started: it may be rejected or cancelled."""
        waits = self.waits
        if waits is None or job in self._ended:
            return
        self._ended.add(job)
        self._released[job] = 1
        good = state == JobState.COMPLETED and not waits.fails[job]
        for other, condition in self._dependents.get(job, ()):
            kind, fails = condition.kind, (AFTER_OK if not good else AFTER_NOT_OK)
            if kind == fails:
                outcome = f"was {state}" if state != JobState.COMPLETED else state if good else "failed in the log"
                name = self._ids[job]
                self._fail(other, now, f"dependency {NAMES[kind]}:{name} is never satisfied: job {name} {outcome}")
            elif kind != AFTER:
                self._meet(other, now, now)
            elif not self._started[job]:
                self._meet(other, now, now + condition.delay_s)
        for other in self._followers.get(job, ()):
            if self._moved[other]:
                heappush(self._thinking, (now + waits.think_s[other], other))
            else:
                self._open[other] -= 1
                self._from[other] = max(self._from[other], now)
                self._release(other, now)
        if (group := waits.group[job]) >= 0:
            self._pending.get(group, {}).pop(job, None)
            self._running.get(group, set()).discard(job)
            self._check_group(group, now)
        self._look_ahead()

    def released(self, now: float) -> Iterator[Released]:
        """Take the submitted jobs that wait no more at `now`, in the order in which they became eligible.

        The executor passes a job that never starts to `ended`, which may release further jobs.
        """
        while self._releases and self._releases[0][0] <= now:
            _, job, never = heappop(self._releases)
            if not self._released[job]:
                self._released[job] = 1
                self._look_ahead()
                yield Released(job, never)
        self._look_ahead()

    def _instant(self, job: int) -> float:
        """Return the instant from which the conditions of `job` are met, s; infinite: unknown."""
        assert self.waits is not None
        if self._open[job]:
            return math.inf
        return max(self._from[job], self._first_of[job]) if self._undecided[job] else self._from[job]

    def _meet(self, job: int, now: float, at: float) -> None:
        """Note that a condition of `job` is met from the instant `at` on."""
        assert self.waits is not None
        if self.waits.any_of[job]:
            self._first_of[job] = min(self._first_of[job], at)
        else:
            self._open[job] -= 1
            self._from[job] = max(self._from[job], at)
        self._release(job, now)

    def _fail(self, job: int, now: float, reason: str) -> None:
        """Note that a condition of `job` can never be met."""
        assert self.waits is not None
        if self.waits.any_of[job]:
            self._undecided[job] -= 1
            if self._undecided[job]:
                return
        self._never.setdefault(job, reason)
        self._release(job, now)

    def _release(self, job: int, now: float) -> None:
        """Let `job` be released if it has been submitted and waits no more, or from an instant on."""
        if not self._submitted[job] or self._released[job]:
            return
        never = self._never.get(job, "")
        if never or (at := self._instant(job)) < math.inf:
            heappush(self._releases, (now if never else max(at, now), job, never))
            self._look_ahead()

    def _check_group(self, group: int, now: float) -> None:
        """Meet the condition of the first waiting job of a group if the job waits for its group, and none runs."""
        first = next(iter(self._pending.get(group, ())), None)
        if first in self._alone and not self._running.get(group):
            self._alone.discard(first)
            self._meet(first, now, now)

    def _look_ahead(self) -> None:
        """Set `next`."""
        at = self._submit[self._planned[self._at]] if self._at < len(self._planned) else math.inf
        if self.waits is not None:
            for coming in (self._thinking, self._releases):
                if coming and coming[0][0] < at:
                    at = coming[0][0]
        self.next = at


def due_submissions(
    submit: Iterable[float], waits: Waits | None, submitted: Sequence[float], end: Sequence[float]
) -> FloatArray:
    """Return the instant at which each job was due to be submitted, s, shape (jobs,).

    Args:
        submit: submit times in the workload, s.
        waits: what the jobs wait for; None: no job waits.
        submitted: actual submit times, s, shape (jobs,).
        end: ends of the jobs, s, shape (jobs,); NaN: unknown. The submission after a job without an end is punctual.
    """
    due = np.array(submit, dtype=np.float64)
    if waits is not None and waits.thinks:
        previous, think_s = np.array(waits.previous), np.array(waits.think_s)
        moved = ~np.isnan(think_s)
        after = np.asarray(end)[previous[moved]] + think_s[moved]
        due[moved] = np.where(np.isnan(after), np.asarray(submitted)[moved], after)
    return due
