"""EASY backfilling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.parameter_table import ParameterTable
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.state import Decision, Start, State


@dataclass(frozen=True)
class Easy(ParameterTable):
    """EASY: first come, first served, and a reservation for the head of the queue only (Lifka 1995).

    A later job may start now if it fits, and either its time limit ends before the shadow time of the head, or it
    needs at most the extra nodes.
    """

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        yield from backfill(state)


def backfill(state: State, *, narrow: bool = False) -> Iterator[Start]:
    """Yield the starts of EASY backfilling. A job starts on its preferred size, or on fewer nodes down to its minimum.

    The reservation of the head is for its minimum size. For a policy that does not decide sizes, the minimum and the
    preferred size of every job are the requested size.

    Args:
        state: the state of the cluster and the queue.
        narrow: whether a job that would delay the head on the idle nodes may start on the extra nodes.
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
        # The jobs that arrived earlier were tried when no fewer nodes were idle and the shadow time was no earlier, so
        # that only new arrivals are tried. There are two exceptions. A job that may start on fewer nodes than it
        # prefers may fit into the extra nodes if other jobs have started since. If the shadow time is now, the number
        # of extra nodes grows with time.
        behind = max(head, state.arrived[0] - 1) if state.arrived else queue.last
    while state.idle and (job := queue.first_fit(behind, state.idle, shadow - state.now, extra)) is not None:
        nodes, behind = min(jobs.pref[job], state.idle), job
        in_time = state.now + jobs.limit[job] / jobs.rate(job, nodes) <= shadow
        if narrow and not in_time and jobs.low[job] <= extra:
            nodes = min(nodes, extra)
        if in_time or nodes <= extra:
            yield Start(job, nodes)
            extra -= 0 if in_time else nodes
