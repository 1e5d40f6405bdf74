"""The Kassel policies: malleable jobs shrink for waiting jobs and expand to idle nodes.

Source: the study of malleable jobs on Cori, Eagle and Theta, section 2.1 (steps 1 to 3). The other three policies
derive from `pref`: in `min` the preferred size of every job is its minimum, in `keep-pref` the minimum is the preferred
size, and `avg` is `min` with a relative priority that is updated after each node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar, Literal

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies.easy import backfill
from tracebed.orchestrator.scheduling.policies.firstfit import first_fit
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Resize, Start, State, Wake

Sizes = dict[int, int]
"""Running job -> nodes, in the order of start or of submission."""


@dataclass(frozen=True)
class Pref(ParameterTable):
    """Malleable jobs are kept near their preferred size: priority = current - preferred (equation 2).

    Args:
        promise: the nodes promised to a waiting job for which running jobs shrink: any released nodes (`pool`),
            exactly the nodes released for it (`direct`), or these with exchange among the waiting jobs (`steal`).
        backfill: method by which waiting jobs start on idle nodes.
        count_idle: whether idle nodes count towards the nodes needed by a waiting job: `yes`, `no`, or for the head of
            the queue only (`head`). With `head`, no job shrinks for a later job that fits the idle nodes.
        grow_at_start: whether a job may expand in the call in which it starts.
        calls: when the policy is called. `event`: after each event. `settle`: also again at the same instant until it
            decides nothing. `tick`: at each multiple of the interval of the scheduler.
        expected_end: when the limit of a running job is expected to end: `scaled` by the speed of the job on its nodes,
            or start + `limit` on any number of nodes.
        narrow: whether a later job may start on fewer nodes than it prefers to fit the extra nodes.
        ties: the order of running jobs of equal priority: by `start`, or by `id`, in the order of submission.
        if_idle: whether running jobs shrink only if nodes are idle after the starts, as in the text of step 2.
        straight: whether idle nodes expand each job up to its maximum at once. By default all jobs first expand to
            their preferred sizes.
        spread: whether idle nodes expand running jobs node by node, always the job of lowest priority, in place of as
            many nodes as possible to one job after another. `avg` always does.
    """

    malleable: ClassVar[bool] = True

    promise: Literal["pool", "direct", "steal"] = "pool"
    backfill: Literal["easy", "firstfit"] = "easy"
    count_idle: Literal["yes", "no", "head"] = "yes"
    grow_at_start: bool = False
    calls: Literal["settle", "tick", "event"] = "settle"
    expected_end: Literal["scaled", "limit"] = "scaled"
    narrow: bool = False
    ties: Literal["start", "id"] = "start"
    spread: bool = False
    if_idle: bool = False
    straight: bool = False

    def __post_init__(self) -> None:
        """Raise InputError if a parameter has no effect."""
        if self.narrow and self.backfill != "easy":
            raise InputError("narrow has no effect without backfill=easy", hint="leave out narrow or backfill")

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs with the sizes and the expected run times that the policy uses."""
        return jobs.with_equal_rates() if self.expected_end == "limit" else jobs

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts, then shrinks and the starts that they allow, then expansions, and the next call."""
        decided = False
        for decision in self._steps(state):
            decided = True
            yield decision
        if self.calls == "settle" and decided:
            yield Wake(state.now)
        elif self.calls == "tick" and state.size and (decided or len(state.queue)):
            yield Wake(math.nextafter(state.now, math.inf))  # the scheduler calls at the first tick from there on

    def _steps(self, state: State) -> Iterator[Start | Resize]:
        started: set[int] = set()
        for start in backfill(state, narrow=self.narrow) if self.backfill == "easy" else first_fit(state):  # step 1
            started.add(start.job)
            yield start
        shrunk: set[int] = set()
        if len(state.queue) and (state.idle or not self.if_idle):
            for decision in self._shrink(state, self._eligible(state, started)):
                if isinstance(decision, Resize):
                    shrunk.add(decision.job)
                else:
                    started.add(decision.job)
                yield decision
        if state.idle:
            yield from self._expand(state, self._eligible(state, shrunk if self.grow_at_start else shrunk | started))

    def _shrink(self, state: State, size: Sizes) -> Iterator[Start | Resize]:
        """Yield step 2: shrinks for each waiting job, in queue order, and the promised starts."""
        jobs = state.jobs
        idle = state.idle
        promises: list[Start] = []

        def room() -> tuple[int, int]:
            above_pref = sum(max(0, nodes - jobs.pref[job]) for job, nodes in size.items())
            return above_pref, sum(nodes - jobs.low[job] for job, nodes in size.items())

        above_pref, above_low = room()
        head = state.queue.head
        for job in state.queue.jobs():
            if not above_low:
                break
            counts = self.count_idle == "yes" or (self.count_idle == "head" and job == head)
            if self.count_idle == "head" and jobs.low[job] <= state.idle:
                continue  # the reservation of step 1 refused the job, not a lack of nodes
            for target, floor, there in (
                (jobs.pref[job], jobs.pref, above_pref),
                (jobs.low[job], jobs.pref, above_pref),
                (jobs.low[job], jobs.low, above_low),
            ):
                need = target - (idle if counts else 0)
                if need <= 0:
                    break
                if need <= there:
                    idle -= target - need
                    taken = self._take(jobs, size, floor, need)
                    promises.append(self._promise(job, target, taken))
                    above_pref, above_low = room()
                    break
        yield from _resizes(state, size)
        yield from promises

    def _expand(self, state: State, size: Sizes) -> Iterator[Resize]:
        """Yield step 3: expansions of running jobs to idle nodes."""
        self._give(state.jobs, size, state.idle)
        yield from _resizes(state, size)

    def _take(self, jobs: Jobs, size: Sizes, floor: list[int], need: int) -> Sizes:
        """Take `need` nodes, first from the job furthest above its preferred size. Return the nodes taken by job."""
        taken: Sizes = {}
        for job in sorted(size, key=lambda job: jobs.pref[job] - size[job]):
            given = min(need, size[job] - floor[job])
            if given > 0:
                size[job] -= given
                need -= given
                taken[job] = given
        return taken

    def _give(self, jobs: Jobs, size: Sizes, idle: int) -> None:
        """Add `idle` nodes, first to the job furthest below its preferred size: to this size, then to the maximum."""
        for ceiling in (jobs.high,) if self.straight else (jobs.pref, jobs.high):
            if self.spread:
                idle = _spread(size, idle, ceiling, lambda job: size[job] - jobs.pref[job])
                continue
            for job in sorted(size, key=lambda job: size[job] - jobs.pref[job]):
                given = min(idle, max(0, ceiling[job] - size[job]))
                size[job] += given
                idle -= given

    def _eligible(self, state: State, besides: set[int]) -> Sizes:
        """Return the resizable jobs without a pending resize, except `besides`, with their sizes, in order of ties."""
        jobs = state.free_to_resize(besides)
        return {job: state.size[job] for job in (sorted(jobs) if self.ties == "id" else jobs)}

    def _promise(self, job: int, target: int, taken: Sizes) -> Start:
        if self.promise == "pool":
            return Start(job, target)
        return Start(job, target, tuple(taken.items()), exchange=self.promise == "steal")


class KeepPref(Pref):
    """Malleable jobs never have fewer nodes than their preferred size."""

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs with their preferred size as the minimum."""
        return super().view(jobs).with_columns(low=jobs.column("pref"))


