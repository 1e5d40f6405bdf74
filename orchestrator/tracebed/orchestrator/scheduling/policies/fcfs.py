"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Start, State


@dataclass(frozen=True)
class Fcfs(ParameterTable):
    """Jobs start in queue order. If the head of the queue does not fit, no later job starts."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        yield from heads(state)


def heads(state: State, *, lowest: bool = False) -> Iterator[Start]:
    """Yield the start of the head of the queue while it fits, on its preferred size or on fewer nodes.

    Args:
        lowest: whether the nodes are the lowest-numbered idle ones, under every placement.
    """
    jobs, queue = state.jobs, state.queue
    while (head := queue.head) is not None and jobs.low[head] <= state.idle:
        nodes = min(jobs.pref[head], state.idle)
        yield Start(head, nodes, on=tuple(state.cluster.idle[:nodes]) if lowest else ())
