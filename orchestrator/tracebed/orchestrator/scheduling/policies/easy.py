"""EASY backfilling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tracebed.orchestrator.scheduling.node_masks import lowest, mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Start, State


@dataclass(frozen=True)
class Easy(ParameterTable):
    """EASY: first come, first served, and a reservation for the head of the queue only (Lifka 1995).

    A later job may start now if it fits, and either its time limit ends before the shadow time of the head, or it
    needs at most the extra nodes.

    Args:
        reserve: the reservation of the head: a number of nodes (`counts`), or named nodes (`nodes`), as in Batsim and
            OAR. Named nodes are the lowest-numbered ones of those idle at the shadow time. A later job that does not
            end by then starts on idle nodes outside them, lowest numbers first.
    """

    malleable: ClassVar[bool] = False

    reserve: Literal["counts", "nodes"] = "counts"

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        yield from backfill_outside(state) if self.reserve == "nodes" else backfill(state)


def backfill(state: State, *, narrow: bool = False) -> Iterator[Start]:
    """Yield the starts of EASY backfilling. A job starts on its preferred size, or on fewer nodes down to its minimum.

    The reservation of the head is for its minimum size. For a policy that does not decide sizes, the minimum and the
    preferred size of every job are the requested size.

    Args:
        narrow: whether a job that would delay the head on the idle nodes may start on the extra nodes.
    """
    yield from heads(state)
    queue = state.queue
    if (head := queue.head) is not None and state.idle and len(queue) > 1:
        shadow, _ = state.reservation(state.jobs.low[head])
        yield from backfill_behind(state, head, _tried(state, head, shadow), narrow=narrow)


def backfill_behind(state: State, head: int, behind: int, *, narrow: bool = False) -> Iterator[Start]:
    """Yield the starts of jobs behind the job `behind` that do not delay `head`; arguments as for `backfill`."""
    jobs, queue = state.jobs, state.queue
    shadow, extra = state.reservation(jobs.low[head])
    while state.idle and (job := queue.first_fit(behind, state.idle, shadow - state.now, extra)) is not None:
        nodes, behind = min(jobs.pref[job], state.idle), job
        in_time = state.now + jobs.limit[job] / jobs.rate(job, nodes) <= shadow
        if narrow and not in_time and jobs.low[job] <= extra:
            nodes = min(nodes, extra)
        if in_time or nodes <= extra:
            yield Start(job, nodes)
            extra -= 0 if in_time else nodes


def backfill_outside(state: State) -> Iterator[Start]:
    """Yield the starts of EASY backfilling with named nodes reserved for the head, for rigid jobs."""
    jobs, queue = state.jobs, state.queue
    yield from heads(state, lowest=True)
    head = queue.head
    if head is None or not state.idle or len(queue) == 1:
        return
    shadow, reserved = _reservation(state, jobs.nodes[head])
    behind, idle = _tried(state, head, shadow), mask_of(state.cluster.idle)
    while idle:
        outside = idle & ~reserved
        job = queue.first_fit(behind, idle.bit_count(), shadow - state.now, outside.bit_count())
        if job is None:
            return
        nodes, behind = jobs.nodes[job], job
        free = idle if state.now + jobs.limit[job] <= shadow else outside
        if nodes <= free.bit_count():
            chosen = lowest(free, nodes)
            idle &= ~chosen
            yield Start(job, nodes, on=nodes_of(chosen))


def _reservation(state: State, need: int) -> tuple[float, int]:
    """Return the shadow time for a job that needs `need` nodes, more than are idle, and the mask of its nodes.

    The nodes are the lowest-numbered ones of those idle at the shadow time. If lost nodes are needed, the shadow time
    is infinite, and no nodes are reserved.
    """
    shadow, free = state.shadow(need)
    return shadow, lowest(free, need) if free else 0


def _tried(state: State, head: int, shadow: float) -> int:
    """Return the last of the jobs that need not be tried: `head`, or a later job.

    The jobs that arrived before the last call were tried when no fewer nodes were idle and the shadow time was no
    earlier, so that only new arrivals are tried. There are two exceptions. A job that may start on fewer nodes than it
    prefers may fit into the extra nodes if other jobs have started since. If the shadow time is now, the number of
    extra nodes grows with time.
    """
    as_then = not state.freed and (state.settled or not state.jobs.adaptable)
    if state.queue.by_submission and as_then and shadow > state.now:
        return max(head, state.arrived[0] - 1) if state.arrived else state.queue.last
    return head
