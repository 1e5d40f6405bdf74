"""The Kassel family: malleable jobs give up nodes for waiting ones and grow into idle ones.

Source: the study of malleable jobs on Cori, Eagle and Theta, section 2.1, whose steps 1 to 3 these are. Its four
policies are one, `pref`, with different views of the sizes: for `min` every job prefers its minimum, for
`keep-pref` the preferred size is the minimum. `avg` is `min` with a relative priority, node by node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import ClassVar, Literal

from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies.easy import backfill
from tracebed.orchestrator.scheduling.policies.firstfit import first_fit
from tracebed.orchestrator.scheduling.shown import Shown
from tracebed.orchestrator.scheduling.state import Decision, Resize, Start, State

Sizes = dict[int, int]
"""Running job -> nodes, by order of start."""


@dataclass(frozen=True)
class Pref(Shown):
    """Malleable jobs are kept near their preferred size: priority = current - preferred (equation 2).

    Args:
        promise: the nodes for a waiting job for which others were shrunk: any that come free (`pool`), exactly those
            taken (`direct`), or those, exchanged with other waiting jobs (`steal`).
        backfill: how waiting jobs start on idle nodes.
        count_idle: idle nodes count towards the nodes freed for a waiting job.
        grow_at_start: a job may expand in the call in which it starts.
    """

    malleable: ClassVar[bool] = True

    promise: Literal["pool", "direct", "steal"] = "pool"
    backfill: Literal["easy", "firstfit"] = "easy"
    count_idle: bool = True
    grow_at_start: bool = False

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs as they are."""
        return jobs

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts, then shrinks and the starts that they allow, then expansions."""
        started: set[int] = set()
        for start in backfill(state) if self.backfill == "easy" else first_fit(state):  # step 1
            started.add(start.job)
            yield start
        shrunk: set[int] = set()
        if len(state.queue):
            for decision in self._shrink(state, _eligible(state, started)):
                if isinstance(decision, Resize):
                    shrunk.add(decision.job)
                else:
                    started.add(decision.job)
                yield decision
        if state.idle:
            yield from self._expand(state, _eligible(state, shrunk if self.grow_at_start else shrunk | started))

    def _shrink(self, state: State, size: Sizes) -> Iterator[Start | Resize]:
        """Yield step 2: free nodes for each waiting job, in order."""
        jobs = state.jobs
        idle = state.idle
        promises: list[Start] = []

        def room() -> tuple[int, int]:
            above_pref = sum(max(0, nodes - jobs.pref[job]) for job, nodes in size.items())
            return above_pref, sum(nodes - jobs.low[job] for job, nodes in size.items())

        above_pref, above_low = room()
        for job in state.queue.jobs():
            if not above_low:
                break
            for target, floor, there in (
                (jobs.pref[job], jobs.pref, above_pref),
                (jobs.low[job], jobs.pref, above_pref),
                (jobs.low[job], jobs.low, above_low),
            ):
                need = target - (idle if self.count_idle else 0)
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
        """Yield step 3: give idle nodes to running jobs."""
        self._give(state.jobs, size, state.idle)
        yield from _resizes(state, size)

    def _take(self, jobs: Jobs, size: Sizes, floor: list[int], need: int) -> Sizes:
        """Take `need` nodes from the fewest jobs, furthest above preferred first; return how many of each job."""
        taken: Sizes = {}
        for job in sorted(size, key=lambda job: jobs.pref[job] - size[job]):
            given = min(need, size[job] - floor[job])
            if given > 0:
                size[job] -= given
                need -= given
                taken[job] = given
        return taken

    def _give(self, jobs: Jobs, size: Sizes, idle: int) -> None:
        """Give `idle` nodes to the fewest jobs, furthest below preferred first: to their preferred, then to all."""
        for ceiling in (jobs.pref, jobs.high):
            for job in sorted(size, key=lambda job: size[job] - jobs.pref[job]):
                given = min(idle, max(0, ceiling[job] - size[job]))
                size[job] += given
                idle -= given

    def _promise(self, job: int, target: int, taken: Sizes) -> Start:
        if self.promise == "pool":
            return Start(job, target)
        return Start(job, target, tuple(taken.items()), exchange=self.promise == "steal")


class KeepPref(Pref):
    """Malleable jobs always have at least their preferred nodes."""

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs with their preferred size as minimum."""
        return replace(jobs, low=jobs.pref)


class Min(Pref):
    """Malleable jobs start small and shrink to their minimum: priority = current - minimum (equation 1)."""

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs with their minimum as preferred size."""
        return replace(jobs, pref=jobs.low)


class Avg(Min):
    """All malleable jobs share: priority = (current - minimum) / (maximum - minimum), node by node (equation 3)."""

    def _take(self, jobs: Jobs, size: Sizes, floor: list[int], need: int) -> Sizes:
        """Take each of `need` nodes from the job with relatively most nodes at that point."""
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
        """Give each of `idle` nodes to the job with relatively fewest nodes at that point."""
        heap = [(_part(jobs, job, size), order, job) for order, job in enumerate(size) if size[job] < jobs.high[job]]
        heapify(heap)
        while idle and heap:
            _, order, job = heappop(heap)
            size[job] += 1
            idle -= 1
            if size[job] < jobs.high[job]:
                heappush(heap, (_part(jobs, job, size), order, job))


def _part(jobs: Jobs, job: int, size: Sizes) -> float:
    """Return the position of the size of `job` between its minimum (0) and its maximum (1)."""
    return (size[job] - jobs.low[job]) / (jobs.high[job] - jobs.low[job])


def _eligible(state: State, besides: set[int]) -> Sizes:
    """Return the running jobs that may be resized and are not `besides`, with their sizes, by order of start."""
    return {job: state.size[job] for job in state.resizable if job not in state.resizing and job not in besides}


def _resizes(state: State, size: Sizes) -> Iterator[Resize]:
    """Yield a resize for each job whose size differs, by order of start."""
    for job, nodes in size.items():
        if nodes != state.size[job]:
            yield Resize(job, nodes)
