"""First come, first served, with malleable jobs that shrink for the head: the scheduler of Finnerty et al. (2023).

Source: Finnerty, Takaoka, Kanzaki, Posner, "Malleable APGAS programs and their support in batch job schedulers",
Euro-Par 2023 Workshops (AMTE), and the behaviour of their FIFO-Malleable-Job-Scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.state import (
    Decision,
    Note,
    ParameterTable,
    Resize,
    Start,
    State,
    Wake,
    next_multiple,
)

LAST = "last pass"
"""Note: end of the last pass, s; infinite while a pass waits for a shrink."""
MISSING = "missing"
"""Note: nodes that a pass still has to take from running jobs when its pending shrink has ended."""


@dataclass(frozen=True)
class FcfsMalleable(ParameterTable):
    """Each pass starts at most the head, or shrinks running jobs to their minimum for it. Idle nodes expand jobs last.

    Args:
        pause_s: pause between two passes, trace s. The first pass is at time 0, and a pass ends with its last shrink.
    """

    malleable: ClassVar[bool] = True

    pause_s: float = 5.0

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the decisions of a pass if one is due, and the time of the next pass."""
        if state.returning:
            return  # the pass waits for the nodes of a shrink
        if state.notes.get(LAST) == math.inf:
            yield from self._shrink(state, int(state.notes[MISSING]))
            return
        due = self._due(state)
        if due > state.now and not state.woken:
            yield Wake(due)
            return
        yield Note(LAST, state.now)
        jobs, head = state.jobs, state.queue.head
        if head is None:
            yield from _expand(state)
        elif jobs.low[head] <= state.idle:
            yield Start(head, min(jobs.high[head], state.idle))
            yield Wake(state.now + self.pause_s)
        else:
            missing = jobs.low[head] - state.idle
            if sum(state.size[job] - jobs.low[job] for job in state.free_to_resize()) >= missing:
                yield from self._shrink(state, missing)

    def _due(self, state: State) -> float:
        """Return the first instant of a pass from now on, s."""
        if not self.pause_s:
            return state.now
        return next_multiple(self.pause_s, state.now, origin=state.notes.get(LAST, 0.0))

    def _shrink(self, state: State, missing: int) -> Iterator[Decision]:
        """Yield shrinks of running jobs, in the order of their starts, one after the other, then the next pass."""
        jobs = state.jobs
        for job in state.free_to_resize():
            released = min(missing, state.size[job] - jobs.low[job])
            if released <= 0:
                continue
            missing -= released
            yield Note(MISSING, missing)
            yield Note(LAST, math.inf)
            yield Resize(job, state.size[job] - released)
            if job in state.resizing:
                return
        yield Note(LAST, state.now)
        yield Wake(state.now + self.pause_s)


def _expand(state: State) -> Iterator[Resize]:
    """Yield expansions of running jobs to their maximum, in the order of their starts, while nodes are idle."""
    for job in state.free_to_resize():
        nodes = min(state.jobs.high[job], state.size[job] + state.idle)
        if nodes > state.size[job]:
            yield Resize(job, nodes)