class Min(Pref):
    """Malleable jobs start small and shrink to their minimum: priority = current - minimum (equation 1)."""

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs with their minimum as the preferred size."""
        return super().view(jobs).with_columns(pref=jobs.column("low"))


class Avg(Min):
    """Malleable jobs have similar relative sizes: priority = (current - minimum) / (maximum - minimum) (equation 3)."""

    def _take(self, jobs: Jobs, size: Sizes, floor: list[int], need: int) -> Sizes:
        """Take `need` nodes one by one, each from the job with the largest relative size."""
        taken: Counter[int] = Counter()
        heap = [(-_part(jobs, job, size), order, job) for order, job in enumerate(size) if size[job] > floor[job]]
        heapify(heap)
        for _ in range(need):
            _, order, job = heappop(heap)
            size[job] -= 1
            taken[job] += 1
            if size[job] > floor[job]:
                heappush(heap, (-_part(jobs, job, size), order, job))
        return taken

    def _give(self, jobs: Jobs, size: Sizes, idle: int) -> None:
        """Add `idle` nodes one by one, each to the job with the smallest relative size."""
        _spread(size, idle, jobs.high, lambda job: _part(jobs, job, size))


def _spread(size: Sizes, idle: int, ceiling: list[int], priority: Callable[[int], float]) -> int:
    """Add `idle` nodes one by one, each to the job of lowest priority below its ceiling. Return the nodes left."""
    heap = [(priority(job), order, job) for order, job in enumerate(size) if size[job] < ceiling[job]]
    heapify(heap)
    while idle and heap:
        _, order, job = heappop(heap)
        size[job] += 1
        idle -= 1
        if size[job] < ceiling[job]:
            heappush(heap, (priority(job), order, job))
    return idle


def _part(jobs: Jobs, job: int, size: Sizes) -> float:
    """Return the relative size of `job`: 0 at its minimum, 1 at its maximum."""
    return (size[job] - jobs.low[job]) / (jobs.high[job] - jobs.low[job])


def _resizes(state: State, size: Sizes) -> Iterator[Resize]:
    """Yield a resize for each job with a new size."""
    for job, nodes in size.items():
        if nodes != state.size[job]:
            yield Resize(job, nodes)
