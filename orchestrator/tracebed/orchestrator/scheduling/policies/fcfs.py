"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracebed.orchestrator.scheduling.state import Decision, Start, State


@dataclass(frozen=True)
class Fcfs:
    """Starts the head of the queue while it fits; then nobody."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts."""
        while (head := state.queue.head) is not None and (nodes := state.jobs.nodes[head]) <= state.idle:
            yield Start(head, nodes)
