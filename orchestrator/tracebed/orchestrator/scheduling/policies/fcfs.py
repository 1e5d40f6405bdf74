"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.shown import Shown
from tracebed.orchestrator.scheduling.state import Decision, Start, State


@dataclass(frozen=True)
class Fcfs(Shown):
    """The head of the queue starts if it fits; no later job starts before it."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        yield from heads(state)


def heads(state: State) -> Iterator[Start]:
    """Yield the starts of the heads of the queue that fit; a head starts on the nodes it prefers, or on fewer."""
    jobs, queue = state.jobs, state.queue
    while (head := queue.head) is not None and jobs.low[head] <= state.idle:
        yield Start(head, min(jobs.pref[head], state.idle))
