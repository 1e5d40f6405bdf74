"""EASY backfilling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.shown import Shown
from tracebed.orchestrator.scheduling.state import Decision, Start, State


@dataclass(frozen=True)
class Easy(Shown):
    """EASY: first come, first served, and a reservation for the head of the queue only (Lifka 1995).

    A later job may start now if it fits and either ends, by its time limit, by the head's shadow time, or needs at
    most the extra nodes.
    """

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        yield from backfill(state)


def backfill(state: State) -> Iterator[Start]:
    """Yield the starts of EASY backfilling; a job starts on the nodes it prefers, or on fewer down to its fewest.

    A head that does not fit is reserved for its fewest nodes. (For a policy that does not decide sizes, the
    fewest and the preferred nodes of every job are the requested ones.)
    """
    jobs, queue = state.jobs, state.queue
    yield from heads(state)
    head = queue.head
    if head is None or not state.idle or len(queue) == 1:
        return
    shadow, extra = state.reservation(jobs.low[head])
    behind = head
    as_then = not state.freed and (state.settled or not jobs.adaptable)
    if queue.by_submission and as_then and shadow > state.now:
        # Earlier jobs were refused when as many nodes were idle and the shadow time was no nearer. A job that may start
        # on fewer nodes than it prefers would now take fewer, perhaps no more than the extra ones, if others have
        # started since. Once the shadow time is the present, time alone adds extra nodes, and all jobs are tried again.
        behind = max(head, state.arrived[0] - 1) if state.arrived else queue.last
    while state.idle and (job := queue.first_fit(behind, state.idle, shadow - state.now, extra)) is not None:
        nodes, behind = min(jobs.pref[job], state.idle), job
        in_time = state.now + jobs.limit[job] / jobs.rate(job, nodes) <= shadow
        if in_time or nodes <= extra:
            yield Start(job, nodes)
            extra -= 0 if in_time else nodes
