"""The Kassel family: malleable jobs give up nodes for waiting ones and grow into idle ones.

Source: the study of malleable jobs on Cori, Eagle and Theta, section 3, whose steps 1 to 3 these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

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
        """Yield starts, then shrinks (each waiting job's before its start), then expansions."""
        before = set(state.size)
        yield from self._start(state)
        shrunk: set[int] = set()
        if len(state.queue) and (running := self._eligible(state, before)):
            for decision in self._shrink(state, running):
                if isinstance(decision, Resize):
                    shrunk.add(decision.job)
                yield decision
        if state.idle:
            among = set(state.size) if self.grow_at_start else before
            yield from self._expand(state, self._eligible(state, among - shrunk))

    def _start(self, state: State) -> Iterator[Decision]:
        """Step 1: EASY; a job starts on what it prefers, or on what is idle if that is enough."""
        jobs, queue = state.jobs, state.queue
        while (head := queue.head) is not None and jobs.low[head] <= state.idle:
            yield Start(head, min(jobs.pref[head], state.idle))
        if head is None or not state.idle or len(queue) == 1:
            return
        shadow, extra = state.reservation(jobs.low[head])
        behind = head
        while (
            state.idle and (job := queue.first_fit(behind, state.idle, shadow - state.now, extra)) is not None
        ):
            nodes, behind = min(jobs.pref[job], state.idle), job
            in_time = state.now + jobs.limit[job] / jobs.rate(job, nodes) <= shadow
            if in_time or nodes <= extra:
                yield Start(job, nodes)
                extra -= 0 if in_time else nodes

    def _eligible(self, state: State, among: set[int]) -> list[int]:
        """Return the jobs of `among` that run and may be resized, by order of start."""
        jobs = state.jobs
        return [
            job
            for job in state.size
            if jobs.malleable[job]
            and jobs.high[job] > jobs.low[job]
            and job not in state.resizing
            and job in among
        ]

    def _shrink(self, state: State, running: list[int]) -> Iterator[Decision]:
        """Step 2: make room for each job that waits, in order, taking first from who is furthest above preferred."""
        jobs = state.jobs
        size = {job: state.size[job] for job in running}
        idle = state.idle
        promises: list[Start] = []
        for job in state.queue.jobs():
            attempts = ((jobs.pref, jobs.pref), (jobs.low, jobs.pref), (jobs.low, jobs.low))
            for target, floor in attempts:
                need = target[job] - (idle if self.count_idle else 0)
                if need <= 0:
                    break
                if sum(max(0, size[other] - floor[other]) for other in running) >= need:
                    idle -= target[job] - need
                    for other in sorted(running, key=lambda other: jobs.pref[other] - size[other]):
                        given = min(need, max(0, size[other] - floor[other]))
                        size[other] -= given
                        need -= given
                    promises.append(Start(job, target[job]))
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
