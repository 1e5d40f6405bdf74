"""The Kassel family: malleable jobs give up nodes for waiting ones and grow into idle ones.

Source: the study of malleable jobs on Cori, Eagle and Theta, section 3, whose steps 1 to 3 these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.policies.easy import backfill
from tracebed.orchestrator.scheduling.state import Decision, Resize, Start, State


@dataclass(frozen=True)
class Pref:
    """Malleable jobs are kept near the size that they prefer.

    Args:
        count_idle: idle nodes count towards the room that is made for a waiting job.
        grow_at_start: a job started in a call may grow in that very call.
    """

    malleable: ClassVar[bool] = True

    count_idle: bool = True
    grow_at_start: bool = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts, then shrinks and the starts that they make room for, then expansions."""
        started: set[int] = set()
        for start in backfill(state):  # step 1
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

    def _shrink(self, state: State, running: list[int]) -> Iterator[Start | Resize]:
        """Step 2: make room for each job that waits, in order, taking first from who is furthest above preferred."""
        jobs = state.jobs
        size = {job: state.size[job] for job in running}
        idle = state.idle
        promises: list[Start] = []

        def surplus(job: int, floor: list[int]) -> int:
            return max(0, size[job] - floor[job])

        def room() -> tuple[int, int]:
            return sum(surplus(job, jobs.pref) for job in running), sum(surplus(job, jobs.low) for job in running)

        above_pref, above_low = room()
        if not above_low:
            return
        for job in state.queue.jobs():
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
                    for other in sorted(running, key=lambda other: jobs.pref[other] - size[other]):
                        given = min(need, surplus(other, floor))
                        size[other] -= given
                        need -= given
                    promises.append(Start(job, target))
                    above_pref, above_low = room()
                    break
            if not above_low:
                break
        for job in running:
            if size[job] != state.size[job]:
                yield Resize(job, size[job])
        yield from promises

    def _expand(self, state: State, running: list[int]) -> Iterator[Decision]:
        """Step 3: idle nodes go to who is furthest below preferred, first up to preferred, then up to the maximum."""
        jobs = state.jobs
        size = {job: state.size[job] for job in running}
        idle = state.idle
        for ceiling in (jobs.pref, jobs.high):
            for job in sorted(running, key=lambda job: size[job] - jobs.pref[job]):
                given = min(idle, max(0, ceiling[job] - size[job]))
                size[job] += given
                idle -= given
        for job in running:
            if size[job] != state.size[job]:
                yield Resize(job, size[job])


def _eligible(state: State, besides: set[int]) -> list[int]:
    """Return the running jobs that may be resized and are not `besides`, by order of start."""
    return [job for job in state.resizable if job not in state.resizing and job not in besides]
